//! Connections to the API server: few, shared by all requests, and checked while they are idle.
//!
//! All watches and requests share HTTP/2 connections. Pings notice a connection that died silently,
//! and cost the API server nothing that it counts or logs. A connection that has as many requests as
//! an API server allows takes no more, because a watch would wait there forever: [`ApiConnections`]
//! opens another. Clients of libraries do neither.
//!
//! A proxy or a plain HTTP URL may offer HTTP/1.1 only, which has no pings. Watches then end after
//! [`LinkTiming::window`], and one that sends nothing for longer fails.

mod body;
mod overload;

use std::pin::Pin;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http2;
use hyper::rt::Executor as _;
use hyper::{Request, Response, Uri};
use hyper_rustls::{FixedServerNameResolver, HttpsConnectorBuilder, MaybeHttpsStream};
use hyper_util::client::legacy;
use hyper_util::client::legacy::connect::{Connection as _, HttpConnector};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use kube::Client;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::config::Config;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower::retry::RetryLayer;
use tower::timeout::Timeout;
use tower::util::{BoxCloneSyncService, ServiceExt as _};
use tower::{BoxError, Service, ServiceBuilder};

use crate::collect::cluster::client::link::body::{ApiBody, SilenceLimit};
use crate::collect::cluster::client::link::overload::BriefRetry;

/// Requests at a time on one connection. An API server allows 100 by default, and a proxy in front
/// of it 100 or more.
const STREAMS: usize = 64;

/// The most connections. The requests beyond wait.
const CONNECTIONS_MAX: usize = 64;

/// Connections on which a request is tried, if each of them closes before the request is sent.
const TRIES: usize = 3;

/// Bytes that the server may send ahead on one stream. A stream whose reader is slow must not use
/// up the window of its connection, which is that of all its streams.
const STREAM_WINDOW: u32 = 256 * 1024;

/// Time for which an HTTP/1.1 connection without requests is kept.
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

/// The connections to the API server.
#[derive(Clone)]
struct ApiConnections(Arc<ConnectionPool>);

struct ConnectionPool {
    connector: Connector,
    timing: LinkTiming,
    links: Mutex<Vec<Arc<ApiLink>>>,
    /// The client for a server without HTTP/2, once this is known.
    plain: OnceLock<legacy::Client<Connector, Body>>,
}

/// A place for one HTTP/2 connection.
struct ApiLink {
    /// The connection. The lock is held while it is opened, so that there is one at a time.
    sender: tokio::sync::Mutex<Option<http2::SendRequest<Body>>>,
    streams: Arc<Semaphore>,
}

/// A request in flight. If it is dropped without a response, its caller has waited in vain, and
/// later requests take another connection.
struct ApiRequest<'a> {
    pool: &'a ConnectionPool,
    link: Arc<ApiLink>,
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

    let connections = ApiConnections(Arc::new(ConnectionPool {
        connector: connector(&config)?,
        timing,
        links: Mutex::default(),
        plain: OnceLock::new(),
    }));
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
        let server_name = name.clone().try_into().map_err(|error| {
            kube::Error::Service(format!("tls-server-name {name:?}: {error}").into())
        })?;
        builder = builder.with_server_name_resolver(FixedServerNameResolver::new(server_name));
    }

    let connector = builder.enable_http1().enable_http2().wrap_connector(tcp);
    Ok(BoxCloneSyncService::new(Timeout::new(connector, CONNECT_TIMEOUT)))
}

// === impl ConnectionPool ===

impl ConnectionPool {
    async fn send(&self, request: Request<Body>) -> Result<Response<ApiBody>, BoxError> {
        if request.uri().scheme_str() == Some("http") {
            return self.send_plainly(self.plain_client(), request).await;
        }
        if let Some(client) = self.plain.get() {
            return self.send_plainly(client, request).await;
        }

        let (link, stream) = self.link().await?;
        let mut asked = ApiRequest { pool: self, link, answered: false };
        let response = self.send_on(&asked.link, request).await;
        asked.answered = true;
        match response? {
            Ok(response) => {
                let readable = overload::with_delay(response).await?;
                Ok(readable.map(|body| ApiBody::new(body, None, Some(stream))))
            }
            Err(request) => self.send_plainly(self.plain_client(), request).await,
        }
    }

