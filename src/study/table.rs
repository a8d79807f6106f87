//! Results as a table for people.

use std::fmt::Write as _;

use crate::study::results::{ModelResult, Results, RunResult, VariantResult};

/// The table of a study: all that there is of a single run, a line for each of several.
pub(crate) fn table(results: &Results) -> String {
    let mut text = String::new();
    match results.runs.as_slice() {
        [run] => one(&mut text, results, run),
        runs => many(&mut text, results, runs),
    }
    text
}

// Writing to a string cannot fail, so what it returns is dropped.

fn one(text: &mut String, results: &Results, run: &RunResult) {
    let length = span(run.simulated_s);
    let cut = if run.complete { "" } else { ", interrupted" };
    let policy = if run.policy == "plimsoll" { String::new() } else { format!(", {}", run.policy) };
    let name = &results.scenario;
    let _ = writeln!(text, "{name}: {length} simulated{cut}, seed {}{policy}", run.seed);
    for (path, value) in &run.settings {
        let _ = writeln!(text, "{path}: {value}");
    }
    text.push('\n');
    models(text, run);
    text.push('\n');
    variants(text, run);
    if run.violations > 0 {
        let _ = writeln!(text, "\n{} ticks broke an invariant", run.violations);
    }
}

fn many(text: &mut String, results: &Results, runs: &[RunResult]) {
    let cut = runs.iter().filter(|run| !run.complete).count();
    let _ = write!(text, "{}: {} of {} runs", results.scenario, runs.len(), results.planned);
    let _ = if cut > 0 {
        writeln!(text, ", {cut} of them interrupted\n")
    } else {
        writeln!(text, "\n")
    };
    let mut paths: Vec<&String> = runs.iter().flat_map(|run| run.settings.keys()).collect();
    paths.sort_unstable();
    paths.dedup();
    let mut head: Vec<String> = vec!["policy".to_owned()];
    head.extend(paths.iter().map(|path| (*path).clone()));
    head.extend(
        ["seed", "within SLO", "worst minute", "TTFT p95", "ITL p95", "replica-hours", "cost"]
            .map(str::to_owned),
    );
    head.extend(["changes", "flips"].map(str::to_owned));
    let mut rows = vec![head];
    for group in runs.chunk_by(|a, b| a.policy == b.policy && a.settings == b.settings) {
        for run in group {
            rows.push(line(run, &paths, run.seed.to_string()));
        }
        if group.len() > 1 {
            rows.push(mean(group, &paths));
        }
    }
    aligned(text, &rows);
}

fn line(run: &RunResult, paths: &[&String], seed: String) -> Vec<String> {
    let worst = run.models.iter().filter_map(|model| model.worst_minute_within_slo);
    let worst = worst.reduce(f64::min);
    let ttft = run.models.iter().filter_map(|model| model.ttft.p95).reduce(f64::max);
    let itl = run.models.iter().filter_map(|model| model.itl.p95).reduce(f64::max);
    let mut row = vec![run.policy.clone()];
    row.extend(
        paths.iter().map(|path| run.settings.get(*path).map_or_else(dash, ToString::to_string)),
    );
    row.extend([
        seed,
        run.within_slo.map_or_else(dash, percent),
        worst.map_or_else(dash, percent),
        latency(ttft),
        latency(itl),
        format!("{:.2}", run.replica_hours),
        format!("{:.2}", run.cost),
        run.actions.to_string(),
        run.flips.to_string(),
    ]);
    row
}

/// The means of runs that differ in their seeds alone.
fn mean(runs: &[RunResult], paths: &[&String]) -> Vec<String> {
    let count = runs.len() as f64;
    let mean = |value: &dyn Fn(&RunResult) -> f64| runs.iter().map(value).sum::<f64>() / count;
    let within: Vec<f64> = runs.iter().filter_map(|run| run.within_slo).collect();
    let mut row = line(&runs[0], paths, "mean".to_owned());
    let at = paths.len() + 2;
    row[at] = if within.is_empty() {
        dash()
    } else {
        percent(within.iter().sum::<f64>() / within.len() as f64)
    };
    for cell in &mut row[at + 1..at + 4] {
        cell.clear();
    }
    row[at + 4] = format!("{:.2}", mean(&|run| run.replica_hours));
    row[at + 5] = format!("{:.2}", mean(&|run| run.cost));
    row[at + 6] = format!("{:.1}", mean(&|run| f64::from(run.actions)));
    row[at + 7] = format!("{:.1}", mean(&|run| f64::from(run.flips)));
    row
}

fn models(text: &mut String, run: &RunResult) {
    let mut rows = vec![
        ["model", "requests", "within SLO", "worst minute", "TTFT p50", "p95", "p99", "ITL p50"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows[0]
        .extend(["p95", "p99", "rejected", "timed out", "failed", "too long"].map(str::to_owned));
    for model in &run.models {
        let ModelResult { arrived, ttft, itl, rejected, timed_out, failed, too_long, .. } = model;
        let worst = model.worst_minute.zip(model.worst_minute_within_slo);
        let worst = worst.map(|(minute, share)| format!("{} (min {minute})", percent(share)));
        rows.push(vec![
            model.model.clone(),
            arrived.to_string(),
            model.within_slo.map_or_else(dash, percent),
            worst.unwrap_or_else(dash),
            latency(ttft.p50),
            latency(ttft.p95),
            latency(ttft.p99),
            latency(itl.p50),
            latency(itl.p95),
            latency(itl.p99),
            rejected.to_string(),
            timed_out.to_string(),
            failed.to_string(),
            too_long.to_string(),
        ]);
    }
    aligned(text, &rows);
}

fn variants(text: &mut String, run: &RunResult) {
    let head =
        ["variant", "replica-hours", "cost", "mean", "peak", "starts", "ups", "downs", "flips"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for variant in &run.variants {
        let VariantResult { replica_hours, cost, mean, peak, starts, ups, downs, flips, .. } =
            variant;
        rows.push(vec![
            variant.variant.clone(),
            format!("{replica_hours:.2}"),
            format!("{cost:.2}"),
            format!("{mean:.2}"),
            peak.to_string(),
            starts.to_string(),
            ups.to_string(),
            downs.to_string(),
            flips.to_string(),
        ]);
    }
    if run.variants.len() > 1 {
        let (hours, cost) = (format!("{:.2}", run.replica_hours), format!("{:.2}", run.cost));
        rows.push(vec!["all".to_owned(), hours, cost]);
    }
    aligned(text, &rows);
}

/// Writes rows in columns, the first to the left and the others to the right.
pub(crate) fn aligned(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = rows.iter().filter_map(|row| row.get(column));
        cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    for row in rows {
        let mut line = String::new();
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let _ = match column {
                0 => write!(line, "{cell:<width$}"),
                _ => write!(line, "  {cell:>width$}"),
            };
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
}

fn dash() -> String {
    "-".to_owned()
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// A latency in seconds, in the unit that shows it best.
pub(crate) fn latency(seconds: Option<f64>) -> String {
    match seconds {
        None => dash(),
        Some(seconds) if seconds < 1.0 => format!("{:.1} ms", seconds * 1e3),
        Some(seconds) => format!("{seconds:.2} s"),
    }
}

/// Hours, minutes and seconds.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "a length is not negative, and the cast saturates"
)]
pub(crate) fn span(seconds: f64) -> String {
    let seconds = seconds as u64;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
