//! Foresight: what will arrive by the time that a replica asked for now is ready, against what one
//! replica carries by its own counters.
//!
//! [`analyze`] turns what engines counted since it was last called into an [`Analysis`]: a
//! [`CapacityReport`] in requests a second, and how it came about. What it learns is kept in
//! [`Foresight`].
//!
//! Nobody tells it a capacity. [`pace`] learns what an iteration takes, [`capacity`] derives from it
//! what a replica carries while the time between tokens keeps its target, [`arrivals`] counts what
//! arrives, and [`demand`] says how much that may become. What was needed once is held for one and a
//! half start-up times ([`Hold`]): a replica that is given up and needed again costs its start, and
//! what its start lets down.
//!
//! # Rounding
//!
//! A fleet of one variant, with `N` replicas and a target of `t` replicas, grows to `ceil(t - 0.05)`,
//! and shrinks to it only when `ceil(t + 0.4) < N`. So a load between two numbers changes nothing.
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

pub mod arrivals;
pub mod capacity;
pub mod demand;
mod explain;
pub mod pace;
pub mod saved;
mod seen;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use jiff::Timestamp;

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, VariantCapacity, amount,
};
use crate::analyze::foresight::arrivals::Arrivals;
use crate::analyze::foresight::capacity::{Bound, Carried, Limits, carried};
use crate::analyze::foresight::demand::{Need, Queue, Setting};
use crate::analyze::foresight::seen::{Lengths, Seen};
use crate::fleet::{ModelKey, ReplicaKey, Role, VariantKey, VariantSpec};
use crate::observe::stride::Stride;
use crate::units::{Fraction, Replicas, Requests, Seconds};

pub use crate::analyze::foresight::explain::Foreseen;

/// How much of a replica a target may exceed a whole number by.
const ROUND_DOWN: f64 = 0.05;

/// How much of a replica must be spare beside the one that goes.
const ROUND_UP: f64 = 0.4;

/// How long a need is held, in start-up times.
const HOLD_STARTS: f64 = 1.5;

/// How long it is held at least: less would follow every wave of a minute.
const HOLD_MIN: f64 = 180.0;

/// How much must be known before anything is spare: a fleet is not judged by its first minute.
const HISTORY_MIN: f64 = 120.0;

/// Requests that wait at each replica from which a fleet that nothing is known of grows.
const COLD_WAITING: f64 = 8.0;

/// What such a fleet is given beside what it has in flight.
const COLD_MARGIN: f64 = 1.3;

/// The most that it grows by at once.
const COLD_TIMES: f64 = 4.0;

/// By what a fleet is judged.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// The target for the mean time between tokens of a request; `None` when there is none.
    pub itl: Option<Seconds>,
    /// The share of what a replica carries that load may use. Bursts have a share of their own, so
    /// this is one where nothing else is known.
    pub used: Fraction,
    /// How long a replica takes from being asked for to carrying load, where it was not measured.
    pub startup: Seconds,
    /// How long it takes until a number is acted on: a tick, and an HPA's sync period.
    pub reaction: Seconds,
    /// Places in a batch, where no engine showed more, or that it has fewer.
    pub seats: Requests,
    /// Tokens of an iteration, where no engine showed more.
    pub budget: f64,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            itl: None,
            used: Fraction::ONE,
            startup: Seconds::literal(120),
            reaction: Seconds::literal(22),
            // vLLM's own defaults on the smaller accelerators.
            seats: Requests::new(256.0).unwrap_or_default(),
            budget: 2048.0,
        }
    }
}

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
    /// How long its replicas take to start, where it was measured.
    pub startup: Option<Seconds>,
    /// Its replicas that were measured, in the order of their keys.
    pub replicas: Vec<ReplicaStrides<'a>>,
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
}

/// A target that a request misses which is alone on a replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Floor {
    /// The target for the mean time between tokens.
    pub target: Seconds,
    /// What such a request gets.
    pub alone: Seconds,
}

