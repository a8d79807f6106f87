//! The scoreboard as a Markdown document, as an HTML page and as a table on a terminal.

use std::fmt::Write as _;

use crate::simulate::peers::Peer;
use crate::study::chart::escaped;
use crate::study::file::Kind;
use crate::study::report;
use crate::study::results::{LeftOut, RunResult};
use crate::study::scoreboard::board::{Scoreboard, Workload};
use crate::study::scoreboard::gates::{self, ScoreboardGate};
use crate::study::scoreboard::score::Score;
use crate::study::table::{aligned, dash, percent, span, wrapped, written};

const INTRODUCTION: [&str; 4] = [
    "Every policy on every workload in the simulator. `make scoreboard` writes this file. A request is \
     within its SLO if its time to first token and its mean time between tokens both are. Requests \
     that were rejected, too long, given up or cut off are not. Cost includes all \
     replicas while they have a node, with starts and drains.",
    "The ratio is the cost divided by that of `oracle`, a schedule that knows every request \
     beforehand. Simulated repair finds it, so the true optimum may be lower. It aims at 99% within \
     SLO. A ratio below 1 is a policy that served less, or a schedule that was not found. \"-\" means \
     that there is no schedule. Changes are changes of desired replicas. The worst minute is the \
     minute of arrival with the smallest share of requests within SLO.",
    "`static:best` is the cheapest fixed number of replicas that serves 99% within SLO, chosen with \
     knowledge of every request. All its replicas are ready at the start. \"-\" means that with some \
     seed, no fixed number within the bounds of the variants does.",
    "All rows have one set of parameters for all workloads. docs/simulator.md describes each policy \
     and the source of its rules.",
];

const ABLATION: &str = "`plimsoll` with one key of `capacity` changed at a time: a term switched off or on, a \
     constant halved and doubled, or moved within its useful range. Within SLO in per cent / ratio.";

const GATES: &str = "Each promise of `plimsoll`, the result on the workload nearest to or farthest beyond \
     the bound, or the average, and the verdict. Figures are means over all seeds, compared before \
     rounding. Changes are changes of desired replicas per ten average replicas.";

const GATES_COLUMNS: [&str; 4] = ["promise", "workloads", "measured", "verdict"];

const COLUMNS: [&str; 9] = [
    "policy",
    "within SLO",
    "of TTFT",
    "of ITL",
    "worst minute",
    "replica-hours",
    "cost",
    "ratio",
    "changes",
];

/// A table: its head and its rows.
type ScoreTable = Vec<Vec<String>>;

// Writing to a string cannot fail, so the result is dropped.

/// The text for a terminal.
pub(crate) fn summary(board: &Scoreboard) -> String {
    let mut text = String::new();
    aligned(&mut text, &overview(board));
    if let Some(gates) = promised(board) {
        text.push('\n');
        aligned(&mut text, &gates);
    }

    if !board.changes.is_empty() {
        text.push('\n');
        aligned(&mut text, &ablation(board));
    }

    for (name, why) in &board.left_out {
        let _ = writeln!(text, "{name} was left out: {why}");
    }

    text
}

/// The Markdown document.
pub(crate) fn markdown(board: &Scoreboard) -> String {
    let mut text = "# Scoreboard\n".to_owned();
    for paragraph in INTRODUCTION.map(str::to_owned).into_iter().chain(seeds(board)) {
        let _ = write!(text, "\n{}\n", wrapped(&paragraph));
    }
    if let Some(gates) = promised(board) {
        text.push_str("\n## Gates\n\n");
        for paragraph in about_gates(board) {
            let _ = write!(text, "{}\n\n", wrapped(&paragraph));
        }
        written(&mut text, &gates);
    }

    text.push_str("\n## All workloads\n\nWithin SLO in per cent / ratio.\n\n");
    written(&mut text, &overview(board));
    if !board.changes.is_empty() {
        let _ = write!(text, "\n## Ablation\n\n{}\n\n", wrapped(ABLATION));
        written(&mut text, &ablation(board));
    }

    for workload in &board.workloads {
        let _ = write!(text, "\n## {}\n\n", workload.name);
        for line in described(board, workload) {
            let _ = write!(text, "{}\n\n", wrapped(&line));
        }
        written(&mut text, &detail(board, workload));
    }

    if !board.left_out.is_empty() {
        text.push_str("\n## Left out\n\n");
        for (name, why) in &board.left_out {
            let _ = writeln!(text, "- {name}: {why}.");
        }
    }

    text
}

