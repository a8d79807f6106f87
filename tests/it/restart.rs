//! A restart: what is remembered goes through the state file, and the daemon that reads it decides as
//! the one that was never stopped.

use std::collections::BTreeMap;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::decide::enforce::{Behavior, Dwell};
use plimsoll::decide::{Basis, Stage};
use plimsoll::fleet::{Incarnation, ReplicaName, Role, VariantSpec};
use plimsoll::leader::share::BODY_MAX;
use plimsoll::observe::Observation;
use plimsoll::pipeline::saved::{
    LengthMoments, MemoryLength, RequestWork, SavedAnalyzers, SavedArrivals, SavedDemand,
    SavedForesight, SavedPace, SavedScrape, SavedSilence, SavedVariantModel, SavedWeek,
    VariantMemory,
};
use plimsoll::pipeline::{Decisions, Pipeline, Policy};
use plimsoll::publish::state::{self, VariantMemories};
use plimsoll::publish::{Published, PublishedDecision, PublishedVariant};
use plimsoll::units::{Seconds, Tokens};
use proptest::prelude::*;

use crate::pipeline::{BUSY, IDLE, WINDOW, World, at, desired, key, known, of, policy, spec};
use crate::sizing::sized;

/// What a daemon shows of these decisions.
pub(crate) fn published(world: &World, decisions: &Decisions) -> Published {
    let variant = |spec: &VariantSpec| {
        let decision = decisions.decisions.iter().find(|it| it.variant == spec.key).cloned();
        let decided = decision.map(|decision| {
            let (at, elapsed) = (decision.inputs_at, std::time::Duration::ZERO);
            PublishedDecision { decision, at, elapsed }
        });
        let observation = Observation::of_nothing(spec.bounds);
        let spec = spec.clone();
        let key = spec.key.clone();
        (key, PublishedVariant { spec, observation, report: None, decided, undecided: None })
    };
    let variants = world.fleet.variants().map(variant).collect();
    let outlooks = decisions.outlooks.clone();
    Published { generation: 1, variants, outlooks, ..Published::default() }
}

/// What the pipeline remembers, through a file and back.
fn through_a_file(world: &World, decisions: &Decisions) -> Vec<state::SavedDecision> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let memory = |spec: &VariantSpec| {
        Some((spec.key.clone(), world.pipeline.memory(&spec.model_key(), &spec.key)?))
    };
    let memories: VariantMemories = world.fleet.variants().filter_map(memory).collect();
    state::save(&path, at(world.second), &published(world, decisions), &memories, &[]).unwrap();
    let saved = state::load(&path).unwrap();
    for one in &saved {
        assert_eq!(one.memory.as_ref(), memories.get(&one.variant), "to the millisecond");
    }
    saved
}

/// The world after a restart that takes no time: another pipeline, which knows what was saved.
fn restarted(world: &World, policy: Policy, decisions: &Decisions) -> World {
    let mut pipeline = Pipeline::new(policy);
    for saved in through_a_file(world, decisions) {
        let state::SavedDecision { variant, model, desired, at: inputs_at, memory, .. } = saved;
        pipeline.restore(at(world.second), variant.clone(), desired, inputs_at);
        pipeline.recall(at(world.second), &model, &variant, &memory.unwrap());
    }
    let (fleet, variants) = (world.fleet.clone(), world.variants.clone());
    World { pipeline, fleet, variants, second: world.second }
}

/// Five minutes of a window for fewer replicas.
fn patient() -> Policy {
    let mut behavior = policy().behavior;
    behavior.scale_down.stabilization_window = Seconds::new(300.0).unwrap();
    Policy { behavior, ..policy() }
}

#[test]
fn a_window_ends_when_it_would_have_ended_without_the_restart() {
    let mut world = World::with(patient(), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY);
    let _ = world.run(10);
    world.set("a", 5, IDLE);
    let decisions = world.run(200);
    assert_eq!(of(&decisions, "a").steps.last().unwrap().stage, Stage::Stabilize);
    let mut again = restarted(&world, patient(), &decisions);
    let seconds_until_lowered =
        |world: &mut World| (0..400).position(|_| desired(&world.tick(), "a") == 4).unwrap();
    let without = seconds_until_lowered(&mut world);
    assert_eq!(seconds_until_lowered(&mut again), without);
    assert!((80..120).contains(&without), "{without}");
}

