//! Rules of the limits.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::decide::optimize::room::Headroom;
use crate::fleet::{Accelerator, Bounds, ModelKey, ModelName, Namespace, VariantKey, VariantName};
use crate::units::{Amount, CostPerHour, Gpus, Replicas, Seconds, Weight};

fn replicas(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn kind(name: &str) -> Accelerator {
    Accelerator::new(name).unwrap()
}

/// A variant of a model of the same name, on H100s.
fn want(name: &str, gpus: u32, current: u32, desired: u32) -> Want {
    let namespace = Namespace::new("shop").unwrap();

    Want {
        key: VariantKey { namespace: namespace.clone(), variant: VariantName::new(name).unwrap() },
        model: ModelKey { namespace, model: ModelName::new(name).unwrap() },
        priority: Priority::default(),
        accelerator: Some(kind("H100")),
        gpus: Gpus::new(gpus),
        cost: CostPerHour::new(4.0 * f64::from(gpus)).unwrap(),
        size: Amount::new(100.0 * f64::from(gpus)),
        bounds: Bounds::new(Replicas::ZERO, None).unwrap(),
        current: replicas(current),
        desired: replicas(desired),
    }
}

fn inventory_of(gpus: u32) -> SupplyLimit {
    let kinds = BTreeMap::from([(kind("H100"), Headroom::Limited(Gpus::new(gpus)))]);
    named("inventory", LimitScope::Cluster, LimitSource::Read(Allowance::Kinds(kinds)))
}

fn named(name: &str, scope: LimitScope, source: LimitSource) -> SupplyLimit {
    SupplyLimit { name: LimitName::new(name).unwrap(), scope, source }
}

fn granted(wants: &[Want], limits: &[SupplyLimit]) -> Vec<u32> {
    let grants = limit(wants, limits).grants;
    grants.iter().map(|grant| grant.granted.count()).collect()
}

#[test]
fn what_does_not_suffice_is_shared_by_what_is_wanted_and_by_weight() {
    let mut wants = [want("a", 1, 0, 8), want("b", 1, 0, 4)];
    assert_eq!(granted(&wants, &[inventory_of(6)]), [4, 2]);
    wants[1].priority.weight = Weight::new(4.0).unwrap();
    assert_eq!(granted(&wants, &[inventory_of(6)]), [2, 4]);
    wants[0].priority.class = 1;
    assert_eq!(granted(&wants, &[inventory_of(6)]), [6, 0]);
}

#[test]
fn replicas_that_fit_alone_may_not_fit_together() {
    // One replica of `b` is being removed, and still holds its accelerator.
    let wants = [want("b", 1, 1, 0), want("a", 1, 0, 0), want("large", 2, 0, 0)];
    let [a, b, large] = [&wants[1].key, &wants[0].key, &wants[2].key];
    let limits = [inventory_of(3)];
    let room = LimitRoom::new(wants.to_vec(), &limits);
    assert!(room.fits(&[]) && room.fits(&[a, b]) && room.fits(&[large]));
    assert!(!room.fits(&[a, large]) && !room.fits(&[large, a]));
    assert!(room.fits(&[a, b]), "asking holds nothing");
    assert!(LimitRoom::new(Vec::new(), &[]).fits(&[a, large]), "nothing is limited");

    // Two are free on one node, and one on another.
    let free = BTreeMap::from([(kind("H100"), vec![Gpus::new(2), Gpus::ONE])]);
    let kinds = BTreeMap::from([(kind("H100"), Headroom::Limited(Gpus::new(6)))]);
    let pods = wants.iter().map(|want| (want.key.clone(), want.gpus)).collect();
    let nodes = Nodes { kinds, free, pods };
    let source = LimitSource::Read(Allowance::Nodes(nodes.into()));
    let limits = [named("nodes", LimitScope::Cluster, source)];
    let room = LimitRoom::new(wants.to_vec(), &limits);
    assert!(room.fits(&[large, a]) && room.fits(&[a, large]) && room.fits(&[a, b]));
    assert!(!room.fits(&[large, large]), "only one node has two");
}

#[test]
fn variants_are_alike_if_they_take_the_same_from_every_limit_whatever_they_cost() {
    let dear = Want { cost: CostPerHour::new(9.0).unwrap(), ..want("b", 1, 1, 0) };
    let elsewhere = Want { accelerator: Some(kind("A100")), ..want("other", 1, 0, 0) };
    let wants = [want("a", 1, 0, 0), dear, elsewhere, want("large", 2, 0, 0)];
    let [a, b, other, large] = wants.each_ref().map(|want| &want.key);
    let limits = [inventory_of(3)];
    let room = LimitRoom::new(wants.to_vec(), &limits);
    assert!(room.is_alike(a, b));
    assert!(!room.is_alike(a, other) && !room.is_alike(a, large));
    assert!(LimitRoom::new(Vec::new(), &[]).is_alike(a, large), "nothing is limited");

    // A limit counts one of them only, or their pods differ.
    let scope = LimitScope::Variants([a.clone()].into());
    let only_a = [named("a", scope, LimitSource::Read(Allowance::Total(Gpus::new(1))))];
    assert!(!LimitRoom::new(wants.to_vec(), &only_a).is_alike(a, b));
    let nodes = Nodes { pods: [(a.clone(), Gpus::ONE)].into(), ..Nodes::default() };
    let source = LimitSource::Read(Allowance::Nodes(nodes.into()));
    let limits = [named("nodes", LimitScope::Cluster, source)];
    assert!(!LimitRoom::new(wants.to_vec(), &limits).is_alike(a, b));
}

#[test]
fn the_tightest_of_several_limits_wins_and_is_named() {
    let budget = LimitSource::Read(Allowance::Budget(CostPerHour::new(30.0).unwrap()));
    let quota = LimitSource::Read(Allowance::Total(Gpus::new(5)));
    let limits = [
        inventory_of(20),
        named("budget", LimitScope::Cluster, budget),
        named("quota of shop", LimitScope::Namespace(Namespace::new("shop").unwrap()), quota),
    ];

    let grants = limit(&[want("a", 1, 1, 9)], &limits);
    assert_eq!(
        grants.grants[0].to_string(),
        "shop/a: 5 of 9 replicas, limited by quota of shop: a replica needs 1 accelerators and 0 are free"
    );

    let grants = limit(&[want("a", 2, 1, 9)], &limits[..2]);
    assert_eq!(
        grants.grants[0].to_string(),
        "shop/a: 3 of 9 replicas, limited by budget: a replica costs 8.00 per hour and 6.00 is left"
    );
    assert_eq!(
        grants.shadows[0].to_string(),
        "budget: the next replica would go to shop/a, with a capacity of 100.0 per accelerator; a replica costs 8.00 per hour and 6.00 is left"
    );
}

#[test]
fn what_cannot_be_read_holds_at_what_it_said_and_never_becomes_unlimited() {
    let LimitSource::Read(last) = inventory_of(3).source else { unreachable!() };
    let held = LimitSource::Held { last, age: Seconds::new(600.0).unwrap() };
    assert_eq!(granted(&[want("a", 1, 1, 9)], &[named("nodes", LimitScope::Cluster, held)]), [3]);

    let unread = [named("nodes", LimitScope::Cluster, LimitSource::Unread)];
    assert_eq!(granted(&[want("a", 1, 1, 9)], &unread), [1], "nothing grows");
    assert_eq!(granted(&[want("a", 1, 4, 2)], &unread), [2], "and what goes may go");

    let room = AcceleratorLedger::new(&unread).room(&[want("a", 1, 1, 9)]).unwrap();
    assert_eq!(room.cluster[&kind("H100")], Headroom::NONE);
}

#[test]
fn what_is_free_in_the_cluster_is_not_the_namespace_s_own() {
    let wants = [want("a", 1, 1, 9)];
    let kinds = Allowance::Kinds(BTreeMap::from([(kind("H100"), Headroom::Limited(Gpus::new(5)))]));
    let shop = LimitScope::Namespace(Namespace::new("shop").unwrap());
    let own = named("list of shop", shop, LimitSource::Read(kinds));
    let limits = [inventory_of(20), own];
    let room = AcceleratorLedger::new(&limits[..1]).room(&wants).unwrap();
    assert!(room.namespaces.is_empty(), "{room:?}");
    let free = |gpus| Headroom::Limited(Gpus::new(gpus));
    assert_eq!(room.cluster[&kind("H100")], free(20));

    let room = AcceleratorLedger::new(&limits).room(&wants).unwrap();
    assert_eq!(room.cluster[&kind("H100")], free(20));
    assert_eq!(room.namespaces[&wants[0].key.namespace][&kind("H100")], free(5));
}

#[test]
fn replicas_that_are_released_take_no_place_on_nodes() {
    let wants = [want("a", 4, 1, 3), want("b", 4, 0, 1)];
    let pods = wants.iter().map(|want| (want.key.clone(), want.gpus)).collect();
    let nodes = Nodes {
        kinds: BTreeMap::from([(kind("H100"), Headroom::Limited(Gpus::new(16)))]),
        free: BTreeMap::from([(kind("H100"), vec![Gpus::new(4), Gpus::new(6)])]),
        pods,
    };
    let source = LimitSource::Read(Allowance::Nodes(nodes.into()));
    let limits = [named("nodes", LimitScope::Cluster, source)];
    let mut ledger = AcceleratorLedger::new(&limits);
    let slots = |ledger: &AcceleratorLedger<'_>| {
        let slots = ledger.room(&wants).unwrap().slots;
        wants.each_ref().map(|want| slots[&want.key].count())
    };
    assert_eq!(slots(&ledger), [2, 2]);

    // One of the three replicas runs, so two have to be started.
    ledger.hold(&wants[0], replicas(3));
    assert_eq!(slots(&ledger), [0, 0]);
    ledger.release(&wants[0], replicas(3));
    assert_eq!(slots(&ledger), [2, 2]);
}

