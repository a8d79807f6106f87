//! The saved memory of each variant, which survives a restart or a failover: the process that
//! continues is a restarted daemon, or another replica of it.
//!
//! # State that survives a restart
//!
//! - The desired replicas, for 15 minutes (`SavedDecision` in the daemon's `publish/state.rs`).
//! - The whole [`VariantMemory`] together with them. Later, and for two weeks, only its
//!   [knowledge](VariantMemory::knowledge).
//!
//! Everything else starts empty: windows of observations, so a scale-down waits for one whole
//! window, bridges of standby, exchanges of replicas, pools except for their last packing, and the
//! history of the status page.
//!
//! # Form
//!
//! A [`VariantMemory`] consists of plain values with their original instants. Windows end when they
//! would have ended, and learned state ages as if there had been no restart.
//!
//! The memory is bounded per variant and has three lengths: whole, without the observations behind
//! the learned state, and without the learned state.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::observe::overrides::Override;

pub use crate::analyze::ballot::Analyzer;
pub use crate::analyze::foresight::arrivals::saved::SavedArrivals;
pub use crate::analyze::foresight::pace::SavedPace;
pub use crate::analyze::foresight::saved::{
    LengthMoments, RequestWork, SavedDemand, SavedForesight, SavedVariantModel, SavedWeek,
};
pub use crate::analyze::throughput::{Curve, CurveLine, LineFit};
pub use crate::analyze::tokens::capacity::{OutputLength, RequestShape};
pub use crate::analyze::tokens::knowledge::{
    CapacityRecord, RecordSource, SavedKnowledge, SavedLimit,
};
pub use crate::analyze::tuner::{FilterAgreement, SavedFilter, SavedPoint, SavedTuner};
pub use crate::decide::enforce::{
    Burst, PublishedChange, PublishedMove, Recommendation, SavedHistory, ScalingDirection,
};
pub use crate::pipeline::absence::Losses;
pub use crate::pipeline::silence::saved::{SavedScrape, SavedSilence};
pub use crate::pipeline::sizing::analyzers::{SavedAnalyzers, SavedTrainedTuner};
pub use crate::pipeline::startup::StartDurations;
pub use crate::pipeline::waits::Wait;

/// The saved memory of one variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct VariantMemory {
    /// Its recommendations and published changes.
    pub history: SavedHistory,
    /// The time since which it has differed from its target state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Wait>,
    /// The last time when each analyzer knew the capacity of its model's replicas.
    #[serde(with = "crate::units::instants", skip_serializing_if = "BTreeMap::is_empty")]
    pub informed: BTreeMap<Analyzer, Timestamp>,
    /// The learned state of the analyzers.
    pub learned: SavedAnalyzers,
    /// Its latest starts: from created to ready and to serving, in seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<StartDurations>,
    /// Its lost replicas.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// The last time when it was packed, if it is a pool.
    #[serde(with = "crate::units::instants", skip_serializing_if = "Option::is_none")]
    pub packed: Option<Timestamp>,
    /// The time since which its model has had no work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<SavedSilence>,
    /// The signals that have counted requests of its model. While one is not reporting, the model
    /// must not scale down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
    /// The pin or the pause that was given by the API. The pipeline gets it back as an input.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overridden: Option<Override>,
}

/// The length at which a memory is saved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLength {
    /// The whole memory.
    Whole,
    /// Without the observations behind the learned state. The learned state stays, and new
    /// observations correct it.
    Conclusions,
    /// Without the learned state: only windows, direction changes, waits and scale-down guards.
    Windows,
}

// === impl VariantMemory ===

impl VariantMemory {
    /// Shortens the memory to this length.
    #[must_use]
    pub fn told(mut self, length: MemoryLength) -> Self {
        match length {
            MemoryLength::Whole => {}
            MemoryLength::Conclusions => self.learned.shorten(),
            MemoryLength::Windows => {
                let Self { history, waits, packed, silence, named, overridden, .. } = self;
                self =
                    Self { history, waits, packed, silence, named, overridden, ..Self::default() };
            }
        }
        self
    }

    /// The part that stays true during an absence: the last packing, and lessons about engines,
    /// loads and starts, each with its own age. Windows, waits and silences do not.
    #[must_use]
    pub fn knowledge(self) -> Self {
        let Self { learned, starts, losses, packed, named, .. } = self;
        Self { learned, starts, losses, packed, named, ..Self::default() }
    }
}
