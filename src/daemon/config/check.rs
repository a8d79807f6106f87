//! Checks of single values: a default for an unset value, a problem for one that is not allowed.
//!
//! A value that is not allowed is reported once and then counts as unset, so that later checks do
//! not report it again.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};

use crate::config::sources::{self, ConfigSources, FILE_MAX};
use crate::config::surroundings::{Files, Surroundings};
use crate::config::wva::entries::{self, Entries};
use plimsoll_core::settings::problem::Problems;

/// The problems so far, and the context of the checks.
#[derive(Debug)]
pub struct Checks<'a> {
    /// The problems so far.
    pub problems: Problems,
    /// The files that were read so far.
    pub(crate) sources: ConfigSources,
    surroundings: &'a Surroundings,
}

impl<'a> Checks<'a> {
    /// Starts without problems.
    #[must_use]
    pub fn new(surroundings: &'a Surroundings) -> Self {
        let problems = Problems::within(surroundings.base.clone());
        Self { problems, sources: ConfigSources::default(), surroundings }
    }

    /// The folder that relative paths start from.
    #[must_use]
    pub fn base(&self) -> &'a Path {
        &self.surroundings.base
    }

    /// A number in a range.
    pub fn number<N: PartialOrd + Display>(
        &mut self,
        path: &str,
        written: Option<N>,
        allowed: &RangeInclusive<N>,
    ) -> Option<N> {
        let number = written?;
        if !allowed.contains(&number) {
            let rule = format!("must be from {} to {}", allowed.start(), allowed.end());
            self.problems.error(path, rule, &number);
            return None;
        }
        Some(number)
    }

    /// Text that a predicate accepts.
    pub fn text<'t>(
        &mut self,
        path: &str,
        written: Option<&'t str>,
        accepts: fn(&str) -> bool,
        rule: &str,
    ) -> Option<&'t str> {
        let text = written?;
        if accepts(text) {
            return Some(text);
        }
        self.problems.error(path, rule, format!("{text:?}"));
        None
    }

    /// A path, relative to the folder of the configuration file.
    pub(crate) fn path(&mut self, path: &str, written: Option<&PathBuf>) -> Option<PathBuf> {
        // A missing path has been reported already, and its placeholder is not a path.
        let usable = written.filter(|_| !self.problems.refused(path))?;
        self.problems.path(path, usable)
    }

    /// A file that must exist and be readable.
    pub(crate) fn file(&mut self, path: &str, written: Option<&PathBuf>) -> Option<PathBuf> {
        let file = self.path(path, written)?;
        self.readable(path, &file);
        Some(file)
    }

    /// Returns true if a file exists and is readable; otherwise notes a problem.
    pub fn readable(&mut self, path: &str, file: &Path) -> bool {
        let why = self.unreadable(file);
        if let Some(why) = &why {
            self.sources.note_refused(file);
            let rule = format!("must be a readable file ({why})");
            self.problems.error(path, rule, file.display());
        }
        why.is_none()
    }

    /// A file that may be created later.
    pub(crate) fn file_later(&mut self, path: &str, written: Option<&PathBuf>) -> Option<PathBuf> {
        let file = self.path(path, written)?;
        if let Some(why) = self.unreadable(&file) {
            let rule = format!(
                "is {}, which cannot be read and has no effect yet ({why})",
                file.display()
            );
            self.problems.warning(path, rule);
        }

        Some(file)
    }

    /// A file that Plimsoll writes, in a folder that must exist.
    pub(crate) fn file_to_write(
        &mut self,
        path: &str,
        written: Option<&PathBuf>,
    ) -> Option<PathBuf> {
        let file = self.path(path, written)?;
        let folder = file.parent().is_some_and(Path::is_dir);
        if self.surroundings.files == Files::MustExist && (!folder || file.is_dir()) {
            self.problems.error(path, "must be a file in an existing folder", file.display());
        }
        Some(file)
    }

    /// A folder that Plimsoll writes to, and creates if it does not exist.
    pub(crate) fn folder_to_write(
        &mut self,
        path: &str,
        written: Option<&PathBuf>,
    ) -> Option<PathBuf> {
        let folder = self.path(path, written)?;
        let possible =
            folder.is_dir() || !folder.exists() && folder.parent().is_some_and(Path::is_dir);
        if self.surroundings.files == Files::MustExist && !possible {
            self.problems.error(
                path,
                "must be a folder, or be in an existing folder",
                folder.display(),
            );
        }

        Some(folder)
    }

    /// A new instance without problems, with the same surroundings.
    pub(crate) fn beside(&self) -> Self {
        Self::new(self.surroundings)
    }

    /// The entries of a mounted `ConfigMap`; none if files are not checked.
    pub(crate) fn wva_entries(&mut self, path: &str, folder: Option<&Path>) -> Entries {
        let Some(folder) = folder.filter(|_| self.surroundings.files != Files::NotChecked) else {
            return Entries::new();
        };

        self.sources.note_folder(folder);
        entries::read_folder(folder).unwrap_or_else(|why| {
            let rule = format!("must be a readable folder ({why})");
            self.problems.error(path, rule, folder.display());
            Entries::new()
        })
    }

    /// The text of a file that decisions depend on; `None` if files are not checked.
    pub(crate) fn text_of(&mut self, path: &str, file: &Path) -> Option<String> {
        if self.surroundings.files == Files::NotChecked {
            return None;
        }

        self.sources.note_file(file);
        let read = match std::fs::metadata(file) {
            Ok(known) if known.is_dir() => Err("it is a folder".to_owned()),
            Ok(known) if known.len() > FILE_MAX => Err(format!("more than {FILE_MAX} bytes")),
            Ok(_) => std::fs::read_to_string(file).map_err(|error| error.to_string()),
            Err(error) => Err(error.to_string()),
        };

        read.map_err(|why| {
            let rule = format!("must be a readable file ({why})");
            self.problems.error(path, rule, file.display());
        })
        .ok()
    }

    fn unreadable(&self, file: &Path) -> Option<String> {
        if self.surroundings.files != Files::MustExist {
            return None;
        }

        sources::check_readable(file).err()
    }
}
