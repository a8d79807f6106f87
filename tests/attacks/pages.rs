//! Hostile engines: /metrics responses that are too large, endless, packed, slow or nonsense.

use std::fmt::Write as _;
use std::time::Duration;

use flate2::{Compress, Compression, FlushCompress};

use crate::engine::{EngineResponse, MODEL, ResponseEnd};

const MIB: usize = 1 << 20;

/// Comment lines of one mebibyte, which a reader may skip.
fn comments() -> Vec<u8> {
    let line = format!("# {}\n", "x".repeat(1021));
    line.repeat(MIB / line.len()).into_bytes()
}

/// A gzip stream that never ends: a mebibyte of zeros again and again, a thousandth packed.
pub(crate) fn gzip_bomb() -> EngineResponse {
    let mut packed = Vec::with_capacity(64 << 10);
    let mut deflate = Compress::new(Compression::best(), false);
    deflate.compress_vec(&vec![0; MIB], &mut packed, FlushCompress::Full).unwrap();
    let mut response = EngineResponse::endless("Content-Encoding: gzip\r\n", packed);
    let gzip_header = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff];
    response.head.extend(gzip_header);
    response
}

/// Two gigabytes of comments.
pub(crate) fn huge() -> EngineResponse {
    let response = EngineResponse::endless("", comments());
    EngineResponse { parts: 2048, ..response }
}

/// A line that never ends.
pub(crate) fn endless_line() -> EngineResponse {
    EngineResponse::endless("", "x".repeat(MIB))
}

/// A byte every ten milliseconds, forever.
pub(crate) fn drip() -> EngineResponse {
    EngineResponse { pause: Duration::from_millis(10), ..EngineResponse::endless("", "#") }
}

/// An announced terabyte of which a little arrives.
pub(crate) fn unkept_promise() -> EngineResponse {
    let response = EngineResponse::endless("Content-Length: 1000000000000\r\n", "# a\n");
    EngineResponse { parts: 1, end: ResponseEnd::Hold, ..response }
}

/// Headers without end.
pub(crate) fn endless_headers() -> EngineResponse {
    let head = b"HTTP/1.1 200 OK\r\n".to_vec();
    EngineResponse { head, ..EngineResponse::endless("", "X-Header: value\r\n".repeat(1000)) }
}

/// A million samples of a metric that is read, within the limit of bytes of a response.
pub(crate) fn million_samples() -> EngineResponse {
    EngineResponse::whole("a 1\n".repeat(1_000_000))
}

/// As many series as fit, each of another rank.
pub(crate) fn many_series() -> EngineResponse {
    let mut text = String::new();
    for rank in 0..100_000 {
        let name = "vllm:kv_cache_usage_perc";
        writeln!(text, "{name}{{engine=\"{rank}\",model_name=\"{MODEL}\"}} 0.5").unwrap();
    }

    EngineResponse::whole(text)
}

/// Label values and numbers that break readers and whatever shows them.
pub(crate) fn hostile_labels() -> EngineResponse {
    let values = [
        "\\\"},{\\\"a\\\":\\\"",
        "\\n# HELP injected\\ninjected 1\\n",
        "<script>alert(1)</script>",
        "\u{202e}\u{0}\u{feff}",
        &"x".repeat(60_000),
        "${jndi:ldap://a}",
        "\u{1b}[2J\u{1b}]0;owned\u{7}",
        MODEL,
    ];
    let numbers = ["NaN", "+Inf", "-1", "1e308", "0x10", "18446744073709551616", "", "1 1 1"];
    let mut text = String::new();
    for value in values {
        for number in numbers {
            let labels = format!("{{model_name=\"{value}\",engine=\"{value}\"}}");
            writeln!(text, "vllm:num_requests_running{labels} {number}").unwrap();
            writeln!(text, "vllm:kv_cache_usage_perc{labels} {number}").unwrap();
        }
    }

    EngineResponse::whole(text)
}

/// Bytes that are no text at all.
pub(crate) fn binary() -> EngineResponse {
    let bytes: Vec<u8> = (0..MIB).map(|at| u8::try_from(at * 7919 % 251).unwrap()).collect();
    EngineResponse::whole(bytes)
}

/// A redirect to the cloud's metadata, as a hostile replica would send it.
pub(crate) fn redirect() -> EngineResponse {
    let head = b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/latest/meta-data\r\n\
                 Content-Length: 0\r\n\r\n";
    EngineResponse { head: head.to_vec(), ..EngineResponse::whole("") }
}

/// Seven mebibytes, just below the limit of one response, without an announced length.
pub(crate) fn large_unannounced() -> EngineResponse {
    EngineResponse { parts: 7, ..EngineResponse::endless("", comments()) }
}

/// The same with its length.
pub(crate) fn large() -> EngineResponse {
    EngineResponse::whole(comments().repeat(7))
}
