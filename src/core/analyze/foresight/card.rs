//! Capacity cards: coefficients learned from one kind of engine, for others of the same kind.
//!
//! A new variant has no lessons in its first minutes, when they matter the most. But its
//! coefficients and the lengths of its requests are often known: from another variant, from a
//! variant that is gone, or from another cluster. A [`Card`] holds them for an [`EngineKind`]: a
//! model, on an accelerator, with these arguments. The [`CardStore`] keeps the cards of this
//! daemon's own variants.
//!
//! # A prior and never a lock
//!
//! A card is the start of learning, with a share [`DOUBT`] of the doubt about any engine.
//! Measurements replace it: after [`SETTLED`] lessons only that start remains of it. Until then a
//! card may scale up and does not permit scale-down, so a wrong card cannot make a fleet too small.
//!
//! A card is dropped at once if an iteration contradicts it by a factor of [`CONTRADICTED`], or if
//! it implies no capacity. It is also dropped if its variant had load for the time that must be
//! known before any headroom counts, but too few lessons. Then the replicas are too idle to learn
//! from, and a card with too low a capacity would keep them idle.
//!
//! # One mix of requests
//!
//! In steady state single coefficients may be wrong although the capacity per replica is right (see
//! [`pace`](crate::analyze::foresight::pace)). So a card is valid only for requests of about its
//! own lengths: beyond a factor of [`MIX`] it is dropped.
//!
//! [`SETTLED`]: crate::analyze::foresight::pace::SETTLED

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::pace::IterationCost;
use crate::analyze::sharing::CardSharing;
use crate::fleet::{Accelerator, ModelName, Namespace, Role, VariantKey, VariantSpec};
use crate::units::{Gpus, Requests, Tokens};

/// The doubt about a card, as a share of the differences between engines. At one half, a card that
/// is wrong by a factor of two is two standard deviations away. The first lesson then corrects
/// nearly all of it.
pub(crate) const DOUBT: f64 = 0.5;

/// The factor by which an iteration may be longer or shorter than with a card. Beyond it, the card
/// describes something else, and correcting it would take more lessons than starting without it.
pub(crate) const CONTRADICTED: f64 = 3.0;

/// Finished requests that the lengths of a card count for. At one request per second they are half
/// of the known lengths after two minutes; at ten, after some seconds.
pub(crate) const LENGTHS_WEIGHT: f64 = 100.0;

/// Seconds of a running request that the KV tokens of a card count for: a minute of ten requests.
pub(crate) const HELD_WEIGHT: f64 = 600.0;

/// The factor by which prompts or outputs may differ from those of a card. At a factor of 1.5, the
/// error in the capacity per replica is smaller than the doubt about the card.
pub(crate) const MIX: f64 = 1.5;

/// Cards kept per model, in each namespace that shares none: more kinds of engines than any fleet
/// has for one model.
const KINDS_MAX: usize = 16;

/// The time for which a card is kept without an update: over a weekend and a release.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Everything that the pace of an engine depends on, except its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct EngineKind {
    /// The model that it serves.
    pub model: ModelName,
    /// The accelerator that it runs on.
    pub accelerator: Accelerator,
    /// Accelerators per replica, if its arguments are not known. Otherwise the arguments contain
    /// them.
    pub gpus: Option<Gpus>,
    /// The part of a request that it serves.
    pub role: Role,
    /// The arguments that it is started with; `None` if they are not known.
    pub engine: Option<Arc<EngineArguments>>,
}

/// The coefficients and limits learned from one kind of engine.
#[derive(Clone, Debug, Display, PartialEq)]
#[display("{}", self.title())]
pub struct Card {
    /// The kind of engine.
    pub kind: EngineKind,
    /// The coefficients and limits.
    pub learned: EngineProfile,
    /// The variant that taught it; `None` if not recorded.
    pub from: Option<VariantKey>,
    /// The instant at which it was taught; `None` if not recorded.
    pub at: Option<Timestamp>,
}

/// The words that name a card in an explanation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardTitle {
    /// The model of its kind of engine.
    pub model: ModelName,
    /// The accelerator of its kind of engine.
    pub accelerator: Accelerator,
    /// The variant that taught it; `None` if not recorded.
    pub from: Option<VariantKey>,
    /// The instant at which it was taught; `None` if not recorded.
    pub at: Option<Timestamp>,
    /// Mean tokens of the prompts that it was learned from.
    pub prompt: Tokens,
    /// Mean tokens of their answers.
    pub output: Tokens,
}

/// Learned coefficients and limits, with the size of their evidence.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct EngineProfile {
    /// The time of an iteration.
    pub iteration: IterationCost,
    /// The number of lessons.
    pub lessons: u32,
    /// The mean content of iterations in these lessons: prompt tokens, and requests that generated.
    pub content: Option<[f64; 2]>,
    /// Mean tokens of a prompt.
    pub prompt: Tokens,
    /// Mean tokens of an answer.
    pub output: Tokens,
    /// Mean KV tokens that a running request holds, if engines reported them.
    pub held: Option<Tokens>,
    /// Requests in the batch of a rank while it was full; `None` if it never was.
    pub full_at: Option<Requests>,
    /// The most requests that a rank ran.
    pub most_running: Requests,
    /// The most tokens of an iteration.
    pub busiest: Tokens,
}

/// The variants that share cards: those of a model, in one namespace or in all.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct CardCircle {
    model: ModelName,
    /// `None` for all namespaces.
    namespace: Option<Namespace>,
}

/// Cards by their models.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct CardStore {
    circles: BTreeMap<CardCircle, Vec<Arc<Card>>>,
}

