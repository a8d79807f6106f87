//! Worlds as a document, as a table on a terminal, and as CSV.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::study::ablation::AblationChange;
use crate::study::file::Kind;
use crate::study::results::RunResult;
use crate::study::table::{aligned, dash, percent, wrapped, written};
use crate::study::worlds::belief::{ExplainedDecision, WorstMinute};
use crate::study::worlds::draw::WorldScenario;
use crate::study::worlds::figures::{
    FIXED, Figures, GOAL, OWN, Quantiles, WorldGate, figures, gates, of_kind,
};
use crate::study::worlds::lot::Lot;
use crate::study::worlds::play::{RejectedWorld, WorldOutcomes, WorldRuns};
use plimsoll_core::units::NounCount;

/// A table: its head and its rows.
type WorldTable = Vec<Vec<String>>;

const INTRODUCTION: &str = "Every policy on worlds that were drawn at random, by `plimsoll scoreboard --worlds`. The \
     priors, and the words of these tables, are in docs/worlds.md. A world is left out where no fixed \
     number of replicas within the bounds serves 99% of requests within SLO. Costs are over that of \
     `static:best`, the cheapest of these numbers. Changes are in ten replica-hours. \"Better\" is the \
     share of worlds in which a policy serves at least 0.1 points more than `plimsoll`, and costs at \
     least 1% less.";

const COLUMNS: [&str; 10] = [
    "policy",
    "worlds",
    "at 99%",
    "SLO median",
    "10th",
    "1st",
    "cost median",
    "90th",
    "changes",
    "better",
];

/// The columns if the oracle was played.
const ORACLE_COLUMNS: [&str; 2] = ["over oracle", "90th"];

const ASPECT_COLUMNS: [&str; 2] = ["aspect", "value"];

const SEED_COLUMNS: [&str; 2] = ["seed", "class"];

/// Columns of a group of worlds.
const GROUP_COLUMNS: [&str; 7] =
    ["worlds", "left out", "at 99%", "SLO median", "10th", "cost median", "90th"];

/// The CSV columns of each policy.
const CSV_COLUMNS: [&str; 6] =
    ["within_slo", "within_ttft", "within_itl", "cost", "replica_hours", "changes"];

/// The played worlds, and details of some of them.
pub(crate) struct WorldsReport {
    pub(crate) seeds: Vec<u32>,
    pub(crate) drawn: usize,
    pub(crate) policies: Vec<String>,
    /// The changes of Plimsoll's own policy, one at a time.
    pub(crate) changes: Vec<AblationChange>,
    pub(crate) outcome: WorldOutcomes,
    /// The indices of the worlds in which Plimsoll's own policy served the least, worst first.
    pub(crate) worst: Vec<usize>,
    /// The indices of the worlds with the highest cost over the best fixed replica count, highest
    /// first.
    pub(crate) dearest: Vec<usize>,
    /// The worst minutes of these worlds, by index.
    pub(crate) minutes: BTreeMap<usize, WorstMinute>,
}

/// The text above the ablation.
const ABLATION: &str = "`plimsoll` with one setting of its policy changed at a time: a term switched off, or a \
                        constant changed. Costs are over those of `static:best`.";

/// A part of a report.
struct Section {
    title: String,
    paragraphs: Vec<String>,
    table: WorldTable,
    /// True if it fits on a terminal.
    is_short: bool,
}

// Writing to a string cannot fail, so the result is dropped.

/// The Markdown document.
pub(crate) fn markdown(report: &WorldsReport) -> String {
    let mut text = format!("# Random worlds\n\n{}\n", wrapped(INTRODUCTION));
    let _ = write!(text, "\n{}\n", wrapped(&summary(report)));
    for Section { title, paragraphs, table, .. } in sections(report) {
        let _ = write!(text, "\n## {title}\n");
        for paragraph in paragraphs {
            let _ = write!(text, "\n{}\n", wrapped(&paragraph));
        }
        if !table.is_empty() {
            text.push('\n');
            written(&mut text, &table);
        }
    }

    for (title, looks) in looks(report) {
        let _ = write!(text, "\n## {title}\n");
        for at in looks {
            let _ = write!(text, "\n{}", described(report, *at));
        }
    }

    text
}

