//! The HTTP client of scrapes: it keeps a connection to every replica, so each must be small.

use std::time::Duration;

use bytes::Bytes;
use http_body_util::Empty;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use rustls::ClientConfig;

use crate::collect::scrape::clients::{ClientError, IDLE_TIMEOUT, PING_INTERVAL, PING_TIMEOUT};

/// How much of an answer is read at once over HTTP/1. An idle connection keeps a buffer of this
/// size for what comes next, and hyper lets it grow to 400 KB unless it is told otherwise. It is
/// also the largest head of an answer; those of engines have 300 bytes.
const BUFFER_MAX: usize = 16 << 10;

/// How long TCP waits before it asks whether an idle peer lives, and between two such questions.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// How many of these questions may stay without an answer.
const KEEPALIVE_RETRIES: u32 = 3;

/// How long what was sent may wait for TCP's acknowledgement.
const UNACKNOWLEDGED_MAX: Duration = Duration::from_secs(30);

/// A client that follows no redirect, which would lead to a page that is not this replica's, and
/// knows no proxy: replicas are inside the cluster, and the proxy of the environment is for what is
/// outside.
pub(crate) type HttpClient = Client<HttpsConnector<HttpConnector>, Empty<Bytes>>;

/// A client with this side of TLS.
#[expect(clippy::unnecessary_wraps, reason = "clients of other kinds can fail")]
pub(crate) fn client(tls: ClientConfig) -> Result<HttpClient, ClientError> {
    let mut tcp = HttpConnector::new();
    // The connector for TLS is above this one, and gives it https too.
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
        // A target has one scrape at a time.
        .pool_max_idle_per_host(1)
        .http1_max_buf_size(BUFFER_MAX)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true)
        .build(HttpsConnector::from((tcp, tls)));
    Ok(client)
}
