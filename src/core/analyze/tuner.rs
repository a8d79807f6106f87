//! Tuner: learns the cost of an iteration from the latencies of running replicas.
//!
//! A [`Tuner`] turns the [`OperatingPoint`]s of one variant into an [`CoefficientEstimate`]. A
//! point holds the arrival rate, the request lengths and the latencies. An estimate holds the
//! coefficients of the [queueing model](crate::analyze::queueing), each with its confidence
//! interval.
//!
//! # Model
//!
//! An extended Kalman filter ([`KalmanFilter`]) holds the logarithms of `alpha`, `beta` and
//! `gamma`. It measures the logarithms of TTFT and ITL as the queueing model predicts them. In
//! logarithms an error is a share, and a coefficient cannot become negative. An observation that is
//! ten times the prediction is as far away as an observation that is a tenth of it.
//!
//! A gate rejects single outliers, and it can't stay closed:
//!
//! - a rejected observation makes the filter less certain of its estimate, so the next similar
//!   observation is closer to acceptance;
//! - [`REJECTED_MAX`] rejections in a row are a change instead of outliers, and the filter restarts
//!   from a fit to the rejected points;
//! - an arrival rate at which the current coefficients have no latency counts as a rejection, not
//!   as an error.
//!
//! The start is a guess from the first observation, with the number of requests per iteration from
//! Little's law ([`guess()`]).
//!
//! # Identifiability
//!
//! One operating point has two latencies and three unknowns. It determines `beta` (from the
//! difference between TTFT and ITL) and the time of an iteration, but not the share of `gamma` in
//! it. The interval of `gamma` reflects that, and predictions near that point don't depend on it.
//! Several arrival rates determine all three. Requests of several shapes separate the `beta` of
//! prompts from the `beta` of answers, and only then are the two estimated separately
//! ([`TokenSeparation`]).
//!
//! # Units
//!
//! Seconds and seconds per token; variances are those of natural logarithms, without a unit.
//!
//! # Source
//!
//! The tuner of llm-d's Workload Variant Autoscaler. Its filter can lock itself out permanently;
//! `docs/decisions.md` describes the lockout and Plimsoll's solution. The filter: R. E. Kalman
//! (1960); its correction in Joseph's form: P. D. Joseph, in Bucy and Joseph, *Filtering for
//! Stochastic Processes* (1968), chapter 16.

mod explain;
mod filter;
mod guess;
mod saved;
mod window;

#[cfg(test)]
mod tests;

use std::num::NonZeroU32;

use serde::{Deserialize, Serialize};

use crate::analyze::capacity::Confidence;
use crate::analyze::queueing::{Coefficients, MeanRequest, QueueingModel, ReplicaRoom};
use crate::analyze::tuner::window::{PointWindow, WindowFit};
use crate::units::{RequestRate, Requests, Seconds, TimePerToken};

pub use crate::analyze::tuner::explain::{TuningOutcome, UnfitObservation};
pub use crate::analyze::tuner::filter::{FilterStep, FilterVerdict, KalmanFilter, StepError};
pub use crate::analyze::tuner::guess::guess;
pub use crate::analyze::tuner::saved::{FilterAgreement, SavedFilter, SavedPoint, SavedTuner};

/// The time that a replica must serve before the tuner learns from its latencies. The first
/// iterations compile kernels and capture graphs, and the queue is not in a steady state.
pub const TRANSIENT_DELAY: Seconds = Seconds::literal(120);

/// Rejections in a row after which the filter restarts. Two consecutive scrapes may see the same
/// disturbance; a third scrape that agrees with them shows a real change.
pub const REJECTED_MAX: u32 = 3;

/// Observations after which an estimate no longer counts as a guess.
const SETTLED: u32 = 3;

/// Accepted observations between two attempts to separate prompts and answers.
const APART_EVERY: u32 = 10;

/// The share of batch places in use from which a point can't be learned from. TTFT is then
/// dominated by the queue, which no stationary model predicts.
const FULL_SHARE: f64 = 0.9;

/// The queue length in the model of an observation, per place in the batch.
const QUEUE_PER_PLACE: u32 = 10;

/// The load and the latencies of one replica over a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OperatingPoint {
    arrival: RequestRate,
    shape: MeanRequest,
    batch: NonZeroU32,
    latencies: Latencies,
}

/// The latencies of requests.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latencies {
    /// The mean time to first token.
    pub ttft: Seconds,
    /// The mean time between tokens.
    pub itl: Seconds,
}

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
    deviation: f64,
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
    decode_over_prefill: f64,
}

/// Learns the coefficients of one variant.
#[derive(Clone, Debug)]
pub struct Tuner {
    filter: Option<KalmanFilter>,
    window: PointWindow,
    apart: TokenSeparation,
    accepted: u32,
    rejected: u32,
}

// === impl OperatingPoint ===

impl OperatingPoint {
    /// A point with arrivals and nonzero latencies. `None` without them, because such a point
    /// contains no information.
    #[must_use]
    pub fn new(
        arrival: RequestRate,
        shape: MeanRequest,
        batch: NonZeroU32,
        latencies: Latencies,
    ) -> Option<Self> {
        let Latencies { ttft, itl } = latencies;
        (arrival > RequestRate::ZERO
            && shape.input().tokens() > 0.0
            && ttft > Seconds::ZERO
            && itl > Seconds::ZERO)
            .then_some(Self { arrival, shape, batch, latencies })
    }

