//! Configuration: a file as written, resolved into values that are valid by construction.
//!
//! Text and environment become a `File`, in which every key is optional, and that becomes a
//! [`Config`], in which nothing is: no value there means "the default", and no combination there is
//! one that the daemon would have to refuse. All problems are reported at once, each with its path,
//! because whoever repairs a configuration through a pipeline should not need one run a mistake.

pub mod check;
pub mod file;
pub mod layers;
pub mod names;
mod print;
mod resolve;
mod sources;
mod wva;
pub mod yaml;

use std::collections::BTreeMap;
use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use crate::config::file::EXTERNAL_METRICS_HOLD;
pub use crate::config::file::{Discovery, ExternalMetrics, FileKeys, Kubernetes, LeaderElection};
pub use crate::config::file::{START_TIMES, WAKE_INTERVALS};
pub use crate::config::file::{ScaleTarget, SelfManaged, ServerTls, Shutdown, Trace};
pub use crate::config::sources::Sources;
pub use plimsoll_core::settings::problem;
pub use plimsoll_core::settings::problem::counted;
pub use plimsoll_core::settings::problem::{Problem, Severity};
pub use plimsoll_core::settings::written;

use crate::collect::demand::Signal;
use crate::collect::prometheus;
use crate::collect::scrape::Settings;
use crate::collect::targets::{Endpoint, Source};
use crate::config::check::Checks;
use crate::config::problem::List;
use crate::config::written::WrittenDuration;
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::fleet::{ModelName, VariantSpec};
use plimsoll_core::pipeline::Policy;
use plimsoll_core::settings;

/// The largest configuration file: more than a thousand variants, and far less than a log file
/// that somebody names by mistake.
const FILE_MAX: u64 = 4 << 20;

/// A configuration that can be run as it is.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Every key with the value that holds, of which the configuration is printed.
    pub keys: Box<FileKeys>,
    /// Everything that decisions depend on beside what is observed.
    pub policy: Policy,
    /// Policies that are evaluated beside it, and only shown.
    pub shadows: Vec<Shadow>,
    /// The variants in the order of the file; empty only where they are discovered.
    pub variants: Vec<Variant>,
    /// How replicas are scraped where the variant does not say otherwise.
    pub scrape: Scrape,
    /// How Prometheus is asked; `None` where there is none.
    pub prometheus: Option<prometheus::Settings>,
    /// Signals that wake models without replicas.
    pub wake: Vec<Signal>,
}

/// A policy that is evaluated beside the one in force, and only shown.
#[derive(Clone, Debug, PartialEq)]
pub struct Shadow {
    /// What metrics and pages call it.
    pub name: String,
    /// The policy.
    pub policy: Policy,
}

/// Who may ask for external metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Authorization {
    /// Whom the cluster's API server allows, asked by a `SubjectAccessReview`.
    SubjectAccessReview,
    /// Everyone whom the cluster's front proxy has let through.
    TrustFrontProxy,
}

settings! { plain: Authorization; }

/// One variant: what it is, where its replicas are, and how they are scraped.
#[derive(Clone, Debug, PartialEq)]
pub struct Variant {
    /// What is known of it without looking at its load.
    pub spec: VariantSpec,
    /// Other names under which its engines' pages may know the model.
    pub aliases: Vec<ModelName>,
    /// Where its replicas are listed.
    pub targets: Targets,
    /// How an address becomes the URL of a page.
    pub endpoint: Endpoint,
    /// How its replicas are scraped.
    pub scrape: Arc<Settings>,
    /// Who reads its replicas' metrics.
    pub read_by: ReadBy,
}

/// Who reads the metrics of a variant's replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ReadBy {
    /// Plimsoll itself, from their pages.
    Scrape,
    /// A Prometheus that has scraped them already.
    Prometheus,
}

settings! { plain: ReadBy; }

