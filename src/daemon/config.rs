//! Configuration: a file as written, resolved into values that are valid by construction.
//!
//! Text and environment become a `ConfigFile`, in which every key is optional. The file becomes a
//! [`Config`], which has no value that means "the default", and no combination that the daemon
//! would have to reject. All problems are reported at once, each with its path, because fixing a
//! configuration through a pipeline should not take one run per error.

pub mod check;
mod effective;
pub mod file;
pub mod layers;
pub mod names;
mod print;
mod resolve;
mod sources;
mod surroundings;
mod wva;
pub mod yaml;

use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

pub use crate::config::effective::{
    Config, PolicySignals, ScrapeDefaults, ShadowPolicy, VariantConfig, VariantTargets,
};
pub use crate::config::file::{Authorization, ReadBy};
pub use crate::config::file::{Discovery, ExternalMetrics, FileKeys, Kubernetes, LeaderElection};
pub use crate::config::file::{EXTERNAL_METRICS_FRESH, EXTERNAL_METRICS_HOLD};
pub use crate::config::file::{ExternalScalerKeys, ScalerTlsKeys};
pub use crate::config::file::{START_TIMES, WAKE_INTERVALS};
pub use crate::config::file::{ScaleTarget, SelfManaged, ServerKeys, ServerTls, Shutdown, Trace};
pub use crate::config::sources::ConfigSources;
pub use crate::config::surroundings::{Files, Surroundings};
pub use plimsoll_core::settings::problem;
pub use plimsoll_core::settings::problem::counted;
pub use plimsoll_core::settings::problem::{Problem, Severity};
pub use plimsoll_core::settings::written;

use crate::config::check::Checks;
use crate::config::sources::FILE_MAX;
use crate::config::yaml::FilePosition;
use crate::config::yaml::lines::Lines;
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::settings::problem::ProblemList;
use plimsoll_core::settings::written::WrittenDuration;

/// A configuration, and its probable problems.
#[derive(Clone, Debug, PartialEq)]
pub struct LoadedConfig {
    /// The configuration.
    pub config: Config,
    /// Problems that do not keep it from being used.
    pub warnings: Vec<Problem>,
}

/// The reason that there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is too large to be a configuration.
    #[error("the configuration file {} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text is not YAML.
    #[error("{origin}{} is not YAML: {message}", FilePosition(*line, *column))]
    Syntax {
        /// The file.
        origin: String,
        /// Line from 1, if the error has a place.
        line: Option<usize>,
        /// Column from 1, if the error has a place.
        column: Option<usize>,
        /// The parser's message.
        message: String,
    },
    /// File and environment cannot be merged.
    #[error("cannot merge {origin} and the environment")]
    Layers {
        /// The file.
        origin: String,
        /// The error of the merge.
        source: Box<config::ConfigError>,
    },
    /// The text is YAML, but not a valid configuration.
    #[error(
        "{origin} has {}:\n{}",
        counted(problems.iter().filter(|one| one.severity == Severity::Error).count(), "error"),
        ProblemList(problems)
    )]
    Invalid {
        /// The file.
        origin: String,
        /// All problems, errors first.
        problems: Vec<Problem>,
    },
}

/// Reads the configuration file, and over it the environment.
///
/// # Errors
///
/// The file cannot be read, is not YAML, or has problems; then all of them are listed.
pub fn load(path: &Path, files: Files) -> Result<LoadedConfig, LoadError> {
    load_noting(path, files, &mut ConfigSources::default())
}

/// Does the same, and notes all files that it reads, even if the configuration is not valid.
///
/// # Errors
///
/// The file cannot be read, is not YAML, or has problems; then all of them are listed.
pub fn load_noting(
    path: &Path,
    files: Files,
    sources: &mut ConfigSources,
) -> Result<LoadedConfig, LoadError> {
    sources.note_main(path);
    let file = std::fs::File::open(path).map_err(|source| unread(path, source))?;
    let mut text = String::new();
    let read = file.take(FILE_MAX + 1).read_to_string(&mut text);
    let length = read.map_err(|source| unread(path, source))?;
    if length as u64 > FILE_MAX {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }

    let absolute = std::path::absolute(path).map_err(|source| unread(path, source))?;
    let surroundings = Surroundings {
        origin: path.display().to_string(),
        base: absolute.parent().map(Path::to_owned).unwrap_or_default(),
        environment: environment(),
        files,
    };

    parse_noting(&text, &surroundings, sources)
}

fn unread(path: &Path, source: std::io::Error) -> LoadError {
    LoadError::Read { path: path.to_owned(), source }
}

