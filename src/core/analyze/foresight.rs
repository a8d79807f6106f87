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
mod change;
mod cold;
pub mod demand;
mod dispersion;
mod drift;
pub mod estimate;
mod explain;
pub mod gateway;
mod held;
mod jump;
mod late;
mod learn;
mod lengths;
pub mod lesson;
pub mod outlier;
pub mod pace;
pub mod policy;
mod rollout;
mod routing;
mod saturated;
pub mod saved;
pub mod schedule;
mod seen;
pub mod standby;
pub mod starving;
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
use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::arrivals::ArrivalHistory;
use crate::analyze::foresight::budget::{BudgetAddition, FirstTokens};
use crate::analyze::foresight::capacity::{CapacityBound, ReplicaCapacity};
use crate::analyze::foresight::card::{Card, CardStore, ImportedCards};
use crate::analyze::foresight::cold::ColdFleet;
use crate::analyze::foresight::demand::{
    DemandInputs, ReplicaQueue, RequiredCapacity, Reserve, Smoothing,
};
use crate::analyze::foresight::drift::Mixes;
use crate::analyze::foresight::estimate::CapacityEstimate;
use crate::analyze::foresight::gateway::{GatewayLoad, GatewaySignals};
use crate::analyze::foresight::lengths::RequestLengths;
use crate::analyze::foresight::outlier::SlowestReplica;
use crate::analyze::foresight::policy::Rounding;
use crate::analyze::foresight::routing::RouterWeights;
use crate::analyze::foresight::schedule::Week;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::standby::{Bridge, Standby};
use crate::analyze::foresight::starving::{ArrivalShare, Starvation};
use crate::analyze::foresight::waking::WakeQueue;
use crate::fleet::{ModelKey, ReplicaKey, Role, VariantKey, VariantSpec};
use crate::observe::histogram::Histogram;
use crate::observe::stride::IntervalDelta;
use crate::units::{Fraction, Replicas, Requests, Seconds, Tokens};

pub use crate::analyze::foresight::explain::DemandForecast;
pub use crate::analyze::foresight::held::HoldWindow;
pub use crate::analyze::foresight::policy::ForesightPolicy;

/// The counters of one replica since the last call.
#[derive(Clone, Debug)]
pub struct ReplicaStrides<'a> {
    /// The key of the replica.
    pub replica: &'a ReplicaKey,
    /// The differences between consecutive scrapes, in order of time.
    pub strides: &'a [IntervalDelta],
    /// Requests that wait at the replica; `None` if that is not known.
    pub waiting: Option<Requests>,
    /// Requests that the replica runs.
    pub running: Option<Requests>,
}

/// One variant and the counters of its replicas.
#[derive(Clone, Debug)]
pub struct VariantStrides<'a> {
    /// The variant's specification.
    pub spec: &'a VariantSpec,
    /// Replicas that exist or are requested.
    pub current: Replicas,
    /// Replicas among them that do not serve yet.
    pub pending: Replicas,
    /// Replicas that stay only until others serve, and do not count as supply.
    pub leaving: Replicas,
    /// Replicas that serve and do not report their load.
    pub silent: Replicas,
    /// Replicas that the variant may have in addition, and that can be relied on to start.
    pub room: Replicas,
    /// The measured start-up time of its replicas; `None` while none was measured.
    pub startup: Option<Seconds>,
    /// The longest time that a start has taken, or has taken so far, beyond the measured time.
    pub slowest_start: Option<Seconds>,
    /// Expected losses per hour for each replica.
    pub losses: f64,
    /// The limits that its engines are configured with.
    pub told: EngineLimits,
    /// The complete arguments of its engines, if known. They distinguish kinds of engines.
    pub arguments: Option<&'a Arc<EngineArguments>>,
    /// Times to first token, over about a minute.
    pub ttft: Option<&'a Histogram>,
    /// Its measured replicas, in the order of their keys.
    pub replicas: Vec<ReplicaStrides<'a>>,
    /// Counters of replicas that are not ready, and may still get requests.
    pub unready: Vec<&'a [IntervalDelta]>,
}

/// The configured limits of engines that bound their capacity, as far as they are known.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EngineLimits {
    /// Requests in a batch.
    pub seats: Option<Requests>,
    /// Tokens in an iteration. An engine without this setting on a large accelerator may compute
    /// more, which its counters show.
    pub budget: Option<Tokens>,
}

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
    "no number of replicas keeps the time between tokens at {:.1} ms, of which {:.0} % may be \
     used: a request alone on a replica already takes about {:.1} ms",
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

