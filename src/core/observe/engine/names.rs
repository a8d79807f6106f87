//! The names of all series that contribute to a reading, for sources that are queried by name.
//!
//! A scrape returns all series, and the reader takes those that [`ReadingBuilder::wants`]. A query
//! to a database must name the series in advance. The two must never differ, so both use the same
//! tables.
//!
//! [`ReadingBuilder::wants`]: crate::observe::engine::ReadingBuilder::wants

use crate::observe::engine::family::{COMMON, MetricFamily};
use crate::observe::engine::kind::Engine;
use crate::observe::engine::signal::EngineSignal;

/// Labels that engines put on the series that they write, in every dialect. A label with any other
/// name may come from the scraping server.
pub const PAGE_LABELS: [&str; 18] = [
    "dp_rank",
    "engine",
    "finished_reason",
    "handler",
    "is_streaming",
    "le",
    "max_lora",
    "method",
    "model_name",
    "moe_ep_rank",
    "pp_rank",
    "priority",
    "reason",
    "running_lora_adapters",
    "sleep_state",
    "status",
    "tp_rank",
    "waiting_lora_adapters",
];

/// Selects samples of an engine's families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// All samples except buckets: gauges, counters, and the sums and counts of histograms.
    /// Includes the bare names of the histograms, under which a database keeps native ones.
    Numbers,
    /// The buckets of histograms.
    Buckets,
}

/// Names of families that no engine owns and that contribute to a reading.
pub fn common() -> impl Iterator<Item = &'static str> {
    COMMON.iter().map(|family| family.name)
}

impl Engine {
    /// The prefixes of its metrics: as engines write them, and as `prometheus_client` rewrites
    /// them for a scraper that does not ask for UTF-8 names.
    #[must_use]
    pub const fn spellings(self) -> [&'static str; 2] {
        self.dialect().prefixes
    }

    /// The names of the samples that contribute to a reading, without prefix.
    #[must_use]
    pub fn names(self, samples: Samples) -> Vec<String> {
        self.dialect().families.iter().flat_map(|family| names(family, samples)).collect()
    }

    /// Returns true if the name starts with one of this engine's prefixes.
    #[must_use]
    pub fn owns(self, name: &[u8]) -> bool {
        self.dialect().prefixes.iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    }
}

fn names(family: &MetricFamily, samples: Samples) -> Vec<String> {
    let name = family.name;
    let is_distribution = matches!(family.signal, EngineSignal::Distribution(_));

    match (samples, is_distribution) {
        (Samples::Numbers, false) => vec![name.to_owned()],
        (Samples::Numbers, true) => {
            vec![name.to_owned(), format!("{name}_sum"), format!("{name}_count")]
        }
        (Samples::Buckets, false) => Vec::new(),
        (Samples::Buckets, true) => vec![format!("{name}_bucket")],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::engine::ReadingBuilder;

    #[test]
    fn what_is_asked_for_is_what_a_reader_wants_but_for_native_histograms() {
        for engine in Engine::ALL {
            for prefix in engine.spellings() {
                for samples in [Samples::Numbers, Samples::Buckets] {
                    for family in engine.dialect().families {
                        for name in names(family, samples) {
                            let native = name == family.name
                                && matches!(family.signal, EngineSignal::Distribution(_));
                            let name = format!("{prefix}{name}");
                            let wanted = ReadingBuilder::new().wants(name.as_bytes()).is_some();
                            assert_eq!(wanted, !native, "{name}");
                            assert!(engine.owns(name.as_bytes()));
                        }
                    }
                }
            }
        }

        for name in common() {
            assert!(ReadingBuilder::new().wants(name.as_bytes()).is_some(), "{name}");
        }
    }
}
