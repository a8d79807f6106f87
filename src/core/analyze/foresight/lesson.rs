//! What the counters of a replica say of its iterations: how long one took, and what was in it.
//!
//! # Model
//!
//! No page says how many iterations there were: where several API servers share an engine, each
//! counts those that it has a request in, a pipeline has several at once, and one that computes a
//! piece of a prompt is not counted. What pages do say is time. A request that runs gets its next
//! output an iteration after the last, so the mean time between outputs is the mean iteration as
//! outputs see it, and so is what they find in it:
//!
//! ```text
//! T = intervals' seconds / intervals                  seconds
//! n = mean of (intervals' seconds / stride)           requests in the batch (Little's law)
//! p = mean of (computed prompt tokens / stride * T)   prompt tokens
//! ```
//!
//! Both means are over strides, each by the intervals in it, so that idle time counts for nothing.
//! Inside a stride requests come and go unseen. Where they arrive at random and stay for `D` seconds,
//! an output finds one request more than the mean over a long stride and none more than that over a
//! short one of `s` seconds: the share `1 - 2 (D/s)^2 (s/D - 1 + exp(-s/D))` of a request.
//!
//! **Short answers** have few intervals or none, and those that they have follow their own prompts.
//! What is counted instead is how long a request was in the batch, from its first iteration to its
//! last, which is `T` for each output. In its iterations are its own prompt and those of requests that
//! it met: `m = max(1, Poisson(a))` requests are in an iteration when `a` come to it, and one of them
//! meets `E[m^2] / E[m] - 1 = a^2 / (a + exp(-a))` others. Of requests that arrive at random, `a` come
//! in the time of an iteration. A router that prefers idle replicas lets fewer meet: then there are
//! `E[m] = a + exp(-a)` outputs for each iteration that was counted, and the smaller `a` holds.
//!
//! # Domain
//!
//! A replica whose requests arrive at random within a stride. Those of an instant that come together
//! find each other, and no stride of seconds shows that: then `n` is too small and a request seems to
//! cost more than it does.
//!
//! # Source
//!
//! Little (1961); Wolff, *Poisson arrivals see time averages* (1982); the variance of a mean over a
//! window of an M/M/inf queue: Whitt, *Planning queueing simulations* (1989). That `T`, `n` and the
//! computed tokens are right with one API server and with two, with prompts in pieces and with
//! speculation was found in recordings of vLLM 0.11 and 0.32: `docs/recordings.md`.

use crate::observe::stride::Stride;
use crate::units::Requests;

/// Seconds that are one lesson: shorter means are too noisy.
const SECONDS: f64 = 15.0;

/// Requests that wait at a full replica, over those that run. Fewer may wait for something else than
/// room, such as a transfer, where an engine does not report for what.
const QUEUE: f64 = 0.25;

/// Strides in a row with such a queue after which a replica is full: one that just began to queue was
/// idle in a part of its stride, and Prometheus shows one instant of a quarter of a minute.
const FULL_PAGES: u32 = 4;

/// The share of requests that may leave without an answer. An engine counts a prompt once its answer
/// begins, so what it computed of theirs made iterations long and is in none.
const UNSERVED_MAX: f64 = 0.05;

/// Seconds after which a lesson that has not enough in it is dropped.
const SECONDS_MAX: f64 = 120.0;

/// Times between outputs below which their mean says little.
const INTERVALS_MIN: f64 = 100.0;

/// Finished requests below which their mean time in the batch says little.
const FINISHED_MIN: f64 = 10.0;

/// Tokens of a mean answer below which its few intervals say little of iterations.
const SHORT: f64 = 5.0;

/// How far off a lesson of short answers may be where requests were in the batch all the time, as a
/// share: a prompt that is computed in two pieces counts half of that time twice.
const LOOSE: f64 = 0.5;

/// Steps of Newton's method; from the right it needs no more than half of them.
const NEWTON: u32 = 40;

/// The mean iteration of some seconds of a replica, for each of its ranks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Lesson {
    /// Prompt tokens in it.
    pub prompt: f64,
    /// Requests in it that generate.
    pub batch: f64,
    /// Seconds that it took.
    pub seconds: f64,
    /// Tokens in it, of prompts and of answers.
    pub tokens: f64,
    /// Prompts that were computed meanwhile.
    pub prompts: f64,
    /// By how much it may be off beyond what any lesson is: one standard deviation, as a share.
    pub doubt: f64,
    /// Whether it is of answers so short that requests are seldom seen to run.
    pub is_short: bool,
    /// The work of a rank, if it was full all along.
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

/// Gathers what one replica does until it says something of its iterations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Lessons {
    strides: f64,
    /// Strides in a row at whose end a queue waited for room, those of lessons before included.
    queued: u32,
    /// Strides in which the replica was full.
    full: f64,
    elapsed: f64,
    computed: f64,
    generated: f64,
    begun: f64,
    /// Iterations that were counted, where all strides say it.
    steps: Option<f64>,
    intervals: f64,
    /// The sum of the intervals, in seconds.
    between: f64,
    /// Requests that ran, summed over the intervals.
    batches: f64,
    /// Computed prompt tokens a second, summed over the seconds of the intervals.
    prompts: f64,
    batched: f64,
    finished: f64,
}

// === impl Lesson ===

impl Lesson {
    /// What coefficients of an iteration are multiplied with.
    #[must_use]
    pub const fn features(&self) -> [f64; 3] {
        [1.0, self.prompt, self.batch]
    }
}

