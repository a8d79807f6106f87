//! The plain HTTP port: metrics, health, and control of the running daemon.
//!
//! | path | method | answer |
//! |---|---|---|
//! | `/metrics` | GET | every metric, text format 0.0.4 |
//! | `/livez`, `/healthz` | GET | `ok` while the process can answer and decides |
//! | `/readyz` | GET | `ok`, or 500 with the checks that fail |
//! | `/` | GET | the status page for a browser, the list of paths for anything else |
//! | `/help` | GET | the list of paths |
//! | `/runbooks/NAME` | GET | the page of an alert, as text |
//! | `/api/…` | GET | decisions, their reasons, and the daemon's status, as JSON |
//! | `/-/reload` | POST | loads the configuration again; 400 with every problem if it is rejected |
//! | `/-/log` | PUT | replaces the log filter with the body |
//! | `/-/override` | PUT, DELETE | pins or pauses a variant, or ends that |
//!
//! [`access`] tells who may send the last three, and which browsers may read.
//!
//! Health does not depend on data. A daemon without data for a decision still serves its desired
//! replicas. Taking it out of service would also block the cluster's namespace deletions.

pub mod access;

use std::convert::Infallible;
use std::error::Error;
use std::fmt::Write as _;
use std::future::Future;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Body;
use hyper::header::{
    ACCEPT, ALLOW, CACHE_CONTROL, CONNECTION, CONTENT_TYPE, HeaderValue, VARY,
    X_CONTENT_TYPE_OPTIONS,
};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use tokio::net::TcpListener;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{debug, info};

use crate::server::admin::access::{AccessPolicy, AccessRefusal};
use crate::server::budget::{BudgetLimits, ConnectionBudget, ConnectionSlot, SlotLimits};
use crate::server::document::{DocumentRequest, DocumentResponse};
use crate::server::readiness::ReadinessCheck;
use crate::server::rendering::SharedRendering;
use crate::server::runbooks;
use crate::server::shed::ShedConnections;
use crate::server::stream::{GuardedStream, StreamLimits};
use crate::server::{accept, page};

/// Bytes of a request's line and headers.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// Bytes of a request body that is read: a log filter, or a pin.
const BODY_MAX: usize = 4096;

/// Time in which a request body must arrive.
const BODY_TIME_MAX: Duration = Duration::from_secs(5);

/// The future that a hook of [`Hooks`] returns.
pub type HookFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// A hook that takes a text and may reject it.
pub type Setter = Box<dyn Fn(&str) -> Result<(), String> + Send + Sync>;

/// A hook that answers a request with JSON.
pub type DocumentHook = Box<dyn Fn(DocumentRequest) -> HookFuture<DocumentResponse> + Send + Sync>;

/// A change of a variant's pin or pause.
pub struct OverrideChange {
    /// The query, which names the variant.
    pub query: Option<String>,
    /// The body; `None` to end the pin or the pause.
    pub body: Option<Bytes>,
}

/// A hook that changes a pin or a pause, and answers with a status and JSON.
pub type OverrideHook =
    Box<dyn Fn(OverrideChange) -> HookFuture<(StatusCode, String)> + Send + Sync>;

/// The data and actions behind the port.
pub struct Hooks {
    /// The access rules.
    pub access: AccessPolicy,
    /// Renders all metrics, or returns the reason that they cannot be rendered.
    pub metrics: SharedRendering,
    /// Returns an error if the process no longer does its work.
    pub alive: Box<dyn Fn() -> Result<(), String> + Send + Sync>,
    /// Every readiness check.
    pub ready: Box<dyn Fn() -> Vec<ReadinessCheck> + Send + Sync>,
    /// Answers a GET of a path under `/api`.
    pub api: DocumentHook,
    /// Loads the configuration again.
    pub reload: Box<dyn Fn() -> HookFuture<Result<(), String>> + Send + Sync>,
    /// Replaces the log filter.
    pub set_log: Setter,
    /// Pins or pauses a variant, or ends that.
    pub change_override: OverrideHook,
}

/// The limits of the plain HTTP port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdminLimits {
    /// Simultaneous connections and unwritten bytes.
    pub connections: BudgetLimits,
    /// Times of peers that stop reading or fall silent.
    pub stream: StreamLimits,
    /// Time in which the head of a request must arrive. It also limits idle connections.
    pub head_max: Duration,
}

