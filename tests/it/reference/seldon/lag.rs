//! Lag: when a model of a pool wants another copy, and when it can do with one less.
//!
//! [`Lags`] counts the requests of each model that are being worked on. When they reach a threshold
//! the model wants a copy more; when none has come for a while, one less. [`step`] says what becomes
//! of such a [`Trigger`].
//!
//! # Units
//!
//! Lag is requests in flight, over all replicas that the counts come from; idleness is seconds since
//! the model was last used.
//!
//! # Source
//!
//! The model autoscaling of Seldon Core 2, which its releases switch off. By its rules the lag of a
//! new model is 1 without any request; a reset forgets requests that are in flight, whose ends then
//! cancel newer ones; and a model in the middle of a long request counts as idle.

use std::collections::BTreeMap;
use std::fmt;

use jiff::Timestamp;

use crate::reference::seldon::Rules;
use crate::reference::seldon::count::Presence;
use plimsoll::fleet::ModelName;
use plimsoll::units::{Replicas, Requests, Seconds};

/// For how long the latest version of a model must be in one state before it may lose a copy.
pub(crate) const STABLE_FOR: f64 = 60.0;

/// When a trigger is raised.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Thresholds {
    /// Lag from which a model wants another copy.
    pub(crate) lag: Requests,
    /// Time without use after which it can do with one less.
    pub(crate) idle: Seconds,
}

/// What a model's requests say.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Trigger {
    /// It wants another copy.
    Up {
        /// The model.
        model: ModelName,
        /// Requests in flight that no earlier trigger was raised for.
        lag: Requests,
    },
    /// It can do with one less.
    Down {
        /// The model.
        model: ModelName,
        /// Time since it was last used.
        idle: Seconds,
    },
}

impl fmt::Display for Trigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Up { model, lag } => {
                write!(f, "{model} wants a copy more: {} requests in flight", lag.requests())
            }
            Self::Down { model, idle } => {
                write!(f, "{model} can do with a copy less: idle for {:.0} s", idle.seconds())
            }
        }
    }
}

/// The requests of every model.
#[derive(Clone, Debug)]
pub(crate) struct Lags {
    rules: Rules,
    models: BTreeMap<ModelName, Lag>,
}

#[derive(Clone, Copy, Debug)]
struct Lag {
    presence: Presence,
    in_flight: Requests,
    /// Of those in flight, the ones that a trigger has been raised for; the oldest end first.
    answered: Requests,
    used: Timestamp,
}

impl Lags {
    /// No models.
    #[must_use]
    pub(crate) const fn new(rules: Rules) -> Self {
        Self { rules, models: BTreeMap::new() }
    }

    /// Notes that a model has been added, or added again.
    pub(crate) fn add(&mut self, now: Timestamp, model: &ModelName) {
        let rules = self.rules;
        let lag = self.models.entry(model.clone()).or_insert_with(|| Lag::new(now));
        lag.presence = Presence::Wanted;
        lag.used = now;
        if rules == Rules::Seldon {
            lag.in_flight += one();
        }
    }

    /// Forgets a model.
    pub(crate) fn remove(&mut self, model: &ModelName) {
        self.models.remove(model);
    }

    /// Notes requests that begin. By Seldon's rules, those for a model that is not there are counted.
    pub(crate) fn start(&mut self, now: Timestamp, model: &ModelName, requests: Requests) {
        let Some(lag) = self.counted(now, model) else { return };
        lag.in_flight += requests;
        lag.used = now;
    }

    /// Notes requests that end.
    pub(crate) fn end(&mut self, now: Timestamp, model: &ModelName, requests: Requests) {
        let rules = self.rules;
        let Some(lag) = self.counted(now, model) else { return };
        lag.in_flight = less(lag.in_flight, requests);
        lag.answered = less(lag.answered, requests);
        if rules == Rules::Mended {
            lag.used = now;
        }
    }

    /// The lag of a model, if requests for it are counted.
    fn counted(&mut self, now: Timestamp, model: &ModelName) -> Option<&mut Lag> {
        if self.rules == Rules::Seldon && !self.models.contains_key(model) {
            let absent = Lag { presence: Presence::Deleted, ..Lag::new(now) };
            self.models.insert(model.clone(), absent);
        }
        self.models.get_mut(model)
    }

    /// The triggers of this instant, in the order of the models. A lag that raises one is answered,
    /// and only requests that come later count from there; idleness raises one every time.
    pub(crate) fn round(&mut self, now: Timestamp, thresholds: Thresholds) -> Vec<Trigger> {
        let rules = self.rules;
        let mut triggers = Vec::new();
        for (model, lag) in &mut self.models {
            let unanswered = lag.unanswered();
            if unanswered >= thresholds.lag {
                lag.answer(rules);
                if lag.presence == Presence::Wanted {
                    triggers.push(Trigger::Up { model: model.clone(), lag: unanswered });
                }
            }
            let idle = Seconds::from_span(now.duration_since(lag.used)).unwrap_or_default();
            let unused = rules == Rules::Seldon || lag.in_flight == Requests::ZERO;
            if idle >= thresholds.idle && unused && lag.presence == Presence::Wanted {
                triggers.push(Trigger::Down { model: model.clone(), idle });
            }
        }
        triggers
    }

