//! Reader of WVA's throughput analyzer.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::capacity::Utilization;
use plimsoll::analyze::throughput::{FrontDemand, ReplicaPace, VariantPace};
use plimsoll::analyze::tokens::capacity::RequestShape;
use plimsoll::fleet::VariantSpec;
use plimsoll::units::{Replicas, RequestRate, Requests, Seconds, TokenRate, Tokens};
use serde_json::Value;

use crate::reference::wva::throughput::{Analysis, Curve, Curves, Fit, WhyUnusable};

use super::Outcome;
use super::tokens::{
    close, float, fraction, key, list, number, role, same_totals, spec, text, tokens, whole,
};

/// `throughput`: observations and analyses in turn, on one set of curves.
pub(super) fn steps(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let utilization = Utilization {
        grow: fraction(&input["scale_up_ratio"]).unwrap(),
        shrink: fraction(&input["scale_down_ratio"]).unwrap(),
    };
    let mut curves = Curves::default();
    for (index, (step, expected)) in
        list(input, "steps").iter().zip(expected.as_array().unwrap()).enumerate()
    {
        let compared = one(input, step, expected, utilization, &mut curves);
        if let Err(why) = compared {
            return Outcome::Failed(format!("step {index}: {why}"));
        }
    }
    Outcome::Passed
}

fn one(
    input: &Value,
    step: &Value,
    expected: &Value,
    utilization: Utilization,
    curves: &mut Curves,
) -> Result<(), String> {
    let age = SignedDuration::from_secs(step["age_s"].as_i64().unwrap_or(0));
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(24) - age;
    if step["op"] == "observe" {
        let fleet = fleet(input, step);
        curves.observe(now, &paces(&fleet));
    } else {
        let ours = analyzed(now, utilization, input, step, curves);
        same_analysis(&ours, &expected["result"])?;
    }
    list(expected, "state_after").iter().try_for_each(|state| {
        let key = key(&text(input, "namespace"), &text(state, "variant"));
        let curve = curves.get(&key).ok_or_else(|| format!("{key} has no curve"))?;
        same_curve(curve, state).map_err(|why| format!("{key}: {why}"))
    })
}

/// The analysis of a model in one step.
pub(super) fn analyzed(
    now: Timestamp,
    utilization: Utilization,
    named: &Value,
    step: &Value,
    curves: &mut Curves,
) -> Analysis {
    let arrivals = FrontDemand {
        rate: RequestRate::new(number(step, "model_arrival_req_per_s")),
        waiting: Requests::new(number(&step["scheduler_queue"], "queue_reqs")).unwrap(),
    };
    curves.analyze(now, utilization, &paces(&fleet(named, step)), arrivals)
}

fn paces(fleet: &[(VariantSpec, [u32; 2], Vec<ReplicaPace>)]) -> Vec<VariantPace<'_>> {
    fleet
        .iter()
        .map(|(spec, counts, replicas)| VariantPace {
            spec,
            current: Replicas::saturating(counts[0]),
            pending: Replicas::saturating(counts[1]),
            leaving: Replicas::ZERO,
            replicas,
        })
        .collect()
}

/// The variants of a step by name, each with its counts and what its replicas show.
fn fleet(input: &Value, step: &Value) -> Vec<(VariantSpec, [u32; 2], Vec<ReplicaPace>)> {
    let mut fleet: BTreeMap<String, (VariantSpec, [u32; 2], Vec<ReplicaPace>)> = BTreeMap::new();
    for state in list(step, "states") {
        let name = text(state, "variant");
        let mut spec = spec(input, &name, &Value::Null);
        spec.role = role(state);
        fleet
            .insert(name, (spec, [whole(&state["current"]), whole(&state["pending"])], Vec::new()));
    }
    for row in list(step, "replicas") {
        let name = text(row, "variant");
        let entry = fleet
            .entry(name.clone())
            .or_insert_with(|| (spec(input, &name, &Value::Null), [0, 0], Vec::new()));
        entry.2.push(pace(row));
    }
    fleet.into_values().collect()
}

