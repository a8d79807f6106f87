//! The reason for a pool's desired replicas, and the report that is published with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::decide::pools::Ordinal;
use crate::decide::pools::adapters::{BindingNeed, Copies, PoolNeed};
use crate::decide::pools::packing::Lowering;
use crate::decide::pools::plan::{LayoutPlan, RemovalCandidate};
use crate::fleet::{ModelName, ReplicaName};
use crate::observe::adapters::Unlisted;
use crate::observe::engine::lora::Slots;
use crate::units::{NounCount, Replicas, RequestRate, Seconds};

/// The reason for a pool's desired replicas, as values that form a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PoolReason {
    /// The replicas that it needs, by each bound.
    pub need: PoolNeed,
    /// The result of the check for scale-down.
    pub lowering: Lowering,
    /// The reason why it may need more than is known, if so. Scale-down is then blocked.
    pub unsure: Option<PoolUncertainty>,
}

/// The part of a pool's reason that decides its desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PoolCause {
    /// The pool may need more than is known.
    Unsure,
    /// Nothing needs a replica.
    Idle,
    /// The copies of one adapter.
    Copies,
    /// The slots for all adapters.
    Slots,
    /// The load.
    Load,
    /// Fewer replicas are needed, but not for long enough.
    Waiting,
    /// Empty replicas are removed.
    Emptied,
    /// Copies move so that fewer replicas are enough.
    Packed,
    /// Fewer replicas are needed, and neither is possible.
    Kept,
}

/// The reason why a pool may need more than is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolUncertainty {
    /// The adapters of some replicas are unknown.
    Unlisted {
        /// One of these replicas.
        replica: ReplicaName,
        /// The number of these replicas.
        replicas: Replicas,
        /// The reason; `None` if the replica has no fresh scrape.
        why: Option<Unlisted>,
    },
    /// The gateway's count of requests is unknown.
    Uncounted,
    /// Adapters have not been watched for long enough to be sure that none is missed.
    Unwatched {
        /// The remaining time.
        remaining: Seconds,
    },
    /// Another server can host a model as well, so its copies may or may not be here.
    Unassigned {
        /// The model with the most copies among them.
        model: ModelName,
        /// Its copies.
        copies: Replicas,
    },
}

/// The state of one pool, in addition to its desired replicas.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReport {
    /// Slots per replica; `None` if unknown.
    pub slots: Option<Slots>,
    /// Each adapter that needs copies or is configured, by name.
    pub adapters: Vec<AdapterState>,
    /// Each listed replica, by name.
    pub replicas: Vec<PoolReplicaState>,
    /// The replicas that it needs, by each bound.
    pub need: PoolNeed,
    /// Replicas that are needed beyond the maximum.
    pub unmet: Replicas,
    /// The planned place of each copy.
    pub plan: LayoutPlan,
    /// The replica at each place of the plan. Places without a replica are for replicas to come.
    pub places: BTreeMap<Ordinal, ReplicaName>,
    /// The order in which replicas should be removed; empty if their ordinals decide it.
    pub departures: Vec<RemovalCandidate<ReplicaName>>,
}

/// The state of one adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterState {
    /// The copies that it needs, and their source.
    pub copies: Copies,
    /// The requests that arrive for it; `None` if no gateway counts them, or unknown.
    pub arriving: Option<RequestRate>,
    /// Replicas on which it has had a request recently.
    pub hosts: Replicas,
    /// Replicas on which it waits for a slot.
    pub starved: Replicas,
}

/// The state of one replica of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReplicaState {
    /// Its name.
    pub name: ReplicaName,
    /// True if its adapters are known.
    pub known: bool,
    /// The adapters that it can serve in one step; `None` if unknown.
    pub slots: Option<Slots>,
    /// Adapters with a running request.
    pub running: BTreeSet<ModelName>,
    /// Adapters with a waiting request.
    pub waiting: BTreeSet<ModelName>,
    /// The adapters that it used last, at most one per slot.
    pub loaded: BTreeSet<ModelName>,
}

// === impl PoolReason ===

impl PoolReason {
    /// Returns the part of the reason that decides the desired replicas.
    #[must_use]
    pub fn cause(&self) -> PoolCause {
        let Self { need, lowering, unsure } = self;
        match (lowering, unsure) {
            (Lowering::Needed(_), Some(_)) => PoolCause::Unsure,
            (Lowering::Needed(_), None) => match need.binding() {
                BindingNeed::Nothing => PoolCause::Idle,
                BindingNeed::Copies => PoolCause::Copies,
                BindingNeed::Slots => PoolCause::Slots,
                BindingNeed::Load => PoolCause::Load,
            },
            (Lowering::Waiting { .. }, _) => PoolCause::Waiting,
            (Lowering::Emptied { .. }, _) => PoolCause::Emptied,
            (Lowering::Packed { .. }, _) => PoolCause::Packed,
            (Lowering::Kept { .. }, _) => PoolCause::Kept,
        }
    }
}

impl fmt::Display for PoolReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, lowering, unsure } = self;
        write!(f, "{need}")?;

        match (unsure, lowering) {
            (Some(unsure), _) => write!(f, "; scale-down blocked: {unsure}"),
            (None, Lowering::Needed(_)) => Ok(()),
            (
                None,
                Lowering::Waiting { .. }
                | Lowering::Emptied { .. }
                | Lowering::Packed { .. }
                | Lowering::Kept { .. },
            ) => write!(f, "; {lowering}"),
        }
    }
}

impl fmt::Display for PoolUncertainty {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted { replica, replicas, why } => {
                if *replicas > Replicas::ONE {
                    write!(
                        f,
                        "the adapters of {replicas} replicas are unknown, such as those of "
                    )?;
                } else {
                    f.write_str("the adapters are unknown of ")?;
                }

                write!(f, "{replica}, because ")?;
                match why {
                    Some(why) => write!(f, "{why}"),
                    None => f.write_str("it has no fresh metrics"),
                }
            }
            Self::Uncounted => {
                f.write_str("the requests for adapters at the gateway are not known")
            }
            Self::Unwatched { remaining } => write!(
                f,
                "adapters must be watched for another {:.0} s",
                remaining.seconds().ceil()
            ),
            Self::Unassigned { model, copies } => write!(
                f,
                "another server can also host {} of {model}; set spec.server",
                NounCount(copies.count(), "copy", "copies")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::pools::adapters::need;

    #[test]
    fn an_uncertain_pool_says_why() {
        let three = Replicas::saturating(3);
        let pooled = PoolReason {
            need: need(&[], Slots::new(2), Some(Replicas::ONE)),
            lowering: Lowering::Needed(three),
            unsure: Some(PoolUncertainty::Unlisted {
                replica: ReplicaName::new("p-0").unwrap(),
                replicas: Replicas::ONE,
                why: None,
            }),
        };

        assert_eq!(pooled.cause(), PoolCause::Unsure);
        assert_eq!(
            pooled.to_string(),
            "none for copies, 0 for 0 copies at 2 slots per replica, 1 for the load; scale-down blocked: the \
             adapters are unknown of p-0, because it has no fresh metrics"
        );
    }
}
