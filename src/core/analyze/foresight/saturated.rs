//! The throughput of replicas that are full.
//!
//! # Model
//!
//! A replica is full if during a whole lesson a quarter as many requests wait for room as run. Its
//! finished answers per second are then its capacity, without any formula. For requests of the same
//! lengths, the formula expects this rate if nothing is left free and no objective holds:
//!
//! ```text
//! measured   = max(generated tokens / mean tokens of an answer, answers begun)     per second
//! expected   = min(rates at which places, cache and iterations are full)
//! correction = min(1, 1.15 measured / expected)
//! ```
//!
//! Requests that begin together compute prompts first and generate later. Either rate is too low in
//! the other phase, and the larger is an upper bound in both. So a correction never raises the
//! estimate.
//!
//! A limit that an engine has and does not report, such as a smaller token budget, makes the
//! correction less than one. If places, the cache or the iterations bind, the estimated rate is
//! multiplied by it. An objective binds below that, so there the usable share of the corrected
//! throughput is an upper bound.
//!
//! # Domain
//!
//! From [`LESSONS_MIN`] lessons on, since the engine last changed. A lesson of an engine that is
//! slower than its variant's pace does not count: an outlier queues before its peers do. Half of a
//! correction's logarithm is forgotten in a day, so that replicas that another cause once held back
//! are tried again.

use crate::analyze::foresight::lesson::FullWork;
use crate::analyze::foresight::limits::CapacityLimits;
use crate::analyze::foresight::pace::IterationCost;
use crate::analyze::foresight::request_profile::RequestProfile;
use crate::units::{Seconds, Tokens};

/// Lessons from which the throughput counts: a minute of one full replica.
const LESSONS_MIN: u32 = 4;

/// The weight of a lesson in the throughput. Requests that begin together end together, which makes
/// the answers of a quarter of a minute more or fewer than usual.
const SHARE: f64 = 0.25;

/// The ratio between formula and measurement up to which they do not contradict each other.
const TOLERANCE: f64 = 1.15;

/// The smallest correction. Beyond it, something other than the formula is wrong.
const CORRECTION_MIN: f64 = 0.25;

/// Seconds in which half of a correction is forgotten.
const HALVED: f64 = 24.0 * 3600.0;

/// The throughput of one rank of a full replica.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Throughput {
    /// Answers per second.
    answers: f64,
    /// Mean tokens of their prompts.
    prompt: f64,
    /// Mean tokens of an answer.
    output: f64,
    lessons: u32,
    /// The share of the correction that is not forgotten.
    kept: f64,
}

// === impl Throughput ===

impl Throughput {
    /// Adds a lesson of a full replica, of requests of these mean lengths.
    pub(super) fn add(known: Option<Self>, full: FullWork, lengths: (f64, f64)) -> Option<Self> {
        let (prompt, output) = lengths;
        let answers = full.begun.max(full.generated / output);
        if !answers.is_finite() || answers <= 0.0 {
            return known;
        }

        let Some(before) = known else {
            return Some(Self { answers, prompt, output, lessons: 1, kept: 1.0 });
        };

        Some(Self {
            answers: towards(before.answers, answers),
            prompt: towards(before.prompt, prompt),
            output: towards(before.output, output),
            lessons: before.lessons.saturating_add(1),
            kept: 1.0,
        })
    }

    /// Lets the correction fade over this time.
    pub(super) fn age(&mut self, elapsed: Seconds) {
        self.kept *= (-elapsed.seconds() / HALVED).exp2();
    }

    /// The throughput of full replicas as a share of the formula's rate, at most one. One while
    /// there are too few lessons.
    pub(super) fn correction(
        &self,
        iteration: IterationCost,
        requested: &RequestProfile,
        limits: &CapacityLimits,
    ) -> f64 {
        if self.lessons < LESSONS_MIN {
            return 1.0;
        }
        let Some((prompt, output)) = Tokens::new(self.prompt).zip(Tokens::new(self.output)) else {
            return 1.0;
        };

        let computed = Tokens::new(self.prompt * requested.computed_share()).unwrap_or(prompt);
        let alike = RequestProfile { prompt, computed, output, ..*requested };
        let expected = limits.most(iteration, &alike);
        let correction = (TOLERANCE * self.answers / expected).clamp(CORRECTION_MIN, 1.0);
        if correction.is_finite() { correction.powf(self.kept) } else { 1.0 }
    }
}

/// The mean after a lesson with this value.
fn towards(mean: f64, now: f64) -> f64 {
    mean + SHARE * (now - mean)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analyze::foresight::capacity::tests::{ITERATION, requested};
    use crate::units::Fraction;

    fn limits() -> CapacityLimits {
        CapacityLimits {
            itl: None,
            first: None,
            seats: 64.0,
            kv: None,
            budget: 2048.0,
            share: Fraction::new(0.92).unwrap(),
            shared: 1.0,
        }
    }

    /// The work of a replica with this share of the expected rate.
    fn full(share: f64) -> FullWork {
        let begun = share * limits().most(ITERATION, &requested(1000.0, 200.0));
        FullWork { generated: 200.0 * begun, begun }
    }

    /// The throughput after lessons of a full replica.
    fn after(lessons: &[FullWork]) -> Throughput {
        let mut known = None;
        for full in lessons {
            known = Throughput::add(known, *full, (1000.0, 200.0));
        }

        known.unwrap()
    }

    fn correction(throughput: &Throughput) -> f64 {
        throughput.correction(ITERATION, &requested(1000.0, 200.0), &limits())
    }

    #[test]
    fn four_lessons_of_a_full_replica_bound_the_formula_by_what_it_did() {
        assert!((correction(&after(&[full(0.4); 4])) - 0.46).abs() < 1e-9);
        assert!((correction(&after(&[full(0.4); 3])) - 1.0).abs() < 1e-9, "three are too few");
        assert!((correction(&after(&[full(0.01); 4])) - 0.25).abs() < 1e-9, "something else");
        for share in [0.9, 1.5] {
            assert!((correction(&after(&[full(share); 4])) - 1.0).abs() < 1e-9, "within its error");
        }
    }

    #[test]
    fn requests_that_begin_together_hide_no_throughput() {
        let FullWork { generated, begun } = full(0.9);
        let prompts = FullWork { generated: 0.0, begun: 2.0 * begun };
        let answers = FullWork { generated: 1.5 * generated, begun: 0.0 };
        assert!((correction(&after(&[prompts, answers, prompts, answers])) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn a_correction_is_forgotten_by_half_in_a_day() {
        let mut throughput = after(&[full(0.64 / TOLERANCE); 4]);
        throughput.age(Seconds::literal(24 * 3600));
        assert!((correction(&throughput) - 0.8).abs() < 1e-9);
        throughput.age(Seconds::literal(9 * 24 * 3600));
        assert!(correction(&throughput) > 0.99);
    }

    #[test]
    fn lengths_may_change_after_it_was_measured() {
        let long = requested(2000.0, 400.0);
        let found = after(&[full(0.5); 4]).correction(ITERATION, &long, &limits());
        assert!((found - 0.5 * TOLERANCE).abs() < 1e-9);
    }
}
