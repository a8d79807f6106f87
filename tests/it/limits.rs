//! What may be used, through the pipeline: nothing grows beyond it, nothing that runs is taken away
//! for it, and every cut says which limit made it.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll::analyze::ballot::Analyzer;
use plimsoll::config::{Files, Surroundings, parse};
use plimsoll::decide::limit::{
    Allowance, LimitName, LimitScope, LimitSource, Priority, SupplyLimit,
};
use plimsoll::decide::limited::LimitedReason;
use plimsoll::decide::optimize::Headroom;
use plimsoll::decide::{Reason, Stage};
use plimsoll::fleet::{Accelerator, ModelKey, ModelName, Namespace, Resource, VariantSpec};
use plimsoll::observe::inventory::{
    Inventory, NodeStock, QuotaStock, ReplicaUnit, TimedValue, UnitSource,
};
use plimsoll::observe::{Inputs, ScrapeFailure};
use plimsoll::pipeline::limits::{LimitPolicy, LimitSwitch};
use plimsoll::pipeline::{Decisions, Policy};
use plimsoll::units::{CostPerHour, Gpus, Seconds, Tokens, Weight};
use proptest::prelude::*;

use crate::pipeline::{BUSY, IDLE, KV_CAPACITY, World, at, desired, key, of, policy, spec};
use crate::sizing::sized;

/// A variant of a model on H100s or what else.
pub(crate) fn on(variant: &str, model: &str, kind: &str, cost: f64) -> VariantSpec {
    VariantSpec {
        model: ModelName::new(model).unwrap(),
        accelerator: Accelerator::new(kind),
        ..spec(variant, cost, (0, 40))
    }
}

fn model(name: &str) -> ModelKey {
    let namespace = Namespace::new("shop").unwrap();
    ModelKey { namespace, model: ModelName::new(name).unwrap() }
}

fn limit(name: &str, source: LimitSource) -> SupplyLimit {
    SupplyLimit { name: LimitName::new(name).unwrap(), scope: LimitScope::Cluster, source }
}

pub(crate) fn quota(kinds: &[(&str, u32)]) -> SupplyLimit {
    let kind = |&(kind, gpus): &(&str, u32)| (kind_of(kind), Headroom::Limited(Gpus::new(gpus)));
    limit("quota", LimitSource::Read(Allowance::Kinds(kinds.iter().map(kind).collect())))
}

fn kind_of(name: &str) -> Accelerator {
    Accelerator::new(name).unwrap()
}

fn budget(per_hour: f64) -> SupplyLimit {
    limit("budget", LimitSource::Read(Allowance::Budget(CostPerHour::new(per_hour).unwrap())))
}

pub(crate) fn limited(policy: Policy, configured: Vec<SupplyLimit>) -> Policy {
    Policy { limits: LimitPolicy { configured, ..LimitPolicy::default() }, ..policy }
}

fn last(decisions: &Decisions, variant: &str) -> String {
    of(decisions, variant).steps.last().unwrap().to_string()
}

#[test]
fn a_saturated_model_does_not_grow_out_of_its_budget() {
    let specs = vec![on("a", "a", "H100", 4.0)];
    let mut world = World::with(limited(policy(), vec![budget(11.0)]), specs);
    world.set("a", 2, BUSY);
    let decisions = world.run(3);
    assert_eq!(desired(&decisions, "a"), 2);
    assert_eq!(
        last(&decisions, "a"),
        "limit: 3 -> 2, limited by budget: a replica costs 4.00 per hour and 3.00 is left"
    );
    assert_eq!(of(&decisions, "a").unconstrained().count(), 3);
}

