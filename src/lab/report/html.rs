//! The report as one HTML page, which runs no script and loads nothing.

use std::fmt::Write as _;

use crate::report::held::HeldDirection;
use crate::report::summary::{DayRow, HeldRow, Report, WeekSummary};
use crate::study::chart::escaped;
use plimsoll_daemon::server::page;

/// The style of the page, without the colors, which are those of the status page.
const STYLE: &str = include_str!("report.css");

/// The most reasons in a table.
const REASONS_MAX: usize = 30;

/// The page. Writing to a string cannot fail, so the result is dropped.
pub(crate) fn page(report: &Report) -> String {
    let Report { from, to, total, days, models, notes, slo_ttft, slo_itl, version: _ } = report;
    let span = format!("{from:.0} to {to:.0}");
    let mut html = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; \
         style-src 'unsafe-inline'\">\n<title>Plimsoll report, {span}</title>\n\
         <style>\n{}{STYLE}</style>\n</head>\n<body>\n<header><h1>Plimsoll report</h1>\
         <p>{span}</p></header>\n<main>\n",
        page::palette()
    );
    tiles(&mut html, total);
    let _ = writeln!(
        html,
        "<p class=\"soft\">Objectives: first token within {slo_ttft:.3} s, then {:.1} ms between \
         tokens. Cost is in the unit of <code>cost</code>.</p>",
        slo_itl * 1e3
    );

    if days.len() > 1 {
        day_table(&mut html, days);
    }
    html.push_str("<section><h2>Models</h2>\n<div class=\"scroll\"><table>\n");
    head(&mut html, "Model, variant");
    for model in models {
        let name = format!(
            "{} <span class=\"soft\">{}</span>",
            escaped(&model.model),
            escaped(&model.namespace)
        );
        row(&mut html, "model", &name, &model.summary);
        for variant in &model.variants {
            let kind = variant.accelerator.as_deref().unwrap_or_default();
            let name = format!(
                "{} <span class=\"soft\">{}</span>",
                escaped(&variant.variant),
                escaped(kind)
            );
            row(&mut html, "variant", &name, &variant.summary);
        }
    }
    html.push_str("</tbody></table></div></section>\n");

    html.push_str("<section><h2>Held, and why</h2>\n");
    held_table(&mut html, "All variants", &total.held);
    let variants = models.iter().flat_map(|it| it.variants.iter().map(move |own| (it, own)));
    // The table of a single variant would repeat the one of all variants.
    let is_single = variants.clone().nth(1).is_none();
    for (model, variant) in variants.filter(|_| !is_single) {
        let name = format!("{}/{}", model.namespace, variant.variant);
        held_table(&mut html, &name, &variant.summary.held);
    }
    html.push_str("</section>\n<section><h2>Notes</h2>\n<ul>\n");
    for note in notes {
        let _ = writeln!(html, "<li>{}</li>", escaped(note));
    }

    let _ = write!(
        html,
        "</ul></section>\n</main>\n<footer>Plimsoll {}</footer>\n</body>\n</html>\n",
        env!("CARGO_PKG_VERSION")
    );
    html
}

fn tiles(html: &mut String, total: &WeekSummary) {
    let tiles = [
        ("First tokens in time", share(total.ttft_within)),
        ("Tokens at pace", share(total.itl_within)),
        ("Requests", count(total.requests)),
        ("Cost", format!("{:.2}", total.cost)),
        ("Replica-hours", format!("{:.1}", total.replica_hours)),
        ("Scale-ups", total.scale_ups.to_string()),
        ("Scale-downs", total.scale_downs.to_string()),
    ];
    html.push_str("<dl class=\"tiles\">\n");
    for (name, value) in tiles {
        let _ = writeln!(html, "<div><dt>{name}</dt><dd>{value}</dd></div>");
    }
    html.push_str("</dl>\n");
}

fn day_table(html: &mut String, days: &[DayRow]) {
    let most = days.iter().map(|day| day.summary.cost).fold(1e-9, f64::max);
    html.push_str("<section><h2>Days</h2>\n<div class=\"scroll\"><table>\n");
    head(html, "Day (UTC)");
    for day in days {
        let width = 100.0 * day.summary.cost / most;
        let name = format!(
            "{}<span class=\"bar\" aria-hidden=\"true\" style=\"inline-size:{width:.0}%\"></span>",
            escaped(&day.date)
        );
        row(html, "day", &name, &day.summary);
    }
    html.push_str("</tbody></table></div></section>\n");
}

fn head(html: &mut String, first: &str) {
    let columns = [
        "First tokens in time",
        "Tokens at pace",
        "Requests",
        "Cost",
        "Replica-hours",
        "Peak",
        "Up",
        "Down",
        "No data (h)",
    ];
    let _ = writeln!(
        html,
        "<thead><tr><th scope=\"col\">{first}</th><th scope=\"col\">{}</th></tr></thead>\n<tbody>",
        columns.join("</th><th scope=\"col\">")
    );
}

fn row(html: &mut String, class: &str, name: &str, summary: &WeekSummary) {
    let cells = [
        share(summary.ttft_within),
        share(summary.itl_within),
        count(summary.requests),
        format!("{:.2}", summary.cost),
        format!("{:.1}", summary.replica_hours),
        summary.peak_replicas.to_string(),
        summary.scale_ups.to_string(),
        summary.scale_downs.to_string(),
        format!("{:.1}", summary.unknown_hours),
    ];
    let _ = writeln!(
        html,
        "<tr class=\"{class}\"><th scope=\"row\">{name}</th><td>{}</td></tr>",
        cells.join("</td><td>")
    );
}

fn held_table(html: &mut String, name: &str, held: &[HeldRow]) {
    if held.is_empty() {
        return;
    }

    let _ = writeln!(
        html,
        "<h3>{}</h3>\n<div class=\"scroll\"><table class=\"held\">\n<thead><tr>\
         <th scope=\"col\">Reason</th><th scope=\"col\">Replicas</th><th scope=\"col\">Hours</th>\
         <th scope=\"col\">Times</th><th scope=\"col\">Meaning</th></tr></thead>\n<tbody>",
        escaped(name)
    );
    for HeldRow { reason, meaning, kept, hours, times } in held.iter().take(REASONS_MAX) {
        let kept = match kept {
            HeldDirection::Higher => "more than the load needs",
            HeldDirection::Lower => "fewer than the load needs",
            HeldDirection::Unchanged => "unchanged",
        };
        let _ = writeln!(
            html,
            "<tr><th scope=\"row\"><code>{reason}</code></th><td>{kept}</td><td>{hours:.2}</td>\
             <td>{times}</td><td>{}</td></tr>",
            escaped(meaning)
        );
    }
    html.push_str("</tbody></table></div>\n");
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "not known".to_owned(), |share| format!("{:.2}%", share * 100.0))
}

fn count(value: f64) -> String {
    format!("{value:.0}")
}