    /// The lag of each model: its requests in flight that no trigger was raised for.
    pub(crate) fn lags(&self) -> impl Iterator<Item = (&ModelName, Requests)> {
        self.models.iter().map(|(model, lag)| (model, lag.unanswered()))
    }
}

impl Lag {
    const fn new(now: Timestamp) -> Self {
        let none = Requests::ZERO;
        Self { presence: Presence::Wanted, in_flight: none, answered: none, used: now }
    }

    fn unanswered(&self) -> Requests {
        less(self.in_flight, self.answered)
    }

    fn answer(&mut self, rules: Rules) {
        match rules {
            Rules::Seldon => self.in_flight = Requests::ZERO,
            Rules::Mended => self.answered = self.in_flight,
        }
    }
}

fn one() -> Requests {
    Requests::new(1.0).unwrap_or_default()
}

fn less(from: Requests, by: Requests) -> Requests {
    Requests::new((from.requests() - by.requests()).max(0.0)).unwrap_or_default()
}

/// Which way a trigger points.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// A copy more.
    Up,
    /// A copy less.
    Down,
}

/// The number of a version of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VersionNumber(pub u32);

/// A model whose copies may be counted up and down.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Scalable {
    /// Whether it is still wanted.
    pub(crate) presence: Presence,
    /// Copies that it wants.
    pub(crate) desired: Replicas,
    /// Copies that it must keep.
    pub(crate) min: Replicas,
    /// Copies that it may have; `None` when nobody says.
    pub(crate) max: Option<Replicas>,
    /// Its latest version.
    pub(crate) latest: VersionNumber,
    /// The latest of its versions that is available.
    pub(crate) available: Option<VersionNumber>,
    /// For how long the latest version has been in its state.
    pub(crate) unchanged_for: Seconds,
}

/// Why a trigger changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ignored {
    /// No such model is known.
    UnknownModel,
    /// It was raised by a version that has been replaced.
    OldVersion {
        /// The version that it was raised by.
        raised_by: VersionNumber,
        /// The latest version.
        latest: VersionNumber,
    },
    /// The model is being deleted, or its latest version is not available.
    NotAvailable,
    /// Its state has changed a moment ago.
    Unstable,
    /// It says neither how few nor how many copies it may have.
    NotEnabled,
    /// It would have too few copies.
    BelowMin(Replicas),
    /// It would have too many copies.
    AboveMax(Replicas),
}

impl fmt::Display for Ignored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownModel => f.write_str("no such model"),
            Self::OldVersion { raised_by, latest } => {
                write!(f, "raised by version {}, and {} is the latest", raised_by.0, latest.0)
            }
            Self::NotAvailable => f.write_str("the model is not available"),
            Self::Unstable => write!(f, "its state changed less than {STABLE_FOR:.0} s ago"),
            Self::NotEnabled => f.write_str("it has neither a minimum nor a maximum"),
            Self::BelowMin(min) => write!(f, "it must keep {min} copies"),
            Self::AboveMax(max) => write!(f, "it may not have more than {max} copies"),
        }
    }
}

impl std::error::Error for Ignored {}

/// The copies that a model wants after a trigger: one more or one less.
///
/// By Seldon's rules a model that is outside its limits stays there, because one step does not bring
/// it back; ours goes to the limit. Ours also lets go of a deleted model.
///
/// # Errors
///
/// The trigger changes nothing; the first reason is given.
pub(crate) fn step(
    rules: Rules,
    direction: Direction,
    raised_by: VersionNumber,
    model: Option<&Scalable>,
) -> Result<Replicas, Ignored> {
    let model = model.ok_or(Ignored::UnknownModel)?;
    let deleted = model.presence == Presence::Deleted;
    match direction {
        Direction::Up if model.available != Some(model.latest) => {
            return Err(Ignored::NotAvailable);
        }
        Direction::Up if deleted && rules == Rules::Mended => return Err(Ignored::NotAvailable),
        Direction::Up | Direction::Down => {}
    }
    if raised_by != model.latest {
        return Err(Ignored::OldVersion { raised_by, latest: model.latest });
    }
    if direction == Direction::Down {
        let unchanged = model.unchanged_for.seconds();
        let stable = match rules {
            Rules::Seldon => unchanged > STABLE_FOR,
            Rules::Mended => unchanged >= STABLE_FOR,
        };
        if deleted {
            return Err(Ignored::NotAvailable);
        } else if !stable {
            return Err(Ignored::Unstable);
        }
    }
    if model.min == Replicas::ZERO && model.max.is_none() {
        return Err(Ignored::NotEnabled);
    }
    within_limits(rules, direction, model)
}

fn within_limits(
    rules: Rules,
    direction: Direction,
    model: &Scalable,
) -> Result<Replicas, Ignored> {
    let min = model.min.max(Replicas::ONE);
    let max = model.max;
    let target = match direction {
        Direction::Up => model.desired.up(),
        Direction::Down if model.desired == Replicas::ZERO => return Err(Ignored::BelowMin(min)),
        Direction::Down => model.desired.down(),
    };
    let jumps = rules == Rules::Mended;
    if target < min {
        return if jumps && direction == Direction::Up {
            Ok(min)
        } else {
            Err(Ignored::BelowMin(min))
        };
    }
    match max {
        Some(max) if target > max && jumps && direction == Direction::Down => Ok(max.max(min)),
        Some(max) if target > max => Err(Ignored::AboveMax(max)),
        Some(_) | None => Ok(target),
    }
}
