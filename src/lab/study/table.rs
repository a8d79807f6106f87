//! Results as a table for people.

use std::fmt::Write as _;

use serde_json::Value;

use crate::study::results::{
    BatchResult, LeftOut, ModelResult, Results, RunResult, VariantResult, mean,
};

/// The table of a study: all results of a single run, or a line per run of several.
pub(crate) fn table(results: &Results) -> String {
    let mut text = String::new();
    match results.runs.as_slice() {
        [run] => one(&mut text, results, run),
        runs => many(&mut text, results, runs),
    }

    for (at, run) in results.left_out.iter().enumerate() {
        let blank = if at == 0 { "\n" } else { "" };
        let _ = writeln!(text, "{blank}{}", left_out(run));
    }

    text
}

/// The columns of a run, after those that distinguish it from the others.
pub(crate) const COLUMNS: [&str; 10] = [
    "seed",
    "within SLO",
    "worst minute",
    "TTFT p95",
    "ITL p95",
    "not served",
    "replica-hours",
    "cost",
    "changes",
    "flips",
];

/// The smallest share of the time at which starvation of a variant is reported.
const STARVED_MIN: f64 = 0.05;

/// The last column of a table whose runs have adapters.
const LOADS: &str = "adapter loads";

/// A run that is impossible, as a sentence without its full stop.
pub(crate) fn left_out(run: &LeftOut) -> String {
    let LeftOut { settings, policy, seed, why, .. } = run;
    let listed = settings.iter().map(|(path, it)| format!(", {path}={}", shown(it)));
    format!("{policy}, seed {seed}{} was left out: {why}", listed.collect::<String>())
}

// Writing to a string cannot fail, so the result is dropped.

