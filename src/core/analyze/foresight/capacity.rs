//! How many requests a second one replica carries, by what an iteration takes.
//!
//! # Model
//!
//! `L` requests a second with `I` prompt and `O` output tokens each put `L * T * I` prompt tokens
//! and `L * T * O` generating requests into an iteration of `T` seconds, so
//!
//! ```text
//! w = beta * I + delta * O                  seconds of work in a request
//! T = alpha / (1 - L * w)                   an iteration at this rate
//! n = L * O * T                             requests that generate (Little's law)
//! p = L * T * ceil(I / budget)              requests whose prompt is being computed
//! ```
//!
//! What a replica carries is the largest `L` at which all of these hold, each to a share: `T` is no
//! longer than the target for the time between tokens; `n + p` have places in the batch; their KV
//! tokens `n * k + p * I` fit; the tokens of an iteration, `L * (I + O) * T`, fit its budget. Each
//! grows with `L`, so bisection finds it.
//!
//! `k`, the KV tokens that a running request holds, is measured. It is not `I + O / 2`: long
//! requests stay longer, so more of those that run are long.
//!
//! # Domain
//!
//! Poisson-like arrivals smoothed over a few iterations. The share is what a random batch leaves
//! above
//! its mean. A replica at its limit has a queue of its own making; `demand` adds what bursts need.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::pace::Iteration;
use crate::units::{Fraction, RequestRate, Seconds, Tokens};

/// Halvings of the interval in which the rate lies: more than a double can tell apart.
const HALVINGS: u32 = 52;

/// What requests look like to an engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Requested {
    /// Mean tokens of a prompt.
    pub prompt: Tokens,
    /// Mean tokens of an answer.
    pub output: Tokens,
    /// Mean KV tokens that a running request holds.
    pub held: Tokens,
}

/// What an engine has room for, each rank of it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The target for the mean time between tokens; `None` when there is none.
    pub itl: Option<Seconds>,
    /// Requests in a batch.
    pub seats: f64,
    /// Tokens in the KV cache; `None` when the engine does not say.
    pub kv: Option<Tokens>,
    /// Tokens in an iteration.
    pub budget: f64,
    /// The share of each of these that may be used.
    pub share: Fraction,
}

/// Seconds between tokens that are soon enough where no objective says otherwise: ten tokens a
/// second are more than people read.
const USUAL_ITL: f64 = 0.1;

/// How many times as long as alone on a replica a request may take where no objective says
/// otherwise: an engine on which that takes longer than [`USUAL_ITL`] still serves batches.
const USUAL_SLOWER: f64 = 2.0;

/// The target for the time between tokens where none is given. Some number of replicas always meets
/// it.
#[must_use]
pub fn usual_itl(iteration: Iteration) -> Option<Seconds> {
    Seconds::new(USUAL_ITL.max(USUAL_SLOWER * (iteration.alpha + iteration.delta)))
}

/// What keeps a replica from carrying more.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The time between tokens.
    #[display("the time between tokens")]
    Itl,
    /// Places in the batch.
    #[display("places in the batch")]
    Seats,
    /// The KV cache.
    #[display("the KV cache")]
    Kv,
    /// Tokens in an iteration.
    #[display("tokens in an iteration")]
    Budget,
}

/// What one replica carries, and why no more.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Carried {
    /// Requests a second.
    pub rate: RequestRate,
    /// What is reached first.
    pub bound: Bound,
    /// Time between the tokens of a request that is alone on a replica.
    pub alone: Seconds,
}

impl Bound {
    /// The bound as a word, in answers.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Itl => "itl",
            Self::Seats => "seats",
            Self::Kv => "kv",
            Self::Budget => "budget",
        }
    }
}

