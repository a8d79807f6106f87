//! The files that a configuration was read from, valid or not, to notice when they change.
//!
//! They are noted while the configuration is read, so that all of them are known. That includes the
//! files of a rejected configuration, which can become valid when one of them is fixed.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::config::wva::entries;

/// The size limit of the configuration file: enough for over a thousand variants, and far less than
/// a log file that is named by accident.
pub(super) const FILE_MAX: u64 = 4 << 20;

/// The consecutive checks at which a file may be missing before that counts as a change. Replacing
/// a file by removing and writing it takes less time; a longer absence is intended.
const MISSING_LOOKS: u32 = 3;

/// Files with their content at the time they were read.
#[derive(Clone, Debug, Default)]
pub struct ConfigSources {
    noted: Vec<SourceFile>,
    /// The consecutive checks at which a file was missing that existed before.
    missing_looks: u32,
}

#[derive(Clone, Debug)]
struct SourceFile {
    path: PathBuf,
    kind: SourceKind,
    /// `None` if it could not be read.
    content: Option<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceKind {
    /// The configuration itself, which names the other files.
    Main,
    /// A file that the configuration names.
    File,
    /// A mounted `ConfigMap`.
    Folder,
}

// === impl ConfigSources ===

impl ConfigSources {
    /// Notes the configuration itself. Like the others, call it before reading the file.
    pub(crate) fn note_main(&mut self, path: &Path) {
        self.note(path, SourceKind::Main);
    }

    /// Notes a file. Call it before reading the file, so that a change in between is noticed.
    pub(crate) fn note_file(&mut self, path: &Path) {
        self.note(path, SourceKind::File);
    }

    /// Notes a mounted `ConfigMap`.
    pub(crate) fn note_folder(&mut self, path: &Path) {
        self.note(path, SourceKind::Folder);
    }

    fn note(&mut self, path: &Path, kind: SourceKind) {
        // A file that is read twice may have changed since the first time.
        if !self.noted.iter().any(|source| source.path == path && source.kind == kind) {
            let content = kind.read(path);
            self.noted.push(SourceFile { path: path.to_owned(), kind, content });
        }
    }

    /// Adds the files of another configuration.
    pub(crate) fn extend(&mut self, others: Self) {
        for other in others.noted {
            let mut noted = self.noted.iter();
            if noted.all(|it| it.path != other.path || it.kind != other.kind) {
                self.noted.push(other);
            }
        }
    }

    /// Returns true if one of the files has changed; meant to be called periodically.
    ///
    /// A file that existed and cannot be read is probably being replaced, so it does not count as
    /// changed at first. That ends after `MISSING_LOOKS` checks, or when the configuration itself
    /// changes and may no longer need the file.
    #[must_use]
    pub fn have_changed(&mut self) -> bool {
        let mut changed = false;
        let mut missing = false;
        for SourceFile { path, kind, content } in &self.noted {
            let now = kind.read(path);
            if now.is_none() && content.is_some() {
                missing = true;
            } else if now != *content {
                if *kind == SourceKind::Main {
                    return true;
                }
                changed = true;
            }
        }

        self.missing_looks = if missing { self.missing_looks.saturating_add(1) } else { 0 };
        if missing { self.missing_looks > MISSING_LOOKS } else { changed }
    }
}

// === impl SourceKind ===

impl SourceKind {
    fn read(self, path: &Path) -> Option<Vec<u8>> {
        match self {
            Self::Main | Self::File => {
                let mut bytes = Vec::new();
                // A longer file is rejected, so its rest does not matter.
                File::open(path).ok()?.take(FILE_MAX + 1).read_to_end(&mut bytes).ok()?;
                Some(bytes)
            }
            Self::Folder => {
                let entries = entries::read_folder(path).ok()?;
                let texts = entries.iter().map(|(name, text)| format!("\0{name}\0{text}"));
                Some(texts.collect::<String>().into_bytes())
            }
        }
    }
}
