//! Studies: scenario files, simulated, and what came of them as tables and reports.
//!
//! The simulator itself is [`crate::simulate`], which is pure. Here is everything around it: the
//! scenario file with its problems, traces on disk, and the results.

mod file;
mod lines;
mod resolve;
mod table;
mod traces;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::Value;

use crate::cli::SimulateArgs;
use crate::config::problem::Problem;
use crate::config::yaml;
use crate::simulate::Micros;
use crate::simulate::run;
use crate::simulate::scenario::Scenario;
use crate::simulate::score::Outcome;
use crate::study::lines::Lines;
use crate::study::resolve::Resolved;

/// The largest scenario file.
const FILE_MAX: u64 = 4 << 20;

/// Why there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is too large to be a scenario.
    #[error("the scenario {} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text is not YAML.
    #[error("{}{} is not YAML: {message}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line from 1, if the mistake has a place.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// The text is YAML, and not a scenario.
    #[error("{} is not a scenario:\n{}", path.display(), problems.join("\n"))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Everything that is wrong, each with its line and path.
        problems: Vec<String>,
    },
}

/// A scenario file that was read.
struct Study {
    path: PathBuf,
    value: Value,
    lines: Lines,
}

/// One run and what it came to.
struct Run {
    seed: u64,
    scenario: Scenario,
    outcome: Outcome,
}

/// Simulates the scenario of the arguments, and prints what came of it.
///
/// # Errors
///
/// The scenario is not valid, or what came of it cannot be written.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    let study = Study::read(&args.scenario)?;
    let Resolved { scenario, seed, warnings } = study.resolve(study.value.clone())?;
    for warning in &warnings {
        writeln!(std::io::stderr(), "{}", study.said(warning))?;
    }
    let seed = args.seed.unwrap_or(seed);
    let outcome = run::run(&scenario, seed, &mut |_: Micros| true)
        .context("an engine of the scenario cannot be built")?;
    let run = Run { seed, scenario, outcome };
    let mut out = std::io::stdout().lock();
    out.write_all(table::table(&study.path, &run).as_bytes())?;
    Ok(out.flush()?)
}

// === impl Study ===

impl Study {
    fn read(path: &Path) -> Result<Self, ScenarioError> {
        let failed = |source| ScenarioError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
            return Err(ScenarioError::TooLarge { path: path.to_owned() });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let value = yaml::read(&text).map_err(|error| {
            let yaml::SyntaxError { line, message, .. } = error;
            ScenarioError::Syntax { path: path.to_owned(), line, message }
        })?;
        Ok(Self { path: path.to_owned(), value, lines: Lines::of(&text) })
    }

    fn resolve(&self, value: Value) -> Result<Resolved, ScenarioError> {
        let folder = self.path.parent().map(Path::to_owned).unwrap_or_default();
        resolve::resolve(value, &folder).map_err(|problems| ScenarioError::Invalid {
            path: self.path.clone(),
            problems: problems.iter().map(|problem| self.said(problem)).collect(),
        })
    }

    /// A problem with the line that it is in.
    fn said(&self, problem: &Problem) -> String {
        match self.lines.get(&problem.path) {
            Some(line) => format!("{}:{line}: {problem}", self.path.display()),
            None => format!("{}: {problem}", self.path.display()),
        }
    }
}
