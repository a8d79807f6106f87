//! Foresight: what will arrive by the time that a replica asked for now is ready, against what one
//! replica carries by its own counters.
//!
//! [`analyze`] turns what engines counted since it was last called into an [`Analysis`]: a
//! [`CapacityReport`] in requests a second, and how it came about. What it learns is kept in
//! [`Foresight`].
//!
//! Nobody tells it a capacity. [`pace`] learns what an iteration takes, [`capacity`] derives from it
//! what a replica carries while the time between tokens keeps its target, [`arrivals`] counts what
//! arrives, and [`demand`] says how much that may become. What was needed once is held for two
//! start-up times ([`Held`]): a replica that is given up and needed again costs its start, and
//! what its start lets down.
//!
//! # Rounding
//!
//! A fleet of one variant, with `N` replicas and a target of `t` replicas, grows to `ceil(t - 0.05)`,
//! and shrinks to it only when `ceil(t + 0.2) < N`. So a load between two numbers changes nothing.
//!
//! # Units
//!
//! Requests a second. While nothing is known of what a replica carries, requests in flight.
//!
//! # Domain
//!
//! Arrivals that somebody counts within a minute, and start-up times up to an hour. A jump that
//! nothing announces loses what arrives before the new replicas are ready, whoever decides.
//!
//! # Source
//!
//! The learner: regression on iterations. The forecast: quantiles of the load's own past. The hold:
//! ski rental (Karlin et al. 1988): rent until what was paid would have bought.

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
use crate::analyze::foresight::arrivals::Arrivals;
use crate::analyze::foresight::budget::{Budget, Firsts};
use crate::analyze::foresight::capacity::{Bound, Carried};
use crate::analyze::foresight::card::{Card, Imported, Shelf};
use crate::analyze::foresight::cold::Base;
use crate::analyze::foresight::demand::{Need, Queue, Reserve, Setting, Smoothing};
use crate::analyze::foresight::drift::Mixes;
use crate::analyze::foresight::estimate::Estimate;
use crate::analyze::foresight::gateway::Front;
use crate::analyze::foresight::held::held_for;
use crate::analyze::foresight::lengths::Lengths;
use crate::analyze::foresight::outlier::Slowest;
use crate::analyze::foresight::policy::Rounding;
use crate::analyze::foresight::routing::RouterWeights;
use crate::analyze::foresight::schedule::Week;
use crate::analyze::foresight::seen::Seen;
use crate::analyze::foresight::standby::{Bridge, Relief, Standby};
use crate::analyze::foresight::starving::{Share, Starvation};
use crate::analyze::foresight::waking::WakeQueue;
use crate::fleet::{ModelKey, ReplicaKey, Role, VariantKey, VariantSpec};
use crate::observe::histogram::Histogram;
use crate::observe::stride::Stride;
use crate::units::{Fraction, Replicas, Requests, Seconds, Tokens};

pub use crate::analyze::foresight::explain::Foreseen;
pub use crate::analyze::foresight::held::Held;
pub use crate::analyze::foresight::policy::Policy;

/// What one replica did since it was last looked at.
#[derive(Clone, Debug)]
pub struct ReplicaStrides<'a> {
    /// Which replica.
    pub replica: &'a ReplicaKey,
    /// What it counted from page to page, in order of time.
    pub strides: &'a [Stride],
    /// Requests that wait at it; `None` when nobody can say.
    pub waiting: Option<Requests>,
    /// Requests that it runs.
    pub running: Option<Requests>,
}

/// One variant and what its replicas did.
#[derive(Clone, Debug)]
pub struct VariantStrides<'a> {
    /// Which variant.
    pub spec: &'a VariantSpec,
    /// Replicas that are there or will be.
    pub current: Replicas,
    /// Those of them that carry nothing yet.
    pub pending: Replicas,
    /// Those that stay only until others carry load, and are no supply.
    pub leaving: Replicas,
    /// Those that serve and do not report how loaded they are.
    pub silent: Replicas,
    /// Replicas that it may have in addition, and that can be relied on to start.
    pub room: Replicas,
    /// How long its replicas take to start, where it was measured.
    pub startup: Option<Seconds>,
    /// The longest that one of them took or has taken so far, beyond what was measured.
    pub slowest_start: Option<Seconds>,
    /// Losses of one of its replicas in an hour, as is to be expected.
    pub losses: f64,
    /// What its engines were told.
    pub told: Told,
    /// All that they were told, where somebody knows: what tells their kind from others.
    pub arguments: Option<&'a Arc<EngineArguments>>,
    /// Times to first token, over about a minute.
    pub ttft: Option<&'a Histogram>,
    /// Its replicas that were measured, in the order of their keys.
    pub replicas: Vec<ReplicaStrides<'a>>,
    /// Counts of replicas that are not ready, and may still get requests.
    pub unready: Vec<&'a [Stride]>,
}

