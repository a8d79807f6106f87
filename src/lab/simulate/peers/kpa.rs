//! Knative's pod autoscaler (KPA) on concurrency.
//!
//! # Model
//!
//! Every 2 s the mean concurrency of all replicas together over a stable window of 60 s and a panic
//! window of 6 s is divided by the target of one replica, which is 70 % of what it is said to serve
//! at once. Both numbers are rounded up, and stay within `ready * 1000` and `floor(ready / 2)`. When
//! the number of the panic window is at least twice what is ready, the autoscaler panics: until no
//! such number was seen for a stable window, the larger of the two counts, and it never falls.
//!
//! # Source
//!
//! knative/serving, `pkg/autoscaler/scaling/autoscaler.go` (`Scale`) and
//! `pkg/autoscaler/config/config.go` (`defaultConfig`), at commits 00a4a55 and 01e2d38.
//!
//! # Limits
//!
//! Concurrency is what is in the engines when the autoscaler looks, rather than its mean over each
//! second. There is no activator, and no scaling to zero.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::peers::law::{Sight, whole};
use plimsoll_core::units::Replicas;

/// The period of the autoscaler (`tickInterval` in multiscaler.go).
pub(crate) const TICK: Micros = Micros::from_secs(2);
/// `stable-window`.
const STABLE: Micros = Micros::from_secs(60);
/// `panic-window-percentage`: 10 % of the stable window.
const PANIC: Micros = Micros::from_secs(6);
/// `container-concurrency-target-percentage`.
const UTILISATION: f64 = 0.7;
/// `panic-threshold-percentage`.
const PANIC_THRESHOLD: f64 = 2.0;
/// `max-scale-up-rate`.
const UP_RATE: f64 = 1000.0;
/// `max-scale-down-rate`.
const DOWN_RATE: f64 = 2.0;

/// What a KPA object says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// What one replica is said to serve at once (`autoscaling.knative.dev/target`).
    pub concurrency: f64,
}

/// A KPA with its memory.
#[derive(Clone, Debug)]
pub(crate) struct Autoscaler {
    target: f64,
    /// When it was seen, and the concurrency of all replicas together.
    seen: VecDeque<(Micros, f64)>,
    /// When the panic threshold was last exceeded, while it panics.
    panics: Option<Micros>,
    most: f64,
}

impl Autoscaler {
    pub(crate) const fn new(settings: Settings) -> Self {
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
        let mean = |window: Micros| {
            let within = self.seen.iter().filter(|(at, _)| now.since(*at) < window);
            let (count, sum) = within.fold((0.0, 0.0), |(n, sum), (_, it)| (n + 1.0, sum + it));
            sum / f64::max(count, 1.0)
        };
        let (stable, panic) = (mean(STABLE), mean(PANIC));
        whole(self.scale(now, sight.replicas.len() as f64, stable, panic))
    }

    /// The number for what was seen of so many ready replicas.
    fn scale(&mut self, now: Micros, ready: f64, stable: f64, panic: f64) -> f64 {
        let ready = ready.max(1.0);
        let (most, least) = ((UP_RATE * ready).ceil(), (ready / DOWN_RATE).floor());
        let (by_stable, by_panic) = ((stable / self.target).ceil(), (panic / self.target).ceil());
        let bounded = |number: f64| number.max(least).min(most);
        let over = by_panic / ready >= PANIC_THRESHOLD;
        if over {
            self.panics = Some(now);
        } else if self.panics.is_some_and(|at| at + STABLE < now) {
            self.panics = None;
            self.most = 0.0;
        }
        if self.panics.is_none() {
            return bounded(by_stable);
        }
        self.most = self.most.max(bounded(by_stable)).max(bounded(by_panic));
        self.most
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(ready: f64, stable: f64, panic: f64) -> f64 {
        let mut kpa = Autoscaler::new(Settings { concurrency: 100.0 });
        kpa.scale(Micros::from_secs(100), ready, stable, panic)
    }

    #[test]
    fn the_number_is_that_of_the_stable_window_within_the_rates() {
        // Ready, stable, panic, wanted: with a target of 70 for each replica.
        for (ready, stable, panic, wanted) in [
            (1.0, 70.0, 70.0, 1.0),
            (1.0, 70.1, 70.1, 2.0),
            (4.0, 281.0, 300.0, 5.0),
            // Never below half of what is ready.
            (8.0, 10.0, 10.0, 4.0),
            (0.0, 10.0, 10.0, 1.0),
            // Panic: twice what is ready by the short window.
            (2.0, 100.0, 279.0, 4.0),
            (1.0, 70.0, 7_000.0, 100.0),
            // Not quite.
            (2.0, 100.0, 210.0, 2.0),
        ] {
            let got = scale(ready, stable, panic);
            assert!((got - wanted).abs() < 1e-9, "{ready} {stable} {panic}: {got}, not {wanted}");
        }
    }

    #[test]
    fn a_panic_never_lowers_the_number_and_ends_a_stable_window_after_the_last_surge() {
        let mut kpa = Autoscaler::new(Settings { concurrency: 100.0 });
        let mut at = |second, ready, stable, panic| {
            kpa.scale(Micros::from_secs(second), ready, stable, panic)
        };
        assert!((at(0, 1.0, 70.0, 700.0) - 10.0).abs() < 1e-9);
        assert!((at(30, 10.0, 70.0, 70.0) - 10.0).abs() < 1e-9, "no scaling down in a panic");
        assert!((at(60, 10.0, 70.0, 70.0) - 10.0).abs() < 1e-9, "a stable window is not over");
        assert!((at(62, 10.0, 70.0, 70.0) - 5.0).abs() < 1e-9);
    }
}
