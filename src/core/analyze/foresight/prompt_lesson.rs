//! Lessons of prompts: the time of a prompt token, derived from the times to first tokens.
//!
//! While a replica has few requests, hardly any output comes from an iteration that computes a
//! prompt, least of all behind a router that prefers idle replicas. So the times between outputs
//! show the cost of prompts only once requests meet, and that is too late: a fleet that was scaled
//! down by then is several times too small. The time to a first token shows that cost at any load.
//!
//! # Model
//!
//! `P` is the mean time from the start of a prompt to its first token, and `C` the mean number of
//! prompt tokens that were computed. A prompt is computed in `k` iterations, each with at most
//! `budget` tokens. Prompts share iterations: one of them finds `m` in its own, itself included.
//!
//! ```text
//! k = max(1, C / budget + 1/2)
//! P / k = alpha + beta * C * m / k + delta * n            seconds
//! ```
//!
//! `n` is the mean number of requests that generate (Little's law). So this is a lesson about an
//! iteration of `P / k` seconds. [`overlap`](crate::analyze::foresight::overlap) measures `m`.
//! Until it is known, prompts are assumed to come at random. `L` come per second and take `F`
//! seconds to their first token, so on average `L F` are in progress. Between none and `L F` of a
//! prompt make an iteration longer, and half is assumed: `m = 1 + L F / 2`.
//!
//! The doubt of a lesson, as a share, is `1/10 + L F / 2`. The first part is for the sum of costs,
//! which an iteration follows only roughly. The second is for `m`, a mean over more time. Engines
//! other than vLLM report no `P`. Then `F` is taken for it, as in a stride in which `P` appears. `F`
//! also contains the rest of an iteration that runs when a request comes, and the time of the HTTP
//! server, so short prompts seem to cost more than they do.
//!
//! # Domain
//!
//! A replica without a queue, with at most [`BUSY_MAX`] prompts in progress. Beyond that, prompts
//! wait for one another, and [`lesson`](crate::analyze::foresight::lesson) measures their cost.
//!
//! # Source
//!
//! `docs/foresight-reference.md` has the measured benefit. The mean of `k` over prompts that are
//! spread evenly over a budget is `C / budget + 1/2`. `P` is vLLM's `request_prefill_time_seconds`.

use crate::analyze::foresight::lesson::IterationSample;
use crate::analyze::foresight::overlap::PromptOverlap;
use crate::observe::stride::IntervalDelta;
use crate::units::Requests;

/// The fewest seconds of a lesson, as for lessons of iterations.
const SECONDS_MIN: f64 = 15.0;

/// The most seconds of a lesson. A replica with long prompts has few requests.
const SECONDS_MAX: f64 = 120.0;

/// The most prompts in progress, on average.
const BUSY_MAX: f64 = 0.3;

/// First tokens below which their mean time is too uncertain.
const FIRST_TOKENS_MIN: f64 = 4.0;

/// Computed tokens of a prompt below which the time of its iteration does not show their cost.
const COMPUTED_MIN: f64 = 64.0;

/// The doubt about the time of an iteration with prompts, as a share. On a recorded H100 it was 0.8
/// to 1.15 times the sum of its parts.
const DOUBT: f64 = 0.1;

/// The knowledge about a variant that a lesson of prompts requires.
#[derive(Debug)]
pub(super) struct PromptsAround<'a> {
    /// Tokens that an iteration may have.
    pub(super) budget: f64,
    /// The mean square of the computed tokens of prompts over the square of their mean.
    pub(super) computed_squares: f64,
    pub(super) overlap: &'a mut PromptOverlap,
}

/// Gathers the counters of one replica until they are enough for a lesson of prompts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PromptSampler {
    elapsed: f64,
    begun: f64,
    /// Computed prompt tokens.
    computed: f64,
    /// The sum of the times to first tokens, in seconds.
    waited: f64,
    /// The sum of the times from the start of a prompt to its first token, in seconds, and the
    /// number of these; `None` if a stride lacks them.
    prefilled: Option<[f64; 2]>,
    /// The sum of the times between outputs, in seconds.
    between: f64,
    /// `None` if a stride lacks it.
    overlap: Option<PromptOverlap>,
}

// === impl PromptSampler ===

impl PromptSampler {
    /// Adds a stride of an engine with this token budget. Returns a lesson once there is enough for
    /// one.
    pub(super) fn take(
        &mut self,
        stride: &IntervalDelta,
        around: PromptsAround<'_>,
    ) -> Option<IterationSample> {
        if self.add(stride).is_none() {
            *self = Self::default();
            return None;
        }
        let is_over = self.elapsed >= SECONDS_MAX
            || (self.elapsed >= SECONDS_MIN && self.has_enough_requests());
        if !is_over {
            return None;
        }

        std::mem::take(self).lesson(around)
    }

