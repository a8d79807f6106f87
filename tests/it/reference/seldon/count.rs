//! How many replicas a multi-model server asks for: Seldon's two rules.
//!
//! [`scale_up`] asks for as many replicas as the model with the most copies wants. [`scale_down`]
//! gives back replicas that host nothing, or, where [`Packing`] is allowed, shrinks to what the
//! models want, which moves copies that are in use. Both look at [`Statistics`] of the server alone.
//!
//! # Model
//!
//! With `E` the replicas that are asked for, `empty` those that host nothing, `hosted` the largest
//! number of copies that one model wants, all counts:
//!
//! ```text
//! up    if hosted > E                        target = min(hosted, max)
//! pack  if allowed and 1 <= hosted < E
//!          and E - hosted > empty            target = max(min, 1, hosted)
//! down  if E > 1 and empty > 0               target = max(min, 1, E - empty)
//! ```
//!
//! It never asks for less than one replica, and says nothing about memory or load: [`adapters`] does.
//!
//! # Source
//!
//! Seldon Core 2, "Autoscaling Servers": policies "Model Replica Count", "Empty Server Replica" and
//! "Lightly Loaded Server Replicas".
//!
//! [`adapters`]: crate::reference::seldon::adapters

use std::collections::BTreeSet;
use std::fmt;

use crate::reference::seldon::Rules;
use plimsoll::decide::pools::Ordinal;
use plimsoll::fleet::ModelName;
use plimsoll::units::{Fraction, Replicas};

/// A connected replica, and what is on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Host {
    /// Its place.
    pub(crate) ordinal: Ordinal,
    /// Whether it is staying.
    pub(crate) service: Service,
    /// Models that it has loaded or is loading.
    pub(crate) resident: BTreeSet<ModelName>,
    /// Models that have been placed on it and that it has not been told of yet.
    pub(crate) coming: BTreeSet<ModelName>,
}

/// Whether a replica is staying.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// It is.
    Serving,
    /// It hands its copies over and goes.
    Draining,
}

/// A model that is assigned to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Assigned {
    /// Copies that it wants.
    pub(crate) desired: Replicas,
    /// Whether anybody still wants it.
    pub(crate) presence: Presence,
}

/// Whether a model is still wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Presence {
    /// It is.
    Wanted,
    /// It has been deleted. Seldon remembers it until its name is used again.
    Deleted,
}

/// What the server is told about its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size {
    /// Replicas that are asked for; `None` until somebody says.
    pub(crate) expected: Option<Replicas>,
    /// Replicas that it must keep.
    pub(crate) min: Replicas,
    /// Replicas that it may have; `None` when nothing limits it.
    pub(crate) max: Option<Replicas>,
}

/// What the two rules look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statistics {
    /// Replicas that host nothing.
    pub(crate) empty: Replicas,
    /// The largest number of copies that one model wants.
    pub(crate) hosted: Replicas,
}

impl fmt::Display for Statistics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { empty, hosted } = self;
        write!(f, "{empty} empty replicas, and at most {hosted} copies wanted of a model")
    }
}

/// Counts what the rules look at.
///
/// By Seldon's rules, replicas that drain, replicas on which copies have only been placed, and those
/// beyond what is asked for count as empty, so that one is given back twice; and a deleted model goes
/// on wanting copies.
#[must_use]
pub(crate) fn statistics(
    rules: Rules,
    hosts: &[Host],
    models: &[Assigned],
    expected: Option<Replicas>,
) -> Statistics {
    let is_empty = |host: &&Host| {
        let stays = host.service == Service::Serving
            && expected.is_none_or(|expected| host.ordinal.is_below(expected));
        let unused = host.coming.is_empty() && stays;
        host.resident.is_empty() && (unused || rules == Rules::Seldon)
    };
    let is_wanted = |model: &&Assigned| model.presence == Presence::Wanted;
    let empty = hosts.iter().filter(is_empty).count();
    let hosted = models
        .iter()
        .filter(|model| rules == Rules::Seldon || is_wanted(model))
        .map(|model| model.desired)
        .max();
    Statistics {
        empty: Replicas::saturating(u32::try_from(empty).unwrap_or(u32::MAX)),
        hosted: hosted.unwrap_or_default(),
    }
}

/// What a rule answers.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// Ask for so many replicas.
    To(Replicas, Change),
    /// Ask for nothing.
    Stay(Stay),
}

/// Why another number of replicas is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// A model wants more copies than there are replicas.
    CopiesWanted {
        /// Copies that it wants.
        hosted: Replicas,
        /// Replicas that are asked for.
        expected: Replicas,
        /// Replicas that there may be.
        max: Option<Replicas>,
    },
    /// Some replicas host nothing.
    Empty {
        /// How many.
        empty: Replicas,
        /// Replicas that are asked for.
        expected: Replicas,
        /// Replicas that must be kept.
        floor: Replicas,
    },
    /// The copies fit on fewer replicas.
    Packed {
        /// The most copies that a model wants.
        hosted: Replicas,
        /// Replicas that are asked for.
        expected: Replicas,
        /// Replicas that must be kept.
        floor: Replicas,
    },
}

/// Why nothing is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// The server is not known.
    NoStatistics,
    /// Nobody has said how many replicas it should have.
    Untold,
    /// It may have no replicas.
    NoneAllowed,
    /// Every model has a replica for each of its copies.
    CopiesFit(Statistics),
    /// There is one replica or none, and the last is never given back.
    LastOne,
    /// No replica is empty, and nothing may be packed.
    InUse(Statistics),
    /// It already asks for what it may have.
    AtLimit(Replicas),
}

