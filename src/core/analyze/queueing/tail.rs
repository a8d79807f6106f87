//! Time to first token: its mean, and how it spreads.
//!
//! # Model
//!
//! A request that arrives at a busy replica waits until the iteration in progress ends, and gets
//! its first token at the end of the next one, which computes the prompts of all that arrived
//! meanwhile. Iterations without prompts take `D` (`alpha` and the decoding), and each prompt adds
//! its own work `w`, so the length of one iteration decides how many prompts the next has:
//!
//! ```text
//! T'   = D + sum of w over Poisson(lambda * T) prompts
//! E[T] = D / (1 - l)                             l = lambda * E[w]
//! V[T] = lambda * E[T] * E[w^2] / (1 - l^2)
//! ```
//!
//! A request is more likely to arrive in a long iteration: it sees `G` with density
//! `t * f(t) / E[T]`, of which a uniform share `U` is left. With probability `p0` nobody is there,
//! and it starts at once:
//!
//! ```text
//! X       = U * G + (sum of w over Poisson(lambda * G) prompts), or 0 with probability p0
//! TTFT    = X + D + w
//! E[X]    = (1 - p0) * (1/2 + l) * E[G]
//! E[X^2]  = (1 - p0) * (E[G^2] / 12 + (1/2 + l)^2 * E[G^2] + lambda * E[G] * E[w^2])
//! ```
//!
//! with `E[G^k] = E[T^(k+1)] / E[T]`, for which `T - D` is taken to be gamma distributed. A wait
//! for a place in the batch adds its mean, and the variance of an exponential time that only a
//! share of the requests has. For a percentile, what cannot vary (`D`, and `w` as far as prompts
//! are alike) is set aside, and a gamma distribution with the remaining mean and variance takes the
//! quantile.
//!
//! # Units
//!
//! Seconds and requests per second.
//!
//! # Source
//!
//! Our derivation: a branching process with immigration for the batches of a gated vacation server
//! (H. Takagi, *Queueing Analysis* 1, chapter 2), and the inspection paradox. The quantile of the
//! gamma distribution is that of Wilson and Hilferty (1931), of the normal distribution formula
//! 26.2.23 of Abramowitz and Stegun.
//!
//! # Domain
//!
//! Poisson arrivals; prompts that fit the token budget of an iteration, at most about two to an
//! iteration; a KV cache that is never full. `docs/models.md` says how far it is off.

use crate::analyze::queueing::slo::Percentile;

/// The largest share of time in which prompts are computed. Above it, the model has no stationary
/// length of an iteration.
const PROMPT_SHARE_MAX: f64 = 0.95;

/// What TTFT is made of.
#[derive(Clone, Copy, Debug)]
pub(super) struct Gated {
    /// Arrivals per second.
    pub lambda: f64,
    /// An iteration without prompts.
    pub base: f64,
    /// What a prompt adds to its iteration, on the average.
    pub prompt: f64,
    /// The standard deviation of it, as a share.
    pub prompt_variation: f64,
    /// The mean wait for a place in the batch.
    pub wait: f64,
    /// The share of requests that wait for one.
    pub waiting: f64,
    /// The share of time in which nobody is there.
    pub idle: f64,
}

/// The first two moments of TTFT, and the part of it that does not vary.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Spread {
    pub mean: f64,
    pub variance: f64,
    pub fixed: f64,
}

// === impl Spread ===

impl Spread {
    pub(super) fn of(gated: &Gated) -> Self {
        let &Gated { lambda, base, prompt, prompt_variation, wait, waiting, idle } = gated;
        let load = (lambda * prompt).min(PROMPT_SHARE_MAX);
        let square = prompt * prompt * (1.0 + prompt_variation * prompt_variation);
        let mean = base / (1.0 - load);
        let variance = load * mean * square / prompt.max(f64::MIN_POSITIVE) / (1.0 - load * load);
        let (gap, gap_square) = biased(base, mean - base, variance);
        let seen = 0.5 + load;
        let met = (1.0 - idle) * seen * gap;
        let met_square =
            (1.0 - idle) * ((1.0 / 12.0 + seen * seen) * gap_square + lambda * gap * square);
        let prompt_variance = square - prompt * prompt;
        let waited = if waiting > 0.0 { wait * wait * (2.0 / waiting - 1.0) } else { 0.0 };
        Self {
            mean: met + base + prompt + wait,
            variance: (met_square - met * met) + prompt_variance + waited,
            fixed: base + prompt * (1.0 - prompt_variation.min(1.0)),
        }
    }

    /// The percentile as a multiple of the mean.
    pub(super) fn factor(&self, percentile: Percentile) -> f64 {
        let &Self { mean, variance, fixed } = self;
        let rest = mean - fixed;
        if rest <= 0.0 || variance <= 0.0 {
            return 1.0;
        }
        let shape = rest * rest / variance;
        let ninth = 1.0 / (9.0 * shape);
        let root = 1.0 - ninth + normal_quantile(percentile) * ninth.sqrt();
        (fixed + rest * root.max(0.0).powi(3)) / mean
    }
}

/// The first two moments of the iteration that an arriving request sees, from the length that all
/// have and the mean and variance of what comes on top.
fn biased(base: f64, excess: f64, variance: f64) -> (f64, f64) {
    let mean = base + excess;
    if mean <= 0.0 {
        return (0.0, 0.0);
    }
    let second = variance + excess * excess;
    // A gamma distribution with mean m and variance v has E[X^3] = m^3 (1 + r)(1 + 2 r), r = v/m^2.
    let ratio = if excess > 0.0 { variance / (excess * excess) } else { 0.0 };
    let third = excess.powi(3) * (1.0 + ratio) * (1.0 + 2.0 * ratio);
    let square = base * base + 2.0 * base * excess + second;
    let cube = base.powi(3) + 3.0 * base * base * excess + 3.0 * base * second + third;
    (square / mean, cube / mean)
}

/// The quantile of the standard normal distribution for a percentile from the median up; off by
/// less than 4.5e-4.
fn normal_quantile(percentile: Percentile) -> f64 {
    let t = (-2.0 * (1.0 - percentile.share().fraction()).ln()).sqrt();
    let over = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let under = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - over / under
}
