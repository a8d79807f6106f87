//! What an iteration costs, learned from the counters of an engine.
//!
//! # Model
//!
//! An iteration that computes `p` prompt tokens and generates for `n` requests takes
//!
//! ```text
//! T = alpha + beta * p + delta * n            seconds
//! ```
//!
//! Iterations, prompt tokens and generated tokens are counted by the engine, so over any stretch of
//! time the means of `p` and `n` are known. The mean of `T` is the time over the iterations, where
//! the engine was busy throughout, and the mean time between two tokens, where it was not: the
//! smaller of the two. Three unknowns are fitted to that by recursive least squares.
//!
//! An idle engine teaches nothing, and teaches it wrongly: the time between tokens is weighted by
//! tokens, and a small batch says `delta` is large, which asks for more replicas, which makes the
//! batches smaller. Hence [`Learning::batch_min`].
//!
//! In steady state `p` and `n` keep one proportion, and then only their sum can be told: single
//! coefficients may be wrong where what a replica carries is right. So coefficients are never
//! carried over to requests of another shape.
//!
//! # Source
//!
//! Recursive least squares with a drifting state is a Kalman filter whose state is a random walk:
//! Young, *Recursive Estimation and Time-Series Analysis* (2011), chapter 3. That regression on
//! iterations stays right under saturation, where latencies against arrival rates do not, was found
//! by simulation.

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::policy::Learning;
use crate::observe::stride::Stride;

/// Prompt tokens an iteration that make up for the batch, where prompts alone are computed.
const PROMPT_MIN: f64 = 256.0;

/// Iterations below which a mean says little.
pub const STEPS_MIN: f64 = 30.0;

/// Times between tokens below which their mean says little.
const INTERVALS_MIN: f64 = 100.0;

/// Where learning starts: a model of 8 to 70 billion parameters on a current accelerator lies
/// within a factor of three of it. Seconds; seconds a prompt token; seconds a request in the batch.
const PRIOR: [f64; 3] = [0.012, 0.000_04, 0.000_06];

/// How far off the start may be, as a share.
const PRIOR_DOUBT: f64 = 1.0;

/// The share of its start below which no coefficient falls.
const FLOOR: f64 = 1e-3;

/// Lessons after which the coefficients are more than their start.
pub const SETTLED: u32 = 4;

/// The share that a lesson has in what iterations are said to have had in them: that of about the
/// last ten.
const CONTENT_SHARE: f64 = 0.1;

/// What an iteration takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Iteration {
    /// Seconds that each takes, whatever is in it.
    pub alpha: f64,
    /// Seconds for each prompt token that is computed.
    pub beta: f64,
    /// Seconds for each request that generates.
    pub delta: f64,
}

/// Seconds that are one lesson: shorter means are too noisy.
const LESSON: f64 = 15.0;

/// The strides of one replica since it was last learned from.
#[derive(Clone, Debug, Default)]
pub struct Lesson {
    stride: Option<Stride>,
}

impl Lesson {
    /// Adds a stride, and gives the sum when it is long enough to learn from.
    pub fn take(&mut self, stride: &Stride) -> Option<Stride> {
        let sum = match self.stride.take() {
            Some(sum) => sum.followed_by(stride),
            None => *stride,
        };
        if sum.elapsed.seconds() >= LESSON {
            return Some(sum);
        }
        self.stride = Some(sum);
        None
    }
}

/// Learns what an iteration takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    theta: [f64; 3],
    covariance: [[f64; 3]; 3],
    lessons: u32,
    content: Option<[f64; 2]>,
}

/// What was learned of iterations, in plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPace {
    /// Seconds of an iteration, of a prompt token and of a request in the batch.
    pub theta: [f64; 3],
    /// How sure that is.
    pub covariance: [[f64; 3]; 3],
    /// From how many lessons.
    pub lessons: u32,
}

impl SavedPace {
    /// Whether it can be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { theta, covariance, lessons: _ } = self;
        let known =
            theta.iter().zip(PRIOR).all(|(it, prior)| it.is_finite() && *it >= prior * FLOOR);
        let finite = covariance.iter().flatten().all(|it| it.is_finite());
        known && finite && (0..3).all(|at| covariance[at][at] >= 0.0)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::starting(PRIOR, PRIOR_DOUBT)
    }
}

impl Pace {
    /// Where learning starts, and how far off that may be, as a share of each coefficient.
    fn starting(theta: [f64; 3], doubt: f64) -> Self {
        let mut covariance = [[0.0; 3]; 3];
        for (at, start) in theta.iter().enumerate() {
            covariance[at][at] = (start * doubt).powi(2);
        }
        Self { theta, covariance, lessons: 0, content: None }
    }

