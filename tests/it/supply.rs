//! Supply and demand under `foresight`, as far as some of it is not seen: replicas that are silent,
//! that do not start, or of which the capacity is unknown.

use std::collections::BTreeMap;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::foresight::policy::Steps;
use plimsoll::decide::Basis;
use plimsoll::decide::enforce::Behavior;
use plimsoll::fleet::{Fleet, Role, VariantSpec};
use plimsoll::observe::{Scale, ScrapeFailure, ScrapeRoute, WhyScaleUnknown};
use plimsoll::pipeline::saved::VariantMemory;
use plimsoll::pipeline::{Decisions, Pipeline, Policy};

use crate::foresight::quick;
use crate::pipeline::{World, at, desired, key, n, of, spec};
use crate::sizing::sized;
use crate::working::{Beside, Engine, Work};

fn one() -> Work {
    Work::with(quick(), vec![spec("a", 1.0, (1, 60))], Engine::default())
}

fn two(cost: f64) -> Work {
    let specs = vec![spec("a", 1.0, (0, 60)), spec("b", cost, (0, 60))];
    Work::with(quick(), specs, Engine::default())
}

#[test]
fn a_fleet_grows_for_what_its_silent_replicas_get() {
    let grown = |silent: u32| {
        let mut work = one();
        let _ = work.run(10, 100.0, 90);
        work.failing.insert("a".to_owned(), silent);
        desired(&work.run(10, 260.0, 60), "a")
    };
    let all = grown(0);
    assert!(all > 12, "{all}");
    for silent in 1..8 {
        let some = grown(silent);
        assert!(some >= all && some <= all + 2, "{silent} are silent: {some} instead of {all}");
    }
}

#[test]
fn no_arrivals_are_assumed_for_replicas_that_sleep() {
    let mut work = one();
    let _ = work.run(10, 100.0, 90);
    work.asleep.insert("a".to_owned(), 8);
    let decisions = work.run_all(&[("a", 10, 26.0)], 90);
    let sizing = of(&decisions, "a").sizing.as_ref().unwrap();
    let arriving = sizing.foreseen.as_ref().unwrap().need.arriving;
    assert!((40.0..60.0).contains(&arriving), "26 requests/s at each of two: {arriving}");
    assert_eq!(sizing.asleep.count(), 8);
}

#[test]
fn listed_targets_that_never_answer_are_no_capacity_and_no_replicas_after_a_start() {
    let asked = |never: u32, rate: f64, seconds: u32| {
        let mut work = one();
        work.listed = true;
        work.failing.insert("a".to_owned(), never);
        let _ = work.run_all(&[("a", 4 + never, 10.0)], 90);
        desired(&work.run_all(&[("a", 4 + never, rate)], seconds), "a")
    };

    // While they may be starting, a lower number keeps them.
    let need = asked(0, 1.0, 120);
    let kept = asked(2, 1.0, 120);
    assert_eq!(kept, need + 2);

    for (never, rate) in [(2, 1.0), (6, 10.0)] {
        let [without, with] = [asked(0, rate, 700), asked(never, rate, 700)];
        assert_eq!(with, without, "{rate} requests/s");
    }

    // Replicas that are needed all the time are requested once more.
    let [without, with] = [asked(0, 26.0, 900), asked(2, 26.0, 900)];
    assert!(with > without && with <= without + 2, "{with} instead of {without}");
}

/// Two listed variants. Of the targets of the cheaper one, two never answer.
fn listed_two() -> Work {
    let mut work = two(3.0);
    work.listed = true;
    work.failing.insert("a".to_owned(), 2);
    let _ = work.run_all(&[("a", 6, 15.0), ("b", 2, 15.0)], 90);
    work
}

#[test]
fn another_variant_takes_the_place_of_listed_targets_that_hang() {
    let mut work = listed_two();
    let busy = [("a", 6, 25.0), ("b", 2, 25.0)];
    let before = work.run_all(&busy, 300);
    assert!(desired(&before, "a") >= 6 && desired(&before, "b") <= 2, "{before:?}");

    for _ in 0..2 {
        let said = work.run_all(&busy, 900);
        assert!(desired(&said, "a") >= 6, "as long as it is needed: {:?}", of(&said, "a").steps);
        assert!(desired(&said, "b") > 2, "{:?}", of(&said, "b").steps);
    }
}

