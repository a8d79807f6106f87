//! Policies beside the one in force: each has a pipeline of its own, which gets the same inputs.
//!
//! What they say is shown and has no effect, so what they see is what the policy in force makes
//! happen. Each starts without memory when it is first named, and keeps it across reloads.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::config::Config;
use crate::daemon::ticks::Ticks;
use crate::publish::Shadowed;
use plimsoll_core::decide::Decision;
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, Number, Pipeline};

/// A policy beside the one in force.
pub(crate) struct Shadow {
    name: String,
    pipeline: Pipeline,
}

/// The shadows of a configuration; those that were there before keep what they know.
pub(super) fn replace(before: Vec<Shadow>, config: &Config) -> Vec<Shadow> {
    let mut before: BTreeMap<String, Pipeline> =
        before.into_iter().map(|shadow| (shadow.name, shadow.pipeline)).collect();
    let shadow = |it: &crate::config::Shadow| {
        let known = before.remove(&it.name);
        let mut pipeline = known.unwrap_or_else(|| Pipeline::new(it.policy.clone()));
        pipeline.set_policy(it.policy.clone());
        Shadow { name: it.name.clone(), pipeline }
    };
    config.shadows.iter().map(shadow).collect()
}

impl Ticks {
    /// What each shadow says of the inputs.
    pub(super) fn shadow(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        decisions: &Decisions,
    ) -> BTreeMap<String, BTreeMap<VariantKey, Shadowed>> {
        let mut said = BTreeMap::new();
        for Shadow { name, pipeline } in &mut self.shadows {
            // One that is new goes on from the numbers in force, as a reload would.
            let new = decisions.decisions.iter().filter(|it| !pipeline.has_number(&it.variant));
            let numbers: BTreeMap<VariantKey, Number> = new
                .map(|it| {
                    let number = Number { desired: it.desired(), inputs_at: it.inputs_at };
                    (it.variant.clone(), number)
                })
                .collect();
            pipeline.take_over(now, &numbers);
            let found = pipeline.tick(now, inputs);
            said.insert(name.clone(), shadowed(&found));
        }
        said
    }
}

fn shadowed(found: &Decisions) -> BTreeMap<VariantKey, Shadowed> {
    let undecided = found
        .undecided
        .iter()
        .map(|(key, why)| (key.clone(), Shadowed { desired: None, because: why.0.to_string() }));
    let decided = found.decisions.iter().map(|decision: &Decision| {
        let because = decision.because().map(ToString::to_string).unwrap_or_default();
        (decision.variant.clone(), Shadowed { desired: Some(decision.desired()), because })
    });
    undecided.chain(decided).collect()
}