/// The numbers of docs/limits.md: an H100 carries 15 times what an L4 does, and costs ten times as much.
#[test]
fn a_budget_that_does_not_suffice_is_spent_on_what_carries_most_for_it() {
    let with = |left: f64| {
        let specs = vec![on("h100", "m", "H100", 8.0), on("l4", "m", "L4", 0.8)];
        let policy = limited(sized(&[Analyzer::Tokens]), vec![budget(32.8 + left)]);
        let mut world = World::with(policy, specs);
        world.set("h100", 4, (0.98, 0.0));
        world.set("l4", 1, (0.98, 0.0));
        let mut decisions = Decisions::default();
        for _ in 0..3 {
            let mut inputs = world.inputs();
            for scrape in &mut inputs.scrapes {
                if let (true, Ok(page)) =
                    (scrape.replica.variant == key("h100"), &mut scrape.outcome)
                {
                    page.ranks[0].kv_capacity = Tokens::new(15.0 * KV_CAPACITY);
                }
            }
            decisions = world.pipeline.tick(at(world.second), &inputs);
            world.second += 1;
        }
        let steps =
            |name: &str| of(&decisions, name).steps.iter().map(ToString::to_string).collect();
        let (h100, l4): (Vec<String>, Vec<String>) = (steps("h100"), steps("l4"));
        ((desired(&decisions, "h100"), desired(&decisions, "l4")), h100, l4)
    };
    // Alone, two H100s more are the cheapest added for the shortfall.
    let (numbers, ..) = with(16.0);
    assert_eq!(numbers, (6, 1));

    // One of them and five L4s carry 256,000 tokens for what is left, 15 L4s 192,000.
    let (numbers, h100, l4) = with(12.0);
    assert_eq!(numbers, (5, 6));
    assert_eq!(
        h100[1],
        "share: 6 -> 5, limited by budget: a replica costs 8.00 per hour and 4.00 is left; 1.00 more per hour would add capacity for 24000.0 KV tokens on shop/h100"
    );
    assert_eq!(
        l4[1],
        "share: 1 -> 6, planned with the remaining variants, because budget limits h100"
    );

    // Where no H100 can be had at all, L4s are what can.
    let (numbers, h100, l4) = with(7.9);
    assert_eq!(numbers, (4, 10));
    assert!(
        h100[1].starts_with(
            "share: 6 -> 4, limited by budget: a replica costs 8.00 per hour and 7.90 is left"
        ),
        "{h100:?}"
    );
    assert_eq!(
        l4[1],
        "share: 1 -> 10, planned with the remaining variants, because budget limits h100"
    );
}

#[test]
fn a_limit_below_what_runs_takes_nothing_away_and_lets_nothing_grow() {
    let specs = vec![on("a", "a", "H100", 4.0), on("b", "b", "H100", 4.0)];
    let mut world = World::with(limited(policy(), vec![quota(&[("H100", 3)])]), specs);
    world.set("a", 4, BUSY);
    world.set("b", 4, IDLE);
    let decisions = world.run(60);
    assert_eq!((desired(&decisions, "a"), desired(&decisions, "b")), (4, 3), "b needs less itself");
}

#[test]
fn a_number_that_is_kept_for_want_of_data_is_not_cut_and_counts_as_in_use() {
    let specs = vec![on("a", "a", "H100", 4.0), on("b", "b", "H100", 4.0)];
    let mut world = World::with(limited(policy(), vec![quota(&[("H100", 9)])]), specs);
    world.set("a", 4, BUSY);
    world.set("b", 4, BUSY);
    let decisions = world.run(3);
    assert_eq!((desired(&decisions, "a"), desired(&decisions, "b")), (5, 4));
    for index in 0..4 {
        world.variants.get_mut("a").unwrap().failing.insert(index, ScrapeFailure::Timeout);
    }
    let decisions = world.run(30);
    assert_eq!((desired(&decisions, "a"), desired(&decisions, "b")), (5, 4));
    assert_eq!(of(&decisions, "a").steps[0].stage, Stage::Hold);
    assert!(last(&decisions, "b").contains("limited by quota"), "{}", last(&decisions, "b"));
}

