//! Reads a trace: finds its files and returns their records one by one.

use std::error::Error as _;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read as _};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use jiff::tz::TimeZone;
use zstd::stream::read::Decoder;

use crate::publish::state;
use crate::trace::codec::{Codec, HeaderLine, RecordLine};
use crate::trace::error::TraceError;
use crate::trace::record::{FileHeader, FileStart, TraceRecord, VERSION};

/// The prefix and suffix of trace file names.
const PREFIX: &str = "plimsoll-";
const SUFFIX: &str = ".trace.zst";

/// The magic bytes of zstd and gzip files.
const ZSTD: [u8; 4] = [0x28, 0xb5, 0x2f, 0xfd];
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The beginning of a configuration line.
const CONFIG: &str = "{\"config\":";

/// The largest block, in bytes after decompression. A tick of 10,000 replicas takes about 30 MB.
const BLOCK_MAX: u64 = 512 << 20;

/// The largest zstd window that the reader accepts, as a power of two. Plimsoll writes with a
/// window of 8 MB; the reader rejects blocks that need more memory than the limit.
const WINDOW_MAX: u32 = 27;

/// The trace files that were found.
pub struct TraceFiles {
    /// Files with records, in the order in which they were written.
    pub readers: Vec<TraceReader>,
    /// Files that end before their first complete line. A file stays empty until its first block is
    /// full. So the last file of a process is empty for some seconds, and remains empty if the
    /// process was killed in that time.
    pub unbegun: Vec<PathBuf>,
}

/// The end of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileEnd {
    /// The file ends after a complete block.
    Whole,
    /// The file ends inside the block that begins at this byte, as after a machine crash. The
    /// complete lines of that block have been read.
    Truncated(u64),
}

/// Reads one file of a trace.
pub struct TraceReader {
    path: PathBuf,
    input: CountingReader<BufReader<File>>,
    codec: Codec,
    block: Vec<u8>,
    /// The read position in the block.
    at: usize,
    /// The byte offset of the block in the file, and the number of its next line, from 1.
    offset: u64,
    line: usize,
    end: Option<FileEnd>,
    began: FileHeader,
}

/// Counts the bytes taken from a reader.
struct CountingReader<R> {
    inner: R,
    taken: u64,
}

/// Returns the name of a trace file.
pub(super) fn named(run: Timestamp, part: u32) -> String {
    let began = run.to_zoned(TimeZone::UTC).strftime("%Y%m%dT%H%M%S");
    let millis = run.as_millisecond().rem_euclid(1000);
    format!("{PREFIX}{began}.{millis:03}Z-{part:06}{SUFFIX}")
}

/// Returns true if a file is named like a trace file.
pub(super) fn is_trace(path: &Path) -> bool {
    let name = path.file_name().and_then(|it| it.to_str()).unwrap_or_default();
    name.starts_with(PREFIX) && name.ends_with(SUFFIX)
}

/// Finds trace files, in the order in which they were written. A folder stands for all trace files
/// in it.
///
/// # Errors
///
/// A file or folder is missing, cannot be read, is not a trace or is empty, or no file has any
/// records.
pub fn files(paths: &[PathBuf]) -> Result<TraceFiles, TraceError> {
    let mut found = Vec::new();
    for path in paths {
        if !path.is_dir() {
            found.push(path.clone());
            continue;
        }

        let before = found.len();
        found.extend(traces_in(path)?);

        if found.len() == before {
            return Err(TraceError::Empty { path: path.clone() });
        }
    }

    found.sort();
    found.dedup();

    let mut readers = Vec::new();
    let mut unbegun = Vec::new();
    for path in &found {
        match TraceReader::open(path) {
            Ok(reader) => readers.push(reader),
            Err(TraceError::Unbegun { path }) => unbegun.push(path),
            Err(problem) => return Err(problem),
        }
    }

    if let (true, Some(path)) = (readers.is_empty(), unbegun.first()) {
        return Err(TraceError::Unbegun { path: path.clone() });
    }

    readers.sort_by_key(|reader| (reader.began.run, reader.began.part));
    Ok(TraceFiles { readers, unbegun })
}

/// Returns the trace files in a folder, in no particular order.
pub(super) fn traces_in(folder: &Path) -> Result<Vec<PathBuf>, TraceError> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(|source| TraceError::io(folder, "listed", source))? {
        let path = entry.map_err(|source| TraceError::io(folder, "listed", source))?.path();
        if is_trace(&path) {
            found.push(path);
        }
    }

    Ok(found)
}

// === impl TraceReader ===

