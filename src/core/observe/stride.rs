//! What a replica did from one page to the next.
//!
//! A [`Stride`] is made of differences of counters, its ranks added up. An [`Odometer`] remembers
//! the page before, and gives none where the two cannot be compared: on the first page, after a
//! restart, and when ranks came or went.
//!
//! # Source
//!
//! vLLM counts the tokens that an iteration schedules ([`RankReading::step_tokens`]): the prompt
//! tokens that it computes and one for each that it generates. So the sum of the histogram without
//! the generated tokens is what was computed of prompts; in recordings of vLLM 0.32 it is that
//! exactly, with prefix caches and transfers as well. Where there is no such histogram, it is the
//! prompts without what the prefix cache had.

use jiff::Timestamp;

use crate::observe::engine::Engine;
use crate::observe::histogram::{Histogram, Life};
use crate::observe::{FinishedReading, RankReading, Reading};
use crate::units::{Fraction, Requests, Seconds, Tokens};

/// What one replica did between two pages, its ranks together; absent is unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Stride {
    /// When it ended.
    pub at: Timestamp,
    /// How long it took.
    pub elapsed: Seconds,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// Requests that arrived.
    pub arrived: Option<Requests>,
    /// Requests that left without an answer, because clients hung up or admission control rejected
    /// them. Clients may retry these.
    pub unserved: Option<Requests>,
    /// Tokens of the prompts and of the answers of the requests that finished, and their number.
    pub lengths: Option<(Tokens, Tokens, Requests)>,
    /// Sums of the lengths of their prompts and of the squares of these, as
    /// [buckets](Histogram::moments) tell them.
    pub prompt_moments: Option<[f64; 2]>,
    /// The same of their answers.
    pub answer_moments: Option<[f64; 2]>,
    /// Prompt tokens that they computed, or had from a cache or from another replica.
    pub prompt: Option<Tokens>,
    /// Prompt tokens that its engines computed: not those that a cache or another replica had.
    pub computed: Option<Tokens>,
    /// Tokens that they generated.
    pub generated: Option<Tokens>,
    /// Answers that they began: their first tokens.
    pub begun: Option<Requests>,
    /// Iterations that were counted: several times, where API servers share an engine, and not at all
    /// where they began no answer and continued none.
    pub steps: Option<Requests>,
    /// The sum of the times from one output of a request to its next, and their number. An output is
    /// one token, or several where an engine speculates.
    pub intervals: Option<(Seconds, Requests)>,
    /// The time that the requests which finished had spent in batches, and their number.
    pub batched: Option<(Seconds, Requests)>,
    /// Requests that wait for room at its end, or for whatever where an engine does not say for what.
    pub waiting: Option<Requests>,
    /// Requests that run at its end.
    pub running: Option<Requests>,
    /// The share of the KV cache in use at its end, the mean over the ranks.
    pub kv_usage: Option<Fraction>,
    /// Tokens in the KV caches of all ranks.
    pub kv_capacity: Option<Tokens>,
}

/// Gives a stride for every page but the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Odometer {
    before: Option<(Timestamp, Count)>,
}

/// What a page has counted since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Count {
    ranks: u32,
    started: Option<Timestamp>,
    finished: Option<f64>,
    asked: Option<f64>,
    answered: Option<f64>,
    rejected: Option<f64>,
    in_flight: Option<f64>,
    prompt: Option<f64>,
    cached: Option<f64>,
    generated: Option<f64>,
    scheduled: Option<f64>,
    begun: Option<f64>,
    steps: Option<f64>,
    intervals: Option<(f64, f64)>,
    batched: Option<(f64, f64)>,
    stays: Option<(f64, f64)>,
    queued: Option<f64>,
    prompts: Option<(f64, f64)>,
    prompt_moments: Option<(f64, f64)>,
    answer_moments: Option<(f64, f64)>,
    answers: Option<(f64, f64)>,
}

// === impl Stride ===

impl Stride {
    /// A stride of which nothing is known but when it was.
    #[must_use]
    pub const fn over(at: Timestamp, elapsed: Seconds) -> Self {
        Self {
            at,
            elapsed,
            ranks: 1,
            arrived: None,
            unserved: None,
            lengths: None,
            prompt_moments: None,
            answer_moments: None,
            prompt: None,
            computed: None,
            generated: None,
            begun: None,
            steps: None,
            intervals: None,
            batched: None,
            waiting: None,
            running: None,
            kv_usage: None,
            kv_capacity: None,
        }
    }
}

// === impl Odometer ===

