//! A tally of a Prometheus's data per variant: the readings, the failures, and the first cause.
//!
//! A match without results looks like an idle fleet, so the tally reports it.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_core::fleet::{Fleet, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_daemon::config::counted;

/// The tally of all variants.
pub(crate) struct Tally(BTreeMap<VariantKey, VariantTally>);

/// The tally of one variant.
#[derive(Default)]
struct VariantTally {
    readings: usize,
    failures: usize,
    /// The cause of the first failure.
    first: Option<String>,
}

// === impl Tally ===

impl Tally {
    /// An empty tally of these variants.
    pub(crate) fn new(fleet: &Fleet) -> Self {
        Self(fleet.variants().map(|spec| (spec.key.clone(), VariantTally::default())).collect())
    }

    /// Counts the scrapes of a span, and takes the first failure detail per variant.
    pub(crate) fn take(&mut self, scrapes: &[Scrape], details: BTreeMap<VariantKey, String>) {
        for (variant, detail) in details {
            self.0.entry(variant).or_default().first.get_or_insert(detail);
        }
        for Scrape { replica, outcome, .. } in scrapes {
            let own = self.0.entry(replica.variant.clone()).or_default();
            match outcome {
                Ok(_) => own.readings += 1,
                Err(failure) => {
                    own.failures += 1;
                    own.first.get_or_insert_with(|| failure.label().to_owned());
                }
            }
        }
    }

    /// Returns true if no variant has a reading.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(|own| own.readings == 0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (variant, VariantTally { readings, failures, first }) in &self.0 {
            write!(f, "{variant}: {}", counted(*readings, "reading"))?;
            match first {
                Some(first) => {
                    let failed = counted(*failures, "scrape");
                    writeln!(f, " and {failed} that failed, the first because {first}")?;
                }
                None if *readings == 0 => writeln!(
                    f,
                    "; Prometheus has no series of its targets in this time, or not under these \
                     labels"
                )?,
                None => writeln!(f)?,
            }
        }

        Ok(())
    }
}
