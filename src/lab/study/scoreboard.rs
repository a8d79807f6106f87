//! The scoreboard: every policy on every scenario, as one table.
//!
//! All scenarios decide by one policy, which is checked, so that what is good for one of them is not
//! what the table shows of it.

mod gates;
mod page;
mod score;

use std::cmp::Reverse;
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::Deserialize as _;
use serde_json::{Map, Value};

use crate::simulate::peers::Peer;
use crate::study::ablation::{self, Change};
use crate::study::args::ScoreboardArgs;
use crate::study::execute::{self, Executed, Ready};
use crate::study::file::Kind;
use crate::study::plan::{self, Plan, PlanError, Shard};
use crate::study::recorded::{self, Trace};
use crate::study::results::{LeftOut, RunResult, mean};
use crate::study::scoreboard::score::Score;
use crate::study::table::shown;
use crate::study::worlds;
use crate::study::{Study, once, peer};

/// Where the table goes.
const OUT: &str = "scoreboard";

/// Those that are compared where the command line names none. The numbers are those of the guides
/// that describe each, and the same for all scenarios.
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

/// What was simulated.
struct Board {
    policies: Vec<String>,
    workloads: Vec<Workload>,
    /// What was changed of Plimsoll's own policy, one at a time.
    changes: Vec<Change>,
    /// Scenarios that were left out, each with why.
    left_out: Vec<(String, String)>,
    /// How many seeds each of them was simulated with.
    seeds: u32,
}

/// One scenario with one combination of what its sweep tries.
struct Workload {
    name: String,
    about: String,
    kind: Option<Kind>,
    traces: Vec<Trace>,
    length: f64,
    /// Of all policies, with all seeds.
    runs: Vec<RunResult>,
    /// Those of them that there cannot be.
    left_out: Vec<LeftOut>,
    /// Of Plimsoll with each of the changes, with all seeds.
    changed: Vec<RunResult>,
}

