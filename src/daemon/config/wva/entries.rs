//! The entries of the mounted `ConfigMap`, as texts.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// The size limit of all entries together, which is that of a `ConfigMap`.
const BYTES_MAX: usize = 1 << 20;

/// The entries of the `ConfigMap` by their keys.
pub(crate) type Entries = BTreeMap<String, String>;

/// Reads the entries of a mounted `ConfigMap`. In addition to the entries, a volume has its own
/// folders and links, whose names begin with two dots.
///
/// # Errors
///
/// The folder or a file in it cannot be read; the message names it and the reason.
pub(crate) fn read_folder(folder: &Path) -> Result<Entries, String> {
    let mut files = std::fs::read_dir(folder)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| error.to_string())?;
    // In a fixed order, so that problems also have a fixed order.
    files.sort_by_key(std::fs::DirEntry::file_name);
    let mut entries = Entries::new();
    let mut room = BYTES_MAX;
    for file in files {
        let Ok(name) = file.file_name().into_string() else { continue };
        if name.starts_with("..") || file.path().is_dir() {
            continue;
        }

        let text = read_file(&file.path(), room).map_err(|error| format!("{name}: {error}"))?;
        room -= text.len();
        entries.insert(name, text);
    }

    Ok(entries)
}

fn read_file(path: &Path, room: usize) -> Result<String, String> {
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(|error| error.to_string())?;
    let length = file.take(room as u64 + 1).read_to_string(&mut text);
    if length.map_err(|error| error.to_string())? > room {
        return Err(format!("a ConfigMap has at most {BYTES_MAX} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mounted_folder_has_more_than_the_entries() {
        let folder = tempfile::tempdir().unwrap();
        let inner = folder.path().join("..2026_11_21");
        std::fs::create_dir(&inner).unwrap();
        std::fs::write(inner.join("default"), "kvCacheThreshold: 0.7\n").unwrap();
        std::os::unix::fs::symlink("..2026_11_21", folder.path().join("..data")).unwrap();
        std::os::unix::fs::symlink("..data/default", folder.path().join("default")).unwrap();

        let entries = read_folder(folder.path()).unwrap();
        assert_eq!(entries, [("default".to_owned(), "kvCacheThreshold: 0.7\n".to_owned())].into());

        std::fs::write(folder.path().join("large"), vec![b'#'; BYTES_MAX]).unwrap();
        assert!(read_folder(folder.path()).unwrap_err().contains("large: a ConfigMap has at most"));
        assert!(read_folder(&folder.path().join("missing")).is_err());
    }
}
