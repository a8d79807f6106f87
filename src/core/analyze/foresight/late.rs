//! The share of requests that come late at a rate.
//!
//! # Model
//!
//! With the symbols of [`capacity`](crate::analyze::foresight::capacity): requests come at random,
//! `L` per second to each of `N` replicas. `s` is the mean square of the computed tokens of prompts
//! over the square of their mean, and `s'` the same for the lengths of answers. If a cache holds
//! most of a prompt for some requests and nothing for others, `s` is larger than that of whole
//! prompts.
//!
//! **Time between tokens.** The iterations of a request take `T0` without prompts. A request meets
//! the prompts of others: `D L T` of them in the `D` iterations of its answer, each of `beta C`
//! seconds. So they add `X` seconds, a compound Poisson distribution. It is approximated by the
//! gamma distribution with the same mean and variance. The mean time between the tokens of this
//! request exceeds a target `i` if `X` exceeds the remaining time. A short answer that meets one
//! prompt is late, a long one is not:
//!
//! ```text
//! T0 = T - L * T * beta * C
//! X ~ gamma(shape D * L * T / s, scale s * beta * C)
//! late = P(X > D * (a * i - T0)),    0 if a * i - T0 >= beta * budget
//! ```
//!
//! **Time to first token.** Prompts wait for one another. They share the `R` tokens that an
//! iteration has room for next to requests that generate. So one prompt takes `x` seconds, and for
//! a share `rho` of the time some prompt is computed. A first token comes at the end of its
//! iteration, so a prompt also waits for later prompts that share the iteration. These are `rho` of
//! its wait at most, and fewer if an iteration has no room for a whole prompt. A prompt of `c`
//! tokens takes `max(1, c / R + 1/2)` iterations, and half an iteration passes before the first.
//! `t` is the time of the objective `f` that remains for waiting:
//!
//! ```text
//! R = budget - n
//! x = C / R * (alpha + beta * R + delta * n)
//! t = f - c / C * x - (1/2 + max(1 - c / R, 1/2)) * (alpha + delta * n)
//! rho = L * x
//! e = 1 + rho * min(1, R / C)
//! late = rho * exp(-t * m * (1 - rho) / (e * s * x / 2))
//! ```
//!
//! **Places.** `n` of `c` places are taken, for `S` seconds each. They are the places of the batch,
//! or the requests that the cache holds. In the cache, sizes differ: `v` is the mean square of the
//! KV tokens of a request over the square of their mean. A few large requests need more room than
//! many small ones. `s''` is the mean square of the lengths of whole prompts over the square of
//! their mean:
//!
//! ```text
//! b = m / v * (c - n) / sqrt(m / v * c)
//! late = exp(-t * m / v * (c - n) * 2 / (s' * S)) / (1 + b * Phi(b) / phi(b))
//! v = 1 + ((s'' - 1) * I^2 + (4/3 * s' - 1) * (O / 2)^2) / k^2,    1 for places in the batch
//! ```
//!
//! # Domain
//!
//! `m` is 1 behind a router that sends requests to any replica, so each replica has its own queue.
//! It is `N` behind a router that finds a free replica, so all share a queue.
//! [`dispersion`](crate::analyze::foresight) measures it. Lengths are assumed to be lognormal, and
//! represented by five values each. A request that is late even when it is alone is late with any
//! replica count, and does not count.
//!
//! # Source
//!
//! Gamma: the cube root of Wilson and Hilferty (1931). Prompts: the mean wait of an M/G/1 queue
//! (Pollaczek and Khinchine), and its exponential tail in heavy traffic (Kingman 1962, *On queues
//! in heavy traffic*). Places: the share of requests that wait, by Halfin and Whitt (1981),
//! *Heavy-traffic limits for queues with many exponential servers*.

use std::f64::consts::{PI, SQRT_2};

use crate::analyze::foresight::limits::{CapacityLimits, FirstToken};
use crate::analyze::foresight::pace::IterationCost;
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::units::Tokens;

/// The share of requests that may come late.
pub(super) const LATE_SHARE: f64 = 0.01;

/// Standard deviations of a normal distribution at equal distances in probability: at 10%, 30%,
/// 50%, 70% and 90%.
const FIFTHS: [f64; 5] = [-1.2816, -0.5244, 0.0, 0.5244, 1.2816];

