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
//! readings, apart from each other, are. Evidence ages, and a replica that carries more without a
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
mod wva;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use jiff::Timestamp;

use crate::analyze::capacity::{
    CapacityReport, Confidence, Rules, Totals, Unit, Utilisation, VariantCapacity, amount,
};
use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{
    OutputLength, RequestShape, SchedulerQueue, compute_bound, memory_bound, tokens,
    tokens_of_request,
};
use crate::analyze::tokens::knowledge::{
    ConditionsRef, EngineRef, Knowledge, ModelKnowledge, Record, Source, median,
};
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
    Analysis { report, variants: found, queue }
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
    let (mut prompt, mut output, mut hits) = (Tokens::ZERO, Tokens::ZERO, Fraction::ZERO);
    let mut number = 0_u32;
    for replica in variants.iter().flat_map(|variant| variant.replicas) {
        let requests = &replica.requests;
        let known = |length: Option<Tokens>| length.is_some_and(|length| length > Tokens::ZERO);
        if known(requests.prompt) || known(requests.output) {
            prompt += requests.prompt.unwrap_or_default();
            output += requests.output.unwrap_or_default();
            hits += requests.prefix_hits.unwrap_or_default();
            number += 1;
        }
    }
    let mean = |sum: f64| (number > 0).then(|| sum / f64::from(number));
    RequestShape {
        prompt: mean(prompt.tokens()).and_then(Tokens::new),
        output: mean(output.tokens()).and_then(Tokens::new),
        prefix_hits: mean(hits.fraction()).and_then(Fraction::new),
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
    let size = declared_size(context, known);
    let mut replicas = Vec::with_capacity(variant.replicas.len());
    let mut waiting = Requests::ZERO;
    for load in variant.replicas {
        if let Some(replica) = analyze_replica(context, known, load, size) {
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
        waiting,
        demand: tokens(demand.tokens() * share),
    }
}

/// The KV cache of a replica that does not say how large its own is: the variant's own, as it was
/// seen or is prescribed, else that of a variant started alike.
fn declared_size(context: &Context<'_>, known: &ModelKnowledge) -> Option<Tokens> {
    let variant = context.variant;
    if variant.replicas.iter().all(|replica| replica.kv_capacity.is_some()) {
        return None;
    }
    let record = known.record(&variant.spec.key);
    let own = record.and_then(|record| record.kv_capacity);
    let prescribed = || {
        let arguments = variant.arguments?;
        Some(tokens(arguments.kv_capacity()?.tokens() * ranks(Some(arguments))))
    };
    let alike = || known.like(&variant.spec.key, record?)?.kv_capacity;
    own.or_else(prescribed).or_else(alike)
}

/// Analyses one replica; `None` when nobody can say how much is in its cache or could be.
fn analyze_replica(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
    load: &ReplicaLoad,
    declared_size: Option<Tokens>,
) -> Option<ReplicaTokens> {
    let Context { now, policy, requests, variant } = context;
    let kv_capacity = load.kv_capacity.or(declared_size)?;
    let usage = load.kv_usage?;
    let in_use = tokens(now_or_on_average(usage).fraction() * kv_capacity.tokens());
    let memory = memory_bound(kv_capacity, policy.kv_threshold);
    let conditions = ConditionsRef {
        accelerator: variant.spec.accelerator.as_ref(),
        gpus: variant.gpus,
        engine: match variant.arguments {
            Some(arguments) => EngineRef::Arguments(arguments),
            None => EngineRef::Variant(&variant.spec.key),
        },
        output: OutputLength::of(load.requests.output.or(requests.output)),
    };
    learn(context, known, load, (conditions, in_use));
    let learned = known.evidence(conditions).and_then(|evidence| evidence.median(*now));
    let derived = || {
        let bound = compute_bound(variant.arguments?, &load.requests.or(requests))?;
        Some(tokens(bound.tokens() * ranks(variant.arguments)))
    };
    let (compute, source) = match learned {
        Some(learned) => (Some(learned), CapacitySource::Learned),
        None => (derived(), CapacitySource::Derived),
    };
    let source = match compute {
        Some(compute) if compute < memory => source,
        Some(_) | None => CapacitySource::Memory,
    };
    let waiting = load.waiting.map_or(Requests::ZERO, now_or_on_average);
    Some(ReplicaTokens {
        kv_capacity,
        memory,
        compute,
        source,
        in_use,
        waiting: waiting_tokens(load, requests, variant.spec.role, (waiting, in_use)),
    })
}

/// Takes what a replica shows as evidence for or against a bound of compute.
///
/// Compute binds where requests wait, in the last reading and on average, although memory is free
/// and tokens flow. A queue with a full cache shows the bound of memory; a queue before an engine
/// that generates nothing shows that it is stuck. Both say nothing of what it can carry.
fn learn(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
    load: &ReplicaLoad,
    (conditions, in_use): (ConditionsRef<'_>, Tokens),
) {
    let Context { now, policy, variant, .. } = context;
    let (Some(waiting), Some(usage)) = (load.waiting, load.kv_usage) else { return };
    let queue = policy.queue_threshold.requests().max(1.0) * ranks(variant.arguments);
    if waiting.peak.requests() < queue {
        known.refute(conditions, in_use);
        return;
    }
    let lasting = waiting.last.min(waiting.mean).requests() >= queue;
    let roomy = usage.peak < policy.kv_threshold;
    let flowing = load.generation_rate.is_some_and(|rate| rate > TokenRate::ZERO)
        && load.running.is_some_and(|running| running.mean > Requests::ZERO);
    if lasting && roomy && flowing && in_use > Tokens::ZERO {
        known.evidence_mut(conditions).add_apart(*now, in_use);
    }
}

/// KV tokens that the waiting requests of a replica will hold.
///
/// By the lengths of its own requests; where none has finished yet, by what its running requests
/// hold, which is the same quantity, measured; else by the lengths of the model's requests.
fn waiting_tokens(
    load: &ReplicaLoad,
    model: &RequestShape,
    role: Role,
    (waiting, in_use): (Requests, Tokens),
) -> Option<Tokens> {
    if waiting == Requests::ZERO {
        return Some(Tokens::ZERO);
    }
    let held = || {
        let running = load.running?.mean.requests();
        (running > 0.0 && in_use > Tokens::ZERO).then(|| tokens(in_use.tokens() / running))
    };
    let each = tokens_of_request(&load.requests, role)
        .or_else(held)
        .or_else(|| tokens_of_request(model, role))?;
    Some(tokens(waiting.requests() * each.tokens()))
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
        waiting: Requests::ZERO,
        demand: Tokens::ZERO,
    }
}

/// What a replica of a variant without any would carry.
///
/// What it carried when it had some; else the least of what is known of it: the bound of memory
/// where the size of its cache is prescribed, the bound of compute that follows from its arguments,
/// and what a variant started alike carries.
fn remembered(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
) -> Option<(Tokens, CapacitySource)> {
    let Context { now, policy, requests, variant } = context;
    let key = &variant.spec.key;
    if let Some(arguments) = variant.arguments {
        let record = known.record_or(key, || Record {
            accelerator: variant.spec.accelerator.clone(),
            gpus: variant.gpus,
            arguments: None,
            kv_capacity: None,
            capacity: None,
            source: Source::Declared(*now),
        });
        let same = record.arguments.as_ref().is_none_or(|before| before == arguments);
        if !same || record.arguments.is_none() {
            record.arguments = Some(arguments.clone());
        }
        if !same {
            // What was measured was another engine.
            (record.kv_capacity, record.capacity) = (None, None);
            record.source = Source::Declared(*now);
        }
    }
    let record = known.record(key)?;
    if let (Source::Measured(_), Some(capacity)) = (record.source, record.capacity) {
        return Some((capacity, CapacitySource::Remembered));
    }
    let ranks = ranks(variant.arguments);
    let memory = variant
        .arguments
        .and_then(EngineArguments::kv_capacity)
        .map(|kv_capacity| memory_bound(tokens(kv_capacity.tokens() * ranks), policy.kv_threshold));
    let compute = variant
        .arguments
        .and_then(|arguments| compute_bound(arguments, requests))
        .map(|compute| tokens(compute.tokens() * ranks));
    let alike = known.like(key, record).and_then(|other| other.capacity);
    // The bound of compute alone is an upper bound that may be many times the memory.
    let least = [memory, alike].into_iter().flatten().reduce(Tokens::min)?;
    Some((compute.map_or(least, |compute| least.min(compute)), CapacitySource::Declared))
}

/// Keeps what was measured for the time without replicas.
fn remember(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
    kv_capacity: Option<Tokens>,
    capacity: Tokens,
) {
    let Context { now, variant, .. } = context;
    let record = known.record_or(&variant.spec.key, || Record {
        accelerator: None,
        gpus: None,
        arguments: None,
        kv_capacity: None,
        capacity: None,
        source: Source::Measured(*now),
    });
    record.kv_capacity = kv_capacity;
    record.capacity = Some(capacity);
    record.source = Source::Measured(*now);
    record.gpus = variant.gpus;
    if record.accelerator != variant.spec.accelerator {
        record.accelerator.clone_from(&variant.spec.accelerator);
    }
    if record.arguments.as_ref() != variant.arguments {
        record.arguments = variant.arguments.cloned();
    }
}

/// What bounds most of the replicas at the median.
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
    if let [one] = replicas {
        return Some(of(one));
    }
    let mut values: Vec<Tokens> = replicas.iter().map(of).collect();
    values.sort_unstable_by(|a, b| a.compare(*b));
    median(&values)
}

/// Engines that serve side by side as one replica.
fn ranks(arguments: Option<&EngineArguments>) -> f64 {
    arguments.map_or(1.0, |arguments| f64::from(arguments.parallel.data.get()))
}

/// The level of a gauge: its last value, or its mean where that is more.
///
/// A peak that is over is no load any more, and a load that is there counts at once.
fn now_or_on_average<Q: Copy + PartialOrd>(gauge: GaugeSummary<Q>) -> Q {
    if gauge.last > gauge.mean { gauge.last } else { gauge.mean }
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
            replicas: self.carrying,
            pending: self.pending,
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

    fn asked_of(&self, role: Role) -> Amount {
        match role {
            Role::Prefill => amount(self.prompt.tokens()),
            Role::Both | Role::Decode => amount((self.prompt + self.output).tokens()),
        }
    }
}

impl RequestShape {
    /// This shape, with what is unknown of it taken from another.
    fn or(&self, other: &Self) -> Self {
        Self {
            prompt: self.prompt.or(other.prompt),
            output: self.output.or(other.output),
            prefix_hits: self.prefix_hits.or(other.prefix_hits),
        }
    }
}
