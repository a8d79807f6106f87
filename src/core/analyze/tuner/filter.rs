//! An extended Kalman filter over the three coefficients.
//!
//! # Model
//!
//! The state `x` is the logarithm of `(alpha, beta, gamma)`, which is constant except for a drift
//! `Q`. The measurement `h(x)` is the logarithm of `(TTFT, ITL)` of the queueing model, with noise
//! `R`. `H` is the Jacobian of `h` by central differences.
//!
//! ```text
//! predict   P <- P + Q
//! update    y = z - h(x);  S = H P H' + R;  K = P H' / S
//!           x <- x + K y
//!           P <- (I - K H) P (I - K H)' + K R K'
//! NIS       y' / S y, chi-square distributed with two degrees of freedom
//! ```
//!
//! This is Joseph's form of the correction, which stays symmetric and positive regardless of
//! rounding errors in `K`.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, Matrix3x2, Vector2, Vector3};

use crate::analyze::queueing::Coefficients;
use crate::analyze::tuner::estimate::TokenSeparation;
use crate::analyze::tuner::point::{Latencies, OperatingPoint};
use crate::analyze::tuner::saved::SavedFilter;

/// The 97.5th percentile of the chi-square distribution with two degrees of freedom.
const NIS_MAX: f64 = 7.378;

/// The step of a central difference, as a share of the coefficient.
const JACOBIAN_STEP: f64 = 0.01;

/// The largest difference between two entries of a covariance that should be equal, as a share of
/// the largest entry.
const ASYMMETRY_MAX: f64 = 1e-9;

/// The relative noise of mean latencies over a minute: about a hundred requests, each with a
/// deviation equal to its mean.
const NOISE: f64 = 0.1;

/// The drift of an engine's coefficients between two observations, as a share.
const DRIFT: f64 = 0.01;

/// The standard deviations of the logarithms of unknown coefficients. `alpha` and `beta` lie within
/// a factor of 20 of the guess. `gamma` lies within a factor of four of its usual share of `beta`,
/// which is the range over models and accelerators.
pub(super) const DEVIATIONS_MAX: [f64; 3] = [1.5, 1.5, 0.7];

/// The factor by which a rejection increases the variance.
const DOUBT: f64 = 4.0;

/// The result of one observation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilterStep {
    /// The squared distance of the logarithms of TTFT and ITL from the prediction, in units of the
    /// expected distance.
    pub nis: f64,
    /// The verdict on the observation.
    pub verdict: FilterVerdict,
}

/// The verdict on an observation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterVerdict {
    /// The observation updated the filter.
    Accepted,
    /// The observation is too far from the prediction.
    Rejected,
}

/// The reason why an observation can't be compared with a prediction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepError {
    /// The arrival rate is higher than the current coefficients allow, so they predict nothing.
    NoPrediction,
}

/// Coefficients in the form that a filter holds: their logarithms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct FilterState(pub Vector3<f64>);

/// An extended Kalman filter.
#[derive(Clone, Debug)]
pub struct KalmanFilter {
    apart: TokenSeparation,
    state: Vector3<f64>,
    covariance: Matrix3<f64>,
    drift: Matrix3<f64>,
    noise: Matrix2<f64>,
    min: Vector3<f64>,
    max: Vector3<f64>,
}

// === impl KalmanFilter ===

impl KalmanFilter {
    /// A filter that starts from a fit.
    pub(super) fn ours(
        state: &FilterState,
        covariance: Matrix3<f64>,
        apart: TokenSeparation,
    ) -> Self {
        let room = Vector3::repeat(BOUND.ln());
        let mut filter = Self {
            apart,
            state: state.0,
            covariance,
            drift: Matrix3::identity() * (DRIFT * DRIFT),
            noise: Matrix2::identity() * (NOISE * NOISE),
            min: state.0 - room,
            max: state.0 + room,
        };

        filter.limit();
        filter
    }

    /// The saved state of the filter.
    pub(super) fn save(&self, split: Option<f64>) -> SavedFilter {
        SavedFilter {
            state: self.state.into(),
            began: ((self.min + self.max) / 2.0).into(),
            covariance: self.covariance(),
            split,
        }
    }

    /// The filter with this saved state; `None` if the state is not valid.
    pub(super) fn from_saved(saved: &SavedFilter, apart: TokenSeparation) -> Option<Self> {
        let SavedFilter { state, began, covariance, split: _ } = saved;
        let matrix = Matrix3::from_fn(|row, column| covariance[row][column]);
        let numbers = state.iter().chain(began).chain(&matrix);
        let sound = numbers.copied().all(f64::is_finite) && is_symmetric(&matrix);
        if !sound || matrix.cholesky().is_none() {
            return None;
        }

        let started = Self::ours(&FilterState(Vector3::from(*began)), matrix, apart);
        let mut filter = Self { state: Vector3::from(*state), ..started };
        filter.clamp();
        filter.coefficients().map(|_| filter)
    }