/// The properties that decide which requests to a replica come late.
pub(super) struct Lateness<'a> {
    pub(super) requested: &'a RequestProfile,
    pub(super) iteration: IterationCost,
    budget: f64,
    /// Replicas that are as good as one queue.
    shared: f64,
    prompts: [f64; 5],
    /// Iterations of answers.
    iterations: [f64; 5],
}

/// The load of a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct IterationLoad {
    /// Requests per second.
    pub(super) rate: f64,
    /// Seconds of an iteration.
    pub(super) time: f64,
}

/// Room for requests on a replica.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    /// Requests that are in it on average.
    pub(super) taken: f64,
    /// Requests that fit.
    pub(super) all: f64,
    /// The mean square of the room of each request over the square of its mean.
    pub(super) squares: f64,
}

impl<'a> Lateness<'a> {
    pub(super) fn new(
        requested: &'a RequestProfile,
        iteration: IterationCost,
        limits: &CapacityLimits,
    ) -> Self {
        let answers = fifths(requested.output, requested.answer_squares);

        Self {
            requested,
            iteration,
            budget: limits.budget,
            shared: limits.shared,
            prompts: fifths(requested.prompt, requested.prompt_squares),
            iterations: answers.map(|answer| requested.iterations_of(answer)),
        }
    }

    /// The share of requests whose tokens come more slowly than a target.
    pub(super) fn of_tokens(&self, busy: IterationLoad, itl: f64) -> f64 {
        let RequestProfile { computed_squares, pieces, .. } = *self.requested;

        let each = self.iteration.beta * self.requested.computed.tokens();
        let met = busy.rate * busy.time;
        let left = itl * pieces - (busy.time - met * each);
        if left >= self.iteration.beta * self.budget {
            return 0.0;
        }
        if left <= 0.0 {
            return 1.0;
        }

        let several = self.iterations.into_iter().filter(|iterations| iterations * pieces >= 1.0);
        let late = several.map(|iterations| {
            let shape = iterations * met / computed_squares;
            gamma_tail(shape, iterations * left / (computed_squares * each))
        });
        late.sum::<f64>() / self.iterations.len() as f64
    }

    /// The share of first tokens that come late, of the prompts that wait for others.
    pub(super) fn of_prompts(&self, busy: IterationLoad, first: FirstToken) -> f64 {
        let IterationCost { alpha, beta, delta } = self.iteration;
        let generating = busy.rate * self.requested.iterations() * busy.time;
        let room = self.budget - generating;
        let each = (alpha + beta * room + delta * generating) / room;
        let taken = self.requested.computed.tokens() * each;
        let used = busy.rate * taken;
        if room <= 0.0 || used >= 1.0 {
            return 1.0;
        }

        let together = 1.0 + used * (room / self.requested.computed.tokens()).min(1.0);
        let wait = together * self.requested.computed_squares * taken / 2.0;
        let fades = self.shared * (1.0 - used) / wait;
        let computed = self.requested.computed_share();
        let idle = alpha + delta * generating;

        let mut late = 0.0;
        let mut count = 0.0;
        for prompt in self.prompts {
            let own = prompt * computed;
            let within = first.allowed(prompt);

            let alone = own * (alpha / self.budget + beta) + unfilled(own, self.budget) * alpha;
            if within > alone {
                let left = within - own * each - unfilled(own, room) * idle;
                late += if left > 0.0 { used * (-left * fades).exp() } else { 1.0 };
                count += 1.0;
            }
        }

        late / f64::max(count, 1.0)
    }

    /// The share of requests with a late first token because they wait for a place.
    pub(super) fn of_places(&self, busy: IterationLoad, places: Places, first: FirstToken) -> f64 {
        let alike = self.shared / places.squares;
        let all = alike * places.all;
        let free = alike * (places.all - places.taken);
        if free <= 0.0 {
            return 1.0;
        }

        let RequestProfile { prompt, computed, .. } = self.requested;
        let chunks = self.requested.chunks(self.budget);
        let stay = busy.time * (self.requested.iterations() + chunks);
        let own = busy.time * (computed.tokens() / self.budget);
        let left = first.allowed(prompt.tokens()) - own;
        let fades = 2.0 * free / (self.requested.answer_squares * stay);
        waiting(free / all.sqrt()) * (-left.max(0.0) * fades).exp()
    }
}

