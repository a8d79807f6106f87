//! An extended Kalman filter over the three coefficients.
//!
//! # Model
//!
//! The state `x` is `(alpha, beta, gamma)` or its logarithm, which stays as it is but for a drift
//! `Q`; the measurement `h(x)` is `(TTFT, ITL)` of the queueing model, or its logarithm, with noise
//! `R`; `H` is the Jacobian of `h` by central differences.
//!
//! ```text
//! predict   P <- P + Q
//! update    y = z - h(x);  S = H P H' + R;  K = P H' / S
//!           x <- x + K y
//!           P <- (I - K H) P                        simple
//!           P <- (I - K H) P (I - K H)' + K R K'    Joseph
//! NIS       y' / S y, chi-square distributed with two degrees of freedom
//! ```
//!
//! Joseph's form stays symmetric and positive whatever the rounding of `K`.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, Matrix3x2, Vector2, Vector3};

use crate::analyze::queueing::{Coefficients, Convention};
use crate::analyze::tuner::{Apart, Latencies, OperatingPoint, SavedFilter};
use crate::units::Fraction;

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

/// How the filter works.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FilterPolicy {
    /// What state and measurement are in.
    pub scale: Scale,
    /// Whose queueing model predicts.
    pub convention: Convention,
    /// How much the state drifts between two observations, as a share of it.
    pub drift: Fraction,
    /// The standard deviation of a measurement, as a share of it.
    pub noise: Fraction,
    /// How the covariance is corrected.
    pub correction: Correction,
    /// What a rejected observation leaves behind.
    pub on_rejection: OnRejection,
}

/// What state and measurement are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// The quantities themselves.
    Linear,
    /// Their logarithms.
    Logarithmic,
}

/// How the covariance is corrected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Correction {
    /// In the form that is cheapest to write.
    Simple,
    /// In Joseph's form.
    Joseph,
}

/// What a rejected observation leaves behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnRejection {
    /// Nothing: state and covariance are as before it.
    Restore,
    /// The state as before it, and a larger covariance.
    Doubt,
}

/// Where a filter starts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup {
    /// `alpha`, `beta` and `gamma`, in seconds and seconds per token.
    pub state: [f64; 3],
    /// Their covariance.
    pub prior: Prior,
    /// The smallest coefficients.
    pub min: [f64; 3],
    /// The largest coefficients.
    pub max: [f64; 3],
}

/// How uncertain a start is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prior {
    /// As much as the state drifts in one step.
    Drift,
    /// So much.
    Covariance([[f64; 3]; 3]),
}

/// Why there is no filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetupError {
    /// The bounds are empty, the covariance is not symmetric, or there is no noise.
    Invalid,
    /// The model predicts nothing for the first observation.
    NoPrediction,
}

