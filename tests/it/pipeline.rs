//! The pipeline's rules: what it decides, and above all what it refuses to decide.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::ballot::Analyzer;
use plimsoll::analyze::saturation::{Thresholds, TransitionRule};
use plimsoll::decide::enforce::{Amount, Behavior, Rules, Select, StepPolicy};
use plimsoll::decide::{Basis, Decision, NoData, Reason, Stage};
use plimsoll::fleet::{
    Bounds, Fleet, ModelName, Namespace, ReplicaKey, ReplicaName, Role, VariantKey, VariantName,
    VariantSpec,
};
use plimsoll::observe::engine::Engine;
use plimsoll::observe::{
    HttpReading, Inputs, RankReading, Reading, ReplicaListing, Scale, ScaleState, Scrape,
    ScrapeFailure, ScrapeRoute, WhyScaleUnknown,
};
use plimsoll::pipeline::limits::LimitPolicy;
use plimsoll::pipeline::zero::Zero;
use plimsoll::pipeline::{Decisions, Pipeline, Policy};
use plimsoll::units::{CostPerHour, Fraction, Replicas, Requests, Seconds, Tokens};
use proptest::prelude::*;

use crate::sizing::sized;

pub(crate) const WINDOW: i64 = 10;

/// Tokens in the KV cache of every replica.
pub(crate) const KV_CAPACITY: f64 = 16_000.0;

pub(crate) fn at(second: i64) -> Timestamp {
    Timestamp::from_second(1_795_000_000 + second).unwrap()
}

pub(crate) fn n(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

pub(crate) fn key(variant: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new("shop").unwrap(),
        variant: VariantName::new(variant).unwrap(),
    }
}

pub(crate) fn spec(variant: &str, cost: f64, bounds: (u32, u32)) -> VariantSpec {
    VariantSpec {
        key: key(variant),
        model: ModelName::new("m").unwrap(),
        accelerator: None,
        gpus: None,
        role: Role::Both,
        cost: CostPerHour::new(cost).unwrap(),
        list_price: None,
        start_time: None,
        mismatch: Fraction::ONE,
        bounds: Bounds::new(n(bounds.0), Some(n(bounds.1))).unwrap(),
    }
}

/// Thresholds of the documents; windows short enough to test, and no stabilisation.
pub(crate) fn policy() -> Policy {
    let immediate =
        Rules { stabilization_window: Seconds::ZERO, select: Select::Max, policies: Vec::new() };
    Policy {
        window: Seconds::new(WINDOW as f64).unwrap(),
        stale_after: Seconds::new(3.0).unwrap(),
        stale_after_relayed: Seconds::new(30.0).unwrap(),
        thresholds: Thresholds {
            kv_cache: Fraction::new(0.8).unwrap(),
            queue_length: Requests::new(5.0).unwrap(),
            kv_spare: Fraction::new(0.1).unwrap(),
            queue_spare: Requests::new(3.0).unwrap(),
        },
        overrides: BTreeMap::new(),
        pools: BTreeMap::new(),
        transition: TransitionRule::PendingOnly,
        transition_patience: Seconds::new(300.0).unwrap(),
        behavior: Behavior {
            scale_up: immediate.clone(),
            scale_down: immediate,
            flap_budget: u32::MAX,
            ..Behavior::default()
        },
        sizing: None,
        zero: Zero::default(),
        limits: LimitPolicy::default(),
    }
}

pub(crate) fn replica(variant: &str, index: u32) -> ReplicaKey {
    ReplicaKey {
        variant: key(variant),
        replica: ReplicaName::new(&format!("{variant}-{index}")).unwrap(),
        incarnation: None,
    }
}

pub(crate) fn page(kv: Option<f64>, waiting: Option<f64>) -> Reading {
    Reading {
        engine: Engine::Vllm,
        samples: 1,
        started: None,
        models: vec![ModelName::new("m").unwrap()],
        http: HttpReading::default(),
        rejected: None,
        lora: None,
        ranks: vec![RankReading {
            running: Requests::new(1.0),
            waiting: waiting.and_then(Requests::new),
            kv_usage: kv.and_then(Fraction::new),
            kv_capacity: Tokens::new(KV_CAPACITY),
            ..RankReading::default()
        }],
    }
}

