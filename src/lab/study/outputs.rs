//! The outputs of a study.
//!
//! A study can take hours, so a check before it begins verifies that its files can be written. If a
//! write fails after all, the table is still printed.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context as _;

use crate::output::print;
use crate::study::args::SimulateArgs;
use crate::study::execute::FirstRun;
use crate::study::results::Results;
use crate::study::{report, series, table};
use plimsoll_daemon::config;

/// The name of a file that stands for standard output.
const STDOUT: &str = "-";

/// Checks that all requested files can be written.
pub(crate) fn check(args: &SimulateArgs) -> anyhow::Result<()> {
    let SimulateArgs { json, series, cards, report, .. } = args;
    let json_file = json.as_ref().filter(|path| path.as_os_str() != STDOUT);
    for path in [json_file, series.as_ref(), cards.as_ref(), report.as_ref()].into_iter().flatten()
    {
        open(path).with_context(|| cannot(path))?;
    }
    Ok(())
}

/// Opens a file for writing, and leaves everything unchanged. Skips pipes, because a reader would
/// take the opening and closing for the whole output.
fn open(path: &Path) -> io::Result<()> {
    match fs::metadata(path) {
        Ok(there) if there.is_file() || there.is_dir() => {
            OpenOptions::new().write(true).open(path).map(|_file| ())
        }
        Err(error) if error.kind() == ErrorKind::NotFound => {
            OpenOptions::new().write(true).create_new(true).open(path)?;
            fs::remove_file(path)
        }
        Ok(_) => Ok(()),
        Err(error) => Err(error),
    }
}

fn cannot(path: &Path) -> String {
    format!("cannot write {}", path.display())
}

/// Writes all requested files, and prints the table.
pub(crate) fn write(
    args: &SimulateArgs,
    results: &Results,
    first: Option<&FirstRun>,
) -> anyhow::Result<()> {
    let json = serde_json::to_string_pretty(results)? + "\n";
    let written = write_files(args, &json, results, first);
    if first.is_none() {
        say_what_is_not_written(args)?;
    }
    match &args.json {
        Some(path) if path.as_os_str() == STDOUT => print(&json)?,
        Some(_) | None => print(&table::table(results))?,
    }

    written
}

/// Reports a series, cards or a trace that cannot be written without a full run. A shard can have
/// no runs, and a study can be interrupted at once.
fn say_what_is_not_written(args: &SimulateArgs) -> io::Result<()> {
    let SimulateArgs { series, cards, trace, .. } = args;
    for (option, path) in [("--series", series), ("--cards", cards), ("--trace", trace)] {
        if let Some(path) = path {
            let shown = path.display();
            let why = "because no run was simulated here";
            writeln!(io::stderr(), "{option} {shown} is not written, {why}")?;
        }
    }

    Ok(())
}

fn write_files(
    args: &SimulateArgs,
    json: &str,
    results: &Results,
    first: Option<&FirstRun>,
) -> anyhow::Result<()> {
    if let Some(path) = args.json.as_ref().filter(|path| path.as_os_str() != STDOUT) {
        write_file(path, json)?;
    }
    if let (Some(path), Some(first)) = (&args.series, first) {
        write_file(path, &series::csv(first))?;
    }
    if let (Some(path), Some(FirstRun { outcome, .. })) = (&args.cards, first) {
        write_file(path, &config::cards_text(&outcome.cards))?;
    }
    if let Some(path) = &args.report {
        write_file(path, &report::html(results, first))?;
    }

    Ok(())
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    fs::write(path, text).with_context(|| cannot(path))
}
