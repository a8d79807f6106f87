//! The reasons why the queueing model has no answer.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::queueing::target::{LatencyMetric, LatencyTarget};
use crate::units::{RequestRate, Seconds};

/// The reason why the queueing model has no answer.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QueueingRefusal {
    /// No requests arrive, so there is no latency.
    #[display("no requests arrive, so there is no latency")]
    Idle,
    /// More requests arrive than a full batch finishes.
    #[display(
        "{arrival:.3} requests/s arrive at a replica that finishes at most {max:.3} requests/s"
    )]
    Overload {
        /// The arrival rate.
        arrival: RequestRate,
        /// The largest rate that the model accepts.
        max: RequestRate,
    },
    /// An idle replica misses the target, so no replica count meets it.
    #[display(
        "the {} target {target} is unreachable at any number of replicas: an idle replica takes \
         {:.1} ms",
        metric.label(),
        milliseconds(*idle)
    )]
    IdleFloor {
        /// The latency that misses its target.
        metric: LatencyMetric,
        /// The target.
        target: LatencyTarget,
        /// The latency of an idle replica.
        idle: Seconds,
    },
    /// Iterations take no time, so nothing limits the rate.
    #[display("iterations take no time, so nothing limits the rate")]
    NoWork,
}

pub(super) fn milliseconds(time: Seconds) -> f64 {
    1000.0 * time.seconds()
}
