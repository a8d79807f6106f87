//! A page that is rendered once for all requests that wait for it.
//!
//! Rendering the metrics of a large fleet takes tens of milliseconds of a runtime thread, so clients
//! that ask in a loop could take all threads from scraping and deciding. [`SharedRendering`] renders
//! one page at a time. Requests that arrive meanwhile wait for the next page and share it, so that a
//! page is never older than the request that it answers.

use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use tokio::sync::Mutex;

/// Renders a page, or returns the reason that it cannot be rendered.
type Renderer = Box<dyn Fn() -> Result<String, String> + Send + Sync>;

/// A page and the way to render it.
pub struct SharedRendering {
    render: Renderer,
    /// The requests so far; a request's number is its place in them.
    requests: AtomicU64,
    /// The requests that have no page yet.
    unanswered: AtomicU64,
    shared: Mutex<Option<RenderedPage>>,
}

/// A page that other requests wait for.
struct RenderedPage {
    /// The last request that had arrived when the rendering began.
    request: u64,
    page: Result<Bytes, String>,
}

/// A request that has no page yet, also one whose client gave up.
struct Unanswered<'requests>(&'requests AtomicU64);

impl SharedRendering {
    /// Renders with this function.
    #[must_use]
    pub fn new(render: impl Fn() -> Result<String, String> + Send + Sync + 'static) -> Self {
        Self {
            render: Box::new(render),
            requests: AtomicU64::default(),
            unanswered: AtomicU64::default(),
            shared: Mutex::default(),
        }
    }

    /// Returns a page whose rendering began after this call.
    pub(crate) async fn page(&self) -> Result<Bytes, String> {
        let unanswered = Unanswered::new(&self.unanswered);
        let request = self.requests.fetch_add(1, Ordering::SeqCst) + 1;
        let mut shared = self.shared.lock().await;

        let page = match shared.as_ref().filter(|rendered| rendered.request >= request) {
            Some(rendered) => rendered.page.clone(),
            None => self.rendered(&mut shared),
        };

        drop(unanswered);
        if self.unanswered.load(Ordering::SeqCst) == 0 {
            *shared = None;
        }
        page
    }

    /// Renders a page for every request that has arrived.
    fn rendered(&self, shared: &mut Option<RenderedPage>) -> Result<Bytes, String> {
        let request = self.requests.load(Ordering::SeqCst);
        let page = (self.render)().map(Bytes::from);
        *shared = Some(RenderedPage { request, page: page.clone() });
        page
    }
}

impl<'requests> Unanswered<'requests> {
    fn new(requests: &'requests AtomicU64) -> Self {
        requests.fetch_add(1, Ordering::SeqCst);
        Self(requests)
    }
}

impl Drop for Unanswered<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, mpsc};

    use tokio_util::task::TaskTracker;

    use super::*;

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_that_arrive_during_a_rendering_share_the_next_one() {
        let (begin, beginnings) = mpsc::channel::<()>();
        let beginnings = std::sync::Mutex::new(beginnings);
        let started = Arc::new(AtomicU64::default());
        let rendering = Arc::clone(&started);
        let shared = Arc::new(SharedRendering::new(move || {
            let page = rendering.fetch_add(1, Ordering::SeqCst);
            beginnings.lock().unwrap().recv().map_err(|gone| gone.to_string())?;
            Ok(page.to_string())
        }));
        let tracker = TaskTracker::new();
        let ask = || {
            let shared = Arc::clone(&shared);
            tracker.spawn(async move { shared.page().await })
        };

        let first = ask();
        while started.load(Ordering::SeqCst) < 1 {
            tokio::task::yield_now().await;
        }
        let others = [(); 10].map(|()| ask());
        while shared.requests.load(Ordering::SeqCst) < 11 {
            tokio::task::yield_now().await;
        }
        begin.send(()).unwrap();
        begin.send(()).unwrap();

        assert_eq!(first.await.unwrap().unwrap(), "0");
        for other in others {
            assert_eq!(other.await.unwrap().unwrap(), "1");
        }
        assert!(shared.shared.lock().await.is_none(), "nobody waits, so nothing is kept");

        begin.send(()).unwrap();
        assert_eq!(shared.page().await.unwrap(), "2", "a later request gets a later page");
    }
}