/// A fleet whose state a test changes as it goes.
#[derive(Clone)]
pub(crate) struct World {
    pub(crate) pipeline: Pipeline,
    pub(crate) fleet: Fleet,
    pub(crate) variants: BTreeMap<String, Variant>,
    pub(crate) second: i64,
}

#[derive(Clone)]
pub(crate) struct Variant {
    pub(crate) listed: u32,
    pub(crate) scale: Scale,
    pub(crate) way: ScrapeRoute,
    pub(crate) load: (f64, f64),
    pub(crate) failing: BTreeMap<u32, ScrapeFailure>,
    pub(crate) silent: Vec<u32>,
}

pub(crate) fn known(wanted: u32, ready: u32) -> Scale {
    Scale::Known(ScaleState {
        wanted: n(wanted),
        current: n(wanted),
        ready: n(ready),
        pending: n(wanted - ready),
        bounds: None,
    })
}

impl World {
    pub(crate) fn new(specs: Vec<VariantSpec>) -> Self {
        Self::with(policy(), specs)
    }

    pub(crate) fn with(policy: Policy, specs: Vec<VariantSpec>) -> Self {
        Self {
            pipeline: Pipeline::new(policy),
            fleet: Fleet::new(specs),
            variants: BTreeMap::new(),
            second: 0,
        }
    }

    pub(crate) fn set(&mut self, variant: &str, count: u32, load: (f64, f64)) -> &mut Variant {
        self.variants.insert(
            variant.into(),
            Variant {
                listed: count,
                scale: known(count, count),
                way: ScrapeRoute::Scraped,
                load,
                failing: BTreeMap::new(),
                silent: Vec::new(),
            },
        );
        self.variants.get_mut(variant).unwrap()
    }

    pub(crate) fn inputs(&self) -> Inputs {
        let mut inputs = Inputs { fleet: Arc::new(self.fleet.clone()), ..Inputs::default() };
        for (name, variant) in &self.variants {
            let replicas: Vec<_> = (0..variant.listed).map(|index| replica(name, index)).collect();
            for (index, replica) in (0..).zip(&replicas) {
                let outcome = match variant.failing.get(&index) {
                    _ if variant.silent.contains(&index) => continue,
                    Some(failure) => Err(*failure),
                    None => Ok(page(Some(variant.load.0), Some(variant.load.1))),
                };
                let replica = replica.clone();
                inputs.scrapes.push(Scrape { replica, at: at(self.second), outcome });
            }
            let listing = ReplicaListing {
                replicas,
                unready: Vec::new(),
                scale: variant.scale.clone(),
                way: variant.way,
                as_of: at(self.second),
            };
            inputs.listings.insert(key(name), listing);
        }
        inputs
    }

    pub(crate) fn tick(&mut self) -> Decisions {
        let inputs = self.inputs();
        let decisions = self.pipeline.tick(at(self.second), &inputs);
        self.second += 1;
        decisions
    }

    /// Ticks once a second and returns the last decisions.
    pub(crate) fn run(&mut self, seconds: i64) -> Decisions {
        let mut last = self.tick();
        for _ in 1..seconds {
            last = self.tick();
        }
        last
    }
}

pub(crate) fn of<'a>(decisions: &'a Decisions, variant: &str) -> &'a Decision {
    decisions.decisions.iter().find(|decision| decision.variant == key(variant)).unwrap()
}

pub(crate) fn desired(decisions: &Decisions, variant: &str) -> u32 {
    of(decisions, variant).desired().count()
}

pub(crate) const IDLE: (f64, f64) = (0.1, 0.0);
pub(crate) const BUSY: (f64, f64) = (0.75, 1.0);

#[test]
fn a_saturated_model_grows_by_one_on_its_cheapest_variant() {
    let mut world = World::new(vec![spec("dear", 9.0, (1, 9)), spec("cheap", 2.0, (1, 9))]);
    world.set("dear", 2, BUSY);
    world.set("cheap", 2, BUSY);
    let decisions = world.run(3);
    assert_eq!((desired(&decisions, "cheap"), desired(&decisions, "dear")), (3, 2));
    let why = of(&decisions, "cheap").because().unwrap().to_string();
    assert_eq!(why, "analyze: 2 -> 3, low KV-cache headroom (0.050 < 0.100)");
}

