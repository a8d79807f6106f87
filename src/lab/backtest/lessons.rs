//! What the pages of a replica teach of its iterations, by its role.
//!
//! # Model
//!
//! [`Pace`](plimsoll_core::analyze::foresight::pace) fits `T = alpha + beta * p + delta * n` to the mean time
//! of an iteration, and takes as that the smaller of the time over the iterations and the time
//! between two tokens. Two things in it are not so where the roles are apart:
//!
//! - **Decode.** A prompt is counted on the page of the replica that decodes, and was computed
//!   elsewhere: one iteration computes its last token again, as vLLM does with a KV connector. So
//!   `p` is one token for each request, not its prompt; else most of what decoding takes would be
//!   learned as the time of prompts, which are in proportion to it.
//! - **Prefill.** There is no time between two tokens, since each request has one, and the time over
//!   the iterations includes that in which the replica was idle. What is counted instead is how long
//!   each request was in the batch: from its arrival to its end, without its time in the queue. With
//!   one request in each iteration these spans together are the time in which the replica was busy.
//!   With `m` in each they count it `m` times, and so on average `E[m^2] / E[m]` times, as an
//!   iteration of `m` is seen by `m`. Where requests arrive at random, those that have arrived
//!   during an iteration are in the next: `m = max(1, Poisson(a))`, whose mean `a + exp(-a)` is
//!   counted, as requests over iterations. Where that says more than the time that has passed, the
//!   replica was busy throughout, so the smaller of the two holds. Nobody decodes: `n = 0`. The two
//!   coefficients are fitted to all lessons by least squares, around where foresight starts from.
//!
//! # Domain
//!
//! Prompts that take several iterations share them with others more often than that; then the busy
//! time is taken for too long, the more so the busier the replica was, up to all of the time. So a
//! lesson counts the less, the more of its time requests were in the batch ([`LOOSE`]). vLLM counts
//! from the arrival at its HTTP server, so a few milliseconds for each request are counted that no
//! iteration took.

use plimsoll_core::analyze::foresight::pace::{Iteration, Lesson, Pace, SETTLED, STEPS_MIN};
use plimsoll_core::observe::Reading;
use plimsoll_core::observe::histogram::Histogram;
use plimsoll_core::observe::stride::Stride;
use plimsoll_core::units::{Requests, Tokens};

/// Steps of Newton's method; from the right it needs no more than half of them.
const NEWTON: u32 = 40;

/// How far a lesson is off from one to the next, as a share.
const NOISE: f64 = 0.05;

/// How far it may be off in addition where requests were in the batch all the time, as a share: half
/// of that time may have been counted twice.
const LOOSE: f64 = 0.5;

/// The strides of one replica, as lessons of what its iterations take.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lessons {
    lesson: Lesson,
    /// Seconds that requests had been in the batch by the page before.
    before: Option<f64>,
    /// Seconds that they were since the last lesson; `None` where a page did not say it.
    batched: Option<f64>,
    begun: bool,
}

/// A lesson, and the seconds that requests were in the batch, as far as the pages say it.
pub(crate) type Taught = (Stride, Option<f64>);

/// What an iteration takes that computes nothing but prompts: `T = alpha + beta * p`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Prompts {
    /// Sums over lessons, each by its weight: of 1, `p` and `p * p`.
    content: [f64; 3],
    /// Of `T` and `p * T`.
    times: [f64; 2],
    lessons: u32,
}

// === impl Lessons ===

impl Lessons {
    /// Takes a page, with what was done since the one before where the two can be compared, and gives
    /// a lesson when there is enough for one.
    pub(crate) fn take(&mut self, reading: &Reading, stride: Option<&Stride>) -> Option<Taught> {
        let now = batched(reading);
        let before = std::mem::replace(&mut self.before, now);
        let stride = stride?;
        let more = now.zip(before).map(|(now, before)| now - before);
        let known = if self.begun { self.batched } else { Some(0.0) };
        self.batched = known.zip(more).map(|(known, more)| known + more);
        self.begun = true;
        let lesson = self.lesson.take(stride)?;
        self.begun = false;
        Some((lesson, self.batched))
    }
}

// === impl Prompts ===

impl Prompts {
    /// Learns from what a replica did; nothing from one that did too little.
    pub(crate) fn learn(&mut self, (lesson, batched): &Taught) -> Option<()> {
        let requests = lesson.lengths.map(|(.., requests)| requests.requests())?;
        let steps = lesson.steps.map(Requests::requests).filter(|steps| *steps >= STEPS_MIN)?;
        let tokens = lesson.prompt?.tokens() / steps;
        let batched = batched.filter(|batched| *batched > 0.0)?;
        let passed = lesson.elapsed.seconds() * f64::from(lesson.ranks);
        let seconds = (batched / counted(requests / steps)).min(passed) / steps;
        let doubt = seconds * (NOISE + LOOSE * (batched / passed).min(1.0));
        let weight = doubt.powi(-2);
        for (sum, value) in self.content.iter_mut().zip([1.0, tokens, tokens * tokens]) {
            *sum += weight * value;
        }
        for (sum, value) in self.times.iter_mut().zip([seconds, tokens * seconds]) {
            *sum += weight * value;
        }
        self.lessons = self.lessons.saturating_add(1);
        Some(())
    }

