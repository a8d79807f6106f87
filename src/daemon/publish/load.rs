//! The total load of a variant, from its replicas with fresh data.
//!
//! Every surface that shows a sum or a mean over replicas takes it from here, so no two surfaces
//! can disagree. A replica that does not report a value is left out instead of counting as 0.

use plimsoll_core::observe::ReplicaObservation;
use plimsoll_core::units::{Fraction, RequestRate, Requests};

/// The load of one variant. A field is `None` if no replica with fresh data reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservedLoad {
    /// KV cache in use, a mean over replicas and over the window.
    pub kv_usage: Option<Fraction>,
    /// Waiting requests on all replicas.
    pub waiting: Option<Requests>,
    /// Running requests on all replicas.
    pub running: Option<Requests>,
    /// Request arrivals at all replicas, over the window.
    pub arrivals: Option<RequestRate>,
}

impl ObservedLoad {
    /// Returns the load of these replicas.
    #[must_use]
    pub fn of(replicas: &[ReplicaObservation]) -> Self {
        let kv = mean(replicas, |replica| replica.kv_usage.map(|it| it.mean.fraction()));
        let waiting = sum(replicas, |replica| replica.waiting.map(|it| it.last.requests()));
        let running = sum(replicas, |replica| replica.running.map(|it| it.last.requests()));
        let arrivals =
            sum(replicas, |replica| replica.arrivals.map(RequestRate::requests_per_second));

        Self {
            kv_usage: kv.and_then(Fraction::new),
            waiting: waiting.and_then(Requests::new),
            running: running.and_then(Requests::new),
            arrivals: arrivals.and_then(RequestRate::new),
        }
    }
}

/// Returns the sum over the fresh replicas that report a value; `None` if none does.
pub(crate) fn sum(
    replicas: &[ReplicaObservation],
    value: impl Fn(&ReplicaObservation) -> Option<f64>,
) -> Option<f64> {
    let fresh = replicas.iter().filter(|replica| replica.freshness.is_fresh());
    fresh.filter_map(value).reduce(|a, b| a + b)
}

/// Returns the mean over the fresh replicas that report a value; `None` if none does.
pub(crate) fn mean(
    replicas: &[ReplicaObservation],
    value: impl Fn(&ReplicaObservation) -> Option<f64>,
) -> Option<f64> {
    let said = sum(replicas, |replica| value(replica).map(|_| 1.0))?;
    Some(sum(replicas, value)? / said)
}
