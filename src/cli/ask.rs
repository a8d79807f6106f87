//! Requests to a running daemon.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::Context;
use reqwest::{Client, Method, Response, StatusCode, Url};
use tokio::runtime::Runtime;

use plimsoll_core::fleet::VariantKey;

/// A daemon answers in milliseconds, and an explanation takes some seconds. One that takes longer
/// than this is treated as not reachable.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The largest answer: a fleet of some thousand variants.
const ANSWER_MAX: usize = 64 << 20;

/// The reason that a daemon gives no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The daemon does not answer.
    #[error("the daemon at {url} does not respond; set --url to its plain HTTP port")]
    Daemon {
        /// The requested URL.
        url: String,
        /// The request error.
        #[source]
        source: reqwest::Error,
    },
    /// The response is not the expected one.
    #[error("{url} answers with {what}")]
    Answer {
        /// The requested URL.
        url: String,
        /// A description of the response.
        what: String,
    },
}

// === impl AskError ===

impl AskError {
    fn daemon(url: &str, source: reqwest::Error) -> Self {
        Self::Daemon { url: url.to_owned(), source }
    }

    pub(crate) fn answer(url: &str, what: impl Into<String>) -> Self {
        Self::Answer { url: url.to_owned(), what: what.into() }
    }
}

/// Fetches a path of the daemon whose plain HTTP port is at `base`. Returns the status and the text.
///
/// # Errors
///
/// The daemon does not answer, or with more than is read, or with bytes that are no text.
pub(crate) fn get(base: &str, path: &str) -> anyhow::Result<(StatusCode, String)> {
    Ok(runtime()?.block_on(fetch(base, path, TIMEOUT))?)
}

/// Does the same within a runtime, and gives up after this time.
///
/// # Errors
///
/// As those of [`get`].
pub(crate) async fn fetch(
    base: &str,
    path: &str,
    timeout: Duration,
) -> Result<(StatusCode, String), AskError> {
    let address = format!("{}{path}", base.trim_end_matches('/'));
    let sent = client(&address)?.get(&address).timeout(timeout).send().await;
    answer(&address, sent).await
}

/// A request that changes the daemon.
pub(crate) struct ChangeRequest {
    /// The method.
    pub(crate) method: Method,
    /// The path and the query.
    pub(crate) path: String,
    /// The body.
    pub(crate) body: String,
    /// The bearer token, if one is needed.
    pub(crate) token: Option<String>,
}

/// Changes the daemon whose plain HTTP port is at `base`. Returns the status and the text.
///
/// # Errors
///
/// As those of [`get`].
pub(crate) fn change(base: &str, request: &ChangeRequest) -> anyhow::Result<(StatusCode, String)> {
    let ChangeRequest { method, path, body, token } = request;
    let address = format!("{}{path}", base.trim_end_matches('/'));

    Ok(runtime()?.block_on(async {
        let built = client(&address)?.request(method.clone(), &address).body(body.clone());
        let sent = match token {
            Some(token) => built.bearer_auth(token),
            None => built,
        };
        answer(&address, sent.send().await).await
    })?)
}

/// The query that names a variant.
pub(crate) fn of_variant(key: &VariantKey) -> String {
    let VariantKey { namespace, variant } = key;
    form_urlencoded::Serializer::new(String::new())
        .append_pair("namespace", namespace.as_str())
        .append_pair("variant", variant.as_str())
        .finish()
}

fn runtime() -> anyhow::Result<Runtime> {
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.context("cannot start the runtime")
}

fn client(url: &str) -> Result<Client, AskError> {
    // As in kubectl, a proxy is not asked for an address of this machine.
    let mut builder = Client::builder().timeout(TIMEOUT);
    if is_local(url) {
        builder = builder.no_proxy();
    }
    builder.build().map_err(|source| AskError::daemon(url, source))
}

/// Returns true if a URL is of this machine.
fn is_local(url: &str) -> bool {
    let parsed = Url::parse(url).ok();
    let host = parsed.as_ref().and_then(Url::host_str).unwrap_or_default();
    let address = host.trim_matches(['[', ']']).parse::<IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// Reads an answer.
async fn answer(
    url: &str,
    sent: Result<Response, reqwest::Error>,
) -> Result<(StatusCode, String), AskError> {
    let mut answer = sent.map_err(|source| AskError::daemon(url, source))?;
    let status = answer.status();

    let mut body = Vec::new();
    while let Some(chunk) = answer.chunk().await.map_err(|source| AskError::daemon(url, source))? {
        body.extend_from_slice(&chunk);
        if body.len() > ANSWER_MAX {
            return Err(AskError::answer(url, format!("more than {ANSWER_MAX} bytes")));
        }
    }

    let text = String::from_utf8(body);
    let text = text.map_err(|_| AskError::answer(url, "bytes that are not text"))?;
    Ok((status, text))
}
