//! Requests that were submitted: until their time comes, and until the cache of their prompt does.
//!
//! # Model
//!
//! An engine with a KV connector fetches a share of each prompt's cache from elsewhere, in whole blocks
//! and without the last token. Until it is there, the request waits as `deferred`, and others are
//! served. After a preemption it computes all of its prompt.
//!
//! # Source
//!
//! vLLM 0.32: `Scheduler.schedule` puts requests whose `load_kv_async` is set aside as
//! `WAITING_FOR_REMOTE_KVS`; `num_requests_waiting_by_reason` counts them as `deferred`.
//!
//! # Limits
//!
//! A fetch begins when its request arrives. Several do not slow each other, and hold no blocks before
//! they end.

use plimsoll_core::units::Fraction;

use crate::simulate::Micros;
use crate::simulate::replica::decodes::Phase;
use crate::simulate::replica::{Life, Replica, Request, Unservable, count};

/// What an engine fetches of the caches of prompts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fetch {
    /// The share of each prompt.
    pub share: Fraction,
    /// How long it takes, whatever its length.
    pub latency: Micros,
    /// How much longer for each token that is fetched, in microseconds.
    pub per_token: f64,
}

/// A request that was submitted and is not in the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival {
    /// When it arrives.
    arrived: Micros,
    /// When it is in the queue.
    pub(super) queued: Micros,
    pub(super) request: Request,
}

// === impl Fetch ===

impl Fetch {
    /// How long so many tokens take.
    fn takes(&self, tokens: u32) -> Micros {
        self.latency + Micros::from_secs_f64(self.per_token * 1e-6 * f64::from(tokens))
    }
}

// === impl Replica ===

impl Replica {
    /// Takes a request that arrives at `at`, or at the latest time this replica has seen if that is
    /// later: nothing arrives in the past.
    ///
    /// # Errors
    ///
    /// A request that could never finish is refused, as vLLM refuses it by the model's length.
    pub fn submit(&mut self, at: Micros, request: Request) -> Result<(), Unservable> {
        if request.output == 0 || !self.settings.can_serve(&request) {
            return Err(Unservable);
        }
        let arrived = at.max(self.now);
        let Some(fetch) = self.fetch else {
            let queued = self.arrivals.back().map_or(arrived, |last| last.queued.max(arrived));
            self.arrivals.push_back(Arrival { arrived: queued, queued, request });
            return Ok(());
        };

        let queued = arrived + fetch.takes(self.share_of(request.prompt, fetch.share));
        let place = self.arrivals.partition_point(|other| other.queued <= queued);
        self.arrivals.insert(place, Arrival { arrived, queued, request });
        Ok(())
    }

    /// Requests that have arrived and wait for the cache of their prompts.
    pub(super) fn fetching(&self) -> u32 {
        match self.fetch {
            Some(_) => count(self.arrivals.iter().filter(|it| it.arrived <= self.now).count()),
            None => 0,
        }
    }

    /// Whether a request that was submitted is to be queued by then.
    pub(super) fn has_arrived(&self, until: Micros) -> bool {
        self.arrivals.front().is_some_and(|next| next.queued <= until)
    }

    /// Queues the requests whose time has come.
    pub(super) fn take_arrivals(&mut self, until: Micros) {
        while let Some(next) = self.arrivals.pop_front_if(|next| next.queued <= until) {
            let Arrival { arrived, queued, request } = next;
            let life = Life {
                request,
                arrived,
                queued,
                scheduled: None,
                first_ever: None,
                first_token: None,
                last_token: arrived,
                preemptions: 0,
                cached: 0,
                kept: 0,
                phase: Phase::Prefill { computed: 0 },
            };
            let index = if let Some(hole) = self.holes.pop() {
                self.lives[hole] = life;
                hole
            } else {
                self.lives.push(life);
                self.lives.len() - 1
            };
            self.waiting.push_back(index);
        }
    }
}
