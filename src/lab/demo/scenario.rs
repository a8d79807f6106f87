//! The demo's scenario: a file of `plimsoll simulate`, which is part of the program.
//!
//! [`Played`] has the same scenario and the same daemon as `plimsoll simulate` with other values at
//! some paths of the file. The demo adds where the daemon finds its replicas and who may ask it.

use std::path::Path;

use anyhow::anyhow;
use clap::ValueEnum as _;
use serde_json::{Map, Value, json};

use crate::demo::args::{DemoPolicy, DemoScenario};
use crate::demo::stage::Stage;
use crate::simulate::peers::Peer;
use crate::simulate::scenario::{Model, Scenario, Variant};
use crate::simulate::score::Outcome;
use crate::study::plan::{self, Plan};
use crate::study::resolve::{self, Resolved};
use crate::study::results::RunResult;
use plimsoll_core::analyze::analyzers::Analyzer;
use plimsoll_core::units::Replicas;
use plimsoll_daemon::config::yaml;

/// A scenario and its daemon.
#[derive(Clone, Debug)]
pub struct Played {
    /// The scenario, which everything that plays it has until the process ends.
    pub scenario: &'static Scenario,
    /// The seed of its random numbers.
    pub seed: u64,
    /// The configuration of the daemon.
    pub config: Value,
}

// === impl Played ===

impl Played {
    /// Reads a scenario, with these values at paths of its file.
    ///
    /// # Errors
    ///
    /// With one of them it is no scenario.
    pub fn read(
        played: DemoScenario,
        seed: u64,
        settings: &[(&str, Value)],
    ) -> anyhow::Result<Self> {
        let text = match played {
            DemoScenario::Standard => include_str!("../../../examples/demo.yaml"),
            DemoScenario::Lora => include_str!("../../../examples/demo-lora.yaml"),
        };
        let mut file = value(text)?;
        for (path, value) in settings {
            plan::set(&mut file, path, value.clone())?;
        }

        let Resolved { scenario, config, .. } = resolve::resolve(file, Path::new(""))
            .map_err(|problems| anyhow!("the demo's scenario is not valid: {problems:?}"))?;
        // A process plays one, for as long as there are tasks that look at it.
        Ok(Self { scenario: Box::leak(Box::new(scenario)), seed, config: value(&config)? })
    }

    /// The variants of the configuration, with a file in this folder for the targets of each.
    #[must_use]
    pub fn with_targets(&self, folder: &Path) -> Value {
        let mut variants = self.config["variants"].clone();
        for variant in variants.as_array_mut().into_iter().flatten() {
            let name = variant["name"].as_str().unwrap_or_default();
            let path = Stage::targets_file(folder, name);
            variant["targets"] = json!({"file": {"paths": [path], "refresh": "1s"}});
        }
        variants
    }

    /// The results of an outcome.
    pub(crate) fn result(&self, outcome: &Outcome) -> RunResult {
        let plan = Plan { index: 0, settings: Map::new(), peer: Peer::Scenario, seed: 0 };
        RunResult::new(&plan, self.seed, self.scenario, outcome)
    }
}

impl DemoPolicy {
    /// The values of the scenario's file that make its daemon decide by this policy.
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

/// The last part of a model's name, without the organisation.
pub(crate) fn short_name(model: &Model) -> &str {
    model.key.model.as_str().rsplit('/').next().unwrap_or_default()
}

/// The most replicas of a variant. A scenario has a bound for each.
pub(crate) fn most(variant: &Variant) -> Replicas {
    variant.spec.bounds.max().unwrap_or(variant.initial)
}
