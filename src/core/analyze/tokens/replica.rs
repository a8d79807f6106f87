//! One replica: its bounds, what is asked of it, and what it teaches.

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{
    OutputLength, RequestShape, compute_bound, memory_bound, tokens, tokens_of_request,
};
use crate::analyze::tokens::knowledge::{ConditionsRef, EngineRef, ModelKnowledge};
use crate::analyze::tokens::{CapacitySource, Context, ReplicaLoad, ReplicaTokens};
use crate::fleet::Role;
use crate::observe::GaugeSummary;
use crate::units::{Requests, TokenRate, Tokens};

/// Analyses one replica; `None` when nobody can say how much is in its cache, how much could be, or
/// how much waits.
pub(super) fn analyze(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
    load: &ReplicaLoad,
    declared_size: Option<Tokens>,
) -> Option<ReplicaTokens> {
    let Context { now, policy, requests, variant } = context;
    let kv_capacity = load.kv_capacity.or(declared_size)?;
    let (usage, queue) = (load.kv_usage?, load.waiting?);
    let in_use = tokens(now_or_on_average(usage).fraction() * kv_capacity.tokens());
    let memory = memory_bound(kv_capacity, policy.kv_threshold);
    let conditions = ConditionsRef {
        accelerator: variant.spec.accelerator.as_ref(),
        gpus: variant.gpus,
        // Engines that are started alike on who knows what need not carry the same.
        engine: match variant.arguments.filter(|_| variant.spec.accelerator.is_some()) {
            Some(arguments) => EngineRef::Arguments(arguments),
            None => EngineRef::Variant(&variant.spec.key),
        },
        output: OutputLength::of(load.requests.output.or(requests.output)),
    };
    let carried = learn(context, known, load, (conditions, in_use));
    let derived = variant.arguments.and_then(|arguments| {
        let bound = compute_bound(arguments, &load.requests.or(requests), policy.rules)?;
        // More than is possible is being carried: then more is possible.
        Some(tokens(bound.tokens() * ranks(variant.arguments)).max(carried))
    });
    let learned = known.evidence(conditions).and_then(|evidence| evidence.bound(*now, derived));
    let (compute, source) = match (learned, derived) {
        (Some(learned), _) => (Some(learned), CapacitySource::Learned),
        (None, derived) => (derived, CapacitySource::Derived),
    };
    let source = match compute {
        Some(compute) if compute < memory => source,
        Some(_) | None => CapacitySource::Memory,
    };
    let waiting = now_or_on_average(queue);
    Some(ReplicaTokens {
        kv_capacity,
        memory,
        compute,
        source,
        in_use,
        waiting: waiting_tokens(load, requests, variant.spec.role, (waiting, in_use)),
    })
}

/// Takes what a replica shows as evidence for or against a bound of compute, and returns the tokens
/// that it carries without a queue.
///
/// Compute binds where requests wait, in the last reading and on average, although memory is free
/// and tokens flow. A queue with a full cache shows the bound of memory; a queue before an engine
/// that generates nothing shows that it is stuck. Both say nothing of what it can carry.
fn learn(
    context: &Context<'_>,
    known: &mut ModelKnowledge,
    load: &ReplicaLoad,
    (conditions, in_use): (ConditionsRef<'_>, Tokens),
) -> Tokens {
    let Context { now, policy, variant, .. } = context;
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

/// Engines that serve side by side as one replica.
pub(super) fn ranks(arguments: Option<&EngineArguments>) -> f64 {
    arguments.map_or(1.0, |arguments| f64::from(arguments.parallel.data.get()))
}

/// The level of a gauge: its last value, or its mean where that is more.
///
/// A peak that is over is no load any more, and a load that is there counts at once.
pub(super) fn now_or_on_average<Q: Copy + PartialOrd>(gauge: GaugeSummary<Q>) -> Q {
    if gauge.last > gauge.mean { gauge.last } else { gauge.mean }
}
