//! The saved form of a history, for a restarted daemon or another replica that takes over.
//!
//! All instants are the original ones, so a window ends when it would have ended without the
//! restart. Entries that no window can see are left out. Of the older recommendations, only those
//! count that are above, or below, all later ones.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::history::{Burst, PublishedChange, Recommendation, ScalingHistory};
use crate::decide::enforce::turns::{DirectionTurns, PublishedMove, Swing};
use crate::units::Replicas;

/// The newest recommendations, which are saved unchanged. They cover a minute at a tick per second,
/// and burst detection uses their mean.
const NEWEST: usize = 60;

/// Maximum number of saved recommendations. Older ones are merged into one, with their largest
/// value.
pub const SPANS_MAX: usize = 120;

/// Maximum number of saved changes; the newest are kept.
pub const CHANGES_MAX: usize = 120;

/// The saved form of a [`ScalingHistory`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedHistory {
    /// The recommendations, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recommended: Vec<Recommendation>,
    /// The changes in the published desired replicas, oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<PublishedChange>,
    /// The last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<PublishedMove>,
    /// The present swing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub swing: Option<Swing>,
    /// The instants of direction changes, oldest first.
    #[serde(with = "crate::units::instants", skip_serializing_if = "Vec::is_empty")]
    pub turned: Vec<Timestamp>,
    /// The last burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// The last time that the history was written.
    #[serde(with = "crate::units::instants", skip_serializing_if = "Option::is_none")]
    pub latest: Option<Timestamp>,
}

impl ScalingHistory {
    /// Returns the saved form.
    #[must_use]
    pub fn save(&self) -> SavedHistory {
        let Self { recommendations, changes, turns, burst, latest } = self;
        let skipped = changes.len().saturating_sub(CHANGES_MAX);

        SavedHistory {
            recommended: visible(recommendations),
            changes: changes.iter().skip(skipped).copied().collect(),
            moved: turns.last(),
            swing: turns.swing(),
            turned: turns.reversals().collect(),
            burst: *burst,
            latest: *latest,
        }
    }

    /// Restores a history from its saved form; `None` if the saved form is invalid.
    #[must_use]
    pub fn restore(saved: &SavedHistory) -> Option<Self> {
        let SavedHistory { recommended, changes, moved, swing, turned, burst, latest } = saved;
        let sound = recommended.len() <= SPANS_MAX
            && changes.len() <= CHANGES_MAX
            && recommended.iter().all(|span| span.first <= span.last)
            && recommended.is_sorted_by(|a, b| a.last <= b.first)
            && changes.is_sorted_by(|a, b| a.at <= b.at)
            && burst.is_none_or(|burst| burst.mean.is_finite() && burst.mean >= 0.0);

        sound.then(|| Self {
            recommendations: recommended.iter().copied().collect(),
            changes: changes.iter().copied().collect(),
            turns: DirectionTurns::new(*moved, *swing, turned.iter().copied()),
            burst: *burst,
            latest: *latest,
        })
    }

    /// The last time that the history was written.
    #[must_use]
    pub const fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    /// The last change in the published desired replicas.
    #[must_use]
    pub const fn moved(&self) -> Option<PublishedMove> {
        self.turns.last()
    }

    /// The last recommendation, if a window still reads it.
    #[must_use]
    pub fn last_recommended(&self) -> Option<Replicas> {
        self.recommendations.back().map(|latest| latest.replicas)
    }
}

