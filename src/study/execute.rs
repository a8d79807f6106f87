//! Runs, on all cores, with progress, until somebody interrupts.

use std::cell::Cell;
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde_json::{Map, Value};
use tokio_util::task::TaskTracker;

use crate::pipeline::Decisions;
use crate::simulate::Micros;
use crate::simulate::peers::Peer;
use crate::simulate::run;
use crate::simulate::scenario::Scenario;
use crate::simulate::score::Outcome;
use crate::study::plan::{self, Plan, PlanError, Shard};
use crate::study::record::Recorder;
use crate::study::resolve::Resolved;
use crate::study::results::RunResult;
use crate::study::{ScenarioError, Study};

/// About as many runs as are simulated for one clairvoyant schedule.
const ORACLE_RUNS: u64 = 40;

/// What all runs came to.
pub(crate) struct Executed {
    /// In the order of the plans, without those that had not begun at an interruption.
    pub(crate) runs: Vec<RunResult>,
    /// The first of them in full.
    pub(crate) first: Option<First>,
}

/// A run in full.
pub(crate) struct First {
    pub(crate) scenario: Scenario,
    pub(crate) outcome: Outcome,
}

/// A run that can begin.
pub(crate) struct Ready {
    pub(crate) plan: Plan,
    seed: u64,
    pub(crate) scenario: Arc<Scenario>,
    /// The configuration of the daemon, as YAML.
    config: Arc<str>,
}

impl Ready {
    /// About how long it takes, in simulated microseconds: whoever looks for a schedule simulates
    /// many.
    fn weight(&self) -> u64 {
        let times = if self.plan.peer == Peer::Oracle { ORACLE_RUNS } else { 1 };
        self.scenario.length.micros().saturating_mul(times)
    }
}

/// A run that is over, and all of it where it is the first.
type Done = (RunResult, Option<First>);

/// Executes the plans of a shard, and traces the first where a folder is given for that. The number
/// of cores changes nothing but the time.
pub(crate) fn execute(
    study: &Study,
    plans: Vec<Plan>,
    shard: Shard,
    seed: Option<u64>,
    trace: Option<&Path>,
) -> anyhow::Result<Executed> {
    play(&prepare(study, plans, shard, seed)?, trace)
}

/// Executes runs that can begin, and traces the first where a folder is given for that.
pub(crate) fn play(ready: &[Ready], trace: Option<&Path>) -> anyhow::Result<Executed> {
    let stop = Arc::new(AtomicBool::new(false));
    let _listener = listen(&stop)?;
    let bar = progress(ready.iter().map(Ready::weight).sum());
    let first_index = ready.first().map(|ready| ready.plan.index);
    let outcomes: Vec<anyhow::Result<Option<Done>>> = ready
        .par_iter()
        // Some runs take much longer than others, and none should wait behind them.
        .with_max_len(1)
        .map(|ready| {
            if stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            let mut scenario = Scenario::clone(&ready.scenario);
            let mut goes_on = |_: Micros| !stop.load(Ordering::Relaxed);
            let applied = ready.plan.peer.apply(&mut scenario, ready.seed, &mut goes_on);
            applied.context("cannot simulate")?;
            bar.inc(ready.weight() - ready.scenario.length.micros());
            let mut shown = Micros::ZERO;
            let mut watch = |reached: Micros| {
                bar.inc(reached.since(shown).micros());
                shown = reached;
                !stop.load(Ordering::Relaxed)
            };
            let keep = Some(ready.plan.index) == first_index;
            let outcome = match trace.filter(|_| keep) {
                Some(folder) => traced(ready, &scenario, &mut watch, folder)?,
                None => run::run(&scenario, ready.seed, &mut watch).context("cannot simulate")?,
            };
            bar.inc(outcome.ended.since(shown).micros());
            let result = RunResult::new(&ready.plan, ready.seed, &scenario, &outcome);
            Ok(Some((result, keep.then_some(First { scenario, outcome }))))
        })
        .collect();
    bar.finish_and_clear();
    let (mut runs, mut first) = (Vec::new(), None);
    for outcome in outcomes {
        let Some((result, full)) = outcome? else { continue };
        runs.push(result);
        first = first.or(full);
    }
    Ok(Executed { runs, first })
}

