//! The trace: the inputs and decisions of every tick, on disk, exact to the bit.
//!
//! A trace is enough to replay every tick. It contains the configuration, the desired replicas that
//! were put into effect from outside, and the [`Inputs`] of every tick. It has three uses:
//!
//! - inspect a decision after the fact,
//! - compare the decisions of another release with the recorded ones,
//! - try another policy on the recorded inputs.
//!
//! # Shape
//!
//! A trace is a folder of files. Each file is a series of zstd frames, so `zstdcat` reads it. A
//! frame holds one block of lines and ends with a checksum, which proves that the frame is
//! complete. A line is one JSON object:
//!
//! ```json
//! {"began":{"version":2,"by":"plimsoll 0.1.0","run":"2026-11-21T09:31:00Z","part":1,"begins":"process"}}
//! {"config":"tick_interval: 1s\n…"}
//! {"restored":{"version":3,"written":"2026-11-21T09:31:01Z","decisions":[…]}}
//! {"tick":{"now":"2026-11-21T09:31:01Z","inputs":{"fleet":{…},"listings":[…],"scrapes":[{"replica":{…},
//!  "at":"2026-11-21T09:31:00.7Z","outcome":{"Ok":{"engine":"vllm",…}}}],…},"said":[[{…},{"desired":3,…}]]}}
//! {"tick":{"now":"2026-11-21T09:31:02Z","same":["fleet","demand"],"inputs":{…},"said":[…]}}
//! ```
//!
//! The first tick of a block is complete. The other ticks list in `same` the inputs that are equal
//! to those of the tick before, and leave them out. Scrapes are always written in full: zstd packs
//! a scrape that hardly differs from the one a second before into about 110 to 150 bytes.
//!
//! `restored` has the shape of the state file. After a process starts, it holds the desired
//! replicas from before the restart. Every part except the first begins with the state known at
//! that point. So a trace whose first parts have been removed can still be replayed.

mod codec;
mod file;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::state::SavedDecision;
use plimsoll_core::decide::{Basis, Decision, NoData, NoDecision, Step};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, DesiredReplicas};
use plimsoll_core::units::Replicas;

pub use crate::trace::file::{FileEnd, FileHeader, TraceFiles, TraceReader, files};
pub use crate::trace::write::{TraceLimits, TraceWriter};

/// The version of the format. The reader rejects any other version.
pub const VERSION: u32 = 2;

/// A record of a trace.
#[derive(Clone, Debug, PartialEq)]
pub enum TraceRecord {
    /// The configuration in effect from here on, as YAML.
    Config(String),
    /// Desired replicas and memories that were put into effect from outside. At the beginning of
    /// every part except the first, it holds the state in effect at that point.
    Restored(Vec<SavedDecision>),
    /// A tick.
    Tick(Box<TraceTick>),
}

/// The event that a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileStart {
    /// The start of a process, without any earlier state.
    Process,
    /// The tick after the last tick of the previous part. The state known at that point comes
    /// first.
    Rotation,
    /// A tick after some ticks that were lost. The state known at that point comes first.
    Gap,
}

/// The inputs and results of one tick.
#[derive(Clone, Debug, PartialEq)]
pub struct TraceTick {
    /// The instant of the tick.
    pub now: Timestamp,
    /// The inputs of the tick.
    pub inputs: Inputs,
    /// The desired replicas in effect, if another daemon replica decides or several replicas share
    /// decisions.
    pub follows: Option<BTreeMap<VariantKey, DesiredReplicas>>,
    /// The result of each variant.
    pub said: BTreeMap<VariantKey, RecordedResult>,
}

/// The result of one tick for one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordedResult {
    /// Desired replicas; `None` if there is no decision.
    pub desired: Option<Replicas>,
    /// True if the desired replicas were held from an earlier tick.
    pub held: bool,
    /// The time when the underlying data was current.
    pub inputs_at: Option<Timestamp>,
    /// Each decision step, or the reason why there is no decision.
    pub why: Vec<ResultReason>,
}

/// One part of a variant's result, as codes and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ResultReason {
    /// A decision step that led to the desired replicas.
    Step(Box<Step>),
    /// The reason why there is no decision.
    NoNumber(NoData),
    /// A part from another release that this release cannot decode.
    Strange(Value),
}

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
        "trace {}: it ends before its first whole record, so there is nothing to read",
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
    fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }
}

// === impl RecordedResult ===

impl RecordedResult {
    /// Returns the result of each variant in one tick.
    #[must_use]
    pub fn of(found: &Decisions) -> BTreeMap<VariantKey, Self> {
        let undecided = found.undecided.iter().map(|(key, why)| (key.clone(), Self::from(why)));
        let decided = found.decisions.iter().map(|it| (it.variant.clone(), Self::from(it)));
        undecided.chain(decided).collect()
    }
}

impl From<&Decision> for RecordedResult {
    fn from(decision: &Decision) -> Self {
        Self {
            desired: Some(decision.desired()),
            held: decision.basis == Basis::Held,
            inputs_at: Some(decision.inputs_at),
            why: decision.steps.iter().cloned().map(Box::new).map(ResultReason::Step).collect(),
        }
    }
}

impl From<&NoDecision> for RecordedResult {
    fn from(undecided: &NoDecision) -> Self {
        let why = vec![ResultReason::NoNumber(undecided.0.clone())];
        Self { desired: None, held: false, inputs_at: None, why }
    }
}

// === impl ResultReason ===

impl ResultReason {
    /// Returns the codes and values as JSON.
    #[must_use]
    pub fn data(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for ResultReason {
    /// Writes a sentence, or the codes and values if this release has no sentence for them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => step.fmt(f),
            Self::NoNumber(why) => why.fmt(f),
            Self::Strange(value) => value.fmt(f),
        }
    }
}
