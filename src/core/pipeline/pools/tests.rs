use proptest::prelude::*;

use super::*;
use crate::analyze::foresight::capacity::CapacityBound;
use crate::analyze::foresight::estimate::Teacher;
use crate::analyze::saturation::{Thresholds, TransitionRule};
use crate::decide::enforce::{Behavior, Rules, Select};
use crate::decide::pools::packing::PackingPolicy;
use crate::fleet::{Bounds, Fleet, ReplicaKey, VariantSpec};
use crate::observe::engine::Engine;
use crate::observe::engine::lora::LoraPage;
use crate::observe::routed::RoutedCounts;
use crate::observe::{
    HttpReading, Inputs, RankReading, Reading, ReplicaListing, Scale, ScaleState, Scrape,
    ScrapeRoute,
};
use crate::pipeline::limits::LimitPolicy;
use crate::pipeline::zero::Zero;
use crate::pipeline::{Decisions, DesiredReplicas, Pipeline, Policy};
use crate::units::{Fraction, RequestRate, Requests};

/// A pool of replicas that each report their adapters.
struct World {
    pipeline: Pipeline,
    second: i64,
    names: Vec<String>,
    /// The report of each replica, in the order of names; `None` is a scrape without a list.
    pages: Vec<Option<(&'static [&'static str], &'static [&'static str])>>,
    wanted: u32,
    /// The last answer of the gateway; empty without a gateway.
    gateway: BTreeMap<VariantKey, Option<RoutedCounts>>,
    /// The desired replicas in effect, if replicas of Plimsoll share them.
    shared: Option<BTreeMap<VariantKey, DesiredReplicas>>,
}

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

fn seconds(number: u32) -> Seconds {
    Seconds::literal(number)
}

fn model(name: &str) -> ModelName {
    ModelName::new(name).unwrap()
}

fn policy() -> AdapterPool {
    AdapterPool {
        source: PoolSource::Pages,
        slots: None,
        copies: Bounds::new(Replicas::ZERO, None).unwrap(),
        adapters: BTreeMap::new(),
        idle_after: seconds(60),
        packing: PackingPolicy { window: seconds(60), ..PackingPolicy::default() },
    }
}

fn spec() -> VariantSpec {
    let bounds = Bounds::new(n(1), Some(n(8))).unwrap();
    VariantSpec { bounds, ..VariantSpec::example("pool") }
}

fn names(list: &[&str]) -> BTreeSet<ModelName> {
    list.iter().map(|name| model(name)).collect()
}

impl World {
    fn new(pool: AdapterPool, names: &[&str]) -> Self {
        let unlimited = Rules {
            stabilization_window: Seconds::ZERO,
            select: Select::Max,
            policies: Vec::new(),
        };
        let policy = Policy {
            window: seconds(20),
            stale_after: seconds(10),
            stale_after_relayed: seconds(10),
            thresholds: Thresholds {
                kv_cache: Fraction::new(0.8).unwrap(),
                queue_length: Requests::new(5.0).unwrap(),
                kv_spare: Fraction::new(0.1).unwrap(),
                queue_spare: Requests::new(3.0).unwrap(),
            },
            overrides: BTreeMap::new(),
            transition: TransitionRule::PendingOnly,
            transition_patience: seconds(300),
            behavior: Behavior {
                scale_up: unlimited.clone(),
                scale_down: unlimited,
                flap_budget: u32::MAX,
                ..Behavior::default()
            },
            sizing: None,
            zero: Zero::default(),
            limits: LimitPolicy::default(),
            pools: [(spec().key, pool)].into(),
        };

        Self {
            pipeline: Pipeline::new(policy),
            second: 1_000_000,
            names: names.iter().map(|name| (*name).to_owned()).collect(),
            pages: vec![Some((&[], &[])); names.len()],
            wanted: u32::try_from(names.len()).unwrap(),
            gateway: BTreeMap::new(),
            shared: None,
        }
    }

