//! Foresight as the default: what it decides where nothing is said, what it leaves to saturation,
//! and that it lowers nothing on what nobody has seen.

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::foresight::policy::{Hold, ScaleDownWindow};
use plimsoll::analyze::foresight::{self, DemandForecast};
use plimsoll::decide::enforce::Behavior;
use plimsoll::decide::limit::{Allowance, LimitName, LimitScope, LimitSource, SupplyLimit};
use plimsoll::decide::{Decision, Reason, Stage};
use plimsoll::fleet::{Accelerator, VariantSpec};
use plimsoll::observe::{DemandSignal, Naming, SignalQuantity, SignalValue};
use plimsoll::pipeline::limits::LimitPolicy;
use plimsoll::pipeline::saved::MemoryLength;
use plimsoll::pipeline::{Decisions, Pipeline, Policy};
use plimsoll::units::{Fraction, Gpus, Requests, Seconds};
use proptest::prelude::*;

use crate::pipeline::{World, at, desired, key, known, n, of, policy, spec};
use crate::sizing::sized;
use crate::working::{Engine, Work};

/// The default, with the windows of the tests.
fn by_default() -> Policy {
    Policy {
        behavior: Behavior { flap_budget: u32::MAX, ..Behavior::default() },
        ..sized(&[Analyzer::Foresight])
    }
}

