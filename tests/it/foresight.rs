//! Foresight as the default: what it decides where nothing is said, what it leaves to saturation,
//! and that it lowers nothing on what nobody has seen.

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::foresight::policy::{Hold, Window};
use plimsoll::analyze::foresight::{self, Foreseen};
use plimsoll::decide::enforce::Behavior;
use plimsoll::decide::{Decision, Reason, Stage};
use plimsoll::fleet::{Accelerator, VariantSpec};
use plimsoll::observe::{Counts, Demand};
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{Fraction, Requests, Seconds};
use proptest::prelude::*;

use crate::pipeline::{World, at, desired, known, of, policy, spec};
use crate::sizing::sized;
use crate::working::{Engine, Work};

/// The default, with the windows of the tests.
fn by_default() -> Policy {
    Policy { behavior: Behavior::default(), ..sized(&[Analyzer::Foresight]) }
}

/// Foresight that holds and waits for seconds only, so that a test sees it shrink.
pub(crate) fn quick() -> Policy {
    let mut policy = sized(&[Analyzer::Foresight]);
    if let Some(sizing) = &mut policy.sizing {
        let hold =
            Hold { starts: Fraction::ONE, min: Seconds::literal(5), window: Window::Replaced };
        sizing.foresight = foresight::Policy {
            startup: Seconds::literal(5),
            hold: Some(hold),
            history_min: Seconds::literal(30),
            young: None,
            // Bursts are looked for over a minute at least, which is a hold of its own.
            bursts: None,
            ..sizing.foresight
        };
    }
    policy
}

fn foreseen(decision: &Decision) -> Option<&Foreseen> {
    match &decision.steps.first()?.reason {
        Reason::Sized(sized) => sized.foreseen.as_deref(),
        _ => None,
    }
}

#[test]
fn a_lower_number_that_saturation_finds_in_its_place_waits_for_the_window() {
    let mut world = World::with(by_default(), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, (0.1, 0.0));
    let held = world.run(290);
    assert_eq!(desired(&held, "a"), 4);
    assert_eq!(of(&held, "a").steps.last().unwrap().stage, Stage::Stabilize);
    assert_eq!(desired(&world.run(20), "a"), 3);
}

#[test]
fn a_lower_number_of_its_own_waits_for_no_window_but_its_hold() {
    let mut policy = quick();
    policy.behavior = Behavior::default();
    let specs = || vec![spec("a", 1.0, (1, 30))];
    let mut work = Work::with(policy.clone(), specs(), Engine::default());
    let _ = work.run(8, 160.0, 90);
    let shrunk = work.run(8, 20.0, 60);
    assert!(desired(&shrunk, "a") < 8, "{:?}", of(&shrunk, "a").steps);
    if let Some(sizing) = &mut policy.sizing {
        let hold = sizing.foresight.hold.map(|hold| Hold { window: Window::Waited, ..hold });
        sizing.foresight.hold = hold;
    }
    let mut work = Work::with(policy, specs(), Engine::default());
    let _ = work.run(8, 160.0, 90);
    let waits = work.run(8, 20.0, 60);
    assert!(desired(&waits, "a") >= 8, "{:?}", of(&waits, "a").steps);
    assert_eq!(of(&waits, "a").steps.last().unwrap().stage, Stage::Stabilize);
}

/// A gateway that holds so many requests, as it says in this second.
fn holding(work: &Work, requests: f64) -> Demand {
    let seen = Some((Requests::new(requests).unwrap(), at(work.world.second)));
    Demand { signal: "gateway".to_owned(), seen, counts: Counts::Requests }
}

#[test]
fn a_number_that_only_a_gateway_kept_up_stays_while_the_gateway_is_silent() {
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
    let mut said = Decisions::default();
    for second in 0..90 {
        work.front = vec![holding(&work, 150.0 * f64::from(second))];
        said = work.run(8, 20.0, 1);
    }
    assert!(desired(&said, "a") >= 8, "{:?}", of(&said, "a").steps);
    let mut heard = work.clone();
    for second in 0..600 {
        let silent = work.run(8, 20.0, 1);
        assert!(desired(&silent, "a") >= 8, "{second}: {:?}", of(&silent, "a").steps);
    }
    let silent = work.run(8, 20.0, 1);
    let guard = of(&silent, "a").steps.iter().find(|step| step.stage == Stage::Guard).unwrap();
    assert_eq!(
        guard.reason.to_string(),
        "not lowered: gateway, which counts requests that no replica has, was not read for 601 s"
    );
    // One that says nothing else and one that was never read are no better.
    work.front.push(holding(&work, 0.0));
    work.front[0].seen = None;
    assert!(desired(&work.run(8, 20.0, 20), "a") >= 8);
    // What it says is believed, and so is that nobody was asked to count.
    let mut shrinks = 8;
    for _ in 0..120 {
        heard.front = vec![holding(&heard, 0.0)];
        shrinks = desired(&heard.run(8, 20.0, 1), "a");
    }
    assert!(shrinks < 8);
    work.front.clear();
    assert!(desired(&work.run(8, 20.0, 60), "a") < 8);
}

