//! The reasons why a peer cannot scale the variants of a scenario.

use crate::simulate::peers::demand::Unplannable;
use crate::simulate::peers::goal::GOAL;
use crate::simulate::replica::settings::SettingsError;

/// The reason why a peer cannot scale the variants of a scenario.
#[derive(Debug, thiserror::Error)]
pub enum Unplayable {
    /// The peer must know the requests beforehand, and they cannot be known.
    #[error(transparent)]
    Unplannable(#[from] Unplannable),
    /// The peer searches for a fixed replica count, and none serves the requests.
    #[error(transparent)]
    NoFleet(#[from] NoFleet),
    /// An engine cannot be built.
    #[error("an engine cannot be built")]
    Engine(#[from] SettingsError),
}

/// The error if no fixed replica count meets the goal.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error(
    "no fixed number of replicas within the bounds of the variants serves {:.0}% within SLO; the best \
     that was tried serves {:.2}%",
    GOAL * 100.0,
    served * 100.0
)]
pub struct NoFleet {
    /// The largest share of requests that a simulated fleet served well, from 0 to 1.
    pub served: f64,
}
