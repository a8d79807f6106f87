//! Hostile HTTP/2 connections, frame by frame.

use crate::hostile::{END_OF_BOTH, HEADERS, RESET, SETTINGS, frame, livez, preface, reset_streams};

const DATA: u8 = 0;
const PRIORITY: u8 = 2;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const NO_FLAGS: u8 = 0;
const END_OF_HEADERS: u8 = 0x4;

/// Stream numbers of a client.
fn streams(most: u32) -> impl Iterator<Item = u32> {
    (1..2 * most).step_by(2)
}

/// The start of a connection, and then frames.
fn with(frames: impl IntoIterator<Item = Vec<u8>>) -> Vec<Vec<u8>> {
    let mut bytes = preface(&[]);
    bytes.extend(frames.into_iter().flatten());
    vec![bytes]
}

/// Streams that are opened and reset at once (CVE-2023-44487).
pub(crate) fn rapid_reset() -> Vec<Vec<u8>> {
    vec![reset_streams(20_000)]
}

/// Streams that make the server reset them, by a window update of zero (CVE-2025-8671).
pub(crate) fn made_you_reset() -> Vec<Vec<u8>> {
    with(streams(10_000).flat_map(|stream| {
        let nothing = 0_u32.to_be_bytes();
        [
            frame(HEADERS, END_OF_HEADERS, stream, &livez()),
            frame(WINDOW_UPDATE, NO_FLAGS, stream, &nothing),
        ]
    }))
}

/// Headers that go on in frame after frame (CVE-2024-27316): large frames, and empty ones.
pub(crate) fn continuation() -> Vec<Vec<u8>> {
    // A literal header without indexing: `x: aaa…`.
    let value = [&[0x00, 1, b'x', 0x7f, 0x81, 0x7e][..], &[b'a'; 16_256]].concat();
    let large = (0..1000).map(|_| frame(CONTINUATION, NO_FLAGS, 1, &value));
    let empty = (0..100_000).map(|_| frame(CONTINUATION, NO_FLAGS, 1, &[]));
    let start = frame(HEADERS, NO_FLAGS, 1, &livez());
    [with([start.clone()].into_iter().chain(large)), with([start].into_iter().chain(empty))]
        .concat()
}

/// Header blocks of a few kilobytes that unpack to megabytes, by the table of the connection.
pub(crate) fn hpack_bomb() -> Vec<Vec<u8>> {
    // Indexed literal `x: aaa…` of 4,000 bytes, which fills the table; 4,000 is 127 + 33 + 30 * 128.
    let entry = [&[0x40, 1, b'x', 0x7f, 0xa1, 0x1e][..], &[b'a'; 4_000]].concat();
    // The first entry of that table has the index 62.
    let reference_to_it = 0x80 + 62;
    with(streams(200).map(|stream| {
        let block = [&livez()[..], &entry, &[reference_to_it; 12_000]].concat();
        frame(HEADERS, END_OF_BOTH, stream, &block)
    }))
}

/// Header blocks that no decoder can read.
pub(crate) fn broken_hpack() -> Vec<Vec<u8>> {
    let blocks: [&[u8]; 4] = [
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        &[0x80],
        &[0x3f, 0xff, 0xff, 0xff, 0xff, 0x0f],
        &[0x00, 0xff, 0xff, 0xff],
    ];
    blocks.iter().flat_map(|block| with([frame(HEADERS, END_OF_BOTH, 1, block)])).collect()
}

/// Requests of a peer that grants no window for answers.
pub(crate) fn zero_window() -> Vec<Vec<u8>> {
    let no_window = [&[0, 4][..], &0_u32.to_be_bytes()].concat();
    let mut bytes = preface(&no_window);
    bytes.extend(streams(250).flat_map(|stream| frame(HEADERS, END_OF_BOTH, stream, &livez())));
    vec![bytes]
}

/// Window updates that grant nothing, or more than there can be.
pub(crate) fn window_updates() -> Vec<Vec<u8>> {
    let update = |by: u32| frame(WINDOW_UPDATE, NO_FLAGS, 0, &by.to_be_bytes());
    [
        with((0..10_000).map(|_| update(0))),
        with((0..2).map(|_| update(0x7fff_ffff))),
        with((0..50_000).map(|_| update(1))),
    ]
    .concat()
}

/// Settings of which each must be acknowledged, by a peer that does not read.
pub(crate) fn settings() -> Vec<Vec<u8>> {
    with((0..100_000).map(|_| frame(SETTINGS, NO_FLAGS, 0, &[])))
}

/// Pings of which each must be answered, by a peer that does not read.
pub(crate) fn pings() -> Vec<Vec<u8>> {
    with((0..100_000).map(|_| frame(PING, NO_FLAGS, 0, &[0; 8])))
}

/// More streams than are allowed, none of which ends.
pub(crate) fn open_streams() -> Vec<Vec<u8>> {
    with(streams(10_000).map(|stream| frame(HEADERS, END_OF_HEADERS, stream, &livez())))
}

/// Data frames without data.
pub(crate) fn empty_data() -> Vec<Vec<u8>> {
    let open = frame(HEADERS, END_OF_HEADERS, 1, &livez());
    let data = (0..100_000).map(|_| frame(DATA, NO_FLAGS, 1, &[]));
    with([open].into_iter().chain(data))
}

/// Priorities of streams that do not exist, and frames of unknown kinds.
pub(crate) fn priorities() -> Vec<Vec<u8>> {
    let priority = [0, 0, 0, 0, 16];
    [
        with(streams(50_000).map(|stream| frame(PRIORITY, NO_FLAGS, stream, &priority))),
        with(streams(50_000).map(|stream| frame(0xee, NO_FLAGS, stream, &priority))),
    ]
    .concat()
}

/// Frames that break the protocol: too large, out of order, on the wrong stream.
pub(crate) fn broken_frames() -> Vec<Vec<u8>> {
    [
        with([vec![0xff, 0xff, 0xff, DATA, NO_FLAGS, 0, 0, 0, 1]]),
        with([frame(DATA, NO_FLAGS, 1, b"early")]),
        with([frame(HEADERS, END_OF_BOTH, 2, &livez())]),
        with([frame(CONTINUATION, END_OF_HEADERS, 1, &livez())]),
        with([frame(SETTINGS, NO_FLAGS, 0, &[1])]),
        with([frame(RESET, NO_FLAGS, 0, &[0; 4])]),
        with([b"GET / HTTP/1.1\r\n\r\n".to_vec()]),
        vec![b"PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n".to_vec()],
    ]
    .concat()
}
