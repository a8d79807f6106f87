//! The metrics of leader election between daemon replicas.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of leader election.
#[derive(Clone)]
pub struct LeaderMetrics {
    /// 1 if this replica leads, otherwise 0.
    pub leader: IntGauge,
    /// Times that this replica has started or stopped leading.
    pub changes: IntCounter,
}

impl LeaderMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let leader = registrar.int_gauge(
            "plimsoll_leader",
            "1 if this replica decides, 0 if it shows what another one has decided.",
        )?;
        let changes = registrar.counter(
            "plimsoll_leader_changes_total",
            "Times that this replica has begun or ceased to decide for the others.",
        )?;

        Ok(Self { leader, changes })
    }
}
