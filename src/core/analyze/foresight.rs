//! Foresight: forecasts the demand for the instant at which a replica requested now is ready, and
//! compares it with the measured capacity per replica.
//!
//! [`analyze`] turns the counters of engines since the last call into a [`ForesightAnalysis`]: a
//! [`CapacityReport`] in requests per second, and its explanation. [`Foresight`] keeps everything
//! that it learns.
//!
//! Nobody tells it a capacity. [`pace`] learns the time of an iteration. [`capacity`] derives from
//! it the rate at which a replica still meets the target for the time between tokens. [`arrivals`]
//! counts requests, and [`demand`] forecasts how far their rate may grow. A need is held for two
//! start-up times ([`HoldWindow`]). A replica that is removed and needed again costs its start, and
//! requests are late meanwhile.
//!
//! # Rounding
//!
//! A fleet of one variant, with `N` replicas and a target of `t` replicas, scales up to
//! `ceil(t - 0.05)`. It scales down to that only when `ceil(t + 0.2) < N`. So a load between two
//! counts changes nothing.
//!
//! # Units
//!
//! Requests per second. While no capacity per replica is known, requests in flight.
//!
//! # Domain
//!
//! Arrivals that a counter shows within a minute, and start-up times up to an hour. After a jump
//! without any sign in advance, the requests that arrive before the new replicas are ready are
//! lost. No autoscaler avoids that.
//!
//! # Source
//!
//! The learner: regression on iterations. The forecast: quantiles of the load's own past. The hold:
//! ski rental (Karlin et al. 1988): rent until the rent paid equals the price.

pub mod admissible;
pub mod arrivals;
mod batch;
pub mod budget;
pub mod capacity;
pub mod card;
pub mod cards;
mod change;
mod cold;
pub mod demand;
mod dispersion;
mod drift;
pub mod estimate;
mod explain;
mod forecast;
pub mod gateway;
mod held;
mod jump;
mod late;
mod learn;
mod lengths;
pub mod lesson;
pub mod limits;
pub mod outlier;
pub mod overlap;
pub mod pace;
pub mod policy;
mod prompt_lesson;
mod ramp;
pub mod request_profile;
mod role_demand;
mod role_fleet;
mod rollout;
mod routing;
mod saturated;
pub mod saved;
pub mod schedule;
mod seen;
pub mod standby;
pub mod starving;
mod state;
mod strides;
mod unused;
mod variant_capacity;
mod waking;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, VariantCapacity, amount,
};
use crate::analyze::foresight::capacity::{CapacityBound, RATE_MIN, ReplicaCapacity};
use crate::analyze::foresight::card::Card;
use crate::analyze::foresight::cold::cold_start;
use crate::analyze::foresight::estimate::CapacityEstimate;
use crate::analyze::foresight::forecast::ModelLook;
use crate::analyze::foresight::gateway::{GatewaySignals, QueueReading};
use crate::analyze::foresight::outlier::SlowestReplica;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::standby::{Bridge, Standby};
use crate::analyze::foresight::starving::{Starvation, starving_variants};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Fraction, Seconds};

pub use crate::analyze::foresight::explain::DemandForecast;
pub use crate::analyze::foresight::held::HoldWindow;
pub use crate::analyze::foresight::policy::ForesightPolicy;
pub use crate::analyze::foresight::state::Foresight;
pub use crate::analyze::foresight::strides::{EngineLimits, ReplicaStrides, VariantStrides};

/// The findings about one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct ForesightAnalysis {
    /// The capacity, demand, shortfall and headroom.
    pub report: CapacityReport,
    /// Their explanation, for the model or each of its roles.
    pub foreseen: BTreeMap<Role, DemandForecast>,
    /// The reason why no headroom is reported; `None` if headroom counts.
    pub spare_withheld: Option<SpareWithheld>,
    /// Variants that miss the target for the time between tokens with any replica count.
    pub floors: BTreeMap<VariantKey, Floor>,
    /// The load that standby handles until others serve. The shortfall does not count on it.
    pub bridges: BTreeMap<VariantKey, Bridge>,
    /// The capacity cards of variants whose own replicas have not taught enough.
    pub cards: BTreeMap<VariantKey, Arc<Card>>,
    /// The capacity per replica of each variant, as far as it is known.
    pub estimates: BTreeMap<VariantKey, CapacityEstimate>,
    /// The slowest replica of each variant with enough replicas to compare.
    pub slowest: BTreeMap<VariantKey, SlowestReplica>,
    /// The variants whose card does not permit scale-down.
    pub bound: BTreeSet<VariantKey>,
    /// The variants that starve while others have room.
    pub starving: BTreeMap<VariantKey, Starvation>,
}

