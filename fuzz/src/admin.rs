//! The plain HTTP port.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use plimsoll::server::admin::Hooks;
use plimsoll::server::rendering::SharedRendering;

use super::request;

/// Answers a request; only `POST` may reload, and only `PUT` may set the log filter.
pub fn check(input: &[u8]) {
    let Some(request) = request::read(input) else { return };
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let reloads = Arc::new(AtomicUsize::new(0));
    let filters = Arc::new(AtomicUsize::new(0));
    let response = run(hooks(&reloads, &filters).answer(request));
    let status = response.status();
    let body = run(response.into_body().collect()).map(http_body_util::Collected::to_bytes);
    let body = body.expect("a body in memory can be read");
    assert!(!body.is_empty(), "{method} {path} is answered with nothing");
    assert!(
        [200, 400, 404, 405, 413].contains(&status.as_u16()),
        "{method} {path} is answered with {status}"
    );
    let reloaded = reloads.load(Ordering::Relaxed) > 0;
    assert_eq!(reloaded, method == Method::POST && path == "/-/reload", "{method} {path}");
    let filtered = filters.load(Ordering::Relaxed) > 0;
    assert!(!filtered || (method == Method::PUT && path == "/-/log"), "{method} {path}");
    if status == StatusCode::OK && !reloaded && !filtered {
        assert!(method == Method::GET || method == Method::HEAD, "{method} {path}");
    }
}

fn hooks(reloads: &Arc<AtomicUsize>, filters: &Arc<AtomicUsize>) -> Hooks {
    let (reloads, filters) = (Arc::clone(reloads), Arc::clone(filters));
    Hooks {
        metrics: SharedRendering::new(|| Ok("up 1\n".to_owned())),
        alive: Box::new(|| Ok(())),
        ready: Box::new(|| vec![("check", Ok(()))]),
        api: Box::new(|_, _| Box::pin(std::future::ready((StatusCode::OK, "{}".to_owned())))),
        reload: Box::new(move || {
            reloads.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(Ok(())))
        }),
        set_log: Box::new(move |filter| {
            assert!(filter.len() <= 4096 && filter.trim() == filter, "{filter:?}");
            filters.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }),
    }
}

/// Runs a future that never waits.
fn run<T>(future: impl Future<Output = T>) -> T {
    use futures_util::FutureExt;
    future.now_or_never().expect("nothing here waits")
}
