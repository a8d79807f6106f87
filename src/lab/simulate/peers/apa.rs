//! `AIBrix`' APA on the use of the KV cache.
//!
//! # Model
//!
//! With `u` the mean use of a ready replica over a window, `t` the target and `n` the number of
//! replicas: nothing changes while `u / t` is from `1 - down` to `1 + up`; else the number is
//! `ceil(n * u / t)`, at most `ceil(2 n)` and at least `floor(n / 2)`. Of what was recommended in
//! the cooldown of scaling down, the largest counts.
//!
//! # Source
//!
//! vllm-project/aibrix, `pkg/controller/podautoscaler/algorithm/apa.go` (`computeTargetReplicas`) at
//! commit 4148b7a, whose test table is the test below; rates and cooldowns of
//! `context/context.go`; target, tolerances and window of the sample in its documentation
//! ("Metric-based Autoscaling": `gpu_cache_usage_perc` 0.5, up 0.1, down 0.2, 30 s).
//!
//! # Limits
//!
//! The cooldown is as documented, a stabilisation as an HPA's; some versions took the smallest
//! recommendation of the window instead, which made it do nothing.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::peers::law::{Sight, whole};
use plimsoll_core::units::Replicas;

/// The period in which the controller looks at its objects again (`resyncInterval`).
pub(crate) const PERIOD: Micros = Micros::from_secs(10);
const WINDOW: Micros = Micros::from_secs(30);
const COOLDOWN: Micros = Micros::from_secs(300);

/// What a `PodAutoscaler` says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// The use of one replica that it aims at.
    pub target: f64,
    /// How far above the target, as a share, the use may be without a change.
    pub up: f64,
    /// How far below.
    pub down: f64,
    /// How many times as many replicas there may be at once.
    pub up_rate: f64,
    /// To how many parts the number may fall at once.
    pub down_rate: f64,
}

impl Settings {
    /// The sample of the documentation with another target.
    #[must_use]
    pub const fn aiming_at(target: f64) -> Self {
        Self { target, up: 0.1, down: 0.2, up_rate: 2.0, down_rate: 2.0 }
    }

    fn wanted(&self, current: f64, usage: f64) -> f64 {
        let ratio = usage / self.target;
        let asked = (current * ratio).ceil();
        if ratio > 1.0 + self.up {
            asked.min((self.up_rate * current).ceil())
        } else if ratio < 1.0 - self.down {
            asked.max((current / self.down_rate).floor())
        } else {
            current
        }
    }
}

/// An APA with its memory.
#[derive(Clone, Debug)]
pub(crate) struct Autoscaler {
    settings: Settings,
    seen: VecDeque<(Micros, f64)>,
    recommended: VecDeque<(Micros, Replicas)>,
}

impl Autoscaler {
    pub(crate) const fn new(settings: Settings) -> Self {
        Self { settings, seen: VecDeque::new(), recommended: VecDeque::new() }
    }

    pub(crate) fn decide(&mut self, sight: &Sight<'_>) -> Option<Replicas> {
        let now = sight.now;
        let count = sight.replicas.len() as f64;
        let usage: f64 = sight.replicas.iter().map(|it| it.kv_usage).sum();
        if count > 0.0 {
            self.seen.push_back((now, usage / count));
        }
        while self.seen.front().is_some_and(|(at, _)| now.since(*at) > WINDOW) {
            self.seen.pop_front();
        }
        if self.seen.is_empty() {
            return None;
        }
        let usage = self.seen.iter().map(|(_, usage)| usage).sum::<f64>() / self.seen.len() as f64;
        let current = f64::from(sight.scale.spec.count());
        let wanted = whole(self.settings.wanted(current, usage));
        while self.recommended.front().is_some_and(|(at, _)| now.since(*at) >= COOLDOWN) {
            self.recommended.pop_front();
        }
        self.recommended.push_back((now, wanted));
        let most = self.recommended.iter().map(|(_, number)| *number).max().unwrap_or(wanted);
        Some(if wanted < sight.scale.spec { most.min(sight.scale.spec) } else { wanted })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_original_tests() {
        // Replicas, use, up rate, down rate, wanted; target 30, both tolerances 0.1.
        for (current, usage, up_rate, down_rate, wanted) in [
            (2.0, 45.0, 2.0, 2.0, 3.0),
            (2.0, 35.0, 2.0, 2.0, 3.0),
            (2.0, 90.0, 2.0, 2.0, 4.0),
            (2.0, 90.0, 2.5, 2.0, 5.0),
            (6.0, 20.0, 2.0, 2.0, 4.0),
            (6.0, 18.0, 2.0, 2.0, 4.0),
            (6.0, 10.0, 2.0, 2.0, 3.0),
            (6.0, 5.0, 2.0, 2.5, 2.0),
            (2.0, 33.0, 2.0, 2.0, 2.0),
            (2.0, 27.0, 2.0, 2.0, 2.0),
        ] {
            let settings = Settings { target: 30.0, up: 0.1, down: 0.1, up_rate, down_rate };
            let got = settings.wanted(current, usage);
            assert!((got - wanted).abs() < 1e-9, "{current} at {usage}: {got}, not {wanted}");
        }
    }
}