    /// Learns from one observation, unless it is too far from the prediction.
    ///
    /// # Errors
    ///
    /// Refuses an observation at an arrival rate that the current coefficients don't allow.
    pub fn step(&mut self, point: &OperatingPoint) -> Result<FilterStep, StepError> {
        let before = (self.state, self.covariance);
        self.clamp();
        self.covariance += self.drift;
        self.limit();
        let predicted = self.predict(&self.state, point).ok_or(StepError::NoPrediction)?;
        let Latencies { ttft, itl } = point.latencies;
        let measured = Vector2::new(ttft.seconds(), itl.seconds());
        let innovation = measured.map(f64::ln) - predicted;
        let sensitivity = self.jacobian(point);
        let expected = sensitivity * self.covariance * sensitivity.transpose() + self.noise;
        let inverse = expected.try_inverse().ok_or(StepError::NoPrediction)?;
        let gain = self.covariance * sensitivity.transpose() * inverse;
        let distance = (innovation.transpose() * inverse * innovation)[(0, 0)];

        self.state += gain * innovation;
        self.clamp();
        self.correct(&gain, &sensitivity);
        let verdict = if distance < NIS_MAX {
            FilterVerdict::Accepted
        } else {
            (self.state, self.covariance) = before;
            self.doubt();
            FilterVerdict::Rejected
        };
        Ok(FilterStep { nis: distance, verdict })
    }

    /// Makes the filter less certain of its estimate.
    pub(super) fn doubt(&mut self) {
        self.covariance *= DOUBT;
        self.limit();
    }

    /// `alpha`, `beta` and `gamma`, in seconds and seconds per token.
    fn state(&self) -> [f64; 3] {
        self.state.map(f64::exp).into()
    }

    /// The covariance of the state, row by row.
    fn covariance(&self) -> [[f64; 3]; 3] {
        [0, 1, 2].map(|row| [0, 1, 2].map(|column| self.covariance[(row, column)]))
    }

    /// The current coefficients.
    #[must_use]
    pub fn coefficients(&self) -> Option<Coefficients> {
        self.apart.coefficients(self.state())
    }

    /// The standard deviations of the state.
    pub(super) fn deviations(&self) -> [f64; 3] {
        self.covariance.diagonal().map(|variance| variance.max(0.0).sqrt()).into()
    }

    /// The measurement that a state predicts; `None` if it predicts none.
    fn predict(&self, state: &Vector3<f64>, point: &OperatingPoint) -> Option<Vector2<f64>> {
        let coefficients = self.apart.coefficients(state.map(f64::exp).into())?;
        let Latencies { ttft, itl } = point.predict(coefficients)?;
        let predicted = Vector2::new(ttft.seconds(), itl.seconds()).map(f64::ln);
        predicted.iter().all(|value| value.is_finite()).then_some(predicted)
    }

    /// The sensitivity of the measurement to the state. If the model predicts nothing in a
    /// direction, that column is zero, and the filter learns nothing about it.
    fn jacobian(&self, point: &OperatingPoint) -> Matrix2x3<f64> {
        let mut jacobian = Matrix2x3::zeros();
        for column in 0..3 {
            let above = self.predict_moved(column, JACOBIAN_STEP, point);
            let below = self.predict_moved(column, -JACOBIAN_STEP, point);
            if let Some((above, below)) = above.zip(below) {
                jacobian.set_column(column, &((above - below) / (2.0 * JACOBIAN_STEP)));
            }
        }

        jacobian
    }

    /// The predicted measurement after one coefficient is moved.
    fn predict_moved(
        &self,
        column: usize,
        by: f64,
        point: &OperatingPoint,
    ) -> Option<Vector2<f64>> {
        let mut state = self.state;
        state[column] += by;
        self.predict(&state, point)
    }

    fn correct(&mut self, gain: &Matrix3x2<f64>, sensitivity: &Matrix2x3<f64>) {
        let left = Matrix3::identity() - gain * sensitivity;
        self.covariance =
            left * self.covariance * left.transpose() + gain * self.noise * gain.transpose();
    }

    fn clamp(&mut self) {
        self.state = self.state.zip_zip_map(&self.min, &self.max, f64::clamp);
    }

    /// Limits the uncertainty of each coefficient to that of an unknown one. Otherwise a
    /// coefficient without new information would become ever more uncertain. Scaling rows and
    /// columns alike keeps the covariance positive.
    fn limit(&mut self) {
        let most = Vector3::from(DEVIATIONS_MAX);
        let factors = self.covariance.diagonal().zip_map(&most, |variance, most| {
            if variance > 0.0 { (most / variance.sqrt()).min(1.0) } else { 1.0 }
        });
        let shrink = Matrix3::from_diagonal(&factors);
        self.covariance = shrink * self.covariance * shrink;
    }
}

fn is_symmetric(covariance: &Matrix3<f64>) -> bool {
    let asymmetry = (covariance - covariance.transpose()).abs().max();
    asymmetry <= ASYMMETRY_MAX * covariance.abs().max()
}

/// The largest factor between a coefficient and its value at the start of the filter.
pub(super) const BOUND: f64 = 100.0;

// === impl FilterState ===

impl FilterState {
    /// The logarithms of coefficients; zero is replaced by the smallest representable time.
    pub(super) fn of(coefficients: Coefficients) -> Self {
        let Coefficients { alpha, beta_prefill, beta_decode: _, gamma } = coefficients;
        let values = [alpha.seconds(), beta_prefill.seconds_per_token(), gamma.seconds_per_token()];
        Self(Vector3::from(values.map(|value| value.max(SMALLEST).ln())))
    }
}

/// A time below any duration in an engine: a hundredth of a picosecond.
const SMALLEST: f64 = 1e-14;
