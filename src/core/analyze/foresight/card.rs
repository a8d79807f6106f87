//! Capacity cards: what was learned of one kind of engine, for others of the same kind.
//!
//! A variant that begins knows nothing for its first minutes, in which it matters the most. What an
//! iteration takes, and how long requests are, was often learned already: of a variant beside it, of
//! one that is gone, or in another cluster. A [`Card`] says that of a [`Kind`] of engine: a model, on
//! an accelerator, with these arguments. The [`Shelf`] keeps the cards that were written here.
//!
//! # A prior and never a lock
//!
//! A card is where learning starts, with a share [`DOUBT`] of the doubt of any engine. What is measured
//! replaces it: after [`SETTLED`] lessons nothing of it is
//! left but that start. Until then it may ask for more and takes nothing away, so a card that is
//! wrong cannot make a fleet too small. One that an iteration contradicts by a factor of
//! [`CONTRADICTED`] is put aside at once, and so is one that says that nothing is carried at all. It
//! is put aside, too, when its variant has had load for the time
//! that must be known before anything is spare, and has taught nothing: then the replicas are too
//! idle to learn from, and a card that says too little is carried would keep them so.
//!
//! # One mix of requests
//!
//! In steady state single coefficients may be wrong where what a replica carries is right (see
//! [`pace`](crate::analyze::foresight::pace)). So a card holds for requests of about its own lengths
//! and for no others: beyond a factor of [`MIX`] it is put aside.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::analyze::engine_args::EngineArguments;
use crate::analyze::foresight::lengths::Lengths;
use crate::analyze::foresight::pace::{Iteration, SETTLED};
use crate::analyze::foresight::saved::SavedForesight;
use crate::analyze::foresight::seen::Seen;
use crate::analyze::foresight::standby::takes;
use crate::analyze::foresight::{Foresight, Policy, VariantStrides};
use crate::fleet::{Accelerator, ModelKey, ModelName, Role, VariantKey, VariantSpec};
use crate::units::{Gpus, Requests, Tokens};

/// How far off a card may be, as a share of how far engines differ from each other. At one half, a card
/// that is wrong by a factor of two is two standard deviations away, and the first lesson moves nearly
/// all of the way.
pub(crate) const DOUBT: f64 = 0.5;

/// By which factor an iteration may be longer or shorter than a card says. Beyond, it is a card of
/// something else, and to correct it would take more lessons than to begin without it.
pub(crate) const CONTRADICTED: f64 = 3.0;

/// How many finished requests the lengths of a card count for. At one request a second they are half
/// of what is known after two minutes; at ten, after some seconds.
pub(crate) const LENGTHS_WEIGHT: f64 = 100.0;

/// How many seconds of a running request the KV tokens of a card count for: a minute of ten requests.
pub(crate) const HELD_WEIGHT: f64 = 600.0;

/// By which factor prompts or outputs may differ from those of a card. At half as much again, what a
/// replica carries is off by less than the doubt that the card is taken with.
pub(crate) const MIX: f64 = 1.5;

/// Cards that are kept of one model: more kinds of engines of one model than any fleet has.
const KINDS_MAX: usize = 16;

/// How long a card is kept that nobody adds to: over a weekend and a release.
const AGE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

/// Everything that the pace of an engine depends on beside its requests.
#[derive(Clone, Debug, PartialEq)]
pub struct Kind {
    /// What it serves.
    pub model: ModelName,
    /// What it runs on.
    pub accelerator: Accelerator,
    /// How many of them a replica takes, where its arguments are not known, which say it.
    pub gpus: Option<Gpus>,
    /// What part of a request it serves.
    pub role: Role,
    /// How it is started; `None` where nobody can say.
    pub engine: Option<Arc<EngineArguments>>,
}

/// What was learned of one kind of engine.
#[derive(Clone, Debug, Display, PartialEq)]
#[display("{}", self.title())]
pub struct Card {
    /// Of which.
    pub kind: Kind,
    /// What was learned.
    pub learned: Learned,
    /// Of which variant; `None` where that is not written.
    pub from: Option<VariantKey>,
    /// When; `None` where that is not written.
    pub at: Option<Timestamp>,
}

