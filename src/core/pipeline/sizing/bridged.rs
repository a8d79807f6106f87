//! Bridging replicas, which serve load in addition to the plan until other replicas are ready.

use std::collections::BTreeMap;

use crate::analyze::foresight::standby::Bridge;
use crate::fleet::VariantKey;
use crate::pipeline::sizing::VariantInput;
use crate::units::Replicas;

/// The bridging replicas of each standby variant.
pub(super) type Bridges = BTreeMap<VariantKey, Bridge>;

/// The desired replicas of a standby variant while it bridges.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct BridgeTarget {
    /// The minimum replicas of the variant.
    pub(crate) after: Replicas,
    pub(crate) why: Bridge,
}

// === impl BridgeTarget ===

impl BridgeTarget {
    /// Replicas that do not start have no capacity, and stay on top.
    pub(super) fn of(bridge: Bridge, stuck: Replicas) -> Self {
        Self { after: bridge.replicas + stuck, why: bridge }
    }
}

// === impl VariantInput ===

impl VariantInput<'_> {
    /// Replicas that the variant may add. Zero while some of its replicas do not start, because
    /// more of them would not be reliable.
    pub(super) fn room(&self) -> Replicas {
        if self.stuck > Replicas::ZERO {
            return Replicas::ZERO;
        }
        let most = self.bounds.max().unwrap_or(Replicas::LIMIT);
        most.beyond(self.counted())
    }
}
