//! Models without replicas that serve: as many start as the queue in front of them takes.

use std::fs;
use std::path::Path;

use plimsoll::decide::zero::{Move, ZeroPolicy};
use plimsoll::decide::{Basis, Decision, Reason, Stage};
use plimsoll::observe::{DemandSignal, SignalQuantity, SignalValue};
use plimsoll::pipeline::zero::{Zero, ZeroRule};
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::Seconds;
use serde_json::Value;
use tempfile::TempDir;

use crate::cards::{on_l4, with_card};
use crate::foresight::{holding, quick};
use crate::pipeline::{desired, of, spec};
use crate::study::{simulate, text};
use crate::working::{Engine, Work};

fn waking(policy: Policy) -> Policy {
    let policy_of_all = ZeroPolicy::AfterIdle(Seconds::literal(900));
    let default = ZeroRule { policy: policy_of_all, awake_min: Seconds::literal(120) };
    Policy { zero: Zero { default, ..Zero::default() }, ..policy }
}

/// A model without replicas whose start takes so many seconds.
fn asleep(mut policy: Policy, startup: u32) -> Work {
    if let Some(sizing) = &mut policy.sizing {
        sizing.foresight.startup = Seconds::literal(startup);
    }
    let mut work =
        Work::with(waking(policy), vec![on_l4(spec("a", 1.0, (0, 60)))], Engine::default());
    for _ in 0..30 {
        let _ = queueing(&mut work, 0, 0.0);
    }
    work
}

/// The number while so many replicas start and so many requests queue.
fn queueing(work: &mut Work, starting: u32, requests: f64) -> u32 {
    work.starting.insert("a".to_owned(), starting);
    work.front = vec![holding(work, requests)];
    desired(&work.run_all(&[("a", 0, 0.0)], 1), "a")
}

#[test]
fn a_model_without_replicas_gets_as_many_as_work_off_its_queue_in_time() {
    // A replica of the card handles about 35 requests a second.
    let mut work = asleep(with_card(quick(), 1.0), 60);
    let woken = queueing(&mut work, 0, 9_000.0);
    assert!((7..=10).contains(&woken), "{woken}");
    let said = work.run_all(&[("a", 0, 0.0)], 1);
    let decision = of(&said, "a");
    let why = &decision.steps[0].reason;
    assert!(why.to_string().contains("for 9000 requests in the gateway's queue"), "{why}");
    assert!(decision.desired().count() >= woken && decision.basis == Basis::Fresh);

    // It goes on while they start, and never down.
    let mut number = woken;
    for second in 0..30 {
        number = queueing(&mut work, number, 9_000.0 + 400.0 * f64::from(second)).max(number);
    }
    assert!(number > woken, "400 requests a second join the queue: {number}");
    for _ in 0..30 {
        assert_eq!(queueing(&mut work, number, 10.0), number, "they may have given up");
    }
}

#[test]
fn a_burst_that_is_over_is_a_queue_and_no_rate() {
    let mut work = asleep(with_card(quick(), 1.0), 60);
    let mut most = 0;
    for second in 0..60 {
        most = most.max(queueing(&mut work, 0, 90.0 * f64::from(second.min(10))));
    }
    assert!(most <= 3, "900 requests are two replicas for half a minute: {most}");
}

#[test]
fn replicas_that_come_in_time_for_the_queue_ask_for_no_others() {
    let mut work = asleep(with_card(quick(), 1.0), 60);
    let mut number = 0;
    let numbers: Vec<u32> = (0..60)
        .map(|second: u32| {
            number = queueing(&mut work, number, 150.0 * f64::from(second)).max(number);
            number
        })
        .collect();
    // 150 requests a second are five replicas, and as many work off what queued in the start.
    assert!(numbers[20] >= 8 && numbers[59] <= 12, "{numbers:?}");
}

#[test]
fn a_model_of_unknown_capacity_gets_as_many_replicas_as_hold_its_queue() {
    let mut work = asleep(quick(), 60);
    assert_eq!(queueing(&mut work, 0, 600.0), 3, "256 places each");
    assert_eq!(queueing(&mut work, 1, 600.0), 3, "one starts");
    assert_eq!(queueing(&mut work, 3, 1_000.0), 4);
    assert_eq!(queueing(&mut work, 4, 0.0), 4);

    let mut few = asleep(quick(), 60);
    few.front = vec![holding(&few, 200.0)];
    let said = few.run_all(&[("a", 0, 0.0)], 1);
    let last = of(&said, "a").steps.last().unwrap();
    assert!(matches!(&last.reason, Reason::Zero(Move::Woken { .. })), "{last:?}");
}

#[test]
fn a_number_is_kept_where_no_signal_counts_what_queues() {
    let mut work = asleep(quick(), 60);
    assert_eq!(queueing(&mut work, 2, 600.0), 3);
    let silent = |work: &Work| DemandSignal { seen: SignalValue::Never, ..holding(work, 0.0) };
    let other =
        |work: &Work| DemandSignal { counts: SignalQuantity::Something, ..holding(work, 9e4) };
    for front in [vec![], vec![silent(&work)], vec![other(&work)]] {
        work.front = front;
        let said = work.run_all(&[("a", 0, 0.0)], 1);
        let decision = of(&said, "a");
        assert_eq!((decision.desired().count(), decision.basis), (3, Basis::Held));
        assert_eq!(decision.steps[0].stage, Stage::Hold, "{decision:?}");
    }
}

