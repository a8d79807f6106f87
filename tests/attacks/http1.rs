//! Hostile HTTP/1.1 requests.

use std::fmt::Write as _;

use crate::external_metrics_harness::BASE;

fn get(path: &str, headers: &str) -> Vec<u8> {
    format!("GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}Connection: close\r\n\r\n").into()
}

fn put_log(filter: &str) -> Vec<u8> {
    format!(
        "PUT /-/log HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {}\r\nConnection: close\r\n\r\n\
         {filter}",
        filter.len()
    )
    .into()
}

// === heads ===

/// One header of a mebibyte.
pub(crate) fn large_header() -> Vec<Vec<u8>> {
    vec![get("/livez", &format!("X-Large: {}\r\n", "a".repeat(1 << 20)))]
}

/// Thousands of headers: below and above the limit of bytes.
pub(crate) fn many_headers() -> Vec<Vec<u8>> {
    vec![get("/livez", &"X: 1\r\n".repeat(8_000)), get("/livez", &"X: 1\r\n".repeat(100_000))]
}

/// Paths of 60 KB, which is below the limit, and of a mebibyte.
pub(crate) fn long_targets() -> Vec<Vec<u8>> {
    vec![
        get(&format!("/{}", "a".repeat(60_000)), ""),
        get(&format!("/api/v1/{}", "%41/".repeat(15_000)), ""),
        get(&format!("/{}", "a".repeat(1 << 20)), ""),
    ]
}

