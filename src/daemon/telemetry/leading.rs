//! The metrics of several replicas, of which one decides.

use prometheus::{IntCounter, IntGauge, Registry};

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
        let leader = IntGauge::new(
            "plimsoll_leader",
            "1 if this replica decides, 0 if it shows what another one has decided.",
        )?;
        let changes = IntCounter::new(
            "plimsoll_leader_changes_total",
            "Times that this replica has begun or ceased to decide for the others.",
        )?;
        registry.register(Box::new(leader.clone()))?;
        registry.register(Box::new(changes.clone()))?;
        Ok(Self { leader, changes })
    }
}
