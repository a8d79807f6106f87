//! Batch work on the replicas that serve a workload.

use plimsoll::simulate::Micros;
use plimsoll::simulate::scenario::{Actuator, BatchTraffic, Client, Scenario, Slo};
use plimsoll::simulate::workload::Load;
use plimsoll::simulate::workload::rate::Rate;

use crate::simulation::{accounted, drawn, n, play, scenario, secs};

fn steady(rate: f64) -> Load {
    drawn(Rate::constant(rate).unwrap())
}

/// Ten minutes of 4 requests per second on two replicas.
fn alone() -> Scenario {
    let mut scenario = scenario(steady(4.0));
    scenario.variants[0].actuator = Actuator::Fixed;
    scenario.variants[0].initial = n(2);
    scenario
}

fn beside(rate: f64, slo: Option<Slo>) -> Scenario {
    let mut scenario = alone();
    scenario.models[0].batch = Some(BatchTraffic { load: steady(rate), slo });
    scenario
}

#[test]
fn batch_work_is_counted_apart_and_slows_the_others_down() {
    let (without, with) = (play(&alone(), 1), play(&beside(6.0, None), 1));
    assert_eq!(without.models[0].arrived, with.models[0].arrived, "they come at the same times");
    assert_eq!(without.batches[0].arrived, 0);
    let batch = &with.batches[0];
    assert!((3_300..3_900).contains(&batch.arrived), "{}", batch.arrived);
    assert_eq!(accounted(batch), batch.arrived);
    assert_eq!((batch.good, batch.overdue), (batch.finished, 0), "there is no objective to miss");
    let itl = |outcome: &plimsoll::simulate::score::Outcome| outcome.models[0].itl.mean().unwrap();
    assert!(itl(&with) > itl(&without), "{} and {}", itl(&with), itl(&without));

    let strict = Slo::new(secs(2), Micros::new(1));
    let strict = play(&beside(6.0, Some(strict)), 1);
    assert_eq!(strict.batches[0].good, 0, "no answer is as fast as that");
    assert_eq!(strict.models, with.models, "and the others do not notice");
}

#[test]
fn batch_work_waits_where_clients_give_up() {
    let mut scenario = beside(40.0, None);
    scenario.models[0].client = Client { timeout: Some(secs(3)), retries: 0, backoff: secs(1) };
    let outcome = play(&scenario, 1);
    assert!(outcome.models[0].timed_out > 0, "{:?}", outcome.models[0].timed_out);
    assert_eq!(outcome.batches[0].timed_out, 0);
    assert!(outcome.batches[0].open > 0, "some still waits at the end");
}
