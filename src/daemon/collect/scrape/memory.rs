//! The memory of /metrics responses that are being received, for all targets together.
//!
//! A response may have [`body_limit`](crate::collect::scrape::ScrapeSettings::body_limit) bytes,
//! twice if it is compressed, and a hundred scrapes are in flight at a time. Their product exceeds
//! the memory of the process, so [`ResponseMemory`] also limits the sum. Above it, the largest
//! response is abandoned. A few targets with huge or slow responses therefore only fail each other,
//! and scrapes never wait for memory.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::collect::scrape::health::ScrapeError;
use plimsoll_core::observe::ScrapeFailure;

/// The memory of all responses in flight.
#[derive(Debug)]
pub(crate) struct ResponseMemory {
    limit: usize,
    state: Mutex<MemoryState>,
}

#[derive(Debug, Default)]
struct MemoryState {
    next: u64,
    total: usize,
    shares: BTreeMap<u64, ShareState>,
}

#[derive(Debug)]
struct ShareState {
    bytes: usize,
    abandoned: CancellationToken,
}

/// The memory of one response; dropping it gives the bytes back.
#[derive(Debug)]
pub(crate) struct MemoryShare {
    memory: Arc<ResponseMemory>,
    number: u64,
    abandoned: CancellationToken,
}

// === impl ResponseMemory ===

impl ResponseMemory {
    /// Limits the sum to this many bytes. A response that is alone may have more.
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self { limit, state: Mutex::default() })
    }

    /// A share without bytes.
    pub(crate) fn share(self: &Arc<Self>) -> MemoryShare {
        let abandoned = CancellationToken::new();
        let mut state = self.lock();
        state.next += 1;
        let number = state.next;
        state.shares.insert(number, ShareState { bytes: 0, abandoned: abandoned.clone() });
        MemoryShare { memory: Arc::clone(self), number, abandoned }
    }

    fn lock(&self) -> MutexGuard<'_, MemoryState> {
        // Every change is complete before anything can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl MemoryState ===

impl MemoryState {
    fn remove(&mut self, number: u64) -> Option<ShareState> {
        let share = self.shares.remove(&number)?;
        self.total -= share.bytes;
        Some(share)
    }

    /// Abandons the largest response.
    fn abandon_largest(&mut self) {
        let largest = self.shares.iter().max_by_key(|(_, share)| share.bytes);
        let number = largest.map(|(key, _)| *key);
        if let Some(share) = number.and_then(|number| self.remove(number)) {
            share.abandoned.cancel();
        }
    }
}

// === impl MemoryShare ===

impl MemoryShare {
    /// Adds bytes to the response.
    ///
    /// # Errors
    ///
    /// All responses together exceed the limit, and this one is or was the largest.
    pub(crate) fn grow(&self, bytes: usize) -> Result<(), ScrapeError> {
        let mut state = self.memory.lock();
        let Some(share) = state.shares.get_mut(&self.number) else { return Err(self.error()) };
        share.bytes += bytes;
        state.total += bytes;
        while state.total > self.memory.limit && state.shares.len() > 1 {
            state.abandon_largest();
        }

        if state.shares.contains_key(&self.number) { Ok(()) } else { Err(self.error()) }
    }

    /// Waits until the response is abandoned, and returns the error of its scrape.
    pub(crate) async fn abandoned(&self) -> ScrapeError {
        self.abandoned.cancelled().await;
        self.error()
    }

    fn error(&self) -> ScrapeError {
        let limit = self.memory.limit;
        let detail = format!(
            "all responses in flight had more than {limit} bytes together, and this one was the \
             largest; it may be too slow or too large"
        );
        ScrapeError::new(ScrapeFailure::TooLarge, &detail)
    }
}

impl Drop for MemoryShare {
    fn drop(&mut self) {
        self.memory.lock().remove(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn above_the_limit_the_largest_response_alone_is_abandoned() {
        let memory = ResponseMemory::new(100);
        let [small, large, other] = [10, 60, 30].map(|bytes| {
            let share = memory.share();
            share.grow(bytes).unwrap();
            share
        });

        small.grow(1).unwrap();
        assert!(large.abandoned.is_cancelled() && !other.abandoned.is_cancelled());
        assert!(large.grow(1).unwrap_err().detail.contains("more than 100 bytes together"));

        drop(large);
        other.grow(59).unwrap();
        assert!(other.grow(1).is_err(), "the one that grows can be the largest itself");
        drop((small, other));
        assert_eq!(memory.lock().total, 0);
    }

    #[test]
    fn a_response_that_is_alone_may_have_more() {
        let memory = ResponseMemory::new(100);
        let alone = memory.share();
        alone.grow(1000).unwrap();

        let second = memory.share();
        second.grow(1).unwrap();
        assert!(alone.abandoned.is_cancelled());
    }
}