/// Plays a run, and writes what its daemon saw and decided.
fn traced(
    ready: &Ready,
    scenario: &Scenario,
    watch: &mut impl run::Watch,
    folder: &Path,
) -> anyhow::Result<Outcome> {
    let mut recorder = Recorder::new(folder, &ready.config);
    // A run whose trace cannot be written need not go on.
    let whole = Cell::new(true);
    let mut ledger = |now, inputs, decisions: &Decisions| {
        whole.set(recorder.take(now, inputs, decisions));
    };
    let mut goes_on = |reached| whole.get() && watch.goes_on(reached);
    let outcome = run::run_with(scenario, ready.seed, &mut goes_on, Some(&mut ledger));
    let outcome = outcome.context("cannot simulate")?;
    if !recorder.end()? {
        return Err(PlanError(format!(
            "--trace: the first run has nothing to trace, because nobody follows Plimsoll in it \
             ({})",
            ready.plan.peer
        ))
        .into());
    }
    Ok(outcome)
}

/// Resolves the scenarios of the plans that belong to a shard.
pub(crate) fn prepare(
    study: &Study,
    plans: Vec<Plan>,
    shard: Shard,
    seed: Option<u64>,
) -> anyhow::Result<Vec<Ready>> {
    let mut ready: Vec<Ready> = Vec::new();
    let mut known: Option<(Map<String, Value>, Played)> = None;
    for plan in plans.into_iter().filter(|plan| shard.has(plan.index)) {
        let same = known.as_ref().filter(|(settings, _)| *settings == plan.settings);
        let played = match same {
            Some((_, played)) => played.clone(),
            None => resolve(study, &plan.settings, known.is_none())?,
        };
        known = Some((plan.settings.clone(), played.clone()));
        let Played { scenario, seed: named, config } = played;
        let seed = seed.unwrap_or(named).wrapping_add(plan.seed);
        ready.push(Ready { plan, seed, scenario, config });
    }
    Ok(ready)
}

/// A scenario that several runs may share, the seed that its file names, and its daemon's
/// configuration.
#[derive(Clone)]
struct Played {
    scenario: Arc<Scenario>,
    seed: u64,
    config: Arc<str>,
}

/// The scenario with these settings; warns where it is the first.
fn resolve(study: &Study, settings: &Map<String, Value>, warns: bool) -> anyhow::Result<Played> {
    let mut value = study.value.clone();
    for (path, setting) in settings {
        plan::set(&mut value, path, setting.clone())?;
    }
    let resolved: Result<Resolved, ScenarioError> = study.resolve(value);
    let Resolved { scenario, seed, config, warnings } = resolved?;
    if warns {
        for warning in &warnings {
            writeln!(std::io::stderr(), "{}", study.said(warning))?;
        }
    }
    if scenario.variants.is_empty() {
        return Err(PlanError("there is nothing to simulate".to_owned()).into());
    }
    Ok(Played { scenario: Arc::new(scenario), seed, config: config.into() })
}

/// Listens for an interrupt until what it returns is dropped. What was simulated by then is written;
/// a second interrupt ends the process.
fn listen(stop: &Arc<AtomicBool>) -> anyhow::Result<tokio::runtime::Runtime> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let stop = Arc::clone(stop);
    TaskTracker::new().spawn_on(
        async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                if stop.swap(true, Ordering::Relaxed) {
                    std::process::exit(130);
                }
            }
        },
        runtime.handle(),
    );
    Ok(runtime)
}

/// A bar on standard error, where that is a terminal.
fn progress(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{wide_bar} {percent} %, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}
