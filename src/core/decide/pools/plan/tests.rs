use proptest::prelude::*;

use super::*;

fn name(text: &str) -> ModelName {
    ModelName::new(text).unwrap()
}

fn n(count: u32) -> Replicas {
    Replicas::new(count).unwrap()
}

fn layout(pods: &[&str]) -> AdapterLayout {
    let on_each = pods.iter().map(|pod| pod.split_whitespace().map(name).collect());
    (0..).map(Ordinal::new).zip(on_each).collect()
}

fn wish(copies: &[(&str, u32)], replicas: u32, slots: u32) -> LayoutWish {
    LayoutWish {
        copies: copies.iter().map(|(adapter, copies)| (name(adapter), n(*copies))).collect(),
        replicas: n(replicas),
        slots: Slots::new(slots).unwrap(),
    }
}

#[test]
fn what_is_spare_stays_where_there_are_slots_up_to_the_most_that_are_allowed() {
    let current = layout(&["a b", "a b", "b c"]);
    let wish = wish(&[("a", 1), ("b", 1), ("d", 1)], 3, 2);

    let kept = plan(&current, &wish).keeping_spare(wish.slots, |_| None);
    assert_eq!(kept.loads(), Replicas::ONE);
    assert!(kept.replicas.values().all(|it| it.keep.len() + it.load.len() == 2), "{kept:?}");

    let one_each = plan(&current, &wish).keeping_spare(wish.slots, |_| Some(Replicas::ONE));
    assert_eq!(after(&one_each).values().filter(|on| on.contains(&name("a"))).count(), 1);

    let again = plan(&after(&kept), &wish).keeping_spare(wish.slots, |_| None);
    assert_eq!(after(&again), after(&kept), "it is content with itself");
}

#[test]
fn of_spare_copies_as_many_stay_as_are_allowed() {
    let current = layout(&["a b", "a b", "a b"]);
    let wish = wish(&[("b", 3)], 3, 2);
    for most in 0..=3 {
        let kept = plan(&current, &wish).keeping_spare(wish.slots, |_| Some(n(most)));
        let with_a = after(&kept).values().filter(|on| on.contains(&name("a"))).count();
        assert_eq!(with_a, most as usize);
    }
}

/// The table in docs/models.md.
#[test]
fn copies_stay_where_they_are_and_few_are_loaded() {
    let cases = [
        ("C is gone", &["A C", "B C"][..], wish(&[("A", 1), ("B", 1)], 1, 8), &["A B"][..], 1),
        (
            "three replicas, two would do",
            &["A B", "A", "B"],
            wish(&[("A", 2), ("B", 2)], 2, 8),
            &["A B", "A B"],
            1,
        ),
        (
            "already right",
            &["A B", "A C", "B"],
            wish(&[("A", 2), ("B", 2), ("C", 1)], 3, 2),
            &["A B", "A C", "B"],
            0,
        ),
        (
            "no free slot where one is missing",
            &["a", "a", "b"],
            wish(&[("a", 2), ("b", 2), ("c", 2)], 3, 2),
            &["a c", "a b", "b c"],
            3,
        ),
    ];

    for (case, current, wish, expected, loads) in cases {
        let plan = plan(&layout(current), &wish);
        assert_eq!(after(&plan), layout(expected), "{case}");
        assert_eq!(plan.loads().count(), loads, "{case}");
        assert!(plan.unmet.is_empty(), "{case}");
    }
}

#[test]
fn a_plan_says_what_each_replica_does_and_what_goes() {
    let plan = plan(&layout(&["A C", "B C"]), &wish(&[("A", 1), ("B", 1)], 1, 8));
    assert_eq!(plan.to_string(), "1 replica with 1 load; 0 loads B; 1 leaves with B, C");
    let first = &plan.replicas[&Ordinal::new(0)];
    assert_eq!(first.unload, BTreeSet::from([name("C")]));
}

#[test]
fn what_finds_no_slot_is_said() {
    let plan = plan(&AdapterLayout::new(), &wish(&[("a", 3), ("b", 1)], 2, 1));
    assert_eq!(
        plan.unmet,
        BTreeMap::from([(name("a"), Replicas::ONE), (name("b"), Replicas::ONE)])
    );
}

#[test]
fn the_replica_whose_copies_the_others_have_goes_first() {
    let current: BTreeMap<&str, BTreeSet<ModelName>> = BTreeMap::from([
        ("p", BTreeSet::from([name("a"), name("b")])),
        ("q", BTreeSet::from([name("a")])),
        ("r", BTreeSet::from([name("a"), name("x")])),
    ]);
    let wanted = BTreeMap::from([(name("a"), Replicas::ONE), (name("b"), Replicas::ONE)]);

    let order: Vec<(&str, u32)> = departures(&current, &wanted)
        .into_iter()
        .map(|departure| (departure.replica, departure.displaced.count()))
        .collect();
    // `a` is loaded three times and needed once, and `x` is not needed: `q` and `r` cost nothing.
    assert_eq!(order, [("q", 0), ("r", 0), ("p", 2)]);
}

