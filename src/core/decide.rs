//! Decisions and the steps that explain them.
//!
//! A [`Decision`] holds the desired replicas of one variant and the chain of [`Step`]s that
//! produced them. A stage appends one step if it changes the value, or if it had a reason to change
//! it and did not. The last step's `after` is the result. Every published value can therefore be
//! traced to its source, and the explanation cannot drift from the arithmetic.

pub mod check;
mod decision;
pub mod enforce;
pub mod limit;
pub mod limited;
pub mod optimize;
pub mod outlook;
pub mod pools;
pub mod rank;
pub mod reason;
pub mod sized;
pub mod unheard;
pub mod workload;
pub mod zero;

use crate::analyze::saturation::{Thresholds, Transition};
use crate::units::{Fraction, Replicas, Requests};

pub use crate::decide::decision::{Basis, Decision, NoDecision, Stage, Step};
pub use crate::decide::reason::{NoData, Reason, ReasonCode, RemoteReason};

/// The saturation analysis of one model's variants in one role.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelReport {
    /// The thresholds and triggers in effect for the model.
    pub thresholds: Thresholds,
    /// Mean KV-cache headroom of the replicas that are not saturated.
    pub spare_kv: Fraction,
    /// Mean queue headroom of the replicas that are not saturated.
    pub spare_queue: Requests,
    /// KV-cache headroom that is missing to reach the trigger.
    pub required_kv: Fraction,
    /// Queue headroom that is missing to reach the trigger.
    pub required_queue: Requests,
    /// The transition that the model waits for, if any.
    pub transition: Option<Transition>,
}

/// The saturation analysis of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantReport {
    /// Mean saturation of its replicas, where 1 is the threshold. Each replica counts with the
    /// larger of its KV usage and its queue, each as a share of its threshold.
    pub saturation: Fraction,
    /// Saturated replicas.
    pub saturated: Replicas,
}
