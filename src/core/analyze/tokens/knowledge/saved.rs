//! The saved state of one variant's learned capacity.
//!
//! The engine's arguments are not part of it, because they are read again from the pod template. If
//! several variants share evidence because of their arguments, the state of each contains it. It is
//! merged again as soon as their arguments are known.

use std::num::NonZeroU32;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::tokens::capacity::OutputLength;
use crate::analyze::tokens::knowledge::{
    CapacityRecord, ComputeEvidence, EvidenceConditions, EvidenceEngine, EvidenceSample, Knowledge,
    PIECES_MAX,
};
use crate::fleet::{Accelerator, ModelName, VariantKey};
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

impl Knowledge {
    /// The learned capacity of one variant, ready to be saved.
    #[must_use]
    pub fn save(&self, model: &ModelName, variant: &VariantKey) -> SavedKnowledge {
        let Some(known) = self.models.get(model) else { return SavedKnowledge::default() };
        let record = known.records.get(variant);
        let limits = known
            .evidence
            .iter()
            .filter(|(conditions, _)| conditions.are_of(variant, record))
            .map(|(conditions, evidence)| SavedLimit::of(conditions, evidence))
            .take(LIMITS_MAX)
            .collect();

        SavedKnowledge {
            record: record.map(|it| CapacityRecord { arguments: None, ..it.clone() }),
            limits,
        }
    }

    /// Resumes from the saved capacity of one variant. Keeps values that are already known.
    pub fn recall(&mut self, model: &ModelName, variant: &VariantKey, saved: &SavedKnowledge) {
        let SavedKnowledge { record, limits } = saved;
        if let Some(record) = record
            && self.of(model).record(variant).is_none()
        {
            self.restore(model, variant.clone(), record.clone());
        }
        for limit in limits.iter().take(LIMITS_MAX) {
            let SavedLimit { accelerator, gpus, output, pieces } = limit;
            let engine = EvidenceEngine::Variant(variant.clone());
            let conditions = EvidenceConditions {
                accelerator: accelerator.clone(),
                gpus: *gpus,
                engine,
                output: *output,
            };

            let known = &mut self.of(model).evidence;
            if known.iter().any(|(known, _)| *known == conditions) {
                continue;
            }

            let mut sorted: Vec<EvidenceSample> =
                pieces.iter().map(|&(at, tokens)| EvidenceSample { at, tokens }).collect();
            sorted.sort_by_key(|piece| piece.at);
            sorted.drain(..sorted.len().saturating_sub(PIECES_MAX));
            known.push((conditions, ComputeEvidence { pieces: sorted }));
        }
    }
}

impl EvidenceConditions {
    /// Returns true if a variant with this record runs under these conditions.
    fn are_of(&self, variant: &VariantKey, record: Option<&CapacityRecord>) -> bool {
        match &self.engine {
            EvidenceEngine::Variant(key) => key == variant,
            EvidenceEngine::Arguments(arguments) => record.is_some_and(|record| {
                record.accelerator == self.accelerator
                    && record.arguments.as_ref() == Some(&**arguments)
            }),
            EvidenceEngine::Any => false,
        }
    }
}

impl SavedLimit {
    fn of(conditions: &EvidenceConditions, evidence: &ComputeEvidence) -> Self {
        let EvidenceConditions { accelerator, gpus, engine: _, output } = conditions;
        Self {
            accelerator: accelerator.clone(),
            gpus: *gpus,
            output: *output,
            pieces: evidence.pieces.iter().map(|piece| (piece.at, piece.tokens)).collect(),
        }
    }
}
