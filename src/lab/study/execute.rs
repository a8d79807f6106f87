//! Executes runs on all cores, with progress, until an interrupt.

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
use crate::simulate::peers::{NoFleet, Peer, Unplayable};
use crate::simulate::run;
use crate::simulate::scenario::Scenario;
use crate::simulate::score::Outcome;
use crate::study::plan::{self, Plan, PlanError, Shard};
use crate::study::record::Recorder;
use crate::study::resolve::{self, ResolvedScenario};
use crate::study::results::{LeftOut, RunResult};
use crate::study::source::Study;
use crate::study::wrong::{ProblemLine, StudyProblems};
use plimsoll_core::pipeline::Decisions;

/// The approximate simulations for one clairvoyant schedule.
const ORACLE_RUNS: u64 = 40;
/// The approximate simulations for the best fixed replica count of one variant.
const BEST_RUNS: u64 = 7;
/// The approximate simulations for the best target of KEDA.
const TUNED_RUNS: u64 = 5;

/// The results of all runs.
pub(crate) struct ExecutedRuns {
    /// The results in the order of the plans. Runs that had not begun at an interruption are
    /// missing, as are those whose schedule had not been found.
    pub(crate) runs: Vec<RunResult>,
    /// The runs that are impossible.
    pub(crate) left_out: Vec<LeftOut>,
    /// The first run in full.
    pub(crate) first: Option<FirstRun>,
}

/// A run in full.
pub(crate) struct FirstRun {
    pub(crate) scenario: Scenario,
    pub(crate) outcome: Outcome,
}

/// A run that can begin.
pub(crate) struct PreparedRun {
    pub(crate) plan: Plan,
    seed: u64,
    pub(crate) scenario: Arc<Scenario>,
    /// The configuration of the daemon, as YAML.
    config: Arc<str>,
}

impl PreparedRun {
    /// The approximate work in simulated microseconds; the search for a schedule simulates many
    /// runs.
    fn weight(&self) -> u64 {
        self.scenario.length.micros().saturating_mul(self.simulations())
    }

    /// The approximate number of simulations.
    pub(crate) fn simulations(&self) -> u64 {
        let times = [
            (Peer::Oracle, ORACLE_RUNS),
            (Peer::StaticBest, BEST_RUNS),
            (Peer::KedaBest, TUNED_RUNS),
        ];
        times.iter().find(|(peer, _)| *peer == self.plan.peer).map_or(1, |(_, times)| *times)
    }

    /// The record of a run that is impossible because its peer found no fleet.
    fn left_out(&self, why: NoFleet) -> LeftOut {
        let Plan { index, settings, peer, .. } = self.plan.clone();
        LeftOut { index, settings, policy: peer.to_string(), seed: self.seed, why: why.to_string() }
    }
}

/// The outcome of a run.
enum RunEnd {
    /// It has ended; with the full run if it is the first.
    Played(Box<(RunResult, Option<FirstRun>)>),
    LeftOut(LeftOut),
    /// It had not begun at the interruption.
    Interrupted,
}

/// The result of a peer that searches before the run.
enum PeerSearch {
    Whole,
    /// The search was interrupted; half of a search is not a schedule.
    Interrupted,
    Nothing(NoFleet),
}

/// Executes the plans of a shard, and traces the first run if a folder is given. The number of
/// cores only affects the duration. No run begins if there is any problem.
pub(crate) fn execute(
    study: &Study,
    plans: Vec<Plan>,
    shard: Shard,
    seed: Option<u64>,
    trace: Option<&Path>,
    wrong: StudyProblems,
) -> anyhow::Result<ExecutedRuns> {
    play(&prepare_beside(study, plans, shard, seed, wrong)?, trace)
}

