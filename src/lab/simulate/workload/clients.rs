//! Clients that a service has described rather than recorded: of each, window by window, how many
//! requests it sent, how its gaps were spread, and how long its requests were.
//!
//! # Rule
//!
//! In each window, a client sends as many requests as the window says. That many gaps are drawn and
//! scaled, so that together they are as long as the window. They begin anywhere in it, and what is
//! beyond its end is at its beginning: otherwise all clients would ask at once whenever a window
//! begins.
//!
//! # Source
//!
//! `ServeGen` (Xiang et al., arXiv 2505.09999), whose clients have windows of ten minutes.

use std::sync::Arc;
use std::vec;

use rand::RngExt as _;
use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::workload::load::{Arrival, Sizes};
use crate::simulate::workload::round::Speed;

/// Rounds without a request, one after the other, from which on none is expected any more.
const SILENT_MAX: u32 = 1_000;

/// A number of requests that is nearer to a whole one than this is meant to be whole: it was a rate.
const WHOLE: f64 = 1e-6;

/// What clients send, over and over again.
#[derive(Clone, Debug)]
pub struct Described {
    /// The windows in which somebody sends something, in the order of their times, and of one time
    /// in the order of clients.
    pub windows: Arc<[Window]>,
    /// How long each is.
    pub width: Micros,
    /// How long all of them are; no window ends later.
    pub span: Micros,
    /// How many of each client there are: each sends at times of its own, and the last one only a
    /// share of its requests when this is no whole number.
    pub copies: f64,
    /// How many times as fast time runs.
    pub speed: f64,
}

/// What one client sends in one window.
#[derive(Clone, Debug)]
pub struct Window {
    /// When it begins.
    pub at: Micros,
    /// How many requests; a fraction of one is there with that chance.
    pub requests: f64,
    /// How the gaps between them are spread.
    pub gaps: Gaps,
    /// How long they are.
    pub sizes: Arc<Sizes>,
}

/// A distribution of gaps, whose mean does not matter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Gaps {
    /// The gamma distribution of this shape.
    Gamma(f64),
    /// The Weibull distribution of this shape.
    Weibull(f64),
}

/// The requests of described clients, in the order of their times.
#[derive(Clone, Debug)]
pub struct Sent {
    described: Described,
    speed: Speed,
    /// When this round began.
    base: Micros,
    /// The first window that has not been drawn.
    next: usize,
    /// What was drawn and is still to come.
    drawn: vec::IntoIter<Arrival>,
    times: Pcg64,
    lengths: Pcg64,
}

// === impl Gaps ===

impl Gaps {
    /// The logarithm of a gap. Gaps of clients in bursts are apart by more than numbers can be.
    fn draw(self, random: &mut Pcg64) -> f64 {
        match self {
            Self::Gamma(shape) if shape < 1.0 => {
                let boost = random::uniform(random).ln() / shape;
                boost + random::gamma(random, shape + 1.0).ln()
            }
            Self::Gamma(shape) => random::gamma(random, shape).ln(),
            Self::Weibull(shape) => random::exponential(random).ln() / shape,
        }
    }

    /// The times of this many requests, as shares of the window, in no order.
    fn times(self, count: usize, random: &mut Pcg64) -> Vec<f64> {
        let logarithms: Vec<f64> = (0..count).map(|_| self.draw(random)).collect();
        let longest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let gap =
            |logarithm: &f64| if longest.is_finite() { (logarithm - longest).exp() } else { 1.0 };
        let total: f64 = logarithms.iter().map(gap).sum();
        let mut at = random.random::<f64>() * total;
        let mut after = |logarithm: &f64| {
            at += gap(logarithm);
            (at / total).fract()
        };
        logarithms.iter().map(&mut after).collect()
    }
}

// === impl Window ===

impl Window {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a number of requests is not negative, and the cast saturates"
    )]
    fn count(&self, random: &mut Pcg64) -> usize {
        let whole = self.requests.round();
        if (self.requests - whole).abs() < WHOLE {
            return whole as usize;
        }
        let more = random.random::<f64>() < self.requests.fract();
        self.requests as usize + usize::from(more)
    }
}

// === impl Sent ===

impl Sent {
    pub(super) fn new(described: Described, times: Pcg64, lengths: Pcg64) -> Self {
        Self {
            speed: Speed::new(described.speed),
            described,
            base: Micros::ZERO,
            next: 0,
            drawn: Vec::new().into_iter(),
            times,
            lengths,
        }
    }

    /// Draws the windows that begin next, all of one time.
    fn draw(&mut self) {
        let Self { described, speed, base, times, lengths, .. } = self;
        let left = &described.windows[self.next..];
        let Some(begins) = left.first().map(|window| window.at) else { return };
        let windows = &left[..left.partition_point(|window| window.at == begins)];
        let mut drawn = Vec::new();
        let mut copies = described.copies;
        while copies > 0.0 {
            for window in windows {
                let count = window.count(times);
                for share in window.gaps.times(count, times) {
                    if copies < 1.0 && times.random::<f64>() >= copies {
                        continue;
                    }
                    let within = Micros::from_secs_f64(described.width.seconds() * share);
                    let at = *base + speed.of(begins + within);
                    drawn.push(Arrival { at, size: window.sizes.draw(lengths), prompt: None });
                }
            }
            copies -= 1.0;
        }
        drawn.sort_by_key(|arrival| arrival.at);
        self.next += windows.len();
        self.drawn = drawn.into_iter();
    }
}

