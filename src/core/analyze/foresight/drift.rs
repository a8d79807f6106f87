//! Drift: requests whose lengths change, and with them the work of each request.
//!
//! # Model
//!
//! At the end of each stride, the mean lengths of prompts and answers are kept, `I_k` and `O_k`. If
//! they have changed within a start-up time by more than chance, the work of a request of stride
//! `k`, relative to a present request, is:
//!
//! ```text
//! w_k  = (I_k / I)^e_I * (O_k / O)^e_O
//! e_I  = -d ln(mu) / d ln(I)   of the rate mu that a replica handles, from I_k a start ago to I
//! ```
//!
//! and `e_O` likewise. Growth and ramps then use `w_k a_k` instead of the rates `a_k`, so they
//! predict work instead of requests.
//!
//! The mean of `n` lengths is off by chance by a share of `sqrt((s - 1) / n)`. Here `s` is the mean
//! square of lengths over the square of their mean. Both ends count, and a change of less than
//! three deviations is ignored.
//!
//! # Units
//!
//! Tokens for lengths; the others are ratios.
//!
//! # Source
//!
//! Elasticities: the first order of `ln(mu)`. The error of a mean: its standard error, at both
//! ends.

use std::collections::VecDeque;

use crate::analyze::foresight::arrivals::{HORIZON_MAX, STRIDE, StrideRate};
use crate::analyze::foresight::lengths::RequestLengths;
use crate::analyze::foresight::policy::WorkDrift;
use crate::analyze::foresight::request_profile::RequestProfile;

/// Strides for which mean lengths are kept: the longest horizon and a quarter of an hour before it.
const KEPT: i64 = (HORIZON_MAX + 900) / STRIDE;

/// The smallest change of a mean length, as a logarithm, from which an elasticity is computed.
const LEAST: f64 = 0.05;

/// Mean lengths over time.
#[derive(Clone, Debug, Default)]
pub(super) struct Mixes {
    points: VecDeque<Mix>,
}

/// Mean lengths at the end of a stride.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Mix {
    stride: i64,
    /// Tokens of a prompt.
    pub(super) prompt: f64,
    /// Tokens of an answer.
    pub(super) output: f64,
}

/// The share by which work grows with each length.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Elasticity {
    pub(super) prompt: f64,
    pub(super) output: f64,
}

// === impl Mixes ===

impl Mixes {
    /// Keeps the mean lengths at the end of the latest stride.
    pub(super) fn close(&mut self, latest: Option<&StrideRate>, lengths: &RequestLengths) {
        let Some((stride, (prompt, output))) =
            latest.map(|point| point.stride).zip(lengths.telling())
        else {
            return;
        };
        if self.points.back().is_some_and(|last| last.stride >= stride) {
            return;
        }

        self.points.push_back(Mix { stride, prompt, output });
        while self.points.front().is_some_and(|first| first.stride < stride - KEPT) {
            self.points.pop_front();
        }
    }

    /// The mean lengths this many strides ago, if they differ from the present ones by more than
    /// chance.
    pub(super) fn drifted(
        &self,
        strides: usize,
        requested: &RequestProfile,
        lengths: &RequestLengths,
        policy: WorkDrift,
    ) -> Option<Mix> {
        let latest = self.points.back()?;
        let back = i64::try_from(strides).unwrap_or(KEPT);
        let then = self.points.iter().rev().find(|it| it.stride <= latest.stride - back);
        let before = then.or_else(|| self.points.front())?;

        let certainty = policy.certainty.fraction();
        let changes = [
            (latest.prompt, before.prompt, requested.prompt_squares),
            (latest.output, before.output, requested.answer_squares),
        ];
        let has_drifted = changes.into_iter().any(|(now, then, squares)| {
            let chance = certainty * ((squares - 1.0) / lengths.count()).sqrt();
            (now / then).ln().abs() > chance.max(LEAST)
        });
        has_drifted.then_some(*before)
    }