/// Cards from other sources.
#[derive(Clone, Debug, Default)]
pub(crate) struct ImportedCards {
    pub(super) cards: Arc<[Arc<Card>]>,
    pub(super) shelf: CardStore,
}

// === impl EngineKind ===

impl EngineKind {
    /// The kind of a variant's engines; `None` if their accelerator is not known.
    #[must_use]
    pub fn of(spec: &VariantSpec, engine: Option<&Arc<EngineArguments>>) -> Option<Self> {
        Some(Self {
            model: spec.model.clone(),
            accelerator: spec.accelerator.clone()?,
            gpus: spec.gpus.filter(|_| engine.is_none()),
            role: spec.role,
            engine: engine.cloned(),
        })
    }

    /// Returns true if a variant's engines are of this kind. Engines with unknown arguments never
    /// match a kind with known arguments.
    #[must_use]
    pub fn is_that_of(&self, spec: &VariantSpec, engine: Option<&Arc<EngineArguments>>) -> bool {
        let Self { model, accelerator, gpus, role, engine: known } = self;
        *model == spec.model
            && Some(accelerator) == spec.accelerator.as_ref()
            && *role == spec.role
            && known.as_deref() == engine.map(Arc::as_ref)
            && (engine.is_some() || *gpus == spec.gpus)
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, accelerator, gpus, role, engine } = self;
        write!(f, "{model} on ")?;
        if let Some(gpus) = gpus {
            write!(f, "{gpus} ")?;
        }

        write!(f, "{accelerator}")?;
        if *role != Role::Both {
            write!(f, " for {}", role.label())?;
        }
        match engine {
            Some(engine) => write!(f, " with {engine}"),
            None => Ok(()),
        }
    }
}

// === impl Card ===

impl Card {
    /// Returns true if requests of these mean lengths are similar to those of its lessons.
    pub(crate) fn is_of(&self, prompt: f64, output: f64) -> bool {
        near(prompt, self.learned.prompt.tokens()) && near(output, self.learned.output.tokens())
    }

    /// The words that name the card.
    #[must_use]
    pub fn title(&self) -> CardTitle {
        let Self { kind: EngineKind { model, accelerator, .. }, learned, from, at } = self;

        CardTitle {
            model: model.clone(),
            accelerator: accelerator.clone(),
            from: from.clone(),
            at: *at,
            prompt: learned.prompt,
            output: learned.output,
        }
    }
}

/// Returns true if two lengths are those of one mix.
fn near(one: f64, other: f64) -> bool {
    one <= MIX * other && other <= MIX * one
}

impl fmt::Display for CardTitle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model, accelerator, from, at, prompt, output } = self;
        write!(f, "the card of {model} on {accelerator}")?;
        if let Some(from) = from {
            write!(f, " that {from} taught")?;
        }
        if let Some(at) = at {
            write!(f, " at {at:.0}")?;
        }

        write!(f, " for requests of {prompt:.0} + {output:.0} tokens")
    }
}

// === impl CardCircle ===

impl CardCircle {
    fn of(spec: &VariantSpec, sharing: CardSharing) -> Self {
        let namespace = sharing.within(&spec.key.namespace).cloned();
        Self { model: spec.model.clone(), namespace }
    }
}

// === impl CardStore ===

impl CardStore {
    /// A store of cards for all namespaces.
    pub(super) fn of(cards: &[Arc<Card>]) -> Self {
        let mut shelf = Self::default();
        for card in cards {
            let circle = CardCircle { model: card.kind.model.clone(), namespace: None };
            shelf.circles.entry(circle).or_default().push(Arc::clone(card));
        }
        shelf
    }

    /// The card of a variant's kind of engine.
    pub(crate) fn find(
        &self,
        sharing: CardSharing,
        spec: &VariantSpec,
        engine: Option<&Arc<EngineArguments>>,
    ) -> Option<&Arc<Card>> {
        let cards = self.circles.get(&CardCircle::of(spec, sharing))?;
        cards.iter().find(|card| card.kind.is_that_of(spec, engine))
    }

    /// Writes the lessons of a variant onto the card of its kind, if there are new ones. Of several
    /// variants of one kind, the variant with the most lessons owns the card.
    pub(crate) fn write(
        &mut self,
        at: Timestamp,
        sharing: CardSharing,
        spec: &VariantSpec,
        engine: Option<&Arc<EngineArguments>>,
        lessons: u32,
        learned: impl FnOnce() -> Option<EngineProfile>,
    ) {
        let cards = self.circles.entry(CardCircle::of(spec, sharing)).or_default();
        if let Some(card) = cards.iter_mut().find(|card| card.kind.is_that_of(spec, engine)) {
            let own = card.from.as_ref() == Some(&spec.key);
            let news =
                if own { lessons != card.learned.lessons } else { lessons > card.learned.lessons };
            if news && let Some(learned) = learned() {
                let written = Arc::make_mut(card);
                written.learned = learned;
                written.at = Some(at);
                if !own {
                    written.from = Some(spec.key.clone());
                }
            }

            return;
        }

        let Some((kind, learned)) = EngineKind::of(spec, engine).zip(learned()) else { return };
        if cards.len() == KINDS_MAX {
            let oldest = cards.iter().enumerate().min_by_key(|(_, card)| card.at);
            if let Some(place) = oldest.map(|(place, _)| place) {
                let _forgotten = cards.remove(place);
            }
        }

        cards.push(Arc::new(Card { kind, learned, from: Some(spec.key.clone()), at: Some(at) }));
    }

    /// Drops cards without an update for long.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.circles.retain(|_, cards| {
            cards.retain(|card| card.at.is_none_or(|at| now.duration_since(at) <= AGE_MAX));
            !cards.is_empty()
        });
    }

    /// Every card, in the order of models.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.circles.values().flatten()
    }
}