    /// Starts from what was learned elsewhere, with this doubt.
    pub(crate) fn starting_from(iteration: Iteration, doubt: f64) -> Self {
        let Iteration { alpha, beta, delta } = iteration;
        let mut theta = [alpha, beta, delta];
        for (start, prior) in theta.iter_mut().zip(PRIOR) {
            *start = start.max(prior * FLOOR);
        }
        Self::starting(theta, doubt)
    }

    /// Learns from what one replica did; nothing from one that had too little to do.
    pub fn learn(&mut self, stride: &Stride, policy: &Learning) {
        if let Some((features, seconds)) = lesson(stride, policy.batch_min.fraction()) {
            self.update(features, seconds, policy);
            let [_, prompt, batch] = features;
            let [prompts, batches] = self.content.unwrap_or([prompt, batch]);
            let towards = |mean: f64, now: f64| mean + CONTENT_SHARE * (now - mean);
            self.content = Some([towards(prompts, prompt), towards(batches, batch)]);
        }
    }

    /// Whether what a replica did took longer or shorter by this factor than it should have; never by
    /// one that had too little to do.
    pub(crate) fn is_contradicted(&self, stride: &Stride, policy: &Learning, factor: f64) -> bool {
        lesson(stride, policy.batch_min.fraction()).is_some_and(|(features, seconds)| {
            let expected = dot(features, self.theta);
            expected > factor * seconds || seconds > factor * expected
        })
    }

    /// How many lessons it has had.
    pub(crate) const fn lessons(&self) -> u32 {
        self.lessons
    }

    /// What iterations have had in them: mean prompt tokens, and requests that generated.
    pub(crate) const fn content(&self) -> Option<[f64; 2]> {
        self.content
    }

    /// What was learned; `None` while nothing was.
    pub(crate) fn save(&self) -> Option<SavedPace> {
        let Self { theta, covariance, lessons, content: _ } = *self;
        (lessons > 0).then_some(SavedPace { theta, covariance, lessons })
    }

    /// Goes on from what was learned.
    pub(crate) fn of(saved: SavedPace) -> Self {
        let SavedPace { theta, covariance, lessons } = saved;
        Self { theta, covariance, lessons, content: None }
    }

    /// What an iteration takes; `None` while too little was seen.
    #[must_use]
    pub fn iteration(&self) -> Option<Iteration> {
        (self.lessons >= SETTLED).then(|| self.assumed())
    }

    /// What an iteration takes by what was seen, or else by the start.
    #[must_use]
    pub const fn assumed(&self) -> Iteration {
        let [alpha, beta, delta] = self.theta;
        Iteration { alpha, beta, delta }
    }

    /// How far off the time of an iteration with this content may be: one standard deviation, in
    /// seconds.
    pub(crate) fn deviation(&self, content: [f64; 3]) -> f64 {
        dot(content, times(&self.covariance, content)).max(0.0).sqrt()
    }

    fn update(&mut self, features: [f64; 3], seconds: f64, policy: &Learning) {
        let Learning { batch_min: _, noise, drift, clip } = *policy;
        for at in 0..3 {
            self.covariance[at][at] += (self.theta[at] * drift.fraction()).powi(2);
        }
        let gain = times(&self.covariance, features);
        let variance = dot(features, gain) + (noise.fraction() * seconds).powi(2);
        if !variance.is_finite() || variance <= 0.0 {
            return;
        }
        let far = clip.fraction() * variance.sqrt();
        let surprise = (seconds - dot(features, self.theta)).clamp(-far, far);
        for (coefficient, gain) in self.theta.iter_mut().zip(gain) {
            *coefficient += gain / variance * surprise;
        }
        for (row, left) in gain.iter().enumerate() {
            for (column, right) in gain.iter().enumerate() {
                self.covariance[row][column] -= left * right / variance;
            }
        }
        self.keep_above_floor();
        self.lessons = self.lessons.saturating_add(1);
    }

    /// Brings coefficients that fell below their floors back to them, and the others along as far as
    /// they are correlated: where content keeps one proportion only a sum was learned, which one
    /// coefficient that is raised by itself would break.
    fn keep_above_floor(&mut self) {
        for _ in 0..self.theta.len() {
            let low = (0..self.theta.len()).find(|&at| self.theta[at] < PRIOR[at] * FLOOR);
            let Some(low) = low else { return };
            let lift = PRIOR[low] * FLOOR - self.theta[low];
            let own = self.covariance[low][low];
            if own > 0.0 {
                for (coefficient, shared) in self.theta.iter_mut().zip(self.covariance) {
                    *coefficient += shared[low] / own * lift;
                }
            }
            self.theta[low] = PRIOR[low] * FLOOR;
        }
        // Raising one may have lowered another; what is left of that is small.
        for (coefficient, prior) in self.theta.iter_mut().zip(PRIOR) {
            *coefficient = coefficient.max(prior * FLOOR);
        }
    }
}

