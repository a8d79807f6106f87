//! Servers: listeners, TLS, and authentication.
//!
//! [`serve`] turns a listener and a handler into a server for HTTP/1.1 and HTTP/2 over TLS, or for
//! HTTP/2 without TLS. It does not depend on the content that it serves. It limits connections,
//! handshakes, headers, slow and idle peers, and the time for closing, as a server on a network must.
//!
//! Client certificates are requested but not verified here (see [`tls`]); the [`Handler`] gets the
//! [`auth::ConnectionPeer`] after the handshake and with each request, and decides. A peer that it
//! has accepted moves to a part of the [`budget`] that other peers cannot use up.
//!
//! Shutting down has three [`ServerPhase`]s, because a load balancer takes time to notice. First
//! the server reports that it is not ready, and still answers everything. Then it asks every
//! connection to close and accepts no more. Then it waits for the requests in progress.

pub mod admin;
pub mod auth;
mod backlog;
mod body;
pub mod budget;
pub(crate) mod certificate_metrics;
pub mod certificates;
pub mod client_authority;
pub mod document;
mod kept;
pub mod page;
pub mod readiness;
pub mod rendering;
pub(crate) mod runbooks;
pub mod shed;
pub mod stream;
pub mod tls;
mod unread;

use std::convert::Infallible;
use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::ready;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::conn::auto;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument, debug, info_span, warn};

pub use crate::server::body::ResponseBody;

use crate::server::auth::ConnectionPeer;
use crate::server::backlog::{StreamBacklog, StreamExecutor};
use crate::server::budget::{BudgetLimits, ConnectionBudget, ConnectionSlot, SlotLimits};
use crate::server::shed::ShedConnections;
use crate::server::stream::{GuardedStream, StreamLimits};
use crate::server::unread::OpenResponses;

/// The pause after a failed accept, which usually means that the process is out of file
/// descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The maximum header lines of an HTTP/1.1 request. Each group of a user is one line, and some
/// users have hundreds.
const HEADERS_MAX: usize = 2048;

/// The maximum HTTP/2 streams that a peer has opened and reset before they were handled. A client
/// that gives up requests resets a few; an attack resets thousands.
const PENDING_RESETS_MAX: usize = 20;

/// The maximum HTTP/2 streams that this server has reset because of a peer's protocol errors.
const ERROR_RESETS_MAX: usize = 256;

/// The shutdown phase of a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ServerPhase {
    /// It serves requests.
    #[default]
    Serving,
    /// It serves requests, and reports that it is not ready, so that no new traffic is sent to it.
    Unready,
    /// It accepts no new connections, asks its peers to go elsewhere, and finishes the requests in
    /// progress.
    Draining,
}

/// The protocol below HTTP.
#[derive(Clone)]
pub enum ServerTransport {
    /// TLS, which offers both versions of HTTP. The handler judges client certificates.
    Tls(Arc<ServerConfig>),
    /// TLS that accepts only clients with a verified certificate.
    MutualTls(Arc<ServerConfig>),
    /// No encryption, and HTTP/2 only.
    Plain,
}

/// The limits of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Simultaneous connections and unwritten bytes.
    pub connections: BudgetLimits,
    /// Times of peers that stop reading or fall silent.
    pub stream: StreamLimits,
    /// Time for a TLS handshake.
    pub handshake_max: Duration,
    /// Time in which the head of an HTTP/1.1 request must arrive. It also limits idle HTTP/1.1
    /// connections.
    pub header_max: Duration,
    /// Bytes of a request's line and headers.
    pub header_bytes_max: u32,
    /// Simultaneous requests per HTTP/2 connection.
    pub streams_max: u32,
    /// The same of a peer that the handler accepts by its certificate.
    pub accepted_streams_max: u32,
    /// Time without a request or an open response after which an HTTP/2 connection is asked to
    /// close. It happens at twice this time at the latest.
    pub idle_max: Duration,
    /// Time in which an HTTP/2 peer must read a part of a response. It can be twice as long.
    pub read_max: Duration,
    /// Time between pings of an HTTP/2 peer.
    pub ping_interval: Duration,
    /// Time in which a ping must be answered.
    pub ping_max: Duration,
    /// Time for requests that are in progress when draining begins, or when an idle connection is
    /// asked to close.
    pub drain_max: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        Self {
            connections: BudgetLimits {
                // More than finish or stall during the milliseconds of an API server's handshake.
                handshakes: SlotLimits { total: 256, per_address: 64 },
                // Kubelets.
                strangers: SlotLimits { total: 64, per_address: 8 },
                // An API server opens one connection for traffic and up to five short ones for
                // probes.
                verified_max: 512,
                // A list of a thousand variants has 300 KB.
                unwritten_max: 64 << 20,
            },
            // Pings keep a living HTTP/2 connection below the time of silence.
            stream: StreamLimits {
                write_max: Duration::from_secs(30),
                silence_max: Duration::from_mins(1),
            },
            handshake_max: Duration::from_secs(5),
            header_max: Duration::from_secs(10),
            header_bytes_max: 64 * 1024,
            // Go's server allows 100 by default.
            streams_max: 250,
            // An API server sends all requests on one connection: 333 per second for 5,000 HPAs.
            // While this process or the network hangs, they must wait here. A further connection
            // would wait for its handshake, and fail with all its requests after 10 s.
            accepted_streams_max: 4_000,
            // Above the 90 s for which Go's client keeps an idle connection.
            idle_max: Duration::from_mins(2),
            // Enough for 10,000 variants at 50 KB/s.
            read_max: Duration::from_mins(1),
            ping_interval: Duration::from_secs(30),
            ping_max: Duration::from_secs(15),
            drain_max: Duration::from_secs(20),
        }
    }
}