/// Foresight that holds and waits for seconds only, so that a test sees it shrink.
pub(crate) fn quick() -> Policy {
    let mut policy = sized(&[Analyzer::Foresight]);
    if let Some(sizing) = &mut policy.sizing {
        let hold = Hold {
            starts: Fraction::ONE,
            min: Seconds::literal(5),
            jitter: Seconds::ZERO,
            replaces_window: ScaleDownWindow::Replaced,
        };
        sizing.foresight = foresight::ForesightPolicy {
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

fn foreseen(decision: &Decision) -> Option<&DemandForecast> {
    decision.sizing.as_ref()?.foreseen.as_ref()
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
    policy.behavior = Behavior { flap_budget: u32::MAX, ..Behavior::default() };
    let specs = || vec![spec("a", 1.0, (1, 30))];
    let mut work = Work::with(policy.clone(), specs(), Engine::default());
    let _ = work.run(8, 160.0, 90);
    let shrunk = work.run(8, 20.0, 60);
    assert!(desired(&shrunk, "a") < 8, "{:?}", of(&shrunk, "a").steps);
    if let Some(sizing) = &mut policy.sizing {
        let hold = sizing
            .foresight
            .hold
            .map(|hold| Hold { replaces_window: ScaleDownWindow::Waited, ..hold });
        sizing.foresight.hold = hold;
    }
    let mut work = Work::with(policy, specs(), Engine::default());
    let _ = work.run(8, 160.0, 90);
    let waits = work.run(8, 20.0, 60);
    assert!(desired(&waits, "a") >= 8, "{:?}", of(&waits, "a").steps);
    assert_eq!(of(&waits, "a").steps.last().unwrap().stage, Stage::Stabilize);
}

#[test]
fn silent_replicas_are_kept_on_top_of_the_need_and_others_may_go() {
    for silent in 1..8 {
        let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
        let _ = work.run(8, 160.0, 90);
        work.failing.insert("a".to_owned(), silent);
        let in_force = work.run(8, 8.0, 89);
        let decisions = work.run(8, 8.0, 1);
        let decision = of(&decisions, "a");

        let last = decision.steps.last().unwrap();
        assert_eq!(last.reason, Reason::Incomplete { missing: n(silent) }, "{decision:?}");
        assert_eq!(last.stage, Stage::Guard);
        let kept = (last.before + n(silent)).min(of(&in_force, "a").desired());
        assert_eq!(last.after, kept, "{decision:?}");
        assert!(silent > 3 || desired(&decisions, "a") < 8, "{silent}: {decision:?}");
    }
}

#[test]
fn replicas_that_come_and_go_all_the_time_do_not_keep_unneeded_ones() {
    let specs = || vec![spec("a", 1.0, (1, 30))];
    let number = |policy: Policy| {
        let mut work = Work::with(policy, specs(), Engine::default());
        let _ = work.run(8, 160.0, 90);
        let mut last = work.run(8, 8.0, 1);
        for _ in 0..20 {
            let _ = work.run(7, 8.0, 5);
            last = work.run(8, 8.0, 5);
        }
        desired(&last, "a")
    };
    let (foreseen, by_peaks) = (number(quick()), number(sized(&[Analyzer::Tokens])));
    assert!(foreseen < 4 && by_peaks >= 8, "{foreseen} {by_peaks}");
}

#[test]
fn a_need_that_jitters_about_a_whole_number_turns_no_number_each_second() {
    let turns = |jitter: Seconds| {
        let mut policy = quick();
        if let Some(sizing) = &mut policy.sizing {
            let hold = sizing.foresight.hold.map(|hold| Hold { jitter, ..hold });
            let present =
                foresight::ForesightPolicy { growth: None, unevenness: None, ..sizing.foresight };
            sizing.foresight = foresight::ForesightPolicy { hold, ..present };
        }
        // However short the window is that it replaces.
        policy.behavior.scale_down.stabilization_window = Seconds::ZERO;
        let mut work = Work::with(policy, vec![spec("a", 1.0, (1, 30))], Engine::default());
        let (mut numbers, mut rate) = (Vec::new(), 100.0);
        let carried = desired(&work.run(8, rate, 120), "a");
        // To where one replica more is needed, and to and fro.
        while desired(&work.run(8, rate, 60), "a") <= carried {
            rate += 1.0;
        }
        for second in 0..600 {
            let swing = if second / 40 % 2 == 0 { 0.9 } else { 1.0 };
            numbers.push(desired(&work.run(8, swing * rate, 1), "a"));
        }
        numbers.windows(2).filter(|pair| pair[0] != pair[1]).count()
    };
    let (often, seldom) = (turns(Seconds::ZERO), turns(Seconds::literal(30)));
    assert!(often > 10 && seldom <= 2, "{often} {seldom}");
}

/// A gateway that holds so many requests, as it says in this second.
pub(crate) fn holding(work: &Work, requests: f64) -> DemandSignal {
    let seen = SignalValue::Number(Requests::new(requests).unwrap(), at(work.world.second));
    let (counts, naming) = (SignalQuantity::Requests, Naming::Named);
    DemandSignal { signal: "gateway".to_owned(), seen, counts, naming }
}

#[test]
fn rejected_requests_are_demand_from_the_second_count_on() {
    let arriving = |rejected: Option<f64>| {
        let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
        let mut said = Decisions::default();
        for second in 0..90 {
            let count = |rate: f64| DemandSignal {
                counts: SignalQuantity::Rejected,
                ..holding(&work, 5000.0 + rate * f64::from(second))
            };
            work.front = rejected.map(count).into_iter().collect();
            said = work.run(8, 20.0, 1);
        }
        foreseen(of(&said, "a")).unwrap().need.arriving
    };
    let without = arriving(None);
    assert!((arriving(Some(0.0)) - without).abs() < 1e-9, "5000 were rejected before");
    let with = arriving(Some(30.0));
    assert!((with - without - 30.0).abs() < 1.0, "{with} {without}");
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
        "scale-down blocked: gateway, which counts queued requests, was last read 601 s ago"
    );
    // One that says nothing else and one that was never read are no better.
    work.front.push(holding(&work, 0.0));
    work.front[0].seen = SignalValue::Never;
    assert!(desired(&work.run(8, 20.0, 20), "a") >= 8);
    // What it says is believed, and so is that nobody was asked to count.
    let mut shrinks = 8;
    for _ in 0..1200 {
        heard.front = vec![holding(&heard, 0.0)];
        shrinks = desired(&heard.run(8, 5.0, 1), "a");
    }
    assert!(shrinks < 8);
    work.front.clear();
    assert!(desired(&work.run(8, 5.0, 1200), "a") < 8);
}

#[test]
fn a_silent_replica_frees_none_that_a_silent_gateway_keeps() {
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
    for second in 0..90 {
        work.front = vec![holding(&work, 150.0 * f64::from(second))];
        let _ = work.run(8, 20.0, 1);
    }

    work.failing.insert("a".to_owned(), 1);
    for second in 0..600 {
        let silent = work.run(8, 5.0, 1);
        assert!(desired(&silent, "a") >= 8, "{second}: {:?}", of(&silent, "a").steps);
    }
}

#[test]
fn a_signal_that_goes_silent_and_comes_back_is_nothing_that_arrives() {
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
    let said = |work: &mut Work, loud: Option<f64>| {
        let other = DemandSignal { signal: "other".to_owned(), ..holding(work, 5.0) };
        let loud = loud.map_or_else(
            || DemandSignal { seen: SignalValue::Never, ..holding(work, 0.0) },
            |requests| holding(work, requests),
        );
        work.front = vec![loud, other];
        let said = work.run(8, 160.0, 1);
        foreseen(of(&said, "a")).map_or(0.0, |seen| seen.need.arriving)
    };
    let mut usual = 0.0;
    for _ in 0..90 {
        usual = said(&mut work, Some(4000.0));
    }
    for second in 0..90 {
        // For half a minute in the middle, what queues is what the other counts.
        let loud = (!(30..60).contains(&second)).then_some(4000.0);
        let arriving = said(&mut work, loud);
        assert!((arriving / usual - 1.0).abs() < 0.1, "{second}: {arriving} instead of {usual}");
    }
}

#[test]
fn a_number_that_is_not_lowered_for_want_of_a_signal_says_what_is_missing_of_it() {
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
    work.front = vec![holding(&work, 0.0)];
    let _ = work.run(8, 160.0, 90);
    for (ago, number, missing) in [
        (None, false, "was never read"),
        (Some(0), false, "has no count for this model"),
        (Some(40), false, "was last read 40 s ago"),
        (Some(40), true, "was last read 40 s ago"),
        (Some(-45), true, "has a timestamp 45 s in the future"),
    ] {
        let mut said = Decisions::default();
        for _ in 0..60 {
            let then = |ago| at(work.world.second - ago);
            work.front[0].seen = match ago {
                None => SignalValue::Never,
                Some(ago) if number => SignalValue::Number(Requests::ZERO, then(ago)),
                Some(ago) => SignalValue::NoNumber(then(ago)),
            };
            said = work.run(8, 20.0, 1);
            assert!(desired(&said, "a") >= 8, "{missing}");
        }
        let guard = of(&said, "a").steps.iter().find(|step| step.stage == Stage::Guard).unwrap();
        let gateway = "scale-down blocked: gateway, which counts queued requests, ";
        assert_eq!(guard.reason.to_string(), format!("{gateway}{missing}"));
    }
}

/// An endpoint picker that may be for any model and does not name this one.
fn elsewhere(work: &Work) -> DemandSignal {
    DemandSignal { signal: "picker".to_owned(), naming: Naming::Unnamed, ..holding(work, 0.0) }
}

#[test]
fn a_picker_that_is_silent_holds_the_models_that_it_has_named_and_no_others() {
    let grown = || {
        let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 30))], Engine::default());
        for _ in 0..90 {
            work.front = vec![elsewhere(&work)];
            let _ = work.run(8, 160.0, 1);
        }
        work
    };
    // It went on about others and is silent now: whether it was read before or never.
    let mut never_named = grown();
    assert!(desired(&never_named.run(8, 20.0, 120), "a") < 8);
    let mut never_read = grown();
    never_read.front[0].seen = SignalValue::Never;
    assert!(desired(&never_read.run(8, 20.0, 120), "a") < 8);
    // It named the model once, and not since it was started anew.
    let mut named = grown();
    named.front = vec![DemandSignal { signal: "picker".to_owned(), ..holding(&named, 0.0) }];
    let _ = named.run(8, 160.0, 1);
    named.front = vec![elsewhere(&named)];
    let _ = named.run(8, 160.0, 1);
    named.front[0].seen = SignalValue::Number(Requests::ZERO, at(named.world.second - 31));
    let mut restarted = named.clone();
    for (second, said) in (0..600).map(|second| (second, named.run(8, 20.0, 1))) {
        assert!(desired(&said, "a") >= 8, "{second}: {:?}", of(&said, "a").steps);
    }
    // Whoever goes on from what is remembered holds it as well, however short that is.
    let spec = spec("a", 1.0, (1, 30));
    let (model, key) = (spec.model_key(), spec.key.clone());
    let memory = restarted.world.pipeline.memory(&model, &key).unwrap();
    assert_eq!(memory.named, ["picker"]);
    let mut successor = Pipeline::new(quick());
    let now = at(restarted.world.second);
    successor.restore(now, key.clone(), n(8), now);
    successor.recall(now, &model, &key, &memory.told(MemoryLength::Windows));
    restarted.world.pipeline = successor;
    restarted.front[0].seen = SignalValue::Never;
    for (second, said) in (0..300).map(|second| (second, restarted.run(8, 20.0, 1))) {
        assert!(desired(&said, "a") >= 8, "{second}: {:?}", of(&said, "a").steps);
    }
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
    // Without growth: standby is a reserve for what is only likely, and takes that away.
    let mut policy = quick();
    if let Some(sizing) = &mut policy.sizing {
        sizing.foresight.growth = None;
    }
    let only = slow_and_standby()[..1].to_vec();
    let mut alone = Work::with(policy.clone(), only, Engine::default());
    let mut work = Work::with(policy, slow_and_standby(), Engine::default());
    let _ = (alone.run(4, 80.0, 200), work.run_all(&[("a", 4, 20.0), ("b", 0, 0.0)], 200));
    // Three times as much, of which the four replicas get more than they carry.
    let without = desired(&alone.run(4, 240.0, 30), "a");
    let jumped = work.run_all(&[("a", 4, 60.0), ("b", 0, 0.0)], 30);
    let (slow, standby) = (desired(&jumped, "a"), desired(&jumped, "b"));
    assert!(without > 4 && slow == without, "{slow} instead of {without}");
    assert!(standby > 0, "{:?}", of(&jumped, "b").steps);
    let said = of(&jumped, "b").steps[0].to_string();
    assert!(said.contains("standby starts in 5 s and serves "), "{said}");
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

