//! The rules of the Workload Variant Autoscaler, where they differ from Plimsoll's defaults.
//!
//! - Tokens are truncated to whole numbers.
//! - The compute bound of a replica is the first of these that is available: the tokens in use
//!   while its queue is long, even for a moment; the mean of ten such readings; the bound derived
//!   from the engine's arguments; none. The readings may be of any age and of any variant on that
//!   accelerator.
//! - A replica that does not report its cache size takes the stored capacity, which may be tokens
//!   per step.
//! - An engine counts as a replica.
//!
//! Source: `internal/engines/analyzers/saturation_v2` of commit ff40965.

use crate::analyze::capacity::Confidence;
use crate::analyze::tokens::capacity::{
    OutputLength, RequestShape, compute_bound, memory_bound, tokens,
};
use crate::analyze::tokens::explain::{
    CapacitySource, MissingCapacity, ReplicaTokens, VariantTokens,
};
use crate::analyze::tokens::knowledge::{
    CapacityRecord, ComputeEvidence, ConditionsRef, EngineRef, ModelKnowledge, RecordSource,
};
use crate::analyze::tokens::load::{TokenContext, TokenReplicaLoad};
use crate::analyze::tokens::policy::TokenRules;
use crate::fleet::Role;
use crate::units::{Fraction, Replicas, Requests, Tokens};

/// Whole numbers from this value on don't fit into 64 signed bits; they count as zero.
const WHOLE_MAX: f64 = 9_223_372_036_854_775_808.0;

/// Analyzes one variant.
pub(super) fn analyze_variant(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
) -> VariantTokens {
    let variant = context.variant;
    let ready = variant.current.beyond(variant.pending);

    let mut replicas = Vec::with_capacity(variant.replicas.len());
    let mut waiting = Requests::ZERO;
    for load in variant.replicas {
        let replica = match load.kv_capacity {
            Some(kv_capacity) => Some(measured(context, known, load, kv_capacity)),
            None => estimated(context, known, load),
        };
        if let Some(replica) = replica {
            replicas.push(replica);
            waiting += load.waiting.map_or(Requests::ZERO, |waiting| waiting.peak);
        }
    }

    if replicas.is_empty() {
        return stored(context, known, ready);
    }

    let mut sorted: Vec<&ReplicaTokens> = replicas.iter().collect();
    sorted.sort_by(|a, b| a.capacity().compare(b.capacity()));
    let lower = sorted[(sorted.len() - 1) / 2];
    let upper = sorted[sorted.len() / 2];
    let capacity = whole(f64::midpoint(lower.capacity().tokens(), upper.capacity().tokens()));
    let source = lower.source;

    let measured = Replicas::capped(replicas.len());
    let engines = measured.count().checked_div(ready.count()).unwrap_or(0).max(1);
    VariantTokens {
        capacity: Some(capacity),
        source,
        confidence: Confidence::Measured,
        carrying: measured,
        silent: Replicas::ZERO,
        pending: Replicas::saturating(variant.pending.count().saturating_mul(engines)),
        leaving: Replicas::ZERO,
        waiting,
        demand: replicas.iter().map(ReplicaTokens::demand).sum(),
        replicas,
    }
}

/// Analyzes a replica that reports its cache size.
fn measured(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
    load: &TokenReplicaLoad,
    kv_capacity: Tokens,
) -> ReplicaTokens {
    let TokenContext { now, policy, variant, .. } = context;
    let key = &variant.spec.key;
    let usage = load.kv_usage.map_or(Fraction::ZERO, |gauge| gauge.peak);
    let in_use = tokens((usage.fraction() * kv_capacity.tokens()).round()).min(kv_capacity);
    let memory = whole(memory_bound(kv_capacity, policy.kv_threshold).tokens());
    let conditions = ConditionsRef {
        accelerator: variant.spec.accelerator.as_ref(),
        gpus: variant.gpus,
        engine: EngineRef::Any,
        output: OutputLength::of(Some(load.requests.output.unwrap_or_default())),
    };

    let queue = load.waiting.map_or(Requests::ZERO, |waiting| waiting.peak);
    let queued = queue.requests() >= policy.queue_threshold.requests().trunc();
    let (compute, source) = if queued && in_use > Tokens::ZERO {
        known.evidence_mut(conditions).add(*now, in_use);
        (in_use, CapacitySource::Observed)
    } else if let Some(mean) = known.evidence(conditions).and_then(ComputeEvidence::mean)
        && mean > Tokens::ZERO
    {
        (whole(mean.tokens()), CapacitySource::Learned)
    } else if let Some(record) = known.record(key)
        && let Some(bound) = derived(record, &load.requests)
    {
        (bound, CapacitySource::Derived)
    } else {
        (memory, CapacitySource::Memory)
    };

    let record = known.record_or(key, || empty(context));
    record.accelerator.clone_from(&variant.spec.accelerator);
    record.gpus = variant.gpus;
    record.kv_capacity = Some(kv_capacity);
    record.capacity = Some(memory.min(compute));
    record.source = RecordSource::Measured(*now);

    let waiting = Some(waiting_tokens(queue, &load.requests, variant.spec.role));
    ReplicaTokens { kv_capacity, memory, compute: Some(compute), source, in_use, waiting }
}

