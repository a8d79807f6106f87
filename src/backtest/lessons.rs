//! What the pages of a replica teach of its iterations, by its role.
//!
//! # Model
//!
//! [`Pace`](crate::analyze::foresight::pace) fits `T = alpha + beta * p + delta * n` to the mean time
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
//!   replica was busy throughout, so the smaller of the two holds. No request of it decodes: `n = 0`.
//!
//! # Domain
//!
//! Prompts that take several iterations share them with others more often than that; then the busy
//! time is taken for too long, up to all of it. vLLM counts from the arrival at its HTTP server, so
//! a few milliseconds for each request are counted that no iteration took.

use crate::analyze::foresight::pace::Lesson;
use crate::fleet::Role;
use crate::observe::Reading;
use crate::observe::histogram::Histogram;
use crate::observe::stride::Stride;
use crate::units::{Requests, Seconds, Tokens};

/// Steps of Newton's method; from the right it needs no more than half of them.
const NEWTON: u32 = 40;

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

// === impl Lessons ===

impl Lessons {
    /// Takes a page, with what was done since the one before where the two can be compared, and gives
    /// a lesson when there is enough for one.
    pub(crate) fn take(
        &mut self,
        role: Role,
        reading: &Reading,
        stride: Option<&Stride>,
    ) -> Option<Stride> {
        let now = batched(reading);
        let before = std::mem::replace(&mut self.before, now);
        let stride = stride?;
        let more = now.zip(before).map(|(now, before)| now - before);
        let known = if self.begun { self.batched } else { Some(0.0) };
        self.batched = known.zip(more).map(|(known, more)| known + more);
        self.begun = true;
        let lesson = self.lesson.take(stride)?;
        self.begun = false;
        match role {
            Role::Both => Some(lesson),
            Role::Prefill => computing(&lesson, self.batched?),
            Role::Decode => decoding(&lesson),
        }
    }
}

/// Seconds that the requests that finished have been in the batch.
fn batched(reading: &Reading) -> Option<f64> {
    let ranks = reading.ranks.iter();
    let sum = |of: Option<&Histogram>| of.map(|it| it.sum);
    ranks.map(|rank| Some(sum(rank.e2e.as_ref())? - sum(rank.queue_time.as_ref())?)).sum()
}

/// What a replica teaches that computes prompts, whose requests were in the batch for so long.
fn computing(lesson: &Stride, batched: f64) -> Option<Stride> {
    let requests = lesson.lengths.map(|(.., requests)| requests.requests())?;
    let steps = lesson.steps.map(Requests::requests).filter(|steps| *steps > 0.0)?;
    let busy = Seconds::new(batched / counted(requests / steps) / f64::from(lesson.ranks))?;
    Some(Stride {
        elapsed: lesson.elapsed.min(busy),
        generated: Some(Tokens::ZERO),
        intervals: None,
        ..*lesson
    })
}

/// What a replica teaches that decodes what others have begun.
fn decoding(lesson: &Stride) -> Option<Stride> {
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
    use super::*;

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
