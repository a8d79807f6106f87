//! What a history says to whoever goes on with it: a daemon that was restarted, or another one.
//!
//! All instants are the original ones, so that a window is over when it would have been. What no
//! window can see any more is left out: of the older recommendations only those count that are above,
//! or below, all that came after them.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::{Burst, Change, History, Moved, Recommendation, Turns};
use crate::units::Replicas;

/// Recommendations that are written as they are, the newest: a minute of ticks each second, of
/// which the mean counts where a burst is looked for.
const NEWEST: usize = 60;

/// Recommendations that are written at most. Those beyond it become one, the largest.
pub const SPANS_MAX: usize = 120;

/// Changes that are written at most, the newest.
pub const CHANGES_MAX: usize = 120;

/// What a history says.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedHistory {
    /// What was recommended, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub recommended: Vec<Recommendation>,
    /// How the published number has changed, the oldest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// The last change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub moved: Option<Moved>,
    /// When the number has turned, the oldest first.
    #[serde(with = "crate::units::instants", skip_serializing_if = "Vec::is_empty")]
    pub turned: Vec<Timestamp>,
    /// The last burst.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub burst: Option<Burst>,
    /// When it was written last.
    #[serde(with = "crate::units::instants", skip_serializing_if = "Option::is_none")]
    pub latest: Option<Timestamp>,
}

impl History {
    /// What it says.
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

    /// The history that says this; `None` where it cannot be one.
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
            turns: Turns::new(*moved, turned.iter().copied()),
            burst: *burst,
            latest: *latest,
        })
    }

    /// When it was written last.
    #[must_use]
    pub const fn latest(&self) -> Option<Timestamp> {
        self.latest
    }

    /// The last change of the published number.
    #[must_use]
    pub const fn moved(&self) -> Option<Moved> {
        self.turns.last()
    }

    /// What was recommended last, if a window still looks at it.
    #[must_use]
    pub fn last_recommended(&self) -> Option<Replicas> {
        self.recommendations.back().map(|latest| latest.replicas)
    }
}

/// The spans that a window which ends now or later can still see the extremes of.
fn visible(spans: &VecDeque<Recommendation>) -> Vec<Recommendation> {
    let mut kept: Vec<Recommendation> = Vec::new();
    let (mut most, mut least) = (Replicas::ZERO, Replicas::LIMIT);
    for (age, span) in spans.iter().rev().enumerate() {
        if age < NEWEST || span.replicas > most || span.replicas < least {
            kept.push(*span);
        }
        (most, least) = (most.max(span.replicas), least.min(span.replicas));
    }
    if kept.len() > SPANS_MAX {
        // The largest of those beyond: for longer than it was asked for, nothing is lowered.
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