/// The fewest loads by brute force: each adapter takes any set of replicas of the right size.
fn fewest_loads(current: &AdapterLayout, wish: &LayoutWish) -> Option<u32> {
    fn search(
        current: &AdapterLayout,
        left: &[(&ModelName, u32)],
        room: &mut Vec<u32>,
    ) -> Option<u32> {
        let Some(((adapter, copies), rest)) = left.split_first() else { return Some(0) };
        let number = u32::try_from(room.len()).unwrap();
        (0_u32..1 << number)
            .filter(|set| set.count_ones() == *copies)
            .filter_map(|set| {
                let on: Vec<u32> = (0..number).filter(|at| set & 1 << at != 0).collect();
                if on.iter().any(|at| room[*at as usize] == 0) {
                    return None;
                }
                for at in &on {
                    room[*at as usize] -= 1;
                }

                let loading = on.iter().filter(|at| {
                    !current.get(&Ordinal::new(**at)).is_some_and(|on| on.contains(adapter))
                });
                let loads = u32::try_from(loading.count()).unwrap();
                let best = search(current, rest, room).map(|rest| rest + loads);
                for at in &on {
                    room[*at as usize] += 1;
                }

                best
            })
            .min()
    }

    let copies: Vec<_> = wish.copies.iter().map(|(name, count)| (name, count.count())).collect();
    let mut room = vec![wish.slots.number(); wish.replicas.count() as usize];
    search(current, &copies, &mut room)
}

fn any_layout(replicas: usize) -> impl Strategy<Value = AdapterLayout> {
    let pod = prop::collection::btree_set(0_u32..6, 0..4);
    prop::collection::vec(pod, 0..replicas).prop_map(|pods| {
        (0..)
            .map(Ordinal::new)
            .zip(pods.into_iter().map(|pod| pod.iter().map(|it| name(&format!("m{it}"))).collect()))
            .collect()
    })
}

fn any_wish(replicas: u32) -> impl Strategy<Value = LayoutWish> {
    (prop::collection::vec(0..=replicas, 1..5), 1_u32..4).prop_map(|(counts, slots)| {
        let total: u32 = counts.iter().sum();
        let most = counts.iter().copied().max().unwrap_or(0);
        let names: Vec<String> = (0..counts.len()).map(|it| format!("m{it}")).collect();
        let copies: Vec<(&str, u32)> = names.iter().map(String::as_str).zip(counts).collect();
        wish(&copies, most.max(total.div_ceil(slots)), slots)
    })
}

proptest! {
    #[test]
    fn enough_replicas_always_hold_every_copy_and_doing_it_twice_loads_nothing(
        current in any_layout(7),
        wish in any_wish(5),
    ) {
        let first = plan(&current, &wish);
        prop_assert!(first.unmet.is_empty(), "{first}");
        let placed = after(&first);
        for (adapter, copies) in &wish.copies {
            let there = placed.values().filter(|on| on.contains(adapter)).count();
            prop_assert_eq!(there, copies.count() as usize);
        }

        for on in placed.values() {
            prop_assert!(on.len() <= wish.slots.number() as usize);
        }

        let again = plan(&placed, &wish);
        prop_assert_eq!(again.loads(), Replicas::ZERO);
        prop_assert_eq!(after(&again), placed);
    }

    #[test]
    fn no_placement_needs_fewer_loads(current in any_layout(5), wish in any_wish(3)) {
        prop_assume!(wish.replicas.count() <= 6);
        let loads = plan(&current, &wish).loads().count();
        prop_assert_eq!(Some(loads), fewest_loads(&current, &wish));
    }

    #[test]
    fn no_slots_are_left_while_copies_are_missing(
        current in any_layout(5),
        wish in any_wish(4),
        fewer in 1_u32..4,
    ) {
        let replicas = Replicas::saturating(wish.replicas.count().saturating_sub(fewer));
        let short = LayoutWish { replicas, ..wish };
        let plan = plan(&current, &short);

        let placed: usize = after(&plan).values().map(BTreeSet::len).sum();
        let unmet: u32 = plan.unmet.values().map(|copies| copies.count()).sum();
        let wanted: u32 = short.copies.values().map(|copies| copies.count()).sum();
        prop_assert_eq!(u32::try_from(placed).unwrap() + unmet, wanted);

        let capped: u32 =
            short.copies.values().map(|copies| copies.count().min(replicas.count())).sum();
        let room = replicas.count() * short.slots.number();
        prop_assert_eq!(u32::try_from(placed).unwrap(), capped.min(room));
    }
}

/// The adapters on each replica once the plan is in effect.
fn after(plan: &LayoutPlan) -> AdapterLayout {
    let each = plan.replicas.iter();
    each.map(|(ordinal, on)| (*ordinal, on.keep.union(&on.load).cloned().collect())).collect()
}
