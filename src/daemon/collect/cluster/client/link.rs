//! Connections to the API server: few, shared by all requests, and checked while they are idle.
//!
//! All watches and requests share HTTP/2 connections. Pings notice a connection that died silently,
//! and cost the API server nothing that it counts or logs. A client of `hyper_util` uses one HTTP/2
//! connection and queues what exceeds the server's limit of streams, where a watch would wait
//! forever. [`ApiConnections`] therefore opens another connection before that.
//!
//! A proxy or a plain HTTP URL may offer HTTP/1.1 only, which has no pings. Watches then end after
//! [`LinkTiming::window`], and one that sends nothing for longer fails.

mod body;
mod overload;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response, Uri, Version};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::Client;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::Config;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::retry::RetryLayer;
use tower::timeout::Timeout;
use tower::util::BoxCloneSyncService;
use tower::{BoxError, Service, ServiceBuilder};

use crate::collect::cluster::client::link::body::{ApiBody, SilenceLimit};
use crate::collect::cluster::client::link::overload::BriefRetry;

/// Requests at a time on one connection. An API server allows 100 by default, and a proxy in front
/// of it 100 or more.
const STREAMS: usize = 64;

/// The most connections. The requests beyond wait.
const CONNECTIONS_MAX: usize = 64;

/// Bytes that the server may send ahead on one stream. A stream whose reader is slow must not use
/// up the window of its connection, which is that of all its streams.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Time for which a connection without requests is kept.
const IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Time for connecting, including the TLS handshake.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The timing by which a connection that died silently is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkTiming {
    /// Time without data after which an HTTP/2 connection is pinged.
    pub ping_interval: Duration,
    /// Time within which a ping must be answered.
    pub ping_timeout: Duration,
    /// The longest watch over HTTP/1.1.
    pub window: Duration,
    /// Time beyond the window after which such a watch has failed.
    pub grace: Duration,
}

impl Default for LinkTiming {
    fn default() -> Self {
        Self {
            ping_interval: Duration::from_secs(10),
            ping_timeout: Duration::from_secs(10),
            window: Duration::from_secs(25),
            grace: Duration::from_secs(5),
        }
    }
}

type Connector = BoxCloneSyncService<Uri, MaybeHttpsStream<TokioIo<TcpStream>>, BoxError>;

type HttpClient = legacy::Client<Connector, Body>;

/// The connections to the API server.
#[derive(Clone)]
struct ApiConnections {
    links: Arc<Mutex<Vec<ApiLink>>>,
    make: Arc<dyn Fn() -> HttpClient + Send + Sync>,
    timing: LinkTiming,
    /// True if the last response came over HTTP/1.1.
    plain: Arc<AtomicBool>,
}

/// One HTTP/2 connection, or a pool of HTTP/1.1 connections.
#[derive(Clone)]
struct ApiLink {
    client: HttpClient,
    streams: Arc<Semaphore>,
    opening: Arc<LinkOpening>,
}

/// The start of a connection. The first request opens it while the others wait, because only a
/// connection that exists is known to be HTTP/2. Otherwise each of them would open one.
#[derive(Debug, Default)]
struct LinkOpening {
    is_open: AtomicBool,
    turn: tokio::sync::Mutex<()>,
}

/// A request in flight. If it is dropped without a response, its caller has waited in vain, and
/// later requests take another connection.
struct ApiRequest {
    connections: ApiConnections,
    link: ApiLink,
    answered: bool,
}