    /// What an iteration takes; `None` while too little was seen. Neither coefficient is negative.
    pub(crate) fn iteration(&self) -> Option<Iteration> {
        if self.lessons < SETTLED {
            return None;
        }
        let start = Pace::default().assumed();
        let [ones, tokens, squares] = self.content;
        let (ones, squares) = (ones + start.alpha.powi(-2), squares + start.beta.powi(-2));
        let [times, products] = self.times;
        let (times, products) = (times + start.alpha.recip(), products + start.beta.recip());
        let determinant = ones * squares - tokens * tokens;
        let alpha = (times * squares - products * tokens) / determinant;
        let beta = (products * ones - times * tokens) / determinant;
        let (alpha, beta) = match (alpha >= 0.0, beta >= 0.0) {
            (true, true) => (alpha, beta),
            // Where one would be negative, the other takes what is left.
            (false, _) => (0.0, products / squares),
            (true, false) => (times / ones, 0.0),
        };
        Some(Iteration { alpha, beta, delta: start.delta })
    }
}

/// Seconds that the requests that finished have been in the batch.
fn batched(reading: &Reading) -> Option<f64> {
    let ranks = reading.ranks.iter();
    let sum = |of: Option<&Histogram>| of.map(|it| it.sum);
    ranks.map(|rank| Some(sum(rank.e2e.as_ref())? - sum(rank.queue_time.as_ref())?)).sum()
}

/// What a replica teaches that decodes what others have begun.
pub(crate) fn decoding(lesson: &Stride) -> Option<Stride> {
    let (.., requests) = lesson.lengths?;
    Some(Stride { prompt: Tokens::new(requests.requests()), ..*lesson })
}

/// How often an iteration is counted by the requests in it, where so many are in one on average.
fn counted(mean: f64) -> f64 {
    if mean <= 1.0 {
        return 1.0;
    }
    // The root of a + exp(-a) = mean, from the right, where the left side is convex and rises.
    let mut a = mean;
    for _ in 0..NEWTON {
        a -= (a + (-a).exp() - mean) / (1.0 - (-a).exp());
    }
    (a + a * a + (-a).exp()) / mean
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use plimsoll_core::units::Seconds;

    /// A quarter of a minute of a replica with so many iterations of so many tokens and seconds, each
    /// seen by so many requests.
    fn taught(steps: f64, tokens: f64, seconds: f64, seen: f64) -> Taught {
        let lengths = Tokens::new(tokens * steps).zip(Tokens::new(steps));
        let stride = Stride {
            lengths: lengths.and_then(|(it, ones)| Some((it, ones, Requests::new(steps)?))),
            steps: Requests::new(steps),
            prompt: Tokens::new(tokens * steps),
            ..Stride::over(Timestamp::UNIX_EPOCH, Seconds::literal(15))
        };
        (stride, Some(steps * seconds * seen))
    }

    fn takes(tokens: f64) -> f64 {
        0.0074 + 15.6e-6 * tokens
    }

    #[test]
    fn what_prompts_take_is_found_from_a_replica_that_is_idle_most_of_the_time() {
        let mut prompts = Prompts::default();
        for round in 0..40 {
            let (steps, tokens) = (f64::from(30 + round % 5 * 9), f64::from(900 + round % 7 * 300));
            prompts.learn(&taught(steps, tokens, takes(tokens), 1.0)).unwrap();
        }
        let Iteration { alpha, beta, .. } = prompts.iteration().unwrap();
        assert!((alpha / 0.0074 - 1.0).abs() < 0.05, "{alpha}");
        assert!((beta / 15.6e-6 - 1.0).abs() < 0.05, "{beta}");
    }

    #[test]
    fn a_busy_replica_whose_iterations_are_counted_twice_does_not_turn_the_others_over() {
        let mut prompts = Prompts::default();
        for round in 0..40 {
            let busy = round < 8;
            let (steps, tokens) = if busy { (250.0, 1780.0) } else { (80.0, 1620.0) };
            let seen = if busy { 1.3 } else { 1.05 };
            prompts.learn(&taught(steps, tokens, takes(tokens), seen)).unwrap();
        }
        let Iteration { alpha, beta, .. } = prompts.iteration().unwrap();
        let found = alpha + beta * 1620.0;
        assert!((found / takes(1620.0) - 1.0).abs() < 0.1, "{found} for {}", takes(1620.0));
    }

    #[test]
    fn a_replica_that_did_next_to_nothing_teaches_nothing() {
        let mut prompts = Prompts::default();
        for _ in 0..40 {
            assert_eq!(prompts.learn(&taught(9.0, 900.0, takes(900.0), 1.0)), None);
        }
        assert_eq!(prompts.iteration(), None);
    }

    #[test]
    fn an_iteration_is_counted_once_by_one_request_and_by_more_as_often_as_they_are_in_it() {
        assert!((counted(0.3) - 1.0).abs() < 1e-12 && (counted(1.0) - 1.0).abs() < 1e-12);
        // Of Poisson(1): the mean of max(1, m) is 1 + 1/e, and that of its square 2 + 1/e.
        let e = std::f64::consts::E;
        let (mean, square) = (1.0 + 1.0 / e, 2.0 + 1.0 / e);
        assert!((counted(mean) - square / mean).abs() < 1e-9, "{}", counted(mean));
        // Hardly ever is there none of Poisson(20).
        assert!((counted(20.0) - 21.0).abs() < 1e-6, "{}", counted(20.0));
        assert!(counted(1.000_001) < 1.003);
    }
}