impl TraceReader {
    /// Opens a file and reads its first line.
    ///
    /// # Errors
    ///
    /// The file cannot be read, ends before its first complete line, is not a trace, or has another
    /// version.
    pub fn open(path: &Path) -> Result<Self, TraceError> {
        let file = File::open(path).map_err(|source| TraceError::io(path, "read", source))?;
        let mut reader = Self {
            path: path.to_owned(),
            input: CountingReader { inner: BufReader::new(file), taken: 0 },
            codec: Codec::default(),
            block: Vec::new(),
            at: 0,
            offset: 0,
            line: 1,
            end: None,
            began: FileHeader {
                by: String::new(),
                run: Timestamp::UNIX_EPOCH,
                part: 0,
                begins: FileStart::Process,
            },
        };

        let start =
            reader.input.fill_buf().map_err(|source| TraceError::io(path, "read", source))?;
        if start.starts_with(&GZIP) {
            return Err(foreign(path, "it is compressed with gzip, like traces of version 1"));
        }
        if !start.starts_with(&ZSTD) && !ZSTD.starts_with(start) {
            return Err(foreign(path, "it is not compressed with zstd"));
        }
        let Some(first) = reader.text()? else {
            return Err(TraceError::Unbegun { path: path.to_owned() });
        };

        let value: serde_json::Value =
            serde_json::from_str(&first).map_err(|error| foreign(path, &error.to_string()))?;
        let began = value.get("began").ok_or_else(|| foreign(path, "it does not begin"))?;
        let version = began
            .get("version")
            .and_then(serde_json::Value::as_u64)
            .and_then(|it| u32::try_from(it).ok());
        if let Some(version) = version.filter(|version| *version != VERSION) {
            let by = began.get("by").and_then(|it| it.as_str()).unwrap_or("something else").into();
            return Err(TraceError::Version { path: path.to_owned(), version, by });
        }

        let line: HeaderLine = serde_json::from_value(began.clone())
            .map_err(|error| foreign(path, &error.to_string()))?;
        reader.began = line.began;
        Ok(reader)
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the trace and the part that the file belongs to.
    #[must_use]
    pub const fn began(&self) -> &FileHeader {
        &self.began
    }

    /// Returns the end of the file; `None` before it has been read.
    #[must_use]
    pub const fn end(&self) -> Option<FileEnd> {
        self.end
    }

    /// Returns the number of bytes that have been read from the file.
    #[must_use]
    pub const fn bytes_read(&self) -> u64 {
        self.input.taken
    }

    /// Returns the next record; `None` at the end.
    ///
    /// # Errors
    ///
    /// The file cannot be read, or is damaged.
    pub fn record(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        let Some(text) = self.text()? else { return Ok(None) };
        let line = serde_json::from_str(&text).map_err(|error| self.damaged(error.to_string()))?;
        let record = match line {
            RecordLine::Began(_) => Err("a second beginning".to_owned()),
            RecordLine::Config(yaml) => Ok(TraceRecord::Config(yaml)),
            RecordLine::Restored(value) => {
                let saved = state::from_value(&self.path, value).map(TraceRecord::Restored);
                saved.map_err(|error| match error.source() {
                    Some(source) => format!("{error}: {source}"),
                    None => error.to_string(),
                })
            }
            RecordLine::Tick(line) => {
                self.codec.tick(*line).map(|it| TraceRecord::Tick(Box::new(it)))
            }
        };

        record.map(Some).map_err(|problem| self.damaged(problem))
    }

    /// Returns the configuration in effect at the end of the file; `None` if the file has none.
    /// Other records are skipped without decoding, which takes a small part of the time that
    /// decoding takes.
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
        // `self.line` already counts the line that was taken.
        let line = Some(self.line - 1);
        TraceError::Damaged { path: self.path.clone(), offset: self.offset, line, problem }
    }

    fn damaged_block(&self, problem: String) -> TraceError {
        TraceError::Damaged { path: self.path.clone(), offset: self.offset, line: None, problem }
    }

    /// Returns the next complete line.
    fn text(&mut self) -> Result<Option<String>, TraceError> {
        while self.at >= self.block.len() {
            if self.end.is_some() {
                return Ok(None);
            }
            self.next_block()?;
        }

        let rest = &self.block[self.at..];
        let Some(length) = memchr::memchr(b'\n', rest) else {
            // Only a truncated file ends with an incomplete line.
            self.at = self.block.len();
            return Ok(None);
        };

        let text = std::str::from_utf8(&rest[..length]).map(ToOwned::to_owned);
        self.at += length + 1;
        self.line += 1;
        text.map(Some).map_err(|error| self.damaged(error.to_string()))
    }

    /// Decompresses the next block as a whole.
    fn next_block(&mut self) -> Result<(), TraceError> {
        self.block.clear();
        self.at = 0;
        self.line = 1;
        self.offset = self.input.taken;

        let start = self.input.fill_buf();
        if start.map_err(|source| TraceError::io(&self.path, "read", source))?.is_empty() {
            self.end = Some(FileEnd::Whole);
            return Ok(());
        }

        self.codec = Codec::default();
        match unpack(&mut self.input, &mut self.block) {
            Ok(()) if self.block.len() as u64 >= BLOCK_MAX => {
                let problem = format!("it has more than {BLOCK_MAX} bytes after decompression");
                Err(self.damaged_block(problem))
            }
            Ok(()) => Ok(()),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                self.end = Some(FileEnd::Truncated(self.offset));
                Ok(())
            }
            // Errors of the operating system have an error number; all others are errors of the
            // compressed data.
            Err(source) if source.raw_os_error().is_some() => {
                Err(TraceError::io(&self.path, "read", source))
            }
            Err(error) => Err(self.damaged_block(error.to_string())),
        }
    }
}

fn foreign(path: &Path, problem: &str) -> TraceError {
    TraceError::Foreign { path: path.to_owned(), problem: problem.to_owned() }
}

/// Decompresses the next block, up to [`BLOCK_MAX`] bytes.
fn unpack(input: &mut impl BufRead, block: &mut Vec<u8>) -> io::Result<()> {
    let mut decoder = Decoder::with_buffer(input)?.single_frame();
    decoder.window_log_max(WINDOW_MAX)?;
    decoder.take(BLOCK_MAX).read_to_end(block)?;
    Ok(())
}

// === impl CountingReader ===

impl<R: BufRead> io::Read for CountingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(buffer)?;
        self.taken += read as u64;
        Ok(read)
    }
}

impl<R: BufRead> BufRead for CountingReader<R> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        self.inner.fill_buf()
    }

    fn consume(&mut self, amount: usize) {
        self.inner.consume(amount);
        self.taken += amount as u64;
    }
}