/// One that starts slowly, and standby of the same kind that starts soon and costs more.
fn slow_and_standby() -> Vec<VariantSpec> {
    let of = |name, cost, start_time| {
        let accelerator = Accelerator::new("H100");
        let start_time = Seconds::new(start_time);
        VariantSpec { accelerator, start_time, ..spec(name, cost, (0, 40)) }
    };
    vec![of("a", 1.0, 120.0), of("b", 3.0, 5.0)]
}

#[test]
fn standby_carries_a_jump_until_what_starts_slowly_serves_and_takes_nothing_from_its_number() {
    let mut alone = Work::with(quick(), slow_and_standby()[..1].to_vec(), Engine::default());
    let mut work = Work::with(quick(), slow_and_standby(), Engine::default());
    let _ = (alone.run(4, 80.0, 200), work.run_all(&[("a", 4, 20.0), ("b", 0, 0.0)], 200));
    // Three times as much, of which the four replicas get more than they carry.
    let without = desired(&alone.run(4, 240.0, 30), "a");
    let jumped = work.run_all(&[("a", 4, 60.0), ("b", 0, 0.0)], 30);
    let (slow, standby) = (desired(&jumped, "a"), desired(&jumped, "b"));
    assert!(without > 4 && slow == without, "{slow} instead of {without}");
    assert!(standby > 0, "{:?}", of(&jumped, "b").steps);
    let said = of(&jumped, "b").steps[0].to_string();
    assert!(said.contains("are for standby, which starts in 5 s, until the rest serves"), "{said}");
    // It is there, and what starts slowly is not.
    let each = 240.0 / f64::from(4 + standby);
    let bridged = work.run_all(&[("a", 4, each), ("b", standby, each)], 30);
    // The load is spread by then, which changes what a replica is found to carry by a little.
    assert!(desired(&bridged, "a") + 2 >= slow && desired(&bridged, "b") > 0, "{bridged:?}");
    // All serve, and what costs more goes.
    let each = 240.0 / f64::from(slow + standby);
    let served = work.run_all(&[("a", slow, each), ("b", standby, each)], 300);
    assert_eq!(desired(&served, "b"), 0, "{:?}", of(&served, "b").steps);
    assert!(desired(&served, "a") >= 10, "{:?}", of(&served, "a").steps);
}

/// Seconds with their load, and how many of the replicas answer in them.
fn story() -> impl Strategy<Value = Vec<(f64, f64, u32)>> {
    let waiting = prop_oneof![3 => 0.0..6.0_f64, 1 => 6.0..200.0_f64];
    prop::collection::vec((0.0..1.0_f64, waiting, 20..90_u32), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// As SGLang does, and vLLM before its V1 engine.
    #[test]
    fn engines_that_count_no_iterations_are_scaled_as_by_saturation(story in story()) {
        let specs = || vec![spec("a", 1.0, (1, 12)), spec("b", 2.0, (1, 12))];
        let saturation = Policy { behavior: Behavior::default(), ..policy() };
        let mut worlds =
            [World::with(by_default(), specs()), World::with(saturation, specs())];
        for world in &mut worlds {
            world.set("a", 2, (0.1, 0.0));
            world.set("b", 2, (0.1, 0.0));
        }
        for (kv, waiting, seconds) in story {
            for _ in 0..seconds {
                let [one, other] = worlds.each_mut().map(|world| {
                    for variant in world.variants.values_mut() {
                        variant.load = (kv, waiting);
                    }
                    let decisions = world.tick();
                    for name in ["a", "b"] {
                        let number = desired(&decisions, name);
                        let variant = world.variants.get_mut(name).unwrap();
                        (variant.listed, variant.scale) = (number, known(number, number));
                    }
                    decisions.decisions
                });
                prop_assert_eq!(one, other);
            }
        }
    }

    /// As WVA lowers a number only where the load fits on one replica less. Here the largest need of
    /// the hold does, with room to spare.
    #[test]
    fn a_lower_number_carries_what_was_needed_with_room_to_spare(
        story in prop::collection::vec((1.0..200.0_f64, 20..90_u32), 1..8),
    ) {
        let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
        let mut replicas = 6;
        for (rate, seconds) in story {
            for _ in 0..seconds {
                let decisions = work.run(replicas, rate, 1);
                let decision = of(&decisions, "a");
                let number = decision.desired().count();
                if let Some(Foreseen { held, least, mature, .. }) = foreseen(decision)
                    && number < replicas
                {
                    let carried = f64::from(number) * least;
                    prop_assert!(*mature, "little is known: {decision:?}");
                    prop_assert!(held - 0.05 * least <= carried * (1.0 + 1e-6), "{decision:?}");
                    prop_assert!(held + 1.2 * least <= f64::from(replicas) * least * (1.0 + 1e-6));
                }
                replicas = number;
            }
        }
    }
}