impl Default for AdminLimits {
    fn default() -> Self {
        Self {
            connections: BudgetLimits {
                // Prometheus, a kubelet and a person need a handful, a browser six of them.
                strangers: SlotLimits { total: 128, per_address: 16 },
                // There is no TLS here.
                handshakes: SlotLimits { total: 0, per_address: 0 },
                // No peer shows a certificate here.
                verified_max: 0,
                // The metrics of a thousand variants have 6 MB.
                unwritten_max: 64 << 20,
            },
            stream: StreamLimits {
                write_max: Duration::from_secs(30),
                silence_max: Duration::from_mins(1),
            },
            head_max: Duration::from_secs(10),
        }
    }
}

/// Serves until `stop` is cancelled. All tasks run on `tracker`. Connections that are closed to
/// make room for others count in `shed`.
pub async fn serve(
    listener: TcpListener,
    hooks: Arc<Hooks>,
    limits: AdminLimits,
    shed: ShedConnections,
    stop: CancellationToken,
    tracker: TaskTracker,
) {
    let budget = ConnectionBudget::new(limits.connections, shed);
    while let Some((stream, address)) = stop.run_until_cancelled(accept(&listener)).await {
        let slot = budget.admit(address.ip());
        let closed = slot.shed().clone();
        let guarded = GuardedStream::new(stream, limits.stream, closed.clone());
        let shared = Arc::new(slot);
        let exchange = exchange(guarded, address, shared, limits, Arc::clone(&hooks), stop.clone());
        tracker.spawn(async move {
            if closed.run_until_cancelled(exchange).await.is_none() {
                debug!(client.ip = %address.ip(), "The connection was closed to make room for others");
            }
        });
    }
}

/// Answers the requests of one connection until it closes or `stop` is cancelled.
async fn exchange(
    stream: GuardedStream,
    peer: SocketAddr,
    slot: Arc<ConnectionSlot>,
    limits: AdminLimits,
    hooks: Arc<Hooks>,
    stop: CancellationToken,
) {
    let service = service_fn(move |request| {
        let hooks = Arc::clone(&hooks);
        let place = Arc::clone(&slot);
        async move { Ok::<_, Infallible>(place.counted(hooks.answer(peer, request).await).await) }
    });

    // Scrapers and probes use HTTP/1.1. Detecting the version would wait for the first bytes
    // without a limit.
    let mut builder = auto::Builder::new(TokioExecutor::new()).http1_only();
    builder
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_max)
        .max_buf_size(HEAD_BYTES_MAX);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    tokio::pin!(connection);
    tokio::select! {
        _ = &mut connection => {}
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _closed = tokio::time::timeout(Duration::from_secs(5), connection).await;
        }
    }
}

/// A request's body, either read from a connection or already in memory.
pub trait ReadableBody: Body<Error: Into<Box<dyn Error + Send + Sync>>> {}

impl<B: Body<Error: Into<Box<dyn Error + Send + Sync>>>> ReadableBody for B {}

// === impl Hooks ===