    /// Three replicas, each with an adapter, of which two have enough slots.
    fn to_pack() -> Self {
        let mut world = Self::new(policy(), &["p-0", "p-1", "p-2"]);
        world.pages = vec![Some((&["a"], &[])), Some((&["b"], &[])), Some((&["c"], &[]))];
        world
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.second).unwrap()
    }

    fn share(&mut self, desired: u32) {
        self.share_packed(desired, None);
    }

    /// Shares desired replicas of a pool that another replica of Plimsoll packed at this time.
    fn share_packed(&mut self, desired: u32, packed: Option<Timestamp>) {
        let number = DesiredReplicas { desired: n(desired), inputs_at: self.now(), packed };
        self.shared = Some([(spec().key, number)].into());
    }

    fn packed(&self) -> Option<Timestamp> {
        self.pipeline.pools.packed(&spec().key)
    }

    /// Lets a replica serve this many requests/s, of which half may be used.
    fn serves(&mut self, rate: f64) {
        let pool = self.pipeline.pools.pools.entry(spec().key).or_default();
        pool.capacity = Some(CapacityEstimate {
            rate: RequestRate::new(rate).unwrap(),
            usable: Fraction::new(0.5).unwrap(),
            interval: None,
            bound: CapacityBound::Itl,
            said_by: Teacher::Replicas,
        });
    }

    /// Lets these requests/s arrive at the gateway, for a number of ticks.
    fn arriving(&mut self, rates: &[(&str, f64)], ticks: usize) -> (u32, String, PoolReport) {
        let mut found = None;
        for _ in 0..ticks {
            let at = Timestamp::from_second(self.second + 5).unwrap();
            let last = self.gateway.remove(&spec().key).flatten();
            let counted = last.map(|it| it.requests).unwrap_or_default();
            let grown = rates.iter().map(|(name, rate)| {
                let before = counted.get(&model(name)).copied().unwrap_or_default();
                (model(name), before + 5.0 * rate)
            });
            let counts = RoutedCounts { at, process: None, requests: grown.collect(), others: 0.0 };
            self.gateway.insert(spec().key, Some(counts));
            found = Some(self.after(1));
        }
        found.unwrap()
    }

    fn key(name: &str) -> ReplicaKey {
        ReplicaKey {
            variant: spec().key,
            replica: ReplicaName::new(name).unwrap(),
            incarnation: None,
        }
    }

    fn tick(&mut self) -> Decisions {
        self.second += 5;
        let now = Timestamp::from_second(self.second).unwrap();
        let scrapes = self.names.iter().zip(&self.pages).map(|(name, page)| {
            let lora = page.map(|(running, waiting)| {
                Box::new(LoraPage {
                    value: f64::from(u32::try_from(self.second).unwrap()),
                    slots: Slots::new(2),
                    running: names(running),
                    waiting: names(waiting),
                })
            });
            let some = page.is_none_or(|(running, waiting)| running.len() + waiting.len() > 0);
            let rank = RankReading {
                running: Requests::new(if some { 2.0 } else { 0.0 }),
                waiting: Requests::new(0.0),
                // So empty that the load would always let a replica go.
                kv_usage: Fraction::new(0.1),
                ..RankReading::default()
            };

            let reading = Reading {
                engine: Engine::Vllm,
                samples: 1,
                started: None,
                models: vec![model("m")],
                http: HttpReading::default(),
                rejected: None,
                lora,
                ranks: vec![rank],
            };

            Scrape { replica: Self::key(name), at: now, outcome: Ok(reading) }
        });

        let count = n(u32::try_from(self.names.len()).unwrap());
        let scale = ScaleState {
            wanted: n(self.wanted),
            current: count,
            ready: count,
            pending: n(self.wanted).beyond(count),
            bounds: None,
        };

        let listing = ReplicaListing {
            replicas: self.names.iter().map(|name| Self::key(name)).collect(),
            unready: Vec::new(),
            scale: Scale::Known(scale),
            way: ScrapeRoute::Scraped,
            as_of: now,
        };

        let inputs = Inputs {
            fleet: Fleet::new([spec()]).into(),
            listings: [(spec().key, listing)].into(),
            scrapes: scrapes.collect(),
            routed: self.gateway.clone(),
            ..Inputs::default()
        };

        match &self.shared {
            Some(numbers) => self.pipeline.follow(now, &inputs, numbers),
            None => self.pipeline.tick(now, &inputs),
        }
    }

    fn after(&mut self, ticks: usize) -> (u32, String, PoolReport) {
        let mut found = self.tick();
        for _ in 1..ticks {
            found = self.tick();
        }

        let decision = found.decisions.pop().unwrap();
        let step = decision.steps.iter().find(|it| it.stage == Stage::Pool).unwrap();
        let desired = decision.desired().count();
        let text = step.to_string();
        (desired, text, found.pools.remove(&spec().key).unwrap())
    }
}

