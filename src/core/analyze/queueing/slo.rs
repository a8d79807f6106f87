//! Latency targets of a model: stated, inferred from what was learned, or from what is observed.
//!
//! # Model
//!
//! 1. Targets that are stated count as they are.
//! 2. Without them, a slowdown `k` infers them from what was learned of each variant: they are the
//!    latencies that its model predicts at the utilisation `rho = 1 - 1/k`, at which an iteration
//!    takes `k * alpha`. For the closed form that is
//!
//!    ```text
//!    TTFT = k * alpha + (beta_prefill + gamma) * I
//!    ITL  = k * alpha + beta_decode + gamma * (I + (O + 1) / 2)
//!    ```
//!
//!    The largest over the variants of a model counts for all, because one stream of requests goes
//!    to all of them.
//! 3. Before anything is learned, what is observed times a headroom, up to a cap.
//!
//! # Source
//!
//! The document of the Workload Variant Autoscaler's queueing model analyzer, section 3.

use serde::{Deserialize, Serialize};

use crate::analyze::queueing::solve::{Metric, Model};
use crate::units::{Fraction, Seconds};

/// Latency targets that somebody stated; a latency without one is not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Targets {
    /// For the time to first token.
    pub ttft: Option<LatencyTarget>,
    /// For the mean time between tokens.
    pub itl: Option<Seconds>,
}

/// A limit on a latency.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LatencyTarget {
    /// The limit.
    pub limit: Seconds,
    /// What of the latency it holds for.
    pub of: Statistic,
}

/// What of a latency a target holds for.
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

/// How many times the time of an idle iteration is acceptable; more than 1.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown(f64);

/// How targets are found where none are stated.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Infer {
    /// From the coefficients.
    pub slowdown: Slowdown,
    /// What is observed is multiplied by it, before anything is learned.
    pub headroom: Fraction,
    /// The most that observing can make the target for the time to first token.
    pub ttft_cap: Seconds,
    /// The most that observing can make the target for the time between tokens.
    pub itl_cap: Seconds,
}

/// The targets of a model, and where they are from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slo {
    /// The targets.
    pub targets: Targets,
    /// Where they are from.
    pub origin: Origin,
}

/// Where targets are from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Origin {
    /// Somebody stated them.
    Stated,
    /// From what was learned.
    Slowdown(Slowdown),
    /// From what is observed.
    Observed {
        /// The multiple of it.
        headroom: Fraction,
    },
}

/// What is observed of a model.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Observed {
    /// The mean time to first token.
    pub ttft: Option<Seconds>,
    /// The mean time between tokens.
    pub itl: Option<Seconds>,
}

/// The targets that hold for a model, with what was learned of its variants under the requests that
/// it gets; `None` when nothing is stated, learned or observed.
#[must_use]
pub fn resolve(
    stated: &Targets,
    infer: &Infer,
    learned: &[Model],
    observed: &Observed,
) -> Option<Slo> {
    if stated.ttft.is_some() || stated.itl.is_some() {
        return Some(Slo { targets: *stated, origin: Origin::Stated });
    }
    let mean = |limit| LatencyTarget { limit, of: Statistic::Mean };
    // A multiple of nothing is no target.
    let largest = learned
        .iter()
        .filter(|model| model.takes_time())
        .filter_map(|model| model.slowed(infer.slowdown))
        .map(|at| (at.ttft, at.itl))
        .reduce(|a, b| (a.0.max(b.0), a.1.max(b.1)));
    if let Some((ttft, itl)) = largest {
        let targets = Targets { ttft: Some(mean(ttft)), itl: Some(itl) };
        return Some(Slo { targets, origin: Origin::Slowdown(infer.slowdown) });
    }
    let times = |seconds: Seconds, cap: Seconds| {
        Seconds::new(seconds.seconds() * infer.headroom.fraction()).unwrap_or(cap).min(cap)
    };
    let (ttft, itl) = observed.ttft.zip(observed.itl)?;
    let targets = Targets {
        ttft: Some(mean(times(ttft, infer.ttft_cap))),
        itl: Some(times(itl, infer.itl_cap)),
    };
    Some(Slo { targets, origin: Origin::Observed { headroom: infer.headroom } })
}

// === impl Targets ===

impl Targets {
    /// Each target that there is.
    pub(super) fn each(&self) -> impl Iterator<Item = (Metric, LatencyTarget)> {
        let Self { ttft, itl } = *self;
        let itl = itl.map(|limit| LatencyTarget { limit, of: Statistic::Mean });
        let of = |metric| move |target| (metric, target);
        itl.map(of(Metric::Itl)).into_iter().chain(ttft.map(of(Metric::Ttft)))
    }
}

// === impl Percentile ===

impl Percentile {
    /// Accepts a share from 0.5 to 0.99: below the median the distribution is not fitted, and
    /// above the 99th nothing that a queueing model leaves out can be neglected.
    #[must_use]
    pub fn new(share: Fraction) -> Option<Self> {
        (0.5..=0.99).contains(&share.fraction()).then_some(Self(share))
    }

    /// The share of requests that is faster.
    #[must_use]
    pub const fn share(self) -> Fraction {
        self.0
    }
}

// === impl Slowdown ===

impl Slowdown {
    /// How many times an idle iteration.
    #[must_use]
    pub const fn times(self) -> f64 {
        self.0
    }

    /// The utilisation at which iterations take so many times the idle one, `1 - 1/k`.
    #[must_use]
    pub fn utilisation(self) -> Fraction {
        Fraction::new(1.0 - 1.0 / self.0).unwrap_or_default()
    }
}

impl Default for Slowdown {
    /// Three times: a utilisation of two thirds.
    fn default() -> Self {
        Self(3.0)
    }
}

// === impl Infer ===

impl Default for Infer {
    /// WVA's numbers: a slowdown of 3; 1.5 times what is observed, up to 10 s and 0.5 s.
    fn default() -> Self {
        Self {
            slowdown: Slowdown::default(),
            headroom: Fraction::new(1.5).unwrap_or_default(),
            ttft_cap: Seconds::new(10.0).unwrap_or_default(),
            itl_cap: Seconds::new(0.5).unwrap_or_default(),
        }
    }
}
