//! WVA's tuner: a guess from one observation, and an extended Kalman filter over `alpha`, `beta` and
//! `gamma` themselves.
//!
//! The covariance is corrected in the form that is cheapest to write, and a rejected observation
//! leaves state and covariance as they were. So a filter that rejects an observation once rejects it
//! for ever.

use nalgebra::{Matrix2, Matrix2x3, Matrix3, Vector2, Vector3};
use plimsoll::analyze::queueing::MeanRequest;

use super::queueing::{Coefficients, Model};

/// The gate: the 97.5th percentile of the chi-square distribution with two degrees of freedom.
const NIS_MAX: f64 = 7.378;

/// How far a coefficient is moved to see its effect, as a share.
const JACOBIAN_STEP: f64 = 0.01;

/// How much two entries of a covariance that should be the same may differ, as a share of the
/// largest.
const ASYMMETRY_MAX: f64 = 1e-9;

/// How far the coefficients drift between two observations, as a share.
const DRIFT: f64 = 0.05;

/// The share of ITL that is `alpha` in a guess.
const ALPHA_SHARE: f64 = 0.9;

/// Requests that may wait in the model of an observation, for each place in the batch.
const QUEUE_PER_PLACE: u32 = 10;

/// The measured behavior of one replica, in seconds and requests per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) arrival: f64,
    pub(crate) shape: MeanRequest,
    pub(crate) batch: u32,
    pub(crate) ttft: f64,
    pub(crate) itl: f64,
}

/// The start of a filter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// `alpha`, `beta` and `gamma`.
    pub(crate) state: [f64; 3],
    /// Their covariance; `None` for the drift of one step.
    pub(crate) covariance: Option<[[f64; 3]; 3]>,
    pub(crate) min: [f64; 3],
    pub(crate) max: [f64; 3],
    /// The standard deviation of a measurement, as a share of the first one.
    pub(crate) noise: f64,
}

/// A start that is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SetupError {
    /// The bounds are empty, the covariance is not symmetric, or there is no noise.
    Invalid,
    /// The model predicts nothing for the first observation.
    NoPrediction,
}

/// The effect of one observation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// Measured less predicted TTFT and ITL.
    pub(crate) innovation: [f64; 2],
    /// The same, squared and in units of the expected; `None` where a coefficient is not positive.
    pub(crate) nis: Option<f64>,
    pub(crate) accepted: bool,
}

/// An observation at a rate that the present coefficients do not allow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NoPrediction;

/// The filter.
#[derive(Clone, Debug)]
pub(crate) struct Filter {
    state: Vector3<f64>,
    covariance: Matrix3<f64>,
    drift: Matrix3<f64>,
    noise: Matrix2<f64>,
    min: Vector3<f64>,
    max: Vector3<f64>,
}

impl Filter {
    /// A filter that starts here; the first observation sets the noise.
    pub(crate) fn new(setup: &Setup, first: &Point) -> Result<Self, SetupError> {
        let Setup { state, covariance, min, max, noise } = *setup;
        if noise <= 0.0 || min.iter().zip(&max).any(|(min, max)| min >= max) {
            return Err(SetupError::Invalid);
        }

        let state = Vector3::from(state);
        let drift = Matrix3::from_diagonal(&state.map(|value| (DRIFT * value).powi(2)));
        let covariance =
            covariance.map_or(drift, |rows| Matrix3::from_fn(|row, column| rows[row][column]));
        let asymmetry = (covariance - covariance.transpose()).abs().max();
        if asymmetry > ASYMMETRY_MAX * covariance.abs().max() {
            return Err(SetupError::Invalid);
        }

        let measured = Vector2::new(first.ttft, first.itl);
        let noise = Matrix2::from_diagonal(&measured.map(|value| (noise * value).powi(2)));
        let min = Vector3::from(min);
        let max = Vector3::from(max);
        let mut filter = Self { state, covariance, drift, noise, min, max };
        filter.clamp();

        match predict(&filter.state, first) {
            Some(_) => Ok(filter),
            None => Err(SetupError::NoPrediction),
        }
    }

