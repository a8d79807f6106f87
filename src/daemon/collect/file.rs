//! Small files that change at runtime: credentials and target lists.
//!
//! They are read again at an interval and compared byte for byte. Watching the files instead would
//! require following the symlinks through which Kubernetes swaps mounted files, and would miss
//! changes in remote mounts.

use std::io;
use std::path::{Path, PathBuf};

use tokio::fs::File;
use tokio::io::AsyncReadExt;

/// The reason why a file is not available.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    /// The operating system refuses.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        #[source]
        source: io::Error,
    },
    /// The file is larger than any realistic one.
    #[error("{} has more than {limit} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The size limit in bytes.
        limit: u64,
    },
}

/// Reads a whole file of at most `limit` bytes.
pub(crate) async fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let mut bytes = Vec::new();
    let whole = async { File::open(path).await?.take(limit + 1).read_to_end(&mut bytes).await };
    whole.await.map_err(|source| FileError::Read { path: path.to_owned(), source })?;
    if bytes.len() as u64 > limit {
        return Err(FileError::TooLarge { path: path.to_owned(), limit });
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_file_is_read_whole_or_not_at_all() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("list");
        assert!(matches!(read(&path, 4).await, Err(FileError::Read { .. })));
        std::fs::write(&path, b"1234").unwrap();
        assert_eq!(read(&path, 4).await.unwrap(), b"1234");
        std::fs::write(&path, b"12345").unwrap();
        assert!(matches!(read(&path, 4).await, Err(FileError::TooLarge { limit: 4, .. })));
    }
}
