//! Tokens in the KV cache: how many a model's replicas can hold, and how many are asked for.
//!
//! [`analyze`] turns the load of a model's variants into an [`Analysis`]: a
//! [`CapacityReport`] in KV tokens, and for each variant what bounds it, in numbers that make a
//! sentence.
//!
//! # Model
//!
//! A request holds KV cache while it is served: its prompt, and one token more with each step. So
//! the work that a replica has in hand is the tokens that are resident, and what it can have in
//! hand has two bounds:
//!
//! ```text
//! k1 = kv capacity * threshold           memory: beyond it, requests are preempted
//! k2 = tokens resident when compute is the limit
//! capacity = min(k1, k2)
//! demand   = tokens in use + waiting requests * tokens of a request
//! ```
//!
//! `k2` is learned where it shows: while requests wait although memory is free and tokens flow, the
//! tokens in use are what compute allows. One reading of that is a spike and is not believed; three
//! readings, apart from each other, are. Evidence fades, and a replica that carries more without a
//! queue refutes it. Without evidence `k2` is derived from the engine's arguments.
//!
//! The capacity of a variant is the median over its replicas. A variant without replicas has the
//! capacity that it had, or that a variant started alike has, or none.
//!
//! # Units
//!
//! Everything is KV tokens of one replica, all its data-parallel ranks together: a replica is what
//! is scaled. Tokens that an engine computes in a step are another thing and are never taken for a
//! capacity.
//!
//! # Source
//!
//! The token-based saturation analyzer of llm-d's Workload Variant Autoscaler. [`Rules::Wva`]
//! answers as it does; where the default differs, `docs/decisions.md` says why.

pub mod capacity;
mod explain;
pub mod knowledge;
mod memory;
mod replica;
mod wva;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use jiff::Timestamp;

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, Utilisation, VariantCapacity, amount,
};
use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{RequestShape, SchedulerQueue, tokens};
use crate::analyze::tokens::knowledge::{Knowledge, ModelKnowledge, median};
use crate::analyze::tokens::memory::{declared_size, remember, remembered};
use crate::analyze::tokens::replica::now_or_on_average;
use crate::fleet::{ModelKey, Role, VariantSpec};
use crate::observe::GaugeSummary;
use crate::units::{Amount, Fraction, Replicas, Requests, TokenRate, Tokens};

pub use crate::analyze::tokens::explain::{
    CapacitySource, QueueDemand, ReplicaTokens, VariantTokens, WhyUnknown,
};

/// What counts as full, and how full is full enough.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// Share of the KV cache that may be used.
    pub kv_threshold: Fraction,
    /// Waiting requests of one engine from which it has a queue.
    pub queue_threshold: Requests,
    /// How much of the capacity may be used.
    pub utilisation: Utilisation,
    /// How doubtful points are settled.
    pub rules: Rules,
}

impl Default for Policy {
    /// WVA's: four fifths of the cache, a queue of five.
    fn default() -> Self {
        Self {
            kv_threshold: Fraction::new(0.8).unwrap_or(Fraction::ONE),
            queue_threshold: Requests::new(5.0).unwrap_or_default(),
            utilisation: Utilisation::default(),
            rules: Rules::default(),
        }
    }
}

/// Which of two ways a doubtful point is settled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Rules {
    /// As this module describes.
    #[default]
    Plimsoll,
    /// As the Workload Variant Autoscaler does, with its defects; the simulator compares with it.
    Wva,
}

/// What one replica carries, its data-parallel ranks together; absent is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReplicaLoad {
    /// Share of its KV cache that is in use.
    pub kv_usage: Option<GaugeSummary<Fraction>>,
    /// The size of its KV cache.
    pub kv_capacity: Option<Tokens>,
    /// Requests that wait.
    pub waiting: Option<GaugeSummary<Requests>>,
    /// Requests that run.
    pub running: Option<GaugeSummary<Requests>>,
    /// Tokens that it generates.
    pub generation_rate: Option<TokenRate>,
    /// What its requests look like.
    pub requests: RequestShape,
}

