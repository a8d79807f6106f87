//! Studies: scenario files, simulated, and what came of them as tables and reports.
//!
//! The simulator itself is [`crate::simulate`], which is pure. Here is everything around it: the
//! scenario file with its problems, traces on disk, and the results.

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
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value};

pub use crate::study::plan::PlanError;
pub use crate::study::results::MergeError;
pub use crate::study::scoreboard::run as scoreboard;

use crate::simulate::peers::Peer;
use crate::study::args::SimulateArgs;
use crate::study::execute::Executed;
use crate::study::plan::{JOB_INDEX, Shard};
use crate::study::results::Results;
use crate::study::traces::BYTE_ORDER_MARK;
use crate::study::wrong::Wrong;
use plimsoll_daemon::config::problem::{Problem, join};
use plimsoll_daemon::config::yaml;
pub use plimsoll_daemon::config::yaml::lines::Lines;

/// Keys of a scenario that say which runs there are, and are the same for all of them.
const OWN: [&str; 2] = ["sweep", "compare"];

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

/// What is wrong, as a line.
enum Said {
    /// With its place in the scenario file.
    OfFile(String),
    /// With what the command line says.
    Beside(String),
}

/// Simulates the scenario of the arguments, and writes what came of it.
///
/// # Errors
///
/// The scenario or the arguments are not valid, or what came of it cannot be written.
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
    let mut wrong = Wrong::default();
    let mut known = |read: Result<_, PlanError>| read.map_err(|it| wrong.add(it.into())).ok();
    let mut set: Map<String, Value> =
        args.set.iter().filter_map(|text| known(plan::setting(text))).collect();
    study.take_own(&mut set);
    let peers = study.peers(&args.policy, &mut wrong);
    let sweep = study.value.get("sweep").cloned().unwrap_or_default();
    let plans = plan::plan(&sweep, &set, &peers, args.seeds)?;
    let index = std::env::var(JOB_INDEX).ok();
    let shard = args.shard.as_deref();
    let shard = shard.map_or(Ok(Shard::WHOLE), |text| Shard::parse(text, index.as_deref()))?;
    let name = path.display().to_string();
    let mut results = Results::new(name, study.fingerprint(args, &set)?, plans.len());
    let Executed { runs, left_out, first } =
        execute::execute(&study, plans, shard, args.seed, args.trace.as_deref(), wrong)?;
    (results.runs, results.left_out) = (runs, left_out);
    outputs::write(args, &results, first.as_ref())
}

fn peer(text: &str, named_by: &str) -> Result<Peer, PlanError> {
    Peer::parse(text).map_err(|error| PlanError(format!("{named_by} {text} {error}")))
}

/// Each in the place of its first: who is named twice would be simulated twice, and count twice in a
/// mean.
fn once<T: Clone + PartialEq>(named: &[T]) -> Vec<T> {
    let twice = |at: usize| named[..at].contains(&named[at]);
    (0..named.len()).filter(|&at| !twice(at)).map(|at| named[at].clone()).collect()
}

impl From<PlanError> for Said {
    fn from(PlanError(why): PlanError) -> Self {
        Self::Beside(why)
    }
}

/// Whether a path is another one, or leads through it.
fn lies_in(path: &str, other: &str) -> bool {
    path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

// === impl Study ===

impl Study {
    fn read(path: &Path) -> Result<Self, ScenarioError> {
        let failed = |source| ScenarioError::Read { path: path.to_owned(), source };
        if fs::metadata(path).map_err(failed)?.len() > FILE_MAX {
            return Err(ScenarioError::TooLarge { path: path.to_owned() });
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let text = text.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&text);
        let value = yaml::read(text).map_err(|error| {
            let yaml::SyntaxError { line, message, .. } = error;
            ScenarioError::Syntax { path: path.to_owned(), line, message }
        })?;
        Ok(Self { path: path.to_owned(), value, lines: Lines::of(text) })
    }

    /// Takes what is set of the study rather than of its runs.
    fn take_own(&mut self, set: &mut Map<String, Value>) {
        let Some(root) = self.value.as_object_mut() else { return };
        for key in OWN {
            if let Some(value) = set.shift_remove(key) {
                root.insert(key.to_owned(), value);
            }
        }
    }

    /// Who is compared, each once: those of the command line, else those of the scenario. What is wrong with
    /// the latter is said where that is read.
    fn peers(&self, named: &[String], wrong: &mut Wrong) -> Vec<Peer> {
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

    /// A text that is the same for the same scenario, the same files and the same runs of it.
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

    /// A problem of the scenario with these settings, where it is to be mended: the value that a
    /// sweep tries, or that the command line sets, or else the place in the file.
    fn placed(&self, problem: &Problem, settings: &Map<String, Value>) -> Said {
        let Problem { path: wrong, .. } = problem;
        // Of a key that is in no file, all above may come from what is set.
        let is_of =
            |path: &str| lies_in(wrong, path) || lies_in(path, wrong) && !self.lines.has(wrong);
        match settings.iter().rev().find(|(path, _)| is_of(path)) {
            Some((path, value)) => self.said_of(path, value, problem),
            None => Said::OfFile(self.said(problem)),
        }
    }

    /// What is wrong with a value that a sweep tries, or that the command line sets.
    fn said_of(&self, path: &str, value: &Value, what: &impl Display) -> Said {
        let tried = self.value.get("sweep").and_then(|sweep| sweep.get(path));
        let values = tried.and_then(Value::as_array);
        let at = values.and_then(|values| values.iter().position(|tried| tried == value));
        let Some(at) = at else { return Said::Beside(format!("--set {path}: {what}")) };
        let line = self.lines.get(&format!("{}[{at}]", join("sweep", path)));
        let line = line.map(|line| format!(":{line}")).unwrap_or_default();
        Said::OfFile(format!("{}{line}: {what}", self.path.display()))
    }

    /// A problem with the line that it is in.
    fn said(&self, problem: &Problem) -> String {
        match self.lines.get(&problem.path) {
            Some(line) => format!("{}:{line}: {problem}", self.path.display()),
            None => format!("{}: {problem}", self.path.display()),
        }
    }
}
