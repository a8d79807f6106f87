//! The explanations that a stranger reads, one for each way to a number, as prose.

use std::time::Duration;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::queueing::{LatencyTarget, LatencyTargets, Percentile, Statistic};
use plimsoll::decide::enforce::{Amount, Dwell, Panic, StepPolicy};
use plimsoll::observe::{AutoscalerWindows, ScrapeFailure};
use plimsoll::pipeline::repeat::TickScene;
use plimsoll::pipeline::sizing::Sizing;
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::publish::explain::FailureDetails;
use plimsoll::publish::explanation::autoscaler::{Autoscaler, Reaction};
use plimsoll::publish::explanation::{self, ExplainedVariant, Explanation};
use plimsoll::units::{Fraction, Seconds};
use serde_json::Value;

use crate::pipeline::{BUSY, IDLE, World, at, key, known, n, of, policy, spec};
use crate::sizing::sized;
use crate::working::{Engine, Work};

/// The chain of a variant, a line each.
fn chain(decisions: &Decisions, variant: &str) -> String {
    let decision = of(decisions, variant);
    let steps: Vec<String> = decision.steps.iter().map(ToString::to_string).collect();
    format!("{variant}: {}\n  {}", decision.desired(), steps.join("\n  "))
}

fn seconds(seconds: f64) -> Seconds {
    Seconds::new(seconds).unwrap()
}

fn alone(policy: Policy) -> World {
    World::with(policy, vec![spec("a", 1.0, (1, 9))])
}

fn with_window(window: f64) -> Policy {
    let mut policy = policy();
    policy.behavior.scale_down.stabilization_window = seconds(window);
    policy
}

#[test]
fn saturation_grows() {
    let mut world = World::new(vec![spec("dear", 9.0, (1, 9)), spec("cheap", 2.0, (1, 9))]);
    world.set("dear", 2, BUSY);
    world.set("cheap", 2, BUSY);
    let decisions = world.run(3);
    let both = [chain(&decisions, "cheap"), chain(&decisions, "dear")].join("\n");
    insta::assert_snapshot!(both);
}

#[test]
fn saturation_shrinks() {
    let mut world = alone(policy());
    world.set("a", 4, IDLE);
    insta::assert_snapshot!(chain(&world.run(12), "a"));
}

#[test]
fn missing_data_holds() {
    let mut world = alone(policy());
    world.set("a", 4, IDLE);
    let _ = world.run(5);
    world.variants.get_mut("a").unwrap().failing.insert(2, ScrapeFailure::Timeout);
    let one = chain(&world.run(30), "a");
    for index in 0..4 {
        world.variants.get_mut("a").unwrap().failing.insert(index, ScrapeFailure::Timeout);
    }
    insta::assert_snapshot!(format!("{one}\nand then\n{}", chain(&world.run(30), "a")));
}

#[test]
fn a_window_holds() {
    let mut world = alone(with_window(300.0));
    world.set("a", 4, IDLE);
    insta::assert_snapshot!(chain(&world.run(30), "a"));
}

#[test]
fn an_hpa_waits_instead() {
    let mut world = alone(with_window(300.0));
    world.set("a", 4, IDLE);
    let _ = world.run(30);
    let mut inputs = world.inputs();
    let hpa = AutoscalerWindows {
        name: "llama".to_owned(),
        scale_up: Seconds::ZERO,
        scale_down: seconds(600.0),
    };
    inputs.autoscalers.insert(key("a"), hpa);
    let decisions = world.pipeline.tick(at(world.second), &inputs);
    insta::assert_snapshot!(chain(&decisions, "a"));
}

#[test]
fn a_step_is_limited() {
    let mut policy = sized(&[Analyzer::Tokens]);
    let two = StepPolicy { amount: Amount::Pods(2), period: seconds(60.0) };
    policy.behavior.scale_up.policies = vec![two];
    let mut world = World::with(policy, vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.98, 0.0));
    insta::assert_snapshot!(chain(&world.run(3), "a"));
}

#[test]
fn a_bound_holds() {
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 8, (0.98, 0.0));
    let most = chain(&world.run(3), "a");
    let mut world = World::new(vec![spec("a", 1.0, (3, 9))]);
    world.set("a", 2, IDLE);
    insta::assert_snapshot!(format!(
        "{most}\nand of a minimum of 3\n{}",
        chain(&world.run(1), "a")
    ));
}

#[test]
fn a_dwell_holds() {
    let mut policy = policy();
    policy.behavior.dwell = Dwell { after_up: seconds(600.0), after_down: Seconds::ZERO };
    let mut world = alone(policy);
    world.set("a", 4, BUSY);
    let _ = world.run(5);
    world.set("a", 5, IDLE);
    insta::assert_snapshot!(chain(&world.run(30), "a"));
}