/// One variant and what its replicas carry.
#[derive(Clone, Debug)]
pub struct VariantLoad<'a> {
    /// Which variant.
    pub spec: &'a VariantSpec,
    /// Accelerators of one replica.
    pub gpus: Option<NonZeroU32>,
    /// Replicas that exist, ready or not.
    pub current: Replicas,
    /// Replicas that are not ready, or have never answered.
    pub pending: Replicas,
    /// Those that stay only until others carry load, and are no supply.
    pub leaving: Replicas,
    /// How its engines are started, if that is known.
    pub arguments: Option<&'a EngineArguments>,
    /// The replicas that were measured, in the order of their keys.
    pub replicas: &'a [ReplicaLoad],
}

/// What the replicas of a model carry, in KV tokens.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Analysis {
    /// The numbers.
    pub report: CapacityReport,
    /// How the numbers of each variant come about, in the order of the report's variants.
    pub variants: Vec<VariantTokens>,
    /// What is asked for before any replica, if anything is.
    pub queue: Option<QueueDemand>,
    /// Why nothing counts as spare whatever the numbers say, if so.
    pub spare_withheld: Option<SpareWithheld>,
}

/// Analyses the variants of one model, in their order, and learns from what they show.
pub fn analyze(
    now: Timestamp,
    policy: &Policy,
    model: &ModelKey,
    variants: &[VariantLoad<'_>],
    queue: Option<SchedulerQueue>,
    knowledge: &mut Knowledge,
) -> Analysis {
    let known = knowledge.of(&model.model);
    let requests = mean_shape(variants);
    let mut capacities = Vec::with_capacity(variants.len());
    let mut found = Vec::with_capacity(variants.len());
    for variant in variants {
        let context = Context { now, policy, requests: &requests, variant };
        let tokens = match policy.rules {
            Rules::Plimsoll => analyze_variant(&context, known),
            Rules::Wva => wva::analyze_variant(&context, known),
        };
        capacities.push(tokens.as_capacity(variant.spec));
        found.push(tokens);
    }
    let queue = queue
        .filter(|queue| *queue != SchedulerQueue::default())
        .map(|queue| QueueDemand::of(queue, &requests, policy.rules));
    let report = report(capacities, queue.as_ref(), policy.utilisation);
    let spare_withheld = match policy.rules {
        Rules::Plimsoll => withheld(variants, &found, queue.as_ref()),
        Rules::Wva => None,
    };
    let report = if spare_withheld.is_some() { report.without_spare() } else { report };
    Analysis { report, variants: found, queue, spare_withheld }
}

/// Why nothing counts as spare, if so: replicas or requests of which nobody knows how much they
/// hold.
fn withheld(
    variants: &[VariantLoad<'_>],
    found: &[VariantTokens],
    queue: Option<&QueueDemand>,
) -> Option<SpareWithheld> {
    for (variant, tokens) in variants.iter().zip(found) {
        if tokens.silent > Replicas::ZERO {
            return Some(SpareWithheld::Silent(variant.spec.key.clone()));
        }
        if tokens.replicas.iter().any(|replica| replica.waiting.is_none()) {
            return Some(SpareWithheld::DemandUnknown);
        }
    }
    queue.is_some_and(QueueDemand::is_unknown).then_some(SpareWithheld::DemandUnknown)
}

/// What the analysis of one variant looks at.
struct Context<'a> {
    now: Timestamp,
    policy: &'a Policy,
    /// The mean request of the model.
    requests: &'a RequestShape,
    variant: &'a VariantLoad<'a>,
}

/// The mean request over all replicas that know what theirs look like, each weighing the same.
fn mean_shape(variants: &[VariantLoad<'_>]) -> RequestShape {
    let (mut prompt, mut output, mut hits) = (Mean::default(), Mean::default(), Mean::default());
    for replica in variants.iter().flat_map(|variant| variant.replicas) {
        let requests = &replica.requests;
        let known = |length: Option<Tokens>| length.is_some_and(|length| length > Tokens::ZERO);
        if known(requests.prompt) || known(requests.output) {
            prompt.add(requests.prompt.map(Tokens::tokens));
            output.add(requests.output.map(Tokens::tokens));
            // A replica that does not speak of its prefix cache has none that is known to help.
            hits.add(Some(requests.prefix_hits.unwrap_or_default().fraction()));
        }
    }
    RequestShape {
        prompt: prompt.mean().and_then(Tokens::new),
        output: output.mean().and_then(Tokens::new),
        prefix_hits: hits.mean().and_then(Fraction::new),
    }
}

/// A mean in the making.
#[derive(Default)]
struct Mean {
    sum: f64,
    number: u32,
}

impl Mean {
    fn add(&mut self, value: Option<f64>) {
        if let Some(value) = value {
            self.sum += value;
            self.number += 1;
        }
    }

    fn mean(&self) -> Option<f64> {
        (self.number > 0).then(|| self.sum / f64::from(self.number))
    }
}

/// Puts the report together; what waits before the replicas is asked of the model and its roles.
///
/// With prefill and decode apart, a waiting prompt is asked of both: of prefill to compute, of
/// decode to hold. So the roles may sum to more than the model.
fn report(
    variants: Vec<VariantCapacity>,
    queue: Option<&QueueDemand>,
    utilisation: Utilisation,
) -> CapacityReport {
    let judged = |mut totals: Totals, role: Role| {
        totals.demand += queue.map_or(Amount::ZERO, |queue| queue.asked_of(role));
        totals.judged(utilisation)
    };
    let total = judged(Totals::of(&variants), Role::Both);
    let roles = Totals::by_role(&variants);
    let roles = roles.into_iter().map(|(role, totals)| (role, judged(totals, role))).collect();
    CapacityReport { unit: Unit::KvTokens, variants, total, roles }
}

/// Analyses one variant.
fn analyze_variant(context: &Context<'_>, known: &mut ModelKnowledge) -> VariantTokens {
    let Context { variant, .. } = context;
    let ready = variant.current.beyond(variant.pending);
    if let (Some(arguments), Some(_)) = (variant.arguments, &variant.spec.accelerator) {
        known.adopt(&variant.spec.key, arguments);
    }
    let size = declared_size(context, known);
    let mut replicas = Vec::with_capacity(variant.replicas.len());
    let mut waiting = Requests::ZERO;
    for load in variant.replicas {
        if let Some(replica) = replica::analyze(context, known, load, size) {
            waiting += load.waiting.map_or(Requests::ZERO, now_or_on_average);
            replicas.push(replica);
        }
    }
    let measured = count(replicas.len());
    let capacity = median_by(&replicas, ReplicaTokens::capacity);
    let Some(capacity) = capacity else {
        return without_replicas(context, known, ready);
    };
    let silent = ready.beyond(measured);
    let demand: Tokens = replicas.iter().map(ReplicaTokens::demand).sum();
    let carrying = measured + silent;
    // A replica that says nothing is taken to carry what the others carry on average: as idle it
    // would be spare, and left out it would be missing.
    let share = f64::from(carrying.count()) / f64::from(measured.count());
    let source = source_of(&replicas, capacity);
    remember(context, known, median_by(&replicas, |replica| replica.kv_capacity), capacity);
    VariantTokens {
        replicas,
        capacity: Some(capacity),
        source,
        confidence: Confidence::Measured,
        carrying,
        silent,
        pending: variant.pending,
        leaving: variant.leaving,
        waiting,
        demand: tokens(demand.tokens() * share),
    }
}

/// What is said of a variant of which nothing was measured.
///
/// Replicas that are there and silent count neither as supply nor as demand: nobody knows either.
fn without_replicas(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
    ready: Replicas,
) -> VariantTokens {
    let (capacity, source) = match remembered(context, known) {
        Some((capacity, source)) => (Some(capacity), source),
        None => (None, CapacitySource::Unknown(WhyUnknown::NeverMeasured)),
    };
    let confidence = match source {
        CapacitySource::Remembered => Confidence::Remembered,
        _ => Confidence::Assumed,
    };
    VariantTokens {
        replicas: Vec::new(),
        capacity,
        source,
        confidence,
        carrying: Replicas::ZERO,
        silent: ready,
        pending: context.variant.pending,
        leaving: context.variant.leaving,
        waiting: Requests::ZERO,
        demand: Tokens::ZERO,
    }
}

/// What bounds the replica that is nearest to the median, of several the first.
fn source_of(replicas: &[ReplicaTokens], capacity: Tokens) -> CapacitySource {
    let nearest = replicas.iter().min_by(|a, b| {
        let distance =
            |replica: &ReplicaTokens| (replica.capacity().tokens() - capacity.tokens()).abs();
        distance(a).total_cmp(&distance(b))
    });
    nearest.map_or(CapacitySource::Unknown(WhyUnknown::NeverMeasured), |replica| replica.source)
}

/// The median of a quantity over the replicas.
fn median_by(replicas: &[ReplicaTokens], of: impl Fn(&ReplicaTokens) -> Tokens) -> Option<Tokens> {
    // Most variants have few replicas, and then nothing is allocated.
    let (mut few, mut many) = ([Tokens::ZERO; 16], Vec::new());
    let values = if let Some(few) = few.get_mut(..replicas.len()) {
        few
    } else {
        many.resize(replicas.len(), Tokens::ZERO);
        many.as_mut_slice()
    };
    for (value, replica) in values.iter_mut().zip(replicas) {
        *value = of(replica);
    }
    values.sort_unstable_by(|a, b| a.compare(*b));
    median(values)
}

/// A number of replicas in memory.
fn count(length: usize) -> Replicas {
    Replicas::saturating(u32::try_from(length).unwrap_or(u32::MAX))
}

// === impl VariantTokens, QueueDemand ===

impl VariantTokens {
    fn as_capacity(&self, spec: &VariantSpec) -> VariantCapacity {
        VariantCapacity {
            key: spec.key.clone(),
            role: spec.role,
            cost: spec.cost,
            replicas: self.carrying.beyond(self.leaving),
            pending: self.pending.beyond(self.leaving.beyond(self.carrying)),
            per_replica: self.capacity.map(|capacity| amount(capacity.tokens())),
            demand: amount(self.demand.tokens()),
            confidence: self.confidence,
        }
    }
}

impl QueueDemand {
    /// Prompts are as long as their bytes say or as prompts are on average, whichever is more.
    fn of(queue: SchedulerQueue, requests: &RequestShape, rules: Rules) -> Self {
        let number = queue.requests.requests();
        let average = requests.prompt.unwrap_or_default().tokens() * number;
        let missed = 1.0 - requests.prefix_hits.unwrap_or_default().fraction();
        let held = match rules {
            Rules::Plimsoll => 0.5,
            Rules::Wva => 1.0,
        };
        Self {
            requests: queue.requests,
            prompt: tokens(queue.prompt.tokens().max(average) * missed),
            output: tokens(requests.output.unwrap_or_default().tokens() * number * held),
        }
    }

    /// Whether requests wait of which nobody can say how long they are.
    fn is_unknown(&self) -> bool {
        self.requests > Requests::ZERO && self.prompt + self.output == Tokens::ZERO
    }

    fn asked_of(&self, role: Role) -> Amount {
        match role {
            Role::Prefill => amount(self.prompt.tokens()),
            Role::Both | Role::Decode => amount((self.prompt + self.output).tokens()),
        }
    }
}