#[test]
fn replicas_that_are_silent_are_not_taken_for_some_that_start() {
    let mut work = asleep(quick(), 60);
    let _ = work.run(2, 20.0, 30);
    work.failing.insert("a".to_owned(), 2);
    let mut numbers = Vec::new();
    for _ in 0..60 {
        work.front = vec![holding(&work, 2_000.0)];
        let said = work.run(2, 20.0, 1);
        numbers.push((desired(&said, "a"), of(&said, "a").basis));
    }
    let (held, basis) = numbers[59];
    assert_eq!(basis, Basis::Held, "{numbers:?}");
    assert_eq!(held, numbers[15].0, "{numbers:?}");
}

/// The decision after so many seconds in which two replicas sleep and 600 requests queue.
fn sleeping(work: &mut Work, seconds: u32) -> Decision {
    work.asleep.insert("a".to_owned(), 2);
    let mut last = Decisions::default();
    for _ in 0..seconds {
        work.front = vec![holding(work, 600.0)];
        last = work.run_all(&[("a", 2, 0.0)], 1);
    }
    of(&last, "a").clone()
}

#[test]
fn replicas_that_all_sleep_take_part_of_a_queue_for_a_minute_and_none_of_it_later() {
    let mut work = Work::with(quick(), vec![spec("a", 1.0, (1, 60))], Engine::default());
    let waking = sleeping(&mut work, 55);
    assert_eq!(waking.sizing.as_ref().unwrap().asleep.count(), 0);
    assert_eq!(waking.desired().count(), 3, "256 places each: {:?}", waking.steps);

    let dormant = sleeping(&mut work, 10);
    assert_eq!(dormant.sizing.as_ref().unwrap().asleep.count(), 2);
    assert_eq!(dormant.desired().count(), 3 + 2, "{:?}", dormant.steps);
    assert_eq!([waking.basis, dormant.basis], [Basis::Fresh; 2]);
}

#[test]
fn all_variants_that_wake_for_a_queue_stay_until_they_have_served() {
    let specs = vec![spec("cheap", 1.0, (0, 2)), spec("dear", 3.0, (0, 9))];
    let mut work = Work::with(waking(quick()), specs, Engine::default());
    let busy = [("cheap", 0, 0.0), ("dear", 0, 0.0)];
    work.front = vec![holding(&work, 0.0)];
    let _ = work.run_all(&busy, 2);
    work.front = vec![holding(&work, 600.0)];
    let woken = work.run_all(&busy, 1);
    assert_eq!((desired(&woken, "cheap"), desired(&woken, "dear")), (2, 1));
    for _ in 0..100 {
        work.front = vec![holding(&work, 0.0)];
        let later = work.run_all(&busy, 1);
        assert!(desired(&later, "cheap") >= 1 && desired(&later, "dear") >= 1);
    }
}

/// A card of the engine of the scenario.
const CARD: &str = "version: 1\ncards:\n- model: m\n  accelerator: L4\n  role: both\n  \
    iteration: {alpha: 0.03, beta: 1.0e-4, delta: 3.0e-4}\n  \
    requests: {prompt: 500, output: 600, held: 800}\n  \
    lessons: {count: 400, prompt: 200, batch: 41}\n  shown: {most_running: 64, busiest: 640}\n";

/// Seconds until a first token, at the mean and at the 99th percentile, and what the run cost.
fn burst(set: &[&str]) -> (f64, f64, f64) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/wake.yaml");
    let mut arguments = vec![path.to_str().unwrap(), "--json", "-"];
    arguments.extend(set);
    let output = simulate(&arguments);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &results["runs"][0];
    let ttft = |of: &str| run["models"][0]["ttft"][of].as_f64().unwrap();
    (ttft("mean"), ttft("p99"), run["cost"].as_f64().unwrap())
}

#[test]
fn six_hundred_requests_before_a_model_without_replicas_are_served_sooner() {
    let (usual, longest, _) = burst(&[]);
    // One replica at first, and others only once it serves: 295 and 351 s.
    assert!(usual < 240.0 && longest < 300.0, "{usual} and {longest}");

    let folder = TempDir::new().unwrap();
    let cards = folder.path().join("cards.yaml");
    fs::write(&cards, CARD).unwrap();
    let set = format!("policy.capacity.card_files=[{}]", cards.display());
    let (usual, longest, cost) = burst(&["--set", &set]);
    // The same with a card: 294 and 343 s, and a cost of 2.57.
    assert!(usual < 180.0 && longest < 200.0 && cost < 1.6, "{usual}, {longest}, {cost}");

    let unaware = ["--set", "policy.capacity.foresight.gateway.enabled=false"];
    assert!(burst(&unaware).0 > 280.0, "without its queue, one starts first");
}
