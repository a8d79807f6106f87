//! What goes wrong around a running pipeline, and what must not follow from it.

use plimsoll::analyze::saturation::TransitionRule;
use plimsoll::decide::{Basis, Stage};
use plimsoll::fleet::Bounds;
use plimsoll::observe::{Scale, ScaleState, ScrapeFailure, WhyUnknown};
use plimsoll::units::Seconds;

use crate::pipeline::{BUSY, IDLE, WINDOW, World, at, desired, key, known, n, of, policy, spec};

/// Neither low nor enough to spare.
const STEADY: (f64, f64) = (0.69, 0.0);

/// A target with an autoscaler of these bounds.
fn bounded(wanted: u32, min: u32, max: u32) -> Scale {
    Scale::Known(ScaleState {
        wanted: n(wanted),
        current: n(wanted),
        ready: n(wanted),
        pending: n(0),
        bounds: Bounds::new(n(min), Some(n(max))),
    })
}

#[test]
fn losing_sight_of_the_autoscaler_does_not_apply_the_configured_maximum() {
    for why in [
        WhyUnknown::NotListed,
        WhyUnknown::Forbidden,
        WhyUnknown::DuplicateOwners(vec!["HPA a".into(), "HPA b".into()]),
    ] {
        let mut world = World::new(vec![spec("a", 1.0, (1, 8))]);
        world.set("a", 15, STEADY).scale = bounded(15, 1, 20);
        assert_eq!(desired(&world.run(WINDOW + 5), "a"), 15);
        world.variants.get_mut("a").unwrap().scale = Scale::Unknown(why);
        assert_eq!(desired(&world.run(60), "a"), 15);
    }
}

#[test]
fn a_restored_number_is_not_cut_to_the_configured_maximum_before_the_autoscaler_is_known() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 8))]);
    world.pipeline.restore(at(0), key("a"), n(15), at(-5));
    world.set("a", 15, STEADY).scale = Scale::Unknown(WhyUnknown::NotListed);
    assert_eq!(desired(&world.run(3), "a"), 15);
    world.set("a", 15, STEADY).scale = bounded(15, 1, 20);
    assert_eq!(desired(&world.run(WINDOW + 5), "a"), 15);
    world.set("a", 15, STEADY).scale = bounded(15, 1, 9);
    assert_eq!(desired(&world.tick(), "a"), 9, "a maximum that is known holds at once");
}
