//! Learned capacities, kept beyond the lifetime of the replicas that they were learned from.
//!
//! A [`CapacityRecord`] holds the capacity per replica of a variant, so that a variant without
//! replicas can be compared with others. [`ComputeEvidence`] holds the tokens that were resident
//! while compute was the limit. It applies under [`EvidenceConditions`], which name everything that
//! the limit depends on: the model, the accelerator and the count of accelerators, the engine's
//! arguments, and the output length. Variants under the same conditions share their evidence, in
//! any namespace.

mod saved;

use std::collections::BTreeMap;
use std::num::NonZeroU32;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::tokens::capacity::{OutputLength, tokens};
use crate::fleet::{Accelerator, ModelName, VariantKey};
use crate::units::Tokens;

pub use crate::analyze::tokens::knowledge::saved::{LIMITS_MAX, SavedKnowledge, SavedLimit};

/// The maximum number of pieces of evidence: the last minutes of a limit, not its full history.
const PIECES_MAX: usize = 10;

/// The minimum number of pieces for a conclusion. One queue is a spike; three queues at different
/// times are a limit.
pub const PIECES_MIN: usize = 3;

/// The minimum time between two pieces. Readings cover a window, and two readings of nearly the
/// same window are one observation.
const PIECE_APART: SignedDuration = SignedDuration::from_secs(20);

/// The time for which evidence applies in full after its newest piece. While the limit still binds,
/// new pieces arrive every 20 seconds.
const FULL_FOR: SignedDuration = SignedDuration::from_mins(30);

/// The time in which a bound doubles after that.
///
/// A model that was scaled up because compute binds shows no queue anymore, and so no new evidence.
/// If all evidence expired at once, its replicas would be removed at once, and the queue would
/// return. If it never expired, the replicas would stay for a request mix that is gone. A bound
/// that rises slowly releases them one by one, and the first short queue renews it.
const DOUBLES_IN: SignedDuration = SignedDuration::from_hours(1);

/// The age at which a piece expires: by then its bound has grown forty times.
const PIECE_AGE_MAX: SignedDuration = SignedDuration::from_hours(6);

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

/// The capacity per replica of a variant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CapacityRecord {
    /// The accelerator that the variant runs on.
    pub accelerator: Option<Accelerator>,
    /// The number of accelerators per replica.
    pub gpus: Option<NonZeroU32>,
    /// The arguments of its engines; not part of the saved state.
    #[serde(skip)]
    pub arguments: Option<EngineArguments>,
    /// The size of the KV cache.
    pub kv_capacity: Option<Tokens>,
    /// The capacity per replica.
    pub capacity: Option<Tokens>,
    /// The source of the capacity.
    pub source: RecordSource,
}

/// The source of a record's capacity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecordSource {
    /// Measured on running replicas, last seen at this instant.
    Measured(#[serde(with = "crate::units::instants")] Timestamp),
    /// Derived from the engine's arguments.
    Declared(#[serde(with = "crate::units::instants")] Timestamp),
}

impl RecordSource {
    /// The last instant at which the record was known to be true.
    #[must_use]
    pub const fn at(self) -> Timestamp {
        match self {
            Self::Measured(at) | Self::Declared(at) => at,
        }
    }
}

/// Everything that the compute bound of one engine depends on, within a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ConditionsRef<'a> {
    pub(crate) accelerator: Option<&'a Accelerator>,
    pub(crate) gpus: Option<NonZeroU32>,
    pub(crate) engine: EngineRef<'a>,
    pub(crate) output: OutputLength,
}

