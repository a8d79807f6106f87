//! The distribution of the time to first token.
//!
//! # Model
//!
//! A request that arrives at a busy replica waits until the iteration in progress ends. It gets its
//! first token at the end of the next iteration, which computes the prompts of all requests that
//! arrived meanwhile. An iteration without prompts takes `D` (`alpha` and the decoding). Each
//! prompt adds its own work `w`, so the length of one iteration determines the number of prompts in
//! the next:
//!
//! ```text
//! T'   = D + sum of w over Poisson(lambda * T) prompts
//! E[T] = D / (1 - l)                             l = lambda * E[w]
//! V[T] = lambda * E[T] * E[w^2] / (1 - l^2)
//! ```
//!
//! A request is more likely to arrive in a long iteration. It sees `G` with density
//! `t * f(t) / E[T]`, of which a uniform share `U` remains. With probability `p0` the replica is
//! idle, and the request starts at once:
//!
//! ```text
//! X       = U * G + (sum of w over Poisson(lambda * G) prompts), or 0 with probability p0
//! TTFT    = X + D + w
//! E[X]    = (1 - p0) * (1/2 + l) * E[G]
//! E[X^2]  = (1 - p0) * (E[G^2] / 12 + (1/2 + l)^2 * E[G^2] + lambda * E[G] * E[w^2])
//! ```
//!
//! with `E[G^k] = E[T^(k+1)] / E[T]`. For these moments `T - D` is assumed to be gamma distributed.
//! A wait for a place in the batch adds its mean. It adds the variance of an exponential time that
//! only a share of the requests has. For a percentile, the constant part (`D`, and `w` as far as
//! prompts are alike) is set aside. The quantile is that of a gamma distribution with the remaining
//! mean and variance.
//!
//! # Units
//!
//! Seconds and requests per second.
//!
//! # Source
//!
//! Plimsoll's own derivation: a branching process with immigration for the batches of a gated
//! vacation server (H. Takagi, *Queueing Analysis* 1, chapter 2), and the inspection paradox. The
//! quantile of the gamma distribution is that of Wilson and Hilferty (1931). The quantile of the
//! normal distribution is formula 26.2.23 of Abramowitz and Stegun.
//!
//! # Domain
//!
//! Poisson arrivals; prompts that fit the token budget of an iteration, at most about two per
//! iteration; a KV cache that is never full. `docs/models.md` states the errors.

use crate::analyze::queueing::target::Percentile;

/// The largest share of time in which prompts are computed. Above it, the model has no stationary
/// iteration length.
const PROMPT_SHARE_MAX: f64 = 0.95;

/// The components of TTFT.
#[derive(Clone, Copy, Debug)]
pub(super) struct TtftComponents {
    /// Arrivals per second.
    pub lambda: f64,
    /// The time of an iteration without prompts.
    pub base: f64,
    /// The mean time that a prompt adds to its iteration.
    pub prompt: f64,
    /// The standard deviation of that time, as a share of its mean.
    pub prompt_variation: f64,
    /// The mean wait for a place in the batch.
    pub wait: f64,
    /// The share of requests that wait for a place.
    pub waiting: f64,
    /// The share of time in which the replica is idle.
    pub idle: f64,
}

/// The first two moments of TTFT, and its constant part.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct TtftMoments {
    pub mean: f64,
    pub variance: f64,
    pub fixed: f64,
}

// === impl TtftMoments ===

impl TtftMoments {
    pub(super) fn of(gated: &TtftComponents) -> Self {
        let &TtftComponents { lambda, base, prompt, prompt_variation, wait, waiting, idle } = gated;
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

/// The first two moments of the iteration that an arriving request sees. `base` is the length
/// common to all iterations; `excess` and `variance` are the mean and variance of the rest.
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

/// The quantile of the standard normal distribution for a percentile of at least the median. The
/// error is less than 4.5e-4.
fn normal_quantile(percentile: Percentile) -> f64 {
    let t = (-2.0 * (1.0 - percentile.share().fraction()).ln()).sqrt();
    let over = 2.515_517 + t * (0.802_853 + t * 0.010_328);
    let under = 1.0 + t * (1.432_788 + t * (0.189_269 + t * 0.001_308));
    t - over / under
}
