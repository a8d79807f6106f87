//! Other objectives, and another analyzer.

use crate::advise::change::{ScenarioChange, Trial};
use crate::advise::scene::ModelScene;
use plimsoll_core::analyze::queueing::LatencyTarget;
use plimsoll_core::pipeline::Policy;
use plimsoll_core::pipeline::sizing::Sizing;
use plimsoll_core::units::Seconds;

/// The factors by which objectives are relaxed.
const FACTORS: [f64; 2] = [1.5, 3.0];

/// Relaxed objectives, one at a time, of those that decisions use.
pub(super) fn relax(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let policy = &scene.scenario.control.policy;
    let Some(sizing) = &policy.sizing else { return Vec::new() };
    let mut trials = Vec::new();
    for factor in FACTORS {
        if let Some(target) = sizing.queueing.targets.ttft {
            let relaxed = times(target.limit, factor);
            let mut changed = policy.clone();
            set_ttft(&mut changed, target, relaxed);
            let what = words("time to first token", target.limit, relaxed);
            trials.push(relaxing(scene, lever, changed, what));
        }
        if let Some(itl) = sizing.queueing.targets.itl {
            let relaxed = times(itl, factor);
            let mut changed = policy.clone();
            set_itl(&mut changed, relaxed);
            let what = words("time between tokens", itl, relaxed);
            trials.push(relaxing(scene, lever, changed, what));
        }
    }

    trials
}

fn relaxing(scene: &ModelScene<'_>, lever: &'static str, policy: Policy, what: String) -> Trial {
    let changes = vec![ScenarioChange::Policy(Box::new(policy))];
    let mut trial = Trial::new(lever, scene.name(), what, changes);
    trial.relaxes = true;
    trial.assuming("the shares are still those within today's objectives")
}

fn words(name: &str, from: Seconds, to: Seconds) -> String {
    format!("objective for the {name} {} -> {}", millis(from), millis(to))
}

fn set_ttft(policy: &mut Policy, target: LatencyTarget, limit: Seconds) {
    let Some(sizing) = &mut policy.sizing else { return };
    sizing.queueing.targets.ttft = Some(LatencyTarget { limit, ..target });
    sizing.foresight.ttft = limit;
}

fn set_itl(policy: &mut Policy, limit: Seconds) {
    let Some(sizing) = &mut policy.sizing else { return };
    sizing.queueing.targets.itl = Some(limit);
    sizing.foresight.itl = Some(limit);
}

/// Foresight instead of saturation thresholds, with the objectives of the simulation.
pub(super) fn foresight(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    if scene.scenario.control.policy.sizing.is_some() {
        return Vec::new();
    }

    let seconds = |micros: crate::simulate::Micros| Seconds::new(micros.seconds());
    let mut policy = scene.scenario.control.policy.clone();
    let mut sizing = Sizing::default();
    sizing.queueing.targets.itl = seconds(scene.fleet.slo.itl);
    sizing.foresight.itl = seconds(scene.fleet.slo.itl);
    sizing.foresight.ttft = seconds(scene.fleet.slo.ttft).unwrap_or_default();
    policy.sizing = Some(sizing);
    let what = "analysis: capacity, with foresight, instead of saturation".to_owned();
    vec![Trial::new(lever, scene.name(), what, vec![ScenarioChange::Policy(Box::new(policy))])]
}

fn times(value: Seconds, factor: f64) -> Seconds {
    Seconds::new(value.seconds() * factor).unwrap_or(value)
}

fn millis(value: Seconds) -> String {
    format!("{:.0} ms", value.seconds() * 1e3)
}
