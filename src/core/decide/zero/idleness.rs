//! The idleness of a model, and its proof.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::units::{NounCount, Replicas, Requests, Seconds};

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
    #[display(
        "idle: no request has finished, run, waited or queued for {retention:.0} s{evidence}"
    )]
    Proved {
        /// The retention.
        retention: Seconds,
        /// The evidence.
        evidence: IdleEvidence,
    },
    /// The model is not idle.
    #[display(
        "not idle: requests that finished: {finished}, ran or waited: {on_replicas}, were queued: \
         {in_front}"
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
    #[display("may not be idle: {_0}")]
    Unproved(UnknownIdleness),
}

/// The reason why it is unknown whether a model is idle.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnknownIdleness {
    /// Not every count of finished requests could be read.
    #[display("some counts of finished requests could not be read")]
    Finished,
    /// Not every count of running and waiting requests could be read.
    #[display("some replicas do not report running and waiting requests")]
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
    #[display("{} starting", NounCount(_0.count(), "replica is", "replicas are"))]
    Starting(Replicas),
}

impl fmt::Display for IdleEvidence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pages {
            0 => Ok(()),
            pages => {
                let scrapes = NounCount(pages, "scrape", "scrapes");
                write!(f, ", according to {scrapes} of {}", self.replicas.counted())
            }
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