// === impl Lessons ===

impl Lessons {
    /// Adds a stride, and gives a lesson when there is enough for one.
    pub fn take(&mut self, stride: &Stride) -> Option<Lesson> {
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

    /// Adds a stride; `None` where it lacks something, or does not count a part of its work.
    fn add(&mut self, stride: &Stride) -> Option<()> {
        let seconds = stride.elapsed.seconds();
        let ranks = f64::from(stride.ranks.max(1));
        let computed = stride.computed?.tokens() / ranks;
        let generated = stride.generated?.tokens() / ranks;
        let begun = stride.begun?.requests() / ranks;
        let unserved = stride.unserved.map_or(0.0, Requests::requests) / ranks;
        if unserved > UNSERVED_MAX * (begun + unserved) {
            return None;
        }
        let (between, intervals) = stride.intervals?;
        let (between, intervals) = (between.seconds() / ranks, intervals.requests() / ranks);

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

    /// By the times between outputs.
    fn of_intervals(&self) -> Option<Lesson> {
        if self.intervals < INTERVALS_MIN || self.between <= 0.0 {
            return None;
        }

        let batch = self.batches / self.intervals + self.unseen();
        let prompt = self.prompts / self.intervals;
        let outputs = (self.generated - self.begun).max(0.0) / self.intervals;
        Some(Lesson {
            prompt,
            batch,
            seconds: self.between / self.intervals,
            tokens: prompt + batch * outputs,
            prompts: self.begun,
            doubt: 0.0,
            is_short: false,
            full: self.full(),
        })
    }

    /// By the time that requests spend in the batch.
    fn of_stays(&self) -> Option<Lesson> {
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
        Some(Lesson {
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

/// Whether requests wait for room in a replica, and more than a few.
fn has_queue(stride: &Stride) -> bool {
    let queue = stride.waiting.zip(stride.running);
    queue.is_some_and(|(waiting, running)| {
        waiting.requests() >= (QUEUE * running.requests()).max(1.0)
    })
}

/// The `a` of which `max(1, Poisson(a))` has this mean; none where that is not more than one.
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

/// The share of the variance of a number of requests that is lost by taking means over this many
/// times the time that each stays.
fn unseen(stays: f64) -> f64 {
    // Below, the difference of nearly equal numbers; the first term of its series is all of it.
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
    use crate::units::{Seconds, Tokens};

    /// What a replica counts in a second.
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

    fn stride(second: Second, ranks: u32) -> Stride {
        let Second { computed, generated, begun, between, intervals, batched, finished } = second;
        let requests = |count: f64| Requests::new(count).unwrap();
        Stride {
            ranks,
            computed: Tokens::new(computed),
            generated: Tokens::new(generated),
            begun: Some(requests(begun)),
            intervals: Seconds::new(between).map(|sum| (sum, requests(intervals))),
            batched: Seconds::new(batched).map(|sum| (sum, requests(finished))),
            ..Stride::over(Timestamp::UNIX_EPOCH, Seconds::literal(1))
        }
    }

    /// The lesson of these seconds, over and over.
    fn lesson(seconds: &[Second], ranks: u32) -> Option<Lesson> {
        let mut lessons = Lessons::default();
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

    #[test]
    fn nothing_is_learned_while_clients_hang_up() {
        let lessons = |unserved: f64| {
            let mut lessons = Lessons::default();
            let stride = Stride { unserved: Requests::new(unserved), ..stride(ALONE, 1) };
            (0..200).filter_map(|_| lessons.take(&stride)).count()
        };
        assert!(lessons(0.04) > 10, "a few always do");
        assert_eq!(lessons(0.2), 0, "their prompts are computed and not counted");
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
        // Ten a second, each alone for 30 ms.
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
        // Its own prompt, and now and then that of another which came just before.
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
        let apart = Stride { steps: Requests::new(20.0), ..stride(many, 1) };
        let mut lessons = Lessons::default();
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

        let unknown = Stride { begun: None, ..stride(ALONE, 1) };
        let mut lessons = Lessons::default();
        assert!((0..200).all(|_| lessons.take(&unknown).is_none()));
    }

    #[test]
    fn a_replica_is_full_while_a_quarter_as_many_wait_as_run() {
        let lesson_of = |waiting: f64| {
            let queued = Stride {
                waiting: Requests::new(waiting),
                running: Requests::new(8.0),
                ..stride(Second { intervals: 392.0, between: 7.84, generated: 400.0, ..ALONE }, 1)
            };
            let mut lessons = Lessons::default();
            let first = (0..15).find_map(|_| lessons.take(&queued)).unwrap();
            assert_eq!(first.full, None, "it was idle in a part of it");
            (0..15).find_map(|_| lessons.take(&queued)).unwrap().full
        };
        assert_eq!(lesson_of(2.0), Some(FullWork { generated: 400.0, begun: 1.0 }));
        assert_eq!(lesson_of(1.0), None, "one of eight may wait for something else");
    }

    #[test]
    fn what_a_stride_hides_grows_with_its_length() {
        assert!((unseen(1e-4) - 1e-4 / 3.0).abs() < 1e-9);
        assert!((unseen(1e-3) - 1e-3 / 3.0).abs() < 1e-6, "the two sides meet");
        assert!((unseen(1.0) - (1.0 - 2.0 * (-1.0_f64).exp())).abs() < 1e-12);
        assert!(unseen(1000.0) > 0.99);
    }
}
