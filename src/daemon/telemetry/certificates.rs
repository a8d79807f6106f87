//! The metrics of the daemon's self-managed certificates.

use prometheus::{GaugeVec, IntCounterVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of the self-managed certificates. They have no series if the daemon manages no
/// certificate.
#[derive(Clone)]
pub struct CertificateMetrics {
    /// Changes of the Secret and of the `caBundle`.
    pub changes: IntCounterVec,
    /// Failed attempts to maintain the certificates.
    pub failures: IntCounterVec,
    /// Expiry time of the newest certificate authority, in seconds since the epoch.
    pub authority_not_after: GaugeVec,
}

impl CertificateMetrics {
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
                "Failed attempts to maintain the self-managed certificate.",
                &["operation"],
            )?,
            authority_not_after: registrar.gauges(
                "plimsoll_tls_authority_not_after_timestamp_seconds",
                "Expiry of the self-managed certificate's authority, in seconds since the epoch.",
                &[],
            )?,
        })
    }

    /// Creates every series with the value 0. For Prometheus, a series that first appears with the
    /// value 1 has no increase.
    pub(crate) fn start(&self, changes: &[&str], operations: &[&str]) {
        for change in changes {
            self.changes.with_label_values(&[change]);
        }
        for operation in operations {
            self.failures.with_label_values(&[operation]);
        }
    }
}