/// What one rank carries; `None` when requests have no length.
#[must_use]
pub fn carried(iteration: Iteration, requested: &Requested, limits: &Limits) -> Option<Carried> {
    let Iteration { alpha, beta, delta } = iteration;
    let (prompt, output) = (requested.prompt.tokens(), requested.output.tokens());
    let work = beta * prompt + delta * output;
    if work <= 0.0 || !work.is_finite() {
        return None;
    }
    let broken = |rate: f64| {
        let time = alpha / (1.0 - rate * work);
        let generating = rate * output * time;
        let computing = rate * time * (prompt / limits.budget).ceil();
        let held = generating * requested.held.tokens() + computing * prompt;
        let tokens = rate * (prompt + output) * time;
        let over = |value: f64, limit: f64| value > limits.share.fraction() * limit;
        [
            (Bound::Itl, limits.itl.is_some_and(|itl| over(time, itl.seconds()))),
            (Bound::Seats, over(generating + computing, limits.seats)),
            (Bound::Kv, limits.kv.is_some_and(|kv| over(held, kv.tokens()))),
            (Bound::Budget, over(tokens, limits.budget)),
        ]
        .into_iter()
        .find_map(|(bound, broken)| broken.then_some(bound))
    };
    // Below the least rate nothing binds but an iteration that is too long when empty.
    let (mut low, mut high) = (0.0, 1.0 / work);
    let mut bound = Bound::Budget;
    for _ in 0..HALVINGS {
        let middle = f64::midpoint(low, high);
        match broken(middle) {
            Some(found) => (high, bound) = (middle, found),
            None => low = middle,
        }
    }
    Some(Carried { rate: RequestRate::new(low)?, bound, alone: Seconds::new(alpha + delta)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ITERATION: Iteration =
        Iteration { alpha: 0.007_05, beta: 0.000_019_5, delta: 0.000_025_4 };

    fn requested(prompt: f64, output: f64) -> Requested {
        let tokens = |value: f64| Tokens::new(value).unwrap();
        Requested {
            prompt: tokens(prompt),
            output: tokens(output),
            held: tokens(prompt + output / 2.0),
        }
    }

    const SHARE: f64 = 0.92;

    fn roomy() -> Limits {
        let share = Fraction::new(SHARE).unwrap();
        Limits { itl: None, seats: 256.0, kv: None, budget: 2048.0, share }
    }

    fn rate(requested: &Requested, limits: &Limits) -> (f64, Bound) {
        let Carried { rate, bound, .. } = carried(ITERATION, requested, limits).unwrap();
        (rate.requests_per_second(), bound)
    }

    #[test]
    fn a_batch_that_is_full_carries_what_the_closed_form_says() {
        // With 256 places: N / o requests end in each iteration of b0 + b1 i c + b2 N (o - 1) / o.
        let (found, bound) = rate(&requested(1024.0, 128.0), &Limits { budget: 1e9, ..roomy() });
        let (batch, c) = (256.0 * SHARE, 256.0 * SHARE / 129.0);
        let time = 0.007_05 + 0.000_019_5 * 1024.0 * c + 0.000_025_4 * batch;
        assert_eq!(bound, Bound::Seats);
        assert!((found / (c / time) - 1.0).abs() < 0.01, "{found} against {}", c / time);
    }

    // The worked example of docs/models.md.
    #[test]
    fn the_worked_example_holds() {
        let limits = Limits { itl: Seconds::new(0.03), kv: Tokens::new(900_000.0), ..roomy() };
        let (found, bound) = rate(&requested(1000.0, 200.0), &limits);
        let time = 0.92 * 0.03;
        let by_hand = (1.0 - 0.007_05 / time) / (1000.0 * 19.5e-6 + 200.0 * 25.4e-6);
        assert!((found - by_hand).abs() < 1e-9 && (found - 30.29).abs() < 0.005, "{found}");
        assert_eq!(bound, Bound::Itl);
        assert!((found * 200.0 * time - 167.2).abs() < 0.05);
        assert!((found * 1200.0 * time - 1003.25).abs() < 0.05);
    }

    #[test]
    fn each_limit_binds_where_it_is_the_tightest() {
        let shape = requested(1000.0, 200.0);
        let tokens = |value: f64| Tokens::new(value);
        assert_eq!(rate(&shape, &Limits { itl: Seconds::new(0.01), ..roomy() }).1, Bound::Itl);
        assert_eq!(rate(&shape, &Limits { kv: tokens(9000.0), ..roomy() }).1, Bound::Kv);
        assert_eq!(rate(&shape, &Limits { seats: 8.0, ..roomy() }).1, Bound::Seats);
        assert_eq!(rate(&shape, &Limits { budget: 256.0, ..roomy() }).1, Bound::Budget);
    }

    #[test]
    fn a_looser_limit_never_carries_less() {
        let shape = requested(1000.0, 200.0);
        let mut before = 0.0;
        for itl in 8..60 {
            let itl = Seconds::new(f64::from(itl) / 1000.0);
            let (found, _) = rate(&shape, &Limits { itl, ..roomy() });
            assert!(found >= before);
            before = found;
        }
    }

    #[test]
    fn a_target_below_an_empty_iteration_is_met_by_nothing() {
        let limits = Limits { itl: Seconds::new(0.005), ..roomy() };
        assert!(rate(&requested(1000.0, 200.0), &limits).0 < 1e-6);
    }

    #[test]
    fn the_usual_target_is_met_by_some_number_of_replicas_however_slow_they_are() {
        for slower in [1.0, 10.0, 100.0, 1000.0] {
            let Iteration { alpha, beta, delta } = ITERATION;
            let iteration =
                Iteration { alpha: alpha * slower, beta: beta * slower, delta: delta * slower };
            let limits = Limits { itl: usual_itl(iteration), ..roomy() };
            let found = carried(iteration, &requested(1000.0, 200.0), &limits).unwrap();
            let alone = 1.0 / (slower * (alpha + delta) * 200.0);
            let rate = found.rate.requests_per_second();
            assert!(rate > 0.5 * alone, "{rate} of {alone} at {slower} times");
        }
    }
}
