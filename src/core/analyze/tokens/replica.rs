//! One replica: its bounds, its demand, and the evidence that it provides.

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{
    OutputLength, RequestShape, compute_bound, memory_bound, tokens, tokens_of_request,
};
use crate::analyze::tokens::explain::{CapacitySource, ReplicaTokens};
use crate::analyze::tokens::knowledge::{ConditionsRef, EngineRef, ModelKnowledge};
use crate::analyze::tokens::load::{TokenContext, TokenReplicaLoad};
use crate::fleet::Role;
use crate::observe::GaugeSummary;
use crate::units::{Requests, TokenRate, Tokens};

/// Analyzes one replica; `None` if its cache usage, its cache size or its queue is unknown.
pub(super) fn analyze(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
    load: &TokenReplicaLoad,
    declared_size: Option<Tokens>,
) -> Option<ReplicaTokens> {
    let TokenContext { now, policy, requests, variant } = context;
    let kv_capacity = load.kv_capacity.or(declared_size)?;
    let usage = load.kv_usage?;
    let queue = load.waiting?;

    let in_use = tokens(now_or_on_average(usage).fraction() * kv_capacity.tokens());
    let memory = memory_bound(kv_capacity, policy.kv_threshold);
    let conditions = ConditionsRef {
        accelerator: variant.spec.accelerator.as_ref(),
        gpus: variant.gpus,
        // Engines with the same arguments on unknown accelerators may differ in capacity.
        engine: match variant.arguments.filter(|_| variant.spec.accelerator.is_some()) {
            Some(arguments) => EngineRef::Arguments(arguments, context.sharing()),
            None => EngineRef::Variant(&variant.spec.key),
        },
        output: OutputLength::of(load.requests.output.or(requests.output)),
    };

    let carried = learn(context, known, load, conditions, in_use);
    let derived = variant.arguments.and_then(|arguments| {
        let bound = compute_bound(arguments, &load.requests.or(requests), policy.rules)?;
        // A replica that already holds more than the derived bound raises it.
        Some(tokens(bound.tokens() * ranks(variant.arguments)).max(carried))
    });
    let learned = known.evidence(conditions).and_then(|evidence| evidence.bound(*now, derived));

    let (compute, found_by) = match (learned, derived) {
        (Some(learned), _) => (Some(learned), CapacitySource::Learned),
        (None, derived) => (derived, CapacitySource::Derived),
    };
    let source = match compute {
        Some(compute) if compute < memory => found_by,
        Some(_) | None => CapacitySource::Memory,
    };

    let waiting = now_or_on_average(queue);
    Some(ReplicaTokens {
        kv_capacity,
        memory,
        compute,
        source,
        in_use,
        waiting: waiting_tokens(load, requests, variant.spec.role, waiting, in_use),
    })
}

/// Records a replica's measurements as evidence for or against a compute bound. Returns the tokens
/// that the replica holds without a queue.
///
/// Compute is the limit if requests wait although memory is free and tokens are generated. Requests
/// must wait both in the last reading and on average. A queue with a full cache shows the memory
/// bound. A queue on an engine that generates nothing shows that the engine is stuck. Neither is
/// evidence of the compute bound.
fn learn(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
    load: &TokenReplicaLoad,
    conditions: ConditionsRef<'_>,
    in_use: Tokens,
) -> Tokens {
    let TokenContext { now, policy, variant, .. } = context;
    let (Some(waiting), Some(usage)) = (load.waiting, load.kv_usage) else {
        return Tokens::ZERO;
    };
    let queue = policy.queue_threshold.requests().max(1.0) * ranks(variant.arguments);
    if waiting.peak.requests() < queue {
        known.refute(conditions, in_use);
        return in_use;
    }

    let lasting = waiting.last.min(waiting.mean).requests() >= queue;
    let roomy = usage.peak < policy.kv_threshold;
    let flowing = load.generation_rate.is_some_and(|rate| rate > TokenRate::ZERO)
        && load.running.is_some_and(|running| running.mean > Requests::ZERO);
    if lasting && roomy && flowing && in_use > Tokens::ZERO {
        known.evidence_mut(conditions).add_apart(*now, in_use);
    }

    Tokens::ZERO
}

/// KV tokens that the waiting requests of a replica will hold.
///
/// The lengths of the replica's own requests determine them. If no request has finished yet, the
/// tokens that its running requests hold do: the same quantity, measured. Otherwise the lengths of
/// the model's requests do.
fn waiting_tokens(
    load: &TokenReplicaLoad,
    model: &RequestShape,
    role: Role,
    waiting: Requests,
    in_use: Tokens,
) -> Option<Tokens> {
    if waiting == Requests::ZERO {
        return Some(Tokens::ZERO);
    }

    let each = tokens_of_request(&load.requests, role)
        .or_else(|| held_by_request(load, in_use))
        .or_else(|| tokens_of_request(model, role))?;
    Some(tokens(waiting.requests() * each.tokens()))
}

/// KV tokens that each running request of a replica holds on average.
fn held_by_request(load: &TokenReplicaLoad, in_use: Tokens) -> Option<Tokens> {
    let running = load.running?.mean.requests();
    (running > 0.0 && in_use > Tokens::ZERO).then(|| tokens(in_use.tokens() / running))
}

/// Engines that serve side by side as one replica.
pub(super) fn ranks(arguments: Option<&EngineArguments>) -> f64 {
    arguments.map_or(1.0, |arguments| f64::from(arguments.parallel.data.get()))
}

/// The level of a gauge: its last value, or its mean if that is higher.
///
/// So a past peak no longer counts as load, and a new load counts at once.
pub(super) fn now_or_on_average<Q: Copy + PartialOrd>(gauge: GaugeSummary<Q>) -> Q {
    if gauge.last > gauge.mean { gauge.last } else { gauge.mean }
}
