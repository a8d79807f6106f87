//! Learned capacities, kept beyond the lifetime of the replicas that they were learned from.
//!
//! A [`CapacityRecord`] holds the capacity per replica of a variant, so that a variant without
//! replicas can be compared with others. [`ComputeEvidence`] holds the tokens that were resident
//! while compute was the limit. It applies under [`EvidenceConditions`], which name everything that
//! the limit depends on: the model, the accelerator and the count of accelerators, the engine's
//! arguments, and the output length. Variants under the same conditions share their evidence,
//! within their namespace or within the cluster.

mod evidence;
mod record;
mod saved;

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::experience::{Experience as _, continue_from};
use crate::analyze::tokens::knowledge::evidence::{
    EvidenceConditions, EvidenceEngine, EvidenceSample, PIECES_MAX, is_older,
};
use crate::fleet::{ModelName, Namespace, VariantKey};
use crate::units::Tokens;

pub use crate::analyze::tokens::knowledge::evidence::PIECES_MIN;
pub(crate) use crate::analyze::tokens::knowledge::evidence::{
    ComputeEvidence, ConditionsRef, EngineRef, median,
};
pub use crate::analyze::tokens::knowledge::record::{CapacityRecord, RecordSource};
pub use crate::analyze::tokens::knowledge::saved::{LIMITS_MAX, SavedKnowledge, SavedLimit};

/// The time for which the record of a variant without replicas is kept: over a weekend and a
/// release.
const RECORD_AGE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

/// The learned capacities of all models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    models: BTreeMap<ModelName, ModelKnowledge>,
}

/// The learned capacities of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelKnowledge {
    records: BTreeMap<VariantKey, CapacityRecord>,
    evidence: Vec<(EvidenceConditions, ComputeEvidence)>,
}

// === impl Knowledge ===

impl Knowledge {
    /// The learned capacities of a model.
    pub(crate) fn of(&mut self, model: &ModelName) -> &mut ModelKnowledge {
        // Cloning the name, which shares its text, costs less than a second lookup.
        self.models.entry(model.clone()).or_default()
    }

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

    /// Continues from the saved capacity of one variant. Existing values stay unless they are
    /// shorter experience.
    pub fn recall(&mut self, model: &ModelName, variant: &VariantKey, saved: &SavedKnowledge) {
        let SavedKnowledge { record, limits } = saved;
        if let Some(record) = record {
            continue_from(&mut self.of(model).records, variant, record.clone());
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

            let mut sorted: Vec<EvidenceSample> =
                pieces.iter().map(|&(at, tokens)| EvidenceSample { at, tokens }).collect();
            sorted.sort_by_key(|piece| piece.at);
            sorted.drain(..sorted.len().saturating_sub(PIECES_MAX));
            let saved = ComputeEvidence { pieces: sorted };
            let all = &mut self.of(model).evidence;
            match all.iter_mut().find(|(known, _)| *known == conditions) {
                Some((_, ours)) if !ours.knows_less_than(&saved) => {}
                Some((_, ours)) => *ours = saved,
                None => all.push((conditions, saved)),
            }
        }
    }

    /// Drops expired records and evidence. The caller does so periodically, to keep the memory
    /// bounded.
    pub fn forget(&mut self, now: Timestamp) {
        self.models.retain(|_, known| {
            known.records.retain(|_, record| !is_older(record.source.at(), now, RECORD_AGE_MAX));
            for (_, evidence) in &mut known.evidence {
                evidence.forget(now);
            }
            known.evidence.retain(|(_, evidence)| !evidence.pieces.is_empty());

            !known.records.is_empty() || !known.evidence.is_empty()
        });
    }
}

// === impl ModelKnowledge ===

impl ModelKnowledge {
    pub(crate) fn record(&self, variant: &VariantKey) -> Option<&CapacityRecord> {
        self.records.get(variant)
    }

    /// The record of a variant, created by `empty` if there is none.
    pub(crate) fn record_or(
        &mut self,
        variant: &VariantKey,
        empty: impl FnOnce() -> CapacityRecord,
    ) -> &mut CapacityRecord {
        // Most variants have a record, and then the key is not cloned.
        if !self.records.contains_key(variant) {
            self.records.insert(variant.clone(), empty());
        }
        self.records.get_mut(variant).expect("it is there, or has just been put there")
    }

    /// The measured record of another variant with equivalent arguments on the same known
    /// accelerator, in this namespace if there is one. Of several, the record seen last; of those,
    /// the first by name.
    pub(crate) fn like(
        &self,
        variant: &VariantKey,
        within: Option<&Namespace>,
        record: &CapacityRecord,
    ) -> Option<&CapacityRecord> {
        let arguments = record.arguments.as_ref()?;
        record.accelerator.as_ref()?;

        self.records
            .iter()
            .filter(|(key, other)| {
                *key != variant
                    && within.is_none_or(|namespace| key.namespace == *namespace)
                    && matches!(other.source, RecordSource::Measured(_))
                    && other.capacity.is_some_and(|capacity| capacity > Tokens::ZERO)
                    && other.accelerator == record.accelerator
                    && other.gpus == record.gpus
                    && other.arguments.as_ref().is_some_and(|args| args.carries_like(arguments))
            })
            .map(|(_, other)| other)
            .min_by_key(|other| std::cmp::Reverse(other.source.at()))
    }

    /// Reassigns evidence found for a variant alone to engines with these arguments, once they are
    /// known.
    pub(crate) fn adopt(
        &mut self,
        variant: &VariantKey,
        arguments: &EngineArguments,
        within: Option<&Namespace>,
    ) {
        while let Some(position) =
            self.evidence.iter().position(|(known, _)| known.are_of_variant_alone(variant))
        {
            let (known, found) = self.evidence.remove(position);
            let to = self.evidence_mut(ConditionsRef {
                accelerator: known.accelerator.as_ref(),
                gpus: known.gpus,
                engine: EngineRef::Arguments(arguments, within),
                output: known.output,
            });

            to.pieces.extend(found.pieces);
            to.pieces.sort_by_key(|piece| piece.at);
            // If several variants shared the evidence, each has restored the same pieces.
            to.pieces.dedup();
            to.pieces.drain(..to.pieces.len().saturating_sub(PIECES_MAX));
        }
    }

    pub(crate) fn evidence(&self, conditions: ConditionsRef<'_>) -> Option<&ComputeEvidence> {
        let found = self.evidence.iter().find(|(known, _)| known.are(conditions));
        found.map(|(_, evidence)| evidence)
    }

    /// The evidence under these conditions; creates empty evidence if there is none.
    pub(crate) fn evidence_mut(&mut self, conditions: ConditionsRef<'_>) -> &mut ComputeEvidence {
        let found = self.evidence.iter().position(|(known, _)| known.are(conditions));
        let index = found.unwrap_or_else(|| {
            self.evidence.push((EvidenceConditions::from(conditions), ComputeEvidence::default()));
            self.evidence.len() - 1
        });
        &mut self.evidence[index].1
    }

    /// Drops evidence of fewer tokens than a replica holds without a queue.
    pub(crate) fn refute(&mut self, conditions: ConditionsRef<'_>, carried: Tokens) {
        for (_, evidence) in self.evidence.iter_mut().filter(|(known, _)| known.are(conditions)) {
            evidence.pieces.retain(|piece| piece.tokens >= carried);
        }
    }
}