/// Decides about the peers of a server and answers their requests.
pub trait Handler: Clone + Send + Sync + 'static {
    /// The body of its responses.
    type Body: Into<ResponseBody> + Send + 'static;

    /// Returns true if the peer is one that strangers must not keep out, before its first request.
    fn accepts(&self, peer: &ConnectionPeer) -> bool;

    /// Answers a request.
    fn answer(
        &self,
        request: Request<Incoming>,
        peer: Arc<ConnectionPeer>,
    ) -> impl Future<Output = Response<Self::Body>> + Send + 'static;
}

/// Serves until the phase is [`ServerPhase::Draining`] and the last request is answered or times
/// out.
///
/// A dropped phase sender also starts draining. All tasks run on `tracker`. Connections that are
/// closed to make room for others count in `shed`.
pub async fn serve(
    listener: TcpListener,
    transport: ServerTransport,
    limits: ServerLimits,
    shed: ShedConnections,
    phase: watch::Receiver<ServerPhase>,
    tracker: &TaskTracker,
    handler: impl Handler,
) {
    let drain_max = limits.drain_max;
    let budget = ConnectionBudget::new(limits.connections, shed);
    let open = TaskTracker::new();
    let abort = CancellationToken::new();
    let server = Server {
        transport,
        limits: Arc::new(limits),
        phase: phase.clone(),
        tracker: tracker.clone(),
        abort: abort.clone(),
        backlog: Arc::default(),
        handler,
    };

    let mut draining = pin!(drained(phase));
    loop {
        let (stream, address) = tokio::select! {
            biased;
            () = &mut draining => break,
            accepted = accept(&listener) => accepted,
        };

        let span = info_span!("conn", client.ip = %address.ip(), client.port = address.port());
        let connection = server.clone().connection(stream, budget.admit_handshake(address.ip()));
        tracker.spawn(open.track_future(connection.instrument(span)));
    }

    drop(listener);
    open.close();
    if timeout(drain_max, open.wait()).await.is_err() {
        warn!("Requests were still in progress at the end of the drain time");
        abort.cancel();
    }
}

