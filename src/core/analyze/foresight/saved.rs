//! The saved state of foresight for one variant and its model, from which the next daemon process
//! continues.
//!
//! It has no single seconds. They are counted again after a restart, and the rates of earlier
//! strides are enough to continue from. [`ArrivalHistory`] bridges a short gap.
//!
//! [`ArrivalHistory`]: crate::analyze::foresight::arrivals::ArrivalHistory

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::capacity::are_amounts;
use crate::analyze::experience::continue_from;
use crate::analyze::foresight::arrivals::saved::SavedArrivals;
use crate::analyze::foresight::budget::BudgetAddition;
use crate::analyze::foresight::held::HoldWindow;
use crate::analyze::foresight::lengths::RequestLengths;
pub use crate::analyze::foresight::lengths::{LengthMoments, RequestWork};
use crate::analyze::foresight::role_demand::RoleDemand;
pub use crate::analyze::foresight::schedule::SavedWeek;
pub use crate::analyze::foresight::seen::SavedVariantModel;
use crate::analyze::foresight::seen::VariantModel;
use crate::analyze::foresight::state::Foresight;
use crate::fleet::{ModelKey, Role, VariantKey};

/// The most needs that are saved. Ticks come each second, and a need that falls all the time adds
/// one per tick. An omitted need counts as the larger one before it.
pub const NEEDS_MAX: usize = 24;

/// The saved state of foresight for one variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedForesight {
    /// The instant up to which it has learned.
    #[serde(with = "crate::units::instants")]
    pub learned_at: Timestamp,
    /// The knowledge about the variant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub seen: Option<SavedVariantModel>,
    /// The demand for each role of its model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub demands: Vec<SavedDemand>,
}

/// The demand for one role of a model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedDemand {
    /// The role.
    pub role: Role,
    /// The past arrivals.
    pub arrivals: SavedArrivals,
    /// Prompt tokens, output tokens and finished requests, with recent ones weighted most.
    pub lengths: [f64; 3],
    /// Needs that no later need reached, in order of time.
    #[serde(with = "crate::units::instants", default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<(Timestamp, f64)>,
    /// The addition for the error budget, as a share of the need.
    pub raised: f64,
    /// The curve of the week; `None` if the schedule is off.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub week: Option<SavedWeek>,
}

impl SavedForesight {
    /// Returns true if all values are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { learned_at: _, seen, demands } = self;
        seen.as_ref().is_none_or(SavedVariantModel::is_sound)
            && demands.iter().all(SavedDemand::is_sound)
    }

    /// Drops all but the latest rates, which the forecast depends on most.
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

    fn of(role: Role, demand: &RoleDemand) -> Option<Self> {
        // The bridge and the backlog are over within minutes, and not saved.
        let RoleDemand { arrivals, hold, lengths, budget, week, .. } = demand;
        let saved = Self {
            role,
            arrivals: arrivals.save()?,
            lengths: lengths.numbers(),
            needs: hold.save(),
            raised: budget.raised(),
            week: week.save(),
        };

        saved.is_sound().then_some(saved)
    }
}

// === impl RoleDemand ===

impl RoleDemand {
    /// Continues from the saved demand, once and if more of it is known. The needs, the bridge and
    /// the backlog of the last ticks stay. Returns true if it continues.
    fn recall(&mut self, saved: &SavedDemand, learned_at: Timestamp) -> bool {
        let SavedDemand { role: _, arrivals, lengths, needs, raised, week } = saved;
        if self.restored || !self.arrivals.is_shorter_than(arrivals) {
            return false;
        }

        self.restored = true;
        if let Some(week) = week.as_ref().filter(|week| self.week.begins_after(week)) {
            self.week = week.restore();
        }

        self.arrivals.precede(arrivals);
        self.hold.precede(needs);

        let before = RequestLengths::of(*lengths);
        if before.count() > self.lengths.count() {
            self.lengths = before;
        }
        if *raised > self.budget.raised() {
            self.budget = BudgetAddition::of(*raised, learned_at);
        }
        true
    }
}

// === impl HoldWindow ===

impl HoldWindow {
    /// Takes in earlier needs, as far as no later need reached them.
    fn precede(&mut self, earlier: &[(Timestamp, f64)]) {
        let later = std::mem::take(&mut self.needs);
        let first = later.front().copied();
        let unreached = earlier.iter().copied().filter(|(at, need)| {
            first.is_none_or(|(first_at, first_need)| *at < first_at && *need > first_need)
        });
        self.needs = unreached.chain(later).collect();
    }

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

        // Each group of consecutive needs is saved as its largest one, with the instant of its last
        // one.
        needs
            .chunks(needs.len().div_ceil(NEEDS_MAX))
            .filter_map(|some| Some((some.last()?.0, some.first()?.1)))
            .collect()
    }
}

// === impl Foresight ===

impl Foresight {
    /// The state of one variant and its model; `None` while nothing was learned about the model.
    #[must_use]
    pub fn save(&self, model: &ModelKey, variant: &VariantKey) -> Option<SavedForesight> {
        let learned_at = *self.learned.get(model)?;

        Some(SavedForesight {
            learned_at: Timestamp::from_millisecond(learned_at.as_millisecond()).ok()?,
            seen: self.variants.get(variant).and_then(VariantModel::save),
            demands: [Role::Both, Role::Prefill, Role::Decode]
                .into_iter()
                .filter_map(|role| SavedDemand::of(role, self.demands.get(&(model.clone(), role))?))
                .collect(),
        })
    }

    /// Continues from a saved state. Existing state stays unless it is shorter experience. An
    /// invalid state is ignored.
    pub fn recall(&mut self, model: &ModelKey, variant: &VariantKey, saved: &SavedForesight) {
        if !saved.is_sound() {
            return;
        }

        let SavedForesight { learned_at, seen, demands } = saved;
        let mut known_at = self.learned.get(model).copied().unwrap_or(*learned_at);
        if let Some(seen) = seen {
            continue_from(&mut self.variants, variant, seen.restore());
        }

        for saved in demands {
            let demand = self.demands.entry((model.clone(), saved.role)).or_default();
            if demand.recall(saved, *learned_at) {
                // The next lesson ages everything by the whole time since.
                known_at = known_at.min(*learned_at);
            }
        }
        self.learned.insert(model.clone(), known_at);
    }
}
