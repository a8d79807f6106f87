//! Saved state that is read some ticks after the first one.

use super::*;
use crate::analyze::experience::Experience as _;
use crate::analyze::foresight::saved::{SavedForesight, SavedVariantModel};

/// A world with five minutes of experience, and its saved state.
fn experienced() -> (World, SavedForesight) {
    let mut world = World::new(4);
    drop(world.run(300, 2.0 * truth()));
    let saved = world.foresight.save(&world.spec.model_key(), &world.spec.key).unwrap();
    (world, saved)
}

/// The known strides of arrivals.
fn strides(world: &World) -> usize {
    world.foresight.demands[&(world.spec.model_key(), Role::Both)].arrivals.points().len()
}

#[test]
fn demand_that_is_read_late_ages_by_the_whole_time_since_it_was_learned() {
    let (mut world, saved) = experienced();
    let model = world.spec.model_key();
    let key = world.spec.key.clone();

    let now = world.now + 60;
    let mut late = World { spec: world.spec.clone(), now, ..World::new(4) };
    drop(late.run(5, 2.0 * truth()));
    assert!(late.foresight.learned[&model] > saved.learned_at);
    late.foresight.recall(&model, &key, &saved);
    assert_eq!(late.foresight.learned[&model], saved.learned_at);

    // The longer own demand stays, with its own age.
    drop(world.run(60, 2.0 * truth()));
    let known_at = world.foresight.learned[&model];
    world.foresight.recall(&model, &key, &saved);
    assert_eq!(world.foresight.learned[&model], known_at);
}

#[test]
fn demand_continues_once_however_often_a_variant_returns() {
    let (mut world, saved) = experienced();
    let model = world.spec.model_key();
    let key = world.spec.key.clone();
    let known = saved.demands[0].arrivals.rates.len();
    let mut longer = saved.clone();
    longer.demands[0].arrivals.rates.extend([1.0; 5]);

    world.foresight = Foresight::default();
    world.foresight.recall(&model, &key, &saved);
    assert_eq!(strides(&world), known);
    world.foresight.recall(&model, &key, &longer);
    assert_eq!(strides(&world), known, "it has continued already");

    // The whole model was gone, so its demand is new.
    world.foresight.retain(at(world.now), &BTreeSet::new(), &BTreeSet::new());
    world.foresight.recall(&model, &key, &longer);
    assert_eq!(strides(&world), known + 5);
}

#[test]
fn of_equally_many_lessons_the_own_stay_whatever_the_requests() {
    let (world, saved) = experienced();
    let own = &world.foresight.variants[&world.spec.key];
    let seen = saved.seen.unwrap();
    let mut iteration = seen.iteration.unwrap();
    assert!(iteration.lessons > 1);
    let lengths = seen.lengths.map(|it| 2.0 * it);
    let more_requests = SavedVariantModel { lengths, ..seen.clone() };
    assert!(
        !own.knows_less_than(&seen.restore()) && !own.knows_less_than(&more_requests.restore())
    );

    iteration.lessons += 1;
    let more = SavedVariantModel { iteration: Some(iteration), ..seen.clone() };
    assert!(own.knows_less_than(&more.restore()));

    // Without lessons, requests count.
    let untaught = SavedVariantModel { iteration: None, ..seen };
    let busier = SavedVariantModel { iteration: None, ..more_requests };
    assert!(untaught.restore().knows_less_than(&busier.restore()));
    assert!(!untaught.restore().knows_less_than(&untaught.restore()));
}