/// What was needed, as long as it is held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Hold {
    /// Needs that no later one reached, in order of time, so their values fall.
    needs: VecDeque<(Timestamp, f64)>,
}

/// Everything that is learned, of all models.
#[derive(Clone, Debug, Default)]
pub struct Foresight {
    demands: BTreeMap<(ModelKey, Role), Demand>,
    variants: BTreeMap<VariantKey, Seen>,
    learned: BTreeMap<ModelKey, Timestamp>,
}

/// What is asked of one role of one model.
#[derive(Clone, Debug, Default)]
struct Demand {
    arrivals: Arrivals,
    hold: Hold,
    lengths: Lengths,
}

/// What the variants of one role are and carry.
struct Side<'a> {
    role: Role,
    variants: Vec<(&'a VariantStrides<'a>, Option<Carried>)>,
}

// === impl Hold ===

impl Hold {
    /// The largest need of the last so many seconds, this one counted, and since when.
    pub fn take(&mut self, now: Timestamp, need: f64, length: f64) -> (Timestamp, f64) {
        // A clock that went back leaves needs of the future, which would be held for ever.
        self.needs.retain(|(at, _)| *at <= now && now.duration_since(*at).as_secs_f64() <= length);
        while self.needs.back().is_some_and(|(_, value)| *value <= need) {
            self.needs.pop_back();
        }
        self.needs.push_back((now, need));
        self.needs.front().copied().unwrap_or((now, need))
    }
}

// === impl Foresight ===

impl Foresight {
    /// Forgets models and variants that are gone.
    pub fn retain(&mut self, models: &BTreeSet<&ModelKey>, variants: &BTreeSet<&VariantKey>) {
        self.demands.retain(|(model, _), _| models.contains(model));
        self.variants.retain(|variant, _| variants.contains(variant));
        self.learned.retain(|model, _| models.contains(model));
    }

