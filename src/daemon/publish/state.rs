//! The state file: the desired replicas in effect and their memories, preserved across restarts.
//!
//! The file is first written under another name and then renamed, so a reader sees either the old
//! file or the new one. An unreadable file is reported and set aside under another name, and the
//! daemon starts anyway. It then starts cold, which holds every replica count.
//!
//! # Shape
//!
//! ```json
//! {"version":3,"written":"2026-11-21T09:30:01Z","decisions":[{"namespace":"shop","variant":"llama-l4","model":"meta/llama",
//!  "desired":3,"at":"2026-11-21T09:30:00Z","memory":{"history":{
//!    "recommended":[{"first":1795253400000,"last":1795253460000,"replicas":3}],"latest":1795253460000}}}]}
//! ```
//!
//! Desired replicas are no longer in effect if their variant has not been seen since the start.
//! Such an entry has its own `written`: the time when they were last in effect.
//!
//! A [`VariantMemory`] is written as it is, with its instants in milliseconds. Words that only
//! another release knows are skipped and listed by name; they do not invalidate the desired
//! replicas. The version changes only if a known word changes its meaning.
//!
//! # Size
//!
//! The memory of a variant takes about 300 bytes without learned coefficients, 6,000 with a week of
//! `foresight`, and at most 25,000. Windows are half of that maximum. If the file would exceed its
//! size limit, the observations behind the learned coefficients are left out first, then the learned
//! coefficients, and last the windows. Desired replicas are never left out: if they alone exceed the
//! limit, saving fails and the last file stays.

pub mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_ignored::Path as Ignored;
use serde_json::Value;

use crate::publish::Published;
use plimsoll_core::fleet::{ModelKey, ModelName, Namespace, VariantKey, VariantName};
use plimsoll_core::pipeline::saved::{MemoryLength, VariantMemory};
use plimsoll_core::units::Replicas;

/// The version of the file's format. Other versions are rejected.
const VERSION: u32 = 3;

/// The extension that is appended to the name of a file that is set aside.
const SET_ASIDE: &str = "corrupt";

/// The largest file that is read, and so the size limit for writing. The desired replicas of 10,000
/// variants take 2 MB. 1,000 variants with a week of `foresight` take 6 MB.
const BYTES_MAX: u64 = 16 << 20;

/// The memory lengths to try, in this order, until the file fits. `None` leaves out all memories.
const LENGTHS: [Option<MemoryLength>; 4] =
    [Some(MemoryLength::Whole), Some(MemoryLength::Conclusions), Some(MemoryLength::Windows), None];

/// Desired replicas that were in effect when the file was written.
#[derive(Clone, Debug, PartialEq)]
pub struct SavedDecision {
    /// The variant.
    pub variant: VariantKey,
    /// The model that it served.
    pub model: ModelKey,
    /// The desired replicas.
    pub desired: Replicas,
    /// The time when the underlying data was current.
    pub at: Timestamp,
    /// The time until which the desired replicas were in effect.
    pub written: Timestamp,
    /// The memory of the variant.
    pub memory: Option<VariantMemory>,
    /// Names of memory entries that only another release knows. They are not part of `memory`.
    pub strange: Vec<String>,
}

/// The maximum age of desired replicas that are taken over, counted from when they were last in
/// effect. During a longer outage no daemon serves them, and an operator may have scaled by hand
/// since. Starting without desired replicas holds every replica count.
pub(crate) const RESTORE_MAX: SignedDuration = SignedDuration::from_mins(15);

/// The maximum age of a useful memory: two weeks, the period that a schedule remembers.
pub(crate) const KNOWLEDGE_MAX: SignedDuration = SignedDuration::from_hours(14 * 24);

impl SavedDecision {
    /// Returns true if the desired replicas were in effect recently enough to be taken over.
    pub(crate) fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.written) <= RESTORE_MAX
    }

    /// Returns true if the entry is recent enough to be useful.
    pub(crate) fn is_known(&self, now: Timestamp) -> bool {
        now.duration_since(self.written) <= KNOWLEDGE_MAX
    }
}

/// The memory of each variant.
pub type VariantMemories = BTreeMap<VariantKey, VariantMemory>;

