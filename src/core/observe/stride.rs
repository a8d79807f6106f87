//! The work of a replica between two scrapes.
//!
//! An [`IntervalDelta`] consists of differences of counters, its ranks added up. An [`Odometer`]
//! remembers the previous scrape. It returns no delta if the two cannot be compared: at the first
//! scrape, after a restart, and when ranks came or went. Of a scrape that lacks counters for now,
//! the delta has no length and shows nothing.
//!
//! # Source
//!
//! vLLM counts the tokens that an iteration schedules ([`RankReading::step_tokens`]): the prompt
//! tokens that it computes and one for each that it generates. So the histogram's sum minus the
//! generated tokens is the number of computed prompt tokens. In recordings of vLLM 0.32 it is
//! exactly that, with prefix caches and transfers as well. Without such a histogram, it is the
//! prompt tokens minus the prefix cache hits.

use jiff::Timestamp;

use crate::observe::histogram::{Histogram, ProcessLife};
use crate::observe::reading::{FinishedReading, RankReading, Reading};
use crate::units::{Fraction, Requests, Seconds, Tokens};

/// Tokens above which an iteration counts as long. With few requests, only iterations that compute
/// prompts have more.
pub(crate) const LONG_STEP: f64 = 32.0;

/// The work of one replica between two scrapes, its ranks combined; absent means unknown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct IntervalDelta {
    /// The end of the interval.
    pub at: Timestamp,
    /// The length of the interval.
    pub elapsed: Seconds,
    /// Data-parallel ranks.
    pub ranks: u32,
    /// Requests that arrived.
    pub arrived: Option<Requests>,
    /// Requests that left without an answer, because clients disconnected or admission control
    /// rejected them. Clients may retry these.
    pub unserved: Option<Requests>,
    /// Prompt and answer tokens of the requests that finished, and the number of these requests.
    pub lengths: Option<(Tokens, Tokens, Requests)>,
    /// Sums of their prompt lengths and of the squares of these, estimated from
    /// [buckets](Histogram::moments).
    pub prompt_moments: Option<[f64; 2]>,
    /// The same sums for the computed tokens of their prompts.
    pub computed_moments: Option<[f64; 2]>,
    /// The same sums for their answers.
    pub answer_moments: Option<[f64; 2]>,
    /// Prompt tokens that were computed, or came from a cache or from another replica.
    pub prompt: Option<Tokens>,
    /// Prompt tokens that its engines computed, without those from a cache or another replica.
    pub computed: Option<Tokens>,
    /// Generated tokens.
    pub generated: Option<Tokens>,
    /// Answers that began: their first tokens.
    pub begun: Option<Requests>,
    /// The sum of the times to these first tokens.
    pub first_tokens: Option<Seconds>,
    /// Counted iterations. They count several times if API servers share an engine. Iterations
    /// without an output do not count.
    pub steps: Option<Requests>,
    /// The sum of the times from one output of a request to its next, and the number of these. An
    /// output is one token, or several if an engine speculates.
    pub intervals: Option<(Seconds, Requests)>,
    /// The time that finished requests had spent in batches, and the number of these requests.
    pub batched: Option<(Seconds, Requests)>,
    /// The time that finished requests had spent from the start of their first iteration to their
    /// first token, and the number of these requests.
    pub prefilled: Option<(Seconds, Requests)>,
    /// Counted iterations of more than [`LONG_STEP`] tokens: their number, and the sums of these
    /// tokens and of their squares, estimated from [buckets](Histogram::moments).
    pub long_steps: Option<[f64; 3]>,
    /// Requests whose KV tokens made room for others, and are computed again.
    pub preempted: Option<Requests>,
    /// Requests that wait for room at its end. If an engine does not report the reason, requests
    /// that wait for any reason.
    pub waiting: Option<Requests>,
    /// Requests that run at its end.
    pub running: Option<Requests>,
    /// The share of the KV cache in use at its end, the mean over the ranks.
    pub kv_usage: Option<Fraction>,
    /// Tokens in the KV caches of all ranks.
    pub kv_capacity: Option<Tokens>,
}

/// Returns a delta for every scrape except the first.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Odometer {
    before: Option<(Timestamp, CounterValues)>,
    /// Finished requests whose answers are not counted yet.
    unanswered: f64,
}

