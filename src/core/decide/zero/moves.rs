//! What going to zero and coming back did to a number, and why.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::decide::zero::Idleness;
use crate::fleet::VariantName;
use crate::units::{Replicas, Requests, Seconds};

/// Why a number goes to zero, comes back, or stays.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Move {
    /// It goes down as far as its minimum.
    ToZero(Idleness),
    /// It might go to zero, if it were proved that the model is idle.
    #[display("not to zero: {_0}")]
    Stays(Idleness),
    /// The model is idle, but a variant of the other role must have replicas, and serves nothing
    /// without this one.
    #[display("not to zero: idle, but {with} must have {min} and needs this one")]
    Paired {
        /// The other variant.
        with: VariantName,
        /// Replicas that it must have.
        min: Replicas,
    },
    /// Something queues in front of a model without replicas.
    #[display("woken: {signal} says {queued}")]
    Woken {
        /// How much, in whatever the signal counts.
        queued: Requests,
        /// The signal that says so.
        signal: String,
    },
    /// It was woken, and is not sent back before it has served.
    #[display(
        "kept awake: woken {ago:.0} s ago, and stays until it has served and for {at_least:.0} s"
    )]
    KeptAwake {
        /// How long ago.
        ago: Seconds,
        /// How long it stays in any case.
        at_least: Seconds,
    },
}
