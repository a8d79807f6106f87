//! Studies: scenario files, simulated, and their results as tables and reports.
//!
//! The simulator itself is [`crate::simulate`], which is pure. This module has everything around
//! it: the scenario file with its problems, traces on disk, and the results.

mod ablation;
pub mod args;
mod chart;
mod execute;
mod file;
mod fingerprint;
mod outputs;
pub(crate) mod plan;
mod record;
mod recorded;
mod report;
pub(crate) mod resolve;
pub(crate) mod results;
mod schema;
mod scoreboard;
mod series;
mod table;
mod traces;
pub(crate) mod worlds;
mod wrong;

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value};

pub use crate::study::plan::PlanError;
pub use crate::study::results::MergeError;
pub use crate::study::scoreboard::run as scoreboard;

use crate::simulate::peers::Peer;
use crate::study::args::SimulateArgs;
use crate::study::execute::ExecutedRuns;
use crate::study::plan::{JOB_INDEX, Shard};
use crate::study::results::Results;
use crate::study::traces::BYTE_ORDER_MARK;
use crate::study::wrong::StudyProblems;
use plimsoll_daemon::config::problem::{Problem, join};
use plimsoll_daemon::config::yaml;
pub use plimsoll_daemon::config::yaml::lines::Lines;

/// Keys of a scenario that define its runs, and are the same for all of them.
const OWN: [&str; 2] = ["sweep", "compare"];

/// The size limit of a scenario file.
const FILE_MAX: u64 = 4 << 20;

/// The reason that there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
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
        /// Line from 1, if the error has a place.
        line: Option<usize>,
        /// The parser's message.
        message: String,
    },
    /// The text is YAML, but not a valid scenario.
    #[error("{} is not a scenario:\n{}", path.display(), problems.join("\n"))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems, each with its line and path.
        problems: Vec<String>,
    },
}

/// A parsed scenario file.
struct Study {
    path: PathBuf,
    value: Value,
    lines: Lines,
}

/// A problem as a line of text.
enum ProblemLine {
    /// A problem in the scenario file, with its place.
    OfFile(String),
    /// A problem in the command line.
    Beside(String),
}

