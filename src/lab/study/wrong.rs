//! What is wrong with a study: all of it at once, and each once however many runs it is in.

use std::path::Path;

use crate::study::plan::PlanError;
use crate::study::{Said, ScenarioError};

/// More than anyone reads in one go.
const LISTED_MAX: usize = 100;

/// What is wrong so far.
#[derive(Default)]
pub(crate) struct Wrong {
    of_file: Vec<String>,
    beside: Vec<String>,
}

// === impl Wrong ===

impl Wrong {
    /// Adds what is not known yet.
    pub(crate) fn add(&mut self, said: Said) {
        let (list, line) = match said {
            Said::OfFile(line) => (&mut self.of_file, line),
            Said::Beside(line) => (&mut self.beside, line),
        };
        if !list.contains(&line) {
            list.push(line);
        }
    }

    /// Whether there is as much as is listed.
    pub(crate) const fn is_full(&self) -> bool {
        self.of_file.len() + self.beside.len() >= LISTED_MAX
    }

    /// Returns nothing where nothing is wrong.
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
