//! How often a number may turn: the time that it stays after a change before it goes the other way,
//! and how many times an hour it may go the other way at all.
//!
//! Windows and step policies bound how fast a number moves in one direction. Neither bounds how often
//! it turns: a load that swings in the rhythm of the windows starts and stops the same replicas for
//! ever, and each start of a large model is minutes of an accelerator that serves nobody.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::{Direction, History, Published, Restraint, remaining, step, within};
use crate::decide::{Decision, Reason, Stage};
use crate::settings;
use crate::settings::hours;
use crate::units::{Replicas, Seconds};

/// The time in which turns are counted, and within which a change the other way is one.
const HOUR: Seconds = Seconds::literal(3600);

/// The largest budget: one turn each half minute, which is less than any model takes to start.
pub(crate) const FLAP_BUDGET_MAX: u32 = 120;

/// Turns that are remembered.
pub const TURNS_MAX: usize = FLAP_BUDGET_MAX as usize;

settings! {
    /// Time that a number stays before it changes direction.
    #[derive(Copy)]
    pub struct Dwell {
        /// Time from a scale-up to the next scale-down.
        after_up as "after_scale_up": Seconds, in Duration::ZERO..=hours(1);

        /// Time from a scale-down to the next scale-up.
        after_down as "after_scale_down": Seconds, in Duration::ZERO..=hours(1);
    }
}

/// In which direction a published number has moved, and when it turned.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Turns {
    last: Option<Moved>,
    reversals: VecDeque<Timestamp>,
}

/// A change of a published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Moved {
    /// When.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// Where to.
    pub direction: Direction,
}

// === impl Turns ===

impl Turns {
    /// The turns that somebody has remembered, the oldest first. Those beyond [`TURNS_MAX`], or
    /// not in order, are not taken.
    #[must_use]
    pub fn new(last: Option<Moved>, reversals: impl IntoIterator<Item = Timestamp>) -> Self {
        let mut kept = VecDeque::new();
        for at in reversals.into_iter().take(TURNS_MAX) {
            if kept.back().is_none_or(|latest| *latest <= at) {
                kept.push_back(at);
            }
        }
        Self { last, reversals: kept }
    }

    /// The last change, if any is remembered.
    #[must_use]
    pub const fn last(&self) -> Option<Moved> {
        self.last
    }

    /// When the number has turned within the last hour, the oldest first.
    pub fn reversals(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.reversals.iter().copied()
    }

    /// Notes a change, and forgets turns of more than an hour ago. Instants that are still to come
    /// are of a clock that has been set back, and mean nothing.
    pub(super) fn note(&mut self, now: Timestamp, published: Published, flap_budget: u32) {
        self.last = self.last.filter(|last| last.at <= now);
        self.reversals.retain(|at| within(now, *at, HOUR));
        let Some(direction) = published.direction() else { return };
        let turns =
            self.last.is_some_and(|last| last.direction != direction && within(now, last.at, HOUR));
        if turns {
            self.reversals.push_back(now);
        }
        // Of more than the budget, the newest say when it refills.
        let budget = usize::try_from(flap_budget).unwrap_or(TURNS_MAX).min(TURNS_MAX);
        while self.reversals.len() > budget {
            self.reversals.pop_front();
        }
        self.last = Some(Moved { at: now, direction });
    }

    fn within_hour(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        self.reversals().filter(move |at| within(now, *at, HOUR))
    }
}

// === the rules ===

/// Keeps a number that has just moved one way from moving the other.
pub fn dwell(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &History,
    dwell: Dwell,
) -> Decision {
    let wanted = Published { before: in_force, after: decision.desired() };
    let (Some(direction), Some(last)) = (wanted.direction(), history.turns.last) else {
        return decision;
    };
    let time = match last.direction {
        Direction::Up => dwell.after_up,
        Direction::Down => dwell.after_down,
    };
    if last.direction == direction || last.at > now {
        return decision;
    }
    match remaining(now, last.at, time) {
        Some(remaining) => {
            let why = Restraint::Dwelling { direction, remaining };
            step(decision, Stage::Dwell, in_force, Reason::Restrained(why))
        }
        None => decision,
    }
}

/// Keeps a number that has turned too often in an hour from being lowered. It may always be raised.
pub fn spend_turns(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &History,
    flap_budget: u32,
) -> Decision {
    if decision.desired() >= in_force {
        return decision;
    }
    let budget = usize::try_from(flap_budget).unwrap_or(usize::MAX);
    let turns: Vec<Timestamp> = history.turns.within_hour(now).collect();
    // The turn whose end of the hour leaves one fewer than the budget.
    let Some(frees) = turns.len().checked_sub(budget).and_then(|at| turns.get(at)) else {
        return decision;
    };
    let refills_in = remaining(now, *frees, HOUR).unwrap_or_default();
    let turned = u32::try_from(turns.len()).unwrap_or(u32::MAX);
    let why = Restraint::FlapBudgetSpent { turned, refills_in };
    step(decision, Stage::FlapBudget, in_force, Reason::Restrained(why))
}