#[test]
fn an_idle_model_shrinks_only_after_the_window_was_seen() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, IDLE);
    let early = world.run(WINDOW);
    assert_eq!(desired(&early, "a"), 4);
    assert_eq!(of(&early, "a").steps.last().unwrap().stage, Stage::Guard);
    assert_eq!(desired(&world.run(2), "a"), 3);
}

#[test]
fn a_new_replica_is_given_the_chance_to_relieve_the_others() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 2, BUSY);
    assert_eq!(desired(&world.run(8), "a"), 3);
    world.set("a", 3, (0.5, 0.5));
    let after: Vec<u32> = (0..30).map(|_| desired(&world.tick(), "a")).collect();
    assert_eq!(after, [3; 30], "peaks of before do not ask for a fourth");
}

#[test]
fn a_number_that_is_not_followed_does_not_grow() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 2, BUSY);
    assert_eq!(desired(&world.run(60), "a"), 3);
}

#[test]
fn losing_all_data_keeps_the_number_and_says_so() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY);
    assert_eq!(desired(&world.run(3), "a"), 5);
    for index in 0..4 {
        world.variants.get_mut("a").unwrap().failing.insert(index, ScrapeFailure::Timeout);
    }
    let before = of(&world.tick(), "a").inputs_at;
    let decisions = world.run(600);
    let decision = of(&decisions, "a");
    assert_eq!((decision.desired(), decision.basis), (n(5), Basis::Held));
    assert!(matches!(decision.steps[0].reason, Reason::NoData(NoData::NoFreshReplica)));
    assert!(decision.inputs_at.duration_since(before) <= SignedDuration::from_secs(5));
}

#[test]
fn pages_that_another_server_has_scraped_are_old_later() {
    for (way, held_after) in [(ScrapeRoute::Scraped, 3), (ScrapeRoute::Relayed, 30)] {
        let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
        world.set("a", 1, BUSY).way = way;
        let _ = world.run(5);
        world.variants.get_mut("a").unwrap().silent = vec![0];
        assert_eq!(of(&world.run(held_after - 1), "a").basis, Basis::Fresh, "{way:?}");
        assert_eq!(of(&world.run(3), "a").basis, Basis::Held, "{way:?}");
    }
}

#[test]
fn one_replica_that_does_not_answer_keeps_the_model_from_shrinking_but_not_from_growing() {
    for failure in ScrapeFailure::ALL {
        let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
        world.set("a", 4, IDLE);
        let _ = world.run(5);
        world.variants.get_mut("a").unwrap().failing.insert(2, failure);
        let decisions = world.run(60);
        assert_eq!(desired(&decisions, "a"), 4, "{failure}");
        assert_eq!(
            of(&decisions, "a").steps.last().unwrap().reason,
            Reason::Incomplete { missing: n(1) }
        );
        world.variants.get_mut("a").unwrap().load = BUSY;
        assert_eq!(desired(&world.run(5), "a"), 5, "{failure}");
    }
}

#[test]
fn a_replica_without_a_kv_gauge_is_unknown_and_not_idle() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 3, IDLE);
    let _ = world.run(3);
    for _ in 0..60 {
        let mut inputs = world.inputs();
        inputs.scrapes[1].outcome = Ok(page(None, Some(0.0)));
        let decisions = world.pipeline.tick(at(world.second), &inputs);
        assert_eq!(desired(&decisions, "a"), 3);
        world.second += 1;
    }
}

#[test]
fn a_restart_decides_nothing_before_there_is_data() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, IDLE).silent = vec![0, 1, 2, 3];
    let decisions = world.run(5);
    assert!(decisions.decisions.is_empty());
    assert_eq!(decisions.undecided[&key("a")].0, NoData::NoFreshReplica);
}