    /// Learns from what the replicas of a model did.
    fn learn(&mut self, model: &ModelKey, variants: &[VariantStrides<'_>], through: Timestamp) {
        let before = self.learned.insert(model.clone(), through);
        let elapsed = before.and_then(|before| Seconds::from_span(through.duration_since(before)));
        let elapsed = elapsed.unwrap_or_default();
        for ((known, _), demand) in &mut self.demands {
            if known == model {
                demand.lengths.age(elapsed);
            }
        }
        for variant in variants {
            let key = (model.clone(), variant.spec.role);
            let demand = self.demands.entry(key).or_default();
            let seen = self.variants.entry(variant.spec.key.clone()).or_default();
            seen.age(elapsed);
            seen.retain(&variant.replicas);
            for replica in &variant.replicas {
                for stride in replica.strides {
                    if let Some(arrived) = stride.arrived {
                        demand.arrivals.add(stride.at, stride.elapsed, arrived.requests());
                    }
                    demand.lengths.take(stride);
                    seen.take(replica.replica, stride);
                }
            }
        }
        for ((known, _), demand) in &mut self.demands {
            if known == model {
                demand.arrivals.close(through);
            }
        }
    }

    /// What one replica of a variant carries.
    fn carried(&self, policy: &Policy, model: &ModelKey, spec: &VariantSpec) -> Option<Carried> {
        let seen = self.variants.get(&spec.key)?;
        let iteration = seen.pace.iteration()?;
        let shared = &self.demands.get(&(model.clone(), spec.role))?.lengths;
        let requested = seen.requested(shared)?;
        let limits = Limits {
            itl: policy.itl.filter(|_| spec.role != Role::Prefill),
            seats: seen.seats(policy.seats.requests()),
            kv: seen.kv_of_a_rank(),
            budget: policy.budget.max(seen.busiest()),
        };
        let each = carried(iteration, &requested, &limits)?;
        let ranks = f64::from(seen.ranks());
        let rate = crate::units::RequestRate::new(each.rate.requests_per_second() * ranks)?;
        Some(Carried { rate, ..each })
    }
}

/// Learns from what the replicas of a model did, and says what they will be asked for.
///
/// `through` is the instant up to which every replica has been heard.
pub fn analyze(
    now: Timestamp,
    through: Timestamp,
    policy: &Policy,
    model: &ModelKey,
    variants: &[VariantStrides<'_>],
    foresight: &mut Foresight,
) -> Analysis {
    foresight.learn(model, variants, through);
    let mut sides: BTreeMap<Role, Side<'_>> = BTreeMap::new();
    for variant in variants {
        let carried = foresight.carried(policy, model, variant.spec);
        let role = variant.spec.role;
        let side = sides.entry(role).or_insert_with(|| Side { role, variants: Vec::new() });
        side.variants.push((variant, carried));
    }
    let cold = sides.values().all(|side| side.variants.iter().all(|(_, it)| it.is_none()));
    if cold {
        return cold_start(variants);
    }
    let floors = sides.values().flat_map(|side| side.floors(policy)).collect();
    let mut foreseen = BTreeMap::new();
    let mut totals = BTreeMap::new();
    let mut withheld = None;
    let mut capacities = Vec::new();
    for side in sides.values() {
        capacities.extend(side.variants.iter().map(|(variant, it)| capacity_of(variant, *it)));
        let demand = foresight.demands.entry((model.clone(), side.role)).or_default();
        let supply = Totals::of(&capacities[capacities.len() - side.variants.len()..]);
        let found = side.foresee(now, through, policy, demand);
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
    let mut total = Totals::default();
    for part in totals.values() {
        total.supply += part.supply;
        total.anticipated += part.anticipated;
        total.demand += part.demand;
        total.required += part.required;
        total.spare += part.spare;
    }
    let apart = totals.keys().any(|role| *role != Role::Both);
    let roles = if apart { totals } else { BTreeMap::new() };
    let report =
        CapacityReport { unit: Unit::RequestsPerSecond, variants: capacities, total, roles };
    let report = if withheld.is_some() { report.without_spare() } else { report };
    Analysis { report, foreseen, spare_withheld: withheld, floors }
}

fn capacity_of(variant: &VariantStrides<'_>, carried: Option<Carried>) -> VariantCapacity {
    let rate = carried.map(|it| it.rate.requests_per_second()).filter(|rate| *rate > RATE_MIN);
    VariantCapacity {
        key: variant.spec.key.clone(),
        role: variant.spec.role,
        cost: variant.spec.cost,
        replicas: variant.current.beyond(variant.pending),
        pending: variant.pending,
        per_replica: rate.map(amount),
        // What is foreseen is asked of all variants of a role together.
        demand: amount(0.0),
        confidence: if variant.replicas.is_empty() {
            Confidence::Remembered
        } else {
            Confidence::Measured
        },
    }
}

/// Requests a second below which a replica carries nothing: no number of them would do.
const RATE_MIN: f64 = 1e-4;

// === impl Side ===

impl Side<'_> {
    /// The variants that carry nothing for the sake of the time between tokens.
    fn floors(&self, policy: &Policy) -> impl Iterator<Item = (VariantKey, Floor)> {
        self.variants.iter().filter_map(|(variant, carried)| {
            let Carried { rate, bound, alone } = (*carried)?;
            let floor = Floor { target: policy.itl?, alone };
            let is_floor = bound == Bound::Itl && rate.requests_per_second() <= RATE_MIN;
            is_floor.then(|| (variant.spec.key.clone(), floor))
        })
    }

    /// What will be asked of these variants.
    fn foresee(
        &self,
        now: Timestamp,
        through: Timestamp,
        policy: &Policy,
        demand: &mut Demand,
    ) -> Option<Foreseen> {
        let rate = |it: &Carried| it.rate.requests_per_second();
        let known = || self.variants.iter().filter_map(|(variant, it)| Some((variant, (*it)?)));
        let usable = || known().map(|(_, it)| rate(&it)).filter(|rate| *rate > RATE_MIN);
        let least = usable().min_by(f64::total_cmp)?;
        // Without a replica anywhere the best guess of what one will carry is the least.
        let there: Vec<f64> = known()
            .flat_map(|(variant, it)| std::iter::repeat_n(rate(&it), variant.replicas.len()))
            .collect();
        let carries = match there.len() {
            0 => least,
            count => there.iter().sum::<f64>() / count as f64,
        };
        let queues: Vec<Queue> = known()
            .flat_map(|(variant, it)| variant.replicas.iter().map(move |replica| (replica, it)))
            .filter_map(|(replica, it)| {
                Some(Queue { waiting: replica.waiting?.requests(), carries: rate(&it) })
            })
            .collect();
        let startup = self.variants.iter().filter_map(|(variant, _)| variant.startup);
        let startup = startup.reduce(Seconds::max).unwrap_or(policy.startup).seconds();
        let horizon = (startup + policy.reaction.seconds()).min(arrivals::HORIZON_MAX as f64);
        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let setting = Setting { through, horizon, carries, used, queues: &queues };
        let need = Need::of(&demand.arrivals, &setting)?;
        let length = (HOLD_STARTS * startup).max(HOLD_MIN);
        let (since, held) = demand.hold.take(now, need.total, length);
        let mature = demand.arrivals.history(through) >= (HOLD_STARTS * startup).max(HISTORY_MIN);
        let bound = self.variants.iter().find_map(|(_, it)| it.map(|it| it.bound));
        Some(Foreseen { need, held, since, least, carries, bound, horizon, mature })
    }
}

// === impl Foreseen ===

impl Foreseen {
    /// What is required and spare against this supply.
    fn judge(&self, supply: Totals) -> Totals {
        let wanted = self.held - ROUND_DOWN * self.least;
        let required = wanted - supply.anticipated.amount();
        let safe =
            self.held + (1.0 + ROUND_UP) * self.least <= supply.supply.amount() * (1.0 + EPSILON);
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

/// What a fleet needs of which nothing is known but its queues: as many replicas as hold what is in
/// flight, if each holds as much as the fullest now.
fn cold_start(variants: &[VariantStrides<'_>]) -> Analysis {
    let replicas = || variants.iter().flat_map(|variant| &variant.replicas);
    let sum = |of: fn(&ReplicaStrides<'_>) -> Option<Requests>| -> f64 {
        replicas().filter_map(of).map(Requests::requests).sum()
    };
    let (waiting, running) = (sum(|it| it.waiting), sum(|it| it.running));
    let count = replicas().count() as f64;
    let fullest = replicas().filter_map(|it| it.running).map(Requests::requests);
    let fullest = fullest.fold(0.0, f64::max);
    let overrun = count > 0.0 && fullest >= 1.0 && waiting > COLD_WAITING * count;
    let capacities: Vec<VariantCapacity> = variants
        .iter()
        .map(|variant| VariantCapacity {
            key: variant.spec.key.clone(),
            role: variant.spec.role,
            cost: variant.spec.cost,
            replicas: variant.current.beyond(variant.pending),
            pending: variant.pending,
            per_replica: overrun.then(|| amount(fullest)),
            demand: amount(0.0),
            confidence: Confidence::Assumed,
        })
        .collect();
    let mut total = Totals::of(&capacities);
    if overrun {
        let wanted = (COLD_MARGIN * (running + waiting)).min(COLD_TIMES * count * fullest);
        total.demand = amount(wanted);
        total.required = amount(wanted - total.anticipated.amount());
    }
    let report = CapacityReport {
        unit: Unit::RequestsInFlight,
        variants: capacities,
        total,
        roles: BTreeMap::new(),
    };
    let withheld = Some(SpareWithheld::DemandUnknown);
    let (foreseen, floors) = (BTreeMap::new(), BTreeMap::new());
    Analysis { report, foreseen, spare_withheld: withheld, floors }
}
