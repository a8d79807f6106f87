//! The changes of direction that a history remembers.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::direction::{PublishedReplicas, ScalingDirection};
use crate::decide::enforce::window::within;
use crate::units::{Replicas, Seconds};

/// The period in which direction changes are counted. A change counts only if it reverses a change
/// within this period.
pub(super) const HOUR: Seconds = Seconds::literal(3600);

/// The largest budget: one direction change per half minute, which is faster than any model starts.
pub(crate) const FLAP_BUDGET_MAX: u32 = 120;

/// Maximum number of remembered direction changes.
pub const TURNS_MAX: usize = FLAP_BUDGET_MAX as usize;

/// A change is small if it is less than one part in this many. A large fleet follows its load by
/// single replicas, which is no flapping.
const SMALL: u64 = 10;

/// Replicas from which on a change may be small. The changes of fewer are a large part of them.
const LARGE: u64 = 20;

/// The last published change, and the instants of direction changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DirectionTurns {
    last: Option<PublishedMove>,
    swing: Option<Swing>,
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

/// The changes in one direction, without the small ones against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swing {
    /// The instant of the last change in this direction.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// Their direction.
    pub direction: ScalingDirection,
    /// The desired replicas that are farthest in this direction.
    pub reached: Replicas,
}

// === impl Swing ===

impl Swing {
    /// Returns false if these replicas differ from the reached ones by a small change only.
    fn is_left_by(self, after: Replicas) -> bool {
        let [reached, left] = [self.reached, after].map(|it| u64::from(it.count()));
        reached < LARGE || SMALL * reached.abs_diff(left) >= reached
    }

    /// Takes in another change in the same direction.
    fn go_on(&mut self, now: Timestamp, after: Replicas) {
        self.at = now;
        self.reached = match self.direction {
            ScalingDirection::Up => self.reached.max(after),
            ScalingDirection::Down => self.reached.min(after),
        };
    }
}

// === impl DirectionTurns ===

impl DirectionTurns {
    /// Restores remembered direction changes, oldest first. Entries beyond [`TURNS_MAX`], or out of
    /// order, are ignored.
    #[must_use]
    pub fn new(
        last: Option<PublishedMove>,
        swing: Option<Swing>,
        reversals: impl IntoIterator<Item = Timestamp>,
    ) -> Self {
        let mut kept = VecDeque::new();
        for at in reversals.into_iter().take(TURNS_MAX) {
            if kept.back().is_none_or(|latest| *latest <= at) {
                kept.push_back(at);
            }
        }
        Self { last, swing, reversals: kept }
    }

    /// The last change, if any is remembered.
    #[must_use]
    pub const fn last(&self) -> Option<PublishedMove> {
        self.last
    }

    /// The present swing, if any is remembered.
    #[must_use]
    pub const fn swing(&self) -> Option<Swing> {
        self.swing
    }