/// An error from reading or writing the state file.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// A file system operation failed.
    #[error("state file {path}: cannot be {action}", path = path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operation that was tried.
        action: &'static str,
        /// The underlying error.
        #[source]
        source: io::Error,
    },
    /// The file is not a state file.
    #[error("state file {path}: not a state file of version {VERSION}; delete it to start without \
        one", path = path.display())]
    Shape {
        /// The file.
        path: PathBuf,
        /// The error from the JSON parser.
        #[source]
        source: serde_json::Error,
    },
    /// The desired replicas do not fit into a file that could be read again.
    #[error(
        "state file {path}: the desired replicas of {variants} variants take {bytes} bytes, but \
         the maximum is {BYTES_MAX}; the last file stays. Run two daemons, each with part of the \
         namespaces",
        path = path.display()
    )]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The number of variants with desired replicas.
        variants: usize,
        /// The size without memories, in bytes.
        bytes: usize,
    },
    /// The file has another version, is too large, or contains an invalid decision.
    #[error("state file {path}: {problem}; delete it to start without one", path = path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// The problem found.
        problem: String,
    },
}

#[derive(Serialize, Deserialize)]
struct StateFile {
    version: u32,
    written: Timestamp,
    decisions: Vec<StateLine>,
}

/// The version field that a file of any version has.
#[derive(Deserialize)]
struct Preamble {
    version: u32,
}

#[derive(Serialize, Deserialize)]
struct StateLine {
    namespace: Namespace,
    variant: VariantName,
    model: ModelName,
    desired: Replicas,
    at: Timestamp,
    /// The time until which it was in effect, if earlier than the time when the file was written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    written: Option<Timestamp>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    memory: Option<DecodedMemory>,
}

/// A memory that another release may have written.
#[derive(Clone, Debug, Default)]
pub(crate) struct DecodedMemory {
    memory: VariantMemory,
    /// Unknown words. Each loses only its own value.
    strange: BTreeSet<String>,
}

/// Writes the desired replicas in effect at `now` with their memories, as far as these fit. Also
/// writes the saved entries of variants that have not been seen yet.
///
/// # Errors
///
/// The file, or the temporary file that is renamed to it, cannot be written. Or the desired replicas
/// do not fit even without memories. The last file stays in both cases.
pub fn save(
    path: &Path,
    now: Timestamp,
    published: &Published,
    memories: &VariantMemories,
    unseen: &[SavedDecision],
) -> Result<(), StateError> {
    let seen = published.variants.values().filter_map(|variant| {
        let decided = variant.decided.as_ref()?;
        let key = &variant.spec.key;
        Some(SavedDecision {
            variant: key.clone(),
            model: variant.spec.model_key(),
            desired: decided.decision.desired(),
            at: decided.at,
            written: now,
            memory: memories.get(key).cloned(),
            strange: Vec::new(),
        })
    });

    let saved: Vec<SavedDecision> = seen.chain(unseen.iter().cloned()).collect();
    let text = fitting(path, now, &saved)?;
    replace(path, &text).map_err(|source| StateError::io(path, "written", source))
}

/// Encodes the content with the longest memories that fit.
fn fitting(path: &Path, now: Timestamp, saved: &[SavedDecision]) -> Result<Vec<u8>, StateError> {
    let mut bytes = 0;

    for length in LENGTHS {
        let text = encode(now, saved, length).map_err(|source| StateError::shape(path, source))?;
        bytes = text.len();
        if u64::try_from(bytes).is_ok_and(|bytes| bytes <= BYTES_MAX) {
            return Ok(text);
        }
    }

    Err(StateError::TooLarge { path: path.to_owned(), variants: saved.len(), bytes })
}

/// Replaces the file. Its content is on the disk before it gets its name, so a power failure leaves
/// the old or the new file, and never an empty one.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("partial");
    let mut file = File::create(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    drop(file);

    fs::rename(&beside, path)?;
    sync_folder(path)
}

/// Puts the renaming of a file on the disk. Some network file systems cannot sync a folder; there
/// the renaming is as durable as the file system makes it.
fn sync_folder(path: &Path) -> io::Result<()> {
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());

    match File::open(folder.unwrap_or(Path::new(".")))?.sync_all() {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) =>
        {
            Ok(())
        }
        synced => synced,
    }
}

/// Encodes the content of a file with memories of this length, or without memories.
///
/// # Errors
///
/// None in practice, because every value has a JSON representation.
pub fn encode(
    written: Timestamp,
    saved: &[SavedDecision],
    length: Option<MemoryLength>,
) -> Result<Vec<u8>, serde_json::Error> {
    serde_json::to_vec(&StateFile::new(written, saved, length))
}

