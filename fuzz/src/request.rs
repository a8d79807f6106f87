//! HTTP requests as text: `METHOD TARGET`, headers, an empty line, a body.

use bytes::Bytes;
use http_body_util::Full;
use hyper::Request;
use hyper::header::{HeaderName, HeaderValue};

/// The request that an input represents; `None` if no HTTP client could have sent it. A request
/// without a body may end in a newline.
#[must_use]
pub fn read(input: &[u8]) -> Option<Request<Full<Bytes>>> {
    let (head, body) = match input.windows(2).position(|pair| pair == b"\n\n") {
        Some(end) => (&input[..end], &input[end + 2..]),
        None => (input.strip_suffix(b"\n").unwrap_or(input), &[][..]),
    };
    let mut lines = head.split(|byte| *byte == b'\n');
    let first = lines.next()?;
    let space = first.iter().position(|byte| *byte == b' ')?;
    let mut request = Request::builder().method(&first[..space]).uri(&first[space + 1..]);
    for line in lines {
        let colon = line.iter().position(|byte| *byte == b':')?;
        let name = HeaderName::from_bytes(&line[..colon]).ok()?;
        let value = HeaderValue::from_bytes(line[colon + 1..].trim_ascii()).ok()?;
        request = request.header(name, value);
    }
    request.body(Full::new(Bytes::copy_from_slice(body))).ok()
}
