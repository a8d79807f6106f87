//! Policies to score: the sections of a configuration that decisions depend on, from files.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::backtest::BacktestError;
use crate::backtest::replay::surroundings;
use plimsoll_core::pipeline::Policy;
pub(super) use plimsoll_daemon::config::yaml::lines::Lines;
use plimsoll_daemon::config::{self, Config, LoadError, Problem, Severity, yaml};

/// The largest file of a policy.
const FILE_MAX: u64 = 4 << 20;

/// The sections that a policy is made of. Those that a file does not have are the recorded ones.
const SECTIONS: [&str; 8] = [
    "observe",
    "saturation",
    "analysis",
    "capacity",
    "enforce",
    "scale_to_zero",
    "pools",
    "limits",
];

/// A key of a section that names files of the machine that decides, and what is in them may be
/// another thing than when the trace was written.
const CARD_FILES: &str = "capacity.card_files";

/// What the policy in the trace is called.
const RECORDED: &str = "recorded";

/// A policy to score.
pub(crate) struct Candidate {
    /// What the table calls it.
    pub(crate) name: String,
    /// The policy.
    pub(crate) policy: Policy,
}

/// The policies to score, and what they are scored in.
pub(crate) struct Candidates {
    /// The recorded configuration.
    pub(crate) config: Config,
    /// The recorded policy first.
    pub(crate) policies: Vec<Candidate>,
}

/// A policy as its file has it.
pub(crate) struct Written {
    path: PathBuf,
    sections: Map<String, Value>,
    lines: Lines,
}

/// Reads the files of policies.
///
/// # Errors
///
/// Some cannot be read, or are no mapping of sections; all of them are listed.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Written>, BacktestError> {
    let read = paths.iter().map(|path| sections(path).map_err(|problem| vec![problem]));
    all(read)
}

/// The policies, each over the sections of the configuration that is recorded in a file.
///
/// # Errors
///
/// The configuration or some of the policies are not valid; then all that is wrong with these is
/// listed.
pub(crate) fn resolve(
    written: &[Written],
    (path, recorded): (&Path, &str),
) -> Result<Candidates, BacktestError> {
    let invalid = |source| BacktestError::Config { path: path.to_owned(), source };
    let config = config::parse(recorded, &surroundings(path)).map_err(invalid)?.config;
    let recorded_too = Candidate { name: RECORDED.to_owned(), policy: config.policy.clone() };
    let others = all(written.iter().map(|one| {
        let policy = one.policy(recorded)?;
        Ok(Candidate { name: one.name(), policy })
    }))?;
    let policies = [recorded_too].into_iter().chain(others).collect();
    Ok(Candidates { config, policies })
}

/// All of them, or everything that is wrong with any, one a line.
fn all<T>(results: impl Iterator<Item = Result<T, Vec<String>>>) -> Result<Vec<T>, BacktestError> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for result in results {
        match result {
            Ok(one) => found.push(one),
            Err(wrong) => problems.extend(wrong),
        }
    }
    if problems.is_empty() { Ok(found) } else { Err(BacktestError::Policies { problems }) }
}

fn sections(path: &Path) -> Result<Written, String> {
    let shown = path.display();
    let unreadable = |why: String| format!("{shown}: error: cannot be read ({why})");
    let length = fs::metadata(path).map_err(|error| unreadable(error.to_string()))?.len();
    if length > FILE_MAX {
        return Err(unreadable(format!("it is larger than {FILE_MAX} bytes")));
    }
    let text = fs::read_to_string(path).map_err(|error| unreadable(error.to_string()))?;
    let value =
        yaml::read(&text).map_err(|yaml::SyntaxError { line, message, .. }| match line {
            Some(line) => format!("{shown}:{line}: error: is not YAML: {message}"),
            None => format!("{shown}: error: is not YAML: {message}"),
        })?;
    let mut sections = match value {
        Value::Object(sections) => sections,
        Value::Null => Map::new(),
        _ => return Err(format!("{shown}:1: error: must be a mapping of sections")),
    };
    let lines = Lines::of(&text);
    let files = sections.get("capacity").and_then(|capacity| capacity.get("card_files"));
    if files.and_then(Value::as_array).is_some_and(|files| !files.is_empty()) {
        let line = lines.get(CARD_FILES).unwrap_or(1);
        return Err(format!(
            "{shown}:{line}: error: {CARD_FILES} is not read by a backtest; write the cards \
             themselves under capacity.cards"
        ));
    }
    let whole = sections.len();
    // What else a configuration may have is that of the trace. What it may not have is refused.
    let known = known();
    sections.retain(|key, _| SECTIONS.contains(&key.as_str()) || !known.contains(key));
    if sections.is_empty() && whole > 0 {
        return Err(format!(
            "{shown}:1: error: must have a section that decisions depend on: {}",
            SECTIONS.join(", ")
        ));
    }
    Ok(Written { path: path.to_owned(), sections, lines })
}

/// The keys of a configuration.
fn known() -> BTreeSet<String> {
    let schema = config::schema();
    let keys = schema.get("properties").and_then(Value::as_object);
    keys.into_iter().flat_map(Map::keys).cloned().collect()
}

// === impl Written ===

impl Written {
    fn name(&self) -> String {
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str());
        stem.to_string_lossy().into_owned()
    }

    /// The policy of its sections, which are read as those of a shadow are.
    fn policy(&self, recorded: &str) -> Result<Policy, Vec<String>> {
        let plain = |problem: String| vec![format!("{}: {problem}", self.path.display())];
        let mut sections = self.sections.clone();
        sections.insert("name".to_owned(), json!("candidate"));
        let mut value = yaml::read(recorded).map_err(|error| plain(error.message))?;
        if let Some(file) = value.as_object_mut() {
            file.insert("shadow".to_owned(), json!([sections]));
        }
        let whole = yaml::write(&value).map_err(|error| plain(error.to_string()))?;
        let loaded = config::parse(&whole, &surroundings(&self.path)).map_err(|error| {
            let LoadError::Invalid { problems, .. } = error else {
                return plain(error.to_string());
            };
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            errors.map(|problem| self.said(problem)).collect()
        })?;
        let shadow = loaded.config.shadows.into_iter().next();
        shadow.map(|shadow| shadow.policy).ok_or_else(|| plain("it has no policy".to_owned()))
    }

    /// A problem with the line that it is in.
    fn said(&self, problem: &Problem) -> String {
        let path = problem.path.strip_prefix("shadow[0].").unwrap_or(&problem.path);
        let line = self.lines.get(path).unwrap_or(1);
        let problem = Problem { path: path.to_owned(), ..problem.clone() };
        format!("{}:{line}: {problem}", self.path.display())
    }
}