    /// The requests that shared an iteration, by Little's law: arrivals times the time that each
    /// request was present. Waiting requests are included.
    #[must_use]
    pub fn present(&self) -> Requests {
        let Latencies { ttft, itl } = self.latencies;
        let there = ttft.seconds() + self.shape.output().tokens() * itl.seconds();
        Requests::new(self.arrival.requests_per_second() * there).unwrap_or_default()
    }

    /// The latencies that the queueing model predicts at this point with these coefficients.
    fn predict(&self, coefficients: Coefficients) -> Option<Latencies> {
        let queue = self.batch.get().saturating_mul(QUEUE_PER_PLACE);
        let room = ReplicaRoom { batch: self.batch, queue };
        let at = QueueingModel::new(coefficients, self.shape, room).at(self.arrival).ok()?;
        Some(Latencies { ttft: at.ttft, itl: at.itl })
    }

    fn is_full(&self) -> bool {
        self.present().requests() >= FULL_SHARE * f64::from(self.batch.get())
    }
}

// === impl CoefficientInterval ===

impl CoefficientInterval {
    /// The largest factor by which the coefficient may be above or below its most likely value.
    #[must_use]
    pub fn factor(self) -> f64 {
        (NORMAL_95 * self.deviation).exp()
    }
}

/// The number of standard deviations around the mean that contain 95% of a normal distribution.
const NORMAL_95: f64 = 1.96;

// === impl TokenSeparation ===

impl TokenSeparation {
    /// Coefficients with this `alpha`, `beta` and `gamma`, in that order; `None` if a value is not
    /// a valid time.
    fn coefficients(self, [alpha, beta, gamma]: [f64; 3]) -> Option<Coefficients> {
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

// === impl Tuner ===

impl Tuner {
    /// A tuner without any observations.
    #[must_use]
    pub fn new() -> Self {
        let window = PointWindow::default();
        Self { filter: None, window, apart: TokenSeparation::Together, accepted: 0, rejected: 0 }
    }

    /// Learns from an operating point of one replica, which has served for the time `served`. A
    /// replica with an unknown serving time counts as settled: a replica that is listed in a file
    /// has no start time.
    pub fn learn(&mut self, served: Option<Seconds>, point: &OperatingPoint) -> TuningOutcome {
        if let Some(served) = served
            && served < TRANSIENT_DELAY
        {
            let seconds = TRANSIENT_DELAY.seconds() - served.seconds();
            let remaining = Seconds::new(seconds).unwrap_or_default();
            return TuningOutcome::Unfit(UnfitObservation::Transient { remaining });
        }

        if point.is_full() {
            let present = point.present();
            return TuningOutcome::Unfit(UnfitObservation::Full { present, batch: point.batch });
        }

        self.window.add(point);
        let Some(filter) = &mut self.filter else {
            return self.start();
        };
        match filter.step(point) {
            Ok(FilterStep { verdict: FilterVerdict::Accepted, nis }) => {
                self.accepted = self.accepted.saturating_add(1);
                self.rejected = 0;
                self.window.confirm();
                if self.accepted.is_multiple_of(APART_EVERY) {
                    self.tell_apart();
                }

                TuningOutcome::Accepted { nis }
            }
            Ok(FilterStep { verdict: FilterVerdict::Rejected, nis }) => self.reject(Some(nis)),
            Err(StepError::NoPrediction) => {
                filter.doubt();
                self.reject(None)
            }
        }
    }

    /// The current estimate; `None` before the first point.
    #[must_use]
    pub fn estimate(&self) -> Option<CoefficientEstimate> {
        let filter = self.filter.as_ref()?;
        let [alpha, beta, gamma] =
            filter.deviations().map(|deviation| CoefficientInterval { deviation });

        let confidence = if self.accepted < SETTLED {
            Confidence::Assumed
        } else if self.rejected > 0 {
            Confidence::Remembered
        } else {
            Confidence::Measured
        };

        let coefficients = filter.coefficients()?;
        Some(CoefficientEstimate {
            coefficients,
            alpha,
            beta,
            gamma,
            apart: self.apart,
            confidence,
        })
    }

    /// Counts a rejection, and restarts the filter after too many in a row.
    fn reject(&mut self, nis: Option<f64>) -> TuningOutcome {
        self.rejected += 1;
        if self.rejected < REJECTED_MAX {
            return TuningOutcome::Rejected { nis, in_a_row: self.rejected };
        }
        self.window.forget_confirmed();
        self.start()
    }

    /// Starts the filter from a fit to the window.
    fn start(&mut self) -> TuningOutcome {
        self.rejected = 0;
        self.accepted = 0;
        self.apart = TokenSeparation::Together;
        let Some(WindowFit { state, covariance, .. }) = self.window.fit_together() else {
            self.filter = None;
            return TuningOutcome::Unfit(UnfitObservation::NoFit);
        };

        self.filter = Some(KalmanFilter::ours(&state, covariance, self.apart));
        self.accepted = 1;
        self.window.confirm();
        TuningOutcome::Started { points: self.window.len() }
    }

    /// Gives prompts and answers separate coefficients, if the window separates them.
    fn tell_apart(&mut self) {
        let Some(coefficients) = self.filter.as_ref().and_then(KalmanFilter::coefficients) else {
            return;
        };
        let Some(WindowFit { state, covariance, apart }) = self.window.fit_apart(coefficients)
        else {
            return;
        };

        self.filter = Some(KalmanFilter::ours(&state, covariance, apart));
        self.apart = apart;
    }
}

impl Default for Tuner {
    fn default() -> Self {
        Self::new()
    }
}