#[test]
fn a_pool_grows_at_once_to_what_its_slots_need() {
    let mut world = World::new(policy(), &["p-0"]);
    world.pages[0] = Some((&["a", "b"], &["c"]));
    let (desired, text, report) = world.after(1);
    assert_eq!(desired, 2, "{text}");
    assert_eq!(report.slots, Slots::new(2));
    assert_eq!(report.plan.loads(), n(1), "the third adapter goes to the replica to come");
    assert!(text.contains("2 for 3 copies at 2 slots per replica"), "{text}");
}

#[test]
fn copies_that_are_declared_need_a_replica_each() {
    let wish = AdapterRule { bounds: policy().copies, declared: Some(n(3)) };
    let pool = AdapterPool { adapters: [(model("a"), wish)].into(), ..policy() };
    let mut world = World::new(pool, &["p-0", "p-1"]);
    let (desired, text, report) = world.after(1);
    assert_eq!(desired, 3, "{text}");
    assert_eq!(report.plan.loads(), n(3));
}

#[test]
fn an_adapter_without_requests_keeps_its_copies_for_a_while_and_then_frees_its_replica() {
    let mut world = World::new(policy(), &["p-0", "p-1"]);
    world.pages = vec![Some((&["a", "b"], &[])), Some((&["c"], &[]))];
    assert_eq!(world.after(20).0, 2);
    world.pages[1] = Some((&[], &[]));
    let (desired, text, _) = world.after(11);
    assert_eq!(desired, 2, "c had a request less than a minute ago: {text}");
    let (desired, text, _) = world.after(5);
    assert_eq!(desired, 2, "less must be needed for a minute: {text}");
    let (desired, text, report) = world.after(12);
    assert_eq!(desired, 1, "{text}");
    assert_eq!(report.plan.loads(), Replicas::ZERO, "an empty replica goes");
}

#[test]
fn packing_moves_copies_only_at_its_interval_and_holds_until_it_is_carried_out() {
    let mut world = World::to_pack();
    let (desired, text, _) = world.after(40);
    assert_eq!(desired, 2, "three copies fit into four slots: {text}");
    let (desired, text, report) = world.after(3);
    assert_eq!(desired, 2, "nobody has carried it out yet: {text}");
    assert_eq!(report.plan.leaving.len(), 1);
}

#[test]
fn a_restart_does_not_shorten_the_interval_of_packing() {
    let mut world = World::to_pack();
    assert_eq!(world.after(40).0, 2);
    let spec = spec();
    let model = spec.model_key();
    let memory = world.pipeline.memory(&model, &spec.key).unwrap();
    assert_eq!(memory.packed, world.packed());

    let now = world.now();
    let mut again = World { second: world.second, ..World::to_pack() };
    again.pipeline.restore(now, spec.key.clone(), n(3), now);
    again.pipeline.recall(now, &model, &spec.key, &memory.knowledge());
    assert_eq!(again.packed(), world.packed());
    let (desired, text, _) = again.after(40);
    assert_eq!(desired, 3, "{text}");
}