/// The chain of a variant after a jump: standby bridges it, and what starts slowly is on its way.
#[test]
fn a_bridge_is_a_step_of_its_own_and_says_what_it_is_for() {
    let mut work = Work::with(quick(), slow_and_standby(), Engine::default());
    let _ = work.run_all(&[("a", 4, 20.0), ("b", 0, 0.0)], 200);
    let jumped = work.run_all(&[("a", 4, 60.0), ("b", 0, 0.0)], 30);
    let standby = of(&jumped, "b");
    // The plan asks for none of it, and says so for itself.
    let planned = &standby.steps[0];
    assert_eq!((planned.stage, planned.after.count()), (Stage::Analyze, 0), "{standby:?}");
    let bridge = standby.because().unwrap();
    assert_eq!((bridge.stage, bridge.reason.label()), (Stage::Bridge, "bridged"), "{standby:?}");
    assert_eq!((bridge.before.count(), bridge.after), (0, standby.desired()));
    let count = bridge.after.count();
    let said = bridge.reason.to_string();
    assert!(
        said.ends_with(&format!(
            " requests/s until the other replicas do: {count} replicas of this variant"
        )),
        "{said}"
    );
    assert_eq!(standby.unconstrained(), bridge.after);
    assert_eq!(standby.recommended(), bridge.after);
    assert!(of(&jumped, "a").steps.iter().all(|step| step.stage != Stage::Bridge));
}