/// The words that name a card in an explanation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CardTitle {
    /// The model of its kind of engine.
    pub model: ModelName,
    /// The accelerator of its kind of engine.
    pub accelerator: Accelerator,
    /// The variant that taught it; `None` where that is not written.
    pub from: Option<VariantKey>,
    /// The instant at which it was taught; `None` where that is not written.
    pub at: Option<Timestamp>,
    /// Mean tokens of the prompts that it was learned from.
    pub prompt: Tokens,
    /// Mean tokens of their answers.
    pub output: Tokens,
}

/// What was learned, and from what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Learned {
    /// What an iteration takes.
    pub iteration: Iteration,
    /// From how many lessons.
    pub lessons: u32,
    /// What iterations had in them meanwhile: mean prompt tokens, and requests that generated.
    pub content: Option<[f64; 2]>,
    /// Mean tokens of a prompt.
    pub prompt: Tokens,
    /// Mean tokens of an answer.
    pub output: Tokens,
    /// Mean KV tokens that a running request holds, where engines said it.
    pub held: Option<Tokens>,
    /// Requests in the batch of a rank when it was full, if it ever was.
    pub full_at: Option<Requests>,
    /// The most requests that a rank ran.
    pub most_running: Requests,
    /// The most tokens of an iteration.
    pub busiest: Tokens,
}

/// Cards by their models.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Shelf {
    models: BTreeMap<ModelName, Vec<Arc<Card>>>,
}

/// Cards that were taken from elsewhere.
#[derive(Clone, Debug, Default)]
pub(crate) struct Imported {
    cards: Arc<[Arc<Card>]>,
    shelf: Shelf,
}

// === impl Kind ===

impl Kind {
    /// The kind of a variant's engines; `None` where nobody can say what they run on.
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

    /// Whether a variant's engines are of this kind. Those of which nobody knows how they are started
    /// are of no kind of which somebody does.
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

impl fmt::Display for Kind {
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
    /// Whether requests of these mean lengths are of about those that it was learned from.
    pub(crate) fn is_of(&self, (prompt, output): (f64, f64)) -> bool {
        let near = |one: f64, other: f64| one <= MIX * other && other <= MIX * one;
        near(prompt, self.learned.prompt.tokens()) && near(output, self.learned.output.tokens())
    }

    /// The words that name it.
    #[must_use]
    pub fn title(&self) -> CardTitle {
        let Self { kind: Kind { model, accelerator, .. }, learned, from, at } = self;
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
        write!(f, " by requests of {prompt:.0} + {output:.0} tokens")
    }
}

/// The card of a variant of which this is remembered; `None` where that is too little. How its engines
/// are started is not part of what is remembered.
#[must_use]
pub fn remembered(spec: &VariantSpec, saved: &SavedForesight) -> Option<Card> {
    let SavedForesight { learned_at, seen, demands } = saved;
    let shared = demands.iter().find(|demand| demand.role == spec.role);
    let shared = shared.map(|demand| Lengths::of(demand.lengths)).unwrap_or_default();
    let learned = seen.as_ref().filter(|_| saved.is_sound())?.restore().learned(&shared)?;
    let (from, at) = (Some(spec.key.clone()), Some(*learned_at));
    Some(Card { kind: Kind::of(spec, None)?, learned, from, at })
}

// === impl Shelf ===

impl Shelf {
    fn of(cards: &[Arc<Card>]) -> Self {
        let mut shelf = Self::default();
        for card in cards {
            shelf.models.entry(card.kind.model.clone()).or_default().push(Arc::clone(card));
        }
        shelf
    }

    /// The card of a variant's kind of engine.
    pub(crate) fn find(
        &self,
        spec: &VariantSpec,
        engine: Option<&Arc<EngineArguments>>,
    ) -> Option<&Arc<Card>> {
        let cards = self.models.get(&spec.model)?;
        cards.iter().find(|card| card.kind.is_that_of(spec, engine))
    }