    /// Sends a request over HTTP/1.1.
    async fn send_plainly(
        &self,
        client: &legacy::Client<Connector, Body>,
        mut request: Request<Body>,
    ) -> Result<Response<ApiBody>, BoxError> {
        let LinkTiming { window, grace, .. } = self.timing;
        let is_watch = is_watch(request.uri());
        if is_watch {
            shorten(&mut request, window)?;
        }

        let response = overload::with_delay(client.request(request).await?).await?;
        let silence = is_watch.then(|| SilenceLimit::new(window + grace));
        Ok(response.map(|body| ApiBody::new(body, silence, None)))
    }

    /// Sends a request on this connection, which is opened if necessary. Returns the request if the
    /// server does not offer HTTP/2.
    async fn send_on(
        &self,
        link: &ApiLink,
        mut request: Request<Body>,
    ) -> Result<Result<Response<Incoming>, Request<Body>>, BoxError> {
        for _ in 0..TRIES {
            let Some(mut sender) = self.open(link, request.uri()).await? else {
                return Ok(Err(request));
            };
            match sender.try_send_request(request).await {
                Ok(response) => return Ok(Ok(response)),
                Err(mut error) => match error.take_message() {
                    // The connection was closing.
                    Some(unsent) => request = unsent,
                    None => return Err(error.into_error().into()),
                },
            }
        }

        Err("the API server closes each connection before a request is sent".into())
    }

    /// Returns the connection of a link. `None` if the server does not offer HTTP/2.
    async fn open(
        &self,
        link: &ApiLink,
        uri: &Uri,
    ) -> Result<Option<http2::SendRequest<Body>>, BoxError> {
        let mut known = link.sender.lock().await;
        if let Some(sender) = known.as_ref().filter(|sender| !sender.is_closed()) {
            return Ok(Some(sender.clone()));
        }

        let stream = self.connector.clone().oneshot(uri.clone()).await?;
        if !stream.connected().is_negotiated_h2() {
            return Ok(None);
        }

        let whole = STREAM_WINDOW.saturating_mul(u32::try_from(STREAMS).unwrap_or(u32::MAX));
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(whole)
            .keep_alive_interval(self.timing.ping_interval)
            .keep_alive_timeout(self.timing.ping_timeout)
            .keep_alive_while_idle(true)
            .handshake(stream)
            .await?;
        // Its requests report its failure.
        TokioExecutor::new().execute(async { drop(connection.await) });
        *known = Some(sender.clone());
        Ok(Some(sender))
    }

    /// Returns a connection with room for a request.
    async fn link(&self) -> Result<(Arc<ApiLink>, OwnedSemaphorePermit), BoxError> {
        let full = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            for link in links.iter() {
                if let Ok(stream) = Arc::clone(&link.streams).try_acquire_owned() {
                    return Ok((Arc::clone(link), stream));
                }
            }

            if links.len() < CONNECTIONS_MAX {
                let streams = Arc::new(Semaphore::new(STREAMS));
                links.push(Arc::new(ApiLink { sender: tokio::sync::Mutex::default(), streams }));
            }

            links.last().cloned()
        };

        let link = full.ok_or("there is no connection")?;
        let stream = Arc::clone(&link.streams).acquire_owned().await?;
        Ok((link, stream))
    }

    /// Gives no more requests to a connection. Those that it has go on.
    fn retire(&self, retired: &Arc<ApiLink>) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.retain(|link| !Arc::ptr_eq(link, retired));
    }

    fn plain_client(&self) -> &legacy::Client<Connector, Body> {
        self.plain.get_or_init(|| {
            legacy::Client::builder(TokioExecutor::new())
                .pool_timer(TokioTimer::new())
                .pool_idle_timeout(IDLE_TIMEOUT)
                .build(self.connector.clone())
        })
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
        let pool = Arc::clone(&self.0);
        Box::pin(async move { pool.send(request).await })
    }
}

impl Drop for ApiRequest<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.pool.retire(&self.link);
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
