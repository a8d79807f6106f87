//! The numbers in force, and what led to them, on disk: what a restart must not change.
//!
//! The file is written whole, under another name first and then renamed, so that a reader sees the
//! old one or the new one. A file that cannot be read is reported, set aside under another name, and
//! does not keep the daemon from starting: it then begins cold, which holds every replica count.
//!
//! # Shape
//!
//! ```json
//! {"version":3,"written":"2026-11-21T09:30:01Z","decisions":[{"namespace":"shop","variant":"llama-l4","model":"meta/llama",
//!  "desired":3,"at":"2026-11-21T09:30:00Z","memory":{"history":{
//!    "recommended":[{"first":1795253400000,"last":1795253460000,"replicas":3}],"latest":1795253460000}}}]}
//! ```
//!
//! A number that was not in force when the file was written, because its variant has not been seen
//! since the start, has a `written` of its own: when it last was.
//!
//! A [`Memory`] is written as it is, with its instants in milliseconds. Words that only another release
//! knows are left out and named, and cost no number. The version changes only if a known word means
//! something else.
//!
//! # Size
//!
//! The memory of a variant takes some 300 bytes before anything was learned, 6,000 with a week
//! of `foresight`, and 25,000 at the very most, of which windows are half. When all of it is larger
//! than the file may be, the observations that something was learned from are left out, then what was
//! learned. Numbers and windows are never left out.

pub mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_ignored::Path as Ignored;
use serde_json::Value;

use crate::publish::Published;
use plimsoll_core::fleet::{ModelKey, ModelName, Namespace, VariantKey, VariantName};
use plimsoll_core::pipeline::saved::{Length, Memory};
use plimsoll_core::units::Replicas;

/// The version of the file's shape. Another one is refused.
const VERSION: u32 = 3;

/// What is added to the name of a file that is set aside.
const SET_ASIDE: &str = "corrupt";

/// The largest file that is read, and so that is written. The numbers of ten thousand variants take
/// two megabytes, and a thousand of them with a week of `foresight` six.
const BYTES_MAX: u64 = 16 << 20;

/// A number that was in force when the file was written.
#[derive(Clone, Debug, PartialEq)]
pub struct Saved {
    /// The variant.
    pub variant: VariantKey,
    /// The model that it served.
    pub model: ModelKey,
    /// Its number.
    pub desired: Replicas,
    /// When the data that the number rests on was current.
    pub at: Timestamp,
    /// Until when the number was in force.
    pub written: Timestamp,
    /// What is remembered of it.
    pub memory: Option<Memory>,
    /// What only another release remembers of it, by name: it is not in the memory.
    pub strange: Vec<String>,
}

/// How long after it was last in force a number is taken over. In a longer absence the numbers are
/// served by nobody, and whoever has scaled by hand since knows better; beginning without a number
/// holds every replica count.
pub(crate) const RESTORE_MAX: SignedDuration = SignedDuration::from_mins(15);

/// Age up to which lessons are of use: two weeks, the memory of a schedule.
pub(crate) const KNOWLEDGE_MAX: SignedDuration = SignedDuration::from_hours(14 * 24);

impl Saved {
    /// Whether its number was in force until lately.
    pub(crate) fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.written) <= RESTORE_MAX
    }

    /// Whether it is of any use.
    pub(crate) fn is_known(&self, now: Timestamp) -> bool {
        now.duration_since(self.written) <= KNOWLEDGE_MAX
    }
}

/// What is remembered of each variant.
pub type Memories = BTreeMap<VariantKey, Memory>;

/// Why the file cannot be read or written.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// The file system refuses.
    #[error("state file {path}: cannot be {action}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What was tried.
        action: &'static str,
        /// What went wrong.
        #[source]
        source: io::Error,
    },
    /// The file holds something else.
    #[error("state file {path}: not a state file of version {VERSION}; delete it to start without", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        #[source]
        source: serde_json::Error,
    },
    /// The file is of another version, too large, or has a decision that cannot be.
    #[error("state file {path}: {problem}; delete it to start without", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

#[derive(Serialize, Deserialize)]
struct File {
    version: u32,
    written: Timestamp,
    decisions: Vec<Line>,
}