/// The text for a terminal.
pub(crate) fn terminal(report: &WorldsReport) -> String {
    let mut text = summary(report) + "\n";
    for Section { title, table, .. } in sections(report).into_iter().filter(|it| it.is_short) {
        let _ = write!(text, "\n{title}\n");
        aligned(&mut text, &table);
    }

    for (title, looks) in looks(report) {
        let _ = writeln!(text, "\n{title}");
        for at in looks {
            let played = &report.outcome.played[*at];
            let _ = writeln!(text, "{}  {}", figures_of(played), replay(played));
        }
    }

    text
}

/// A row per played world.
pub(crate) fn csv(report: &WorldsReport) -> String {
    let WorldsReport { policies, outcome, .. } = report;
    let mut text = "seed,world,class,cut".to_owned();
    for fact in outcome.played.first().map(|it| &it.world.facts).into_iter().flatten() {
        let _ = write!(text, ",{}", fact.aspect.name());
    }
    for policy in policies {
        for column in CSV_COLUMNS {
            let _ = write!(text, ",{policy} {column}");
        }
    }

    text.push('\n');
    for played in &outcome.played {
        let world = &played.world;
        let Lot { seed, number } = world.lot;
        let _ = write!(text, "{seed},{number},{},{}", class(world.kind), world.cut);
        for fact in &world.facts {
            let _ = write!(text, ",{}", fact.value.replace(',', ""));
        }
        for run in policies.iter().filter_map(|policy| played.of(policy)) {
            for share in [run.within_slo, run.within_ttft, run.within_itl] {
                let cell = share.map(|share| format!("{share:?}")).unwrap_or_default();
                let _ = write!(text, ",{cell}");
            }
            let _ = write!(text, ",{:?},{:?},{}", run.cost, run.replica_hours, run.actions);
        }

        text.push('\n');
    }

    text
}

/// The counts of worlds by class.
fn summary(report: &WorldsReport) -> String {
    let WorldsReport { seeds, drawn, outcome, .. } = report;
    let WorldOutcomes { played, rejected, interrupted } = outcome;
    let cut = played.iter().filter(|it| it.world.cut).count();
    let first_runs = played.iter().filter_map(|it| it.runs.first());
    let requests: u64 = first_runs.flat_map(|run| &run.models).map(|model| model.arrived).sum();
    let mut text = format!(
        "{drawn} worlds of {}: {} played ({} smooth, {} with jumps) with {:.1} million \
         requests, {} left out because no fixed number of replicas serves 99% within SLO. {cut} \
         were made shorter or smaller to bound the time.",
        of_seeds(seeds),
        played.len(),
        of_kind(played, Kind::Smooth).len(),
        of_kind(played, Kind::Jumps).len(),
        requests as f64 / 1e6,
        rejected.len(),
    );
    if *interrupted > 0 {
        let _ = write!(text, " {interrupted} were interrupted.");
    }

    text
}

/// These seeds in words.
fn of_seeds(seeds: &[u32]) -> String {
    let texts: Vec<String> = seeds.iter().map(ToString::to_string).collect();
    match texts.split_last() {
        Some((last, [])) => format!("seed {last}"),
        Some((last, others)) => format!("seeds {} and {last}", others.join(", ")),
        None => String::new(),
    }
}

