//! Limits on changes of direction: the dwell time after a change, and the flap budget per hour.
//!
//! Windows and step policies bound the speed of a change in one direction. Neither limits how often
//! the direction changes. A load that swings at the rhythm of the windows would start and stop the
//! same replicas forever. Each start of a large model occupies an accelerator for minutes without
//! serving a request.

use std::collections::VecDeque;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::{
    PublishedReplicas, Restraint, ScalingDirection, ScalingHistory, remaining, step, within,
};
use crate::decide::{Decision, Reason, Stage};
use crate::settings;
use crate::settings::hours;
use crate::units::{Replicas, Seconds};

/// The period in which direction changes are counted. A change counts only if it reverses a change
/// within this period.
const HOUR: Seconds = Seconds::literal(3600);

/// The largest budget: one direction change per half minute, which is faster than any model starts.
pub(crate) const FLAP_BUDGET_MAX: u32 = 120;

/// Maximum number of remembered direction changes.
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

/// The direction of the last published change, and the instants of direction changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionTurns {
    last: Option<PublishedMove>,
    reversals: VecDeque<Timestamp>,
}

/// A change in the published desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedMove {
    /// The instant of the change.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The direction of the change.
    pub direction: ScalingDirection,
}

// === impl DirectionTurns ===

impl DirectionTurns {
    /// Restores remembered direction changes, oldest first. Entries beyond [`TURNS_MAX`], or out of
    /// order, are ignored.
    #[must_use]
    pub fn new(
        last: Option<PublishedMove>,
        reversals: impl IntoIterator<Item = Timestamp>,
    ) -> Self {
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
    pub const fn last(&self) -> Option<PublishedMove> {
        self.last
    }

    /// The instants of direction changes within the last hour, oldest first.
    pub fn reversals(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.reversals.iter().copied()
    }

    /// Records a change, and drops direction changes older than an hour. Instants in the future
    /// come from a clock that was set back, and are dropped.
    pub(super) fn note(&mut self, now: Timestamp, published: PublishedReplicas, flap_budget: u32) {
        self.last = self.last.filter(|last| last.at <= now);
        self.reversals.retain(|at| within(now, *at, HOUR));

        let Some(direction) = published.direction() else { return };
        let turns =
            self.last.is_some_and(|last| last.direction != direction && within(now, last.at, HOUR));
        if turns {
            self.reversals.push_back(now);
        }

        // If there are more than the budget, the newest determine when it refills.
        let budget = usize::try_from(flap_budget).unwrap_or(TURNS_MAX).min(TURNS_MAX);
        while self.reversals.len() > budget {
            self.reversals.pop_front();
        }

        self.last = Some(PublishedMove { at: now, direction });
    }

    fn within_hour(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        self.reversals().filter(move |at| within(now, *at, HOUR))
    }
}

// === the rules ===

/// Blocks a change that would reverse a recent change.
pub fn dwell(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    dwell: Dwell,
) -> Decision {
    let wanted = PublishedReplicas { before: in_force, after: decision.desired() };
    let (Some(direction), Some(last)) = (wanted.direction(), history.turns.last) else {
        return decision;
    };

    let time = match last.direction {
        ScalingDirection::Up => dwell.after_up,
        ScalingDirection::Down => dwell.after_down,
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

/// Blocks scale-down while the flap budget of the last hour is spent. Scale-up is always allowed.
pub fn spend_turns(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    flap_budget: u32,
) -> Decision {
    if decision.desired() >= in_force {
        return decision;
    }

    let budget = usize::try_from(flap_budget).unwrap_or(usize::MAX);
    let turns: Vec<Timestamp> = history.turns.within_hour(now).collect();
    // The direction change whose expiry leaves one fewer than the budget.
    let Some(frees) = turns.len().checked_sub(budget).and_then(|at| turns.get(at)) else {
        return decision;
    };

    let refills_in = remaining(now, *frees, HOUR).unwrap_or_default();
    let turned = u32::try_from(turns.len()).unwrap_or(u32::MAX);
    let why = Restraint::FlapBudgetSpent { turned, refills_in };
    step(decision, Stage::FlapBudget, in_force, Reason::Restrained(why))
}
