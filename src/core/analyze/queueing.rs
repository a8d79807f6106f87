//! Latency at a rate, and the rate that keeps a latency: a queueing model of one replica.
//!
//! A replica works in iterations, and each iteration takes longer the more requests share it. From
//! four [`Coefficients`] that say how much longer, and the [`Shape`] of a request,
//! [`Model::at`] predicts the latencies at an arrival rate, and [`Model::rate_for`] finds the
//! largest rate that keeps targets. [`analyze`] does so for the variants of a model and says how
//! many replicas each needs.
//!
//! # Model
//!
//! With `n` requests in the batch, an iteration takes
//!
//! ```text
//! T(n)    = alpha + n * delta
//! delta   = (beta_prefill * I + beta_decode * O) / (O + 1) + gamma * (I + O / 2)
//! ```
//!
//! because a request with `I` input and `O` output tokens takes part in one prefill and `O` decode
//! iterations: it computes `I` tokens once and one token `O` times, and reads its KV cache, of
//! `I + O / 2` tokens on the average, in each. One request among `n` spends
//!
//! ```text
//! prefill(n) = T(n) + (beta_prefill + gamma) * I
//! decode(n)  = T(n) + beta_decode + gamma * (I + (O + 1) / 2)
//! S(n)       = prefill(n) + O * decode(n)
//! ```
//!
//! which counts its own work once more than an iteration has it, as the sources do; it makes the
//! model pessimistic by at most `delta` an iteration, and learned coefficients contain it.
//!
//! **One definition of TTFT** serves the tuner, the targets and the sizing: from arrival to the end
//! of the iteration that computes the prompt. `queueing/tail.rs` derives its mean and its
//! percentiles. ITL is the mean decode iteration.
//!
//! The finite birth-death chain of `queueing/chain.rs` leads from the iteration to the latencies at a
//! rate: requests beyond the batch wait, and those beyond the queue are lost.
//!
//! # Units
//!
//! `alpha` in seconds, the others in seconds per token, rates in requests per second and replica.
//!
//! # Source
//!
//! The queueing model analyzer of llm-d's Workload Variant Autoscaler: its document (sections 9.1
//! to 9.4) for the iteration and the closed form, its code for the finite chain. Where they
//! disagree, and where this module answers otherwise, `docs/decisions.md` says why.

mod capacity;
mod chain;
mod explain;
mod slo;
mod solve;
mod tail;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::units::{Fraction, Seconds, TimePerToken, Tokens};

pub use crate::analyze::queueing::capacity::{
    Analysis, Policy, ReplicaLoad, VariantLoad, VariantSizing, Workload, aggregate, analyze,
};
pub use crate::analyze::queueing::explain::{Refusal, Sizing, Unsized};
pub use crate::analyze::queueing::slo::{
    Infer, LatencyTarget, Observed, Origin, Percentile, Slo, Slowdown, Statistic, Targets, resolve,
};
pub use crate::analyze::queueing::solve::{Capacity, Limit, Metric, Model, Prediction};

/// Requests that a replica takes into its batch when nobody says how many: vLLM's default of
/// `--max-num-seqs` on recent accelerators.
pub const BATCH_DEFAULT: NonZeroU32 = NonZeroU32::new(256).expect("256 is not zero");

/// Requests that may wait in the sizing model. A replica with a longer queue has missed any target
/// long before, so the length decides nothing but how much of the load is lost in the model.
pub const QUEUE_DEFAULT: u32 = 100;

/// How much prompts vary where nobody has measured it: as much as an exponential distribution,
/// which is between the conversations (1.1 times the mean) and the code completions (0.8) of the
/// Azure traces of 2023.
pub const INPUT_VARIATION_DEFAULT: Fraction = Fraction::ONE;

/// What an iteration costs on one kind of replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// `alpha`: what every iteration takes, whatever is in it.
    pub alpha: Seconds,
    /// `beta_prefill`: computing one token of a prompt.
    pub beta_prefill: TimePerToken,
    /// `beta_decode`: computing one token of an answer.
    pub beta_decode: TimePerToken,
    /// `gamma`: reading one token of the KV cache.
    pub gamma: TimePerToken,
}

/// What the requests of a variant look like on the average.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    lengths: Lengths,
    input_variation: Fraction,
}

/// How many requests a replica has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Room {
    /// Requests that share an iteration.
    pub batch: NonZeroU32,
    /// Requests that may wait for a place in the batch.
    pub queue: u32,
}

/// What an iteration costs, with the tokens of prompts and answers charged the same.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SharedCoefficients {
    /// `alpha`: what every iteration takes.
    pub alpha: Seconds,
    /// `beta`: computing one token.
    pub beta: TimePerToken,
    /// `gamma`: reading one token of the KV cache.
    pub gamma: TimePerToken,
}

/// Mean lengths of requests, as they were measured.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Lengths {
    /// Tokens of the prompt.
    pub input: Tokens,
    /// Tokens of the answer.
    pub output: Tokens,
}

// === impl Coefficients ===

impl From<SharedCoefficients> for Coefficients {
    fn from(shared: SharedCoefficients) -> Self {
        let SharedCoefficients { alpha, beta, gamma } = shared;
        Self { alpha, beta_prefill: beta, beta_decode: beta, gamma }
    }
}

// === impl Shape ===

impl Shape {
    /// A shape with at least one output token; a request without output has no latency between
    /// tokens.
    #[must_use]
    pub fn new(lengths: Lengths) -> Option<Self> {
        let input_variation = INPUT_VARIATION_DEFAULT;
        (lengths.output.tokens() >= 1.0).then_some(Self { lengths, input_variation })
    }

    /// The same shape with a measured variation of its prompts: the standard deviation of their
    /// lengths as a share of the mean. Only percentiles depend on it.
    #[must_use]
    pub const fn with_input_variation(self, input_variation: Fraction) -> Self {
        Self { input_variation, ..self }
    }

    /// Tokens of the prompt.
    #[must_use]
    pub const fn input(self) -> Tokens {
        self.lengths.input
    }

    /// Tokens of the answer.
    #[must_use]
    pub const fn output(self) -> Tokens {
        self.lengths.output
    }

    /// The standard deviation of the length of prompts, as a share of the mean.
    #[must_use]
    pub const fn input_variation(self) -> Fraction {
        self.input_variation
    }
}

// === impl Room ===

impl Default for Room {
    fn default() -> Self {
        Self { batch: BATCH_DEFAULT, queue: QUEUE_DEFAULT }
    }
}
