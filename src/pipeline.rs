//! The pipeline: from inputs to decisions, the same in the daemon, the demo and the simulator.

use std::collections::BTreeMap;

use crate::analyze::saturation::{Thresholds, TransitionRule};
use crate::decide::enforce::Behavior;
use crate::fleet::ModelKey;
use crate::units::Seconds;

/// Everything that the pipeline's decisions depend on beside its inputs.
#[derive(Clone, Debug, PartialEq)]
pub struct Policy {
    /// Length of the window over which peaks, means and rates are taken.
    pub window: Seconds,
    /// Age from which a replica's data is too old to act on.
    pub stale_after: Seconds,
    /// Thresholds of models without an override.
    pub thresholds: Thresholds,
    /// Thresholds of single models.
    pub overrides: BTreeMap<ModelKey, Thresholds>,
    /// What blocks new decisions while an earlier one is being carried out.
    pub transition: TransitionRule,
    /// How long an earlier decision that nobody carries out keeps blocking.
    pub transition_patience: Seconds,
    /// How fast published numbers may move.
    pub behavior: Behavior,
}
