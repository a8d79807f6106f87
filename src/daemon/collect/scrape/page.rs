//! One request for a metrics response, and the exact problem if it fails.

use std::error::Error;
use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::http::uri::Scheme;
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, header};

use crate::collect::io_kind;
use crate::collect::scrape::clients::{IDLE_TIMEOUT, ReadyClient, USER_AGENT};
use crate::collect::scrape::health::ScrapeError;
use crate::collect::scrape::http::HttpClient;
use crate::collect::scrape::memory::{MemoryShare, ResponseMemory};
use plimsoll_core::observe::ScrapeFailure;

/// The `Accept` header. It prefers the text format, because servers that are asked for
/// `OpenMetrics` rewrite the colons in the engines' names.
const ACCEPT: &str = "text/plain;version=0.0.4;q=1,text/plain;q=0.8,\
                        application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";

/// A complete metrics response.
#[derive(Debug)]
pub(crate) struct MetricsPage {
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: Option<String>,
    /// The memory of the body, which is in use until the page is dropped.
    _share: MemoryShare,
}

/// Bytes that are reserved for a response before they arrive: more than most engines send. An
/// announced length alone must not take memory, which is counted by the bytes that arrived.
const RESERVED_MAX: usize = 128 * 1024;

/// Bytes that are decompressed before they are counted.
const UNPACKED_STEP: u64 = 256 << 10;

/// The encoding of a body.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    Plain,
    Gzip,
}

/// Parses a URL for a request, and escapes it as a browser does.
///
/// # Errors
///
/// The text is not a URL.
pub(crate) fn address(url: &str) -> Result<Uri, ScrapeError> {
    let parsed = reqwest::Url::parse(url).map_err(|error| connection(&error))?;
    Uri::try_from(parsed.as_str()).map_err(|error| connection(&error))
}

fn connection(error: &dyn Error) -> ScrapeError {
    ScrapeError::from_error(ScrapeFailure::Connection, error)
}

/// Fetches a response and reads at most `limit` bytes of it, before and after decompression, as
/// long as `memory` has room for them. `interval` is the time until the next request.
///
/// A connection that would be idle for too long is closed at once, because it takes 36 KB. HTTP/2,
/// which needs TLS, knows no such header.
pub(crate) async fn fetch(
    ready: &ReadyClient<HttpClient>,
    address: &Uri,
    limit: usize,
    interval: Duration,
    memory: &Arc<ResponseMemory>,
) -> Result<MetricsPage, ScrapeError> {
    let mut builder = Request::get(address)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, ACCEPT)
        .header(header::ACCEPT_ENCODING, "gzip");
    if let Some(authorization) = &ready.authorization {
        builder = builder.header(header::AUTHORIZATION, authorization);
    }

    if interval > IDLE_TIMEOUT && address.scheme() == Some(&Scheme::HTTP) {
        builder = builder.header(header::CONNECTION, "close");
    }

    let request = builder.body(Empty::<Bytes>::new()).map_err(|error| connection(&error))?;
    let response =
        ready.client.request(request).await.map_err(|error| before_the_answer(&error))?;
    // 206 and 204 are successes, but not complete responses.
    if response.status() != StatusCode::OK {
        return Err(status(&response));
    }

    let encoding = encoding(response.headers())?;
    let declared = response.headers().get(header::CONTENT_TYPE);
    let content_type = declared.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let share = memory.share();
    let received = read(response.into_body(), limit, &share).await?;
    let body = match encoding {
        Encoding::Plain => received,
        Encoding::Gzip => unpacked(&received, limit, &share).await?,
    };
    Ok(MetricsPage { body, content_type, _share: share })
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, ScrapeError> {
    let Some(named) = headers.get(header::CONTENT_ENCODING) else { return Ok(Encoding::Plain) };

    match named.as_bytes().to_ascii_lowercase().as_slice() {
        b"gzip" | b"x-gzip" => Ok(Encoding::Gzip),
        b"identity" | b"" => Ok(Encoding::Plain),
        _ => {
            let shown = named.as_bytes().escape_ascii();
            let detail = format!("the response has the encoding {shown} instead of gzip");
            Err(ScrapeError::new(ScrapeFailure::Malformed, &detail))
        }
    }
}

