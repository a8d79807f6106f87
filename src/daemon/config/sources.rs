//! The files that a configuration was read from, valid or not, to notice when they change.
//!
//! They are noted while the configuration is read, so that all of them are known: those of a
//! configuration that was refused, too, which may be valid once one of them is mended.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::config::{FILE_MAX, wva};

/// Looks in a row at which a file may be missing before that counts as a change. What replaces a
/// file by removing and writing it is over long before; what takes longer is meant.
const MISSING_LOOKS: u32 = 3;

/// Files with what was in them when they were read.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    noted: Vec<Source>,
    /// Looks in a row at which one that was there was missing.
    missing_looks: u32,
}

#[derive(Clone, Debug)]
struct Source {
    path: PathBuf,
    kind: Kind,
    /// `None` where it could not be read.
    content: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// The configuration itself, which says what else there is.
    Main,
    /// One that it names.
    File,
    /// A mounted `ConfigMap`.
    Folder,
}

// === impl Sources ===

impl Sources {
    /// Notes the configuration itself. To be called before it is read, as the others.
    pub(crate) fn note_main(&mut self, path: &Path) {
        self.note(path, Kind::Main);
    }

    /// Notes a file. To be called before it is read: what changes meanwhile is then noticed.
    pub(crate) fn note_file(&mut self, path: &Path) {
        self.note(path, Kind::File);
    }

    /// Notes a mounted `ConfigMap`.
    pub(crate) fn note_folder(&mut self, path: &Path) {
        self.note(path, Kind::Folder);
    }

    fn note(&mut self, path: &Path, kind: Kind) {
        // What was read twice may have changed since the first time.
        if !self.noted.iter().any(|source| source.path == path && source.kind == kind) {
            let content = kind.read(path);
            self.noted.push(Source { path: path.to_owned(), kind, content });
        }
    }

    /// Adds those of another.
    pub(crate) fn extend(&mut self, others: Self) {
        for other in others.noted {
            let same = |source: &Source| source.path == other.path && source.kind == other.kind;
            if !self.noted.iter().any(same) {
                self.noted.push(other);
            }
        }
    }

    /// Whether one of them is another than it was, as somebody who looks now and then should ask.
    ///
    /// While one that was there cannot be read, it is being replaced, and none has changed: but not
    /// for long, and not where the configuration itself is another, which may do without it.
    #[must_use]
    pub fn have_changed(&mut self) -> bool {
        let (mut changed, mut missing) = (false, false);
        for Source { path, kind, content } in &self.noted {
            let now = kind.read(path);
            if now.is_none() && content.is_some() {
                missing = true;
            } else if now != *content {
                if *kind == Kind::Main {
                    return true;
                }
                changed = true;
            }
        }
        self.missing_looks = if missing { self.missing_looks.saturating_add(1) } else { 0 };
        if missing { self.missing_looks > MISSING_LOOKS } else { changed }
    }
}

// === impl Kind ===

impl Kind {
    fn read(self, path: &Path) -> Option<Vec<u8>> {
        match self {
            Self::Main | Self::File => {
                let mut bytes = Vec::new();
                // What is longer is refused, however it goes on.
                File::open(path).ok()?.take(FILE_MAX + 1).read_to_end(&mut bytes).ok()?;
                Some(bytes)
            }
            Self::Folder => {
                let entries = wva::read_folder(path).ok()?;
                let entries = entries.iter().map(|(name, text)| format!("\0{name}\0{text}"));
                Some(entries.collect::<String>().into_bytes())
            }
        }
    }
}