fn sections(report: &WorldsReport) -> Vec<Section> {
    let WorldsReport { seeds, policies, outcome, .. } = report;
    let all: Vec<&WorldRuns> = outcome.played.iter().collect();
    let mut sections = Vec::new();
    if policies.iter().any(|it| it == OWN) {
        sections.push(Section {
            title: "Gates".to_owned(),
            paragraphs: Vec::new(),
            table: promised(&gates(&outcome.played)),
            is_short: true,
        });
    }

    for (title, worlds) in [
        ("All worlds", all.clone()),
        ("Smooth worlds", of_kind(&outcome.played, Kind::Smooth)),
        ("Worlds with jumps", of_kind(&outcome.played, Kind::Jumps)),
    ] {
        if worlds.is_empty() {
            continue;
        }
        sections.push(Section {
            title: title.to_owned(),
            paragraphs: Vec::new(),
            table: compared(policies, &worlds),
            is_short: true,
        });
    }

    if policies.iter().any(|it| it == OWN) {
        if seeds.len() > 1 {
            sections.push(Section {
                title: "By seed".to_owned(),
                paragraphs: vec![about_groups("seed")],
                table: by_seed(seeds, &all, &outcome.rejected),
                is_short: true,
            });
        }

        sections.push(Section {
            title: "By aspect".to_owned(),
            paragraphs: vec![about_groups("aspect")],
            table: by_aspect(&all, &outcome.rejected),
            is_short: false,
        });
    }

    if !report.changes.is_empty() {
        sections.push(ablation(report));
    }
    if !outcome.rejected.is_empty() {
        sections.push(left_out(&outcome.rejected));
    }

    sections
}

/// The effect of each change of Plimsoll's own policy on all worlds.
fn ablation(report: &WorldsReport) -> Section {
    let worlds = &report.outcome.played;
    let head = ["change", "at 99%", "SLO mean", "10th", "cost mean", "90th"];
    let mut table = vec![head.map(str::to_owned).to_vec()];
    table.push(ablated("as it is", worlds, |it| it.of(OWN)));
    for (at, change) in report.changes.iter().enumerate() {
        table.push(ablated(&change.name, worlds, |it| it.changed.get(at)));
    }

    Section {
        title: "Worth of each term".to_owned(),
        paragraphs: vec![ABLATION.to_owned()],
        table,
        is_short: true,
    }
}

/// A row of the ablation.
fn ablated(
    name: &str,
    worlds: &[WorldRuns],
    of: impl Fn(&WorldRuns) -> Option<&RunResult>,
) -> Vec<String> {
    let runs: Vec<(&WorldRuns, &RunResult)> =
        worlds.iter().filter_map(|it| Some((it, of(it)?))).collect();
    let shares = Quantiles::of(runs.iter().filter_map(|(_, run)| run.within_slo));
    let costs = Quantiles::of(runs.iter().filter_map(|(it, run)| it.times(run, FIXED)));
    let good = runs.iter().filter(|(_, run)| run.within_slo.is_some_and(|it| it >= GOAL));
    let at_goal = good.count() as f64 / runs.len().max(1) as f64;

    vec![
        name.to_owned(),
        percent_of(at_goal),
        shares.mean().map_or_else(dash, percent_exactly),
        shares.at(0.1).map_or_else(dash, percent_exactly),
        costs.mean().map_or_else(dash, |it| format!("{it:.3}")),
        costs.at(0.9).map_or_else(dash, |it| format!("{it:.2}")),
    ]
}

/// Worlds that were left out, each with the reason.
fn left_out(rejected: &[RejectedWorld]) -> Section {
    let mut table = vec![["world", "about", "why"].map(str::to_owned).to_vec()];
    for RejectedWorld { world, why } in rejected {
        table.push(vec![world.lot.to_string(), world.about().to_owned(), why.clone()]);
    }

    Section { title: "Left out".to_owned(), paragraphs: Vec::new(), table, is_short: false }
}

fn promised(gates: &[WorldGate]) -> WorldTable {
    let mut table = vec![["promise", "worlds", "measured", "verdict"].map(str::to_owned).to_vec()];
    for gate in gates {
        let measured = gate.measured.as_ref();
        let verdict =
            measured.map_or("not measured", |it| if it.holds { "holds" } else { "missed" });
        table.push(vec![
            gate.promise.to_owned(),
            gate.worlds.to_string(),
            measured.map_or_else(dash, |it| it.shown.clone()),
            verdict.to_owned(),
        ]);
    }

    table
}

