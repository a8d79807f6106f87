//! Why a pool gets its number, and what is published about it beside the number.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::decide::pools::Ordinal;
use crate::decide::pools::adapters::{Binding, Copies, Need};
use crate::decide::pools::packing::Lowering;
use crate::decide::pools::plan::{Departure, Plan};
use crate::fleet::{ModelName, ReplicaName};
use crate::observe::adapters::Unlisted;
use crate::observe::engine::lora::Slots;
use crate::units::{Replicas, Seconds};

/// Why a pool gets its number, in numbers that make a sentence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pooled {
    /// What it needs replicas for.
    pub need: Need,
    /// Whether it may have fewer.
    pub lowering: Lowering,
    /// Why it may need more than is known, if so; it is not lowered then.
    pub unsure: Option<Unsure>,
}

/// The part of a pool's reason that decides its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// It may need more than is known.
    Unsure,
    /// Nothing needs a replica.
    Idle,
    /// The copies of one adapter.
    Copies,
    /// The slots for all adapters.
    Slots,
    /// The load.
    Load,
    /// Less is needed, and not for long enough.
    Waiting,
    /// Empty replicas are given back.
    Emptied,
    /// Copies move so that fewer replicas are enough.
    Packed,
    /// Less is needed, and neither is possible.
    Kept,
}

/// Why a pool may need more than is known.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unsure {
    /// Nobody knows which adapters some replicas serve.
    Unlisted {
        /// One of them.
        replica: ReplicaName,
        /// How many they are.
        replicas: Replicas,
        /// Why not; `None` where it has no fresh page.
        why: Option<Unlisted>,
    },
    /// Adapters have not been watched for long enough to miss one.
    Unwatched {
        /// How much longer it takes.
        remaining: Seconds,
    },
}

/// What was found of one pool, beside its number.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReport {
    /// Slots of each replica; `None` when nobody knows.
    pub slots: Option<Slots>,
    /// Each adapter that wants copies or is configured, by name.
    pub adapters: Vec<PoolAdapter>,
    /// Each listed replica, by name.
    pub replicas: Vec<PoolReplica>,
    /// What replicas are needed for.
    pub need: Need,
    /// Replicas that are needed beyond the maximum.
    pub unmet: Replicas,
    /// Which copy should be where.
    pub plan: Plan,
    /// Which replica has which place in the plan. Places without one are of replicas to come.
    pub places: BTreeMap<Ordinal, ReplicaName>,
    /// In which order replicas should go; empty where their ordinals decide it.
    pub departures: Vec<Departure<ReplicaName>>,
}

/// What was found of one adapter.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolAdapter {
    /// How many copies it wants, and who says so.
    pub copies: Copies,
    /// Replicas on which it has had a request lately.
    pub hosts: Replicas,
    /// Replicas on which it waits for a slot.
    pub starved: Replicas,
}

/// What was found of one replica of a pool.
#[derive(Clone, Debug, PartialEq)]
pub struct PoolReplica {
    /// Its name.
    pub name: ReplicaName,
    /// Whether its adapters are known.
    pub known: bool,
    /// How many adapters it serves in one step; `None` when nobody knows.
    pub slots: Option<Slots>,
    /// Adapters with a request that runs.
    pub running: BTreeSet<ModelName>,
    /// Adapters with a request that waits.
    pub waiting: BTreeSet<ModelName>,
    /// Adapters that it used last, as many as it has slots.
    pub loaded: BTreeSet<ModelName>,
}

// === impl Pooled ===

impl Pooled {
    /// The part of it that decides the number.
    #[must_use]
    pub fn cause(&self) -> Cause {
        let Self { need, lowering, unsure } = self;
        match (lowering, unsure) {
            (Lowering::Needed(_), Some(_)) => Cause::Unsure,
            (Lowering::Needed(_), None) => match need.binding() {
                Binding::Nothing => Cause::Idle,
                Binding::Copies => Cause::Copies,
                Binding::Slots => Cause::Slots,
                Binding::Load => Cause::Load,
            },
            (Lowering::Waiting { .. }, _) => Cause::Waiting,
            (Lowering::Emptied { .. }, _) => Cause::Emptied,
            (Lowering::Packed { .. }, _) => Cause::Packed,
            (Lowering::Kept { .. }, _) => Cause::Kept,
        }
    }
}

impl fmt::Display for Pooled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { need, lowering, unsure } = self;
        write!(f, "{need}")?;
        match (unsure, lowering) {
            (Some(unsure), _) => write!(f, "; not lowered: {unsure}"),
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

impl fmt::Display for Unsure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unlisted { replica, replicas, why } => {
                if *replicas > Replicas::ONE {
                    write!(f, "the adapters of {replicas} replicas are not known, among them ")?;
                } else {
                    f.write_str("the adapters are not known of ")?;
                }
                write!(f, "{replica}, because ")?;
                match why {
                    Some(why) => write!(f, "{why}"),
                    None => f.write_str("it has no fresh page"),
                }
            }
            Self::Unwatched { remaining } => write!(
                f,
                "adapters must be watched for another {:.0} s",
                remaining.seconds().ceil()
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
        let pooled = Pooled {
            need: need(&[], Slots::new(2), Some(Replicas::ONE)),
            lowering: Lowering::Needed(three),
            unsure: Some(Unsure::Unlisted {
                replica: ReplicaName::new("p-0").unwrap(),
                replicas: Replicas::ONE,
                why: None,
            }),
        };
        assert_eq!(pooled.cause(), Cause::Unsure);
        assert_eq!(
            pooled.to_string(),
            "none for copies, 0 for 0 copies at 2 slots a replica, 1 for the load; not lowered: the \
             adapters are not known of p-0, because it has no fresh page"
        );
    }
}
