//! The problems of a study: all of them at once, and each once for all runs that have it.

use std::path::Path;

use crate::study::plan::PlanError;
use crate::study::{ProblemLine, ScenarioError};

/// More problems than a person reads at once.
const LISTED_MAX: usize = 100;

/// The problems so far.
#[derive(Default)]
pub(crate) struct StudyProblems {
    of_file: Vec<String>,
    beside: Vec<String>,
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