/// A row per policy.
fn compared(policies: &[String], worlds: &[&WorldRuns]) -> WorldTable {
    let rows: Vec<(&String, Figures)> =
        policies.iter().filter_map(|it| Some((it, figures(worlds, it)?))).collect();
    let with_oracle = rows.iter().any(|(_, it)| it.of_oracle.is_some());
    let mut head = COLUMNS.map(str::to_owned).to_vec();
    if with_oracle {
        head.extend(ORACLE_COLUMNS.map(str::to_owned));
    }
    let mut table = vec![head];
    for (policy, it) in &rows {
        let mut row = vec![
            (*policy).clone(),
            it.worlds.to_string(),
            percent_of(it.at_goal),
            share(&it.share, 0.5),
            share(&it.share, 0.1),
            share(&it.share, 0.01),
            times(&it.of_fixed, 0.5),
            times(&it.of_fixed, 0.9),
            times(&it.changes, 0.5),
            percent_of(it.beats),
        ];
        if with_oracle {
            let of_oracle = it.of_oracle.clone().unwrap_or_default();
            row.extend([times(&of_oracle, 0.5), times(&of_oracle, 0.9)]);
        }
        table.push(row);
    }

    table
}

/// A row per seed and class.
fn by_seed(seeds: &[u32], worlds: &[&WorldRuns], rejected: &[RejectedWorld]) -> WorldTable {
    let mut table =
        vec![SEED_COLUMNS.iter().chain(&GROUP_COLUMNS).map(|it| (*it).to_owned()).collect()];
    for seed in seeds {
        for kind in [Kind::Smooth, Kind::Jumps] {
            let names = [&seed.to_string(), class(kind)];
            table.extend(group(
                names,
                |world| world.lot.seed == *seed && world.kind == kind,
                worlds,
                rejected,
            ));
        }
    }

    table
}

/// A row per value of each aspect.
fn by_aspect(worlds: &[&WorldRuns], rejected: &[RejectedWorld]) -> WorldTable {
    let mut table =
        vec![ASPECT_COLUMNS.iter().chain(&GROUP_COLUMNS).map(|it| (*it).to_owned()).collect()];
    let left_out = rejected.iter().map(|it| &it.world);
    let drawn: Vec<&WorldScenario> = worlds.iter().map(|it| &it.world).chain(left_out).collect();
    let aspects = drawn.first().map(|it| it.facts.clone()).unwrap_or_default();
    for aspect in aspects.iter().map(|fact| fact.aspect) {
        let mut values: Vec<&str> = drawn.iter().map(|it| it.fact(aspect)).collect();
        values.sort_unstable();
        values.dedup();
        for value in values {
            let names = [aspect.name(), value];
            table.extend(group(names, |world| world.fact(aspect) == value, worlds, rejected));
        }
    }

    table
}

/// The row of a group of worlds with these names; `None` without a world.
fn group(
    names: [&str; 2],
    is_in: impl Fn(&WorldScenario) -> bool,
    worlds: &[&WorldRuns],
    rejected: &[RejectedWorld],
) -> Option<Vec<String>> {
    let played: Vec<&WorldRuns> = worlds.iter().filter(|it| is_in(&it.world)).copied().collect();
    let left_out = rejected.iter().filter(|it| is_in(&it.world)).count();
    let mut row = names.map(str::to_owned).to_vec();
    match figures(&played, OWN) {
        Some(it) => row.extend([
            it.worlds.to_string(),
            left_out.to_string(),
            percent_of(it.at_goal),
            share(&it.share, 0.5),
            share(&it.share, 0.1),
            times(&it.of_fixed, 0.5),
            times(&it.of_fixed, 0.9),
        ]),
        None if left_out > 0 => {
            row.extend([0.to_string(), left_out.to_string()]);
            row.extend(std::iter::repeat_with(dash).take(GROUP_COLUMNS.len() - 2));
        }
        None => return None,
    }

    Some(row)
}

fn percent_of(portion: f64) -> String {
    format!("{:.1}%", 100.0 * portion)
}

fn percent_exactly(portion: f64) -> String {
    format!("{:.2}%", 100.0 * portion)
}

fn share(values: &Quantiles, at: f64) -> String {
    values.at(at).map_or_else(dash, |share| format!("{:.2}", 100.0 * share))
}

