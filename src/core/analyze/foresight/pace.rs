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
//! [`lesson`](crate::analyze::foresight::lesson) says how long an iteration took and what was in it.
//! None of the three coefficients is negative, and of an engine that nobody has seen only magnitudes
//! are known: those of other engines, which are slower or quicker in all three alike. So what is
//! estimated is their logarithms, `x = ln (alpha, beta, delta)`, by a Kalman filter that measures
//! `ln T` and starts with the mean and the covariance of engines that others have measured:
//!
//! ```text
//! h(x) = ln (e^x1 + p e^x2 + n e^x3)
//! H    = (e^x1, p e^x2, n e^x3) / T           the share that each has in the iteration
//! ```
//!
//! An error in `T` is a share of it, hence the same in `ln T` for a quick engine and a slow one. The
//! share `H_2` of prompts varies with their number: chance alone makes a mean of `k` prompts off by
//! `1 / sqrt(k)`, which adds `H_2^2 / k` to the variance of the measurement, beside that of any lesson
//! and what a lesson itself says of its doubt. `h` bends, so that the
//! derivative is taken where the correction leads, [`ROUNDS`] times.
//!
//! In steady state `p` and `n` keep one proportion, and then only a sum can be told: single
//! coefficients may be wrong where what a replica carries is right. The covariance knows that, and
//! [`deviation`](Pace::deviation) says it of whatever depends on them. So coefficients are never
//! carried over to requests of another shape.
//!
//! # Robustness
//!
//! A lesson counts by a Student's t weight, so a slow replica among several does not set their pace.
//! A [watch](crate::analyze::foresight::change) of the prediction errors detects an engine that has
//! changed. Then the covariance grows by a share [`CHANGED`] of what engines differ by, and the next
//! lessons move the coefficients nearly all of the way.
//!
//! # Source
//!
//! The iterated extended Kalman filter, with a state that is a random walk: Jazwinski, *Stochastic
//! Processes and Filtering Theory* (1970), section 8.3; Bell and Cathey, *The iterated Kalman filter
//! update as a Gauss-Newton method* (1993). That regression on iterations stays right under
//! saturation, where latencies against arrival rates do not, was found by simulation.

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::change::Watch;
use crate::analyze::foresight::lesson::Lesson;
use crate::analyze::foresight::policy::Learning;

/// Where learning starts: the geometric mean of 26 pairs of a model and its accelerators. Seconds;
/// seconds a prompt token; seconds a request in the batch, with 1500 tokens in the cache.
const PRIOR: [f64; 3] = [0.013, 0.000_046, 0.000_096];

/// The covariance of their logarithms. A standard deviation is a factor of 2 for an iteration, and of
/// 2.9 and 2.7 for what is in it; and what is slow in one is slow in all.
///
/// # Source
///
/// Fits of aiconfigurator 0.12 to the kernels of vLLM, of BLIS to runs of vLLM 0.8 to 0.11
/// (inference-sim, `defaults.yaml` at 458041ff), and what both leave out derived by bandwidth: models
/// of 7 to 405 billion parameters on L4, L40S, A100, H100, H200, B200 and MI300X.
const PRIOR_COVARIANCE: [[f64; 3]; 3] =
    [[0.47, 0.56, 0.44], [0.56, 1.15, 0.79], [0.44, 0.79, 1.01]];

/// The factor from its start beyond which no coefficient goes.
const RANGE: f64 = 1e3;

/// How often a lesson's derivative is taken anew; more changes nothing in the third digit.
const ROUNDS: usize = 4;

/// Lessons after which the coefficients are more than their start.
pub const SETTLED: u32 = 4;

/// The share that a lesson has in what iterations are said to have had in them: that of about the
/// last ten.
const CONTENT_SHARE: f64 = 0.1;

/// The doubt of an engine that has changed, as a share of how far engines differ from each other. At
/// one half, a factor of two is two standard deviations away.
const CHANGED: f64 = 0.5;

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

