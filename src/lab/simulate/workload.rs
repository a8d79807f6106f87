//! Load: when requests arrive, and how long they are.
//!
//! Arrivals are open-loop: they come at their own times whether or not earlier requests have been
//! answered, because clients that wait for each other hide every overload. Times are a Poisson
//! process whose rate is a [`Shape`] over time, drawn by thinning (Lewis and Shedler, 1979); lengths
//! are lognormal and clipped. Times and lengths come from a generator each, so that another shape
//! of load meets the same sequence of lengths.

pub mod clients;
pub mod load;
pub mod rate;
pub mod round;

use std::f64::consts::{PI, TAU};

use rand::{RngExt, SeedableRng};
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::replica::Request;
pub use crate::simulate::workload::load::Load;
use plimsoll_core::units::{RequestRate, Tokens};

/// Tells the generator of times from that of lengths, under one seed.
const TIMES: u64 = 1;
/// Tells the generator of lengths from that of times, under one seed.
const LENGTHS: u64 = 2;

/// The arrival rate over time: a wave that starts in its trough, and a burst on top of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// The rate in the trough.
    pub trough: RequestRate,
    /// The rate at the crest.
    pub crest: RequestRate,
    /// From trough to trough.
    pub period: Micros,
    /// How much later than the start the first trough is.
    pub delay: Micros,
    /// What comes on top, once in each wave.
    pub burst: Option<Burst>,
}

/// More load for a while.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burst {
    /// When it begins, from the start of each wave.
    pub from: Micros,
    /// How long it lasts.
    pub length: Micros,
    /// The rate on top of the wave's.
    pub extra: RequestRate,
}

/// A lognormal distribution of whole numbers, clipped at both ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lengths {
    /// Half of the lengths are below this.
    pub median: Tokens,
    /// The standard deviation of the logarithm.
    pub sigma: f64,
    /// The smallest length; at least 1 in effect.
    pub min: u32,
    /// The largest length.
    pub max: u32,
}

/// An endless sequence of arrivals, in the order of their times.
#[derive(Clone, Debug)]
pub struct Arrivals {
    shape: Shape,
    prompts: Lengths,
    outputs: Lengths,
    now: f64,
    next_id: u64,
    times: Pcg64,
    lengths: Pcg64,
}

// === impl Shape ===

impl Shape {
    /// The rate at an instant.
    #[must_use]
    pub fn rate(&self, at: Micros) -> RequestRate {
        let base = self.trough.requests_per_second();
        let height = self.crest.requests_per_second() - base;
        // From 0 in the trough to 1 at the crest.
        let swing = (1.0 - (TAU * self.turn(at)).cos()) / 2.0;
        let burst = if self.bursts(at) { self.extra() } else { 0.0 };
        RequestRate::new(base + height * swing + burst).unwrap_or_default()
    }

    /// Whether a burst is on.
    #[must_use]
    pub fn bursts(&self, at: Micros) -> bool {
        self.burst.is_some_and(|Burst { from, length, .. }| {
            let period = self.period.micros().max(1);
            let into = at.micros() % period;
            (from.micros()..from.micros().saturating_add(length.micros())).contains(&into)
        })
    }

    /// A rate that is never exceeded.
    #[must_use]
    pub fn bound(&self) -> RequestRate {
        let peak = self.trough.max(self.crest).requests_per_second();
        RequestRate::new(peak + self.extra()).unwrap_or_default()
    }

    /// Where in its wave the load is, in turns from the trough.
    #[must_use]
    pub fn turn(&self, at: Micros) -> f64 {
        let period = self.period.micros().max(1);
        let delay = self.delay.micros() % period;
        ((at.micros() + (period - delay)) % period) as f64 / period as f64
    }

    fn extra(&self) -> f64 {
        self.burst.map_or(0.0, |burst| burst.extra.requests_per_second())
    }
}

// === impl Lengths ===

impl Lengths {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the cast saturates, and the clip follows"
    )]
    fn draw(&self, random: &mut Pcg64) -> u32 {
        // Box and Muller, 1958: one normal number from two uniform ones.
        let uniform = 1.0 - random.random::<f64>();
        let angle = 2.0 * PI * random.random::<f64>();
        let normal = (-2.0 * uniform.ln()).sqrt() * angle.cos();
        let length = self.median.tokens() * (self.sigma * normal).exp();
        (length.round() as u32).min(self.max).max(self.min).max(1)
    }
}

// === impl Arrivals ===

impl Arrivals {
    /// The arrivals of one seed. Requests are numbered from 0.
    #[must_use]
    pub fn new(seed: u64, shape: Shape, prompts: Lengths, outputs: Lengths) -> Self {
        Self {
            shape,
            prompts,
            outputs,
            now: 0.0,
            next_id: 0,
            times: Pcg64::seed_from_u64(seed ^ TIMES),
            lengths: Pcg64::seed_from_u64(seed ^ LENGTHS),
        }
    }
}

