//! Latency targets, and the statistics that they limit.

use serde::{Deserialize, Serialize};

use crate::units::{Fraction, Seconds};

/// A latency that can have a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LatencyMetric {
    /// Time to the first token.
    Ttft,
    /// Time between tokens.
    Itl,
}

/// Configured latency targets; a latency without a target is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LatencyTargets {
    /// The target for the time to first token.
    pub ttft: Option<LatencyTarget>,
    /// The target for the mean time between tokens.
    pub itl: Option<Seconds>,
}

/// A limit on a latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// The limit.
    pub limit: Seconds,
    /// The statistic that the limit applies to.
    pub of: Statistic,
}

/// The statistic of a latency that a target applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The mean.
    #[default]
    Mean,
    /// A percentile.
    Percentile(Percentile),
}

/// A percentile from the median to the 99th.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "Fraction")]
pub struct Percentile(Fraction);

impl TryFrom<Fraction> for Percentile {
    type Error = &'static str;

    fn try_from(share: Fraction) -> Result<Self, &'static str> {
        Self::new(share).ok_or("a percentile is from 0.5 to 0.99")
    }
}

/// The acceptable iteration time, as a multiple of an idle iteration; more than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown(f64);

// === impl LatencyTargets ===

impl LatencyTargets {
    /// Each target that is set.
    pub(super) fn each(&self) -> impl Iterator<Item = (LatencyMetric, LatencyTarget)> {
        let ttft = self.ttft.map(|target| (LatencyMetric::Ttft, target));
        let itl = self.itl.map(|limit| (LatencyMetric::Itl, LatencyTarget::mean(limit)));
        itl.into_iter().chain(ttft)
    }
}

// === impl LatencyTarget ===

impl LatencyTarget {
    pub(super) const fn mean(limit: Seconds) -> Self {
        Self { limit, of: Statistic::Mean }
    }
}

// === impl Percentile ===

impl Percentile {
    /// Accepts a share from 0.5 to 0.99. Below the median the distribution is not fitted. Above the
    /// 99th percentile, effects that a queueing model omits are no longer negligible.
    #[must_use]
    pub fn new(share: Fraction) -> Option<Self> {
        (0.5..=0.99).contains(&share.fraction()).then_some(Self(share))
    }

    /// The share of requests that must be faster than the limit.
    #[must_use]
    pub const fn share(self) -> Fraction {
        self.0
    }
}

// === impl Slowdown ===

impl Slowdown {
    /// The multiple of an idle iteration.
    #[must_use]
    pub const fn times(self) -> f64 {
        self.0
    }

    /// The utilization at which iterations take this multiple of the idle one, `1 - 1/k`.
    #[must_use]
    pub fn utilization(self) -> Fraction {
        Fraction::new(1.0 - 1.0 / self.0).unwrap_or_default()
    }
}

impl Default for Slowdown {
    /// A factor of 3, which is a utilization of two thirds.
    fn default() -> Self {
        Self(3.0)
    }
}
