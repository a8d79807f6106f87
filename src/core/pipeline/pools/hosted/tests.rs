//! Servers with several models, decided by a whole pipeline.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use proptest::prelude::*;

use crate::analyze::saturation::{Thresholds, TransitionRule};
use crate::decide::enforce::{Behavior, Rules, Select};
use crate::decide::pools::packing::PackingPolicy;
use crate::decide::{Basis, Decision, NoData, Reason};
use crate::fleet::{Bounds, Fleet, ModelName, VariantSpec};
use crate::observe::hosting::{HostedModel, HostedModels, ModelAssignment};
use crate::observe::{Inputs, ReplicaListing, Scale, ScaleState, ScrapeRoute};
use crate::pipeline::limits::LimitPolicy;
use crate::pipeline::pools::{AdapterPool, PoolSource};
use crate::pipeline::zero::Zero;
use crate::pipeline::{Pipeline, Policy};
use crate::units::{Fraction, Replicas, Requests, Seconds};

use ModelAssignment::{Certain, Possible};

const WINDOW: i64 = 60;

fn n(count: u32) -> Replicas {
    Replicas::saturating(count)
}

fn spec() -> VariantSpec {
    let bounds = Bounds::new(n(1), Some(n(8))).unwrap();
    VariantSpec { bounds, ..VariantSpec::example("mlserver") }
}

fn policy() -> Policy {
    let minute = Seconds::literal(60);
    let at_once =
        Rules { stabilization_window: Seconds::ZERO, select: Select::Max, policies: Vec::new() };
    let pool = AdapterPool {
        source: PoolSource::Seldon,
        slots: None,
        copies: Bounds::default(),
        adapters: BTreeMap::new(),
        idle_after: minute,
        packing: PackingPolicy { window: minute, ..PackingPolicy::default() },
    };
    Policy {
        window: minute,
        stale_after: minute,
        stale_after_relayed: minute,
        thresholds: Thresholds {
            kv_cache: Fraction::ONE,
            queue_length: Requests::ZERO,
            kv_spare: Fraction::ZERO,
            queue_spare: Requests::ZERO,
        },
        overrides: BTreeMap::new(),
        transition: TransitionRule::PendingOnly,
        transition_patience: minute,
        behavior: Behavior {
            scale_up: at_once.clone(),
            scale_down: at_once,
            flap_budget: u32::MAX,
            ..Behavior::default()
        },
        sizing: None,
        zero: Zero::default(),
        pools: [(spec().key, pool)].into(),
        limits: LimitPolicy::default(),
    }
}

/// A server whose replicas follow at once.
struct World {
    pipeline: Pipeline,
    second: i64,
    models: Option<HostedModels>,
    wanted: u32,
}

impl World {
    fn new(wanted: u32, models: &[(&str, u32, ModelAssignment)]) -> Self {
        let mut world =
            Self { pipeline: Pipeline::new(policy()), second: 1_000_000, models: None, wanted };
        world.host(models);
        world
    }

    fn host(&mut self, models: &[(&str, u32, ModelAssignment)]) {
        let models = models.iter().map(|(name, copies, assignment)| HostedModel {
            name: ModelName::new(name).unwrap(),
            copies: n(*copies),
            assignment: *assignment,
        });
        let as_of = self.now();
        self.models = Some(HostedModels { models: models.collect(), bounds: None, as_of });
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_second(self.second).unwrap()
    }

    /// Decides once a second for this long, and returns the last decision. The listing of the
    /// models stays as old as it is if `aging`.
    fn run(&mut self, seconds: i64, aging: bool) -> Decision {
        let mut last = None;
        for _ in 0..seconds {
            self.second += 1;
            let now = self.now();
            if let Some(models) = self.models.as_mut().filter(|_| !aging) {
                models.as_of = now;
            }
            let scale = Scale::Known(ScaleState {
                wanted: n(self.wanted),
                current: n(self.wanted),
                ready: Replicas::ZERO,
                pending: n(self.wanted),
                bounds: None,
            });
            let listing = ReplicaListing {
                replicas: Vec::new(),
                unready: Vec::new(),
                scale,
                way: ScrapeRoute::Scraped,
                as_of: now,
            };
            let hosting = self.models.iter().map(|models| (spec().key, models.clone()));
            let inputs = Inputs {
                fleet: Arc::new(Fleet::new([spec()])),
                listings: [(spec().key, listing)].into(),
                hosting: hosting.collect(),
                ..Inputs::default()
            };
            let found = self.pipeline.tick(now, &inputs);
            assert_eq!(found.violation, None);
            last = found.decisions.into_iter().next();
            if let Some(decision) = &last {
                self.wanted = decision.desired().count();
            }
        }
        last.expect("a decision")
    }

    fn settle(&mut self, seconds: i64) -> Decision {
        self.run(seconds, false)
    }
}

fn label(decision: &Decision) -> &'static str {
    decision.because().map_or("none", |step| step.reason.label())
}

#[test]
fn a_server_grows_at_once_to_the_model_with_the_most_copies() {
    let mut world = World::new(2, &[("iris", 1, Certain), ("income", 5, Certain)]);
    let decision = world.settle(1);
    assert_eq!((decision.desired(), label(&decision)), (n(5), "pool_copies"));
    assert_eq!(decision.inputs_at, world.now());
    world.host(&[("income", 20, Certain)]);
    assert_eq!(world.settle(1).desired(), n(8), "the maximum holds");
}

