//! The results of an analysis, as types that hold the numbers and display them as a sentence.
//!
//! Each number in a sentence is the number that was compared, so an explanation always agrees with
//! the outcome that it explains.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::VariantKey;
use crate::units::{Fraction, Replicas, Requests};

/// The minimum number of replicas that are not saturated before one may be removed. The load of the
/// only such replica could not be spread over others.
pub const SCALE_DOWN_MIN: Replicas = Replicas::ONE.up();

/// The reason for a variant's target.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SaturationOutcome {
    /// Headroom is low: one more replica, on the cheapest variant that can scale up.
    SpareLow(SpareLow),
    /// Headroom is low, and another variant scales up.
    #[display("headroom is low; scaling up {_0} instead")]
    SpareLowElsewhere(VariantKey),
    /// Headroom is low, and no variant can scale up.
    #[display("{_0}, but no variant can scale up")]
    SpareLowNoRoom(SpareLow),
    /// Headroom is sufficient without one replica: one less, on the most expensive variant that can
    /// scale down.
    SpareEnough(SpareEnough),
    /// Headroom is sufficient without one replica, and another variant scales down.
    #[display("headroom is sufficient; scaling down {_0} instead")]
    SpareEnoughElsewhere(VariantKey),
    /// Headroom is not low, and there is a reason not to scale down.
    SpareKept(SpareKept),
    /// An earlier decision is not fully actuated yet.
    #[display("waiting: {_0}")]
    Transition(Transition),
    /// No replica was measured, so the variant keeps its replicas.
    #[display("holding: {_0}")]
    Unmeasured(NoMeasurement),
}

/// The headroom that is low.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpareLow {
    /// The mean KV-cache headroom and its trigger, if the headroom is below it.
    pub kv: Option<(Fraction, Fraction)>,
    /// The mean queue headroom and its trigger, if the headroom is below it.
    pub queue: Option<(Requests, Requests)>,
}

impl fmt::Display for SpareLow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kv, queue } = self;

        match (kv, queue) {
            (Some((kv, kv_trigger)), Some((queue, queue_trigger))) => write!(
                f,
                "low headroom in KV cache ({kv:.3} < {kv_trigger:.3}) and queue ({queue:.1} < \
                 {queue_trigger:.1})"
            ),
            (Some((kv, trigger)), None) => write!(
                f,
                "low KV-cache headroom ({kv:.3} < \
                {trigger:.3})"
            ),
            (None, Some((queue, trigger))) => {
                write!(f, "low queue headroom ({queue:.1} < {trigger:.1})")
            }
            (None, None) => f.write_str("low headroom"),
        }
    }
}

/// The verdict on one replica less.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleDown {
    /// Headroom would be sufficient.
    Safe(SpareEnough),
    /// Headroom would be too low.
    Unsafe(SpareTight),
    /// Too few replicas have headroom to spread the load of one over the others.
    TooFew {
        /// Replicas that are not saturated.
        non_saturated: Replicas,
    },
}

/// The headroom after one replica is removed.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("headroom is sufficient without one replica (KV {kv:.3}, queue {queue:.1})")]
pub struct SpareEnough {
    /// The mean KV-cache headroom of the remaining replicas.
    pub kv: Fraction,
    /// The mean queue headroom of the remaining replicas.
    pub queue: Requests,
}

/// The headroom that would be low after one replica is removed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpareTight {
    /// The KV cache, if its headroom would be low.
    pub kv: Option<TightLoad<Fraction>>,
    /// The queue, if its headroom would be low.
    pub queue: Option<TightLoad<Requests>>,
}

/// A load whose distance to the threshold is less than the trigger.
///
/// The type holds the load instead of the headroom, which would be negative for a load above the
/// threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TightLoad<Q> {
    /// The mean load of the remaining replicas.
    pub load: Q,
    /// The load from which a replica is saturated.
    pub threshold: Q,
    /// The minimum headroom.
    pub trigger: Q,
}

impl fmt::Display for SpareTight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kv, queue } = self;
        if let Some(TightLoad { load, threshold, trigger }) = kv {
            let left = threshold.fraction() - load.fraction();
            write!(f, "KV headroom {left:.3} < {trigger:.3}")?;
        }

        if kv.is_some() && queue.is_some() {
            f.write_str(" and ")?;
        }
        if let Some(TightLoad { load, threshold, trigger }) = queue {
            let left = threshold.requests() - load.requests();
            write!(f, "queue headroom {left:.1} < {trigger:.1}")?;
        }

        Ok(())
    }
}

/// The reason why a model keeps its replicas although headroom is not low.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpareKept {
    /// Headroom would be too low without one replica.
    #[display("headroom is not low, but one replica less would leave {_0}")]
    Tight(SpareTight),
    /// Too few replicas have headroom to spread the load of one over the others.
    #[display(
        "headroom is not low, but scale-down needs {SCALE_DOWN_MIN} unsaturated replicas \
         ({non_saturated} < {SCALE_DOWN_MIN})"
    )]
    TooFew {
        /// Replicas that are not saturated.
        non_saturated: Replicas,
    },
    /// Headroom would be sufficient, but no variant can scale down.
    #[display("{_0}, but no variant can scale down")]
    NoneToSpare(SpareEnough),
}

/// The condition that a model waits for.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// A variant has replicas that are not ready yet.
    #[display("{_0} has pending replicas")]
    Pending(VariantKey),
    /// A variant's replicas differ from the last decision.
    #[display("{_0} has not reached its desired replicas yet")]
    NotActuated(VariantKey),
    /// Some replicas of a variant are not reporting.
    #[display("not all replicas of {_0} are reporting")]
    NotReporting(VariantKey),
}

/// The reason why no replica was measured.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NoMeasurement {
    /// No replica of the variant has fresh data.
    #[display("no replica has fresh data")]
    NoFreshReplica,
    /// The variant has no replicas, so there is nothing to measure.
    #[display("there are no replicas to measure")]
    NoReplicas,
}