impl Odometer {
    /// What was done since the page before.
    pub fn take(&mut self, at: Timestamp, reading: &Reading) -> Option<Stride> {
        let count = Count::of(reading);
        let (then, before) = self.before.replace((at, count))?;
        let elapsed = Seconds::from_span(at.duration_since(then))?;
        let comparable = elapsed > Seconds::ZERO
            && before.ranks == count.ranks
            && Life::between(before.started, count.started) == Life::Same;
        let stride = comparable.then(|| count.since(&before))??;
        Some(Stride {
            at,
            elapsed,
            ranks: count.ranks,
            waiting: summed(&reading.ranks, |rank| {
                rank.waiting_capacity.or(rank.waiting).map(Requests::requests)
            })
            .and_then(Requests::new),
            running: summed(&reading.ranks, |rank| rank.running.map(Requests::requests))
                .and_then(Requests::new),
            kv_usage: summed(&reading.ranks, |rank| rank.kv_usage.map(Fraction::fraction))
                .and_then(|sum| Fraction::new(sum / f64::from(count.ranks))),
            kv_capacity: summed(&reading.ranks, |rank| rank.kv_capacity.map(Tokens::tokens))
                .and_then(Tokens::new),
            ..stride
        })
    }
}

// === impl Count ===

impl Count {
    fn of(reading: &Reading) -> Self {
        let ranks = requests_of(reading);
        let gauge = |of: fn(&RankReading) -> Option<f64>| summed(&reading.ranks, of);
        let sum = |of: fn(&RankReading) -> Option<f64>| summed(ranks, of);
        let waiting = gauge(|rank| rank.waiting.map(Requests::requests));
        let running = gauge(|rank| rank.running.map(Requests::requests));

        Self {
            ranks: u32::try_from(reading.ranks.len()).unwrap_or(u32::MAX),
            started: reading.started,
            finished: sum(|rank| finished(rank.finished)),
            asked: sum(|rank| Some(rank.completions_asked.as_ref()?.count)),
            answered: reading.http.success.map(Requests::requests),
            rejected: reading.rejected.map(Requests::requests),
            in_flight: waiting.zip(running).map(|(waiting, running)| waiting + running),
            prompt: sum(|rank| rank.prompt_tokens.map(Tokens::tokens)),
            cached: sum(|rank| rank.prefix_hits.map(Tokens::tokens)),
            generated: sum(|rank| rank.generation_tokens.map(Tokens::tokens)),
            scheduled: sum(|rank| Some(rank.step_tokens.as_ref()?.sum)),
            begun: sum(|rank| Some(rank.ttft.as_ref()?.count)),
            steps: sum(|rank| Some(rank.step_tokens.as_ref()?.count)),
            intervals: totals(ranks, |rank| rank.itl.as_ref()),
            batched: totals(ranks, |rank| rank.inference_time.as_ref()),
            stays: totals(ranks, |rank| rank.e2e.as_ref()),
            queued: sum(|rank| Some(rank.queue_time.as_ref()?.sum)),
            prompts: totals(ranks, |rank| rank.prompt_length.as_ref()),
            prompt_moments: moments(ranks, |rank| rank.prompt_length.as_ref()),
            answer_moments: moments(ranks, |rank| rank.generation_length.as_ref()),
            answers: totals(ranks, |rank| rank.generation_length.as_ref()),
        }
    }

