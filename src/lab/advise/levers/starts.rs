//! Faster starts, standby, and no replicas at all.

use std::time::Duration;

use crate::advise::change::{ScenarioChange, Trial};
use crate::advise::levers::bounds::bounded;
use crate::advise::scene::ModelScene;
use crate::backtest::demand::INTERVAL;
use crate::backtest::fleet::following;
use crate::simulate::Micros;
use crate::simulate::scenario::{Startup, Variant};
use plimsoll_core::decide::zero::ZeroPolicy;
use plimsoll_core::fleet::{Accelerator, Bounds, Role, VariantName};
use plimsoll_core::units::{CostPerHour, Fraction, Replicas, Seconds};

/// The shortest start-up time in seconds that a faster start is tried for.
const START_MIN: f64 = 20.0;

/// The price of a standby replica, as a multiple of the usual one.
const STANDBY_PRICE: f64 = 1.5;

/// The start-up time of standby in seconds.
const STANDBY_START: f64 = 10.0;

/// The idle time before scale to zero, in seconds.
const IDLE: f64 = 900.0;

/// The longest idle time in seconds that must be in the trace for scale to zero.
const IDLE_MIN: f64 = 2.0 * IDLE;

/// Starts in half the time.
pub(super) fn faster(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (model, described) in scene.scenario.models.iter().enumerate() {
        let starts = scene.variants_of(model).map(|it| it.startup.load.seconds());
        let longest = starts.fold(0.0, f64::max);
        if longest < START_MIN {
            continue;
        }

        let changes = scene.variants_of(model).map(|variant| {
            let mut changed = variant.clone();
            let half = variant.startup.load.seconds() / 2.0;
            changed.startup.load = Micros::from_secs_f64(half);
            changed.spec.start_time = variant.spec.start_time.and(Seconds::new(half));
            ScenarioChange::Variant(Box::new(changed))
        });
        let what = format!("replicas start in {:.0} s instead of {longest:.0} s", longest / 2.0);
        let trial = Trial::new(lever, described.key.to_string(), what, changes.collect());
        trials.push(trial.assuming(
            "images and weights are already on the nodes, or starts are otherwise this fast",
        ));
    }

    trials
}

/// Scale to zero of models with long idle times.
pub(super) fn to_zero(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for (model, described) in scene.scenario.models.iter().enumerate() {
        let variants: Vec<&Variant> = scene.variants_of(model).collect();
        let is_whole = variants.iter().all(|it| it.spec.role == Role::Both);
        let is_kept = variants.iter().any(|it| it.spec.bounds.min() > Replicas::ZERO);
        if !is_whole || !is_kept || longest_idle(scene, model) < IDLE_MIN {
            continue;
        }

        let mut policy = scene.scenario.control.policy.clone();
        let mut rule = policy.zero.of(&described.key);
        rule.policy = ZeroPolicy::AfterIdle(Seconds::new(IDLE).unwrap_or_default());
        policy.zero.overrides.insert(described.key.clone(), rule);
        let mut changes =
            vec![ScenarioChange::Policy(Box::new(policy)), ScenarioChange::WakeSignal];
        changes.extend(variants.iter().map(|it| bounded(it, Replicas::ZERO, it.spec.bounds.max())));
        let what = "no replicas after 15 minutes without requests".to_owned();
        let trial = Trial::new(lever, described.key.to_string(), what, changes);
        trials.push(trial.assuming(
            "a gateway holds requests while no replica serves, and a wake signal counts them",
        ));
    }

    trials
}

/// The longest time in seconds in which no request of a model arrived.
fn longest_idle(scene: &ModelScene<'_>, model: usize) -> f64 {
    let Some(load) = scene.load(model) else { return 0.0 };
    let mut longest = 0.0_f64;
    let mut idle = 0.0;
    for interval in &load.intervals {
        idle = if interval.arrived < 0.5 { idle + INTERVAL } else { 0.0 };
        longest = longest.max(idle);
    }

    longest
}

/// A standby variant for the one that costs the most, if too few requests are served in time.
pub(super) fn standby(scene: &ModelScene<'_>, lever: &'static str) -> Vec<Trial> {
    let mut trials = Vec::new();
    for model in 0..scene.scenario.models.len() {
        let Some(main) = scene.main_variant(model) else { continue };
        let slow = main.startup.load.seconds() >= 2.0 * STANDBY_START;
        if !scene.is_short() || !slow || main.spec.role != Role::Both {
            continue;
        }

        let peak = scene.scenario.variants.iter().zip(&scene.today.peaks);
        let peak = peak.filter(|(it, _)| it.model == model).map(|(_, peak)| *peak).sum::<u32>();
        let most = peak.div_ceil(4).max(1);
        let changes = with_standby(main, most);
        let what = format!("up to {most} standby replicas that start in {STANDBY_START:.0} s");
        let trial = Trial::new(lever, main.spec.key.to_string(), what, changes);
        let price = main.spec.cost.per_hour() * STANDBY_PRICE;
        trials.push(trial.assuming(format!(
            "a standby replica costs {price:.2} per hour, {STANDBY_PRICE} times the usual price, \
             and only while it runs"
        )));
    }

    trials
}

/// The changes that add standby to a variant. Both need the same accelerator, so that what one
/// has learned holds for the other.
fn with_standby(main: &Variant, most: u32) -> Vec<ScenarioChange> {
    let mut known = main.clone();
    if known.spec.accelerator.is_none() {
        known.spec.accelerator = Accelerator::new("unknown");
    }

    let mut standby = known.clone();
    let name = format!("{}-standby", main.spec.key.variant);
    if let Some(name) = VariantName::new(&name) {
        standby.spec.key.variant = name;
    }
    let price = Fraction::new(STANDBY_PRICE).unwrap_or(Fraction::ONE);
    standby.spec.cost =
        CostPerHour::new(main.spec.cost.per_hour() * price.fraction()).unwrap_or(main.spec.cost);
    standby.spec.bounds =
        Bounds::new(Replicas::ZERO, Replicas::new(most)).unwrap_or(main.spec.bounds);
    standby.spec.start_time = Seconds::new(STANDBY_START);
    let load = Micros::from_duration(Duration::from_secs_f64(STANDBY_START));
    standby.startup = Startup { load, ..Startup::default() };
    standby.initial = Replicas::ZERO;
    standby.actuator = following(standby.spec.bounds);
    vec![ScenarioChange::Variant(Box::new(known)), ScenarioChange::Variant(Box::new(standby))]
}