/// Everything that is learned, for all models.
#[derive(Clone, Debug, Default)]
pub struct Foresight {
    demands: BTreeMap<(ModelKey, Role), RoleDemand>,
    variants: BTreeMap<VariantKey, VariantModel>,
    learned: BTreeMap<ModelKey, Timestamp>,
    /// Sizes of fleets that are overloaded while no capacity is known.
    cold: BTreeMap<ModelKey, ColdFleet>,
    /// The instant since which requests queue for models that no replica serves.
    unserved: BTreeMap<ModelKey, Timestamp>,
    /// The instant since which replicas that use a card have had no request.
    unused: BTreeMap<VariantKey, Timestamp>,
    /// The arrivals of each variant.
    shares: BTreeMap<VariantKey, ArrivalShare>,
    shelf: CardStore,
    imported: ImportedCards,
}

/// The demand for one role of one model.
#[derive(Clone, Debug, Default)]
struct RoleDemand {
    arrivals: ArrivalHistory,
    /// Arrivals at prefill, while they are more than those at decode.
    upstream: Option<ArrivalHistory>,
    hold: HoldWindow,
    /// The need with the backlog, which disappears once the backlog is worked off.
    queue: HoldWindow,
    /// The load that standby bridges until replicas that start slowly serve.
    bridge: HoldWindow,
    lengths: RequestLengths,
    mixes: Mixes,
    budget: BudgetAddition,
    week: Week,
    router: RouterWeights,
}

/// The instants of a look at a model, and the queue before its replicas.
#[derive(Clone, Copy)]
struct ModelLook {
    now: Timestamp,
    /// The instant up to which every replica has reported.
    through: Timestamp,
    front: GatewaySignals,
    /// The queue that no replica works off.
    unserved: Option<WakeQueue>,
}

/// The variants of one role, with their capacity per replica.
struct RoleFleet<'a> {
    role: Role,
    variants: Vec<(&'a VariantStrides<'a>, Option<ReplicaCapacity>)>,
    /// True if replicas use a card, which does not permit scale-down.
    by_card: bool,
}

/// The capacity of the replicas of one role, in requests per second.
struct Rates {
    /// The capacity of a replica of the weakest variant.
    least: f64,
    /// The mean capacity per replica.
    carries: f64,
    /// The capacity of all measured replicas.
    there: f64,
    /// The share of the engines' capacity that the router leaves unused.
    unused: f64,
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
    /// Forgets models and variants that are gone, and cards that have not been updated for long.
    pub fn retain(
        &mut self,
        now: Timestamp,
        models: &BTreeSet<&ModelKey>,
        variants: &BTreeSet<&VariantKey>,
    ) {
        self.shelf.forget(now);
        self.demands.retain(|(model, _), _| models.contains(model));
        self.variants.retain(|variant, _| variants.contains(variant));
        self.learned.retain(|model, _| models.contains(model));
        self.cold.retain(|model, _| models.contains(model));
        self.unserved.retain(|model, _| models.contains(model));
        self.unused.retain(|variant, _| variants.contains(variant));
        self.shares.retain(|variant, _| variants.contains(variant));
    }

