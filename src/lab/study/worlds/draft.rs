//! A draft of a world: everything that was drawn for its file.

use crate::study::worlds::arrivals::WorldArrivals;
use crate::study::worlds::faults::Faults;
use crate::study::worlds::fleet::WorldFleet;
use crate::study::worlds::lot::Lot;
use crate::study::worlds::machines::Machine;
use crate::study::worlds::objectives::Objectives;
use crate::study::worlds::requests::Requests;
use crate::study::worlds::surroundings::WorldSurroundings;

/// Everything in a world's file.
#[derive(Clone, Debug)]
pub(crate) struct WorldDraft {
    pub(crate) lot: Lot,
    pub(crate) machines: Vec<Machine>,
    pub(crate) requests: Requests,
    pub(crate) objectives: Objectives,
    pub(crate) surroundings: WorldSurroundings,
    pub(crate) arrivals: WorldArrivals,
    pub(crate) fleet: WorldFleet,
    pub(crate) faults: Faults,
}
