//! What would change a number, held against what then happens.

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::decide::Decision;
use plimsoll::decide::limit::{Allowance, LimitName, LimitScope, LimitSource, SupplyLimit};
use plimsoll::fleet::Bounds;
use plimsoll::pipeline::Policy;
use plimsoll::pipeline::counterfactual::{
    self, ChangedInput, Counterfactuals, LoadMeasure, SOLVES_MAX, Unanswered,
};
use plimsoll::pipeline::limits::LimitPolicy;
use plimsoll::pipeline::repeat::TickScene;
use plimsoll::units::{Gpus, Seconds};

use crate::pipeline::{BUSY, World, at, desired, key, n, of, policy, spec};
use crate::sizing::sized;
use crate::working::{Engine, Work};

/// The answers about variant `a` in a scene.
fn answers(scene: TickScene) -> Counterfactuals {
    let model = scene.inputs.fleet.get(&key("a")).unwrap().model_key();
    let (tick, found) = scene.decided(&model);
    let decision = found.decisions.iter().find(|it| it.variant == key("a"));
    counterfactual::answer(&tick, &key("a"), decision, &|| true)
}

/// The scene of the next tick of a world.
fn scene(world: &World) -> TickScene {
    let (pipeline, now) = (world.pipeline.clone(), at(world.second));
    TickScene { pipeline, now, inputs: world.inputs(), follows: None }
}

/// The decision on `a` of a tick that is decided again without a change, beside the first one.
fn twice(scene: TickScene) -> (Decision, Decision) {
    let model = scene.inputs.fleet.get(&key("a")).unwrap().model_key();
    let (tick, found) = scene.decided(&model);
    (of(&found, "a").clone(), tick.decide(&key("a"), &[]).unwrap())
}

fn foreseen() -> Work {
    let policy = sized(&[Analyzer::Foresight]);
    Work::with(policy, vec![spec("a", 1.0, (1, 30))], Engine::default())
}

#[test]
fn a_tick_decided_again_without_a_change_is_the_same() {
    let mut work = foreseen();
    for (replicas, rate) in [(2, 5.0), (2, 25.0), (4, 30.0), (6, 30.0), (6, 4.0), (3, 9.0)] {
        for second in 0..90 {
            let _ = work.run(replicas, rate, 1);
            let (once, again) = twice(work.scene.clone().unwrap());
            assert_eq!(once, again, "{replicas} replicas, {rate} requests/s, second {second}");
        }
    }

    let mut world = World::with(policy(), vec![spec("a", 1.0, (1, 9)), spec("b", 2.0, (1, 9))]);
    for (count, load) in [(2, BUSY), (3, (0.5, 0.3)), (4, (0.1, 0.0))] {
        world.set("a", count, load);
        world.set("b", count, load);
        for second in 0..40 {
            let (once, again) = twice(scene(&world));
            assert_eq!(once, again, "{count} at {load:?}, second {second}");
            let _ = world.tick();
        }
    }
}

#[test]
fn above_the_upper_threshold_it_scales_up_and_between_both_nothing_changes() {
    // Without the margins for a load that has just changed: they would add a replica for a while,
    // which then stays because of the hysteresis.
    let steady = || {
        let mut policy = sized(&[Analyzer::Foresight]);
        let foresight = &mut policy.sizing.as_mut().unwrap().foresight;
        foresight.young = None;
        foresight.growth = None;
        foresight.unevenness = None;
        foresight.ramp = None;
        foresight.bursts = None;
        foresight.jump = None;
        foresight.backlog = None;
        Work::with(policy, vec![spec("a", 1.0, (1, 30))], Engine::default())
    };
    let mut work = steady();
    let _ = work.run(2, 30.0, 1800);
    let found = answers(work.scene.clone().unwrap());
    let load = found.load.clone().unwrap();
    assert_eq!(load.measure, LoadMeasure::Arrivals);
    assert!((load.now - 30.0).abs() < 0.5, "{load:?}");
    assert!(found.complete && found.solves <= SOLVES_MAX, "{found:?}");

    // What happens at loads on both sides of a threshold, after everything has waited. At another
    // load, another capacity is learned, so the upper threshold is right within 10%, and the lower
    // one is the highest at which it may scale down.
    let number = found.settled.unwrap();
    let up = load.up.unwrap();
    let down = load.down.unwrap();
    let at_rate = |rate: f64| {
        let mut other = steady();
        let _ = other.run(number.count(), 30.0, 1800);
        desired(&other.run(number.count(), rate, 3600), "a")
    };
    assert!(up.load > load.now && down.load < load.now, "{load:?}");
    assert_eq!(at_rate(1.03 * up.load), up.desired.count(), "{load:?}");
    assert_eq!(at_rate(0.90 * up.load), number.count(), "{load:?}");
    assert_eq!(at_rate(1.03 * down.load), number.count(), "{load:?}");
}

#[test]
fn while_a_scale_down_waits_the_thresholds_are_about_the_number_in_effect() {
    let mut work = foreseen();
    let _ = work.run(6, 60.0, 600);
    let last = work.run(6, 8.0, 20);
    let found = answers(work.scene.clone().unwrap());
    let in_effect = found.desired.unwrap();
    assert_eq!(in_effect, n(desired(&last, "a")));
    assert!(found.settled.unwrap() < in_effect, "a scale-down waits: {found:?}");

    let load = found.load.unwrap();
    let up = load.up.unwrap();
    let down = load.down.unwrap();
    assert!(up.desired > in_effect && down.desired < in_effect, "{load:?}");
    assert!(load.now < down.load && down.load < up.load, "{load:?}");
}

