//! What has been learned of capacity, kept beyond the replicas that it was learned from.
//!
//! A [`Record`] says what one replica of a variant carries, so that a variant without replicas can
//! be weighed against others. [`Evidence`] says how many tokens were resident while compute was the
//! limit, under [`Conditions`] that name everything which that depends on: the model, the
//! accelerator and how many of them, the engine's arguments, and how long its answers are. Variants
//! under the same conditions share it, in whatever namespace they are.

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

/// Pieces of evidence that are kept: the last minutes of a limit, not all its history.
const PIECES_MAX: usize = 10;

/// Pieces without which there is no conclusion. One queue is a spike; three, apart from each other,
/// are a limit.
pub const PIECES_MIN: usize = 3;

/// The least time between two pieces. Readings cover a window, and two readings of nearly the same
/// window are one observation.
const PIECE_APART: SignedDuration = SignedDuration::from_secs(20);

/// How long evidence holds in full after its newest piece. Where the limit still binds, new pieces
/// arrive every 20 seconds.
const FULL_FOR: SignedDuration = SignedDuration::from_mins(30);

/// The time in which a bound doubles after that.
///
/// A model that has grown because compute binds shows no queue any more, and so no evidence. To
/// forget all of it at once would take the replicas away at once, and bring the queue back; never to
/// forget would keep them for a mix of requests that is gone. A bound that rises slowly gives them
/// back one by one, and the first short queue renews it.
const DOUBLES_IN: SignedDuration = SignedDuration::from_hours(1);

/// How long a piece counts at all: by then its bound is forty times what it was.
const PIECE_AGE_MAX: SignedDuration = SignedDuration::from_hours(6);

/// How long a record of a variant without replicas is kept: over a weekend and a release.
const RECORD_AGE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

/// What is known of all models.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Knowledge {
    models: BTreeMap<ModelName, ModelKnowledge>,
}

/// What is known of one model.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ModelKnowledge {
    records: BTreeMap<VariantKey, Record>,
    evidence: Vec<(Conditions, Evidence)>,
}

/// What one replica of a variant carries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// What it runs on.
    pub accelerator: Option<Accelerator>,
    /// How many accelerators it takes.
    pub gpus: Option<NonZeroU32>,
    /// How its engines are started; not said to whoever goes on with it.
    #[serde(skip)]
    pub arguments: Option<EngineArguments>,
    /// The size of its KV cache.
    pub kv_capacity: Option<Tokens>,
    /// What it carries.
    pub capacity: Option<Tokens>,
    /// Where that is known from.
    pub source: Source,
}

