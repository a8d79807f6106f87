//! Lessons: the mean time and content of a replica's iterations, derived from its counters.
//!
//! # Model
//!
//! No counter has the exact number of iterations. If several API servers share an engine, each
//! counts the iterations with one of its requests. A pipeline runs several at once, and an
//! iteration that computes a piece of a prompt is not counted. But the counters contain times. A
//! running request gets its next output one iteration after the last. So the mean time between
//! outputs is the mean iteration as outputs see it, and the mean content follows in the same way:
//!
//! ```text
//! T = intervals' seconds / intervals                  seconds
//! n = mean of (intervals' seconds / stride)           requests in the batch (Little's law)
//! p = mean of (computed prompt tokens / stride * T)   prompt tokens
//! ```
//!
//! Both means are over strides, weighted by the intervals in each, so idle time does not count.
//! Within a stride requests come and go unseen. If they arrive at random and stay for `D` seconds,
//! an output finds one request more than the mean over a long stride. Over a short stride it finds
//! none more. In a stride of `s` seconds it finds the share `1 - 2 (D/s)^2 (s/D - 1 + exp(-s/D))`
//! of a request more.
//!
//! A full cache preempts requests, and the engine computes their tokens again without counting
//! them. So `p` includes the mean KV tokens of a running request for each of them. That is too much
//! if a prefix cache still has some of these tokens. Lessons of short answers leave them out.
//!
//! **Short answers** have few intervals or none, and these follow their own prompts. So the time of
//! requests in the batch counts instead, from the first iteration to the last, which is `T` for
//! each output. The iterations of a request contain its own prompt and the prompts of requests that
//! it meets. If `a` requests come to an iteration, it contains `m = max(1, Poisson(a))` requests.
//! Each of them meets `E[m^2] / E[m] - 1 = a^2 / (a + exp(-a))` others. If requests arrive at
//! random, `a` of them come in the time of an iteration. A router that prefers idle replicas lets
//! fewer meet. Then there are `E[m] = a + exp(-a)` outputs for each counted iteration, and the
//! smaller `a` holds.
//!
//! # Domain
//!
//! A replica whose requests arrive at random within a stride. Requests that come together in an
//! instant meet each other, and no stride of seconds shows that. Then `n` is too small, and a
//! request seems to cost more than it does.
//!
//! # Source
//!
//! Little (1961); Wolff, *Poisson arrivals see time averages* (1982); the variance of a mean over a
//! window of an M/M/inf queue: Whitt, *Planning queueing simulations* (1989). Recordings of vLLM
//! 0.11 and 0.32 show that `T`, `n` and the computed tokens are right: with one API server and with
//! two, with prompts in pieces and with speculation (`docs/recordings.md`).

use crate::observe::stride::IntervalDelta;
use crate::units::Requests;

/// Seconds of a lesson. Shorter means are too noisy.
const SECONDS: f64 = 15.0;

/// Requests that wait at a full replica, over those that run. Fewer may wait for something other
/// than room, such as a transfer, if an engine does not report the cause.
const QUEUE: f64 = 0.25;

/// Strides in a row with such a queue before a replica counts as full. A replica that just began to
/// queue was idle in a part of its stride, and Prometheus shows one instant per quarter of a
/// minute.
const FULL_PAGES: u32 = 4;

/// The share of requests that may leave without an answer. An engine counts a prompt once its
/// answer begins. So the prompts of these requests made iterations longer without being counted.
const UNSERVED_MAX: f64 = 0.05;

/// Seconds after which a lesson with too little content is dropped.
const SECONDS_MAX: f64 = 120.0;

/// Times between outputs below which their mean is too uncertain.
const INTERVALS_MIN: f64 = 100.0;

/// Finished requests below which their mean time in the batch is too uncertain.
const FINISHED_MIN: f64 = 10.0;

/// Tokens of a mean answer below which its few intervals do not represent iterations.
const SHORT: f64 = 5.0;

/// The error of a lesson of short answers, as a share, if requests were in the batch all the time.
/// A prompt that is computed in two pieces counts half of that time twice.
const LOOSE: f64 = 0.5;

/// Steps of Newton's method. From the right it needs at most half of them.
const NEWTON: u32 = 40;

