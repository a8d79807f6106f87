//! A bound on the streams that wait for their first turn.
//!
//! A connection opens thousands of streams with one read, and each becomes a task. Reading is
//! cheaper than answering, so peers that send without a pause would fill the memory with tasks. So
//! connections are not read while many tasks wait. A task that has had its turn does not count: it
//! may wait for the rest of its request, which only the connection brings.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Waiting tasks of a listener from which connections are not read. One read may add those of a
/// whole connection to them.
const WAITING_MAX: usize = 1024;

/// The tasks of a listener that wait for their first turn.
#[derive(Debug, Default)]
pub(super) struct StreamBacklog {
    waiting: AtomicUsize,
    readers: Mutex<Vec<Waker>>,
}

/// Runs the streams of HTTP/2 connections on the tracker.
#[derive(Clone)]
pub(super) struct StreamExecutor {
    pub(super) tracker: TaskTracker,
    pub(super) backlog: Arc<StreamBacklog>,
}

/// A task that waits for its first turn.
struct WaitingStream(Arc<StreamBacklog>);

// === impl StreamBacklog ===

impl StreamBacklog {
    /// Returns ready if connections may be read, and otherwise wakes the task when they may.
    pub(super) fn poll_room(&self, context: &Context<'_>) -> Poll<()> {
        if self.has_room() {
            return Poll::Ready(());
        }

        let mut readers = self.readers.lock().unwrap_or_else(PoisonError::into_inner);
        if !readers.iter().any(|reader| reader.will_wake(context.waker())) {
            readers.push(context.waker().clone());
        }
        // Tasks may have run before the waker was known.
        if self.has_room() { Poll::Ready(()) } else { Poll::Pending }
    }

    fn has_room(&self) -> bool {
        self.waiting.load(Ordering::SeqCst) < WAITING_MAX
    }

    fn wait(self: &Arc<Self>) -> WaitingStream {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        WaitingStream(Arc::clone(self))
    }
}

// === impl WaitingStream ===

impl Drop for WaitingStream {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) != WAITING_MAX {
            return;
        }

        let mut readers = self.0.readers.lock().unwrap_or_else(PoisonError::into_inner);
        readers.drain(..).for_each(Waker::wake);
    }
}

// === impl StreamExecutor ===

impl<F> hyper::rt::Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let waiting = self.backlog.wait();
        let stream = async move {
            drop(waiting);
            future.await;
        };

        self.tracker.spawn(stream.in_current_span());
    }
}

#[cfg(test)]
mod tests {
    use std::task::Wake;

    use super::*;

    /// A connection's task, which counts how often it is woken.
    #[derive(Default)]
    struct Reader(AtomicUsize);

    impl Wake for Reader {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
    }

    #[test]
    fn connections_are_read_again_once_enough_streams_had_their_turn() {
        let backlog = Arc::new(StreamBacklog::default());
        let reader = Arc::new(Reader::default());
        let waker = Waker::from(Arc::clone(&reader));
        let context = Context::from_waker(&waker);
        let mut waiting: Vec<_> = (0..WAITING_MAX + 10).map(|_| backlog.wait()).collect();
        assert_eq!(backlog.poll_room(&context), Poll::Pending);
        assert_eq!(backlog.poll_room(&context), Poll::Pending);

        waiting.truncate(WAITING_MAX);
        assert_eq!(reader.0.load(Ordering::SeqCst), 0, "there is no room yet");
        waiting.pop();
        assert_eq!(reader.0.load(Ordering::SeqCst), 1, "it is woken once");
        assert_eq!(backlog.poll_room(&context), Poll::Ready(()));
    }
}