    /// Adds a stride; `None` if it lacks a counter, or a request waits.
    fn add(&mut self, stride: &IntervalDelta) -> Option<()> {
        let ranks = f64::from(stride.ranks.max(1));
        let begun = stride.begun?.requests();
        let computed = stride.computed?.tokens();
        let waited = stride.first_tokens?.seconds();
        let (between, _) = stride.intervals?;
        if stride.waiting? > Requests::ZERO {
            return None;
        }

        if self.elapsed <= 0.0 {
            self.overlap = Some(PromptOverlap::default());
            self.prefilled = Some([0.0; 2]);
        }

        let more = PromptOverlap::of(stride);
        self.overlap = self.overlap.zip(more).map(|(sum, more)| sum.plus(&more));

        let timed = self.prefilled.zip(stride.prefilled);
        self.prefilled = timed.map(|([sum, count], (seconds, requests))| {
            [sum + seconds.seconds() / ranks, count + requests.requests() / ranks]
        });

        self.elapsed += stride.elapsed.seconds();
        self.begun += begun / ranks;
        self.computed += computed / ranks;
        self.waited += waited / ranks;
        self.between += between.seconds() / ranks;
        Some(())
    }

    /// Returns false if the mean time of their first tokens is too uncertain.
    fn has_enough_requests(&self) -> bool {
        let finished = self.prefilled.map_or(self.begun, |[_, count]| count);
        self.begun.min(finished) >= FIRST_TOKENS_MIN
    }

    fn lesson(self, around: PromptsAround<'_>) -> Option<IterationSample> {
        let PromptsAround { budget, computed_squares, overlap: known } = around;
        let Self { elapsed, begun, computed, waited, between, .. } = self;
        let busy = waited / elapsed;
        let each = computed / begun;
        if !self.has_enough_requests() || each < COMPUTED_MIN || busy > BUSY_MAX {
            return None;
        }

        // Prompts overlap more at other times, when more requests come.
        if let Some(overlap) = self.overlap {
            *known = known.plus(&overlap);
        }

        let met = known.prompts(computed_squares).unwrap_or(1.0 + busy / 2.0);
        let iterations = (each / budget + 0.5).max(1.0);
        Some(IterationSample {
            prompt: (each * met / iterations).min(budget),
            batch: between / elapsed,
            seconds: self.first_token() / iterations,
            tokens: each / iterations,
            prompts: begun,
            doubt: DOUBT + busy / 2.0,
            is_short: false,
            full: None,
        })
    }

