//! Shadow policies in addition to the policy in effect: each has its own pipeline with the same
//! inputs.
//!
//! Their decisions are shown and have no effect, so they see the consequences of the policy in
//! effect. Each shadow starts without memory when it is first configured, and keeps its memory
//! across reloads.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::config::Config;
use crate::publish::ShadowResult;
use plimsoll_core::decide::Decision;
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, DesiredReplicas, Pipeline};

/// A policy in addition to the policy in effect.
pub(crate) struct ShadowPipeline {
    name: String,
    pipeline: Pipeline,
}

/// The shadows of a configuration; shadows that existed before keep their state.
pub(super) fn replace(before: Vec<ShadowPipeline>, config: &Config) -> Vec<ShadowPipeline> {
    let mut pipelines: BTreeMap<String, Pipeline> =
        before.into_iter().map(|shadow| (shadow.name, shadow.pipeline)).collect();

    let mut shadows = Vec::new();
    for crate::config::ShadowPolicy { name, policy } in &config.shadows {
        let known = pipelines.remove(name);
        let mut pipeline = known.unwrap_or_else(|| Pipeline::new(policy.clone()));
        pipeline.set_policy(policy.clone());
        shadows.push(ShadowPipeline { name: name.clone(), pipeline });
    }

    shadows
}

/// The decisions of each shadow on the inputs.
pub(super) fn decide(
    shadows: &mut [ShadowPipeline],
    now: Timestamp,
    inputs: &Inputs,
    decisions: &Decisions,
) -> BTreeMap<String, BTreeMap<VariantKey, ShadowResult>> {
    let mut said = BTreeMap::new();
    for ShadowPipeline { name, pipeline } in shadows {
        // A new shadow continues from the desired replicas in effect, as a reload would.
        let new = decisions.decisions.iter().filter(|it| !pipeline.has_number(&it.variant));
        let numbers: BTreeMap<VariantKey, DesiredReplicas> = new
            .map(|it| {
                let desired = it.desired();
                let inputs_at = it.inputs_at;
                (it.variant.clone(), DesiredReplicas { desired, inputs_at, packed: None })
            })
            .collect();
        pipeline.take_over(now, &numbers);
        let found = pipeline.tick(now, inputs);
        said.insert(name.clone(), shadowed(&found));
    }

    said
}

fn shadowed(found: &Decisions) -> BTreeMap<VariantKey, ShadowResult> {
    let undecided = found.undecided.iter().map(|(key, why)| {
        (key.clone(), ShadowResult { desired: None, because: why.0.to_string() })
    });

    let decided = found.decisions.iter().map(|decision: &Decision| {
        let because = decision.because().map(ToString::to_string).unwrap_or_default();
        (decision.variant.clone(), ShadowResult { desired: Some(decision.desired()), because })
    });

    undecided.chain(decided).collect()
}
