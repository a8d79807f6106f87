//! The cost of an iteration, learned from the counters of an engine.
//!
//! # Model
//!
//! An iteration that computes `p` prompt tokens and generates for `n` requests takes
//!
//! ```text
//! T = alpha + beta * p + delta * n            seconds
//! ```
//!
//! [`lesson`](crate::analyze::foresight::lesson) measures the time of an iteration and its content.
//! None of the three coefficients is negative. For a new engine only magnitudes are known: those of
//! other engines, which are slower or faster in all three alike. So a Kalman filter estimates their
//! logarithms, `x = ln (alpha, beta, delta)`. It measures `ln T`, and starts with the mean and the
//! covariance of published engine measurements:
//!
//! ```text
//! h(x) = ln (e^x1 + p e^x2 + n e^x3)
//! H    = (e^x1, p e^x2, n e^x3) / T           the share of each in the iteration
//! ```
//!
//! An error in `T` is a share of it, hence the same in `ln T` for a fast engine and a slow one. The
//! share `H_2` of prompts varies with their number: chance alone makes a mean of `k` prompts off by
//! `1 / sqrt(k)`. That adds `H_2^2 / k` to the variance of the measurement, in addition to the
//! noise of any lesson and the lesson's own doubt. `h` is not linear, so the derivative is taken at
//! the corrected state, [`ROUNDS`] times.
//!
//! In steady state `p` and `n` keep one proportion, and only a sum is observable. So single
//! coefficients may be wrong although the capacity per replica is right. The covariance contains
//! that doubt, and [`deviation`](PaceFilter::deviation) returns it for any function of the
//! coefficients. So coefficients are never applied to requests of another shape.
//!
//! # Robustness
//!
//! A lesson counts by a Student's t weight, so a slow replica among several does not set their
//! pace. A [watch](crate::analyze::foresight::change) of the prediction errors detects an engine
//! that has changed. Then the covariance grows by a share [`CHANGED`] of the differences between
//! engines, and the next lessons move the coefficients nearly all of the way.
//!
//! # Source
//!
//! The iterated extended Kalman filter, with a state that is a random walk: Jazwinski, *Stochastic
//! Processes and Filtering Theory* (1970), section 8.3; Bell and Cathey, *The iterated Kalman
//! filter update as a Gauss-Newton method* (1993). Simulations show that regression on iterations
//! stays right under saturation. Regression of latencies on arrival rates does not.

use serde::{Deserialize, Serialize};

use crate::analyze::foresight::change::ChangeDetector;
use crate::analyze::foresight::lesson::IterationSample;
use crate::analyze::foresight::policy::Learning;
use crate::units::Fraction;

/// The start of learning: the geometric mean of 26 pairs of a model and its accelerators. Seconds;
/// seconds per prompt token; seconds per request in the batch, with 1500 tokens in the cache.
const PRIOR: [f64; 3] = [0.013, 0.000_046, 0.000_096];

/// The covariance of their logarithms. A standard deviation is a factor of 2 for an iteration, and
/// of 2.9 and 2.7 for its content. An engine that is slow in one is slow in all.
///
/// # Source
///
/// Fits of aiconfigurator 0.12 to the kernels of vLLM, of BLIS to runs of vLLM 0.8 to 0.11
/// (inference-sim, `defaults.yaml` at 458041ff), with values that both leave out derived by
/// bandwidth: models of 7 to 405 billion parameters on L4, L40S, A100, H100, H200, B200 and MI300X.
const PRIOR_COVARIANCE: [[f64; 3]; 3] =
    [[0.47, 0.56, 0.44], [0.56, 1.15, 0.79], [0.44, 0.79, 1.01]];

/// The largest factor between a coefficient and [`PRIOR`].
const RANGE: f64 = 1e3;

/// Times that a lesson's derivative is taken. More changes nothing in the third digit.
const ROUNDS: usize = 4;

/// Lessons from which the coefficients count as learned.
pub const SETTLED: u32 = 4;

/// The weight of a lesson in the mean content of iterations: about the last ten lessons count.
const CONTENT_SHARE: f64 = 0.1;

