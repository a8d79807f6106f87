//! The history of a variant's desired replicas, which the rules read.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::decide::enforce::behavior::{Behavior, Panic};
use crate::decide::enforce::direction::PublishedReplicas;
use crate::decide::enforce::turns::DirectionTurns;
use crate::decide::enforce::window::within;
use crate::units::{Replicas, Seconds};

/// Maximum number of recommendations, and of changes, in a history. With a tick per second it
/// covers the longest window that an HPA allows (3600 s). With faster ticks, the oldest entries are
/// dropped first.
const HISTORY_MAX: usize = 4096;

/// The recommendations for a variant, and the changes of its published desired replicas.
#[derive(Clone, Debug, Default)]
pub struct ScalingHistory {
    pub(super) recommendations: VecDeque<Recommendation>,
    pub(super) changes: VecDeque<PublishedChange>,
    pub(super) turns: DirectionTurns,
    pub(super) burst: Option<Burst>,
    /// The last time that the history was written.
    pub(super) latest: Option<Timestamp>,
}

/// A value that was recommended at each tick between two instants, both included. A recommendation
/// usually equals the previous one, so a window of five minutes rarely needs 300 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The first time that it was recommended.
    #[serde(with = "crate::units::instants")]
    pub first: Timestamp,
    /// The last time that it was recommended.
    #[serde(with = "crate::units::instants")]
    pub last: Timestamp,
    /// The recommended replicas.
    pub replicas: Replicas,
}

/// A change in the published desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedChange {
    /// The instant of the change.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The desired replicas before the change.
    pub before: Replicas,
}

/// A detected burst of demand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// The last time that it was detected.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The largest recommendation in the short window.
    pub asked: Replicas,
    /// The mean recommendation in the long window.
    pub mean: f64,
}

// === impl ScalingHistory ===

impl ScalingHistory {
    /// Creates a history that starts at `now`, as if the desired replicas in effect had just been
    /// recommended. Nothing scales down before the first window is complete.
    #[must_use]
    pub fn starting(now: Timestamp, in_force: Replicas) -> Self {
        let recommended = Recommendation { first: now, last: now, replicas: in_force };
        let latest = Some(now);
        Self { recommendations: VecDeque::from([recommended]), latest, ..Self::default() }
    }

    /// Restarts with the desired replicas in effect, after a gap for which no recommendation is
    /// known. Direction changes are kept.
    pub fn begin_anew(&mut self, now: Timestamp, in_force: Replicas) {
        let turns = std::mem::take(&mut self.turns);
        *self = Self { turns, ..Self::starting(now, in_force) };
    }

    /// Adds this tick's recommendation and the values published for it. Drops entries that no rule
    /// of `behavior` reads.
    pub fn record(
        &mut self,
        now: Timestamp,
        recommended: Replicas,
        published: PublishedReplicas,
        behavior: &Behavior,
    ) {
        if self.recommendations.back().is_some_and(|latest| latest.last > now) {
            // The clock went back, so the ages are unknown; restart with the value in effect.
            self.begin_anew(now, published.before);
        }

        if let Some(panic) = behavior.panic {
            self.burst = self.burst(now, recommended, panic);
        }

        match self.recommendations.back_mut() {
            Some(latest) if latest.replicas == recommended => latest.last = now,
            Some(_) | None => self.recommendations.push_back(Recommendation {
                first: now,
                last: now,
                replicas: recommended,
            }),
        }

        if published.before != published.after {
            self.changes.push_back(PublishedChange { at: now, before: published.before });
        }

        self.turns.note(now, published, behavior.flap_budget);
        self.latest = Some(now);

        let longest = behavior.longest_window();
        while self.recommendations.len() > HISTORY_MAX
            || self.recommendations.front().is_some_and(|it| !within(now, it.last, longest))
        {
            self.recommendations.pop_front();
        }

        let longest = behavior.longest_period();
        while self.changes.len() > HISTORY_MAX
            || self.changes.front().is_some_and(|change| !within(now, change.at, longest))
        {
            self.changes.pop_front();
        }
    }

    pub(super) fn recommended_within(
        &self,
        now: Timestamp,
        window: Seconds,
    ) -> impl Iterator<Item = Replicas> + '_ {
        self.recommendations
            .iter()
            .filter(move |it| it.first <= now && within(now, it.last.min(now), window))
            .map(|it| it.replicas)
    }

    /// The published desired replicas at the start of a period that ends at `now`.
    pub(super) fn at_period_start(
        &self,
        now: Timestamp,
        published: Replicas,
        period: Seconds,
    ) -> Replicas {
        self.changes
            .iter()
            .find(|change| within(now, change.at, period))
            .map_or(published, |change| change.before)
    }

    /// Returns the burst that this recommendation shows, or the last one if it still counts.
    pub(super) fn burst(
        &self,
        now: Timestamp,
        recommended: Replicas,
        panic: Panic,
    ) -> Option<Burst> {
        let known = self.burst.filter(|it| within(now, it.at, panic.stable_window));
        let Some(mean) = self.mean(now, panic.stable_window) else { return known };

        let asked = self.recommended_within(now, panic.window).fold(recommended, Replicas::max);
        // A mean below 1 counts as 1, so a wake-up to one replica is not a burst.
        let jumps = f64::from(asked.count()) >= panic.threshold.fraction() * mean.max(1.0);
        if jumps { Some(Burst { at: now, asked, mean }) } else { known }
    }

    /// Returns the time-weighted mean of the recommendations in a window that ends now; `None` if
    /// the history covers no time of it.
    fn mean(&self, now: Timestamp, window: Seconds) -> Option<f64> {
        let ends = self.recommendations.iter().skip(1).map(|next| next.first).chain([now]);
        let mut sum = 0.0;
        let mut weight = 0.0;
        for (span, end) in self.recommendations.iter().zip(ends) {
            let age = now.duration_since(span.first).as_secs_f64().min(window.seconds());
            let lasted = age - now.duration_since(end).as_secs_f64();
            if lasted > 0.0 {
                sum += lasted * f64::from(span.replicas.count());
                weight += lasted;
            }
        }

        (weight > 0.0).then(|| sum / weight)
    }
}
