//! The reason why a signal that counts requests has no usable count.
//!
//! The words for absent data:
//!
//! - An *unheard* replica is ready and has never answered (`Observation::unheard`).
//! - A *missing* replica should report and does not: it is ready without fresh data, has reported
//!   before, or is listed and not scraped yet (`Member::missing` in `pipeline/group.rs`).
//! - A *silent* replica is missing and has answered before (`VariantInput::silent` in
//!   `pipeline/sizing/input.rs`).
//! - A *sleeping* replica answers that it sleeps (`ReplicaObservation::sleeps`), and is none of
//!   these.
//! - A listed target that refuses no connection and has never answered counts as pending, because
//!   no orchestrator reports that it is ready (`Observation::pending`). It is *hung* if it was
//!   requested for as long as a start may take (`pipeline/hung.rs`).
//! - A wake signal is *unreported*, or unheard, while it has counted requests of a model and has no
//!   usable count now (`QueueSignals::unreported`, [`Reason::Unheard`]).
//! - An analyzer that is *not heard* votes and has no usable data (`StayReason::NotHeard`).
//!
//! [`Reason::Unheard`]: crate::decide::Reason::Unheard

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::units::Seconds;

/// The reason why a signal has no usable count.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnusableSignal {
    /// The signal was never read.
    #[display("was never read")]
    Never,
    /// The last reading is this old.
    #[display("was last read {_0:.0} s ago")]
    For(Seconds),
    /// The signal is read and has no count for the model.
    #[display("has no count for this model")]
    NoNumber,
    /// The signal is read and its timestamp lies this far in the future.
    #[display("has a timestamp {_0:.0} s in the future")]
    Ahead(Seconds),
}
