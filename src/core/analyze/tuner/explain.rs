//! What an observation can come to, in types that carry the numbers and say them in a sentence.

use std::fmt;
use std::num::NonZeroU32;

use derive_more::Display;

use crate::analyze::tuner::{Apart, Estimate};
use crate::units::{Requests, Seconds};

/// What became of one observation.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Lesson {
    /// The filter starts with it.
    Started {
        /// Points that the start is fitted to.
        points: usize,
    },
    /// The filter moved.
    Accepted {
        /// Its distance from the prediction, squared and in units of what was expected.
        nis: f64,
    },
    /// It is too far from the prediction, so the estimate stays and becomes less certain.
    Rejected {
        /// As above; `None` where the present coefficients predict nothing.
        nis: Option<f64>,
        /// Rejections since the last one that was accepted, this one included.
        in_a_row: u32,
    },
    /// There is nothing to learn from it.
    Unfit(Unfit),
}

/// Why there is nothing to learn from an observation.
#[derive(Clone, Copy, Debug, Display, PartialEq)]
pub enum Unfit {
    /// The replica has not served for long enough.
    #[display("the replica is learned from in {remaining:.0} s")]
    Transient {
        /// How long it takes from now.
        remaining: Seconds,
    },
    /// The batch is full, so the latency is that of the queue.
    #[display(
        "{present:.0} requests in a replica with {batch} places tell the queue, not the engine"
    )]
    Full {
        /// Requests that were there.
        present: Requests,
        /// Places in the batch.
        batch: NonZeroU32,
    },
    /// No coefficients explain what was seen.
    #[display("no coefficients explain the latencies")]
    NoFit,
}

impl fmt::Display for Lesson {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started { points } => write!(f, "started from {points} operating points"),
            Self::Accepted { nis } => write!(f, "accepted at a distance of {nis:.2}"),
            Self::Rejected { nis: Some(nis), in_a_row } => {
                write!(f, "rejected at a distance of {nis:.2}, {in_a_row} in a row")
            }
            Self::Rejected { nis: None, in_a_row } => {
                write!(f, "rejected, as more arrives than the estimate allows, {in_a_row} in a row")
            }
            Self::Unfit(unfit) => write!(f, "{unfit}"),
        }
    }
}

// === impl Unfit ===

// === impl Estimate ===

impl fmt::Display for Estimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { coefficients, alpha, beta, gamma, apart, confidence: _ } = self;
        let micros = |seconds: f64| 1e6 * seconds;
        write!(
            f,
            "alpha {:.3} ms (x/ {:.2}), beta {:.2} us/token (x/ {:.2}), gamma {:.4} us/token (x/ {:.2})",
            1e3 * coefficients.alpha.seconds(),
            alpha.factor(),
            micros(coefficients.beta_prefill.seconds_per_token()),
            beta.factor(),
            micros(coefficients.gamma.seconds_per_token()),
            gamma.factor()
        )?;
        match apart {
            Apart::Together => Ok(()),
            Apart::Separate(_) => write!(
                f,
                ", answers {:.2} us/token",
                micros(coefficients.beta_decode.seconds_per_token())
            ),
        }
    }
}