/// A workload whose runs can begin.
struct Prepared {
    workload: Workload,
    ready: Vec<Ready>,
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
        texts => texts.iter().map(String::as_str).collect(),
    };
    let peers: Vec<Peer> =
        texts.iter().map(|text| peer(text, "--policy")).collect::<Result<_, _>>()?;
    let peers = once(&peers);
    let policies = peers.iter().map(ToString::to_string).collect();
    let changes = if args.ablation { ablation::changes() } else { Vec::new() };
    let (workloads, left_out) = (Vec::new(), Vec::new());
    let mut board = Board { policies, workloads, changes, left_out, seeds: args.seeds };
    let mut prepared = Vec::new();
    let mut decided_by: Option<(String, Value)> = None;
    for path in each_once(&args.scenarios) {
        let mut study = Study::read(path)?;
        let policy = study.value.get("policy").cloned().unwrap_or_default();
        match &decided_by {
            Some((_, first)) if *first == policy => {}
            Some((name, _)) => {
                let path = path.display();
                let why = format!("{path} must have the same policy as {name}: one for all");
                return Err(PlanError(why).into());
            }
            None => decided_by = Some((path.display().to_string(), policy)),
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let traces = match recorded::locate(&mut study.value, folder, args.traces.as_deref()) {
            Ok(traces) => traces,
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
    let mut out = std::io::stdout().lock();
    out.write_all(page::summary(&board).as_bytes())?;
    Ok(out.flush()?)
}

/// The runs of a scenario: a workload for each combination of its sweep.
fn prepare(
    study: &Study,
    peers: &[Peer],
    board: &Board,
    traces: &[Trace],
) -> anyhow::Result<Vec<Prepared>> {
    let sweep = study.value.get("sweep").cloned().unwrap_or_default();
    let plans = plan::plan(&sweep, &Map::new(), peers, board.seeds)?;
    let about = study.value.get("about").and_then(Value::as_str).unwrap_or_default().to_owned();
    let kind = study.value.get("kind").and_then(|kind| Kind::deserialize(kind).ok());
    let mut prepared: Vec<Prepared> = Vec::new();
    for plans in plans.chunk_by(|one, next| one.settings == next.settings) {
        let Some(Plan { settings, .. }) = plans.first() else { continue };
        let played = board.changes.iter().flat_map(|change| {
            let settings = change.over(settings);
            (0..u64::from(board.seeds)).map(move |seed| Plan {
                index: 0,
                settings: settings.clone(),
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
        prepared.push(Prepared { workload, ready });
    }
    Ok(prepared)
}

/// Runs everything at once, and gives each workload its runs.
fn simulate(board: &mut Board, prepared: Vec<Prepared>) -> anyhow::Result<()> {
    let mut ready = Vec::new();
    let mut ends = Vec::new();
    for Prepared { workload, ready: runs } in prepared {
        for mut run in runs {
            run.plan.index = ready.len();
            ready.push(run);
        }
        ends.push(ready.len());
        board.workloads.push(workload);
    }
    // Those that take the longest begin first.
    ready.sort_by_key(|run| Reverse(run.simulations()));
    let Executed { mut runs, mut left_out, .. } = execute::play(&ready, None)?;
    runs.sort_by_key(|run| run.index);
    left_out.sort_by_key(|run| run.index);
    let of = |index: usize| ends.partition_point(|end| *end <= index);
    for run in left_out {
        board.workloads[of(run.index)].left_out.push(run);
    }
    for run in runs {
        let workload = &mut board.workloads[of(run.index)];
        if board.changes.iter().any(|change| change.is_of(&run)) {
            workload.changed.push(run);
        } else {
            workload.runs.push(run);
        }
    }
    Ok(())
}

/// The paths, without those that lead to the same file as one before.
fn each_once(paths: &[PathBuf]) -> Vec<&PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    let is_new = |path: &&PathBuf| {
        let file = fs::canonicalize(path).unwrap_or_else(|_| PathBuf::clone(path));
        let new = !found.contains(&file);
        found.push(file);
        new
    };
    paths.iter().filter(is_new).collect()
}

fn name(path: &Path) -> String {
    path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
}

// === impl Workload ===

impl Workload {
    /// What a policy came to, unless it was interrupted before it began, or has no run with one of the
    /// seeds.
    fn of(&self, policy: &str) -> Option<Score> {
        if self.left_out.iter().any(|run| run.policy == policy) {
            return None;
        }
        let runs: Vec<_> = self.runs.iter().filter(|run| run.policy == policy).collect();
        Score::of(&runs)
    }

    /// What a change came to, unless it was interrupted before it began.
    fn with(&self, change: &Change) -> Option<Score> {
        let runs: Vec<_> = self.changed.iter().filter(|run| change.is_of(run)).collect();
        Score::of(&runs)
    }

    /// What was paid, as a multiple of what the clairvoyant schedule cost.
    fn ratio(&self, score: Option<&Score>) -> Option<f64> {
        self.ratio_to("oracle", score)
    }

    /// The same of what another policy cost.
    fn ratio_to(&self, other: &str, score: Option<&Score>) -> Option<f64> {
        let other = self.of(other).filter(|it| it.complete && it.cost > 0.0)?;
        score.filter(|it| it.complete).map(|it| it.cost / other.cost)
    }
}

// === impl Board ===

impl Board {
    /// Whether a policy is among those that are compared.
    fn plays(&self, policy: &str) -> bool {
        self.policies.iter().any(|it| it == policy)
    }

    /// The means over all workloads of the ratio and of the share of good requests.
    fn means(&self, of: impl Fn(&Workload) -> Option<Score>) -> (Option<f64>, Option<f64>) {
        let ratios = self.workloads.iter().filter_map(|it| it.ratio(of(it).as_ref()));
        let shares = self.workloads.iter().filter_map(|it| of(it)?.within_slo);
        (mean(ratios), mean(shares))
    }
}
