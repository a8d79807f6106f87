//! To zero and back: when a model may have no replicas, and which variant wakes first.
//!
//! [`settle`] looks at the targets of all variants of one model: it lowers them to zero when the model
//! is proved to be [idle](idleness), and otherwise keeps one replica of the cheapest variant.
//! [`wake_whole`] answers requests that queue in front of a model without replicas.
//!
//! # Idle is proved, not assumed
//!
//! A model is idle when, over the whole retention, nothing has finished, nothing ran or waited on any
//! replica, and nothing queued in front of them. Each of these must have been seen: a counter that is
//! missing is not a counter that stands still. A request that takes longer than the retention has
//! finished nothing yet, which is why what runs and waits is looked at as well; and a replica that
//! starts has done nothing at all, which is why it proves nothing.
//!
//! # Why the cheapest first
//!
//! One replica of any variant answers the first request, and until it does nobody knows how many are
//! needed. Waking every variant costs the sum of them for the same answer.
//!
//! # Source
//!
//! The enforcer and the scale-from-zero engine of llm-d's Workload Variant Autoscaler. It asks only
//! for finished requests, so that a replica that was woken for a long request is taken away while it
//! works on it.

mod moves;
mod roles;

use std::cmp::Ordering;
use std::fmt;

pub use crate::decide::zero::moves::Move;
pub use crate::decide::zero::roles::{Sleeper, wake_whole};

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::{Bounds, VariantKey};
use crate::units::{CostPerHour, Replicas, Requests, Seconds};

/// Whether a model may have no replicas.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum ZeroPolicy {
    /// It keeps one.
    #[default]
    KeepOne,
    /// It may, once it has been idle for so long.
    AfterIdle(Seconds),
}

/// What is known of a model's work.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Work {
    /// Requests that finished in the retention, over all replicas that there were; `None` when not
    /// all of them, or not all of the time, could be read.
    pub finished: Option<Requests>,
    /// The most that ran and waited on its replicas at any time of the retention.
    pub on_replicas: Option<Requests>,
    /// What queues in front of its replicas.
    pub in_front: InFront,
    /// For how long all this has been seen without a gap, since the model was woken at the latest.
    pub seen_for: Seconds,
    /// Replicas that have not been ready yet.
    pub starting: Replicas,
    /// What all this was seen on.
    pub evidence: Evidence,
}

/// What a proof rests on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Evidence {
    /// Replicas that were heard.
    pub replicas: Replicas,
    /// Pages of theirs that were read.
    pub pages: u64,
}

/// What queues in front of a model's replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InFront {
    /// Nothing can: there is no queue but the replicas' own.
    NoQueue,
    /// So much, at the most of the retention.
    Queued(Requests),
    /// Nobody can say.
    Unknown,
}

/// Whether a model is idle.
#[must_use]
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Idleness {
    /// It is, for at least this long.
    #[display("idle: for {retention:.0} s nothing has finished, run, waited or queued{evidence}")]
    Proved {
        /// The retention.
        retention: Seconds,
        /// What it was seen on.
        evidence: Evidence,
    },
    /// It is not.
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
    /// Nobody knows.
    #[display("not proved to be idle: {_0}")]
    Unproved(Unproved),
}

/// Why nobody knows whether a model is idle.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unproved {
    /// Not every count of finished requests could be read.
    #[display("not every count of finished requests could be read")]
    Finished,
    /// Not every count of running and waiting requests could be read.
    #[display("not every replica says what runs and waits on it")]
    OnReplicas,
    /// The queue in front could not be read.
    #[display("the queue in front could not be read")]
    InFront,
    /// It has not been seen for the whole retention.
    #[display("quiet for {seen:.0} of {retention:.0} s")]
    TooShort {
        /// How long it has been.
        seen: Seconds,
        /// The retention.
        retention: Seconds,
    },
    /// Some replicas have not been ready yet.
    #[display("{_0} replicas are starting")]
    Starting(Replicas),
}

impl fmt::Display for Evidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pages {
            0 => Ok(()),
            pages => write!(f, ", as {pages} pages of {} replicas say", self.replicas),
        }
    }
}

/// Whether a model is idle. What is seen of work counts before what is missing.
pub fn idleness(work: &Work, retention: Seconds) -> Idleness {
    let Work { finished, on_replicas, in_front, seen_for, starting, evidence } = *work;
    let queued = match in_front {
        InFront::NoQueue | InFront::Unknown => Requests::ZERO,
        InFront::Queued(queued) => queued,
    };
    let seen = [finished.unwrap_or_default(), on_replicas.unwrap_or_default(), queued];

    if seen != [Requests::ZERO; 3] {
        let [finished, on_replicas, in_front] = seen;
        Idleness::Busy { finished, on_replicas, in_front }
    } else if finished.is_none() {
        Idleness::Unproved(Unproved::Finished)
    } else if on_replicas.is_none() {
        Idleness::Unproved(Unproved::OnReplicas)
    } else if in_front == InFront::Unknown {
        Idleness::Unproved(Unproved::InFront)
    } else if starting > Replicas::ZERO {
        Idleness::Unproved(Unproved::Starting(starting))
    } else if seen_for < retention {
        Idleness::Unproved(Unproved::TooShort { seen: seen_for, retention })
    } else {
        Idleness::Proved { retention, evidence }
    }
}

