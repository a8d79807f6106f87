//! Draining: what a replica that goes waits for.
//!
//! A replica that is told to go is passed over for new copies, and its models are placed elsewhere.
//! It stays until each of them answers from somewhere: [`Waits`] knows which still do not. A model
//! for which there is no room is not waited for, since waiting would not help it; so the last copy
//! of a model can be lost, and `packing` never asks for what does not fit.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::{ModelName, VariantName};

/// How long models are left where they are after a replica is told to go, so that replicas that are
/// told at nearly the same time do not hand copies to each other.
pub(crate) const GATHERING: SignedDuration = SignedDuration::from_millis(500);

/// How long a replica stays after the last model answers from elsewhere: one batch of routes
/// (250 ms), and what the proxies need to take them over (3 s).
pub(crate) const REROUTING: SignedDuration = SignedDuration::from_millis(3250);

/// A replica of a pool.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Leaver {
    /// The pool.
    pub(crate) pool: VariantName,
    /// Its place.
    pub(crate) ordinal: Ordinal,
}

/// The models that replicas wait for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waits(BTreeMap<Leaver, BTreeSet<ModelName>>);

impl Waits {
    /// Notes which models a replica has to see elsewhere. What it waited for before is forgotten.
    pub(crate) fn register(&mut self, leaver: Leaver, models: BTreeSet<ModelName>) {
        self.0.insert(leaver, models);
    }

    /// Notes that a model answers from somewhere, or never will.
    pub(crate) fn settled(&mut self, model: &ModelName) {
        for models in self.0.values_mut() {
            models.remove(model);
        }
        self.0.retain(|_, models| !models.is_empty());
    }

    /// Whether a replica waits for nothing more.
    #[must_use]
    pub(crate) fn is_over(&self, leaver: &Leaver) -> bool {
        self.0.get(leaver).is_none_or(BTreeSet::is_empty)
    }
}

/// When a replica may go that was told to at `told` and whose models answered from elsewhere at
/// `settled`.
#[must_use]
pub(crate) fn leaves_at(told: Told, settled: Timestamp) -> Timestamp {
    let Told(told) = told;
    let placed = told.checked_add(GATHERING).unwrap_or(Timestamp::MAX);
    placed.max(settled).checked_add(REROUTING).unwrap_or(Timestamp::MAX)
}

/// The instant at which a replica was told to go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Told(pub Timestamp);
