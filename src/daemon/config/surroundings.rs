//! The context in which a configuration is read: folder, environment, and checked files.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The context in which a configuration is read.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// The name of the text in messages.
    pub origin: String,
    /// The folder that relative paths start from.
    pub base: PathBuf,
    /// The environment; names that do not start with `PLIMSOLL__` are ignored.
    pub environment: BTreeMap<String, String>,
    /// The check of the files that the configuration names.
    pub files: Files,
}

/// The check of the files that a configuration names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Files {
    /// All are checked, and problems are reported.
    MustExist,
    /// Files that decisions depend on are read; the others are not checked.
    OfPolicy,
    /// None is checked: the configuration is for another machine.
    NotChecked,
}
