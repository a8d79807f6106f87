//! Conditional and compressed answers: `If-None-Match` with 304, and gzip.
//!
//! A reader that polls names the tag of the answer that it has, and gets 304 without a body while
//! nothing has changed. Tags are weak: two answers with one tag say the same, though their ages and
//! clocks differ.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use http_body_util::Full;
use hyper::header::{
    ACCEPT_ENCODING, CONTENT_ENCODING, ETAG, HeaderMap, HeaderValue, IF_NONE_MATCH, VARY,
};
use hyper::{Request, Response, StatusCode};

/// The smallest answer that is compressed, in bytes. A smaller one fits into a packet or two.
const GZIP_MIN: usize = 1024;

/// A request for a document.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DocumentRequest {
    /// The path.
    pub path: String,
    /// The query, without the question mark.
    pub query: Option<String>,
    /// The tags of the answers that the reader has, as in `If-None-Match`.
    pub known: Option<String>,
    /// The encoding that the reader accepts.
    pub accepted: ContentEncoding,
}

/// The encoding of an answer's body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ContentEncoding {
    /// The bytes as they are.
    #[default]
    Identity,
    /// Compressed by gzip.
    Gzip,
}

/// The answer to a [`DocumentRequest`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentResponse {
    /// The status.
    pub status: StatusCode,
    /// The body, in the encoding.
    pub body: Bytes,
    /// The tag of the content; `None` if it changes with every answer.
    pub tag: Option<String>,
    /// The encoding of the body.
    pub encoding: ContentEncoding,
}

/// The weak tag of content, from the parts of it that matter.
#[must_use]
pub fn tag_of(content: &impl Hash) -> String {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    format!("W/\"{:016x}\"", hasher.finish())
}

// === impl DocumentRequest ===

impl DocumentRequest {
    /// Reads the headers and the path of a request.
    #[must_use]
    pub fn of<B>(request: &Request<B>) -> Self {
        let headers = request.headers();
        let known = headers.get_all(IF_NONE_MATCH).iter().filter_map(|it| it.to_str().ok());
        let tags = known.collect::<Vec<_>>().join(", ");

        Self {
            path: request.uri().path().to_owned(),
            query: request.uri().query().map(str::to_owned),
            known: Some(tags).filter(|tags| !tags.is_empty()),
            accepted: ContentEncoding::accepted(headers),
        }
    }

    /// Returns true if the reader already has the content with this tag.
    fn has(&self, tag: &str) -> bool {
        let bare = tag.trim_start_matches("W/");
        let mut known = self.known.as_deref().unwrap_or_default().split(',').map(str::trim);
        known.any(|known| known == "*" || known.trim_start_matches("W/") == bare)
    }
}

// === impl ContentEncoding ===

impl ContentEncoding {
    /// The best encoding that a reader accepts.
    fn accepted(headers: &HeaderMap) -> Self {
        let lists = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|it| it.to_str().ok());
        let gzip = lists.flat_map(|list| list.split(',')).any(|coding| {
            let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
            let weight = parameters.trim().strip_prefix("q=").map(str::parse::<f64>);
            let refused = matches!(weight, Some(Ok(weight)) if weight <= 0.0);
            name.trim().eq_ignore_ascii_case("gzip") && !refused
        });

        if gzip { Self::Gzip } else { Self::Identity }
    }

    /// Encodes a body. A body that is too small, or cannot be compressed, stays as it is.
    fn encode(self, body: Bytes) -> (Bytes, Self) {
        match self {
            Self::Gzip if body.len() >= GZIP_MIN => match gzip(&body) {
                Some(compressed) => (compressed, Self::Gzip),
                None => (body, Self::Identity),
            },
            Self::Gzip | Self::Identity => (body, Self::Identity),
        }
    }
}

fn gzip(body: &[u8]) -> Option<Bytes> {
    let mut encoder = GzEncoder::new(Vec::with_capacity(body.len() / 4), Compression::fast());
    encoder.write_all(body).ok()?;
    encoder.finish().ok().map(Bytes::from)
}

// === impl DocumentResponse ===