#[test]
fn listed_targets_that_none_requested_leave_their_variant_to_grow() {
    let mut work = listed_two();
    let idle = work.run_all(&[("a", 6, 3.0), ("b", 2, 3.0)], 900);
    assert!(desired(&idle, "a") <= 4, "{:?}", of(&idle, "a").steps);

    let said = work.run_all(&[("a", 6, 25.0), ("b", 2, 25.0)], 60);
    assert!(desired(&said, "a") > 4, "{:?}", of(&said, "a").steps);
    assert!(desired(&said, "b") <= 2, "{:?}", of(&said, "b").steps);
}

/// Two listed variants, of which the cheaper one has six targets that answer and so many that hang.
/// It must have all of them, and may have no others.
fn listed_at_maximum(hung: u32) -> Work {
    let bounds = (6 + hung, 6 + hung);
    let specs = vec![spec("a", 1.0, bounds), spec("b", 3.0, (0, 60))];
    let mut work = Work::with(quick(), specs, Engine::default());
    work.listed = true;
    work.failing.insert("a".to_owned(), hung);
    let _ = work.run_all(&[("a", 6 + hung, 25.0), ("b", 2, 25.0)], 1_200);
    work
}

#[test]
fn another_variant_provides_what_hung_targets_leave_of_a_maximum() {
    let [without, with] = [0, 2].map(|hung| {
        let busy = [("a", 6 + hung, 25.0), ("b", 2, 25.0)];
        let said = listed_at_maximum(hung).run_all(&busy, 1);
        assert_eq!(desired(&said, "a"), 6 + hung, "{:?}", of(&said, "a").steps);
        desired(&said, "b")
    });
    assert!(without > 2 && with >= without, "{with} instead of {without}");
}

#[test]
fn targets_beyond_a_lower_maximum_leave_it_to_those_that_answer() {
    let mut work = listed_at_maximum(2);
    let busy = [("a", 8, 25.0), ("b", 2, 25.0)];
    let before = desired(&work.run_all(&busy, 1), "b");

    work.world.fleet = Fleet::new(vec![spec("a", 1.0, (0, 6)), spec("b", 3.0, (0, 60))]);
    let said = work.run_all(&busy, 1);
    assert_eq!(desired(&said, "a"), 6, "{:?}", of(&said, "a").steps);
    assert_eq!(desired(&said, "b"), before, "{:?}", of(&said, "b").steps);
}

/// Ten listed targets with this KV usage, two of which are down in Prometheus and never answered.
fn list_with_two_down(world: &mut World, usage: f64) {
    let variant = world.set("a", 10, (usage, 0.0));
    variant.scale = Scale::Targets;
    variant.way = ScrapeRoute::Relayed;
    variant.failing = BTreeMap::from([(8, ScrapeFailure::Down), (9, ScrapeFailure::Down)]);
}

#[test]
fn a_listed_target_that_is_down_in_prometheus_may_be_starting_and_is_no_replica_later() {
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![spec("a", 1.0, (1, 20))]);
    list_with_two_down(&mut world, 0.5);

    // The other eight are needed. A start may take ten minutes.
    for second in 0..595 {
        let decisions = world.tick();
        let seen = &decisions.observations[&key("a")];
        assert_eq!((seen.current, seen.pending), (Some(n(10)), n(2)), "{second} s");
        assert_eq!((desired(&decisions, "a"), seen.startup.stuck), (10, n(0)), "{second} s");
    }

    let needed = world.run(65);
    assert_eq!(needed.observations[&key("a")].startup.stuck, n(2));
    assert_eq!(desired(&needed, "a"), 10, "{:?}", of(&needed, "a").steps);

    // Five are enough, so some answering replica is not needed.
    list_with_two_down(&mut world, 0.3);
    let enough = world.run(600);
    assert!(desired(&enough, "a") < 8, "{:?}", of(&enough, "a").steps);
}

/// A variant with ten listed targets, of which two hang.
fn with_two_hung() -> World {
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![spec("a", 1.0, (1, 20))]);
    list_with_two_down(&mut world, 0.5);
    assert_eq!(given_up(&world.run(660)), (10, 2));
    world
}

/// The desired replicas of `a`, and its replicas that others may replace.
fn given_up(decisions: &Decisions) -> (u32, u32) {
    let decision = of(decisions, "a");
    (decision.desired().count(), decision.sizing.as_ref().unwrap().stuck.count())
}