#[test]
fn what_was_never_read_lets_nothing_grow_and_what_was_read_once_holds() {
    let SupplyLimit { source: LimitSource::Read(read), .. } = quota(&[("H100", 3)]) else {
        unreachable!()
    };
    let held = LimitSource::Held { last: read, age: Seconds::new(600.0).unwrap() };
    for (source, want, label, said) in [
        (LimitSource::Unread, 2, "limit_unread", "limited by nodes: it has not been read yet"),
        (
            held,
            3,
            "limited",
            "limited by nodes: a replica needs 1 H100 and 0 are free, as it was read 600 s ago",
        ),
    ] {
        let specs = vec![on("a", "a", "NVIDIA-H100-80GB-HBM3", 4.0)];
        let mut world = World::with(limited(policy(), vec![limit("nodes", source)]), specs);
        world.set("a", 2, BUSY);
        let decisions = world.run(3);
        assert_eq!(desired(&decisions, "a"), want);
        world.set("a", 3, BUSY);
        let decisions = world.run(3);
        let step = of(&decisions, "a").steps.last().unwrap();
        assert_eq!((step.reason.label(), step.reason.to_string()), (label, said.to_owned()));
    }
}

#[test]
fn a_replica_of_several_accelerators_takes_them_all() {
    let specs = vec![VariantSpec { gpus: Some(Gpus::new(8)), ..on("a", "a", "H100", 4.0) }];
    let mut world = World::with(limited(policy(), vec![quota(&[("H100", 23)])]), specs);
    world.set("a", 2, BUSY);
    let decisions = world.run(3);
    assert_eq!(
        last(&decisions, "a"),
        "limit: 3 -> 2, limited by quota: a replica needs 8 H100 and 7 are free"
    );
}

/// What nodes have, as it was known so many seconds ago.
fn stocked(world: &World, rows: &[(&str, u32, u32)], age: i64) -> Inventory {
    let stock = |&(product, allocatable, used_by_others): &(&str, u32, u32)| NodeStock {
        product: kind_of(product),
        allocatable: Gpus::new(allocatable),
        used_by_others: Gpus::new(used_by_others),
    };
    let value = rows.iter().map(stock).collect();
    let nodes = Some(TimedValue { value, as_of: at(world.second - age) });
    Inventory { nodes, ..Inventory::default() }
}

fn ticked(world: &mut World, inventory: Inventory) -> Decisions {
    let inputs = Inputs { inventory: Arc::new(inventory), ..world.inputs() };
    let decisions = world.pipeline.tick(at(world.second), &inputs);
    world.second += 1;
    decisions
}

#[test]
fn what_nodes_have_without_what_others_take_is_a_limit_that_holds_when_it_grows_old() {
    let policy = Policy {
        limits: LimitPolicy { nodes: LimitSwitch::On, ..LimitPolicy::default() },
        ..policy()
    };
    let specs = vec![on("a", "a", "H100", 4.0), on("b", "b", "L4", 4.0)];
    let mut world = World::with(policy, specs);
    world.set("a", 2, BUSY);
    world.set("b", 2, BUSY);
    let rows = [("NVIDIA-H100-80GB-HBM3", 8, 5), ("NVIDIA-H100-NVL", 1, 1)];
    for age in [0, 0, 600] {
        let inventory = stocked(&world, &rows, age);
        let decisions = ticked(&mut world, inventory);
        if age == 0 && desired(&decisions, "a") == 2 {
            continue;
        }
        assert_eq!(desired(&decisions, "a"), 3, "of nine, six are others'");
        let said = last(&decisions, "b");
        assert!(said.starts_with("limit: 3 -> 2, limited by nodes: it has no L4"), "{said}");
        let report = &decisions.limits[0];
        assert_eq!(
            (report.rows[0].allowed, report.rows[0].held),
            (Some(Gpus::new(3)), Gpus::new(2))
        );
    }
    world.set("a", 3, BUSY);
    for _ in 0..3 {
        let inventory = stocked(&world, &rows, 600);
        let decisions = ticked(&mut world, inventory);
        assert_eq!(
            last(&decisions, "a"),
            "limit: 4 -> 3, limited by nodes: a replica needs 1 H100 and 0 are free, as it was \
             read 600 s ago"
        );
    }
    let decisions = ticked(&mut world, Inventory::default());
    assert_eq!(last(&decisions, "a"), "limit: 4 -> 3, limited by nodes: it has not been read yet");
}

