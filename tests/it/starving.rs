//! Variants that starve next to idle ones.

use plimsoll::decide::Decision;
use plimsoll::decide::sized::Starvation;

use crate::foresight::quick;
use crate::pipeline::{of, spec};
use crate::working::{Engine, Work};

/// A replica handles about 22 requests a second.
fn shop() -> Work {
    let specs = vec![spec("idle", 2.0, (1, 20)), spec("slow", 3.0, (1, 20))];
    let mut work = Work::with(quick(), specs, Engine::default());
    let _ = work.run_all(&[("idle", 3, 8.0), ("slow", 1, 8.0)], 120);
    work
}

fn said(decision: &Decision) -> Option<Starvation> {
    decision.sizing.as_ref().unwrap().starving
}

#[test]
fn a_variant_that_starves_next_to_an_idle_one_is_reported() {
    let mut work = shop();
    let busy = [("idle", 3, 8.0), ("slow", 1, 42.0)];
    let soon = work.run_all(&busy, 45);
    assert_eq!(said(of(&soon, "slow")), None, "a minute must pass");
    let starving = work.run_all(&busy, 90);
    let why = said(of(&starving, "slow")).unwrap();
    assert!((why.arriving - 42.0).abs() < 5.0 && why.others < 0.5, "{why:?}");
    assert!((2..=3).contains(&why.replicas.count()), "{why:?}");
    assert!(of(&starving, "slow").steps[0].to_string().contains("it starves:"));
    assert_eq!(said(of(&starving, "idle")), None);

    // It does while the router shares as before, although nothing waits any more.
    let fed = work.run_all(&[("idle", 3, 8.0), ("slow", 2, 20.0)], 900);
    assert!(said(of(&fed, "slow")).is_some_and(|why| why.waiting < 1.0));
    // And not once it shares by what replicas handle.
    let even = work.run_all(&[("idle", 3, 10.0), ("slow", 2, 10.0)], 600);
    assert_eq!(said(of(&even, "slow")), None);
}

#[test]
fn a_fleet_that_queues_everywhere_has_no_variant_that_starves() {
    let mut work = shop();
    for busy in [[("idle", 3, 40.0), ("slow", 1, 45.0)], [("idle", 3, 25.0), ("slow", 1, 45.0)]] {
        let decisions = work.run_all(&busy, 300);
        assert_eq!(said(of(&decisions, "slow")), None, "the others are busy");
    }
    let mut fed = shop();
    let decisions = fed.run_all(&[("idle", 3, 8.0), ("slow", 1, 30.0)], 300);
    assert_eq!(said(of(&decisions, "slow")), None, "nothing waits");
}
