//! What the daemon of a run saw and decided, as the trace that a real one would have written.

use std::path::{Path, PathBuf};

use jiff::Timestamp;

use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::Decisions;
use plimsoll_daemon::trace::{Begins, Limits, Record, Said, Tick, TraceError, Writer};

/// One file: a study's trace is written once, and not for as long as a disk lasts.
const LIMITS: Limits = Limits { file_size: u64::MAX, files: usize::MAX };

/// Writes a trace while a run goes on.
pub(crate) struct Recorder<'c> {
    folder: PathBuf,
    /// The daemon's configuration, as YAML.
    config: &'c str,
    writer: Option<Writer>,
    failed: Option<TraceError>,
}

// === impl Recorder ===

impl<'c> Recorder<'c> {
    /// A trace in this folder, which begins with the first tick.
    pub(crate) fn new(folder: &Path, config: &'c str) -> Self {
        Self { folder: folder.to_owned(), config, writer: None, failed: None }
    }

    /// Takes what the daemon got in a tick, and what it decided. Returns whether all could be written
    /// so far.
    pub(crate) fn take(&mut self, now: Timestamp, inputs: Inputs, decisions: &Decisions) -> bool {
        if self.failed.is_none() {
            let tick = Tick { now, inputs, follows: None, said: Said::of(decisions) };
            self.failed = self.write(tick).err();
        }
        self.failed.is_none()
    }

    fn write(&mut self, tick: Tick) -> Result<(), TraceError> {
        let writer = if let Some(writer) = &mut self.writer {
            writer
        } else {
            let mut writer = Writer::new(self.folder.clone(), LIMITS, tick.now);
            writer.begin(Begins::Process)?;
            writer.write(Record::Config(self.config.to_owned()))?;
            self.writer.insert(writer)
        };
        writer.write(Record::Tick(Box::new(tick))).map(|_bytes| ())
    }

    /// Ends the trace, and says whether anything was written.
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
