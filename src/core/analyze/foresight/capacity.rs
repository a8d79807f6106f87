//! The capacity per replica in requests per second, derived from the time of an iteration.
//!
//! # Model
//!
//! A request computes `C` prompt tokens in its first iteration, and generates the other `O - 1`
//! tokens of its answer. That takes `D = (O - 1) / a` iterations with `a` tokens each: one token,
//! or more with speculative decoding. `L` requests per second put `L * T * C` prompt tokens and
//! `L * T * D` generating requests into an iteration of `T` seconds. A generating request finds
//! these in addition to itself, so
//!
//! ```text
//! w = beta * C + delta * D                  seconds of work in a request
//! T = (alpha + delta) / (1 - L * w)         an iteration at this rate
//! n = L * D * T                             requests that generate (Little's law)
//! p = L * T * ceil(C / budget)              requests whose prompt is being computed
//! ```
//!
//! The capacity of a replica is the largest rate `L` at which all of these hold:
//!
//! - `T / a` is within a share of the target for the time between tokens, if answers have more than
//!   one token.
//! - The tokens of an iteration, `L * (C + O) * T`, fit a share of its budget.
//! - `n + p` requests have places in the batch.
//! - Their KV tokens, `n * k + p * I` with prompts of `I` tokens, fit the cache.
//!
//! Single requests meet or miss an objective, so at most one in a hundred [comes
//! late](crate::analyze::foresight::late) by each of them. Means follow from the formulas above.
//! The share of late requests grows with `L`, so a bracket around the right `L` is narrowed down.
//!
//! `k`, the KV tokens that a running request holds, is measured. It is not `I + O / 2`: long
//! requests stay longer, so more of those that run are long.
//!
//! # Domain
//!
//! Poisson-like arrivals, smoothed over a few iterations. The share leaves room for a random batch
//! above its mean. A replica that only decodes gets requests with a first token, and no objective
//! limits their wait. So the share also applies to its places and its cache. A replica at its limit
//! builds a queue of its own; `demand` adds the capacity that bursts need.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::late::{IterationLoad, LATE_SHARE, Lateness, Places};
use crate::analyze::foresight::limits::CapacityLimits;
use crate::analyze::foresight::pace::IterationCost;
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::units::{Fraction, RequestRate, Seconds, Tokens};

/// Requests per second below which a replica has no capacity: no replica count would be enough.
pub(super) const RATE_MIN: f64 = 1e-4;

/// The bracket width that is narrow enough, as a share of the rate.
const NARROW: f64 = 1e-6;

/// The last step of a secant, as a share of the rate. The next step would be about its square.
const CLOSE: f64 = 1e-4;

/// Steps after which the bracket is narrower than [`NARROW`], because every third step halves it.
const STEPS_MAX: u32 = 60;

/// Shares of late requests below this count as none.
const NONE_LATE: f64 = 1e-6;

/// Seconds between tokens that are fast enough without an objective: ten tokens per second are
/// faster than people read.
const USUAL_ITL: f64 = 0.1;

/// The factor by which the time between tokens may exceed that of a request alone on a replica,
/// without an objective. So an engine that is slower than [`USUAL_ITL`] still serves batches.
const USUAL_SLOWER: f64 = 2.0;

/// The default target for the time between tokens, with this many tokens per output. Some replica
/// count always meets it.
#[must_use]
pub fn usual_itl(iteration: IterationCost, pieces: f64) -> Option<Seconds> {
    Seconds::new(USUAL_ITL.max(USUAL_SLOWER * (iteration.alpha + iteration.delta) / pieces))
}

/// The limit that binds the capacity of a replica.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CapacityBound {
    /// The time between tokens.
    #[display("the time between tokens")]
    Itl,
    /// The time to first token.
    #[display("the time to first token")]
    Ttft,
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

/// The capacity of one replica, and the limit that binds it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ReplicaCapacity {
    /// Requests per second.
    pub rate: RequestRate,
    /// The same rate without a correction by full replicas.
    pub by_formula: RequestRate,
    /// The share of it that the router lets a replica use; zero if the variant is not to be used.
    pub usable: Fraction,
    /// The limit that is reached first.
    pub bound: CapacityBound,
    /// The time between tokens of a request alone on a replica.
    pub alone: Seconds,
    /// The time for which a request generates, at this rate.
    pub stay: Seconds,
}