impl Hooks {
    /// Answers one request.
    pub async fn answer<B: ReadableBody>(
        &self,
        peer: SocketAddr,
        request: Request<B>,
    ) -> Response<Full<Bytes>> {
        let method = request.method().clone();
        let path = request.uri().path().to_owned();
        let get = method == Method::GET || method == Method::HEAD;

        match path.as_str() {
            "/livez" | "/healthz" if get => match (self.alive)() {
                Ok(()) => text(StatusCode::OK, "ok\n".into()),
                Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("{why}\n")),
            },
            "/readyz" if get => self.readiness(),
            "/-/reload" if method == Method::POST => self.change(peer, request).await,
            "/-/log" if method == Method::PUT => self.change(peer, request).await,
            "/-/override" if method == Method::PUT || method == Method::DELETE => {
                self.change(peer, request).await
            }
            "/-/override" => not_allowed("PUT, DELETE"),
            "/-/reload" => not_allowed("POST"),
            "/-/log" => not_allowed("PUT"),
            "/metrics" | "/livez" | "/healthz" | "/readyz" | "/" | "/help" if !get => {
                not_allowed("GET, HEAD")
            }
            path if !get && path.starts_with(runbooks::PATH) => not_allowed("GET, HEAD"),
            _ => match self.access.check_read(&request) {
                Ok(()) => self.read(&request, get).await,
                Err(refusal) => refused(&path, &refusal),
            },
        }
    }

    /// Answers a request that changes nothing, except those of probes.
    async fn read<B>(&self, request: &Request<B>, get: bool) -> Response<Full<Bytes>> {
        match request.uri().path() {
            "/metrics" => match self.metrics.page().await {
                Ok(page) => reply(StatusCode::OK, METRICS, page),
                Err(why) => text(StatusCode::INTERNAL_SERVER_ERROR, why),
            },
            "/" => index(request),
            "/help" => text(StatusCode::OK, INDEX.into()),
            path if path.starts_with(runbooks::PATH) => runbook(path),
            api if under_api(api) => self.api(get, request).await,
            path => text(StatusCode::NOT_FOUND, format!("Unknown path {path}.\n{INDEX}")),
        }
    }

    /// Answers a request that changes the daemon.
    async fn change<B: ReadableBody>(
        &self,
        peer: SocketAddr,
        request: Request<B>,
    ) -> Response<Full<Bytes>> {
        let (parts, body) = request.into_parts();
        let path = parts.uri.path().to_owned();
        let head = Request::from_parts(parts, ());
        if let Err(refusal) = self.access.check_change(peer.ip(), &head).await {
            debug!(client.ip = %peer.ip(), path, %refusal, "A change was refused");
            return refused(&path, &refusal);
        }

        info!(client.ip = %peer.ip(), path, "A change was requested over HTTP");
        match path.as_str() {
            "/-/log" => self.log(body).await,
            "/-/override" => self.override_variant(&head, body).await,
            _ => self.load_again().await,
        }
    }

    /// Sets a pin or a pause by the body of a PUT, or ends it.
    async fn override_variant<B: ReadableBody>(
        &self,
        head: &Request<()>,
        body: B,
    ) -> Response<Full<Bytes>> {
        let query = head.uri().query().map(str::to_owned);
        let body = if head.method() == Method::PUT {
            match read_body(body).await {
                Ok(body) => Some(body),
                Err(refusal) => return *refusal,
            }
        } else {
            None
        };

        let (status, answer) = (self.change_override)(OverrideChange { query, body }).await;
        reply(status, JSON, answer)
    }

    async fn load_again(&self) -> Response<Full<Bytes>> {
        match (self.reload)().await {
            Ok(()) => text(StatusCode::OK, "The configuration was reloaded.\n".into()),
            Err(why) => text(StatusCode::BAD_REQUEST, why),
        }
    }

    async fn api<B>(&self, get: bool, request: &Request<B>) -> Response<Full<Bytes>> {
        let response = if get {
            let answer = (self.api)(DocumentRequest::of(request)).await;
            of_type(answer.into_http(), JSON)
        } else {
            let body = "{\"error\":\"only GET and HEAD are answered here\"}";
            let mut response = reply(StatusCode::METHOD_NOT_ALLOWED, JSON, body);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        };

        uncached(response)
    }

    fn readiness(&self) -> Response<Full<Bytes>> {
        let checks = (self.ready)();
        let mut body = String::new();
        for (name, outcome) in &checks {
            let _infallible = match outcome {
                Ok(()) => writeln!(body, "[+] {name} ok"),
                Err(why) => writeln!(body, "[-] {name} failed: {why}"),
            };
        }

        if checks.iter().all(|(_, outcome)| outcome.is_ok()) {
            text(StatusCode::OK, format!("{body}ok\n"))
        } else {
            text(StatusCode::INTERNAL_SERVER_ERROR, body)
        }
    }

    async fn log<B: ReadableBody>(&self, body: B) -> Response<Full<Bytes>> {
        let body = match read_body(body).await {
            Ok(body) => body,
            Err(refusal) => return *refusal,
        };

        let set = std::str::from_utf8(&body).map_err(|error| error.to_string());
        match set.and_then(|filter| (self.set_log)(filter.trim())) {
            Ok(()) => text(StatusCode::OK, "The log filter was replaced.\n".into()),
            Err(why) => text(StatusCode::BAD_REQUEST, format!("{why}\n")),
        }
    }
}

