//! Writes log lines to stderr from a thread of its own.
//!
//! The reader of stderr may stop: a full disk of the node's log collector, or a terminal that is
//! paused. A write to stderr then blocks, and a thread that logs while it decides or answers a probe
//! would block with it. So lines wait in a bounded queue. When it is full, lines are dropped and
//! counted.

use std::io;

use prometheus::IntCounter;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tracing_appender::non_blocking::{ErrorCounter, NonBlocking, NonBlockingBuilder, WorkerGuard};

/// The lines that wait for stderr: some seconds of a busy log at `debug`, in about a megabyte.
const QUEUE: usize = 4096;

/// Writes the waiting lines when it is dropped, for at most about a second.
pub(crate) type LineFlush = WorkerGuard;

/// Counts the log lines that were dropped.
#[derive(Clone)]
pub(crate) struct LineLosses(ErrorCounter);

/// Starts the thread that writes to stderr.
pub(crate) fn start() -> (NonBlocking, LineLosses, LineFlush) {
    let queue = NonBlockingBuilder::default().buffered_lines_limit(QUEUE).thread_name("log");
    let (lines, flush) = queue.finish(io::stderr());

    let losses = LineLosses(lines.error_counter());
    (lines, losses, flush)
}

/// The metric of the dropped log lines.
pub(crate) struct LineLossCollector {
    shown: IntCounter,
    losses: Option<LineLosses>,
}

impl LineLossCollector {
    /// Shows these losses, or 0 in a process that does not log through the queue.
    pub(crate) fn new(losses: Option<LineLosses>) -> Result<Self, prometheus::Error> {
        let shown = IntCounter::new(
            "plimsoll_log_lines_dropped_total",
            "Log lines dropped because stderr did not accept them in time.",
        )?;
        Ok(Self { shown, losses })
    }
}

impl Collector for LineLossCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.shown.desc()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(LineLosses(counter)) = &self.losses {
            let lost = u64::try_from(counter.dropped_lines()).unwrap_or(u64::MAX);
            self.shown.reset();
            self.shown.inc_by(lost);
        }

        self.shown.collect()
    }
}
