//! Engines that change: by a rollout, all at once, or one replica of several.

use super::*;
use crate::analyze::engine_args;
use crate::fleet::Accelerator;
use crate::observe::template::Container;

/// The arguments of an engine with this many places in its batch.
fn arguments(seats: u32) -> Option<Arc<EngineArguments>> {
    let words = ["serve", "m", "--max-num-seqs", &seats.to_string()].map(str::to_owned);
    let container = Container {
        image: "vllm/vllm-openai".to_owned(),
        args: words.to_vec(),
        ..Container::default()
    };

    engine_args::read(&[container]).ok().map(Arc::new)
}

/// Three replicas that have taught for two minutes.
fn taught() -> World {
    let mut world = World::new(3);
    world.spec.accelerator = Accelerator::new("L4");
    world.arguments = arguments(64);
    let _ = world.run(120, 1.5 * truth());
    world
}

impl World {
    /// Replaces replicas with others that are slower by this factor.
    fn roll_out(&mut self, replicas: std::ops::Range<u32>, factor: f64) {
        for replica in replicas {
            let (life, _) = self.engines.get(&replica).copied().unwrap_or((0, 1.0));
            self.engines.insert(replica, (life + 1, factor));
        }
    }

    /// The estimated time of an iteration, relative to the true time. Each replica gets this rate,
    /// and its engine is slower by this factor.
    fn believed(&self, each: f64, factor: f64) -> f64 {
        let stride = second_of(times_as_slow(factor), self.now, self.prompt, each, 0.0);
        let (between, outputs) = stride.intervals.unwrap();
        let seconds = between.seconds() / outputs.requests();

        let IterationCost { alpha, beta, delta } =
            self.foresight.variants[&self.spec.key].pace.assumed();
        let running = stride.running.unwrap().requests();
        (alpha + beta * each * self.prompt * seconds + delta * running) / seconds
    }

    /// Loads that vary enough to separate the parts of an iteration's time.
    fn vary(&mut self, minutes: u32) {
        for minute in 0..minutes {
            let load = 0.15 * f64::from(1 + minute % 5) * f64::from(self.replicas);
            let _ = self.run(60, load * truth());
        }
    }
}

#[test]
fn former_replicas_teach_until_one_of_the_new_kind_does_and_then_no_more() {
    let mut world = taught();
    let before = carries(&world.tick(1.5 * truth()));
    world.arguments = arguments(32);
    let during = carries(&world.run(60, 1.5 * truth()));
    assert!((during / before - 1.0).abs() < 0.05, "{during} {before}");

    // One of three replicas is new, and three times as slow: only its lessons count.
    world.roll_out(0..1, 3.0);
    let _ = world.run(100, 0.6 * truth());
    let believed = world.believed(0.2 * truth(), 3.0);
    assert!((believed - 1.0).abs() < 0.1, "{believed}");
}

/// The fixed time of an iteration on the card of engines with this many places.
fn alpha(world: &World, seats: u32) -> Option<f64> {
    let engine = arguments(seats);
    let card = world.foresight.cards().find(|it| it.kind.engine == engine);
    card.map(|it| it.learned.iteration.alpha)
}

#[test]
fn the_card_of_a_new_kind_has_nothing_of_the_former_pace() {
    let mut world = taught();
    let former = alpha(&world, 64).unwrap();
    world.arguments = arguments(32);
    let _ = world.run(30, 1.5 * truth());
    assert_eq!(alpha(&world, 32), None, "no replica of that kind has taught");

    world.roll_out(0..3, 2.0);
    let _ = world.run(120, 0.6 * truth());
    let new = alpha(&world, 32).unwrap();
    let kept = alpha(&world, 64).unwrap();
    assert!((kept / former - 1.0).abs() < 0.1, "{kept} {former}");
    assert!(new > 1.5 * kept, "{new} {kept}");
}

fn busiest(world: &World) -> f64 {
    world.foresight.variants[&world.spec.key].busiest()
}

#[test]
fn a_configured_token_budget_counts_and_larger_iterations_while_it_is_not_known() {
    let world = taught();
    let shown = busiest(&world);
    let budget = |told, usual| world.foresight.variants[&world.spec.key].budget(told, usual);
    assert!((budget(None, 2.0 * shown) - 2.0 * shown).abs() < 1e-9);
    assert!((budget(None, 0.5 * shown) - shown).abs() < 1e-9, "{shown}");
    assert!((budget(Tokens::new(4096.0), 0.5 * shown) - 4096.0).abs() < 1e-9);
}

