//! What is kept of a variant for the time without replicas, and what is said of it then.

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{compute_bound, memory_bound, tokens};
use crate::analyze::tokens::knowledge::{ModelKnowledge, Record, Source};
use crate::analyze::tokens::replica::ranks;
use crate::analyze::tokens::{CapacitySource, Context};
use crate::units::Tokens;

/// The KV cache of a replica that does not say how large its own is: the variant's own, as it was
/// seen or is prescribed, else that of a variant started alike.
pub(super) fn declared_size(context: &Context<'_>, known: &ModelKnowledge) -> Option<Tokens> {
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

/// What a replica of a variant without any would carry.
///
/// What it carried when it had some; else the least of what is known of it: the bound of memory
/// where the size of its cache is prescribed, the bound of compute that follows from its arguments,
/// and what a variant started alike carries.
pub(super) fn remembered(
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
        .and_then(|arguments| compute_bound(arguments, requests, policy.rules))
        .map(|compute| tokens(compute.tokens() * ranks));
    let alike = known.like(key, record).and_then(|other| other.capacity);
    // The bound of compute alone is an upper bound that may be many times the memory.
    let least = [memory, alike].into_iter().flatten().reduce(Tokens::min)?;
    Some((compute.map_or(least, |compute| least.min(compute)), CapacitySource::Declared))
}

/// Keeps what was measured for the time without replicas.
pub(super) fn remember(
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