/// Learns what an iteration takes.
#[derive(Clone, Debug, PartialEq)]
pub struct Pace {
    /// The logarithms of the coefficients.
    logarithms: [f64; 3],
    covariance: [[f64; 3]; 3],
    lessons: u32,
    content: Option<[f64; 2]>,
    watch: Watch,
    /// How often the engine has changed.
    changes: u32,
}

/// What was learned of iterations, in plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPace {
    /// Logarithms of the seconds of an iteration, of a prompt token and of a request in the batch.
    pub logarithms: [f64; 3],
    /// How sure these are.
    pub covariance: [[f64; 3]; 3],
    /// From how many lessons.
    pub lessons: u32,
}

impl SavedPace {
    /// Whether it can be.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { logarithms, covariance, lessons: _ } = self;
        let near = |(it, prior): (&f64, f64)| (it - prior.ln()).abs() <= RANGE.ln() + 1e-9;
        let known = logarithms.iter().zip(PRIOR).all(near);
        let finite = covariance.iter().flatten().all(|it| it.is_finite());
        known && finite && (0..3).all(|at| covariance[at][at] >= 0.0)
    }
}

impl Default for Pace {
    fn default() -> Self {
        Self::starting(PRIOR, 1.0)
    }
}

impl Pace {
    /// Where learning starts, and how far off that may be, as a share of how far engines differ.
    fn starting(theta: [f64; 3], doubt: f64) -> Self {
        let covariance = PRIOR_COVARIANCE.map(|row| row.map(|it| doubt * doubt * it));
        Self {
            logarithms: theta.map(f64::ln),
            covariance,
            lessons: 0,
            content: None,
            watch: Watch::default(),
            changes: 0,
        }
    }

    /// Starts from what was learned elsewhere, with this doubt.
    pub(crate) fn starting_from(iteration: Iteration, doubt: f64) -> Self {
        let Iteration { alpha, beta, delta } = iteration;
        let mut theta = [alpha, beta, delta];
        for (start, prior) in theta.iter_mut().zip(PRIOR) {
            *start = start.clamp(prior / RANGE, prior * RANGE);
        }
        Self::starting(theta, doubt)
    }

    /// Learns from what one replica did.
    pub fn learn(&mut self, lesson: &Lesson, policy: &Learning) {
        if !self.update(lesson, policy) {
            return;
        }

        let Lesson { prompt, batch, .. } = *lesson;
        let [prompts, batches] = self.content.unwrap_or([prompt, batch]);
        let towards = |mean: f64, now: f64| mean + CONTENT_SHARE * (now - mean);
        self.content = Some([towards(prompts, prompt), towards(batches, batch)]);
    }

    /// Whether an iteration took longer or shorter by this factor than it should have.
    pub(crate) fn is_contradicted(&self, lesson: &Lesson, factor: f64) -> bool {
        let ratio = self.ratio(lesson);
        ratio > factor || ratio < 1.0 / factor
    }

    /// How many times as long as expected an iteration took.
    pub(super) fn ratio(&self, lesson: &Lesson) -> f64 {
        lesson.seconds / dot(lesson.features(), self.coefficients())
    }

    /// How often the engine was found to have changed.
    pub(super) const fn changes(&self) -> u32 {
        self.changes
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
        let Self { logarithms, covariance, lessons, .. } = *self;
        (lessons > 0).then_some(SavedPace { logarithms, covariance, lessons })
    }

    /// Goes on from what was learned.
    pub(crate) fn of(saved: SavedPace) -> Self {
        let SavedPace { logarithms, covariance, lessons } = saved;
        Self { logarithms, covariance, lessons, content: None, watch: Watch::default(), changes: 0 }
    }

    /// What an iteration takes; `None` while too little was seen.
    #[must_use]
    pub fn iteration(&self) -> Option<Iteration> {
        (self.lessons >= SETTLED).then(|| self.assumed())
    }

    /// What an iteration takes by what was seen, or else by the start.
    #[must_use]
    pub fn assumed(&self) -> Iteration {
        let [alpha, beta, delta] = self.coefficients();
        Iteration { alpha, beta, delta }
    }

