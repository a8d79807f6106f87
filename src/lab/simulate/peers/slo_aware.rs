//! llm-d's autoscaling on latency against its objectives: recording rules, a KEDA formula, an HPA.
//!
//! # Model
//!
//! Every 15 s, with the 90th percentiles of the last minute, `n` desired replicas and `r` ready
//! replicas:
//!
//! ```text
//! s_raw = max(P90 TTFT / S_ttft, P90 TPOT / S_tpot)      0 without traffic
//! s     = mean over 45 s of min(s_raw, 2)
//! d     = n + ceil(n (s c / 0.55 - 1))                   s > 0.55, c = r / n if 0 < r < n, else 1
//!       = n - floor(n (1 - s / 0.40))                    s < 0.40
//!       = n                                              else
//! ```
//!
//! KEDA's HPA follows `d`. It scales up by the larger of 100% and 4 pods per 60 s with a window of
//! 30 s. It scales down by one pod per 120 s with a window of 180 s.
//!
//! # Source
//!
//! llm-d/llm-d, `docs/architecture/autoscaling/slo-aware-keda.md` at commit a7922ed ("SLO-Aware
//! Autoscaling with KEDA — the control law").
//!
//! # Limits
//!
//! The latencies are measured ones, which the original uses only if its endpoint picker predicts
//! none; predicted ones rise earlier. Buckets are finer than those of a Prometheus histogram. The
//! TTFT objective is the one for short prompts.

use std::collections::VecDeque;

use crate::simulate::Micros;
use crate::simulate::peers::sight::{Sight, Terms};
use crate::simulate::scaler::{self, MilliValue, Rules, Scaler, ScalingPolicy, SyncOutcome};
use crate::simulate::score::QuantileHistogram;
use plimsoll_core::decide::enforce::{Amount, Select};
use plimsoll_core::units::Replicas;

/// The period of the recording rules and of the HPA.
pub(crate) const PERIOD: Micros = Micros::from_secs(15);
/// The window of the histograms' rates.
const WINDOW: Micros = Micros::from_secs(60);
/// The window of `avg_over_time`: one sample at its end and one every 15 s before.
const SMOOTHED: usize = 3;
const QUANTILE: f64 = 0.9;
const CLAMP: f64 = 2.0;
const UP: f64 = 0.55;
const DOWN: f64 = 0.40;

/// The loop with its state.
#[derive(Clone, Debug)]
pub(crate) struct Loop {
    ttft: Micros,
    itl: Micros,
    /// The histograms at each evaluation in the last minute.
    seen: VecDeque<(Micros, QuantileHistogram, QuantileHistogram)>,
    signal: VecDeque<f64>,
    hpa: Scaler,
}

impl Loop {
    pub(crate) fn new(terms: &Terms) -> Self {
        let Terms { bounds, slo, .. } = terms;
        let min = bounds.min().max(Replicas::ONE);
        let max = bounds.max().unwrap_or(min);
        let seconds = Micros::from_secs;
        let settings = scaler::ScalerSettings {
            min,
            max,
            target: MilliValue(1000),
            behavior: true,
            up: Rules {
                tolerance: 0.1,
                window: seconds(30),
                select: Select::Max,
                policies: vec![
                    ScalingPolicy { amount: Amount::Percent(100), period: seconds(60) },
                    ScalingPolicy { amount: Amount::Pods(4), period: seconds(60) },
                ],
            },
            down: Rules {
                tolerance: 0.1,
                window: seconds(180),
                select: Select::Max,
                policies: vec![ScalingPolicy { amount: Amount::Pods(1), period: seconds(120) }],
            },
        };

        Self {
            ttft: slo.ttft,
            itl: slo.itl,
            seen: VecDeque::new(),
            signal: VecDeque::new(),
            hpa: Scaler::new(settings),
        }
    }

    pub(crate) fn decide(&mut self, sight: &Sight<'_>) -> Option<Replicas> {
        let now = sight.now;
        self.seen.push_back((now, sight.service.ttft.clone(), sight.service.itl.clone()));
        while self.seen.get(1).is_some_and(|(at, ..)| now.since(*at) >= WINDOW) {
            self.seen.pop_front();
        }

        let (_, ttft, itl) = self.seen.front()?;
        let of_ttft = share(&sight.service.ttft, ttft, self.ttft);
        let of_itl = share(&sight.service.itl, itl, self.itl);
        self.signal.push_back(of_ttft.max(of_itl).min(CLAMP));
        while self.signal.len() > SMOOTHED {
            self.signal.pop_front();
        }

        let saturation = self.signal.iter().sum::<f64>() / self.signal.len() as f64;
        let asked = sight.scale.spec.count();
        let ready = sight.replicas.len() as f64;
        let wanted = desired(saturation, f64::from(asked), ready);
        match self.hpa.sync(now, sight.scale, Ok(milli(wanted))) {
            SyncOutcome::Scale(wanted) => Some(wanted),
            SyncOutcome::Hold | SyncOutcome::Disabled => None,
        }
    }
}

/// The tail latency since `before`, as a share of its objective; zero without a request.
fn share(all: &QuantileHistogram, before: &QuantileHistogram, objective: Micros) -> f64 {
    let tail = all.since(before).quantile(QUANTILE);
    tail.map_or(0.0, |tail| tail.seconds() / objective.seconds().max(1e-6))
}

/// The formula for `d`.
fn desired(saturation: f64, asked: f64, ready: f64) -> f64 {
    if saturation > UP {
        let credit = if ready > 0.0 && ready < asked { ready / asked } else { 1.0 };
        asked + (asked * (saturation * credit / UP - 1.0)).ceil()
    } else if saturation < DOWN {
        asked - (asked * (1.0 - saturation / DOWN)).floor()
    } else {
        asked
    }
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
fn milli(value: f64) -> MilliValue {
    MilliValue((value.max(0.0) * 1000.0).round() as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_formula_gives_what_the_control_law_says() {
        for (saturation, asked, ready, wanted) in [
            // Within the band.
            (0.40, 4.0, 4.0, 4.0),
            (0.55, 4.0, 4.0, 4.0),
            // Up in proportion, rounded up.
            (0.56, 4.0, 4.0, 5.0),
            (1.10, 4.0, 4.0, 8.0),
            (2.00, 3.0, 3.0, 11.0),
            // Starting replicas are credited: the ready half gets twice its load.
            (1.10, 8.0, 4.0, 8.0),
            (0.60, 8.0, 4.0, 5.0),
            (1.10, 4.0, 0.0, 8.0),
            // Down, rounded toward more replicas.
            (0.39, 4.0, 4.0, 4.0),
            (0.20, 4.0, 4.0, 2.0),
            (0.00, 4.0, 2.0, 0.0),
        ] {
            let got = desired(saturation, asked, ready);
            assert!((got - wanted).abs() < 1e-9, "{saturation} {asked} {ready}: {got}");
        }
    }
}
