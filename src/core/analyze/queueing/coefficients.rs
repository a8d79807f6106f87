//! The cost of an iteration, as coefficients.

use crate::units::{Seconds, TimePerToken};

/// The cost of an iteration on one kind of replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// `alpha`: the fixed time of every iteration, independent of its requests.
    pub alpha: Seconds,
    /// `beta_prefill`: the time to compute one token of a prompt.
    pub beta_prefill: TimePerToken,
    /// `beta_decode`: the time to compute one token of an answer.
    pub beta_decode: TimePerToken,
    /// `gamma`: the time to read one token of the KV cache.
    pub gamma: TimePerToken,
}

/// The cost of an iteration, with the same cost per token for prompts and answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedCoefficients {
    /// `alpha`: the fixed time of every iteration.
    pub alpha: Seconds,
    /// `beta`: the time to compute one token.
    pub beta: TimePerToken,
    /// `gamma`: the time to read one token of the KV cache.
    pub gamma: TimePerToken,
}

// === impl Coefficients ===

impl From<SharedCoefficients> for Coefficients {
    fn from(shared: SharedCoefficients) -> Self {
        let SharedCoefficients { alpha, beta, gamma } = shared;
        Self { alpha, beta_prefill: beta, beta_decode: beta, gamma }
    }
}