#[test]
fn a_restored_number_stays_until_there_is_data() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.pipeline.restore(at(0), key("a"), n(6), at(-20));
    world.set("a", 4, IDLE).silent = vec![0, 1, 2, 3];
    let decisions = world.run(5);
    let decision = of(&decisions, "a");
    assert_eq!((decision.desired(), decision.inputs_at), (n(6), at(-20)));
    assert!(matches!(decision.steps[0].reason, Reason::NoData(NoData::Restored)));
}

#[test]
fn an_unknown_scale_target_holds() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, BUSY);
    assert_eq!(desired(&world.run(3), "a"), 5);
    for why in [
        WhyScaleUnknown::NotListed,
        WhyScaleUnknown::NoSuchTarget,
        WhyScaleUnknown::Forbidden,
        WhyScaleUnknown::DuplicateOwners(vec!["hpa-1".into(), "hpa-2".into()]),
    ] {
        world.variants.get_mut("a").unwrap().scale = Scale::Unknown(why.clone());
        let decisions = world.run(3);
        assert_eq!(desired(&decisions, "a"), 5);
        let said = of(&decisions, "a").steps[0].reason.to_string();
        assert!(said.contains(&why.to_string()), "{said}");
    }
}

#[test]
fn a_gap_that_is_longer_than_the_window_restarts_it() {
    let mut policy = policy();
    policy.behavior.scale_down.stabilization_window = Seconds::new(20.0).unwrap();
    let mut world = World::with(policy, vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 3, (0.6, 0.0));
    assert_eq!(desired(&world.run(30), "a"), 3);

    let why = WhyScaleUnknown::DuplicateOwners(vec!["hpa-1".into(), "hpa-2".into()]);
    let variant = world.variants.get_mut("a").unwrap();
    variant.scale = Scale::Unknown(why);
    let _ = world.run(15);
    world.variants.get_mut("a").unwrap().load = IDLE;
    assert_eq!(of(&world.run(15), "a").basis, Basis::Held);

    world.variants.get_mut("a").unwrap().scale = known(3, 3);
    let after = world.run(1);
    assert_eq!((of(&after, "a").basis, desired(&after, "a")), (Basis::Fresh, 3));
    assert_eq!(desired(&world.run(20), "a"), 2);
}

#[test]
fn a_gap_allows_no_further_step_in_the_period_of_a_policy() {
    let mut policy = policy();
    let period = Seconds::new(600.0).unwrap();
    policy.behavior.scale_down.policies = vec![StepPolicy { amount: Amount::Pods(1), period }];
    let mut world = World::with(policy, vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 5, IDLE);
    let lowered = (0..2 * WINDOW).any(|_| desired(&world.tick(), "a") == 4);
    assert!(lowered);
    world.set("a", 4, IDLE);
    let limited = world.run(WINDOW + 3);
    assert_eq!(desired(&limited, "a"), 4);
    assert_eq!(of(&limited, "a").steps.last().unwrap().stage, Stage::StepLimit);

    let failing = (0..4).map(|index| (index, ScrapeFailure::Timeout)).collect();
    world.variants.get_mut("a").unwrap().failing = failing;
    assert_eq!(of(&world.run(5), "a").basis, Basis::Held);
    world.variants.get_mut("a").unwrap().failing.clear();
    let after = world.run(WINDOW + 3);
    assert_eq!((of(&after, "a").basis, desired(&after, "a")), (Basis::Fresh, 4));
    assert_eq!(of(&after, "a").steps.last().unwrap().stage, Stage::StepLimit);
}

#[test]
fn an_old_list_of_replicas_keeps_the_model_from_shrinking() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, IDLE);
    let _ = world.run(WINDOW);
    for _ in 0..120 {
        let mut inputs = world.inputs();
        inputs.listings.get_mut(&key("a")).unwrap().as_of = at(-70);
        let decisions = world.pipeline.tick(at(world.second), &inputs);
        assert_eq!(desired(&decisions, "a"), 4);
        world.second += 1;
    }
}