/// Reads the body of a request that changes something, or returns the answer to one that is too long
/// or does not arrive.
async fn read_body<B: ReadableBody>(body: B) -> Result<Bytes, Box<Response<Full<Bytes>>>> {
    let limited = Limited::new(body, BODY_MAX);
    match timeout(BODY_TIME_MAX, limited.collect()).await {
        Ok(Ok(collected)) => Ok(collected.to_bytes()),
        Ok(Err(_)) => {
            let words = format!("The body may have at most {BODY_MAX} bytes.\n");
            Err(Box::new(text(StatusCode::PAYLOAD_TOO_LARGE, words)))
        }
        Err(_) => Err(Box::new(too_slow())),
    }
}

const METRICS: &str = "text/plain; version=0.0.4; charset=utf-8";
const JSON: &str = "application/json";
const INDEX: &str = "GET  /                     the status page, in a browser\n\
                     GET  /metrics              all metrics\n\
                     GET  /livez /readyz        health\n\
                     GET  /api/v1/status        status of the daemon and its fleet\n\
                     GET  /api/v1/summary       every variant in one line\n\
                     GET  /api/v1/decisions     all desired replicas and the steps that led to them\n\
                     GET  /api/v1/desired       desired replicas of a variant (?namespace=&variant=)\n\
                     GET  /api/v1/explain       explanation of one variant, and changes that affect it\n\
                     GET  /api/v1/history       the last hour of a variant (?namespace=&variant=)\n\
                     GET  /api/v1/events        events, the newest first\n\
                     GET  /api/v1/cards         capacity cards of the learned engines\n\
                     GET  /api/v1/openapi.json  description of these responses\n\
                     GET  /runbooks/NAME        the page of an alert\n\
                     POST /-/reload             reload the configuration\n\
                     PUT  /-/log                replace the log filter with the body\n\
                     PUT  /-/override           pin or pause a variant; DELETE ends that\n";

/// Returns true if a path belongs to the JSON API, whose errors are also JSON.
fn under_api(path: &str) -> bool {
    path == "/api" || path.starts_with("/api/")
}

/// The runbook at a path, or the names of all.
fn runbook(path: &str) -> Response<Full<Bytes>> {
    let name = path.strip_prefix(runbooks::PATH).unwrap_or_default();
    if let Some(runbook) = runbooks::text(name) {
        return text(StatusCode::OK, runbook.to_owned());
    }

    let known = runbooks::names().collect::<Vec<_>>().join("\n");
    text(StatusCode::NOT_FOUND, format!("There is no runbook {name:?}. There are:\n{known}\n"))
}

/// The status page for a browser, and the list of paths for any other client.
fn index<B>(request: &Request<B>) -> Response<Full<Bytes>> {
    let accepted = request.headers().get_all(ACCEPT).iter().filter_map(|it| it.to_str().ok());
    let mut response = if accepted.into_iter().any(|accepted| accepted.contains("text/html")) {
        page::response(&DocumentRequest::of(request))
    } else {
        text(StatusCode::OK, INDEX.into())
    };

    response.headers_mut().insert(VARY, HeaderValue::from_static("Accept, Accept-Encoding"));
    response
}

fn text(status: StatusCode, body: String) -> Response<Full<Bytes>> {
    reply(status, "text/plain; charset=utf-8", body)
}

fn not_allowed(allowed: &'static str) -> Response<Full<Bytes>> {
    let body = format!("This path only accepts {allowed}.\n");
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, body);
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

/// The answer to a request that is not allowed, with the way to be allowed.
fn refused(path: &str, refusal: &AccessRefusal) -> Response<Full<Bytes>> {
    if under_api(path) {
        let body = serde_json::json!({"error": refusal.to_string()});
        uncached(reply(StatusCode::FORBIDDEN, JSON, body.to_string()))
    } else {
        text(StatusCode::FORBIDDEN, format!("This is refused: {refusal}.\n"))
    }
}

/// The answer to a body that does not arrive. The rest of it cannot be told from the next request,
/// so the connection closes.
fn too_slow() -> Response<Full<Bytes>> {
    let body = format!("The body did not arrive within {} s.\n", BODY_TIME_MAX.as_secs());
    let mut response = text(StatusCode::REQUEST_TIMEOUT, body);
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}