/// The counters of a scrape since its process started.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct CounterValues {
    ranks: u32,
    started: Option<Timestamp>,
    finished: FinishedCounts,
    asked: Option<f64>,
    answered: Option<f64>,
    answered_series: Option<u32>,
    rejected: Option<f64>,
    in_flight: Option<f64>,
    prompt: Option<f64>,
    cached: Option<f64>,
    generated: Option<f64>,
    scheduled: Option<f64>,
    first_tokens: Option<[f64; 2]>,
    steps: Option<f64>,
    intervals: Option<[f64; 2]>,
    batched: Option<[f64; 2]>,
    prefilled: Option<[f64; 2]>,
    long_steps: Option<[f64; 3]>,
    preempted: Option<f64>,
    stays: Option<[f64; 2]>,
    queued: Option<f64>,
    prompts: Option<[f64; 2]>,
    prompt_moments: Option<[f64; 2]>,
    computed_moments: Option<[f64; 2]>,
    answer_moments: Option<[f64; 2]>,
    answers: Option<[f64; 2]>,
}

// === impl IntervalDelta ===

impl IntervalDelta {
    /// Creates a delta of which only the interval is known.
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
            computed_moments: None,
            answer_moments: None,
            prompt: None,
            computed: None,
            generated: None,
            begun: None,
            first_tokens: None,
            steps: None,
            intervals: None,
            batched: None,
            prefilled: None,
            long_steps: None,
            preempted: None,
            waiting: None,
            running: None,
            kv_usage: None,
            kv_capacity: None,
        }
    }
}

// === impl Odometer ===

