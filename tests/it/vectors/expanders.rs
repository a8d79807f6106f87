//! Reader of the Cluster Autoscaler's other expanders, and of chains of them.
//!
//! The three others than price stand here. Price is the reference's, which has no score for options
//! that add nothing or have no size; the original picks them.

use plimsoll::decide::rank::RankStart;
use plimsoll::units::{Amount, CostPerHour, Replicas};
use serde_json::Value;

use crate::reference::cluster_autoscaler::{Fit, Formula, Offer};

use super::Outcome;
use super::fields::{list, number, whole};
use super::rank::NOT_A_QUANTITY;

/// `other-expanders`: what is left of the options by each rule alone, and by a chain of them.
pub(super) fn survivors(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let options: Vec<&Value> = list(input, "options").iter().collect();
    let names = ["most_pods", "least_waste", "least_nodes", "price"];
    let mut wrong = Vec::new();
    for name in names {
        let ours = left_by(&name.replace('_', "-"), &options, input);
        if !same(&ours, &output[name]) {
            wrong.push(format!("{name} leaves {ours:?}"));
        }
    }
    let mut left = options.clone();
    for name in list(input, "chain") {
        if left.len() > 1 {
            left = left_by(name.as_str().unwrap(), &left, input);
        }
    }
    if !same(&left, &output["chain_survivors"]) {
        wrong.push(format!("the chain leaves {left:?}"));
    }
    let adds_nothing = |option: &&Value| {
        whole(&option["node_count"]) == 0 || number(option, "node_cpu_milli") <= 0.0
    };
    match (wrong.is_empty(), options.iter().any(adds_nothing)) {
        (true, _) => Outcome::Passed,
        (false, true) => Outcome::Differs(NOT_A_QUANTITY),
        (false, false) => Outcome::Failed(wrong.join(", ")),
    }
}

fn same(ours: &[&Value], theirs: &Value) -> bool {
    let ours: Vec<&Value> = ours.iter().map(|option| &option["id"]).collect();
    theirs.as_array().is_some_and(|theirs| theirs.iter().collect::<Vec<_>>() == ours)
}

/// The options that a rule likes best: those with the lowest number.
fn left_by<'a>(rule: &str, options: &[&'a Value], input: &Value) -> Vec<&'a Value> {
    let number_of = |option: &Value| match rule {
        "most-pods" => Some(-(list(option, "pods").len() as f64)),
        "least-nodes" => Some(number(option, "node_count")).filter(|count| *count > 0.0),
        "least-waste" => waste(option),
        "price" => price(option, input),
        other => panic!("a rule {other}"),
    };
    let numbered: Vec<(&Value, f64)> =
        options.iter().filter_map(|option| Some((*option, number_of(option)?))).collect();
    let least = numbered.iter().map(|(_, number)| *number).fold(f64::INFINITY, f64::min);
    let is_least = |(_, number): &(&Value, f64)| number.to_bits() == least.to_bits();
    numbered.into_iter().filter(is_least).map(|(option, _)| option).collect()
}

/// The shares of CPU and of memory that stay unused, added.
fn waste(option: &Value) -> Option<f64> {
    if option["template_missing"] == true {
        return None;
    }
    let unused = |name: &str, capacity: &str| {
        let capacity = number(option, capacity) * number(option, "node_count");
        let asked: f64 = list(option, "pods").iter().map(|pod| number(pod, name)).sum();
        (capacity - asked) / capacity
    };
    let waste = unused("cpu_milli", "node_cpu_milli") + unused("memory_bytes", "node_memory_bytes");
    Some(waste).filter(|waste| waste.is_finite())
}

/// The score of an option; `None` outside the domain of the formula.
fn price(option: &Value, input: &Value) -> Option<f64> {
    if option["template_missing"] == true {
        return None;
    }
    let cost = |cost: f64| CostPerHour::new(cost).unwrap();
    let preferred = Amount::new(number(input, "preferred_cpu_milli")).unwrap();
    let formula = Formula { preferred, damper: cost(number(input, "stabilisation_pod_usd")) };
    let count = Replicas::new(whole(&option["node_count"])).unwrap();
    // One by one, because the last digit depends on it.
    let each = number(input, "every_pod_price_usd");
    let theoretical = list(option, "pods").iter().fold(0.0, |sum, _| sum + each);
    let offer = Offer {
        count,
        real: cost(number(option, "node_price_usd")).times(count),
        theoretical: cost(theoretical),
        fit: Fit::Size(Amount::new(number(option, "node_cpu_milli")).unwrap()),
        start: RankStart::Warm,
    };
    formula.score(&offer).map(|record| record.score)
}
