//! What a pipeline remembers of each variant, for whoever goes on with it: a daemon that was
//! restarted, or another replica of it.
//!
//! A [`Memory`] is made of plain values, all of them with their original instants: windows are over
//! when they would have been, and what was learned grows old as if nothing had happened. It is
//! bounded for each variant, and there are three lengths of it: whole, without the observations
//! that what was learned came from, and without what was learned.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

pub use crate::analyze::ballot::Analyzer;
use crate::analyze::foresight::card::Card;
use crate::decide::Decision;
use crate::decide::enforce::History;
use crate::fleet::{ModelKey, VariantKey};
use crate::pipeline::{InForce, PAUSE_MAX, Pipeline};
use crate::units::Replicas;

pub use crate::analyze::foresight::arrivals::SavedArrivals;
pub use crate::analyze::foresight::pace::SavedPace;
pub use crate::analyze::foresight::saved::{
    LengthMoments, SavedDemand, SavedForesight, SavedSeen, SavedWeek, Work,
};
pub use crate::analyze::throughput::{Curve, Fit, Line};
pub use crate::analyze::tokens::capacity::{OutputLength, RequestShape};
pub use crate::analyze::tokens::knowledge::{Record, SavedKnowledge, SavedLimit, Source};
pub use crate::analyze::tuner::{Agreed, SavedFilter, SavedPoint, SavedTuner};
pub use crate::decide::enforce::{Burst, Change, Direction, Moved, Recommendation, SavedHistory};
pub use crate::pipeline::Wait;
pub use crate::pipeline::absence::Losses;
pub use crate::pipeline::silence::saved::{SavedHeard, SavedSilence};
pub use crate::pipeline::sizing::analyzers::{SavedAnalyzers, SavedTaught};
pub use crate::pipeline::startup::Measured;

/// What is remembered of one variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Memory {
    /// What was recommended, and how its number has moved.
    pub history: SavedHistory,
    /// Since when it is not what it should be.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub waits: Option<Wait>,
    /// When analyzers could last say what its model carries.
    #[serde(with = "crate::units::instants", skip_serializing_if = "BTreeMap::is_empty")]
    pub informed: BTreeMap<Analyzer, Timestamp>,
    /// What analyzers have learned.
    pub learned: SavedAnalyzers,
    /// Its latest starts: from created to ready and to serving, in seconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub starts: Vec<Measured>,
    /// Its replicas that were lost.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub losses: Option<Losses>,
    /// Since when its model has had nothing to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub silence: Option<SavedSilence>,
    /// The signals that have counted requests of its model, whose silence must not lower a number.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub named: Vec<String>,
}

/// What is known of a number that was in force before a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recall {
    /// The number alone.
    Number,
    /// What was recommended before it, too, up to a moment ago: its windows go on.
    History,
}

/// How much of a memory is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// All of it.
    Whole,
    /// Without the observations that what was learned came from: what was learned stays, and is
    /// corrected by new ones.
    Conclusions,
    /// Without what was learned: windows, turns, waits, and what keeps a number from falling.
    Windows,
}

// === impl Memory ===

impl Memory {
    /// This memory, told at this length.
    #[must_use]
    pub fn told(mut self, length: Length) -> Self {
        match length {
            Length::Whole => {}
            Length::Conclusions => self.learned.shorten(),
            Length::Windows => {
                let Self { history, waits, silence, named, .. } = self;
                self = Self { history, waits, silence, named, ..Self::default() };
            }
        }
        self
    }

    /// All that stays true during an absence: lessons of engines, loads and starts, each with its own
    /// age. Windows, waits and silences do not.
    #[must_use]
    pub fn knowledge(self) -> Self {
        let Self { learned, starts, losses, named, .. } = self;
        Self { learned, starts, losses, named, ..Self::default() }
    }
}

// === impl InForce ===

impl InForce {
    /// What the windows remember of a decision.
    ///
    /// After a restart nothing is lowered before the same replicas have been measured for a window.
    /// Where what was recommended before is remembered, that is no recommendation to stay, or each
    /// restart would begin the windows anew: it counts as the last one, if the load asks for no more.
    /// Where the number has moved just before, it would have waited for that without a restart too.
    pub(crate) fn recommended_by(&mut self, now: Timestamp, decision: &Decision) -> Replicas {
        let passed = self.history.latest().map(|latest| now.duration_since(latest).as_secs_f64());
        if passed.is_none_or(|passed| passed > PAUSE_MAX) {
            // Nobody has seen the time between.
            self.restored = self.restored.filter(|recall| *recall == Recall::Number);
        }
        let seconds = |at: Timestamp| now.duration_since(at).as_secs_f64();
        let moved = self.history.moved().is_some_and(|moved| seconds(moved.at) <= PAUSE_MAX);
        let by_restart = self.restored == Some(Recall::History) && decision.is_settling() && !moved;
        match self.history.last_recommended() {
            Some(last) if by_restart => decision.unconstrained().max(last),
            Some(_) | None => decision.recommended(),
        }
    }
}

// === impl Pipeline ===

impl Pipeline {
    /// What is remembered of a variant; `None` while it has no number in force.
    #[must_use]
    pub fn memory(&self, model: &ModelKey, variant: &VariantKey) -> Option<Memory> {
        let history = self.in_force.get(variant)?.history.save();
        let learned = &self.learned;
        let informed = Analyzer::ALL.iter().filter_map(|analyzer| {
            let at = learned.informed.get(&(model.clone(), *analyzer))?;
            Some((*analyzer, *at))
        });
        Some(Memory {
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

    /// What was learned of engines, for others of the same kind.
    pub fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.learned.analyzers.foresight.cards()
    }

    /// Goes on from what was remembered of a variant whose number [has been restored](Self::restore).
    /// What is known here already stays, and what cannot be is left out.
    pub fn recall(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variant: &VariantKey,
        memory: &Memory,
    ) {
        let Memory { history, waits, informed, learned: remembered, .. } = memory;
        let Memory { starts, losses, silence, named, .. } = memory;
        if let Some(in_force) = self.in_force.get_mut(variant)
            && in_force.restored == Some(Recall::Number)
            && let Some(mut history) = History::restore(history)
        {
            let latest = history.latest();
            let passed = latest.map(|latest| now.duration_since(latest).as_secs_f64());
            // Time that nobody saw must not let a window pass.
            if passed.is_some_and(|passed| (0.0..=PAUSE_MAX).contains(&passed)) {
                in_force.restored = Some(Recall::History);
            } else {
                history.begin_anew(now, in_force.desired);
            }
            in_force.history = history;
        }
        if let Some(Wait { wanted, since }) = *waits {
            let since = since.min(now);
            self.unsettled.entry(variant.clone()).or_insert(Wait { wanted, since });
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
