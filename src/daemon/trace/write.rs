//! Writing a trace: files of a bounded size, of which the oldest are removed.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use zstd::stream::write::Encoder;

use crate::publish::state;
use crate::trace::codec::{BeganLine, Codec, RecordLine};
use crate::trace::file::{is_trace, named};
use crate::trace::{Began, Begins, Record, TraceError, VERSION};

/// Ticks of a block. The first is complete, and takes as much as several others; a longer block is
/// hardly smaller.
const BLOCK_TICKS: usize = 60;

/// Text of a block after which it ends with the tick: a reader holds one in memory.
const BLOCK_TEXT: usize = 64 << 20;

/// How long lines wait to be packed together: what the end of the machine may cost.
const FLUSH_TIME: SignedDuration = SignedDuration::from_secs(10);

/// How hard zstd tries. Of pages that repeat, more effort makes no less.
const LEVEL: i32 = 1;

/// How far back zstd looks for what repeats, as a power of two: 8 MB, some ticks of a thousand
/// replicas.
const WINDOW: u32 = 23;

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
    open: Option<OpenFile>,
}

/// The file that is being written.
struct OpenFile {
    path: PathBuf,
    file: File,
    written: u64,
    block: Option<Block>,
}

/// The block that is being written.
struct Block {
    codec: Codec,
    packer: Encoder<'static, Vec<u8>>,
    ticks: usize,
    text: usize,
    /// The first tick that may not be on the disk yet.
    waits_since: Option<Timestamp>,
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

        let began = Began {
            by: format!("plimsoll {}", env!("CARGO_PKG_VERSION")),
            run: self.run,
            part: self.part,
            begins,
        };
        let mut open = OpenFile { path, file, written: 0, block: None };
        let line = RecordLine::Began(BeganLine { version: VERSION, began });
        open.line(&line).map_err(|source| open.unwritten(source))?;
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
            Err(source) => {
                let problem = open.unwritten(source);
                self.open = None;
                Err(problem)
            }
        }
    }

    /// Lets the next file be the one after this part: an earlier run has written the others.
    pub const fn go_on_after(&mut self, part: u32) {
        self.part = part;
    }

    /// Ends the block, so that nothing is held back to make it full.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn flush(&mut self) -> Result<(), TraceError> {
        let Some(open) = &mut self.open else { return Ok(()) };
        open.end_block().map_err(|source| open.unwritten(source))
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
        open.end_block().map_err(|source| open.unwritten(source))?;
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

// === impl OpenFile ===

impl OpenFile {
    fn record(&mut self, record: Record) -> io::Result<()> {
        match record {
            Record::Config(yaml) => self.line(&RecordLine::Config(yaml)),
            Record::Restored(saved) => {
                let written = saved.iter().map(|it| it.written).max().unwrap_or_default();
                self.line(&RecordLine::Restored(state::as_value(written, &saved)?))
            }
            Record::Tick(tick) => {
                let now = tick.now;
                let line = self.block()?.codec.line(*tick);
                self.line(&RecordLine::Tick(Box::new(line)))?;
                self.ticked(now)
            }
        }
    }

    /// The block that lines go into, which is begun where there is none.
    fn block(&mut self) -> io::Result<&mut Block> {
        let block = match self.block.take() {
            Some(block) => block,
            None => Block::begin()?,
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

    /// Ends the block after a tick, or has all of it on the disk, where that is due.
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

    /// Writes what is packed so far.
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

// === impl Block ===

impl Block {
    fn begin() -> io::Result<Self> {
        let mut packer = Encoder::new(Vec::new(), LEVEL)?;
        packer.include_checksum(true)?;
        packer.window_log(WINDOW)?;
        Ok(Self { codec: Codec::default(), packer, ticks: 0, text: 0, waits_since: None })
    }
}