#[test]
fn a_spent_flap_budget_holds() {
    let mut policy = policy();
    policy.behavior.flap_budget = 2;
    let mut world = alone(policy);
    for (replicas, load) in [(4, BUSY), (5, IDLE), (4, BUSY), (5, IDLE)] {
        world.set("a", replicas, load);
        let _ = world.run(30);
    }
    insta::assert_snapshot!(chain(&world.tick(), "a"));
}

#[test]
fn a_burst_is_followed() {
    let mut policy = sized(&[Analyzer::Tokens]);
    policy.behavior.scale_up.stabilization_window = seconds(120.0);
    policy.behavior.panic = Some(Panic {
        window: seconds(6.0),
        stable_window: seconds(60.0),
        threshold: Fraction::new(2.0).unwrap(),
    });
    let mut world = World::with(policy, vec![spec("a", 1.0, (1, 40))]);
    world.set("a", 4, (0.6, 0.0));
    let _ = world.run(60);
    world.set("a", 4, (0.9, 8.0));
    let _ = world.run(2);
    world.set("a", 4, (0.99, 60.0));
    let jump = chain(&world.run(3), "a");
    world.set("a", 4, (0.2, 0.0));
    insta::assert_snapshot!(format!("{jump}\nand later\n{}", chain(&world.run(20), "a")));
}

#[test]
fn what_cannot_be_met_asks_for_nothing() {
    let mut policy = sized(&[Analyzer::Tokens, Analyzer::Queueing]);
    let limit = LatencyTarget {
        limit: seconds(0.005),
        of: Statistic::Percentile(Percentile::new(Fraction::new(0.95).unwrap()).unwrap()),
    };
    let Some(Sizing { queueing, .. }) = &mut policy.sizing else { panic!() };
    queueing.targets = LatencyTargets { ttft: Some(limit), itl: None };
    let mut work = Work::with(policy, vec![spec("a", 1.0, (1, 20))], Engine::default());
    let decisions = work.run(4, 0.5, 600);
    insta::assert_snapshot!(chain(&decisions, "a"));
}

#[test]
fn foresight_says_what_no_number_of_replicas_can_meet_and_leaves_the_others_to_decide() {
    let mut policy = sized(&[Analyzer::Foresight]);
    let Some(Sizing { foresight, .. }) = &mut policy.sizing else { panic!() };
    foresight.itl = Some(seconds(0.002));
    let mut work = Work::with(policy, vec![spec("a", 1.0, (1, 20))], Engine::default());
    let _ = work.run(4, 1.0, 120);
    let _ = work.run(4, 30.0, 120);
    let said = chain(&work.run(4, 60.0, 120), "a");
    let floor = "the ITL target of 2.0 ms (with 92% usable) is unreachable at any number of \
                 replicas: a request alone on a replica takes about ";
    assert!(said.contains(floor) && said.contains("ms; target ignored"), "{said}");
    assert!(said.contains("KV headroom"), "saturation decides: {said}");
}

#[test]
fn a_latency_target_binds() {
    let mut policy = sized(&[Analyzer::Tokens, Analyzer::Queueing]);
    let limit = LatencyTarget { limit: seconds(0.035), of: Statistic::Mean };
    let Some(Sizing { queueing, .. }) = &mut policy.sizing else { panic!() };
    queueing.targets = LatencyTargets { ttft: Some(limit), itl: None };
    let mut work = Work::with(policy, vec![spec("a", 1.0, (1, 20))], Engine::default());
    let _ = work.run(4, 0.5, 600);
    let _ = work.run(4, 3.0, 600);
    let decisions = work.run(2, 20.0, 120);
    insta::assert_snapshot!(chain(&decisions, "a"));
}

#[test]
fn replicas_that_do_not_start_are_not_counted_on() {
    let mut world = World::with(sized(&[Analyzer::Tokens]), vec![spec("a", 1.0, (1, 40))]);
    world.set("a", 8, (0.98, 0.0));
    let _ = world.run(3);
    world.variants.get_mut("a").unwrap().scale = known(12, 8);
    insta::assert_snapshot!(chain(&world.run(610), "a"));
}

#[test]
fn an_analyzer_without_data_keeps_what_is_there() {
    let both = sized(&[Analyzer::Tokens, Analyzer::Queueing]);
    let mut world = World::with(both, vec![spec("a", 1.0, (1, 20))]);
    world.set("a", 8, (0.1, 0.0));
    insta::assert_snapshot!(chain(&world.run(60), "a"));
}