    /// The slowest replica of each variant.
    fn slowest(&self, variants: &[VariantStrides<'_>]) -> BTreeMap<VariantKey, SlowestReplica> {
        let keys = variants.iter().map(|variant| &variant.spec.key);
        keys.filter_map(|key| Some((key.clone(), self.variants.get(key)?.slowest()?))).collect()
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
    foresight.begin(model, variants);
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
        return found
            .unwrap_or_else(|| foresight.start_cold(now, policy, model, variants, front.queued));
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

        match found {
            Some(found) => drop(foreseen.insert(side.role, found)),
            None => withheld = Some(SpareWithheld::DemandUnknown),
        }
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
        starving: foresight.starving(&sides, through, policy),
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

// === impl ReplicaStrides ===

impl ReplicaStrides<'_> {
    /// Requests that it runs and that wait at it; `None` while it does not report the running ones.
    fn in_flight(&self) -> Option<f64> {
        Some(self.running?.requests() + self.waiting.map_or(0.0, Requests::requests))
    }
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// The number of its measured replicas.
    fn measured(&self) -> f64 {
        self.replicas.len() as f64
    }

    /// The number of its replicas that exist or are requested.
    fn count(&self) -> f64 {
        f64::from(self.current.count())
    }
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

/// Requests per second below which a replica has no capacity: no replica count would be enough.
const RATE_MIN: f64 = 1e-4;

// === impl RoleFleet ===

impl<'a> RoleFleet<'a> {
    /// Returns true if the capacity of some variant is known. While any variant has replicas, the
    /// card of a variant without replicas does not count.
    fn is_known(
        &self,
        all: &[VariantStrides<'_>],
        cards: &BTreeMap<VariantKey, Arc<Card>>,
    ) -> bool {
        let staffed = all.iter().any(|it| it.current > Replicas::ZERO);
        self.known().any(|(it, _)| {
            let absent = staffed && it.current == Replicas::ZERO;
            !(absent && cards.contains_key(&it.spec.key))
        })
    }

    /// The variants without capacity because of the target for the time between tokens.
    fn floors(&self, policy: &ForesightPolicy) -> impl Iterator<Item = (VariantKey, Floor)> {
        self.variants.iter().filter_map(|(variant, carried)| {
            let ReplicaCapacity { rate, bound, alone, .. } = (*carried)?;
            let floor = Floor { target: policy.itl?, alone, share: policy.limit_share };
            let is_floor = bound == CapacityBound::Itl && rate.requests_per_second() <= RATE_MIN;
            is_floor.then(|| (variant.spec.key.clone(), floor))
        })
    }

    /// The forecast for these variants, with the work of past requests.
    fn foresee(
        &self,
        look: &ModelLook,
        policy: &ForesightPolicy,
        demand: &mut RoleDemand,
        work: &[f64],
        standby: Option<&Standby<'_>>,
    ) -> Option<DemandForecast> {
        let ModelLook { now, through, front, unserved } = *look;
        let rates = self.rates()?;
        let queues = &self.queues();

        let settles = policy.settles_after(standby::startup(self, policy));
        let startup = standby::startup(self, policy).seconds();
        let horizon = policy.horizon(startup);
        let reserve = standby
            .map(|it| Reserve { horizon: policy.horizon(it.startup.seconds()), room: it.room });

        let raised = self.raise(now, policy, &mut demand.budget);
        let ahead = policy.schedule.and_then(|_| demand.week.ahead(through, horizon));
        let arrivals = demand.upstream.as_ref().unwrap_or(&demand.arrivals);
        let gateway = rates.behind_gateway(policy, front, arrivals.rate(through));

        let Rates { least, carries, unused, .. } = rates;
        let bound = self.variants.iter().find_map(|(_, it)| it.map(|it| it.bound));
        let at_zero = self.variants.iter().all(|(it, _)| it.current == Replicas::ZERO);
        let setting = DemandInputs {
            through,
            horizon,
            reserve,
            carries,
            work,
            policy,
            queues,
            gateway,
            at_zero,
            smoothing: self.smoothing(bound),
            ahead,
            raised,
            absent: self.absent(horizon),
        };

        let need = match unserved {
            Some(queue) => queue.need(arrivals, &setting, self.coming(startup)),
            None => RequiredCapacity::of(arrivals, &setting)?,
        };
        let relief = demand.relieve(now, policy, &need, standby);
        let lasting = demand.held(now, policy, &need, startup);
        // A need from before the scale to zero does not bring a replica back.
        let (since, held) = if at_zero { (now, need.total) } else { lasting };

        let known = demand.arrivals.history(through);
        let mature = known >= settles.seconds() && !self.by_card;
        let ForesightPolicy { used, rounding, .. } = *policy;
        Some(DemandForecast {
            role: self.role,
            need,
            held,
            since,
            least,
            carries,
            unused,
            bound,
            horizon,
            relief,
            mature,
            used,
            rounding,
        })
    }

    /// The share of time in which a replica is absent because it was lost and restarts.
    fn absent(&self, horizon: f64) -> f64 {
        let all: f64 = self.variants.iter().map(|(it, _)| it.count()).sum();
        let lost: f64 = self.variants.iter().map(|(it, _)| it.count() * it.losses).sum();
        if all > 0.0 { lost / all * horizon / 3600.0 } else { 0.0 }
    }

    /// The capacity of the replicas; `None` while none is known.
    fn rates(&self) -> Option<Rates> {
        let least = self.used().map(|(_, it)| it.counts()).min_by(f64::total_cmp)?;
        let replicas: f64 = self.used().map(|(variant, _)| variant.measured()).sum();
        let there: f64 = self.used().map(|(variant, it)| variant.measured() * it.counts()).sum();

        let rates = self.used().map(|(variant, it)| (variant, it.rate.requests_per_second()));
        let engines: f64 = rates.map(|(variant, rate)| variant.measured() * rate).sum();

        // While no replica was measured, the weakest variant is the best guess of the capacity.
        let carries = if replicas > 0.0 { there / replicas } else { least };
        let unused = if engines > 0.0 { 1.0 - there / engines } else { 0.0 };
        Some(Rates { least, carries, there, unused })
    }

    /// The mechanism that evens out unequal arrivals, given the limit that binds replicas.
    fn smoothing(&self, bound: Option<CapacityBound>) -> Smoothing {
        match bound {
            Some(CapacityBound::Budget | CapacityBound::Ttft) => Smoothing::Queue,
            Some(CapacityBound::Itl | CapacityBound::Seats | CapacityBound::Kv) | None => {
                let stays = self.known().map(|(_, it)| it.stay.seconds());
                Smoothing::Stay(stays.fold(0.0, f64::max))
            }
        }
    }

    /// The queue at each replica.
    fn queues(&self) -> Vec<ReplicaQueue> {
        let mut queues = Vec::new();
        for (variant, carried) in self.known() {
            let carries = carried.rate.requests_per_second();
            let waiting = variant.replicas.iter().filter_map(|replica| replica.waiting);
            queues.extend(waiting.map(|it| ReplicaQueue { waiting: it.requests(), carries }));
        }

        queues
    }

    /// The variants whose capacity per replica is known.
    fn known(&self) -> impl Iterator<Item = (&VariantStrides<'a>, ReplicaCapacity)> {
        self.variants.iter().filter_map(|(variant, it)| Some((*variant, (*it)?)))
    }

    /// The variants among them whose capacity counts as more than nothing.
    fn used(&self) -> impl Iterator<Item = (&VariantStrides<'a>, ReplicaCapacity)> {
        self.known().filter(|(_, it)| it.counts() > RATE_MIN)
    }

    /// The addition from the error budget, as a share of the need.
    fn raise(&self, now: Timestamp, policy: &ForesightPolicy, budget: &mut BudgetAddition) -> f64 {
        let Some(dial) = &policy.error_budget else { return 0.0 };
        // Decode replicas get only requests that already have their first token.
        let settled = self.variants.iter().all(|(variant, _)| variant.pending == Replicas::ZERO);
        let judges = self.role != Role::Decode && settled;

        let firsts = judges.then(|| {
            let histograms = self.variants.iter().filter_map(|(variant, _)| variant.ttft);
            FirstTokens::of(histograms, policy.ttft.seconds())
        });
        budget.judge(now, dial, firsts)
    }
}

// === impl Rates ===

impl Rates {
    /// The queue at the gateway, with the rate that it needs in addition.
    fn behind_gateway(
        &self,
        policy: &ForesightPolicy,
        front: GatewaySignals,
        arriving: Option<f64>,
    ) -> Option<gateway::GatewayBacklog> {
        let gateway = policy.gateway?;
        let queued = front.queued?.requests.requests();
        let load = GatewayLoad { arriving: arriving?, carries: self.carries, supply: self.there };
        gateway::GatewayBacklog::of(queued, &gateway, load, policy.ttft.seconds())
    }
}

// === impl DemandForecast ===

impl DemandForecast {
    /// The shortfall and the headroom with this supply.
    fn judge(&self, supply: Totals) -> Totals {
        let Rounding { excess, spare } = self.rounding;
        let wanted = self.held - excess.fraction() * self.least;
        let required = wanted - supply.anticipated.amount();

        let one_less = self.held + (1.0 + spare.fraction()) * self.least;
        let safe = one_less <= supply.supply.amount() * (1.0 + EPSILON);
        let left = if safe && self.mature { supply.supply.amount() - wanted } else { 0.0 };

        Totals {
            demand: amount(self.held),
            required: amount(required),
            spare: amount(left),
            ..supply
        }
    }
}

/// The rounding of sums, so that a count that is reached exactly counts as reached.
const EPSILON: f64 = 1e-9;
