//! Writes a trace: files of bounded size, of which the oldest are removed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::PathBuf;

use jiff::{SignedDuration, Timestamp};
use zstd::stream::write::Encoder;

use crate::publish::state;
use crate::trace::codec::{Codec, HeaderLine, RecordLine};
use crate::trace::error::TraceError;
use crate::trace::file::{named, traces_in};
use crate::trace::record::{FileHeader, FileStart, TraceRecord, VERSION};

/// Ticks per block. The first tick is complete and takes as much space as several others. A longer
/// block is hardly smaller.
const BLOCK_TICKS: usize = 60;

/// Bytes of text after which a block ends with the current tick. A reader holds a whole block in
/// memory.
const BLOCK_TEXT: usize = 64 << 20;

/// The longest time that lines wait to be compressed together. A process that is killed can lose the
/// lines of this period.
const FLUSH_TIME: SignedDuration = SignedDuration::from_secs(10);

/// The compression level of zstd. A higher level does not make repetitive scrapes smaller.
const LEVEL: i32 = 1;

/// The zstd window, as a power of two: 8 MB, some ticks of 1,000 replicas.
const WINDOW: u32 = 23;

/// The disk space that a trace may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceLimits {
    /// The file size at which the writer begins the next file, in bytes.
    pub file_size: u64,
    /// The maximum number of files.
    pub files: usize,
}

/// Writes the trace of one process into a folder.
pub struct TraceWriter {
    folder: PathBuf,
    limits: TraceLimits,
    run: Timestamp,
    part: u32,
    open: Option<OpenFile>,
}

/// The file that is open for writing.
struct OpenFile {
    path: PathBuf,
    file: File,
    written: u64,
    block: Option<OpenBlock>,
}

/// The block that is open for writing.
struct OpenBlock {
    codec: Codec,
    packer: Encoder<'static, Vec<u8>>,
    ticks: usize,
    text: usize,
    /// The first tick that may not be on disk yet.
    waits_since: Option<Timestamp>,
}

// === impl TraceWriter ===

impl TraceWriter {
    /// Creates a writer for a process that began at `run`. It writes nothing before
    /// [`TraceWriter::begin`].
    #[must_use]
    pub const fn new(folder: PathBuf, limits: TraceLimits, run: Timestamp) -> Self {
        Self { folder, limits, run, part: 0, open: None }
    }

    /// Ends the current file and begins the next one. Removes the oldest files beyond the limit.
    ///
    /// # Errors
    ///
    /// The folder cannot be created, or the file cannot be written. In both cases no file is open
    /// afterwards.
    pub fn begin(&mut self, begins: FileStart) -> Result<(), TraceError> {
        let _what_is_lost_was_reported = self.end();
        fs::create_dir_all(&self.folder)
            .map_err(|source| TraceError::io(&self.folder, "made", source))?;
        self.make_room(self.limits.files.saturating_sub(1))?;
        self.part += 1;

        let path = self.folder.join(named(self.run, self.part));
        let file =
            File::create_new(&path).map_err(|source| TraceError::io(&path, "made", source))?;

        let began = FileHeader {
            by: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
            run: self.run,
            part: self.part,
            begins,
        };

        let mut open = OpenFile { path, file, written: 0, block: None };
        let line = RecordLine::Began(HeaderLine { version: VERSION, began });
        open.line(&line).map_err(|source| open.unwritten(source))?;
        self.open = Some(open);
        Ok(())
    }

    /// Appends a record and returns the number of bytes written to disk. Does nothing if no file is
    /// open.
    ///
    /// # Errors
    ///
    /// The record cannot be written. The writer closes the file as it is.
    pub fn write(&mut self, record: TraceRecord) -> Result<u64, TraceError> {
        let Some(open) = &mut self.open else { return Ok(0) };
        let before = open.written;

        match open.record(record) {
            Ok(()) => Ok(open.written - before),
            Err(source) => {
                let problem = open.unwritten(source);
                self.open = None;
                Err(problem)
            }
        }
    }

    /// Continues numbering after `part`, because an earlier run has written the parts up to it.
    pub const fn go_on_after(&mut self, part: u32) {
        self.part = part;
    }

