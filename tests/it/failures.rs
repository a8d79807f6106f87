//! What goes wrong around a running pipeline, and what must not follow from it.

use plimsoll::analyze::saturation::TransitionRule;
use plimsoll::decide::{Basis, Stage};
use plimsoll::fleet::Bounds;
use plimsoll::observe::histogram::Histogram;
use plimsoll::observe::{RankReading, Scale, ScaleState, ScrapeFailure, WhyScaleUnknown};
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
        WhyScaleUnknown::NotListed,
        WhyScaleUnknown::Forbidden,
        WhyScaleUnknown::DuplicateOwners(vec!["HPA a".into(), "HPA b".into()]),
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
    world.set("a", 15, STEADY).scale = Scale::Unknown(WhyScaleUnknown::NotListed);
    assert_eq!(desired(&world.run(3), "a"), 15);
    world.set("a", 15, STEADY).scale = bounded(15, 1, 20);
    assert_eq!(desired(&world.run(WINDOW + 5), "a"), 15);
    world.set("a", 15, STEADY).scale = bounded(15, 1, 9);
    assert_eq!(desired(&world.tick(), "a"), 9, "a maximum that is known holds at once");
}

#[test]
fn a_replica_that_stopped_answering_long_ago_does_not_keep_the_model_from_growing() {
    for failure in [ScrapeFailure::Timeout, ScrapeFailure::Refused] {
        let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
        world.set("a", 4, STEADY);
        let _ = world.run(5);
        world.variants.get_mut("a").unwrap().failing.insert(2, failure);
        let _ = world.run(900);
        world.variants.get_mut("a").unwrap().load = BUSY;
        assert_eq!(desired(&world.run(60), "a"), 5, "{failure}");
    }
}

#[test]
fn a_ready_replica_that_never_answers_does_not_keep_the_model_from_growing_for_ever() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY).failing.insert(2, ScrapeFailure::Timeout);
    assert_eq!(desired(&world.run(290), "a"), 4, "it may still be heard");
    assert_eq!(desired(&world.run(60), "a"), 5);
}

#[test]
fn an_old_trouble_does_not_use_up_the_patience_for_a_new_replica() {
    let mut world = World::new(vec![spec("cheap", 1.0, (1, 9)), spec("dear", 2.0, (1, 9))]);
    world.set("cheap", 4, STEADY);
    world.set("dear", 2, STEADY);
    let _ = world.run(5);
    world.variants.get_mut("cheap").unwrap().failing.insert(2, ScrapeFailure::Timeout);
    let _ = world.run(900);
    world.variants.get_mut("cheap").unwrap().load = BUSY;
    world.variants.get_mut("dear").unwrap().load = BUSY;
    assert_eq!(desired(&world.run(5), "cheap"), 5);
    let cheap = world.variants.get_mut("cheap").unwrap();
    cheap.scale = known(5, 4);
    let decisions = world.run(200);
    assert_eq!((desired(&decisions, "cheap"), desired(&decisions, "dear")), (5, 2));
}

#[test]
fn a_variant_that_was_never_listed_keeps_its_model_from_shrinking() {
    for unlisted in [None, Some(Scale::Unknown(WhyScaleUnknown::NotListed))] {
        let mut world = World::new(vec![spec("a", 1.0, (1, 9)), spec("b", 1.0, (1, 9))]);
        world.set("a", 4, IDLE);
        if let Some(scale) = unlisted {
            world.set("b", 0, IDLE).scale = scale;
        }
        let decisions = world.run(WINDOW + 60);
        assert_eq!(desired(&decisions, "a"), 4);
        assert_eq!(of(&decisions, "a").steps.last().unwrap().stage, Stage::Guard);
        world.variants.get_mut("a").unwrap().load = BUSY;
        assert_eq!(desired(&world.run(5), "a"), 5);
    }
}

#[test]
fn a_scale_target_that_does_not_exist_lets_the_rest_of_its_model_shrink() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9)), spec("b", 1.0, (1, 9))]);
    world.set("a", 4, IDLE);
    world.set("b", 0, IDLE).scale = Scale::Unknown(WhyScaleUnknown::NoSuchTarget);
    assert_eq!(desired(&world.run(WINDOW + 5), "a"), 3);
}