impl Scaling {
    /// The number that is asked for, if one is.
    #[must_use]
    pub(crate) const fn target(self) -> Option<Replicas> {
        match self {
            Self::To(target, _) => Some(target),
            Self::Stay(_) => None,
        }
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::To(target, change) => write!(f, "{target} replicas: {change}"),
            Self::Stay(stay) => stay.fmt(f),
        }
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CopiesWanted { hosted, expected, max } => {
                write!(f, "a model wants {hosted} copies, each on its own replica of {expected}")?;
                match max {
                    Some(max) if max < hosted => write!(f, ", at most {max} allowed"),
                    Some(_) | None => Ok(()),
                }
            }
            Self::Empty { empty, expected, floor } => {
                write!(f, "{empty} of {expected} replicas host nothing, at least {floor} kept")
            }
            Self::Packed { hosted, expected, floor } => write!(
                f,
                "no model wants more than {hosted} copies, so they fit on fewer than {expected} \
                 replicas, at least {floor} kept"
            ),
        }
    }
}

impl fmt::Display for Stay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoStatistics => f.write_str("nothing is known of the server"),
            Self::Untold => f.write_str("nobody has said how many replicas there should be"),
            Self::NoneAllowed => f.write_str("the server may have no replicas"),
            Self::CopiesFit(Statistics { hosted, .. }) => {
                write!(f, "no model wants more than {hosted} copies, and each has a replica")
            }
            Self::LastOne => f.write_str("the last replica is never given back"),
            Self::InUse(statistics) => write!(f, "nothing to give back: {statistics}"),
            Self::AtLimit(limit) => write!(f, "already at the limit of {limit} replicas"),
        }
    }
}

/// The rule for more replicas: as many as the model with the most copies wants.
///
/// By Seldon's rules it also answers with the maximum when the server is at or above it, which asks
/// for nothing new or shrinks the server.
pub(crate) fn scale_up(rules: Rules, size: Size, statistics: Option<Statistics>) -> Scaling {
    let Some(statistics) = statistics else { return Scaling::Stay(Stay::NoStatistics) };
    let Some(expected) = size.expected else { return Scaling::Stay(Stay::Untold) };
    let hosted = statistics.hosted;
    if size.max == Some(Replicas::ZERO) {
        return Scaling::Stay(Stay::NoneAllowed);
    }
    if hosted <= expected {
        return Scaling::Stay(Stay::CopiesFit(statistics));
    }
    let target = size.max.map_or(hosted, |max| hosted.min(max));
    if rules == Rules::Mended && target <= expected {
        return Scaling::Stay(Stay::AtLimit(target));
    }
    Scaling::To(target, Change::CopiesWanted { hosted, expected, max: size.max })
}

/// Whether copies that are in use may be moved to use fewer replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// They may.
    Allowed,
    /// They may not.
    Refused,
}

/// The rule for fewer replicas: give back the empty ones, or pack.
///
/// By Seldon's rules the answer may also be the present number, or more when the minimum is above it.
pub(crate) fn scale_down(
    rules: Rules,
    size: Size,
    statistics: Option<Statistics>,
    packing: Packing,
) -> Scaling {
    let Some(statistics) = statistics else { return Scaling::Stay(Stay::NoStatistics) };
    let Some(expected) = size.expected else { return Scaling::Stay(Stay::Untold) };
    let Statistics { empty, hosted } = statistics;
    if expected <= Replicas::ONE {
        return Scaling::Stay(Stay::LastOne);
    }
    let packs = packing == Packing::Allowed && hosted < expected;
    if !packs && empty == Replicas::ZERO {
        return Scaling::Stay(Stay::InUse(statistics));
    }
    let floor = size.min.max(Replicas::ONE);
    let fewer = packs && hosted > Replicas::ZERO && expected.beyond(hosted) > empty;
    let (wanted, change) = if fewer {
        (hosted, Change::Packed { hosted, expected, floor })
    } else {
        // More may be empty than are asked for while pods that were given back are still going.
        (expected.beyond(empty), Change::Empty { empty, expected, floor })
    };
    let target = wanted.max(floor);
    if rules == Rules::Mended && target >= expected {
        return Scaling::Stay(Stay::AtLimit(target.min(expected)));
    }
    Scaling::To(target, change)
}

/// Seldon's gate for packing: at each event it is tried with a probability.
///
/// A decision that depends on a draw cannot be explained and moves back and forth with the events
/// that cause it, so [`packing`](crate::reference::seldon::packing) waits instead. This is for whoever
/// needs the same answers; the draw is an argument, because nothing here is random.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Coin {
    /// How often packing is tried, from 0 (never) to 1 (practically always).
    pub(crate) probability: Fraction,
    /// The draw, from 0 up to but not including 1.
    pub(crate) draw: Fraction,
}

/// A probability that is none: above 1. "Percentage" in the name of the setting suggests 25 for a
/// quarter, and 25 would mean always.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NotAProbability(pub Fraction);

impl fmt::Display for NotAProbability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the probability of packing is {}, which is above 1", self.0.fraction())
    }
}

impl std::error::Error for NotAProbability {}

impl Coin {
    /// Whether packing may be tried: when the draw is above one less the probability.
    ///
    /// # Errors
    ///
    /// The probability is above 1.
    #[expect(clippy::cast_possible_truncation, reason = "Seldon compares in single precision")]
    pub(crate) fn packing(self) -> Result<Packing, NotAProbability> {
        let Self { probability, draw } = self;
        if probability > Fraction::ONE {
            return Err(NotAProbability(probability));
        }
        let tried = draw.fraction() as f32 > 1.0 - probability.fraction() as f32;
        Ok(if tried { Packing::Allowed } else { Packing::Refused })
    }
}