/// The identity of an engine.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineRef<'a> {
    /// The engine's arguments identify it.
    Arguments(&'a EngineArguments),
    /// The engine's variant identifies it, because the arguments are unknown.
    Variant(&'a VariantKey),
    /// All engines are the same, as in WVA.
    Any,
}

/// The conditions that evidence applies under.
#[derive(Clone, Debug, PartialEq)]
struct EvidenceConditions {
    accelerator: Option<Accelerator>,
    gpus: Option<NonZeroU32>,
    engine: EvidenceEngine,
    output: OutputLength,
}

#[derive(Clone, Debug, PartialEq)]
enum EvidenceEngine {
    Arguments(Box<EngineArguments>),
    Variant(VariantKey),
    Any,
}

/// Tokens that were resident while compute was the limit, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ComputeEvidence {
    pieces: Vec<EvidenceSample>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct EvidenceSample {
    at: Timestamp,
    tokens: Tokens,
}

// === impl Knowledge ===

impl Knowledge {
    /// The learned capacities of a model.
    pub(crate) fn of(&mut self, model: &ModelName) -> &mut ModelKnowledge {
        // Cloning the name, which shares its text, costs less than a second lookup.
        self.models.entry(model.clone()).or_default()
    }

    /// Sets the record of a variant and replaces an existing one, for example after a restart.
    pub fn restore(&mut self, model: &ModelName, variant: VariantKey, record: CapacityRecord) {
        self.of(model).records.insert(variant, record);
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
    /// accelerator. Of several, the record seen last; of those, the first by name.
    pub(crate) fn like(
        &self,
        variant: &VariantKey,
        record: &CapacityRecord,
    ) -> Option<&CapacityRecord> {
        let arguments = record.arguments.as_ref()?;
        record.accelerator.as_ref()?;

        self.records
            .iter()
            .filter(|(key, other)| {
                *key != variant
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
    pub(crate) fn adopt(&mut self, variant: &VariantKey, arguments: &EngineArguments) {
        while let Some(position) =
            self.evidence.iter().position(|(known, _)| known.are_of_variant_alone(variant))
        {
            let (known, found) = self.evidence.remove(position);
            let to = self.evidence_mut(ConditionsRef {
                accelerator: known.accelerator.as_ref(),
                gpus: known.gpus,
                engine: EngineRef::Arguments(arguments),
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

// === impl EvidenceConditions ===

impl EvidenceConditions {
    /// Returns true if the evidence was found for this variant alone, on a known accelerator.
    fn are_of_variant_alone(&self, variant: &VariantKey) -> bool {
        let own = matches!(&self.engine, EvidenceEngine::Variant(key) if key == variant);
        own && self.accelerator.is_some()
    }

    fn are(&self, other: ConditionsRef<'_>) -> bool {
        let Self { accelerator, gpus, engine, output } = self;
        let same_engine = match (engine, other.engine) {
            (EvidenceEngine::Arguments(ours), EngineRef::Arguments(theirs)) => {
                ours.carries_like(theirs) && ours.sequences == theirs.sequences
            }
            (EvidenceEngine::Variant(ours), EngineRef::Variant(theirs)) => ours == theirs,
            (EvidenceEngine::Any, EngineRef::Any) => true,
            (
                EvidenceEngine::Arguments(_) | EvidenceEngine::Variant(_) | EvidenceEngine::Any,
                _,
            ) => false,
        };

        *output == other.output
            && *gpus == other.gpus
            && accelerator.as_ref() == other.accelerator
            && same_engine
    }
}

impl From<ConditionsRef<'_>> for EvidenceConditions {
    fn from(from: ConditionsRef<'_>) -> Self {
        Self {
            accelerator: from.accelerator.cloned(),
            gpus: from.gpus,
            engine: match from.engine {
                EngineRef::Arguments(arguments) => {
                    EvidenceEngine::Arguments(Box::new(arguments.clone()))
                }
                EngineRef::Variant(variant) => EvidenceEngine::Variant(variant.clone()),
                EngineRef::Any => EvidenceEngine::Any,
            },
            output: from.output,
        }
    }
}

// === impl ComputeEvidence ===

impl ComputeEvidence {
    /// Adds a piece, regardless of earlier pieces.
    pub(crate) fn add(&mut self, now: Timestamp, tokens: Tokens) {
        if self.pieces.len() == PIECES_MAX {
            self.pieces.remove(0);
        }
        self.pieces.push(EvidenceSample { at: now, tokens });
    }

    /// Adds a piece if the last one is old enough.
    pub(crate) fn add_apart(&mut self, now: Timestamp, tokens: Tokens) {
        self.forget(now);
        let last = self.pieces.last();
        if last.is_none_or(|last| is_older(last.at, now, PIECE_APART)) {
            self.add(now, tokens);
        }
    }

    /// The mean of all pieces, regardless of their number and age; `None` without any.
    pub(crate) fn mean(&self) -> Option<Tokens> {
        let sum: Tokens = self.pieces.iter().map(|piece| piece.tokens).sum();
        Tokens::new(sum.tokens() / self.pieces.len() as f64)
    }

    /// The bound shown by the pieces that have not expired, if there are enough of them. It is
    /// their median, and rises as the newest piece ages, up to the bound derived from the engine's
    /// arguments.
    ///
    /// The median prevents a single piece from a burst from moving the bound.
    pub(crate) fn bound(&self, now: Timestamp, derived: Option<Tokens>) -> Option<Tokens> {
        let newest = self.pieces.last()?.at;
        let mut recent = [Tokens::ZERO; PIECES_MAX];
        let mut number = 0;
        for piece in self.pieces.iter().filter(|piece| !is_older(piece.at, now, PIECE_AGE_MAX)) {
            recent[number] = piece.tokens;
            number += 1;
        }

        let counting = &mut recent[..number];
        counting.sort_unstable_by(|a, b| a.compare(*b));
        let median = median(counting).filter(|_| number >= PIECES_MIN)?;
        let faded = now.duration_since(newest).as_secs_f64() - FULL_FOR.as_secs_f64();
        let factor = (faded.max(0.0) / DOUBLES_IN.as_secs_f64()).exp2();
        let bound = tokens(median.tokens() * factor);
        Some(derived.map_or(bound, |derived| bound.min(median.max(derived))))
    }

    fn forget(&mut self, now: Timestamp) {
        self.pieces.retain(|piece| !is_older(piece.at, now, PIECE_AGE_MAX));
    }
}

/// The median of sorted values: the mean of the two middle values if their number is even.
pub(crate) fn median(sorted: &[Tokens]) -> Option<Tokens> {
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Tokens::new(lower.tokens() / 2.0 + upper.tokens() / 2.0)
}

/// Returns true if an instant is at least this long ago. An instant in the future is not: the clock
/// was set back.
fn is_older(at: Timestamp, now: Timestamp, age: SignedDuration) -> bool {
    now.duration_since(at) >= age
}
