//! Clients that a service has described rather than recorded. The description has, per client and
//! window, the request count, the distribution of the gaps and the lengths of the requests.
//!
//! # Rule
//!
//! In each window, a client sends the request count of the window. That many gaps are drawn and
//! scaled so that together they are as long as the window. They begin at a random point of it, and
//! the part beyond its end wraps to its beginning. Otherwise all clients would send a request
//! whenever a window begins.
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
use crate::simulate::workload::arrival::RequestArrival;
use crate::simulate::workload::lengths::Sizes;
use crate::simulate::workload::round::Speed;

/// Consecutive rounds without a request after which the arrivals end.
const SILENT_MAX: u32 = 1_000;

/// A request count this close to a whole number is rounded to it: the count was computed from a
/// rate.
const WHOLE: f64 = 1e-6;

/// The windows of described clients, repeated in rounds.
#[derive(Clone, Debug)]
pub struct Described {
    /// The windows that have requests, ordered by time and then by client.
    pub windows: Arc<[Window]>,
    /// The length of each window.
    pub width: Micros,
    /// The length of a round; no window ends later.
    pub span: Micros,
    /// The copies of each client, each of which sends at its own times. If this is not a whole
    /// number, the last copy sends only a share of its requests.
    pub copies: f64,
    /// The factor by which time runs faster.
    pub speed: f64,
}

/// The requests of one client in one window.
#[derive(Clone, Debug)]
pub struct Window {
    /// The start of the window.
    pub at: Micros,
    /// The request count; a fractional part is the probability of one more request.
    pub requests: f64,
    /// The distribution of the gaps between requests.
    pub gaps: Gaps,
    /// The lengths of the requests.
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
pub struct ClientArrivals {
    described: Described,
    speed: Speed,
    /// The start of this round.
    base: Micros,
    /// The first window that has not been drawn.
    next: usize,
    /// Drawn requests that are still to come.
    drawn: vec::IntoIter<RequestArrival>,
    times: Pcg64,
    lengths: Pcg64,
}

// === impl Gaps ===

impl Gaps {
    /// Returns the logarithm of a gap. The gaps of bursty clients differ by more than the range of
    /// `f64`.
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

    /// The times of this many requests, as shares of the window, unsorted.
    fn times(self, count: usize, random: &mut Pcg64) -> Vec<f64> {
        let logarithms: Vec<f64> = (0..count).map(|_| self.draw(random)).collect();
        let longest = logarithms.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let total: f64 = logarithms.iter().map(|it| gap(*it, longest)).sum();

        let mut at = random.random::<f64>() * total;
        let mut times = Vec::with_capacity(count);
        for logarithm in logarithms {
            at += gap(logarithm, longest);
            times.push((at / total).fract());
        }

        times
    }
}

/// The gap with this logarithm, as a share of the longest one.
fn gap(logarithm: f64, longest: f64) -> f64 {
    if longest.is_finite() { (logarithm - longest).exp() } else { 1.0 }
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

// === impl ClientArrivals ===

impl ClientArrivals {
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

    /// Draws all windows that begin at the next start time.
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
                    drawn.push(RequestArrival {
                        at,
                        size: window.sizes.draw(lengths),
                        prompt: None,
                    });
                }
            }

            copies -= 1.0;
        }

        drawn.sort_by_key(|arrival| arrival.at);
        self.next += windows.len();
        self.drawn = drawn.into_iter();
    }
}

impl Iterator for ClientArrivals {
    type Item = RequestArrival;

    fn next(&mut self) -> Option<RequestArrival> {
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

    /// Of three windows, one client sends in the first two, and another only in the first.
    fn described(copies: f64, speed: f64) -> Described {
        let windows = [
            window(0, 1_200.0, Gaps::Gamma(0.25), 1),
            window(0, 60.0, Gaps::Weibull(0.5), 2),
            window(600, 300.0, Gaps::Gamma(1.0), 1),
        ];
        let span = Micros::from_secs(1_800);
        Described { windows: windows.into(), width: WIDTH, span, copies, speed }
    }

    fn arrivals(described: Described, seed: u64, until: u64) -> Vec<RequestArrival> {
        let end = Micros::from_secs(until);
        let load = Load::Described(described);
        let arrivals: Vec<RequestArrival> =
            load.arrivals(seed, 0).take_while(|arrival| arrival.at < end).collect();
        assert!(arrivals.is_sorted_by_key(|arrival| arrival.at), "times ascend");
        arrivals
    }

    /// The requests of ten minutes with this many prompt tokens.
    fn count(all: &[RequestArrival], from: u64, prompt: u32) -> usize {
        let window = Micros::from_secs(from)..Micros::from_secs(from + 600);
        let of_prompt = all.iter().filter(|it| it.size.prompt == prompt);
        of_prompt.filter(|it| window.contains(&it.at)).count()
    }

    #[test]
    fn each_client_sends_in_each_window_what_it_says_and_begins_again_after_the_last() {
        let all = arrivals(described(1.0, 1.0), 1, 3_600);
        for round in [0, 1_800] {
            assert_eq!([1, 2].map(|prompt| count(&all, round, prompt)), [1_200, 60]);
            assert_eq!([1, 2].map(|prompt| count(&all, round + 600, prompt)), [300, 0]);
            let third = count(&all, round + 1_200, 1);
            assert_eq!(third, 0, "nobody sends anything in the third window");
        }

        assert_eq!(arrivals(described(1.0, 1.0), 1, 3_600), all, "one seed has one sequence");
        assert_ne!(arrivals(described(1.0, 1.0), 2, 3_600), all);
    }

    #[test]
    fn clients_are_many_times_as_many_and_as_fast_as_is_asked_for() {
        assert_eq!(arrivals(described(3.0, 1.0), 1, 1_800).len(), 3 * 1_560);
        assert_eq!(arrivals(described(1.0, 2.0), 1, 900).len(), 1_560);
        // Half of 1,560, with a standard deviation of 20; the bound is four standard deviations.
        let half = arrivals(described(0.5, 1.0), 1, 1_800).len();
        assert!((700..=860).contains(&half), "{half}");
        assert_eq!(arrivals(described(1e-300, 1.0), 1, 1_800), [], "and there is an end to it");
    }

    #[test]
    fn gaps_have_the_variation_of_their_distribution_and_do_not_begin_with_the_window() {
        // The coefficient of variation is 1 / sqrt(shape) for Gamma, and sqrt(5) for Weibull at
        // 0.5.
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