#[test]
fn pending_replicas_make_the_model_wait_until_patience_ends() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9)), spec("b", 2.0, (1, 9))]);
    world.set("a", 2, BUSY).scale = known(3, 2);
    world.set("b", 2, BUSY);
    let waiting = world.run(299);
    assert_eq!((desired(&waiting, "a"), desired(&waiting, "b")), (3, 2));
    assert!(waiting.models.values().all(|model| model.transition.is_some()));
    let after = world.run(5);
    assert_eq!((desired(&after, "a"), desired(&after, "b")), (3, 3), "the next cheapest grows");
}

#[test]
fn bounds_of_the_autoscaler_win_over_the_configured_ones() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    let bounds = Bounds::new(n(2), Some(n(3)));
    world.set("a", 3, BUSY).scale = Scale::Known(ScaleState {
        wanted: n(3),
        current: n(3),
        ready: n(3),
        pending: n(0),
        bounds,
    });
    let decisions = world.run(3);
    assert_eq!(desired(&decisions, "a"), 3);
    assert_eq!(of(&decisions, "a").bounds, bounds.unwrap());
}

#[test]
fn without_an_orchestrator_the_targets_that_answer_are_the_replicas() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    let variant = world.set("a", 5, BUSY);
    variant.scale = Scale::Targets;
    // Two spare addresses, where nothing listens.
    variant.failing = BTreeMap::from([(3, ScrapeFailure::Refused), (4, ScrapeFailure::Refused)]);
    let decisions = world.run(3);
    assert_eq!(desired(&decisions, "a"), 4);
    assert_eq!(decisions.observations[&key("a")].current, Some(n(3)));
}

#[test]
fn without_an_orchestrator_nothing_is_decided_before_every_target_was_tried() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    let variant = world.set("a", 5, IDLE);
    variant.scale = Scale::Targets;
    variant.silent = vec![4];
    let decisions = world.run(3);
    assert_eq!(decisions.undecided[&key("a")].0, NoData::NotTried);
}

#[test]
fn a_target_that_refuses_connections_is_lost_first_and_stopped_later() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 3, (0.5, 0.0)).scale = Scale::Targets;
    let _ = world.run(WINDOW + 2);
    world.variants.get_mut("a").unwrap().failing.insert(1, ScrapeFailure::Refused);
    assert_eq!(desired(&world.run(200), "a"), 3, "a restart takes minutes");
    assert_eq!(desired(&world.run(200), "a"), 2, "after five minutes it has stopped");
}

#[test]
fn without_an_orchestrator_a_replica_that_was_given_up_is_no_loss() {
    let lost = |load, (before, after): (u32, u32)| {
        let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
        world.set("a", before, load).scale = Scale::Targets;
        let decisions = world.run(WINDOW + 2);
        assert_eq!(desired(&decisions, "a"), after);
        world.variants.get_mut("a").unwrap().failing.insert(1, ScrapeFailure::Refused);
        let _ = world.run(30);
        let model = world.fleet.variants().next().unwrap().model_key();
        world.pipeline.memory(&model, &key("a")).unwrap().losses
    };
    assert_eq!(lost(IDLE, (3, 2)), None);
    let crashed = lost((0.5, 0.0), (3, 3)).unwrap().count;
    assert!((crashed - 1.0).abs() < 0.01, "{crashed}");
}

#[test]
fn a_replaced_pod_takes_its_windows_with_it() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 1, (0.9, 30.0));
    assert_eq!(desired(&world.run(3), "a"), 2);
    let mut inputs = world.inputs();
    let reborn =
        ReplicaKey { incarnation: plimsoll::fleet::Incarnation::new("uid-2"), ..replica("a", 0) };
    inputs.listings.get_mut(&key("a")).unwrap().replicas = vec![reborn.clone()];
    inputs.scrapes = vec![Scrape {
        replica: reborn,
        at: at(world.second),
        outcome: Ok(page(Some(0.4), Some(0.0))),
    }];
    let decisions = world.pipeline.tick(at(world.second), &inputs);
    let kv = decisions.observations[&key("a")].replicas[0].kv_usage.unwrap();
    assert!((kv.peak.fraction() - 0.4).abs() < 1e-9);
}

