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
