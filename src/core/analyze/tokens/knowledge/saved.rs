//! The saved state of one variant's learned capacity.
//!
//! The engine's arguments are not part of it, because they are read again from the pod template. If
//! several variants share evidence because of their arguments, the state of each contains it. It is
//! merged again as soon as their arguments are known.

use std::num::NonZeroU32;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::tokens::capacity::OutputLength;
use crate::analyze::tokens::knowledge::evidence::{ComputeEvidence, EvidenceConditions};
use crate::analyze::tokens::knowledge::record::CapacityRecord;
use crate::fleet::Accelerator;
use crate::units::Tokens;

/// The maximum number of conditions whose evidence is saved: an accelerator with each output
/// length, and the same for an accelerator that was replaced.
pub const LIMITS_MAX: usize = 8;

/// The learned capacity of one variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedKnowledge {
    /// The capacity per replica.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<CapacityRecord>,
    /// The evidence of compute limits.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<SavedLimit>,
}

/// Tokens that were resident while compute was the limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedLimit {
    /// The accelerator of the engines.
    pub accelerator: Option<Accelerator>,
    /// The number of accelerators per replica.
    pub gpus: Option<NonZeroU32>,
    /// The output length.
    pub output: OutputLength,
    /// The instant and the number of tokens of each piece, oldest first.
    #[serde(with = "crate::units::instants")]
    pub pieces: Vec<(Timestamp, Tokens)>,
}

impl SavedLimit {
    pub(super) fn of(conditions: &EvidenceConditions, evidence: &ComputeEvidence) -> Self {
        let EvidenceConditions { accelerator, gpus, engine: _, output } = conditions;
        Self {
            accelerator: accelerator.clone(),
            gpus: *gpus,
            output: *output,
            pieces: evidence.pieces.iter().map(|piece| (piece.at, piece.tokens)).collect(),
        }
    }
}
