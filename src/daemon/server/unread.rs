//! A time limit for responses that an HTTP/2 peer does not read.
//!
//! An HTTP/2 peer grants each response a window of bytes. A peer that grants none still reads and
//! answers pings, so its connection looks healthy, and its responses would wait indefinitely. So
//! each connection numbers the parts of its responses until they are written. If the oldest part is
//! the same at two checks, the peer has had the time between them for it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use crate::server::kept::kept_with;

/// The open responses of one connection, and their parts that are not written yet.
#[derive(Debug, Default)]
pub(super) struct OpenResponses(Mutex<PartNumbers>);

#[derive(Debug, Default)]
struct PartNumbers {
    last: u64,
    unread: BTreeSet<u64>,
}

/// A part that is unread until this is dropped.
#[derive(Debug)]
struct UnreadPart {
    open: Arc<OpenResponses>,
    number: u64,
}

// === impl OpenResponses ===

impl OpenResponses {
    /// Numbers a part of a response until its bytes are dropped.
    pub(super) fn numbered(self: &Arc<Self>, bytes: Bytes) -> Bytes {
        let mut numbers = self.lock();
        numbers.last += 1;
        let number = numbers.last;
        numbers.unread.insert(number);

        kept_with(UnreadPart { open: Arc::clone(self), number }, bytes)
    }

    /// Returns when a part has been unread for this time, or at twice this time at the latest.
    pub(super) async fn stalled(&self, read_max: Duration) {
        let mut before = None;
        loop {
            tokio::time::sleep(read_max).await;
            let oldest = self.oldest();
            if oldest.is_some() && oldest == before {
                return;
            }

            before = oldest;
        }
    }

    /// The number of the oldest unread part.
    fn oldest(&self) -> Option<u64> {
        self.lock().unread.first().copied()
    }

    fn lock(&self) -> MutexGuard<'_, PartNumbers> {
        // Every change is complete before anything can panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl UnreadPart ===

impl Drop for UnreadPart {
    fn drop(&mut self) {
        self.open.lock().unread.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_part_is_the_first_whose_bytes_are_kept() {
        let open = Arc::new(OpenResponses::default());
        assert_eq!(open.oldest(), None);
        let parts = ["first", "second"].map(|it| open.numbered(Bytes::from_static(it.as_bytes())));
        assert_eq!(&parts[1][..], b"second");
        assert_eq!(open.oldest(), Some(1));

        let [first, second] = parts;
        let rest = first.slice(2..);
        drop(first);
        assert_eq!(open.oldest(), Some(1), "some of it is kept");
        drop(rest);
        assert_eq!(open.oldest(), Some(2));

        drop(second);
        assert_eq!(open.oldest(), None);
        assert_eq!(Arc::strong_count(&open), 1);
    }
}
