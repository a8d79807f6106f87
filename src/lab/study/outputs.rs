//! Where a study's results go.
//!
//! A study may take hours, so that files can be written is tried before it begins; and what cannot
//! be written after all does not take the table with it.

use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write as _};
use std::path::Path;

use anyhow::Context as _;

use crate::study::args::SimulateArgs;
use crate::study::execute::First;
use crate::study::results::Results;
use crate::study::{report, series, table};
use plimsoll_daemon::config;

/// Standard output, where a file is named.
const STDOUT: &str = "-";

/// Whether everything that is asked for can be written.
pub(crate) fn check(args: &SimulateArgs) -> anyhow::Result<()> {
    let SimulateArgs { json, series, cards, report, .. } = args;
    let json = json.as_ref().filter(|path| path.as_os_str() != STDOUT);
    for path in [json, series.as_ref(), cards.as_ref(), report.as_ref()].into_iter().flatten() {
        open(path).with_context(|| cannot(path))?;
    }
    Ok(())
}

/// Opens a file as if to write it, and leaves everything as it was. Pipes are left alone: who reads
/// one would take that for all of it.
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

/// Writes everything that is asked for, and prints the table.
pub(crate) fn write(
    args: &SimulateArgs,
    results: &Results,
    first: Option<&First>,
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

/// A series, cards and a trace are of a run in full, and a shard may have none, as may a study that
/// was interrupted at once.
fn say_what_is_not_written(args: &SimulateArgs) -> io::Result<()> {
    let SimulateArgs { series, cards, trace, .. } = args;
    for (option, path) in [("--series", series), ("--cards", cards), ("--trace", trace)] {
        if let Some(path) = path {
            let path = path.display();
            let why = "because no run was simulated here";
            writeln!(io::stderr(), "{option} {path} is not written, {why}")?;
        }
    }
    Ok(())
}

fn write_files(
    args: &SimulateArgs,
    json: &str,
    results: &Results,
    first: Option<&First>,
) -> anyhow::Result<()> {
    let to_file = |path: &Path, text: &str| fs::write(path, text).with_context(|| cannot(path));
    if let Some(path) = args.json.as_ref().filter(|path| path.as_os_str() != STDOUT) {
        to_file(path, json)?;
    }
    if let (Some(path), Some(first)) = (&args.series, first) {
        to_file(path, &series::csv(first))?;
    }
    if let (Some(path), Some(First { outcome, .. })) = (&args.cards, first) {
        to_file(path, &config::cards_text(&outcome.cards))?;
    }
    if let Some(path) = &args.report {
        to_file(path, &report::html(results, first))?;
    }
    Ok(())
}

/// Prints a text on standard output.
pub(crate) fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}