impl Iterator for Sent {
    type Item = Arrival;

    fn next(&mut self) -> Option<Arrival> {
        let mut silent = 0;
        loop {
            if let Some(arrival) = self.drawn.next() {
                return Some(arrival);
            }
            if self.next >= self.described.windows.len() {
                silent += 1;
                if silent > SILENT_MAX {
                    return None;
                }
                self.next = 0;
                self.base += self.speed.of(self.described.span).max(Micros::new(1));
            }
            self.draw();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};
    use crate::simulate::workload::load::{Lengths, Load};

    const WIDTH: Micros = Micros::from_secs(600);

    fn window(at: u64, requests: f64, gaps: Gaps, prompt: u32) -> Window {
        let sizes =
            Sizes::Apart { prompt: Lengths::Fixed(prompt), output: Lengths::Fixed(1) }.into();
        Window { at: Micros::from_secs(at), requests, gaps, sizes }
    }

    /// One client for two windows, and another in the first of them alone, of three.
    fn described(copies: f64, speed: f64) -> Described {
        let windows = [
            window(0, 1_200.0, Gaps::Gamma(0.25), 1),
            window(0, 60.0, Gaps::Weibull(0.5), 2),
            window(600, 300.0, Gaps::Gamma(1.0), 1),
        ];
        let span = Micros::from_secs(1_800);
        Described { windows: windows.into(), width: WIDTH, span, copies, speed }
    }

    fn arrivals(described: Described, seed: u64, until: u64) -> Vec<Arrival> {
        let until = Micros::from_secs(until);
        let load = Load::Described(described);
        let arrivals: Vec<Arrival> =
            load.arrivals(seed, 0).take_while(|arrival| arrival.at < until).collect();
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at), "times ascend");
        arrivals
    }

    #[test]
    fn each_client_sends_in_each_window_what_it_says_and_begins_again_after_the_last() {
        let all = arrivals(described(1.0, 1.0), 1, 3_600);
        let count = |from: u64, prompt: u32| {
            let (from, to) = (Micros::from_secs(from), Micros::from_secs(from + 600));
            let is = |it: &&Arrival| (from..to).contains(&it.at) && it.size.prompt == prompt;
            all.iter().filter(is).count()
        };
        for round in [0, 1_800] {
            assert_eq!([count(round, 1), count(round, 2)], [1_200, 60]);
            assert_eq!([count(round + 600, 1), count(round + 600, 2)], [300, 0]);
            assert_eq!(count(round + 1_200, 1), 0, "nobody sends anything in the third window");
        }
        assert_eq!(arrivals(described(1.0, 1.0), 1, 3_600), all, "one seed has one sequence");
        assert_ne!(arrivals(described(1.0, 1.0), 2, 3_600), all);
    }

    #[test]
    fn clients_are_many_times_as_many_and_as_fast_as_is_asked_for() {
        assert_eq!(arrivals(described(3.0, 1.0), 1, 1_800).len(), 3 * 1_560);
        assert_eq!(arrivals(described(1.0, 2.0), 1, 900).len(), 1_560);
        // Half of 1,560 with a standard deviation of 20; the bound is four of those.
        let half = arrivals(described(0.5, 1.0), 1, 1_800).len();
        assert!((700..=860).contains(&half), "{half}");
        assert_eq!(arrivals(described(1e-300, 1.0), 1, 1_800), [], "and there is an end to it");
    }

    #[test]
    fn gaps_have_the_variation_of_their_distribution_and_do_not_begin_with_the_window() {
        // The coefficient of variation is 1 / sqrt(shape) for Gamma, and sqrt(5) for Weibull at 0.5.
        for (gaps, want) in
            [(Gaps::Gamma(0.25), 2.0), (Gaps::Gamma(4.0), 0.5), (Gaps::Weibull(0.5), 5_f64.sqrt())]
        {
            let mut random = generator(1, Purpose::Times, 0);
            let alone = gaps.times(1, &mut random);
            assert!((0.01..0.99).contains(&alone[0]), "{alone:?}");
            let mut at = gaps.times(100_000, &mut random);
            at.sort_by(f64::total_cmp);
            let gaps: Vec<f64> = at.windows(2).map(|pair| pair[1] - pair[0]).collect();
            let mean = gaps.iter().sum::<f64>() / gaps.len() as f64;
            let variance = gaps.iter().map(|g| (g - mean).powi(2)).sum::<f64>() / gaps.len() as f64;
            let got = variance.sqrt() / mean;
            assert!((got / want - 1.0).abs() < 0.05, "{got} for {want}");
        }
    }

    #[test]
    fn gaps_that_are_further_apart_than_numbers_can_be_are_a_burst_and_a_silence() {
        for gaps in [Gaps::Gamma(1e-9), Gaps::Weibull(1e-9)] {
            let at = gaps.times(10, &mut generator(1, Purpose::Times, 0));
            assert!(at.iter().all(|at| (0.0..1.0).contains(at)), "{at:?}");
        }
    }
}