/// Nodes of one kind with so much free on each, of which `a` takes so much for a pod.
fn scattered(world: &World, held: u32, free: &[u32], pods: &[(&str, u32)]) -> Inventory {
    let all = held + free.iter().sum::<u32>();
    let free = free.iter().map(|free| Gpus::new(*free)).collect();
    Inventory {
        free: BTreeMap::from([(kind_of("NVIDIA-H100-80GB-HBM3"), free)]),
        pods: pods.iter().map(|(name, gpus)| (key(name), Gpus::new(*gpus))).collect(),
        ..stocked(world, &[("NVIDIA-H100-80GB-HBM3", all, 0)], 0)
    }
}

#[test]
fn accelerators_that_are_free_on_many_nodes_are_no_room_for_a_pod_that_needs_them_on_one() {
    for (free, pod, want, said) in [
        (
            &[1; 8][..],
            8,
            2,
            "limit: 3 -> 2, limited by nodes: a pod needs 8 H100 on one node, and at most 1 are free on one (8 on all)",
        ),
        (&[8], 8, 3, ""),
        // A group of four pods of two.
        (
            &[1, 2, 5],
            2,
            2,
            "limit: 3 -> 2, limited by nodes: a pod needs 2 H100 on one node, and at most 5 are free on one (8 on all)",
        ),
        (&[2, 2, 5], 2, 3, ""),
    ] {
        let limits = LimitPolicy { nodes: LimitSwitch::On, ..LimitPolicy::default() };
        let eight = |name| VariantSpec { gpus: Some(Gpus::new(8)), ..on(name, name, "H100", 4.0) };
        let mut world = World::with(Policy { limits, ..policy() }, vec![eight("a"), eight("b")]);
        world.set("a", 2, BUSY);
        world.set("b", 2, IDLE);
        let mut decisions = Decisions::default();
        for _ in 0..3 {
            let inventory = scattered(&world, 32, free, &[("a", pod), ("b", pod)]);
            decisions = ticked(&mut world, inventory);
        }
        assert_eq!(desired(&decisions, "a"), want, "{free:?}");
        assert!(said.is_empty() || last(&decisions, "a") == said, "{}", last(&decisions, "a"));
    }
}

#[test]
fn two_models_do_not_both_get_the_one_node_that_fits_them() {
    let limits = LimitPolicy { nodes: LimitSwitch::On, ..LimitPolicy::default() };
    let eight = |name| VariantSpec { gpus: Some(Gpus::new(8)), ..on(name, name, "H100", 4.0) };
    let mut world = World::with(Policy { limits, ..policy() }, vec![eight("a"), eight("b")]);
    world.set("a", 2, BUSY);
    world.set("b", 2, BUSY);
    for _ in 0..3 {
        let free = [8, 1, 1, 1, 1, 1, 1, 1, 1];
        let inventory = scattered(&world, 32, &free, &[("a", 8), ("b", 8)]);
        let decisions = ticked(&mut world, inventory);
        let both = desired(&decisions, "a") + desired(&decisions, "b");
        assert!(both <= 5, "{both}");
    }
}