/// The beginning of a file of any version.
#[derive(Deserialize)]
struct Preamble {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct Line {
    namespace: Namespace,
    variant: VariantName,
    model: ModelName,
    desired: Replicas,
    at: Timestamp,
    /// Until when it was in force, if not until the file was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<Remembered>,
}

/// A memory as another release may have told it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remembered {
    memory: Memory,
    /// Words that are not known here: each costs what it says and nothing else.
    strange: BTreeSet<String>,
}

/// Writes the numbers in force at `now`, with what is remembered, and those of variants that have not
/// been seen yet.
///
/// # Errors
///
/// The file, or the one beside it that is renamed to it, cannot be written.
pub fn save(
    path: &Path,
    now: Timestamp,
    published: &Published,
    memories: &Memories,
    unseen: &[Saved],
) -> Result<(), StateError> {
    let saved = published.variants.values().filter_map(|variant| {
        let decided = variant.decided.as_ref()?;
        let key = &variant.spec.key;
        Some(Saved {
            variant: key.clone(),
            model: variant.spec.model_key(),
            desired: decided.decision.desired(),
            at: decided.at,
            written: now,
            memory: memories.get(key).cloned(),
            strange: Vec::new(),
        })
    });
    let saved: Vec<Saved> = saved.chain(unseen.iter().cloned()).collect();
    let shape = |source| StateError::Shape { path: path.to_owned(), source };
    let mut text = Vec::new();
    for length in [Length::Whole, Length::Conclusions, Length::Windows] {
        text = encode(now, &saved, length).map_err(shape)?;
        if u64::try_from(text.len()).is_ok_and(|bytes| bytes <= BYTES_MAX) {
            break;
        }
    }
    let beside = path.with_extension("partial");
    let failed = |source| StateError::Io { path: path.to_owned(), action: "written", source };
    fs::write(&beside, text).map_err(failed)?;
    fs::rename(&beside, path).map_err(failed)
}

/// The content of a file that says this, with memories of this length.
///
/// # Errors
///
/// None that could be named: every part of it has a shape in JSON.
pub fn encode(
    written: Timestamp,
    saved: &[Saved],
    length: Length,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&File::new(written, saved, length))
}

/// What was in force, with all that is remembered, as the value that a file has.
///
/// # Errors
///
/// None that could be named: every part of it has a shape in JSON.
pub fn as_value(written: Timestamp, saved: &[Saved]) -> Result<Value, serde_json::Error> {
    serde_json::to_value(File::new(written, saved, Length::Whole))
}

/// What was in force, from the value that a file has; the path is for messages.
///
/// # Errors
///
/// The value is not what [`as_value`] gives.
pub fn from_value(path: &Path, value: Value) -> Result<Vec<Saved>, StateError> {
    let shape = |source| StateError::Shape { path: path.to_owned(), source };
    let Preamble { version } = Preamble::deserialize(&value).map_err(shape)?;
    check(path, version)?;
    let file: File = serde_json::from_value(value).map_err(shape)?;
    Ok(file.numbers())
}

/// Puts a file that cannot be read out of the way, so that the next one does not overwrite it; says
/// where it is then.
///
/// # Errors
///
/// It cannot be renamed.
pub fn set_aside(path: &Path) -> Result<PathBuf, StateError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(SET_ASIDE);
    let aside = PathBuf::from(name);
    let failed = |source| StateError::Io { path: path.to_owned(), action: "set aside", source };
    fs::rename(path, &aside).map_err(failed)?;
    Ok(aside)
}

/// Reads the numbers that were in force; none when there is no file yet.
///
/// # Errors
///
/// The file is there but cannot be read, or is not one that [`save`] wrote.
pub fn load(path: &Path) -> Result<Vec<Saved>, StateError> {
    let failed = |source| StateError::Io { path: path.to_owned(), action: "read", source };
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed(error)),
    };
    if size > BYTES_MAX {
        let problem = format!("{size} bytes, more than {BYTES_MAX}");
        return Err(StateError::Content { path: path.to_owned(), problem });
    }
    parse(path, &fs::read(path).map_err(failed)?)
}

/// Reads the numbers in a file's content; the path is for messages.
///
/// # Errors
///
/// The content is not what [`save`] writes.
pub fn parse(path: &Path, content: &[u8]) -> Result<Vec<Saved>, StateError> {
    let shape = |source| StateError::Shape { path: path.to_owned(), source };
    let Preamble { version } = serde_json::from_slice(content).map_err(shape)?;
    check(path, version)?;
    let file: File = serde_json::from_slice(content).map_err(shape)?;
    Ok(file.numbers())
}

