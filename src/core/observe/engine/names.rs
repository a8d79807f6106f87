//! The names of all that a reading is made of, for a source that must be told what to send.
//!
//! Whoever scrapes gets a page and takes from it what [`Reader::wants`]. Whoever asks a database
//! has to say beforehand which series are worth sending; the two must never differ, so both come
//! from the same tables.
//!
//! [`Reader::wants`]: crate::observe::engine::Reader::wants

use crate::observe::engine::Engine;
use crate::observe::engine::family::{COMMON, Family, Signal};

/// Labels that engines themselves put on the series that they write, in every dialect. A label of
/// any other name may as well come from whoever scraped the page.
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

/// Which samples of an engine's families are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Samples {
    /// Everything but buckets: gauges, counters, and the sums and counts of histograms. The bare
    /// names of the histograms are among them, under which a database keeps native ones.
    Numbers,
    /// The buckets of histograms.
    Buckets,
}

/// Names of families that no engine owns and a reading uses.
pub fn common() -> impl Iterator<Item = &'static str> {
    COMMON.iter().map(|family| family.name)
}

impl Engine {
    /// The prefixes of its metrics: as engines write them, and as `prometheus_client` rewrites
    /// them for a scraper that does not ask for UTF-8 names.
    #[must_use]
    pub const fn spellings(self) -> [&'static str; 2] {
        self.prefixes()
    }

    /// The names of the samples that a reading is made of, without prefix.
    #[must_use]
    pub fn names(self, samples: Samples) -> Vec<String> {
        self.families().iter().flat_map(|family| names(family, samples)).collect()
    }

    /// Whether the name starts like one of this engine's.
    #[must_use]
    pub fn owns(self, name: &[u8]) -> bool {
        self.prefixes().iter().any(|prefix| name.starts_with(prefix.as_bytes()))
    }
}

fn names(family: &Family, samples: Samples) -> Vec<String> {
    let name = family.name;
    let is_distribution = matches!(family.signal, Signal::Distribution(_));
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
    use crate::observe::engine::Reader;

    #[test]
    fn what_is_asked_for_is_what_a_reader_wants_but_for_native_histograms() {
        for engine in Engine::ALL {
            for prefix in engine.spellings() {
                for samples in [Samples::Numbers, Samples::Buckets] {
                    for family in engine.families() {
                        for name in names(family, samples) {
                            let native = name == family.name
                                && matches!(family.signal, Signal::Distribution(_));
                            let name = format!("{prefix}{name}");
                            let wanted = Reader::new().wants(name.as_bytes()).is_some();
                            assert_eq!(wanted, !native, "{name}");
                            assert!(engine.owns(name.as_bytes()));
                        }
                    }
                }
            }
        }
        for name in common() {
            assert!(Reader::new().wants(name.as_bytes()).is_some(), "{name}");
        }
    }
}