    /// The instants of direction changes within the last hour, oldest first.
    pub fn reversals(&self) -> impl Iterator<Item = Timestamp> + '_ {
        self.reversals.iter().copied()
    }

    /// Records a change, and drops direction changes older than an hour. Instants in the future
    /// come from a clock that was set back, and are dropped. Small changes against a direction don't
    /// count.
    pub(super) fn note(&mut self, now: Timestamp, published: PublishedReplicas, flap_budget: u32) {
        self.last = self.last.filter(|last| last.at <= now);
        self.swing = self.swing.filter(|swing| within(now, swing.at, HOUR));
        self.reversals.retain(|at| within(now, *at, HOUR));

        let Some(direction) = published.direction() else { return };
        self.last = Some(PublishedMove { at: now, direction });
        match &mut self.swing {
            Some(swing) if swing.direction == direction => swing.go_on(now, published.after),
            Some(swing) if !swing.is_left_by(published.after) => {}
            before => {
                if before.is_some() {
                    self.reversals.push_back(now);
                }

                *before = Some(Swing { at: now, direction, reached: published.after });
            }
        }

        // If there are more than the budget, the newest determine when it refills.
        let budget = usize::try_from(flap_budget).unwrap_or(TURNS_MAX).min(TURNS_MAX);
        while self.reversals.len() > budget {
            self.reversals.pop_front();
        }
    }

    pub(super) fn within_hour(&self, now: Timestamp) -> impl Iterator<Item = Timestamp> + '_ {
        self.reversals().filter(move |at| within(now, *at, HOUR))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn note(turns: &mut DirectionTurns, seconds: i64, before: u32, after: u32, budget: u32) {
        let published = PublishedReplicas {
            before: Replicas::saturating(before),
            after: Replicas::saturating(after),
        };
        turns.note(at(seconds), published, budget);
    }

    fn known(turns: &DirectionTurns) -> Vec<Timestamp> {
        turns.reversals().collect()
    }

    #[test]
    fn a_turn_is_a_change_against_one_of_the_last_hour() {
        let mut turns = DirectionTurns::default();
        note(&mut turns, 0, 1, 2, 12);
        note(&mut turns, 10, 2, 3, 12);
        assert_eq!(known(&turns), [], "the same direction");
        note(&mut turns, 20, 3, 2, 12);
        note(&mut turns, 30, 2, 2, 12);
        note(&mut turns, 3619, 2, 3, 12);
        assert_eq!(known(&turns), [at(20), at(3619)]);
        note(&mut turns, 3620, 3, 3, 12);
        assert_eq!(known(&turns), [at(3619)], "an hour is over");
        assert_eq!(turns.within_hour(at(3620 + 3599)).count(), 0);
        note(&mut turns, 3619 + 3600, 3, 2, 12);
        assert_eq!(known(&turns), [], "what it reverses is too old");
        assert_eq!(turns.last().unwrap().at, at(7219));
    }

    #[test]
    fn a_large_fleet_that_follows_its_load_by_single_replicas_does_not_turn() {
        let mut turns = DirectionTurns::default();
        let path = [48, 50, 49, 50, 48, 51, 49, 47];
        for (second, pair) in (0..).zip(path.windows(2)) {
            note(&mut turns, second, pair[0], pair[1], 12);
        }
        assert_eq!(known(&turns), [], "a tenth of 51 is more than four");
        note(&mut turns, 10, 47, 46, 12);
        assert_eq!(known(&turns), [], "five in small steps are less than a tenth of 51");
        note(&mut turns, 11, 46, 45, 12);
        assert_eq!(known(&turns), [at(11)], "six are more");
        note(&mut turns, 12, 45, 49, 12);
        assert_eq!(known(&turns), [at(11)]);
        note(&mut turns, 13, 49, 50, 12);
        assert_eq!(known(&turns), [at(11), at(13)]);

        let mut small = DirectionTurns::default();
        for (second, pair) in (0..).zip([18, 19, 18, 19].windows(2)) {
            note(&mut small, second, pair[0], pair[1], 12);
        }
        assert_eq!(known(&small), [at(1), at(2)]);
    }

    #[test]
    fn the_newest_turns_of_a_budget_are_kept_and_those_of_the_future_dropped() {
        let mut turns = DirectionTurns::default();
        for second in 0..10 {
            note(
                &mut turns,
                second,
                1 + u32::from(second % 2 == 0),
                1 + u32::from(second % 2 == 1),
                3,
            );
        }
        assert_eq!(known(&turns), [at(7), at(8), at(9)]);
        note(&mut turns, 8, 2, 2, 3);
        assert_eq!(known(&turns), [at(7), at(8)], "the clock was set back");
        assert_eq!((turns.last(), turns.swing()), (None, None));

        let restored = DirectionTurns::new(None, None, [5, 3, 5, 9].map(at));
        assert_eq!(known(&restored), [at(5), at(5), at(9)], "out of order");
        let many = DirectionTurns::new(None, None, (0..1000).map(at));
        assert_eq!(known(&many).len(), TURNS_MAX);
    }
}