#[test]
fn a_variant_that_is_short_at_its_maximum_replaces_each_target_that_hangs() {
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![spec("a", 1.0, (10, 11))]);
    list_with_two_down(&mut world, 0.3);
    assert_eq!(given_up(&world.run(660)), (10, 2));

    // It needs twelve. Two of its eleven are given up, so the plan adds one to the eight that
    // answer.
    list_with_two_down(&mut world, 0.98);
    let short = world.run(60);
    assert_eq!(of(&short, "a").is_short_at_max(), Some(true));
    assert_eq!(given_up(&short), (11, 2), "{:?}", of(&short, "a").steps);
}

#[test]
fn listed_targets_that_hang_still_hang_after_a_time_without_a_listing() {
    let mut world = with_two_hung();
    let listed = world.variants.remove("a").unwrap();
    assert_eq!(of(&world.run(30), "a").basis, Basis::Held);

    world.variants.insert("a".to_owned(), listed);
    assert_eq!(given_up(&world.run(30)), (10, 2));
}

#[test]
fn time_that_was_not_observed_lets_no_listed_target_hang() {
    let mut world = with_two_hung();
    // The process was paused.
    world.second += 300;
    assert_eq!(given_up(&world.run(595)), (10, 0));
    assert_eq!(given_up(&world.run(65)), (10, 2));
}

/// Numbers of `a` while what it lacks never starts, each half a minute for an hour.
fn never_starting(work: &mut Work, rate: f64) -> Vec<u32> {
    let mut asked = 4;
    let number = |_| {
        work.starting.insert("a".to_owned(), asked - 4);
        asked = desired(&work.run(4, rate, 30), "a").max(asked);
        asked
    };
    (0..120).map(number).collect()
}

#[test]
fn replicas_that_do_not_start_are_asked_for_twice_at_most() {
    let mut work = one();
    let _ = work.run(4, 60.0, 90);
    let numbers = never_starting(&mut work, 140.0);
    // Before they are stuck, after ten minutes.
    let (first, last) = (numbers[18], numbers[119]);
    assert!(first > 5, "{numbers:?}");
    assert!(last > first, "once more: {numbers:?}");
    assert!(last <= 4 + 2 * (first - 4) + 2, "and not again: {numbers:?}");
}

#[test]
fn another_variant_takes_the_place_of_replicas_that_do_not_start() {
    let mut work = two(3.0);
    let all = |a: f64, b: f64| [("a", 4, a), ("b", 2, b)];
    let _ = work.run_all(&all(15.0, 15.0), 90);
    let mut said = work.run_all(&all(25.0, 25.0), 60);
    let first = desired(&said, "a");
    assert!(first > 4 && desired(&said, "b") == 2, "the cheaper one grows: {said:?}");

    work.starting.insert("a".to_owned(), first - 4);
    said = work.run_all(&all(25.0, 25.0), 900);
    assert_eq!(desired(&said, "a"), first, "{:?}", of(&said, "a").steps);
    assert!(desired(&said, "b") > 2, "{:?}", of(&said, "b").steps);
}

#[test]
fn a_variant_without_a_scale_target_does_not_keep_others_from_shrinking() {
    let mut work = two(2.0);
    let _ = work.run_all(&[("a", 8, 18.0)], 90);
    work.world.set("b", 0, (0.0, 0.0)).scale = Scale::Unknown(WhyScaleUnknown::NoSuchTarget);
    let said = work.run_all(&[("a", 8, 2.0)], 120);
    assert!(desired(&said, "a") < 8, "{:?}", of(&said, "a").steps);
}

#[test]
fn what_comes_to_replicas_of_unknown_capacity_asks_for_no_others() {
    let mut work = two(1.0);
    let _ = work.run_all(&[("a", 4, 15.0)], 90);
    let alone = desired(&work.clone().run_all(&[("a", 4, 15.0)], 120), "a");
    work.mute.push("b".to_owned());
    let beside = work.run_all(&[("a", 4, 15.0), ("b", 4, 15.0)], 120);
    assert_eq!(desired(&beside, "a"), alone, "{:?}", of(&beside, "a").steps);
}

#[test]
fn decode_grows_for_what_comes_to_prefill_at_the_same_time() {
    let role = |name: &str, role| VariantSpec { role, ..spec(name, 1.0, (1, 60)) };
    let specs = vec![role("d", Role::Decode), role("p", Role::Prefill)];
    let mut work = Work::with(quick(), specs, Engine::default());
    let before = work.run_all(&[("d", 4, 15.0), ("p", 4, 15.0)], 120);
    // Prefill lets no more through until it has more replicas.
    let jumped = work.run_all(&[("d", 4, 15.0), ("p", 4, 40.0)], 30);
    let [prefill, decode] = ["p", "d"].map(|name| desired(&jumped, name));
    assert!(prefill > 6 && decode >= prefill, "{prefill} and {decode} after {before:?}");
}