/// The doubt about an engine that has changed, as a share of the differences between engines. At
/// one half, a factor of two is two standard deviations away.
const CHANGED: f64 = 0.5;

/// The coefficients of an iteration's time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationCost {
    /// Seconds that each iteration takes, with any content.
    pub alpha: f64,
    /// Seconds for each prompt token that is computed.
    pub beta: f64,
    /// Seconds for each request that generates.
    pub delta: f64,
}

/// Learns the coefficients of an iteration's time.
#[derive(Clone, Debug, PartialEq)]
pub struct PaceFilter {
    /// The logarithms of the coefficients.
    logarithms: [f64; 3],
    covariance: [[f64; 3]; 3],
    lessons: u32,
    content: Option<[f64; 2]>,
    watch: ChangeDetector,
    /// Changes of the engine that were detected.
    changes: u32,
}

/// The coefficients of an iteration, in plain numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedPace {
    /// Logarithms of the seconds of an iteration, of a prompt token and of a request in the batch.
    pub logarithms: [f64; 3],
    /// Their covariance.
    pub covariance: [[f64; 3]; 3],
    /// The number of lessons.
    pub lessons: u32,
}

impl SavedPace {
    /// Returns true if all values are possible.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let Self { logarithms, covariance, lessons: _ } = self;
        let known = logarithms
            .iter()
            .zip(PRIOR)
            .all(|(it, prior)| (it - prior.ln()).abs() <= RANGE.ln() + 1e-9);
        let finite = covariance.iter().flatten().all(|it| it.is_finite());
        known && finite && (0..3).all(|at| covariance[at][at] >= 0.0)
    }
}

impl Default for PaceFilter {
    fn default() -> Self {
        Self::starting(PRIOR, 1.0)
    }
}

impl PaceFilter {
    /// The start of learning, with its doubt as a share of the differences between engines.
    fn starting(theta: [f64; 3], doubt: f64) -> Self {
        Self {
            logarithms: theta.map(f64::ln),
            covariance: PRIOR_COVARIANCE.map(|row| row.map(|it| doubt * doubt * it)),
            lessons: 0,
            content: None,
            watch: ChangeDetector::default(),
            changes: 0,
        }
    }

    /// Starts from the coefficients of another variant, with this doubt.
    pub(crate) fn starting_from(iteration: IterationCost, doubt: f64) -> Self {
        let IterationCost { alpha, beta, delta } = iteration;
        let mut theta = [alpha, beta, delta];
        for (start, prior) in theta.iter_mut().zip(PRIOR) {
            *start = start.clamp(prior / RANGE, prior * RANGE);
        }

        Self::starting(theta, doubt)
    }

    /// Learns from the measurements of one replica.
    pub fn learn(&mut self, lesson: &IterationSample, policy: &Learning) {
        if !lesson.is_sound() {
            return;
        }

        self.let_drift(policy);
        if self.watch.take(self.surprise(lesson, policy)) {
            self.doubt();
        }
        self.correct(lesson, policy);

        self.lessons = self.lessons.saturating_add(1);
        let IterationSample { prompt, batch, .. } = *lesson;
        let [prompts, batches] = self.content.unwrap_or([prompt, batch]);
        self.content = Some([towards(prompts, prompt), towards(batches, batch)]);
    }

    /// Learns from the first tokens of one replica, which show nothing but the cost of prompts.
    pub(super) fn learn_prompts(&mut self, lesson: &IterationSample, policy: &Learning) {
        if lesson.is_sound() {
            self.let_drift(policy);
            self.correct(lesson, policy);
        }
    }

    /// Returns true if an iteration took longer or shorter than expected by more than this factor.
    pub(crate) fn is_contradicted(&self, lesson: &IterationSample, factor: f64) -> bool {
        let ratio = self.ratio(lesson);
        ratio > factor || ratio < 1.0 / factor
    }

    /// The time of an iteration, relative to the expected time.
    pub(super) fn ratio(&self, lesson: &IterationSample) -> f64 {
        lesson.seconds / dot(lesson.features(), self.coefficients())
    }

    /// Changes of the engine that were detected.
    pub(super) const fn changes(&self) -> u32 {
        self.changes
    }

