//! Learning: the counters of replicas update the model's arrivals and the records of its variants.

use std::collections::BTreeSet;

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::Serving;
use crate::analyze::foresight::batch::{ReplicaContext, UpstreamQueue};
use crate::analyze::foresight::gateway::{GatewaySignals, QueueReading};
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::role_demand::RoleDemand;
use crate::analyze::foresight::schedule::ArrivalCoverage;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{ModelKey, Role};
use crate::observe::stride::IntervalDelta;
use crate::units::{Replicas, Seconds};

// === impl Foresight ===

impl Foresight {
    /// Learns from the counters of a model's replicas.
    pub(super) fn learn(
        &mut self,
        policy: &ForesightPolicy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        through: Timestamp,
        front: GatewaySignals,
    ) {
        let before = self.learned.insert(model.clone(), through);
        let span = before.and_then(|before| Seconds::from_span(through.duration_since(before)));
        let elapsed = span.unwrap_or_default();
        for ((known, _), demand) in &mut self.demands {
            if known == model {
                demand.lengths.age(elapsed, &policy.memory);
            }
        }

        let behind = behind(policy, variants, front.queued);
        let sized = self.sized_roles(variants);
        for variant in variants {
            let key = (model.clone(), variant.spec.role);
            let demand = self.demands.entry(key).or_default();
            let seen = self.variants.entry(variant.spec.key.clone()).or_default();
            seen.age(elapsed, &policy.memory);
            seen.meet(variant);
            seen.dispersion.look(&variant.replicas, elapsed);

            // Without a capacity its replicas are no supply, so requests to them don't count as
            // demand.
            let counts = seen.iteration().is_some() || !sized.contains(&variant.spec.role);
            if counts {
                demand.arrive(variant);
            }

            let around = ReplicaContext {
                behind,
                told: variant.told,
                budget: seen.budget(variant.told.budget, policy.budget),
                learning: &policy.learning,
            };

            for replica in &variant.replicas {
                for stride in replica.strides {
                    demand.lengths.take(stride);
                    seen.take(replica.replica, stride, around);
                }
            }
        }

        let sight =
            if variants.iter().all(is_heard) { front.sight } else { ArrivalCoverage::Partial };
        let teaches = policy.schedule.is_some().then_some(sight);
        for ((known, role), demand) in &mut self.demands {
            if known == model {
                demand.close(through, front, serving(variants, *role), teaches);
            }
        }
    }

    /// The roles in which some variant with replicas has a known capacity.
    fn sized_roles(&self, variants: &[VariantStrides<'_>]) -> BTreeSet<Role> {
        let mut roles = BTreeSet::new();
        for variant in variants.iter().filter(|it| !it.replicas.is_empty()) {
            let seen = self.variants.get(&variant.spec.key);
            if seen.is_some_and(|seen| seen.iteration().is_some()) {
                roles.insert(variant.spec.role);
            }
        }

        roles
    }

    /// Gives decode the arrivals of prefill, while these are more. All of them reach decode once
    /// more prefill replicas serve, so both roles scale up at the same time.
    pub(super) fn look_upstream(&mut self, through: Timestamp, model: &ModelKey, role: Role) {
        if role != Role::Decode {
            return;
        }

        let upstream = self.demands.get(&(model.clone(), Role::Prefill));
        let prefill = upstream.map(|it| it.arrivals.clone());
        let Some(decode) = self.demands.get_mut(&(model.clone(), role)) else { return };

        let own = decode.arrivals.rate(through).unwrap_or_default();
        decode.upstream = prefill.filter(|it| it.rate(through).is_some_and(|rate| rate > own));
    }
}

// === impl RoleDemand ===

impl RoleDemand {
    /// Adds the requests that came to the replicas of a variant, ready or not.
    fn arrive(&mut self, variant: &VariantStrides<'_>) {
        let ready = variant.replicas.iter().map(|replica| replica.strides);
        let all = ready.chain(variant.unready.iter().copied()).flatten();

        for IntervalDelta { at, elapsed, arrived, unserved, .. } in all {
            if let Some(arrived) = arrived {
                self.arrivals.add(*at, *elapsed, arrived.requests());
            }
            if let Some(unserved) = unserved {
                self.arrivals.add_unserved(*at, *elapsed, unserved.requests());
            }
        }
    }

    /// Closes the time up to this instant, of which all arrivals are known. The schedule learns
    /// from it, if there is one.
    fn close(
        &mut self,
        through: Timestamp,
        front: GatewaySignals,
        serving: Serving,
        teaches: Option<ArrivalCoverage>,
    ) {
        // All roles of a model serve its gateway's queue, and would have served the rejected
        // requests.
        for grown in [front.grown, front.rejected].into_iter().flatten() {
            self.arrivals.add_queued(grown.at, grown.elapsed, grown.requests);
        }

        self.arrivals.note(through, serving);
        self.arrivals.close(through);
        self.mixes.close(self.arrivals.points().back(), &self.lengths);

        if let Some(sight) = teaches {
            self.week.close(self.arrivals.points(), sight);
        }
    }
}

/// The gateway in front of the replicas. It counts as full if it queues more requests than usually
/// wait at all replicas. Each replica then runs as many requests as the gateway allows.
fn behind(
    policy: &ForesightPolicy,
    variants: &[VariantStrides<'_>],
    queued: Option<QueueReading>,
) -> UpstreamQueue {
    let replicas = variants.iter().map(|variant| variant.replicas.len()).sum::<usize>() as f64;
    let usual = policy.backlog.unwrap_or_default().usual.requests();
    match queued {
        Some(queued) if queued.requests.requests() > usual * replicas => UpstreamQueue::FullGateway,
        Some(_) | None => UpstreamQueue::Nothing,
    }
}

/// Returns true if all serving replicas of a variant were measured.
fn is_heard(variant: &VariantStrides<'_>) -> bool {
    let there = variant.current.beyond(variant.pending).count();
    u32::try_from(variant.replicas.len()).is_ok_and(|heard| heard >= there)
}

/// The serving replicas of a role, reporting or not.
fn serving(variants: &[VariantStrides<'_>], role: Role) -> Serving {
    let of_role = variants.iter().filter(|it| it.spec.role == role);
    let reporting: usize = of_role.clone().map(|it| it.replicas.len()).sum();
    let silent: Replicas = of_role.map(|it| it.silent).sum();

    Serving { reporting: reporting as f64, silent: f64::from(silent.count()) }
}
