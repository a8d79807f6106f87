//! The dialects of all engines.

mod sglang;
pub(super) mod vllm;

use crate::observe::engine::dialect::{CountingRanks, Dialect};
use crate::observe::engine::family::{MetricFamily, SampleKind, Series};
use crate::observe::engine::kind::Engine;
use crate::observe::engine::signal::EngineSignal;
use crate::observe::reading::RankReading;

impl Engine {
    pub(super) const fn dialect(self) -> &'static Dialect {
        match self {
            Self::Vllm => &vllm::DIALECT,
            Self::Sglang => &sglang::DIALECT,
        }
    }

    /// The prefix of its metrics.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        self.dialect().prefixes[0]
    }

    /// The ranks of its response that count requests.
    pub(crate) fn counting_ranks(self, ranks: &[RankReading]) -> &[RankReading] {
        match self.dialect().counting_ranks {
            CountingRanks::Each => ranks,
            CountingRanks::First => ranks.get(..1).unwrap_or_default(),
        }
    }
}

/// The name without the engine's prefix, if it has the prefix.
pub(super) fn bare(engine: Engine, name: &[u8]) -> Option<&[u8]> {
    engine.dialect().prefixes.iter().find_map(|prefix| name.strip_prefix(prefix.as_bytes()))
}

/// The meaning of samples with this name in a response of this engine. `likely` is the family to
/// try first.
pub(super) fn series(
    engine: Engine,
    name: &[u8],
    likely: Option<&'static MetricFamily>,
) -> Option<Series> {
    const PARTS: [(&[u8], SampleKind); 3] = [
        (b"_bucket", SampleKind::Bucket),
        (b"_sum", SampleKind::Sum),
        (b"_count", SampleKind::Count),
    ];
    let bare_name = bare(engine, name)?;
    // Creation times, a third of the names in a response, are never wanted.
    if bare_name.ends_with(b"_created") {
        return None;
    }

    let (base, part) = PARTS
        .iter()
        .find_map(|&(suffix, part)| Some((bare_name.strip_suffix(suffix)?, part)))
        .unwrap_or((bare_name, SampleKind::Whole));
    let is_named = |it: &&MetricFamily| it.name.as_bytes() == base;
    let families = || engine.dialect().families.iter().find(is_named);
    let family = likely.filter(is_named).or_else(families)?;
    let is_distribution = matches!(family.signal, EngineSignal::Distribution(_));
    (is_distribution == (part != SampleKind::Whole)).then_some(Series { family, part })
}
