//! Requests, and the events of their lives in an engine.

use crate::simulate::Micros;

/// The request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's identifier for the request.
    pub id: u64,
    /// Tokens of its prompt; at least one.
    pub prompt: u32,
    /// Tokens that it generates; at least one.
    pub output: u32,
}

/// A request that no replica with these settings can ever finish: it has no tokens, or more than
/// the cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the request does not fit this engine")]
pub struct Unservable;

/// An event in a request's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineEvent {
    /// The first token arrived; a client sees this once, even if the request is preempted later.
    FirstToken {
        /// The request.
        id: u64,
        /// The time of the event.
        at: Micros,
        /// The time since the request's arrival.
        ttft: Micros,
    },
    /// The request was preempted and left the batch.
    Preempted {
        /// The request.
        id: u64,
        /// The time of the event.
        at: Micros,
    },
    /// The last token arrived.
    Finished(Finished),
}

/// A finished request. All spans count from its arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The request itself.
    pub request: Request,
    /// The time of its arrival.
    pub arrived: Micros,
    /// The time of its last token.
    pub at: Micros,
    /// The span to the start of the first step that computed it.
    pub queue: Micros,
    /// The span to the end of the prefill that its answer comes from: the last one if a preemption
    /// discards the answer, otherwise the first.
    pub ttft: Micros,
    /// The span to the end of the first prefill.
    pub first_ever: Micros,
    /// The span to the last token.
    pub e2e: Micros,
    /// The number of its preemptions.
    pub preemptions: u32,
}

// === impl Finished ===

impl Finished {
    /// The mean time between tokens; `None` for an answer of one token.
    #[must_use]
    pub fn itl_mean(&self) -> Option<Micros> {
        let gaps = u64::from(self.request.output).checked_sub(1).filter(|&count| count > 0)?;
        Some(Micros::new(self.e2e.since(self.ttft).micros() / gaps))
    }
}