    /// How far off something may be that grows with these powers of the coefficients: one standard
    /// deviation of its logarithm, hence about a share of it.
    pub(crate) fn deviation(&self, shares: [f64; 3]) -> f64 {
        dot(shares, times(&self.covariance, shares)).max(0.0).sqrt()
    }

    fn coefficients(&self) -> [f64; 3] {
        self.logarithms.map(f64::exp)
    }

    /// Doubts what was learned, because the engine has changed.
    fn doubt(&mut self) {
        self.changes = self.changes.saturating_add(1);
        for (row, prior) in self.covariance.iter_mut().zip(PRIOR_COVARIANCE) {
            for (it, prior) in row.iter_mut().zip(prior) {
                *it += CHANGED * CHANGED * prior;
            }
        }
    }

    /// Corrects the coefficients by a lesson, and says whether it was one.
    fn update(&mut self, lesson: &Lesson, policy: &Learning) -> bool {
        let features = lesson.features();
        if !features.iter().all(|it| it.is_finite() && *it >= 0.0) || lesson.seconds <= 0.0 {
            return false;
        }

        let Learning { noise, drift, clip } = *policy;
        for at in 0..3 {
            self.covariance[at][at] += drift.fraction().powi(2);
        }
        let start = self.logarithms;
        let expected = dot(features, self.coefficients()).ln();
        let chance = |shares: [f64; 3]| {
            let prompts = shares[1] * shares[1] / lesson.prompts.max(1.0);
            noise.fraction().powi(2) + lesson.doubt * lesson.doubt + prompts
        };

        let shares_at_start = shares(features, self.coefficients());
        let off = lesson.seconds.ln() - expected;
        let spread = dot(shares_at_start, times(&self.covariance, shares_at_start));
        let surprise = off / (spread + chance(shares_at_start)).sqrt();
        if self.watch.take(surprise) {
            self.doubt();
        }

        // Where it is far off, it counts as if it were less so.
        let spread = dot(shares_at_start, times(&self.covariance, shares_at_start));
        let deviation = (spread + chance(shares_at_start)).sqrt();
        let weight = self.watch.weight(off / deviation);
        let far = clip.fraction() * deviation;
        let measured = expected + off.clamp(-far, far);

        let mut gain = [0.0; 3];
        let mut variance = 1.0;
        for _ in 0..ROUNDS {
            let now = self.coefficients();
            let shares = shares(features, now);
            gain = times(&self.covariance, shares);
            variance = dot(shares, gain) + chance(shares) / weight;
            let moved: [f64; 3] = std::array::from_fn(|at| start[at] - self.logarithms[at]);
            let surprise = measured - dot(features, now).ln() - dot(shares, moved);
            for (at, logarithm) in self.logarithms.iter_mut().enumerate() {
                let off = start[at] + gain[at] / variance * surprise - PRIOR[at].ln();
                *logarithm = PRIOR[at].ln() + off.clamp(-RANGE.ln(), RANGE.ln());
            }
        }

        for (row, left) in gain.iter().enumerate() {
            for (column, right) in gain.iter().enumerate() {
                self.covariance[row][column] -= left * right / variance;
            }
        }
        self.lessons = self.lessons.saturating_add(1);
        true
    }
}

/// The share that each coefficient has in an iteration with this content.
fn shares(content: [f64; 3], coefficients: [f64; 3]) -> [f64; 3] {
    let seconds = dot(content, coefficients);
    std::array::from_fn(|at| content[at] * coefficients[at] / seconds)
}

fn dot(a: [f64; 3], b: [f64; 3]) -> f64 {
    a[0] * b[0] + a[1] * b[1] + a[2] * b[2]
}

fn times(matrix: &[[f64; 3]; 3], vector: [f64; 3]) -> [f64; 3] {
    [dot(matrix[0], vector), dot(matrix[1], vector), dot(matrix[2], vector)]
}

