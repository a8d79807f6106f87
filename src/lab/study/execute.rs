//! Runs, on all cores, with progress, until somebody interrupts.

use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context as _;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use rayon::prelude::*;
use serde_json::{Map, Value};
use tokio_util::task::TaskTracker;

use crate::simulate::Micros;
use crate::simulate::peers::best::NoFleet;
use crate::simulate::peers::{Peer, Unplayable};
use crate::simulate::run;
use crate::simulate::scenario::Scenario;
use crate::simulate::score::Outcome;
use crate::study::plan::{self, Plan, PlanError, Shard};
use crate::study::record::Recorder;
use crate::study::resolve::{self, Resolved};
use crate::study::results::{LeftOut, RunResult};
use crate::study::wrong::Wrong;
use crate::study::{Said, Study};
use plimsoll_core::pipeline::Decisions;

/// About as many runs as are simulated for one clairvoyant schedule.
const ORACLE_RUNS: u64 = 40;
/// About as many as are simulated for the best fixed number of one variant.
const BEST_RUNS: u64 = 7;
/// About as many as are simulated for the best target of KEDA.
const TUNED_RUNS: u64 = 5;

/// What all runs came to.
pub(crate) struct Executed {
    /// In the order of the plans, without those that had not begun at an interruption, or whose
    /// schedule had not been found.
    pub(crate) runs: Vec<RunResult>,
    /// Those that there cannot be.
    pub(crate) left_out: Vec<LeftOut>,
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
        self.scenario.length.micros().saturating_mul(self.simulations())
    }

    /// About how many simulations it takes.
    pub(crate) fn simulations(&self) -> u64 {
        let times = [
            (Peer::Oracle, ORACLE_RUNS),
            (Peer::StaticBest, BEST_RUNS),
            (Peer::KedaBest, TUNED_RUNS),
        ];
        times.iter().find(|(peer, _)| *peer == self.plan.peer).map_or(1, |(_, times)| *times)
    }

    /// What there is of it where a peer finds nothing that it could do.
    fn left_out(&self, why: NoFleet) -> LeftOut {
        let Plan { index, settings, peer, .. } = self.plan.clone();
        LeftOut { index, settings, policy: peer.to_string(), seed: self.seed, why: why.to_string() }
    }
}

/// What became of a run.
enum Done {
    /// It is over; and all of it where it is the first.
    Played(Box<(RunResult, Option<First>)>),
    LeftOut(LeftOut),
    /// It had not begun at an interruption.
    Interrupted,
}

/// What a peer that thinks beforehand came to.
enum Thought {
    Whole,
    /// Half of a search for a schedule is no schedule.
    Interrupted,
    Nothing(NoFleet),
}

/// Executes the plans of a shard, and traces the first where a folder is given for that. The number
/// of cores changes nothing but the time. Nothing begins where something is wrong.
pub(crate) fn execute(
    study: &Study,
    plans: Vec<Plan>,
    shard: Shard,
    seed: Option<u64>,
    trace: Option<&Path>,
    wrong: Wrong,
) -> anyhow::Result<Executed> {
    play(&prepare_beside(study, plans, shard, seed, wrong)?, trace)
}

/// Executes runs that can begin, and traces the first where a folder is given for that.
pub(crate) fn play(ready: &[Ready], trace: Option<&Path>) -> anyhow::Result<Executed> {
    let stop = Arc::new(AtomicBool::new(false));
    let _listener = listen(&stop)?;
    let bar = progress(ready.iter().map(Ready::weight).sum());
    let outcomes: Vec<anyhow::Result<Done>> = ready
        .par_iter()
        .enumerate()
        // Some runs take much longer than others, and none should wait behind them.
        .with_max_len(1)
        .map(|(at, ready)| one(ready, at == 0, trace, &stop, &bar))
        .collect();
    bar.finish_and_clear();
    let mut executed = Executed { runs: Vec::new(), left_out: Vec::new(), first: None };
    for outcome in outcomes {
        match outcome? {
            Done::Played(played) => {
                let (result, full) = *played;
                executed.runs.push(result);
                executed.first = executed.first.or(full);
            }
            Done::LeftOut(run) => executed.left_out.push(run),
            Done::Interrupted => {}
        }
    }
    Ok(executed)
}