/// What engines were told that bounds what they carry, where somebody knows.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Told {
    /// Requests in a batch.
    pub seats: Option<Requests>,
    /// Tokens in an iteration. One that runs on a large accelerator may be told nothing and take
    /// more, which it shows.
    pub budget: Option<Tokens>,
}

/// What was found of one model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The numbers.
    pub report: CapacityReport,
    /// How they came about, for the model or each of its roles.
    pub foreseen: BTreeMap<Role, Foreseen>,
    /// Why nothing counts as spare whatever the numbers say, if so.
    pub spare_withheld: Option<SpareWithheld>,
    /// Variants of which no number of replicas keeps the time between tokens, by their keys.
    pub floors: BTreeMap<VariantKey, Floor>,
    /// What standby carries until others serve; what is required does not count on it.
    pub bridges: BTreeMap<VariantKey, Bridge>,
    /// The cards that variants go by whose own replicas have not taught enough.
    pub cards: BTreeMap<VariantKey, Arc<Card>>,
    /// What one replica of each variant carries, where that is known.
    pub estimates: BTreeMap<VariantKey, Estimate>,
    /// The slowest replica of each variant with enough replicas to compare.
    pub slowest: BTreeMap<VariantKey, Slowest>,
    /// The variants whose card takes nothing away.
    pub bound: BTreeSet<VariantKey>,
    /// The variants that starve next to idle ones.
    pub starving: BTreeMap<VariantKey, Starvation>,
}

/// A target that a request misses which is alone on a replica.
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
    /// What such a request gets.
    pub alone: Seconds,
    /// The share of the target that may be used.
    pub share: Fraction,
}

/// Everything that is learned, of all models.
#[derive(Clone, Debug, Default)]
pub struct Foresight {
    demands: BTreeMap<(ModelKey, Role), Demand>,
    variants: BTreeMap<VariantKey, Seen>,
    learned: BTreeMap<ModelKey, Timestamp>,
    /// Sizes of fleets that overrun while nothing is known of them.
    cold: BTreeMap<ModelKey, Base>,
    /// Since when requests queue in front of models that no replica serves.
    unserved: BTreeMap<ModelKey, Timestamp>,
    /// Since when replicas that go by a card have had no request.
    unused: BTreeMap<VariantKey, Timestamp>,
    /// What comes to each variant.
    shares: BTreeMap<VariantKey, Share>,
    shelf: Shelf,
    imported: Imported,
}

/// What is asked of one role of one model.
#[derive(Clone, Debug, Default)]
struct Demand {
    arrivals: Arrivals,
    /// Arrivals at prefill, while more come there than get to decode.
    upstream: Option<Arrivals>,
    hold: Held,
    /// What is needed with what waits, which is gone once it is worked off.
    queue: Held,
    /// What is missing until what starts slowly serves.
    bridge: Held,
    lengths: Lengths,
    mixes: Mixes,
    budget: Budget,
    week: Week,
    router: RouterWeights,
}

/// What the variants of one role are and carry.
struct Side<'a> {
    role: Role,
    variants: Vec<(&'a VariantStrides<'a>, Option<Carried>)>,
    /// Whether replicas go by a card, which takes nothing away.
    by_card: bool,
}

/// What the replicas of one role carry, in requests a second.
struct Rates {
    /// One of the weakest.
    least: f64,
    /// One of them on average.
    carries: f64,
    /// All that are there.
    there: f64,
    /// The share of what their engines could carry that the router leaves unused.
    unused: f64,
}

// === impl Analysis ===

