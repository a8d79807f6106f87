//! Operating points that were seen, and the coefficients that explain them all.
//!
//! # Model
//!
//! Points whose arrival rates and shapes are within a fifth of each other are one, with the
//! geometric mean of their latencies, so that the window holds *different* points: a replica that
//! runs at one rate all day would otherwise push out what was learned at night.
//!
//! The fit minimises, over the logarithms `t` of the coefficients,
//!
//! ```text
//! sum over points of  c / s^2 * |ln(observed) - ln(predicted(t))|^2  +  sum of (t - t0)^2 / w^2
//! ```
//!
//! with `c` the number of observations in a point, `s` the noise of one, and a wide prior of
//! deviation `w` around the guess `t0` that decides only what the data does not: the posterior mode
//! under normal errors, found by Gauss-Newton with Levenberg's damping (D. Marquardt, 1963), within
//! bounds. The inverse of the matrix of that system is the covariance of the answer.

use nalgebra::{Matrix3, Matrix4, Vector4};

use crate::analyze::queueing::{Coefficients, Lengths, Shape};
use crate::analyze::tuner::filter::{BOUND, DEVIATIONS_MAX, State};
use crate::analyze::tuner::{Agreed, Apart, Latencies, OperatingPoint, SavedPoint, Split, guess};
use crate::units::{Fraction, RequestRate, Seconds, TimePerToken, Tokens};

/// Points that the window keeps: eight arrival rates with two shapes each.
const POINTS_MAX: usize = 16;

/// Within this ratio two rates, or two lengths, are the same.
const SAME: f64 = 1.2;

/// Observations after which a point forgets its oldest: later ones still move it.
const COUNT_MAX: f64 = 20.0;

/// Steps of the fit at most; from the guess it takes four or five.
const STEPS_MAX: u32 = 25;

/// A step smaller than this in every logarithm ends the fit.
const STEP_MIN: f64 = 1e-9;

/// The standard deviation of the logarithm of the ratio of the two `beta`, before anything tells.
const RATIO_DEVIATION: f64 = 1.0;

/// Relative noise of one observation, as in the filter.
const NOISE: f64 = 0.1;

/// How far a logarithm is moved to see what it does.
const JACOBIAN_STEP: f64 = 1e-3;

/// The damping beyond which no step is found.
const DAMPING_MAX: f64 = 1e9;

/// The ratio between the longest and the shortest prompts, or answers, from which it is worth
/// trying to tell the two apart.
const SPREAD_MIN: f64 = 1.5;

/// The largest standard deviation, as a logarithm, with which they count as told apart.
const SPLIT_DEVIATION_MAX: f64 = 0.3;

/// Deviations from one that the ratio of the two must be away, so that noise does not make it.
const SPLIT_SIGNIFICANT: f64 = 3.0;

/// Different operating points, the oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Window {
    points: Vec<Entry>,
}

/// A point, how many observations it stands for, and whether the filter has agreed with one.
#[derive(Clone, Copy, Debug)]
struct Entry {
    point: OperatingPoint,
    count: f64,
    agreed: Agreed,
}

/// Coefficients that explain the window.
pub(super) struct Fit {
    pub state: State,
    pub covariance: Matrix3<f64>,
    pub apart: Apart,
}

/// Which coefficients are free.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Free {
    /// `alpha`, `beta`, `gamma`.
    Three,
    /// The ratio of the `beta` of answers to that of prompts too.
    Four,
}

// === impl Window ===

