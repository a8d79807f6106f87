//! One query: a request with its credentials, and what exactly went wrong when there is no answer.

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

use crate::collect::chain;
use crate::collect::file;
use crate::collect::prometheus::failure::{Failure, Outcome, shown};
use crate::collect::prometheus::query::Room;
use crate::collect::prometheus::{BasicAuth, Method, Settings};
use crate::collect::scrape::clients::{
    ClientError, Clients, IDLE_TIMEOUT, PING_INTERVAL, PING_TIMEOUT, Ready, Session, USER_AGENT,
};

/// The largest file with a header or a password.
const FILE_LIMIT: u64 = 64 << 10;

/// How much is read of an answer that is an error.
const ERROR_BODY_MAX: usize = 64 << 10;

/// What is asked.
#[derive(Clone, Debug)]
pub(crate) struct Question {
    /// The selector.
    pub(crate) query: String,
    /// The instant at which it is evaluated.
    pub(crate) at: Timestamp,
}

/// Asks one Prometheus.
#[derive(Debug)]
pub(crate) struct Client {
    settings: Arc<Settings>,
    url: String,
    session: Arc<Session<reqwest::Client>>,
    /// Whether the server has refused POST.
    only_get: AtomicBool,
}

impl Client {
    /// A client of the server in the settings, whose files are looked at every `refresh`.
    pub(crate) fn new(settings: Arc<Settings>, refresh: Duration) -> Self {
        let clients = Clients::new(http_client, refresh);
        let url = format!("{}/api/v1/query", settings.url);
        let session = clients.session(&settings.client, &url);
        Self { settings, url, session, only_get: AtomicBool::new(false) }
    }

    /// Where a query goes.
    pub(crate) fn room(&self) -> Room {
        match self.settings.method {
            Method::Post if !self.only_get.load(Ordering::Relaxed) => Room::Body,
            Method::Post | Method::Get => Room::Url,
        }
    }

    /// Asks, and gives the body of the answer. `elapsed` is the monotonic time at which credentials
    /// are looked at.
    ///
    /// # Errors
    ///
    /// There is no answer of the query API in time.
    pub(crate) async fn ask(
        &self,
        question: &Question,
        elapsed: Duration,
    ) -> Result<Bytes, Failure> {
        let timeout = self.settings.timeout;
        let asking = self.ask_without_end(question, elapsed);
        tokio::time::timeout(timeout, asking).await.unwrap_or_else(|_| {
            let detail = format!("there was no whole answer within {timeout:?}");
            Err(Failure::new(Outcome::Timeout, &detail))
        })
    }

    async fn ask_without_end(
        &self,
        question: &Question,
        elapsed: Duration,
    ) -> Result<Bytes, Failure> {
        let ready = self.session.ready(elapsed).await;
        let ready = ready.map_err(|why| Failure::new(Outcome::Credentials, &why))?;
        let headers = self.headers(&ready).await?;
        let response = self.send(&ready, question, headers.clone(), self.room()).await?;
        if response.status() == StatusCode::METHOD_NOT_ALLOWED && self.room() == Room::Body {
            self.only_get.store(true, Ordering::Relaxed);
            tracing::info!("Prometheus does not take queries by POST; they are sent by GET");
            let detail = "the server does not take POST; the next query is sent by GET";
            return Err(Failure::new(Outcome::Rejected, detail));
        }
        if response.status() != StatusCode::OK {
            return Err(status(response).await);
        }
        read(response, self.settings.body_limit).await
    }

    async fn send(
        &self,
        ready: &Ready<reqwest::Client>,
        question: &Question,
        headers: HeaderMap,
        room: Room,
    ) -> Result<Response, Failure> {
        let mut request = self.request(ready, question, room).headers(headers);
        if let Some(BasicAuth { username, password_file }) = &self.settings.basic_auth {
            let password = secret(password_file).await?;
            let password = String::from_utf8_lossy(&password);
            request = request.basic_auth(username, Some(password));
        }
        request.send().await.map_err(|error| before_the_answer(&error.without_url()))
    }

    fn request(
        &self,
        ready: &Ready<reqwest::Client>,
        question: &Question,
        room: Room,
    ) -> RequestBuilder {
        let form = self.form(question);
        match room {
            Room::Url => ready.client.get(format!("{}?{form}", self.url)),
            Room::Body => ready
                .client
                .post(&self.url)
                .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
                .body(form),
        }
    }

    fn form(&self, question: &Question) -> String {
        let Settings { timeout, series_limit, parameters, .. } = &*self.settings;
        let at = question.at.as_millisecond();
        let mut form = Serializer::new(String::new());
        form.append_pair("query", &question.query)
            .append_pair("time", &format!("{}.{:03}", at / 1000, at % 1000))
            .append_pair("timeout", &format!("{}ms", timeout.as_millis()))
            // One more than is allowed, so that it is seen that there are more.
            .append_pair("limit", &(series_limit.saturating_add(1)).to_string());
        for (name, value) in parameters {
            form.append_pair(name, value);
        }
        form.finish()
    }