/// Five typical lengths, given their mean and the mean square over the square of the mean.
fn fifths(mean: Tokens, squares: f64) -> [f64; 5] {
    let median = mean.tokens() / squares.sqrt();
    let sigma = squares.ln().max(0.0).sqrt();
    FIFTHS.map(|deviations| median * (sigma * deviations).exp())
}

/// The iterations that a prompt takes beyond those that it fills: half of the iteration that runs
/// when it comes, and the rest of its own.
fn unfilled(prompt: f64, room: f64) -> f64 {
    0.5 + (1.0 - prompt / room).max(0.5)
}

/// The share of requests that wait, with `free` standard deviations of places free.
fn waiting(free: f64) -> f64 {
    let density = (-free * free / 2.0).exp() / (2.0 * PI).sqrt();
    density / (density + free * (1.0 - normal_tail(free)))
}

/// The share of a gamma distribution with a scale of 1 above a value.
fn gamma_tail(shape: f64, value: f64) -> f64 {
    let variance = 1.0 / (9.0 * shape);
    normal_tail(((value / shape).cbrt() - (1.0 - variance)) / variance.sqrt())
}

/// The share of the standard normal distribution above a value.
fn normal_tail(value: f64) -> f64 {
    0.5 * libm::erfc(value / SQRT_2)
}

