//! One request for one page, and what exactly went wrong when there is none.

use std::error::Error;
use std::io;

use reqwest::{Response, StatusCode, header};

use crate::collect::scrape::clients::Ready;
use crate::collect::scrape::health::Failure;
use crate::observe::ScrapeFailure;

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

/// Asks for a page and reads at most `limit` bytes of it, after decompression.
pub(crate) async fn fetch(ready: &Ready, url: &str, limit: usize) -> Result<Page, Failure> {
    let mut request = ready.client.get(url).header(header::ACCEPT, ACCEPT);
    if let Some(authorization) = &ready.authorization {
        request = request.header(header::AUTHORIZATION, authorization);
    }
    let response = request.send().await.map_err(|error| before_the_answer(&error.without_url()))?;
    // 206 and 204 are successes, but not whole pages.
    if response.status() != StatusCode::OK {
        return Err(status(&response));
    }
    let content_type = response.headers().get(header::CONTENT_TYPE);
    let content_type = content_type.and_then(|value| value.to_str().ok()).map(str::to_owned);
    Ok(Page { body: read(response, limit).await?, content_type })
}

async fn read(mut response: Response, limit: usize) -> Result<Vec<u8>, Failure> {
    let announced = response.content_length().map(usize::try_from);
    let capacity = match announced {
        Some(Ok(length)) if length <= limit => length,
        Some(_) => return Err(too_large(limit)),
        // Chunked or compressed: its length is not known before its end.
        None => 0,
    };
    let mut body = Vec::with_capacity(capacity);
    while let Some(chunk) =
        response.chunk().await.map_err(|error| within_the_body(&error.without_url(), body.len()))?
    {
        if chunk.len() > limit - body.len() {
            return Err(too_large(limit));
        }
        body.extend_from_slice(&chunk);
    }
    Ok(body)
}

fn too_large(limit: usize) -> Failure {
    Failure::new(ScrapeFailure::TooLarge, &format!("the page has more than {limit} bytes"))
}

fn status(response: &Response) -> Failure {
    let status = response.status();
    let location = response.headers().get(header::LOCATION).and_then(|to| to.to_str().ok());
    let detail = match location {
        Some(to) => format!("the server answered {status} to {to}, and that is not followed"),
        None => format!("the server answered {status}"),
    };
    Failure::new(ScrapeFailure::Status, &detail)
}

/// Classifies an error that came before there was a status.
fn before_the_answer(error: &reqwest::Error) -> Failure {
    let class = match io_kind(error) {
        Some(io::ErrorKind::ConnectionRefused) => ScrapeFailure::Refused,
        Some(io::ErrorKind::TimedOut) => ScrapeFailure::Timeout,
        Some(_) | None => ScrapeFailure::Connection,
    };
    Failure::from_error(class, error)
}

/// Classifies an error that came after the status: whatever broke the transfer off has truncated
/// the page, and what is left are bytes that no compressor wrote.
fn within_the_body(error: &reqwest::Error, received: usize) -> Failure {
    let transfer = sources(error).any(<dyn Error>::is::<hyper::Error>);
    let class = match io_kind(error) {
        Some(io::ErrorKind::TimedOut) => ScrapeFailure::Timeout,
        Some(io::ErrorKind::UnexpectedEof) => ScrapeFailure::Truncated,
        Some(_) | None if transfer => ScrapeFailure::Truncated,
        Some(_) | None => ScrapeFailure::Malformed,
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