    /// What was counted after `before`; `None` when a counter went back.
    fn since(&self, before: &Self) -> Option<Stride> {
        // Outer: whether the two can be compared. Inner: whether anything is known.
        let grown = |now: Option<f64>, then: Option<f64>| match now.zip(then) {
            Some((now, then)) if now < then => None,
            Some((now, then)) => Some(Some(now - then)),
            None => Some(None),
        };
        let pair = |now: Option<(f64, f64)>, then: Option<(f64, f64)>| {
            let sum = grown(now.map(|it| it.0), then.map(|it| it.0))?;
            let count = grown(now.map(|it| it.1), then.map(|it| it.1))?;
            Some(sum.zip(count))
        };
        let finished = grown(self.finished, before.finished)?;
        let asked = grown(self.asked, before.asked)?;
        let answered = grown(self.answered, before.answered)?.unwrap_or(0.0);
        let rejected = grown(self.rejected, before.rejected)?.unwrap_or(0.0);
        let in_flight = self.in_flight.zip(before.in_flight).map(|(now, then)| now - then);
        let gone = finished.map(|finished| Gone { finished, asked, answered, rejected });
        let arrived = gone.zip(in_flight).map(|(gone, in_flight)| arrived(gone, in_flight));
        let prompts = pair(self.prompts, before.prompts)?;
        let answers = pair(self.answers, before.answers)?;
        let lengths = prompts.zip(answers).and_then(|((prompts, count), (answers, _))| {
            Some((Tokens::new(prompts)?, Tokens::new(answers)?, Requests::new(count)?))
        });
        let prompt_moments = pair(self.prompt_moments, before.prompt_moments)?;
        let answer_moments = pair(self.answer_moments, before.answer_moments)?;
        let generated = grown(self.generated, before.generated)?;
        let scheduled = grown(self.scheduled, before.scheduled)?;
        let prompt = grown(self.prompt, before.prompt)?;
        let cached = grown(self.cached, before.cached)?.unwrap_or(0.0);
        let computed = match scheduled.zip(generated) {
            Some((scheduled, generated)) => Some(scheduled - generated),
            None => prompt.map(|prompt| prompt - cached),
        };
        let intervals = pair(self.intervals, before.intervals)?;
        let stays = pair(self.stays, before.stays)?;
        let queued = grown(self.queued, before.queued)?;
        let unqueued =
            stays.zip(queued).map(|(stays, queued)| ((stays.0 - queued).max(0.0), stays.1));
        let batched = pair(self.batched, before.batched)?.or(unqueued);

        Some(Stride {
            arrived: arrived.and_then(Requests::new),
            unserved: gone.and_then(|gone| Requests::new(gone.unserved())),
            lengths,
            prompt_moments: prompt_moments.map(|(sum, squares)| [sum, squares]),
            answer_moments: answer_moments.map(|(sum, squares)| [sum, squares]),
            prompt: prompt.and_then(Tokens::new),
            computed: computed.and_then(|computed| Tokens::new(computed.max(0.0))),
            generated: generated.and_then(Tokens::new),
            begun: grown(self.begun, before.begun)?.and_then(Requests::new),
            steps: grown(self.steps, before.steps)?.and_then(Requests::new),
            intervals: intervals
                .and_then(|(sum, count)| Seconds::new(sum).zip(Requests::new(count))),
            batched: batched.and_then(|(sum, count)| Seconds::new(sum).zip(Requests::new(count))),
            ..Stride::over(Timestamp::UNIX_EPOCH, Seconds::ZERO)
        })
    }
}

/// Requests that a replica has done with in some time, as several counters see them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    /// Those that finished.
    pub(crate) finished: f64,
    /// Those that asked for completions, each counted once however many it asked for.
    pub(crate) asked: Option<f64>,
    /// Those that the HTTP server answered.
    pub(crate) answered: f64,
    /// Those that admission control turned away.
    pub(crate) rejected: f64,
}

/// Requests that arrived: those that left, and by how many more are in flight.
///
/// A client that hangs up is not among the finished requests of any vLLM up to 0.33, but the HTTP
/// server counts its answer. So what left is what finished, and in addition what was answered
/// without finishing: the answers beyond the finished requests, which the histogram of `n` counts
/// once where a request for two completions finishes twice. Requests that admission control turns
/// away have arrived as well.
///
/// # Source
///
/// Conservation of requests; what each counter counts was found in recordings of vLLM 0.11 and 0.32.
pub(crate) fn arrived(gone: Gone, in_flight: f64) -> f64 {
    (gone.finished + gone.hung_up() + in_flight).max(0.0) + gone.rejected
}

// === impl Gone ===

impl Gone {
    /// Requests that the HTTP server answered without finishing them.
    fn hung_up(&self) -> f64 {
        (self.answered - self.asked.unwrap_or(self.finished)).max(0.0)
    }

    /// Requests that clients may retry.
    fn unserved(&self) -> f64 {
        self.hung_up() + self.rejected
    }
}

fn finished(reading: FinishedReading) -> Option<f64> {
    let FinishedReading { stop, length, abort, error, other } = reading;
    let known = [stop, length, abort, error, other].into_iter().flatten();
    known.map(Requests::requests).reduce(|a, b| a + b)
}

/// The ranks that count requests. `SGLang` counts those of all ranks on the first.
fn requests_of(reading: &Reading) -> &[RankReading] {
    match reading.engine {
        Engine::Sglang => reading.ranks.get(..1).unwrap_or_default(),
        Engine::Vllm => &reading.ranks,
    }
}

/// The sum over all ranks; `None` when there are none or one does not say it.
fn summed(ranks: &[RankReading], of: impl Fn(&RankReading) -> Option<f64>) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }
    ranks.iter().map(of).sum()
}

fn moments(
    ranks: &[RankReading],
    of: fn(&RankReading) -> Option<&Histogram>,
) -> Option<(f64, f64)> {
    let told = ranks.iter().map(|rank| of(rank)?.moments());
    let sums = told.collect::<Option<Vec<[f64; 2]>>>()?;
    sums.into_iter().map(|[sum, squares]| (sum, squares)).reduce(|a, b| (a.0 + b.0, a.1 + b.1))
}

fn totals(
    ranks: &[RankReading],
    of: impl Fn(&RankReading) -> Option<&Histogram>,
) -> Option<(f64, f64)> {
    Some((summed(ranks, |rank| Some(of(rank)?.sum))?, summed(ranks, |rank| Some(of(rank)?.count))?))
}