#[test]
fn standby_whose_replicas_do_not_start_is_no_reserve() {
    let mut work = Work::with(quick(), slow_and_standby(), Engine::default());
    work.world.set("b", 0, (0.0, 0.0));
    // It rises every eight minutes, so within the start of the slow ones now and then, and within
    // that of standby hardly ever.
    let rate = |second: u32| if second % 480 < 360 { 15.0 } else { 22.0 };
    let reserve = |work: &mut Work, seconds: std::ops::Range<u32>| {
        let of_second = |second| {
            let decisions = work.run_all(&[("a", 4, rate(second))], 1);
            // Before anything is learned there is none.
            let relief = foreseen(of(&decisions, "a")).and_then(|it| it.relief);
            relief.map_or(0.0, |it| it.reserve)
        };
        seconds.map(of_second).fold(0.0, f64::max)
    };
    assert!(reserve(&mut work, 0..960) > 1.0, "what may come need not run");
    work.world.variants.get_mut("b").unwrap().scale = known(2, 0);
    assert!(reserve(&mut work, 960..1550) > 1.0, "they may still start");
    let _ = reserve(&mut work, 1550..1580);
    assert!(reserve(&mut work, 1580..1620) < 1e-9);
    // What starts slowly runs for what may come instead.
    work.world.variants.get_mut("b").unwrap().scale = known(0, 0);
    assert!(reserve(&mut work, 1620..1660) > 1.0);
}

