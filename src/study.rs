//! Studies: scenario files, simulated, and what came of them as tables and reports.
//!
//! The simulator itself is [`crate::simulate`], which is pure. Here is everything around it: the
//! scenario file with its problems, traces on disk, and the results.

mod chart;
mod execute;
mod file;
mod plan;
mod record;
mod report;
mod resolve;
mod results;
mod schema;
mod scoreboard;
mod series;
mod table;
mod traces;

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value};

pub use crate::study::plan::PlanError;
pub use crate::study::results::MergeError;
pub use crate::study::scoreboard::run as scoreboard;

use crate::cli::SimulateArgs;
use crate::config::yaml;
use crate::config::yaml::lines::Lines;
use crate::config::{self, problem::Problem};
use crate::simulate::peers::Peer;
use crate::study::execute::{Executed, First};
use crate::study::plan::{JOB_INDEX, Shard};
use crate::study::resolve::Resolved;
use crate::study::results::Results;

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

/// Simulates the scenario of the arguments, and writes what came of it.
///
/// # Errors
///
/// The scenario or the arguments are not valid, or what came of it cannot be written.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    if let Some(of) = args.schema {
        let schema = serde_json::to_string_pretty(&schema::schema(of))?;
        return print(&format!("{schema}\n"));
    }
    let Some(path) = &args.scenario else {
        return write(args, &Results::merge(&args.merge)?, None);
    };
    let study = Study::read(path)?;
    let peers = match args.policy.as_slice() {
        [] => study.compared()?,
        texts => texts.iter().map(|text| peer(text, "--policy")).collect::<Result<_, _>>()?,
    };
    let set = args.set.iter().map(|text| plan::setting(text)).collect::<Result<Map<_, _>, _>>()?;
    let sweep = study.value.get("sweep").cloned().unwrap_or_default();
    let plans = plan::plan(&sweep, &set, &peers, args.seeds)?;
    let index = std::env::var(JOB_INDEX).ok();
    let shard = args.shard.as_deref();
    let shard = shard.map_or(Ok(Shard::WHOLE), |text| Shard::parse(text, index.as_deref()))?;
    let name = path.display().to_string();
    let mut results = Results::new(name, study.fingerprint(args), plans.len());
    let Executed { runs, first } =
        execute::execute(&study, plans, shard, args.seed, args.trace.as_deref())?;
    results.runs = runs;
    write(args, &results, first.as_ref())
}

fn peer(text: &str, named_by: &str) -> Result<Peer, PlanError> {
    Peer::parse(text).map_err(|error| PlanError(format!("{named_by} {text} {error}")))
}

/// Writes everything that was asked for.
fn write(args: &SimulateArgs, results: &Results, first: Option<&First>) -> anyhow::Result<()> {
    let to_file = |path: &PathBuf, text: &str| {
        fs::write(path, text).with_context(|| format!("cannot write {}", path.display()))
    };
    let mut table = table::table(results);
    if let Some(path) = &args.json {
        let json = serde_json::to_string_pretty(results)? + "\n";
        if path.as_os_str() == "-" {
            table = json;
        } else {
            to_file(path, &json)?;
        }
    }
    if let (Some(path), Some(first)) = (&args.series, first) {
        to_file(path, &series::csv(first))?;
    }
    if let (Some(path), Some(First { outcome, .. })) = (&args.cards, first) {
        to_file(path, &config::cards_text(&outcome.cards))?;
    }
    if let Some(path) = &args.report {
        to_file(path, &report::html(results, first))?;
    }
    print(&table)
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
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

    /// Who is compared where the command line names nobody.
    fn compared(&self) -> Result<Vec<Peer>, PlanError> {
        let texts = self.value.get("compare").and_then(Value::as_array);
        let texts = texts.into_iter().flatten().filter_map(Value::as_str);
        let peers: Vec<Peer> = texts.map(|text| peer(text, "compare")).collect::<Result<_, _>>()?;
        Ok(if peers.is_empty() { vec![Peer::Scenario] } else { peers })
    }

    /// A text that is the same for the same scenario and the same runs of it.
    fn fingerprint(&self, args: &SimulateArgs) -> String {
        let SimulateArgs { seed, seeds, set, policy, .. } = args;
        let text = format!("{}{seed:?}{seeds}{set:?}{policy:?}", self.value);
        // FNV-1a with 64 bits, by its published constants: it need not withstand an attacker.
        let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
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
