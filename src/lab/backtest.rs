//! Backtests: a trace is decided again, by the same code or by other policies.
//!
//! [`replay`] gives the inputs of a trace to the pipeline, and compares what it says with what it
//! said then. [`demand`] gathers from the same inputs what clients asked for and what the engines
//! are like, and [`score`] lets policies serve that in the simulator.

pub mod args;
mod demand;
mod history;
mod interrupt;
mod policies;
mod replay;
mod score;
mod screen;
mod tally;

use std::io::Write as _;
use std::path::PathBuf;

use jiff::Timestamp;

use crate::backtest::args::BacktestArgs;
use crate::backtest::demand::Gathered;
use crate::backtest::history::Asked;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::policies::{Candidates, Written};
use crate::backtest::replay::{Replay, Report};
use crate::backtest::screen::Progress;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::config::LoadError;
use plimsoll_daemon::trace::{self, Found, Reader, Record, TraceError};

pub use crate::backtest::interrupt::EXIT as EXIT_INTERRUPTED;

/// Why a backtest has no result, or not the one that it should have.
#[derive(Debug, thiserror::Error)]
pub enum BacktestError {
    /// The trace cannot be read.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The configuration in the trace is none to this release.
    #[error("the configuration in {} is not valid here", path.display())]
    Config {
        /// The file of the trace.
        path: PathBuf,
        /// What is wrong.
        source: LoadError,
    },
    /// A tick comes before the configuration.
    #[error("trace {}: a tick comes before the configuration", path.display())]
    Headless {
        /// The file of the trace.
        path: PathBuf,
    },
    /// Policies cannot be read, or are not valid.
    #[error("not all policies can be used:\n{}", problems.join("\n"))]
    Policies {
        /// Everything that is wrong, each with its file, line and path.
        problems: Vec<String>,
    },
    /// The arguments do not fit together, or not to the configuration.
    #[error("{0}")]
    Unusable(String),
    /// Prometheus does not answer.
    #[error(
        "Prometheus could not be asked for what came after {reached}: {why}; with --save, the same command goes on from there"
    )]
    Prometheus {
        /// Up to when it was asked.
        reached: Timestamp,
        /// What went wrong.
        why: String,
    },
    /// Prometheus answers, and has nothing that can be read.
    #[error("Prometheus has no reading of any variant from {from:.0} to {to:.0}:\n{}", tally.trim_end())]
    Nothing {
        /// From when on it was asked.
        from: Timestamp,
        /// Up to when.
        to: Timestamp,
        /// What there is of each variant.
        tally: String,
    },
    /// Somebody has interrupted it.
    #[error("interrupted{0}")]
    Interrupted(String),
    /// There is too little in the trace to score policies on.
    #[error("policies cannot be scored on this trace: {0}")]
    Unscored(String),
    /// Decisions are not what they were.
    #[error("{changed} of {compared} decisions are not what they were")]
    Changed {
        /// How many differ.
        changed: u64,
        /// Of how many.
        compared: u64,
    },
}

/// Decides a trace again, or what a Prometheus has seen, and scores other policies on it.
///
/// # Errors
///
/// The trace or a policy cannot be read, Prometheus does not answer, there is too little in it, or decisions have changed.
pub fn run(args: &BacktestArgs) -> anyhow::Result<()> {
    let policies = policies::read(&args.policy)?;
    let interrupt = Interrupt::listen()?;
    let Some(url) = &args.prometheus else {
        return decide_again(args, &args.trace, &policies, &interrupt);
    };
    let passing = tempfile::tempdir()?;
    let folder = args.save.clone().unwrap_or_else(|| passing.path().to_owned());
    let clock = Clock::start();
    let asked = Asked::new(args, url, &folder, clock.now())?;
    if !policies.is_empty() {
        // What is wrong with them is not said after hours of questions.
        let _valid = policies::resolve(&policies, asked.config())?;
    }
    print(&history::fetch(&asked, &folder, clock, &interrupt)?.to_string())?;
    decide_again(args, &[folder], &policies, &interrupt)
}

fn decide_again(
    args: &BacktestArgs,
    traces: &[PathBuf],
    policies: &[Written],
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let Found { readers, unbegun } = trace::files(traces)?;
    let candidates = candidates(&readers, policies)?;
    let bytes =
        readers.iter().map(|reader| std::fs::metadata(reader.path()).map_or(0, |it| it.len()));
    let progress = Progress::new(bytes.sum());
    let mut replay = Replay::new(args.differences);
    let mut gathered = Gathered::default();
    let mut read = 0;
    for mut reader in readers {
        replay.begin(&reader);
        while let Some(record) = reader.record()? {
            interrupt.check()?;
            if let (Record::Tick(tick), true) = (&record, candidates.is_some()) {
                gathered.take(tick);
            }
            replay.take(reader.path(), record)?;
            progress.reached(read + reader.bytes_read());
        }
        replay.end(&reader);
        read += reader.bytes_read();
    }
    for path in &unbegun {
        replay.skip(path);
    }
    progress.end();
    let report = replay.finish();
    print(&report.to_string())?;
    if let Some(candidates) = candidates {
        print(&score::table(&gathered, &candidates, args, interrupt)?)?;
    }
    changed(&report).map_or(Ok(()), |changed| Err(changed.into()))
}

/// The policies to score, over the configuration that is in force at the end of the trace; `None`
/// without any. They are looked at before anything is decided, which may take minutes.
fn candidates(
    readers: &[Reader],
    policies: &[Written],
) -> Result<Option<Candidates>, BacktestError> {
    if policies.is_empty() {
        return Ok(None);
    }
    for path in readers.iter().rev().map(Reader::path) {
        if let Some(recorded) = Reader::open(path)?.last_config()? {
            return policies::resolve(policies, (path, &recorded)).map(Some);
        }
    }
    Err(BacktestError::Unscored("it has no configuration".to_owned()))
}

/// The failure that decisions are not what they were, if some are not.
fn changed(report: &Report) -> Option<BacktestError> {
    let Report { changed, compared, .. } = *report;
    (changed > 0).then_some(BacktestError::Changed { changed, compared })
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