#[cfg(test)]
mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::analyze::foresight::capacity::tests::{ITERATION, requested};
    use crate::units::{Fraction, Seconds};

    fn limits(shared: f64) -> CapacityLimits {
        let share = Fraction::new(0.92).unwrap();
        let itl = None;
        let first = None;
        let kv = None;
        CapacityLimits { itl, first, seats: 256.0, kv, budget: 2048.0, share, shared }
    }

    fn within(seconds: f64) -> FirstToken {
        let long = Tokens::new(4000.0).unwrap();
        FirstToken { within: Seconds::new(seconds).unwrap(), per_token: Seconds::ZERO, long }
    }

    /// A normal number, from the sum of twelve uniform ones.
    fn normal(random: &mut Pcg64) -> f64 {
        (0..12).map(|_| random.random::<f64>()).sum::<f64>() - 6.0
    }

    // Requests of five lengths meet prompts at random, each with its own length.
    #[test]
    fn as_many_requests_are_slow_as_where_each_meets_prompts_by_chance() {
        for (prompt, output, rate, itl) in
            [(1000.0, 200.0, 28.0, 0.03), (4000.0, 30.0, 8.0, 0.05), (500.0, 300.0, 42.0, 0.0285)]
        {
            let requested = requested(prompt, output);
            let roomy = CapacityLimits { budget: 1e9, ..limits(1.0) };
            let lateness = Lateness::new(&requested, ITERATION, &roomy);
            let time = requested.time(ITERATION, rate);
            let found = lateness.of_tokens(IterationLoad { rate, time }, itl);

            let mut random = Pcg64::seed_from_u64(7);
            let sigma = 2.0_f64.ln().sqrt();
            let each = ITERATION.beta * prompt;
            let mut slow = 0.0;
            for request in 0..20_000 {
                let iterations = lateness.iterations[request % 5];
                let mut left = iterations * (itl - (time - rate * time * each));
                let mut met = -random.random::<f64>().ln();
                while met < rate * time * iterations {
                    left -= each * (sigma * normal(&mut random)).exp() / 2.0_f64.sqrt();
                    met -= random.random::<f64>().ln();
                }

                slow += f64::from(left < 0.0) / 20_000.0;
            }

            assert!((found / slow - 1.0).abs() < 0.3, "{found} of {slow} by chance");
        }
    }

    #[test]
    fn the_tail_of_a_gamma_distribution_is_that_of_sums_of_exponential_ones() {
        assert!((gamma_tail(1.0, 3.0) / (-3.0_f64).exp() - 1.0).abs() < 0.05);
        assert!((gamma_tail(2.0, 6.0) / (7.0 * (-6.0_f64).exp()) - 1.0).abs() < 0.05);
    }

    // Erlang C, exactly: 0.4092 for 10 places with 8 taken, 0.1741 for 4 with 2, 0.3116 for 100
    // with 92.
    #[test]
    fn as_many_wait_for_a_place_as_erlang_says() {
        let requested = requested(1000.0, 200.0);
        for (taken, all, waits) in [(8.0, 10.0, 0.409), (2.0, 4.0, 0.174), (92.0, 100.0, 0.312)] {
            let lateness = Lateness::new(&requested, ITERATION, &limits(1.0));
            let places = Places { taken, all, squares: 1.0 };
            let found =
                lateness.of_places(IterationLoad { rate: 1.0, time: 0.02 }, places, within(0.0));
            assert!((found - waits).abs() < 0.05, "{found} of {waits}");
        }
    }

    /// The share of late requests that wait for places, and for the prompts of others.
    fn late(shared: f64, squares: f64) -> (f64, f64) {
        let requested = requested(1000.0, 200.0);
        let lateness = Lateness::new(&requested, ITERATION, &limits(shared));
        let busy = IterationLoad { rate: 25.0, time: 0.02 };
        let places = Places { taken: 90.0, all: 100.0, squares };
        (lateness.of_places(busy, places, within(0.5)), lateness.of_prompts(busy, within(0.1)))
    }

    #[test]
    fn prompts_that_a_cache_holds_whole_or_not_at_all_make_more_answers_slow() {
        let alike = requested(1000.0, 30.0);
        // A tenth of all prompts is computed, and nothing of the others.
        let computed = Tokens::new(100.0).unwrap();
        let cached = RequestProfile { computed, ..alike };
        let uneven = RequestProfile { computed_squares: 10.0 * alike.prompt_squares, ..cached };
        let busy = IterationLoad { rate: 10.0, time: 0.01 };
        let [even, uneven] = [cached, uneven]
            .map(|it| Lateness::new(&it, ITERATION, &limits(1.0)).of_tokens(busy, 0.011));

        assert!(uneven > 3.0 * even, "{uneven} {even}");
    }

    /// The share of first tokens after 0.2 s, with this many tokens in an iteration. The work of a
    /// prompt does not depend on them.
    fn late_with(budget: f64) -> f64 {
        let profile = requested(1000.0, 200.0);
        let tokens = CapacityLimits { budget, ..limits(1.0) };
        let iteration = IterationCost { alpha: 0.0, delta: 0.0, ..ITERATION };

        let lateness = Lateness::new(&profile, iteration, &tokens);
        lateness.of_prompts(IterationLoad { rate: 25.0, time: 0.02 }, within(0.2))
    }

    #[test]
    fn prompts_that_end_in_one_iteration_wait_for_those_behind_them() {
        assert!(late_with(4096.0) > 1.1 * late_with(512.0));
    }

    /// A slow iteration next to short prompts of equal lengths.
    fn late_by(rate: f64, objective: f64) -> f64 {
        let iteration = IterationCost { alpha: 0.02, beta: 0.000_05, delta: 0.000_1 };
        let alike = RequestProfile { prompt_squares: 1.0, ..requested(300.0, 200.0) };
        let lateness = Lateness::new(&alike, iteration, &limits(1.0));
        let time = alike.time(iteration, rate);
        lateness.of_prompts(IterationLoad { rate, time }, within(objective))
    }

    #[test]
    fn a_short_prompt_takes_an_iteration_and_waits_for_half_of_another() {
        // Its tokens take 18 ms, and 1.35 iterations beyond those that it fills take 27 ms.
        assert!(late_by(15.0, 0.044) <= 0.0, "late even alone");
        assert!(late_by(15.0, 0.047) > 0.5);
    }

    #[test]
    fn more_requests_are_late_the_more_come() {
        let shares: Vec<f64> = (1..28).map(|rate| late_by(f64::from(rate), 0.1)).collect();
        assert!(shares.is_sorted() && shares.last() > Some(&0.9), "{shares:?}");
    }

    #[test]
    fn replicas_that_share_a_queue_let_fewer_wait_and_large_requests_more() {
        assert!(late(1.0, 1.0).0 > 2.0 * late(3.0, 1.0).0);
        assert!(late(1.0, 1.0).1 > 2.0 * late(3.0, 1.0).1);
        assert!(late(1.0, 3.0).0 > 1.5 * late(1.0, 1.0).0);
    }
}
