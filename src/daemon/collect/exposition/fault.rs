//! The reasons why a response has no reading, and their positions in it.

use std::borrow::Cow;

use plimsoll_core::observe::ScrapeFailure;
use plimsoll_core::observe::engine::{Engine, SampleError, Unreadable};

/// The maximum number of characters that a message quotes.
pub(super) const FOUND_MAX: usize = 40;

/// The reason why a response has no reading.
#[derive(Debug, thiserror::Error)]
pub enum PageError {
    /// The body is empty.
    #[error("the body is empty, expected metrics")]
    Empty,
    /// The server declares another content type.
    #[error("the content type is {found:?}, expected text/plain or application/openmetrics-text")]
    ContentType {
        /// The header's value.
        found: String,
    },
    /// The response is truncated.
    #[error("line {line}, column {column}: the response ends, expected {expected}")]
    Truncated {
        /// Line at which it ends, from 1.
        line: usize,
        /// Column after its last character, from 1.
        column: usize,
        /// The text that was expected next.
        expected: &'static str,
    },
    /// A line is neither a comment nor a sample.
    #[error("line {line}, column {column}: found {found}, expected {expected}")]
    Syntax {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The text that was found.
        found: String,
        /// The text that was expected.
        expected: &'static str,
    },
    /// A sample is well formed but has no valid meaning.
    #[error("line {line}, column {column}: the sample of {name} is unusable")]
    Sample {
        /// Line, from 1.
        line: usize,
        /// Column in characters, from 1.
        column: usize,
        /// The metric.
        name: String,
        /// The problem with it.
        source: SampleError,
    },
    /// A line is longer than [`LINE_MAX`].
    ///
    /// [`LINE_MAX`]: crate::collect::exposition::LINE_MAX
    #[error("line {line}, column {column}: the line is longer than {limit} bytes")]
    LineTooLong {
        /// Line, from 1.
        line: usize,
        /// Column at which the limit is reached, from 1.
        column: usize,
        /// The limit in bytes.
        limit: usize,
    },
    /// There are more needed samples than [`SAMPLES_MAX`].
    ///
    /// [`SAMPLES_MAX`]: crate::collect::exposition::SAMPLES_MAX
    #[error("line {line}, column 1: more than {limit} samples of the metrics that are read")]
    TooManySamples {
        /// Line of the first excess sample, from 1.
        line: usize,
        /// The limit.
        limit: usize,
    },
    /// The histogram is incomplete, so lines are missing.
    #[error("the histogram {family} of rank {rank} has no {missing}: lines are missing")]
    CutHistogram {
        /// The family, without the engine's prefix.
        family: &'static str,
        /// The rank.
        rank: u32,
        /// The suffix or bucket that is missing.
        missing: &'static str,
    },
    /// The response is valid, but from no known engine.
    #[error("no metrics of a known engine, but {}", Prefixes(prefixes))]
    UnknownEngine {
        /// Prefixes of its metrics, in order of appearance.
        prefixes: Vec<String>,
    },
}

/// The position at which a line is not a valid sample, and the text that was expected there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SyntaxFault {
    /// Offset in the line.
    pub(super) at: usize,
    /// The expected text.
    pub(super) expected: &'static str,
}

/// Shows the prefixes in an unknown response, and the known prefixes.
struct Prefixes<'a>(&'a [String]);

impl std::fmt::Display for Prefixes<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            [] => f.write_str("no other metrics either")?,
            prefixes => write!(f, "metrics that start with {}", prefixes.join(", "))?,
        }
        write!(f, "; expected {}", Engine::ALL.map(Engine::prefix).join(" or "))
    }
}

impl PageError {
    /// The failure class in the core and in metrics.
    #[must_use]
    pub const fn failure(&self) -> ScrapeFailure {
        match self {
            Self::Empty | Self::ContentType { .. } | Self::Syntax { .. } | Self::Sample { .. } => {
                ScrapeFailure::Malformed
            }
            Self::Truncated { .. } | Self::CutHistogram { .. } => ScrapeFailure::Truncated,
            Self::LineTooLong { .. } | Self::TooManySamples { .. } => ScrapeFailure::TooLarge,
            Self::UnknownEngine { .. } => ScrapeFailure::UnknownEngine,
        }
    }

    pub(super) fn syntax(
        number: usize,
        line: &[u8],
        SyntaxFault { at, expected }: SyntaxFault,
    ) -> Self {
        Self::Syntax { line: number, column: column(line, at), found: found(line, at), expected }
    }

    pub(super) fn truncated(number: usize, line: &[u8], expected: &'static str) -> Self {
        Self::Truncated { line: number, column: column(line, line.len()), expected }
    }
}

impl From<Unreadable> for PageError {
    fn from(why: Unreadable) -> Self {
        match why {
            Unreadable::UnknownEngine { prefixes } => Self::UnknownEngine { prefixes },
            Unreadable::CutHistogram { family, rank, missing } => {
                Self::CutHistogram { family, rank, missing }
            }
        }
    }
}

/// Returns the column of an offset, in characters from 1.
pub(super) fn column(line: &[u8], at: usize) -> usize {
    String::from_utf8_lossy(&line[..at.min(line.len())]).chars().count() + 1
}

/// Returns the text at an offset: a word or a single character.
fn found(line: &[u8], at: usize) -> String {
    let rest: Cow<'_, str> = String::from_utf8_lossy(line.get(at..).unwrap_or_default());
    let Some(first) = rest.chars().next() else { return "the end of the line".to_owned() };
    let start = rest.chars().take_while(|c| c.is_alphanumeric() || "_:+-.".contains(*c));
    let word: String = start.take(FOUND_MAX).collect();
    let shown = if word.is_empty() { first.to_string() } else { word };
    format!("`{}`", shown.escape_debug())
}