#[test]
fn a_restart_refills_no_flap_budget_and_ends_no_dwell() {
    let behavior = Behavior {
        flap_budget: 1,
        dwell: Dwell { after_up: Seconds::ZERO, after_down: Seconds::new(100.0).unwrap() },
        ..policy().behavior
    };
    let policy = Policy { behavior, ..policy() };
    let mut world = World::with(policy.clone(), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY);
    let _ = world.run(3);
    world.set("a", 5, IDLE);
    let decisions = world.run(30);
    assert_eq!(desired(&decisions, "a"), 4, "the budget of one turn is spent by this");
    let mut again = restarted(&world, policy, &decisions);
    for world in [&mut world, &mut again] {
        world.set("a", 4, BUSY);
        let held = world.run(5);
        assert_eq!(of(&held, "a").steps.last().unwrap().stage, Stage::Dwell);
        world.set("a", 4, IDLE);
        let held = world.run(60);
        assert_eq!(of(&held, "a").steps.last().unwrap().stage, Stage::FlapBudget);
    }
}

#[test]
fn an_unobserved_pause_lets_no_window_pass() {
    let mut world = World::with(patient(), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY);
    let _ = world.run(10);
    world.set("a", 5, IDLE);
    let decisions = world.run(200);
    world.second += 200;
    let mut again = restarted(&world, patient(), &decisions);
    again.second = world.second;
    assert_eq!(desired(&again.run(WINDOW + 200), "a"), 5, "it was down for longer than a moment");
    assert_eq!(desired(&again.run(120), "a"), 4);
}

#[test]
fn without_data_a_restored_number_stays_whatever_is_remembered() {
    let mut world = World::with(patient(), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, IDLE);
    let decisions = world.run(60);
    let mut again = restarted(&world, patient(), &decisions);
    again.variants.get_mut("a").unwrap().silent = vec![0, 1, 2, 3];
    let held = again.run(600);
    assert_eq!((desired(&held, "a"), of(&held, "a").basis), (4, Basis::Held));
}

#[test]
fn a_memory_is_told_in_three_lengths_and_numbers_are_in_all_of_them() {
    let mut world =
        World::with(sized(&[Analyzer::Tokens, Analyzer::Throughput]), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, (0.6, 0.0));
    let decisions = world.run(60);
    let Some(memory) = through_a_file(&world, &decisions).remove(0).memory else { panic!() };
    assert!(memory.learned.tokens.is_some() && memory.informed.len() == 1, "{memory:?}");
    let windows = memory.clone().told(MemoryLength::Windows);
    let history = memory.history.clone();
    let waits = memory.waits;
    assert_eq!(windows, VariantMemory { history, waits, ..VariantMemory::default() });
    assert_eq!(memory.clone().told(MemoryLength::Whole), memory);
}

