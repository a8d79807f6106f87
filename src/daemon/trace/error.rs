//! Errors from reading and writing a trace.

use std::io;
use std::path::{Path, PathBuf};

use crate::trace::record::VERSION;

/// An error from reading or writing a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// A file system operation failed.
    #[error("trace {}: cannot be {action}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation that was tried.
        action: &'static str,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// The file is not a trace.
    #[error("trace {}: not a trace of Plimsoll ({problem})", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// The reason why it is not a trace.
        problem: String,
    },
    /// A release with another format version wrote the file.
    #[error(
        "trace {}: version {version} of the format, written by {by}; this is plimsoll {}, which \
         reads version {VERSION}", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// The format version of the file.
        version: u32,
        /// The release that wrote the file.
        by: String,
    },
    /// The content of a block is invalid.
    #[error(
        "trace {}: damaged in the block that begins at byte {offset}{}: {problem}",
        path.display(),
        line.map(|line| format!(", line {line} of it")).unwrap_or_default()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The byte offset where the block begins.
        offset: u64,
        /// The line within the block, counted from 1.
        line: Option<usize>,
        /// The defect that the reader found.
        problem: String,
    },
    /// The file was created, but no complete record was written to it.
    #[error(
        "trace {}: it ends before its first complete record, so it has no data",
        path.display()
    )]
    Unbegun {
        /// The file.
        path: PathBuf,
    },
    /// The folder contains no trace files.
    #[error("trace {}: there are no trace files in this folder", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

// === impl TraceError ===

impl TraceError {
    pub(super) fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }
}