#[test]
fn an_analyzer_with_old_data_keeps_what_is_there() {
    let both = sized(&[Analyzer::Tokens, Analyzer::Queueing]);
    let mut work = Work::with(both, vec![spec("a", 1.0, (1, 20))], Engine::default());
    let _ = work.run(4, 8.0, 300);
    // Pages from which nobody can say how long requests are and take.
    work.world.set("a", 4, (0.1, 0.0));
    insta::assert_snapshot!(chain(&work.world.run(400), "a"));
}

#[test]
fn a_number_is_restored() {
    let mut world = alone(policy());
    world.pipeline.restore(at(0), key("a"), n(6), at(-20));
    world.set("a", 4, IDLE).silent = vec![0, 1, 2, 3];
    insta::assert_snapshot!(chain(&world.run(5), "a"));
}

// === the whole document ===

/// The explanation of variant `a` at the next tick of a world.
fn explained(world: &World, autoscaler: Option<Autoscaler>) -> Value {
    let (pipeline, now) = (world.pipeline.clone(), at(world.second));
    let scene = TickScene { pipeline, now, inputs: world.inputs(), follows: None };
    let answers = explanation::answers(&scene, &key("a"), &|| true).unwrap();
    // Later than the age of all data.
    let elapsed = Duration::from_hours(1);
    let published = explanation::published(scene.clone(), elapsed);
    let explained = ExplainedVariant {
        published: &published,
        variant: &published.variants[&key("a")],
        inputs: &scene.inputs,
        details: &FailureDetails::default(),
        autoscaler,
        now,
        elapsed,
    };
    serde_json::to_value(Explanation::new(explained, &answers)).unwrap()
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

#[test]
fn a_number_in_a_window_is_explained_with_the_number_after_it_and_with_its_autoscaler() {
    let mut world = alone(with_window(300.0));
    world.set("a", 4, IDLE);
    let _ = world.run(30);
    let ignores = "HPA llama ignores the change".to_owned();
    let hpa = Autoscaler::still(Some("llama".to_owned()), Reaction::Ignores, ignores.clone());
    let document = explained(&world, Some(hpa));
    let summary = texts(&document["summary"]);
    let settled = document["settled"].as_u64().unwrap();
    let later = format!("; {settled} once every wait has ended, if the load stays as it is");
    assert!(settled < 4 && summary[0].starts_with("4, because "), "{summary:#?}");
    assert!(summary[0].ends_with(&later), "{summary:#?}");
    assert_eq!(summary.last(), Some(&ignores));
    assert_eq!(texts(&document["unknown"]), Vec::<String>::new());

    let mut settles = alone(policy());
    settles.set("a", 2, (0.5, 0.0));
    let _ = settles.run(30);
    let document = explained(&settles, None);
    let summary = texts(&document["summary"]);
    assert_eq!(document["settled"], 2, "{summary:#?}");
    assert!(!summary[0].contains("once every wait has ended"), "{summary:#?}");
}

#[test]
fn a_number_without_data_is_explained_with_all_that_is_not_known() {
    let mut world = alone(policy());
    world.set("a", 3, BUSY);
    let _ = world.run(20);
    world.variants.get_mut("a").unwrap().failing.insert(0, ScrapeFailure::Timeout);
    let _ = world.run(60);
    let inputs = explained(&world, None)["inputs"].clone();
    let replicas = |inputs: &Value| -> Vec<(String, String)> {
        let all = inputs.as_array().unwrap().iter();
        let of = all.filter(|it| it["input"] == "replicas").map(|it| {
            let text = |name: &str| it[name].as_str().unwrap().to_owned();
            (text("state"), text("text"))
        });
        of.collect()
    };
    let told = |state: &str, text: &str| (state.to_owned(), text.to_owned());
    let fresh = told("fresh", "2 replicas are fresh, oldest scrape 0.0 s ago");
    let stale = told("stale", "1 replica is stale, oldest scrape 61.0 s ago");
    assert_eq!(replicas(&inputs), [fresh, stale]);

    for index in 1..3 {
        world.variants.get_mut("a").unwrap().failing.insert(index, ScrapeFailure::Timeout);
    }
    let _ = world.run(60);
    let document = explained(&world, None);
    let stale = told("stale", "3 replicas are stale, oldest scrape 121.0 s ago");
    assert_eq!(replicas(&document["inputs"]), [stale]);
    let unknown = texts(&document["unknown"]);
    let starts = [
        "the load: ",
        "the load that would change desired replicas: ",
        "the autoscaler's reaction",
    ];
    assert_eq!(unknown.len(), starts.len(), "{unknown:#?}");
    for (text, start) in unknown.iter().zip(starts) {
        assert!(text.starts_with(start), "{unknown:#?}");
    }
}
