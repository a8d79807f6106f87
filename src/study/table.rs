//! What a run came to, as a table for people.

use std::fmt::Write as _;
use std::path::Path;

use crate::simulate::Micros;
use crate::simulate::scenario::{Scenario, Variant};
use crate::simulate::score::{Crew, Outcome, Service};
use crate::study::Run;

/// The table of one run.
pub(crate) fn table(path: &Path, run: &Run) -> String {
    let Run { seed, scenario, outcome } = run;
    let mut text = String::new();
    let length = span(outcome.ended);
    let cut = if outcome.complete { "" } else { ", interrupted" };
    // Writing to a string cannot fail.
    let _ = writeln!(text, "{}: {length} simulated{cut}, seed {seed}\n", path.display());
    models(&mut text, scenario, outcome);
    text.push('\n');
    variants(&mut text, scenario, outcome);
    if outcome.violations > 0 {
        let _ = writeln!(text, "\n{} ticks broke an invariant", outcome.violations);
    }
    text
}

fn models(text: &mut String, scenario: &Scenario, outcome: &Outcome) {
    let mut rows = vec![
        ["model", "requests", "within SLO", "worst minute", "TTFT p50", "p95", "p99", "ITL p50"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows[0]
        .extend(["p95", "p99", "rejected", "timed out", "failed", "too long"].map(str::to_owned));
    for (model, service) in scenario.models.iter().zip(&outcome.models) {
        let Service { arrived, ttft, itl, rejected, timed_out, failed, unservable, .. } = service;
        let worst = service
            .worst_minute()
            .map_or("-".to_owned(), |(minute, share)| format!("{} (min {minute})", percent(share)));
        rows.push(vec![
            model.key.model.to_string(),
            arrived.to_string(),
            service.attainment().map_or("-".to_owned(), percent),
            worst,
            latency(ttft.quantile(0.5)),
            latency(ttft.quantile(0.95)),
            latency(ttft.quantile(0.99)),
            latency(itl.quantile(0.5)),
            latency(itl.quantile(0.95)),
            latency(itl.quantile(0.99)),
            rejected.to_string(),
            timed_out.to_string(),
            failed.to_string(),
            unservable.to_string(),
        ]);
    }
    aligned(text, &rows);
}

fn variants(text: &mut String, scenario: &Scenario, outcome: &Outcome) {
    let head =
        ["variant", "replica-hours", "cost", "mean", "peak", "starts", "ups", "downs", "flips"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    let mut total = 0.0;
    for (variant, crew) in scenario.variants.iter().zip(&outcome.variants) {
        let Crew { peak, starts, ups, downs, flips, .. } = crew;
        total += cost(variant, crew);
        rows.push(vec![
            variant.spec.key.variant.to_string(),
            format!("{:.2}", hours(crew)),
            format!("{:.2}", cost(variant, crew)),
            format!("{:.2}", crew.replica_time.seconds() / outcome.ended.seconds().max(1e-6)),
            peak.to_string(),
            starts.to_string(),
            ups.to_string(),
            downs.to_string(),
            flips.to_string(),
        ]);
    }
    if rows.len() > 2 {
        rows.push(vec!["all".to_owned(), String::new(), format!("{total:.2}")]);
    }
    aligned(text, &rows);
}

pub(crate) fn hours(crew: &Crew) -> f64 {
    crew.replica_time.seconds() / 3600.0
}

pub(crate) fn cost(variant: &Variant, crew: &Crew) -> f64 {
    variant.spec.cost.per_hour() * hours(crew)
}

/// Writes rows in columns, the first to the left and the others to the right.
fn aligned(text: &mut String, rows: &[Vec<String>]) {
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

pub(crate) fn percent(share: f64) -> String {
    format!("{:.2} %", share * 100.0)
}

/// A latency in the unit that shows it best.
pub(crate) fn latency(value: Option<Micros>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let milliseconds = value.seconds() * 1e3;
    if milliseconds < 1000.0 {
        format!("{milliseconds:.1} ms")
    } else {
        format!("{:.2} s", value.seconds())
    }
}

/// Hours, minutes and seconds.
pub(crate) fn span(value: Micros) -> String {
    let seconds = value.micros() / 1_000_000;
    format!("{}:{:02}:{:02}", seconds / 3600, seconds / 60 % 60, seconds % 60)
}
