//! Bytes of a response with a value that is dropped together with them.

use bytes::Bytes;

struct KeptBytes<T> {
    bytes: Bytes,
    _until_dropped: T,
}

/// The same bytes. The value is dropped when the last part of them is.
pub(super) fn kept_with<T: Send + 'static>(value: T, bytes: Bytes) -> Bytes {
    Bytes::from_owner(KeptBytes { bytes, _until_dropped: value })
}

impl<T> AsRef<[u8]> for KeptBytes<T> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}
