//! The evidence of compute limits, and the conditions that it applies under.
//!
//! [`ComputeEvidence`] holds pieces of evidence: tokens that were resident while compute was the
//! limit.

use std::num::NonZeroU32;

use jiff::{SignedDuration, Timestamp};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::experience::Experience;
use crate::analyze::tokens::capacity::{OutputLength, tokens};
use crate::analyze::tokens::knowledge::record::CapacityRecord;
use crate::fleet::{Accelerator, Namespace, VariantKey};
use crate::units::Tokens;

/// The maximum number of pieces of evidence: the last minutes of a limit, not its full history.
pub(super) const PIECES_MAX: usize = 10;

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
    /// The engine's arguments identify it, within this namespace if there is one.
    Arguments(&'a EngineArguments, Option<&'a Namespace>),
    /// The engine's variant identifies it, because the arguments are unknown.
    Variant(&'a VariantKey),
    /// All engines are the same, as in WVA.
    Any,
}

/// The conditions that evidence applies under.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EvidenceConditions {
    pub(super) accelerator: Option<Accelerator>,
    pub(super) gpus: Option<NonZeroU32>,
    pub(super) engine: EvidenceEngine,
    pub(super) output: OutputLength,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) enum EvidenceEngine {
    Arguments(Box<EngineArguments>, Option<Namespace>),
    Variant(VariantKey),
    Any,
}

/// Tokens that were resident while compute was the limit, oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ComputeEvidence {
    pub(super) pieces: Vec<EvidenceSample>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct EvidenceSample {
    pub(super) at: Timestamp,
    pub(super) tokens: Tokens,
}

// === impl EvidenceConditions ===

impl EvidenceConditions {
    /// Returns true if a variant with this record runs under these conditions.
    pub(super) fn are_of(&self, variant: &VariantKey, record: Option<&CapacityRecord>) -> bool {
        match &self.engine {
            EvidenceEngine::Variant(key) => key == variant,
            EvidenceEngine::Arguments(arguments, within) => record.is_some_and(|record| {
                within.as_ref().is_none_or(|namespace| variant.namespace == *namespace)
                    && record.accelerator == self.accelerator
                    && record.arguments.as_ref() == Some(&**arguments)
            }),
            EvidenceEngine::Any => false,
        }
    }

    /// Returns true if the evidence was found for this variant alone, on a known accelerator.
    pub(super) fn are_of_variant_alone(&self, variant: &VariantKey) -> bool {
        let own = matches!(&self.engine, EvidenceEngine::Variant(key) if key == variant);
        own && self.accelerator.is_some()
    }

    pub(super) fn are(&self, other: ConditionsRef<'_>) -> bool {
        let Self { accelerator, gpus, engine, output } = self;
        let same_engine = match (engine, other.engine) {
            (EvidenceEngine::Arguments(ours, within), EngineRef::Arguments(theirs, other)) => {
                within.as_ref() == other
                    && ours.carries_like(theirs)
                    && ours.sequences == theirs.sequences
            }
            (EvidenceEngine::Variant(ours), EngineRef::Variant(theirs)) => ours == theirs,
            (EvidenceEngine::Any, EngineRef::Any) => true,
            (
                EvidenceEngine::Arguments(..) | EvidenceEngine::Variant(_) | EvidenceEngine::Any,
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
                EngineRef::Arguments(arguments, within) => {
                    EvidenceEngine::Arguments(Box::new(arguments.clone()), within.cloned())
                }
                EngineRef::Variant(variant) => EvidenceEngine::Variant(variant.clone()),
                EngineRef::Any => EvidenceEngine::Any,
            },
            output: from.output,
        }
    }
}

// === impl ComputeEvidence ===

impl Experience for ComputeEvidence {
    fn knows_less_than(&self, other: &Self) -> bool {
        self.pieces.len() < other.pieces.len()
    }
}

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

    pub(super) fn forget(&mut self, now: Timestamp) {
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
pub(super) fn is_older(at: Timestamp, now: Timestamp, age: SignedDuration) -> bool {
    now.duration_since(at) >= age
}
