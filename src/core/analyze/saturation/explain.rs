//! What an analysis can come to, in types that carry the numbers and say them in a sentence.
//!
//! A number in a sentence is the number that was compared, so an explanation cannot disagree with
//! the outcome that it explains.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::saturation::SCALE_DOWN_MIN;
use crate::fleet::VariantKey;
use crate::units::{Fraction, Replicas, Requests};

/// Why a variant's target is what it is.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Too little spare capacity: one replica more, on the cheapest variant that can grow.
    SpareLow(SpareLow),
    /// Too little spare capacity, and another variant grows.
    #[display("spare is low and {_0} grows")]
    SpareLowElsewhere(VariantKey),
    /// Too little spare capacity, and no variant can grow.
    #[display("{_0}, but no variant can grow")]
    SpareLowNoRoom(SpareLow),
    /// Enough would be left without one replica: one less, on the dearest variant that can shrink.
    SpareEnough(SpareEnough),
    /// Enough would be left without one replica, and another variant shrinks.
    #[display("spare is enough and {_0} shrinks")]
    SpareEnoughElsewhere(VariantKey),
    /// Spare capacity is not low, and there is a reason not to go down.
    SpareKept(SpareKept),
    /// An earlier decision is still being carried out.
    #[display("waiting: {_0}")]
    Transition(Transition),
    /// Nothing was measured, so the variant keeps what it has.
    #[display("holding: {_0}")]
    Unmeasured(Unmeasured),
}

/// Which of the spares is low.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpareLow {
    /// Mean spare KV cache and the trigger that it is below, if it is.
    pub kv: Option<(Fraction, Fraction)>,
    /// Mean spare queue and the trigger that it is below, if it is.
    pub queue: Option<(Requests, Requests)>,
}

impl fmt::Display for SpareLow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kv, queue } = self;
        match (kv, queue) {
            (Some((kv, kv_trigger)), Some((queue, queue_trigger))) => write!(
                f,
                "both KV spare ({kv:.3} < {kv_trigger:.3}) and queue spare ({queue:.1} < \
                 {queue_trigger:.1})"
            ),
            (Some((kv, trigger)), None) => write!(f, "KV spare low ({kv:.3} < {trigger:.3})"),
            (None, Some((queue, trigger))) => {
                write!(f, "queue spare low ({queue:.1} < {trigger:.1})")
            }
            (None, None) => f.write_str("spare low"),
        }
    }
}

/// Whether one replica less would do.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum ScaleDown {
    /// Enough would be left.
    Safe(SpareEnough),
    /// Too little would be left.
    Unsafe(SpareTight),
    /// Too few replicas have spare capacity to spread the load of one over the others.
    TooFew {
        /// Replicas that are not saturated.
        non_saturated: Replicas,
    },
}

/// What would be left after one replica is removed.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("spare stays enough without one replica (KV {kv:.3}, queue {queue:.1})")]
pub struct SpareEnough {
    /// Mean spare KV cache of those that remain.
    pub kv: Fraction,
    /// Mean spare queue of those that remain.
    pub queue: Requests,
}

/// Which of the spares would be low after one replica is removed.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SpareTight {
    /// The KV cache, if it would be.
    pub kv: Option<Tight<Fraction>>,
    /// The queue, if it would be.
    pub queue: Option<Tight<Requests>>,
}

/// A load that leaves less than its trigger up to its threshold.
///
/// It states the load and not the spare, which is less than nothing where the load is above the
/// threshold.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tight<Q> {
    /// Mean load of those that remain.
    pub load: Q,
    /// The load from which a replica is saturated.
    pub threshold: Q,
    /// The spare that must be left.
    pub trigger: Q,
}

impl fmt::Display for SpareTight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kv, queue } = self;
        if let Some(Tight { load, threshold, trigger }) = kv {
            let left = threshold.fraction() - load.fraction();
            write!(f, "KV spare {left:.3} < {trigger:.3}")?;
        }
        if kv.is_some() && queue.is_some() {
            f.write_str(" and ")?;
        }
        if let Some(Tight { load, threshold, trigger }) = queue {
            let left = threshold.requests() - load.requests();
            write!(f, "queue spare {left:.1} < {trigger:.1}")?;
        }
        Ok(())
    }
}

/// Why a model whose spare capacity is not low keeps its replicas.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpareKept {
    /// Too little would be left without one replica.
    #[display("spare is not low, but one replica less would leave {_0}")]
    Tight(SpareTight),
    /// Too few replicas have spare capacity to spread the load of one over the others.
    #[display(
        "spare is not low, and one replica less takes {SCALE_DOWN_MIN} that are not saturated \
         ({non_saturated} < {SCALE_DOWN_MIN})"
    )]
    TooFew {
        /// Replicas that are not saturated.
        non_saturated: Replicas,
    },
    /// Enough would be left, but each variant has its minimum or one replica.
    #[display("{_0}, but no variant can shrink")]
    NoneToSpare(SpareEnough),
}

/// What a model waits for.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Transition {
    /// A variant has replicas that are not ready yet.
    #[display("{_0} has replicas that are not ready yet")]
    Pending(VariantKey),
    /// A variant's replicas are not what was last decided.
    #[display("{_0} does not have the replicas of the last decision yet")]
    NotActuated(VariantKey),
    /// A variant's replicas do not all report.
    #[display("not all replicas of {_0} report")]
    NotReporting(VariantKey),
}

/// Why nothing was measured.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unmeasured {
    /// No replica of the variant has fresh data.
    #[display("no replica has fresh data")]
    NoFreshReplica,
    /// The variant has no replicas, so there is nothing to measure.
    #[display("there are no replicas to measure")]
    NoReplicas,
}
