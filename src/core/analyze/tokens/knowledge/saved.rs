//! What is known of one variant's capacity, said to whoever goes on with it.
//!
//! How engines are started is not part of it: it is read anew from where it is written. Evidence
//! that several variants share because their engines are started alike is said of each of them, and
//! is one again as soon as that has been read.

use std::num::NonZeroU32;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::tokens::capacity::OutputLength;
use crate::analyze::tokens::knowledge::{
    Conditions, Engine, Evidence, Knowledge, PIECES_MAX, Piece, Record,
};
use crate::fleet::{Accelerator, ModelName, VariantKey};
use crate::units::Tokens;

/// Conditions of which evidence is written at most: an accelerator and each length of answers, and
/// as many again for one that was changed.
pub const LIMITS_MAX: usize = 8;

/// What is known of one variant.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SavedKnowledge {
    /// What one replica carries.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Record>,
    /// Where compute was the limit.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<SavedLimit>,
}

/// Tokens that were resident while compute was the limit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedLimit {
    /// What the engines ran on.
    pub accelerator: Option<Accelerator>,
    /// How many accelerators each took.
    pub gpus: Option<NonZeroU32>,
    /// How long answers were.
    pub output: OutputLength,
    /// When, and how many tokens; the oldest first.
    #[serde(with = "crate::units::instants")]
    pub pieces: Vec<(Timestamp, Tokens)>,
}

impl Knowledge {
    /// What is known of one variant.
    #[must_use]
    pub fn save(&self, model: &ModelName, variant: &VariantKey) -> SavedKnowledge {
        let Some(known) = self.models.get(model) else { return SavedKnowledge::default() };
        let ours = |(conditions, evidence): &(Conditions, Evidence)| {
            let Conditions { accelerator, gpus, engine, output } = conditions;
            let is_ours = match engine {
                Engine::Variant(key) => key == variant,
                Engine::Arguments(arguments) => known.records.get(variant).is_some_and(|record| {
                    record.accelerator == *accelerator
                        && record.arguments.as_ref() == Some(&**arguments)
                }),
                Engine::Any => false,
            };
            let pieces = evidence.pieces.iter().map(|piece| (piece.at, piece.tokens)).collect();
            is_ours.then(|| SavedLimit {
                accelerator: accelerator.clone(),
                gpus: *gpus,
                output: *output,
                pieces,
            })
        };
        let limits = known.evidence.iter().filter_map(ours).take(LIMITS_MAX).collect();
        let record = known.records.get(variant);
        SavedKnowledge { record: record.map(|it| Record { arguments: None, ..it.clone() }), limits }
    }

    /// Goes on from what was known of one variant.
    pub fn recall(&mut self, model: &ModelName, variant: &VariantKey, saved: &SavedKnowledge) {
        let SavedKnowledge { record, limits } = saved;
        if let Some(record) = record
            && self.of(model).record(variant).is_none()
        {
            self.restore(model, variant.clone(), record.clone());
        }
        for limit in limits.iter().take(LIMITS_MAX) {
            let SavedLimit { accelerator, gpus, output, pieces } = limit;
            let engine = Engine::Variant(variant.clone());
            let conditions = Conditions {
                accelerator: accelerator.clone(),
                gpus: *gpus,
                engine,
                output: *output,
            };
            let known = &mut self.of(model).evidence;
            if known.iter().any(|(known, _)| *known == conditions) {
                continue;
            }
            let mut pieces: Vec<Piece> =
                pieces.iter().map(|&(at, tokens)| Piece { at, tokens }).collect();
            pieces.sort_by_key(|piece| piece.at);
            pieces.drain(..pieces.len().saturating_sub(PIECES_MAX));
            known.push((conditions, Evidence { pieces }));
        }
    }
}
