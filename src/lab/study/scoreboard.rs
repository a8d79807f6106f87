//! The scoreboard: every policy on every scenario, as one table.
//!
//! All scenarios must decide by one policy, so that the table does not show policies that were
//! tuned for single scenarios.

mod board;
mod gates;
mod page;
mod score;

use std::cmp::Reverse;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::output::print;
use crate::simulate::peers::Peer;
use crate::study::ablation;
use crate::study::args::ScoreboardArgs;
use crate::study::execute::{self, ExecutedRuns, PreparedRun};
use crate::study::file::Kind;
use crate::study::plan::{self, Plan, PlanError, Shard};
use crate::study::policies::{once, peer};
use crate::study::recorded::{self, Trace};
use crate::study::scoreboard::board::{Scoreboard, Workload};
use crate::study::source::Study;
use crate::study::table::shown;
use crate::study::worlds;

/// The default path of the table.
const OUT: &str = "scoreboard";

/// The policies that are compared by default. Their parameters are those of the guides that
/// describe each, and the same for all scenarios.
const POLICIES: [&str; 16] = [
    "oracle",
    "static:best",
    "plimsoll",
    "plimsoll-only-up",
    "melange",
    "waiting:5",
    "in-flight:20",
    "kv:0.7",
    "keda-rate:15",
    "kpa:100",
    "apa:0.5",
    "wva-v1",
    "wva-v2",
    "llm-d-slo",
    "dynamo-load",
    "dynamo-throughput",
];

/// A workload whose runs are prepared.
struct PreparedWorkload {
    workload: Workload,
    ready: Vec<PreparedRun>,
}

/// Simulates the scenarios of the arguments under all policies, and writes the table.
///
/// # Errors
///
/// The scenarios or the arguments are not valid, or the table cannot be written.
pub fn run(args: &ScoreboardArgs) -> anyhow::Result<()> {
    if let Some(world) = &args.world {
        return worlds::print(world);
    }
    if let Some(count) = args.worlds {
        return worlds::run(args, count);
    }

    let texts: Vec<&str> = match args.policy.as_slice() {
        [] => POLICIES.to_vec(),
        listed => listed.iter().map(String::as_str).collect(),
    };
    let named: Vec<Peer> =
        texts.iter().map(|text| peer(text, "--policy")).collect::<Result<_, _>>()?;
    let peers = once(&named);
    let policies = peers.iter().map(ToString::to_string).collect();
    let changes = if args.ablation { ablation::changes() } else { Vec::new() };
    let workloads = Vec::new();
    let left_out = Vec::new();
    let mut board = Scoreboard { policies, workloads, changes, left_out, seeds: args.seeds };
    let mut prepared = Vec::new();
    let mut decided_by: Option<(String, Value)> = None;
    for path in each_once(&args.scenarios) {
        let mut study = Study::read(path)?;
        let policy = study.value.get("policy").cloned().unwrap_or_default();
        match &decided_by {
            Some((_, first)) if *first == policy => {}
            Some((name, _)) => {
                let shown = path.display();
                let why = format!("{shown} must have the same policy as {name}: one for all");
                return Err(PlanError(why).into());
            }
            None => decided_by = Some((path.display().to_string(), policy)),
        }

        let folder = path.parent().unwrap_or(Path::new(""));
        let traces = match recorded::locate(&mut study.value, folder, args.traces.as_deref()) {
            Ok(found) => found,
            Err(missing) => {
                board.left_out.push((name(path), missing.to_string()));
                continue;
            }
        };

        prepared.extend(prepare(&study, &peers, &board, &traces)?);
    }

    simulate(&mut board, prepared)?;
    let out = args.out.as_deref().unwrap_or(Path::new(OUT));
    for (extension, text) in [("md", page::markdown(&board)), ("html", page::html(&board))] {
        let mut path = out.to_owned().into_os_string();
        path.push(format!(".{extension}"));
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }

    print(&page::summary(&board))
}

/// The runs of a scenario, as one workload per combination of its sweep.
fn prepare(
    study: &Study,
    peers: &[Peer],
    board: &Scoreboard,
    traces: &[Trace],
) -> anyhow::Result<Vec<PreparedWorkload>> {
    let sweep = study.value.get("sweep").cloned().unwrap_or_default();
    let plans = plan::plan(&sweep, &Map::new(), peers, board.seeds)?;
    let about = study.value.get("about").and_then(Value::as_str).unwrap_or_default().to_owned();
    let kind = study.value.get("kind").and_then(|it| Kind::deserialize(it).ok());
    let mut prepared: Vec<PreparedWorkload> = Vec::new();
    for plans in plans.chunk_by(|one, next| one.settings == next.settings) {
        let Some(Plan { settings, .. }) = plans.first() else { continue };
        let played = board.changes.iter().flat_map(|change| {
            let changed = change.over(settings);
            (0..u64::from(board.seeds)).map(move |seed| Plan {
                index: 0,
                settings: changed.clone(),
                peer: Peer::Scenario,
                seed,
            })
        });

        let all = plans.iter().cloned().chain(played).collect();
        let ready = execute::prepare(study, all, Shard::WHOLE, None)?;
        let values: Vec<String> = settings.values().map(shown).collect();
        let mut name = name(&study.path);
        if !values.is_empty() {
            name = format!("{name} ({})", values.join(", "));
        }

        let workload = Workload {
            name,
            about: about.clone(),
            kind,
            traces: traces.to_vec(),
            length: ready.first().map_or(0.0, |run| run.scenario.length.seconds()),
            runs: Vec::new(),
            left_out: Vec::new(),
            changed: Vec::new(),
        };

        prepared.push(PreparedWorkload { workload, ready });
    }

    Ok(prepared)
}

/// Executes all runs together, and assigns each workload its runs.
fn simulate(board: &mut Scoreboard, prepared: Vec<PreparedWorkload>) -> anyhow::Result<()> {
    let mut ready = Vec::new();
    let mut ends = Vec::new();
    for PreparedWorkload { workload, ready: runs } in prepared {
        for mut run in runs {
            run.plan.index = ready.len();
            ready.push(run);
        }
        ends.push(ready.len());
        board.workloads.push(workload);
    }

    // The longest runs begin first.
    ready.sort_by_key(|run| Reverse(run.simulations()));
    let ExecutedRuns { mut runs, mut left_out, .. } = execute::play(&ready, None)?;
    runs.sort_by_key(|run| run.index);
    left_out.sort_by_key(|run| run.index);
    for run in left_out {
        board.workloads[workload_of(run.index, &ends)].left_out.push(run);
    }
    for run in runs {
        let workload = &mut board.workloads[workload_of(run.index, &ends)];
        if board.changes.iter().any(|change| change.is_of(&run)) {
            workload.changed.push(run);
        } else {
            workload.runs.push(run);
        }
    }

    Ok(())
}

/// The paths, without those that lead to the same file as an earlier path.
fn each_once(paths: &[PathBuf]) -> Vec<&PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let mut each = Vec::new();
    for path in paths {
        let file = fs::canonicalize(path).unwrap_or_else(|_| path.clone());
        if !found.contains(&file) {
            found.push(file);
            each.push(path);
        }
    }

    each
}

/// The place of the workload of a run, from the ends of all workloads' runs.
fn workload_of(run: usize, ends: &[usize]) -> usize {
    ends.partition_point(|end| *end <= run)
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}