/// A target that even a request alone on a replica misses.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display(
    "the ITL target of {:.1} ms (with {:.0}% usable) is unreachable at any number of replicas: a \
     request alone on a replica takes about {:.1} ms",
    1000.0 * target.seconds(),
    100.0 * share.fraction(),
    1000.0 * alone.seconds()
)]
pub struct Floor {
    /// The target for the mean time between tokens.
    pub target: Seconds,
    /// The time between tokens of a request alone on a replica.
    pub alone: Seconds,
    /// The share of the target that may be used.
    pub share: Fraction,
}

// === impl ForesightAnalysis ===

impl ForesightAnalysis {
    /// The findings while no capacity is known.
    fn without_capacity(report: CapacityReport) -> Self {
        Self {
            report,
            foreseen: BTreeMap::new(),
            spare_withheld: Some(SpareWithheld::DemandUnknown),
            floors: BTreeMap::new(),
            bridges: BTreeMap::new(),
            cards: BTreeMap::new(),
            estimates: BTreeMap::new(),
            slowest: BTreeMap::new(),
            bound: BTreeSet::new(),
            starving: BTreeMap::new(),
        }
    }
}

// === impl Foresight ===

impl Foresight {
    /// Sets the share of the capacity per replica that the router lets each variant use.
    fn route(
        &mut self,
        model: &ModelKey,
        through: Timestamp,
        policy: &ForesightPolicy,
        sides: &mut BTreeMap<Role, RoleFleet<'_>>,
    ) {
        let Some(routing) = &policy.routing else { return };
        for side in sides.values_mut() {
            let Some(demand) = self.demands.get_mut(&(model.clone(), side.role)) else { continue };
            let need = demand.hold.last().unwrap_or_default();
            let usable = demand.router.usable(through, side, need, routing);

            for ((_, carried), usable) in side.variants.iter_mut().zip(usable) {
                if let Some(carried) = carried {
                    carried.usable = usable;
                }
            }
        }
    }

    /// The need of a model of which only the queues are known.
    fn start_cold(
        &mut self,
        now: Timestamp,
        policy: &ForesightPolicy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        queued: Option<QueueReading>,
    ) -> CapacityReport {
        // Engines that don't report the time of outputs never produce lessons. Another analyzer
        // sizes them for good, and must not be interrupted.
        let mut seen = variants.iter().filter_map(|it| self.variants.get(&it.spec.key));
        let teaches = seen.any(VariantModel::counts_time);
        let dial = policy.cold_start.as_ref().filter(|_| teaches);

        let has_answers = self.has_answers(model);
        let mut of_role: BTreeMap<Role, Vec<&VariantStrides<'_>>> = BTreeMap::new();
        for variant in variants {
            of_role.entry(variant.spec.role).or_default().push(variant);
        }

        let mut reports = BTreeMap::new();
        for (role, variants) in of_role {
            let base = self.cold.entry((model.clone(), role)).or_default();
            base.renew(now, &variants, has_answers);

            // Requests in front of the replicas come to prefill first.
            let at_gateway = queued.filter(|_| role != Role::Decode);
            reports.insert(role, cold_start(dial, &variants, at_gateway, base));
        }

        CapacityReport::of_roles(Unit::RequestsInFlight, reports)
    }

    /// Returns true if enough answers of a model have ended to know their lengths.
    fn has_answers(&self, model: &ModelKey) -> bool {
        self.demands.iter().any(|((of, _), it)| of == model && it.lengths.telling().is_some())
    }
}

