//! The reasons why a backtest has no result, or an unexpected one.

use std::path::PathBuf;

use jiff::Timestamp;

use plimsoll_daemon::config::LoadError;
use plimsoll_daemon::trace::TraceError;

/// The reason why a backtest has no result, or an unexpected one.
#[derive(Debug, thiserror::Error)]
pub enum BacktestError {
    /// The trace ends before the instant that is asked for.
    #[error("the trace has no tick at or after {at}: {}", covered(*span))]
    TooEarly {
        /// The instant.
        at: Timestamp,
        /// The times of its first and its last tick.
        span: Option<(Timestamp, Timestamp)>,
    },
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The configuration in the trace is invalid in this release.
    #[error("the configuration in {} is not valid in this release", path.display())]
    Config {
        /// The trace file.
        path: PathBuf,
        /// The cause.
        source: LoadError,
    },
    /// A tick comes before the configuration.
    #[error("trace {}: a tick comes before the configuration", path.display())]
    Headless {
        /// The trace file.
        path: PathBuf,
    },
    /// Policies cannot be read, or are not valid.
    #[error("not all policies can be used:\n{}", problems.join("\n"))]
    Policies {
        /// All problems, each with its file, line and path.
        problems: Vec<String>,
    },
    /// The arguments conflict with each other or with the configuration.
    #[error("{0}")]
    Unusable(String),
    /// Prometheus does not respond.
    #[error(
        "Prometheus could not be queried for data after {reached}: {why}; with --save, the same \
         command resumes there"
    )]
    Prometheus {
        /// The end of the fetched time.
        reached: Timestamp,
        /// The cause of the failure.
        why: String,
    },
    /// Prometheus responds, but has no readable data.
    #[error("Prometheus has no reading of any variant from {from:.0} to {to:.0}:\n{}", tally.trim_end())]
    Nothing {
        /// The start of the queried time.
        from: Timestamp,
        /// The end of the queried time.
        to: Timestamp,
        /// The readings of each variant.
        tally: String,
    },
    /// An interrupt ended the backtest.
    #[error("interrupted{0}")]
    Interrupted(String),
    /// The trace has too little data to score policies.
    #[error("policies cannot be scored on this trace: {0}")]
    Unscored(String),
    /// Decisions differ from the recorded ones.
    #[error("{changed} of {compared} decisions differ")]
    Changed {
        /// Decisions that differ.
        changed: u64,
        /// Decisions compared.
        compared: u64,
    },
}

/// The time that a trace covers, in words.
fn covered(span: Option<(Timestamp, Timestamp)>) -> String {
    match span {
        Some((first, last)) => format!("it covers {first:.0} to {last:.0}"),
        None => "it has no ticks".to_owned(),
    }
}