/// Returns the saved state with complete memories, as the JSON value that a file contains.
///
/// # Errors
///
/// None in practice, because every value has a JSON representation.
pub fn as_value(written: Timestamp, saved: &[SavedDecision]) -> Result<Value, serde_json::Error> {
    serde_json::to_value(StateFile::new(written, saved, Some(MemoryLength::Whole)))
}

/// Reads the saved state from the JSON value that a file contains. The path is for messages.
///
/// # Errors
///
/// The value was not returned by [`as_value`].
pub fn from_value(path: &Path, value: Value) -> Result<Vec<SavedDecision>, StateError> {
    let Preamble { version } =
        Preamble::deserialize(&value).map_err(|source| StateError::shape(path, source))?;
    check(path, version)?;
    let file: StateFile =
        serde_json::from_value(value).map_err(|source| StateError::shape(path, source))?;
    Ok(file.numbers())
}

/// Renames an unreadable file so that the next save does not overwrite it. Returns the new path.
///
/// # Errors
///
/// The file cannot be renamed.
pub fn set_aside(path: &Path) -> Result<PathBuf, StateError> {
    let mut name = path.as_os_str().to_owned();
    name.push(".");
    name.push(SET_ASIDE);
    let aside = PathBuf::from(name);

    fs::rename(path, &aside).map_err(|source| StateError::io(path, "set aside", source))?;
    Ok(aside)
}

/// Reads the saved state; empty if the file does not exist yet.
///
/// # Errors
///
/// The file exists but cannot be read, or was not written by [`save`].
pub fn load(path: &Path) -> Result<Vec<SavedDecision>, StateError> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(StateError::io(path, "read", error)),
    };
    if size > BYTES_MAX {
        let problem = format!("{size} bytes, more than {BYTES_MAX}");
        return Err(StateError::Content { path: path.to_owned(), problem });
    }

    let content = fs::read(path).map_err(|source| StateError::io(path, "read", source))?;
    parse(path, &content)
}

/// Reads the saved state from a file's content. The path is for messages.
///
/// # Errors
///
/// The content was not written by [`save`].
pub fn parse(path: &Path, content: &[u8]) -> Result<Vec<SavedDecision>, StateError> {
    let Preamble { version } =
        serde_json::from_slice(content).map_err(|source| StateError::shape(path, source))?;
    check(path, version)?;
    let file: StateFile =
        serde_json::from_slice(content).map_err(|source| StateError::shape(path, source))?;
    Ok(file.numbers())
}

/// Rejects a file of another version.
fn check(path: &Path, version: u32) -> Result<(), StateError> {
    if version == VERSION {
        return Ok(());
    }
    let problem = format!("version {version}, not {VERSION}");
    Err(StateError::Content { path: path.to_owned(), problem })
}

// === impl StateError ===

impl StateError {
    fn io(path: &Path, action: &'static str, source: io::Error) -> Self {
        Self::Io { path: path.to_owned(), action, source }
    }

    fn shape(path: &Path, source: serde_json::Error) -> Self {
        Self::Shape { path: path.to_owned(), source }
    }
}

// === impl StateFile ===

impl StateFile {
    fn new(written: Timestamp, saved: &[SavedDecision], length: Option<MemoryLength>) -> Self {
        let decisions = saved.iter().map(|saved| StateLine::new(written, saved, length)).collect();
        Self { version: VERSION, written, decisions }
    }

    fn numbers(self) -> Vec<SavedDecision> {
        let written = self.written;
        self.decisions.into_iter().map(|line| line.saved(written)).collect()
    }
}

// === impl StateLine ===

impl StateLine {
    fn new(written: Timestamp, saved: &SavedDecision, length: Option<MemoryLength>) -> Self {
        let SavedDecision { variant, model, desired, at, written: until, memory, strange: _ } =
            saved;
        let told = length.zip(memory.as_ref());

        Self {
            namespace: variant.namespace.clone(),
            variant: variant.variant.clone(),
            model: model.model.clone(),
            desired: *desired,
            at: *at,
            written: (*until != written).then_some(*until),
            memory: told.map(|(length, memory)| DecodedMemory::new(memory, length)),
        }
    }