/// Accepts the next connection.
pub(crate) async fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    loop {
        match listener.accept().await {
            Ok(accepted) => return accepted,
            Err(error) => {
                warn!(%error, "Cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// Returns when the phase is [`ServerPhase::Draining`], or when its sender is dropped.
async fn drained(mut phase: watch::Receiver<ServerPhase>) {
    let _ = phase.wait_for(|phase| *phase == ServerPhase::Draining).await;
}

/// The state that every connection shares.
#[derive(Clone)]
struct Server<H> {
    transport: ServerTransport,
    limits: Arc<ServerLimits>,
    phase: watch::Receiver<ServerPhase>,
    tracker: TaskTracker,
    abort: CancellationToken,
    backlog: Arc<StreamBacklog>,
    handler: H,
}

/// The facts that a handshake has established.
struct EstablishedSession {
    certificates: Vec<CertificateDer<'static>>,
    is_h2: bool,
}

impl<H: Handler> Server<H> {
    async fn connection(self, stream: TcpStream, slot: ConnectionSlot) {
        if let Err(error) = stream.set_nodelay(true) {
            debug!(%error, "Cannot turn off Nagle's algorithm");
        }

        let shed = slot.shed().clone();
        let guarded = GuardedStream::new(stream, self.limits.stream, shed.clone());
        tokio::select! {
            () = self.exchange(guarded, slot) => {}
            () = shed.cancelled() => debug!("The connection was closed to make room for others"),
        }
    }

    async fn exchange(self, stream: GuardedStream, slot: ConnectionSlot) {
        let tls = match self.transport.clone() {
            ServerTransport::Tls(tls) | ServerTransport::MutualTls(tls) => tls,
            ServerTransport::Plain => {
                let session = EstablishedSession { certificates: Vec::new(), is_h2: true };
                return self.requests(stream, session, slot).await;
            }
        };

        let handshake = TlsAcceptor::from(tls).accept(stream);
        match timeout(self.limits.handshake_max, handshake).await {
            Ok(Ok(stream)) => {
                let (_, tls) = stream.get_ref();
                let certificates = tls.peer_certificates().map(<[_]>::to_vec).unwrap_or_default();
                let is_h2 = tls.alpn_protocol() == Some(tls::ALPN_H2);
                self.requests(stream, EstablishedSession { certificates, is_h2 }, slot).await;
            }
            Ok(Err(error)) => debug!(%error, "The TLS handshake failed"),
            Err(_) => debug!("The TLS handshake took too long"),
        }
    }

    async fn requests<S>(self, stream: S, session: EstablishedSession, admitted: ConnectionSlot)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let slot = Arc::new(admitted);
        let peer = Arc::new(ConnectionPeer::new(session.certificates));
        let is_accepted = self.handler.accepts(&peer);
        slot.handshaken(is_accepted);

        let builder = self.builder(session.is_h2, is_accepted);
        let requests = AtomicU64::new(0);
        // Each response holds a share until it is written, so a stream counts as activity.
        let open = Arc::new(OpenResponses::default());
        let service = service_fn(|request| {
            requests.fetch_add(1, Ordering::Relaxed);
            // The limit of an HTTP/1.1 buffer only applies while a head is incomplete.
            let response = (head_bytes(&request) <= self.limits.header_bytes_max as usize)
                .then(|| self.handler.answer(request, Arc::clone(&peer)));
            let caller = Arc::clone(&peer);
            let place = Arc::clone(&slot);
            let share = Arc::clone(&open);
            async move {
                let Some(response) = response else { return Ok::<_, Infallible>(too_large()) };
                let answered = response.await;
                if caller.is_accepted() {
                    place.promote();
                }

                let (head, body) = answered.into_parts();
                let counted = body.into().counted(&place).await;
                Ok(Response::from_parts(head, counted.held_by(share)))
            }
        });

        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        let mut draining = pin!(drained(self.phase.clone()));
        let mut cut_off = pin!(self.cut_off(&open, session.is_h2));
        let mut seen = 0;
        let mut closing = false;
        loop {
            let exchange = poll_fn(|context| {
                ready!(self.backlog.poll_room(context));
                connection.as_mut().poll(context)
            });
            tokio::select! {
                result = exchange => {
                    if let Err(error) = result {
                        debug!(%error, "The connection ended early");
                    }
                    return;
                }
                () = &mut cut_off => return,
                () = tokio::time::sleep(self.limits.drain_max), if closing => {
                    debug!("Responses were not read in time before closing");
                    return;
                }
                () = &mut draining, if !closing => closing = true,
                () = tokio::time::sleep(self.limits.idle_max), if !closing => {
                    let now = requests.load(Ordering::Relaxed);
                    closing = now == seen && Arc::strong_count(&open) == 1;
                    seen = now;
                }
            }

            if closing {
                connection.as_mut().graceful_shutdown();
            }
        }
    }

    /// Returns when a connection must end at once. Only HTTP/2 peers can leave a response unread and
    /// still take bytes.
    async fn cut_off(&self, open: &OpenResponses, is_h2: bool) {
        let stalled = async {
            if is_h2 {
                open.stalled(self.limits.read_max).await;
            } else {
                pending::<()>().await;
            }
        };

        tokio::select! {
            () = self.abort.cancelled() => {}
            () = stalled => debug!("A response was not read in time"),
        }
    }

    /// TLS has negotiated the protocol, so the builder need not wait for a first byte to detect it.
    fn builder(&self, is_h2: bool, is_accepted: bool) -> auto::Builder<StreamExecutor> {
        let ServerLimits { header_max, header_bytes_max, ping_interval, ping_max, .. } =
            *self.limits;
        let streams_max =
            if is_accepted { self.limits.accepted_streams_max } else { self.limits.streams_max };
        let mut builder = auto::Builder::new(StreamExecutor {
            tracker: self.tracker.clone(),
            backlog: Arc::clone(&self.backlog),
        });

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
            .max_pending_accept_reset_streams(PENDING_RESETS_MAX)
            .max_local_error_reset_streams(ERROR_RESETS_MAX)
            .keep_alive_interval(ping_interval)
            .keep_alive_timeout(ping_max);

        if is_h2 { builder.http2_only() } else { builder.http1_only() }
    }
}

/// The size of a request's line and headers, without the separators.
fn head_bytes(request: &Request<Incoming>) -> usize {
    let line = request.uri().path_and_query().map_or(0, |target| target.as_str().len());
    let headers = request.headers().iter();
    line + headers.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

fn too_large() -> Response<ResponseBody> {
    let mut response = Response::new(ResponseBody::default());
    *response.status_mut() = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    response
}