// === impl ReplicaCapacity ===

impl ReplicaCapacity {
    /// Requests per second that a replica counts for, next to the other variants of its role.
    pub(super) fn counts(&self) -> f64 {
        self.rate.requests_per_second() * self.usable.fraction().max(UNUSED)
    }
}

/// The share for a replica that is not to be used. It is too small for the replica to be requested.
const UNUSED: f64 = 1e-12;

// === impl RequestProfile ===

impl RequestProfile {
    /// The requests for which the cache has room, while the present ones hold `held` tokens.
    fn in_cache(&self, held: f64, all: Tokens) -> Places {
        let each = self.held.tokens().max(1.0);
        let prompts = (self.prompt_squares - 1.0) * self.prompt.tokens().powi(2);
        let answers =
            (4.0 / 3.0 * self.answer_squares - 1.0) * (self.output.tokens() / 2.0).powi(2);
        let squares = 1.0 + (prompts + answers) / (each * each);
        Places { taken: held / each, all: all.tokens() / each, squares }
    }
}

// === impl CapacityLimits ===

impl CapacityLimits {
    /// The highest rates at which the means hold, each with its limit.
    fn means(
        &self,
        requested: &RequestProfile,
        iteration: IterationCost,
    ) -> [(CapacityBound, f64); 4] {
        let RequestProfile { computed, output, prompt, held, pieces, .. } = requested;
        let share = self.share.fraction();
        let iterations = requested.iterations();
        let itl = self.itl.filter(|_| iterations > 0.0).map_or(f64::INFINITY, |target| {
            let longest = share * target.seconds() * pieces;
            let idle = iteration.alpha + iteration.delta;
            (1.0 - idle / longest).max(0.0) / requested.work(iteration)
        });

        let tokens = computed.tokens() + output.tokens();
        let budget = requested.rate_with(iteration, share * self.budget, tokens);

        let chunks = requested.chunks(self.budget);
        let kv_each = iterations * held.tokens() + chunks * prompt.tokens();
        let [seats, kv] = match self.first {
            // The share of requests that wait for places is more exact.
            Some(_) => [f64::INFINITY; 2],
            None => [
                requested.rate_with(iteration, share * self.seats, iterations + chunks),
                self.kv.map_or(f64::INFINITY, |kv| {
                    requested.rate_with(iteration, share * kv.tokens(), kv_each)
                }),
            ],
        };

        [
            (CapacityBound::Budget, budget),
            (CapacityBound::Itl, itl),
            (CapacityBound::Seats, seats),
            (CapacityBound::Kv, kv),
        ]
    }

    /// The rate of a full rank: nothing is left free, and no objective holds.
    pub(super) fn most(&self, iteration: IterationCost, requested: &RequestProfile) -> f64 {
        let all = Self { itl: None, first: None, share: Fraction::ONE, ..*self };
        let rates = all.means(requested, iteration).map(|(_, rate)| rate);
        rates.into_iter().fold(f64::INFINITY, f64::min)
    }

    /// The share of requests that come late at a rate because of one limit.
    fn late(&self, bound: CapacityBound, lateness: &Lateness<'_>, rate: f64) -> Option<f64> {
        let Lateness { requested, iteration, .. } = *lateness;
        let time = requested.time(iteration, rate);
        let busy = IterationLoad { rate, time };

        let iterations = requested.iterations();
        let generating = rate * iterations * time;
        let computing = rate * time * requested.chunks(self.budget);
        match bound {
            CapacityBound::Itl => {
                let itl = self.itl.filter(|_| iterations > 0.0)?;
                Some(lateness.of_tokens(busy, itl.seconds()))
            }
            CapacityBound::Ttft => Some(lateness.of_prompts(busy, self.first?)),
            CapacityBound::Seats => {
                let taken = generating + computing;
                let seats = Places { taken, all: self.seats, squares: 1.0 };
                Some(lateness.of_places(busy, seats, self.first?))
            }
            CapacityBound::Kv => {
                let prompts = computing * requested.prompt.tokens();
                let held = generating * requested.held.tokens() + prompts;
                Some(lateness.of_places(busy, requested.in_cache(held, self.kv?), self.first?))
            }
            CapacityBound::Budget => None,
        }
    }
}