/// An answer is out of date one tick later, and must never be shown as current.
fn uncached(mut response: Response<Full<Bytes>>) -> Response<Full<Bytes>> {
    response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

fn reply(status: StatusCode, kind: &'static str, body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() = status;
    of_type(response, kind)
}

fn of_type(mut response: Response<Full<Bytes>>, kind: &'static str) -> Response<Full<Bytes>> {
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    response.headers_mut().insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;
    use http_body_util::StreamBody;
    use hyper::body::Frame;

    use super::*;

    fn hooks() -> Hooks {
        Hooks {
            access: AccessPolicy { admin_enabled: true, ..AccessPolicy::default() },
            metrics: SharedRendering::new(|| Ok("up 1\n".to_owned())),
            alive: Box::new(|| Ok(())),
            ready: Box::new(Vec::new),
            api: Box::new(|_| Box::pin(async { DocumentResponse::plain(StatusCode::OK, "{}") })),
            reload: Box::new(|| Box::pin(async { Ok(()) })),
            set_log: Box::new(|_| Ok(())),
            change_override: Box::new(|_| Box::pin(async { (StatusCode::OK, "{}".to_owned()) })),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_that_stalls_is_given_up_and_its_connection_closed() {
        let first = async { Ok::<_, Infallible>(Frame::data(Bytes::from_static(b"in"))) };
        let stalled = futures_util::stream::once(first).chain(futures_util::stream::pending());
        let request = Request::put("/-/log").body(StreamBody::new(stalled)).unwrap();
        let near = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let answer = hooks().answer(near, request).await;
        assert_eq!(answer.status(), StatusCode::REQUEST_TIMEOUT);
        assert_eq!(answer.headers().get(CONNECTION).unwrap(), "close");
    }

    #[tokio::test]
    async fn a_method_that_a_path_does_not_have_is_refused_with_those_that_it_has() {
        let near = SocketAddr::from(([127, 0, 0, 1], 40_000));
        let ask = async |method: Method, path: &str| {
            let built = Request::builder().method(method).uri(path);
            let answer = hooks().answer(near, built.body(Full::<Bytes>::default()).unwrap()).await;
            let allowed = answer.headers().get(ALLOW).map(|it| it.to_str().unwrap().to_owned());
            (answer.status().as_u16(), allowed)
        };
        let read = "GET, HEAD";
        for (path, allowed, wrong) in [
            ("/livez", read, Method::POST),
            ("/healthz", read, Method::PUT),
            ("/readyz", read, Method::POST),
            ("/metrics", read, Method::DELETE),
            ("/", read, Method::POST),
            ("/help", read, Method::PUT),
            ("/api/v1/status", read, Method::POST),
            ("/-/reload", "POST", Method::GET),
            ("/-/reload", "POST", Method::PUT),
            ("/-/log", "PUT", Method::GET),
            ("/-/log", "PUT", Method::POST),
        ] {
            assert_eq!(ask(wrong, path).await, (405, Some(allowed.to_owned())), "{path}");
            for method in allowed.split(", ") {
                let method = method.parse().unwrap();
                assert_eq!(ask(method, path).await, (200, None), "{path}");
            }
        }
    }

    #[tokio::test]
    async fn a_foreign_website_is_refused_in_the_form_of_the_path_and_probes_never_are() {
        let far = SocketAddr::from(([10, 1, 2, 3], 40_000));
        let ask = async |path: &str| {
            let built = Request::get(path).header("host", "evil.example").header("origin", "null");
            let answer = hooks().answer(far, built.body(Full::<Bytes>::default()).unwrap()).await;
            let kind = answer.headers().get(CONTENT_TYPE).unwrap().clone();
            let is_cached = answer.headers().get(CACHE_CONTROL).is_none();
            (answer.status().as_u16(), kind.to_str().unwrap().to_owned(), is_cached)
        };
        let text = "text/plain; charset=utf-8".to_owned();
        for path in ["/", "/metrics", "/help", "/nothing"] {
            assert_eq!(ask(path).await, (403, text.clone(), true), "{path}");
        }
        assert_eq!(ask("/api/v1/status").await, (403, JSON.to_owned(), false));
        for path in ["/livez", "/healthz", "/readyz"] {
            assert_eq!(ask(path).await.0, 200, "{path}");
        }
    }
}
