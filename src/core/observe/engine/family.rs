//! Metric families: the meanings of their names.

use crate::observe::engine::signal::{Distribution, EngineSignal, RankValue};

/// The meaning of a wanted name. Only a
/// [`ReadingBuilder`](crate::observe::engine::ReadingBuilder) creates and reads these.
#[derive(Clone, Copy, Debug)]
pub struct Series {
    pub(super) family: &'static MetricFamily,
    pub(super) part: SampleKind,
}

impl Series {
    /// Returns true if samples are buckets of a histogram.
    #[must_use]
    pub fn is_bucket(self) -> bool {
        self.part == SampleKind::Bucket
    }
}

/// A family that contributes to a reading.
#[derive(Debug)]
pub(super) struct MetricFamily {
    /// Its name in the response, without the engine's prefix if an engine owns it.
    pub(super) name: &'static str,
    /// The signal that it reports.
    pub(super) signal: EngineSignal,
    /// Its rank among the spellings of one signal. The lowest one in the response counts.
    pub(super) spelling: u8,
}

impl MetricFamily {
    pub(super) const fn new(name: &'static str, signal: EngineSignal) -> Self {
        Self { name, signal, spelling: 0 }
    }

    /// A family whose samples are one number of a rank.
    pub(super) const fn value(name: &'static str, value: RankValue) -> Self {
        Self::new(name, EngineSignal::Value(value))
    }

    /// A family that is a histogram of a rank.
    pub(super) const fn distribution(name: &'static str, distribution: Distribution) -> Self {
        Self::new(name, EngineSignal::Distribution(distribution))
    }

    /// Makes this an older name of the same signal.
    pub(super) const fn older(self) -> Self {
        Self { spelling: 1, ..self }
    }
}

/// The sample of a family that a name refers to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SampleKind {
    Whole,
    Bucket,
    Sum,
    Count,
}

/// Families that no engine owns.
pub(super) const COMMON: &[MetricFamily] = &[
    MetricFamily::new("process_start_time_seconds", EngineSignal::Started),
    MetricFamily::new("http_requests_total", EngineSignal::Http),
];

/// The position of a sample in its response, by its labels.
pub(super) struct SamplePosition<'a> {
    pub(super) rank: u32,
    /// The index among the series that add up to one value; 0 if there is only one.
    pub(super) class: u8,
    /// The shard. If series repeat one value, the lowest shard counts.
    pub(super) shard: u64,
    pub(super) model: Option<&'a [u8]>,
    /// The value of the label that the signal is split by.
    pub(super) detail: Option<&'a [u8]>,
}

/// The length of the name at the start of `line`, if the name is not wanted because its sibling
/// `unwanted` is not. The parts of a histogram are wanted together or not at all, and creation
/// times never are. Nearly all names in a response follow a sibling.
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

/// The prefix that identifies the owner of a name: up to the first colon, otherwise the first
/// underscore.
pub(super) fn prefix(name: &[u8]) -> &[u8] {
    let end = memchr::memchr(b':', name).or_else(|| memchr::memchr(b'_', name));
    end.and_then(|end| name.get(..=end)).unwrap_or(name)
}