/// A load for some seconds.
fn stretch() -> impl Strategy<Value = (f64, f64, i64)> {
    (0.05..0.99_f64, prop_oneof![4 => Just(0.0), 1 => 0.0..20.0_f64], 1..40_i64)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]
    /// Loads come and go, and whoever scales does as it is told, in the one that goes on and in the
    /// one that is restarted. The restarted one must measure for a window before it lowers anything,
    /// and so is never below; once both have arrived they are the same, tick by tick.
    #[test]
    fn a_restarted_daemon_decides_as_the_one_that_was_never_stopped(
        before in prop::collection::vec(stretch(), 1..12),
        after in prop::collection::vec(stretch(), 1..6),
        capacity in any::<bool>(),
    ) {
        let mut policy = if capacity { sized(&[Analyzer::Tokens]) } else { policy() };
        policy.behavior.scale_down.stabilization_window = Seconds::new(20.0).unwrap();
        policy.behavior.flap_budget = 4;
        let mut world = World::with(policy.clone(), vec![spec("a", 1.0, (1, 12))]);
        world.set("a", 3, IDLE);
        let mut decisions = world.run(WINDOW + 2);
        let mut load = (0.1, 0.0);
        for (kv, queue, seconds) in before {
            load = (kv, queue);
            decisions = act(&mut world, load, seconds);
        }
        let mut again = restarted(&world, policy, &decisions);
        // The same load for a window, in which the restarted one measures.
        for _ in 0..WINDOW + 2 {
            let (one, other) = (act(&mut world, load, 1), act(&mut again, load, 1));
            prop_assert!(desired(&other, "a") >= desired(&one, "a"));
            // Whoever scales has one target, which here are two.
            let listed = world.variants["a"].listed;
            again.set("a", listed, load).scale = known(listed, listed);
        }
        // One replica at a time, each after a window: both arrive where the load is carried.
        let [one, other] = [&mut world, &mut again].map(|world| act(world, load, 350));
        // Where no turn is left for an hour, each stands where its last turn took it.
        let stopped = |it| of(it, "a").steps.iter().any(|step| step.stage == Stage::FlapBudget);
        prop_assume!(!stopped(&one) && !stopped(&other));
        prop_assert_eq!(desired(&other, "a"), desired(&one, "a"));
        for (kv, queue, seconds) in after {
            for _ in 0..seconds {
                let one = act(&mut world, (kv, queue), 1);
                let other = act(&mut again, (kv, queue), 1);
                prop_assert_eq!(desired(&other, "a"), desired(&one, "a"));
            }
        }
    }
}

/// Ticks under a load, and has as many replicas as were asked for.
fn act(world: &mut World, load: (f64, f64), seconds: i64) -> Decisions {
    let mut decisions = Decisions::default();
    for _ in 0..seconds {
        let listed = world.variants["a"].listed;
        world.set("a", listed, load);
        decisions = world.tick();
        let asked = decisions.decisions.iter().find(|it| it.variant == key("a"));
        let asked = asked.map_or(listed, |decision| decision.desired().count());
        world.set("a", asked, load);
    }
    decisions
}

#[test]
fn what_only_a_later_release_remembers_is_left_out_and_named_and_costs_no_number() {
    let text = r#"{"version":3,"written":"2026-11-21T09:30:01Z","told_by":"later","decisions":[
        {"namespace":"shop","variant":"a","model":"m","desired":3,"at":"2026-11-21T09:30:00Z","why":"later",
         "memory":{"history":{"latest":1795253460000},"clairvoyance":{"at":1}}}]}"#;
    let saved = state::parse(std::path::Path::new("state.json"), text.as_bytes()).unwrap();
    assert_eq!(
        (saved[0].desired.count(), &saved[0].strange[..]),
        (3, &["clairvoyance".to_owned()][..])
    );
    assert!(saved[0].memory.as_ref().is_some_and(|memory| memory.history.latest.is_some()));
}

/// All that can be remembered of a variant beside its windows.
fn much() -> VariantMemory {
    let numbers = |count: u32| (0..count).map(f64::from);
    let demand = SavedDemand {
        role: Role::Both,
        arrivals: SavedArrivals {
            begun: 1_795_000_000,
            spacing: 1.25,
            closed: 119_666_700,
            rates: numbers(300).map(|n| 12.3456 + n).collect(),
        },
        lengths: [9_000.5, 2_000.25, 18.125],
        needs: (0..24).zip(numbers(24)).map(|(at_, n)| (at(at_), 99.123_456_789 - n)).collect(),
        raised: 0.125,
        week: Some(SavedWeek {
            begun: 1_994_400,
            closed: 1_994_444,
            today: Some(0.973),
            peak: 61.123_456_789,
            levels: (0..672).map(|bin: u16| u8::try_from(bin % 64).ok()).collect(),
        }),
    };
    let seen = SavedVariantModel {
        iteration: Some(SavedPace {
            logarithms: [-4.394_449_154_672_439, -10.126_631_103_850_338, -9.704_564_637_1],
            covariance: [[1.234_567e-4, 1e-9, 1e-9], [1e-9, 2e-9, 1e-12], [1e-9, 1e-12, 3e-9]],
            lessons: 412,
        }),
        lengths: [9_000.5, 2_000.25, 18.125],
        work: RequestWork {
            prompt: 9_000.5,
            computed: 4_500.25,
            decoded: 1_982.125,
            outputs: 1_500.5,
            begun: 18.125,
            prompts: LengthMoments { count: 7.0, sum: 7000.0, squares: 1.2e7 },
            computed_prompts: LengthMoments { count: 7.0, sum: 5000.0, squares: 0.8e7 },
            answers: LengthMoments { count: 7.0, sum: 700.0, squares: 1.2e5 },
        },
        held: [120_000.5, 400.75],
        ranks: 2,
        kv: Tokens::new(480_000.0),
        most_running: 31.0,
        full_at: Some(30.5),
        busiest: 812.25,
    };
    let heard = |index: u32| SavedScrape {
        replica: ReplicaName::new(&format!("llama-7d9c-{index}")).unwrap(),
        incarnation: Incarnation::new("4f8c2b1e-0000-4000-8000-000000000000"),
        at: at(90),
        started: Some(at(-9_000)),
        counted: [Some(7.0), Some(9.0), None, Some(35_000.0), Some(9_000.0)],
    };
    VariantMemory {
        learned: SavedAnalyzers {
            foresight: Some(SavedForesight {
                learned_at: at(99),
                seen: Some(seen),
                demands: vec![demand],
            }),
            ..SavedAnalyzers::default()
        },
        silence: Some(SavedSilence {
            since: at(7),
            pages: 412,
            replicas: (0..4).map(heard).collect(),
        }),
        informed: [(Analyzer::Foresight, at(98))].into(),
        named: vec!["gateway".to_owned()],
        ..VariantMemory::default()
    }
}

