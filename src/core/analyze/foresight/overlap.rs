//! Overlap: how many prompts share an iteration.
//!
//! Where arrivals come in clusters, many prompts share an iteration, even at little load. Then a
//! first token takes long because of the other prompts, and not because of its own.
//!
//! # Model
//!
//! An iteration of `g` outputs and `p` prompt tokens has `(g + p)^2 = g (g + 2 p) + p^2`. `S` is the
//! sum of the squares of the tokens in iterations, so without outputs `Q` remains. That is `p` for
//! each prompt token: the tokens that it finds in its iteration. A share of them, `E[C^2] / C`, is
//! of its own prompt, and the rest of other prompts, each of `C` tokens on average:
//!
//! ```text
//! Q = S - n * (outputs + 2 * prompt tokens)
//! m = 1 + (Q / prompt tokens - E[C^2] / C) / C        prompts, at least 1
//! ```
//!
//! `n` is the mean of `g`.
//!
//! # Domain
//!
//! Prompts that fit one iteration; the pieces of longer ones make `m` one. Outputs that cause at
//! most half of `S`. If several API servers share an engine, each counts its own tokens in an
//! iteration, and `m` is too small.
//!
//! # Source
//!
//! The size-biased mean of a compound sum. `S` follows from the buckets of vLLM's
//! `iteration_tokens_total`, and `E[C^2]` from those of `request_prefill_kv_computed_tokens`.

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
    /// Squares of the tokens in iterations.
    squares: f64,
    /// The part of these that outputs cause.
    by_outputs: f64,
    /// Computed tokens of finished requests, and their squares.
    alone: [f64; 2],
}

// === impl PromptOverlap ===

impl PromptOverlap {
    /// The sums of a stride; `None` if it lacks a counter.
    pub(super) fn of(stride: &IntervalDelta) -> Option<Self> {
        let squares = stride.step_squares?;
        let alone = stride.computed_moments?;
        let begun = stride.begun?.requests();
        let computed = stride.computed?.tokens();
        let generated = stride.generated?.tokens();
        let (between, intervals) = stride.intervals?;
        let seconds = stride.elapsed.seconds();
        if seconds <= 0.0 {
            return None;
        }

        let pieces = (generated - begun).max(0.0) / intervals.requests().max(1.0);
        let ranks = f64::from(stride.ranks.max(1));
        let outputs = pieces * between.seconds() / seconds / ranks;
        let by_outputs = outputs * (generated + 2.0 * computed);
        Some(Self { begun, computed, squares, by_outputs, alone })
    }

    pub(super) fn plus(&self, more: &Self) -> Self {
        Self {
            begun: self.begun + more.begun,
            computed: self.computed + more.computed,
            squares: self.squares + more.squares,
            by_outputs: self.by_outputs + more.by_outputs,
            alone: [self.alone[0] + more.alone[0], self.alone[1] + more.alone[1]],
        }
    }

    /// Lets the sums fade over this time.
    pub(super) fn age(&mut self, elapsed: Seconds) {
        let kept = (-elapsed.seconds() / MEMORY).exp();
        let Self { begun, computed, squares, by_outputs, alone: [tokens, their_squares] } = self;
        for sum in [begun, computed, squares, by_outputs, tokens, their_squares] {
            *sum *= kept;
        }
    }

    /// The prompts in an iteration, as one of them finds it; `None` while too little is known.
    pub(super) fn prompts(&self) -> Option<f64> {
        let Self { begun, computed, squares, by_outputs, alone: [tokens, their_squares] } = *self;
        let has_prompts = begun >= BEGUN_MIN && computed > 0.0 && tokens > 0.0;
        if !has_prompts || by_outputs > OUTPUTS_MAX * squares {
            return None;
        }

        let each = computed / begun;
        let found = (squares - by_outputs) / computed;
        let own = their_squares / tokens;
        Some(1.0 + ((found - own) / each).max(0.0))
    }
}