/// What a stride says of an iteration: its mean content, and the seconds that it took.
fn lesson(stride: &Stride, batch_min: f64) -> Option<([f64; 3], f64)> {
    let steps = stride.steps?.requests();
    let generated = stride.generated?.tokens();
    let prompt = stride.prompt?.tokens();
    if steps < STEPS_MIN {
        return None;
    }
    let (batch, prompt) = (generated / steps, prompt / steps);
    if batch < batch_min && prompt < PROMPT_MIN {
        return None;
    }
    let between = stride.elapsed.seconds() * f64::from(stride.ranks) / steps;
    let itl = stride.intervals.filter(|(_, count)| count.requests() >= INTERVALS_MIN);
    let itl = itl.map(|(sum, count)| sum.seconds() / count.requests());
    if batch >= batch_min && itl.is_none() {
        return None;
    }
    let seconds = itl.map_or(between, |itl| itl.min(between));
    (seconds > 0.0).then_some(([1.0, prompt, batch], seconds))
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn times(matrix: &[[f64; 3]; 3], vector: [f64; 3]) -> [f64; 3] {
    [dot(matrix[0], vector), dot(matrix[1], vector), dot(matrix[2], vector)]
}

#[cfg(test)]
pub(super) mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::units::{Requests, Seconds, Tokens};

    /// What an engine with these coefficients does in 15 s with this batch and share of prompts.
    pub(crate) fn stride(truth: Iteration, prompt: f64, batch: f64) -> Stride {
        let each = truth.alpha + truth.beta * prompt + truth.delta * batch;
        let steps = 15.0 / each;
        Stride {
            steps: Requests::new(steps),
            prompt: Tokens::new(prompt * steps),
            generated: Tokens::new(batch * steps),
            intervals: Seconds::new(each * steps * batch).zip(Requests::new(steps * batch)),
            ..Stride::over(Timestamp::UNIX_EPOCH, Seconds::literal(15))
        }
    }

    pub(crate) const TRUTH: Iteration =
        Iteration { alpha: 0.007, beta: 0.000_02, delta: 0.000_025 };

    #[test]
    fn coefficients_are_found_where_the_content_of_iterations_varies() {
        let mut pace = Pace::default();
        for round in 0..60 {
            let (prompt, batch) = (f64::from(round % 7) * 300.0, f64::from(8 + round % 11 * 20));
            pace.learn(&stride(TRUTH, prompt, batch), &Learning::default());
        }
        let Iteration { alpha, beta, delta } = pace.iteration().unwrap();
        for (found, truth) in [(alpha, TRUTH.alpha), (beta, TRUTH.beta), (delta, TRUTH.delta)] {
            assert!((found / truth - 1.0).abs() < 0.1, "{found} for {truth}");
        }
    }

    #[test]
    fn a_coefficient_at_its_floor_leaves_right_what_an_iteration_takes() {
        // Much quicker than any start says, with prompts that are always as long: by the start a
        // prompt token is what costs, so it alone would fall below nothing.
        let truth = Iteration { alpha: 0.002, beta: 0.0, delta: 0.000_015 };
        let mut pace = Pace::default();
        for _ in 0..20 {
            pace.learn(&stride(truth, 2000.0, 64.0), &Learning::default());
        }
        let Iteration { alpha, beta, delta } = pace.iteration().unwrap();
        let found = alpha + 2000.0 * beta + 64.0 * delta;
        assert!((found / 0.002_96 - 1.0).abs() < 0.1, "{found}: {pace:?}");
        assert!(pace.save().unwrap().is_sound());
    }

    #[test]
    fn an_idle_engine_teaches_nothing() {
        let mut pace = Pace::default();
        for _ in 0..60 {
            pace.learn(&stride(TRUTH, 10.0, 2.0), &Learning::default());
        }
        assert_eq!((pace.iteration(), pace), (None, Pace::default()));
    }

    #[test]
    fn one_absurd_lesson_moves_little() {
        let mut pace = Pace::default();
        for round in 0..60 {
            let (prompt, batch) = (f64::from(round % 7) * 300.0, f64::from(8 + round % 11 * 20));
            pace.learn(&stride(TRUTH, prompt, batch), &Learning::default());
        }
        let before = pace.iteration().unwrap();
        pace.update([1.0, 900.0, 100.0], 3.0, &Learning::default());
        let predict = |it: Iteration| it.alpha + it.beta * 900.0 + it.delta * 100.0;
        let after = pace.iteration().unwrap();
        assert!((predict(after) / predict(before) - 1.0).abs() < 0.3);
    }
}
