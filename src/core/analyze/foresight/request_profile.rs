//! The shape of requests, as an engine serves them, and the iterations that they take.

use crate::analyze::foresight::pace::IterationCost;
use crate::units::Tokens;

/// The shape of requests, as an engine serves them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RequestProfile {
    /// Mean tokens of a prompt.
    pub prompt: Tokens,
    /// Prompt tokens that are computed. The others are in a cache, or come from another replica.
    pub computed: Tokens,
    /// Mean tokens of an answer.
    pub output: Tokens,
    /// The mean square of the lengths of prompts over the square of their mean.
    pub prompt_squares: f64,
    /// The same for the computed tokens of prompts.
    pub computed_squares: f64,
    /// The same for the lengths of answers.
    pub answer_squares: f64,
    /// Answer tokens per iteration: one, or more with speculative decoding.
    pub pieces: f64,
    /// Mean KV tokens that a running request holds.
    pub held: Tokens,
}

// === impl RequestProfile ===

impl RequestProfile {
    /// Iterations in which a request generates, after the iteration of its prompt.
    pub(super) fn iterations(&self) -> f64 {
        self.iterations_of(self.output.tokens())
    }

    /// The same for an answer of this many tokens.
    pub(super) fn iterations_of(&self, answer: f64) -> f64 {
        (answer - 1.0).max(0.0) / self.pieces
    }

    /// Seconds of work in a request.
    pub(super) fn work(&self, iteration: IterationCost) -> f64 {
        iteration.beta * self.computed.tokens() + iteration.delta * self.iterations()
    }

    /// Seconds of an iteration at a rate below saturation.
    pub(super) fn time(&self, iteration: IterationCost, rate: f64) -> f64 {
        (iteration.alpha + iteration.delta) / (1.0 - rate * self.work(iteration))
    }

    /// The rate at which a replica holds `all` of a resource, if a request uses `each` summed over
    /// all of its iterations.
    pub(super) fn rate_with(&self, iteration: IterationCost, all: f64, each: f64) -> f64 {
        all / (each * (iteration.alpha + iteration.delta) + all * self.work(iteration))
    }

    /// Iterations in which a prompt is computed, with this many tokens per iteration.
    pub(super) fn chunks(&self, budget: f64) -> f64 {
        (self.computed.tokens() / budget).ceil()
    }

    /// The share of the tokens of prompts that is computed.
    pub(super) fn computed_share(&self) -> f64 {
        self.computed.tokens() / self.prompt.tokens().max(1.0)
    }
}
