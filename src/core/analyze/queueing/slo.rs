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

use crate::analyze::queueing::solve::QueueingModel;
use crate::analyze::queueing::target::{LatencyTarget, LatencyTargets, Slowdown};
use crate::units::{Fraction, Seconds};

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