/// Standby, named before what starts slowly, after a jump, and inside these limits.
fn jumped(limits: Vec<SupplyLimit>) -> Decisions {
    let [slow, standby] = slow_and_standby().try_into().unwrap();
    let named = |name, spec| VariantSpec { key: key(name), ..spec };
    let specs = vec![named("asleep", standby), named("slow", slow)];
    let limits = LimitPolicy { configured: limits, ..LimitPolicy::default() };
    let mut work = Work::with(Policy { limits, ..quick() }, specs, Engine::default());
    let _ = work.run_all(&[("slow", 4, 20.0), ("asleep", 0, 0.0)], 200);
    work.run_all(&[("slow", 4, 60.0), ("asleep", 0, 0.0)], 30)
}

fn gpus(scope: LimitScope, gpus: u32) -> Vec<SupplyLimit> {
    let (name, source) = (LimitName::new("quota").unwrap(), Allowance::Total(Gpus::new(gpus)));
    vec![SupplyLimit { name, scope, source: LimitSource::Read(source) }]
}

#[test]
fn a_plan_that_limits_change_says_so_only_where_it_does_and_a_bridge_comes_after_that() {
    let free = jumped(Vec::new());
    let (slow, bridge) = (desired(&free, "slow"), desired(&free, "asleep"));
    assert!(slow > 5 && bridge > 2, "{slow} {bridge}");
    // Not all of the slow ones can be, and standby gets the place of some in the plan.
    let found = jumped(gpus(LimitScope::Variants([key("slow")].into()), slow - 1));
    let standby = of(&found, "asleep");
    assert!(desired(&found, "slow") < slow, "{:?}", of(&found, "slow"));
    let steps: Vec<_> =
        standby.steps.iter().map(|it| (it.stage, it.before.count(), it.after.count())).collect();
    let [analyze, share, bridged] = steps[..3] else { panic!("{standby:?}") };
    assert_eq!((analyze.0, share.0, bridged.0), (Stage::Analyze, Stage::Share, Stage::Bridge));
    assert!(share.1 < share.2 && share.2 < bridged.2, "{standby:?}");
    assert_eq!((standby.desired().count(), bridged.2), (bridge, bridge));
    assert_eq!(standby.because().unwrap().reason.label(), "bridged");
}

#[test]
fn what_is_short_goes_to_what_is_planned_before_it_goes_to_a_bridge() {
    let free = jumped(Vec::new());
    let (slow, bridge) = (desired(&free, "slow"), desired(&free, "asleep"));
    assert!(slow > 4 && bridge > 2, "{slow} {bridge}");
    let found = jumped(gpus(LimitScope::Cluster, slow + 1));
    assert_eq!((desired(&found, "slow"), desired(&found, "asleep")), (slow, 1));
    let said = of(&found, "asleep").because().unwrap().to_string();
    assert!(said.starts_with(&format!("limit: {bridge} -> 1, limited by quota")), "{said}");
}

/// Seconds with their load, and how many of the replicas answer in them.
fn story() -> impl Strategy<Value = Vec<(f64, f64, u32)>> {
    let waiting = prop_oneof![3 => 0.0..6.0_f64, 1 => 6.0..200.0_f64];
    prop::collection::vec((0.0..1.0_f64, waiting, 20..90_u32), 1..5)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Whatever else they say.
    #[test]
    fn engines_that_time_no_outputs_are_scaled_as_by_saturation(story in story()) {
        let specs = || vec![spec("a", 1.0, (1, 12)), spec("b", 2.0, (1, 12))];
        let saturation = Policy { behavior: Behavior { flap_budget: u32::MAX, ..Behavior::default() }, ..policy() };
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
                if let Some(DemandForecast { held, least, mature, .. }) = foreseen(decision)
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
