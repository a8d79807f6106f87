//! Reads the ticks of a trace that was recorded, or that is fetched from a Prometheus first.

use std::io::Write as _;
use std::path::PathBuf;

use tempfile::TempDir;

use crate::backtest::args::SourceArgs;
use crate::backtest::error::BacktestError;
use crate::backtest::history::{self, HistoryQuery};
use crate::backtest::interrupt::Interrupt;
use crate::backtest::policies::{self, Candidates};
use crate::backtest::screen::Progress;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::trace::{self, TraceFiles, TraceRecord, TraceTick};

/// A trace that can be read.
pub(crate) struct TraceSource {
    folders: Vec<PathBuf>,
    /// The folder of a fetched trace that is not kept.
    _passing: Option<TempDir>,
}

// === impl TraceSource ===

impl TraceSource {
    /// Opens a trace. The past of a Prometheus is fetched, and a tally of it goes to standard
    /// error.
    ///
    /// # Errors
    ///
    /// The arguments cannot be used, Prometheus does not respond or has no data, or an interrupt
    /// ends it.
    pub(crate) fn open(args: &SourceArgs, interrupt: &Interrupt) -> anyhow::Result<Self> {
        let Some(url) = &args.prometheus else {
            return Ok(Self { folders: args.trace.clone(), _passing: None });
        };

        let passing = tempfile::tempdir()?;
        let folder = args.save.clone().unwrap_or_else(|| passing.path().to_owned());
        let clock = Clock::start();
        let asked = HistoryQuery::new(args, url, &folder, clock.now())?;
        let tally = history::fetch(&asked, &folder, clock, interrupt)?;
        write!(std::io::stderr(), "{tally}")?;
        Ok(Self { folders: vec![folder], _passing: Some(passing) })
    }

    /// Passes each tick to `take`, and returns the configuration in effect at the end.
    ///
    /// # Errors
    ///
    /// The trace cannot be read or has no configuration, or an interrupt ends it.
    pub(crate) fn read(
        &self,
        interrupt: &Interrupt,
        mut take: impl FnMut(&TraceTick),
    ) -> anyhow::Result<Candidates> {
        let TraceFiles { readers, unbegun: _ } = trace::files(&self.folders)?;
        let sizes = readers.iter().map(|it| std::fs::metadata(it.path()).map_or(0, |it| it.len()));
        let progress = Progress::new(sizes.sum());
        let mut configured = None;
        let mut read = 0;
        for mut reader in readers {
            while let Some(record) = reader.record()? {
                interrupt.check()?;
                match record {
                    TraceRecord::Config(yaml) => {
                        configured = Some((reader.path().to_owned(), yaml));
                    }
                    TraceRecord::Tick(tick) => take(&tick),
                    TraceRecord::Restored(_) => {}
                }
                progress.reached(read + reader.bytes_read());
            }

            read += reader.bytes_read();
        }

        progress.end();
        let (path, yaml) = configured
            .ok_or_else(|| BacktestError::Unscored("it has no configuration".to_owned()))?;
        Ok(policies::resolve(&[], &path, &yaml)?)
    }
}
