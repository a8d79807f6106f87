//! Policies to score: the sections of a configuration that decisions depend on, from files.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::backtest::error::BacktestError;
use crate::backtest::replay::surroundings;
use plimsoll_core::pipeline::Policy;
pub(super) use plimsoll_daemon::config::yaml::lines::Lines;
use plimsoll_daemon::config::{self, Config, LoadError, Problem, Severity, yaml};

/// The size limit of a policy file.
const FILE_MAX: u64 = 4 << 20;

/// The sections of a policy. A section that a file lacks comes from the recorded configuration.
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

/// A key that names files on the machine that decides. Their contents may differ from those at the
/// time of the trace.
const CARD_FILES: &str = "capacity.card_files";

/// The name of the policy in the trace.
const RECORDED: &str = "recorded";

/// A policy to score.
pub(crate) struct CandidatePolicy {
    /// Its name in the table.
    pub(crate) name: String,
    /// The policy.
    pub(crate) policy: Policy,
}

/// The policies to score, and their common configuration.
pub(crate) struct Candidates {
    /// The recorded configuration.
    pub(crate) config: Config,
    /// The policies, the recorded one first.
    pub(crate) policies: Vec<CandidatePolicy>,
}

/// A policy file as read.
pub(crate) struct PolicyFile {
    path: PathBuf,
    sections: Map<String, Value>,
    lines: Lines,
}

/// Reads policy files.
///
/// # Errors
///
/// Some files cannot be read, or are not a mapping of sections; the error lists all of them.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<PolicyFile>, BacktestError> {
    let read = paths.iter().map(|path| sections(path).map_err(|problem| vec![problem]));
    all(read)
}

/// Resolves the policies, each on top of the sections of a recorded configuration.
///
/// # Errors
///
/// The configuration or some policies are invalid; for policies, the error lists all problems.
pub(crate) fn resolve(
    written: &[PolicyFile],
    path: &Path,
    recorded: &str,
) -> Result<Candidates, BacktestError> {
    let config = config::parse(recorded, &surroundings(path))
        .map_err(|source| BacktestError::Config { path: path.to_owned(), source })?
        .config;

    let recorded_too = CandidatePolicy { name: RECORDED.to_owned(), policy: config.policy.clone() };
    let others = all(written.iter().map(|one| {
        let policy = one.policy(recorded)?;
        Ok(CandidatePolicy { name: one.name(), policy })
    }))?;
    let policies = [recorded_too].into_iter().chain(others).collect();
    Ok(Candidates { config, policies })
}

/// All results, or all problems of the failed ones.
fn all<T>(results: impl Iterator<Item = Result<T, Vec<String>>>) -> Result<Vec<T>, BacktestError> {
    let mut found = Vec::new();
    let mut problems = Vec::new();

    for result in results {
        match result {
            Ok(one) => found.push(one),
            Err(wrong) => problems.extend(wrong),
        }
    }

    if problems.is_empty() { Ok(found) } else { Err(BacktestError::Policies { problems }) }
}

fn sections(path: &Path) -> Result<PolicyFile, String> {
    let shown = path.display();
    let length = fs::metadata(path).map_err(|error| unreadable(path, &error))?.len();
    if length > FILE_MAX {
        return Err(unreadable(path, &format!("it is larger than {FILE_MAX} bytes")));
    }

    let text = fs::read_to_string(path).map_err(|error| unreadable(path, &error))?;
    let value =
        yaml::read(&text).map_err(|yaml::SyntaxError { line, message, .. }| match line {
            Some(line) => format!("{shown}:{line}: error: is not YAML: {message}"),
            None => format!("{shown}: error: is not YAML: {message}"),
        })?;
    let mut sections = match value {
        Value::Object(map) => map,
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
    // Other valid keys come from the trace, so they are ignored. Unknown keys are rejected.
    let known = known();
    sections.retain(|key, _| SECTIONS.contains(&key.as_str()) || !known.contains(key));
    if sections.is_empty() && whole > 0 {
        return Err(format!(
            "{shown}:1: error: must have a section that decisions depend on: {}",
            SECTIONS.join(", ")
        ));
    }

    Ok(PolicyFile { path: path.to_owned(), sections, lines })
}

fn unreadable(path: &Path, why: &dyn Display) -> String {
    format!("{}: error: cannot be read ({why})", path.display())
}

/// The keys of a configuration.
fn known() -> BTreeSet<String> {
    let schema = config::schema();
    let keys = schema.get("properties").and_then(Value::as_object);
    keys.into_iter().flat_map(Map::keys).cloned().collect()
}

// === impl PolicyFile ===

impl PolicyFile {
    fn name(&self) -> String {
        let stem = self.path.file_stem().unwrap_or(self.path.as_os_str());
        stem.to_string_lossy().into_owned()
    }

    /// The policy of its sections, which are parsed like those of a shadow policy.
    fn policy(&self, recorded: &str) -> Result<Policy, Vec<String>> {
        let mut sections = self.sections.clone();
        sections.insert("name".to_owned(), json!("candidate"));
        let mut value = yaml::read(recorded).map_err(|error| self.plain(&error.message))?;
        if let Some(file) = value.as_object_mut() {
            file.insert("shadow".to_owned(), json!([sections]));
        }

        let whole = yaml::write(&value).map_err(|error| self.plain(&error))?;
        let loaded = config::parse(&whole, &surroundings(&self.path)).map_err(|error| {
            let LoadError::Invalid { problems, .. } = error else {
                return self.plain(&error);
            };
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            errors.map(|problem| self.said(problem)).collect()
        })?;

        let shadow = loaded.config.shadows.into_iter().next();
        shadow.map(|shadow| shadow.policy).ok_or_else(|| self.plain(&"it has no policy"))
    }

    /// A problem of the whole file.
    fn plain(&self, problem: &dyn Display) -> Vec<String> {
        vec![format!("{}: {problem}", self.path.display())]
    }

    /// A problem with its file and line.
    fn said(&self, problem: &Problem) -> String {
        let path = problem.path.strip_prefix("shadow[0].").unwrap_or(&problem.path);
        let line = self.lines.get(path).unwrap_or(1);
        let place = Some(format!("{}:{line}", self.path.display()));
        Problem { path: path.to_owned(), place, ..problem.clone() }.to_string()
    }
}