/// Where a variant's replicas are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Targets {
    /// Outside Kubernetes. Addresses in [`Source::Static`] all have a port.
    Listed(Source),
    /// The pods of an object with a scale subresource, in the variant's namespace.
    ScaleTarget(ScaleTarget),
    /// The pods that a label selector matches, in the variant's namespace.
    Selector(String),
    /// Whatever Prometheus scrapes with these labels.
    Prometheus(BTreeMap<String, String>),
}

/// How replicas are scraped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scrape {
    /// How an address becomes the URL of a page.
    pub endpoint: Endpoint,
    /// How often, how long, how much, and with which credentials.
    pub settings: Arc<Settings>,
}

/// A configuration, and what is probably wrong with it all the same.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// The configuration.
    pub config: Config,
    /// Problems that do not keep it from being used.
    pub warnings: Vec<Problem>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file cannot be read.
    #[error("cannot read the configuration file {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system says.
        source: std::io::Error,
    },
    /// The file is too large to be a configuration.
    #[error("the configuration file {} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text is not YAML.
    #[error("{origin}{} is not YAML: {message}", Place(*line, *column))]
    Syntax {
        /// The file.
        origin: String,
        /// Line from 1, if the mistake has a place.
        line: Option<usize>,
        /// Column from 1, if the mistake has a place.
        column: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// File and environment cannot be put together.
    #[error("cannot put {origin} and the environment together")]
    Layers {
        /// The file.
        origin: String,
        /// What the layering says.
        source: Box<config::ConfigError>,
    },
    /// The text is YAML, and not a configuration.
    #[error(
        "{origin} has {}:\n{}",
        counted(problems.iter().filter(|one| one.severity == Severity::Error).count(), "error"),
        List(problems)
    )]
    Invalid {
        /// The file.
        origin: String,
        /// Everything that is wrong, errors first.
        problems: Vec<Problem>,
    },
}

/// What a configuration is read in.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// What messages call the text.
    pub origin: String,
    /// The folder that relative paths start from.
    pub base: PathBuf,
    /// The environment; names that do not start with `PLIMSOLL__` mean nothing.
    pub environment: BTreeMap<String, String>,
    /// Whether files that are named must be there.
    pub files: Files,
}

/// Whether files that a configuration names must be there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// They are looked for, and problems are reported.
    MustExist,
    /// Those that decisions depend on are read, and the others are not looked for.
    OfPolicy,
    /// They are not looked for: the configuration is for another machine.
    NotChecked,
}

/// Reads the configuration file, and over it the environment.
///
/// # Errors
///
/// The file cannot be read, is not YAML, or has problems; then all of them are listed.
pub fn load(path: &Path, files: Files) -> Result<Loaded, LoadError> {
    load_noting(path, files, &mut Sources::default())
}

/// Does the same, and notes all files that were read for it, whether it is valid or not.
///
/// # Errors
///
/// The file cannot be read, is not YAML, or has problems; then all of them are listed.
pub fn load_noting(path: &Path, files: Files, sources: &mut Sources) -> Result<Loaded, LoadError> {
    sources.note_main(path);
    let failed = |source| LoadError::Read { path: path.to_owned(), source };
    let file = std::fs::File::open(path).map_err(failed)?;
    let mut text = String::new();
    let length = file.take(FILE_MAX + 1).read_to_string(&mut text).map_err(failed)?;
    if length as u64 > FILE_MAX {
        return Err(LoadError::TooLarge { path: path.to_owned() });
    }
    let absolute = std::path::absolute(path).map_err(failed)?;
    let surroundings = Surroundings {
        origin: path.display().to_string(),
        base: absolute.parent().map(Path::to_owned).unwrap_or_default(),
        environment: environment(),
        files,
    };
    parse_noting(&text, &surroundings, sources)
}

/// Reads a configuration from text.
///
/// # Errors
///
/// The text is not YAML, or has problems; then all of them are listed.
pub fn parse(text: &str, surroundings: &Surroundings) -> Result<Loaded, LoadError> {
    parse_noting(text, surroundings, &mut Sources::default())
}

