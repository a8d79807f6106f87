//! Replicas for which no node has room: others take their place, and not of the same kind.

use plimsoll::fleet::VariantSpec;
use plimsoll::units::Seconds;

use crate::foresight::quick;
use crate::pipeline::{desired, key, n, of, spec};
use crate::working::{Engine, Work};

/// Four replicas of `a`, and some of `b` that cost more, when more are needed than there are.
fn short_of(specs: Vec<VariantSpec>) -> (Work, u32) {
    let mut work = Work::with(quick(), specs, Engine::default());
    let _ = work.run_all(&[("a", 4, 15.0), ("b", 0, 0.0)], 90);
    let said = work.run_all(&[("a", 4, 35.0), ("b", 0, 0.0)], 60);
    let wanted = desired(&said, "a");
    assert!(wanted > 4, "{said:?}");
    work.starting.insert("a".to_owned(), wanted - 4);
    (work, wanted)
}

fn two() -> Vec<VariantSpec> {
    // Neither is standby for the other.
    let start_time = Some(Seconds::literal(300));
    let with = |name, cost, bounds| VariantSpec { start_time, ..spec(name, cost, bounds) };
    vec![with("a", 1.0, (0, 60)), with("b", 3.0, (1, 60))]
}

#[test]
fn another_variant_takes_the_place_of_replicas_for_which_no_node_has_room() {
    let all = |work: &mut Work, seconds| work.run_all(&[("a", 4, 21.0), ("b", 1, 15.0)], seconds);
    let mut work = Work::with(quick(), two(), Engine::default());
    let _ = work.run_all(&[("a", 4, 15.0), ("b", 1, 15.0)], 90);
    let wanted = desired(&all(&mut work, 60), "a");
    assert!(wanted > 4);
    work.starting.insert("a".to_owned(), wanted - 4);
    let mut waits_long = work.clone();
    work.unschedulable.insert("a".to_owned(), work.world.second);

    // Half of the ten minutes after which a start is stuck that nobody has measured.
    let before = all(&mut work, 290);
    assert_eq!(desired(&before, "b"), 1, "{:?}", of(&before, "b").steps);
    let after = all(&mut work, 30);
    assert!(desired(&after, "b") > 1, "{:?}", of(&after, "b").steps);
    let asked = desired(&before, "a");
    assert_eq!(desired(&after, "a"), asked, "{:?}", of(&after, "a").steps);
    let decision = of(&after, "a");
    let sizing = decision.sizing.as_ref().unwrap();
    assert_eq!((sizing.stuck, sizing.unplaced), (n(wanted - 4), n(wanted - 4)));
    let why = decision.steps[0].reason.to_string();
    assert!(why.contains("of them because no node has room"), "{why}");
    let startup = after.observations[&key("a")].startup;
    assert_eq!(startup.unschedulable, n(wanted - 4));

    let elsewhere = all(&mut waits_long, 320);
    assert_eq!(desired(&elsewhere, "b"), 1, "a node that starts them slowly is waited for");
}

#[test]
fn replicas_for_which_no_node_has_room_are_not_asked_for_again() {
    let numbers = |unschedulable: bool| -> Vec<u32> {
        let (mut work, mut asked) = short_of(vec![spec("a", 1.0, (1, 60)), spec("b", 1.0, (0, 0))]);
        if unschedulable {
            work.unschedulable.insert("a".to_owned(), work.world.second);
        }
        (0..30)
            .map(|_| {
                work.starting.insert("a".to_owned(), asked - 4);
                let said = work.run_all(&[("a", 4, 35.0), ("b", 0, 0.0)], 30);
                asked = desired(&said, "a").max(asked);
                asked
            })
            .collect()
    };
    let (slow, unplaced) = (numbers(false), numbers(true));
    // From when they are stuck, after ten minutes or five.
    assert!(slow[29] > slow[18] + 2, "one more time: {slow:?}");
    // What waits meanwhile asks for one more.
    assert!(unplaced[29] <= unplaced[10] + 1, "{unplaced:?}");
}

#[test]
fn what_finds_a_node_again_is_counted_on() {
    let (mut work, wanted) = short_of(vec![spec("a", 1.0, (1, 60)), spec("b", 1.0, (0, 0))]);
    work.unschedulable.insert("a".to_owned(), work.world.second);
    let said = work.run_all(&[("a", 4, 35.0), ("b", 0, 0.0)], 320);
    assert_eq!(said.observations[&key("a")].startup.stuck, n(wanted - 4));
    work.unschedulable.clear();
    let said = work.run_all(&[("a", 4, 35.0), ("b", 0, 0.0)], 1);
    let startup = said.observations[&key("a")].startup;
    assert_eq!((startup.stuck, startup.unschedulable), (n(0), n(0)));
}
