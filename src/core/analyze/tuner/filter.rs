//! An extended Kalman filter over the three coefficients.
//!
//! # Model
//!
//! The state `x` is the logarithm of `(alpha, beta, gamma)`, which stays as it is but for a drift
//! `Q`; the measurement `h(x)` is the logarithm of `(TTFT, ITL)` of the queueing model, with noise
//! `R`; `H` is the Jacobian of `h` by central differences.
//!
//! ```text
//! predict   P <- P + Q
//! update    y = z - h(x);  S = H P H' + R;  K = P H' / S
//!           x <- x + K y
//!           P <- (I - K H) P (I - K H)' + K R K'
//! NIS       y' / S y, chi-square distributed with two degrees of freedom
//! ```
//!
//! This form of the correction, Joseph's, stays symmetric and positive whatever the rounding of `K`.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, Matrix3x2, Vector2, Vector3};

use crate::analyze::queueing::Coefficients;
use crate::analyze::tuner::{Apart, Latencies, OperatingPoint, SavedFilter};

/// The 97.5th percentile of the chi-square distribution with two degrees of freedom.
const NIS_MAX: f64 = 7.378;

/// How far a coefficient is moved to see what it does, as a share.
const JACOBIAN_STEP: f64 = 0.01;

/// How much two entries of a covariance that should be the same may differ, as a share of the
/// largest.
const ASYMMETRY_MAX: f64 = 1e-9;

/// Relative noise of mean latencies over a minute: about a hundred requests, each as variable as
/// its mean.
const NOISE: f64 = 0.1;

/// How far the coefficients of an engine move between two observations, as a share.
const DRIFT: f64 = 0.01;

/// The standard deviations of the logarithms of coefficients of which nothing is known: `alpha` and
/// `beta` within a factor of 20 of the guess, `gamma` within a factor of four of its usual share of
/// `beta`, which is how far models and accelerators are apart.
pub(super) const DEVIATIONS_MAX: [f64; 3] = [1.5, 1.5, 0.7];

/// How much less certain of itself a rejection makes the filter, in variance.
const DOUBT: f64 = 4.0;

/// What one observation did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How far the logarithms of TTFT and ITL are from those predicted, squared and in units of the
    /// expected distance.
    pub nis: f64,
    /// Whether it moved the filter.
    pub verdict: Verdict,
}

/// Whether an observation moved the filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It did.
    Accepted,
    /// It is too far away.
    Rejected,
}

/// Why an observation cannot be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StepError {
    /// More arrives than the present coefficients allow, so they predict nothing.
    NoPrediction,
}

/// Coefficients as a filter has them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct State(pub Vector3<f64>);

/// An extended Kalman filter.
#[derive(Clone, Debug)]
pub struct Filter {
    apart: Apart,
    state: Vector3<f64>,
    covariance: Matrix3<f64>,
    drift: Matrix3<f64>,
    noise: Matrix2<f64>,
    min: Vector3<f64>,
    max: Vector3<f64>,
}

// === impl Filter ===

impl Filter {
    /// A filter from a fit.
    pub(super) fn ours(state: &State, covariance: Matrix3<f64>, apart: Apart) -> Self {
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

    /// The filter as it is saved.
    pub(super) fn save(&self, split: Option<f64>) -> SavedFilter {
        SavedFilter {
            state: self.state.into(),
            began: ((self.min + self.max) / 2.0).into(),
            covariance: self.covariance(),
            split,
        }
    }

    /// The filter that was saved; `None` where it cannot be one.
    pub(super) fn from_saved(saved: &SavedFilter, apart: Apart) -> Option<Self> {
        let SavedFilter { state, began, covariance, split: _ } = saved;
        let matrix = Matrix3::from_fn(|row, column| covariance[row][column]);
        let numbers = state.iter().chain(began).chain(&matrix);
        let sound = numbers.copied().all(f64::is_finite) && is_symmetric(&matrix);
        if !sound || matrix.cholesky().is_none() {
            return None;
        }
        let filter = Self::ours(&State(Vector3::from(*began)), matrix, apart);
        let mut filter = Self { state: Vector3::from(*state), ..filter };
        filter.clamp();
        filter.coefficients().map(|_| filter)
    }

    /// Learns from one observation, unless it is too far from what is predicted.
    ///
    /// # Errors
    ///
    /// Refuses an observation at an arrival rate that the present coefficients do not allow.
    pub fn step(&mut self, point: &OperatingPoint) -> Result<Step, StepError> {
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
            Verdict::Accepted
        } else {
            (self.state, self.covariance) = before;
            self.doubt();
            Verdict::Rejected
        };
        Ok(Step { nis: distance, verdict })
    }

