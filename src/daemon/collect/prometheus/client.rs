//! One query: a request with its credentials, and the exact problem if it fails.

use std::error::Error;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use form_urlencoded::Serializer;
use jiff::Timestamp;
use reqwest::header::{self, HeaderMap, HeaderName, HeaderValue};
use reqwest::redirect::Policy;
use reqwest::{RequestBuilder, Response, StatusCode};
use rustls::ClientConfig;

use crate::collect::file;
use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome, shown};
use crate::collect::prometheus::query::QueryPlacement;
use crate::collect::prometheus::settings::{BasicAuth, Method, PrometheusSettings};
use crate::collect::scrape::clients::{
    ClientPool, HttpClientError, IDLE_TIMEOUT, PING_INTERVAL, PING_TIMEOUT, ReadyClient, Session,
    USER_AGENT,
};
use crate::collect::{chain, io_kind, sources};

/// The largest file with a header or a password.
const FILE_LIMIT: u64 = 64 << 10;

/// The maximum number of bytes that are read of an error response.
const ERROR_BODY_MAX: usize = 64 << 10;

/// A query.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The selector.
    pub(crate) query: String,
    /// The instant at which it is evaluated.
    pub(crate) at: Timestamp,
}

/// A client for one Prometheus.
#[derive(Debug)]
pub(crate) struct PrometheusClient {
    settings: Arc<PrometheusSettings>,
    url: String,
    session: Arc<Session<reqwest::Client>>,
    /// True once the server has refused POST.
    only_get: AtomicBool,
}

impl PrometheusClient {
    /// Creates a client for the server in the settings. Its files are checked every `refresh`.
    pub(crate) fn new(settings: Arc<PrometheusSettings>, refresh: Duration) -> Self {
        let clients = ClientPool::new(http_client, refresh);
        let url = format!("{}/api/v1/query", settings.url);
        let session = clients.session(&settings.client, &url);
        Self { settings, url, session, only_get: AtomicBool::new(false) }
    }

    /// Returns the part of the request that contains the query.
    pub(crate) fn room(&self) -> QueryPlacement {
        match self.settings.method {
            Method::Post if !self.only_get.load(Ordering::Relaxed) => QueryPlacement::Body,
            Method::Post | Method::Get => QueryPlacement::Url,
        }
    }

    /// Sends a query and returns the body of the answer. `elapsed` is the monotonic time for
    /// checking credentials.
    ///
    /// # Errors
    ///
    /// The query API did not answer in time.
    pub(crate) async fn ask(
        &self,
        question: &Question,
        elapsed: Duration,
    ) -> Result<Bytes, QueryFailure> {
        let timeout = self.settings.timeout;
        let asking = self.ask_without_end(question, elapsed);
        tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| {
            let detail = format!("no complete response within {timeout:?}");
            Err(QueryFailure::new(QueryOutcome::Timeout, &detail))
        })
    }

    async fn ask_without_end(
        &self,
        question: &Question,
        elapsed: Duration,
    ) -> Result<Bytes, QueryFailure> {
        let client = self.session.ready(elapsed).await;
        let ready = client.map_err(|why| QueryFailure::new(QueryOutcome::Credentials, &why))?;
        let headers = self.headers(&ready).await?;
        let response = self.send(&ready, question, headers.clone(), self.room()).await?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED
            && self.room() == QueryPlacement::Body
        {
            self.only_get.store(true, Ordering::Relaxed);
            tracing::info!("Prometheus does not take queries by POST; they are sent by GET");
            let detail = "the server does not take POST; the next query is sent by GET";
            return Err(QueryFailure::new(QueryOutcome::Rejected, detail));
        }

        if response.status() != StatusCode::OK {
            return Err(status(response).await);
        }

        read(response, self.settings.body_limit).await
    }

    async fn send(
        &self,
        ready: &ReadyClient<reqwest::Client>,
        question: &Question,
        headers: HeaderMap,
        room: QueryPlacement,
    ) -> Result<Response, QueryFailure> {
        let mut request = self.request(ready, question, room).headers(headers);
        if let Some(BasicAuth { username, password_file }) = &self.settings.basic_auth {
            let content = secret(password_file).await?;
            let password = String::from_utf8_lossy(&content);
            request = request.basic_auth(username, Some(password));
        }
        request.send().await.map_err(|error| before_the_answer(&error.without_url()))
    }

    fn request(
        &self,
        ready: &ReadyClient<reqwest::Client>,
        question: &Question,
        room: QueryPlacement,
    ) -> RequestBuilder {
        let form = self.form(question);

        match room {
            QueryPlacement::Url => ready.client.get(format!("{}?{form}", self.url)),
            QueryPlacement::Body => ready
                .client
                .post(&self.url)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form),
        }
    }

    fn form(&self, question: &Question) -> String {
        let PrometheusSettings { timeout, series_limit, parameters, .. } = &*self.settings;
        let at = question.at.as_millisecond();
        let mut form = Serializer::new(String::new());
        form.append_pair("query", &question.query)
            .append_pair("time", &format!("{}.{:03}", at / 1000, at % 1000))
            .append_pair("timeout", &format!("{}ms", timeout.as_millis()))
            // One more than the limit, so that an excess is visible.
            .append_pair("limit", &(series_limit.saturating_add(1)).to_string());
        for (name, value) in parameters {
            form.append_pair(name, value);
        }

        form.finish()
    }

    async fn headers(
        &self,
        ready: &ReadyClient<reqwest::Client>,
    ) -> Result<HeaderMap, QueryFailure> {
        let PrometheusSettings { headers: written, header_files, .. } = &*self.settings;
        let mut headers = HeaderMap::new();
        headers.insert(header::ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(authorization) = &ready.authorization {
            headers.insert(header::AUTHORIZATION, authorization.clone());
        }
        for (name, value) in written {
            insert(&mut headers, name, value.expose().as_bytes())?;
        }
        for (name, path) in header_files {
            insert(&mut headers, name, &secret(path).await?)?;
        }

        Ok(headers)
    }
}