#[test]
fn stabilisation_holds_a_lower_number_for_its_window() {
    let mut policy = policy();
    policy.behavior.scale_down.stabilization_window = Seconds::new(30.0).unwrap();
    let mut world = World::with(policy, vec![spec("a", 1.0, (1, 9))]);
    world.set("a", 4, IDLE);
    let held = world.run(WINDOW + 29);
    assert_eq!(desired(&held, "a"), 4);
    assert_eq!(of(&held, "a").steps.last().unwrap().stage, Stage::Stabilize);
    assert_eq!(desired(&world.run(4), "a"), 3);
}

#[test]
fn the_chain_of_steps_leads_to_the_number() {
    let mut world = World::new(vec![spec("a", 1.0, (1, 2))]);
    world.set("a", 3, BUSY);
    let decisions = world.run(3);
    let decision = of(&decisions, "a");
    assert!(decision.steps.windows(2).all(|pair| pair[0].after == pair[1].before));
    assert_eq!(decision.desired(), n(2), "the maximum holds");
}

#[test]
fn an_override_holds_for_its_model_in_its_namespace_and_no_other() {
    let other = VariantSpec { model: ModelName::new("other").unwrap(), ..spec("b", 1.0, (1, 9)) };
    let mut policy = policy();
    let early = Thresholds { kv_spare: Fraction::new(0.5).unwrap(), ..policy.thresholds };
    policy.overrides.insert(other.model_key(), early);
    let mut world = World::with(policy, vec![spec("a", 1.0, (1, 9)), other]);
    world.set("a", 2, (0.5, 0.0));
    world.set("b", 2, (0.5, 0.0));
    let decisions = world.run(3);
    assert_eq!((desired(&decisions, "a"), desired(&decisions, "b")), (2, 3));
}

#[test]
fn an_idle_decoder_is_no_room_for_prompts() {
    let role = |name: &str, role| VariantSpec { role, ..spec(name, 1.0, (1, 9)) };
    let mut world = World::new(vec![role("p", Role::Prefill), role("d", Role::Decode)]);
    world.set("p", 2, BUSY);
    world.set("d", 2, IDLE);
    let decisions = world.run(3);
    assert_eq!((desired(&decisions, "p"), desired(&decisions, "d")), (3, 2));
    assert_eq!(decisions.models.len(), 2, "each role has a report of its own");
}

#[test]
fn a_role_at_its_maximum_does_not_keep_the_other_from_growing() {
    let role = |name: &str, role, max| VariantSpec { role, ..spec(name, 1.0, (1, max)) };
    let mut world = World::new(vec![role("p", Role::Prefill, 9), role("d", Role::Decode, 2)]);
    world.set("p", 2, BUSY);
    world.set("d", 2, BUSY);
    let decisions = world.run(3);
    assert_eq!((desired(&decisions, "p"), desired(&decisions, "d")), (3, 2));
}

#[test]
fn each_transition_rule_treats_a_wish_that_is_not_carried_out_in_its_own_way() {
    // `a` is asked for one more and stays; then `b` alone becomes the one with the load.
    for (rule, b_grows) in [
        (TransitionRule::ModelWide, false),
        (TransitionRule::PerVariant, true),
        (TransitionRule::PendingOnly, false),
    ] {
        let specs = vec![spec("a", 1.0, (1, 9)), spec("b", 2.0, (1, 9))];
        let mut world = World::with(Policy { transition: rule, ..policy() }, specs);
        world.set("a", 2, BUSY);
        world.set("b", 2, BUSY);
        let decisions = world.run(10);
        assert_eq!(desired(&decisions, "a"), 3, "{rule:?}");
        assert_eq!(desired(&decisions, "b") > 2, b_grows, "{rule:?}");
        let waits = decisions.models.values().all(|model| model.transition.is_some());
        assert_eq!(waits, rule != TransitionRule::PendingOnly, "{rule:?}");
    }
}

/// One second of a hostile world.
#[derive(Clone, Debug)]
enum Second {
    Load(f64, f64),
    Fail(u32, usize),
    Heal,
    Silence,
    Jump(i64),
}

