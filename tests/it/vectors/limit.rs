//! Reader of WVA's GPU limiter.
//!
//! WVA goes through its limiters one after the other, each from what the one before has left of the
//! targets, and serves the most saturated variant first; so does this reader with ours, by giving each
//! variant a class of its own. It gives
//! accelerators the names that WVA gives them, raises what grows to its minimum, which WVA does in
//! its limiter and we do where bounds are kept, and counts replicas as WVA does. Only the targets are compared, and
//! whether a limit cut: ours explains a cut in other words.

use std::collections::BTreeMap;

use plimsoll::decide::limit::{
    Allowance, LimitName, LimitScope, LimitSource, Priority, SupplyLimit, Want, limit,
};
use plimsoll::decide::optimize::Headroom;
use plimsoll::fleet::{Accelerator, Bounds, ModelKey, ModelName, Namespace};
use plimsoll::units::{CostPerHour, Gpus, Replicas};
use serde_json::Value;

use super::Outcome;
use super::fields::{list, note, number, text, variant_key, whole};

/// What a part of a note means for our answer.
const DEFECTS: [(&str, &str); 2] = [
    ("leftover of a partial grant", "what a partial grant leaves is for others"),
    ("input order", "ties are broken by name"),
];

/// What WVA calls an accelerator that it does not know.
const UNKNOWN: [&str; 3] = ["", "unknown", "unresolved"];

/// `limiter`: the target of each decision.
pub(super) fn targets(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let rows = list(input, "decisions_in_order");
    let mut wrong = Vec::new();
    for ((row, ours), theirs) in
        rows.iter().zip(granted(&input["inventory"], rows)).zip(list(expected, "decisions"))
    {
        let theirs = (whole(&theirs["target"]), theirs["limited"] == true);
        if ours != theirs {
            wrong.push(format!("{}: {ours:?}, not {theirs:?}", row["variant"]));
        }
    }
    let defect = DEFECTS.iter().find(|(words, _)| note(case).contains(words));
    match (wrong.is_empty(), defect) {
        (true, _) => Outcome::Passed,
        (false, Some((_, class))) => Outcome::Differs(class),
        (false, None) => Outcome::Failed(wrong.join(", ")),
    }
}

/// The target of each decision, and whether a limit cut it, in the order of the decisions.
pub(super) fn granted(inventory: &Value, rows: &[Value]) -> Vec<(u32, bool)> {
    let mut order: Vec<usize> = (0..rows.len()).collect();
    order.sort_by(|a, b| {
        let by = |field| number(&rows[*a], field).total_cmp(&number(&rows[*b], field));
        let name = |index: usize| text(&rows[index], "variant");
        by("spare").then(by("cost")).then_with(|| name(*a).cmp(&name(*b)))
    });
    let mut wants: Vec<Want> = order
        .iter()
        .zip((0..u32::MAX).rev())
        .map(|(index, class)| want(&rows[*index], class))
        .collect();
    let mut is_cut = vec![false; wants.len()];
    for limits in limits(inventory, rows) {
        let grants = limit(&wants, &limits).grants;
        for (((want, index), grant), is_cut) in
            wants.iter_mut().zip(&order).zip(grants).zip(&mut is_cut)
        {
            *is_cut |= grant.cut.is_some();
            let asked = want.bounds.max().map_or(want.desired, |max| want.desired.min(max));
            let grows = want.desired > want.current && asked > want.current;
            want.desired = grant.granted;
            if grows {
                let row = &rows[*index];
                let min = whole(&row["min"]).saturating_sub(uncounted(row));
                want.desired = want.desired.max(Replicas::saturating(min));
            }
        }
    }
    let mut granted = vec![(0, false); rows.len()];
    for ((want, index), is_cut) in wants.iter().zip(order).zip(is_cut) {
        granted[index] = (want.desired.count() + uncounted(&rows[index]), is_cut);
    }
    granted
}

/// Replicas that WVA takes to hold nothing, because nobody says what one takes: for those that are
/// added it assumes 1.
fn uncounted(row: &Value) -> u32 {
    if whole(&row["gpus"]) == 0 { whole(&row["current"]).min(whole(&row["target"])) } else { 0 }
}