impl Window {
    /// Adds an observation, to the point that it is another one of, if there is one.
    pub(super) fn add(&mut self, point: &OperatingPoint) {
        let same = |entry: &Entry| {
            entry.agreed == Agreed::NotYet && entry.point.is_like(point)
                || entry.agreed == Agreed::Yes
                    && entry.point.is_like(point)
                    && entry.point.agrees_with(point)
        };
        let mut entry = Entry { point: *point, count: 1.0, agreed: Agreed::NotYet };
        if let Some(found) = self.points.iter().position(same) {
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

    /// What it holds.
    pub(super) fn save(&self) -> Vec<SavedPoint> {
        self.points.iter().map(|it| SavedPoint::of(&it.point, it.count, it.agreed)).collect()
    }

    /// The window that holds these; `None` where one cannot be, or there are too many.
    pub(super) fn restore(saved: &[SavedPoint]) -> Option<Self> {
        let entry = |saved: &SavedPoint| {
            let count = Some(saved.count).filter(|count| (1.0..=COUNT_MAX).contains(count))?;
            Some(Entry { point: saved.point()?, count, agreed: saved.agreed })
        };
        let points = saved.iter().map(entry).collect::<Option<Vec<_>>>()?;
        (points.len() <= POINTS_MAX).then_some(Self { points })
    }

    /// The filter agrees with the newest point.
    pub(super) fn confirm(&mut self) {
        for entry in &mut self.points {
            entry.agreed = Agreed::Yes;
        }
    }

    /// Forgets all points but those that the filter has not agreed with.
    pub(super) fn forget_confirmed(&mut self) {
        self.points.retain(|entry| entry.agreed == Agreed::NotYet);
    }

    pub(super) fn len(&self) -> usize {
        self.points.len()
    }

    /// The coefficients that explain all points, with one `beta`.
    pub(super) fn fit_together(&self) -> Option<Fit> {
        let start = guess(&self.points.last()?.point);
        let found = self.fit(Free::Three, start)?;
        let covariance = found.covariance.fixed_view::<3, 3>(0, 0).into_owned();
        let apart = Apart::Together;
        Some(Fit { state: State(found.mode.xyz()), covariance, apart })
    }

    /// The coefficients that explain all points, with a `beta` for prompts and one for answers;
    /// `None` where the points do not tell the two apart.
    pub(super) fn fit_apart(&self, start: Coefficients) -> Option<Fit> {
        let lengths = |of: fn(Shape) -> Tokens| {
            let of = |entry: &Entry| of(entry.point.shape).tokens();
            let least = self.points.iter().map(of).fold(f64::INFINITY, f64::min);
            let most = self.points.iter().map(of).fold(0.0, f64::max);
            most / least
        };
        if lengths(Shape::input).max(lengths(Shape::output)) < SPREAD_MIN {
            return None;
        }
        let found = self.fit(Free::Four, start)?;
        let deviation = found.covariance[(3, 3)].sqrt();
        let ratio = found.mode[3];
        if deviation > SPLIT_DEVIATION_MAX || ratio.abs() < SPLIT_SIGNIFICANT * deviation {
            return None;
        }
        let covariance = found.covariance.fixed_view::<3, 3>(0, 0).into_owned();
        let apart = Apart::Separate(Split { decode_over_prefill: ratio.exp() });
        Some(Fit { state: State(found.mode.xyz()), covariance, apart })
    }

    /// Minimises from a start, which is the middle of the prior too.
    fn fit(&self, free: Free, start: Coefficients) -> Option<Mode> {
        let State(start) = State::of(start);
        let start = start.push(0.0);
        let mut at = self.normal(free, &start, &start)?;
        let mut mode = start;
        let mut damping = 1e-3;
        for _ in 0..STEPS_MAX {
            let mut damped = at.matrix;
            for index in 0..4 {
                damped[(index, index)] *= 1.0 + damping;
            }
            let step = damped.cholesky()?.solve(&at.gradient);
            let bound = BOUND.ln();
            let next = (mode + step)
                .zip_map(&start, |next, start| next.clamp(start - bound, start + bound));
            match self.normal(free, &next, &start) {
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
        Some(Mode { mode, covariance })
    }

    /// Cost, gradient and matrix of the normal equations; `None` where a point has no prediction.
    fn normal(&self, free: Free, at: &Vector4<f64>, prior: &Vector4<f64>) -> Option<Normal> {
        let [alpha, beta, gamma] = DEVIATIONS_MAX;
        let precision = Vector4::new(alpha, beta, gamma, RATIO_DEVIATION).map(|d| 1.0 / (d * d));
        let off = prior - at;
        let gradient = off.component_mul(&precision);
        let mut normal = Normal {
            cost: off.dot(&gradient),
            gradient,
            matrix: Matrix4::from_diagonal(&precision),
        };
        let columns = match free {
            Free::Three => 3,
            Free::Four => 4,
        };
        for Entry { point, count, .. } in &self.points {
            let weight = count / (NOISE * NOISE);
            let Latencies { ttft, itl } = point.latencies;
            let predicted = point.logarithms(at)?;
            let residual = [ttft, itl].map(|latency| latency.seconds().ln());
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
                let residual = residual[row] - predicted[row];
                normal.cost += weight * residual * residual;
                normal.gradient += slopes[row] * (weight * residual);
                normal.matrix += slopes[row] * slopes[row].transpose() * weight;
            }
        }
        Some(normal)
    }
}

/// What a fit found, with the logarithm of the ratio in the fourth place.
struct Mode {
    mode: Vector4<f64>,
    covariance: Matrix4<f64>,
}

/// The normal equations at one place.
struct Normal {
    cost: f64,
    gradient: Vector4<f64>,
    matrix: Matrix4<f64>,
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

    /// Whether another observation is of the same point.
    fn is_like(&self, other: &Self) -> bool {
        let pairs = [
            (self.arrival.requests_per_second(), other.arrival.requests_per_second()),
            (self.shape.input().tokens(), other.shape.input().tokens()),
            (self.shape.output().tokens(), other.shape.output().tokens()),
        ];
        self.batch == other.batch && pairs.iter().all(|(a, b)| a / b < SAME && b / a < SAME)
    }

    /// Whether another observation of the same point has latencies that noise explains. One that
    /// has not is a point of its own, until it is known which of the two holds.
    fn agrees_with(&self, other: &Self) -> bool {
        let (a, b) = (self.latencies, other.latencies);
        let far =
            [(a.ttft, b.ttft), (a.itl, b.itl)].map(|(a, b)| (a.seconds() / b.seconds()).ln().abs());
        far.iter().all(|far| *far < SPLIT_SIGNIFICANT * NOISE)
    }

    /// This point, moved towards another by a share.
    fn merged(&self, other: &Self, share: Fraction) -> Self {
        let share = share.fraction();
        let mix = |a: f64, b: f64| (a.ln() * (1.0 - share) + b.ln() * share).exp();
        let lengths = Lengths {
            input: Tokens::new(mix(self.shape.input().tokens(), other.shape.input().tokens()))
                .unwrap_or(self.shape.input()),
            output: Tokens::new(mix(self.shape.output().tokens(), other.shape.output().tokens()))
                .unwrap_or(self.shape.output()),
        };
        let rate = mix(self.arrival.requests_per_second(), other.arrival.requests_per_second());
        let time = |a: Seconds, b: Seconds| Seconds::new(mix(a.seconds(), b.seconds()));
        let (a, b) = (self.latencies, other.latencies);
        Self {
            arrival: RequestRate::new(rate).unwrap_or(self.arrival),
            shape: Shape::new(lengths).unwrap_or(self.shape),
            batch: self.batch,
            latencies: Latencies {
                ttft: time(a.ttft, b.ttft).unwrap_or(a.ttft),
                itl: time(a.itl, b.itl).unwrap_or(a.itl),
            },
        }
    }
}