    /// Writes what a variant has taught onto the card of its kind, if that is news. Of several
    /// variants of one kind, the one that has taught the most has the word.
    pub(crate) fn write(
        &mut self,
        at: Timestamp,
        (spec, engine): (&VariantSpec, Option<&Arc<EngineArguments>>),
        lessons: u32,
        learned: impl FnOnce() -> Option<Learned>,
    ) {
        let cards = match self.models.get_mut(&spec.model) {
            Some(cards) => cards,
            None => self.models.entry(spec.model.clone()).or_default(),
        };
        if let Some(card) = cards.iter_mut().find(|card| card.kind.is_that_of(spec, engine)) {
            let own = card.from.as_ref() == Some(&spec.key);
            let news =
                if own { lessons != card.learned.lessons } else { lessons > card.learned.lessons };
            if news && let Some(learned) = learned() {
                let card = Arc::make_mut(card);
                (card.learned, card.at) = (learned, Some(at));
                if !own {
                    card.from = Some(spec.key.clone());
                }
            }
            return;
        }
        let Some((kind, learned)) = Kind::of(spec, engine).zip(learned()) else { return };
        if cards.len() == KINDS_MAX {
            let oldest = cards.iter().enumerate().min_by_key(|(_, card)| card.at);
            if let Some(place) = oldest.map(|(place, _)| place) {
                let _forgotten = cards.remove(place);
            }
        }
        cards.push(Arc::new(Card { kind, learned, from: Some(spec.key.clone()), at: Some(at) }));
    }

    /// Drops cards that nobody has added to for long.
    pub(crate) fn forget(&mut self, now: Timestamp) {
        self.models.retain(|_, cards| {
            cards.retain(|card| card.at.is_none_or(|at| now.duration_since(at) <= AGE_MAX));
            !cards.is_empty()
        });
    }

    /// Every card, in the order of models.
    pub(crate) fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.models.values().flatten()
    }
}

// === impl Foresight ===

impl Foresight {
    /// Takes these cards for those of which nothing was learned here.
    pub fn import(&mut self, cards: &Arc<[Arc<Card>]>) {
        if !Arc::ptr_eq(&self.imported.cards, cards) {
            self.imported = Imported { cards: Arc::clone(cards), shelf: Shelf::of(cards) };
        }
    }

    /// Every card that was written here, in the order of models.
    pub fn cards(&self) -> impl Iterator<Item = &Arc<Card>> {
        self.shelf.cards()
    }

    /// The card that a variant goes by, where its own replicas have not taught enough.
    pub(crate) fn card(&self, variant: &VariantKey) -> Option<&Arc<Card>> {
        self.variants.get(variant)?.card()
    }

    /// Lets variants that know too little begin from a card: one that was written here, or else one
    /// that was imported.
    pub(crate) fn begin(&mut self, model: &ModelKey, variants: &[VariantStrides<'_>]) {
        for VariantStrides { spec, arguments, .. } in variants {
            if !self.variants.get(&spec.key).is_none_or(Seen::lacks_card) {
                continue;
            }
            let imported = || self.imported.shelf.find(spec, *arguments);
            let Some(card) = self.shelf.find(spec, *arguments).or_else(imported) else { continue };
            let shared = self.demands.get(&(model.clone(), spec.role)).map(|it| it.lengths);
            let seen = self.variants.entry(spec.key.clone()).or_default();
            seen.begin(card, &shared.unwrap_or_default());
        }
    }

    /// Puts aside what cards have nothing more to say of, and writes what was learned onto others.
    pub(crate) fn keep_cards(
        &mut self,
        now: Timestamp,
        policy: &Policy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
    ) {
        for variant in variants {
            let VariantStrides { spec, current, .. } = variant;
            let Some(seen) = self.variants.get_mut(&spec.key) else { continue };
            seen.judge_card(now, policy.settles_after(takes(variant, policy)), *current);
            let lessons = seen.pace.lessons();
            if lessons < SETTLED || spec.accelerator.is_none() {
                continue;
            }
            let shared = self.demands.get(&(model.clone(), spec.role)).map(|it| it.lengths);
            let learned = || seen.learned(&shared.unwrap_or_default());
            // In a rollout, it is of the former kind until a replica of the new one teaches.
            self.shelf.write(now, (spec, seen.taught_by()), lessons, learned);
        }
    }
}