/// The examples of the documentation of Seldon Core 2, "Lightly Loaded Server Replicas".
#[test]
fn a_server_that_is_lightly_loaded_is_packed_after_the_window() {
    for (replicas, models, left) in [
        (2, [("a", 1, Certain), ("b", 1, Certain)], 1),
        (3, [("a", 2, Certain), ("b", 2, Certain)], 2),
    ] {
        let mut world = World::new(replicas, &models);
        let waiting = world.settle(WINDOW);
        assert_eq!((waiting.desired(), label(&waiting)), (n(replicas), "pool_waiting"));
        let packed = world.settle(1);
        assert_eq!(packed.desired(), n(left));
        let Some(Reason::Pool(pooled)) = packed.because().map(|step| &step.reason) else {
            panic!("{packed:?}")
        };
        assert!(pooled.to_string().contains("replicas needed after moving"), "{pooled}");
    }
}

#[test]
fn replicas_that_must_be_empty_go_without_packing() {
    let mut world = World::new(6, &[("a", 1, Certain), ("b", 2, Certain)]);
    let mut policy = policy();
    policy.pools.get_mut(&spec().key).unwrap().packing.interval = None;
    world.pipeline = Pipeline::new(policy);
    let decision = world.settle(WINDOW + 1);
    assert_eq!((decision.desired(), label(&decision)), (n(3), "pool_emptied"));
    let later = world.settle(3 * WINDOW);
    assert_eq!((later.desired(), label(&later)), (n(3), "pool_kept"), "packing is off");
}

#[test]
fn nothing_is_packed_before_an_earlier_number_is_followed() {
    let mut world = World::new(6, &[("a", 3, Certain)]);
    let emptied = world.settle(WINDOW + 1);
    assert_eq!((emptied.desired(), label(&emptied)), (n(3), "pool_emptied"));

    world.host(&[("a", 1, Certain), ("b", 1, Certain), ("c", 1, Certain)]);
    for _ in 0..2 * WINDOW {
        world.wanted = 6;
        assert_eq!(world.settle(1).desired(), n(3), "the autoscaler has not acted yet");
    }

    assert_eq!(world.settle(1).desired(), n(1));
}

#[test]
fn a_server_without_models_keeps_one_replica() {
    let mut world = World::new(3, &[]);
    assert_eq!(world.settle(2 * WINDOW).desired(), n(1));
}

#[test]
fn models_that_are_not_listed_or_too_old_lower_nothing() {
    let mut world = World::new(4, &[("a", 4, Certain)]);
    assert_eq!(world.settle(5).desired(), n(4));

    world.models = None;
    let held = world.settle(5 * WINDOW);
    assert_eq!((held.desired(), held.basis), (n(4), Basis::Held));
    let why = held.because().map(|step| step.reason.clone());
    assert_eq!(why, Some(Reason::NoData(NoData::NoModels)));

    world.host(&[("a", 1, Certain)]);
    let seen = world.run(70, true);
    assert_eq!((seen.desired(), seen.basis), (n(4), Basis::Held), "the list is too old");
    assert_eq!(world.settle(2 * WINDOW).desired(), n(1), "a fresh list is followed");
}

#[test]
fn a_model_that_another_server_can_host_keeps_replicas_and_adds_none() {
    let mut world = World::new(2, &[("a", 1, Certain), ("b", 4, Possible)]);
    let kept = world.settle(3 * WINDOW);
    assert_eq!((kept.desired(), label(&kept)), (n(2), "pool_unsure"));
    let Some(Reason::Pool(pooled)) = kept.because().map(|step| &step.reason) else { panic!() };
    assert!(pooled.to_string().contains("set spec.server"), "{pooled}");
}

#[test]
fn the_servers_own_bounds_hold() {
    let mut world = World::new(2, &[("a", 6, Certain)]);
    world.models.as_mut().unwrap().bounds = Bounds::new(n(2), Some(n(4)));
    assert_eq!(world.settle(1).desired(), n(4));
    world.host(&[]);
    world.models.as_mut().unwrap().bounds = Bounds::new(n(2), Some(n(4)));
    assert_eq!(world.settle(3 * WINDOW).desired(), n(2));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn replicas_never_fall_below_the_copies_of_a_model(
        replicas in 1_u32..8,
        copies in prop::collection::vec((0_u32..8, any::<bool>()), 0..6),
    ) {
        let names: Vec<String> = (0..copies.len()).map(|at| format!("m{at}")).collect();
        let models: Vec<(&str, u32, ModelAssignment)> = names
            .iter()
            .zip(&copies)
            .map(|(name, (copies, certain))| {
                (name.as_str(), *copies, if *certain { Certain } else { Possible })
            })
            .collect();
        let mut world = World::new(replicas, &models);
        let certain = models.iter().filter(|it| it.2 == Certain).map(|it| it.1).max().unwrap_or(0);
        let possible = models.iter().map(|it| it.1).max().unwrap_or(0);
        for _ in 0..4 {
            let desired = world.settle(WINDOW).desired().count();
            prop_assert!(desired >= certain.max(1));
            prop_assert!(desired >= possible.min(replicas));
            prop_assert!(desired <= certain.max(replicas));
        }
    }
}