    /// The mean time from the start of a prompt to its first token, or from the arrival of a
    /// request if it is not reported. Requests that finish may have begun in a busier time, but no
    /// prompt takes longer than its first token.
    fn first_token(&self) -> f64 {
        let since_arrival = self.waited / self.begun;
        self.prefilled.map_or(since_arrival, |[sum, count]| since_arrival.min(sum / count))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::observe::histogram::Histogram;
    use crate::observe::stride::LONG_STEP;
    use crate::units::{Seconds, Tokens};

    const BUDGET: f64 = 2048.0;

    /// A second with 0.4 requests of this many prompt tokens, whose first tokens took this long.
    fn second(prompt: f64, first: f64) -> IntervalDelta {
        IntervalDelta {
            computed: Tokens::new(0.4 * prompt),
            begun: Requests::new(0.4),
            first_tokens: Seconds::new(0.4 * first),
            intervals: Seconds::new(0.2).zip(Requests::new(10.0)),
            waiting: Requests::new(0.0),
            ..IntervalDelta::over(Timestamp::UNIX_EPOCH, Seconds::literal(1))
        }
    }

    /// The first lesson of equal seconds.
    fn lesson(second: &IntervalDelta) -> Option<IterationSample> {
        lesson_within(300, second)
    }

    fn lesson_within(seconds: usize, second: &IntervalDelta) -> Option<IterationSample> {
        let mut sampler = PromptSampler::default();
        let mut overlap = PromptOverlap::default();
        (0..seconds).find_map(|_| {
            let overlap = &mut overlap;
            sampler.take(second, PromptsAround { budget: BUDGET, computed_squares: 1.0, overlap })
        })
    }

    #[test]
    fn a_prompt_that_seldom_meets_another_is_an_iteration_of_its_own() {
        let found = lesson(&second(1000.0, 0.064)).unwrap();

        assert!((found.seconds - 0.064).abs() < 1e-9, "{found:?}");
        assert!((found.prompt / 1000.0 - 1.0).abs() < 0.02, "{found:?}");
        assert!((found.batch - 0.2).abs() < 1e-9, "{found:?}");
    }

    #[test]
    fn a_long_prompt_takes_several_iterations() {
        let found = lesson(&second(2.0 * BUDGET, 0.2)).unwrap();

        // Two and a half iterations on average.
        assert!((found.seconds - 0.08).abs() < 1e-9, "{found:?}");
        assert!(found.prompt < BUDGET, "{found:?}");
    }

    #[test]
    fn the_time_of_the_engine_counts_without_that_of_its_http_server() {
        let slow_server = second(1000.0, 0.09);
        let prefilled = |finished: f64| Seconds::new(0.064 * finished).zip(Requests::new(finished));

        let found = lesson(&IntervalDelta { prefilled: prefilled(0.4), ..slow_server }).unwrap();
        assert!((found.seconds - 0.064).abs() < 1e-9, "{found:?}");

        // Requests that finish now had begun in a busier time.
        let busier = IntervalDelta { prefilled: prefilled(0.4), ..second(1000.0, 0.05) };
        assert!((lesson(&busier).unwrap().seconds - 0.05).abs() < 1e-9);

        let unfinished = IntervalDelta { prefilled: prefilled(0.03), ..slow_server };
        assert_eq!(lesson(&unfinished), None, "fewer than four requests in two minutes");
    }

    #[test]
    fn few_requests_teach_after_a_longer_time() {
        let rare = IntervalDelta {
            computed: Tokens::new(100.0),
            begun: Requests::new(0.1),
            first_tokens: Seconds::new(0.01),
            ..second(1000.0, 0.1)
        };
        assert_eq!(lesson_within(39, &rare), None);
        let found = lesson_within(41, &rare).unwrap();
        assert!((found.seconds - 0.1).abs() < 1e-9, "{found:?}");
        assert!((found.prompts - 4.0).abs() < 0.11, "{found:?}");
    }

    /// A second in which iterations have as many prompts each, of this many tokens. A hundred more
    /// iterations have only ten tokens of answers each.
    fn with_prompts(tokens: f64, iterations: f64, together: f64) -> IntervalDelta {
        let begun = iterations * together;
        let buckets = [1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, f64::INFINITY];
        let within = |edge: f64| {
            f64::from(edge > 10.0) * 100.0
                + f64::from(edge >= 10.0 + together * tokens) * iterations
        };
        let histogram = Histogram {
            sum: 0.0,
            count: 0.0,
            buckets: buckets.map(|edge| (edge, within(edge))).to_vec(),
        };

        IntervalDelta {
            computed: Tokens::new(begun * tokens),
            begun: Requests::new(begun),
            generated: Tokens::new(begun + 1000.0),
            intervals: Seconds::new(10.0).zip(Requests::new(1000.0)),
            first_tokens: Seconds::new(0.1),
            long_steps: histogram.moments_above(LONG_STEP),
            ..second(tokens, 0.02)
        }
    }

    #[test]
    fn prompts_that_come_together_share_an_iteration() {
        for (tokens, iterations, together) in
            [(100.0, 1.0, 4.0), (100.0, 4.0, 1.0), (130.0, 4.0, 1.0), (250.0, 4.0, 1.0)]
        {
            let stride = with_prompts(tokens, iterations, together);
            let found = lesson(&stride).unwrap().prompt / (together * tokens);
            assert!((found - 1.0).abs() < 0.02, "{found} of {together} times {tokens}");
        }

        let unknown = IntervalDelta { long_steps: None, ..with_prompts(100.0, 1.0, 4.0) };
        let found = lesson(&unknown).unwrap();
        assert!((found.prompt / 105.0 - 1.0).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn prompts_that_wait_or_meet_teach_nothing() {
        let alone = second(1000.0, 0.064);
        assert!(lesson(&alone).is_some());

        let queued = IntervalDelta { waiting: Requests::new(1.0), ..alone };
        let crowded = IntervalDelta { first_tokens: Seconds::new(0.31), ..alone };
        let unknown = IntervalDelta { first_tokens: None, ..alone };
        let cached = IntervalDelta { computed: Tokens::new(10.0), ..alone };
        let rare = IntervalDelta { begun: Requests::new(0.03), ..alone };
        for odd in [queued, crowded, unknown, cached, rare] {
            assert_eq!(lesson(&odd), None, "{odd:?}");
        }
    }
}