    /// Makes the filter less certain of itself.
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
        let of = |row: usize, column: usize| self.covariance[(row, column)];
        [0, 1, 2].map(|row| [0, 1, 2].map(|column| of(row, column)))
    }

    /// The present coefficients.
    #[must_use]
    pub fn coefficients(&self) -> Option<Coefficients> {
        self.apart.coefficients(self.state())
    }

    /// The standard deviations of the state.
    pub(super) fn deviations(&self) -> [f64; 3] {
        self.covariance.diagonal().map(|variance| variance.max(0.0).sqrt()).into()
    }

    /// The measurement that a state predicts; `None` where it predicts none.
    fn predict(&self, state: &Vector3<f64>, point: &OperatingPoint) -> Option<Vector2<f64>> {
        let coefficients = self.apart.coefficients(state.map(f64::exp).into())?;
        let Latencies { ttft, itl } = point.predict(coefficients)?;
        let predicted = Vector2::new(ttft.seconds(), itl.seconds()).map(f64::ln);
        predicted.iter().all(|value| value.is_finite()).then_some(predicted)
    }

    /// How the measurement moves with the state. A direction in which the model predicts nothing
    /// is one that nothing is learned of.
    fn jacobian(&self, point: &OperatingPoint) -> Matrix2x3<f64> {
        let mut jacobian = Matrix2x3::zeros();
        for column in 0..3 {
            let moved = |by: f64| {
                let mut state = self.state;
                state[column] += by;
                self.predict(&state, point)
            };
            if let Some((above, below)) = moved(JACOBIAN_STEP).zip(moved(-JACOBIAN_STEP)) {
                jacobian.set_column(column, &((above - below) / (2.0 * JACOBIAN_STEP)));
            }
        }
        jacobian
    }

    fn correct(&mut self, gain: &Matrix3x2<f64>, sensitivity: &Matrix2x3<f64>) {
        let left = Matrix3::identity() - gain * sensitivity;
        self.covariance =
            left * self.covariance * left.transpose() + gain * self.noise * gain.transpose();
    }

    fn clamp(&mut self) {
        self.state = self.state.zip_zip_map(&self.min, &self.max, f64::clamp);
    }

    /// Keeps a direction of which nothing is learned from becoming more uncertain than it was
    /// before anything was. Scaling rows and columns alike keeps the covariance positive.
    fn limit(&mut self) {
        let most = Vector3::from(DEVIATIONS_MAX);
        let shrink = self.covariance.diagonal().zip_map(&most, |variance, most| {
            if variance > 0.0 { (most / variance.sqrt()).min(1.0) } else { 1.0 }
        });
        let shrink = Matrix3::from_diagonal(&shrink);
        self.covariance = shrink * self.covariance * shrink;
    }
}

fn is_symmetric(covariance: &Matrix3<f64>) -> bool {
    let asymmetry = (covariance - covariance.transpose()).abs().max();
    asymmetry <= ASYMMETRY_MAX * covariance.abs().max()
}

/// How far a coefficient may move from where a filter starts, as a factor to either side.
pub(super) const BOUND: f64 = 100.0;

// === impl State ===

impl State {
    /// The logarithms of coefficients; what is zero is taken for the smallest that can be told.
    pub(super) fn of(coefficients: Coefficients) -> Self {
        let Coefficients { alpha, beta_prefill, beta_decode: _, gamma } = coefficients;
        let values = [alpha.seconds(), beta_prefill.seconds_per_token(), gamma.seconds_per_token()];
        Self(Vector3::from(values.map(|value| value.max(SMALLEST).ln())))
    }
}

/// A time below anything that an engine does: a hundredth of a picosecond.
const SMALLEST: f64 = 1e-14;
