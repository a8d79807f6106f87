//! Learned coefficients, with the interval of each.

use crate::analyze::capacity::Confidence;
use crate::analyze::queueing::Coefficients;
use crate::units::{Seconds, TimePerToken};

/// The number of standard deviations around the mean that contain 95% of a normal distribution.
const NORMAL_95: f64 = 1.96;

/// The coefficients learned for a variant.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoefficientEstimate {
    /// The most likely coefficients.
    pub coefficients: Coefficients,
    /// The interval of `alpha`.
    pub alpha: CoefficientInterval,
    /// The interval of the cost per computed token. If prompts and answers are separate, that of
    /// prompts.
    pub beta: CoefficientInterval,
    /// The interval of `gamma`.
    pub gamma: CoefficientInterval,
    /// The separation of prompts and answers.
    pub apart: TokenSeparation,
    /// The reliability of the estimate.
    pub confidence: Confidence,
}

/// The 95% interval of a coefficient, as a factor around its most likely value. It is valid as far
/// as the model is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CoefficientInterval {
    pub(super) deviation: f64,
}

/// The separation of the coefficients for tokens of prompts and of answers.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum TokenSeparation {
    /// The data does not separate them, so they share one coefficient.
    #[default]
    Together,
    /// Each has its own coefficient.
    Separate(DecodeCostRatio),
}

/// The cost of computing one token of an answer, relative to one token of a prompt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DecodeCostRatio {
    pub(super) decode_over_prefill: f64,
}

// === impl CoefficientInterval ===

impl CoefficientInterval {
    /// The largest factor by which the coefficient may be above or below its most likely value.
    #[must_use]
    pub fn factor(self) -> f64 {
        (NORMAL_95 * self.deviation).exp()
    }
}

// === impl TokenSeparation ===

impl TokenSeparation {
    /// Coefficients with this `alpha`, `beta` and `gamma`, in that order; `None` if a value is not
    /// a valid time.
    pub(super) fn coefficients(self, [alpha, beta, gamma]: [f64; 3]) -> Option<Coefficients> {
        let ratio = match self {
            Self::Together => 1.0,
            Self::Separate(split) => split.decode_over_prefill,
        };

        Some(Coefficients {
            alpha: Seconds::new(alpha)?,
            beta_prefill: TimePerToken::new(beta)?,
            beta_decode: TimePerToken::new(beta * ratio)?,
            gamma: TimePerToken::new(gamma)?,
        })
    }
}
