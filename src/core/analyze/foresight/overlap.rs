//! Overlap: how many prompts share an iteration.
//!
//! Where arrivals come in clusters, many prompts share an iteration, even at little load. Then a
//! first token takes long because of the other prompts, and not because of its own.
//!
//! # Model
//!
//! An iteration of `g` outputs and `p` prompt tokens has `(g + p)^2 = g (g + 2 p) + p^2`. `S` is the
//! sum of the squares of the tokens in long iterations, so without outputs `Q` remains. Divided by
//! all prompt tokens, it is the tokens that a prompt token finds in its iteration. A share `s C`
//! of these is of its own prompt, and the rest of other prompts, each of `C` tokens on average:
//!
//! ```text
//! Q = S - n * (2 * prompt tokens + n * iterations)
//! m = 1 + Q / prompt tokens / C - s        prompts, at least 1
//! ```
//!
//! `n` is the mean of `g`, and `s` the mean square of computed tokens over the square of their mean.
//! `S` is estimated from buckets. It is multiplied by the square of a ratio: the tokens of long
//! iterations, `prompt tokens + n * iterations`, over their own estimate from the buckets.
//!
//! # Domain
//!
//! Outputs that cause at most half of `S`. Prompts of fewer tokens than a long iteration make `m`
//! too large. If several API servers share an engine, each counts its own tokens in an iteration,
//! and `m` is too small.
//!
//! # Source
//!
//! The size-biased mean of a compound sum. `S` follows from the buckets of vLLM's
//! `iteration_tokens_total`.

use crate::analyze::foresight::routing::MEMORY;
use crate::observe::stride::IntervalDelta;
use crate::units::Seconds;

/// Requests below which their overlap is too uncertain.
const BEGUN_MIN: f64 = 50.0;

/// The largest part of the squares that outputs may cause. Beyond it, the rest is too uncertain.
const OUTPUTS_MAX: f64 = 0.5;

/// Sums that show how many prompts share an iteration.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PromptOverlap {
    begun: f64,
    computed: f64,
    /// Tokens in long iterations.
    tokens: f64,
    /// The same, estimated from buckets.
    estimated: f64,
    /// Their squares, estimated from buckets.
    squares: f64,
    /// The part of the squares that outputs cause.
    by_outputs: f64,
}

// === impl PromptOverlap ===

impl PromptOverlap {
    /// The sums of a stride; `None` if it lacks a counter.
    pub(super) fn of(stride: &IntervalDelta) -> Option<Self> {
        let [iterations, estimated, squares] = stride.long_steps?;
        let begun = stride.begun?.requests();
        let computed = stride.computed?.tokens();
        let generated = stride.generated?.tokens();
        let (between, intervals) = stride.intervals?;
        let time = stride.elapsed.seconds();
        if time <= 0.0 {
            return None;
        }

        let pieces = (generated - begun).max(0.0) / intervals.requests().max(1.0);
        let ranks = f64::from(stride.ranks.max(1));
        let outputs = pieces * between.seconds() / time / ranks;
        Some(Self {
            begun,
            computed,
            tokens: computed + outputs * iterations,
            estimated,
            squares,
            by_outputs: outputs * (2.0 * computed + outputs * iterations),
        })
    }

    pub(super) fn plus(&self, more: &Self) -> Self {
        Self {
            begun: self.begun + more.begun,
            computed: self.computed + more.computed,
            tokens: self.tokens + more.tokens,
            estimated: self.estimated + more.estimated,
            squares: self.squares + more.squares,
            by_outputs: self.by_outputs + more.by_outputs,
        }
    }

    /// Lets the sums fade over this time.
    pub(super) fn age(&mut self, elapsed: Seconds) {
        let kept = (-elapsed.seconds() / MEMORY).exp();
        let Self { begun, computed, tokens, estimated, squares, by_outputs } = self;
        for sum in [begun, computed, tokens, estimated, squares, by_outputs] {
            *sum *= kept;
        }
    }