// === impl CapacityBound ===

impl CapacityBound {
    /// The bound as a word, in answers.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Itl => "itl",
            Self::Ttft => "ttft",
            Self::Seats => "seats",
            Self::Kv => "kv",
            Self::Budget => "budget",
        }
    }
}

/// The capacity of one rank; `None` if requests have no length.
#[must_use]
pub fn carried(
    iteration: IterationCost,
    requested: &RequestProfile,
    limits: &CapacityLimits,
) -> Option<ReplicaCapacity> {
    let work = requested.work(iteration);
    if work <= 0.0 || !work.is_finite() {
        return None;
    }

    let means = limits.means(requested, iteration).into_iter();
    let (mut bound, mut rate) = means.min_by(|a, b| a.1.total_cmp(&b.1))?;
    let lateness = Lateness::new(requested, iteration, limits);
    for limit in [CapacityBound::Seats, CapacityBound::Kv, CapacityBound::Itl, CapacityBound::Ttft]
    {
        if limits.late(limit, &lateness, rate).is_some_and(|share| share > LATE_SHARE) {
            rate = largest(rate, |rate| limits.late(limit, &lateness, rate).unwrap_or(0.0));
            bound = limit;
        }
    }

    let alone = Seconds::new((iteration.alpha + iteration.delta) / requested.pieces)?;
    let stay = Seconds::new(requested.time(iteration, rate) * requested.iterations())?;
    let by_formula = RequestRate::new(rate)?;
    Some(ReplicaCapacity {
        rate: by_formula,
        by_formula,
        usable: Fraction::ONE,
        bound,
        alone,
        stay,
    })
}

/// The logarithm of a late share, relative to the share that may be late.
fn beyond(late: f64) -> f64 {
    (late.max(NONE_LATE) / LATE_SHARE).ln()
}