/// Simulates the scenario of the arguments, and writes the results.
///
/// # Errors
///
/// The scenario or the arguments are not valid, or the results cannot be written.
pub fn run(args: &SimulateArgs) -> anyhow::Result<()> {
    if let Some(of) = args.schema {
        let schema = serde_json::to_string_pretty(&schema::schema(of))?;
        return outputs::print(&format!("{schema}\n"));
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

fn peer(text: &str, named_by: &str) -> Result<Peer, PlanError> {
    Peer::parse(text).map_err(|error| PlanError(format!("{named_by} {text} {error}")))
}

/// The distinct items, each at its first place. A policy that is named twice would be simulated
/// twice, and count twice in a mean.
fn once<T: Clone + PartialEq>(named: &[T]) -> Vec<T> {
    let mut found: Vec<T> = Vec::new();
    for one in named {
        if !found.contains(one) {
            found.push(one.clone());
        }
    }
    found
}

impl From<PlanError> for ProblemLine {
    fn from(PlanError(why): PlanError) -> Self {
        Self::Beside(why)
    }
}

/// Returns true if a path equals another path or leads through it.
fn lies_in(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Reads a file; `None` if it is too large to be a scenario.
fn text_within_limit(path: &Path) -> io::Result<Option<String>> {
    if fs::metadata(path)?.len() > FILE_MAX {
        return Ok(None);
    }
    fs::read_to_string(path).map(Some)
}

// === impl Study ===

impl Study {
    fn read(path: &Path) -> Result<Self, ScenarioError> {
        let content = text_within_limit(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?
            .ok_or_else(|| ScenarioError::TooLarge { path: path.to_owned() })?;

        let text = content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&content);
        let value = yaml::read(text).map_err(|error| {
            let yaml::SyntaxError { line, message, .. } = error;
            ScenarioError::Syntax { path: path.to_owned(), line, message }
        })?;

        Ok(Self { path: path.to_owned(), value, lines: Lines::of(text) })
    }

    /// Moves the settings of the study itself, rather than of its runs, into the scenario.
    fn take_own(&mut self, set: &mut Map<String, Value>) {
        let Some(root) = self.value.as_object_mut() else { return };
        for key in OWN {
            if let Some(value) = set.shift_remove(key) {
                root.insert(key.to_owned(), value);
            }
        }
    }

    /// The compared policies, each once: those of the command line, otherwise those of the
    /// scenario. Problems of the latter are noted where the scenario is resolved.
    fn peers(&self, named: &[String], wrong: &mut StudyProblems) -> Vec<Peer> {
        let mut peers = Vec::new();
        for text in named {
            match peer(text, "--policy") {
                Ok(peer) => peers.push(peer),
                Err(error) => wrong.add(error.into()),
            }
        }

        if named.is_empty() {
            let texts = self.value.get("compare").and_then(Value::as_array).into_iter().flatten();
            peers.extend(texts.filter_map(Value::as_str).filter_map(|it| Peer::parse(it).ok()));
        }

        if peers.is_empty() {
            peers.push(Peer::Scenario);
        }

        once(&peers)
    }

    /// A text that is equal for the same scenario, files and runs.
    fn fingerprint(&self, args: &SimulateArgs, set: &Map<String, Value>) -> anyhow::Result<String> {
        let SimulateArgs { seed, seeds, set: written, policy, .. } = args;
        let asked = format!("{seed:?} {seeds} {written:?} {policy:?}");
        let texts = [self.value.to_string(), asked];
        let mut values = vec![("", &self.value)];
        values.extend(set.iter().map(|(path, value)| (path.as_str(), value)));
        fingerprint::fingerprint(&texts, &values, &self.folder())
            .with_context(|| format!("cannot read the files that {} names", self.path.display()))
    }

    /// The folder that relative paths start from.
    fn folder(&self) -> PathBuf {
        self.path.parent().map(Path::to_owned).unwrap_or_default()
    }

    /// A problem of the scenario with these settings, and the place to fix it. That is the value in
    /// a sweep, the setting on the command line, or otherwise the line in the file.
    fn placed(&self, problem: &Problem, settings: &Map<String, Value>) -> ProblemLine {
        let Problem { path: wrong, .. } = problem;
        // If a key is in no file, every key above it can come from a setting.
        let is_in_file = self.lines.has(wrong);
        let setting = settings
            .iter()
            .rev()
            .find(|(path, _)| lies_in(wrong, path) || lies_in(path, wrong) && !is_in_file);

        match setting {
            Some((path, value)) => self.said_of(path, value, problem),
            None => ProblemLine::OfFile(self.said(problem)),
        }
    }

    /// A problem with a value of a sweep, or with a setting on the command line.
    fn said_of(&self, path: &str, value: &Value, what: &impl Display) -> ProblemLine {
        let tried = self.value.get("sweep").and_then(|sweep| sweep.get(path));
        let values = tried.and_then(Value::as_array);
        let at = values.and_then(|values| values.iter().position(|tried| tried == value));
        let Some(at) = at else { return ProblemLine::Beside(format!("--set {path}: {what}")) };
        let line = self.lines.get(&format!("{}[{at}]", join("sweep", path)));
        let place = line.map(|number| format!(":{number}")).unwrap_or_default();
        ProblemLine::OfFile(format!("{}{place}: {what}", self.path.display()))
    }

    /// A problem with its line.
    fn said(&self, problem: &Problem) -> String {
        match self.lines.get(&problem.path) {
            Some(line) => format!("{}:{line}: {problem}", self.path.display()),
            None => format!("{}: {problem}", self.path.display()),
        }
    }
}
