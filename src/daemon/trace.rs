//! The trace: the inputs and decisions of every tick, on disk, exact to the bit.
//!
//! A trace is enough to replay every tick. It contains the configuration, the desired replicas that
//! were put into effect from outside, and the [`Inputs`](plimsoll_core::observe::Inputs) of every
//! tick. It has three uses:
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
mod error;
mod file;
mod record;
mod write;

pub use crate::trace::error::TraceError;
pub use crate::trace::file::{FileEnd, TraceFiles, TraceReader, files};
pub use crate::trace::record::{
    FileHeader, FileStart, RecordedResult, ResultReason, TraceRecord, TraceTick, VERSION,
};
pub use crate::trace::write::{TraceLimits, TraceWriter};
