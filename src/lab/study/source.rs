//! A scenario file as written: its keys, and the lines of its text for problems.

use std::fmt::Display;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde_json::{Map, Value};

use crate::simulate::peers::Peer;
use crate::study::args::SimulateArgs;
use crate::study::fingerprint;
use crate::study::policies::{once, peer};
use crate::study::traces::BYTE_ORDER_MARK;
use crate::study::wrong::{FILE_MAX, ProblemLine, ScenarioError, StudyProblems};
use plimsoll_daemon::config::problem::{Problem, join};
use plimsoll_daemon::config::yaml;
use plimsoll_daemon::config::yaml::lines::Lines;

/// The demo's standard scenario.
pub(crate) const DEMO: &str = include_str!("../../../examples/demo.yaml");

/// Keys of a scenario that define its runs, and are the same for all of them.
const OWN: [&str; 2] = ["sweep", "compare"];

/// A parsed scenario file.
pub(super) struct Study {
    pub(super) path: PathBuf,
    pub(super) value: Value,
    pub(super) lines: Lines,
}

// === impl Study ===

impl Study {
    pub(super) fn read(path: &Path) -> Result<Self, ScenarioError> {
        let content = text_within_limit(path)
            .map_err(|source| ScenarioError::Read { path: path.to_owned(), source })?
            .ok_or_else(|| ScenarioError::TooLarge { path: path.to_owned() })?;

        Self::parse(path, content.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&content))
    }

    /// Parses the text of a scenario file.
    pub(super) fn parse(path: &Path, text: &str) -> Result<Self, ScenarioError> {
        let value = yaml::read(text).map_err(|error| {
            let yaml::SyntaxError { line, message, .. } = error;
            ScenarioError::Syntax { path: path.to_owned(), line, message }
        })?;

        Ok(Self { path: path.to_owned(), value, lines: Lines::of(text) })
    }

    /// Moves the settings of the study itself, rather than of its runs, into the scenario.
    pub(super) fn take_own(&mut self, set: &mut Map<String, Value>) {
        let Some(root) = self.value.as_object_mut() else { return };
        for key in OWN {
            if let Some(value) = set.shift_remove(key) {
                root.insert(key.to_owned(), value);
            }
        }
    }

    /// The compared policies, each once: those of the command line, otherwise those of the
    /// scenario. Problems of the latter are noted where the scenario is resolved.
    pub(super) fn peers(&self, named: &[String], wrong: &mut StudyProblems) -> Vec<Peer> {
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
    pub(super) fn fingerprint(
        &self,
        args: &SimulateArgs,
        set: &Map<String, Value>,
    ) -> anyhow::Result<String> {
        let SimulateArgs { seed, seeds, policy, .. } = args;
        let asked = format!("{seed:?} {seeds} {policy:?}");
        let mut values = vec![("", &self.value)];
        values.extend(set.iter().map(|(path, value)| (path.as_str(), value)));
        fingerprint::fingerprint(&asked, &values, &self.folder())
            .with_context(|| format!("cannot read the files that {} names", self.path.display()))
    }

    /// The folder that relative paths start from.
    pub(super) fn folder(&self) -> PathBuf {
        self.path.parent().map(Path::to_owned).unwrap_or_default()
    }

    /// A problem of the scenario with these settings, and the place to fix it. That is the value in
    /// a sweep, the setting on the command line, or otherwise the line in the file.
    pub(super) fn placed(&self, problem: &Problem, settings: &Map<String, Value>) -> ProblemLine {
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
    pub(super) fn said_of(&self, path: &str, value: &Value, what: &impl Display) -> ProblemLine {
        let tried = self.value.get("sweep").and_then(|sweep| sweep.get(path));
        let values = tried.and_then(Value::as_array);
        let at = values.and_then(|values| values.iter().position(|tried| tried == value));
        let Some(at) = at else { return ProblemLine::Beside(format!("--set {path}: {what}")) };
        let line = self.lines.get(&format!("{}[{at}]", join("sweep", path)));
        let place = line.map(|number| format!(":{number}")).unwrap_or_default();
        ProblemLine::OfFile(format!("{}{place}: {what}", self.path.display()))
    }

    /// A problem with its line.
    pub(super) fn said(&self, problem: &Problem) -> String {
        match self.lines.get(&problem.path) {
            Some(line) => format!("{}:{line}: {problem}", self.path.display()),
            None => format!("{}: {problem}", self.path.display()),
        }
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
