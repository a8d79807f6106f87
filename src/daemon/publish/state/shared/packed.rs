//! The compression of the shared document.
//!
//! A decision with its reasons takes one to two kilobytes of JSON, most of which every decision
//! repeats. Compressed, it takes about a tenth.

use std::io::{self, Read as _};

/// The compression level. Level 3 packs 10 MB in a tenth of a second; higher levels save a few
/// percent and take several times as long, on the thread that decides.
const LEVEL: i32 = 3;

/// The largest document that is packed or unpacked. It bounds the memory that a forged document
/// takes. A document of a tenth of this size fills a `ConfigMap`.
pub(super) const UNPACKED_MAX: usize = 64 << 20;

/// Compresses a document.
pub(super) fn pack(text: &[u8]) -> io::Result<Vec<u8>> {
    zstd::bulk::compress(text, LEVEL)
}

/// Decompresses a document of at most [`UNPACKED_MAX`] bytes.
pub(super) fn unpack(packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let limit = UNPACKED_MAX as u64 + 1;
    zstd::Decoder::new(packed)?.take(limit).read_to_end(&mut text)?;

    if text.len() > UNPACKED_MAX {
        let problem = format!("it decompresses to more than {UNPACKED_MAX} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidData, problem));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_unpacks_to_too_much_is_refused() {
        let bomb = pack(&vec![b' '; UNPACKED_MAX + 1]).unwrap();
        assert!(bomb.len() < UNPACKED_MAX / 1000);
        assert!(unpack(&bomb).unwrap_err().to_string().contains("decompresses to more than"));

        let most = pack(&vec![b' '; UNPACKED_MAX]).unwrap();
        assert_eq!(unpack(&most).unwrap().len(), UNPACKED_MAX);
        assert!(unpack(&most[..most.len() - 1]).is_err(), "it is cut");
    }
}