/// Learns from the counters of a model's replicas, and forecasts the demand for them.
///
/// `through` is the instant up to which every replica has reported. `reported` has the requests
/// that are queued before any replica.
pub fn analyze(
    now: Timestamp,
    through: Timestamp,
    reported: GatewaySignals,
    policy: &ForesightPolicy,
    model: &ModelKey,
    variants: &[VariantStrides<'_>],
    foresight: &mut Foresight,
) -> ForesightAnalysis {
    let front = if policy.gateway.is_some() { reported } else { GatewaySignals::UNSEEN };
    foresight.begin(policy.share_cards, model, variants);
    foresight.learn(policy, model, variants, through, front);
    foresight.keep_cards(now, policy, model, variants);
    foresight.note_unused(now, variants);

    let bound = foresight.bound_by_cards(now, variants);
    let mut sides = foresight.sides(policy, model, variants, &bound);
    foresight.route(model, through, policy, &mut sides);

    let cards = foresight.cards_of(variants);
    let unserved = foresight.unserved(now, model, variants, front);
    if !sides.values().any(|side| side.is_known(variants, &cards)) {
        let found = unserved.and_then(|it| it.by_places(policy, variants));
        let report = found
            .unwrap_or_else(|| foresight.start_cold(now, policy, model, variants, front.queued));
        return ForesightAnalysis::without_capacity(report);
    }

    let look = ModelLook { now, through, front, unserved };
    let floors = sides.values().flat_map(|side| side.floors(policy)).collect();
    let mut foreseen = BTreeMap::new();
    let mut totals = BTreeMap::new();
    let mut withheld = None;
    let mut capacities = Vec::new();
    let mut bridges = BTreeMap::new();
    for side in sides.values() {
        foresight.look_upstream(through, model, side.role);
        let work = foresight.work(policy, model, side);
        let demand = foresight.demands.entry((model.clone(), side.role)).or_default();
        let standby = Standby::of(side, policy);
        let found = side.foresee(&look, policy, demand, &work, standby.as_ref());

        let bridge = demand.bridged(found.as_ref());
        bridges.extend(standby.map(|it| it.bridge(bridge)).unwrap_or_default());

        for (variant, carried) in &side.variants {
            capacities.push(capacity_of(variant, *carried, &cards));
        }
        let supply = Totals::of(&capacities[capacities.len() - side.variants.len()..]);
        let judged = found.as_ref().map_or(supply, |found| found.judge(supply));
        totals.insert(side.role, judged);

        if found.is_none() || demand.is_uncounted(through) {
            withheld = Some(SpareWithheld::DemandUnknown);
        }
        foreseen.extend(found.map(|found| (side.role, found)));
    }

    let report = report_of(capacities, totals);
    ForesightAnalysis {
        report: if withheld.is_some() { report.without_spare() } else { report },
        foreseen,
        spare_withheld: withheld,
        floors,
        bridges,
        cards,
        estimates: foresight.estimates(policy, model, &sides),
        slowest: foresight.slowest(variants),
        bound,
        starving: starving_variants(&sides, through, policy, &mut foresight.shares),
    }
}

/// The report on all roles of a model.
fn report_of(
    mut capacities: Vec<VariantCapacity>,
    totals: BTreeMap<Role, Totals>,
) -> CapacityReport {
    capacities.sort_by(|a, b| a.key.cmp(&b.key));
    let total = totals.values().copied().sum();
    let apart = totals.keys().any(|role| *role != Role::Both);
    let roles = if apart { totals } else { BTreeMap::new() };
    CapacityReport { unit: Unit::RequestsPerSecond, variants: capacities, total, roles }
}

fn capacity_of(
    variant: &VariantStrides<'_>,
    carried: Option<ReplicaCapacity>,
    cards: &BTreeMap<VariantKey, Arc<Card>>,
) -> VariantCapacity {
    let able = carried.filter(|it| it.rate.requests_per_second() > RATE_MIN);
    let rate = able.map(|it| it.counts());

    let current = variant.staying();
    let pending = variant.pending.min(current);
    let replicas = current.beyond(pending);

    VariantCapacity {
        key: variant.spec.key.clone(),
        role: variant.spec.role,
        cost: variant.spec.cost,
        replicas,
        pending,
        per_replica: rate.map(amount),
        // The forecast is for all variants of a role together.
        demand: amount(0.0),
        confidence: if cards.contains_key(&variant.spec.key) {
            Confidence::Assumed
        } else if variant.replicas.is_empty() {
            Confidence::Remembered
        } else {
            Confidence::Measured
        },
    }
}

// === impl RoleFleet ===

impl RoleFleet<'_> {
    /// The variants without capacity because of the target for the time between tokens.
    fn floors(&self, policy: &ForesightPolicy) -> impl Iterator<Item = (VariantKey, Floor)> {
        self.variants.iter().filter_map(|(variant, carried)| {
            let ReplicaCapacity { rate, bound, alone, .. } = (*carried)?;
            let floor = Floor { target: policy.itl?, alone, share: policy.limit_share };
            let is_floor = bound == CapacityBound::Itl && rate.requests_per_second() <= RATE_MIN;
            is_floor.then(|| (variant.spec.key.clone(), floor))
        })
    }
}
