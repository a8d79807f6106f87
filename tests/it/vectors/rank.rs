//! Readers of the Cluster Autoscaler's price expander and of what its prices are made of.
//!
//! Numbers are compared to a relative 1e-12, choices exactly. What is no quantity, such as a negative
//! price or a node without CPUs, is refused here where the original goes on with it; those cases
//! are marked as accidents of the original.

use plimsoll::decide::rank::{RankStart, suppress};
use plimsoll::units::{Amount, CostPerHour, Replicas};
use serde_json::Value;

use crate::reference::cluster_autoscaler::{Fit, Formula, Offer, Record, preferred_cpus};

use super::Outcome;
use super::fields::{list, text};
use super::prices::pod_on_gce;

/// Only `tanh` differs between libraries.
const TOLERANCE: f64 = 1e-12;

pub(super) const NOT_A_QUANTITY: &str =
    "what is not finite, negative or zero where it divides is refused";
const EVERY_ACCELERATOR: &str = "every accelerator counts, not five names";
const NEAR_TIE: &str = "scores that differ in the last digit are told apart by the order of adding";

/// `unfitness`: of one size, before and after suppression.
pub(super) fn unfitness(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let preferred = amount(&input["preferred_cpu_milli"]);
    let (Some(preferred), Some(size)) = (preferred, amount(&input["node_cpu_milli"])) else {
        return Outcome::Differs(NOT_A_QUANTITY);
    };
    let formula = Formula { preferred, damper: CostPerHour::ZERO };
    let Some(count) = count(&input["node_count"]) else { return Outcome::Differs(NOT_A_QUANTITY) };
    let Some(ours) = formula.unfitness(size) else { return Outcome::Differs(NOT_A_QUANTITY) };
    let pairs = [
        ("unfitness", ours, &output["unfitness"]),
        ("suppressed", suppress(ours, f64::from(count.count())), &output["suppressed_unfitness"]),
    ];
    same(&pairs)
}

/// `preferred-node`: the size that fits a cluster.
pub(super) fn preferred(case: &Value) -> Outcome {
    let nodes = u32::try_from(case["input"]["cluster_nodes"].as_u64().unwrap()).unwrap();
    let cpus = f64::from(preferred_cpus(nodes));
    // 3750 MiB for each CPU.
    let memory = cpus * 3750.0 * 1_048_576.0;
    let output = &case["output"];
    same(&[
        ("cpu", cpus * 1000.0, &output["cpu_milli"]),
        ("memory", memory, &output["memory_bytes"]),
    ])
}

/// `price-score` and `price-score-gce`: every option with its numbers, and the best.
pub(super) fn scores(case: &Value) -> Outcome {
    let (input, output) = (&case["input"], &case["output"]);
    let preferred = match text(&input["preferred_node"], "source").as_str() {
        "provider-error" => Amount::new(4000.0),
        _ => amount(&input["preferred_node"]["cpu_milli"]),
    };
    let damper = match &input["stabilisation_pod_usd"] {
        Value::Null => Some(CostPerHour::ZERO),
        price => cost(price),
    };
    let (Some(preferred), Some(damper)) = (preferred, damper) else {
        return Outcome::Differs(NOT_A_QUANTITY);
    };
    for (name, pod) in input["pod_requests"].as_object().into_iter().flatten() {
        let price = ("price of a pod", pod_on_gce(pod), &input["pod_price_usd"][name]);
        if let Outcome::Failed(why) = same(&[price]) {
            return Outcome::Failed(why);
        }
    }
    let formula = Formula { preferred, damper };
    let mut ours: Vec<(&Value, f64)> = Vec::new();
    let mut refused = false;
    let mut unknown = false;
    for (option, theirs) in list(input, "options").iter().zip(list(output, "options")) {
        let offer = match offer(option, &input["pod_price_usd"]) {
            Read::Offer(offer) => offer,
            Read::Skipped if theirs.get("skipped").is_some() => continue,
            Read::Skipped => return Outcome::Failed(format!("{} is dropped", option["id"])),
            Read::NotAQuantity => {
                refused = true;
                continue;
            }
        };
        unknown |= (offer.fit == Fit::Scarce) != (theirs["has_gpu"] == true);
        match formula.score(&offer) {
            Some(record) => {
                if !unknown && let Outcome::Failed(why) = same_record(&offer, &record, theirs) {
                    return Outcome::Failed(format!("{}: {why}", option["id"]));
                }
                ours.push((&option["id"], record.score));
            }
            None => refused = true,
        }
    }
    let least = ours.iter().map(|(_, score)| *score).fold(f64::INFINITY, f64::min);
    let best: Vec<&Value> = ours
        .iter()
        .filter(|(_, score)| score.to_bits() == least.to_bits())
        .map(|it| it.0)
        .collect();
    let theirs: Vec<&Value> = list(output, "best").iter().collect();
    match (best == theirs, refused, unknown) {
        (true, _, false) => Outcome::Passed,
        (_, _, true) => Outcome::Differs(EVERY_ACCELERATOR),
        (false, true, false) => Outcome::Differs(NOT_A_QUANTITY),
        (false, false, false) if text(case, "group") == "edge-rounding-near-tie" => {
            Outcome::Differs(NEAR_TIE)
        }
        (false, false, false) => Outcome::Failed(format!("best {best:?}, not {theirs:?}")),
    }
}

