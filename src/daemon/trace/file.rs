//! Reading a trace: which files there are, and their records one by one.

use std::error::Error as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde::{Deserialize, Serialize};
use zstd::stream::read::Decoder;

use crate::publish::state;
use crate::trace::codec::{BeganLine, Codec, RecordLine};
use crate::trace::{Begins, Record, TraceError, VERSION};

/// How names of traces begin and end.
const PREFIX: &str = "plimsoll-";
const SUFFIX: &str = ".trace.zst";

/// How a file that is packed with zstd begins, and one that is packed with gzip.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// How the line of a configuration begins.
const CONFIG: &str = "{\"config\":";

/// The largest block, unpacked. A tick of ten thousand replicas takes some 30 MB.
const BLOCK_MAX: u64 = 512 << 20;

/// The furthest that a block may look back, as a power of two. Ours look back by 8 MB, and what asks
/// for more memory is not read.
const WINDOW_MAX: u32 = 27;

/// The files of traces.
pub struct Found {
    /// Those with records, in the order in which they were written.
    pub readers: Vec<Reader>,
    /// Those that end before their first whole line. A file has nothing until its first block is
    /// full, so the last one of a process is so for some seconds, and for good where that was killed.
    pub unbegun: Vec<PathBuf>,
}

/// Which part of which trace a file is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Began {
    /// What wrote it.
    pub by: String,
    /// When the process that wrote it began.
    pub run: Timestamp,
    /// Which file of that process it is, from 1.
    pub part: u32,
    /// What it begins with.
    pub begins: Begins,
}

/// Where a file ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// After a whole block.
    Whole,
    /// Inside the block that begins at this byte, as after the end of the machine. Its whole lines
    /// have been read.
    Truncated(u64),
}

/// Reads one file.
pub struct Reader {
    path: PathBuf,
    input: Counted<BufReader<File>>,
    codec: Codec,
    block: Vec<u8>,
    /// How far the block has been read.
    at: usize,
    /// Where the block begins in the file, and the next line of it, from 1.
    offset: u64,
    line: usize,
    end: Option<End>,
    began: Began,
}

/// Counts what has been taken from a reader.
struct Counted<R> {
    inner: R,
    taken: u64,
}

/// The name of a file.
pub(super) fn named(run: Timestamp, part: u32) -> String {
    let began = run.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S");
    let millis = run.as_millisecond().rem_euclid(1000);
    format!("{PREFIX}{began}.{millis:03}Z-{part:06}{SUFFIX}")
}

/// Whether a file has the name of a trace.
pub(super) fn is_trace(path: &Path) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// The files of traces, in the order in which they were written: of a folder, all that are in it.
///
/// # Errors
///
/// A file or folder is not there, cannot be read, is no trace or is empty, or no file has anything in
/// it.
pub fn files(paths: &[PathBuf]) -> Result<Found, TraceError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }
        let failed = |source| TraceError::Io { path: path.clone(), action: "listed", source };
        let before = found.len();
        for entry in fs::read_dir(path).map_err(failed)? {
            let entry = entry.map_err(failed)?.path();
            if is_trace(&entry) {
                found.push(entry);
            }
        }
        if found.len() == before {
            return Err(TraceError::Empty { path: path.clone() });
        }
    }
    found.sort();
    found.dedup();
    let (mut readers, mut unbegun) = (Vec::new(), Vec::new());
    for path in &found {
        match Reader::open(path) {
            Ok(reader) => readers.push(reader),
            Err(TraceError::Unbegun { path }) => unbegun.push(path),
            Err(problem) => return Err(problem),
        }
    }
    if let (true, Some(path)) = (readers.is_empty(), unbegun.first()) {
        return Err(TraceError::Unbegun { path: path.clone() });
    }
    readers.sort_by_key(|reader| (reader.began.run, reader.began.part));
    Ok(Found { readers, unbegun })
}

// === impl Reader ===

impl Reader {
    /// Opens a file and reads its first line.
    ///
    /// # Errors
    ///
    /// The file cannot be read, ends before its first whole line, is no trace, or is of another
    /// version.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let failed = |source| TraceError::Io { path: path.to_owned(), action: "read", source };
        let file = File::open(path).map_err(failed)?;
        let mut reader = Self {
            path: path.to_owned(),
            input: Counted { inner: BufReader::new(file), taken: 0 },
            codec: Codec::default(),
            block: Vec::new(),
            at: 0,
            offset: 0,
            line: 1,
            end: None,
            began: Began {
                by: String::new(),
                run: Timestamp::UNIX_EPOCH,
                part: 0,
                begins: Begins::Process,
            },
        };
        let foreign = |problem: String| TraceError::Foreign { path: path.to_owned(), problem };
        let start = reader.input.fill_buf().map_err(failed)?;
        if start.starts_with(&GZIP) {
            return Err(foreign("it is packed with gzip, as traces of version 1 were".into()));
        }
        if !start.starts_with(&ZSTD) && !ZSTD.starts_with(start) {
            return Err(foreign("it is not packed with zstd".into()));
        }
        let Some(first) = reader.text()? else {
            return Err(TraceError::Unbegun { path: path.to_owned() });
        };
        let value: serde_json::Value =
            serde_json::from_str(&first).map_err(|error| foreign(error.to_string()))?;
        let began = value.get("began").ok_or_else(|| foreign("it does not begin".into()))?;
        let version = began.get("version").and_then(serde_json::Value::as_u64);
        let version = version.and_then(|version| u32::try_from(version).ok());
        if let Some(version) = version.filter(|version| *version != VERSION) {
            let by = began.get("by").and_then(|it| it.as_str()).unwrap_or("something else").into();
            return Err(TraceError::Version { path: path.to_owned(), version, by });
        }
        let first: BeganLine =
            serde_json::from_value(began.clone()).map_err(|error| foreign(error.to_string()))?;
        reader.began = first.began;
        Ok(reader)
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Which part of which trace it is.
    #[must_use]
    pub const fn began(&self) -> &Began {
        &self.began
    }

