//! Backtests: decide a trace again, with the same policy or with other policies.
//!
//! [`replay`] feeds the inputs of a trace to the pipeline, and compares the decisions with the
//! recorded ones. [`demand`] extracts the client load and the engines from the same inputs.
//! [`score`] lets policies serve that load in the simulator.

pub mod args;
pub(crate) mod demand;
mod error;
pub(crate) mod fleet;
mod history;
pub(crate) mod interrupt;
pub(crate) mod policies;
mod replay;
pub mod scene;
mod score;
pub(crate) mod screen;
pub(crate) mod source;
mod tally;

use std::path::PathBuf;

use crate::backtest::args::BacktestArgs;
use crate::backtest::demand::TraceDemand;
pub use crate::backtest::error::BacktestError;
use crate::backtest::history::HistoryQuery;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::policies::{Candidates, PolicyFile};
use crate::backtest::replay::{ReplayReport, TraceReplay};
use crate::backtest::screen::Progress;
use crate::output::print;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::trace::{self, TraceFiles, TraceReader, TraceRecord};

pub use crate::backtest::interrupt::EXIT as EXIT_INTERRUPTED;

/// Replays a trace, or the past of a Prometheus, and scores other policies on it.
///
/// # Errors
///
/// The trace or a policy cannot be read, Prometheus does not respond, there is too little data, or
/// decisions have changed.
pub fn run(args: &BacktestArgs) -> anyhow::Result<()> {
    let policies = policies::read(&args.policy)?;
    let interrupt = Interrupt::listen()?;
    let Some(url) = &args.source.prometheus else {
        return decide_again(args, &args.source.trace, &policies, &interrupt);
    };
    let passing = tempfile::tempdir()?;
    let folder = args.source.save.clone().unwrap_or_else(|| passing.path().to_owned());
    let clock = Clock::start();
    let asked = HistoryQuery::new(&args.source, url, &folder, clock.now())?;
    if !policies.is_empty() {
        // Report problems in the policies now rather than after hours of queries.
        let (file, config) = asked.config();
        let _valid = policies::resolve(&policies, file, config)?;
    }

    print(&history::fetch(&asked, &folder, clock, &interrupt)?.to_string())?;
    decide_again(args, &[folder], &policies, &interrupt)
}

fn decide_again(
    args: &BacktestArgs,
    traces: &[PathBuf],
    policies: &[PolicyFile],
    interrupt: &Interrupt,
) -> anyhow::Result<()> {
    let TraceFiles { readers, unbegun } = trace::files(traces)?;
    let candidates = candidates(&readers, policies)?;
    let bytes =
        readers.iter().map(|reader| std::fs::metadata(reader.path()).map_or(0, |it| it.len()));
    let progress = Progress::new(bytes.sum());
    let mut replay = TraceReplay::new(args.differences);
    let mut gathered = TraceDemand::default();
    let mut read = 0;
    for mut reader in readers {
        replay.begin(&reader);
        while let Some(record) = reader.record()? {
            interrupt.check()?;
            if let (TraceRecord::Tick(tick), true) = (&record, candidates.is_some()) {
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
        print(&score::table(&gathered, &candidates, &args.assumptions, interrupt)?)?;
    }

    changed(&report).map_or(Ok(()), |changed| Err(changed.into()))
}

/// The policies to score, with the configuration in effect at the end of the trace; `None` without
/// any. They are checked before the replay, which may take minutes.
fn candidates(
    readers: &[TraceReader],
    policies: &[PolicyFile],
) -> Result<Option<Candidates>, BacktestError> {
    if policies.is_empty() {
        return Ok(None);
    }

    for path in readers.iter().rev().map(TraceReader::path) {
        if let Some(recorded) = TraceReader::open(path)?.last_config()? {
            return policies::resolve(policies, path, &recorded).map(Some);
        }
    }

    Err(BacktestError::Unscored("it has no configuration".to_owned()))
}

/// The error for changed decisions, if there are any.
fn changed(report: &ReplayReport) -> Option<BacktestError> {
    let ReplayReport { changed, compared, .. } = *report;
    (changed > 0).then_some(BacktestError::Changed { changed, compared })
}
