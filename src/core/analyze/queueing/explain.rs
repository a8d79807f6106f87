//! What sizing can come to, in types that carry the numbers and say them in a sentence.

use std::fmt;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::queueing::slo::{LatencyTarget, Origin, Slo, Statistic, Targets};
use crate::analyze::queueing::solve::{Capacity, Limit, Metric};
use crate::units::{Replicas, RequestRate, Seconds};

/// What was found of one variant.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum Sizing {
    /// What one replica takes, and how many that makes.
    #[display("{demand:.3} requests/s arrive and {capacity}, so {needed} replicas are needed")]
    Sized {
        /// What one replica takes.
        capacity: Capacity,
        /// What arrives at the variant.
        demand: RequestRate,
        /// The replicas that what arrives needs.
        needed: Replicas,
    },
    /// Nobody can say what one replica takes.
    Unsized(Unsized),
}

/// Why nobody can say what one replica takes.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum Unsized {
    /// Nothing arrives, so there are no requests to size for.
    #[display("nothing arrives, so there is nothing to size for")]
    NoTraffic,
    /// Requests arrive, and nobody reports how long they are.
    #[display("no replica reports how long its requests are")]
    NoShape,
    /// Nothing was learned of the replicas yet.
    #[display("nothing has been learned of its replicas yet")]
    NotLearned,
    /// There is nothing to keep: no target is stated, and none can be inferred.
    #[display("there is no latency target, stated or inferred")]
    NoTarget,
    /// The model refuses.
    Refused(Refusal),
}

/// Why a model has no answer.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusal {
    /// No request arrives, so none has a latency.
    #[display("nothing arrives, so there is no latency")]
    Idle,
    /// More arrives than a full batch finishes.
    #[display(
        "{arrival:.3} requests/s arrive at a replica that finishes {max:.3} requests/s at most"
    )]
    Overload {
        /// What arrives.
        arrival: RequestRate,
        /// What the model answers for at most.
        max: RequestRate,
    },
    /// An idle replica misses the target, so no number of replicas meets it.
    #[display(
        "no number of replicas keeps {} at {target}: an idle replica already takes {:.1} ms",
        metric.label(),
        milliseconds(*idle)
    )]
    IdleFloor {
        /// Of which latency.
        metric: Metric,
        /// The target.
        target: LatencyTarget,
        /// The latency of an idle replica.
        idle: Seconds,
    },
    /// Iterations take no time, so nothing limits the rate.
    #[display("iterations take no time, so nothing limits the rate")]
    NoWork,
}

// === impl Capacity ===

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, limit, at } = self;
        write!(f, "one replica takes {rate:.3} requests/s, ")?;
        match limit {
            Limit::Target { metric, target } => {
                write!(f, "where {} reaches {target}", metric.label())
            }
            Limit::Throughput => write!(
                f,
                "all that a full batch finishes (TTFT {:.1} ms, ITL {:.1} ms)",
                milliseconds(at.ttft),
                milliseconds(at.itl)
            ),
        }
    }
}

// === impl Metric ===

impl Metric {
    /// The latency's name.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Ttft => "TTFT",
            Self::Itl => "ITL",
        }
    }
}

// === impl LatencyTarget ===

impl fmt::Display for LatencyTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { limit, of } = self;
        match of {
            Statistic::Mean => write!(f, "a mean of {:.1} ms", milliseconds(*limit)),
            Statistic::Percentile(percentile) => write!(
                f,
                "{:.1} ms for {:.0} % of requests",
                milliseconds(*limit),
                100.0 * percentile.share().fraction()
            ),
        }
    }
}

// === impl Slo ===

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { targets: Targets { ttft, itl }, origin } = self;
        if let Some(ttft) = ttft {
            write!(f, "TTFT up to {ttft}, ")?;
        }
        if let Some(itl) = itl {
            write!(f, "ITL up to a mean of {:.1} ms, ", milliseconds(*itl))?;
        }
        match origin {
            Origin::Stated => f.write_str("as stated"),
            Origin::Slowdown(k) => {
                write!(f, "from iterations that take {:.1} times the idle one", k.times())
            }
            Origin::Observed { headroom } => {
                write!(f, "from {headroom:.1} times what is observed")
            }
        }
    }
}

fn milliseconds(time: Seconds) -> f64 {
    1000.0 * time.seconds()
}
