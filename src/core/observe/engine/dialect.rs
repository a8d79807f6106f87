//! The rules by which an engine names and labels its metrics.

use crate::observe::engine::draft::RankDraft;
use crate::observe::engine::family::{MetricFamily, SamplePosition};
use crate::observe::engine::label::Label;
use crate::observe::engine::unreadable::SampleError;
use crate::observe::reading::RankReading;

/// The dialect of one engine. Each engine has a constant of this type in its file.
pub(super) struct Dialect {
    /// The prefixes of its metrics: as the engine writes them, and as `prometheus_client` rewrites
    /// them for a scraper that does not ask for UTF-8 names.
    pub(super) prefixes: [&'static str; 2],
    /// The families that a reading is made of, without prefix.
    pub(super) families: &'static [MetricFamily],
    /// The place of a sample by its labels and the label that its signal is split by.
    pub(super) place: PlaceRule,
    /// Derives values that the engine does not report from those that it does.
    pub(super) complete: fn(&RankDraft, &mut RankReading),
    /// The ranks that count requests.
    pub(super) counting_ranks: CountingRanks,
}

/// The place of a sample; `None` for a series that is part of another. The rule must set `detail`
/// to the value of the given label: without it, every bucket is refused because `le` is missing.
pub(super) type PlaceRule = for<'a, 'p> fn(
    &'a [Label<'p>],
    Option<&'static str>,
) -> Result<Option<SamplePosition<'a>>, SampleError>;

/// The ranks of a response that count requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CountingRanks {
    /// Each rank counts its own.
    Each,
    /// The first rank counts those of all ranks.
    First,
}
