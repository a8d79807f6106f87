//! The reasons why a sample or a whole response cannot be read.

/// The maximum of ranks in a response. The largest data-parallel deployments have a few hundred,
/// spread over many pods. Each rank costs a few kilobytes.
pub const RANKS_MAX: usize = 1024;

/// The maximum of buckets in one histogram. Engines have about twenty; custom edges may be more.
pub const BUCKETS_MAX: usize = 1024;

/// The reason why a sample of a wanted series cannot be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// A second series for the same number.
    #[error("another series in the response already has this value")]
    Duplicate,
    /// A cumulative number that cannot have been counted.
    #[error("a cumulative value cannot be {value}; it must be finite and at least 0")]
    NotCumulative {
        /// The number.
        value: f64,
    },
    /// A label is missing.
    #[error("the label {label} is missing")]
    MissingLabel {
        /// Its name.
        label: &'static str,
    },
    /// A label has an invalid value.
    #[error("the label {label} is {value:?}, expected {expected}")]
    BadLabel {
        /// Its name.
        label: &'static str,
        /// The value.
        value: String,
        /// The expected form of the value.
        expected: &'static str,
    },
    /// More ranks than [`RANKS_MAX`].
    #[error("the response has more than {RANKS_MAX} ranks")]
    TooManyRanks,
    /// More buckets than [`BUCKETS_MAX`].
    #[error("the histogram has more than {BUCKETS_MAX} buckets")]
    TooManyBuckets,
}

impl SampleError {
    pub(super) fn bad_label(label: &'static str, value: &[u8], expected: &'static str) -> Self {
        /// Characters of a label value that a message repeats.
        const SHOWN: usize = 60;
        let shown = String::from_utf8_lossy(value).chars().take(SHOWN).collect();
        Self::BadLabel { label, value: shown, expected }
    }
}

/// The reason why a response with valid samples gives no reading.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// The response has no metric of a known engine.
    UnknownEngine {
        /// Prefixes of the names in it, in order of appearance.
        prefixes: Vec<String>,
    },
    /// A histogram lacks one of its series: the response was cut between two lines.
    CutHistogram {
        /// The family, without the engine's prefix.
        family: &'static str,
        /// The rank.
        rank: u32,
        /// The suffix or bucket that is missing.
        missing: &'static str,
    },
}
