//! Tests of the demo's scenario in the simulator, with external scaling.

use crate::demo::args::DemoScenario;
use crate::demo::scenario::{DemoSetup, most};
use crate::demo::summary::static_fleet;
use crate::simulate::Micros;
use crate::simulate::run::{PodState, Simulation};
use crate::study::results::RunResult;
use jiff::Timestamp;
use plimsoll_core::units::Replicas;
use serde_json::json;

fn played() -> DemoSetup {
    let paths = [0, 1, 2].map(|at| format!("variants[{at}].startup.load"));
    let starts = paths.each_ref().map(|path| (path.as_str(), json!("10s")));
    DemoSetup::read(DemoScenario::Standard, 1, &starts).unwrap()
}

fn fleet() -> Simulation<'static> {
    Simulation::new(played().scenario, 1).unwrap()
}

fn seconds(seconds: u64) -> Micros {
    Micros::from_secs(seconds)
}

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

#[test]
fn a_replica_starts_serves_and_drains_before_it_goes() {
    let mut fleet = fleet();
    fleet.advance_to(seconds(20));
    fleet.scale(1, n(2));
    fleet.advance_to(seconds(29));
    assert_eq!((fleet.view()[1].ready, fleet.view()[1].starting), (1, 1));
    let (second, _) = fleet.replicas(1).last().unwrap();
    assert_eq!(fleet.page(second, Timestamp::UNIX_EPOCH), None, "it does not serve yet");

    fleet.advance_to(seconds(30));
    assert_eq!((fleet.view()[1].ready, fleet.view()[1].starting), (2, 0));
    assert!(fleet.page(second, Timestamp::UNIX_EPOCH).is_some());

    fleet.advance_to(seconds(60));
    fleet.scale(1, n(1));
    assert_eq!((fleet.view()[1].ready, fleet.view()[1].draining), (1, 1));
    assert_eq!(fleet.page(second, Timestamp::UNIX_EPOCH), None, "it does not serve any more");
    fleet.advance_to(seconds(180));
    assert_eq!(fleet.view()[1].draining, 0, "what it had has long been answered");
}

#[test]
fn of_too_many_the_youngest_go_first_and_unready_before_ready() {
    let mut fleet = fleet();
    fleet.scale(0, n(2));
    fleet.advance_to(seconds(15));
    fleet.scale(0, n(4));
    let all = live(&fleet);
    fleet.scale(0, n(3));
    assert_eq!(live(&fleet), all[..3]);

    fleet.scale(0, n(1));
    assert_eq!(live(&fleet), all[..1]);

    fleet.scale(0, n(2));
    assert!(!all.contains(&live(&fleet)[1]), "no number comes back");
}

/// The numbers of the first variant's replicas that do not drain.
fn live(fleet: &Simulation<'_>) -> Vec<usize> {
    let live = fleet.replicas(0).filter(|(_, state)| *state != PodState::Draining);
    live.map(|(number, _)| number).collect()
}

#[test]
fn no_request_is_lost_whatever_is_scaled() {
    let mut fleet = fleet();
    let waves = [3, 1, 4, 2, 0, 0, 3, 1, 2, 4];
    for (step, count) in waves.into_iter().cycle().take(60).enumerate() {
        fleet.advance_to(seconds(3 * step as u64));
        for index in 0..3 {
            fleet.scale(index, n(count));
        }
    }

    for model in fleet.score().models {
        assert_eq!(model.arrived, model.finished + model.overdue + model.open);
    }
}

#[test]
fn requests_follow_the_seats_that_replicas_have() {
    let mut fleet = fleet();
    let mut running = [0, 0];
    for second in 20..40 {
        fleet.advance_to(seconds(second));
        let views = fleet.view();
        running = [running[0] + views[0].running, running[1] + views[1].running];
    }

    let share = f64::from(running[1]) / f64::from(running[0]);
    // 384 seats versus 128; requests that end between two arrivals shift the ratio slightly.
    assert!((2.5..=3.5).contains(&share), "{share}");
}

#[test]
fn the_same_seed_gives_the_same_run_in_any_steps() {
    let mut once = fleet();
    let mut often = fleet();
    once.advance_to(seconds(100));

    for step in 0..=1_000 {
        often.advance_to(Micros::new(step * 100_000));
    }

    assert_eq!(once.view(), often.view());
    assert_eq!(once.score(), often.score());
}

#[test]
fn the_wave_needs_more_than_the_smallest_fleet_and_less_than_the_largest() {
    let played = played();
    let length = seconds(180);
    let smallest = static_fleet(&played, length, |variant| variant.spec.bounds.min()).unwrap();
    let largest = static_fleet(&played, length, most).unwrap();

    assert!(smallest.within_slo.unwrap() < 0.5, "{:?}", smallest.within_slo);
    assert!(largest.within_slo.unwrap() > 0.99, "{:?}", largest.within_slo);
    assert!(largest.cost > 3.0 * smallest.cost);

    assert_eq!(arrived(&smallest), arrived(&largest), "both meet the same requests");
}

/// The requests of each model.
fn arrived(result: &RunResult) -> Vec<u64> {
    result.models.iter().map(|model| model.arrived).collect()
}

#[test]
fn an_overdue_request_counts_against_the_service() {
    let mut fleet = fleet();
    fleet.scale(2, Replicas::ZERO);
    fleet.advance_to(seconds(30));
    let service = &fleet.score().models[1];
    assert!(service.overdue > 0, "nobody serves this model");
    assert!(service.attainment().unwrap() < 0.5);
}
