//! Records the daemon's inputs and decisions of a run in the format of a real daemon's trace.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::Decisions;
use plimsoll_daemon::trace::{
    FileStart, RecordedResult, TraceError, TraceLimits, TraceRecord, TraceTick, TraceWriter,
};

/// The limits of a trace: one file, because a study's trace is written once.
const LIMITS: TraceLimits = TraceLimits { file_size: u64::MAX, files: usize::MAX };

/// Writes a trace during a run.
pub(crate) struct Recorder<'c> {
    folder: PathBuf,
    /// The daemon's configuration, as YAML.
    config: &'c str,
    writer: Option<TraceWriter>,
    failed: Option<TraceError>,
}

// === impl Recorder ===

impl<'c> Recorder<'c> {
    /// A trace in this folder, which begins with the first tick.
    pub(crate) fn new(folder: &Path, config: &'c str) -> Self {
        Self { folder: folder.to_owned(), config, writer: None, failed: None }
    }

    /// Writes the daemon's inputs and decisions of a tick. Returns true if everything could be
    /// written so far.
    pub(crate) fn take(&mut self, now: Timestamp, inputs: Inputs, decisions: &Decisions) -> bool {
        if self.failed.is_none() {
            let tick =
                TraceTick { now, inputs, follows: None, said: RecordedResult::of(decisions) };
            self.failed = self.write(tick).err();
        }
        self.failed.is_none()
    }

    fn write(&mut self, tick: TraceTick) -> Result<(), TraceError> {
        let writer = if let Some(open) = &mut self.writer {
            open
        } else {
            let mut begun = TraceWriter::new(self.folder.clone(), LIMITS, tick.now);
            begun.begin(FileStart::Process)?;
            begun.write(TraceRecord::Config(self.config.to_owned()))?;
            self.writer.insert(begun)
        };

        writer.write(TraceRecord::Tick(Box::new(tick))).map(|_bytes| ())
    }

    /// Ends the trace, and returns true if there were any ticks.
    ///
    /// # Errors
    ///
    /// Some of it could not be written.
    pub(crate) fn end(self) -> Result<bool, TraceError> {
        let Self { writer, failed, .. } = self;
        match (failed, writer) {
            (Some(failed), _) => Err(failed),
            (None, Some(mut writer)) => writer.end().map(|_bytes| true),
            (None, None) => Ok(false),
        }
    }
}