/// WVA learns nothing from a stale row, and counts it in supply and demand. Without a time between
/// tokens, a row here is treated like that.
fn pace(row: &Value) -> ReplicaPace {
    let is_fresh = row["freshness"] != "stale";
    ReplicaPace {
        kv_usage: fraction(&row["kv_now_frac"]),
        kv_capacity: tokens(&row["kv_capacity_tokens"]).filter(|size| *size > Tokens::ZERO),
        itl: Seconds::new(float(&row["avg_itl_s"])).filter(|_| is_fresh),
        requests: RequestShape {
            prompt: tokens(&row["in_tokens"]),
            output: tokens(&row["out_tokens"]),
            prefix_hits: fraction(&row["prefix_hit_frac"]),
        },
        arrivals: RequestRate::new(float(&row["arrival_req_per_s"])),
        completions: RequestRate::new(float(&row["completed_req_per_s"])),
        generation: TokenRate::new(float(&row["generated_tokens_per_s"])),
    }
}

fn same_analysis(ours: &Analysis, expected: &Value) -> Result<(), String> {
    let variants = list(expected, "variants");
    let names: Vec<_> =
        ours.report.variants.iter().map(|variant| variant.key.variant.as_str()).collect();
    if names.len() != variants.len() {
        return Err(format!("{names:?}, not {variants:?}"));
    }
    for ((capacity, fit), expected) in ours.report.variants.iter().zip(&ours.fits).zip(variants) {
        let fields = [
            ("replicas", f64::from(capacity.replicas.count())),
            ("pending", f64::from(capacity.pending.count())),
            ("per_replica_cap", capacity.per_replica.unwrap_or_default().amount()),
            ("demand", capacity.demand.amount()),
        ];
        for (name, value) in fields {
            if !close(value, number(expected, name)) {
                return Err(format!("{}: {name} {value}, not {}", capacity.key, expected[name]));
            }
        }
        let reason = match fit {
            Some(Fit::Window) => "T1-ols",
            Some(Fit::InterceptKept) => "T2-pinned",
            Some(Fit::InterceptAssumed) => "T2-default",
            None => "T-sfz",
        };
        if reason != expected["reason"] || capacity.key.variant.as_str() != expected["variant"] {
            return Err(format!("{}: {reason}, not {expected}", capacity.key));
        }
    }
    same_totals(&ours.report.total, expected)?;
    let roles = expected.get("roles").and_then(Value::as_object);
    if ours.report.roles.len() != roles.map_or(0, serde_json::Map::len) {
        return Err(format!("roles {:?}", ours.report.roles));
    }
    ours.report.roles.iter().try_for_each(|(role, totals)| {
        same_totals(totals, &expected["roles"][role.label()])
            .map_err(|why| format!("{}: {why}", role.label()))
    })
}

fn same_curve(ours: &Curve, expected: &Value) -> Result<(), String> {
    let line = ours.line();
    let fields = [
        ("kv_tokens_per_request", ours.held().unwrap_or_default()),
        ("window_k_spread", ours.spread()),
        ("window_samples", ours.readings() as f64),
        ("itl_slope_s", line.map_or(0.0, |line| line.slope)),
        ("itl_intercept_s", line.map_or(0.0, |line| line.intercept)),
    ];
    for (name, value) in fields {
        if !close(value, number(expected, name)) {
            return Err(format!("{name} {value}, not {}", expected[name]));
        }
    }
    let issues: BTreeSet<&str> = ours.unusable().iter().map(|why| issue(*why)).collect();
    let theirs: BTreeSet<&str> = list(expected, "sanity_issues").iter().map(known_issue).collect();
    if issues == theirs { Ok(()) } else { Err(format!("{issues:?}, not {theirs:?}")) }
}

fn issue(why: WhyUnusable) -> &'static str {
    match why {
        WhyUnusable::Itl => "itl_non_positive",
        WhyUnusable::Shape => "missing_shape_metrics",
        WhyUnusable::KvCapacity => "missing_kv_capacity",
        WhyUnusable::KvUsage => "kv_utilization_out_of_range",
    }
}

/// An issue of WVA by its name here, where a stale row has no time between tokens.
fn known_issue(issue: &Value) -> &str {
    match issue.as_str().unwrap_or_default() {
        "stale_metrics" => "itl_non_positive",
        other => other,
    }
}
