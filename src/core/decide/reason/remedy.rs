//! Remedies: the next steps of a person for reasons that hold a variant back.

use crate::decide::reason::{NoData, ReasonCode};

impl ReasonCode {
    /// The next step for a person; `None` if nothing needs to be done, or only waiting helps.
    #[must_use]
    pub const fn remedy(self) -> Option<&'static str> {
        Some(match self {
            Self::SpareLowNoRoom | Self::CapacityShort | Self::AboveMax => {
                "Raise the maximum, or add a variant on other accelerators."
            }
            Self::CapacityUnknown => {
                "Capacity is learned from load; a capacity card shortens that."
            }
            Self::CapacityRefused => {
                "Restore the data of the named analyzer, or remove it from capacity.analyzers."
            }
            Self::NoData => {
                "Check the scale target, and that the replicas respond at their metrics port."
            }
            Self::IncompleteData => "Check the replicas without data: their failure is listed.",
            Self::SignalSilent => "Restore the signal, or remove it from scale_to_zero.wake.",
            Self::NotListed | Self::OutdatedListing => {
                "Check that Plimsoll may list the pods of the variant's namespace."
            }
            Self::PoolUnsure => "Check that each replica reports its adapters.",
            Self::SloUnmeetable => "Relax the latency target, or use faster accelerators.",
            Self::FlapBudgetSpent => "Widen the scale-down window, or raise enforce.flap_budget.",
            Self::StepLimited => "Relax the policies of enforce, if changes are too slow.",
            Self::Paired => "Lower the minimum of the named variant to 0.",
            Self::LimitUnread => "Check the source of the limit and the permission to read it.",
            Self::Limited | Self::LimitedElsewhere => {
                "Raise the limit, or free accelerators that other variants hold."
            }
            Self::Refused => "Report a bug, with the trace of this tick.",
            Self::Told => "Ask the replica that leads for the data.",
            Self::SpareLow
            | Self::SpareLowElsewhere
            | Self::SpareEnough
            | Self::SpareEnoughElsewhere
            | Self::SpareAtMin
            | Self::SpareKept
            | Self::Transition
            | Self::Unmeasured
            | Self::CapacityElsewhere
            | Self::CapacityKept
            | Self::CapacityPreferred
            | Self::CapacityAdded
            | Self::CapacityTried
            | Self::CapacityRemoved
            | Self::CapacityReplaced
            | Self::CapacityServing
            | Self::Bridged
            | Self::PoolIdle
            | Self::PoolCopies
            | Self::PoolSlots
            | Self::PoolLoad
            | Self::PoolWaiting
            | Self::PoolEmptied
            | Self::PoolPacked
            | Self::PoolKept
            | Self::Settling
            | Self::BelowMin
            | Self::Stabilized
            | Self::LeftToHpa
            | Self::Dwelling
            | Self::Burst
            | Self::Idle
            | Self::IdleUnproved
            | Self::Woken
            | Self::KeptAwake
            | Self::Pinned
            | Self::Paused => return None,
        })
    }
}

impl NoData {
    /// The next step for a person if the variant itself has its data; `None` if it lacks them.
    #[must_use]
    pub const fn remedy(&self) -> Option<&'static str> {
        match self {
            Self::NotShared => {
                Some("Check that a replica of Plimsoll leads, and that it can write its decisions.")
            }
            Self::Refused => ReasonCode::Refused.remedy(),
            Self::NoFreshReplica
            | Self::ScaleUnknown(_)
            | Self::NotListed
            | Self::NotTried
            | Self::NoModels
            | Self::Restored
            | Self::BroughtBack => None,
        }
    }
}
