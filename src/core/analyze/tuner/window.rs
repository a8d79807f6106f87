//! A window of observed operating points, and a fit of coefficients that explain them all.
//!
//! # Model
//!
//! Points whose arrival rates and shapes are within a fifth of each other are merged, with the
//! geometric mean of their latencies. So the window holds *different* points. Otherwise a replica
//! that runs at one rate all day would push out the points from the night.
//!
//! The fit minimizes, over the logarithms `t` of the coefficients,
//!
//! ```text
//! sum over points of  c / s^2 * |ln(observed) - ln(predicted(t))|^2  +  sum of (t - t0)^2 / w^2
//! ```
//!
//! with `c` the number of observations in a point and `s` the noise of one observation. `w` is the
//! deviation of a wide prior around the guess `t0`, which decides only if the data does not. The
//! result is the posterior mode under normal errors. Gauss-Newton with Levenberg's damping (D.
//! Marquardt, 1963) finds it, within bounds. The inverse of that system's matrix is the covariance
//! of the result.

use nalgebra::{Matrix3, Matrix4, Vector4};

use crate::analyze::queueing::{Coefficients, MeanLengths, MeanRequest};
use crate::analyze::tuner::estimate::{DecodeCostRatio, TokenSeparation};
use crate::analyze::tuner::filter::{BOUND, DEVIATIONS_MAX, FilterState};
use crate::analyze::tuner::guess::guess;
use crate::analyze::tuner::point::{Latencies, OperatingPoint};
use crate::analyze::tuner::saved::{FilterAgreement, SavedPoint};
use crate::units::{Fraction, RequestRate, Seconds, TimePerToken, Tokens};

/// The maximum number of points: eight arrival rates with two shapes each.
const POINTS_MAX: usize = 16;

/// Two rates or lengths are the same if their ratio is within this factor.
const SAME: f64 = 1.2;

/// The maximum weight of a point, in observations, so that later observations still change it.
const COUNT_MAX: f64 = 20.0;

/// The maximum number of steps of the fit; from the guess it takes four or five.
const STEPS_MAX: u32 = 25;

/// A step smaller than this in every logarithm ends the fit.
const STEP_MIN: f64 = 1e-9;

/// The standard deviation of the logarithm of the ratio of the two `beta`, before there is data.
const RATIO_DEVIATION: f64 = 1.0;

/// Relative noise of one observation, as in the filter.
const NOISE: f64 = 0.1;

/// The step of a central difference, in a logarithm.
const JACOBIAN_STEP: f64 = 1e-3;

/// The damping beyond which the fit stops without a further step.
const DAMPING_MAX: f64 = 1e9;

/// The minimum ratio between the longest and the shortest prompts, or answers, for an attempt to
/// separate the two.
const SPREAD_MIN: f64 = 1.5;

/// The largest standard deviation of the ratio's logarithm with which they count as separated.
const SPLIT_DEVIATION_MAX: f64 = 0.3;

/// The minimum distance of the ratio from one, in standard deviations, so that noise does not
/// separate them.
const SPLIT_SIGNIFICANT: f64 = 3.0;

/// Different operating points, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct PointWindow {
    points: Vec<WindowEntry>,
}

/// A point, the number of observations that it represents, and the filter's agreement with it.
#[derive(Clone, Copy, Debug)]
struct WindowEntry {
    point: OperatingPoint,
    count: f64,
    agreed: FilterAgreement,
}

/// Coefficients that explain the window.
pub(super) struct WindowFit {
    pub state: FilterState,
    pub covariance: Matrix3<f64>,
    pub apart: TokenSeparation,
}

/// The coefficients that a fit may change.
#[derive(Clone, Copy, PartialEq, Eq)]
enum FreeCoefficients {
    /// `alpha`, `beta`, `gamma`.
    Three,
    /// The three, and the ratio of the `beta` of answers to the `beta` of prompts.
    Four,
}

// === impl PointWindow ===

impl PointWindow {
    /// Adds an observation. If the window holds the same point, the two are merged.
    pub(super) fn add(&mut self, point: &OperatingPoint) {
        let mut entry = WindowEntry { point: *point, count: 1.0, agreed: FilterAgreement::NotYet };
        if let Some(found) = self.points.iter().position(|old| old.takes(point)) {
            let old = self.points.remove(found);
            let count = (old.count + 1.0).min(COUNT_MAX);
            entry.point = old.point.merged(point, Fraction::new(1.0 / count).unwrap_or_default());
            entry.count = count;
        }

        if self.points.len() == POINTS_MAX {
            self.points.remove(0);
        }

        self.points.push(entry);
    }

    /// The saved points of the window.
    pub(super) fn save(&self) -> Vec<SavedPoint> {
        self.points.iter().map(|it| SavedPoint::of(&it.point, it.count, it.agreed)).collect()
    }

