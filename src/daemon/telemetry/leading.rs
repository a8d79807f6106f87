//! The metrics of leader election between daemon replicas.

use prometheus::{GaugeVec, IntCounter, IntGauge, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of leader election.
#[derive(Clone)]
pub struct LeaderMetrics {
    /// 1 if this replica leads, otherwise 0.
    pub leader: IntGauge,
    /// Times that this replica has started or stopped leading.
    pub changes: IntCounter,
    /// Attempts to write the shared document that failed.
    pub write_failures: IntCounter,
    /// The size of the shared document, if there is one.
    pub document_bytes: GaugeVec,
    /// Its limit.
    pub document_limit: GaugeVec,
    /// The variants of the leader by the detail in which it shares them.
    pub document_variants: GaugeVec,
}

impl LeaderMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let leader = registrar.int_gauge(
            "plimsoll_leader",
            "1 if this replica decides, 0 if it shows another replica's decisions.",
        )?;
        let changes = registrar.counter(
            "plimsoll_leader_changes_total",
            "Number of times that this replica has become or ceased to be the leader.",
        )?;
        let write_failures = registrar.counter(
            "plimsoll_shared_document_write_failures_total",
            "Attempts of the leader to write the document of shared decisions that failed.",
        )?;
        let document_bytes = registrar.gauges(
            "plimsoll_shared_document_bytes",
            "Size of the compressed document of shared decisions.",
            &[],
        )?;
        let document_limit = registrar.gauges(
            "plimsoll_shared_document_limit_bytes",
            "Maximum size of the document of shared decisions.",
            &[],
        )?;
        let document_variants = registrar.gauges(
            "plimsoll_shared_document_variants",
            "Variants of the leader, by their content in the document of shared decisions.",
            &["detail"],
        )?;

        Ok(Self {
            leader,
            changes,
            write_failures,
            document_bytes,
            document_limit,
            document_variants,
        })
    }
}