#[test]
fn a_limit_is_reported_with_what_is_held_of_it() {
    let shop = LimitScope::Namespace(Namespace::new("shop").unwrap());
    let quota = LimitSource::Read(Allowance::Total(Gpus::new(5)));
    let budget = LimitSource::Read(Allowance::Budget(CostPerHour::new(30.0).unwrap()));
    let limits = [
        inventory_of(20),
        named("quota of shop", shop, quota),
        named("budget", LimitScope::Cluster, budget),
    ];
    let reports = report(&[want("a", 2, 2, 9)], &limits);
    let rows: Vec<_> = reports
        .iter()
        .map(|it| it.rows.iter().map(|row| (row.kind.clone(), row.allowed, row.held)).collect())
        .collect::<Vec<Vec<_>>>();
    let held = |kind, most| vec![(kind, Some(Gpus::new(most)), Gpus::new(4))];
    assert_eq!(rows, [held(Some(kind("H100")), 20), held(None, 5), vec![]]);
    let spending = reports[2].spending.as_ref().unwrap();
    let of = |cost| CostPerHour::new(cost).unwrap();
    assert_eq!((spending.allowed, spending.held), (of(30.0), of(16.0)));
}

#[test]
fn the_rest_of_a_partial_grant_goes_to_whom_it_fits() {
    // Three are free: one replica takes two, and the third goes to the variant that takes one.
    assert_eq!(granted(&[want("a", 2, 0, 2), want("b", 1, 0, 1)], &[inventory_of(3)]), [1, 1]);
}