/// Builds a client whose connections fail within the time of `timing` after they have died.
///
/// # Errors
///
/// The configuration names certificates or credentials that cannot be used. The API server is not
/// contacted.
pub fn connect(config: Config, timing: LinkTiming) -> Result<Client, Box<kube::Error>> {
    // The client library tunnels through proxies, if its features are enabled.
    if config.proxy_url.is_some() {
        return Client::try_from(config).map_err(Box::new);
    }

    if rustls::crypto::CryptoProvider::get_default().is_none() {
        // Another thread may have installed it in the meantime.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    }

    let connector = connector(&config)?;
    let connections = ApiConnections {
        links: Arc::default(),
        make: Arc::new(move || http_client(connector.clone(), timing)),
        timing,
        plain: Arc::default(),
    };
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(BriefRetry::default()))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

fn connector(config: &Config) -> Result<Connector, Box<kube::Error>> {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    // A kernel that no longer answers is noticed even if the connection cannot be pinged.
    tcp.set_keepalive(Some(Duration::from_secs(10)));
    tcp.set_keepalive_interval(Some(Duration::from_secs(5)));
    tcp.set_keepalive_retries(Some(3));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(Duration::from_secs(25)));

    let mut builder = HttpsConnectorBuilder::new()
        .with_tls_config(config.rustls_client_config()?)
        .https_or_http();
    if let Some(name) = &config.tls_server_name {
        let name = name.clone().try_into().map_err(|error| {
            kube::Error::Service(format!("tls-server-name {name:?}: {error}").into())
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(name));
    }

    let connector = builder.enable_http1().enable_http2().wrap_connector(tcp);
    Ok(BoxCloneSyncService::new(Timeout::new(connector, CONNECT_TIMEOUT)))
}

fn http_client(connector: Connector, timing: LinkTiming) -> HttpClient {
    let whole = STREAM_WINDOW.saturating_mul(u32::try_from(STREAMS).unwrap_or(u32::MAX));
    legacy::Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        .http2_initial_stream_window_size(STREAM_WINDOW)
        .http2_initial_connection_window_size(whole)
        .http2_keep_alive_interval(timing.ping_interval)
        .http2_keep_alive_timeout(timing.ping_timeout)
        .http2_keep_alive_while_idle(true)
        .build(connector)
}

// === impl ApiConnections ===

impl ApiConnections {
    async fn send(self, mut request: Request<Body>) -> Result<Response<ApiBody>, BoxError> {
        let is_watch = is_watch(request.uri());
        if is_watch && self.plain.load(Ordering::Relaxed) {
            shorten(&mut request, self.timing.window)?;
        }

        let (link, stream) = self.link().await?;
        let mut asked = ApiRequest { connections: self.clone(), link, answered: false };
        let response = asked.link.request(request).await;
        asked.answered = true;
        let response = response?;

        let is_plain = response.version() < Version::HTTP_2;
        self.plain.store(is_plain, Ordering::Relaxed);
        let silence = (is_watch && is_plain)
            .then(|| SilenceLimit::new(self.timing.window + self.timing.grace));
        let response = overload::with_delay(response).await?;
        let opening = Arc::clone(&asked.link.opening);
        Ok(response.map(|body| ApiBody { body, silence, opening, _stream: stream }))
    }

    /// Returns a connection with room for a request.
    async fn link(&self) -> Result<(ApiLink, OwnedSemaphorePermit), BoxError> {
        let full = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            for link in links.iter() {
                if let Ok(stream) = Arc::clone(&link.streams).try_acquire_owned() {
                    return Ok((link.clone(), stream));
                }
            }

            if links.len() < CONNECTIONS_MAX {
                let streams = Arc::new(Semaphore::new(STREAMS));
                links.push(ApiLink { client: (self.make)(), streams, opening: Arc::default() });
            }

            links.last().cloned()
        };

        let link = full.ok_or("there is no connection")?;
        let stream = Arc::clone(&link.streams).acquire_owned().await?;
        Ok((link, stream))
    }

    /// Gives no more requests to a connection. Those that it has go on.
    fn retire(&self, retired: &ApiLink) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| !Arc::ptr_eq(&link.streams, &retired.streams));
    }
}

impl ApiLink {
    async fn request(&self, request: Request<Body>) -> Result<Response<Incoming>, BoxError> {
        let turn = self.opening.turn.lock().await;
        // The lock is kept until there is a response if there is no connection yet.
        let _turn = (!self.opening.is_open.load(Ordering::Relaxed)).then_some(turn);
        let response = self.client.request(request).await;
        self.opening.is_open.store(response.is_ok(), Ordering::Relaxed);
        Ok(response?)
    }
}

impl Service<Request<Body>> for ApiConnections {
    type Response = Response<ApiBody>;
    type Error = BoxError;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, BoxError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        Box::pin(self.clone().send(request))
    }
}

impl Drop for ApiRequest {
    fn drop(&mut self) {
        if !self.answered {
            self.connections.retire(&self.link);
        }
    }
}

fn is_watch(uri: &Uri) -> bool {
    uri.query().is_some_and(|query| query.split('&').any(|pair| pair == "watch=true"))
}

/// Limits the duration that a watch requests.
fn shorten(request: &mut Request<Body>, window: Duration) -> Result<(), BoxError> {
    let uri = request.uri();
    let pairs = uri.query().unwrap_or_default().split('&').map(|pair| {
        match pair.strip_prefix("timeoutSeconds=").and_then(|seconds| seconds.parse().ok()) {
            Some(seconds) => format!("timeoutSeconds={}", window.as_secs().max(1).min(seconds)),
            None => pair.to_owned(),
        }
    });

    let query = pairs.collect::<Vec<_>>().join("&");
    let mut parts = uri.clone().into_parts();
    parts.path_and_query = Some(format!("{}?{query}", uri.path()).parse()?);
    *request.uri_mut() = Uri::from_parts(parts)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_duration_of_a_watch_is_shortened() {
        let window = Duration::from_secs(25);
        for (asked, sent) in [
            (
                "http://a/b?&watch=true&timeoutSeconds=421&x=1",
                "http://a/b?&watch=true&timeoutSeconds=25&x=1",
            ),
            ("http://a/b?timeoutSeconds=2&watch=true", "http://a/b?timeoutSeconds=2&watch=true"),
        ] {
            let mut request = Request::new(Body::empty());
            *request.uri_mut() = asked.parse().unwrap();
            assert!(is_watch(request.uri()));
            shorten(&mut request, window).unwrap();
            assert_eq!(request.uri().to_string(), sent);
        }
    }
}
