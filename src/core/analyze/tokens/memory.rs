//! Remembered capacities: records kept for variants without replicas.

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{compute_bound, memory_bound, tokens};
use crate::analyze::tokens::explain::CapacitySource;
use crate::analyze::tokens::knowledge::{CapacityRecord, ModelKnowledge, RecordSource};
use crate::analyze::tokens::load::TokenContext;
use crate::analyze::tokens::replica::ranks;
use crate::units::Tokens;

/// The KV cache size for replicas that don't report it. It is the variant's own size, as measured
/// or as set in its arguments, or else that of a variant with equivalent arguments.
pub(super) fn declared_size(context: &TokenContext<'_>, known: &ModelKnowledge) -> Option<Tokens> {
    let variant = context.variant;
    if variant.replicas.iter().all(|replica| replica.kv_capacity.is_some()) {
        return None;
    }

    let record = known.record(&variant.spec.key);
    let own = record.and_then(|record| record.kv_capacity);
    own.or_else(|| prescribed_size(variant.arguments?))
        .or_else(|| known.like(&variant.spec.key, context.sharing(), record?)?.kv_capacity)
}

fn prescribed_size(arguments: &EngineArguments) -> Option<Tokens> {
    Some(tokens(arguments.kv_capacity()?.tokens() * ranks(Some(arguments))))
}

/// The estimated capacity per replica of a variant without replicas.
///
/// If the variant had replicas, their capacity. Otherwise the smallest of the known limits:
///
/// - the memory bound, if the arguments set the cache size,
/// - the compute bound that follows from the arguments,
/// - the capacity of a variant with equivalent arguments.
pub(super) fn remembered(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
) -> Option<(Tokens, CapacitySource)> {
    let TokenContext { now, policy, requests, variant } = context;
    let key = &variant.spec.key;
    if let Some(arguments) = variant.arguments {
        let record = known.record_or(key, || CapacityRecord {
            accelerator: variant.spec.accelerator.clone(),
            gpus: variant.gpus,
            arguments: None,
            kv_capacity: None,
            capacity: None,
            source: RecordSource::Declared(*now),
        });

        let same = record.arguments.as_ref().is_none_or(|before| before == arguments);
        if !same || record.arguments.is_none() {
            record.arguments = Some(arguments.clone());
        }
        if !same {
            // The measurements are of another engine.
            record.kv_capacity = None;
            record.capacity = None;
            record.source = RecordSource::Declared(*now);
        }
    }

    let record = known.record(key)?;
    if let (RecordSource::Measured(_), Some(capacity)) = (record.source, record.capacity) {
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
        .map(|bound| tokens(bound.tokens() * ranks));
    let alike = known.like(key, context.sharing(), record).and_then(|other| other.capacity);
    // The compute bound alone is an upper bound that may be many times the memory.
    let least = [memory, alike].into_iter().flatten().reduce(Tokens::min)?;
    Some((compute.map_or(least, |compute| least.min(compute)), CapacitySource::Declared))
}

/// Records the measured capacity for the time without replicas.
pub(super) fn remember(
    context: &TokenContext<'_>,
    known: &mut ModelKnowledge,
    kv_capacity: Option<Tokens>,
    capacity: Tokens,
) {
    let TokenContext { now, variant, .. } = context;
    let record = known.record_or(&variant.spec.key, || CapacityRecord {
        accelerator: None,
        gpus: None,
        arguments: None,
        kv_capacity: None,
        capacity: None,
        source: RecordSource::Measured(*now),
    });

    record.kv_capacity = kv_capacity;
    record.capacity = Some(capacity);
    record.source = RecordSource::Measured(*now);
    record.gpus = variant.gpus;
    if record.accelerator != variant.spec.accelerator {
        record.accelerator.clone_from(&variant.spec.accelerator);
    }
    if record.arguments.as_ref() != variant.arguments {
        record.arguments = variant.arguments.cloned();
    }
}