/// What one observation did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Step {
    /// How far the measurement is from the prediction, TTFT and ITL; in seconds, or as logarithms.
    pub innovation: [f64; 2],
    /// The same, squared and in units of what was expected; `None` where it has none.
    pub nis: Option<f64>,
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
    policy: FilterPolicy,
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
    /// A filter that starts here; the first observation says how large the noise is.
    ///
    /// # Errors
    ///
    /// Refuses a start that makes no sense, or at which the first observation cannot be predicted.
    pub fn new(
        policy: FilterPolicy,
        setup: &Setup,
        first: &OperatingPoint,
    ) -> Result<Self, SetupError> {
        let Setup { state, prior, min, max } = setup;
        let noiseless = policy.noise <= Fraction::ZERO;
        if noiseless || min.iter().zip(max).any(|(min, max)| min >= max) {
            return Err(SetupError::Invalid);
        }
        let put = |values: &[f64; 3]| Vector3::from(*values).map(|value| policy.scale.put(value));
        let (state, min, max) = (put(state), put(min), put(max));
        let share = policy.drift.fraction();
        let drift = Matrix3::from_diagonal(&state.map(|value| match policy.scale {
            Scale::Linear => (share * value).powi(2),
            Scale::Logarithmic => share * share,
        }));
        let covariance = match prior {
            Prior::Drift => drift,
            Prior::Covariance(rows) => Matrix3::from_fn(|row, column| rows[row][column]),
        };
        if !is_symmetric(&covariance) {
            return Err(SetupError::Invalid);
        }
        let share = policy.noise.fraction();
        let Latencies { ttft, itl } = first.latencies;
        let noise = Vector2::new(ttft.seconds(), itl.seconds()).map(|value| match policy.scale {
            Scale::Linear => (share * value).powi(2),
            Scale::Logarithmic => share * share,
        });
        let noise = Matrix2::from_diagonal(&noise);
        let apart = Apart::Together;
        let mut filter = Self { policy, apart, state, covariance, drift, noise, min, max };
        filter.clamp();
        match filter.predict(&filter.state, first) {
            Some(_) => Ok(filter),
            None => Err(SetupError::NoPrediction),
        }
    }

    /// Our filter, from a fit.
    pub(super) fn ours(state: &State, covariance: Matrix3<f64>, apart: Apart) -> Self {
        let policy = FilterPolicy::default();
        let share = policy.drift.fraction();
        let noise = policy.noise.fraction();
        let room = Vector3::repeat(BOUND.ln());
        let mut filter = Self {
            policy,
            apart,
            state: state.0,
            covariance,
            drift: Matrix3::identity() * (share * share),
            noise: Matrix2::identity() * (noise * noise),
            min: state.0 - room,
            max: state.0 + room,
        };
        filter.limit();
        filter
    }

    /// What it says, if it is ours.
    pub(super) fn save(&self, split: Option<f64>) -> SavedFilter {
        SavedFilter {
            state: self.state.into(),
            began: ((self.min + self.max) / 2.0).into(),
            covariance: self.covariance(),
            split,
        }
    }

    /// Our filter that says this; `None` where it cannot be one.
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
        let innovation = measured.map(|value| self.policy.scale.put(value)) - predicted;
        let sensitivity = self.jacobian(point);
        let expected = sensitivity * self.covariance * sensitivity.transpose() + self.noise;
        let inverse = expected.try_inverse().ok_or(StepError::NoPrediction)?;
        let gain = self.covariance * sensitivity.transpose() * inverse;
        let distance = (innovation.transpose() * inverse * innovation)[(0, 0)];

        self.state += gain * innovation;
        self.clamp();
        self.correct(&gain, &sensitivity);
        let positive = self.policy.scale == Scale::Logarithmic || self.state.min() > 0.0;
        let nis = positive.then_some(distance);
        let verdict = match nis {
            Some(nis) if nis < NIS_MAX => Verdict::Accepted,
            Some(_) | None => {
                (self.state, self.covariance) = before;
                if self.policy.on_rejection == OnRejection::Doubt {
                    self.doubt();
                }
                Verdict::Rejected
            }
        };
        Ok(Step { innovation: innovation.into(), nis, verdict })
    }

    /// Makes the filter less certain of itself.
    pub(super) fn doubt(&mut self) {
        self.covariance *= DOUBT;
        self.limit();
    }

    /// `alpha`, `beta` and `gamma`, in seconds and seconds per token.
    #[must_use]
    pub fn state(&self) -> [f64; 3] {
        self.state.map(|value| self.policy.scale.take(value)).into()
    }

    /// The covariance of the state, row by row, in the units of the scale.
    #[must_use]
    pub fn covariance(&self) -> [[f64; 3]; 3] {
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
        let scale = self.policy.scale;
        let state = state.map(|value| scale.take(value));
        let coefficients = self.apart.coefficients(state.into())?;
        let Latencies { ttft, itl } = point.predict(self.policy.convention, coefficients)?;
        let predicted = Vector2::new(ttft.seconds(), itl.seconds()).map(|value| scale.put(value));
        predicted.iter().all(|value| value.is_finite()).then_some(predicted)
    }

    /// How the measurement moves with the state. A direction in which the model predicts nothing
    /// is one that nothing is learned of.
    fn jacobian(&self, point: &OperatingPoint) -> Matrix2x3<f64> {
        let mut jacobian = Matrix2x3::zeros();
        for (column, value) in self.state.iter().enumerate() {
            let step = match self.policy.scale {
                Scale::Linear if *value != 0.0 => JACOBIAN_STEP * value.abs(),
                Scale::Linear | Scale::Logarithmic => JACOBIAN_STEP,
            };
            let moved = |by: f64| {
                let mut state = self.state;
                state[column] += by;
                self.predict(&state, point)
            };
            if let Some((above, below)) = moved(step).zip(moved(-step)) {
                jacobian.set_column(column, &((above - below) / (2.0 * step)));
            }
        }
        jacobian
    }

    fn correct(&mut self, gain: &Matrix3x2<f64>, sensitivity: &Matrix2x3<f64>) {
        let left = Matrix3::identity() - gain * sensitivity;
        self.covariance = match self.policy.correction {
            Correction::Simple => left * self.covariance,
            Correction::Joseph => {
                left * self.covariance * left.transpose() + gain * self.noise * gain.transpose()
            }
        };
    }

    fn clamp(&mut self) {
        self.state = self.state.zip_zip_map(&self.min, &self.max, f64::clamp);
    }

    /// Keeps a direction of which nothing is learned from becoming more uncertain than it was
    /// before anything was. Scaling rows and columns alike keeps the covariance positive.
    fn limit(&mut self) {
        if self.policy.scale == Scale::Linear {
            return;
        }
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

// === impl Scale ===

impl Scale {
    fn put(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Logarithmic => value.ln(),
        }
    }

    fn take(self, value: f64) -> f64 {
        match self {
            Self::Linear => value,
            Self::Logarithmic => value.exp(),
        }
    }
}

// === impl FilterPolicy ===

impl FilterPolicy {
    /// WVA's filter, with its quantile of the noise and its relative error.
    #[must_use]
    pub fn wva(noise: Fraction) -> Self {
        Self {
            scale: Scale::Linear,
            convention: Convention::Wva,
            drift: Fraction::new(0.05).unwrap_or_default(),
            noise,
            correction: Correction::Simple,
            on_rejection: OnRejection::Restore,
        }
    }
}

impl Default for FilterPolicy {
    fn default() -> Self {
        Self {
            scale: Scale::Logarithmic,
            convention: Convention::Plimsoll,
            drift: Fraction::new(DRIFT).unwrap_or_default(),
            noise: Fraction::new(NOISE).unwrap_or_default(),
            correction: Correction::Joseph,
            on_rejection: OnRejection::Doubt,
        }
    }
}
