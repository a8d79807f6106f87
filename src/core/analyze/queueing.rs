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
mod coefficients;
mod explain;
mod refusal;
mod request;
mod slo;
mod solve;
mod tail;
mod target;

#[cfg(test)]
mod tests;

pub use crate::analyze::queueing::capacity::{
    QueueingAnalysis, QueueingPolicy, QueueingReplicaLoad, QueueingVariantLoad, QueueingWorkload,
    VariantSizing, aggregate, analyze,
};
pub use crate::analyze::queueing::coefficients::{Coefficients, SharedCoefficients};
pub use crate::analyze::queueing::explain::{Sizing, SizingFailure};
pub use crate::analyze::queueing::refusal::QueueingRefusal;
pub use crate::analyze::queueing::request::{INPUT_VARIATION_DEFAULT, MeanLengths, MeanRequest};
pub use crate::analyze::queueing::slo::{
    ObservedLatencies, Slo, TargetInference, TargetOrigin, resolve,
};
pub use crate::analyze::queueing::solve::{
    BATCH_DEFAULT, Prediction, QUEUE_DEFAULT, QueueingModel, RateBound, RateCapacity, ReplicaRoom,
};
pub use crate::analyze::queueing::target::{
    LatencyMetric, LatencyTarget, LatencyTargets, Percentile, Slowdown, Statistic,
};