#[test]
fn a_need_that_is_known_is_asked_for_in_one_step_unless_limits_are_written() {
    let after_a_jump = |policy: Policy| {
        let mut work = Work::with(policy, vec![spec("a", 1.0, (1, 60))], Engine::default());
        let _ = work.run(2, 20.0, 120);
        desired(&work.run(2, 300.0, 15), "a")
    };
    let usual = Policy { behavior: Behavior::default(), ..quick() };
    let mut written = usual.clone();
    if let Some(sizing) = &mut written.sizing {
        sizing.foresight.replaces_steps = Steps::Limited;
    }
    let (free, limited) = (after_a_jump(usual), after_a_jump(written));
    assert!(free > 10 && limited <= 6, "{free} and {limited}");
}

/// Whether a day later, with this much remembered after so many ticks, the first seconds are decided
/// by foresight.
fn is_sized_a_day_later(
    ticks_before: u32,
    knowledge: impl Fn(VariantMemory) -> VariantMemory,
) -> bool {
    let mut work = one();
    let _ = work.run(8, 100.0, 200);
    let spec = spec("a", 1.0, (1, 60));
    let memory = work.world.pipeline.memory(&spec.model_key(), &spec.key).unwrap();

    work.world.pipeline = Pipeline::new(quick());
    work.world.second += 86_400;
    let _few = work.run(8, 100.0, ticks_before);
    let now = at(work.world.second);
    work.world.pipeline.recall(now, &spec.model_key(), &spec.key, &knowledge(memory));
    assert_eq!(work.world.pipeline.has_number(&key("a")), ticks_before > 0);
    let said = work.run(8, 100.0, 10);
    of(&said, "a").sizing.is_some()
}

#[test]
fn what_was_learned_is_of_use_long_after_the_number_is_not() {
    for ticks_before in [0, 3] {
        assert!(is_sized_a_day_later(ticks_before, VariantMemory::knowledge), "{ticks_before}");
        let forgotten = is_sized_a_day_later(ticks_before, |_| VariantMemory::default());
        assert!(!forgotten, "some seconds teach too little");
    }
}

#[test]
fn a_fleet_that_still_overruns_grows_again_before_anything_is_known_of_it() {
    let mut work = one();
    work.beside = Beside { running: 20.0, waiting: 400.0 };
    let mut asked = 1;
    let mut number = |_| {
        work.starting.insert("a".to_owned(), asked - 1);
        asked = desired(&work.run(1, 1.0, 1), "a").max(asked);
        asked
    };
    let numbers: Vec<u32> = (0..40).map(&mut number).collect();
    assert_eq!(numbers[10], 4, "four times as many at first: {numbers:?}");
    assert!(numbers[20] > 4 && numbers[20] <= 16, "and four times that: {numbers:?}");
    assert_eq!(numbers[39], numbers[20], "and no more once answers have ended: {numbers:?}");
}

/// A fleet of eight after each of so many times in which one of them was gone for a while.
fn having_lost(times: u32, surge: u32) -> Work {
    let mut work = one();
    let _ = work.run(8, 100.0, 300);
    for _ in 0..times {
        work.starting.insert("a".to_owned(), 1);
        work.surge = surge;
        let _ = work.run(7, 100.0, 20);
        work.starting.clear();
        let _ = work.run(8, 100.0, 100);
    }
    work
}

#[test]
fn a_fleet_that_loses_replicas_keeps_others_ready_in_their_place() {
    let number = |mut work: Work| desired(&work.run(8, 100.0, 1), "a");
    let safe = number(having_lost(0, 0));
    let said = having_lost(8, 0).run(8, 100.0, 1);
    assert!(desired(&said, "a") > safe, "{safe} {:?}", of(&said, "a").steps);
    assert!(of(&said, "a").steps[0].reason.to_string().contains("for lost replicas"));

    let rolled_out = having_lost(8, 2).run(8, 100.0, 1);
    let reason = of(&rolled_out, "a").steps[0].reason.to_string();
    assert!(!reason.contains("lost"), "a new version takes the place of the old one: {reason}");
}
