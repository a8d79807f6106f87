//! The saved form of a history, for a restarted daemon or another replica that takes over.
//!
//! All instants are the original ones, so a window ends when it would have ended without the
//! restart. Entries that no window can see are left out. Of the older recommendations, only those
//! count that are above, or below, all later ones.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::history::{Burst, PublishedChange, Recommendation, ScalingHistory};
use crate::decide::enforce::turns::{DirectionTurns, PublishedMove};
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
            turned: turns.reversals().collect(),
            burst: *burst,
            latest: *latest,
        }
    }

    /// Restores a history from its saved form; `None` if the saved form is invalid.
    #[must_use]
    pub fn restore(saved: &SavedHistory) -> Option<Self> {
        let SavedHistory { recommended, changes, moved, turned, burst, latest } = saved;
        let sound = recommended.len() <= SPANS_MAX
            && changes.len() <= CHANGES_MAX
            && recommended.iter().all(|span| span.first <= span.last)
            && recommended.is_sorted_by(|a, b| a.last <= b.first)
            && changes.is_sorted_by(|a, b| a.at <= b.at)
            && burst.is_none_or(|burst| burst.mean.is_finite() && burst.mean >= 0.0);

        sound.then(|| Self {
            recommendations: recommended.iter().copied().collect(),
            changes: changes.iter().copied().collect(),
            turns: DirectionTurns::new(*moved, turned.iter().copied()),
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