/// Analyzes a replica that does not, from a share of its variant's stored capacity.
fn estimated(
    context: &TokenContext<'_>,
    known: &ModelKnowledge,
    load: &TokenReplicaLoad,
) -> Option<ReplicaTokens> {
    let variant = context.variant;
    let stored = known.record(&variant.spec.key)?.capacity?;
    let capacity = whole(stored.tokens() * context.policy.kv_threshold.fraction());
    if capacity == Tokens::ZERO {
        return None;
    }

    let usage = load.kv_usage.map_or(Fraction::ZERO, |gauge| gauge.peak);
    let queue = load.waiting.map_or(Requests::ZERO, |waiting| waiting.peak);
    let waiting = waiting_tokens(queue, &load.requests, variant.spec.role);
    Some(ReplicaTokens {
        kv_capacity: capacity,
        memory: capacity,
        compute: Some(capacity),
        source: CapacitySource::Memory,
        in_use: whole(usage.fraction() * capacity.tokens()),
        waiting: Some(waiting),
    })
}

/// Analyzes a variant without replicas.
fn stored(context: &TokenContext<'_>, known: &ModelKnowledge, ready: Replicas) -> VariantTokens {
    let key = &context.variant.spec.key;
    let known_capacity = known.record(key).and_then(|record| {
        let capacity = record.capacity.filter(|tokens| *tokens > Tokens::ZERO)?;
        if let RecordSource::Measured(_) = record.source {
            return Some(capacity);
        }

        let Some(derived) = derived(record, context.requests) else { return Some(capacity) };
        let own = record
            .kv_capacity
            .map(|size| whole(memory_bound(size, context.policy.kv_threshold).tokens()));
        let alike = known.like(key, context.sharing(), record).and_then(|other| other.capacity);
        [own, alike]
            .into_iter()
            .flatten()
            .reduce(Tokens::min)
            .map_or(Some(derived), |bound| Some(bound.min(derived)))
    });

    let source = match known_capacity {
        Some(_) => CapacitySource::Remembered,
        None => CapacitySource::Unknown(MissingCapacity::NeverMeasured),
    };

    VariantTokens {
        replicas: Vec::new(),
        capacity: known_capacity,
        source,
        confidence: Confidence::Remembered,
        carrying: ready,
        silent: Replicas::ZERO,
        pending: context.variant.pending,
        leaving: Replicas::ZERO,
        waiting: Requests::ZERO,
        demand: Tokens::ZERO,
    }
}

/// The compute bound that follows from a record's arguments.
fn derived(record: &CapacityRecord, requests: &RequestShape) -> Option<Tokens> {
    let uncached = RequestShape { prefix_hits: None, ..*requests };
    let bound =
        whole(compute_bound(record.arguments.as_ref()?, &uncached, TokenRules::Wva)?.tokens());
    (bound > Tokens::ZERO).then_some(bound)
}

/// The tokens of waiting requests, each at its final length; zero if a length is unknown.
fn waiting_tokens(queue: Requests, requests: &RequestShape, role: Role) -> Tokens {
    let (Some(prompt), Some(output)) = (requests.prompt, requests.output) else {
        return Tokens::ZERO;
    };
    let each = match role {
        Role::Prefill => prompt,
        Role::Both | Role::Decode => prompt + output,
    };

    let product = queue.requests() * each.tokens();
    if product >= WHOLE_MAX { Tokens::ZERO } else { whole(product) }
}

/// A record without values.
fn empty(context: &TokenContext<'_>) -> CapacityRecord {
    CapacityRecord {
        accelerator: None,
        gpus: None,
        arguments: None,
        kv_capacity: None,
        capacity: None,
        source: RecordSource::Measured(context.now),
    }
}

/// A number of tokens without its fraction.
fn whole(value: f64) -> Tokens {
    tokens(value.trunc())
}
