//! Starts through the pipeline: how long they take is measured, and what takes twice as long is not
//! counted on.

use std::collections::BTreeMap;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::fleet::{ReplicaKey, VariantSpec};
use plimsoll::observe::{Inputs, ReplicaStart, StartQuantiles, Startup};
use plimsoll::pipeline::Decisions;
use plimsoll::units::Seconds;

use crate::pipeline::{IDLE, World, at, desired, key, known, n, replica, spec};
use crate::sizing::sized;

/// A variant whose replicas start one after the other.
struct Starting {
    world: World,
    starts: BTreeMap<ReplicaKey, ReplicaStart>,
}

impl Starting {
    /// One replica, which has started before anybody looked.
    fn new(load: (f64, f64)) -> Self {
        Self::of(spec("a", 1.0, (1, 40)), load)
    }

    fn of(spec: VariantSpec, load: (f64, f64)) -> Self {
        let world = World::with(sized(&[Analyzer::Tokens]), vec![spec]);
        let mut starting = Self { world, starts: BTreeMap::new() };
        starting.world.set("a", 1, load);
        let (created, ready) = (at(-5_000), Some(at(-10)));
        starting
            .starts
            .insert(replica("a", 0), ReplicaStart { created, ready, unschedulable: None });
        let _ = starting.run(2);
        starting
    }

    fn inputs(&self) -> Inputs {
        Inputs { starts: self.starts.clone(), ..self.world.inputs() }
    }

    fn run(&mut self, seconds: i64) -> Decisions {
        let mut last = Decisions::default();
        for _ in 0..seconds {
            last = self.world.pipeline.tick(at(self.world.second), &self.inputs());
            self.world.second += 1;
        }
        last
    }

    /// Creates a replica that does not answer.
    fn create(&mut self) {
        let variant = self.world.variants.get_mut("a").unwrap();
        let index = variant.listed;
        variant.listed += 1;
        variant.silent.push(index);
        variant.scale = known(index + 1, index);
        let start =
            ReplicaStart { created: at(self.world.second), ready: None, unschedulable: None };
        self.starts.insert(replica("a", index), start);
    }

    /// Lets the last replica be ready, and answer so many seconds later.
    fn serve(&mut self, later: i64) {
        let variant = self.world.variants.get_mut("a").unwrap();
        let index = variant.listed - 1;
        variant.scale = known(index + 1, index + 1);
        let ready = Some(at(self.world.second));
        self.starts.get_mut(&replica("a", index)).unwrap().ready = ready;
        let _ = self.run(later);
        self.world.variants.get_mut("a").unwrap().silent.clear();
    }

    fn startup(&mut self) -> Startup {
        self.run(1).observations[&key("a")].startup
    }
}

fn seconds(quantiles: Option<StartQuantiles>) -> Option<(f64, f64)> {
    quantiles.map(|it| (it.p50.seconds(), it.p90.seconds()))
}

#[test]
fn a_start_is_measured_from_created_to_ready_to_serving() {
    let mut starting = Starting::new(IDLE);
    assert_eq!(seconds(starting.startup().to_serving), None, "no start was seen");
    for (to_ready, to_serving) in [(40, 45), (20, 22), (30, 30)] {
        starting.create();
        let _ = starting.run(to_ready);
        starting.serve(to_serving - to_ready);
        let _ = starting.run(5);
    }
    let startup = starting.startup();
    assert_eq!(startup.starts, 3);
    assert_eq!(seconds(startup.to_ready), Some((30.0, 40.0)));
    assert_eq!(seconds(startup.to_serving), Some((30.0, 45.0)));
}

#[test]
fn a_replica_that_is_unready_for_a_while_has_not_started_again() {
    let mut starting = Starting::new(IDLE);
    let first = replica("a", 0);
    starting.starts.get_mut(&first).unwrap().ready = None;
    let _ = starting.run(30);
    starting.starts.get_mut(&first).unwrap().ready = Some(at(starting.world.second));
    let _ = starting.run(5);
    assert_eq!(starting.startup().starts, 0);
}

#[test]
fn a_replica_that_takes_twice_as_long_as_nine_in_ten_is_stuck_and_not_counted_on() {
    let mut starting = Starting::new((0.3, 0.0));
    for _ in 0..3 {
        starting.create();
        let _ = starting.run(30);
        starting.serve(0);
        let _ = starting.run(15);
    }
    starting.create();
    starting.world.variants.get_mut("a").unwrap().load = (0.75, 0.0);
    let before = desired(&starting.run(20), "a");
    let early = starting.run(39);
    assert_eq!(early.observations[&key("a")].startup.stuck, n(0), "59 s, and 60 are given");
    assert_eq!(desired(&early, "a"), before);
    let decisions = starting.run(5);
    assert_eq!(decisions.observations[&key("a")].startup.stuck, n(1));
    assert_eq!(desired(&decisions, "a"), before + 1, "another takes its place");
    starting.serve(0);
    assert_eq!(starting.run(5).observations[&key("a")].startup.stuck, n(0));
}

#[test]
fn two_starts_are_too_few_to_call_a_third_stuck() {
    let mut starting = Starting::new(IDLE);
    for _ in 0..2 {
        starting.create();
        let _ = starting.run(10);
        starting.serve(0);
        let _ = starting.run(5);
    }
    starting.create();
    // The patience for transitions holds, twice: ten minutes.
    assert_eq!(starting.run(590).observations[&key("a")].startup.stuck, n(0));
    assert_eq!(starting.run(20).observations[&key("a")].startup.stuck, n(1));
}

#[test]
fn an_unmeasured_start_is_waited_for_twice_as_long_as_was_declared() {
    let start_time = Some(Seconds::literal(30 * 60));
    let mut starting = Starting::of(VariantSpec { start_time, ..spec("a", 1.0, (1, 40)) }, IDLE);
    starting.create();
    assert_eq!(starting.run(3_590).observations[&key("a")].startup.stuck, n(0), "twice 30 min");
    assert_eq!(starting.run(20).observations[&key("a")].startup.stuck, n(1));
    // A short one takes nothing from what all are given.
    let start_time = Some(Seconds::literal(10));
    let mut starting = Starting::of(VariantSpec { start_time, ..spec("a", 1.0, (1, 40)) }, IDLE);
    starting.create();
    assert_eq!(starting.run(590).observations[&key("a")].startup.stuck, n(0));
    assert_eq!(starting.run(20).observations[&key("a")].startup.stuck, n(1));
}
