//! One request for one page, and what exactly went wrong when there is none.

use std::error::Error;
use std::io::{self, Read};

use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use http_body_util::{BodyExt, Empty};
use hyper::body::{Body, Incoming};
use hyper::{HeaderMap, Request, Response, StatusCode, Uri, header};

use crate::collect::scrape::clients::{Ready, USER_AGENT};
use crate::collect::scrape::health::Failure;
use crate::collect::scrape::http::HttpClient;
use plimsoll_core::observe::ScrapeFailure;

/// What we ask for: the text format, because servers that are asked for `OpenMetrics` rewrite the
/// colons in the engines' names.
const ACCEPT: &str = "text/plain;version=0.0.4;q=1,text/plain;q=0.8,\
                        application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1";

/// A page that arrived whole.
#[derive(Debug)]
pub(crate) struct Page {
    pub(crate) body: Vec<u8>,
    pub(crate) content_type: Option<String>,
}

/// How a body comes.
#[derive(Clone, Copy, Debug)]
enum Encoding {
    Plain,
    Gzip,
}

/// Where a page is, as a request says it: escaped where a browser would escape it.
///
/// # Errors
///
/// The text is no URL.
pub(crate) fn address(url: &str) -> Result<Uri, Failure> {
    let wrong = |error: &dyn Error| Failure::from_error(ScrapeFailure::Connection, error);
    let url = reqwest::Url::parse(url).map_err(|error| wrong(&error))?;
    Uri::try_from(url.as_str()).map_err(|error| wrong(&error))
}

/// Asks for a page and reads at most `limit` bytes of it, before and after decompression.
pub(crate) async fn fetch(
    ready: &Ready<HttpClient>,
    address: &Uri,
    limit: usize,
) -> Result<Page, Failure> {
    let mut request = Request::get(address)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, ACCEPT)
        .header(header::ACCEPT_ENCODING, "gzip");
    if let Some(authorization) = &ready.authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let request = request.body(Empty::<Bytes>::new());
    let request =
        request.map_err(|error| Failure::from_error(ScrapeFailure::Connection, &error))?;
    let response =
        ready.client.request(request).await.map_err(|error| before_the_answer(&error))?;
    // 206 and 204 are successes, but not whole pages.
    if response.status() != StatusCode::OK {
        return Err(status(&response));
    }
    let encoding = encoding(response.headers())?;
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
    let body = read(response.into_body(), limit).await?;
    let body = match encoding {
        Encoding::Plain => body,
        Encoding::Gzip => unpacked(&body, limit)?,
    };
    Ok(Page { body, content_type })
}

fn encoding(headers: &HeaderMap) -> Result<Encoding, Failure> {
    let Some(named) = headers.get(header::CONTENT_ENCODING) else { return Ok(Encoding::Plain) };
    let is = |name: &str| named.as_bytes().eq_ignore_ascii_case(name.as_bytes());
    if is("gzip") || is("x-gzip") {
        Ok(Encoding::Gzip)
    } else if is("identity") || is("") {
        Ok(Encoding::Plain)
    } else {
        let named = named.as_bytes().escape_ascii();
        let detail = format!("the page comes in the encoding {named}, and gzip was asked for");
        Err(Failure::new(ScrapeFailure::Malformed, &detail))
    }
}

async fn read(mut incoming: Incoming, limit: usize) -> Result<Vec<u8>, Failure> {
    let announced = incoming.size_hint().exact().map(usize::try_from);
    let capacity = match announced {
        Some(Ok(length)) if length <= limit => length,
        Some(_) => return Err(too_large(limit)),
        // Chunked: its length is not known before its end.
        None => 0,
    };
    let mut body = Vec::with_capacity(capacity);
    while let Some(frame) = incoming.frame().await {
        let frame = frame.map_err(|error| within_the_body(&error, body.len()))?;
        // Trailers say nothing about a page.
        let Ok(chunk) = frame.into_data() else { continue };
        if chunk.len() > limit - body.len() {
            return Err(too_large(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

/// What a compressed body holds. Bytes that no compressor wrote are malformed; the end of the bytes
/// before the end of what was compressed is a page that is cut off.
fn unpacked(packed: &[u8], limit: usize) -> Result<Vec<u8>, Failure> {
    let mut body = Vec::new();
    let most = u64::try_from(limit).unwrap_or(u64::MAX).saturating_add(1);
    let read = MultiGzDecoder::new(packed).take(most).read_to_end(&mut body);
    if body.len() > limit {
        return Err(too_large(limit));
    }
    read.map_err(|error| {
        let class = match error.kind() {
            io::ErrorKind::UnexpectedEof => ScrapeFailure::Truncated,
            _ => ScrapeFailure::Malformed,
        };
        let detail = format!("after {} bytes: the compressed page: {error}", body.len());
        Failure::new(class, &detail)
    })?;
    Ok(body)
}

fn too_large(limit: usize) -> Failure {
    Failure::new(ScrapeFailure::TooLarge, &format!("the page has more than {limit} bytes"))
}

fn status(response: &Response<Incoming>) -> Failure {
    let status = response.status();
    let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
    let detail = match location {
        Some(to) => format!("the server answered {status} to {to}, and that is not followed"),
        None => format!("the server answered {status}"),
    };
    Failure::new(ScrapeFailure::Status, &detail)
}

/// Classifies an error that came before there was a status.
fn before_the_answer(error: &dyn Error) -> Failure {
    let class = match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => ScrapeFailure::Refused,
        Some(io::ErrorKind::TimedOut) => ScrapeFailure::Timeout,
        Some(_) | None => ScrapeFailure::Connection,
    };
    Failure::from_error(class, error)
}

/// Classifies an error that came after the status: whatever broke the transfer off has truncated
/// the page.
fn within_the_body(error: &hyper::Error, received: usize) -> Failure {
    let class = match io_kind(error) {
        Some(io::ErrorKind::TimedOut) => ScrapeFailure::Timeout,
        Some(_) | None => ScrapeFailure::Truncated,
    };
    let failure = Failure::from_error(class, error);
    Failure::new(class, &format!("after {received} bytes: {}", failure.detail))
}

/// The kind of the innermost error of the operating system, or of a stream that stands in for it.
fn io_kind(error: &dyn Error) -> Option<io::ErrorKind> {
    sources(error).filter_map(|source| source.downcast_ref()).last().map(io::Error::kind)
}

/// What caused an error, outermost first.
fn sources<'a>(error: &'a dyn Error) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&source| source.source())
}