impl Odometer {
    /// The work since the previous scrape.
    pub fn take(&mut self, at: Timestamp, reading: &Reading) -> Option<IntervalDelta> {
        let count = CounterValues::of(reading);
        if let Some((then, before)) = self.before
            && ProcessLife::between(before.started, count.started) == ProcessLife::Same
            && count.lacks(&before)
            && (0.0..=LATE_MAX).contains(&at.duration_since(then).as_secs_f64())
        {
            return Some(IntervalDelta::over(at, Seconds::ZERO));
        }

        let (then, before) = self.before.replace((at, count))?;
        let elapsed = Seconds::from_span(at.duration_since(then))?;

        let comparable = elapsed > Seconds::ZERO
            && before.ranks == count.ranks
            && ProcessLife::between(before.started, count.started) == ProcessLife::Same;
        let stride = comparable.then(|| count.since(&before, self.unanswered).ok()).flatten();
        let Some((stride, unanswered)) = stride else {
            self.unanswered = 0.0;
            return None;
        };

        self.unanswered = unanswered;

        Some(IntervalDelta {
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

// === impl CounterValues ===

impl CounterValues {
    fn of(reading: &Reading) -> Self {
        let ranks = reading.engine.counting_ranks(&reading.ranks);
        let waiting = summed(&reading.ranks, |rank| rank.waiting.map(Requests::requests));
        let running = summed(&reading.ranks, |rank| rank.running.map(Requests::requests));

        Self {
            ranks: u32::try_from(reading.ranks.len()).unwrap_or(u32::MAX),
            started: reading.started,
            finished: FinishedCounts::of(ranks),
            asked: summed(ranks, |rank| Some(rank.completions_asked.as_ref()?.count)),
            answered: reading.http.success.map(Requests::requests),
            answered_series: reading.http.success_series,
            rejected: reading.rejected.map(Requests::requests),
            in_flight: waiting.zip(running).map(|(waiting, running)| waiting + running),
            prompt: summed(ranks, |rank| rank.prompt_tokens.map(Tokens::tokens)),
            cached: summed(ranks, |rank| rank.prefix_hits.map(Tokens::tokens)),
            generated: summed(ranks, |rank| rank.generation_tokens.map(Tokens::tokens)),
            scheduled: summed(ranks, |rank| Some(rank.step_tokens.as_ref()?.sum)),
            first_tokens: totals(ranks, |rank| rank.ttft.as_ref()),
            steps: summed(ranks, |rank| Some(rank.step_tokens.as_ref()?.count)),
            intervals: totals(ranks, |rank| rank.itl.as_ref()),
            batched: totals(ranks, |rank| rank.inference_time.as_ref()),
            prefilled: totals(ranks, |rank| rank.prefill_time.as_ref()),
            long_steps: all_summed(ranks, |rank| {
                rank.step_tokens.as_ref()?.moments_above(LONG_STEP)
            }),
            preempted: summed(ranks, |rank| rank.preemptions.map(Requests::requests)),
            stays: totals(ranks, |rank| rank.e2e.as_ref()),
            queued: summed(ranks, |rank| Some(rank.queue_time.as_ref()?.sum)),
            prompts: totals(ranks, |rank| rank.prompt_length.as_ref()),
            prompt_moments: moments(ranks, |rank| rank.prompt_length.as_ref()),
            computed_moments: moments(ranks, |rank| rank.computed_length.as_ref()),
            answer_moments: moments(ranks, |rank| rank.generation_length.as_ref()),
            answers: totals(ranks, |rank| rank.generation_length.as_ref()),
        }
    }

    /// Returns true if a series is missing of a counter that several series add up to.
    fn lacks(&self, before: &Self) -> bool {
        self.finished.lacks(&before.finished) || self.answered_series < before.answered_series
    }

    /// The growth since `before`, when the answers to some requests were not counted yet. Returns
    /// the number of those whose answers still are not.
    fn since(&self, before: &Self, unanswered: f64) -> Result<(IntervalDelta, f64), WentBack> {
        let finished = self.finished.since(&before.finished)?;
        let asked = grown(self.asked, before.asked)?;
        let answered = if self.answered_series == before.answered_series {
            grown(self.answered, before.answered)?
        } else {
            // A series that appears may have counted long ago.
            asked.or(finished)
        }
        .unwrap_or(0.0);
        let rejected = grown(self.rejected, before.rejected)?.unwrap_or(0.0);
        let in_flight = self.in_flight.zip(before.in_flight).map(|(now, then)| now - then);
        let mut gone =
            finished.map(|finished| DepartedRequests { finished, asked, answered, rejected });
        let remaining = gone.as_mut().map_or(0.0, |gone| gone.settle(unanswered));
        let arrived = gone.zip(in_flight).map(|(gone, in_flight)| arrived(gone, in_flight));

        let prompts = all_grown(self.prompts, before.prompts)?;
        let answers = all_grown(self.answers, before.answers)?;
        let lengths = prompts.zip(answers).and_then(|([prompts, count], [answers, _])| {
            Some((Tokens::new(prompts)?, Tokens::new(answers)?, Requests::new(count)?))
        });

        let generated = grown(self.generated, before.generated)?;
        let scheduled = grown(self.scheduled, before.scheduled)?;
        let prompt = grown(self.prompt, before.prompt)?;
        let cached = grown(self.cached, before.cached)?.unwrap_or(0.0);
        let computed = match scheduled.zip(generated) {
            Some((scheduled, generated)) => Some(scheduled - generated),
            None => prompt.map(|prompt| prompt - cached),
        };

        let first_tokens = all_grown(self.first_tokens, before.first_tokens)?;
        let intervals = all_grown(self.intervals, before.intervals)?;
        let stays = all_grown(self.stays, before.stays)?;
        let queued = grown(self.queued, before.queued)?;
        let unqueued =
            stays.zip(queued).map(|([time, count], queued)| [(time - queued).max(0.0), count]);
        let batched = all_grown(self.batched, before.batched)?.or(unqueued);

        let delta = IntervalDelta {
            arrived: arrived.and_then(Requests::new),
            unserved: gone.and_then(|gone| Requests::new(gone.unserved())),
            lengths,
            prompt_moments: all_grown(self.prompt_moments, before.prompt_moments)?,
            computed_moments: all_grown(self.computed_moments, before.computed_moments)?,
            answer_moments: all_grown(self.answer_moments, before.answer_moments)?,
            prompt: prompt.and_then(Tokens::new),
            computed: computed.and_then(|computed| Tokens::new(computed.max(0.0))),
            generated: generated.and_then(Tokens::new),
            begun: first_tokens.and_then(|[_, count]| Requests::new(count)),
            first_tokens: first_tokens.and_then(|[sum, _]| Seconds::new(sum)),
            steps: grown(self.steps, before.steps)?.and_then(Requests::new),
            intervals: intervals.and_then(times),
            batched: batched.and_then(times),
            prefilled: all_grown(self.prefilled, before.prefilled)?.and_then(times),
            long_steps: all_grown(self.long_steps, before.long_steps)?,
            preempted: grown(self.preempted, before.preempted)?.and_then(Requests::new),
            ..IntervalDelta::over(Timestamp::UNIX_EPOCH, Seconds::ZERO)
        };

        Ok((delta, remaining))
    }
}

/// Seconds for which a page without all series of a counter counts as incomplete. A
/// Prometheus server can get some series later than others.
const LATE_MAX: f64 = 120.0;

/// Finished requests by reason: the ranks that report the reason, and the sum of their counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct FinishedCounts([(u32, f64); 5]);

impl FinishedCounts {
    fn of(ranks: &[RankReading]) -> Self {
        let mut counts = [(0, 0.0); 5];
        for rank in ranks {
            let FinishedReading { stop, length, abort, error, other } = rank.finished;
            for ((known, sum), count) in counts.iter_mut().zip([stop, length, abort, error, other])
            {
                let Some(count) = count else { continue };
                *known += 1;
                *sum += count.requests();
            }
        }
        Self(counts)
    }

    /// Returns true if a reason that some rank reported before is missing.
    fn lacks(&self, before: &Self) -> bool {
        self.0.iter().zip(before.0).any(|((known, _), (then, _))| *known < then)
    }

    /// The growth since `before`, of the reasons that the same ranks report now and then; `None`
    /// without such a reason. Where a counter appears, the requests that it counted earlier may be
    /// old.
    fn since(&self, before: &Self) -> Result<Option<f64>, WentBack> {
        let mut total = None;
        for ((known, now), (then_known, then)) in self.0.iter().zip(before.0) {
            if *known == 0 || *known != then_known {
                continue;
            }
            let growth = grown(Some(*now), Some(then))?.unwrap_or(0.0);
            total = Some(total.unwrap_or(0.0) + growth);
        }

        Ok(total)
    }
}

/// A counter that is below its earlier value, so that the two cannot be compared.
#[derive(Clone, Copy, Debug)]
struct WentBack;

/// The share of a counter by which it may fall without counting as a restart. Engines whose page
/// several processes share add up their sums in no fixed order, so the last digits vary.
const ROUNDING: f64 = 1e-9;

/// The growth of a counter.
fn growth(now: f64, then: f64) -> Result<f64, WentBack> {
    if now < then {
        return if then - now <= then.abs() * ROUNDING { Ok(0.0) } else { Err(WentBack) };
    }

    Ok(now - then)
}

/// The growth of a counter; `None` while it is not known.
fn grown(now: Option<f64>, then: Option<f64>) -> Result<Option<f64>, WentBack> {
    now.zip(then).map(|(now, then)| growth(now, then)).transpose()
}

/// The growth of several counters, such as a sum and its count; `None` while they are not known.
fn all_grown<const N: usize>(
    now: Option<[f64; N]>,
    then: Option<[f64; N]>,
) -> Result<Option<[f64; N]>, WentBack> {
    let Some((now, then)) = now.zip(then) else { return Ok(None) };

    let mut growths = [0.0; N];
    for ((grown, now), then) in growths.iter_mut().zip(now).zip(then) {
        *grown = growth(now, then)?;
    }

    Ok(Some(growths))
}

/// A sum of times and their number.
fn times([sum, count]: [f64; 2]) -> Option<(Seconds, Requests)> {
    Seconds::new(sum).zip(Requests::new(count))
}

/// Requests that left a replica during a time, as several counters report them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DepartedRequests {
    /// Requests that finished.
    pub(crate) finished: f64,
    /// Requests that asked for completions, each counted once for any number of completions.
    pub(crate) asked: Option<f64>,
    /// Requests that the HTTP server answered.
    pub(crate) answered: f64,
    /// Requests that admission control rejected.
    pub(crate) rejected: f64,
}

/// Requests that arrived: those that left, plus the growth of those in flight.
///
/// A client that disconnects is not among the finished requests of any vLLM up to 0.33, but the
/// HTTP server counts its answer. So the requests that left are the finished ones, plus those that
/// were answered without finishing: the answers beyond the finished requests. A request for two
/// completions finishes twice, but the histogram of `n` counts it once. Rejected requests have
/// arrived as well.
///
/// # Source
///
/// Conservation of requests. The meaning of each counter was found in recordings of vLLM 0.11 and
/// 0.32.
pub(crate) fn arrived(gone: DepartedRequests, in_flight: f64) -> f64 {
    (gone.finished + gone.hung_up() + in_flight).max(0.0) + gone.rejected
}

// === impl DepartedRequests ===

impl DepartedRequests {
    /// Leaves out answers to requests that finished earlier. A page may count the end of a request
    /// before its answer, and then the next page has one answer more. Returns the requests that
    /// are still without an answer: at most as many as finished between two pages.
    fn settle(&mut self, unanswered: f64) -> f64 {
        let Some(asked) = self.asked else { return 0.0 };
        let beyond = self.answered - asked;
        let late = beyond.max(0.0).min(unanswered);
        self.answered -= late;
        (unanswered - late - beyond.min(0.0)).min(asked.max(unanswered))
    }

    /// Requests that the HTTP server answered without finishing them.
    fn hung_up(&self) -> f64 {
        (self.answered - self.asked.unwrap_or(self.finished)).max(0.0)
    }

    /// Requests that clients may retry.
    fn unserved(&self) -> f64 {
        self.hung_up() + self.rejected
    }
}

/// The sum over all ranks; `None` when there are none or one does not report it.
fn summed(ranks: &[RankReading], of: impl Fn(&RankReading) -> Option<f64>) -> Option<f64> {
    if ranks.is_empty() {
        return None;
    }
    ranks.iter().map(of).sum()
}

/// The sums over all ranks; `None` when there are none or one does not report them.
fn all_summed<const N: usize>(
    ranks: &[RankReading],
    of: impl Fn(&RankReading) -> Option<[f64; N]>,
) -> Option<[f64; N]> {
    let (first, others) = ranks.split_first()?;

    let mut sums = of(first)?;
    for rank in others {
        for (sum, more) in sums.iter_mut().zip(of(rank)?) {
            *sum += more;
        }
    }

    Some(sums)
}

/// The sum of the observations, and their number.
fn totals(
    ranks: &[RankReading],
    of: impl Fn(&RankReading) -> Option<&Histogram>,
) -> Option<[f64; 2]> {
    all_summed(ranks, |rank| of(rank).map(|histogram| [histogram.sum, histogram.count]))
}

/// The sum of the observations and that of their squares, estimated from buckets.
fn moments(
    ranks: &[RankReading],
    of: impl Fn(&RankReading) -> Option<&Histogram>,
) -> Option<[f64; 2]> {
    all_summed(ranks, |rank| of(rank)?.moments())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::engine::Engine;
    use crate::observe::reading::HttpReading;

    fn reading(stop: Option<f64>, length: Option<f64>) -> Reading {
        let count = |it: Option<f64>| it.and_then(Requests::new);
        let finished =
            FinishedReading { stop: count(stop), length: count(length), ..Default::default() };
        let rank = RankReading {
            finished,
            waiting: Requests::new(0.0),
            running: Requests::new(0.0),
            ..RankReading::default()
        };
        Reading {
            engine: Engine::Vllm,
            samples: 2,
            started: None,
            models: Vec::new(),
            http: HttpReading::default(),
            rejected: None,
            lora: None,
            ranks: vec![rank],
        }
    }

    #[test]
    fn a_page_without_a_reason_that_was_there_is_left_out_and_the_next_one_makes_up_for_it() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut odometer = Odometer::default();
        let mut arrived = |second: i64, stop: Option<f64>, length: Option<f64>| {
            let delta = odometer.take(at(second), &reading(stop, length))?;
            assert!(delta.arrived.is_some() || delta.elapsed == Seconds::ZERO, "unknown");
            Some((delta.elapsed.seconds(), delta.arrived?.requests()))
        };

        assert_eq!(arrived(0, Some(1000.0), Some(1.0)), None);
        assert_eq!(arrived(5, Some(1010.0), Some(1.0)), Some((5.0, 10.0)));
        assert_eq!(arrived(10, None, Some(1.0)), None);
        assert_eq!(arrived(15, None, Some(2.0)), None);
        assert_eq!(arrived(20, Some(1040.0), Some(3.0)), Some((15.0, 32.0)));

        // Gone for good, and back after all: what it counted meanwhile may be old.
        assert_eq!(arrived(25, None, Some(3.0)), None);
        assert_eq!(arrived(145, None, Some(4.0)), Some((125.0, 1.0)));
        assert_eq!(arrived(150, Some(5000.0), Some(5.0)), Some((5.0, 1.0)));
        assert_eq!(arrived(155, Some(5002.0), Some(5.0)), Some((5.0, 2.0)));
    }

    #[test]
    fn preempted_requests_are_those_since_the_last_page() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut odometer = Odometer::default();

        let mut preempted = |second: i64, count: f64| {
            let mut page = reading(Some(1.0), None);
            page.ranks[0].preemptions = Requests::new(count);
            odometer.take(at(second), &page)?.preempted
        };

        assert_eq!(preempted(0, 7.0), None);
        assert_eq!(preempted(5, 9.0), Requests::new(2.0));
    }

    #[test]
    fn the_times_of_prompts_and_the_long_iterations_are_those_since_the_last_page() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut odometer = Odometer::default();

        let mut take = |second: i64, count: f64| {
            let buckets = vec![(8.0, 9.0), (32.0, 9.0), (128.0, count), (f64::INFINITY, count)];
            let histogram = Histogram { sum: 7.0 * count, count, buckets };
            let mut page = reading(Some(1.0), None);
            page.ranks[0].prefill_time = Some(histogram.clone());
            page.ranks[0].step_tokens = Some(histogram);
            odometer.take(at(second), &page)
        };

        assert_eq!(take(0, 10.0), None);
        let delta = take(5, 13.0).unwrap();
        assert_eq!(delta.prefilled, Seconds::new(21.0).zip(Requests::new(3.0)));
        assert_eq!(delta.long_steps, Some([3.0, 3.0 * 64.0, 3.0 * 64.0 * 64.0]));
    }