#[cfg(test)]
pub(super) mod tests {
    use rand::{RngExt, SeedableRng};
    use rand_pcg::Pcg64;

    use super::*;
    use crate::analyze::foresight::change::tests::heavy_tailed;

    /// An iteration of an engine with these coefficients.
    pub(crate) fn lesson(truth: Iteration, prompt: f64, batch: f64) -> Lesson {
        let seconds = truth.alpha + truth.beta * prompt + truth.delta * batch;
        // As many prompts as make their number certain.
        Lesson {
            prompt,
            batch,
            seconds,
            tokens: prompt + batch,
            prompts: 1e6,
            doubt: 0.0,
            is_short: false,
            full: None,
        }
    }

    pub(crate) const TRUTH: Iteration =
        Iteration { alpha: 0.007, beta: 0.000_02, delta: 0.000_025 };

    /// What is learned of loads that differ.
    fn taught(truth: Iteration) -> Pace {
        let mut pace = Pace::default();
        for round in 0..60 {
            let (prompt, batch) = (f64::from(round % 7) * 300.0, f64::from(8 + round % 11 * 20));
            pace.learn(&lesson(truth, prompt, batch), &Learning::default());
        }
        pace
    }

    #[test]
    fn coefficients_are_found_where_the_content_of_iterations_varies() {
        // A current accelerator, one that is ten times slower, and a small model on a large one.
        for slower in [1.0, 10.0, 0.2] {
            let Iteration { alpha, beta, delta } = TRUTH;
            let [alpha, beta, delta] = [alpha, beta, delta].map(|it| slower * it);
            let found = taught(Iteration { alpha, beta, delta }).iteration().unwrap();
            let pairs = [(found.alpha, alpha), (found.beta, beta), (found.delta, delta)];
            for (found, truth) in pairs {
                assert!((found / truth - 1.0).abs() < 0.15, "{found} for {truth}, {slower} times");
            }
        }
    }

    #[test]
    fn what_costs_nothing_leaves_right_what_an_iteration_takes() {
        let truth = Iteration { alpha: 0.002, beta: 0.0, delta: 0.000_015 };
        let mut pace = Pace::default();
        for _ in 0..20 {
            pace.learn(&lesson(truth, 2000.0, 64.0), &Learning::default());
        }
        let Iteration { alpha, beta, delta } = pace.iteration().unwrap();
        let found = alpha + 2000.0 * beta + 64.0 * delta;
        assert!((found / 0.002_96 - 1.0).abs() < 0.1, "{found}: {pace:?}");
        assert!(pace.save().unwrap().is_sound());
    }

    #[test]
    fn what_cannot_be_leaves_everything_as_it_was() {
        let mut pace = Pace::default();
        for odd in [
            Lesson { seconds: 0.0, ..lesson(TRUTH, 100.0, 10.0) },
            Lesson { prompt: f64::NAN, ..lesson(TRUTH, 100.0, 10.0) },
            Lesson { batch: -1.0, ..lesson(TRUTH, 100.0, 10.0) },
        ] {
            pace.learn(&odd, &Learning::default());
        }
        assert_eq!((pace.iteration(), pace), (None, Pace::default()));
    }

    #[test]
    fn one_absurd_lesson_moves_little() {
        let mut pace = taught(TRUTH);
        let before = pace.iteration().unwrap();
        let absurd = Lesson { seconds: 3.0, ..lesson(TRUTH, 900.0, 100.0) };
        pace.learn(&absurd, &Learning::default());
        let predict = |it: Iteration| it.alpha + it.beta * 900.0 + it.delta * 100.0;
        let after = pace.iteration().unwrap();
        assert!((predict(after) / predict(before) - 1.0).abs() < 0.3);
    }

    /// How far off the time of an iteration with this content may be.
    fn doubt(pace: &Pace, content: [f64; 3]) -> f64 {
        pace.deviation(shares(content, pace.coefficients()))
    }