/// What can be made of an option.
enum Read {
    Offer(Offer),
    Skipped,
    NotAQuantity,
}

fn offer(option: &Value, pod_prices: &Value) -> Read {
    let pods = list(option, "pods");
    let prices: Option<Vec<f64>> =
        pods.iter().map(|pod| pod_prices[pod.as_str().unwrap()].as_f64()).collect();
    let node_price = &option["node_price_usd"];
    let (Some(prices), false, false) =
        (prices, node_price.is_null(), option["has_template"] == false)
    else {
        return Read::Skipped;
    };
    let count = count(&option["node_count"]);
    // The order of adding is that of the pods: the last digit depends on it.
    let theoretical = CostPerHour::new(prices.iter().sum());
    let size = amount(&option["node_cpu_milli"]);
    let (Some(count), Some(theoretical), Some(size), Some(price)) =
        (count, theoretical, size, cost(node_price))
    else {
        return Read::NotAQuantity;
    };
    let nodes = option["node_count"].as_f64().unwrap();
    let Some(real) = CostPerHour::new(price.per_hour() * nodes) else {
        return Read::NotAQuantity;
    };
    Read::Offer(Offer {
        count,
        real,
        theoretical,
        fit: if has_accelerator(option) { Fit::Scarce } else { Fit::Size(size) },
        start: if option["exists"] == false { RankStart::Cold } else { RankStart::Warm },
    })
}

/// Whether a node has accelerators: its provider's label says so, or it offers some.
fn has_accelerator(option: &Value) -> bool {
    let offered = option["allocatable_gpus"].as_object().into_iter().flatten();
    let any = offered.into_iter().any(|(_, count)| count.as_f64().unwrap() > 0.0);
    !option["gpu_label_value"].is_null() || any
}

fn same_record(offer: &Offer, ours: &Record, theirs: &Value) -> Outcome {
    let unfitness = ours.unfitness.map(|ours| ("unfitness", ours, &theirs["unfitness"]));
    let rest = [
        ("C", offer.real.per_hour(), &theirs["nodes_price_usd"]),
        ("T", offer.theoretical.per_hour(), &theirs["pods_price_usd"]),
        ("ratio", ours.ratio, &theirs["stabilised_ratio"]),
        ("suppressed", ours.suppressed, &theirs["suppressed_unfitness"]),
        ("score", ours.score, &theirs["score"]),
    ];
    let pairs: Vec<_> = unfitness.into_iter().chain(rest).collect();
    same(&pairs)
}

/// Whether each of our numbers is theirs.
pub(super) fn same(pairs: &[(&str, f64, &Value)]) -> Outcome {
    for (what, ours, theirs) in pairs {
        let Some(number) = theirs.as_f64() else {
            return Outcome::Failed(format!("{what}: {ours}, not {theirs}"));
        };
        if (ours - number).abs() > TOLERANCE * ours.abs().max(number.abs()) {
            return Outcome::Failed(format!("{what}: {ours}, not {number}"));
        }
    }
    Outcome::Passed
}

fn amount(value: &Value) -> Option<Amount> {
    Amount::new(value.as_f64()?).filter(|amount| *amount > Amount::ZERO)
}

fn cost(value: &Value) -> Option<CostPerHour> {
    CostPerHour::new(value.as_f64()?)
}

/// At least one. No scale target has more than the limit, and the formula sees no difference from
/// 287 on.
fn count(value: &Value) -> Option<Replicas> {
    let count = value.as_u64().filter(|count| *count > 0)?;
    Some(Replicas::saturating(u32::try_from(count).unwrap_or(u32::MAX)))
}