/// The HTML page, which loads no external resources.
pub(crate) fn html(board: &Scoreboard) -> String {
    let mut page = report::begun("scoreboard", "Scoreboard");
    for paragraph in INTRODUCTION.map(str::to_owned).into_iter().chain(seeds(board)) {
        let _ = writeln!(page, "<p>{}</p>", escaped(&paragraph.replace('`', "")));
    }
    if let Some(gates) = promised(board) {
        page.push_str("<h2>Gates</h2>\n");
        for paragraph in about_gates(board) {
            let _ =
                writeln!(page, "<p class=\"soft\">{}</p>", escaped(&paragraph.replace('`', "")));
        }

        // Its cells are words, and the verdict in the last column must be visible.
        drawn_as(&mut page, &gates, "words");
    }

    page.push_str(
        "<h2>All workloads</h2>\n<p class=\"soft\">Within SLO in per cent / ratio.</p>\n",
    );
    drawn(&mut page, &overview(board));
    if !board.changes.is_empty() {
        let about = escaped(&ABLATION.replace('`', ""));
        let _ = writeln!(page, "<h2>Ablation</h2>\n<p class=\"soft\">{about}</p>");
        drawn(&mut page, &ablation(board));
    }

    for workload in &board.workloads {
        let _ = writeln!(page, "<h2>{}</h2>", escaped(&workload.name));
        for line in described(board, workload) {
            let _ = writeln!(page, "<p class=\"soft\">{}</p>", escaped(&line.replace('`', "")));
        }
        drawn(&mut page, &detail(board, workload));
    }

    for (name, why) in &board.left_out {
        let _ = writeln!(page, "<p>{} was left out: {}.</p>", escaped(name), escaped(why));
    }

    page.push_str("</body>\n</html>\n");
    page
}

/// A row per promise; `None` if none can be measured.
fn promised(board: &Scoreboard) -> Option<ScoreTable> {
    let mut table = vec![GATES_COLUMNS.map(str::to_owned).to_vec()];
    for ScoreboardGate { promise, workloads, measured, verdict } in gates::gates(board) {
        table.push(vec![promise.to_owned(), workloads, measured, verdict]);
    }
    (table.len() > 1).then_some(table)
}

/// The explanation of the promises, and the workloads of each kind.
fn about_gates(board: &Scoreboard) -> Vec<String> {
    let mut kinds = Vec::new();
    for (name, kind) in [("Smooth", Kind::Smooth), ("Jumps", Kind::Jumps)] {
        kinds.extend(gates::named(board, kind).map(|workloads| format!("{name}: {workloads}.")));
    }

    let mut paragraphs = vec![GATES.to_owned()];
    if !kinds.is_empty() {
        paragraphs.push(kinds.join(" "));
    }
    paragraphs
}

/// A row per policy, a column per workload, and the means.
fn overview(board: &Scoreboard) -> ScoreTable {
    let mut table = vec![head(board, "policy")];
    for policy in &board.policies {
        table.push(row(board, policy, |workload| workload.of(policy)));
    }
    table
}

/// The same for Plimsoll's own policy as it is, and with each of the changes.
fn ablation(board: &Scoreboard) -> ScoreTable {
    let as_it_is = row(board, "as it is", |workload| workload.of("plimsoll"));
    let changed = board.changes.iter().map(|it| row(board, &it.name, |workload| workload.with(it)));
    [head(board, "change"), as_it_is].into_iter().chain(changed).collect()
}

fn head(board: &Scoreboard, first: &str) -> Vec<String> {
    let mut head = vec![first.to_owned()];
    head.extend(board.workloads.iter().map(|workload| workload.name.clone()));
    head.push("mean".to_owned());
    head
}

fn row(board: &Scoreboard, name: &str, of: impl Fn(&Workload) -> Option<Score>) -> Vec<String> {
    let mut row = vec![name.to_owned()];
    row.extend(board.workloads.iter().map(|workload| {
        let score = of(workload);
        cell(score.as_ref().and_then(|it| it.within_slo), workload.ratio(score.as_ref()))
    }));

    let (ratio, share) = board.means(of);
    row.push(cell(share, ratio));
    row
}

