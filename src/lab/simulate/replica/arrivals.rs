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
use crate::simulate::replica::request::Request;

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
    pub(super) arrived: Micros,
    /// The time at which it enters the queue.
    pub(super) queued: Micros,
    pub(super) request: Request,
}

// === impl Fetch ===

impl Fetch {
    /// The duration for this many tokens.
    pub(super) fn takes(&self, tokens: u32) -> Micros {
        self.latency + Micros::from_secs_f64(self.per_token * 1e-6 * f64::from(tokens))
    }
}
