//! Writing a trace: files of a bounded size, of which the oldest are removed.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::{SignedDuration, Timestamp};

use crate::publish::state;
use crate::trace::encode::Encoder;
use crate::trace::file::{is_trace, named};
use crate::trace::line::{BeganLine, Line};
use crate::trace::word::At;
use crate::trace::{Begins, Record, TraceError, VERSION};

/// Text that is compressed together. A larger block compresses no better.
const BLOCK: usize = 256 << 10;

/// How long lines wait for a block to be full: what the end of the machine may cost.
const BLOCK_TIME: SignedDuration = SignedDuration::from_secs(10);

/// How much of a folder a trace may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The size from which a file is ended and another is begun, in bytes.
    pub file_size: u64,
    /// How many files there may be.
    pub files: usize,
}

/// Writes the trace of one process into a folder.
pub struct Writer {
    folder: PathBuf,
    limits: Limits,
    run: Timestamp,
    part: u32,
    open: Option<Open>,
}

/// The file that is being written.
struct Open {
    path: PathBuf,
    file: File,
    encoder: Encoder,
    block: Vec<u8>,
    block_began: Option<Timestamp>,
    written: u64,
}

// === impl Writer ===

impl Writer {
    /// A writer for a process that began at `run`. It writes nothing before [`Writer::begin`].
    #[must_use]
    pub const fn new(folder: PathBuf, limits: Limits, run: Timestamp) -> Self {
        Self { folder, limits, run, part: 0, open: None }
    }

    /// Ends the file and begins the next one; removes the oldest files that are too many.
    ///
    /// # Errors
    ///
    /// The folder cannot be made, or the file cannot be written. Nothing is open then.
    pub fn begin(&mut self, begins: Begins) -> Result<(), TraceError> {
        let _what_is_lost_was_reported = self.end();
        let failed = |path: &Path, action| {
            let path = path.to_owned();
            move |source| TraceError::Io { path, action, source }
        };
        fs::create_dir_all(&self.folder).map_err(failed(&self.folder, "made"))?;
        self.make_room(self.limits.files.saturating_sub(1))?;
        self.part += 1;
        let path = self.folder.join(named(self.run, self.part));
        let file = File::create_new(&path).map_err(failed(&path, "made"))?;
        let began = BeganLine {
            version: VERSION,
            by: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
            run: At(self.run),
            part: self.part,
            begins,
        };
        let mut open = Open {
            path,
            file,
            encoder: Encoder::default(),
            block: Vec::new(),
            block_began: None,
            written: 0,
        };
        open.line(&Line::Began(began))?;
        self.open = Some(open);
        Ok(())
    }

    /// Appends a record; does nothing while no file is open. Says how many bytes went to the disk.
    ///
    /// # Errors
    ///
    /// It cannot be written. The file is ended as it is.
    pub fn write(&mut self, record: Record) -> Result<u64, TraceError> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let before = open.written;
        match open.record(record) {
            Ok(()) => Ok(open.written - before),
            Err(problem) => {
                self.open = None;
                Err(problem)
            }
        }
    }

    /// Lets the next file be the one after this part: an earlier run has written the others.
    pub const fn go_on_after(&mut self, part: u32) {
        self.part = part;
    }

    /// Writes what has been held back to make a block full.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        self.open.as_mut().map_or(Ok(()), Open::flush)
    }

    /// Whether the file is as large as it should become.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.written >= self.limits.file_size)
    }

    /// Whether there is a file to write to.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Ends the file. Says how many bytes went to the disk.
    ///
    /// # Errors
    ///
    /// What was left to write cannot be written.
    pub fn end(&mut self) -> Result<u64, TraceError> {
        let Some(mut open) = self.open.take() else { return Ok(0) };
        let before = open.written;
        open.flush()?;
        Ok(open.written - before)
    }

    /// Removes the oldest traces until this many are left.
    fn make_room(&self, left: usize) -> Result<(), TraceError> {
        let failed =
            |source| TraceError::Io { path: self.folder.clone(), action: "listed", source };
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(failed)? {
            let path = entry.map_err(failed)?.path();
            if is_trace(&path) {
                files.push(path);
            }
        }
        // Names are in the order of time.
        files.sort();
        let many = files.len().saturating_sub(left);
        for path in files.into_iter().take(many) {
            fs::remove_file(&path).map_err(|source| TraceError::Io {
                path,
                action: "removed",
                source,
            })?;
        }
        Ok(())
    }
}

// === impl Open ===

impl Open {
    fn record(&mut self, record: Record) -> Result<(), TraceError> {
        match record {
            Record::Config(yaml) => self.line(&Line::Config(yaml)),
            Record::Restored(saved) => {
                let written = saved.iter().map(|it| it.written).max().unwrap_or_default();
                let value =
                    state::as_value(written, &saved).map_err(|error| self.unwritable(&error))?;
                self.line(&Line::Restored(value))
            }
            Record::Tick(tick) => {
                let now = tick.now;
                let began = *self.block_began.get_or_insert(now);
                let line = self.encoder.tick(*tick);
                self.line(&Line::Tick(Box::new(line)))?;
                let waited = now.duration_since(began);
                if self.block.len() >= BLOCK || waited >= BLOCK_TIME || waited.is_negative() {
                    self.flush()?;
                }
                Ok(())
            }
        }
    }

    fn line(&mut self, line: &Line) -> Result<(), TraceError> {
        serde_json::to_writer(&mut self.block, line).map_err(|error| self.unwritable(&error))?;
        self.block.push(b'\n');
        Ok(())
    }

    fn unwritable(&self, error: &serde_json::Error) -> TraceError {
        let source = std::io::Error::other(error.to_string());
        TraceError::Io { path: self.path.clone(), action: "written", source }
    }

    /// Writes the block.
    fn flush(&mut self) -> Result<(), TraceError> {
        self.block_began = None;
        if self.block.is_empty() {
            return Ok(());
        }
        let mut packed = GzEncoder::new(Vec::new(), Compression::default());
        let packed = packed.write_all(&self.block).and_then(|()| packed.finish());
        self.block.clear();
        let written = packed.and_then(|packed| {
            self.file.write_all(&packed)?;
            Ok(packed.len() as u64)
        });
        let failed = |source| TraceError::Io { path: self.path.clone(), action: "written", source };
        self.written += written.map_err(failed)?;
        Ok(())
    }
}
