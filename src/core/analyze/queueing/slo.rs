//! The latency targets of a model: configured, inferred from learned coefficients, or inferred from
//! observed latencies.
//!
//! # Model
//!
//! 1. Configured targets apply as they are.
//! 2. Without them, a slowdown `k` infers targets from each variant's learned coefficients. They
//!    are the latencies that its model predicts at the utilization `rho = 1 - 1/k`, at which an
//!    iteration takes `k * alpha`. For the closed form that is
//!
//!    ```text
//!    TTFT = k * alpha + (beta_prefill + gamma) * I
//!    ITL  = k * alpha + beta_decode + gamma * (I + (O + 1) / 2)
//!    ```
//!
//!    The largest value over a model's variants applies to all of them, because one stream of
//!    requests goes to all variants.
//! 3. Before any coefficients are learned, the targets are the observed latencies times a headroom,
//!    up to a cap.
//!
//! # Source
//!
//! The document of the Workload Variant Autoscaler's queueing model analyzer, section 3.

use serde::{Deserialize, Serialize};

use crate::analyze::queueing::solve::{LatencyMetric, QueueingModel};
use crate::units::{Fraction, Seconds};

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

/// The inference of targets that are not configured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetInference {
    /// The slowdown that infers targets from learned coefficients.
    pub slowdown: Slowdown,
    /// The factor for observed latencies, before coefficients are learned.
    pub headroom: Fraction,
    /// The maximum for a TTFT target that is inferred from observed latencies.
    pub ttft_cap: Seconds,
    /// The maximum for an ITL target that is inferred from observed latencies.
    pub itl_cap: Seconds,
}

/// The targets of a model and their origin.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The targets.
    pub targets: LatencyTargets,
    /// The origin of the targets.
    pub origin: TargetOrigin,
}

/// The origin of latency targets.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TargetOrigin {
    /// The targets are configured.
    Stated,
    /// The targets are inferred from learned coefficients.
    Slowdown(Slowdown),
    /// The targets are inferred from observed latencies.
    Observed {
        /// The multiple of the observed latencies.
        headroom: Fraction,
    },
}

/// The observed latencies of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ObservedLatencies {
    /// The mean time to first token.
    pub ttft: Option<Seconds>,
    /// The mean time between tokens.
    pub itl: Option<Seconds>,
}

/// The targets in effect for a model. `learned` holds the models of its variants under the requests
/// that the model receives. `None` if no target is configured and none can be inferred.
#[must_use]
pub fn resolve(
    stated: &LatencyTargets,
    infer: &TargetInference,
    learned: &[QueueingModel],
    observed: &ObservedLatencies,
) -> Option<Slo> {
    if stated.ttft.is_some() || stated.itl.is_some() {
        return Some(Slo { targets: *stated, origin: TargetOrigin::Stated });
    }

    // A model whose idle iteration takes no time yields no target.
    let largest = learned
        .iter()
        .filter(|model| model.takes_time())
        .filter_map(|model| model.slowed(infer.slowdown))
        .map(|at| (at.ttft, at.itl))
        .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
    if let Some((ttft, itl)) = largest {
        let targets = LatencyTargets { ttft: Some(LatencyTarget::mean(ttft)), itl: Some(itl) };
        return Some(Slo { targets, origin: TargetOrigin::Slowdown(infer.slowdown) });
    }

    let (ttft, itl) = observed.ttft.zip(observed.itl)?;
    let targets = LatencyTargets {
        ttft: Some(LatencyTarget::mean(infer.limit(ttft, infer.ttft_cap))),
        itl: Some(infer.limit(itl, infer.itl_cap)),
    };
    Some(Slo { targets, origin: TargetOrigin::Observed { headroom: infer.headroom } })
}

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
    const fn mean(limit: Seconds) -> Self {
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
    pub fn utilisation(self) -> Fraction {
        Fraction::new(1.0 - 1.0 / self.0).unwrap_or_default()
    }
}

impl Default for Slowdown {
    /// A factor of 3, which is a utilization of two thirds.
    fn default() -> Self {
        Self(3.0)
    }
}

// === impl TargetInference ===

impl TargetInference {
    /// The target for an observed latency: its multiple, up to the cap.
    fn limit(&self, observed: Seconds, cap: Seconds) -> Seconds {
        Seconds::new(observed.seconds() * self.headroom.fraction()).unwrap_or(cap).min(cap)
    }
}

impl Default for TargetInference {
    /// WVA's values: a slowdown of 3, and 1.5 times the observed latencies, up to 10 s and 0.5 s.
    fn default() -> Self {
        Self {
            slowdown: Slowdown::default(),
            headroom: Fraction::new(1.5).unwrap_or_default(),
            ttft_cap: Seconds::new(10.0).unwrap_or_default(),
            itl_cap: Seconds::new(0.5).unwrap_or_default(),
        }
    }
}