/// Refuses the file of another version.
fn check(path: &Path, version: u32) -> Result<(), StateError> {
    if version == VERSION {
        return Ok(());
    }
    let problem = format!("version {version}, not {VERSION}");
    Err(StateError::Content { path: path.to_owned(), problem })
}

// === impl File ===

impl File {
    fn new(written: Timestamp, saved: &[Saved], length: Length) -> Self {
        let decisions = saved.iter().map(|saved| Line::new(written, saved, length)).collect();
        Self { version: VERSION, written, decisions }
    }

    fn numbers(self) -> Vec<Saved> {
        let written = self.written;
        self.decisions.into_iter().map(|line| line.saved(written)).collect()
    }
}

// === impl Line ===

impl Line {
    fn new(written: Timestamp, saved: &Saved, length: Length) -> Self {
        let Saved { variant, model, desired, at, written: until, memory, strange: _ } = saved;
        Self {
            namespace: variant.namespace.clone(),
            variant: variant.variant.clone(),
            model: model.model.clone(),
            desired: *desired,
            at: *at,
            written: (*until != written).then_some(*until),
            memory: memory.as_ref().map(|memory| Remembered::new(memory, length)),
        }
    }

    fn saved(self, written: Timestamp) -> Saved {
        let Self { namespace, variant, model, desired, at, written: until, memory } = self;
        let memory =
            memory.map(|Remembered { memory, strange }| (memory, strange.into_iter().collect()));
        let (memory, strange) = memory.unzip();
        Saved {
            variant: VariantKey { namespace: namespace.clone(), variant },
            model: ModelKey { namespace, model },
            desired,
            at,
            written: until.unwrap_or(written),
            memory,
            strange: strange.unwrap_or_default(),
        }
    }
}

// === impl Remembered ===

impl Remembered {
    /// A memory, told at this length.
    pub(crate) fn new(memory: &Memory, length: Length) -> Self {
        Self { memory: memory.clone().told(length), strange: BTreeSet::new() }
    }
}

impl Serialize for Remembered {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.memory.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Remembered {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut strange = BTreeSet::new();

        let memory = serde_ignored::deserialize(deserializer, |path| {
            if let Ignored::Map { key, .. } = path {
                strange.insert(key);
            }
        })?;
        Ok(Self { memory, strange })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(desired: u32) -> String {
        format!(
            r#"{{"version":3,"written":"2026-11-21T09:30:01Z","decisions":[{{"namespace":"shop","variant":"a","model":"m","desired":{desired},"at":"2026-11-21T09:30:00Z"}}]}}"#
        )
    }

    #[test]
    fn a_missing_file_is_an_empty_state() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(load(&folder.path().join("state.json")).unwrap(), Vec::new());
    }

    #[test]
    fn what_cannot_be_is_refused_with_the_file_and_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        for bad in [
            "",
            "{",
            r#"{"version":4,"written":"2026-11-21T09:30:01Z","decisions":[]}"#,
            &line(2_000_000),
        ] {
            fs::write(&path, bad).unwrap();
            let error = load(&path).unwrap_err().to_string();
            assert!(error.contains("state.json") && error.contains("delete it"), "{error}");
        }
        fs::write(&path, line(3)).unwrap();
        assert_eq!(load(&path).unwrap()[0].desired.count(), 3);
    }

    #[test]
    fn what_cannot_be_read_is_set_aside_and_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, "{").unwrap();
        let aside = set_aside(&path).unwrap();
        assert_eq!(aside, folder.path().join("state.json.corrupt"));
        assert_eq!(fs::read_to_string(aside).unwrap(), "{");
        assert_eq!(load(&path).unwrap(), Vec::new(), "the next start is an ordinary one");
    }

    #[test]
    fn a_save_replaces_the_file_as_a_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, line(3)).unwrap();
        save(&path, Timestamp::UNIX_EPOCH, &Published::default(), &Memories::new(), &[]).unwrap();
        assert_eq!(load(&path).unwrap(), Vec::new());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_number_whose_variant_is_not_seen_is_written_again_with_the_age_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, line(3)).unwrap();
        let unseen = load(&path).unwrap();
        for later in [1, 2] {
            let now = unseen[0].written + jiff::SignedDuration::from_mins(later);
            save(&path, now, &Published::default(), &Memories::new(), &load(&path).unwrap())
                .unwrap();
            assert_eq!(load(&path).unwrap(), unseen);
        }
    }
}
