//! The trace: what a pipeline got in each tick and what it decided, on disk, exact to the bit.
//!
//! What is in it is enough to do it all again: the configuration, the numbers that were put in force
//! from outside, and the [`Inputs`] of every tick. So a decision can be looked at after the fact,
//! another release can be held to what this one decided, and another policy can be tried on what
//! has happened.
//!
//! # Shape
//!
//! A trace is a folder of files, each a series of zstd frames, so that `zstdcat` reads it. A frame is
//! a block of lines, and is whole or not: its checksum stands at its end. A line is one JSON object:
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
//! The first tick of a block is complete. The others name in `same` the inputs that are as in the
//! tick before, and leave them out. Pages are always whole: of one that is nearly as it was a second
//! before, zstd makes some 110 to 150 bytes.
//!
//! `restored` is in the shape of the state file. After the start of a process it has the numbers of
//! before the restart. A part other than the first begins with what was known then, so that a trace
//! whose first parts have been removed can still be followed.

mod codec;
mod file;
mod write;

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::PathBuf;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::publish::state::Saved;
use plimsoll_core::decide::{Basis, Decision, NoData, Step, Undecided};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, Number};
use plimsoll_core::units::Replicas;

pub use crate::trace::file::{Began, End, Found, Reader, files};
pub use crate::trace::write::{Limits, Writer};

/// The version of the format. Another is refused.
pub const VERSION: u32 = 2;

/// A record.
#[derive(Clone, Debug, PartialEq)]
pub enum Record {
    /// The configuration in force from here on, as YAML.
    Config(String),
    /// Numbers and memories that were put in force from outside; at the beginning of a part other
    /// than the first, those that were in force then.
    Restored(Vec<Saved>),
    /// A tick.
    Tick(Box<Tick>),
}

/// What a file begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Begins {
    /// A process: nothing was known before.
    Process,
    /// The tick after the last one of the part before it; what was known then comes first.
    Rotation,
    /// A tick after some that were lost; what was known then comes first.
    Gap,
}

/// What a tick got and what it decided.
#[derive(Clone, Debug, PartialEq)]
pub struct Tick {
    /// Its instant.
    pub now: Timestamp,
    /// What it got.
    pub inputs: Inputs,
    /// The numbers in force where another replica of the daemon decides, or all of them share.
    pub follows: Option<BTreeMap<VariantKey, Number>>,
    /// What it said of each variant.
    pub said: BTreeMap<VariantKey, Said>,
}

/// What was said of a variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Said {
    /// Its number; `None` where there is none.
    pub desired: Option<Replicas>,
    /// Whether the number was kept from before.
    pub held: bool,
    /// When the data that the number rests on was current.
    pub inputs_at: Option<Timestamp>,
    /// Each step, or why there is no number.
    pub why: Vec<Why>,
}

/// One part of what was said of a variant, as codes and values.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Why {
    /// A step that led to the number.
    Step(Box<Step>),
    /// Why there is no number.
    NoNumber(NoData),
    /// Another release said it, in words that this one does not know.
    Strange(Value),
}

/// Why a trace cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file system refuses.
    #[error("trace {}: cannot be {action}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The file is no trace.
    #[error("trace {}: not a trace of Plimsoll ({problem})", path.display())]
    Foreign {
        /// The file.
        path: PathBuf,
        /// Why not.
        problem: String,
    },
    /// The file was written by a release with another format.
    #[error(
        "trace {}: version {version} of the format, written by {by}; this is plimsoll {}, which \
         reads version {VERSION}", path.display(), env!("CARGO_PKG_VERSION")
    )]
    Version {
        /// The file.
        path: PathBuf,
        /// Its version.
        version: u32,
        /// What wrote it.
        by: String,
    },
    /// Something in the file cannot be.
    #[error(
        "trace {}: damaged in the block that begins at byte {offset}{}: {problem}",
        path.display(),
        line.map(|line| format!(", line {line} of it")).unwrap_or_default()
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the block begins.
        offset: u64,
        /// Which line of the block, from 1.
        line: Option<usize>,
        /// What is wrong.
        problem: String,
    },
    /// The file was begun, and nothing whole was written into it.
    #[error(
        "trace {}: it ends before its first whole record, so there is nothing to read",
        path.display()
    )]
    Unbegun {
        /// The file.
        path: PathBuf,
    },
    /// There is nothing to read.
    #[error("trace {}: there are no trace files in this folder", path.display())]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

// === impl Said ===

impl Said {
    /// What a tick said of each variant.
    #[must_use]
    pub fn of(found: &Decisions) -> BTreeMap<VariantKey, Self> {
        let undecided = found.undecided.iter().map(|(key, why)| (key.clone(), Self::from(why)));
        let decided = found.decisions.iter().map(|it| (it.variant.clone(), Self::from(it)));
        undecided.chain(decided).collect()
    }
}

impl From<&Decision> for Said {
    fn from(decision: &Decision) -> Self {
        Self {
            desired: Some(decision.desired()),
            held: decision.basis == Basis::Held,
            inputs_at: Some(decision.inputs_at),
            why: decision.steps.iter().cloned().map(Box::new).map(Why::Step).collect(),
        }
    }
}

impl From<&Undecided> for Said {
    fn from(undecided: &Undecided) -> Self {
        let why = vec![Why::NoNumber(undecided.0.clone())];
        Self { desired: None, held: false, inputs_at: None, why }
    }
}

// === impl Why ===

impl Why {
    /// The codes and values, as JSON.
    #[must_use]
    pub fn data(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

impl fmt::Display for Why {
    /// A sentence, or codes and values where this release has no sentence for them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Step(step) => step.fmt(f),
            Self::NoNumber(why) => why.fmt(f),
            Self::Strange(value) => value.fmt(f),
        }
    }
}
