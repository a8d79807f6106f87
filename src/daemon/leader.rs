//! Leader election: of several daemons one decides, and the others show its numbers.
//!
//! [`elect`] holds a Lease or waits for it, as client-go does; [`share`] keeps the leader's document
//! in a `ConfigMap` that every daemon watches. The document is opaque here: what it says is the
//! business of [`crate::publish`].
//!
//! # What holds a deposed leader back
//!
//! Time alone does not: a process can stand still between looking at the clock and writing. So each
//! write of the document names the version that it replaces, and a new leader writes the document
//! anew, with its own higher [`share::Term`], before it decides anything. Whatever its predecessor
//! still sends after that names a version that is gone, and the API server refuses it.

pub mod elect;
pub mod lease;
pub mod share;

use std::time::Duration;

/// How the election is held.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Where the Lease and the document are.
    pub namespace: String,
    /// The Lease's name; the document's is `NAME-decisions`.
    pub name: String,
    /// Who we are, and nobody else: a restarted process is another one.
    pub identity: String,
    /// How this is paced.
    pub pace: Pace,
}

/// How the election is paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// How long the others wait for a leader that says nothing.
    pub lease_duration: Duration,
    /// How long a leader that cannot renew goes on; shorter than `lease_duration`.
    pub renew_deadline: Duration,
    /// How often it is looked and renewed.
    pub retry_period: Duration,
}

/// What is known of who leads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Until when we lead, on the monotonic clock, if we do. It ends by itself unless it is
    /// renewed.
    pub until: Option<Duration>,
    /// Who holds the Lease, if anybody does.
    pub holder: Option<String>,
}

impl Leadership {
    /// Whether we lead at the monotonic instant `now`.
    #[must_use]
    pub fn leads(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }
}

impl Settings {
    /// The name of the document's `ConfigMap`.
    #[must_use]
    pub fn document(&self) -> String {
        format!("{}-decisions", self.name)
    }
}
