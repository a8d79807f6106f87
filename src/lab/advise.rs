//! Advice: changes of a fleet that would save money or serve more requests in time.
//!
//! Each [lever](levers) proposes changes of the fleet that a trace shows. Each change is played in
//! the simulator, on the same requests as the fleet of today. [`judge`] compares the two, in equal
//! parts of the time.

pub mod args;
mod change;
mod engines;
mod estimate;
mod judge;
mod levers;
mod output;
mod play;
mod scene;
mod span;

use rayon::prelude::*;

use crate::advise::args::{AdviceFormat, AdviseArgs};
use crate::advise::change::Trial;
use crate::advise::judge::{Before, judged};
use crate::advise::output::Advice;
use crate::advise::play::{TrialOutcome, play};
use crate::advise::scene::{AdvisedFleet, ModelScene};
use crate::backtest::demand::TraceDemand;
use crate::backtest::interrupt::Interrupt;
use crate::backtest::screen::Progress;
use crate::backtest::source::TraceSource;
use crate::output::print;

/// The most trials in one run, over all models.
const TRIALS_MAX: usize = 60;

/// The most trials for one group of models. The simulated time is as long as about half of them
/// need a minute for.
const GROUP_TRIALS_MAX: usize = 24;

/// The most models, or groups of models that share limits, that are looked at: the ones that cost
/// the most.
const GROUPS_MAX: usize = 8;

/// Looks for changes of the fleet in a trace, and prints what they would bring.
///
/// # Errors
///
/// The trace cannot be read or has too little data, Prometheus does not respond, or it was
/// interrupted.
pub fn run(args: &AdviseArgs) -> anyhow::Result<()> {
    let interrupt = Interrupt::listen()?;
    let cards = engines::read_cards(&args.card)?;
    let source = TraceSource::open(&args.source, &interrupt)?;
    let mut gathered = TraceDemand::default();
    let candidates = source.read(&interrupt, |tick| gathered.take(tick))?;
    let fleet = AdvisedFleet::new(gathered, &candidates, cards, args)?;
    let advice = advise(&fleet, args, &interrupt)?;

    let text = match args.output {
        AdviceFormat::Text => advice.text(&fleet.slo),
        AdviceFormat::Json => serde_json::to_string_pretty(&advice)? + "\n",
    };
    print(&text)
}

fn advise(
    fleet: &AdvisedFleet,
    args: &AdviseArgs,
    interrupt: &Interrupt,
) -> anyhow::Result<Advice> {
    let mut groups = fleet.groups();
    let left_out = groups.split_off(groups.len().min(GROUPS_MAX));
    let mut advice = Advice::new(fleet, args, left_out.len());
    let progress = Progress::new(groups.len() as u64 * 100);
    progress.say(&fleet.announcement());

    let mut room = TRIALS_MAX;
    for (at, group) in groups.iter().enumerate() {
        let scenarios = fleet.scenarios_of(group);
        let today = played(&scenarios, &Trial::nothing(), fleet, interrupt)?;
        progress.reached(at as u64 * 100 + 10);
        let scene = ModelScene::new(fleet, &scenarios[0], &today, args);
        let before = Before::new(&scene, &today);
        let mut trials = levers::all(&scene);
        let untried = trials.split_off(trials.len().min(room).min(GROUP_TRIALS_MAX));
        room -= trials.len();
        advice.not_tried += untried.len();

        let results: Vec<anyhow::Result<TrialOutcome>> =
            trials.par_iter().map(|trial| played(&scenarios, trial, fleet, interrupt)).collect();
        interrupt.check()?;
        for (trial, result) in trials.into_iter().zip(results) {
            advice.add(judged(&before, trial, &result?, args.target()));
        }

        advice.models.push(before.summary);
        progress.reached((at as u64 + 1) * 100);
    }

    progress.end();
    advice.sort();
    Ok(advice)
}

/// Plays a trial with each seed.
fn played(
    scenarios: &[crate::simulate::scenario::Scenario],
    trial: &Trial,
    fleet: &AdvisedFleet,
    interrupt: &Interrupt,
) -> anyhow::Result<TrialOutcome> {
    let mut all = TrialOutcome::default();
    for (seed, scenario) in (fleet.seed..).zip(scenarios) {
        let changed = trial.applied(scenario);
        all.add(play(&changed, seed, &fleet.blocks, interrupt)?);
    }

    Ok(all)
}