#[test]
fn maxima_are_of_the_new_engines_and_lengths_of_requests_stay() {
    let mut world = taught();
    let usual = world.policy.seats.requests();
    world.replicas = 1;
    let _ = world.run(30, 2.0 * truth());
    let before = busiest(&world);

    world.arguments = arguments(32);
    let _ = world.tick(2.0 * truth());
    world.replicas = 3;
    world.roll_out(0..3, 1.0);
    let _ = world.run(20, 0.3 * truth());
    assert!(busiest(&world) < 0.5 * before, "{} {before}", busiest(&world));
    let seen = &world.foresight.variants[&world.spec.key];
    assert!((seen.seats(None, usual) - usual).abs() < 1e-9);
    assert!(seen.requested(&RequestLengths::default()).is_some(), "lengths are those of clients");
}

#[test]
fn unread_arguments_are_no_change_and_former_ones_that_come_back_end_a_rollout() {
    let mut world = taught();
    for next in [None, arguments(32), arguments(64)] {
        world.arguments = next;
        let _ = world.run(30, 1.5 * truth());
        assert!((world.believed(0.5 * truth(), 1.0) - 1.0).abs() < 0.1);
    }

    world.roll_out(0..3, 2.0);
    let lessons = world.foresight.variants[&world.spec.key].pace.lessons();
    let _ = world.run(60, 0.6 * truth());
    let more = world.foresight.variants[&world.spec.key].pace.lessons();
    assert!(more > lessons, "they are of the same kind, so nothing started over");
}

#[test]
fn two_replicas_that_get_slower_or_faster_are_known_within_two_minutes() {
    for factor in [2.0, 0.5] {
        let mut world = World::new(2);
        let _ = world.run(600, 0.8 * truth());

        world.engines = (0..2).map(|index| (index, (0, factor))).collect();
        let _ = world.run(120, 0.8 * truth());
        let believed = world.believed(0.4 * truth(), factor);
        assert!((believed - 1.0).abs() < 0.1, "{believed} of {factor}");
    }
}

#[test]
fn a_slow_replica_is_named_and_does_not_set_the_pace() {
    let mut world = World::new(4);
    world.vary(10);
    world.engines.insert(2, (0, 1.8));
    let found = world.run(180, 1.6 * truth());

    let slowest = &found.slowest[&world.spec.key];
    assert_eq!((slowest.replica.as_str(), slowest.peers), ("r2", 3));
    assert!((slowest.factor.fraction() / 1.8 - 1.0).abs() < 0.1, "{slowest:?}");
    assert!(slowest.is_outlier());
    let believed = world.believed(0.4 * truth(), 1.0);
    assert!((believed - 1.0).abs() < 0.05, "{believed}");
}

/// The capacity of a replica with iterations of 256 tokens, in requests per second.
const MOST: f64 = 17.33;

/// The estimated capacity of a replica that gets as much as it can handle.
fn carried_with(waiting: f64) -> f64 {
    let mut world = World::new(1);
    // The places are configured, so the queue has another cause.
    world.told.seats = requests(256.0);
    world.waiting = waiting;
    carries(&world.run(120, MOST))
}

#[test]
fn a_full_replica_shows_what_it_carries_where_its_token_budget_is_not_known() {
    let full = carried_with(20.0) / MOST;
    let busy = carried_with(0.0) / MOST;
    assert!(busy > 1.2, "iterations of 2048 tokens carry more: {busy}");
    assert!((0.95..=1.1).contains(&full), "{full}");
}

/// The estimated capacity of four replicas if requests wait at a slow one.
fn carried_beside(waiting: f64) -> f64 {
    let mut world = World::new(4);
    world.told.seats = requests(256.0);
    world.vary(10);
    world.engines.insert(2, (0, 2.5));
    (world.waiting, world.waits_at) = (waiting, Some(2));
    carries(&world.run(240, 1.2 * truth()))
}

#[test]
fn a_slow_replica_that_queues_does_not_bound_its_peers() {
    let queued = carried_beside(60.0);
    let free = carried_beside(0.0);
    assert!((queued / free - 1.0).abs() < 0.01, "{queued} {free}");
}

#[test]
fn what_full_engines_showed_ends_with_them() {
    let mut world = World::new(1);
    world.told.seats = requests(256.0);
    world.waiting = 20.0;
    let _ = world.run(120, MOST);

    // Twice as fast, and not full.
    world.waiting = 0.0;
    world.engines.insert(0, (0, 0.5));
    let found = carries(&world.run(240, MOST));
    assert!(found > 1.5 * MOST, "{found}");
}
