//! The content of a trace file: its text, and the numbers in it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::simulate::Micros;
use plimsoll_core::units::NounCount;

/// The size limit of a file: ten times the longest public trace, and less than the memory of a
/// machine.
const FILE_MAX: u64 = 1 << 30;

/// The latest time that a trace may contain, in seconds: later times are in milliseconds.
const TIME_MAX: f64 = 1e11;

/// The first bytes of a file that is compressed with gzip.
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// The mark that some editors write at the start of a UTF-8 file.
pub(crate) const BYTE_ORDER_MARK: char = '\u{feff}';

/// The reason that a file is not a trace.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WorkloadTraceError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: std::io::Error },
    /// It is too large.
    #[error("{} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge { path: PathBuf },
    /// Some of its lines are not valid; the first ones are listed.
    #[error("{}", listed(path, lines, *more))]
    Lines { path: PathBuf, lines: Vec<(usize, String)>, more: usize },
    /// It has no requests.
    #[error("{} has no requests", path.display())]
    Empty { path: PathBuf },
    /// It is compressed.
    #[error("{} is compressed with gzip; decompress it first, with gunzip", path.display())]
    Packed { path: PathBuf },
    /// It is not UTF-8 text.
    #[error("{} is not UTF-8 text", path.display())]
    NoText { path: PathBuf },
    /// It is a folder of clients, which has no list of requests.
    #[error("{} describes clients, which belong in workload.trace and not in a list of lengths", path.display())]
    Clients { path: PathBuf },
}

/// A line per problem, with its place.
fn listed(path: &Path, lines: &[(usize, String)], more: usize) -> String {
    let shown = path.display();
    let mut text: Vec<String> =
        lines.iter().map(|(line, why)| format!("\n  {shown}:{line}: {why}")).collect();
    if more > 0 {
        text.push(format!("\n  and {}", NounCount(more, "more line", "more lines")));
    }
    text.concat()
}

pub(super) fn text(path: &Path) -> Result<String, WorkloadTraceError> {
    let bytes = bytes_within_limit(path)
        .map_err(|source| WorkloadTraceError::Read { path: path.to_owned(), source })?
        .ok_or_else(|| WorkloadTraceError::TooLarge { path: path.to_owned() })?;
    if bytes.starts_with(&GZIP) {
        return Err(WorkloadTraceError::Packed { path: path.to_owned() });
    }

    let mut text = String::from_utf8(bytes)
        .map_err(|_| WorkloadTraceError::NoText { path: path.to_owned() })?;
    if text.starts_with(BYTE_ORDER_MARK) {
        text.drain(..BYTE_ORDER_MARK.len_utf8());
    }

    Ok(text)
}

/// Reads a file; `None` if it is too large to be a trace.
fn bytes_within_limit(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    if fs::metadata(path)?.len() > FILE_MAX {
        return Ok(None);
    }
    fs::read(path).map(Some)
}

pub(super) fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| format!("{text:?} is not a number"))
}

pub(super) fn seconds(value: f64) -> Result<Micros, String> {
    if (0.0..=TIME_MAX).contains(&value) {
        return Ok(Micros::from_secs_f64(value));
    }
    Err(format!("its time is {value} s; it must be from 0 to {TIME_MAX}"))
}