/// A lesson: the mean iteration of a replica over some seconds, per rank.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IterationSample {
    /// Prompt tokens in it.
    pub prompt: f64,
    /// Requests in it that generate.
    pub batch: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Tokens in it, of prompts and of answers.
    pub tokens: f64,
    /// Prompts that were computed in these seconds.
    pub prompts: f64,
    /// Its doubt in addition to that of any lesson: one standard deviation, as a share.
    pub doubt: f64,
    /// True if its answers are so short that requests are seldom seen to run.
    pub is_short: bool,
    /// The work of a rank; `None` if it was not full all along.
    pub full: Option<FullWork>,
}

/// The work of a full rank, while requests waited for room.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct FullWork {
    /// Tokens that were generated, per second.
    pub generated: f64,
    /// Answers that were begun, per second.
    pub begun: f64,
}

/// Gathers the counters of one replica until they are enough for a lesson.
#[derive(Clone, Copy, Debug, Default)]
pub struct IterationSampler {
    strides: f64,
    /// Strides in a row at whose end a queue waited for room, including those of earlier lessons.
    queued: u32,
    /// Strides in which the replica was full.
    full: f64,
    elapsed: f64,
    computed: f64,
    generated: f64,
    begun: f64,
    /// Counted iterations, if all strides have them.
    steps: Option<f64>,
    intervals: f64,
    /// The sum of the intervals, in seconds.
    between: f64,
    /// Requests that ran, summed over the intervals.
    batches: f64,
    /// Computed prompt tokens per second, summed over the seconds of the intervals.
    prompts: f64,
    /// The same for tokens that were computed again.
    again: f64,
    batched: f64,
    finished: f64,
}

// === impl IterationSample ===

impl IterationSample {
    /// The factors that the coefficients of an iteration are multiplied with.
    #[must_use]
    pub const fn features(&self) -> [f64; 3] {
        [1.0, self.prompt, self.batch]
    }

    /// Returns true if all values are possible.
    pub(super) fn is_sound(&self) -> bool {
        self.features().iter().all(|it| it.is_finite() && *it >= 0.0) && self.seconds > 0.0
    }
}

// === impl IterationSampler ===

impl IterationSampler {
    /// Adds a stride. Returns a lesson once there is enough for one.
    pub fn take(&mut self, stride: &IntervalDelta) -> Option<IterationSample> {
        if self.add(stride).is_none() {
            *self = Self::default();
            return None;
        }

        if self.elapsed < SECONDS {
            return None;
        }

        let lesson = if self.is_of_short_answers() { self.of_stays() } else { self.of_intervals() };
        if lesson.is_some() || self.elapsed >= SECONDS_MAX {
            *self = Self { queued: self.queued, ..Self::default() };
        }

        lesson
    }

    /// Adds a stride; `None` if it lacks a counter, or does not count a part of its work.
    fn add(&mut self, stride: &IntervalDelta) -> Option<()> {
        let seconds = stride.elapsed.seconds();
        let ranks = f64::from(stride.ranks.max(1));
        let computed = stride.computed?.tokens() / ranks;
        let generated = stride.generated?.tokens() / ranks;
        let begun = stride.begun?.requests() / ranks;
        let unserved = stride.unserved.map_or(0.0, Requests::requests) / ranks;
        if unserved > UNSERVED_MAX * (begun + unserved) {
            return None;
        }

        let (sum, count) = stride.intervals?;
        let between = sum.seconds() / ranks;
        let intervals = count.requests() / ranks;

        let known = if self.strides > 0.0 { self.steps } else { Some(0.0) };
        self.steps = known.zip(stride.steps).map(|(sum, more)| sum + more.requests() / ranks);
        self.strides += 1.0;
        self.queued = if has_queue(stride) { self.queued.saturating_add(1) } else { 0 };
        self.full += f64::from(self.queued > FULL_PAGES);
        self.elapsed += seconds;
        self.computed += computed;
        self.generated += generated;
        self.begun += begun;
        self.intervals += intervals;
        self.between += between;
        if seconds > 0.0 {
            self.batches += intervals * between / seconds;
            self.prompts += between * computed / seconds;
            self.again += between * computed_again(stride) / ranks / seconds;
        }

        if let Some((batched, finished)) = stride.batched {
            self.batched += batched.seconds() / ranks;
            self.finished += finished.requests() / ranks;
        }

        Some(())
    }