impl DocumentResponse {
    /// An answer without a tag, as it is.
    #[must_use]
    pub fn plain(status: StatusCode, body: impl Into<Bytes>) -> Self {
        Self { status, body: body.into(), tag: None, encoding: ContentEncoding::Identity }
    }

    /// The answer to a request: 304 if the reader has the content, otherwise the encoded body.
    #[must_use]
    pub fn to(
        request: &DocumentRequest,
        status: StatusCode,
        body: impl Into<Bytes>,
        tag: Option<String>,
    ) -> Self {
        if tag.as_deref().is_some_and(|tag| request.has(tag)) {
            return Self { tag, ..Self::plain(StatusCode::NOT_MODIFIED, Bytes::new()) };
        }
        let (body, encoding) = request.accepted.encode(body.into());
        Self { status, body, tag, encoding }
    }

    /// The answer as HTTP, with a `Content-Type` that the caller adds.
    #[must_use]
    pub fn into_http(self) -> Response<Full<Bytes>> {
        let Self { status, body, tag, encoding } = self;
        let mut response = Response::new(Full::new(body));
        *response.status_mut() = status;

        let headers = response.headers_mut();
        headers.append(VARY, HeaderValue::from_static("Accept-Encoding"));
        if let Some(tag) = tag.and_then(|tag| HeaderValue::try_from(tag).ok()) {
            headers.insert(ETAG, tag);
        }
        if encoding == ContentEncoding::Gzip {
            headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use flate2::read::GzDecoder;

    use super::*;

    fn request(headers: &[(&str, &str)]) -> DocumentRequest {
        let built =
            headers.iter().fold(Request::get("/api/v1/summary?x=1"), |it, (name, value)| {
                it.header(*name, *value)
            });
        DocumentRequest::of(&built.body(()).unwrap())
    }

    fn answer(headers: &[(&str, &str)], body: &'static str) -> DocumentResponse {
        let tag = Some("W/\"7\"".to_owned());
        DocumentResponse::to(&request(headers), StatusCode::OK, body, tag)
    }

    #[test]
    fn a_reader_that_has_the_content_gets_304_without_a_body() {
        for known in ["W/\"7\"", "\"7\"", "\"6\", W/\"7\"", "*"] {
            let answer = answer(&[("if-none-match", known)], "new");
            assert_eq!((answer.status, answer.body.len()), (StatusCode::NOT_MODIFIED, 0));
            assert_eq!(answer.into_http().headers().get(ETAG).unwrap(), "W/\"7\"");
        }
        for known in ["\"77\"", "7", "W/\"6\""] {
            let answer = answer(&[("if-none-match", known)], "new");
            assert_eq!((answer.status, &answer.body[..]), (StatusCode::OK, &b"new"[..]), "{known}");
        }
    }

    #[test]
    fn a_long_body_is_compressed_for_a_reader_that_accepts_it() {
        let long: &str = Box::leak("replicas ".repeat(1000).into_boxed_str());
        for accepted in ["gzip", "br, GZIP;q=0.5"] {
            let answer = answer(&[("accept-encoding", accepted)], long);
            let mut text = String::new();
            GzDecoder::new(&answer.body[..]).read_to_string(&mut text).unwrap();
            assert_eq!(text, long);
            assert!(answer.body.len() < long.len() / 10);
            let http = answer.into_http();
            assert_eq!(http.headers().get(CONTENT_ENCODING).unwrap(), "gzip");
            assert_eq!(http.headers().get(VARY).unwrap(), "Accept-Encoding");
        }
        for refused in ["identity", "gzip;q=0", "br"] {
            assert_eq!(answer(&[("accept-encoding", refused)], long).body, long, "{refused}");
        }
        let short = answer(&[("accept-encoding", "gzip")], "short");
        assert_eq!((&short.body[..], short.encoding), (&b"short"[..], ContentEncoding::Identity));
    }

    #[test]
    fn the_tag_depends_on_the_content_alone() {
        assert_eq!(tag_of(&"a"), tag_of(&"a"));
        assert_ne!(tag_of(&"a"), tag_of(&"b"));
    }
}
