//! The demo's scenario: a file for `plimsoll simulate`, embedded in the program.
//!
//! [`DemoSetup`] has the same scenario and the same daemon as `plimsoll simulate` with these values
//! set in the file. The demo adds the daemon's target lists and client authentication.

use std::path::Path;

use anyhow::anyhow;
use clap::ValueEnum as _;
use serde_json::{Map, Value, json};

use crate::demo::args::{DemoPolicy, DemoScenario};
use crate::simulate::peers::Peer;
use crate::simulate::scenario::{Model, Scenario, Variant};
use crate::simulate::score::Outcome;
use crate::study;
use crate::study::plan::{self, Plan};
use crate::study::resolve::{self, ResolvedScenario};
use crate::study::results::RunResult;
use plimsoll_core::analyze::analyzers::Analyzer;
use plimsoll_core::units::Replicas;
use plimsoll_daemon::config::yaml;

/// A scenario and its daemon.
#[derive(Clone, Debug)]
pub struct DemoSetup {
    /// The scenario, which lives until the process ends.
    pub scenario: &'static Scenario,
    /// The seed of its random numbers.
    pub seed: u64,
    /// The configuration of the daemon.
    pub config: Value,
}

// === impl DemoSetup ===

impl DemoSetup {
    /// Reads a scenario, with these values set at paths of its file.
    ///
    /// # Errors
    ///
    /// The values make the scenario invalid.
    pub fn read(
        played: DemoScenario,
        seed: u64,
        settings: &[(&str, Value)],
    ) -> anyhow::Result<Self> {
        let text = match played {
            DemoScenario::Standard => study::DEMO,
            DemoScenario::Lora => include_str!("../../../examples/demo-lora.yaml"),
        };
        let mut file = value(text)?;
        for (path, value) in settings {
            plan::set(&mut file, path, value.clone())?;
        }

        let ResolvedScenario { scenario, config, .. } = resolve::resolve(file, Path::new(""))
            .map_err(|problems| anyhow!("the demo's scenario is not valid: {problems:?}"))?;
        // A process plays one scenario, which its tasks use until the end.
        Ok(Self { scenario: Box::leak(Box::new(scenario)), seed, config: value(&config)? })
    }

    /// The results of a simulated outcome.
    pub(crate) fn result(&self, outcome: &Outcome) -> RunResult {
        let plan = Plan { index: 0, settings: Map::new(), peer: Peer::Scenario, seed: 0 };
        RunResult::new(&plan, self.seed, self.scenario, outcome)
    }
}

impl DemoPolicy {
    /// The values in the scenario file that select this policy.
    pub(crate) fn settings(self) -> Vec<(&'static str, Value)> {
        let analyzers = match self {
            Self::Saturation => return vec![("policy.analysis", json!("saturation"))],
            Self::All => {
                let voting = Analyzer::ALL.iter().filter(|it| **it != Analyzer::Foresight);
                voting.map(|it| it.label().to_owned()).collect()
            }
            Self::Tokens | Self::Throughput | Self::Queueing | Self::Foresight => {
                let value = self.to_possible_value();
                value.map(|value| value.get_name().to_owned()).into_iter().collect::<Vec<_>>()
            }
        };

        vec![("policy.capacity.analyzers", json!(analyzers))]
    }
}

fn value(text: &str) -> anyhow::Result<Value> {
    yaml::read(text).map_err(|error| anyhow!("the demo's scenario is not YAML: {}", error.message))
}

/// The last part of a model's name, without the organization.
pub(crate) fn short_name(model: &Model) -> &str {
    model.key.model.as_str().rsplit('/').next().unwrap_or_default()
}

/// The maximum replicas of a variant. A scenario has a bound for each.
pub(crate) fn most(variant: &Variant) -> Replicas {
    variant.spec.bounds.max().unwrap_or(variant.initial)
}
