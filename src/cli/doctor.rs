//! `doctor`: checks of a configuration, a cluster and a running daemon.
//!
//! [`gather`] reads everything once, and [`checks`] has a row for each check, whose function is pure.
//! Rules about HPAs, `ScaledObject`s, annotations, scale targets and registrations are the daemon's.

pub mod checks;
pub mod evidence;
mod gather;
pub mod permission;
pub mod verdict;

use std::fmt::Write as _;

use anyhow::Context;
use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::args::{DoctorArgs, OutputFormat};
use crate::cli::doctor::checks::CHECKS;
use crate::cli::doctor::evidence::Evidence;
use crate::cli::doctor::verdict::{CheckResult, Symptom, Verdict};
use plimsoll_lab::output::print;

/// The results of all checks.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Diagnosis {
    /// When it was.
    pub now: String,
    /// The version of this program.
    pub version: String,
    /// The worst verdict of all checks.
    pub verdict: Verdict,
    /// Every check, in the order of docs/doctor.md.
    pub checks: Vec<CheckResult>,
}

/// The checks did not all pass.
#[derive(Debug, thiserror::Error)]
#[error("the worst verdict is {worst}")]
pub(crate) struct DoctorError {
    worst: Verdict,
}

/// Runs the command.
///
/// # Errors
///
/// The output cannot be written, or a check did not pass.
pub(crate) fn run(args: &DoctorArgs) -> anyhow::Result<()> {
    if args.schema {
        return print(&(serde_json::to_string_pretty(&schemars::schema_for!(Diagnosis))? + "\n"));
    }

    // A second provider, which others may have installed, would only be an error here.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let evidence = runtime.block_on(gather::gather(args));
    let diagnosis = Diagnosis::new(&evidence);

    let text = match args.output {
        OutputFormat::Json => serde_json::to_string_pretty(&diagnosis)? + "\n",
        OutputFormat::Text => diagnosis.words(),
    };
    print(&text)?;

    if diagnosis.verdict.is_problem() {
        return Err(DoctorError { worst: diagnosis.verdict }.into());
    }
    Ok(())
}

// === impl DoctorError ===

impl DoctorError {
    /// The exit code of the worst verdict.
    pub(crate) const fn exit_code(&self) -> u8 {
        self.worst.exit_code()
    }
}

// === impl Diagnosis ===

impl Diagnosis {
    /// Runs all checks.
    #[must_use]
    pub fn new(evidence: &Evidence) -> Self {
        let checks: Vec<CheckResult> = CHECKS.iter().map(|check| check.run(evidence)).collect();
        let worst = checks.iter().map(|check| check.verdict).max();
        Self {
            now: evidence.now.to_string(),
            version: evidence.version.clone(),
            verdict: worst.unwrap_or(Verdict::NotApplicable),
            checks,
        }
    }

    /// The number of checks with each verdict.
    fn summary(&self) -> String {
        let counts = Verdict::ALL.iter().filter_map(|verdict| {
            let count = self.checks.iter().filter(|check| check.verdict == *verdict).count();
            (count > 0).then(|| format!("{count} {verdict}"))
        });
        let counts: Vec<String> = counts.collect();
        format!("{} checks: {}", self.checks.len(), counts.join(", "))
    }

    /// The results for people. Checks that could not be judged for one reason are listed together.
    #[must_use]
    pub fn words(&self) -> String {
        let mut text = String::new();
        let mut unknown: Vec<(String, Vec<&str>)> = Vec::new();
        for check in &self.checks {
            if check.verdict != Verdict::Unknown {
                words_of(&mut text, check);
                continue;
            }

            let reasons = problems(check);
            match unknown.iter_mut().find(|(known, _)| *known == reasons) {
                Some((_, names)) => names.push(check.name),
                None => unknown.push((reasons, vec![check.name])),
            }
        }

        for (reasons, names) in unknown {
            let _infallible = writeln!(text, "{:<8} {}", Verdict::Unknown, names.join(", "));
            text.push_str(&reasons);
        }
        let _infallible = writeln!(text, "{}", self.summary());
        text
    }
}

/// Writes a check: one line if it passes, and otherwise its problems.
fn words_of(text: &mut String, check: &CheckResult) {
    let CheckResult { name, title, verdict, symptoms, .. } = check;
    let _infallible = write!(text, "{verdict:<8} {name:<23} {title}");
    if !verdict.is_problem() {
        let evidence = symptoms.first().map(|it| it.evidence.as_str()).unwrap_or_default();
        let _infallible = writeln!(text, " ({evidence})");
        return;
    }

    text.push('\n');
    text.push_str(&problems(check));
}

/// The problems of a check, each fix once.
fn problems(check: &CheckResult) -> String {
    let CheckResult { symptoms, more_symptoms, .. } = check;
    let mut text = String::new();
    let problems: Vec<&Symptom> = symptoms.iter().filter(|it| it.verdict.is_problem()).collect();
    for (at, Symptom { object, evidence, fix, .. }) in problems.iter().enumerate() {
        let object = object.as_ref().map(|object| format!("{object}: ")).unwrap_or_default();
        indented(&mut text, "", &format!("{object}{evidence}"));

        let next = problems.get(at + 1).and_then(|it| it.fix.as_ref());
        if let Some(fix) = fix.as_ref().filter(|fix| next != Some(*fix)) {
            indented(&mut text, "fix: ", fix);
        }
    }
    if *more_symptoms > 0 {
        indented(&mut text, "", &format!("and {more_symptoms} more"));
    }
    text
}

/// Writes lines below the verdict.
fn indented(text: &mut String, lead: &str, lines: &str) {
    for (at, line) in lines.lines().enumerate() {
        let lead = if at == 0 { lead } else { "" };
        let _infallible = writeln!(text, "           {lead}{line}");
    }
}
