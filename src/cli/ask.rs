//! Requests to a running daemon.

use std::time::Duration;

use anyhow::Context;
use reqwest::StatusCode;

/// A daemon answers in milliseconds, and an explanation takes some seconds. One that takes longer
/// than this is treated as not reachable.
const TIMEOUT: Duration = Duration::from_secs(30);

/// The largest answer: a fleet of some thousand variants.
const ANSWER_MAX: usize = 64 << 20;

/// The reason that a daemon gives no answer.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// The daemon does not answer.
    #[error("the daemon at {url} does not answer; --url says where its plain HTTP port is")]
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
    let address = format!("{}{path}", base.trim_end_matches('/'));
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok(runtime.block_on(fetch(&address))?)
}

/// Fetches a URL.
pub(crate) async fn fetch(url: &str) -> Result<(StatusCode, String), AskError> {
    let built = reqwest::Client::builder().timeout(TIMEOUT).build();
    let client = built.map_err(|source| AskError::daemon(url, source))?;
    let sent = client.get(url).send().await;
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
    let text = text.map_err(|_| AskError::answer(url, "bytes that are no text"))?;
    Ok((status, text))
}