#[test]
fn a_plan_makes_do_with_another_kind_where_no_node_has_enough() {
    let limits = LimitPolicy { nodes: LimitSwitch::On, ..LimitPolicy::default() };
    let eight = VariantSpec { gpus: Some(Gpus::new(8)), ..on("a", "m", "H100", 4.0) };
    let specs = vec![eight, on("b", "m", "L4", 5.0)];
    let mut world = World::with(Policy { limits, ..sized(&[Analyzer::Tokens]) }, specs);
    world.set("a", 2, BUSY);
    world.set("b", 1, BUSY);
    let mut decisions = Decisions::default();
    for _ in 0..3 {
        let mut inventory = scattered(&world, 16, &[7, 7], &[("a", 8), ("b", 1)]);
        inventory.free.insert(kind_of("L4"), vec![Gpus::new(1); 20]);
        inventory.nodes.as_mut().unwrap().value.push(NodeStock {
            product: kind_of("L4"),
            allocatable: Gpus::new(21),
            used_by_others: Gpus::ZERO,
        });
        decisions = ticked(&mut world, inventory);
    }
    assert_eq!(desired(&decisions, "a"), 2);
    assert!(desired(&decisions, "b") > 1, "{}", last(&decisions, "b"));
    let steps: Vec<String> = of(&decisions, "b").steps.iter().map(ToString::to_string).collect();
    assert!(steps.iter().any(|it| it.contains("because nodes limits a")), "{steps:?}");
}

#[test]
fn a_resource_quota_counts_the_variants_of_its_namespace_that_take_its_resource() {
    let limits = LimitPolicy { quotas: LimitSwitch::On, ..LimitPolicy::default() };
    let specs = vec![on("a", "a", "H100", 4.0), on("b", "b", "MI300X", 4.0)];
    let mut world = World::with(Policy { limits, ..policy() }, specs);
    world.set("a", 2, BUSY);
    world.set("b", 2, BUSY);
    let resource = |name: &str| Resource::new(name).unwrap();
    let unit = |name: &str, gpus: u32| ReplicaUnit {
        resource: resource(name),
        gpus: Gpus::new(gpus),
        product: None,
        source: UnitSource::Template,
    };
    let inventory = |now: i64| Inventory {
        quotas: Some(TimedValue {
            value: vec![QuotaStock {
                namespace: Namespace::new("shop").unwrap(),
                name: "gpus".to_owned(),
                resource: resource("nvidia.com/gpu"),
                hard: Gpus::new(12),
                used_by_others: Gpus::new(1),
            }],
            as_of: at(now),
        }),
        units: BTreeMap::from([
            (key("a"), unit("nvidia.com/gpu", 4)),
            (key("b"), unit("amd.com/gpu", 8)),
        ]),
        ..Inventory::default()
    };
    let mut decisions = Decisions::default();
    for _ in 0..3 {
        let now = inventory(world.second);
        decisions = ticked(&mut world, now);
    }
    assert_eq!(desired(&decisions, "b"), 3, "it takes another resource");
    assert_eq!(
        last(&decisions, "a"),
        "limit: 3 -> 2, limited by resource quota shop/gpus (nvidia.com/gpu): a replica needs 4 accelerators and 3 are free"
    );
    let decisions = ticked(&mut world, Inventory::default());
    assert_eq!(
        last(&decisions, "b"),
        "limit: 3 -> 2, limited by resource quotas: it has not been read yet"
    );
}

#[test]
fn a_product_goes_by_the_name_that_is_configured() {
    let names = BTreeMap::from([(kind_of("NVIDIA-A100-SXM4-40GB"), kind_of("A100-40GB"))]);
    let limits = LimitPolicy { nodes: LimitSwitch::On, names, ..LimitPolicy::default() };
    let specs = vec![on("a", "a", "A100-40GB", 4.0), on("b", "b", "A100", 4.0)];
    let mut world = World::with(Policy { limits, ..policy() }, specs);
    world.set("a", 1, BUSY);
    world.set("b", 1, BUSY);
    let rows = [("NVIDIA-A100-SXM4-40GB", 1, 0), ("NVIDIA-A100-SXM4-80GB", 2, 0)];
    let mut decisions = Decisions::default();
    for _ in 0..3 {
        let inventory = stocked(&world, &rows, 0);
        decisions = ticked(&mut world, inventory);
    }
    assert_eq!((desired(&decisions, "a"), desired(&decisions, "b")), (1, 2));
}

