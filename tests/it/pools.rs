//! The worked examples of docs/pools.md, computed anew.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::decide::pools::Ordinal;
use plimsoll::decide::pools::adapters::{
    AdapterActivity, BindingNeed, Copies, CopiesSource, PoolNeed, need,
};
use plimsoll::decide::pools::plan::{AdapterLayout, LayoutWish, ReplicaPlan, plan};
use plimsoll::fleet::ModelName;
use plimsoll::observe::engine::lora::Slots;
use plimsoll::units::Replicas;

const DOCUMENT: &str = include_str!("../../docs/pools.md");

/// The cells of the table with this heading.
fn table(heading: &str) -> Vec<Vec<String>> {
    let lines = DOCUMENT.lines().skip_while(|line| !line.starts_with(heading)).skip(2);
    let rows = lines
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect());
    let rows: Vec<Vec<String>> = rows.collect();
    assert!(!rows.is_empty(), "{heading} is in the document");
    rows
}

fn n(text: &str) -> Replicas {
    Replicas::new(text.parse().unwrap()).unwrap()
}

fn model(name: &str) -> ModelName {
    ModelName::new(name).unwrap()
}

fn set(cell: &str) -> BTreeSet<ModelName> {
    cell.split(',').filter_map(|name| ModelName::new(name.trim())).collect()
}

#[test]
fn the_numbers_of_the_document_are_those_that_are_computed() {
    for row in table("| copies of a, b, c, d, e |") {
        let [copies, slots, load, for_copies, for_slots, replicas, because] = &row[..] else {
            panic!("{row:?}")
        };
        let wants = copies.split(',').zip(["a", "b", "c", "d", "e"]).map(|(wanted, name)| Copies {
            adapter: model(name),
            wanted: n(wanted.trim()),
            source: CopiesSource::Seen(AdapterActivity::Busy),
        });
        let wants: Vec<Copies> = wants.collect();
        let slots = Slots::new(slots.parse().unwrap());
        let found = need(&wants, slots, Some(n(load)));
        assert_eq!(found.replicas(), n(replicas), "{row:?}");
        assert_eq!(found.copies.as_ref().unwrap().1, n(for_copies), "{row:?}");
        let PoolNeed { slots, .. } = &found;
        assert!(format!("{slots:?}").contains(&format!("replicas: {:?}", n(for_slots))), "{row:?}");
        let label = match found.binding() {
            BindingNeed::Nothing => "`pool_idle`",
            BindingNeed::Copies => "`pool_copies`",
            BindingNeed::Slots => "`pool_slots`",
            BindingNeed::Load => "`pool_load`",
        };
        assert_eq!(label, because, "{row:?}");
    }
}

#[test]
fn the_plan_of_the_document_is_the_one_that_is_made() {
    let rows = table("| replica | has | keep | load |");
    let at = |row: &[String]| Ordinal::new(row[0].parse().unwrap());
    let current: AdapterLayout = rows.iter().map(|row| (at(row), set(&row[1]))).collect();
    let copies = ["a", "b", "c"].map(|name| (model(name), n("2"))).into();
    let wish = LayoutWish { copies, replicas: n("3"), slots: Slots::new(2).unwrap() };
    let made = plan(&current, &wish);
    let want = rows.iter().map(|row| {
        let (keep, load) = (set(&row[2]), set(&row[3]));
        (at(row), ReplicaPlan { keep, load, unload: BTreeSet::new() })
    });
    assert_eq!(made.replicas, want.collect::<BTreeMap<_, _>>());

    let together = |plan: &ReplicaPlan| plan.keep.union(&plan.load).cloned().collect();
    let after: AdapterLayout =
        made.replicas.iter().map(|(at, plan)| (*at, together(plan))).collect();
    assert_eq!(plan(&after, &wish).loads(), Replicas::ZERO, "it is content with itself");
}
