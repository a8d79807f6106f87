//! The metrics of several replicas, of which one decides.

use prometheus::{IntCounter, IntGauge, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of which of several replicas decides.
#[derive(Clone)]
pub struct Leading {
    /// Whether this one does.
    pub leader: IntGauge,
    /// How often this one has begun or ceased to.
    pub changes: IntCounter,
}

impl Leading {
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
