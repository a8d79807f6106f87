//! Saturation in per cent: spare KV cache and spare queue.

use crate::units::{Fraction, Requests};

/// When a replica counts as saturated, and how much spare capacity a model must keep.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Thresholds {
    /// KV cache usage from which a replica is saturated.
    pub kv_cache: Fraction,
    /// Waiting requests from which a replica is saturated.
    pub queue_length: Requests,
    /// Mean spare KV cache below which the model grows.
    pub kv_spare: Fraction,
    /// Mean spare queue below which the model grows.
    pub queue_spare: Requests,
}

/// What blocks new decisions while an earlier one is being carried out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TransitionRule {
    /// One variant whose replicas are not what was decided, or do not all report, blocks every
    /// variant of the model.
    ModelWide,
    /// A variant whose replicas are not what was decided keeps that decision; the others go on.
    PerVariant,
    /// The model waits while any of its variants has replicas that are not ready yet.
    #[default]
    PendingOnly,
}