/// A share in percent, and a ratio.
fn cell(share: Option<f64>, ratio: Option<f64>) -> String {
    let percentage = share.map_or_else(dash, |share| format!("{:.1}", share * 100.0));
    let times = ratio.map_or_else(dash, |ratio| format!("{ratio:.2}"));
    format!("{percentage} / {times}")
}

fn detail(board: &Scoreboard, workload: &Workload) -> ScoreTable {
    let mut table = vec![COLUMNS.map(str::to_owned).to_vec()];
    for policy in &board.policies {
        let Some(score) = workload.of(policy) else {
            if workload.left_out.iter().any(|run| run.policy == *policy) {
                let none = COLUMNS.iter().skip(1).map(|_| dash());
                table.push(std::iter::once(policy.clone()).chain(none).collect());
            }
            continue;
        };

        let Score { within_slo, within_ttft, within_itl, worst_minute, .. } = score;
        let Score { replica_hours, cost, actions, complete, .. } = score;
        let cut = if complete { "" } else { " (interrupted)" };
        table.push(vec![
            format!("{policy}{cut}"),
            within_slo.map_or_else(dash, percent),
            within_ttft.map_or_else(dash, percent),
            within_itl.map_or_else(dash, percent),
            worst_minute.map_or_else(dash, percent),
            format!("{replica_hours:.2}"),
            format!("{cost:.2}"),
            workload.ratio(Some(&score)).map_or_else(dash, |ratio| format!("{ratio:.2}")),
            format!("{:.*}", usize::from(board.seeds > 1), actions),
        ]);
    }

    table
}

/// The note on several seeds, if there are several.
fn seeds(board: &Scoreboard) -> Option<String> {
    let Scoreboard { seeds, .. } = board;
    (*seeds > 1).then(|| {
        format!(
            "Everything was simulated with {seeds} seeds, from which drawn arrivals and lengths, start-up \
             times, failures and the shifts of a trace's copies come. Figures are means of all seeds, \
             but for the worst minute, which is that of the worst seed."
        )
    })
}

/// The description of a workload, in sentences.
fn described(board: &Scoreboard, workload: &Workload) -> Vec<String> {
    let mut lines = Vec::new();
    if !workload.about.is_empty() {
        lines.push(workload.about.trim().to_owned());
    }

    let first = board.policies.iter().find_map(|policy| workload.of(policy));
    let requests = first.map_or(0.0, |it| it.arrived);
    let mut line = format!("{requests:.0} requests in {}", span(workload.length));
    for trace in &workload.traces {
        let _ = write!(line, ", of `{}` (SHA-256 `{}…`)", trace.name, trace.hash);
    }

    lines.push(line + ".");
    lines.extend(best(workload));
    for LeftOut { policy, seed, why, .. } in &workload.left_out {
        lines.push(format!("`{policy}` with seed {seed}: {why}."));
    }

    lines
}

/// The fixed replica counts that were found, per seed if they differ.
fn best(workload: &Workload) -> Option<String> {
    let policy = Peer::StaticBest.to_string();
    let runs = workload.runs.iter().filter(|run| run.policy == policy);
    let found: Vec<(u64, String)> = runs.map(|run| (run.seed, fleet(run))).collect();
    let (_, first) = found.first()?;
    if found.iter().all(|(_, fleet)| fleet == first) {
        return Some(format!("`{policy}` is {first}."));
    }

    let each = found.iter().map(|(seed, fleet)| format!("{fleet} with seed {seed}"));
    Some(format!("`{policy}` is {}.", each.collect::<Vec<_>>().join(", ")))
}

fn fleet(run: &RunResult) -> String {
    let each = run.variants.iter().map(|it| format!("{} {}", it.initial, it.variant));
    each.collect::<Vec<_>>().join(" and ")
}

fn drawn(page: &mut String, table: &ScoreTable) {
    drawn_as(page, table, "numbers");
}

fn drawn_as(page: &mut String, table: &ScoreTable, class: &str) {
    let _ = writeln!(page, "<div class=\"scroll\"><table class=\"{class}\">");
    for (at, row) in table.iter().enumerate() {
        let tag = if at == 0 { "th" } else { "td" };
        page.push_str("<tr>");
        for cell in row {
            let _ = write!(page, "<{tag}>{}</{tag}>", escaped(&cell.replace('`', "")));
        }
        page.push_str("</tr>\n");
    }

    page.push_str("</table></div>\n");
}