/// A variant of the model, and what it should have before this rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// The variant.
    pub variant: VariantKey,
    /// What a replica costs; `None` when nobody says.
    pub cost: Option<CostPerHour>,
    /// Replicas that are asked for; `None` when nobody can say.
    pub current: Option<Replicas>,
    /// Replicas that it should have.
    pub target: Replicas,
    /// What it may have.
    pub bounds: Bounds,
}

/// What became of the targets.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct Settled {
    /// A target for each candidate, in their order.
    pub targets: Vec<Replicas>,
    /// Why.
    pub outcome: Outcome,
}

/// Why the targets are what they are.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// They stay: at least one replica is wanted.
    Wanted,
    /// They stay: the load of a variant asks for more replicas than it has.
    Growing(VariantKey),
    /// They stay, because the model is not idle, or not proved to be.
    NotIdle(Idleness),
    /// They are zero.
    ToZero(Idleness),
    /// The model may not be without replicas, so its cheapest variant keeps one.
    KeptOne {
        /// The variant.
        variant: VariantKey,
        /// Whether the model is idle, where it might have gone to zero.
        because: Option<Idleness>,
    },
    /// The model may not be without replicas, and none of its variants may have one.
    NoneAllowed,
}

impl fmt::Display for Outcome {
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
pub fn settle(policy: ZeroPolicy, work: &Work, candidates: &[Candidate]) -> Settled {
    let targets: Vec<Replicas> = candidates.iter().map(|candidate| candidate.target).collect();
    let none = targets.iter().all(|target| *target == Replicas::ZERO);

    match policy {
        ZeroPolicy::KeepOne if none => keep_one(candidates, None),
        ZeroPolicy::KeepOne => Settled { targets, outcome: Outcome::Wanted },
        ZeroPolicy::AfterIdle(retention) => {
            to_zero(work, retention, candidates).unwrap_or_else(|outcome| match outcome {
                Outcome::NotIdle(idleness) if none => keep_one(candidates, Some(idleness)),
                outcome => Settled { targets, outcome },
            })
        }
    }
}

/// Lowers every target to its minimum, if the model is idle and nothing asks for more.
fn to_zero(work: &Work, retention: Seconds, candidates: &[Candidate]) -> Result<Settled, Outcome> {
    let growing = candidates.iter().find(|candidate| {
        candidate.current.is_none_or(|current| candidate.target > current)
            && candidate.target > candidate.bounds.min()
    });
    match idleness(work, retention) {
        idle @ Idleness::Proved { .. } => match growing {
            Some(growing) => Err(Outcome::Growing(growing.variant.clone())),
            None => Ok(Settled {
                targets: candidates.iter().map(|candidate| candidate.bounds.min()).collect(),
                outcome: Outcome::ToZero(idle),
            }),
        },
        other => Err(Outcome::NotIdle(other)),
    }
}

/// Gives one replica to the cheapest variant that may have one: a model that has replicas keeps one
/// of those, so that none has to start.
fn keep_one(candidates: &[Candidate], because: Option<Idleness>) -> Settled {
    let mut targets: Vec<Replicas> = candidates.iter().map(|candidate| candidate.target).collect();
    let absent =
        |candidate: &Candidate| candidate.current.is_none_or(|current| current == Replicas::ZERO);
    let cheapest = (0..candidates.len())
        .filter(|at| candidates[*at].bounds.allow_up(Replicas::ZERO))
        .min_by(|a, b| {
            let [a, b] = [&candidates[*a], &candidates[*b]];
            absent(a).cmp(&absent(b)).then_with(|| cheaper(a, b))
        });
    let outcome = match cheapest {
        Some(at) => {
            targets[at] = Replicas::ONE;
            Outcome::KeptOne { variant: candidates[at].variant.clone(), because }
        }
        None if candidates.is_empty() => Outcome::Wanted,
        None => Outcome::NoneAllowed,
    };
    Settled { targets, outcome }
}

/// The cheaper variant first; of two that cost the same the one whose name comes first. One whose
/// cost nobody says is the last.
fn cheaper(a: &Candidate, b: &Candidate) -> Ordering {
    let by_cost = match (a.cost, b.cost) {
        (Some(a), Some(b)) => a.compare(b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => Ordering::Equal,
    };
    by_cost.then_with(|| a.variant.cmp(&b.variant))
}

/// What is to be done about requests that queue in front of a model.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub enum Wake {
    /// Nothing queues, or nobody can say.
    Asleep(InFront),
    /// Something queues, and some variant has replicas or is about to.
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
        /// What queues.
        queued: Requests,
    },
    /// Something queues, and no variant may have a replica.
    NoneAllowed(Requests),
}

impl fmt::Display for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asleep(InFront::NoQueue) => f.write_str("asleep: there is no queue to wake it"),
            Self::Asleep(InFront::Unknown) => f.write_str("asleep: the queue could not be read"),
            Self::Asleep(InFront::Queued(_)) => f.write_str("asleep: nothing queues"),
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
