//! The plain HTTP port.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use http_body_util::BodyExt;
use hyper::{Method, StatusCode};
use plimsoll::server::admin::Hooks;
use plimsoll::server::admin::access::AccessPolicy;
use plimsoll::server::document::DocumentResponse;
use plimsoll::server::rendering::SharedRendering;
use plimsoll::telemetry;
use tokio::runtime::Runtime;

use super::request;

/// The daemon's own host.
const NEAR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 40_000);
/// Another host.
const FAR: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 40_000);

/// Answers a request from each host. Only `POST` may reload, only `PUT` may set the log filter, and
/// only `PUT` and `DELETE` may override a variant. All three come from the daemon's own host.
pub fn check(input: &[u8]) {
    answers(input);
}

/// Answers a request from the daemon's own host, from another, and of a daemon that fails at
/// everything. Returns the route and the status code of each answer.
pub fn answers(input: &[u8]) -> Vec<(String, u16)> {
    let peers = [(NEAR, true), (FAR, true), (NEAR, false)];
    peers.into_iter().filter_map(|(peer, is_well)| answer(input, peer, is_well)).collect()
}

fn answer(input: &[u8], peer: SocketAddr, is_well: bool) -> Option<(String, u16)> {
    let request = request::read(input)?;
    let (method, path) = (request.method().clone(), request.uri().path().to_owned());
    let plain = request.headers().is_empty() && request.uri().authority().is_none();
    let changes = Changes::default();

    let response = run(hooks(&changes, is_well).answer(peer, request));
    let status = response.status();
    let body = run(response.into_body().collect()).map(http_body_util::Collected::to_bytes);
    let body = body.expect("a body in memory can be read");
    assert!(!body.is_empty(), "{method} {path} is answered with nothing");
    assert!(
        [200, 400, 403, 404, 405, 413, 500, 503].contains(&status.as_u16()),
        "{method} {path} is answered with {status}"
    );
    assert!(!(is_well && status.is_server_error()), "{method} {path} fails without a cause");

    let refused = status == StatusCode::FORBIDDEN;
    let happened = |changes: &AtomicUsize| changes.load(Ordering::Relaxed) > 0;
    let reloaded = happened(&changes.reloads);
    let reloads = method == Method::POST && path == "/-/reload";
    assert_eq!(reloaded, reloads && !refused, "{method} {path}");
    let filtered = happened(&changes.filters);
    assert!(!filtered || (method == Method::PUT && path == "/-/log"), "{method} {path}");
    let overridden = happened(&changes.overrides);
    let overrides = method == Method::PUT || method == Method::DELETE;
    assert!(!overridden || (overrides && path == "/-/override"), "{method} {path}");

    let accepted = reloaded || filtered || overridden;
    assert!(!accepted || peer == NEAR, "{method} {path} from elsewhere");
    assert!(!(refused && plain && peer == NEAR), "{method} {path} is refused for nothing");
    if status == StatusCode::OK && !accepted {
        assert!(method == Method::GET || method == Method::HEAD, "{method} {path}");
    }

    Some((name(&path), status.as_u16()))
}

/// A route's name, which has nothing of the request in it.
fn name(path: &str) -> String {
    let name = match path {
        "/livez" | "/healthz" | "/readyz" | "/-/reload" | "/-/log" | "/-/override" | "/metrics"
        | "/" | "/help" => path,
        _ if path.starts_with("/runbooks/") => "/runbooks",
        _ if path == "/api" || path.starts_with("/api/") => "/api",
        _ => "unknown",
    };
    name.to_owned()
}

/// The changes that the hooks were asked for.
#[derive(Clone, Debug, Default)]
struct Changes {
    reloads: Arc<AtomicUsize>,
    filters: Arc<AtomicUsize>,
    overrides: Arc<AtomicUsize>,
}

/// The hooks of a daemon that is well, or of one that fails at everything.
fn hooks(changes: &Changes, is_well: bool) -> Hooks {
    let outcome = move || if is_well { Ok(()) } else { Err("it fails".to_owned()) };
    let document = if is_well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let Changes { reloads, filters, overrides } = changes.clone();
    Hooks {
        access: AccessPolicy { admin_enabled: true, ..AccessPolicy::default() },
        metrics: SharedRendering::new(move || outcome().map(|()| "up 1\n".to_owned())),
        alive: Box::new(outcome),
        ready: Box::new(move || vec![("check", outcome())]),
        api: Box::new(move |_| {
            Box::pin(std::future::ready(DocumentResponse::plain(document, "{}")))
        }),
        reload: Box::new(move || {
            reloads.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready(outcome()))
        }),
        change_override: Box::new(move |change| {
            assert!(change.body.is_none_or(|body| body.len() <= 4096));
            overrides.fetch_add(1, Ordering::Relaxed);
            Box::pin(std::future::ready((document, "{}".to_owned())))
        }),
        set_log: Box::new(move |filter| {
            assert!(filter.len() <= 4096 && filter.trim() == filter, "{filter:?}");
            filters.fetch_add(1, Ordering::Relaxed);
            telemetry::filter::parse(filter).map(drop).map_err(|error| error.to_string())
        }),
    }
}

/// Runs a future that never waits, but may set a timer.
fn run<T>(future: impl Future<Output = T>) -> T {
    use futures_util::FutureExt;
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let runtime = RUNTIME.get_or_init(|| {
        let built = tokio::runtime::Builder::new_current_thread().enable_time().build();
        built.expect("a runtime without threads can be built")
    });

    let _timers = runtime.enter();
    future.now_or_never().expect("nothing here waits")
}