/// Selects the spans that can be an extreme in a window that ends now or later.
fn visible(spans: &VecDeque<Recommendation>) -> Vec<Recommendation> {
    let mut kept: Vec<Recommendation> = Vec::new();
    let mut most = Replicas::ZERO;
    let mut least = Replicas::LIMIT;

    for (age, span) in spans.iter().rev().enumerate() {
        if age < NEWEST || span.replicas > most || span.replicas < least {
            kept.push(*span);
        }
        most = most.max(span.replicas);
        least = least.min(span.replicas);
    }

    if kept.len() > SPANS_MAX {
        // Takes the largest of the older spans, so scale-down may be blocked for longer than
        // necessary.
        let beyond = kept.split_off(SPANS_MAX - 1);
        let ends = beyond.last().zip(beyond.first());
        let replicas = beyond.iter().map(|span| span.replicas).max();
        kept.extend(ends.zip(replicas).map(|((first, last), replicas)| Recommendation {
            first: first.first,
            last: last.last,
            replicas,
        }));
    }

    kept.reverse();
    kept
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::decide::enforce::direction::ScalingDirection;
    use crate::units::Seconds;

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn span(first: i64, last: i64, replicas: u32) -> Recommendation {
        Recommendation {
            first: at(first),
            last: at(last),
            replicas: Replicas::saturating(replicas),
        }
    }

    /// A recommendation a second.
    fn history(replicas: &[u32]) -> ScalingHistory {
        let spans = (0..).zip(replicas).map(|(second, replicas)| span(second, second, *replicas));
        ScalingHistory { recommendations: spans.collect(), ..ScalingHistory::default() }
    }

    /// The smallest and the largest recommendation of a window that ends with the last one.
    fn extremes(history: &ScalingHistory, end: i64, window: i64) -> Option<(Replicas, Replicas)> {
        let window = Seconds::new(window as f64).unwrap();
        let within: Vec<Replicas> = history.recommended_within(at(end), window).collect();
        within.iter().min().copied().zip(within.iter().max().copied())
    }

    proptest! {
        #[test]
        fn what_is_saved_has_the_same_extremes_in_every_window(
            replicas in proptest::collection::vec(0_u32..40, 61..200),
        ) {
            let whole = history(&replicas);
            let saved = whole.save();
            prop_assert!(saved.recommended.len() <= NEWEST + 40, "each older one is another extreme");
            let restored = ScalingHistory::restore(&saved).unwrap();
            let end = i64::try_from(replicas.len()).unwrap() - 1;
            for window in 1..=end + 1 {
                prop_assert_eq!(extremes(&restored, end, window), extremes(&whole, end, window));
            }
            let newest = whole.recommendations.iter().rev().take(NEWEST);
            prop_assert!(newest.eq(restored.recommendations.iter().rev().take(NEWEST)));
        }
    }

    #[test]
    fn too_many_extremes_are_merged_into_one_that_never_lowers_the_largest() {
        // Every older one is larger than all later ones.
        let replicas: Vec<u32> = (0..300).map(|second| 400 - second).collect();
        let whole = history(&replicas);
        let saved = whole.save();
        assert_eq!(saved.recommended.len(), SPANS_MAX);
        assert_eq!(saved.recommended[0], span(0, 180, 400));
        assert_eq!(saved.recommended[1], span(181, 181, 219));
        let restored = ScalingHistory::restore(&saved).unwrap();
        for window in 1..=300 {
            let [(_, whole), (_, restored)] =
                [&whole, &restored].map(|it| extremes(it, 299, window).unwrap());
            assert!(restored >= whole, "{window}");
        }
        let fits = history(&replicas[..SPANS_MAX]);
        assert_eq!(fits.save().recommended.len(), SPANS_MAX);
        assert_eq!(fits.save().recommended[0], span(0, 0, 400), "nothing is merged");
    }

    #[test]
    fn the_newest_changes_are_saved() {
        let change = |second| PublishedChange { at: at(second), before: Replicas::ONE };
        let changes = (0..200).map(change).collect();
        let saved = ScalingHistory { changes, ..ScalingHistory::default() }.save();
        assert_eq!(saved.changes.len(), CHANGES_MAX);
        assert_eq!(saved.changes[0], change(80));
    }

    #[test]
    fn what_is_saved_is_restored_and_what_cannot_be_is_not() {
        let change = |second| PublishedChange { at: at(second), before: Replicas::ONE };
        let sound = SavedHistory {
            recommended: vec![span(0, 5, 1), span(5, 5, 2), span(6, 9, 3)],
            changes: vec![change(5), change(5), change(6)],
            moved: Some(PublishedMove { at: at(6), direction: ScalingDirection::Up }),
            swing: Some(Swing {
                at: at(5),
                direction: ScalingDirection::Down,
                reached: Replicas::ONE,
            }),
            turned: vec![at(1), at(5)],
            burst: Some(Burst { at: at(6), asked: Replicas::ONE, mean: 0.0 }),
            latest: Some(at(9)),
        };
        let restored = ScalingHistory::restore(&sound).unwrap();
        assert_eq!(restored.save(), sound);
        assert_eq!(restored.latest(), Some(at(9)));
        assert_eq!(restored.moved(), sound.moved);
        assert_eq!(restored.last_recommended(), Some(Replicas::saturating(3)));
        assert_eq!(ScalingHistory::default().last_recommended(), None);

        let many = (0..=i64::try_from(SPANS_MAX).unwrap()).map(|second| span(second, second, 1));
        let changes = (0..=i64::try_from(CHANGES_MAX).unwrap()).map(change);
        let burst = |mean| Some(Burst { at: at(6), asked: Replicas::ONE, mean });
        for unsound in [
            SavedHistory { recommended: many.collect(), ..sound.clone() },
            SavedHistory { recommended: vec![span(5, 4, 1)], ..sound.clone() },
            SavedHistory { recommended: vec![span(0, 5, 1), span(4, 9, 2)], ..sound.clone() },
            SavedHistory { changes: changes.collect(), ..sound.clone() },
            SavedHistory { changes: vec![change(6), change(5)], ..sound.clone() },
            SavedHistory { burst: burst(-1.0), ..sound.clone() },
            SavedHistory { burst: burst(f64::NAN), ..sound.clone() },
        ] {
            assert!(ScalingHistory::restore(&unsound).is_none(), "{unsound:?}");
        }
    }
}