async fn read(
    mut incoming: Incoming,
    limit: usize,
    share: &MemoryShare,
) -> Result<Vec<u8>, ScrapeError> {
    let announced = incoming.size_hint().exact().map(usize::try_from);
    let capacity = match announced {
        Some(Ok(length)) if length <= limit => length,
        Some(_) => return Err(too_large(limit)),
        // Chunked: the length is not known before the end.
        None => 0,
    };

    let mut body = Vec::with_capacity(capacity.min(RESERVED_MAX));
    loop {
        let received = tokio::select! {
            error = share.abandoned() => return Err(error),
            frame = incoming.frame() => frame,
        };
        let Some(received) = received else { return Ok(body) };
        let frame = received.map_err(|error| within_the_body(&error, body.len()))?;
        // Trailers contain no metrics.
        let Ok(chunk) = frame.into_data() else { continue };
        if chunk.len() > limit - body.len() {
            return Err(too_large(limit));
        }

        share.grow(chunk.len())?;
        body.extend_from_slice(&chunk);
    }
}

/// Decompresses a body. Bytes that are not valid gzip are malformed. If they end before the
/// compressed data does, the response is truncated.
async fn unpacked(
    packed: &[u8],
    limit: usize,
    share: &MemoryShare,
) -> Result<Vec<u8>, ScrapeError> {
    let mut body = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let mut decoder = MultiGzDecoder::new(packed).take(most);
    loop {
        let before = body.len();
        let read = decoder.by_ref().take(UNPACKED_STEP).read_to_end(&mut body);
        if body.len() > limit {
            return Err(too_large(limit));
        }
        read.map_err(|error| broken(&error, body.len()))?;

        if body.len() == before {
            return Ok(body);
        }
        share.grow(body.len() - before)?;
        // A large response must not hold the thread.
        tokio::task::yield_now().await;
    }
}

/// Classifies an error of the decompression after so many bytes.
fn broken(error: &io::Error, unpacked: usize) -> ScrapeError {
    let class = match error.kind() {
        io::ErrorKind::UnexpectedEof => ScrapeFailure::Truncated,
        _ => ScrapeFailure::Malformed,
    };
    let detail = format!("after {unpacked} bytes: the compressed response: {error}");
    ScrapeError::new(class, &detail)
}

fn too_large(limit: usize) -> ScrapeError {
    ScrapeError::new(ScrapeFailure::TooLarge, &format!("the response has more than {limit} bytes"))
}

fn status(response: &Response<Incoming>) -> ScrapeError {
    let status = response.status();
    let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
    let detail = match location {
        Some(to) => format!("the server returned {status} to {to}; redirects are not followed"),
        None => format!("the server returned {status}"),
    };
    ScrapeError::new(ScrapeFailure::Status, &detail)
}

/// Classifies an error that occurred before the status was received.
fn before_the_answer(error: &dyn Error) -> ScrapeError {
    let class = match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => ScrapeFailure::Refused,
        Some(io::ErrorKind::TimedOut) => ScrapeFailure::Timeout,
        Some(_) | None => ScrapeFailure::Connection,
    };
    ScrapeError::from_error(class, error)
}

/// Classifies an error that occurred after the status was received. An interrupted transfer has
/// truncated the response, whatever the cause.
fn within_the_body(error: &hyper::Error, received: usize) -> ScrapeError {
    let class = match io_kind(error) {
        Some(io::ErrorKind::TimedOut) => ScrapeFailure::Timeout,
        Some(_) | None => ScrapeFailure::Truncated,
    };
    let failure = ScrapeError::from_error(class, error);
    ScrapeError::new(class, &format!("after {received} bytes: {}", failure.detail))
}
