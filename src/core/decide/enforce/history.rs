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

    /// Restarts the windows with the desired replicas in effect, after a gap for which no
    /// recommendation is known. Published changes and a burst are facts, and are kept. Those in the
    /// future come from a clock that was set back, and are dropped.
    pub fn begin_anew(&mut self, now: Timestamp, in_force: Replicas) {
        let restarted = Self::starting(now, in_force);
        self.recommendations = restarted.recommendations;
        self.latest = restarted.latest;

        self.changes.retain(|change| change.at <= now);
        self.burst = self.burst.filter(|burst| burst.at <= now);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::enforce::behavior::{Amount, StepPolicy};

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp::from_millisecond(1_800_000_000_000 + milliseconds).unwrap()
    }

    fn seconds(seconds: f64) -> Seconds {
        Seconds::new(seconds).unwrap()
    }

    /// Windows of twenty minutes, and a period of one minute.
    fn behavior() -> Behavior {
        let mut behavior = Behavior::default();
        behavior.scale_down.stabilization_window = seconds(1200.0);
        let policy = StepPolicy { amount: Amount::Pods(1), period: seconds(60.0) };
        behavior.scale_up.policies = vec![policy];
        behavior.scale_down.policies = Vec::new();
        behavior
    }

    /// Records a recommendation that changes at every step, which becomes the number.
    fn record(history: &mut ScalingHistory, step: i64, every: i64) {
        let (before, after) = (n(1 + u32::from(step % 2 == 0)), n(1 + u32::from(step % 2 == 1)));
        let published = PublishedReplicas { before, after };
        history.record(at(step * every), after, published, &behavior());
    }

    #[test]
    fn what_no_window_and_no_period_reads_is_forgotten_and_nothing_else() {
        let mut history = ScalingHistory::starting(at(0), n(2));
        for step in 0..2000 {
            record(&mut history, step, 1000);
        }
        let now = at(1_999_000);
        assert_eq!(history.recommendations.len(), 1200, "one each second, the first is too old");
        assert_eq!(history.recommendations[0].last, at(800_000));
        assert_eq!(history.changes.len(), 60);
        assert_eq!(history.changes[0].at, at(1_940_000));
        assert_eq!(history.at_period_start(now, n(9), seconds(60.0)), n(2));
        assert_eq!(history.at_period_start(now, n(9), seconds(0.5)), n(1));
        assert_eq!(history.at_period_start(at(2_100_000), n(9), seconds(60.0)), n(9));
        assert_eq!(history.latest, Some(now));

        // One that stays the same is remembered once, for as long as it stays.
        for step in 2000..4000 {
            let published = PublishedReplicas { before: n(2), after: n(2) };
            history.record(at(step * 1000), n(2), published, &behavior());
        }
        assert_eq!(history.recommendations.len(), 1);
        assert_eq!(history.recommendations[0].first, at(1_999_000));
        assert!(history.changes.is_empty());
    }

    #[test]
    fn with_fast_ticks_the_newest_entries_are_kept() {
        let mut history = ScalingHistory::starting(at(0), n(2));
        for step in 0..6000 {
            record(&mut history, step, 1);
        }
        assert_eq!(history.recommendations.len(), HISTORY_MAX);
        assert_eq!(history.changes.len(), HISTORY_MAX);
        let oldest = i64::try_from(6000 - HISTORY_MAX).unwrap();
        assert_eq!(history.recommendations[0].first, at(oldest));
        assert_eq!(history.changes[0].at, at(oldest));
    }

    #[test]
    fn a_clock_that_goes_back_begins_the_history_anew_with_the_number_in_force() {
        let mut history = ScalingHistory::starting(at(0), n(2));
        record(&mut history, 10, 1000);
        let published = PublishedReplicas { before: n(5), after: n(5) };
        history.record(at(10_000), n(1), published, &behavior());
        assert_eq!(history.recommendations.len(), 2, "the same instant is no step back");
        history.record(at(9_999), n(4), published, &behavior());
        let kept: Vec<_> = history.recommendations.iter().map(|it| it.replicas).collect();
        assert_eq!(kept, [n(5), n(4)]);
        assert!(history.changes.is_empty());
    }

    #[test]
    fn a_restart_of_the_windows_keeps_changes_and_a_burst_that_are_not_in_the_future() {
        let mut history = ScalingHistory::starting(at(0), n(2));
        record(&mut history, 10, 1000);
        record(&mut history, 20, 1000);
        history.burst = Some(Burst { at: at(15_000), asked: n(7), mean: 3.0 });
        history.begin_anew(at(30_000), n(1));
        assert_eq!(history.recommendations.len(), 1);
        assert_eq!((history.changes.len(), history.burst.is_some()), (2, true));

        history.begin_anew(at(12_000), n(1));
        assert_eq!((history.changes.len(), history.burst), (1, None));
    }

    #[test]
    fn a_burst_is_a_multiple_of_the_mean_over_time_of_what_was_asked() {
        let panic = Panic {
            window: seconds(6.0),
            stable_window: seconds(60.0),
            threshold: crate::units::Fraction::new(2.0).unwrap(),
        };
        // 45 s of one replica and 15 s of five in the window: two on average.
        let mut history = ScalingHistory::starting(at(-100_000), n(1));
        let span = |first, last, replicas| Recommendation { first, last, replicas: n(replicas) };
        history.recommendations =
            [span(at(-100_000), at(40_000), 1), span(at(45_000), at(59_000), 5)].into();
        let now = at(60_000);
        assert_eq!(history.mean(now, seconds(60.0)), Some(2.0));
        assert_eq!(history.mean(now, seconds(15.0)), Some(5.0));
        let asked = |replicas| history.burst(now, n(replicas), panic).map(|it| (it.asked, it.mean));
        assert_eq!(
            asked(1),
            Some((n(5), 2.0)),
            "what was asked for within the short window counts"
        );
        assert_eq!(asked(6), Some((n(6), 2.0)));

        history.recommendations[1] = span(at(45_000), at(53_000), 5);
        let asked = |replicas| history.burst(now, n(replicas), panic).map(|it| it.asked);
        assert_eq!([3, 4].map(asked), [None, Some(n(4))], "twice the mean is a burst");

        // One that is known counts for a stable window, and no longer.
        let known = Burst { at: at(0), asked: n(7), mean: 3.0 };
        history.burst = Some(known);
        let after = |now| history.burst(now, n(1), panic);
        assert_eq!(after(at(59_999)), Some(known));
        assert_eq!(after(at(60_000)), None);

        // A model that wakes up is no burst.
        let asleep = ScalingHistory::starting(at(0), Replicas::ZERO);
        assert_eq!(asleep.burst(now, n(1), panic), None);
        assert_eq!(asleep.burst(now, n(2), panic).map(|it| it.mean), Some(0.0));
        assert_eq!(ScalingHistory::default().burst(now, n(9), panic), None, "there is no mean");
    }
}
