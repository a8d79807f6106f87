//! Studies: scenario files, simulated, and their results as tables and reports.
//!
//! The simulator itself is [`crate::simulate`], which is pure. This module has everything around
//! it: the scenario file with its problems, traces on disk, and the results.

mod ablation;
pub mod args;
pub(crate) mod chart;
mod execute;
mod file;
mod fingerprint;
mod outputs;
pub(crate) mod plan;
mod policies;
mod record;
mod recorded;
mod report;
pub(crate) mod resolve;
pub(crate) mod results;
mod schema;
mod scoreboard;
mod series;
mod source;
mod table;
mod traces;
pub(crate) mod worlds;
mod wrong;

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

pub use crate::study::plan::PlanError;
pub use crate::study::results::MergeError;
pub use crate::study::scoreboard::run as scoreboard;
pub use crate::study::wrong::ScenarioError;

use crate::output::print;
use crate::simulate::scenario::Scenario;
use crate::study::args::SimulateArgs;
use crate::study::execute::ExecutedRuns;
use crate::study::plan::{JOB_INDEX, Shard};
use crate::study::results::Results;
pub(crate) use crate::study::source::DEMO;
use crate::study::source::Study;
use crate::study::wrong::StudyProblems;

/// Simulates the scenario of the arguments, and writes the results.
///
/// # Errors
///
/// The scenario or the arguments are not valid, or the results cannot be written.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    if let Some(of) = args.schema {
        let schema = serde_json::to_string_pretty(&schema::schema(of))?;
        return print(&format!("{schema}\n"));
    }

    outputs::check(args)?;
    let Some(path) = &args.scenario else {
        return outputs::write(args, &Results::merge(&args.merge)?, None);
    };
    let mut study = Study::read(path)?;
    if let Some(traces) = &args.traces {
        let folder = study.folder();
        recorded::look_elsewhere(&mut study.value, &folder, traces);
    }

    let mut wrong = StudyProblems::default();
    let mut set: Map<String, Value> = Map::new();
    for text in &args.set {
        match plan::setting(text) {
            Ok(setting) => set.extend([setting]),
            Err(error) => wrong.add(error.into()),
        }
    }

    study.take_own(&mut set);
    let peers = study.peers(&args.policy, &mut wrong);
    let sweep = study.value.get("sweep").cloned().unwrap_or_default();
    let plans = plan::plan(&sweep, &set, &peers, args.seeds)?;
    let index = std::env::var(JOB_INDEX).ok();
    let shard = match &args.shard {
        Some(text) => Shard::parse(text, index.as_deref())?,
        None => Shard::WHOLE,
    };

    let name = path.display().to_string();
    let mut results = Results::new(name, study.fingerprint(args, &set)?, plans.len());
    let ExecutedRuns { runs, left_out, first } =
        execute::execute(&study, plans, shard, args.seed, args.trace.as_deref(), wrong)?;
    (results.runs, results.left_out) = (runs, left_out);
    outputs::write(args, &results, first.as_ref())
}

/// The scenario of a file, or without a file that of the demo, with these settings in the form of
/// `--set`.
///
/// # Errors
///
/// The file cannot be read, or the scenario or a setting is not valid.
pub(crate) fn scenario(path: Option<&Path>, settings: &[String]) -> anyhow::Result<Arc<Scenario>> {
    let study = match path {
        Some(path) => Study::read(path)?,
        None => Study::parse(Path::new("examples/demo.yaml"), DEMO)?,
    };

    let set = settings.iter().map(|text| plan::setting(text));
    execute::resolve_one(&study, &set.collect::<Result<Map<String, Value>, PlanError>>()?)
}
