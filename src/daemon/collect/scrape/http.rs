//! The HTTP client for scrapes. It keeps a connection to every replica, so each must be small.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use crate::collect::scrape::clients::{HttpClientError, IDLE_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};

/// Size of the read buffer over HTTP/1. An idle connection keeps a buffer of this size, and hyper
/// would otherwise let it grow to 400 KB. It is also the largest accepted header block; those of
/// engines have 300 bytes.
const BUFFER_MAX: usize = 16 << 10;

/// Idle time before TCP probes the peer, and the interval between probes.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Maximum number of unanswered probes.
const KEEPALIVE_RETRIES: u32 = 3;

/// Time within which TCP must acknowledge sent data.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// A client that follows no redirects and uses no proxy. A redirect would lead to the metrics of
/// another program. Replicas are inside the cluster, and the environment's proxy is for external
/// hosts.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// Builds a client with this TLS configuration.
#[expect(clippy::unnecessary_wraps, reason = "clients of other kinds can fail")]
pub(crate) fn client(tls: ClientConfig) -> Result<HttpClient, HttpClientError> {
    let mut tcp = HttpConnector::new();
    // The TLS connector wraps this one and also passes it https URLs.
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_keepalive(Some(KEEPALIVE));
    tcp.set_keepalive_interval(Some(KEEPALIVE));
    tcp.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
    #[cfg(target_os = "linux")]
    tcp.set_tcp_user_timeout(Some(UNACKNOWLEDGED_MAX));

    let client = Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .pool_idle_timeout(IDLE_TIMEOUT)
        // A target has at most one concurrent scrape.
        .pool_max_idle_per_host(1)
        .http1_max_buf_size(BUFFER_MAX)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(HttpsConnector::from((tcp, tls)));
    Ok(client)
}