    async fn headers(&self, ready: &Ready<reqwest::Client>) -> Result<HeaderMap, Failure> {
        let Settings { headers: written, header_files, .. } = &*self.settings;
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

fn http_client(tls: ClientConfig) -> Result<reqwest::Client, ClientError> {
    let builder = reqwest::Client::builder()
        .tls_backend_preconfigured(tls)
        .user_agent(USER_AGENT)
        // A redirect may lead to a page for people to sign in, and would carry our credentials.
        .redirect(Policy::none())
        .referer(false)
        // A Prometheus is inside the cluster; a proxy of the environment is for what is outside.
        .no_proxy()
        .pool_idle_timeout(IDLE_TIMEOUT)
        .pool_max_idle_per_host(1)
        .http2_keep_alive_interval(PING_INTERVAL)
        .http2_keep_alive_timeout(PING_TIMEOUT)
        .http2_keep_alive_while_idle(true);
    builder.build().map_err(|error| ClientError::Http(error.into()))
}

fn insert(headers: &mut HeaderMap, name: &str, value: &[u8]) -> Result<(), Failure> {
    let pair = HeaderName::try_from(name).ok().zip(HeaderValue::from_bytes(value).ok());
    let Some((name, mut value)) = pair else {
        // The value is a secret, so it is not repeated.
        let detail = format!("the header {name} has a value that no header may have");
        return Err(Failure::new(Outcome::Credentials, &detail));
    };
    value.set_sensitive(true);
    headers.insert(name, value);
    Ok(())
}

/// What a file holds, without the blanks at its ends.
async fn secret(path: &Path) -> Result<Vec<u8>, Failure> {
    let bytes = file::read(path, FILE_LIMIT).await;
    let bytes = bytes.map_err(|error| Failure::new(Outcome::Credentials, &chain(&error)))?;
    Ok(bytes.trim_ascii().to_vec())
}

/// Reads a body of at most `limit` bytes, after decompression.
async fn read(mut response: Response, limit: usize) -> Result<Bytes, Failure> {
    let too_large = || {
        let detail = format!(
            "the answer has more than {limit} bytes; narrow the matchers, or raise body_limit"
        );
        Failure::new(Outcome::TooLarge, &detail)
    };
    let announced = response.content_length().and_then(|length| usize::try_from(length).ok());
    if announced.is_some_and(|length| length > limit) {
        return Err(too_large());
    }
    let mut body = Vec::with_capacity(announced.unwrap_or_default());
    while let Some(chunk) =
        response.chunk().await.map_err(|error| within_the_body(&error.without_url(), body.len()))?
    {
        if chunk.len() > limit - body.len() {
            return Err(too_large());
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body.into())
}

/// The failure of an answer that is no success. Prometheus says more in JSON, and proxies in HTML.
async fn status(mut response: Response) -> Failure {
    let status = response.status();
    let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
    let to = location.map(|to| format!(" to {to}, and that is not followed")).unwrap_or_default();
    let mut body = Vec::new();
    while let Ok(Some(chunk)) = response.chunk().await {
        let room = ERROR_BODY_MAX - body.len();
        body.extend_from_slice(&chunk[..chunk.len().min(room)]);
        if body.len() >= ERROR_BODY_MAX {
            break;
        }
    }
    let outcome = match status.as_u16() {
        300..=399 => Outcome::Redirected,
        401 => Outcome::Unauthorized,
        403 => Outcome::Forbidden,
        404 => Outcome::NotFound,
        // How Prometheus says that a query which it understood had too many samples, among others.
        422 => Outcome::QueryError,
        429 => Outcome::RateLimited,
        400..=499 => Outcome::Rejected,
        _ => Outcome::ServerError,
    };
    let said = match serde_json::from_slice::<ErrorBody>(&body) {
        Ok(ErrorBody { error_type, error }) => format!("{error_type}: {error}"),
        Err(_) => shown(&body),
    };
    let said = if said.is_empty() { "an empty body".to_owned() } else { said };
    Failure::new(outcome, &format!("the server answered {status}{to}: {said}"))
}

/// The body of an answer that is an error, from the API itself.
#[derive(serde::Deserialize)]
struct ErrorBody {
    #[serde(rename = "errorType", default)]
    error_type: String,
    error: String,
}

/// Classifies an error that came before there was a status.
fn before_the_answer(error: &reqwest::Error) -> Failure {
    let outcome = match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => Outcome::Refused,
        Some(io::ErrorKind::TimedOut) => Outcome::Timeout,
        Some(_) | None if sources(error).any(is_tls) => Outcome::Tls,
        Some(_) | None => Outcome::Connection,
    };
    Failure::from_error(outcome, error)
}

/// Classifies an error that came after the status: something has broken the transfer off.
fn within_the_body(error: &reqwest::Error, received: usize) -> Failure {
    let outcome = match io_kind(error) {
        Some(io::ErrorKind::TimedOut) => Outcome::Timeout,
        Some(_) | None => Outcome::Truncated,
    };
    Failure::new(outcome, &format!("after {received} bytes: {}", chain(error)))
}

fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let inner = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>() || inner.is_some_and(<dyn Error + Send + Sync>::is::<rustls::Error>)
}

/// The kind of the innermost error of the operating system, or of a stream that stands in for it.
fn io_kind(error: &dyn Error) -> Option<io::ErrorKind> {
    sources(error).filter_map(|source| source.downcast_ref()).last().map(io::Error::kind)
}

/// What caused an error, outermost first.
fn sources<'a>(error: &'a dyn Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&source| source.source())
}
