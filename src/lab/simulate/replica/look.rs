//! The observable state of an engine.

use crate::simulate::Micros;
use crate::simulate::replica::decodes::RequestPhase;
use crate::simulate::replica::speculation::DraftCounters;
use crate::simulate::replica::stats::{Counters, Gauges, Stats, count};
use crate::simulate::replica::{Life, Replica};

impl Replica {
    /// The current statistics of the engine.
    #[must_use]
    pub fn snapshot(&self) -> Stats {
        Stats {
            running: self.batched(),
            waiting: self.queue(),
            deferred: self.deferred(),
            kv_blocks_used: self.kv_blocks_used,
            kv_blocks: self.settings.kv_blocks,
            block_size: self.settings.block_size,
            api_servers: self.api_servers(),
            drafted: self.drafted().cloned(),
            counters: self.counters.clone(),
        }
    }

    /// Waiting requests, for any reason.
    fn queue(&self) -> u32 {
        count(self.waiting.len()) + self.fetching()
    }

    /// API servers in front of it.
    #[must_use]
    pub fn api_servers(&self) -> u32 {
        self.servers.as_ref().map_or(1, |servers| servers.count())
    }

    /// The gauges, which are cheaper than a whole snapshot.
    #[must_use]
    pub fn gauges(&self) -> Gauges {
        Gauges {
            running: self.batched(),
            waiting: self.queue(),
            kv_usage: f64::from(self.kv_blocks_used) / f64::from(self.settings.kv_blocks),
        }
    }

    /// The size of the KV cache in tokens, as the engine reports it: including the one block that
    /// is never handed out.
    #[must_use]
    pub const fn kv_tokens(&self) -> u64 {
        (self.settings.kv_blocks as u64 + 1) * self.settings.block_size as u64
    }

    /// The time up to which it has been advanced.
    #[must_use]
    pub const fn now(&self) -> Micros {
        self.now
    }

    /// Seats in the batch.
    #[must_use]
    pub const fn seats(&self) -> u32 {
        self.settings.max_num_seqs
    }

    /// The counters since the start.
    #[must_use]
    pub const fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Its draft counters; `None` if it does not speculate.
    #[must_use]
    pub fn drafted(&self) -> Option<&DraftCounters> {
        self.speculator.as_ref().map(|speculator| &speculator.drafted)
    }

    /// The requests of the current batch whose answers have begun, with the tokens of each answer.
    pub fn growing_answers(&self) -> impl Iterator<Item = (u64, u32)> {
        self.running.iter().filter_map(|index| {
            let Life { request, phase, .. } = &self.lives[index];
            match phase {
                RequestPhase::Decode => {
                    Some((request.id, request.output.saturating_sub(self.decodes.missing(index))))
                }
                RequestPhase::Prefill { .. } => None,
            }
        })
    }

    /// Prompt tokens of the waiting requests, except the ones already computed.
    #[must_use]
    pub fn queued_tokens(&self) -> u64 {
        let mut tokens = 0;
        for &index in &self.waiting {
            let Life { request, phase, .. } = &self.lives[index];
            if let RequestPhase::Prefill { computed } = phase {
                tokens += u64::from(request.prompt.saturating_sub(*computed));
            }
        }

        tokens
    }
}