/// Enough replicas for two threads, with a model for each variant.
#[test]
fn a_large_fleet_is_observed_and_decided_as_its_parts_are() {
    let specs: Vec<VariantSpec> = (0..700)
        .map(|index| {
            let name = format!("v{index:03}");
            let model = ModelName::new(&name).unwrap();
            VariantSpec { model, ..spec(&name, 1.0, (1, 9)) }
        })
        .collect();
    let mut whole = World::new(specs.clone());
    let mut parts: Vec<World> = specs.chunks(100).map(|it| World::new(it.to_vec())).collect();

    for second in 0..WINDOW + 5 {
        for world in parts.iter_mut().chain([&mut whole]) {
            for spec in world.fleet.clone().variants() {
                let name = spec.key.variant.as_str();
                let index: i64 = name[1..].parse().unwrap();
                // Twelve are not listed in the order of their names.
                let count = match (index + second) % 500 {
                    0 => 2,
                    1 if second == WINDOW => 12,
                    _ => 3,
                };
                let load = ((index + second) % 9) as f64;
                let variant = world.set(name, count, (load / 10.0, load / 2.0));
                if index % 7 == second % 3 {
                    variant.silent = vec![1];
                }
            }
            world.variants.remove(&format!("v{:03}", 40 * second));
        }

        let all = whole.tick();
        let each: Vec<Decisions> = parts.iter_mut().map(World::tick).collect();
        let observations = each.iter().flat_map(|it| &it.observations);
        assert!(all.observations.iter().eq(observations), "second {second}");
        let decisions = each.iter().flat_map(|it| &it.decisions);
        assert!(all.decisions.iter().eq(decisions), "second {second}");
        assert!(second < WINDOW || all.decisions.iter().any(|it| it.current != Some(it.desired())));
    }
}

fn second() -> impl Strategy<Value = Second> {
    prop_oneof![
        4 => (0.0..1.2, 0.0..40.0).prop_map(|(kv, queue)| Second::Load(kv, queue)),
        2 => (0..6_u32, 0..ScrapeFailure::ALL.len()).prop_map(|(i, f)| Second::Fail(i, f)),
        2 => Just(Second::Heal),
        1 => Just(Second::Silence),
        1 => (-4000_i64..4000).prop_map(Second::Jump),
    ]
}

proptest! {
    #[test]
    fn whatever_happens_numbers_stay_in_bounds_and_are_lowered_only_on_complete_data(
        seconds in prop::collection::vec((second(), 1..15_i64), 1..30),
        orchestrated in any::<bool>(),
        analyzed in any::<bool>(),
    ) {
        let policy = if analyzed { sized(&[Analyzer::Tokens]) } else { policy() };
        let mut world = World::with(policy, vec![spec("a", 1.0, (2, 6))]);
        world.set("a", 4, IDLE);
        if !orchestrated {
            world.variants.get_mut("a").unwrap().scale = Scale::Targets;
        }
        let mut twin = world.pipeline.clone();
        let mut before: Option<u32> = None;
        for (second, times) in seconds {
            let variant = world.variants.get_mut("a").unwrap();
            match second {
                Second::Load(kv, queue) => variant.load = (kv, queue),
                Second::Fail(index, failure) => {
                    variant.failing.insert(index, ScrapeFailure::ALL[failure]);
                }
                Second::Heal => {
                    variant.failing.clear();
                    variant.silent.clear();
                }
                Second::Silence => variant.silent = vec![0, 1, 2, 3],
                Second::Jump(by) => world.second += by,
            }
            for _ in 0..times {
                let inputs = world.inputs();
                let decisions = world.pipeline.tick(at(world.second), &inputs);
                prop_assert_eq!(&decisions, &twin.tick(at(world.second), &inputs));
                world.second += 1;
                prop_assert_eq!(&decisions.violation, &None);
                let Some(decision) = decisions.decisions.first() else { continue };
                let after = decision.desired().count();
                prop_assert!((2..=6).contains(&after), "{}", after);
                if before.is_some_and(|before| after < before) {
                    let observation = &decisions.observations[&key("a")];
                    prop_assert_eq!(decision.basis, Basis::Fresh);
                    prop_assert_eq!(Some(observation.measured()), observation.ready);
                }
                before = Some(after);
            }
        }
    }
}
