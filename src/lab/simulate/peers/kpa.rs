//! Knative's pod autoscaler (KPA) on concurrency.
//!
//! # Model
//!
//! Every 2 s the KPA takes the mean concurrency of all replicas together, over a stable window of
//! 60 s and over a panic window of 6 s. It divides both by the target per replica, which is 70% of
//! the configured concurrency. Both results are rounded up, and stay within `ready * 1000` and
//! `floor(ready / 2)`.
//!
//! If the panic window's result is at least twice the ready replicas, the autoscaler panics. A
//! panic ends when no such result has occurred for a stable window. During a panic the larger of
//! the two results applies, and it never decreases.
//!
//! # Source
//!
//! knative/serving, `pkg/autoscaler/scaling/autoscaler.go` (`Scale`) and
//! `pkg/autoscaler/config/config.go` (`defaultConfig`), at commits 00a4a55 and 01e2d38.
//!
//! # Limits
//!
//! Concurrency is the requests in the engines at each tick, rather than their mean over each
//! second. There is no activator, and no scaling to zero.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::peers::sight::{Sight, whole};
use plimsoll_core::units::Replicas;

/// The period of the autoscaler (`tickInterval` in multiscaler.go).
pub(crate) const TICK: Micros = Micros::from_secs(2);
/// `stable-window`.
const STABLE: Micros = Micros::from_secs(60);
/// `panic-window-percentage`: 10% of the stable window.
const PANIC: Micros = Micros::from_secs(6);
/// `container-concurrency-target-percentage`.
const UTILISATION: f64 = 0.7;
/// `panic-threshold-percentage`.
const PANIC_THRESHOLD: f64 = 2.0;
/// `max-scale-up-rate`.
const UP_RATE: f64 = 1000.0;
/// `max-scale-down-rate`.
const DOWN_RATE: f64 = 2.0;

/// The settings of a KPA object.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KpaSettings {
    /// The configured concurrency of one replica (`autoscaling.knative.dev/target`).
    pub concurrency: f64,
}

/// A KPA with its state.
#[derive(Clone, Debug)]
pub(crate) struct KpaAutoscaler {
    target: f64,
    /// The time of each observation, and the concurrency of all replicas together.
    seen: VecDeque<(Micros, f64)>,
    /// The time at which the panic threshold was last exceeded, during a panic.
    panics: Option<Micros>,
    most: f64,
}

impl KpaAutoscaler {
    pub(crate) const fn new(settings: KpaSettings) -> Self {
        let target = settings.concurrency * UTILISATION;
        Self { target, seen: VecDeque::new(), panics: None, most: 0.0 }
    }

    pub(crate) fn decide(&mut self, sight: &Sight<'_>) -> Replicas {
        let now = sight.now;
        let concurrency = sight.replicas.iter().map(|it| it.running + it.waiting).sum();
        self.seen.push_back((now, concurrency));
        while self.seen.front().is_some_and(|(at, _)| now.since(*at) >= STABLE) {
            self.seen.pop_front();
        }

        let stable = self.mean(now, STABLE);
        let panic = self.mean(now, PANIC);
        whole(self.scale(now, sight.replicas.len() as f64, stable, panic))
    }

    /// The mean of the requests in the replicas over this window.
    fn mean(&self, now: Micros, window: Micros) -> f64 {
        let within = self.seen.iter().filter(|(at, _)| now.since(*at) < window);
        let (count, sum) = within.fold((0.0, 0.0), |(n, sum), (_, it)| (n + 1.0, sum + it));
        sum / f64::max(count, 1.0)
    }

    /// The desired replicas for these two windows and `ready` replicas.
    fn scale(&mut self, now: Micros, ready: f64, stable: f64, panic: f64) -> f64 {
        let present = ready.max(1.0);
        let most = (UP_RATE * present).ceil();
        let least = (present / DOWN_RATE).floor();
        let for_panic = (panic / self.target).ceil();
        let by_stable = (stable / self.target).ceil().max(least).min(most);
        let by_panic = for_panic.max(least).min(most);

        let over = for_panic / present >= PANIC_THRESHOLD;
        if over {
            self.panics = Some(now);
        } else if self.panics.is_some_and(|at| at + STABLE < now) {
            self.panics = None;
            self.most = 0.0;
        }

        if self.panics.is_none() {
            return by_stable;
        }

        self.most = self.most.max(by_stable).max(by_panic);
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(ready: f64, stable: f64, panic: f64) -> f64 {
        let mut kpa = KpaAutoscaler::new(KpaSettings { concurrency: 100.0 });
        kpa.scale(Micros::from_secs(100), ready, stable, panic)
    }

    #[test]
    fn the_number_is_that_of_the_stable_window_within_the_rates() {
        // Ready, stable, panic, wanted; the target is 70 per replica.
        for (ready, stable, panic, wanted) in [
            (1.0, 70.0, 70.0, 1.0),
            (1.0, 70.1, 70.1, 2.0),
            (4.0, 281.0, 300.0, 5.0),
            // Never below half of the ready replicas.
            (8.0, 10.0, 10.0, 4.0),
            (0.0, 10.0, 10.0, 1.0),
            // Panic: the short window asks for twice the ready replicas.
            (2.0, 100.0, 279.0, 4.0),
            (1.0, 70.0, 7_000.0, 100.0),
            // Just below the threshold.
            (2.0, 100.0, 210.0, 2.0),
        ] {
            let got = scale(ready, stable, panic);
            assert!((got - wanted).abs() < 1e-9, "{ready} {stable} {panic}: {got}, not {wanted}");
        }
    }

    #[test]
    fn a_panic_never_lowers_the_number_and_ends_a_stable_window_after_the_last_surge() {
        let mut kpa = KpaAutoscaler::new(KpaSettings { concurrency: 100.0 });
        for (second, ready, panic, expected) in [
            (0, 1.0, 700.0, 10.0),
            // No scaling down in a panic.
            (30, 10.0, 70.0, 10.0),
            // A stable window is not over.
            (60, 10.0, 70.0, 10.0),
            (62, 10.0, 70.0, 5.0),
        ] {
            let number = kpa.scale(Micros::from_secs(second), ready, 70.0, panic);
            assert!((number - expected).abs() < 1e-9, "{number} after {second} s");
        }
    }
}
