//! A simulated replica with the requests of real clients and a background load.
//!
//! Time is an argument: [`ServedReplica::advance_to`] computes everything up to `now`. A client's
//! answer grows as the simulated engine generates it, and is reported through a channel that keeps
//! only the latest length. So a client that reads slowly costs no memory.

use std::collections::BTreeMap;

use rand_pcg::Pcg64;
use tokio::sync::watch;

use crate::simulate::Micros;
use crate::simulate::random;
use crate::simulate::replica::stats::Stats;
use crate::simulate::replica::{EngineEvent, Replica, Request};
use crate::simulate::workload::load::{Size, Sizes};
use plimsoll_core::units::RequestRate;

/// The maximum number of requests in the engine and its queue. Further ones are rejected, and
/// further background requests are dropped.
pub(crate) const REQUESTS_MAX: usize = 4_096;

/// The longest time for which background requests are made up for, after a process was stopped or
/// starved.
const CATCH_UP_MAX: Micros = Micros::from_secs(60);

/// A replica, its background load, and the answers that clients wait for.
#[derive(Debug)]
pub(crate) struct ServedReplica {
    replica: Replica,
    load: BackgroundLoad,
    answers: BTreeMap<u64, watch::Sender<AnswerProgress>>,
    next_id: u64,
    events: Vec<EngineEvent>,
}

/// Requests at a rate, as a Poisson process, which no client waits for.
#[derive(Debug)]
pub(crate) struct BackgroundLoad {
    rate: RequestRate,
    /// The arrival of the next request; `None` without load.
    due: Option<Micros>,
    sizes: Sizes,
    random: Pcg64,
}

/// The part of an answer that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct AnswerProgress {
    /// Tokens generated so far.
    pub(crate) tokens: u32,
    /// True if these are all.
    pub(crate) is_complete: bool,
}

/// An accepted request.
#[derive(Debug)]
pub(crate) struct AcceptedRequest {
    pub(crate) id: u64,
    pub(crate) progress: watch::Receiver<AnswerProgress>,
}

/// The reason why a request is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SubmitRefusal {
    /// The prompt and the answer do not fit into the KV cache.
    #[error(
        "the prompt and the answer have {tokens} tokens, and this engine's cache has {capacity}"
    )]
    TooLong { tokens: u64, capacity: u64 },
    /// There are too many requests already.
    #[error("the engine has {REQUESTS_MAX} requests, which is its limit; try again later")]
    Full,
}

// === impl BackgroundLoad ===

impl BackgroundLoad {
    pub(crate) fn new(rate: RequestRate, sizes: Sizes, random: Pcg64) -> Self {
        let mut load = Self { rate, due: None, sizes, random };
        load.plan(Micros::ZERO);
        load
    }

    /// Draws the arrival of the request after this time.
    fn plan(&mut self, after: Micros) {
        let rate = self.rate.requests_per_second();
        self.due = (rate > 0.0).then(|| {
            let gap = random::exponential(&mut self.random) / rate;
            after + Micros::from_secs_f64(gap).max(Micros::new(1))
        });
    }
}

// === impl ServedReplica ===

impl ServedReplica {
    /// An idle replica at the start of time.
    pub(crate) const fn new(replica: Replica, load: BackgroundLoad) -> Self {
        Self { replica, load, answers: BTreeMap::new(), next_id: 1, events: Vec::new() }
    }

    /// Computes everything up to `now`, and reports the progress of answers.
    pub(crate) fn advance_to(&mut self, now: Micros) {
        let earliest = Micros::ZERO + now.since(CATCH_UP_MAX);
        while let Some(due) = self.load.due.filter(|due| *due <= now) {
            let at = due.max(earliest);
            self.replica.advance_to(at, &mut self.events);
            self.report();

            let Size { prompt, output } = self.load.sizes.draw(&mut self.load.random);
            if self.replica.outstanding() < REQUESTS_MAX {
                let request = Request { id: self.take_id(), prompt, output };
                // A request that is too long for the engine would be refused by vLLM also.
                let _refused = self.replica.submit(at, request);
            }

            self.load.plan(at);
        }

        self.replica.advance_to(now, &mut self.events);
        self.report();
    }

    /// Takes the request of a client.
    ///
    /// # Errors
    ///
    /// The request does not fit, or there are too many.
    pub(crate) fn submit(
        &mut self,
        now: Micros,
        Size { prompt, output }: Size,
    ) -> Result<AcceptedRequest, SubmitRefusal> {
        self.advance_to(now);
        if self.replica.outstanding() >= REQUESTS_MAX {
            return Err(SubmitRefusal::Full);
        }

        let id = self.take_id();
        self.replica.submit(now, Request { id, prompt, output }).map_err(|_| {
            let tokens = u64::from(prompt) + u64::from(output);
            SubmitRefusal::TooLong { tokens, capacity: self.replica.kv_tokens() }
        })?;

        let (sender, progress) = watch::channel(AnswerProgress::default());
        self.answers.insert(id, sender);
        Ok(AcceptedRequest { id, progress })
    }

    /// Drops a request whose client has left, unless its answer is complete.
    pub(crate) fn abort(&mut self, now: Micros, id: u64) {
        self.advance_to(now);
        if self.answers.remove(&id).is_some() {
            self.replica.abort(id);
        }
    }