/// Executes prepared runs, and traces the first run if a folder is given.
pub(crate) fn play(ready: &[PreparedRun], trace: Option<&Path>) -> anyhow::Result<ExecutedRuns> {
    let stop = Arc::new(AtomicBool::new(false));
    let _listener = listen(&stop)?;
    let bar = progress(ready.iter().map(PreparedRun::weight).sum());
    let outcomes: Vec<anyhow::Result<RunEnd>> = ready
        .par_iter()
        .enumerate()
        // Some runs take much longer than others, and no run should wait behind them.
        .with_max_len(1)
        .map(|(at, ready)| one(ready, at == 0, trace, &stop, &bar))
        .collect();
    bar.finish_and_clear();
    let mut executed = ExecutedRuns { runs: Vec::new(), left_out: Vec::new(), first: None };
    for outcome in outcomes {
        match outcome? {
            RunEnd::Played(played) => {
                let (result, full) = *played;
                executed.runs.push(result);
                executed.first = executed.first.or(full);
            }
            RunEnd::LeftOut(run) => executed.left_out.push(run),
            RunEnd::Interrupted => {}
        }
    }

    Ok(executed)
}

/// Executes a run; the first is kept in full, and traced if a folder is given.
fn one(
    ready: &PreparedRun,
    is_first: bool,
    trace: Option<&Path>,
    stop: &AtomicBool,
    bar: &ProgressBar,
) -> anyhow::Result<RunEnd> {
    if stop.load(Ordering::Relaxed) {
        return Ok(RunEnd::Interrupted);
    }

    let mut scenario = Scenario::clone(&ready.scenario);
    match apply(ready, &mut scenario, |_| !stop.load(Ordering::Relaxed))? {
        PeerSearch::Whole => {}
        PeerSearch::Interrupted => return Ok(RunEnd::Interrupted),
        PeerSearch::Nothing(why) => {
            bar.inc(ready.weight());
            return Ok(RunEnd::LeftOut(ready.left_out(why)));
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
    Ok(RunEnd::Played(Box::new((result, is_first.then_some(FirstRun { scenario, outcome })))))
}

/// Lets the peer of a run scale its scenario.
fn apply(
    ready: &PreparedRun,
    scenario: &mut Scenario,
    mut goes_on: impl FnMut(Micros) -> bool,
) -> anyhow::Result<PeerSearch> {
    let mut whole = true;
    let applied = ready.plan.peer.apply(scenario, ready.seed, &mut |reached: Micros| {
        whole = whole && goes_on(reached);
        whole
    });

    match applied {
        Err(Unplayable::NoFleet(why)) => return Ok(PeerSearch::Nothing(why)),
        others => others.context("cannot simulate")?,
    }

    Ok(if whole { PeerSearch::Whole } else { PeerSearch::Interrupted })
}

/// Plays a run, and writes its daemon's inputs and decisions.
fn traced(
    ready: &PreparedRun,
    scenario: &Scenario,
    watch: &mut impl run::Watch,
    folder: &Path,
) -> anyhow::Result<Outcome> {
    if scenario.control.policy != ready.scenario.control.policy {
        return Err(PlanError(format!(
            "--trace: the policy of the first run, {}, is not part of Plimsoll's configuration, \
             so the run cannot be replayed; put --policy plimsoll first",
            ready.plan.peer
        ))
        .into());
    }

    let mut recorder = Recorder::new(folder, &ready.config);
    // A run whose trace cannot be written can stop.
    let whole = AtomicBool::new(true);
    let outcome = run::run_with(
        scenario,
        ready.seed,
        &mut |reached| whole.load(Ordering::Relaxed) && watch.goes_on(reached),
        Some(&mut |now, inputs, decisions: &Decisions| {
            whole.store(recorder.take(now, inputs, decisions), Ordering::Relaxed);
        }),
    )
    .context("cannot simulate")?;

    if !recorder.end()? {
        return Err(PlanError(format!(
            "--trace: the first run has nothing to trace, because its replicas do not follow \
             Plimsoll ({})",
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
) -> anyhow::Result<Vec<PreparedRun>> {
    prepare_beside(study, plans, shard, seed, StudyProblems::default())
}

/// Does the same, and reports its problems together with the given ones.
fn prepare_beside(
    study: &Study,
    plans: Vec<Plan>,
    shard: Shard,
    seed: Option<u64>,
    mut wrong: StudyProblems,
) -> anyhow::Result<Vec<PreparedRun>> {
    let mut ready: Vec<PreparedRun> = Vec::new();
    let mut known: Option<(Map<String, Value>, Option<SharedScenario>)> = None;
    for plan in plans.into_iter().filter(|plan| shard.has(plan.index)) {
        if wrong.is_full() {
            break;
        }

        let same = known.as_ref().filter(|(settings, _)| *settings == plan.settings);
        let played = match same {
            Some((_, before)) => before.clone(),
            None => resolve(study, &plan.settings, known.is_none(), &mut wrong)?,
        };
        known = Some((plan.settings.clone(), played.clone()));
        let Some(SharedScenario { scenario, seed: named, config }) = played else { continue };
        if let Err(error) = plan.peer.plays(&scenario) {
            wrong.add(ProblemLine::Beside(format!("{} {error}", plan.peer)));
            continue;
        }

        let own_seed = seed.unwrap_or(named).wrapping_add(plan.seed);
        ready.push(PreparedRun { plan, seed: own_seed, scenario, config });
    }

    wrong.check(&study.path)?;
    Ok(ready)
}

/// The scenario with these settings.
pub(crate) fn resolve_one(
    study: &Study,
    settings: &Map<String, Value>,
) -> anyhow::Result<Arc<Scenario>> {
    let mut wrong = StudyProblems::default();
    let resolved = resolve(study, settings, true, &mut wrong)?;
    wrong.check(&study.path)?;

    let shared = resolved.context("the scenario has problems that are not listed")?;
    Ok(shared.scenario)
}

/// A scenario that several runs may share, the seed from its file, and its daemon's configuration.
#[derive(Clone)]
struct SharedScenario {
    scenario: Arc<Scenario>,
    seed: u64,
    config: Arc<str>,
}

/// The scenario with these settings, unless it has a problem; shows warnings if `warns` is set.
fn resolve(
    study: &Study,
    settings: &Map<String, Value>,
    warns: bool,
    wrong: &mut StudyProblems,
) -> anyhow::Result<Option<SharedScenario>> {
    let mut value = study.value.clone();
    let mut lost = false;
    for (path, setting) in settings {
        if let Err(why) = plan::set(&mut value, path, setting.clone()) {
            wrong.add(study.said_of(path, setting, &format!("error: {why}")));
            lost = true;
        }
    }

    let found = resolve::resolve(value, &study.folder());
    let ResolvedScenario { scenario, seed, config, warnings } = match found {
        Ok(resolved) => resolved,
        Err(problems) => {
            for problem in &problems {
                wrong.add(study.placed(problem, settings));
            }
            return Ok(None);
        }
    };

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

    Ok(Some(SharedScenario { scenario: Arc::new(scenario), seed, config: config.into() }))
}

/// Listens for an interrupt until the returned runtime is dropped. Finished simulations are then
/// still written; a second interrupt ends the process.
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

/// A progress bar on standard error, if that is a terminal.
fn progress(total: u64) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr_with_hz(5));
    let style = ProgressStyle::with_template("{wide_bar} {percent}%, {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::PathBuf;

    use super::*;

    fn ready(policy: &str) -> PreparedRun {
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
            let thought = apply(&ready, &mut scenario, |_| {
                left -= 1;
                left >= 0
            });
            assert!(matches!(thought.unwrap(), PeerSearch::Interrupted), "{policy}: {looks} looks");

            let mut scenario = Scenario::clone(&ready.scenario);
            let thought = apply(&ready, &mut scenario, |_| true).unwrap();
            assert!(matches!(thought, PeerSearch::Whole), "{policy}");
        }
    }
}