    #[test]
    fn a_page_without_the_answers_to_a_path_is_left_out() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut odometer = Odometer::default();
        let mut arrived = |second: i64, finished: f64, answered: f64, success_series: u32| {
            let success = Requests::new(answered);
            let http = HttpReading {
                success,
                success_series: Some(success_series),
                ..HttpReading::default()
            };
            let page = Reading { http, ..reading(Some(finished), None) };
            let delta = odometer.take(at(second), &page)?;
            Some((delta.elapsed.seconds(), delta.arrived?.requests()))
        };

        assert_eq!(arrived(0, 1000.0, 1000.0, 2), None);
        assert_eq!(arrived(5, 1010.0, 1012.0, 2), Some((5.0, 12.0)));
        assert_eq!(arrived(10, 1020.0, 22.0, 1), None);
        assert_eq!(arrived(15, 1030.0, 1034.0, 2), Some((10.0, 22.0)));

        // Gone for good, and back after all: what it counted meanwhile may be old.
        assert_eq!(arrived(20, 1040.0, 44.0, 1), None);
        assert_eq!(arrived(140, 1050.0, 54.0, 1), Some((125.0, 20.0)));
        assert_eq!(arrived(145, 1060.0, 1064.0, 2), Some((5.0, 10.0)));
        assert_eq!(arrived(150, 1070.0, 1075.0, 2), Some((5.0, 11.0)));
    }

    #[test]
    fn the_last_digit_of_a_sum_may_fall() {
        let sum = 12_345.678_9;
        let lower = f64::from_bits(f64::to_bits(sum) - 1);
        assert_eq!(all_grown(Some([lower, 8.0]), Some([sum, 7.0])).unwrap(), Some([0.0, 1.0]));
        assert!(all_grown(Some([sum - 0.1, 8.0]), Some([sum, 7.0])).is_err(), "a restart");
        assert!(all_grown(Some([sum, 6.0]), Some([sum, 7.0])).is_err(), "a restart");
        assert_eq!(all_grown(None, Some([sum, 7.0])).unwrap(), None);
    }

    #[test]
    fn the_last_digit_of_the_time_in_the_queue_may_fall() {
        let at = |second: i64| Timestamp::from_second(1_000_000 + second).unwrap();
        let mut odometer = Odometer::default();

        let mut take = |second: i64, sum: f64| {
            let mut page = reading(Some(1.0), None);
            page.ranks[0].queue_time = Some(Histogram { sum, count: 7.0, buckets: Vec::new() });
            odometer.take(at(second), &page)
        };

        let sum = 12_345.678_9;
        assert_eq!(take(0, sum), None);
        assert!(take(5, f64::from_bits(f64::to_bits(sum) - 1)).is_some(), "no request came");
        assert_eq!(take(10, 0.1), None, "a restart");
    }

    #[test]
    fn the_sums_of_all_ranks_add_up() {
        let with_queue_time = |sum: f64, count: f64| RankReading {
            queue_time: Some(Histogram { sum, count, buckets: Vec::new() }),
            ..RankReading::default()
        };
        let queued = |ranks: &[RankReading]| totals(ranks, |rank| rank.queue_time.as_ref());

        let ranks = [with_queue_time(3.0, 1.0), with_queue_time(4.0, 2.0)];
        assert_eq!(queued(&ranks), Some([7.0, 3.0]));
        assert_eq!(queued(&[with_queue_time(3.0, 1.0), RankReading::default()]), None);
        assert_eq!(queued(&[]), None);
    }
}
