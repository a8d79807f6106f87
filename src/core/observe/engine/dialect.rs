//! The dialect of each engine: the prefixes of its metrics, and its families.

use crate::observe::engine::family::{MetricFamily, SampleKind, Series};
use crate::observe::engine::kind::Engine;
use crate::observe::engine::signal::EngineSignal;
use crate::observe::engine::{sglang, vllm};

impl Engine {
    /// The prefix of its metrics.
    #[must_use]
    pub const fn prefix(self) -> &'static str {
        let [prefix, _] = self.prefixes();
        prefix
    }

    /// The prefixes of its metrics: as engines write them, and as `prometheus_client` rewrites
    /// them for a scraper that does not ask for UTF-8 names.
    pub(super) const fn prefixes(self) -> [&'static str; 2] {
        match self {
            Self::Vllm => vllm::PREFIXES,
            Self::Sglang => sglang::PREFIXES,
        }
    }

    /// The families that a reading is made of, without prefix.
    pub(super) const fn families(self) -> &'static [MetricFamily] {
        match self {
            Self::Vllm => vllm::FAMILIES,
            Self::Sglang => sglang::FAMILIES,
        }
    }
}

/// The name without the engine's prefix, if it has the prefix.
pub(super) fn bare(engine: Engine, name: &[u8]) -> Option<&[u8]> {
    engine.prefixes().iter().find_map(|prefix| name.strip_prefix(prefix.as_bytes()))
}

/// The meaning of samples with this name in a response of this engine.
pub(super) fn series(engine: Engine, name: &[u8]) -> Option<Series> {
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
    let family = engine.families().iter().find(|it| it.name.as_bytes() == base)?;
    let is_distribution = matches!(family.signal, EngineSignal::Distribution(_));
    (is_distribution == (part != SampleKind::Whole)).then_some(Series { family, part })
}
