//! What the daemon says of certificates that it makes itself.

use prometheus::{GaugeVec, IntCounterVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of certificates that the daemon makes itself; silent where it makes none.
#[derive(Clone)]
pub struct Certificates {
    /// Changes of the Secret and of the `caBundle`.
    pub changes: IntCounterVec,
    /// Attempts to look after them that failed.
    pub failures: IntCounterVec,
    /// When the newest authority expires, in seconds since the epoch.
    pub authority_not_after: GaugeVec,
}

impl Certificates {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        Ok(Self {
            changes: registrar.counters(
                "plimsoll_tls_changes_total",
                "Changes of the self-managed certificate's Secret and of the caBundle.",
                &["change"],
            )?,
            failures: registrar.counters(
                "plimsoll_tls_failures_total",
                "Failed attempts to look after the self-managed certificate.",
                &["operation"],
            )?,
            authority_not_after: registrar.gauges(
                "plimsoll_tls_authority_not_after_timestamp_seconds",
                "When the authority of the self-managed certificate expires.",
                &[],
            )?,
        })
    }

    /// Shows every count from 0 on: the first incident of a series that was not there is no
    /// increase to Prometheus.
    pub(crate) fn start(&self, changes: &[&str], operations: &[&str]) {
        for change in changes {
            self.changes.with_label_values(&[change]);
        }
        for operation in operations {
            self.failures.with_label_values(&[operation]);
        }
    }
}
