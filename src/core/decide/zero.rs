//! Scale to zero and wake-up: the proof that a model needs no replicas, and the variant that wakes.
//!
//! [`settle`] checks the targets of all variants of one model. It reduces them to zero if the model
//! is proved to be [idle](idleness), and otherwise keeps one replica of the cheapest variant.
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

mod moves;
mod roles;

use std::cmp::Ordering;
use std::fmt;

pub use crate::decide::zero::moves::Move;
pub use crate::decide::zero::roles::{WakeCandidate, wake_whole};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, VariantKey};
use crate::units::{CostPerHour, Replicas, Requests, Seconds};

/// The policy for scaling a model to zero.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ZeroPolicy {
    /// The model keeps one replica.
    #[default]
    KeepOne,
    /// The model may scale to zero once it has been idle for this time.
    AfterIdle(Seconds),
}

/// The observed work of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ObservedWork {
    /// Requests that finished during the retention, over all replicas that existed; `None` if a
    /// replica, or a part of the time, could not be read.
    pub finished: Option<Requests>,
    /// The largest number of requests that ran and waited on its replicas at any time of the
    /// retention.
    pub on_replicas: Option<Requests>,
    /// The queue in front of its replicas.
    pub in_front: FrontQueue,
    /// The time of observation without a gap. It starts at the last wake-up or later.
    pub seen_for: Seconds,
    /// Replicas that have not been ready yet.
    pub starting: Replicas,
    /// The evidence for these values.
    pub evidence: IdleEvidence,
}

/// The evidence for a proof.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IdleEvidence {
    /// Replicas that reported.
    pub replicas: Replicas,
    /// Scrapes of these replicas.
    pub pages: u64,
}

/// The queue in front of a model's replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum FrontQueue {
    /// There is no queue except the replicas' own.
    NoQueue,
    /// The longest queue during the retention.
    Queued(Requests),
    /// The queue is unknown.
    Unknown,
}

/// The idleness of a model.
#[must_use]
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idleness {
    /// The model is idle, for at least this long.
    #[display("idle: for {retention:.0} s nothing has finished, run, waited or queued{evidence}")]
    Proved {
        /// The retention.
        retention: Seconds,
        /// The evidence.
        evidence: IdleEvidence,
    },
    /// The model is not idle.
    #[display(
        "not idle: {finished} requests finished, {on_replicas} ran or waited, {in_front} queued in \
         front"
    )]
    Busy {
        /// Requests that finished.
        finished: Requests,
        /// Requests that ran and waited on replicas.
        on_replicas: Requests,
        /// Requests that queued in front.
        in_front: Requests,
    },
    /// It is unknown whether the model is idle.
    #[display("not proved to be idle: {_0}")]
    Unproved(UnknownIdleness),
}

/// The reason why it is unknown whether a model is idle.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownIdleness {
    /// Not every count of finished requests could be read.
    #[display("not every count of finished requests could be read")]
    Finished,
    /// Not every count of running and waiting requests could be read.
    #[display("not every replica says what runs and waits on it")]
    OnReplicas,
    /// The queue in front could not be read.
    #[display("the queue in front could not be read")]
    InFront,
    /// The model has not been observed for the whole retention.
    #[display("quiet for {seen:.0} of {retention:.0} s")]
    TooShort {
        /// The time of observation.
        seen: Seconds,
        /// The retention.
        retention: Seconds,
    },
    /// Some replicas have not been ready yet.
    #[display("{_0} replicas are starting")]
    Starting(Replicas),
}

impl fmt::Display for IdleEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pages {
            0 => Ok(()),
            pages => write!(f, ", as {pages} pages of {} replicas say", self.replicas),
        }
    }
}

/// Returns the idleness of a model. Observed work takes precedence over missing data.
pub fn idleness(work: &ObservedWork, retention: Seconds) -> Idleness {
    let ObservedWork { finished, on_replicas, in_front, seen_for, starting, evidence } = *work;
    let queued = match in_front {
        FrontQueue::NoQueue | FrontQueue::Unknown => Requests::ZERO,
        FrontQueue::Queued(requests) => requests,
    };
    let seen = [finished.unwrap_or_default(), on_replicas.unwrap_or_default(), queued];

    if seen != [Requests::ZERO; 3] {
        let [finished, on_replicas, in_front] = seen;
        Idleness::Busy { finished, on_replicas, in_front }
    } else if finished.is_none() {
        Idleness::Unproved(UnknownIdleness::Finished)
    } else if on_replicas.is_none() {
        Idleness::Unproved(UnknownIdleness::OnReplicas)
    } else if in_front == FrontQueue::Unknown {
        Idleness::Unproved(UnknownIdleness::InFront)
    } else if starting > Replicas::ZERO {
        Idleness::Unproved(UnknownIdleness::Starting(starting))
    } else if seen_for < retention {
        Idleness::Unproved(UnknownIdleness::TooShort { seen: seen_for, retention })
    } else {
        Idleness::Proved { retention, evidence }
    }
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
            Self::Wanted => f.write_str("replicas are wanted"),
            Self::Growing(variant) => write!(f, "the load asks for more replicas of {variant}"),
            Self::NotIdle(idleness) => write!(f, "stays: {idleness}"),
            Self::ToZero(idleness) => write!(f, "to zero: {idleness}"),
            Self::KeptOne { variant, because: None } => {
                write!(f, "{variant} keeps one replica, because the model may not have none")
            }
            Self::KeptOne { variant, because: Some(idleness) } => {
                write!(f, "{variant} keeps one replica: {idleness}")
            }
            Self::NoneAllowed => {
                f.write_str("the model may not have none, and no variant may have a replica")
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

/// The reaction to requests that queue in front of a model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub enum Wake {
    /// Nothing queues, or the queue is unknown.
    Asleep(FrontQueue),
    /// Requests queue, and a variant has replicas or is about to.
    Awake {
        /// The variant.
        variant: VariantKey,
        /// Replicas that are asked for.
        replicas: Replicas,
    },
    /// These variants should have one replica each.
    Woken {
        /// The variants, the cheapest first.
        variants: Vec<VariantKey>,
        /// The requests that queue.
        queued: Requests,
    },
    /// Requests queue, and no variant may have a replica.
    NoneAllowed(Requests),
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asleep(FrontQueue::NoQueue) => {
                f.write_str("asleep: there is no queue to wake it")
            }
            Self::Asleep(FrontQueue::Unknown) => f.write_str("asleep: the queue could not be read"),
            Self::Asleep(FrontQueue::Queued(_)) => f.write_str("asleep: nothing queues"),
            Self::Awake { variant, replicas } => {
                write!(f, "awake: {variant} is asked for {replicas} replicas")
            }
            Self::Woken { variants, queued } => {
                let names: Vec<String> = variants.iter().map(ToString::to_string).collect();
                write!(f, "{} woken: {} requests queue", names.join(", "), queued.requests())
            }
            Self::NoneAllowed(queued) => {
                write!(f, "{} requests queue, and no variant may have a replica", queued.requests())
            }
        }
    }
}

#[cfg(test)]
mod tests;