    fn is_of_short_answers(&self) -> bool {
        self.generated < SHORT * self.begun
    }

    /// A lesson from the times between outputs.
    fn of_intervals(&self) -> Option<IterationSample> {
        if self.intervals < INTERVALS_MIN || self.between <= 0.0 {
            return None;
        }

        let batch = self.batches / self.intervals + self.unseen();
        let counted = self.prompts / self.intervals;
        let outputs = (self.generated - self.begun).max(0.0) / self.intervals;
        Some(IterationSample {
            prompt: counted + self.again / self.intervals,
            batch,
            seconds: self.between / self.intervals,
            tokens: counted + batch * outputs,
            prompts: self.begun,
            doubt: 0.0,
            is_short: false,
            full: self.full(),
        })
    }

    /// A lesson from the time that requests spend in the batch.
    fn of_stays(&self) -> Option<IterationSample> {
        if self.finished < FINISHED_MIN || self.begun <= 0.0 || self.batched <= 0.0 {
            return None;
        }

        let outputs = (self.generated / self.begun).max(1.0);
        let seconds = self.batched / self.finished / outputs;
        let at_random = self.generated / self.elapsed * seconds;
        let counted = self.steps.filter(|steps| *steps > 0.0);
        let together =
            counted.map_or(at_random, |steps| at_random.min(poisson(self.generated / steps)));

        let own = self.computed / self.begun / outputs;
        let others = own * together * together / (together + (-together).exp());
        let batch = (self.batched / self.elapsed).max(1.0);
        Some(IterationSample {
            prompt: own + others,
            batch,
            seconds,
            tokens: own + others + batch,
            prompts: self.begun,
            doubt: LOOSE * (self.batched / self.elapsed).min(1.0),
            is_short: true,
            full: self.full(),
        })
    }

    /// The work of a full replica; `None` if it was not full all along.
    fn full(&self) -> Option<FullWork> {
        (self.full >= self.strides).then(|| FullWork {
            generated: self.generated / self.elapsed,
            begun: self.begun / self.elapsed,
        })
    }

    /// Requests that an output finds beyond the mean over strides.
    fn unseen(&self) -> f64 {
        if self.begun <= 0.0 {
            return 0.0;
        }

        let stay = self.between / self.begun;
        let stride = self.elapsed / self.strides;
        unseen(stride / stay)
    }
}

/// The tokens of preempted requests that an engine computes again. No counter includes them.
fn computed_again(stride: &IntervalDelta) -> f64 {
    let held = stride
        .kv_usage
        .zip(stride.kv_capacity)
        .map_or(0.0, |(usage, capacity)| usage.fraction() * capacity.tokens());
    let running = stride.running.map_or(0.0, Requests::requests);
    let preempted = stride.preempted.map_or(0.0, Requests::requests);

    if running > 0.0 { preempted * held / running } else { 0.0 }
}

/// Returns true if more than a few requests wait for room in a replica.
fn has_queue(stride: &IntervalDelta) -> bool {
    let queue = stride.waiting.zip(stride.running);
    queue.is_some_and(|(waiting, running)| {
        waiting.requests() >= (QUEUE * running.requests()).max(1.0)
    })
}

/// The `a` for which `max(1, Poisson(a))` has this mean; zero if the mean is at most one.
fn poisson(mean: f64) -> f64 {
    if mean <= 1.0 {
        return 0.0;
    }

    // The root of a + exp(-a) = mean, from the right, where the left side is convex and rises.
    let mut a = mean;
    for _ in 0..NEWTON {
        a -= (a + (-a).exp() - mean) / (1.0 - (-a).exp());
    }

    a
}