    /// The window with these points; `None` if a point is not valid, or if there are too many.
    pub(super) fn restore(saved: &[SavedPoint]) -> Option<Self> {
        let points = saved.iter().map(WindowEntry::from_saved).collect::<Option<Vec<_>>>()?;
        (points.len() <= POINTS_MAX).then_some(Self { points })
    }

    /// Marks all points as agreed, after the filter has accepted the newest one.
    pub(super) fn confirm(&mut self) {
        for entry in &mut self.points {
            entry.agreed = FilterAgreement::Yes;
        }
    }

    /// Drops the points that the filter has agreed with.
    pub(super) fn forget_confirmed(&mut self) {
        self.points.retain(|entry| entry.agreed == FilterAgreement::NotYet);
    }

    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    /// The coefficients that explain all points, with one `beta`.
    pub(super) fn fit_together(&self) -> Option<WindowFit> {
        let start = guess(&self.points.last()?.point);
        let found = self.fit(FreeCoefficients::Three, start)?;
        let covariance = found.covariance.fixed_view::<3, 3>(0, 0).into_owned();
        let apart = TokenSeparation::Together;
        Some(WindowFit { state: FilterState(found.mode.xyz()), covariance, apart })
    }

    /// The coefficients that explain all points, with a `beta` for prompts and another for answers.
    /// `None` if the points don't separate the two.
    pub(super) fn fit_apart(&self, start: Coefficients) -> Option<WindowFit> {
        if self.spread(MeanRequest::input).max(self.spread(MeanRequest::output)) < SPREAD_MIN {
            return None;
        }

        let found = self.fit(FreeCoefficients::Four, start)?;
        let deviation = found.covariance[(3, 3)].sqrt();
        let ratio = found.mode[3];
        if deviation > SPLIT_DEVIATION_MAX || ratio.abs() < SPLIT_SIGNIFICANT * deviation {
            return None;
        }

        let covariance = found.covariance.fixed_view::<3, 3>(0, 0).into_owned();
        let apart = TokenSeparation::Separate(DecodeCostRatio { decode_over_prefill: ratio.exp() });
        Some(WindowFit { state: FilterState(found.mode.xyz()), covariance, apart })
    }

    /// The longest length of the points, as a multiple of the shortest.
    fn spread(&self, of: fn(MeanRequest) -> Tokens) -> f64 {
        let lengths = self.points.iter().map(|entry| of(entry.point.shape).tokens());
        let least = lengths.clone().fold(f64::INFINITY, f64::min);
        let most = lengths.fold(0.0, f64::max);
        most / least
    }

    /// Minimizes from a start, which is also the center of the prior.
    fn fit(&self, free: FreeCoefficients, start: Coefficients) -> Option<FitResult> {
        let FilterState(logarithms) = FilterState::of(start);
        let prior = logarithms.push(0.0);
        let mut at = self.normal(free, &prior, &prior)?;
        let mut mode = prior;
        let mut damping = 1e-3;

        for _ in 0..STEPS_MAX {
            let mut damped = at.matrix;
            for index in 0..4 {
                damped[(index, index)] *= 1.0 + damping;
            }

            let step = damped.cholesky()?.solve(&at.gradient);
            let bound = BOUND.ln();
            let next = (mode + step)
                .zip_map(&prior, |value, prior| value.clamp(prior - bound, prior + bound));
            match self.normal(free, &next, &prior) {
                Some(found) if found.cost <= at.cost => {
                    at = found;
                    mode = next;
                    damping = (damping * 0.1).max(1e-12);
                    if step.abs().max() < STEP_MIN {
                        break;
                    }
                }
                Some(_) | None if damping > DAMPING_MAX => break,
                Some(_) | None => damping *= 10.0,
            }
        }

        let covariance = at.matrix.try_inverse()?;
        Some(FitResult { mode, covariance })
    }

    /// The cost, the gradient and the matrix of the normal equations; `None` if a point has no
    /// prediction.
    fn normal(
        &self,
        free: FreeCoefficients,
        at: &Vector4<f64>,
        prior: &Vector4<f64>,
    ) -> Option<NormalEquations> {
        let [alpha, beta, gamma] = DEVIATIONS_MAX;
        let precision = Vector4::new(alpha, beta, gamma, RATIO_DEVIATION).map(|d| 1.0 / (d * d));
        let off = prior - at;
        let gradient = off.component_mul(&precision);
        let mut normal = NormalEquations {
            cost: off.dot(&gradient),
            gradient,
            matrix: Matrix4::from_diagonal(&precision),
        };
        let columns = match free {
            FreeCoefficients::Three => 3,
            FreeCoefficients::Four => 4,
        };

        for WindowEntry { point, count, .. } in &self.points {
            let weight = count / (NOISE * NOISE);
            let Latencies { ttft, itl } = point.latencies;
            let predicted = point.logarithms(at)?;
            let measured = [ttft, itl].map(|latency| latency.seconds().ln());
            let mut slopes = [Vector4::zeros(), Vector4::zeros()];

            for column in 0..columns {
                let mut moved = *at;
                moved[column] += JACOBIAN_STEP;
                let above = point.logarithms(&moved);
                moved[column] -= 2.0 * JACOBIAN_STEP;
                if let Some((above, below)) = above.zip(point.logarithms(&moved)) {
                    for row in 0..2 {
                        slopes[row][column] = (above[row] - below[row]) / (2.0 * JACOBIAN_STEP);
                    }
                }
            }

            for row in 0..2 {
                let residual = measured[row] - predicted[row];
                normal.cost += weight * residual * residual;
                normal.gradient += slopes[row] * (weight * residual);
                normal.matrix += slopes[row] * slopes[row].transpose() * weight;
            }
        }

        Some(normal)
    }
}

