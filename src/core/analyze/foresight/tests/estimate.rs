//! The uncertainty of an estimated capacity: the interval contains the truth, and narrows with more
//! lessons.

use super::*;
use crate::analyze::foresight::estimate::{CapacityInterval, Teacher};

/// The ends of the interval, as shares of the truth.
fn ends(world: &World, analysis: &ForesightAnalysis) -> (f64, f64) {
    let CapacityInterval { low, high } = analysis.estimates[&world.spec.key].interval.unwrap();
    (low.requests_per_second() / truth(), high.requests_per_second() / truth())
}

#[test]
fn the_interval_holds_the_truth_and_narrows_as_loads_differ() {
    let mut world = World::new(4);
    let mut widths = Vec::new();
    for minute in 0..16 {
        let found = world.run(60, truth() * (1.0 + 0.15 * f64::from(minute % 8)));
        let (low, high) = ends(&world, &found);
        assert!(low <= 1.0 && 1.0 <= high, "{low} to {high} in minute {minute}");
        let rate = found.estimates[&world.spec.key].rate.requests_per_second();
        assert!((rate - carries(&found)).abs() < 1e-3, "{rate}: what decisions count on");
        widths.push(high - low);
    }

    assert!(widths[..8].is_sorted_by(|a, b| a > b), "{widths:?}");
    assert!(widths[15] < 0.15 * widths[0], "{widths:?}");
}

#[test]
fn one_load_that_never_changes_leaves_the_interval_wide_and_the_truth_in_it() {
    let mut world = World::new(4);
    let soon = world.run(120, 1.2 * truth());
    let later = world.run(1200, 1.2 * truth());
    for found in [&soon, &later] {
        let (low, high) = ends(&world, found);
        assert!(low < 0.5 && high > 1.5, "{low} to {high}: it says little of a full replica");
    }
}

#[test]
fn a_card_says_that_it_is_one_until_replicas_have_shown_more() {
    let mut world = World::with_card(3, 1.0);
    let begun = world.tick(1.0);
    assert_eq!(begun.estimates[&world.spec.key].said_by, Teacher::Card);
    let (low, high) = ends(&world, &begun);
    assert!(low < 0.8 && high > 1.2, "{low} to {high}: a card is doubted");
    let learned = world.run(120, 1.5 * truth());
    assert_eq!(learned.estimates[&world.spec.key].said_by, Teacher::Replicas);
}

#[test]
fn what_is_not_known_and_what_carries_nothing_has_no_estimate() {
    let mut world = World::new(2);
    assert!(world.tick(1.0).estimates.is_empty(), "nothing has been learned");
    world.policy.itl = Seconds::new(0.005);
    assert!(world.run(120, truth()).estimates.is_empty(), "a target that nothing meets");
}