    /// The prompts in an iteration, as one of them finds it, given the mean square of their computed
    /// tokens over the square of the mean. `None` while too little is known.
    pub(super) fn prompts(&self, computed_squares: f64) -> Option<f64> {
        let Self { begun, computed, tokens, estimated, squares, by_outputs } = *self;
        if begun < BEGUN_MIN || computed <= 0.0 || estimated <= 0.0 {
            return None;
        }

        let all = squares * (tokens / estimated).powi(2);
        if by_outputs > OUTPUTS_MAX * all {
            return None;
        }

        let each = computed / begun;
        let found = (all - by_outputs) / computed / each;
        Some(1.0 + (found - computed_squares).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::LN_2;

    use jiff::Timestamp;

    use super::*;
    use crate::units::{Requests, Tokens};

    /// Prompts of a hundred tokens, ten per second at each rank. Half of the iterations with
    /// prompts have one, and the others have three. So a prompt finds one prompt in a quarter of
    /// all cases, and three in the others: 2.5 on average. Each iteration has this many outputs.
    fn stride(ranks: u32, requests: f64, outputs: f64) -> IntervalDelta {
        let seconds = requests / 10.0 / f64::from(ranks);
        let between = outputs * seconds * f64::from(ranks);
        let each = requests / 4.0;
        let [one, three] = [100.0 + outputs, 300.0 + outputs];

        IntervalDelta {
            ranks,
            begun: Requests::new(requests),
            computed: Tokens::new(100.0 * requests),
            generated: Tokens::new(requests + 20.0 * between),
            intervals: Seconds::new(between).zip(Requests::new(20.0 * between)),
            long_steps: Some([
                2.0 * each,
                each * (one + three),
                each * (one * one + three * three),
            ]),
            ..IntervalDelta::over(Timestamp::UNIX_EPOCH, Seconds::new(seconds).unwrap())
        }
    }

    /// The prompts that equal prompts find in their iterations.
    fn met(stride: &IntervalDelta) -> Option<f64> {
        PromptOverlap::of(stride).unwrap().prompts(1.0)
    }

    fn is_near(found: Option<f64>, expected: f64) -> bool {
        found.is_some_and(|prompts| (prompts - expected).abs() < 1e-9)
    }

    #[test]
    fn a_prompt_finds_those_of_its_iteration_and_no_outputs() {
        for (ranks, outputs) in [(1, 0.0), (1, 5.0), (2, 5.0), (8, 20.0)] {
            let found = met(&stride(ranks, 200.0, outputs));
            assert!(is_near(found, 2.5), "{ranks} ranks, {outputs} outputs: {found:?}");
        }

        // Outputs of two tokens each.
        let intervals = Seconds::new(25.0).zip(Requests::new(500.0));
        let speculating = IntervalDelta { intervals, ..stride(1, 100.0, 5.0) };
        assert!(is_near(met(&speculating), 2.5), "{:?}", met(&speculating));
    }

    #[test]
    fn buckets_that_show_twice_the_tokens_show_as_many_prompts() {
        let exact = stride(1, 100.0, 5.0);
        let [iterations, tokens, squares] = exact.long_steps.unwrap();
        let long_steps = Some([iterations, 2.0 * tokens, 4.0 * squares]);
        let found = met(&IntervalDelta { long_steps, ..exact });
        assert!(is_near(found, 2.5), "{found:?}");
    }

    #[test]
    fn a_prompt_does_not_meet_itself() {
        // Prompts of 50 and of 150 tokens, each in an iteration of its own.
        let long_steps = Some([100.0, 10_000.0, 50.0 * (50.0 * 50.0 + 150.0 * 150.0)]);
        let alone = IntervalDelta { long_steps, ..stride(1, 100.0, 0.0) };
        let overlap = PromptOverlap::of(&alone).unwrap();

        assert!(is_near(overlap.prompts(1.25), 1.0), "{overlap:?}");
        assert!(is_near(overlap.prompts(1.0), 1.25), "as if all were equal: {overlap:?}");
        assert!(is_near(overlap.prompts(2.0), 1.0), "at least one: {overlap:?}");
    }

    #[test]
    fn earlier_prompts_fade() {
        let long_steps = Some([100.0, 100.0 * 105.0, 100.0 * 105.0 * 105.0]);
        let alone = IntervalDelta { long_steps, ..stride(1, 100.0, 5.0) };
        let later = PromptOverlap::of(&alone).unwrap();
        assert!(is_near(later.prompts(1.0), 1.0), "{later:?}");

        let mut overlap = PromptOverlap::of(&stride(1, 100.0, 5.0)).unwrap();
        let equal = overlap.plus(&later);
        assert!(is_near(equal.prompts(1.0), f64::midpoint(2.5, 1.0)), "{equal:?}");

        overlap.age(Seconds::new(MEMORY * LN_2).unwrap());
        let faded = overlap.plus(&later);
        assert!(is_near(faded.prompts(1.0), (0.5 * 2.5 + 1.0) / 1.5), "{faded:?}");

        overlap.age(Seconds::literal(1));
        assert_eq!(overlap.prompts(1.0), None, "fewer than fifty are left");
    }

    #[test]
    fn too_few_requests_and_too_many_outputs_show_nothing() {
        assert!(is_near(met(&stride(1, 50.0, 5.0)), 2.5));
        assert_eq!(met(&stride(1, 49.0, 5.0)), None);

        // At a hundred outputs per iteration, they cause half of the squares.
        assert!(is_near(met(&stride(1, 100.0, 99.0)), 2.5));
        assert_eq!(met(&stride(1, 100.0, 101.0)), None);

        let unknown = IntervalDelta { long_steps: None, ..stride(1, 100.0, 5.0) };
        assert!(PromptOverlap::of(&unknown).is_none());
    }
}
