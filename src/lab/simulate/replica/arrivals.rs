//! Submitted requests: until their arrival, and until the cache of their prompt arrives.
//!
//! # Model
//!
//! An engine with a KV connector fetches a share of each prompt's cache from another engine, in
//! whole blocks and without the last token. During the fetch the request waits as `deferred`, and
//! other requests are served. After a preemption the engine computes the whole prompt.
//!
//! # Source
//!
//! vLLM 0.32: `Scheduler.schedule` sets requests with `load_kv_async` aside as
//! `WAITING_FOR_REMOTE_KVS`; `num_requests_waiting_by_reason` counts them as `deferred`.
//!
//! # Limits
//!
//! A fetch begins when its request arrives. Concurrent fetches do not slow each other down, and
//! hold no blocks before they end.

use plimsoll_core::units::Fraction;

use crate::simulate::Micros;
use crate::simulate::replica::decodes::RequestPhase;
use crate::simulate::replica::{Life, Replica, Request, Unservable, count};

/// The fetching of prompts' KV caches from another engine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fetch {
    /// The share of each prompt.
    pub share: Fraction,
    /// The part of the duration that does not depend on the length.
    pub latency: Micros,
    /// Microseconds per fetched token.
    pub per_token: f64,
}

/// A submitted request that is not in the queue yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct SubmittedRequest {
    /// The time at which it arrives.
    arrived: Micros,
    /// The time at which it enters the queue.
    pub(super) queued: Micros,
    pub(super) request: Request,
}

// === impl Fetch ===

impl Fetch {
    /// The duration for this many tokens.
    fn takes(&self, tokens: u32) -> Micros {
        self.latency + Micros::from_secs_f64(self.per_token * 1e-6 * f64::from(tokens))
    }
}

// === impl Replica ===

impl Replica {
    /// Takes a request that arrives at `at`, or at the replica's current time if that is later: no
    /// request arrives in the past.
    ///
    /// # Errors
    ///
    /// The request could never finish; vLLM refuses it by the model's length.
    pub fn submit(&mut self, at: Micros, request: Request) -> Result<(), Unservable> {
        if request.output == 0 || !self.settings.can_serve(&request) {
            return Err(Unservable);
        }

        let arrived = at.max(self.now);
        let Some(fetch) = self.fetch else {
            let queued = self.arrivals.back().map_or(arrived, |last| last.queued.max(arrived));
            self.arrivals.push_back(SubmittedRequest { arrived: queued, queued, request });
            return Ok(());
        };

        let queued = arrived + fetch.takes(self.share_of(request.prompt, fetch.share));
        let place = self.arrivals.partition_point(|other| other.queued <= queued);
        self.arrivals.insert(place, SubmittedRequest { arrived, queued, request });
        Ok(())
    }

    /// Requests that have arrived and wait for the cache of their prompts.
    pub(super) fn fetching(&self) -> u32 {
        match self.fetch {
            Some(_) => count(self.arrivals.iter().filter(|it| it.arrived <= self.now).count()),
            None => 0,
        }
    }

    /// Returns true if a submitted request enters the queue at or before `until`.
    pub(super) fn has_arrived(&self, until: Micros) -> bool {
        self.arrivals.front().is_some_and(|next| next.queued <= until)
    }

    /// Queues the requests that are due.
    pub(super) fn take_arrivals(&mut self, until: Micros) {
        while let Some(next) = self.arrivals.pop_front_if(|next| next.queued <= until) {
            let SubmittedRequest { arrived, queued, request } = next;
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
                phase: RequestPhase::Prefill { computed: 0 },
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
