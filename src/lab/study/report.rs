//! A study as one HTML file: the table of all runs, and the first run over time.
//!
//! It loads no external resources and runs no script, so it can be sent by mail and archived.

use std::fmt::Write as _;

use crate::simulate::Micros;
use crate::simulate::score::FleetSample;
use crate::study::chart::{Chart, ChartLine, escaped};
use crate::study::execute::FirstRun;
use crate::study::results::{Results, RunResult};
use crate::study::table::{self, COLUMNS, left_out, shown, span};
use plimsoll_core::units::Replicas;

/// The style of a page.
const STYLE: &str = include_str!("report.css");

/// The line classes, in order.
const CLASSES: [&str; 5] = ["c0", "c1", "c2", "c3", "c4"];

/// The factor on an objective up to which latencies are drawn; higher values are bad anyway.
const CEILING: f64 = 5.0;

/// The start of a page with this title and heading, up to its first paragraph.
pub(crate) fn begun(title: &str, heading: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width\">\n\
         <title>Plimsoll: {title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>{heading}</h1>\n"
    )
}

/// The page. Writing to a string cannot fail, so the result is dropped.
pub(crate) fn html(results: &Results, first: Option<&FirstRun>) -> String {
    let name = escaped(&results.scenario);
    let mut page = begun(&name, &name);
    let _ = writeln!(
        page,
        "<p class=\"soft\">Simulated by Plimsoll {}: {} of {} runs.</p>",
        env!("CARGO_PKG_VERSION"),
        results.runs.len(),
        results.planned,
    );
    runs(&mut page, &results.runs);
    for run in &results.left_out {
        let _ = writeln!(page, "<p>{}.</p>", escaped(&left_out(run)));
    }
    if let (Some(first), Some(run)) = (first, results.runs.first()) {
        over_time(&mut page, first, run);
    } else {
        page.push_str(
            "<p class=\"soft\">There are no charts, because the first run was not simulated with \
             the report.</p>\n",
        );
    }

    page.push_str("</body>\n</html>\n");
    page
}

fn runs(page: &mut String, runs: &[RunResult]) {
    let _ = writeln!(
        page,
        "<div class=\"scroll\"><table>\n<tr><th>run</th><th>{}</th></tr>",
        COLUMNS.join("</th><th>")
    );
    for run in runs {
        let settings: Vec<String> =
            run.settings.iter().map(|(path, it)| format!("{path}={}", shown(it))).collect();
        let name = [vec![run.policy.clone()], settings].concat().join(" ");
        let cut = if run.complete { "" } else { " (interrupted)" };
        let cells = table::line(run, &[], run.seed.to_string());
        let _ = writeln!(
            page,
            "<tr><td>{}{cut}</td><td>{}</td></tr>",
            escaped(&name),
            cells[1..=COLUMNS.len()].join("</td><td>")
        );
    }

    page.push_str("</table></div>\n");
}

fn over_time(page: &mut String, first: &FirstRun, run: &RunResult) {
    let FirstRun { scenario, outcome } = first;
    let _ = writeln!(
        page,
        "<h2>{} over time, seed {}</h2>\n<p class=\"soft\">{} simulated. Each point covers the \
         time since the previous one.</p>",
        escaped(&run.policy),
        run.seed,
        span(run.simulated_s),
    );
    for model in 0..scenario.models.len() {
        let key = &scenario.models[model].key;
        let _ = writeln!(page, "<h2>{}</h2>", escaped(key.model.as_str()));
        for chart in model_charts(first, model) {
            page.push_str(&chart.svg());
        }
    }

    let cost = Chart {
        title: "Cost so far",
        unit: "",
        lines: vec![ChartLine {
            name: "cost".to_owned(),
            class: CLASSES[0],
            steps: false,
            points: cost_so_far(first),
        }],
        limit: None,
        ceiling: None,
    };

    page.push_str(&cost.svg());
    decisions(page, run, outcome.changes_left_out);
}

fn line(
    name: &str,
    class: usize,
    first: &FirstRun,
    value: impl Fn(&FleetSample) -> Option<f64>,
) -> ChartLine {
    let points = first.outcome.series.iter().map(|it| (it.at.seconds(), value(it))).collect();
    ChartLine { name: name.to_owned(), class: CLASSES[class % CLASSES.len()], steps: false, points }
}