    /// Changes the background load.
    pub(crate) fn set_load(&mut self, now: Micros, rate: RequestRate) {
        self.advance_to(now);

        self.load.rate = rate;
        self.load.plan(now);
    }

    /// The background load.
    pub(crate) const fn load(&self) -> RequestRate {
        self.load.rate
    }

    /// The lengths of a request like those of the background load.
    pub(crate) fn draw_size(&mut self) -> Size {
        self.load.sizes.draw(&mut self.load.random)
    }

    /// The time at which a client's answer may grow; `None` if no client waits.
    pub(crate) fn next_progress(&self) -> Option<Micros> {
        if self.answers.is_empty() { None } else { self.replica.next_change() }
    }

    /// The statistics for a /metrics response.
    pub(crate) fn snapshot(&self) -> Stats {
        self.replica.snapshot()
    }

    fn take_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Reports the answers to clients since the last report.
    fn report(&mut self) {
        for event in self.events.drain(..) {
            if let EngineEvent::Finished(finished) = event
                && let Some(sender) = self.answers.remove(&finished.request.id)
            {
                let tokens = finished.request.output;
                sender.send_replace(AnswerProgress { tokens, is_complete: true });
            }
        }

        if self.answers.is_empty() {
            return;
        }
        for (id, tokens) in self.replica.growing_answers() {
            let Some(sender) = self.answers.get(&id) else { continue };
            sender.send_if_modified(|progress| {
                // A preemption can discard tokens, which the client has already.
                let grows = tokens > progress.tokens;
                progress.tokens = progress.tokens.max(tokens);
                grows
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulate::random::{Purpose, generator};
    use crate::simulate::replica::settings::{Admission, Settings, StepTime};
    use crate::simulate::workload::load::Lengths;

    const SETTINGS: Settings = Settings {
        step: StepTime::dense(10_000.0, 0.0, 0.0, 0.0),
        max_num_seqs: 8,
        max_num_batched_tokens: 2_048,
        block_size: 16,
        kv_blocks: 64,
        admission: Admission::WholePrompt,
    };

    fn loaded(rate: f64) -> ServedReplica {
        let sizes = Sizes::Apart { prompt: Lengths::Fixed(100), output: Lengths::Fixed(20) };
        let random = generator(1, Purpose::Times, 0);
        let load = BackgroundLoad::new(RequestRate::new(rate).unwrap(), sizes, random);
        ServedReplica::new(Replica::new(SETTINGS).unwrap(), load)
    }

    #[test]
    fn an_answer_grows_by_a_token_per_step_until_it_is_complete() {
        let mut served = loaded(0.0);
        let accepted = served.submit(Micros::ZERO, Size { prompt: 100, output: 3 }).unwrap();
        let mut seen = Vec::new();
        while let Some(next) = served.next_progress() {
            served.advance_to(next + Micros::new(1));
            seen.push(*accepted.progress.borrow());
        }

        let progress = |tokens, is_complete| AnswerProgress { tokens, is_complete };
        seen.dedup();
        assert_eq!(
            seen[seen.len() - 3..],
            [progress(1, false), progress(2, false), progress(3, true)]
        );
        assert_eq!(served.snapshot().counters.finished, 1);
    }

    #[test]
    fn the_background_load_arrives_at_its_rate_and_can_be_changed() {
        let mut served = loaded(5.0);
        served.advance_to(Micros::from_secs(50));
        let before = served.snapshot().counters.finished;
        assert!((200..300).contains(&before), "{before} of about 250");

        served.set_load(Micros::from_secs(50), RequestRate::new(0.0).unwrap());
        served.advance_to(Micros::from_secs(52));
        let after = served.snapshot().counters.finished;
        served.advance_to(Micros::from_secs(100));
        assert_eq!(served.snapshot().counters.finished, after, "nothing arrives without load");
    }

    #[test]
    fn an_overload_fills_the_queue_to_its_limit_and_then_refuses() {
        let mut served = loaded(5_000.0);
        served.advance_to(Micros::from_secs(10));
        let refused = served.submit(Micros::from_secs(10), Size { prompt: 1, output: 1 });
        assert_eq!(refused.unwrap_err(), SubmitRefusal::Full);
        assert!(served.snapshot().waiting as usize <= REQUESTS_MAX);
    }

    #[test]
    fn a_pause_of_the_process_is_made_up_for_by_a_minute_of_load_at_most() {
        let mut served = loaded(1.0);
        served.advance_to(Micros::from_secs(100_000));
        let finished = served.snapshot().counters.finished;
        assert!(finished < 120, "{finished}");
    }

    #[test]
    fn a_request_that_never_fits_is_refused_and_one_whose_client_leaves_frees_its_place() {
        let mut served = loaded(0.0);
        let long = served.submit(Micros::ZERO, Size { prompt: 1_000, output: 100 });
        let capacity = 65 * 16;
        assert_eq!(long.unwrap_err(), SubmitRefusal::TooLong { tokens: 1_100, capacity });

        let accepted = served.submit(Micros::ZERO, Size { prompt: 100, output: 900 }).unwrap();
        served.advance_to(Micros::from_secs(1));
        assert_eq!(served.snapshot().running, 1);
        served.abort(Micros::from_secs(1), accepted.id);
        assert_eq!(served.snapshot().running, 0);
        assert_eq!(served.next_progress(), None);
    }
}