    fn saved(self, written: Timestamp) -> SavedDecision {
        let Self { namespace, variant, model, desired, at, written: until, memory: told } = self;
        let (memory, strange) = told
            .map(|DecodedMemory { memory, strange }| (memory, strange.into_iter().collect()))
            .unzip();

        SavedDecision {
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

// === impl DecodedMemory ===

impl DecodedMemory {
    /// Creates a memory of this length for writing.
    pub(crate) fn new(memory: &VariantMemory, length: MemoryLength) -> Self {
        Self { memory: memory.clone().told(length), strange: BTreeSet::new() }
    }
}

impl Serialize for DecodedMemory {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.memory.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for DecodedMemory {
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
    fn a_number_is_taken_over_for_minutes_and_what_was_learned_for_weeks() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, line(3)).unwrap();
        let saved = load(&path).unwrap().remove(0);
        let after = |age: SignedDuration| {
            let now = saved.written.saturating_add(age).unwrap();
            (saved.is_recent(now), saved.is_known(now))
        };
        let moment = SignedDuration::from_secs(1);
        assert_eq!(after(SignedDuration::ZERO), (true, true));
        assert_eq!(after(RESTORE_MAX), (true, true));
        assert_eq!(after(RESTORE_MAX + moment), (false, true));
        assert_eq!(after(KNOWLEDGE_MAX), (false, true));
        assert_eq!(after(KNOWLEDGE_MAX + moment), (false, false));
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
        save(&path, Timestamp::UNIX_EPOCH, &Published::default(), &VariantMemories::new(), &[])
            .unwrap();
        assert_eq!(load(&path).unwrap(), Vec::new());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    /// Saved states of variants that all have this memory.
    fn states(count: usize, memory: &VariantMemory) -> Vec<SavedDecision> {
        let content = line(3);
        let [known] =
            parse(Path::new("state.json"), content.as_bytes()).unwrap().try_into().unwrap();

        (0..count)
            .map(|index| {
                let mut one: SavedDecision = known.clone();
                one.variant.variant = VariantName::new(&format!("{index:040}")).unwrap();
                one.memory = Some(memory.clone());
                one
            })
            .collect()
    }

    fn save_states(path: &Path, states: &[SavedDecision]) -> Result<(), StateError> {
        let now = Timestamp::UNIX_EPOCH;
        save(path, now, &Published::default(), &VariantMemories::new(), states)
    }

    #[test]
    fn a_state_that_is_too_large_with_its_windows_is_written_without_them_and_can_be_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        // The named signals belong to the shortest memory.
        let memory =
            VariantMemory { named: vec!["a-signal".repeat(1 << 17)], ..VariantMemory::default() };

        save_states(&path, &states(15, &memory)).unwrap();
        assert_eq!(load(&path).unwrap(), states(15, &memory));

        save_states(&path, &states(17, &memory)).unwrap();
        let mut without = states(17, &memory);
        for saved in &mut without {
            saved.memory = None;
        }
        assert_eq!(load(&path).unwrap(), without);
    }

    #[test]
    fn a_state_that_could_never_be_read_is_not_written_and_the_last_file_stays() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, line(3)).unwrap();

        let refused = save_states(&path, &states(120_000, &VariantMemory::default()));
        let error = refused.unwrap_err().to_string();
        assert!(error.contains("state.json") && error.contains("120000 variants"), "{error}");
        assert_eq!(load(&path).unwrap()[0].desired.count(), 3);
    }

    #[test]
    fn a_full_disk_is_an_error_and_leaves_the_last_file_as_it_was() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, line(3)).unwrap();
        std::os::unix::fs::symlink("/dev/full", path.with_extension("partial")).unwrap();

        let error = save_states(&path, &[]).unwrap_err().to_string();
        assert!(error.contains("state.json: cannot be written"), "{error}");
        assert_eq!(load(&path).unwrap()[0].desired.count(), 3);
    }

    #[test]
    fn a_number_whose_variant_is_not_seen_is_written_again_with_the_age_that_it_has() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("state.json");
        fs::write(&path, line(3)).unwrap();
        let unseen = load(&path).unwrap();

        for later in [1, 2] {
            let now = unseen[0].written + jiff::SignedDuration::from_mins(later);
            save(&path, now, &Published::default(), &VariantMemories::new(), &load(&path).unwrap())
                .unwrap();
            assert_eq!(load(&path).unwrap(), unseen);
        }
    }
}
