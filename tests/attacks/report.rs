//! The table of docs/attacks.md.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use plimsoll::clock::Clock;

use crate::RESIDENT_MAX;
use crate::measure::Measured;

const BEGIN: &str = "<!-- attacks: begin -->\n";
const END: &str = "<!-- attacks: end -->";

/// One attack with everything that was measured.
pub(crate) struct Row {
    pub(crate) name: &'static str,
    pub(crate) port: &'static str,
    pub(crate) seconds: u64,
    pub(crate) measured: Measured,
    /// The answers that attackers got, each with its number.
    pub(crate) answers: BTreeMap<String, u64>,
    /// Rules that did not hold.
    pub(crate) broken: Vec<String>,
}

impl Row {
    /// A line of the table.
    pub(crate) fn line(&self) -> String {
        let Self { name, port, seconds, measured, answers, broken: _ } = self;
        let answers: Vec<String> =
            answers.iter().map(|(answer, count)| format!("{answer} ({count})")).collect();
        let answers = if answers.is_empty() { "–".to_owned() } else { answers.join(", ") };
        let resident = measured.usage.resident;
        let memory = if resident > RESIDENT_MAX {
            format!("**{resident:.0}**")
        } else {
            format!("{resident:.0}")
        };
        format!(
            "| {name} | {port} | {seconds} | {} | {} | {} | {} | {:.1} | {memory} | {} | {answers} |",
            measured.probe.cell(),
            measured.kept.cell(),
            measured.fresh.cell(),
            measured.tick_cell(),
            measured.age,
            measured.usage.descriptors,
        )
    }
}

/// The head of the table.
pub(crate) fn head() -> String {
    "| attack | port | time, s | probe, ms | HPA, kept connection, ms | HPA, new connection, ms \
     | mean tick, ms | decision age, s | memory, MiB | open files | answers to the attackers |\n\
     |---|---|---|---|---|---|---|---|---|---|---|"
        .to_owned()
}

/// The load average of the machine.
pub(crate) fn load_average() -> String {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().next().unwrap_or("unknown").to_owned()
}

fn processor() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")?.split(": ").nth(1));
    model.unwrap_or("an unknown processor").to_owned()
}

/// Replaces the table of docs/attacks.md.
pub(crate) fn write(rows: &[Row], load_before: &str) -> Result<PathBuf> {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/attacks.md");
    let text = fs::read_to_string(&file)?;
    let (before, rest) = text.split_once(BEGIN).context("docs/attacks.md has no begin marker")?;
    let (_, after) = rest.split_once(END).context("docs/attacks.md has no end marker")?;

    let date = Clock::start().now().strftime("%Y-%m-%d").to_string();
    let cores = std::thread::available_parallelism()?;
    let profile = if cfg!(debug_assertions) { "dev" } else { "an optimized profile" };
    let mut table = String::new();
    writeln!(table, "Measured on {date} with a build of the profile `{profile}`,")?;
    writeln!(table, "on {cores} cores ({}), which", processor())?;
    writeln!(
        table,
        "attackers, engines and clients share. Load average before: {load_before}, after: {}.\n",
        load_average()
    )?;
    writeln!(table, "{}", head())?;
    for row in rows {
        writeln!(table, "{}", row.line())?;
    }

    fs::write(&file, format!("{before}{BEGIN}{table}{END}{after}"))?;
    Ok(file)
}
