//! Bytes of a hostile client, for the tests of floods and for `tests/attacks`.

/// Ways to hold a connection without ending it.
pub(crate) const STALLS: [&[u8]; 3] = [
    b"",
    b"GET /livez HTTP/1.1\r\nX-Slow: ",
    b"PUT /-/log HTTP/1.1\r\nHost: a\r\nContent-Length: 4096\r\n\r\n",
];

/// The kinds of HTTP/2 frames that are written by hand.
pub(crate) const HEADERS: u8 = 1;
pub(crate) const RESET: u8 = 3;
pub(crate) const SETTINGS: u8 = 4;

/// Flags of a header frame that ends the headers and the stream.
pub(crate) const END_OF_BOTH: u8 = 0x5;

/// An HTTP/2 frame.
pub(crate) fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The header block of `GET https://a/livez`; path and authority are literals.
pub(crate) fn livez() -> Vec<u8> {
    [&[0x82, 0x87, 0x04, 6][..], b"/livez", &[0x01, 1], b"a"].concat()
}

/// The first bytes of an HTTP/2 connection, with these settings.
pub(crate) fn preface(settings: &[u8]) -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend(frame(SETTINGS, 0, 0, settings));
    bytes
}

/// An HTTP/2 connection that opens this many streams and resets each at once.
pub(crate) fn reset_streams(streams: u32) -> Vec<u8> {
    let cancel = 8_u32.to_be_bytes();
    let mut bytes = preface(&[]);
    for stream in (1..2 * streams).step_by(2) {
        bytes.extend(frame(HEADERS, END_OF_BOTH, stream, &livez()));
        bytes.extend(frame(RESET, 0, stream, &cancel));
    }

    bytes
}