#[test]
fn a_replica_that_is_going_still_holds_its_accelerators() {
    assert_eq!(granted(&[want("a", 2, 3, 1), want("b", 2, 0, 1)], &[inventory_of(6)]), [1, 0]);
}

#[test]
fn a_minimum_is_kept_where_it_does_not_fit_and_that_is_said() {
    let mut wants = [want("a", 1, 0, 4), want("b", 1, 0, 2)];
    wants[1].bounds = Bounds::new(replicas(2), None).unwrap();

    let grants = limit(&wants, &[inventory_of(1)]);
    assert_eq!(grants.grants[0].granted, Replicas::ZERO);
    assert_eq!(grants.grants[1].granted, replicas(2));
    assert_eq!(
        grants.grants[1].to_string(),
        "shop/b: 2 of 2 replicas, limited by inventory: a replica needs 1 H100 and 0 are free; the minimum is kept, although only 1 fit"
    );
}

#[test]
fn one_accelerator_has_one_name_and_two_have_two() {
    let names = [
        ("NVIDIA-A100-SXM4-80GB", "A100"),
        ("NVIDIA-A100-PCIE-40GB", "A100"),
        ("NVIDIA-H100-80GB-HBM3", "H100"),
        ("NVIDIA-H100-NVL", "H100"),
        ("NVIDIA-GH200-480GB", "GH200"),
        ("NVIDIA-L40S", "L40S"),
        ("Tesla-T4", "T4"),
        ("Tesla-V100-SXM2-16GB", "V100"),
        ("NVIDIA-GeForce-RTX-4090", "RTX-4090"),
        ("NVIDIA-GeForce-GT-710", "GT-710"),
        ("NVIDIA-RTX-A6000", "RTX-A6000"),
        ("NVIDIA-RTX-6000-Ada-Generation", "RTX-6000-Ada"),
        ("AMD-MI300X-192G", "MI300X"),
        ("AMD_Instinct_MI300X_OAM", "MI300X"),
        ("Intel-Gaudi-2-96GB", "Gaudi-2"),
        ("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "A100-MIG-1g.10gb"),
        ("Tesla-T4-SHARED", "T4-SHARED"),
        ("H100", "H100"),
        ("NVIDIA", "NVIDIA"),
    ];

    for (label, name) in names {
        assert_eq!(normalised(&kind(label)).as_str(), name, "{label}");
    }
}

proptest! {
    #[test]
    fn no_model_takes_more_than_there_is_and_nothing_that_fits_is_left(
        rows in proptest::collection::vec((1_u32..5, 0_u32..4, 0_u32..9, 0_u32..3, 1_u32..9), 1..7),
        gpus in 0_u32..40,
        turn in 0_usize..7,
    ) {
        let names = ["a", "b", "c", "d", "e", "f", "g"];
        let wants: Vec<Want> = rows
            .iter()
            .zip(names)
            .map(|(&(gpus, current, desired, class, weight), name)| {
                let priority =
                    Priority { class, weight: Weight::new(f64::from(weight)).unwrap(), ..Priority::default() };
                Want { priority, ..want(name, gpus, current, desired) }
            })
            .collect();
        let grants = limit(&wants, &[inventory_of(gpus)]).grants;
        let held: u32 = wants.iter().map(|want| want.gpus.times(want.current).count()).sum();
        let added: u32 = wants
            .iter()
            .zip(&grants)
            .map(|(want, grant)| want.gpus.times(grant.granted.beyond(want.current)).count())
            .sum();
        prop_assert!(added <= gpus.saturating_sub(held));
        let free = gpus.saturating_sub(held) - added;
        for (want, grant) in wants.iter().zip(&grants) {
            prop_assert!(grant.granted <= grant.desired);
            prop_assert!(grant.granted >= want.current.min(want.desired));
            prop_assert_eq!(grant.cut.is_some(), grant.granted < grant.desired);
            prop_assert!(grant.granted == grant.desired || want.gpus.count() > free);
        }

        let mut turned = wants.clone();
        turned.rotate_left(turn % rows.len());
        let mut others = limit(&turned, &[inventory_of(gpus)]).grants;
        others.rotate_right(turn % rows.len());
        prop_assert_eq!(grants, others);
    }
}