/// Reads a configuration from text.
///
/// # Errors
///
/// The text is not YAML, or has problems; then all of them are listed.
pub fn parse(text: &str, surroundings: &Surroundings) -> Result<LoadedConfig, LoadError> {
    parse_noting(text, surroundings, &mut ConfigSources::default())
}

fn parse_noting(
    text: &str,
    surroundings: &Surroundings,
    sources: &mut ConfigSources,
) -> Result<LoadedConfig, LoadError> {
    let origin = &surroundings.origin;
    let value = yaml::read(text).map_err(|error| {
        let yaml::SyntaxError { line, column, message } = error;
        LoadError::Syntax { origin: origin.clone(), line, column, message }
    })?;

    let mut checks = Checks::new(surroundings);
    let file = if value.is_object() {
        let merged = layers::merge(value, &surroundings.environment, &mut checks.problems)
            .map_err(|why| LoadError::Layers { origin: origin.clone(), source: Box::new(why) })?;
        layers::read(merged, &mut checks.problems)
    } else {
        checks.problems.error_at("", "the file must be a mapping of keys to values");
        file::ConfigFile::default()
    };

    let config = resolve::resolve(&file, &mut checks);
    sources.extend(std::mem::take(&mut checks.sources));
    let (mut problems, mut warnings) = checks.problems.split();
    locate(&mut problems, text, surroundings);
    locate(&mut warnings, text, surroundings);
    if problems.is_empty() {
        return Ok(LoadedConfig { config, warnings });
    }

    problems.extend(warnings);
    Err(LoadError::Invalid { origin: origin.clone(), problems })
}

/// Notes the places of problems: environment variables, which come before the file, and lines.
fn locate(problems: &mut [Problem], text: &str, surroundings: &Surroundings) {
    if problems.is_empty() {
        return;
    }

    let lines = Lines::of(text);
    for problem in problems {
        let Surroundings { origin, environment, .. } = surroundings;
        problem.place = match layers::variable(environment, &problem.path) {
            Some(variable) => Some(variable.to_owned()),
            None => lines.get(&problem.path).map(|line| format!("{origin}:{line}")),
        };
    }
}

/// The JSON Schema of the configuration file, with the defaults.
#[must_use]
pub fn schema() -> serde_json::Value {
    print::schema()
}

/// The keys that differ and whose old values the daemon keeps until it is restarted.
pub(crate) fn restart_keys(old: &Config, new: &Config) -> Vec<String> {
    let [old_file, new_file] = [old, new].map(print::value);
    let mut keys = Vec::new();
    print::restart_keys(&schema(), "", [&old_file, &new_file], &mut keys);

    // Secrets are not printed.
    let prometheus = "prometheus".to_owned();
    if old.prometheus != new.prometheus && !keys.contains(&prometheus) {
        keys.push(prometheus);
    }

    keys
}

/// The environment variables with Plimsoll's prefix. Variables that are not Unicode are skipped.
fn environment() -> BTreeMap<String, String> {
    let prefix = format!("{}{}", layers::PREFIX, layers::SEPARATOR);
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(&prefix))
        .collect()
}

/// The file content with these capacity cards, without unknown values.
#[must_use]
pub fn cards<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> Value {
    print::cards::value(cards)
}

/// The text of the file with these capacity cards.
#[must_use]
pub fn cards_text<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> String {
    print::cards::text(cards)
}

/// Reads the text of a capacity card file, with its probable problems.
///
/// # Errors
///
/// The text is not such a file; then all problems are listed.
pub fn read_cards(origin: &str, text: &str) -> Result<(Vec<Arc<Card>>, Vec<Problem>), LoadError> {
    let surroundings = Surroundings {
        origin: origin.to_owned(),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };

    let mut checks = Checks::new(&surroundings);
    let mut cards = Vec::new();
    resolve::cards::read(origin, text, &mut cards, &mut checks);
    let (problems, warnings) = checks.problems.split();
    if problems.is_empty() {
        return Ok((cards, warnings));
    }

    Err(LoadError::Invalid { origin: origin.to_owned(), problems })
}

/// The JSON Schema of a file of capacity cards.
#[must_use]
pub fn card_schema() -> Value {
    print::cards::schema()
}

/// Reads a duration as the configuration file writes it, such as `30s` or `1h30m`.
#[must_use]
pub fn duration(text: &str) -> Option<Duration> {
    WrittenDuration::parse(text).map(|written| written.0)
}

/// Reads a duration from the command line, which has a unit and is above zero.
///
/// # Errors
///
/// The text is not such a duration.
pub fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    duration(text)
        .filter(|duration| !duration.is_zero())
        .ok_or("a duration has a unit and is above zero, such as 90s or 5m")
}