#[test]
fn unobserved_time_passes_no_window() {
    for jump in [1000, -1000] {
        let mut policy = policy();
        policy.behavior.scale_down.stabilization_window = Seconds::new(300.0).unwrap();
        let mut world = World::with(policy, vec![spec("a", 1.0, (1, 9))]);
        world.set("a", 4, STEADY);
        assert_eq!(desired(&world.run(400), "a"), 4);
        world.second += jump;
        world.variants.get_mut("a").unwrap().load = IDLE;
        for second in 0..290 {
            assert_eq!(desired(&world.tick(), "a"), 4, "{second} s after a jump by {jump} s");
        }
        assert_eq!(desired(&world.run(30), "a"), 3);
    }
}

#[test]
fn replicas_that_are_brought_back_from_zero_are_not_taken_away_while_they_start() {
    for min in [0, 1] {
        let mut world = World::new(vec![spec("a", 1.0, (min, 9))]);
        world.set("a", 4, STEADY);
        assert_eq!(desired(&world.run(WINDOW + 5), "a"), 4);
        world.set("a", 0, IDLE).scale = known(0, 0);
        assert_eq!(desired(&world.run(60), "a"), min);
        // Asked for, but no pod is there yet; then there are pods, which do not answer.
        world.set("a", 0, IDLE).scale = known(3, 0);
        assert_eq!(desired(&world.run(20), "a"), 3);
        let variant = world.set("a", 3, IDLE);
        variant.scale = known(3, 0);
        variant.failing = (0..3).map(|index| (index, ScrapeFailure::Refused)).collect();
        let decisions = world.run(200);
        assert_eq!((desired(&decisions, "a"), of(&decisions, "a").basis), (3, Basis::Held));
    }
}

#[test]
fn a_rollout_with_surge_pods_does_not_keep_the_model_from_growing() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, STEADY);
    let _ = world.run(5);
    let variant = world.set("a", 4, BUSY);
    variant.scale = Scale::Known(ScaleState {
        wanted: n(4),
        current: n(5),
        ready: n(4),
        pending: n(1),
        bounds: None,
    });
    assert_eq!(desired(&world.run(20), "a"), 5);
}

#[test]
fn every_rule_grows_in_the_end_whatever_does_not_answer() {
    for rule in [TransitionRule::PendingOnly, TransitionRule::ModelWide, TransitionRule::PerVariant]
    {
        let mut policy = policy();
        policy.transition = rule;
        let mut world = World::with(policy, vec![spec("a", 1.0, (1, 9)), spec("b", 2.0, (1, 9))]);
        world.set("a", 2, BUSY);
        world.set("b", 2, BUSY).failing.insert(0, ScrapeFailure::Timeout);
        let decisions = world.run(700);
        assert_eq!(desired(&decisions, "a"), 3, "{rule:?}");
    }
}

#[test]
fn a_rank_that_is_gone_no_longer_counts() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 1, STEADY);
    let mut seen = None;
    for second in 0..60 {
        let mut inputs = world.inputs();
        let Ok(page) = &mut inputs.scrapes[0].outcome else { panic!("it answers") };
        page.ranks[0].ttft = Some(histogram(f64::from(second)));
        if second < 20 {
            let ttft = Some(histogram(100.0 * f64::from(second)));
            page.ranks.push(RankReading { rank: 1, ttft, ..page.ranks[0].clone() });
        }
        let decisions = world.pipeline.tick(at(world.second), &inputs);
        seen = decisions.observations[&key("a")].ttft.clone();
        world.second += 1;
    }
    let count = seen.unwrap().count;
    assert!((5.0..=15.0).contains(&count), "{count} requests in {WINDOW} s");
}

fn histogram(count: f64) -> Histogram {
    Histogram { sum: count, count, buckets: vec![(1.0, count), (f64::INFINITY, count)] }
}
