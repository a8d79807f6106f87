//! The results of sizing, as types that hold the numbers and display them as a sentence.

use std::fmt;

use derive_more::Display;

use crate::analyze::queueing::refusal::{QueueingRefusal, milliseconds};
use crate::analyze::queueing::slo::{Slo, TargetOrigin};
use crate::analyze::queueing::solve::{RateBound, RateCapacity};
use crate::analyze::queueing::target::{LatencyMetric, LatencyTarget, LatencyTargets, Statistic};
use crate::units::{NounCount, Replicas, RequestRate};

/// The sizing of one variant.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum Sizing {
    /// The capacity per replica and the replicas that the demand needs.
    #[display(
        "{demand:.3} requests/s arrive and {capacity}, so {} needed",
        NounCount(needed.count(), "replica is", "replicas are")
    )]
    Sized {
        /// The capacity of one replica.
        capacity: RateCapacity,
        /// The rate of requests that arrive at the variant.
        demand: RequestRate,
        /// The replicas that `demand` needs.
        needed: Replicas,
    },
    /// The capacity per replica is unknown.
    Unsized(SizingFailure),
}

/// The reason why the capacity per replica is unknown.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum SizingFailure {
    /// No requests arrive, so there is no demand to size for.
    #[display("no requests arrive, so no replica is needed")]
    NoTraffic,
    /// Requests arrive, but no replica reports their lengths.
    #[display("no replica reports the lengths of its requests")]
    NoShape,
    /// No coefficients have been learned yet.
    #[display("the performance of its replicas has not been learned yet")]
    NotLearned,
    /// No latency target is configured, and none can be inferred.
    #[display("no latency target is configured or inferred")]
    NoTarget,
    /// The queueing model has no answer.
    Refused(QueueingRefusal),
}

// === impl RateCapacity ===

impl fmt::Display for RateCapacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, limit, at } = self;
        write!(f, "one replica serves {rate:.3} requests/s, ")?;

        match limit {
            RateBound::Target { metric, target } => {
                write!(f, "where {} reaches {target}", metric.label())
            }
            RateBound::Throughput => write!(
                f,
                "the throughput of a full batch (TTFT {:.1} ms, ITL {:.1} ms)",
                milliseconds(at.ttft),
                milliseconds(at.itl)
            ),
        }
    }
}

// === impl LatencyMetric ===

impl LatencyMetric {
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
                "{:.1} ms for {:.0}% of requests",
                milliseconds(*limit),
                100.0 * percentile.share().fraction()
            ),
        }
    }
}

// === impl Slo ===

impl fmt::Display for Slo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { targets: LatencyTargets { ttft, itl }, origin } = self;

        if let Some(ttft) = ttft {
            write!(f, "TTFT up to {ttft}, ")?;
        }
        if let Some(itl) = itl {
            write!(f, "ITL up to a mean of {:.1} ms, ", milliseconds(*itl))?;
        }

        match origin {
            TargetOrigin::Stated => f.write_str("as configured"),
            TargetOrigin::Slowdown(k) => {
                write!(f, "from iterations that take {:.1} times as long as an idle one", k.times())
            }
            TargetOrigin::Observed { headroom } => {
                write!(f, "from {headroom:.1} times the observed latency")
            }
        }
    }
}