#[test]
fn a_packing_that_is_shared_later_is_noted_once_it_is_in_effect() {
    let mut world = World::to_pack();
    world.share(3);
    assert_eq!(world.after(40).0, 2);
    assert_eq!(world.packed(), None, "it is not written yet");

    world.share(2);
    let _ = world.tick();
    assert_eq!(world.packed(), Some(world.now()));
}

#[test]
fn a_new_leader_waits_for_the_interval_after_a_packing_of_the_last_one() {
    let mut world = World::to_pack();
    let packed = world.now();
    world.share_packed(3, Some(packed));
    let (desired, text, _) = world.after(40);
    assert_eq!(desired, 3, "{text}");
    assert_eq!(world.packed(), Some(packed));

    // The clock of the last leader may be ahead.
    let ahead = Timestamp::from_second(world.second + 3_600).unwrap();
    world.share_packed(3, Some(ahead));
    let _ = world.tick();
    assert_eq!(world.packed(), Some(world.now()));
}

#[test]
fn an_empty_replica_is_given_up_once_however_long_it_stays() {
    let packing = PackingPolicy { interval: None, ..policy().packing };
    let mut world = World::new(AdapterPool { packing, ..policy() }, &["p-0", "p-1", "p-2"]);
    world.pages = vec![Some((&["a"], &[])), Some((&["b"], &[])), Some((&[], &[]))];
    let (desired, text, _) = world.after(40);
    assert_eq!(desired, 2, "{text}");

    // The autoscaler has acted, and the pod takes long to end.
    world.wanted = 2;
    let (desired, text, _) = world.after(20);
    assert_eq!(desired, 2, "two replicas are busy: {text}");
}

#[test]
fn a_replica_that_does_not_say_what_it_serves_keeps_the_number() {
    let mut world = World::new(policy(), &["p-0", "p-1"]);
    world.pages = vec![Some((&["a"], &[])), None];
    let (desired, text, report) = world.after(60);
    assert_eq!(desired, 2, "{text}");
    assert!(text.contains("of p-1, because its metrics list no adapters"), "{text}");
    assert!(!report.replicas[1].known);
}

#[test]
fn adapters_must_be_watched_before_one_is_missed() {
    let mut world = World::new(policy(), &["p-0", "p-1"]);
    let (desired, text, _) = world.after(6);
    assert_eq!(desired, 2);
    assert!(text.contains("must be watched for another"), "{text}");
}

#[test]
fn an_adapter_that_waits_where_slots_are_enough_gets_one_more_copy_and_no_third() {
    let mut world = World::new(policy(), &["p-0", "p-1"]);
    world.pages = vec![Some((&["a", "b"], &["c"])), Some((&[], &[]))];
    for (ticks, why) in [(20, "the third waits"), (40, "it is not repeated")] {
        let (_, _, report) = world.after(ticks);
        let copies = report.adapters.iter().map(|it| it.copies.wanted.count());
        assert_eq!(copies.collect::<Vec<_>>(), [1, 1, 2], "{why}");
    }
}

#[test]
fn pods_of_a_deployment_are_told_which_should_go_and_those_with_ordinals_are_not() {
    let mut world = World::new(policy(), &["p-7d9f-x2x4k", "p-7d9f-b8m2q"]);
    world.pages = vec![Some((&["a"], &[])), Some((&["a", "b"], &[]))];
    let (_, _, report) = world.after(2);
    let order: Vec<_> =
        report.departures.iter().map(|it| (it.replica.as_str(), it.displaced.count())).collect();
    assert_eq!(order, [("p-7d9f-x2x4k", 0), ("p-7d9f-b8m2q", 2)]);
    let mut world = World::new(policy(), &["p-0", "p-1"]);
    assert_eq!(world.after(2).2.departures, []);
}

/// The copies of each adapter, by name.
fn copies_in(report: &PoolReport) -> Vec<u32> {
    report.adapters.iter().map(|it| it.copies.wanted.count()).collect()
}