fn parse_noting(
    text: &str,
    surroundings: &Surroundings,
    sources: &mut Sources,
) -> Result<Loaded, LoadError> {
    let origin = || surroundings.origin.clone();
    let value = yaml::read(text).map_err(|error| {
        let yaml::SyntaxError { line, column, message } = error;
        LoadError::Syntax { origin: origin(), line, column, message }
    })?;
    let mut checks = Checks::new(surroundings);
    let file = if value.is_object() {
        let merged = layers::merge(value, &surroundings.environment, &mut checks.problems)
            .map_err(|source| LoadError::Layers { origin: origin(), source: Box::new(source) })?;
        layers::read(merged, &mut checks.problems)
    } else {
        checks.problems.error_at("", "the file must be a mapping of keys to values");
        file::File::default()
    };
    let config = resolve::resolve(&file, &mut checks);
    sources.extend(std::mem::take(&mut checks.sources));
    let (mut problems, warnings) = checks.problems.split();
    if problems.is_empty() {
        return Ok(Loaded { config, warnings });
    }
    problems.extend(warnings);
    Err(LoadError::Invalid { origin: origin(), problems })
}

/// The JSON Schema of the configuration file, with the defaults.
#[must_use]
pub fn schema() -> serde_json::Value {
    print::schema()
}

/// The keys that differ, and of which the daemon keeps the old values until it is restarted.
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

/// The variables of the environment that mean something here. Those that are not text cannot.
fn environment() -> BTreeMap<String, String> {
    let prefix = format!("{}{}", layers::PREFIX, layers::SEPARATOR);
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .filter(|(name, _)| name.starts_with(&prefix))
        .collect()
}

// === impl Kubernetes and Config ===

impl Kubernetes {
    /// How variants are discovered; `None` where they are not.
    #[must_use]
    pub fn discovery(&self) -> Option<&Discovery> {
        Some(&self.discovery).filter(|it| self.enabled && it.enabled)
    }

    /// How one of several replicas is chosen to decide; `None` where there is only one.
    #[must_use]
    pub fn leader_election(&self) -> Option<&LeaderElection> {
        Some(&self.leader_election).filter(|it| self.enabled && it.enabled)
    }
}

impl Config {
    /// The effective configuration as YAML, with every default. Reading it gives this value again.
    #[must_use]
    pub fn print(&self) -> String {
        print::print(self)
    }

    /// A short text that is the same for the same effective configuration, on any machine and in
    /// any run, and almost surely another for another.
    #[must_use]
    pub fn hash(&self) -> String {
        // FNV-1a with 64 bits, by its published constants: it need not withstand an attacker.
        let hash = self.print().bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        format!("{hash:016x}")
    }
}

/// The file that has these capacity cards, as a value without what is not known.
#[must_use]
pub fn cards<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> Value {
    print::cards::value(cards)
}

/// The text of the file that has these capacity cards.
#[must_use]
pub fn cards_text<'a>(cards: impl IntoIterator<Item = &'a Arc<Card>>) -> String {
    print::cards::text(cards)
}

/// Reads the text of a file of capacity cards, with what is probably wrong with it.
///
/// # Errors
///
/// The text is not such a file; then everything that is wrong is listed.
pub fn read_cards(origin: &str, text: &str) -> Result<(Vec<Arc<Card>>, Vec<Problem>), LoadError> {
    let surroundings = Surroundings {
        origin: origin.to_owned(),
        base: PathBuf::new(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let (mut checks, mut cards) = (Checks::new(&surroundings), Vec::new());
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

/// Reads a duration of the command line, which has a unit and is above zero.
///
/// # Errors
///
/// The text is something else.
pub fn positive_duration(text: &str) -> Result<Duration, &'static str> {
    duration(text)
        .filter(|duration| !duration.is_zero())
        .ok_or("a duration has a unit and is above zero, such as 90s or 5m")
}

/// A place in a file as messages say it: `:3:14`, or nothing.
struct Place(Option<usize>, Option<usize>);

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(line, column) = self;
        for number in [line, column].into_iter().flatten() {
            write!(f, ":{number}")?;
        }
        Ok(())
    }
}
