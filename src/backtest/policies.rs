//! Policies to score: the sections of a configuration that decisions depend on, from files.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use crate::backtest::BacktestError;
use crate::backtest::replay::surroundings;
use crate::config::{self, Config, LoadError, Severity, yaml};
use crate::pipeline::Policy;

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
}

/// Reads the files of policies.
///
/// # Errors
///
/// One cannot be read, or is no mapping of sections.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Vec<Written>, BacktestError> {
    let read = |path: &PathBuf| match sections(path) {
        Ok(sections) => Ok(Written { path: path.clone(), sections }),
        Err(problem) => Err(BacktestError::Policy { path: path.clone(), problem }),
    };
    paths.iter().map(read).collect()
}

/// The policies, each over the sections of the recorded configuration.
///
/// # Errors
///
/// There is no recorded configuration, or a policy is not valid with it.
pub(crate) fn resolve(
    written: &[Written],
    recorded: Option<&str>,
) -> Result<Candidates, BacktestError> {
    let recorded = recorded.ok_or_else(|| BacktestError::Unscored("it has no ticks".into()))?;
    let invalid = |source| BacktestError::Config { path: "the trace".into(), source };
    let within = surroundings(Path::new("the trace"));
    let config = config::parse(recorded, &within).map_err(invalid)?.config;
    let mut policies = vec![Candidate { name: RECORDED.to_owned(), policy: config.policy.clone() }];
    for Written { path, sections } in written {
        let refused = |problem| BacktestError::Policy { path: path.clone(), problem };
        let policy = policy(path, sections.clone(), recorded).map_err(refused)?;
        policies.push(Candidate { name: name(path), policy });
    }
    Ok(Candidates { config, policies })
}

fn name(path: &Path) -> String {
    let stem = path.file_stem().unwrap_or(path.as_os_str());
    stem.to_string_lossy().into_owned()
}

fn sections(path: &Path) -> Result<Map<String, Value>, String> {
    let length = fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > FILE_MAX {
        return Err(format!("it is larger than {FILE_MAX} bytes"));
    }
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let mut sections = match yaml::read(&text).map_err(syntax)? {
        Value::Object(sections) => sections,
        Value::Null => Map::new(),
        _ => return Err("it must be a mapping of sections".into()),
    };
    if sections.contains_key("variants") {
        // A whole configuration: what is not policy is that of the trace.
        sections.retain(|key, _| SECTIONS.contains(&key.as_str()));
    }
    Ok(sections)
}

fn syntax(error: yaml::SyntaxError) -> String {
    let yaml::SyntaxError { line, message, .. } = error;
    match line {
        Some(line) => format!("line {line} is not YAML: {message}"),
        None => format!("it is not YAML: {message}"),
    }
}

/// The policy of these sections, which are read as those of a shadow are.
fn policy(path: &Path, mut sections: Map<String, Value>, recorded: &str) -> Result<Policy, String> {
    sections.insert("name".to_owned(), json!("candidate"));
    let mut value = yaml::read(recorded).map_err(syntax)?;
    let Some(file) = value.as_object_mut() else { return Err("the trace has none".into()) };
    file.insert("shadow".to_owned(), json!([sections]));
    let whole = yaml::write(&value).map_err(|error| error.to_string())?;
    let loaded = config::parse(&whole, &surroundings(path)).map_err(|error| match error {
        LoadError::Invalid { problems, .. } => {
            let errors = problems.iter().filter(|problem| problem.severity == Severity::Error);
            let lines = errors.map(|problem| problem.to_string().replacen("shadow[0].", "", 1));
            lines.collect::<Vec<_>>().join("; ")
        }
        other => other.to_string(),
    })?;
    let shadow = loaded.config.shadows.into_iter().next();
    shadow.map(|shadow| shadow.policy).ok_or_else(|| "it has no policy".to_owned())
}