impl Analysis {
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
    /// Forgets models and variants that are gone, and cards that nobody has added to for long.
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
    fn slowest(&self, variants: &[VariantStrides<'_>]) -> BTreeMap<VariantKey, Slowest> {
        let keys = variants.iter().map(|variant| &variant.spec.key);
        keys.filter_map(|key| Some((key.clone(), self.variants.get(key)?.slowest()?))).collect()
    }
}

/// Learns from what the replicas of a model did, and says what they will be asked for.
///
/// `through` is the instant up to which every replica has been heard, and `front` what is known of
/// requests that none of them has.
pub fn analyze(
    now: Timestamp,
    (through, front): (Timestamp, Front),
    policy: &Policy,
    model: &ModelKey,
    variants: &[VariantStrides<'_>],
    foresight: &mut Foresight,
) -> Analysis {
    let front = if policy.gateway.is_some() { front } else { Front::UNSEEN };
    foresight.begin(model, variants);
    foresight.learn(policy, model, variants, (through, front));
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
        let demanded = (&mut *demand, &work[..], standby.as_ref());
        let found = side.foresee(now, (through, front), policy, demanded, unserved);
        // While nobody can say what arrives, what bridges keeps what it carries.
        let bridge = match &found {
            Some(found) => found.relief.map(|relief| relief.bridge),
            None => demand.bridge.last(),
        };
        let bridge = bridge.unwrap_or_default();
        bridges.extend(standby.map(|it| it.bridge(bridge)).unwrap_or_default());
        let capacity = |(variant, it): &(&VariantStrides<'_>, Option<Carried>)| {
            capacity_of(variant, *it, &cards)
        };
        capacities.extend(side.variants.iter().map(capacity));
        let supply = Totals::of(&capacities[capacities.len() - side.variants.len()..]);
        let judged = match &found {
            Some(found) => found.judge(supply),
            None => supply,
        };
        match found {
            Some(found) => drop(foreseen.insert(side.role, found)),
            None => withheld = Some(SpareWithheld::DemandUnknown),
        }
        totals.insert(side.role, judged);
    }
    capacities.sort_by(|a: &VariantCapacity, b| a.key.cmp(&b.key));
    let total = totals.values().copied().sum();
    let apart = totals.keys().any(|role| *role != Role::Both);
    let roles = if apart { totals } else { BTreeMap::new() };
    let report =
        CapacityReport { unit: Unit::RequestsPerSecond, variants: capacities, total, roles };
    let report = if withheld.is_some() { report.without_spare() } else { report };
    Analysis {
        report,
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

// === impl ReplicaStrides ===

impl ReplicaStrides<'_> {
    /// Requests that it runs, and that wait at it; `None` while it does not report how many run.
    fn in_flight(&self) -> Option<f64> {
        Some(self.running?.requests() + self.waiting.map_or(0.0, Requests::requests))
    }
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// The number of its replicas that were measured.
    fn measured(&self) -> f64 {
        self.replicas.len() as f64
    }
}

fn capacity_of(
    variant: &VariantStrides<'_>,
    carried: Option<Carried>,
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
        // What is foreseen is asked of all variants of a role together.
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

/// Requests a second below which a replica carries nothing: no number of them would do.
const RATE_MIN: f64 = 1e-4;

// === impl Side ===

impl<'a> Side<'a> {
    /// Whether the capacity of some variant is known. What a card says of one without replicas is
    /// nothing about those of the others.
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

    /// The variants that carry nothing for the sake of the time between tokens.
    fn floors(&self, policy: &Policy) -> impl Iterator<Item = (VariantKey, Floor)> {
        self.variants.iter().filter_map(|(variant, carried)| {
            let Carried { rate, bound, alone, .. } = (*carried)?;
            let floor = Floor { target: policy.itl?, alone, share: policy.limit_share };
            let is_floor = bound == Bound::Itl && rate.requests_per_second() <= RATE_MIN;
            is_floor.then(|| (variant.spec.key.clone(), floor))
        })
    }

    /// What will be asked of these variants.
    fn foresee(
        &self,
        now: Timestamp,
        (through, front): (Timestamp, Front),
        policy: &Policy,
        (demand, work, standby): (&mut Demand, &[f64], Option<&Standby<'_>>),
        unserved: Option<WakeQueue>,
    ) -> Option<Foreseen> {
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
        let setting = Setting {
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
            None => Need::of(arrivals, &setting)?,
        };
        let relief = standby.map(|standby| {
            let startup = standby.startup.seconds();
            let missing = (need.present(policy) - standby.beside).max(0.0);
            let (_, bridge) = demand.bridge.take(now, missing, held_for(policy, startup));
            Relief { startup, reserve: need.reserve.unwrap_or_default(), bridge }
        });
        if relief.is_none() {
            demand.bridge = Held::default();
        }
        let (since, held) = demand.held(now, policy, &need, startup);
        // What was needed before there was no replica does not bring one back.
        let (since, held) = if at_zero { (now, need.total) } else { (since, held) };
        let known = demand.arrivals.history(through);
        let mature = known >= settles.seconds() && !self.by_card;
        let Policy { used, rounding, .. } = *policy;
        Some(Foreseen {
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

    /// The share of the time in which a replica is absent because it was lost, and starts again.
    fn absent(&self, horizon: f64) -> f64 {
        let replicas = |it: &VariantStrides<'_>| f64::from(it.current.count());
        let all: f64 = self.variants.iter().map(|(it, _)| replicas(it)).sum();
        let lost: f64 = self.variants.iter().map(|(it, _)| replicas(it) * it.losses).sum();
        if all > 0.0 { lost / all * horizon / 3600.0 } else { 0.0 }
    }

    /// What replicas carry; `None` where nobody knows of any.
    fn rates(&self) -> Option<Rates> {
        let used = || self.known().filter(|(_, it)| it.counts() > RATE_MIN);
        let least = used().map(|(_, it)| it.counts()).min_by(f64::total_cmp)?;
        let replicas: f64 = used().map(|(variant, _)| variant.measured()).sum();
        let there: f64 = used().map(|(variant, it)| variant.measured() * it.counts()).sum();
        let rates = used().map(|(variant, it)| (variant, it.rate.requests_per_second()));
        let engines: f64 = rates.map(|(variant, rate)| variant.measured() * rate).sum();
        // Without a replica anywhere the best guess of what one will carry is the least.
        let carries = if replicas > 0.0 { there / replicas } else { least };
        let unused = if engines > 0.0 { 1.0 - there / engines } else { 0.0 };
        Some(Rates { least, carries, there, unused })
    }

    /// What evens out how requests come, by what keeps replicas from carrying more.
    fn smoothing(&self, bound: Option<Bound>) -> Smoothing {
        match bound {
            Some(Bound::Budget | Bound::Ttft) => Smoothing::Queue,
            Some(Bound::Itl | Bound::Seats | Bound::Kv) | None => {
                let stays = self.known().map(|(_, it)| it.stay.seconds());
                Smoothing::Stay(stays.fold(0.0, f64::max))
            }
        }
    }

    /// What waits at each replica.
    fn queues(&self) -> Vec<Queue> {
        let queue = |replica: &ReplicaStrides<'_>, carried: &Carried| {
            let carries = carried.rate.requests_per_second();
            Some(Queue { waiting: replica.waiting?.requests(), carries })
        };
        let of = |(variant, it): (&VariantStrides<'a>, Carried)| {
            let queues = variant.replicas.iter().filter_map(|replica| queue(replica, &it));
            queues.collect::<Vec<_>>()
        };
        self.known().flat_map(of).collect()
    }

    /// The variants of which somebody knows what a replica carries.
    fn known(&self) -> impl Iterator<Item = (&VariantStrides<'a>, Carried)> {
        self.variants.iter().filter_map(|(variant, it)| Some((*variant, (*it)?)))
    }

    /// What the error budget asks for in addition, as a share of the need.
    fn raise(&self, now: Timestamp, policy: &Policy, budget: &mut Budget) -> f64 {
        let Some(dial) = &policy.error_budget else { return 0.0 };
        let variants = || self.variants.iter().map(|(variant, _)| variant);
        // Those that decode get what has its first token already.
        let settled = variants().all(|variant| variant.pending == Replicas::ZERO);
        let judges = self.role != Role::Decode && settled;
        let firsts = || {
            let histograms = variants().filter_map(|variant| variant.ttft);
            Firsts::of(histograms, policy.ttft.seconds())
        };
        budget.judge(now, dial, judges.then(firsts))
    }
}

// === impl Rates ===

impl Rates {
    /// Requests that the gateway holds, with what they ask for.
    fn behind_gateway(
        &self,
        policy: &Policy,
        front: Front,
        arriving: Option<f64>,
    ) -> Option<gateway::Held> {
        let gateway = policy.gateway?;
        let queued = front.queued?.requests.requests();
        let rates = (arriving?, self.carries, self.there);
        gateway::Held::of(queued, &gateway, rates, policy.ttft.seconds())
    }
}

// === impl Foreseen ===

impl Foreseen {
    /// What is required and spare against this supply.
    fn judge(&self, supply: Totals) -> Totals {
        let Rounding { excess, spare } = self.rounding;
        let wanted = self.held - excess.fraction() * self.least;
        let required = wanted - supply.anticipated.amount();
        let one_less = self.held + (1.0 + spare.fraction()) * self.least;
        let safe = one_less <= supply.supply.amount() * (1.0 + EPSILON);
        let spare = if safe && self.mature { supply.supply.amount() - wanted } else { 0.0 };
        Totals {
            demand: amount(self.held),
            required: amount(required),
            spare: amount(spare),
            ..supply
        }
    }
}

/// Rounding of sums, so that a number that is reached exactly counts as reached.
const EPSILON: f64 = 1e-9;
