//! Families of metrics: what their names stand for.

use crate::observe::engine::Engine;
use crate::observe::engine::draft::{Distribution, Value};

/// What a wanted name stands for; only a [`Reader`](crate::observe::engine::Reader) makes and reads these.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    pub(super) family: &'static Family,
    pub(super) part: Part,
}

impl Series {
    /// Whether samples are buckets of a histogram.
    #[must_use]
    pub fn is_bucket(self) -> bool {
        self.part == Part::Bucket
    }
}

/// A family that a reading is made of.
#[derive(Debug)]
pub(super) struct Family {
    /// Its name on the page; of an engine's family, without the prefix.
    pub(super) name: &'static str,
    /// What it says.
    pub(super) signal: Signal,
    /// Its place among the spellings of one signal; the lowest that is on the page counts.
    pub(super) spelling: u8,
}

impl Family {
    pub(super) const fn new(name: &'static str, signal: Signal) -> Self {
        Self { name, signal, spelling: 0 }
    }

    /// An older name of the same signal.
    pub(super) const fn older(name: &'static str, signal: Signal) -> Self {
        Self { name, signal, spelling: 1 }
    }
}

/// What a family says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Signal {
    /// When the process started.
    Started,
    /// HTTP answers by handler, method and status.
    Http,
    /// Requests that admission control turned away, by reason.
    Rejected,
    /// Labels with the adapters that have requests; the value says when.
    Lora,
    /// Labels with the size of the KV cache.
    CacheConfig,
    /// Sleep states, one of them 1.
    SleepState,
    /// Waiting requests by reason.
    WaitingByReason,
    /// Finished requests by reason.
    Finished,
    /// One number a rank.
    Value(Value),
    /// One histogram a rank.
    Distribution(Distribution),
}

/// Which sample of a family a name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Whole,
    Bucket,
    Sum,
    Count,
}

/// Families that no engine owns.
pub(super) const COMMON: &[Family] = &[
    Family::new("process_start_time_seconds", Signal::Started),
    Family::new("http_requests_total", Signal::Http),
];

/// Where a sample belongs on its page, by its labels.
pub(super) struct Place<'a> {
    pub(super) rank: u32,
    /// Which of the series that add up to one value; 0 where there is only one.
    pub(super) class: u8,
    /// Of series that repeat one value, the lowest shard counts.
    pub(super) shard: u64,
    pub(super) model: Option<&'a [u8]>,
    /// The value of the label that the signal is split by.
    pub(super) detail: Option<&'a [u8]>,
}

/// The name without the engine's prefix, if it has it.
pub(super) fn bare(engine: Engine, name: &[u8]) -> Option<&[u8]> {
    engine.prefixes().iter().find_map(|prefix| name.strip_prefix(prefix.as_bytes()))
}

/// What samples of this name stand for on a page of this engine.
pub(super) fn series(engine: Engine, name: &[u8]) -> Option<Series> {
    const PARTS: [(&[u8], Part); 3] =
        [(b"_bucket", Part::Bucket), (b"_sum", Part::Sum), (b"_count", Part::Count)];
    let name = bare(engine, name)?;
    // Times of creation, which a third of the names on a page are, are never wanted.
    if name.ends_with(b"_created") {
        return None;
    }
    let (base, part) = PARTS
        .iter()
        .find_map(|&(suffix, part)| Some((name.strip_suffix(suffix)?, part)))
        .unwrap_or((name, Part::Whole));
    let family = engine.families().iter().find(|family| family.name.as_bytes() == base)?;
    let is_distribution = matches!(family.signal, Signal::Distribution(_));
    (is_distribution == (part != Part::Whole)).then_some(Series { family, part })
}

/// The length of the name that `line` starts with, if it is not wanted because `unwanted`, another
/// of the same engine, is not: the parts of a histogram are wanted together or not at all, and
/// times of creation never are. Nearly all names on a page come after a sibling.
#[must_use]
pub fn unwanted_sibling(unwanted: &[u8], line: &[u8]) -> Option<usize> {
    const CREATED: &[u8] = b"created";
    const PARTS: [&[u8]; 3] = [b"bucket", b"count", b"sum"];
    let stem = memchr::memrchr(b'_', unwanted)? + 1;
    let (stem, known) = unwanted.split_at(stem);
    let rest = line.strip_prefix(stem)?;
    let suffix = if rest.starts_with(CREATED) {
        CREATED
    } else if PARTS.contains(&known) {
        *PARTS.iter().find(|part| rest.starts_with(part))?
    } else {
        return None;
    };
    matches!(rest.get(suffix.len()), Some(b'{' | b' ')).then_some(stem.len() + suffix.len())
}

/// The part of a name that tells whose it is: up to the first colon, else the first underscore.
pub(super) fn prefix(name: &[u8]) -> &[u8] {
    let end = memchr::memchr(b':', name).or_else(|| memchr::memchr(b'_', name));
    end.and_then(|end| name.get(..=end)).unwrap_or(name)
}