/// Executes a run, of which the first is kept in full, and traced where there is a folder for that.
fn one(
    ready: &Ready,
    is_first: bool,
    trace: Option<&Path>,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> anyhow::Result<Done> {
    if stop.load(Ordering::Relaxed) {
        return Ok(Done::Interrupted);
    }
    let mut scenario = Scenario::clone(&ready.scenario);
    match apply(ready, &mut scenario, |_| !stop.load(Ordering::Relaxed))? {
        Thought::Whole => {}
        Thought::Interrupted => return Ok(Done::Interrupted),
        Thought::Nothing(why) => {
            bar.inc(ready.weight());
            return Ok(Done::LeftOut(ready.left_out(why)));
        }
    }
    bar.inc(ready.weight() - ready.scenario.length.micros());
    let mut shown = Micros::ZERO;
    let mut watch = |reached: Micros| {
        bar.inc(reached.since(shown).micros());
        shown = reached;
        !stop.load(Ordering::Relaxed)
    };
    let outcome = match trace.filter(|_| is_first) {
        Some(folder) => traced(ready, &scenario, &mut watch, folder)?,
        None => run::run(&scenario, ready.seed, &mut watch).context("cannot simulate")?,
    };
    bar.inc(outcome.ended.since(shown).micros());
    let result = RunResult::new(&ready.plan, ready.seed, &scenario, &outcome);
    Ok(Done::Played(Box::new((result, is_first.then_some(First { scenario, outcome })))))
}

/// Lets the peer of a run scale its scenario.
fn apply(
    ready: &Ready,
    scenario: &mut Scenario,
    mut goes_on: impl FnMut(Micros) -> bool,
) -> anyhow::Result<Thought> {
    let mut whole = true;
    let mut watch = |reached: Micros| {
        whole = whole && goes_on(reached);
        whole
    };
    match ready.plan.peer.apply(scenario, ready.seed, &mut watch) {
        Err(Unplayable::NoFleet(why)) => return Ok(Thought::Nothing(why)),
        applied => applied.context("cannot simulate")?,
    }
    Ok(if whole { Thought::Whole } else { Thought::Interrupted })
}

/// Plays a run, and writes what its daemon saw and decided.
fn traced(
    ready: &Ready,
    scenario: &Scenario,
    watch: &mut impl run::Watch,
    folder: &Path,
) -> anyhow::Result<Outcome> {
    if scenario.control.policy != ready.scenario.control.policy {
        return Err(PlanError(format!(
            "--trace: the first run is decided by {}, in settings of which Plimsoll's configuration \
             has no word, so nobody could decide it again; put --policy plimsoll first",
            ready.plan.peer
        ))
        .into());
    }
    let mut recorder = Recorder::new(folder, &ready.config);
    // A run whose trace cannot be written need not go on.
    let whole = AtomicBool::new(true);
    let mut ledger = |now, inputs, decisions: &Decisions| {
        whole.store(recorder.take(now, inputs, decisions), Ordering::Relaxed);
    };
    let mut goes_on = |reached| whole.load(Ordering::Relaxed) && watch.goes_on(reached);
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
    prepare_beside(study, plans, shard, seed, Wrong::default())
}

/// Does the same, and says what is wrong together with what is known to be.
fn prepare_beside(
    study: &Study,
    plans: Vec<Plan>,
    shard: Shard,
    seed: Option<u64>,
    mut wrong: Wrong,
) -> anyhow::Result<Vec<Ready>> {
    let mut ready: Vec<Ready> = Vec::new();
    let mut known: Option<(Map<String, Value>, Option<Played>)> = None;
    for plan in plans.into_iter().filter(|plan| shard.has(plan.index)) {
        if wrong.is_full() {
            break;
        }
        let same = known.as_ref().filter(|(settings, _)| *settings == plan.settings);
        let played = match same {
            Some((_, played)) => played.clone(),
            None => resolve(study, &plan.settings, known.is_none(), &mut wrong)?,
        };
        known = Some((plan.settings.clone(), played.clone()));
        let Some(Played { scenario, seed: named, config }) = played else { continue };
        if let Err(error) = plan.peer.plays(&scenario) {
            wrong.add(Said::Beside(format!("{} {error}", plan.peer)));
            continue;
        }
        let seed = seed.unwrap_or(named).wrapping_add(plan.seed);
        ready.push(Ready { plan, seed, scenario, config });
    }
    wrong.check(&study.path)?;
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

/// The scenario with these settings, unless something is wrong with it; warns where it is the first.
fn resolve(
    study: &Study,
    settings: &Map<String, Value>,
    warns: bool,
    wrong: &mut Wrong,
) -> anyhow::Result<Option<Played>> {
    let mut value = study.value.clone();
    let mut lost = false;
    for (path, setting) in settings {
        if let Err(why) = plan::set(&mut value, path, setting.clone()) {
            wrong.add(study.said_of(path, setting, &format!("error: {why}")));
            lost = true;
        }
    }
    let resolved = match resolve::resolve(value, &study.folder()) {
        Ok(resolved) => resolved,
        Err(problems) => {
            for problem in &problems {
                wrong.add(study.placed(problem, settings));
            }
            return Ok(None);
        }
    };
    let Resolved { scenario, seed, config, warnings } = resolved;
    if lost {
        return Ok(None);
    }
    if warns {
        for warning in &warnings {
            writeln!(std::io::stderr(), "{}", study.said(warning))?;
        }
    }
    if scenario.variants.is_empty() {
        return Err(PlanError("there is nothing to simulate".to_owned()).into());
    }
    Ok(Some(Played { scenario: Arc::new(scenario), seed, config: config.into() }))
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

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn ready(policy: &str) -> Ready {
        let text = "\
length: 1m
models:
- name: m
  slo: {ttft: 1s, itl: 60ms}
  workload: {drawn: {rate: 2, prompt: {fixed: 100}, output: {fixed: 10}}}
variants:
- name: v
  replicas: {min: 1, max: 2}
  engine: {alpha: 5ms, beta: 10us, delta: 10us, kv_tokens: 10000}
";
        let folder = tempfile::tempdir().unwrap();
        let path: PathBuf = folder.path().join("s.yaml");
        fs::write(&path, text).unwrap();
        let study = Study::read(&path).unwrap();
        let peers = [Peer::parse(policy).unwrap()];
        let plans = plan::plan(&Value::Null, &Map::new(), &peers, 1).unwrap();
        prepare(&study, plans, Shard::WHOLE, None).unwrap().remove(0)
    }

    #[test]
    fn an_interrupted_search_is_no_schedule_and_no_fleet() {
        for (policy, looks) in
            [("oracle", 0), ("oracle", 2), ("static:best", 0), ("static:best", 1)]
        {
            let ready = ready(policy);
            let mut scenario = Scenario::clone(&ready.scenario);
            let mut left = looks;
            let goes_on = |_| {
                left -= 1;
                left >= 0
            };
            let thought = apply(&ready, &mut scenario, goes_on).unwrap();
            assert!(matches!(thought, Thought::Interrupted), "{policy}: {looks} looks");
            let mut scenario = Scenario::clone(&ready.scenario);
            let thought = apply(&ready, &mut scenario, |_| true).unwrap();
            assert!(matches!(thought, Thought::Whole), "{policy}");
        }
    }
}
