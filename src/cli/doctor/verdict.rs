//! The verdicts of checks, and the symptoms that they rest on.

use std::fmt;

use schemars::JsonSchema;
use serde::Serialize;

/// The symptoms of one check that are shown. The verdict follows from all of them.
const SYMPTOMS_MAX: usize = 20;

/// The verdict of a check, from the best to the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// The check has nothing to judge, or an option skips it.
    NotApplicable,
    /// The check passes.
    Ok,
    /// Something needs attention, such as desired replicas that are followed late, in part, or by
    /// nothing that the check can see.
    Warning,
    /// Something that the check needs could not be read.
    Unknown,
    /// Something does not work.
    Failure,
}

/// One thing that a check saw.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Symptom {
    /// Its verdict.
    pub verdict: Verdict,
    /// The variant, namespace or object that it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub object: Option<String>,
    /// The observation, and its place.
    pub evidence: String,
    /// A command or a field that fixes it; without one, the check's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fix: Option<String>,
}

/// The reason that a check has nothing to look at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// It could not be read.
    Unknown(String),
    /// There is no such thing.
    NotApplicable(String),
}

/// The symptoms of a check, or the reason that there are none.
pub type Findings = Result<Vec<Symptom>, Unseen>;

/// The result of one check.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct CheckResult {
    /// The name of the check.
    pub name: &'static str,
    /// The statement that holds if it passes.
    pub title: &'static str,
    /// The worst verdict of its symptoms.
    pub verdict: Verdict,
    /// Its symptoms, the worst first.
    pub symptoms: Vec<Symptom>,
    /// The symptoms that are not listed.
    pub more_symptoms: usize,
}

// === impl Verdict ===

impl Verdict {
    /// All verdicts, from the worst to the best.
    pub const ALL: [Self; 5] =
        [Self::Failure, Self::Unknown, Self::Warning, Self::Ok, Self::NotApplicable];

    /// True if something has to be done about it.
    #[must_use]
    pub const fn is_problem(self) -> bool {
        match self {
            Self::Ok | Self::NotApplicable => false,
            Self::Warning | Self::Unknown | Self::Failure => true,
        }
    }

    /// The exit code of the command if this is the worst verdict.
    #[must_use]
    pub const fn exit_code(self) -> u8 {
        match self {
            Self::Ok | Self::NotApplicable => 0,
            Self::Warning => 1,
            Self::Unknown => 2,
            Self::Failure => 3,
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::NotApplicable => "n/a",
            Self::Ok => "ok",
            Self::Warning => "warning",
            Self::Unknown => "unknown",
            Self::Failure => "FAILURE",
        })
    }
}

// === impl Symptom ===

impl Symptom {
    /// A symptom without an object and a fix of its own.
    pub(crate) fn new(verdict: Verdict, evidence: impl Into<String>) -> Self {
        Self { verdict, object: None, evidence: evidence.into(), fix: None }
    }

    pub(crate) fn ok(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, evidence)
    }

    pub(crate) fn warning(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, evidence)
    }

    pub(crate) fn failure(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Failure, evidence)
    }

    pub(crate) fn unknown(evidence: impl Into<String>) -> Self {
        Self::new(Verdict::Unknown, evidence)
    }

    /// The same, and a failure is only a warning.
    pub(crate) fn at_most_a_warning(mut self) -> Self {
        if self.verdict == Verdict::Failure {
            self.verdict = Verdict::Warning;
        }
        self
    }

    /// The same, about this object.
    pub(crate) fn of(self, object: impl fmt::Display) -> Self {
        Self { object: Some(object.to_string()), ..self }
    }

    /// The same, with a fix of its own.
    pub(crate) fn fix(self, fix: impl Into<String>) -> Self {
        Self { fix: Some(fix.into()), ..self }
    }
}

// === impl CheckResult ===

impl CheckResult {
    /// The result of a check with these findings. A check that finds nothing has seen nothing, so
    /// it is not applicable.
    pub(crate) fn new(name: &'static str, title: &'static str, findings: Findings) -> Self {
        let mut symptoms = findings.unwrap_or_else(|unseen| match unseen {
            Unseen::Unknown(reason) => vec![Symptom::unknown(reason)],
            Unseen::NotApplicable(reason) => vec![Symptom::new(Verdict::NotApplicable, reason)],
        });
        symptoms.sort_by_key(|symptom| std::cmp::Reverse(symptom.verdict));

        let worst = symptoms.first().map_or(Verdict::NotApplicable, |symptom| symptom.verdict);
        let more_symptoms = symptoms.len().saturating_sub(SYMPTOMS_MAX);
        symptoms.truncate(SYMPTOMS_MAX);
        Self { name, title, verdict: worst, symptoms, more_symptoms }
    }
}
