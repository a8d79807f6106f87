//! Servers: listeners, TLS, and who is asking.
//!
//! [`serve`] turns a listener and a handler into an HTTPS server for HTTP/1.1 and HTTP/2. It knows
//! nothing of what is served. It owns what a server on a network must not forget: a bound on
//! connections, on handshakes, on headers, on silent peers and on the time that closing takes.
//!
//! Client certificates are requested and not judged here (see [`tls`]); the handler is given the
//! [`auth::Peer`] with each request and decides.
//!
//! Shutting down has three [`Phase`]s, because a load balancer takes time to notice: first the
//! server only says that it is not ready, and answers everything; then it tells every connection
//! to go away and accepts no more; then it waits for the requests that are under way.

pub mod admin;
pub mod auth;
pub mod certificates;
mod page;
pub mod tls;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info_span, warn};

use crate::server::auth::Peer;

/// How long accepting pauses after it failed, which is when the process is out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Header lines of an HTTP/1.1 request. Each group of a user is one, and some have hundreds.
const HEADERS_MAX: usize = 2048;

/// How far a server is on its way out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// It serves.
    #[default]
    Serving,
    /// It serves, and says that it is not ready, so that no new traffic is sent to it.
    Unready,
    /// It accepts nothing more, tells its peers to go elsewhere, and finishes what has begun.
    Draining,
}

/// The bounds of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Connections at one time; further ones wait in the kernel's queue.
    pub connections_max: u32,
    /// Time for a TLS handshake.
    pub handshake_max: Duration,
    /// Time in which the head of an HTTP/1.1 request must arrive. It bounds idle HTTP/1.1
    /// connections as well.
    pub header_max: Duration,
    /// Bytes of a request's line and headers.
    pub header_bytes_max: u32,
    /// Requests at one time on one HTTP/2 connection.
    pub streams_max: u32,
    /// Time without a request after which an HTTP/2 connection is told to go away, at the latest
    /// at twice this time.
    pub idle_max: Duration,
    /// Time between pings of an HTTP/2 peer.
    pub ping_interval: Duration,
    /// Time in which a ping must be answered.
    pub ping_max: Duration,
    /// Time for requests that are under way when draining begins.
    pub drain_max: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            // An API server opens one connection for traffic and up to five short ones for probes.
            connections_max: 512,
            handshake_max: Duration::from_secs(5),
            header_max: Duration::from_secs(10),
            header_bytes_max: 64 * 1024,
            // What Go's server allows by default is 100, and API servers multiplex all traffic.
            streams_max: 250,
            // Above the 90 s for which Go's client keeps an idle connection.
            idle_max: Duration::from_mins(2),
            ping_interval: Duration::from_secs(30),
            ping_max: Duration::from_secs(15),
            drain_max: Duration::from_secs(20),
        }
    }
}

