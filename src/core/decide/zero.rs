//! Scale to zero and wake-up: the proof that a model needs no replicas, and the variant that wakes.
//!
//! [`settle`] checks the targets of all variants of one model. It reduces them to zero if the model
//! is proved to be [idle](idleness()), and otherwise keeps one replica of the cheapest variant.
//! [`wake_whole`] reacts to requests that queue in front of a model without replicas.
//!
//! # Idleness is proved, not assumed
//!
//! A model is idle if nothing happened over the whole retention. No request finished, none ran or
//! waited on any replica, and none queued in front of the replicas. Each of these must have been
//! observed: a missing counter is not a counter that stands still. A request that takes longer than
//! the retention has not finished yet, so running and waiting requests are also checked. A starting
//! replica has done nothing yet, so it proves nothing.
//!
//! # The cheapest variant first
//!
//! One replica of any variant answers the first request. Until then, the number of replicas needed
//! is unknown. Waking every variant costs the sum of all variants for the same answer.
//!
//! # Source
//!
//! The enforcer and the scale-from-zero engine of llm-d's Workload Variant Autoscaler. It checks
//! only finished requests, so a replica that was woken for a long request is removed while it
//! serves that request.

mod idleness;
mod moves;
mod roles;

use std::cmp::Ordering;
use std::fmt;

use crate::fleet::{Bounds, VariantKey};
use crate::units::{CostPerHour, Replicas, Seconds};

pub use crate::decide::zero::idleness::{
    FrontQueue, IdleEvidence, Idleness, ObservedWork, UnknownIdleness, idleness,
};
pub use crate::decide::zero::moves::Move;
pub use crate::decide::zero::roles::{Wake, WakeCandidate, WakeRoom, wake_whole};

/// The policy for scaling a model to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ZeroPolicy {
    /// The model keeps one replica.
    #[default]
    KeepOne,
    /// The model may scale to zero once it has been idle for this time.
    AfterIdle(Seconds),
}

/// A variant of the model, and its desired replicas before this rule.
#[derive(Clone, Debug, PartialEq)]
pub struct ZeroVariant {
    /// The variant.
    pub variant: VariantKey,
    /// Cost per replica; `None` if unknown.
    pub cost: Option<CostPerHour>,
    /// Replicas that are asked for; `None` if unknown.
    pub current: Option<Replicas>,
    /// Desired replicas.
    pub target: Replicas,
    /// The bounds of its replicas.
    pub bounds: Bounds,
}

/// The settled targets.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct SettledTargets {
    /// A target for each candidate, in their order.
    pub targets: Vec<Replicas>,
    /// The reason for the targets.
    pub outcome: ZeroOutcome,
}

/// The reason for the settled targets.
#[derive(Clone, Debug, PartialEq)]
pub enum ZeroOutcome {
    /// They stay: at least one replica is desired.
    Wanted,
    /// They stay: the load of a variant asks for more replicas than it has.
    Growing(VariantKey),
    /// They stay, because the model is not idle, or not proved to be.
    NotIdle(Idleness),
    /// They drop to zero, or to a minimum above it.
    ToZero(Idleness),
    /// The model may not be without replicas, so its cheapest variant keeps one.
    KeptOne {
        /// The variant.
        variant: VariantKey,
        /// The idleness of the model, if it might have scaled to zero.
        because: Option<Idleness>,
    },
    /// The model may not be without replicas, and none of its variants may have one.
    NoneAllowed,
}

impl fmt::Display for ZeroOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Wanted => f.write_str("replicas are needed"),
            Self::Growing(variant) => write!(f, "the load needs more replicas of {variant}"),
            Self::NotIdle(idleness) => write!(f, "stays: {idleness}"),
            Self::ToZero(idleness) => write!(f, "to zero: {idleness}"),
            Self::KeptOne { variant, because: None } => {
                write!(f, "{variant} keeps one replica, because the model may not scale to zero")
            }
            Self::KeptOne { variant, because: Some(idleness) } => {
                write!(f, "{variant} keeps one replica: {idleness}")
            }
            Self::NoneAllowed => {
                f.write_str("the model may not scale to zero, but no variant may have a replica")
            }
        }
    }
}

/// Settles the targets of all variants of one model.
pub fn settle(
    policy: ZeroPolicy,
    work: &ObservedWork,
    candidates: &[ZeroVariant],
) -> SettledTargets {
    let targets: Vec<Replicas> = candidates.iter().map(|candidate| candidate.target).collect();
    let none = targets.iter().all(|target| *target == Replicas::ZERO);

    match policy {
        ZeroPolicy::KeepOne if none => keep_one(candidates, None),
        ZeroPolicy::KeepOne => SettledTargets { targets, outcome: ZeroOutcome::Wanted },
        ZeroPolicy::AfterIdle(retention) => {
            to_zero(work, retention, candidates).unwrap_or_else(|outcome| match outcome {
                ZeroOutcome::NotIdle(idleness) if none => keep_one(candidates, Some(idleness)),
                outcome => SettledTargets { targets, outcome },
            })
        }
    }
}

/// Reduces every target to its minimum, if the model is idle and no variant asks for more.
fn to_zero(
    work: &ObservedWork,
    retention: Seconds,
    candidates: &[ZeroVariant],
) -> Result<SettledTargets, ZeroOutcome> {
    let growing = candidates.iter().find(|candidate| {
        candidate.current.is_none_or(|current| candidate.target > current)
            && candidate.target > candidate.bounds.min()
    });

    match idleness(work, retention) {
        idle @ Idleness::Proved { .. } => match growing {
            Some(growing) => Err(ZeroOutcome::Growing(growing.variant.clone())),
            None => Ok(SettledTargets {
                targets: candidates.iter().map(|candidate| candidate.bounds.min()).collect(),
                outcome: ZeroOutcome::ToZero(idle),
            }),
        },
        other => Err(ZeroOutcome::NotIdle(other)),
    }
}

/// Gives one replica to the cheapest variant that may have one. A model with replicas keeps one of
/// those, so that no replica has to start.
fn keep_one(candidates: &[ZeroVariant], because: Option<Idleness>) -> SettledTargets {
    let mut targets: Vec<Replicas> = candidates.iter().map(|candidate| candidate.target).collect();
    let cheapest = (0..candidates.len())
        .filter(|at| candidates[*at].bounds.allow_up(Replicas::ZERO))
        .min_by(|a, b| {
            let [a, b] = [&candidates[*a], &candidates[*b]];
            a.is_absent().cmp(&b.is_absent()).then_with(|| cheaper(a, b))
        });

    let outcome = match cheapest {
        Some(at) => {
            targets[at] = Replicas::ONE;
            ZeroOutcome::KeptOne { variant: candidates[at].variant.clone(), because }
        }
        None if candidates.is_empty() => ZeroOutcome::Wanted,
        None => ZeroOutcome::NoneAllowed,
    };

    SettledTargets { targets, outcome }
}

impl ZeroVariant {
    /// Returns true if the variant has no replicas, or none that are known.
    fn is_absent(&self) -> bool {
        self.current.is_none_or(|current| current == Replicas::ZERO)
    }
}

/// Sorts the cheaper variant first, and by name if both cost the same. A variant of unknown cost
/// comes last.
fn cheaper(a: &ZeroVariant, b: &ZeroVariant) -> Ordering {
    let by_cost = match (a.cost, b.cost) {
        (Some(a), Some(b)) => a.compare(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    };
    by_cost.then_with(|| a.variant.cmp(&b.variant))
}

#[cfg(test)]
mod tests;