#[test]
fn what_is_foreseen_and_silent_goes_through_a_file_and_fits_the_leaders_document() {
    let saved: Vec<state::SavedDecision> = (0..100)
        .map(|index| state::SavedDecision {
            variant: key(&format!("variant-{index}")),
            model: spec("a", 1.0, (1, 9)).model_key(),
            desired: crate::pipeline::n(3),
            at: at(100),
            written: at(101),
            memory: Some(much()),
            strange: Vec::new(),
        })
        .collect();
    let written = |length| state::encode(at(101), &saved, Some(length)).unwrap();
    let path = std::path::Path::new("state.json");
    assert_eq!(state::parse(path, &written(MemoryLength::Whole)).unwrap(), saved);
    let told =
        state::parse(path, &written(MemoryLength::Conclusions)).unwrap().remove(0).memory.unwrap();
    assert_eq!(
        told.learned.foresight.unwrap().demands[0].arrivals.rates.len(),
        60,
        "a quarter of an hour"
    );
    assert_eq!(told.silence, much().silence);
    let bytes = written(MemoryLength::Conclusions).len();
    assert!(bytes < BODY_MAX / 2, "{bytes} bytes beside decisions and what else was learned");
    let windows =
        state::parse(path, &written(MemoryLength::Windows)).unwrap().remove(0).memory.unwrap();
    assert_eq!((windows.learned, windows.silence), (SavedAnalyzers::default(), much().silence));
    assert_eq!(windows.named, ["gateway"], "it keeps numbers from falling");
}

#[test]
fn a_memory_that_cannot_be_is_refused() {
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY);
    let decisions = world.run(30);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("state.json");
    let memory =
        world.pipeline.memory(&world.fleet.variants().next().unwrap().model_key(), &key("a"));
    let memories = BTreeMap::from([(key("a"), memory.unwrap())]);
    state::save(&path, at(world.second), &published(&world, &decisions), &memories, &[]).unwrap();
    let good = std::fs::read_to_string(&path).unwrap();
    assert!(state::parse(&path, good.as_bytes()).is_ok());
    for (part, instead) in [
        ("\"latest\":", "\"latest\":9223372036854775807,\"recommended\":[],\"was\":"),
        ("\"kv_capacity\":", "\"kv_capacity\":-1.0,\"was\":"),
        ("\"capacity\":", "\"capacity\":-"),
        ("\"learned\":{", "\"learned\":{\"foresight\":1,"),
    ] {
        let bad = good.replacen(part, instead, 1);
        assert_ne!(bad, good, "{part} is there: {good}");
        let error = state::parse(&path, bad.as_bytes()).unwrap_err().to_string();
        assert!(error.contains("delete it"), "{error}");
    }
}