fn model_charts(first: &FirstRun, model: usize) -> Vec<Chart<'static>> {
    let scenario = &first.scenario;
    let slo = scenario.models[model].slo;
    let every = scenario.sample.seconds();
    let of = scenario.variants.iter().enumerate().filter(|(_, variant)| variant.model == model);
    let mut replicas = Vec::new();
    for (at, (index, variant)) in of.enumerate() {
        let name = variant.spec.key.variant.as_str();
        let desired = line("wanted", 0, first, |sample| {
            let seen = sample.variants[index];
            Some(f64::from(seen.desired.map_or(seen.wanted, Replicas::count)))
        });
        let ready = line(name, at, first, |sample| Some(f64::from(sample.variants[index].ready)));
        replicas.push(ChartLine { class: "c5", steps: true, ..desired });
        replicas.push(ChartLine { steps: true, ..ready });
    }

    let demand = line("requests", 1, first, |sample| {
        let arrived = sample.models[model].arrived as f64;
        (sample.at > Micros::ZERO).then(|| arrived / every)
    });
    let within = line("share", 2, first, |sample| {
        let seen = &sample.models[model];
        (seen.judged > 0).then(|| 100.0 * seen.good as f64 / seen.judged as f64)
    });
    let ttft = line("TTFT", 0, first, |sample| sample.models[model].ttft_p95.map(Micros::seconds));
    let itl =
        line("ITL", 3, first, |sample| sample.models[model].itl_p95.map(|it| it.seconds() * 1e3));

    let to_first_token = chart("Time to first token, 95th percentile", " s", vec![ttft]);
    let between_tokens = chart("Time between tokens, 95th percentile", " ms", vec![itl]);
    vec![
        chart("Demand", "/s", vec![demand]),
        chart("Serving and desired replicas", "", replicas),
        limited(to_first_token, slo.ttft.seconds()),
        limited(between_tokens, slo.itl.seconds() * 1e3),
        chart("Requests within their objectives", "%", vec![within]),
    ]
}

fn chart(title: &'static str, unit: &'static str, lines: Vec<ChartLine>) -> Chart<'static> {
    Chart { title, unit, lines, limit: None, ceiling: None }
}

/// The chart with a line at a value that should not be exceeded.
fn limited(chart: Chart<'static>, limit: f64) -> Chart<'static> {
    Chart { limit: Some(limit), ceiling: Some(limit * CEILING), ..chart }
}

fn cost_so_far(first: &FirstRun) -> Vec<(f64, Option<f64>)> {
    let every = first.scenario.sample.seconds();
    let mut total = 0.0;
    let mut points = Vec::new();
    for sample in &first.outcome.series {
        points.push((sample.at.seconds(), Some(total)));
        for (variant, seen) in first.scenario.variants.iter().zip(&sample.variants) {
            let existing = f64::from(seen.ready + seen.starting + seen.draining);
            total += variant.spec.cost.per_hour() * existing * every / 3600.0;
        }
    }

    points
}

fn decisions(page: &mut String, run: &RunResult, left_out: u64) {
    if run.decisions.is_empty() {
        return;
    }

    page.push_str(
        "<h2>Decisions</h2>\n<div class=\"scroll\"><table>\n<tr><th>at</th><th>variant</th>\
         <th>before</th><th>after</th><th class=\"why\">why</th></tr>\n",
    );
    for decision in &run.decisions {
        let before = decision.before.map_or_else(|| "-".to_owned(), |count| count.to_string());
        let _ = writeln!(
            page,
            "<tr><td>{}</td><td>{}</td><td>{before}</td><td>{}</td><td class=\"why\">{}</td></tr>",
            span(decision.at_s),
            escaped(&decision.variant),
            decision.after,
            escaped(&decision.why),
        );
    }

    page.push_str("</table></div>\n");
    if left_out > 0 {
        let _ = writeln!(page, "<p class=\"soft\">Decisions that are not shown: {left_out}.</p>");
    }
}