    /// The number of lessons so far.
    pub(crate) const fn lessons(&self) -> u32 {
        self.lessons
    }

    /// The mean content of iterations: prompt tokens, and requests that generated.
    pub(crate) const fn content(&self) -> Option<[f64; 2]> {
        self.content
    }

    /// The state to save; `None` without any lesson.
    pub(crate) fn save(&self) -> Option<SavedPace> {
        let Self { logarithms, covariance, lessons, .. } = *self;
        (lessons > 0).then_some(SavedPace { logarithms, covariance, lessons })
    }

    /// Continues from a saved state.
    pub(crate) fn of(saved: SavedPace) -> Self {
        let SavedPace { logarithms, covariance, lessons } = saved;
        Self {
            logarithms,
            covariance,
            lessons,
            content: None,
            watch: ChangeDetector::default(),
            changes: 0,
        }
    }

    /// The coefficients of an iteration's time; `None` while there are too few lessons.
    #[must_use]
    pub fn iteration(&self) -> Option<IterationCost> {
        (self.lessons >= SETTLED).then(|| self.assumed())
    }

    /// The coefficients of an iteration's time, from the lessons so far or from the start.
    #[must_use]
    pub fn assumed(&self) -> IterationCost {
        let [alpha, beta, delta] = self.coefficients();
        IterationCost { alpha, beta, delta }
    }

    /// The doubt about a quantity that grows with these powers of the coefficients: one standard
    /// deviation of its logarithm, hence about a share of it.
    pub(crate) fn deviation(&self, shares: [f64; 3]) -> f64 {
        dot(shares, times(&self.covariance, shares)).max(0.0).sqrt()
    }

    fn coefficients(&self) -> [f64; 3] {
        self.logarithms.map(f64::exp)
    }

    /// Increases the doubt about the coefficients, because the engine has changed.
    fn doubt(&mut self) {
        self.changes = self.changes.saturating_add(1);
        for (row, prior) in self.covariance.iter_mut().zip(PRIOR_COVARIANCE) {
            for (it, prior) in row.iter_mut().zip(prior) {
                *it += CHANGED * CHANGED * prior;
            }
        }
    }

    /// Lets the coefficients become less certain, as from one lesson to the next.
    fn let_drift(&mut self, policy: &Learning) {
        for at in 0..3 {
            self.covariance[at][at] += policy.drift.fraction().powi(2);
        }
    }

    /// The error of the expected time of a lesson, as a share.
    fn error(&self, lesson: &IterationSample) -> f64 {
        lesson.seconds.ln() - dot(lesson.features(), self.coefficients()).ln()
    }

    /// The standard deviation that this error should have.
    fn error_deviation(&self, lesson: &IterationSample, policy: &Learning) -> f64 {
        let shares = shares(lesson.features(), self.coefficients());
        let spread = dot(shares, times(&self.covariance, shares));
        (spread + chance(shares, lesson, policy.noise)).sqrt()
    }

    /// The error over its standard deviation.
    fn surprise(&self, lesson: &IterationSample, policy: &Learning) -> f64 {
        self.error(lesson) / self.error_deviation(lesson, policy)
    }

