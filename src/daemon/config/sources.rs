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
    /// A file that must be readable, and was not. Its content does not matter, and may be secret.
    Refused,
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

    /// Notes a file that cannot be read, so that it is noticed as soon as it can.
    pub(crate) fn note_refused(&mut self, path: &Path) {
        self.note(path, SourceKind::Refused);
    }

    fn note(&mut self, path: &Path, kind: SourceKind) {
        // A file that is read twice may have changed since the first time.
        if !self.noted.iter().any(|source| source.path == path && source.kind == kind) {
            let content = match kind {
                // The file may have become readable since it was refused.
                SourceKind::Refused => None,
                SourceKind::Main | SourceKind::File | SourceKind::Folder => kind.read(path),
            };
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
            Self::Refused => check_readable(path).ok().map(|()| Vec::new()),
            Self::Folder => {
                let entries = entries::read_folder(path).ok()?;
                let texts = entries.iter().map(|(name, text)| format!("\0{name}\0{text}"));
                Some(texts.collect::<String>().into_bytes())
            }
        }
    }
}

/// Checks that a path is a readable file. The error is the reason why it is not.
pub(super) fn check_readable(path: &Path) -> Result<(), String> {
    match std::fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Err("it is a folder".to_owned()),
        Ok(_) => File::open(path).map(|_| ()).map_err(|error| error.to_string()),
        Err(error) => Err(error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::config::{Files, load_noting};

    #[test]
    fn a_refused_file_is_noticed_when_it_is_there_and_its_content_is_not_compared() {
        let folder = tempfile::tempdir().unwrap();
        let (file, token) = (folder.path().join("plimsoll.yaml"), folder.path().join("token"));
        let text = "scrape: {bearer_token_file: token}\n\
            variants: [{name: a, model: m, targets: {static: ['127.0.0.1:1']}}]\n";
        fs::write(&file, text).unwrap();
        let read = || {
            let mut sources = ConfigSources::default();
            (load_noting(&file, Files::MustExist, &mut sources).is_ok(), sources)
        };

        let (loaded, mut sources) = read();
        assert!(!loaded && (0..9).all(|_| !sources.have_changed()));
        fs::create_dir(&token).unwrap();
        assert!(!sources.have_changed(), "a folder is no file");
        fs::remove_dir(&token).unwrap();
        fs::write(&token, "one").unwrap();
        assert!(sources.have_changed());

        let (loaded, mut sources) = read();
        assert!(loaded && !sources.have_changed());
        fs::write(&token, "two").unwrap();
        assert!(!sources.have_changed(), "its user reads it again");
    }
}
