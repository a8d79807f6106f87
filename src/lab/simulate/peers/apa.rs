//! `AIBrix`' APA on KV cache usage.
//!
//! # Model
//!
//! `u` is the mean usage of the ready replicas over a window, `t` the target and `n` the replica
//! count. Nothing changes while `u / t` is between `1 - down` and `1 + up`. Otherwise the
//! recommendation is `ceil(n * u / t)`, at most `ceil(2 n)` and at least `floor(n / 2)`. The
//! largest recommendation within the scale-down cooldown wins.
//!
//! # Source
//!
//! vllm-project/aibrix at commit 4148b7a: `pkg/controller/podautoscaler/algorithm/apa.go`
//! (`computeTargetReplicas`), whose test table is the test below. Rates and cooldowns are from
//! `context/context.go`. Target, tolerances and window are from the sample in its documentation
//! ("Metric-based Autoscaling": `gpu_cache_usage_perc` 0.5, up 0.1, down 0.2, 30 s).
//!
//! # Limits
//!
//! The cooldown works as documented, as a stabilization window like an HPA's. Some versions took
//! the smallest recommendation of the window instead, which made the cooldown ineffective.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::peers::sight::{Sight, whole};
use plimsoll_core::units::Replicas;

/// The period at which the controller reconciles its objects (`resyncInterval`).
pub(crate) const PERIOD: Micros = Micros::from_secs(10);
const WINDOW: Micros = Micros::from_secs(30);
const COOLDOWN: Micros = Micros::from_secs(300);

/// The settings of a `PodAutoscaler`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ApaSettings {
    /// The target usage of one replica.
    pub target: f64,
    /// The tolerance above the target, as a share of it.
    pub up: f64,
    /// The tolerance below the target, as a share of it.
    pub down: f64,
    /// The largest factor by which one decision scales up.
    pub up_rate: f64,
    /// The largest divisor by which one decision scales down.
    pub down_rate: f64,
}

impl ApaSettings {
    /// The sample from the documentation, with this target.
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

/// An APA with its state.
#[derive(Clone, Debug)]
pub(crate) struct ApaAutoscaler {
    settings: ApaSettings,
    seen: VecDeque<(Micros, f64)>,
    recommended: VecDeque<(Micros, Replicas)>,
}

impl ApaAutoscaler {
    pub(crate) const fn new(settings: ApaSettings) -> Self {
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

        let mean = self.seen.iter().map(|(_, usage)| usage).sum::<f64>() / self.seen.len() as f64;
        let current = f64::from(sight.scale.spec.count());
        let wanted = whole(self.settings.wanted(current, mean));
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
        // Replicas, usage, up rate, down rate, wanted; target 30, both tolerances 0.1.
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
            let settings = ApaSettings { target: 30.0, up: 0.1, down: 0.1, up_rate, down_rate };
            let got = settings.wanted(current, usage);
            assert!((got - wanted).abs() < 1e-9, "{current} at {usage}: {got}, not {wanted}");
        }
    }
}
