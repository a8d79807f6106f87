//! Errors from writing and reading a document, and the version of its format.

use std::io;

/// The version of the document's format. Other versions are rejected.
pub(super) const VERSION: u32 = 2;

/// An error from writing or reading a document.
#[derive(Debug, thiserror::Error)]
pub enum SharedError {
    /// The document is too large.
    #[error(
        "the decisions of {variants} variants take {bytes} bytes, but the maximum is \
        {bytes_max}"
    )]
    TooLarge {
        /// The number of variants with a decision.
        variants: usize,
        /// The size with only the codes of reasons, in bytes.
        bytes: usize,
        /// The maximum size, in bytes.
        bytes_max: usize,
    },
    /// The document cannot be compressed.
    #[error("the shared decisions cannot be compressed")]
    Packing(#[source] io::Error),
    /// The bytes are not a compressed document.
    #[error("the shared decisions cannot be decompressed")]
    Unpacking(#[source] io::Error),
    /// The text is not such a document.
    #[error("the shared decisions are not a document of version {VERSION}")]
    Shape(#[source] serde_json::Error),
    /// The document has another version or contains an invalid value.
    #[error("the shared decisions: {0}")]
    Content(String),
}
