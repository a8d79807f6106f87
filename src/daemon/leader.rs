//! Leader election: one of several daemon replicas decides, and the others show its decisions.
//!
//! [`elect`] holds a Lease or waits for it, as client-go does. [`share`] keeps the leader's
//! document in a `ConfigMap` that every daemon replica watches. This module does not interpret the
//! document's body; [`crate::publish`] does.
//!
//! # Fencing a deposed leader
//!
//! Time alone cannot fence it: a process can pause between reading the clock and writing. So each
//! write of the document names the version that it replaces. A new leader first rewrites the
//! document with its own higher [`share::LeaderTerm`], and only then decides. A later write from
//! its predecessor names an outdated version, and the API server rejects it.

pub mod elect;
pub mod lease;
pub mod share;

use std::time::Duration;

/// The settings of the leader election.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionSettings {
    /// The namespace of the Lease and the document.
    pub namespace: String,
    /// The Lease's name; the document is named `NAME-decisions`.
    pub name: String,
    /// The unique identity of this process. A restarted process has another one.
    pub identity: String,
    /// The timing of the election.
    pub pace: ElectionTiming,
}

/// The timing of the election.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ElectionTiming {
    /// The time that the other replicas wait for a leader that does not renew the Lease.
    pub lease_duration: Duration,
    /// The time that a leader keeps leading without a successful renewal; shorter than
    /// `lease_duration`.
    pub renew_deadline: Duration,
    /// The interval between attempts to read or renew the Lease.
    pub retry_period: Duration,
}

/// The leadership as this replica knows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The instant on the monotonic clock until which this replica leads; `None` if it does not
    /// lead. It passes on its own unless the Lease is renewed.
    pub until: Option<Duration>,
    /// The holder of the Lease, if it has one.
    pub holder: Option<String>,
}

impl Leadership {
    /// Returns true if this replica leads at the monotonic instant `now`.
    #[must_use]
    pub fn leads(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl ElectionSettings {
    /// The name of the document's `ConfigMap`.
    #[must_use]
    pub fn document(&self) -> String {
        format!("{}-decisions", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_replica_leads_until_an_instant_and_not_at_it() {
        let until = Duration::from_secs(5);
        let leadership = Leadership { until: Some(until), holder: None };
        assert!(leadership.leads(Duration::from_nanos(4_999_999_999)));
        assert!(!leadership.leads(until));
        assert!(!Leadership::default().leads(Duration::ZERO));
    }
}