impl Iterator for Arrivals {
    type Item = (Micros, Request);

    /// Ends only when the rate is zero everywhere, or time is exhausted.
    fn next(&mut self) -> Option<Self::Item> {
        let bound = self.shape.bound().requests_per_second();
        if bound <= 0.0 {
            return None;
        }
        loop {
            self.now -= (1.0 - self.times.random::<f64>()).ln() / bound;
            let at = Micros::from_secs_f64(self.now);
            if at == Micros::new(u64::MAX) {
                return None;
            }
            if self.times.random::<f64>() * bound < self.shape.rate(at).requests_per_second() {
                let request = Request {
                    id: self.next_id,
                    prompt: self.prompts.draw(&mut self.lengths),
                    output: self.outputs.draw(&mut self.lengths),
                };
                self.next_id += 1;
                return Some((at, request));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rate(value: f64) -> RequestRate {
        RequestRate::new(value).unwrap()
    }

    fn wave() -> Shape {
        Shape {
            trough: rate(2.0),
            crest: rate(10.0),
            period: Micros::from_secs(180),
            delay: Micros::ZERO,
            burst: Some(Burst {
                from: Micros::from_secs(120),
                length: Micros::from_secs(10),
                extra: rate(20.0),
            }),
        }
    }

    fn lengths(median: f64, sigma: f64) -> Lengths {
        Lengths { median: Tokens::new(median).unwrap(), sigma, min: 10, max: 4000 }
    }

    fn arrivals(shape: Shape) -> Arrivals {
        Arrivals::new(7, shape, lengths(500.0, 0.8), lengths(120.0, 0.5))
    }

    #[test]
    fn the_rate_runs_from_trough_to_crest_and_back_with_a_burst_on_top() {
        let shape = wave();
        for (second, want) in [(0, 2.0), (45, 6.0), (90, 10.0), (135, 6.0), (180, 2.0)] {
            let got = shape.rate(Micros::from_secs(second)).requests_per_second();
            assert!((got - want).abs() < 1e-9, "{got} at second {second}");
        }
        assert!(!shape.bursts(Micros::new(119_999_999)) && shape.bursts(Micros::from_secs(120)));
        assert!(!shape.bursts(Micros::from_secs(130)) && shape.bursts(Micros::from_secs(309)));
    }

    #[test]
    fn as_many_requests_arrive_as_the_rate_says() {
        // 20 waves of 180 s at a mean of 6/s, and 20 bursts of 10 s at 20/s: 25,600 expected, with
        // a standard deviation of 160; the bound is four of those.
        let end = Micros::from_secs(3600);
        let count = arrivals(wave()).take_while(|(at, _)| *at < end).count();
        assert!((24_960..=26_240).contains(&count), "{count}");
        // Under a burst there are its 20/s and 7.6/s of the wave, for 20 times 10 s.
        let in_bursts =
            arrivals(wave()).take_while(|(at, _)| *at < end).filter(|(at, _)| wave().bursts(*at));
        let expected = 200.0 * 27.6;
        let got = in_bursts.count() as f64;
        assert!((got - expected).abs() < 4.0 * f64::sqrt(expected), "{got} against {expected}");
    }

    #[test]
    fn lengths_have_the_median_that_was_asked_for_and_stay_inside_the_clip() {
        let mut prompts =
            arrivals(wave()).take(10_001).map(|(_, request)| request.prompt).collect::<Vec<_>>();
        prompts.sort_unstable();
        // The median of 10,001 draws has a standard error of 1 per cent at this sigma.
        assert!((480..=520).contains(&prompts[5_000]), "{}", prompts[5_000]);
        assert!(prompts[0] >= 10 && prompts[10_000] <= 4000);
    }

    #[test]
    fn one_seed_gives_one_sequence_and_another_shape_the_same_lengths() {
        let take = |shape| arrivals(shape).take(1000).collect::<Vec<_>>();
        assert_eq!(take(wave()), take(wave()));
        let flat = Shape { trough: rate(5.0), crest: rate(5.0), burst: None, ..wave() };
        let (bursty, calm) = (take(wave()), take(flat));
        assert!(bursty.iter().map(|(_, r)| r).eq(calm.iter().map(|(_, r)| r)));
        assert_ne!(bursty, calm, "the times differ");
    }

    #[test]
    fn no_rate_means_no_arrivals() {
        let silent = Shape { trough: rate(0.0), crest: rate(0.0), burst: None, ..wave() };
        assert_eq!(arrivals(silent).next(), None);
    }
}