/// Serves until the phase is [`Phase::Draining`] and the last request is answered or out of time.
///
/// A dropped sender of the phase drains as well. All tasks run on `tracker`.
pub async fn serve<H, F>(
    listener: TcpListener,
    tls: Arc<ServerConfig>,
    limits: Limits,
    phase: watch::Receiver<Phase>,
    tracker: &TaskTracker,
    handler: H,
) where
    H: Fn(Request<Incoming>, Arc<Peer>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    let connections_max = limits.connections_max;
    let drain_max = limits.drain_max;
    let permits = Arc::new(Semaphore::new(connections_max as usize));
    let abort = CancellationToken::new();
    let server = Server {
        acceptor: TlsAcceptor::from(tls),
        limits: Arc::new(limits),
        phase: phase.clone(),
        tracker: tracker.clone(),
        abort: abort.clone(),
        handler,
    };
    let mut draining = pin!(drained(phase));
    loop {
        let (permit, stream, address) = tokio::select! {
            biased;
            () = &mut draining => break,
            accepted = accept(&listener, &permits) => accepted,
        };
        let span = info_span!("conn", client.ip = %address.ip(), client.port = address.port());
        let server = server.clone();
        let connection = async move {
            server.connection(stream).await;
            drop(permit);
        };
        tracker.spawn(connection.instrument(span));
    }
    drop(listener);
    // Every connection holds a permit, so all permits together mean that none is left.
    if timeout(drain_max, permits.acquire_many(connections_max)).await.is_err() {
        warn!("Requests were still under way when the time to drain was over");
        abort.cancel();
    }
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    permits: &Arc<Semaphore>,
) -> (OwnedSemaphorePermit, TcpStream, SocketAddr) {
    loop {
        // Nothing closes the semaphore, so the first of these is always there.
        let Ok(permit) = Arc::clone(permits).acquire_owned().await else { continue };
        match listener.accept().await {
            Ok((stream, address)) => return (permit, stream, address),
            Err(error) => {
                warn!(%error, "Cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns when the phase is [`Phase::Draining`], or when nobody can set it any more.
async fn drained(mut phase: watch::Receiver<Phase>) {
    let _ = phase.wait_for(|phase| *phase == Phase::Draining).await;
}

/// What every connection needs.
#[derive(Clone)]
struct Server<H> {
    acceptor: TlsAcceptor,
    limits: Arc<Limits>,
    phase: watch::Receiver<Phase>,
    tracker: TaskTracker,
    abort: CancellationToken,
    handler: H,
}

impl<H, F> Server<H>
where
    H: Fn(Request<Incoming>, Arc<Peer>) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    async fn connection(self, stream: TcpStream) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "Cannot turn off Nagle's algorithm");
        }
        match timeout(self.limits.handshake_max, self.acceptor.accept(stream)).await {
            Ok(Ok(stream)) => self.requests(stream).await,
            Ok(Err(error)) => debug!(%error, "The TLS handshake failed"),
            Err(_) => debug!("The TLS handshake took too long"),
        }
    }

    async fn requests(self, stream: TlsStream<TcpStream>) {
        let (_, session) = stream.get_ref();
        let builder = self.builder(session.alpn_protocol() == Some(tls::ALPN_H2));
        let certificates = session.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
        let peer = Arc::new(Peer::new(certificates));
        let requests = AtomicU64::new(0);
        let service = service_fn(|request| {
            requests.fetch_add(1, Ordering::Relaxed);
            // The limit of an HTTP/1.1 buffer is only looked at while a head is incomplete.
            let response = (head_bytes(&request) <= self.limits.header_bytes_max as usize)
                .then(|| (self.handler)(request, Arc::clone(&peer)));
            async move {
                Ok::<_, Infallible>(match response {
                    Some(response) => response.await,
                    None => too_large(),
                })
            }
        });
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut draining = pin!(drained(self.phase.clone()));
        let mut seen = 0;
        let mut closing = false;
        loop {
            tokio::select! {
                result = connection.as_mut() => {
                    if let Err(error) = result {
                        debug!(%error, "The connection ended early");
                    }
                    return;
                }
                () = self.abort.cancelled() => return,
                () = &mut draining, if !closing => closing = true,
                () = tokio::time::sleep(self.limits.idle_max), if !closing => {
                    let now = requests.load(Ordering::Relaxed);
                    closing = now == seen;
                    seen = now;
                }
            }
            if closing {
                connection.as_mut().graceful_shutdown();
            }
        }
    }

    /// The protocol is what TLS has negotiated, so nothing waits for a first byte to tell.
    fn builder(&self, is_h2: bool) -> auto::Builder<Tracked> {
        let Limits { header_max, header_bytes_max, streams_max, ping_interval, ping_max, .. } =
            *self.limits;
        let mut builder = auto::Builder::new(Tracked(self.tracker.clone()));
        builder
            .http1()
            .timer(TokioTimer::new())
            .header_read_timeout(header_max)
            .max_headers(HEADERS_MAX)
            .max_buf_size(header_bytes_max as usize);
        builder
            .http2()
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams_max)
            .max_header_list_size(header_bytes_max)
            .keep_alive_interval(ping_interval)
            .keep_alive_timeout(ping_max);
        if is_h2 { builder.http2_only() } else { builder.http1_only() }
    }
}

/// The size of a request's line and headers, without the few bytes between them.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let line = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter();
    line + headers.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

fn too_large() -> Response<Full<Bytes>> {
    let mut response = Response::default();
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}

/// Runs the streams of HTTP/2 connections on the tracker.
#[derive(Clone)]
struct Tracked(TaskTracker);

impl<F> hyper::rt::Executor<F> for Tracked
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        self.0.spawn(future.in_current_span());
    }
}
