//! The problems of a study: all of them at once, and each once for all runs that have it.

use std::path::{Path, PathBuf};

use crate::study::plan::PlanError;

/// More problems than a person reads at once.
const LISTED_MAX: usize = 100;

/// The size limit of a scenario file.
pub(super) const FILE_MAX: u64 = 4 << 20;

/// The reason that there is no scenario.
#[derive(Debug, thiserror::Error)]
pub enum ScenarioError {
    /// The file cannot be read.
    #[error("cannot read the scenario {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The I/O error.
        source: std::io::Error,
    },
    /// The file is too large to be a scenario.
    #[error("the scenario {} is larger than {FILE_MAX} bytes", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
    },
    /// The text is not YAML.
    #[error("{}{} is not YAML: {message}", path.display(), line.map(|line| format!(":{line}")).unwrap_or_default())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Line from 1, if the error has a place.
        line: Option<usize>,
        /// The parser's message.
        message: String,
    },
    /// The text is YAML, but not a valid scenario.
    #[error("{} is not a scenario:\n{}", path.display(), problems.join("\n"))]
    Invalid {
        /// The file.
        path: PathBuf,
        /// All problems, each with its line and path.
        problems: Vec<String>,
    },
}

/// A problem as a line of text.
pub(super) enum ProblemLine {
    /// A problem in the scenario file, with its place.
    OfFile(String),
    /// A problem in the command line.
    Beside(String),
}

/// The problems so far.
#[derive(Default)]
pub(crate) struct StudyProblems {
    of_file: Vec<String>,
    beside: Vec<String>,
}

// === impl ProblemLine ===

impl From<PlanError> for ProblemLine {
    fn from(PlanError(why): PlanError) -> Self {
        Self::Beside(why)
    }
}

// === impl StudyProblems ===

impl StudyProblems {
    /// Adds a problem, unless it is already known.
    pub(crate) fn add(&mut self, said: ProblemLine) {
        let (list, line) = match said {
            ProblemLine::OfFile(line) => (&mut self.of_file, line),
            ProblemLine::Beside(line) => (&mut self.beside, line),
        };
        if !list.contains(&line) {
            list.push(line);
        }
    }

    /// Returns true if there are as many problems as are listed.
    pub(crate) const fn is_full(&self) -> bool {
        self.of_file.len() + self.beside.len() >= LISTED_MAX
    }

    /// Returns an error with all problems, if there are any.
    pub(crate) fn check(self, path: &Path) -> anyhow::Result<()> {
        let Self { of_file, beside } = self;
        match (of_file.is_empty(), beside.is_empty()) {
            (true, true) => Ok(()),
            (true, false) => Err(PlanError(beside.join("\n")).into()),
            (false, _) => {
                let problems = [of_file, beside].concat();
                Err(ScenarioError::Invalid { path: path.to_owned(), problems }.into())
            }
        }
    }
}
