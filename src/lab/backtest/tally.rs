//! What a Prometheus had of each variant: how many readings, how many that failed, and why.
//!
//! A match that matches nothing looks like a fleet that does nothing, so it is said.

use std::collections::BTreeMap;
use std::fmt;

use plimsoll_core::fleet::{Fleet, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_daemon::config::counted;

/// The tally of all variants.
pub(crate) struct Tally(BTreeMap<VariantKey, Own>);

/// That of one.
#[derive(Default)]
struct Own {
    readings: usize,
    failures: usize,
    /// Why the first one failed.
    first: Option<String>,
}

// === impl Tally ===

impl Tally {
    /// Nothing yet of these variants.
    pub(crate) fn new(fleet: &Fleet) -> Self {
        Self(fleet.variants().map(|spec| (spec.key.clone(), Own::default())).collect())
    }

    /// Takes what was read in a time, and the first detail of what failed in it.
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

    /// Whether there is no reading of any variant.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.values().all(|own| own.readings == 0)
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (variant, Own { readings, failures, first }) in &self.0 {
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
