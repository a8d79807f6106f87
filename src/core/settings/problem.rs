//! Problems of a configuration: all of them at once, each with its path.

use std::fmt;
use std::path::{Path, PathBuf};

use derive_more::Display;
use strsim::levenshtein;

/// More problems than can be read at once; the rest is only counted.
const LISTED_MAX: usize = 100;

/// One problem of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The severity: an error rejects the configuration.
    pub severity: Severity,
    /// The path, such as `variants[2].replicas.max`; empty for the whole configuration.
    pub path: String,
    /// The rule for the value at the path.
    pub rule: String,
    /// The value found instead; `None` if the rule is sufficient.
    pub found: Option<String>,
    /// The file with the line, or the environment variable; `None` if not known.
    pub place: Option<String>,
}

/// The severity of a problem.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// The configuration is rejected.
    #[display("error")]
    Error,
    /// The configuration is accepted, but is probably not as intended.
    #[display("warning")]
    Warning,
}

/// Problems found so far, and the folder that relative paths start from.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<Problem>,
    base: PathBuf,
}

/// A list of problems, one per line, errors first.
pub struct ProblemList<'a>(pub &'a [Problem]);

// === impl Problem ===

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { severity, path, rule, found, place } = self;
        if let Some(place) = place {
            write!(f, "{place}: ")?;
        }
        write!(f, "{severity}: ")?;
        if !path.is_empty() {
            write!(f, "{path} ")?;
        }

        f.write_str(rule)?;
        match found {
            Some(found) => write!(f, "; found {found}"),
            None => Ok(()),
        }
    }
}

// === impl Severity ===

// === impl Problems ===

impl Problems {
    /// Creates an empty collection. Relative paths start from this folder.
    #[must_use]
    pub const fn within(base: PathBuf) -> Self {
        Self { found: Vec::new(), base }
    }

    /// The path. If it is relative, it starts from the folder.
    pub fn path(&mut self, path: &str, written: &Path) -> Option<PathBuf> {
        if written.as_os_str().is_empty() {
            self.error(path, "must be a path", "\"\"");
            return None;
        }

        let joined = self.base.join(written);
        if joined.to_str().is_none() {
            // The printed configuration is YAML, and YAML is Unicode.
            self.error(path, "must be Unicode with its folder", joined.display());
            return None;
        }

        Some(joined)
    }

    /// Adds an error about an existing value.
    pub fn error(
        &mut self,
        path: impl Into<String>,
        rule: impl Into<String>,
        found: impl fmt::Display,
    ) {
        self.push(Severity::Error, path.into(), rule.into(), Some(found.to_string()));
    }

    /// Adds a problem from another source, whose places are not known here.
    pub fn take_over(&mut self, problem: Problem) {
        let Problem { severity, path, rule, found, place: _ } = problem;
        self.push(severity, path, rule, found);
    }

    /// Adds an error without a value to show.
    pub fn error_at(&mut self, path: impl Into<String>, rule: impl Into<String>) {
        self.push(Severity::Error, path.into(), rule.into(), None);
    }

    /// Adds a warning.
    pub fn warning(&mut self, path: impl Into<String>, rule: impl Into<String>) {
        self.push(Severity::Warning, path.into(), rule.into(), None);
    }

    /// Adds an error about a missing value, unless its path already has an error.
    pub fn missing(&mut self, path: impl Into<String>, rule: impl Into<String>) {
        let whole = path.into();
        if !self.refused(&whole) {
            self.error_at(whole, rule);
        }
    }

    /// Warns about the written keys of a section that has no use for them.
    pub fn unused(&mut self, section: &str, keys: &[(&str, bool)], because: &str) {
        for (key, _) in keys.iter().filter(|(_, is_written)| *is_written) {
            self.warning(join(section, key), format!("has no effect, because {because}"));
        }
    }

    /// Warns about a section that is switched off and has other keys.
    pub fn without_effect(&mut self, path: &str) {
        self.warning(path, "is not enabled, so its other keys have no effect");
    }

    /// Returns true if there is an error at this path, or at a part of it.
    #[must_use]
    pub fn refused(&self, path: &str) -> bool {
        self.found
            .iter()
            .any(|problem| problem.severity == Severity::Error && is_within(path, &problem.path))
    }

