//! What carries load until others serve, beside the plan.

use std::collections::BTreeMap;

use crate::analyze::foresight::standby::Bridge;
use crate::fleet::VariantKey;
use crate::pipeline::sizing::Sizable;
use crate::units::Replicas;

/// What standby carries until others serve.
pub(super) type Bridges = BTreeMap<VariantKey, Bridge>;

/// The number of a variant of standby while it carries load until others serve.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Bridged {
    /// What it has at least.
    pub(crate) after: Replicas,
    pub(crate) why: Bridge,
}

// === impl Bridged ===

impl Bridged {
    /// Replicas that do not start carry nothing, and stay on top.
    pub(super) fn of(bridge: Bridge, stuck: Replicas) -> Self {
        Self { after: bridge.replicas + stuck, why: bridge }
    }
}

// === impl Sizable ===

impl Sizable<'_> {
    /// Replicas that it may have in addition: none while some of it do not start, for nobody can
    /// rely on more of them.
    pub(super) fn room(&self) -> Replicas {
        if self.stuck > Replicas::ZERO {
            return Replicas::ZERO;
        }
        let most = self.bounds.max().unwrap_or(Replicas::LIMIT);
        most.beyond(self.counted())
    }
}
