//! Hostile calls of KEDA's protocol for scalers, on a port without TLS.

use std::sync::Arc;
use std::time::Duration;

use plimsoll::publish::external_scaler::messages::ScaledObjectRef;
use prost::Message as _;
use tokio::io::AsyncWriteExt as _;
use tokio::time::sleep;

use crate::aim::{Aim, Port, address, swarm};
use crate::hostile::{HEADERS, RESET, frame, preface};

const DATA: u8 = 0;

const NO_FLAGS: u8 = 0;
const END_OF_STREAM: u8 = 0x1;
const END_OF_HEADERS: u8 = 0x4;

/// Streams that one connection with slow messages opens.
const SLOW_STREAMS: u32 = 100;

/// The header block of a call; all texts are literals.
fn call(name: &str) -> Vec<u8> {
    let path = format!("/externalscaler.ExternalScaler/{name}");
    let length = u8::try_from(path.len()).unwrap();
    let content = b"application/grpc";
    [
        // POST, http, the path, the authority, the content type, and `te: trailers`.
        &[0x83, 0x86, 0x04, length][..],
        path.as_bytes(),
        &[0x01, 1, b'a', 0x0f, 0x10, 16],
        content,
        &[0x00, 2, b't', b'e', 8],
        b"trailers",
    ]
    .concat()
}

/// A message with its length, as gRPC sends it.
fn message(bytes: &[u8]) -> Vec<u8> {
    let length = u32::try_from(bytes.len()).unwrap().to_be_bytes();
    [&[0][..], &length, bytes].concat()
}

/// The reference to a `ScaledObject` whose trigger names the honest variant.
fn honest() -> Vec<u8> {
    let scaler_metadata = [("variant".to_owned(), "good".to_owned())].into();
    ScaledObjectRef { name: "so".to_owned(), namespace: "shop".to_owned(), scaler_metadata }
        .encode_to_vec()
}

/// Numbers of so many streams of a client.
fn streams(most: u32) -> impl Iterator<Item = u32> {
    (1..2 * most).step_by(2)
}

/// A call with this body on a stream, which it ends.
fn asked(name: &str, stream: u32, body: &[u8]) -> Vec<u8> {
    let head = frame(HEADERS, END_OF_HEADERS, stream, &call(name));
    [head, frame(DATA, END_OF_STREAM, stream, body)].concat()
}

/// A connection with these frames.
fn with(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut bytes = preface(&[]);
    bytes.extend(frames.into_iter().flatten());
    vec![bytes]
}

/// Calls that are reset at once (CVE-2023-44487).
pub(crate) fn rapid_reset() -> Vec<Vec<u8>> {
    let cancel = 8_u32.to_be_bytes();
    with(streams(20_000).flat_map(|stream| {
        [
            frame(HEADERS, END_OF_HEADERS, stream, &call("StreamIsActive")),
            frame(RESET, NO_FLAGS, stream, &cancel),
        ]
    }))
}

/// More streams than are allowed, each of which would stay open.
pub(crate) fn stream_flood() -> Vec<Vec<u8>> {
    let body = message(&honest());
    with(streams(10_000).map(|stream| asked("StreamIsActive", stream, &body)))
}

/// Messages that announce 4 GiB or 100 kB, and one that is sent without waiting for the window.
pub(crate) fn oversized() -> Vec<Vec<u8>> {
    let part = [b'a'; 10_000];
    let announced =
        streams(4).zip([u32::MAX, 100_000].into_iter().cycle()).map(|(stream, length)| {
            let head = frame(HEADERS, END_OF_HEADERS, stream, &call("GetMetrics"));
            let start = [&[0][..], &length.to_be_bytes(), &part].concat();
            [head, frame(DATA, NO_FLAGS, stream, &start)].concat()
        });

    let body = message(&vec![b'a'; 100_000]);
    let whole = streams(1).map(|stream| {
        let head = frame(HEADERS, END_OF_HEADERS, stream, &call("IsActive"));
        let parts = body.chunks(16_000).map(|part| frame(DATA, NO_FLAGS, stream, part));
        [head].into_iter().chain(parts).collect::<Vec<_>>().concat()
    });

    [with(announced), with(whole)].concat()
}

/// Messages that no decoder can read, and compressed ones. All fit into a connection's window.
pub(crate) fn malformed() -> Vec<Vec<u8>> {
    let compressed = [&[1][..], &message(&honest())[1..]].concat();
    let bodies = [
        message(&[0xff; 200]),
        message(&[0x0a, 0xff, 0xff, 0xff, 0xff, 0x0f]),
        message(&[0x1b; 400]),
        message(&[]),
        compressed,
        vec![7; 64],
        Vec::new(),
    ];
    let calls =
        ["GetMetrics", "IsActive", "GetMetricSpec", "StreamIsActive", "StreamMetricSpec", ""];
    let all = calls.iter().flat_map(|name| bodies.iter().map(move |body| (*name, body)));
    with(streams(84).zip(all.cycle()).map(|(stream, (name, body))| asked(name, stream, body)))
}

/// Messages that arrive byte by byte.
pub(crate) async fn slow_messages(aim: Arc<Aim>) {
    swarm(aim, 32, |aim, worker| async move {
        let Some(mut stream) = aim.connect(Port::Grpc, address(worker)).await else { return };
        let heads = streams(SLOW_STREAMS)
            .map(|stream| frame(HEADERS, END_OF_HEADERS, stream, &call("GetMetrics")));
        let mut bytes = with(heads).concat();
        for byte in message(&honest()) {
            if stream.write_all(&bytes).await.is_err() {
                aim.note("closed");
                return;
            }
            let parts = streams(SLOW_STREAMS).map(|stream| frame(DATA, NO_FLAGS, stream, &[byte]));
            bytes = parts.collect::<Vec<_>>().concat();
            sleep(Duration::from_millis(200)).await;
        }
        aim.note("taken");
    })
    .await;
}
