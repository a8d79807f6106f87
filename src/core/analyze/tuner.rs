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

mod estimate;
mod explain;
mod filter;
mod guess;
mod point;
mod saved;
mod window;

#[cfg(test)]
mod tests;

use crate::analyze::capacity::Confidence;
use crate::analyze::experience::Experience;
use crate::analyze::tuner::window::{PointWindow, WindowFit};
use crate::units::Seconds;

pub use crate::analyze::tuner::estimate::{
    CoefficientEstimate, CoefficientInterval, DecodeCostRatio, TokenSeparation,
};
pub use crate::analyze::tuner::explain::{TuningOutcome, UnfitObservation};
pub use crate::analyze::tuner::filter::{FilterStep, FilterVerdict, KalmanFilter, StepError};
pub use crate::analyze::tuner::guess::guess;
pub use crate::analyze::tuner::point::{Latencies, OperatingPoint};
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

/// Learns the coefficients of one variant.
#[derive(Clone, Debug)]
pub struct Tuner {
    filter: Option<KalmanFilter>,
    window: PointWindow,
    apart: TokenSeparation,
    accepted: u32,
    rejected: u32,
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

    /// The state of this tuner.
    #[must_use]
    pub fn save(&self) -> SavedTuner {
        let Self { filter, window, apart, accepted, rejected } = self;
        let split = match apart {
            TokenSeparation::Together => None,
            TokenSeparation::Separate(DecodeCostRatio { decode_over_prefill }) => {
                Some(*decode_over_prefill)
            }
        };

        SavedTuner {
            filter: filter.as_ref().map(|filter| filter.save(split)),
            points: window.save(),
            accepted: *accepted,
            rejected: *rejected,
        }
    }

    /// The tuner with this state; `None` if the state is not valid.
    #[must_use]
    pub fn restore(saved: &SavedTuner) -> Option<Self> {
        let SavedTuner { filter: saved_filter, points, accepted, rejected } = saved;
        let window = PointWindow::restore(points)?;
        let split = saved_filter.as_ref().and_then(|filter| filter.split);
        let apart = match split {
            Some(ratio) if ratio.is_finite() && ratio > 0.0 => {
                TokenSeparation::Separate(DecodeCostRatio { decode_over_prefill: ratio })
            }
            Some(_) => return None,
            None => TokenSeparation::Together,
        };

        let filter = match saved_filter {
            Some(saved) => Some(KalmanFilter::from_saved(saved, apart)?),
            None => None,
        };
        Some(Self { filter, window, apart, accepted: *accepted, rejected: *rejected })
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

impl Experience for Tuner {
    /// The points of the window count only if both accepted equally many observations.
    fn knows_less_than(&self, other: &Self) -> bool {
        (self.accepted, self.window.len()) < (other.accepted, other.window.len())
    }
}

impl Default for Tuner {
    fn default() -> Self {
        Self::new()
    }
}
