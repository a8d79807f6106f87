//! The facts about the daemon that the status shows.

use std::time::Duration;

use jiff::Timestamp;

/// The facts for the status that [`Published`](crate::publish::Published) does not contain.
#[derive(Clone, Debug, PartialEq)]
pub struct Vitals {
    /// The version of the running binary.
    pub version: &'static str,
    /// The start time of the process, on the monotonic clock.
    pub started: Duration,
    /// The time between ticks.
    pub tick_interval: Duration,
    /// Every readiness check with its result; an error is the problem found.
    pub checks: Vec<(&'static str, Result<(), String>)>,
    /// The configuration in effect.
    pub config: ConfigInForce,
    /// The `APIService` of the served metrics; `None` if the daemon does not watch it.
    pub api_service: Option<ApiServiceVitals>,
    /// The election among the replicas of Plimsoll; `None` with only one.
    pub election: Option<ElectionStatus>,
}

/// The registration of the served metrics at the API server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiServiceVitals {
    /// The name of the `APIService`.
    pub name: &'static str,
    /// Its state.
    pub state: &'static str,
    /// The problem, if any.
    pub problem: Option<String>,
}

/// The election among the replicas of Plimsoll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ElectionStatus {
    /// The holder of the Lease, if there is one.
    pub holder: Option<String>,
    /// The identity of this replica.
    pub identity: String,
    /// True if this replica leads.
    pub leads: bool,
}

/// The configuration in effect and the last attempt to reload it.
#[derive(Clone, Debug, PartialEq)]
pub struct ConfigInForce {
    /// The file that it came from; `None` if it came from no file.
    pub file: Option<String>,
    /// The hash of the configuration.
    pub hash: String,
    /// The time when it was loaded, on the wall clock and on the monotonic clock.
    pub loaded: (Timestamp, Duration),
    /// The last reload attempt with the reason for a rejection; `None` if there was no attempt.
    pub last_reload: Option<(Timestamp, Result<(), String>)>,
    /// The first rejected attempt since the last accepted configuration; `None` if none followed it.
    pub refused_since: Option<Timestamp>,
}
