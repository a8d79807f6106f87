//! Submitting requests, and queueing those that are due.

use crate::simulate::Micros;
use crate::simulate::replica::arrivals::SubmittedRequest;
use crate::simulate::replica::decodes::RequestPhase;
use crate::simulate::replica::prefix::PromptId;
use crate::simulate::replica::stats::count;
use crate::simulate::replica::{Life, Replica, Request, Unservable};

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

    /// Takes a request as [`Replica::submit`] does, with a known prompt. The request's ID must be
    /// unique.
    ///
    /// # Errors
    ///
    /// The request could never finish.
    pub fn submit_prompt(
        &mut self,
        at: Micros,
        request: Request,
        prompt: PromptId,
    ) -> Result<(), Unservable> {
        self.submit(at, request)?;
        if let Some(prefix) = &mut self.prefix {
            prefix.expect(&request, prompt);
        }
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