    /// The work of a request at each of these points, relative to a present request.
    pub(super) fn weights(
        &self,
        points: &VecDeque<StrideRate>,
        elasticity: Elasticity,
    ) -> Vec<f64> {
        let Some(latest) = self.points.back() else { return Vec::new() };
        let of_mixes = self.points.iter().map(|mix| (mix.stride, elasticity.work(mix, latest)));
        let mut known = of_mixes.peekable();
        let mut last = known.peek().map_or(1.0, |(_, weight)| *weight);

        let mut weights = Vec::with_capacity(points.len());
        for point in points {
            while let Some((_, weight)) = known.next_if(|(stride, _)| *stride <= point.stride) {
                last = weight;
            }
            weights.push(last);
        }

        weights
    }
}

// === impl Elasticity ===

impl Elasticity {
    /// The work of a request of one mix relative to another.
    fn work(self, then: &Mix, now: &Mix) -> f64 {
        let lengths =
            [(self.prompt, then.prompt, now.prompt), (self.output, then.output, now.output)];
        let grown = lengths.into_iter().filter(|(elasticity, ..)| *elasticity > 0.0);
        grown.map(|(elasticity, then, now)| elasticity * (then / now).ln()).sum::<f64>().exp()
    }

    /// The elasticity of work with respect to a length, from two lengths and the rates at them.
    pub(super) fn between(now: f64, then: f64, rate: f64, rate_then: f64) -> f64 {
        let change = (now / then).ln();
        if change.abs() < LEAST {
            return 0.0;
        }
        ((rate_then / rate).ln() / change).clamp(0.0, 2.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::foresight::capacity::tests::requested;

    /// The mean lengths of strides whose answers get longer by a constant share of the first, after
    /// this many requests.
    fn growing(strides: i64, share: f64, requests: f64) -> (Mixes, RequestLengths) {
        let mut mixes = Mixes::default();
        let mut lengths = RequestLengths::default();
        for stride in 0..strides {
            let output = 100.0 * (1.0 + share * stride as f64);
            lengths = RequestLengths::of([1000.0 * requests, output * requests, requests]);
            mixes.close(Some(&StrideRate { stride, rate: 1.0 }), &lengths);
        }

        (mixes, lengths)
    }

    /// The stride since which answers that get longer by this share have drifted.
    fn found(share: f64, requests: f64) -> Option<i64> {
        let (mixes, lengths) = growing(20, share, requests);
        let requested = requested(1000.0, 200.0);
        mixes.drifted(10, &requested, &lengths, WorkDrift::default()).map(|mix| mix.stride)
    }

    #[test]
    fn a_drift_is_one_only_beyond_chance() {
        assert_eq!(found(0.0, 400.0), None);
        assert_eq!(found(0.05, 400.0), Some(9));
        assert_eq!(found(0.05, 40.0), None, "three standard errors of 40 requests are a half");
    }

    #[test]
    fn past_requests_count_by_their_work() {
        let (mixes, _) = growing(11, 0.1, 400.0);
        let points: VecDeque<StrideRate> =
            (0..11).map(|stride| StrideRate { stride, rate: 10.0 }).collect();
        let weights = mixes.weights(&points, Elasticity { prompt: 0.3, output: 1.0 });
        assert!((weights[0] - 0.5).abs() < 1e-9 && (weights[10] - 1.0).abs() < 1e-9, "{weights:?}");
        assert!(weights.is_sorted(), "{weights:?}");
    }

    #[test]
    fn an_elasticity_is_how_the_rate_falls_with_a_length() {
        assert!((Elasticity::between(200.0, 100.0, 5.0, 10.0) - 1.0).abs() < 1e-9);
        assert!(Elasticity::between(101.0, 100.0, 5.0, 10.0).abs() < 1e-9, "too small a change");
        assert!(Elasticity::between(200.0, 100.0, 12.0, 10.0).abs() < 1e-9, "never negative");
    }
}