#[test]
fn a_looser_objective_that_would_be_enough_is_found_and_is_enough() {
    let mut policy = sized(&[Analyzer::Foresight]);
    let set = |policy: &mut Policy, itl: f64| {
        policy.sizing.as_mut().unwrap().foresight.itl = Some(ms(itl));
    };
    set(&mut policy, 12.0);
    let run = |policy: &Policy| {
        let mut work = Work::with(policy.clone(), vec![spec("a", 1.0, (1, 30))], Engine::default());
        let last = work.run(3, 45.0, 1800);
        (desired(&last, "a"), work)
    };

    let (before, work) = run(&policy);
    let found = answers(work.scene.clone().unwrap());
    let answer = found.changes.iter().find(|it| matches!(it.input, ChangedInput::Itl { .. }));
    let answer = answer.unwrap_or_else(|| panic!("{before}: {found:?}"));
    let ChangedInput::Itl { to, .. } = answer.input else { unreachable!() };
    set(&mut policy, 1000.0 * to.seconds() * 1.02);
    let (after, _) = run(&policy);
    assert!(after < before, "{after} with {to:?}, {before} before: {found:?}");
    assert_eq!(after, answer.desired.count(), "{found:?}");
}

fn ms(milliseconds: f64) -> Seconds {
    Seconds::new(milliseconds / 1000.0).unwrap()
}

#[test]
fn one_more_accelerator_is_named_where_a_quota_cuts_and_one_model_cuts_not_the_other() {
    let allowance = Allowance::Total(Gpus::new(5));
    let source = LimitSource::Read(allowance);
    let name = LimitName::new("quota").unwrap();
    let configured = vec![SupplyLimit { name, scope: LimitScope::Cluster, source }];
    let limits = LimitPolicy { configured, ..LimitPolicy::default() };
    let specs = vec![spec("a", 1.0, (1, 9)), spec("b", 2.0, (1, 9))];
    let mut world = World::with(Policy { limits, ..policy() }, specs);
    world.set("a", 3, BUSY);
    world.set("b", 2, BUSY);
    let last = world.run(5);
    assert_eq!(desired(&last, "a"), 3, "cut by the quota");

    let found = answers(scene(&world));
    let [answer] = found.changes.as_slice() else { panic!("{found:?}") };
    assert_eq!(answer.desired, n(4));
    let ChangedInput::Accelerators { limit, more, .. } = &answer.input else { panic!("{found:?}") };
    assert_eq!((limit.as_str(), *more), ("quota", Gpus::ONE));
}

#[test]
fn the_bound_that_holds_a_number_is_named_with_the_number_without_it() {
    let mut world = World::with(policy(), vec![spec("a", 1.0, (1, 3))]);
    world.set("a", 3, BUSY);
    let _ = world.run(5);
    let found = answers(scene(&world));
    let [answer] = found.changes.as_slice() else { panic!("{found:?}") };
    assert_eq!(answer.input, ChangedInput::NoMaximum { from: n(3) });
    assert_eq!(answer.desired, n(4));

    let mut low = World::with(policy(), vec![spec("a", 1.0, (3, 9))]);
    low.set("a", 3, (0.01, 0.0));
    let _ = low.run(400);
    let found = answers(scene(&low));
    let [answer] = found.changes.as_slice() else { panic!("{found:?}") };
    assert_eq!(answer.input, ChangedInput::Minimum { from: n(3), to: n(1) });
    assert!(answer.desired < n(3), "{found:?}");
    assert_eq!(low.fleet.get(&key("a")).unwrap().bounds, Bounds::new(n(3), Some(n(9))).unwrap());
}

#[test]
fn without_data_or_without_load_the_answer_is_the_reason() {
    let mut world = World::with(policy(), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 2, BUSY).silent = vec![0, 1];
    let _ = world.run(3);
    let found = answers(scene(&world));
    assert_eq!((found.desired, found.settled), (None, None));
    assert_eq!(found.load, Err(Unanswered::NoDecision));

    let mut lost = World::with(policy(), vec![spec("a", 1.0, (1, 9))]);
    lost.set("a", 2, BUSY);
    let _ = lost.run(20);
    lost.set("a", 2, BUSY).silent = vec![0, 1];
    let _ = lost.run(60);
    let found = answers(scene(&lost));
    assert!(found.desired.is_some());
    assert_eq!(found.load, Err(Unanswered::NoData));

    let mut idle = World::with(policy(), vec![spec("a", 1.0, (1, 9))]);
    idle.set("a", 2, (0.0, 0.0));
    let _ = idle.run(60);
    assert_eq!(answers(scene(&idle)).load, Err(Unanswered::NoLoad));
}

#[test]
fn a_search_that_may_not_go_on_ends_and_says_so() {
    let mut work = foreseen();
    let _ = work.run(3, 30.0, 300);
    let scene = work.scene.clone().unwrap();
    let model = scene.inputs.fleet.get(&key("a")).unwrap().model_key();
    let (tick, found) = scene.decided(&model);
    let left = std::cell::Cell::new(5);
    let goes_on = || {
        left.set(left.get() - 1);
        left.get() >= 0
    };
    let cut = counterfactual::answer(&tick, &key("a"), Some(of(&found, "a")), &goes_on);
    assert!(!cut.complete, "{cut:?}");
    assert_eq!(cut.solves, 5);
    assert_eq!(cut.desired, Some(of(&found, "a").desired()));
}
