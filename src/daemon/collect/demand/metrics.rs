//! Metrics about the readings of signals.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, PoisonError};

use prometheus::{IntCounterVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The values of the `outcome` label.
const OUTCOMES: [&str; 2] = ["read", "failed"];

/// Counts the readings of each signal.
#[derive(Clone, Debug)]
pub struct SignalMetrics {
    reads: IntCounterVec,
    signals: Arc<Mutex<BTreeSet<String>>>,
}

impl SignalMetrics {
    /// Registers the metrics.
    ///
    /// # Errors
    ///
    /// The registry has a metric with this name.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let reads = registrar.counters(
            "plimsoll_wake_signal_reads_total",
            "Readings of wake signals and of pools' gateways, by outcome: read or failed.",
            &["signal", "outcome"],
        )?;
        Ok(Self { reads, signals: Arc::default() })
    }

    /// Starts the series of a signal at 0, so that a rate includes the first reading.
    pub(crate) fn begin(&self, signal: &str) {
        for outcome in OUTCOMES {
            let _begun = self.reads.with_label_values(&[signal, outcome]);
        }
        self.signals.lock().unwrap_or_else(PoisonError::into_inner).insert(signal.to_owned());
    }

    pub(crate) fn read(&self, signal: &str, is_read: bool) {
        let outcome = if is_read { OUTCOMES[0] } else { OUTCOMES[1] };
        self.reads.with_label_values(&[signal, outcome]).inc();
    }

    /// Removes the series of all other signals.
    pub(crate) fn keep<'a>(&self, signals: impl Iterator<Item = &'a String>) {
        let stay: BTreeSet<String> = signals.cloned().collect();
        let mut known = self.signals.lock().unwrap_or_else(PoisonError::into_inner);

        for gone in known.difference(&stay) {
            for outcome in OUTCOMES {
                let _gone = self.reads.remove_label_values(&[gone.as_str(), outcome]);
            }
        }

        known.retain(|signal| stay.contains(signal));
    }
}