fn times(values: &Quantiles, at: f64) -> String {
    values.at(at).map_or_else(dash, |value| format!("{value:.2}"))
}

/// The parts about single worlds.
fn looks(report: &WorldsReport) -> Vec<(String, &[usize])> {
    let WorldsReport { worst, dearest, .. } = report;
    let parts = [
        (format!("The {} worst worlds", worst.len()), worst.as_slice()),
        (format!("The {} dearest worlds", dearest.len()), dearest.as_slice()),
    ];
    parts.into_iter().filter(|(_, looks)| !looks.is_empty()).collect()
}

/// The paragraph above the groups.
fn about_groups(by: &str) -> String {
    format!("Results of `{OWN}` by {by}, and the number of worlds that were left out.")
}

/// The result of `plimsoll` in a world.
fn figures_of(played: &WorldRuns) -> String {
    let share = played.share(OWN).map_or_else(dash, percent);
    let cost = played.cost_over(OWN, FIXED).map_or_else(dash, |it| format!("{it:.2}"));
    format!(
        "world {}: {share} within SLO, cost {cost} of {FIXED} ({})",
        played.world.lot,
        class(played.world.kind),
    )
}

/// The command that plays a world again.
fn replay(played: &WorldRuns) -> String {
    format!("plimsoll simulate <(plimsoll scoreboard --world {})", played.world.lot)
}

/// A world in full.
fn described(report: &WorldsReport, at: usize) -> String {
    let played = &report.outcome.played[at];
    let world = &played.world;
    let others = report.policies.iter().filter(|it| *it != OWN).filter_map(|policy| {
        let share = played.share(policy)?;
        let cost = played.cost_over(policy, FIXED)?;
        Some(format!("{policy} {:.2}% at {cost:.2}", 100.0 * share))
    });
    let facts = world.facts.iter().map(|it| format!("{} {}", it.aspect.name(), it.value));
    let mut text = format!("### World {}\n\n", world.lot);
    for paragraph in [
        format!("{}. {}", figures_of(played), world.about()),
        objectives(played),
        format!("Others: {}.", others.collect::<Vec<_>>().join(", ")),
        format!("Facts: {}.", facts.collect::<Vec<_>>().join("; ")),
    ] {
        let _ = write!(text, "{}\n\n", wrapped(&paragraph));
    }

    let _ = write!(text, "```console\n$ {}\n```\n", replay(played));
    if let Some(worst) = report.minutes.get(&at) {
        let _ = write!(text, "\n{}\n", wrapped(&minute(worst)));
        for ExplainedDecision { variant, ready, existing, desired, steps } in &worst.beliefs {
            let line = format!(
                "- {variant}: {ready} of {} ready, {desired} desired: {}",
                NounCount(*existing, "replica", "replicas"),
                steps.join("; ")
            );
            let _ = writeln!(text, "\n{}", wrapped(&line).replace('\n', "\n  "));
        }
    }

    text
}

/// The shares in which `plimsoll` met each objective.
fn objectives(played: &WorldRuns) -> String {
    let run = played.of(OWN);
    let [ttft, itl] = [run.and_then(|it| it.within_ttft), run.and_then(|it| it.within_itl)];
    let [ttft, itl] = [ttft, itl].map(|share| share.map_or_else(dash, percent));
    format!(
        "{ttft} met the objective for the first token, and {itl} that for the time between tokens."
    )
}

/// The minute in which most requests were not served well.
fn minute(worst: &WorstMinute) -> String {
    let WorstMinute { minute, judged, good, rate, need, capacity, .. } = worst;
    format!(
        "Worst minute {minute}: {} of {judged} requests not within SLO. {rate:.2} requests/s were \
         expected. By its coefficients, a replica of the first variant serves {capacity:.2} \
         evenly spread requests/s, so that needs {need:.2}.",
        judged - good,
    )
}

const fn class(kind: Kind) -> &'static str {
    match kind {
        Kind::Smooth => "smooth",
        Kind::Jumps => "jumps",
    }
}
