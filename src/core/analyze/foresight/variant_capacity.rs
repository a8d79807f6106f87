//! The capacity per replica of each variant, which decisions use. It follows from the learned time
//! of an iteration, the lengths of requests and the limits of its engine.
//!
//! `Foresight::sides` decides it. Its uncertainty, which no decision uses, is in [`estimate`].
//! Other analyzers have their own: `tokens.rs`, `throughput.rs`, `queueing.rs`. The formulas
//! are in [`capacity`] and [`saturated`], which corrects them by the throughput of full replicas.
//! The same inputs give the elasticity of a request's work to its lengths, for [`drift`].
//!
//! [`estimate`]: crate::analyze::foresight::estimate
//! [`capacity`]: crate::analyze::foresight::capacity
//! [`saturated`]: crate::analyze::foresight::saturated
//! [`drift`]: crate::analyze::foresight::drift

use std::collections::{BTreeMap, BTreeSet};

use crate::analyze::foresight::capacity::{
    CapacityBound, RATE_MIN, ReplicaCapacity, carried, usual_itl,
};
use crate::analyze::foresight::demand::strides;
use crate::analyze::foresight::drift::{Elasticity, Mix};
use crate::analyze::foresight::limits::{CapacityLimits, FirstToken};
use crate::analyze::foresight::pace::IterationCost;
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::standby;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{RequestRate, Tokens};

/// The inputs for the capacity of one replica.
pub(super) struct CapacityBasis<'a> {
    pub(super) seen: &'a VariantModel,
    pub(super) iteration: IterationCost,
    pub(super) requested: RequestProfile,
    pub(super) limits: CapacityLimits,
}

// === impl Foresight ===

impl Foresight {
    /// The variants of each role with their capacity per replica. The cards of the `bound` variants
    /// do not permit scale-down.
    pub(super) fn sides<'a>(
        &self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        variants: &'a [VariantStrides<'a>],
        bound: &BTreeSet<VariantKey>,
    ) -> BTreeMap<Role, RoleFleet<'a>> {
        let mut sides: BTreeMap<Role, RoleFleet<'_>> = BTreeMap::new();
        for variant in variants {
            let role = variant.spec.role;
            let side = sides.entry(role).or_insert_with(|| RoleFleet {
                role,
                variants: Vec::new(),
                by_card: false,
            });
            side.by_card |= bound.contains(&variant.spec.key);

            let known = self.known(policy, model, variant);
            side.variants.push((variant, known.and_then(|it| it.carried())));
        }

        sides
    }

    /// The work of the past requests that the forecast uses, if their lengths have changed within a
    /// start-up time.
    pub(super) fn work(
        &self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        side: &RoleFleet<'_>,
    ) -> Vec<f64> {
        self.drifted(policy, model, side).unwrap_or_default()
    }

    fn drifted(
        &self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        side: &RoleFleet<'_>,
    ) -> Option<Vec<f64>> {
        let drift = policy.drift?;
        let demand = self.demands.get(&(model.clone(), side.role))?;
        let largest = side.known().max_by_key(|(variant, _)| variant.current)?;
        let known = self.known(policy, model, largest.0)?;

        let horizon = policy.horizon(standby::startup(side, policy).seconds());
        let before =
            demand.mixes.drifted(strides(horizon), &known.requested, &demand.lengths, drift)?;

        let elasticity = known.elasticity(before)?;
        let upstream = demand.upstream.as_ref().map(|it| &it.arrivals);
        let arrivals = upstream.unwrap_or(&demand.arrivals);
        Some(demand.mixes.weights(arrivals.points(), elasticity))
    }

    /// The inputs for the capacity per replica of a variant.
    pub(super) fn known(
        &self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        variant: &VariantStrides<'_>,
    ) -> Option<CapacityBasis<'_>> {
        let VariantStrides { spec, told, .. } = variant;
        let seen = self.variants.get(&spec.key)?;
        let iteration = seen.iteration()?;
        let shared = &self.demands.get(&(model.clone(), spec.role))?.lengths;
        let requested = seen.requested(shared)?;

        let itl = policy.itl.or_else(|| usual_itl(iteration, requested.pieces));
        let first = FirstToken {
            within: policy.ttft,
            per_token: policy.ttft_per_token,
            long: policy.long_prompt,
        };

        let limits = CapacityLimits {
            itl: itl.filter(|_| spec.role != Role::Prefill),
            first: (spec.role != Role::Decode).then_some(first),
            seats: seen.seats(told.seats, policy.seats.requests()),
            kv: seen.kv_of_a_rank(),
            budget: seen.budget(told.budget, policy.budget),
            share: policy.limit_share,
            shared: seen
                .dispersion
                .shared(f64::from(variant.current.beyond(variant.pending).count())),
        };

        Some(CapacityBasis { seen, iteration, requested, limits })
    }
}

// === impl CapacityBasis ===

impl CapacityBasis<'_> {
    /// The capacity of one replica.
    fn carried(&self) -> Option<ReplicaCapacity> {
        let Self { seen, iteration, requested, limits } = self;
        let each = carried(*iteration, requested, limits)?;
        let rate = self.corrected(each);
        // A target that is unreachable only by a card may be reachable.
        if seen.card().is_some() && each.rate.requests_per_second() <= RATE_MIN {
            return None;
        }

        Some(ReplicaCapacity { rate: self.of_all_ranks(rate)?, ..each })
    }

    /// The rate of a rank, corrected by the throughput of full replicas. An objective binds below
    /// that.
    fn corrected(&self, each: ReplicaCapacity) -> RequestRate {
        let Self { seen, iteration, requested, limits } = self;
        let Some(throughput) = seen.throughput() else { return each.rate };

        let correction = throughput.correction(*iteration, requested, limits);
        let rate = each.rate.requests_per_second();
        let corrected = match each.bound {
            CapacityBound::Seats | CapacityBound::Kv | CapacityBound::Budget => correction * rate,
            CapacityBound::Itl | CapacityBound::Ttft => {
                let most = correction * limits.most(*iteration, requested);
                rate.min(limits.share.fraction() * most)
            }
        };

        RequestRate::new(corrected).unwrap_or(each.rate)
    }

    /// The elasticity of a request's work to each of its lengths, since they had these values.
    fn elasticity(&self, before: Mix) -> Option<Elasticity> {
        let Self { requested, .. } = self;
        let now = self.rate_with(requested)?;

        let computed = requested.computed.tokens() / requested.prompt.tokens().max(1.0);
        let prompt = Tokens::new(before.prompt)?;
        let shorter_prompt = RequestProfile {
            prompt,
            computed: Tokens::new(before.prompt * computed)?,
            ..*requested
        };
        let shorter_answer = RequestProfile { output: Tokens::new(before.output)?, ..*requested };

        Some(Elasticity {
            prompt: Elasticity::between(
                requested.prompt.tokens(),
                before.prompt,
                now,
                self.rate_with(&shorter_prompt)?,
            ),
            output: Elasticity::between(
                requested.output.tokens(),
                before.output,
                now,
                self.rate_with(&shorter_answer)?,
            ),
        })
    }

    /// The capacity of one rank by the formula, with requests of these lengths.
    fn rate_with(&self, requested: &RequestProfile) -> Option<f64> {
        let each = carried(self.iteration, requested, &self.limits)?;
        Some(each.rate.requests_per_second())
    }

    fn of_all_ranks(&self, rate: RequestRate) -> Option<RequestRate> {
        RequestRate::new(rate.requests_per_second() * f64::from(self.seen.ranks()))
    }
}