/// Thousands of requests in one write.
pub(crate) fn pipelined() -> Vec<Vec<u8>> {
    vec![b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n".repeat(5_000)]
}

/// The most expensive pages, pipelined.
pub(crate) fn expensive() -> Vec<Vec<u8>> {
    ["/metrics", "/api/v1/decisions", "/api/v1/status", "/api/v1/events"]
        .map(|path| format!("GET {path} HTTP/1.1\r\nHost: a\r\n\r\n").repeat(20).into_bytes())
        .to_vec()
}

/// Requests whose length two readers may understand in two ways. Each hides a second request.
pub(crate) fn smuggled() -> Vec<Vec<u8>> {
    let hidden = "POST /-/reload HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n";
    let length = hidden.len();
    [
        format!("Content-Length: {length}\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Content-Length: 0\r\nContent-Length: {length}\r\n\r\n{hidden}"),
        format!("Content-Length: +{length}\r\n\r\n{hidden}"),
        format!("Content-Length: 0x{length:x}\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("X: a\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n{hidden}"),
        format!("Transfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n{hidden}"),
        format!("X: a\n\nContent-Length: 0\r\n\r\n{hidden}"),
    ]
    .map(|rest| format!("PUT /-/log HTTP/1.1\r\nHost: a\r\n{rest}").into_bytes())
    .to_vec()
}

/// Targets that are meant for proxies.
pub(crate) fn for_proxies() -> Vec<Vec<u8>> {
    [
        "GET http://169.254.169.254/latest/meta-data HTTP/1.1",
        "GET http://user:password@127.0.0.1/metrics HTTP/1.1",
        "CONNECT 127.0.0.1:22 HTTP/1.1",
        "CONNECT / HTTP/1.1",
        "OPTIONS * HTTP/1.1",
        "TRACE / HTTP/1.1",
        "GET //evil.example/%2e%2e/metrics HTTP/1.1",
        "GET / HTTP/3.0",
        "GET /",
    ]
    .map(|line| format!("{line}\r\nHost: a\r\nConnection: close\r\n\r\n").into_bytes())
    .to_vec()
}

/// Paths that are no text.
pub(crate) fn broken_paths() -> Vec<Vec<u8>> {
    let raw: [&[u8]; 7] = [
        b"/\xff\xfe\xfd",
        b"/api/v1/\xc0\xae\xc0\xae/",
        b"/api/v1/history?namespace=\xff&variant=\xfe",
        b"/api/v1/history?namespace=%ff%fe%00&variant=%",
        b"/metrics\0",
        b"/%00%0d%0aX-Injected:%201",
        b"/\xed\xa0\x80",
    ];
    raw.map(|path| [b"GET ", path, b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"].concat())
        .to_vec()
}

// === browsers ===

/// Reads by a website whose name leads to the port.
pub(crate) fn rebound() -> Vec<Vec<u8>> {
    ["/metrics", "/api/v1/decisions", "/api/v1/status", "/"]
        .map(|path| {
            format!(
                "GET {path} HTTP/1.1\r\nHost: evil.example:8080\r\nSec-Fetch-Site: same-origin\r\n\
                 Accept-Language: en\r\nConnection: close\r\n\r\n"
            )
            .into_bytes()
        })
        .to_vec()
}

/// Changes that a website makes a browser on the same host send.
pub(crate) fn cross_site() -> Vec<Vec<u8>> {
    let headers = ["Origin: https://evil.example\r\n", "Sec-Fetch-Site: cross-site\r\n"];
    headers
        .map(|header| {
            format!(
                "POST /-/reload HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}Content-Type: text/plain\r\n\
                 Content-Length: 0\r\nConnection: close\r\n\r\n"
            )
            .into_bytes()
        })
        .to_vec()
}

// === changes ===

/// Changes by a peer that may not change anything.
pub(crate) fn foreign_changes() -> Vec<Vec<u8>> {
    let reload = b"POST /-/reload HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\
                   Authorization: Bearer guess\r\nConnection: close\r\n\r\n";
    vec![reload.to_vec(), put_log("off")]
}

/// Permitted reloads.
pub(crate) fn reloads() -> Vec<Vec<u8>> {
    vec![
        b"POST /-/reload HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n\
          Connection: close\r\n\r\n"
            .to_vec(),
    ]
}

/// Filters with regular expressions that would need gigabytes if they were compiled.
pub(crate) fn regex_filters() -> Vec<Vec<u8>> {
    let states = format!("[{{a=(x|y)*x{}}}]", "(x|y)".repeat(24));
    vec![put_log(&states), put_log("[{a=((((a{100}){100}){100}){100})}]=trace")]
}

/// Filters of exactly 4 KiB, and one that is longer.
pub(crate) fn large_filters() -> Vec<Vec<u8>> {
    let directives: String = "a=info,".repeat(4096).chars().take(4096).collect();
    let field = format!("[{{a={}}}]", "x".repeat(4090));
    let spans = format!("{}a", "[b]=info,".repeat(455)).chars().take(4096).collect::<String>();
    vec![put_log(&directives), put_log(&field), put_log(&spans), put_log(&"a".repeat(1 << 20))]
}

/// The most verbose filter, and requests that it logs.
pub(crate) fn trace_filter() -> Vec<Vec<u8>> {
    vec![put_log("trace"), get("/api/v1/decisions", "")]
}

/// Bodies that are longer than any filter.
pub(crate) fn endless_bodies() -> Vec<Vec<u8>> {
    let chunk = format!("{:x}\r\n{}\r\n", 1 << 16, "a".repeat(1 << 16));
    let head = "PUT /-/log HTTP/1.1\r\nHost: 127.0.0.1\r\n";
    vec![
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", chunk.repeat(64)).into_bytes(),
        format!("{head}Content-Length: 10000000000\r\n\r\n{}", "a".repeat(1 << 22)).into_bytes(),
        format!("{head}Transfer-Encoding: chunked\r\n\r\n{}", "1\r\na\r\n".repeat(100_000))
            .into_bytes(),
    ]
}

// === questions ===

/// Queries of the JSON API with values that are long, many, or nonsense.
pub(crate) fn hostile_queries() -> Vec<Vec<u8>> {
    let long = "x".repeat(50_000);
    [
        format!("/api/v1/history?namespace={long}&variant={long}").chars().take(60_000).collect(),
        format!("/api/v1/history?{}", "namespace=a&".repeat(5_000)),
        format!("/api/v1/events?{}", "%26%3d&=&&=".repeat(5_000)),
        "/api/v1/history?namespace=../../etc&variant=%00".to_owned(),
        "/api/v1/events?limit=-1&since=99999999999999999999".to_owned(),
        format!("/api/v1{}", "/..".repeat(15_000)),
    ]
    .map(|path: String| get(&path, ""))
    .to_vec()
}

/// Selectors that a user may send through the front proxy.
pub(crate) fn hostile_selectors() -> Vec<Vec<u8>> {
    let mut values = String::from("variant in (");
    for value in 0..7_000 {
        write!(values, "v{value},").unwrap();
    }

    let selectors = [
        format!("{values}z)"),
        "a!=b,".repeat(9_000),
        "a notin (b),".repeat(4_000),
        "(".repeat(50_000),
        format!("variant={}", "x".repeat(50_000)),
        "!".repeat(50_000),
        "a=\u{0},\u{202e}".to_owned(),
        "variant=good,variant!=good".to_owned(),
    ];
    selectors.map(|selector| asked(&selector)).to_vec()
}

/// A request with this selector, as the front proxy forwards it.
fn asked(selector: &str) -> Vec<u8> {
    let mut encoded = String::new();
    for byte in selector.bytes() {
        match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'(' | b'!' | b',' => encoded.push(char::from(byte)),
            _ => write!(encoded, "%{byte:02X}").unwrap(),
        }
    }

    let path = format!("{BASE}/namespaces/shop/plimsoll_desired_replicas?labelSelector={encoded}");
    get(&path, "X-Remote-User: tenant\r\n")
}

/// Requests that claim to be of an administrator.
pub(crate) fn forged_users() -> Vec<Vec<u8>> {
    let path = format!("{BASE}/namespaces/shop/plimsoll_desired_replicas");
    let groups = "X-Remote-Group: system:masters\r\n".repeat(500);
    [
        "X-Remote-User: system:admin\r\nX-Remote-Group: system:masters\r\n".to_owned(),
        "X-Remote-User: system:admin\r\nAuthorization: Bearer eyJhbGciOiJub25lIn0.e30.\r\n"
            .to_owned(),
        format!("X-Remote-User: a\r\n{groups}"),
        "X-Remote-User: a\r\nX-Remote-User: system:admin\r\nImpersonate-User: b\r\n".to_owned(),
    ]
    .map(|headers| get(&path, &headers))
    .to_vec()
}