    /// Ends the block, so that no line waits until the block is full.
    ///
    /// # Errors
    ///
    /// The block cannot be written.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.end_block().map_err(|source| open.unwritten(source))
    }

    /// Returns true if the file has reached its size limit.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.open.as_ref().is_some_and(|open| open.written >= self.limits.file_size)
    }

    /// Returns true if a file is open for writing.
    #[must_use]
    pub const fn is_open(&self) -> bool {
        self.open.is_some()
    }

    /// Ends the file and returns the number of bytes written to disk.
    ///
    /// # Errors
    ///
    /// The rest of the last block cannot be written.
    pub fn end(&mut self) -> Result<u64, TraceError> {
        let Some(mut open) = self.open.take() else { return Ok(0) };
        let before = open.written;
        open.end_block().map_err(|source| open.unwritten(source))?;
        Ok(open.written - before)
    }

    /// Removes the oldest traces until `left` files remain.
    fn make_room(&self, left: usize) -> Result<(), TraceError> {
        // File names sort by time.
        let mut files = traces_in(&self.folder)?;
        files.sort();

        let many = files.len().saturating_sub(left);
        for path in files.iter().take(many) {
            fs::remove_file(path).map_err(|source| TraceError::io(path, "removed", source))?;
        }

        Ok(())
    }
}

// === impl OpenFile ===

impl OpenFile {
    fn record(&mut self, record: TraceRecord) -> io::Result<()> {
        match record {
            TraceRecord::Config(yaml) => self.line(&RecordLine::Config(yaml)),
            TraceRecord::Restored(saved) => {
                let written = saved.iter().map(|it| it.written).max().unwrap_or_default();
                self.line(&RecordLine::Restored(state::as_value(written, &saved)?))
            }
            TraceRecord::Tick(tick) => {
                let now = tick.now;
                let line = self.block()?.codec.line(*tick);
                self.line(&RecordLine::Tick(Box::new(line)))?;
                self.ticked(now)
            }
        }
    }

    /// Returns the open block, or begins one.
    fn block(&mut self) -> io::Result<&mut OpenBlock> {
        let block = match self.block.take() {
            Some(begun) => begun,
            None => OpenBlock::begin()?,
        };
        Ok(self.block.insert(block))
    }

    fn line(&mut self, line: &RecordLine) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');

        let block = self.block()?;
        block.text += text.len();
        block.packer.write_all(&text)?;
        self.pass_on()
    }

    /// Ends the block after a tick or flushes it to disk, if either is due.
    fn ticked(&mut self, now: Timestamp) -> io::Result<()> {
        let block = self.block()?;
        block.ticks += 1;
        let waited = now.duration_since(*block.waits_since.get_or_insert(now));

        if block.ticks >= BLOCK_TICKS || block.text >= BLOCK_TEXT {
            return self.end_block();
        }
        if waited >= FLUSH_TIME || waited.is_negative() {
            block.waits_since = None;
            block.packer.flush()?;
        }

        self.pass_on()
    }

    fn end_block(&mut self) -> io::Result<()> {
        let Some(block) = self.block.take() else { return Ok(()) };
        let packed = block.packer.finish()?;
        self.file.write_all(&packed)?;
        self.written += packed.len() as u64;
        Ok(())
    }

    /// Writes the data that is compressed so far.
    fn pass_on(&mut self) -> io::Result<()> {
        let Some(block) = &mut self.block else { return Ok(()) };
        let packed = block.packer.get_mut();
        self.file.write_all(packed)?;
        self.written += packed.len() as u64;
        packed.clear();
        Ok(())
    }

    fn unwritten(&self, source: io::Error) -> TraceError {
        TraceError::Io { path: self.path.clone(), action: "written", source }
    }
}

// === impl OpenBlock ===

impl OpenBlock {
    fn begin() -> io::Result<Self> {
        let mut packer = Encoder::new(Vec::new(), LEVEL)?;
        packer.include_checksum(true)?;
        packer.window_log(WINDOW)?;
        Ok(Self { codec: Codec::default(), packer, ticks: 0, text: 0, waits_since: None })
    }
}