/// The share of the variance of a request count that is lost by means over this multiple of the
/// time that each request stays.
fn unseen(stays: f64) -> f64 {
    // Below, the formula is a difference of nearly equal numbers. The first term of its series is
    // enough.
    const SHORT_STRIDE: f64 = 1e-3;

    if stays < SHORT_STRIDE {
        return stays / 3.0;
    }
    1.0 - 2.0 * (stays - 1.0 + (-stays).exp()) / (stays * stays)
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::units::{Fraction, Seconds, Tokens};

    /// The counters of a replica in a second.
    #[derive(Clone, Copy)]
    struct Second {
        computed: f64,
        generated: f64,
        begun: f64,
        between: f64,
        intervals: f64,
        batched: f64,
        finished: f64,
    }

    const NOTHING: Second = Second {
        computed: 0.0,
        generated: 0.0,
        begun: 0.0,
        between: 0.0,
        intervals: 0.0,
        batched: 0.0,
        finished: 0.0,
    };

    /// One request after another: 50 tokens of 20 ms each, after a prompt of 400.
    const ALONE: Second = Second {
        computed: 400.0,
        generated: 50.0,
        begun: 1.0,
        between: 0.98,
        intervals: 49.0,
        batched: 1.0,
        finished: 1.0,
    };

    fn requests(count: f64) -> Requests {
        Requests::new(count).unwrap()
    }

    fn stride(second: Second, ranks: u32) -> IntervalDelta {
        let Second { computed, generated, begun, between, intervals, batched, finished } = second;
        IntervalDelta {
            ranks,
            computed: Tokens::new(computed),
            generated: Tokens::new(generated),
            begun: Some(requests(begun)),
            intervals: Seconds::new(between).map(|sum| (sum, requests(intervals))),
            batched: Seconds::new(batched).map(|sum| (sum, requests(finished))),
            ..IntervalDelta::over(Timestamp::UNIX_EPOCH, Seconds::literal(1))
        }
    }

    /// The lesson of these seconds, repeated.
    fn lesson(seconds: &[Second], ranks: u32) -> Option<IterationSample> {
        let mut lessons = IterationSampler::default();
        (0..200).find_map(|at| lessons.take(&stride(seconds[at % seconds.len()], ranks)))
    }

    #[test]
    fn idle_seconds_change_nothing_in_what_an_iteration_was() {
        let busy = lesson(&[ALONE], 1).unwrap();
        let idle = lesson(&[ALONE, NOTHING, NOTHING, NOTHING], 1).unwrap();

        assert!((busy.seconds - 0.02).abs() < 1e-9 && (idle.seconds - 0.02).abs() < 1e-9);
        assert!((busy.prompt - 8.0).abs() < 0.5 && (idle.prompt - 8.0).abs() < 0.5);
        assert!((1.0..1.4).contains(&busy.batch), "{busy:?}");
        assert!((idle.batch - busy.batch).abs() < 0.2, "{idle:?} {busy:?}");
    }

    /// Lessons in 200 s if so many requests per second leave without an answer.
    fn lessons_despite(unserved: f64) -> usize {
        let mut lessons = IterationSampler::default();
        let stride = IntervalDelta { unserved: Requests::new(unserved), ..stride(ALONE, 1) };
        (0..200).filter_map(|_| lessons.take(&stride)).count()
    }

    #[test]
    fn nothing_is_learned_while_clients_hang_up() {
        assert!(lessons_despite(0.04) > 10, "a few always do");
        assert_eq!(lessons_despite(0.2), 0, "their prompts are computed and not counted");
    }

    #[test]
    fn prompts_that_are_computed_again_are_prompts() {
        // A tenth of the requests is preempted, with 800 tokens each.
        let preempted = IntervalDelta {
            preempted: Some(requests(0.1)),
            kv_usage: Fraction::new(0.8),
            kv_capacity: Tokens::new(1000.0),
            running: Some(requests(1.0)),
            ..stride(ALONE, 1)
        };

        let [once, again] = [stride(ALONE, 1), preempted].map(|stride| {
            let mut lessons = IterationSampler::default();
            (0..200).find_map(|_| lessons.take(&stride)).unwrap()
        });

        assert!((again.prompt / once.prompt - 1.2).abs() < 1e-9, "{again:?}");
        assert!((again.seconds - once.seconds).abs() < 1e-9, "{again:?}");
    }

    #[test]
    fn ranks_share_what_a_replica_does() {
        let each = lesson(&[ALONE], 1).unwrap();
        let twice = Second {
            computed: 800.0,
            generated: 100.0,
            begun: 2.0,
            between: 1.96,
            intervals: 98.0,
            batched: 2.0,
            finished: 2.0,
        };

        assert_eq!(lesson(&[twice], 2), Some(each));
    }

    #[test]
    fn answers_of_one_token_are_measured_by_their_stays_and_not_by_the_clock() {
        // Ten requests per second, each alone for 30 ms.
        let one = Second {
            computed: 3000.0,
            generated: 10.0,
            begun: 10.0,
            batched: 0.3,
            finished: 10.0,
            ..NOTHING
        };

        let found = lesson(&[one], 1).unwrap();

        assert!((found.seconds - 0.03).abs() < 1e-9, "{found:?}");
        assert!((1.0..1.01).contains(&found.batch), "{found:?}");
        // Its own prompt, and sometimes the prompt of another request that came just before.
        assert!((300.0..330.0).contains(&found.prompt), "{found:?}");
    }

    #[test]
    fn requests_that_a_router_keeps_apart_meet_no_others() {
        let many = Second {
            computed: 6000.0,
            generated: 20.0,
            begun: 20.0,
            batched: 0.8,
            finished: 20.0,
            ..NOTHING
        };

        let apart = IntervalDelta { steps: Requests::new(20.0), ..stride(many, 1) };
        let mut lessons = IterationSampler::default();
        let found = (0..200).find_map(|_| lessons.take(&apart)).unwrap();

        assert!((found.prompt - 300.0).abs() < 1e-6, "{found:?}");
        assert!(lesson(&[many], 1).unwrap().prompt > 400.0, "at random they do");
        let e = std::f64::consts::E;
        assert!((poisson(1.0 + 1.0 / e) - 1.0).abs() < 1e-9 && poisson(0.3) < 1e-12);
    }

    #[test]
    fn outputs_of_several_tokens_are_one_request_in_the_batch() {
        let speculating = Second { generated: 148.0, ..ALONE };
        let found = lesson(&[speculating], 1).unwrap();

        assert!((1.0..1.4).contains(&found.batch), "{found:?}");
        assert!((found.tokens - found.prompt - 3.0 * found.batch).abs() < 0.01, "{found:?}");
    }

    #[test]
    fn too_little_says_nothing_and_is_forgotten() {
        let rare = Second { begun: 0.01, generated: 0.5, between: 0.01, intervals: 0.5, ..NOTHING };
        assert_eq!(lesson(&[rare], 1), None);
        assert_eq!(lesson(&[NOTHING], 1), None);

        let unknown = IntervalDelta { begun: None, ..stride(ALONE, 1) };
        let mut lessons = IterationSampler::default();
        assert!((0..200).all(|_| lessons.take(&unknown).is_none()));
    }

    /// The full work in the second lesson of a replica that runs eight requests.
    fn full_work(waiting: f64) -> Option<FullWork> {
        let queued = IntervalDelta {
            waiting: Requests::new(waiting),
            running: Requests::new(8.0),
            ..stride(Second { intervals: 392.0, between: 7.84, generated: 400.0, ..ALONE }, 1)
        };

        let mut lessons = IterationSampler::default();
        let first = (0..15).find_map(|_| lessons.take(&queued)).unwrap();
        assert_eq!(first.full, None, "it was idle in a part of it");
        (0..15).find_map(|_| lessons.take(&queued)).unwrap().full
    }

    #[test]
    fn a_replica_is_full_while_a_quarter_as_many_wait_as_run() {
        assert_eq!(full_work(2.0), Some(FullWork { generated: 400.0, begun: 1.0 }));
        assert_eq!(full_work(1.0), None, "one of eight may wait for something else");
    }

    #[test]
    fn what_a_stride_hides_grows_with_its_length() {
        assert!((unseen(1e-4) - 1e-4 / 3.0).abs() < 1e-9);
        assert!((unseen(1e-3) - 1e-3 / 3.0).abs() < 1e-6, "the two sides meet");
        assert!((unseen(1.0) - (1.0 - 2.0 * (-1.0_f64).exp())).abs() < 1e-12);
        assert!(unseen(1000.0) > 0.99);
    }
}