fn http_client(tls: ClientConfig) -> Result<reqwest::Client, HttpClientError> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(USER_AGENT)
        // A redirect may lead to a login form, and would send the credentials there.
        .redirect(Policy::none())
        .referer(false)
        // A Prometheus is inside the cluster. The environment's proxy is for external hosts.
        .no_proxy()
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(1)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true);

    builder.build().map_err(|error| HttpClientError::Http(error.into()))
}

fn insert(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Result<(), QueryFailure> {
    let pair = HeaderName::try_from(name).ok().zip(HeaderValue::from_bytes(value).ok());
    let Some((name, mut value)) = pair else {
        // The value is a secret, so it is not repeated.
        let detail = format!("the header {name} has an invalid value");
        return Err(QueryFailure::new(QueryOutcome::Credentials, &detail));
    };

    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

/// Returns the content of a file, without leading and trailing blanks.
async fn secret(path: &Path) -> Result<Vec<u8>, QueryFailure> {
    let content = file::read(path, FILE_LIMIT).await;
    let bytes =
        content.map_err(|error| QueryFailure::new(QueryOutcome::Credentials, &chain(&error)))?;
    Ok(bytes.trim_ascii().to_vec())
}

/// Reads a body of at most `limit` bytes, after decompression.
async fn read(mut response: Response, limit: usize) -> Result<Bytes, QueryFailure> {
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large(limit));
    }

    let mut body = Vec::with_capacity(announced.unwrap_or_default());
    while let Some(chunk) =
        response.chunk().await.map_err(|error| within_the_body(&error.without_url(), body.len()))?
    {
        if chunk.len() > limit - body.len() {
            return Err(too_large(limit));
        }
        body.extend_from_slice(&chunk);
    }

    Ok(body.into())
}

fn too_large(limit: usize) -> QueryFailure {
    let detail = format!(
        "the response has more than {limit} bytes; narrow the matchers, or raise \
            body_limit"
    );
    QueryFailure::new(QueryOutcome::TooLarge, &detail)
}

/// Returns the failure for an unsuccessful response. Prometheus adds details in JSON, and proxies
/// in HTML.
async fn status(mut response: Response) -> QueryFailure {
    let status = response.status();
    let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
    let to =
        location.map(|url| format!(" to {url}; redirects are not followed")).unwrap_or_default();
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = ERROR_BODY_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() >= ERROR_BODY_MAX {
            break;
        }
    }

    let outcome = match status.as_u16() {
        300..=399 => QueryOutcome::Redirected,
        401 => QueryOutcome::Unauthorized,
        403 => QueryOutcome::Forbidden,
        404 => QueryOutcome::NotFound,
        // Prometheus responds with 422 if a valid query had too many samples, among other reasons.
        422 => QueryOutcome::QueryError,
        429 => QueryOutcome::RateLimited,
        400..=499 => QueryOutcome::Rejected,
        _ => QueryOutcome::ServerError,
    };

    let text = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(ErrorBody { error_type, error }) => format!("{error_type}: {error}"),
        Err(_) => shown(&body),
    };
    let said = if text.is_empty() { "an empty body".to_owned() } else { text };
    QueryFailure::new(outcome, &format!("the server answered {status}{to}: {said}"))
}

/// The body of an error response from the API itself.
#[derive(serde::Deserialize)]
struct ErrorBody {
    #[serde(rename = "errorType", default)]
    error_type: String,
    error: String,
}

/// Classifies an error that occurred before the status was received.
fn before_the_answer(error: &reqwest::Error) -> QueryFailure {
    let outcome = match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => QueryOutcome::Refused,
        Some(io::ErrorKind::TimedOut) => QueryOutcome::Timeout,
        Some(_) | None if sources(error).any(is_tls) => QueryOutcome::Tls,
        Some(_) | None => QueryOutcome::Connection,
    };
    QueryFailure::from_error(outcome, error)
}

/// Classifies an error that occurred after the status was received: the transfer was interrupted.
fn within_the_body(error: &reqwest::Error, received: usize) -> QueryFailure {
    let outcome = match io_kind(error) {
        Some(io::ErrorKind::TimedOut) => QueryOutcome::Timeout,
        Some(_) | None => QueryOutcome::Truncated,
    };
    QueryFailure::new(outcome, &format!("after {received} bytes: {}", chain(error)))
}

/// Returns true for an error of TLS, also below I/O errors, which are no sources of each other.
fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(|inner| is_tls(inner))
}
