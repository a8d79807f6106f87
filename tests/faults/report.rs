//! The table of docs/faults.md.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use plimsoll::clock::Clock;

use crate::list::{Fault, Played};
use crate::scene::Finding;
use crate::suite::Passed;

const BEGIN: &str = "<!-- faults: begin -->\n";
const END: &str = "<!-- faults: end -->";

/// What came of a fault.
pub(crate) enum Outcome {
    Live(Finding),
    Test(Passed),
    Failed(String),
}

/// One fault with its outcome.
pub(crate) struct Row {
    pub(crate) fault: Fault,
    pub(crate) outcome: Outcome,
}

impl Row {
    /// The rules that did not hold.
    pub(crate) fn broken(&self) -> Vec<String> {
        match &self.outcome {
            Outcome::Live(finding) => finding.noticed.broken.clone(),
            Outcome::Test(_) => Vec::new(),
            Outcome::Failed(error) => vec![error.clone()],
        }
    }

    /// A line of the table.
    pub(crate) fn line(&self) -> String {
        let Fault { name, fault, invariant, played } = self.fault;
        let (observation, recovery) = match &self.outcome {
            _ if !self.broken().is_empty() => ("**broken**".to_owned(), "–".to_owned()),
            Outcome::Live(finding) => {
                let recovery = finding.recovery.map(|it| format!("{it:.1} s"));
                (observation(finding), recovery.unwrap_or_else(|| "–".to_owned()))
            }
            Outcome::Test(passed) => {
                let Played::Test(suite, test) = played else { unreachable!("a test was run") };
                let seconds = passed.seconds;
                let test = test.rsplit("::").next().unwrap_or(test);
                let label = suite.label();
                (format!("`{label}` test `{test}` passes, {seconds:.1} s"), "test".to_owned())
            }
            Outcome::Failed(_) => unreachable!("it is broken"),
        };
        format!("| {name} | {fault} | {invariant} | {observation} | {recovery} |")
    }
}

/// What was observed on a running daemon.
fn observation(finding: &Finding) -> String {
    let noticed = &finding.noticed;
    let replicas = match (noticed.least, noticed.most) {
        (Some(least), Some(most)) if least == most => format!("{least} replicas"),
        (Some(least), Some(most)) => format!("{least} to {most} replicas"),
        _ => "no desired replicas".to_owned(),
    };
    let requests = if noticed.answered == 1 { "request" } else { "requests" };
    let mut text = format!("{replicas}, {} HPA {requests} answered", noticed.answered);
    if noticed.unavailable > 0 {
        let _infallible = write!(text, " ({} with 503)", noticed.unavailable);
    }
    let usage = noticed.usage;
    let _infallible = write!(text, ", {:.0} MiB, {} files", usage.resident, usage.descriptors);
    if !finding.note.is_empty() {
        let _infallible = write!(text, "; {}", finding.note);
    }
    text
}

/// The head of the table.
pub(crate) fn head() -> String {
    "| name | fault | invariant | observation | recovery |\n|---|---|---|---|---|".to_owned()
}

/// The load average of the machine.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn document() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/faults.md")
}

/// Replaces single rows of the table of docs/faults.md.
pub(crate) fn replace(rows: &[Row]) -> Result<PathBuf> {
    let file = document();
    let mut text = String::new();
    for line in fs::read_to_string(&file)?.lines() {
        let name = line.strip_prefix("| ").and_then(|rest| rest.split(" | ").next());
        let row = rows.iter().find(|row| Some(row.fault.name) == name);
        writeln!(text, "{}", row.map_or_else(|| line.to_owned(), Row::line))?;
    }

    fs::write(&file, text)?;
    Ok(file)
}

/// Replaces the table of docs/faults.md.
pub(crate) fn write(rows: &[Row], control: &str, minutes: f64) -> Result<PathBuf> {
    let file = document();
    let text = fs::read_to_string(&file)?;
    let (before, rest) = text.split_once(BEGIN).context("docs/faults.md has no begin marker")?;
    let (_, after) = rest.split_once(END).context("docs/faults.md has no end marker")?;

    let date = Clock::start().now().strftime("%Y-%m-%d").to_string();
    let cores = std::thread::available_parallelism()?;
    let profile = if cfg!(debug_assertions) { "dev" } else { "an optimized profile" };
    let live = rows.iter().filter(|row| row.fault.played == Played::Live).count();
    let mut table = String::new();
    writeln!(table, "Played on {date} with a build of the profile `{profile}` on {cores} cores,")?;
    writeln!(table, "in {minutes:.0} minutes; load average at the end: {}.", load_average())?;
    writeln!(table, "{live} rows were played live, and {} are tests.", rows.len() - live)?;
    writeln!(table, "Control without a fault: {control}.\n")?;
    writeln!(table, "{}", head())?;
    for row in rows {
        writeln!(table, "{}", row.line())?;
    }

    fs::write(&file, format!("{before}{BEGIN}{table}{END}{after}"))?;
    Ok(file)
}