#[test]
fn copies_follow_the_requests_at_the_gateway_up_at_once_and_down_after_a_while() {
    let mut world = World::new(policy(), &["p-0", "p-1", "p-2", "p-3"]);
    world.pages[0] = Some((&["a", "b"], &[]));
    world.serves(2.0);
    let (desired, text, report) = world.arriving(&[("a", 3.5), ("b", 0.2), ("c", 9.0)], 4);
    assert_eq!(copies_in(&report), [4, 1], "c is asked for, and no replica serves it: {text}");
    assert_eq!(report.adapters[0].arriving, RequestRate::new(3.5));
    assert!(text.contains("4 for the copies of a"), "{text}");
    assert_eq!(desired, 4, "{text}");

    let (_, text, report) = world.arriving(&[("a", 0.1), ("b", 0.2), ("c", 9.0)], 8);
    assert_eq!(copies_in(&report), [4, 1], "the peak is less than a minute old: {text}");
    let (desired, text, report) = world.arriving(&[("a", 0.1), ("b", 0.2), ("c", 9.0)], 40);
    assert_eq!(copies_in(&report), [1, 1], "{text}");
    assert!(desired < 4, "{text}");
}

#[test]
fn while_the_gateway_is_unknown_no_adapter_loses_a_copy_and_the_pool_no_replica() {
    let mut world = World::new(policy(), &["p-0", "p-1", "p-2", "p-3"]);
    world.pages[0] = Some((&["a", "b"], &[]));
    world.serves(2.0);
    world.arriving(&[("a", 3.5), ("b", 0.2)], 10);
    let (desired, text, report) = world.after(60);
    assert_eq!(copies_in(&report), [4, 1], "the last count is 300 s old: {text}");
    assert_eq!(report.adapters[0].arriving, None);
    assert!(text.contains("the requests for adapters at the gateway are not known"), "{text}");
    assert_eq!(desired, 4, "{text}");

    let mut world = World::new(policy(), &["p-0", "p-1"]);
    world.pages[0] = Some((&["a"], &[]));
    world.gateway.insert(spec().key, None);
    let (desired, text, report) = world.after(60);
    assert_eq!((desired, copies_in(&report)), (2, vec![1]), "it was never read: {text}");
}

#[test]
fn requests_past_the_gateway_keep_the_copy_of_an_adapter() {
    let mut world = World::new(policy(), &["p-0"]);
    world.pages[0] = Some((&["a"], &[]));
    world.serves(2.0);
    let (_, text, report) = world.arriving(&[("a", 0.0)], 40);
    assert_eq!(copies_in(&report), [1], "{text}");
    assert_eq!(report.adapters[0].arriving, Some(RequestRate::ZERO));
}

proptest! {
    // Each case is a pipeline of many ticks.
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn less_is_asked_for_only_after_every_replica_has_said_for_a_while_what_it_serves(
        ticks in prop::collection::vec(prop::collection::vec(0_usize..12, 3), 20..80),
    ) {
        let says: [Option<(&'static [&'static str], &'static [&'static str])>; 5] = [
            None,
            Some((&["a", "b"], &["c"])),
            Some((&["c"], &[])),
            Some((&["a"], &[])),
            Some((&[], &[])),
        ];
        let mut world = World::new(policy(), &["p-0", "p-1", "p-2"]);
        let mut before = None;
        let mut silent = 0;
        for (tick, pages) in ticks.iter().enumerate() {
            world.pages = pages.iter().map(|page| says[(*page).min(4)]).collect();
            if world.pages.contains(&None) {
                silent = tick;
            }

            let (desired, text, report) = world.after(1);
            prop_assert!((1..=8).contains(&desired));
            prop_assert!(report.need.replicas().count() <= desired, "{text}");
            if before.is_some_and(|before| desired < before) {
                // A minute of ticks every five seconds.
                prop_assert!(tick - silent >= 12, "tick {tick} after {silent}: {text}");
            }

            before = Some(desired);
        }
    }
}