    /// Learns from one observation, unless it is too far from the prediction.
    pub(crate) fn step(&mut self, point: &Point) -> Result<Step, NoPrediction> {
        let state_before = self.state;
        let covariance_before = self.covariance;

        self.clamp();
        self.covariance += self.drift;
        let predicted = predict(&self.state, point).ok_or(NoPrediction)?;
        let innovation = Vector2::new(point.ttft, point.itl) - predicted;
        let sensitivity = self.jacobian(point);
        let expected = sensitivity * self.covariance * sensitivity.transpose() + self.noise;
        let inverse = expected.try_inverse().ok_or(NoPrediction)?;
        let gain = self.covariance * sensitivity.transpose() * inverse;
        let distance = (innovation.transpose() * inverse * innovation)[(0, 0)];

        self.state += gain * innovation;
        self.clamp();
        self.covariance = (Matrix3::identity() - gain * sensitivity) * self.covariance;

        let nis = (self.state.min() > 0.0).then_some(distance);
        let accepted = nis.is_some_and(|nis| nis < NIS_MAX);
        if !accepted {
            self.state = state_before;
            self.covariance = covariance_before;
        }
        Ok(Step { innovation: innovation.into(), nis, accepted })
    }

    /// `alpha`, `beta` and `gamma`.
    pub(crate) fn state(&self) -> [f64; 3] {
        self.state.into()
    }

    /// The covariance of the state, row by row.
    pub(crate) fn covariance(&self) -> [[f64; 3]; 3] {
        [0, 1, 2].map(|row| [0, 1, 2].map(|column| self.covariance[(row, column)]))
    }

    /// The derivatives of the measurement by central differences; zero where there is no
    /// prediction.
    fn jacobian(&self, point: &Point) -> Matrix2x3<f64> {
        let mut jacobian = Matrix2x3::zeros();
        for (column, value) in self.state.iter().enumerate() {
            let step = if value.abs() > 0.0 { JACOBIAN_STEP * value.abs() } else { JACOBIAN_STEP };
            let moved = |by: f64| {
                let mut state = self.state;
                state[column] += by;
                predict(&state, point)
            };
            if let Some((above, below)) = moved(step).zip(moved(-step)) {
                jacobian.set_column(column, &((above - below) / (2.0 * step)));
            }
        }
        jacobian
    }

    fn clamp(&mut self) {
        self.state = self.state.zip_zip_map(&self.min, &self.max, f64::clamp);
    }
}

/// TTFT and ITL by these coefficients; `None` where one is negative, or the rate too large for them.
fn predict(state: &Vector3<f64>, point: &Point) -> Option<Vector2<f64>> {
    let [alpha, beta, gamma] = (*state).into();
    if state.iter().any(|value| !value.is_finite() || *value < 0.0) {
        return None;
    }
    let queue = point.batch.saturating_mul(QUEUE_PER_PLACE);
    let model = Model::new(Coefficients { alpha, beta, gamma }, point.shape, point.batch, queue);
    let at = model.at(point.arrival).ok()?;
    let predicted = Vector2::new(at.learned_ttft(), at.itl);
    predicted.iter().all(|value| value.is_finite()).then_some(predicted)
}

/// Why there is no guess.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GuessError {
    /// TTFT is below `alpha`.
    TtftBelowAlpha,
    /// There are too few tokens to divide by.
    TooFewTokens,
    /// `gamma` is not positive.
    GammaNotPositive,
    /// `beta` is not positive.
    BetaNotPositive,
}

/// Coefficients from the lengths and latencies of one observation, as if one request alone shared an
/// iteration.
pub(crate) fn guess(
    input: f64,
    output: f64,
    ttft: f64,
    itl: f64,
) -> Result<Coefficients, GuessError> {
    let alpha = ALPHA_SHARE * itl;
    let sum = (ttft - alpha) / input;
    if sum < 0.0 {
        return Err(GuessError::TtftBelowAlpha);
    }
    let tokens = input + f64::midpoint(output, 1.0) - 1.0;
    if tokens <= 0.0 {
        return Err(GuessError::TooFewTokens);
    }

    let gamma = ((itl - alpha) - sum) / tokens;
    let beta = sum - gamma;
    if beta <= 0.0 {
        Err(GuessError::BetaNotPositive)
    } else if gamma <= 0.0 {
        Err(GuessError::GammaNotPositive)
    } else {
        Ok(Coefficients { alpha, beta, gamma })
    }
}