/// The largest rate at which no more requests than allowed come late, below a rate that is too
/// high. Uses the rule of false position as in the Illinois algorithm, with a bisection at every
/// third step. It ends once a secant through the last two rates hardly moves.
fn largest(too_high: f64, late: impl Fn(f64) -> f64) -> f64 {
    let mut low = 0.0;
    let mut high = too_high;
    let mut below = beyond(late(low));
    let mut above = beyond(late(high));
    let mut last = (high, above);
    let mut was_beyond = None;

    for step in 1..=STEPS_MAX {
        if high - low <= NARROW * high {
            break;
        }

        let between = (low * above - high * below) / (above - below);
        let is_between = step % 3 != 0 && low < between && between < high;
        let rate = if is_between { between } else { f64::midpoint(low, high) };
        let found = beyond(late(rate));

        let further = found * (rate - last.0) / (found - last.1);
        if further.abs() <= CLOSE * rate {
            return rate - further;
        }

        last = (rate, found);

        let is_beyond = found > 0.0;
        // An end that has not moved counts half. Otherwise it would stay for long.
        let weight = if was_beyond.replace(is_beyond) == Some(is_beyond) { 0.5 } else { 1.0 };
        if is_beyond {
            (high, above, below) = (rate, found, weight * below);
        } else {
            (low, below, above) = (rate, found, weight * above);
        }
    }

    low
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::analyze::foresight::limits::FirstToken;

    pub(in crate::analyze::foresight) const ITERATION: IterationCost =
        IterationCost { alpha: 0.007_05, beta: 0.000_019_5, delta: 0.000_025_4 };

    fn tokens(value: f64) -> Tokens {
        Tokens::new(value).unwrap()
    }

    /// Requests of these mean lengths, which vary like those of Azure's traces.
    pub(in crate::analyze::foresight) fn requested(prompt: f64, output: f64) -> RequestProfile {
        RequestProfile {
            prompt: tokens(prompt),
            computed: tokens(prompt),
            output: tokens(output),
            prompt_squares: 2.0,
            computed_squares: 2.0,
            answer_squares: 2.0,
            pieces: 1.0,
            held: tokens(prompt + output / 2.0),
        }
    }

    const SHARE: f64 = 0.92;

    fn roomy() -> CapacityLimits {
        let share = Fraction::new(SHARE).unwrap();
        CapacityLimits {
            itl: None,
            first: None,
            seats: 256.0,
            kv: None,
            budget: 2048.0,
            share,
            shared: 1.0,
        }
    }

    fn rate(requested: &RequestProfile, limits: &CapacityLimits) -> (f64, CapacityBound) {
        let ReplicaCapacity { rate, bound, .. } = carried(ITERATION, requested, limits).unwrap();
        (rate.requests_per_second(), bound)
    }

    #[test]
    fn a_batch_that_is_full_carries_what_the_closed_form_says() {
        // With 256 places: N / o requests end in each iteration of b0 + b1 i c + b2 N (o - 1) / o.
        let (found, bound) =
            rate(&requested(1024.0, 128.0), &CapacityLimits { budget: 1e9, ..roomy() });
        let batch = 256.0 * SHARE;
        let c = 256.0 * SHARE / 129.0;
        let time = 0.007_05 + 0.000_019_5 * 1024.0 * c + 0.000_025_4 * batch;
        assert_eq!(bound, CapacityBound::Seats);
        assert!((found / (c / time) - 1.0).abs() < 0.01, "{found} against {}", c / time);
    }

    // The worked example of docs/models.md.
    #[test]
    fn the_worked_example_holds() {
        let limits =
            CapacityLimits { itl: Seconds::new(0.03), kv: Tokens::new(900_000.0), ..roomy() };
        let (found, bound) = rate(&requested(1000.0, 200.0), &limits);
        let work = 1000.0 * 19.5e-6 + 199.0 * 25.4e-6;
        let time = (0.007_05 + 0.000_025_4) / (1.0 - found * work);

        assert!((found - 28.561).abs() < 0.001 && (time - 0.023_69).abs() < 1e-5, "{found} {time}");
        assert_eq!(bound, CapacityBound::Itl);
        assert!((found * 199.0 * time - 134.64).abs() < 0.01);
        assert!((found * 1200.0 * time - 811.88).abs() < 0.01);
    }

    /// The time of an iteration as a share of a target of 60 ms, and the limit that binds.
    fn share_of_target(output: f64, budget: f64) -> (f64, CapacityBound) {
        let shape = requested(1000.0, output);
        let limits = CapacityLimits { itl: Seconds::new(0.06), budget, seats: 1e9, ..roomy() };
        let (rate, bound) = rate(&shape, &limits);
        (shape.time(ITERATION, rate) / 0.06, bound)
    }

    #[test]
    fn short_answers_leave_room_for_the_prompts_of_others_and_long_ones_need_none() {
        let short = share_of_target(5.0, 1e9);
        let long = share_of_target(2000.0, 1e9);
        assert!(short.0 < 0.5 && short.1 == CapacityBound::Itl, "{short:?}");
        assert!(long.0 > 0.9 && long.1 == CapacityBound::Itl, "{long:?}");
        // 60 ms hold 2,700 prompt tokens. If an iteration has fewer, none is too long.
        let bounded = share_of_target(5.0, 2500.0);
        assert!(bounded.0 > 0.8 && bounded.1 == CapacityBound::Budget, "{bounded:?}");
    }

    /// A first token within some seconds, and some milliseconds more per token beyond 4000.
    fn within(seconds: f64, per_token: f64) -> FirstToken {
        FirstToken {
            within: Seconds::new(seconds).unwrap(),
            per_token: Seconds::new(per_token / 1000.0).unwrap(),
            long: Tokens::new(4000.0).unwrap(),
        }
    }

    #[test]
    fn one_in_a_hundred_prompts_waits_for_longer_than_its_objective_leaves() {
        let uneven = requested(1000.0, 2.0);
        let alike = RequestProfile { prompt_squares: 1.0, computed_squares: 1.0, ..uneven };
        let limits = CapacityLimits { first: Some(within(0.1, 0.0)), seats: 1e9, ..roomy() };
        let (found, bound) = rate(&alike, &limits);

        let generating = found * alike.time(ITERATION, found);
        let room = 2048.0 - generating;
        let full = ITERATION.alpha + ITERATION.beta * room + ITERATION.delta * generating;
        let taken = 1000.0 / room * full;
        let busy = found * taken;
        let wait = (1.0 + busy) * taken / 2.0;
        let unfilled = 0.5 + (1.0 - 1000.0 / room).max(0.5);
        let left = 0.1 - taken - unfilled * (ITERATION.alpha + ITERATION.delta * generating);
        let late = busy * (-left * (1.0 - busy) / wait).exp();

        assert_eq!(bound, CapacityBound::Ttft);
        assert!((late - 0.01).abs() < 1e-6 && (0.2..0.6).contains(&busy), "{late} {busy}");
    }

    /// The rate of long prompts with this objective.
    fn rate_of_long(first: Option<FirstToken>) -> f64 {
        let long = requested(12_000.0, 50.0);
        rate(&long, &CapacityLimits { first, seats: 1e9, ..roomy() }).0
    }

    #[test]
    fn time_for_long_prompts_and_unreachable_objectives_take_nothing_away() {
        let tight = rate_of_long(Some(within(1.0, 0.0)));
        let allowed = rate_of_long(Some(within(1.0, 1.0)));
        assert!(allowed > 1.2 * tight, "{allowed} {tight}");

        // Alone, each takes longer than that.
        let hopeless = rate_of_long(Some(within(0.001, 0.0)));
        assert!((hopeless - rate_of_long(None)).abs() < 1e-9);
    }

    #[test]
    fn each_limit_binds_where_it_is_the_tightest() {
        let shape = requested(1000.0, 200.0);
        assert_eq!(
            rate(&shape, &CapacityLimits { itl: Seconds::new(0.01), ..roomy() }).1,
            CapacityBound::Itl
        );
        assert_eq!(
            rate(&shape, &CapacityLimits { kv: Tokens::new(9000.0), ..roomy() }).1,
            CapacityBound::Kv
        );
        assert_eq!(rate(&shape, &CapacityLimits { seats: 8.0, ..roomy() }).1, CapacityBound::Seats);
        assert_eq!(
            rate(&shape, &CapacityLimits { budget: 256.0, ..roomy() }).1,
            CapacityBound::Budget
        );
    }

    #[test]
    fn a_looser_limit_never_carries_less() {
        let shape = requested(1000.0, 200.0);
        let mut before = 0.0;
        for itl in 8..60 {
            let target = Seconds::new(f64::from(itl) / 1000.0);
            let (found, _) = rate(&shape, &CapacityLimits { itl: target, ..roomy() });
            assert!(found >= before);
            before = found;
        }
    }

    #[test]
    fn a_target_below_an_empty_iteration_is_met_by_nothing() {
        let limits = CapacityLimits { itl: Seconds::new(0.005), ..roomy() };
        assert!(rate(&requested(1000.0, 200.0), &limits).0 < 1e-6);
    }

    #[test]
    fn the_usual_target_is_met_by_some_number_of_replicas_however_slow_they_are() {
        for slower in [1.0, 10.0, 100.0, 1000.0] {
            let IterationCost { alpha, beta, delta } = ITERATION;
            let iteration =
                IterationCost { alpha: alpha * slower, beta: beta * slower, delta: delta * slower };

            let limits = CapacityLimits { itl: usual_itl(iteration, 1.0), ..roomy() };
            let found = carried(iteration, &requested(1000.0, 200.0), &limits).unwrap();
            let alone = 1.0 / (slower * (alpha + delta) * 200.0);
            let rate = found.rate.requests_per_second();
            assert!(rate > 0.5 * alone, "{rate} of {alone} at {slower} times");
        }
    }
}
