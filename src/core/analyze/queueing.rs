//! A queueing model of one replica: latencies at a rate, and the largest rate that meets latency
//! targets.
//!
//! A replica works in iterations, and each iteration takes longer the more requests share it. Four
//! [`Coefficients`] describe that cost, and [`MeanRequest`] describes a request. From them
//! [`QueueingModel::at`] predicts the latencies at an arrival rate, and [`QueueingModel::rate_for`]
//! finds the largest rate that meets targets. [`analyze`] does so for the variants of a model and
//! reports the replicas that each variant needs.
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
//! iterations. It computes `I` tokens once and one token `O` times. In each iteration it reads its
//! KV cache, which holds `I + O / 2` tokens on average. One request among `n` spends
//!
//! ```text
//! prefill(n) = T(n) + (beta_prefill + gamma) * I
//! decode(n)  = T(n) + beta_decode + gamma * (I + (O + 1) / 2)
//! S(n)       = prefill(n) + O * decode(n)
//! ```
//!
//! which counts the request's own work twice per iteration, as the sources do. This makes the model
//! pessimistic by at most `delta` per iteration, and learned coefficients absorb it.
//!
//! **One definition of TTFT** serves the tuner, the targets and the sizing: from arrival to the end
//! of the iteration that computes the prompt. `queueing/tail.rs` derives its mean and its
//! percentiles. ITL is the mean decode iteration.
//!
//! The finite birth-death chain of `queueing/chain.rs` turns iteration times into latencies at a
//! rate. Requests beyond the batch wait, and requests beyond the queue are lost.
//!
//! # Units
//!
//! `alpha` in seconds, the others in seconds per token, rates in requests per second and replica.
//!
//! # Source
//!
//! The queueing model analyzer of llm-d's Workload Variant Autoscaler: its document (sections 9.1
//! to 9.4) for the iteration and the closed form, its code for the finite chain.
//! `docs/decisions.md` explains the choice where the two disagree, and each deviation of this
//! module.

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
    QueueingAnalysis, QueueingPolicy, QueueingReplicaLoad, QueueingVariantLoad, QueueingWorkload,
    VariantSizing, aggregate, analyze,
};
pub use crate::analyze::queueing::explain::{QueueingRefusal, Sizing, SizingFailure};
pub use crate::analyze::queueing::slo::{
    LatencyTarget, LatencyTargets, ObservedLatencies, Percentile, Slo, Slowdown, Statistic,
    TargetInference, TargetOrigin, resolve,
};
pub use crate::analyze::queueing::solve::{
    LatencyMetric, Prediction, QueueingModel, RateBound, RateCapacity,
};

/// The batch size of a replica if it is unknown: vLLM's default of `--max-num-seqs` on recent
/// accelerators.
pub const BATCH_DEFAULT: NonZeroU32 = NonZeroU32::new(256).expect("256 is not zero");

/// Requests that may wait in the sizing model. A replica with a longer queue has missed any target
/// long before. So this length only affects the share of the load that is lost in the model.
pub const QUEUE_DEFAULT: u32 = 100;

/// The variation of prompt lengths if it was not measured: that of an exponential distribution. It
/// is between the conversations (1.1 times the mean) and the code completions (0.8) of the Azure
/// traces of 2023.
pub const INPUT_VARIATION_DEFAULT: Fraction = Fraction::ONE;

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

/// The average shape of a variant's requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MeanRequest {
    lengths: MeanLengths,
    input_variation: Fraction,
}

/// The number of requests that a replica has room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaRoom {
    /// Requests that share an iteration.
    pub batch: NonZeroU32,
    /// Requests that may wait for a place in the batch.
    pub queue: u32,
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

/// The measured mean lengths of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MeanLengths {
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

// === impl MeanRequest ===

impl MeanRequest {
    /// A shape with at least one output token. A request without output has no latency between
    /// tokens.
    #[must_use]
    pub fn new(lengths: MeanLengths) -> Option<Self> {
        let input_variation = INPUT_VARIATION_DEFAULT;
        (lengths.output.tokens() >= 1.0).then_some(Self { lengths, input_variation })
    }

    /// The same shape with a measured variation of prompt lengths: the standard deviation as a
    /// share of the mean. Only percentiles depend on it.
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

    /// The standard deviation of prompt lengths, as a share of the mean.
    #[must_use]
    pub const fn input_variation(self) -> Fraction {
        self.input_variation
    }
}

// === impl ReplicaRoom ===

impl Default for ReplicaRoom {
    fn default() -> Self {
        Self { batch: BATCH_DEFAULT, queue: QUEUE_DEFAULT }
    }
}