    #[test]
    fn one_load_leaves_much_doubt_of_another_and_two_leave_little() {
        let (idle, full) = ([1.0, 50.0, 4.0], [1.0, 1000.0, 80.0]);
        let mut pace = Pace::default();
        for _ in 0..20 {
            pace.learn(&lesson(TRUTH, idle[1], idle[2]), &Learning::default());
        }
        assert!(doubt(&pace, idle) < 0.03 && doubt(&pace, full) > 0.3, "{pace:?}");
        for _ in 0..20 {
            pace.learn(&lesson(TRUTH, full[1], full[2]), &Learning::default());
        }
        assert!(doubt(&pace, full) < 0.03, "{pace:?}");
    }

    /// How far off an iteration of a load like that of the lessons is believed to be.
    fn off(pace: &Pace, truth: Iteration) -> f64 {
        let expected = lesson(truth, 900.0, 100.0);
        dot(expected.features(), pace.coefficients()) / expected.seconds - 1.0
    }

    /// Lessons of a load that varies, with this noise.
    fn noisy(random: &mut Pcg64, truth: Iteration, noise: f64) -> Lesson {
        let load: f64 = random.random_range(0.2..1.2);
        let exact = lesson(truth, 900.0 * load, 100.0 * load);
        Lesson { seconds: exact.seconds * (noise * heavy_tailed(random)).exp(), ..exact }
    }

    fn times_as_slow(factor: f64) -> Iteration {
        let Iteration { alpha, beta, delta } = TRUTH;
        Iteration { alpha: factor * alpha, beta: factor * beta, delta: factor * delta }
    }

    #[test]
    fn a_changed_engine_is_known_after_two_minutes_of_two_replicas() {
        const LESSONS: u32 = 16;

        for (factor, noise) in [(2.0, 0.05), (0.5, 0.05), (1.4, 0.05), (0.7, 0.05), (2.0, 0.1)] {
            let mut known = 0;
            for seed in 0..100 {
                let mut random = Pcg64::seed_from_u64(seed);
                let mut pace = Pace::default();
                for _ in 0..200 {
                    pace.learn(&noisy(&mut random, TRUTH, noise), &Learning::default());
                }
                for _ in 0..LESSONS {
                    let changed = noisy(&mut random, times_as_slow(factor), noise);
                    pace.learn(&changed, &Learning::default());
                }
                known += u32::from(off(&pace, times_as_slow(factor)).abs() < 0.1);
            }
            assert!(known >= 95, "{known} of 100 at {factor} times, with noise of {noise}");
        }
    }

    #[test]
    fn noise_of_any_usual_size_leaves_little_doubt_of_what_was_learned() {
        for noise in [0.05, 0.1, 0.2] {
            let mut random = Pcg64::seed_from_u64(3);
            let mut pace = Pace::default();
            for lessons in 1..=5000 {
                pace.learn(&noisy(&mut random, TRUTH, noise), &Learning::default());
                let off = off(&pace, TRUTH).abs();
                assert!(lessons < 100 || off < noise.max(0.1), "{off} of {noise} after {lessons}");
            }
        }
    }

    #[test]
    fn one_slow_replica_of_four_does_not_set_the_pace() {
        let mut random = Pcg64::seed_from_u64(5);
        let mut pace = Pace::default();
        for lessons in 0..2000 {
            let truth = if lessons % 4 == 0 { times_as_slow(1.8) } else { TRUTH };
            pace.learn(&noisy(&mut random, truth, 0.05), &Learning::default());
        }
        let off = off(&pace, TRUTH);
        assert!(off.abs() < 0.05, "{off}");
    }

    #[test]
    fn few_prompts_in_a_lesson_weaken_what_it_says_of_them() {
        let learned = |prompts: f64| {
            let mut pace = Pace::default();
            let few = Lesson { prompts, ..lesson(TRUTH, 1500.0, 40.0) };
            pace.learn(&few, &Learning::default());
            doubt(&pace, few.features())
        };
        assert!(learned(2.0) > 2.0 * learned(1000.0));
    }
}