/// The result of a fit, with the logarithm of the ratio in the fourth place.
struct FitResult {
    mode: Vector4<f64>,
    covariance: Matrix4<f64>,
}

/// The normal equations at one place.
struct NormalEquations {
    cost: f64,
    gradient: Vector4<f64>,
    matrix: Matrix4<f64>,
}

// === impl WindowEntry ===

impl WindowEntry {
    /// The saved entry; `None` if its point or its count is not valid.
    fn from_saved(saved: &SavedPoint) -> Option<Self> {
        if !(1.0..=COUNT_MAX).contains(&saved.count) {
            return None;
        }
        Some(Self { point: saved.point()?, count: saved.count, agreed: saved.agreed })
    }

    /// Returns true if an observation can be merged with this entry.
    fn takes(&self, point: &OperatingPoint) -> bool {
        self.point.is_like(point)
            && match self.agreed {
                FilterAgreement::NotYet => true,
                FilterAgreement::Yes => self.point.agrees_with(point),
            }
    }
}

// === impl OperatingPoint ===

impl OperatingPoint {
    /// The logarithms of TTFT and ITL that logarithms of coefficients predict.
    fn logarithms(&self, at: &Vector4<f64>) -> Option<[f64; 2]> {
        let [alpha, beta, gamma, ratio] = at.map(f64::exp).into();
        let coefficients = Coefficients {
            alpha: Seconds::new(alpha)?,
            beta_prefill: TimePerToken::new(beta)?,
            beta_decode: TimePerToken::new(beta * ratio)?,
            gamma: TimePerToken::new(gamma)?,
        };

        let Latencies { ttft, itl } = self.predict(coefficients)?;
        let logarithms = [ttft, itl].map(|latency| latency.seconds().ln());
        logarithms.iter().all(|value| value.is_finite()).then_some(logarithms)
    }

    /// Returns true if another observation belongs to the same point.
    fn is_like(&self, other: &Self) -> bool {
        let pairs = [
            (self.arrival.requests_per_second(), other.arrival.requests_per_second()),
            (self.shape.input().tokens(), other.shape.input().tokens()),
            (self.shape.output().tokens(), other.shape.output().tokens()),
        ];
        self.batch == other.batch && pairs.iter().all(|(a, b)| a / b < SAME && b / a < SAME)
    }

    /// Returns true if noise explains the latencies of another observation of the same point.
    /// Otherwise the observation is a separate point until it is known which of the two applies.
    fn agrees_with(&self, other: &Self) -> bool {
        let a = self.latencies;
        let b = other.latencies;
        let far =
            [(a.ttft, b.ttft), (a.itl, b.itl)].map(|(a, b)| (a.seconds() / b.seconds()).ln().abs());
        far.iter().all(|far| *far < SPLIT_SIGNIFICANT * NOISE)
    }

    /// This point, moved toward another point by a share.
    fn merged(&self, other: &Self, share: Fraction) -> Self {
        let input = self.shape.input();
        let output = self.shape.output();
        let mixed_input = mixed(input.tokens(), other.shape.input().tokens(), share);
        let mixed_output = mixed(output.tokens(), other.shape.output().tokens(), share);
        let lengths = MeanLengths {
            input: Tokens::new(mixed_input).unwrap_or(input),
            output: Tokens::new(mixed_output).unwrap_or(output),
        };

        let arrivals = self.arrival.requests_per_second();
        let rate = mixed(arrivals, other.arrival.requests_per_second(), share);
        let Latencies { ttft, itl } = self.latencies;
        let mixed_ttft = mixed(ttft.seconds(), other.latencies.ttft.seconds(), share);
        let mixed_itl = mixed(itl.seconds(), other.latencies.itl.seconds(), share);
        Self {
            arrival: RequestRate::new(rate).unwrap_or(self.arrival),
            shape: MeanRequest::new(lengths).unwrap_or(self.shape),
            batch: self.batch,
            latencies: Latencies {
                ttft: Seconds::new(mixed_ttft).unwrap_or(ttft),
                itl: Seconds::new(mixed_itl).unwrap_or(itl),
            },
        }
    }
}

/// The geometric mean of two values; `share` is the weight of the second.
fn mixed(a: f64, b: f64, share: Fraction) -> f64 {
    let weight = share.fraction();
    (a.ln() * (1.0 - weight) + b.ln() * weight).exp()
}
