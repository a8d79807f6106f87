//! The saved memory of each variant, for the process that continues: a restarted daemon, or another
//! replica of it.
//!
//! A [`VariantMemory`] consists of plain values with their original instants. Windows end when they
//! would have ended, and learned state ages as if there had been no restart.
//!
//! The memory is bounded per variant and has three lengths: whole, without the observations behind
//! the learned state, and without the learned state.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::analyze::ballot::Analyzer;
use crate::analyze::foresight::card::Card;
use crate::decide::Decision;
use crate::decide::enforce::ScalingHistory;
use crate::fleet::{ModelKey, VariantKey};
use crate::pipeline::{DecisionInForce, PAUSE_MAX, Pipeline};
use crate::units::Replicas;

pub use crate::analyze::foresight::arrivals::SavedArrivals;
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
pub use crate::pipeline::Wait;
pub use crate::pipeline::absence::Losses;
pub use crate::pipeline::silence::saved::{SavedScrape, SavedSilence};
pub use crate::pipeline::sizing::analyzers::{SavedAnalyzers, SavedTrainedTuner};
pub use crate::pipeline::startup::StartDurations;

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
    /// The time since which its model has had no work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<SavedSilence>,
    /// The signals that have counted requests of its model. While one is not reporting, the model
    /// must not scale down.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
}

/// The origin of desired replicas from before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recall {
    /// Only the desired replicas are known.
    Number,
    /// The recommendations before it are also known, up to a moment ago, so its windows continue.
    History,
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
                let Self { history, waits, silence, named, .. } = self;
                self = Self { history, waits, silence, named, ..Self::default() };
            }
        }
        self
    }

    /// The part that stays true during an absence: lessons about engines, loads and starts, each
    /// with its own age. Windows, waits and silences do not.
    #[must_use]
    pub fn knowledge(self) -> Self {
        let Self { learned, starts, losses, named, .. } = self;
        Self { learned, starts, losses, named, ..Self::default() }
    }
}

// === impl DecisionInForce ===

impl DecisionInForce {
    /// The recommendation to record in the windows for a decision.
    ///
    /// After a restart, no variant scales down before the same replicas have been measured for a
    /// window. That hold is not a recommendation to stay; otherwise each restart would reset the
    /// windows. If earlier recommendations are remembered, the last one is repeated, unless the
    /// load requires more. If the desired replicas have changed just before, the wait would have
    /// happened without a restart too.
    pub(crate) fn recommended_by(&mut self, now: Timestamp, decision: &Decision) -> Replicas {
        let passed = self.history.latest().map(|latest| now.duration_since(latest).as_secs_f64());
        if passed.is_none_or(|passed| passed > PAUSE_MAX) {
            // The time in between was not observed.
            self.restored = self.restored.filter(|recall| *recall == Recall::Number);
        }

        let moved_ago = self.history.moved().map(|it| now.duration_since(it.at).as_secs_f64());
        let moved = moved_ago.is_some_and(|ago| ago <= PAUSE_MAX);
        let by_restart = self.restored == Some(Recall::History) && decision.is_settling() && !moved;
        match self.history.last_recommended() {
            Some(last) if by_restart => decision.unconstrained().max(last),
            Some(_) | None => decision.recommended(),
        }
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// The memory of a variant; `None` while it has no desired replicas in effect.
    #[must_use]
    pub fn memory(&self, model: &ModelKey, variant: &VariantKey) -> Option<VariantMemory> {
        let history = self.in_force.get(variant)?.history.save();
        let learned = &self.learned;
        let informed = Analyzer::ALL.iter().filter_map(|analyzer| {
            let at = learned.informed.get(&(model.clone(), *analyzer))?;
            Some((*analyzer, *at))
        });

        Some(VariantMemory {
            history,
            waits: self.unsettled.get(variant).copied(),
            informed: informed.collect(),
            learned: learned.analyzers.save(model, variant),
            starts: self.startups.save(variant),
            losses: self.absences.save(variant),
            silence: self.zeros.saved(model, variant),
            named: learned.fronts.save(model),
        })
    }

    /// The capacity cards: learned coefficients, for other engines of the same kind.
    pub fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.learned.analyzers.foresight.cards()
    }

    /// Restores the memory of a variant whose desired replicas [have been restored](Self::restore).
    /// Existing state stays, and invalid state is skipped.
    pub fn recall(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variant: &VariantKey,
        memory: &VariantMemory,
    ) {
        let VariantMemory { history, waits, informed, learned: remembered, .. } = memory;
        let VariantMemory { starts, losses, silence, named, .. } = memory;
        if let Some(in_force) = self.in_force.get_mut(variant)
            && in_force.restored == Some(Recall::Number)
            && let Some(mut history) = ScalingHistory::restore(history)
        {
            let latest = history.latest();
            let passed = latest.map(|latest| now.duration_since(latest).as_secs_f64());
            // Unobserved time must not let a window elapse.
            if passed.is_some_and(|passed| (0.0..=PAUSE_MAX).contains(&passed)) {
                in_force.restored = Some(Recall::History);
            } else {
                history.begin_anew(now, in_force.desired);
            }

            in_force.history = history;
        }

        if let Some(Wait { wanted, since }) = *waits {
            let wait = Wait { wanted, since: since.min(now) };
            self.unsettled.entry(variant.clone()).or_insert(wait);
        }

        let learned = &mut self.learned;
        for (analyzer, at) in informed {
            let known = learned.informed.entry((model.clone(), *analyzer)).or_insert(*at);
            *known = (*known).max(*at);
        }

        learned.analyzers.recall(model, variant, remembered);
        learned.fronts.recall(model, named);
        self.startups.recall(variant, starts);
        if let Some(losses) = losses {
            self.absences.recall(variant, *losses);
        }

        if let Some(silence) = silence {
            self.zeros.recall(now, model, variant, silence);
        }
    }
}