    /// Returns true if there is an error at this path, at a part of it, or below it.
    #[must_use]
    pub fn refused_below(&self, path: &str) -> bool {
        self.refused(path)
            || self.found.iter().any(|problem| {
                problem.severity == Severity::Error
                    && problem
                        .path
                        .strip_prefix(path)
                        .is_some_and(|rest| rest.starts_with(['.', '[']))
            })
    }

    /// Splits into errors and warnings, each in the order of their paths.
    #[must_use]
    pub fn split(mut self) -> (Vec<Problem>, Vec<Problem>) {
        self.found.sort_by(|one, other| natural(&one.path).cmp(&natural(&other.path)));
        self.found.into_iter().partition(|problem| problem.severity == Severity::Error)
    }

    fn push(&mut self, severity: Severity, path: String, rule: String, found: Option<String>) {
        let problem = Problem { severity, path, rule, found, place: None };
        if !self.found.contains(&problem) {
            self.found.push(problem);
        }
    }
}

// === impl ProblemList ===

impl fmt::Display for ProblemList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, problem) in self.0.iter().take(LISTED_MAX).enumerate() {
            write!(f, "{}  {problem}", if at == 0 { "" } else { "\n" })?;
        }
        match self.0.len().saturating_sub(LISTED_MAX) {
            0 => Ok(()),
            more => write!(f, "\n  and {more} more"),
        }
    }
}

/// Returns true if the path is the other one, or below it.
#[must_use]
pub fn is_within(path: &str, whole: &str) -> bool {
    path.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Appends a key to a path: `.key`, or `["key"]` if the key is not a plain word.
#[must_use]
pub fn join(path: &str, key: &str) -> String {
    let plain = key.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '-');
    match (path.is_empty(), plain && !key.is_empty()) {
        (true, true) => key.to_owned(),
        (false, true) => format!("{path}.{key}"),
        (_, false) => format!("{path}[{key:?}]"),
    }
}

/// A path in parts that sort in the natural order: 2 before 10.
fn natural(path: &str) -> Vec<PathPart<'_>> {
    path.split(['.', '[', ']'])
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().map_or(PathPart::Name(part), PathPart::Index))
        .collect()
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum PathPart<'a> {
    Index(usize),
    Name(&'a str),
}

/// A count with its noun, such as `2 errors`.
#[must_use]
pub fn counted(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}

/// The most likely candidate for a misspelled word.
pub fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    // A third of the letters wrong is a typo; more is another word.
    let tolerated = (word.chars().count() / 3).max(1);

    candidates
        .into_iter()
        .map(|candidate| (levenshtein(&word.to_lowercase(), &candidate.to_lowercase()), candidate))
        .filter(|(distance, _)| *distance <= tolerated)
        .min_by_key(|(distance, _)| *distance)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_misspelt_word_finds_the_nearest_candidate() {
        let candidates = ["listen", "interval", "timeout", "port"];
        assert_eq!(nearest("lisen", candidates), Some("listen"));
        assert_eq!(nearest("Interval", candidates), Some("interval"));
        assert_eq!(nearest("timeuot", candidates), Some("timeout"));
        assert_eq!(nearest("colour", candidates), None);
    }

    #[test]
    fn keys_that_are_not_words_are_quoted_in_paths() {
        assert_eq!(join("", "variants"), "variants");
        assert_eq!(join("a.b", "c_d"), "a.b.c_d");
        assert_eq!(join("overrides", "m/l-3.1#ns"), "overrides[\"m/l-3.1#ns\"]");
    }

    #[test]
    fn problems_are_in_the_order_of_their_paths() {
        let mut problems = Problems::default();
        for path in ["variants[10].a", "variants[2].b", "a.b", "variants[2].a", "", "variants[2]"] {
            problems.error_at(path, "is wrong");
        }

        let (errors, _) = problems.split();
        let paths: Vec<&str> = errors.iter().map(|error| error.path.as_str()).collect();
        assert_eq!(
            paths,
            ["", "a.b", "variants[2]", "variants[2].a", "variants[2].b", "variants[10].a"]
        );
    }

    #[test]
    fn an_error_covers_what_is_below_it_and_not_its_namesakes() {
        let mut problems = Problems::default();
        problems.error("variants[1]", "must be a mapping", 5);
        assert!(problems.refused("variants[1].name"));
        assert!(!problems.refused("variants[10].name") && !problems.refused("variants"));
    }
}