/// Where a record's capacity is known from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Source {
    /// From replicas that ran, last seen at this instant.
    Measured(#[serde(with = "crate::units::instants")] Timestamp),
    /// From how its engines are started.
    Declared(#[serde(with = "crate::units::instants")] Timestamp),
}

impl Source {
    /// When the record was last known to be true.
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

/// How an engine is told from others.
#[derive(Clone, Copy, Debug)]
pub(crate) enum EngineRef<'a> {
    /// By its arguments.
    Arguments(&'a EngineArguments),
    /// By its variant, where nobody knows the arguments.
    Variant(&'a VariantKey),
    /// Not at all, which is how WVA does it.
    Any,
}

/// The conditions under which evidence was found.
#[derive(Clone, Debug, PartialEq)]
struct Conditions {
    accelerator: Option<Accelerator>,
    gpus: Option<NonZeroU32>,
    engine: Engine,
    output: OutputLength,
}

#[derive(Clone, Debug, PartialEq)]
enum Engine {
    Arguments(Box<EngineArguments>),
    Variant(VariantKey),
    Any,
}

/// Tokens that were resident while compute was the limit, the oldest first.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Evidence {
    pieces: Vec<Piece>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Piece {
    at: Timestamp,
    tokens: Tokens,
}

// === impl Knowledge ===

impl Knowledge {
    /// What is known of a model.
    pub(crate) fn of(&mut self, model: &ModelName) -> &mut ModelKnowledge {
        // To share a name costs less than to look it up twice.
        self.models.entry(model.clone()).or_default()
    }

    /// Puts a record in place of the one that there may be, as after a restart.
    pub fn restore(&mut self, model: &ModelName, variant: VariantKey, record: Record) {
        self.of(model).records.insert(variant, record);
    }

    /// Drops what is too old to say anything; the caller does so now and then, to keep it bounded.
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
    pub(crate) fn record(&self, variant: &VariantKey) -> Option<&Record> {
        self.records.get(variant)
    }

    /// The record of a variant, made of `empty` if there is none.
    pub(crate) fn record_or(
        &mut self,
        variant: &VariantKey,
        empty: impl FnOnce() -> Record,
    ) -> &mut Record {
        // As in `of`.
        if !self.records.contains_key(variant) {
            self.records.insert(variant.clone(), empty());
        }
        self.records.get_mut(variant).expect("it is there, or has just been put there")
    }

    /// The measured record of another variant whose replicas carry the same, on an accelerator that
    /// is known: of several, the one seen last, and of those the first by name.
    pub(crate) fn like(&self, variant: &VariantKey, record: &Record) -> Option<&Record> {
        let arguments = record.arguments.as_ref()?;
        record.accelerator.as_ref()?;
        self.records
            .iter()
            .filter(|(key, other)| {
                *key != variant
                    && matches!(other.source, Source::Measured(_))
                    && other.capacity.is_some_and(|capacity| capacity > Tokens::ZERO)
                    && other.accelerator == record.accelerator
                    && other.gpus == record.gpus
                    && other.arguments.as_ref().is_some_and(|args| args.carries_like(arguments))
            })
            .map(|(_, other)| other)
            .min_by_key(|other| std::cmp::Reverse(other.source.at()))
    }

    /// Takes what was found for a variant alone as found for engines that are started as it is now
    /// known to be.
    pub(crate) fn adopt(&mut self, variant: &VariantKey, arguments: &EngineArguments) {
        let alone = |(known, _): &(Conditions, Evidence)| {
            let own = matches!(&known.engine, Engine::Variant(key) if key == variant);
            own && known.accelerator.is_some()
        };
        while let Some(position) = self.evidence.iter().position(alone) {
            let (known, found) = self.evidence.remove(position);
            let to = self.evidence_mut(ConditionsRef {
                accelerator: known.accelerator.as_ref(),
                gpus: known.gpus,
                engine: EngineRef::Arguments(arguments),
                output: known.output,
            });
            to.pieces.extend(found.pieces);
            to.pieces.sort_by_key(|piece| piece.at);
            // Of several variants that shared it, each has brought it back.
            to.pieces.dedup();
            to.pieces.drain(..to.pieces.len().saturating_sub(PIECES_MAX));
        }
    }

    pub(crate) fn evidence(&self, conditions: ConditionsRef<'_>) -> Option<&Evidence> {
        let found = self.evidence.iter().find(|(known, _)| known.are(conditions));
        found.map(|(_, evidence)| evidence)
    }

    /// The evidence under these conditions, empty if there is none.
    pub(crate) fn evidence_mut(&mut self, conditions: ConditionsRef<'_>) -> &mut Evidence {
        let found = self.evidence.iter().position(|(known, _)| known.are(conditions));
        let index = found.unwrap_or_else(|| {
            self.evidence.push((Conditions::from(conditions), Evidence::default()));
            self.evidence.len() - 1
        });
        &mut self.evidence[index].1
    }

    /// Drops evidence of less than a replica carries without a queue.
    pub(crate) fn refute(&mut self, conditions: ConditionsRef<'_>, carried: Tokens) {
        for (_, evidence) in self.evidence.iter_mut().filter(|(known, _)| known.are(conditions)) {
            evidence.pieces.retain(|piece| piece.tokens >= carried);
        }
    }
}

// === impl Conditions ===

impl Conditions {
    fn are(&self, other: ConditionsRef<'_>) -> bool {
        let Self { accelerator, gpus, engine, output } = self;
        let same_engine = match (engine, other.engine) {
            (Engine::Arguments(ours), EngineRef::Arguments(theirs)) => {
                ours.carries_like(theirs) && ours.sequences == theirs.sequences
            }
            (Engine::Variant(ours), EngineRef::Variant(theirs)) => ours == theirs,
            (Engine::Any, EngineRef::Any) => true,
            (Engine::Arguments(_) | Engine::Variant(_) | Engine::Any, _) => false,
        };
        *output == other.output
            && *gpus == other.gpus
            && accelerator.as_ref() == other.accelerator
            && same_engine
    }
}

impl From<ConditionsRef<'_>> for Conditions {
    fn from(from: ConditionsRef<'_>) -> Self {
        Self {
            accelerator: from.accelerator.cloned(),
            gpus: from.gpus,
            engine: match from.engine {
                EngineRef::Arguments(arguments) => Engine::Arguments(Box::new(arguments.clone())),
                EngineRef::Variant(variant) => Engine::Variant(variant.clone()),
                EngineRef::Any => Engine::Any,
            },
            output: from.output,
        }
    }
}

// === impl Evidence ===

impl Evidence {
    /// Adds a piece, whatever was added before it.
    pub(crate) fn add(&mut self, now: Timestamp, tokens: Tokens) {
        if self.pieces.len() == PIECES_MAX {
            self.pieces.remove(0);
        }
        self.pieces.push(Piece { at: now, tokens });
    }

    /// Adds a piece if the last one is long enough ago.
    pub(crate) fn add_apart(&mut self, now: Timestamp, tokens: Tokens) {
        self.forget(now);
        let last = self.pieces.last();
        if last.is_none_or(|last| is_older(last.at, now, PIECE_APART)) {
            self.add(now, tokens);
        }
    }

    /// The mean of all pieces, however few and old; `None` without any.
    pub(crate) fn mean(&self) -> Option<Tokens> {
        let sum: Tokens = self.pieces.iter().map(|piece| piece.tokens).sum();
        Tokens::new(sum.tokens() / self.pieces.len() as f64)
    }

    /// The bound that the pieces which count show, if there are enough of them: their median, and
    /// more as the newest ages, up to what is derived from the engine's arguments.
    ///
    /// The median, because one piece that was taken in a burst must not move the answer.
    pub(crate) fn bound(&self, now: Timestamp, derived: Option<Tokens>) -> Option<Tokens> {
        let newest = self.pieces.last()?.at;
        let mut counting = [Tokens::ZERO; PIECES_MAX];
        let mut number = 0;
        for piece in self.pieces.iter().filter(|piece| !is_older(piece.at, now, PIECE_AGE_MAX)) {
            counting[number] = piece.tokens;
            number += 1;
        }
        let counting = &mut counting[..number];
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

/// The middle of sorted values: the mean of both middle ones when their number is even.
pub(crate) fn median(sorted: &[Tokens]) -> Option<Tokens> {
    let upper = sorted.get(sorted.len() / 2)?;
    let lower = sorted.get((sorted.len() - 1) / 2)?;
    Tokens::new(lower.tokens() / 2.0 + upper.tokens() / 2.0)
}

/// Whether an instant is at least this long ago. One in the future is not: a clock was set back.
fn is_older(at: Timestamp, now: Timestamp, age: SignedDuration) -> bool {
    now.duration_since(at) >= age
}