fn one(text: &mut String, results: &Results, run: &RunResult) {
    let length = span(run.simulated_s);
    let cut = if run.complete { "" } else { ", interrupted" };
    let policy = if run.policy == "plimsoll" { String::new() } else { format!(", {}", run.policy) };
    let name = &results.scenario;
    let of = match results.planned {
        1 => String::new(),
        planned => format!(", 1 of {planned} runs"),
    };
    let _ = writeln!(text, "{name}: {length} simulated{cut}, seed {}{policy}{of}", run.seed);
    for (path, value) in &run.settings {
        let _ = writeln!(text, "{path}: {}", shown(value));
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
    head.extend(COLUMNS.map(str::to_owned));
    let loads = runs.iter().any(|run| run.adapter_loads().is_some());
    head.extend(loads.then(|| LOADS.to_owned()));
    let mut rows = vec![head];
    for group in runs.chunk_by(|a, b| a.policy == b.policy && a.settings == b.settings) {
        for run in group {
            rows.push(line(run, &paths, run.seed.to_string()));
        }
        rows.extend(mean_line(group, &paths));
    }

    aligned(text, &rows);
}

/// The cells of a run: its policy, its settings at these paths, and the common columns.
pub(crate) fn line(run: &RunResult, paths: &[&String], seed: String) -> Vec<String> {
    let ttft = run.models.iter().filter_map(|model| model.ttft.p95).reduce(f64::max);
    let itl = run.models.iter().filter_map(|model| model.itl.p95).reduce(f64::max);
    let cut = if run.complete { "" } else { " (interrupted)" };

    let mut row = vec![format!("{}{cut}", run.policy)];
    row.extend(paths.iter().map(|path| run.settings.get(*path).map_or_else(dash, shown)));
    row.extend([
        seed,
        run.within_slo.map_or_else(dash, percent),
        run.worst_minute().map_or_else(dash, percent),
        latency(ttft),
        latency(itl),
        run.not_served().to_string(),
        format!("{:.2}", run.replica_hours),
        format!("{:.2}", run.cost),
        run.actions.to_string(),
        run.flips.to_string(),
    ]);
    row.extend(run.adapter_loads().map(|loads| loads.to_string()));
    row
}

/// The means of runs that differ only in their seeds; `None` if only one was planned. Interrupted
/// runs are left out, because they have a different length.
fn mean_line(group: &[RunResult], paths: &[&String]) -> Option<Vec<String>> {
    let runs: Vec<&RunResult> = group.iter().filter(|run| run.complete).collect();
    let first = runs.first().filter(|_| group.len() > 1)?;
    let name = if runs.len() == group.len() {
        "mean".to_owned()
    } else {
        format!("mean of {}", runs.len())
    };

    let mut row = line(first, paths, name);
    let at = paths.len() + 2;
    let within = mean(runs.iter().filter_map(|run| run.within_slo));
    row[at] = within.map_or_else(dash, percent);
    for cell in &mut row[at + 1..at + 4] {
        cell.clear();
    }

    row[at + 4] = format!("{:.1}", mean(runs.iter().map(|run| run.not_served() as f64))?);
    row[at + 5] = format!("{:.2}", mean(runs.iter().map(|run| run.replica_hours))?);
    row[at + 6] = format!("{:.2}", mean(runs.iter().map(|run| run.cost))?);
    row[at + 7] = format!("{:.1}", mean(runs.iter().map(|run| f64::from(run.actions)))?);
    row[at + 8] = format!("{:.1}", mean(runs.iter().map(|run| f64::from(run.flips)))?);
    if let Some(cell) = row.get_mut(at + 9) {
        let loads = mean(runs.iter().map(|run| run.adapter_loads().unwrap_or(0) as f64));
        *cell = format!("{:.1}", loads?);
    }

    Some(row)
}

fn models(text: &mut String, run: &RunResult) {
    let mut rows = vec![
        ["model", "requests", "within SLO", "worst minute", "TTFT p50", "p95", "p99", "ITL p50"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows[0]
        .extend(["p95", "p99", "rejected", "timed out", "failed", "too long"].map(str::to_owned));
    let has_loads = run.adapter_loads().is_some();
    rows[0].extend(has_loads.then(|| LOADS.to_owned()));
    for model in &run.models {
        let ModelResult { arrived, ttft, itl, rejected, timed_out, failed, too_long, .. } = model;
        let worst_minute = model.worst_minute.zip(model.worst_minute_within_slo);
        let worst =
            worst_minute.map(|(minute, share)| format!("{} (min {minute})", percent(share)));
        let loads = model.adapter_loads.map_or_else(dash, |count| count.to_string());
        let mut row = vec![
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
        ];
        row.extend(has_loads.then_some(loads));
        rows.push(row);
    }

    aligned(text, &rows);
    batches(text, run);
}

/// Shows the batch work of models that have some.
fn batches(text: &mut String, run: &RunResult) {
    for ModelResult { model, batch, .. } in &run.models {
        if let Some(batch) = batch {
            let BatchResult { arrived, finished, not_served, open, within_slo, .. } = batch;
            let share = within_slo.map_or_else(dash, percent);
            let _ = writeln!(
                text,
                "\nbatch work of {model}: {arrived} requests, {finished} finished, {not_served} not \
                 served, {open} open; {share} within SLO"
            );
        }
    }
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
        let hours = format!("{:.2}", run.replica_hours);
        let cost = format!("{:.2}", run.cost);
        rows.push(vec!["all".to_owned(), hours, cost]);
    }

    aligned(text, &rows);
    starving(text, run);
}

/// Lists the variants at which requests wait for long while other variants have capacity.
fn starving(text: &mut String, run: &RunResult) {
    for VariantResult { variant, starved, .. } in &run.variants {
        if *starved >= STARVED_MIN {
            let share = percent(*starved);
            let _ = writeln!(
                text,
                "\n{variant} starved: requests waited at it for {share} of the time while none did at \
                 another variant of its model"
            );
        }
    }
}

/// Writes rows in columns; the first column is left-aligned and the others are right-aligned.
pub(crate) fn aligned(text: &mut String, rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let mut widths = vec![0; columns];
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = cell.chars().count().max(*width);
        }
    }

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

/// Writes a table as Markdown.
pub(crate) fn written(text: &mut String, rows: &[Vec<String>]) {
    for (at, row) in rows.iter().enumerate() {
        let _ = writeln!(text, "| {} |", row.join(" | "));
        if at == 0 {
            let _ = writeln!(text, "|{}", "---|".repeat(row.len()));
        }
    }
}

/// Lines of at most 100 columns.
pub(crate) fn wrapped(text: &str) -> String {
    let mut lines = String::new();
    let mut width = 0;
    for word in text.split_whitespace() {
        let long = word.chars().count();
        if width > 0 && width + 1 + long > 100 {
            lines.push('\n');
            width = 0;
        } else if width > 0 {
            lines.push(' ');
            width += 1;
        }

        lines.push_str(word);
        width += long;
    }

    lines
}

/// A set value in the form in which a person writes it.
pub(crate) fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

/// The placeholder of an absent value.
pub(crate) fn dash() -> String {
    "-".to_owned()
}

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2}%", share * 100.0)
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
    let whole = seconds as u64;
    format!("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A run of `oracle` with this seed and this cost.
    fn run(seed: u64, cost: f64, complete: bool) -> RunResult {
        let run = json!({
            "index": seed, "settings": {}, "policy": "oracle", "seed": seed, "complete": complete,
            "simulated_s": 60.0, "within_slo": cost / 10.0, "replica_hours": cost, "cost": cost,
            "actions": 0, "flips": 0, "violations": 0, "models": [], "variants": [],
            "decisions": [], "decisions_left_out": 0,
        });
        serde_json::from_value(run).unwrap()
    }

    fn rows(runs: Vec<RunResult>) -> Vec<String> {
        let mut results = Results::new("s.yaml".to_owned(), String::new(), runs.len());
        results.runs = runs;
        table(&results).lines().skip(3).map(str::to_owned).collect()
    }

    #[test]
    fn a_run_that_was_interrupted_is_marked_and_in_no_mean() {
        let rows = rows(vec![run(1, 1.0, false), run(2, 4.0, true), run(3, 6.0, true)]);
        assert!(rows[0].starts_with("oracle (interrupted) "), "{rows:?}");
        assert!(rows[1].starts_with("oracle  ") && rows[2].starts_with("oracle  "), "{rows:?}");
        let cells: Vec<&str> = rows[3].split("  ").map(str::trim).collect();
        let cells: Vec<&str> = cells.into_iter().filter(|cell| !cell.is_empty()).collect();
        assert_eq!(cells[..4], ["oracle", "mean of 2", "50.00%", "0.0"], "{rows:?}");
        assert_eq!(cells[4..6], ["5.00", "5.00"], "the cost of those that ended: {rows:?}");
    }

    #[test]
    fn the_first_line_says_how_many_runs_are_missing() {
        for (count, line) in [
            (0, "s.yaml: 0 of 6 runs"),
            (1, "s.yaml: 0:01:00 simulated, interrupted, seed 0, oracle, 1 of 6 runs"),
            (2, "s.yaml: 2 of 6 runs, 1 of them interrupted"),
        ] {
            let mut results = Results::new("s.yaml".to_owned(), String::new(), 6);
            results.runs = (0..count).map(|seed| run(seed, 1.0, seed > 0)).collect();
            assert_eq!(table(&results).lines().next(), Some(line));
        }
    }

    #[test]
    fn runs_that_were_all_interrupted_have_no_mean() {
        assert_eq!(rows(vec![run(1, 1.0, false), run(2, 4.0, false)]).len(), 2);
        let whole = rows(vec![run(1, 1.0, true), run(2, 4.0, true)]);
        assert!(whole.len() == 3 && whole[2].contains(" mean "), "{whole:?}");
    }

    #[test]
    fn a_paragraph_is_wrapped_between_its_words() {
        let text = "a word or two ".repeat(30);
        let wrapped = wrapped(&text);
        assert!(wrapped.lines().all(|line| line.len() <= 100 && !line.ends_with(' ')));
        assert_eq!(wrapped.replace('\n', " "), text.trim());
    }
}