/// The worked example of docs/limits.md.
#[test]
fn the_worked_example_of_the_document_is_what_comes_out() {
    let document = std::fs::read_to_string(
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/limits.md"),
    )
    .unwrap();
    let document = document.split("## An example").nth(1).unwrap();
    let configuration =
        document.split("```yaml\n").nth(1).and_then(|rest| rest.split("```").next()).unwrap();
    let surroundings = Surroundings {
        origin: "docs/limits.md".to_owned(),
        base: "/".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let config = parse(configuration, &surroundings).unwrap().config;
    let policy = Policy { limits: config.policy.limits, ..sized(&[Analyzer::Tokens]) };
    let specs = config.variants.into_iter().map(|variant| variant.spec).collect();
    let mut world = World::with(policy, specs);
    let full = (0.98, 0.0);
    world.set("chat-h100", 4, full);
    world.set("chat-l4", 1, full);
    world.set("code-h100", 2, full);
    let decisions = world.run(3);
    let said: Vec<String> = ["chat-h100", "chat-l4", "code-h100"]
        .into_iter()
        .flat_map(|variant| {
            let steps = &of(&decisions, variant).steps;
            steps.iter().map(move |step| format!("{variant}: {step}"))
        })
        .collect();
    let shown = document.split("```text\n").nth(1).and_then(|rest| rest.split("```").next());
    // A line that begins with spaces goes on with the one before it.
    let shown = shown.unwrap().replace("\n  ", " ");
    assert_eq!(said, shown.lines().collect::<Vec<_>>());
}

#[test]
fn who_is_guaranteed_some_comes_first_up_to_that_whatever_the_class() {
    let specs = || vec![on("a", "a", "H100", 4.0), on("b", "b", "H100", 4.0)];
    let run = |guaranteed: u32| {
        let first = Priority { class: 9, ..Priority::default() };
        let floor = Priority { guaranteed: Gpus::new(guaranteed), ..Priority::default() };
        let priorities = BTreeMap::from([(model("a"), first), (model("b"), floor)]);
        let configured = vec![quota(&[("H100", 10)])];
        let limits = LimitPolicy { configured, priorities, ..LimitPolicy::default() };
        let mut world = World::with(Policy { limits, ..sized(&[Analyzer::Tokens]) }, specs());
        world.set("a", 4, (0.98, 0.0));
        world.set("b", 4, (0.98, 0.0));
        let decisions = world.run(3);
        (desired(&decisions, "a"), desired(&decisions, "b"))
    };
    assert_eq!(run(0), (6, 4));
    assert_eq!(run(5), (5, 5));
    assert_eq!(run(4), (6, 4), "no more than what is guaranteed");
}

/// One variant of a random fleet: its model, kind, accelerators a replica, cost, replicas and load.
type Row = (usize, usize, u32, u32, u32, bool);

const NAMES: [&str; 5] = ["v0", "v1", "v2", "v3", "v4"];
const MODELS: [&str; 3] = ["m0", "m1", "m2"];
const KINDS: [&str; 2] = ["H100", "L4"];

fn fleet(rows: &[Row]) -> Vec<VariantSpec> {
    let spec = |(name, &(model, kind, gpus, cost, _, _)): (&&str, &Row)| VariantSpec {
        gpus: Some(Gpus::new(gpus)),
        ..on(name, MODELS[model], KINDS[kind], f64::from(cost))
    };
    NAMES.iter().zip(rows).map(spec).collect()
}

fn decided(policy: Policy, rows: &[Row]) -> Decisions {
    let mut world = World::with(policy, fleet(rows));
    for (name, &(.., current, busy)) in NAMES.iter().zip(rows) {
        world.set(name, current, if busy { (0.95, 4.0) } else { (0.5, 0.0) });
    }
    world.run(3)
}

fn numbers(decisions: &Decisions, rows: &[Row]) -> Vec<u32> {
    NAMES[..rows.len()].iter().map(|name| desired(decisions, name)).collect()
}

/// What these numbers take beside what runs, of a kind and of money.
fn taken(rows: &[Row], numbers: &[u32], kind: usize) -> (u32, u32) {
    let rows = || rows.iter().zip(numbers).map(|(row, number)| (row, row.4.max(*number)));
    let of_kind = rows().filter(|(row, _)| row.1 == kind);
    (of_kind.map(|(row, most)| row.2 * most).sum(), rows().map(|(row, most)| row.3 * most).sum())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn nothing_grows_out_of_a_limit_and_a_cut_leaves_nothing_that_fits(
        rows in proptest::collection::vec(
            (0_usize..3, 0_usize..2, 1_u32..4, 1_u32..6, 1_u32..6, proptest::bool::ANY), 1..6),
        (h100, l4, money) in (0_u32..30, 0_u32..30, 0_u32..90),
        (by_capacity, weight) in (proptest::bool::ANY, 1_u32..5),
    ) {
        let base = || if by_capacity { sized(&[Analyzer::Tokens]) } else { policy() };
        let weighted =
            Priority { weight: Weight::new(f64::from(weight)).unwrap(), ..Priority::default() };
        let with = |configured: Vec<SupplyLimit>| {
            let priorities = BTreeMap::from([(model("m1"), weighted)]);
            let limits = LimitPolicy { configured, priorities, ..LimitPolicy::default() };
            decided(Policy { limits, ..base() }, &rows)
        };
        let quota = || quota(&[("H100", h100), ("L4", l4)]);
        let found = with(vec![quota(), budget(f64::from(money))]);
        let got = numbers(&found, &rows);
        let held: Vec<u32> = rows.iter().map(|row| row.4).collect();
        for (kind, most) in [(0, h100), (1, l4)] {
            let ((gpus, cost), (before, spent)) =
                (taken(&rows, &got, kind), taken(&rows, &held, kind));
            prop_assert!(gpus <= most.max(before), "{gpus} {} of {most}: {got:?}", KINDS[kind]);
            prop_assert!(cost <= money.max(spent), "{cost} of {money}: {got:?}");
        }
        for (name, row) in NAMES.iter().zip(&rows) {
            let decision = of(&found, name);
            for step in &decision.steps {
                let Reason::Limited(LimitedReason::Cut { .. }) = step.reason else { continue };
                prop_assert!(step.after < step.before, "{step}");
                prop_assert!(step.after.count() >= row.4.min(step.before.count()), "{step}");
            }
            let is_cut = decision.steps.last().is_some_and(|step| step.stage == Stage::Limit);
            let (gpus, cost) = taken(&rows, &got, row.1);
            let most = [h100, l4][row.1];
            prop_assert!(
                !is_cut || gpus + row.2 > most || cost + row.3 > money,
                "{name} is cut and one more fits: {got:?}"
            );
        }
        // The order of the limits changes no number, and without any nobody has less.
        let turned = with(vec![budget(f64::from(money)), quota()]);
        prop_assert_eq!(&got, &numbers(&turned, &rows));
        let free = numbers(&with(Vec::new()), &rows);
        for (at, model) in MODELS.iter().enumerate() {
            let all = |numbers: &[u32]| -> u32 {
                rows.iter().zip(numbers).filter(|(row, _)| row.0 == at).map(|(_, it)| it).sum()
            };
            prop_assert!(all(&got) <= all(&free), "{model}: {got:?} of {free:?}");
        }
    }
}