    /// Corrects the coefficients by a lesson.
    fn correct(&mut self, lesson: &IterationSample, policy: &Learning) {
        let Learning { noise, clip, .. } = *policy;
        let features = lesson.features();
        let start = self.logarithms;
        let weight = self.watch.weight(self.surprise(lesson, policy));

        // A lesson that is far off counts as less far off.
        let far = clip.fraction() * self.error_deviation(lesson, policy);
        let expected = dot(features, self.coefficients()).ln();
        let measured = expected + self.error(lesson).clamp(-far, far);

        let mut gain = [0.0; 3];
        let mut variance = 1.0;
        for _ in 0..ROUNDS {
            let now = self.coefficients();
            let shares = shares(features, now);
            gain = times(&self.covariance, shares);
            variance = dot(shares, gain) + chance(shares, lesson, noise) / weight;
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
    }
}

/// The mean content after a lesson with this content.
fn towards(mean: f64, now: f64) -> f64 {
    mean + CONTENT_SHARE * (now - mean)
}

/// The variance of a lesson by chance, given the share of each coefficient in it.
fn chance(shares: [f64; 3], lesson: &IterationSample, noise: Fraction) -> f64 {
    let prompts = shares[1] * shares[1] / lesson.prompts.max(1.0);
    noise.fraction().powi(2) + lesson.doubt * lesson.doubt + prompts
}

/// The share of each coefficient in an iteration with this content.
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
    pub(crate) fn lesson(truth: IterationCost, prompt: f64, batch: f64) -> IterationSample {
        let seconds = truth.alpha + truth.beta * prompt + truth.delta * batch;
        // Enough prompts that their number adds no doubt.
        IterationSample {
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

    pub(crate) const TRUTH: IterationCost =
        IterationCost { alpha: 0.007, beta: 0.000_02, delta: 0.000_025 };

    /// The pace learned from varying loads.
    fn taught(truth: IterationCost) -> PaceFilter {
        let mut pace = PaceFilter::default();
        for round in 0..60 {
            let prompt = f64::from(round % 7) * 300.0;
            let batch = f64::from(8 + round % 11 * 20);
            pace.learn(&lesson(truth, prompt, batch), &Learning::default());
        }

        pace
    }

    #[test]
    fn coefficients_are_found_where_the_content_of_iterations_varies() {
        // A current accelerator, an accelerator that is ten times slower, and a small model on a
        // large one.
        for slower in [1.0, 10.0, 0.2] {
            let IterationCost { alpha, beta, delta } = TRUTH;
            let [alpha, beta, delta] = [alpha, beta, delta].map(|it| slower * it);

            let found = taught(IterationCost { alpha, beta, delta }).iteration().unwrap();
            let pairs = [(found.alpha, alpha), (found.beta, beta), (found.delta, delta)];
            for (found, truth) in pairs {
                assert!((found / truth - 1.0).abs() < 0.15, "{found} for {truth}, {slower} times");
            }
        }
    }

    /// The cost of a prompt token over the truth, learned while outputs never meet a prompt.
    fn prompt_cost_of_idle_replicas(with_first_tokens: bool) -> f64 {
        let mut pace = PaceFilter::default();
        for round in 0..200 {
            let batch = 0.2 + 0.1 * f64::from(round % 5);
            let apart = lesson(TRUTH, 0.0, batch);
            pace.learn(&IterationSample { prompt: 300.0, ..apart }, &Learning::default());
            if with_first_tokens {
                let prompts = lesson(TRUTH, 1500.0, batch);
                let doubtful = IterationSample { doubt: 0.1, ..prompts };
                pace.learn_prompts(&doubtful, &Learning::default());
            }
        }

        pace.iteration().unwrap().beta / TRUTH.beta
    }

    #[test]
    fn first_tokens_show_what_prompts_cost_where_no_output_meets_one() {
        let [without, with] = [false, true].map(prompt_cost_of_idle_replicas);
        assert!(without < 0.6 && (0.8..1.25).contains(&with), "{without} {with}");
    }

    #[test]
    fn what_costs_nothing_leaves_right_what_an_iteration_takes() {
        let truth = IterationCost { alpha: 0.002, beta: 0.0, delta: 0.000_015 };
        let mut pace = PaceFilter::default();
        for _ in 0..20 {
            pace.learn(&lesson(truth, 2000.0, 64.0), &Learning::default());
        }

        let IterationCost { alpha, beta, delta } = pace.iteration().unwrap();
        let found = alpha + 2000.0 * beta + 64.0 * delta;
        assert!((found / 0.002_96 - 1.0).abs() < 0.1, "{found}: {pace:?}");
        assert!(pace.save().unwrap().is_sound());
    }

    #[test]
    fn what_cannot_be_leaves_everything_as_it_was() {
        let mut pace = PaceFilter::default();
        for odd in [
            IterationSample { seconds: 0.0, ..lesson(TRUTH, 100.0, 10.0) },
            IterationSample { prompt: f64::NAN, ..lesson(TRUTH, 100.0, 10.0) },
            IterationSample { batch: -1.0, ..lesson(TRUTH, 100.0, 10.0) },
        ] {
            pace.learn(&odd, &Learning::default());
        }

        assert_eq!((pace.iteration(), pace), (None, PaceFilter::default()));
    }

    /// The time of an iteration with 900 prompt tokens and 100 requests.
    fn predict(it: IterationCost) -> f64 {
        it.alpha + it.beta * 900.0 + it.delta * 100.0
    }

    #[test]
    fn one_absurd_lesson_moves_little() {
        let mut pace = taught(TRUTH);
        let before = pace.iteration().unwrap();
        let absurd = IterationSample { seconds: 3.0, ..lesson(TRUTH, 900.0, 100.0) };
        pace.learn(&absurd, &Learning::default());
        let after = pace.iteration().unwrap();
        assert!((predict(after) / predict(before) - 1.0).abs() < 0.3);
    }

    /// The doubt about the time of an iteration with this content.
    fn doubt(pace: &PaceFilter, content: [f64; 3]) -> f64 {
        pace.deviation(shares(content, pace.coefficients()))
    }

    #[test]
    fn one_load_leaves_much_doubt_of_another_and_two_leave_little() {
        let idle = [1.0, 50.0, 4.0];
        let full = [1.0, 1000.0, 80.0];
        let mut pace = PaceFilter::default();
        for _ in 0..20 {
            pace.learn(&lesson(TRUTH, idle[1], idle[2]), &Learning::default());
        }

        assert!(doubt(&pace, idle) < 0.03 && doubt(&pace, full) > 0.3, "{pace:?}");
        for _ in 0..20 {
            pace.learn(&lesson(TRUTH, full[1], full[2]), &Learning::default());
        }

        assert!(doubt(&pace, full) < 0.03, "{pace:?}");
    }

    /// The error in the time of an iteration, at a load like that of the lessons.
    fn off(pace: &PaceFilter, truth: IterationCost) -> f64 {
        let expected = lesson(truth, 900.0, 100.0);
        dot(expected.features(), pace.coefficients()) / expected.seconds - 1.0
    }

    /// Lessons of a load that varies, with this noise.
    fn noisy(random: &mut Pcg64, truth: IterationCost, noise: f64) -> IterationSample {
        let load: f64 = random.random_range(0.2..1.2);
        let exact = lesson(truth, 900.0 * load, 100.0 * load);
        IterationSample { seconds: exact.seconds * (noise * heavy_tailed(random)).exp(), ..exact }
    }

    fn times_as_slow(factor: f64) -> IterationCost {
        let IterationCost { alpha, beta, delta } = TRUTH;
        IterationCost { alpha: factor * alpha, beta: factor * beta, delta: factor * delta }
    }

    #[test]
    fn a_changed_engine_is_known_after_two_minutes_of_two_replicas() {
        const LESSONS: u32 = 16;

        for (factor, noise) in [(2.0, 0.05), (0.5, 0.05), (1.4, 0.05), (0.7, 0.05), (2.0, 0.1)] {
            let mut known = 0;
            for seed in 0..100 {
                let mut random = Pcg64::seed_from_u64(seed);
                let mut pace = PaceFilter::default();
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
            let mut pace = PaceFilter::default();
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
        let mut pace = PaceFilter::default();
        for lessons in 0..2000 {
            let truth = if lessons % 4 == 0 { times_as_slow(1.8) } else { TRUTH };
            pace.learn(&noisy(&mut random, truth, 0.05), &Learning::default());
        }

        let off = off(&pace, TRUTH);
        assert!(off.abs() < 0.05, "{off}");
    }

    /// The doubt after one lesson with this many prompts.
    fn doubt_after(prompts: f64) -> f64 {
        let mut pace = PaceFilter::default();
        let lesson = IterationSample { prompts, ..lesson(TRUTH, 1500.0, 40.0) };
        pace.learn(&lesson, &Learning::default());
        doubt(&pace, lesson.features())
    }

    #[test]
    fn few_prompts_in_a_lesson_weaken_what_it_says_of_them() {
        assert!(doubt_after(2.0) > 2.0 * doubt_after(1000.0));
    }
}
