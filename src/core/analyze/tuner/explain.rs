//! The results of an observation, as types that hold the numbers and display them as a sentence.

use std::fmt;
use std::num::NonZeroU32;

use derive_more::Display;

use crate::analyze::tuner::estimate::{CoefficientEstimate, TokenSeparation};
use crate::units::{Requests, Seconds, TimePerToken};

/// The effect of one observation.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum TuningOutcome {
    /// The filter starts from it.
    Started {
        /// The number of points that the start is fitted to.
        points: usize,
    },
    /// The filter accepted it and updated the estimate.
    Accepted {
        /// The squared distance from the prediction, in units of the expected distance.
        nis: f64,
    },
    /// The observation is too far from the prediction, so the estimate stays and becomes less
    /// certain.
    Rejected {
        /// The distance as above; `None` if the current coefficients predict nothing.
        nis: Option<f64>,
        /// The rejections since the last accepted observation, this one included.
        in_a_row: u32,
    },
    /// The observation can't be learned from.
    Unfit(UnfitObservation),
}

/// The reason why an observation can't be learned from.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum UnfitObservation {
    /// The replica has not served long enough.
    #[display("learning from the replica starts in {remaining:.0} s")]
    Transient {
        /// The remaining time.
        remaining: Seconds,
    },
    /// The batch is full, so the queue dominates the latency.
    #[display(
        "with {present:.0} requests for {batch} places, latency shows the queue and not the engine"
    )]
    Full {
        /// The number of requests in the replica.
        present: Requests,
        /// Places in the batch.
        batch: NonZeroU32,
    },
    /// No coefficients explain the latencies.
    #[display("no coefficients explain the latencies")]
    NoFit,
}

impl fmt::Display for TuningOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { points } => write!(f, "started from {points} operating points"),
            Self::Accepted { nis } => write!(f, "accepted at a distance of {nis:.2}"),
            Self::Rejected { nis: Some(nis), in_a_row } => {
                write!(f, "rejected at a distance of {nis:.2}, {in_a_row} in a row")
            }
            Self::Rejected { nis: None, in_a_row } => {
                write!(
                    f,
                    "rejected, because more requests arrive than the estimate allows, \
                    {in_a_row} in a row"
                )
            }
            Self::Unfit(unfit) => write!(f, "{unfit}"),
        }
    }
}

// === impl UnfitObservation ===

// === impl CoefficientEstimate ===

impl fmt::Display for CoefficientEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coefficients, alpha, beta, gamma, apart, confidence: _ } = self;
        write!(
            f,
            "alpha {:.3} ms (x/ {:.2}), beta {:.2} us/token (x/ {:.2}), gamma {:.4} us/token (x/ {:.2})",
            1e3 * coefficients.alpha.seconds(),
            alpha.factor(),
            micros(coefficients.beta_prefill),
            beta.factor(),
            micros(coefficients.gamma),
            gamma.factor()
        )?;

        match apart {
            TokenSeparation::Together => Ok(()),
            TokenSeparation::Separate(_) => {
                write!(f, ", answers {:.2} us/token", micros(coefficients.beta_decode))
            }
        }
    }
}

fn micros(time: TimePerToken) -> f64 {
    1e6 * time.seconds_per_token()
}