fn want(row: &Value, class: u32) -> Want {
    let namespace = text(row, "namespace");
    let name = text(row, "variant");
    let accelerator = Some(text(row, "accelerator"))
        .filter(|name| !UNKNOWN.contains(&name.as_str()))
        .and_then(|name| Accelerator::new(&name));
    let counted = |field: &str| whole(&row[field]).saturating_sub(uncounted(row));
    let max = Some(whole(&row["max"])).filter(|max| *max > 0).map(|_| counted("max"));
    Want {
        key: variant_key(&namespace, &name),
        model: ModelKey {
            namespace: Namespace::new(&namespace).unwrap(),
            model: ModelName::new(&name).unwrap(),
        },
        priority: Priority { class, ..Priority::default() },
        accelerator,
        gpus: Gpus::new(whole(&row["gpus"]).max(1)),
        cost: CostPerHour::new(number(row, "cost")).unwrap(),
        size: None,
        bounds: Bounds::new(Replicas::ZERO, max.map(Replicas::saturating)).unwrap(),
        current: Replicas::saturating(counted("current")),
        desired: Replicas::saturating(counted("target")),
    }
}

/// The accelerators of each kind that nodes have.
pub(super) fn stock(nodes: &[Value]) -> BTreeMap<Accelerator, Gpus> {
    let mut kinds: BTreeMap<Accelerator, Gpus> = BTreeMap::new();
    for node in nodes {
        let kind = kinds.entry(short_name(&text(node, "product_label"))).or_default();
        *kind += Gpus::new(whole(&node["allocatable_gpus"]));
    }
    kinds
}

/// The limits of each limiter, in their order.
fn limits(from: &Value, rows: &[Value]) -> Vec<Vec<SupplyLimit>> {
    if from["kind"] == "physical" {
        let limited = |(kind, gpus)| (kind, Headroom::Limited(gpus));
        let kinds = stock(list(from, "nodes")).into_iter().map(limited).collect();
        return vec![vec![named(LimitScope::Cluster, Allowance::Kinds(kinds))]];
    }
    list(from, "quotas")
        .iter()
        .map(|quota| {
            if quota["scope"] == "cluster" {
                return vec![named(LimitScope::Cluster, kinds(&quota["quotas_gpus"]))];
            }
            let excluded: Vec<&str> =
                list(quota, "exclude_namespaces").iter().filter_map(Value::as_str).collect();
            let own = &quota["namespace_quotas_gpus"];
            let mut namespaces: Vec<String> =
                rows.iter().map(|row| text(row, "namespace")).collect();
            namespaces.sort();
            namespaces.dedup();
            namespaces
                .into_iter()
                .filter(|namespace| !excluded.contains(&namespace.as_str()))
                .map(|namespace| {
                    let listed =
                        if own[&namespace].is_null() { &own["default"] } else { &own[&namespace] };
                    named(LimitScope::Namespace(Namespace::new(&namespace).unwrap()), kinds(listed))
                })
                .collect()
        })
        .collect()
}

/// What WVA calls the product of a node: its second word, or the second and third of an Intel one.
fn short_name(label: &str) -> Accelerator {
    let words: Vec<&str> = label.split('-').collect();
    let name = match words.as_slice() {
        ["Intel" | "intel", first, second, ..] => format!("{first}-{second}"),
        [_, name, ..] | [name] => (*name).to_owned(),
        [] => unreachable!("splitting gives at least one part"),
    };
    Accelerator::new(&name).unwrap()
}

fn kinds(from: &Value) -> Allowance {
    let kinds = from.as_object().into_iter().flatten().map(|(kind, limit)| {
        let headroom = u32::try_from(limit.as_i64().unwrap())
            .map_or(Headroom::Unlimited, |limit| Headroom::Limited(Gpus::new(limit)));
        (Accelerator::new(kind).unwrap(), headroom)
    });
    Allowance::Kinds(kinds.collect())
}

fn named(scope: LimitScope, allowance: Allowance) -> SupplyLimit {
    SupplyLimit {
        name: LimitName::new("limit").unwrap(),
        scope,
        source: LimitSource::Read(allowance),
    }
}
