//! The effects of scale to zero and wake-up on desired replicas, with their reasons.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::decide::zero::idleness::Idleness;
use crate::fleet::VariantName;
use crate::units::{Replicas, Requests, Seconds};

/// The reason why desired replicas go to zero, come back, or stay.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// The variant scales down to its minimum.
    ToZero(Idleness),
    /// The variant would scale to zero if the model were proved to be idle.
    #[display("not scaled to zero: {_0}")]
    Stays(Idleness),
    /// The model is idle. A variant of the other role must have replicas, and it serves nothing
    /// without this variant.
    #[display("not scaled to zero: idle, but {with} keeps {min} and needs this variant")]
    Paired {
        /// The other variant.
        with: VariantName,
        /// Replicas that it must have.
        min: Replicas,
    },
    /// A queue has formed in front of a model without replicas.
    #[display("woken: {signal} reports {queued}")]
    Woken {
        /// The length of the queue, in the unit of the signal.
        queued: Requests,
        /// The signal that reports the queue.
        signal: String,
    },
    /// The model was woken, and does not scale to zero before its replica reports metrics.
    #[display(
        "kept awake: woken {ago:.0} s ago; stays until it reports, and at least {at_least:.0} s"
    )]
    KeptAwake {
        /// Time since it was woken.
        ago: Seconds,
        /// The minimum time that it stays.
        at_least: Seconds,
    },
}