    /// How it ends; `None` before its end has been read.
    #[must_use]
    pub const fn end(&self) -> Option<End> {
        self.end
    }

    /// How many bytes of the file have been read.
    #[must_use]
    pub const fn bytes_read(&self) -> u64 {
        self.input.taken
    }

    /// The next record; `None` at the end.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn record(&mut self) -> Result<Option<Record>, TraceError> {
        let Some(text) = self.text()? else { return Ok(None) };
        let line = serde_json::from_str(&text).map_err(|error| self.damaged(error.to_string()))?;
        let record = match line {
            RecordLine::Began(_) => Err("a second beginning".to_owned()),
            RecordLine::Config(yaml) => Ok(Record::Config(yaml)),
            RecordLine::Restored(value) => {
                let saved = state::from_value(&self.path, value).map(Record::Restored);
                saved.map_err(|error| match error.source() {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                })
            }
            RecordLine::Tick(line) => self.codec.tick(*line).map(|it| Record::Tick(Box::new(it))),
        };
        record.map(Some).map_err(|problem| self.damaged(problem))
    }

    /// The configuration that is in force at the end of the file; `None` where it has none. What is
    /// between is passed over, which takes a small part of the time that its records would.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn last_config(mut self) -> Result<Option<String>, TraceError> {
        let mut last = None;
        while let Some(text) = self.text()? {
            if text.starts_with(CONFIG)
                && let Ok(RecordLine::Config(yaml)) = serde_json::from_str(&text)
            {
                last = Some(yaml);
            }
        }
        Ok(last)
    }

    fn damaged(&self, problem: String) -> TraceError {
        // The line has been taken already.
        let line = Some(self.line - 1);
        TraceError::Damaged { path: self.path.clone(), offset: self.offset, line, problem }
    }

    /// The next whole line.
    fn text(&mut self) -> Result<Option<String>, TraceError> {
        while self.at >= self.block.len() {
            if self.end.is_some() {
                return Ok(None);
            }
            self.next_block()?;
        }
        let rest = &self.block[self.at..];
        let Some(length) = memchr::memchr(b'\n', rest) else {
            // Only the end of a truncated file leaves half a line.
            self.at = self.block.len();
            return Ok(None);
        };
        let text = std::str::from_utf8(&rest[..length]).map(ToOwned::to_owned);
        self.at += length + 1;
        self.line += 1;
        text.map(Some).map_err(|error| self.damaged(error.to_string()))
    }

    /// Unpacks the next block, whole.
    fn next_block(&mut self) -> Result<(), TraceError> {
        self.block.clear();
        (self.at, self.line, self.offset) = (0, 1, self.input.taken);
        let damaged = |offset, problem: String| TraceError::Damaged {
            path: self.path.clone(),
            offset,
            line: None,
            problem,
        };
        let failed = |source| TraceError::Io { path: self.path.clone(), action: "read", source };
        if self.input.fill_buf().map_err(failed)?.is_empty() {
            self.end = Some(End::Whole);
            return Ok(());
        }
        self.codec = Codec::default();
        match unpack(&mut self.input, &mut self.block) {
            Ok(()) if self.block.len() as u64 >= BLOCK_MAX => {
                let problem = format!("it has more than {BLOCK_MAX} bytes when it is unpacked");
                Err(damaged(self.offset, problem))
            }
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.end = Some(End::Truncated(self.offset));
                Ok(())
            }
            // What the system says has a number of its own; the rest is of what is packed.
            Err(source) if source.raw_os_error().is_some() => Err(failed(source)),
            Err(error) => Err(damaged(self.offset, error.to_string())),
        }
    }
}

/// Unpacks the next block, up to what is too much.
fn unpack(input: &mut impl BufRead, block: &mut Vec<u8>) -> io::Result<()> {
    let mut decoder = Decoder::with_buffer(input)?.single_frame();
    decoder.window_log_max(WINDOW_MAX)?;
    decoder.take(BLOCK_MAX).read_to_end(block)?;
    Ok(())
}

// === impl Counted ===

impl<R: BufRead> io::Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.taken += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for Counted<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        self.taken += amount as u64;
    }
}
