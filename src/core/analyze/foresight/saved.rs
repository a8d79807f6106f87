//! What foresight knows of one variant and of its model, said to whoever goes on with it.
//!
//! Single seconds are not part of it: what comes after a restart is counted anew, and the rates of
//! strides before it are enough to go on from. A short time that nobody saw is bridged by
//! [`Arrivals`](crate::analyze::foresight::arrivals::Arrivals).

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::arrivals::SavedArrivals;
use crate::analyze::foresight::budget::Budget;
use crate::analyze::foresight::drift::Mixes;
use crate::analyze::foresight::lengths::Lengths;
pub use crate::analyze::foresight::lengths::{LengthMoments, Work};
use crate::analyze::foresight::routing::RouterWeights;
pub use crate::analyze::foresight::schedule::SavedWeek;
pub use crate::analyze::foresight::seen::SavedSeen;
use crate::analyze::foresight::seen::Seen;
use crate::analyze::foresight::{Demand, Foresight, Held};
use crate::fleet::{ModelKey, Role, VariantKey};

/// Needs that are written at most. Ticks come each second, and a need that falls all the time leaves
/// one each; those that are left out count as the larger one before them.
pub const NEEDS_MAX: usize = 24;

/// What foresight knows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedForesight {
    /// Up to when it has learned.
    #[serde(with = "crate::units::instants")]
    pub learned_at: Timestamp,
    /// What is known of the variant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<SavedSeen>,
    /// What is asked of each role of its model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub demands: Vec<SavedDemand>,
}

/// What is asked of one role of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedDemand {
    /// Which role.
    pub role: Role,
    /// What has arrived.
    pub arrivals: SavedArrivals,
    /// Prompt tokens, output tokens and finished requests, the recent ones first.
    pub lengths: [f64; 3],
    /// Needs that no later one reached, in order of time.
    #[serde(with = "crate::units::instants", default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<(Timestamp, f64)>,
    /// The share of the need that is asked for in addition for the error budget.
    pub raised: f64,
    /// What came at which time of the week; `None` where nobody wants to know.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub week: Option<SavedWeek>,
}

impl SavedForesight {
    /// Whether all of it can be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { learned_at: _, seen, demands } = self;
        seen.as_ref().is_none_or(SavedSeen::is_sound) && demands.iter().all(SavedDemand::is_sound)
    }

    /// The same with the latest rates alone, which are those that the forecast leans on.
    pub fn shorten(&mut self) {
        self.demands.iter_mut().for_each(|demand| demand.arrivals.shorten());
    }
}

impl SavedDemand {
    fn is_sound(&self) -> bool {
        let Self { role: _, arrivals, lengths, needs, raised, week } = self;
        let fall = needs.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 >= pair[1].1);
        arrivals.is_sound()
            && are_amounts(lengths)
            && fall
            && needs.len() <= NEEDS_MAX
            && needs.iter().all(|(_, need)| are_amounts(&[*need]))
            && are_amounts(&[*raised])
            && week.as_ref().is_none_or(SavedWeek::is_sound)
    }

    fn of(role: Role, demand: &Demand) -> Option<Self> {
        // What bridges and what queues is over within minutes.
        let Demand { arrivals, hold, lengths, budget, week, .. } = demand;
        let (arrivals, lengths) = (arrivals.save()?, lengths.numbers());
        let (needs, raised, week) = (hold.save(), budget.raised(), week.save());
        let saved = Self { role, arrivals, lengths, needs, raised, week };
        saved.is_sound().then_some(saved)
    }
}

/// Whether these are numbers of something.
pub(crate) fn are_amounts(numbers: &[f64]) -> bool {
    numbers.iter().all(|number| number.is_finite() && *number >= 0.0)
}

// === impl Held ===

impl Held {
    fn save(&self) -> Vec<(Timestamp, f64)> {
        let needs: Vec<(Timestamp, f64)> = self
            .needs
            .iter()
            .filter_map(|(at, need)| {
                Some((Timestamp::from_millisecond(at.as_millisecond()).ok()?, *need))
            })
            .collect();
        if needs.is_empty() {
            return needs;
        }
        // Of some that are one after another, the largest, for as long as the last.
        needs
            .chunks(needs.len().div_ceil(NEEDS_MAX))
            .filter_map(|some| Some((some.last()?.0, some.first()?.1)))
            .collect()
    }
}

// === impl Foresight ===

impl Foresight {
    /// What is known of one variant and its model; `None` while nothing is.
    #[must_use]
    pub fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedForesight> {
        let learned_at = *self.learned.get(model)?;
        Some(SavedForesight {
            learned_at: Timestamp::from_millisecond(learned_at.as_millisecond()).ok()?,
            seen: self.variants.get(variant).and_then(Seen::save),
            demands: [Role::Both, Role::Prefill, Role::Decode]
                .into_iter()
                .filter_map(|role| SavedDemand::of(role, self.demands.get(&(model.clone(), role))?))
                .collect(),
        })
    }

    /// Goes on from what was known. What is known here already stays, and what cannot be is left
    /// out.
    pub fn recall(&mut self, model: &ModelKey, variant: &VariantKey, saved: &SavedForesight) {
        if !saved.is_sound() {
            return;
        }
        let SavedForesight { learned_at, seen, demands } = saved;
        self.learned.entry(model.clone()).or_insert(*learned_at);
        if let Some(seen) = seen {
            let known = self.variants.entry(variant.clone()).or_insert_with(|| seen.restore());
            // What was measured of the variant itself says more than a card of others like it.
            if known.card().is_some() {
                *known = seen.restore();
            }
        }
        for SavedDemand { role, arrivals, lengths, needs, raised, week } in demands {
            let demand = || Demand {
                arrivals: arrivals.restore(),
                upstream: None,
                hold: Held { needs: needs.iter().copied().collect::<VecDeque<_>>() },
                // What waits is seen again at once.
                queue: Held::default(),
                bridge: Held::default(),
                lengths: Lengths::of(*lengths),
                mixes: Mixes::default(),
                budget: Budget::of(*raised, *learned_at),
                week: week.as_ref().map(SavedWeek::restore).unwrap_or_default(),
                router: RouterWeights::default(),
            };
            self.demands.entry((model.clone(), *role)).or_insert_with(demand);
        }
    }
}
