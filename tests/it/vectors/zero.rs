//! Readers of WVA's rules for going to zero and coming back.
//!
//! Which setting holds for a model, and which queue stands in front of it, are read from the input
//! here as WVA does; what follows from them is the reference's. The differences of Plimsoll's own rule
//! are held by its unit tests.

use std::collections::BTreeMap;

use plimsoll::decide::zero::{FrontQueue, ZeroPolicy, ZeroVariant};
use plimsoll::fleet::{Bounds, Namespace, VariantKey, VariantName};
use plimsoll::units::{CostPerHour, Replicas, Requests, Seconds};
use serde_json::{Map, Value, json};

use crate::reference::wva::zero::{Outcome as Settlement, settle, wake};

use super::Outcome;

/// For how long WVA waits where nobody says.
const RETENTION: u64 = 600;

/// `enforcer`: the targets of one model among others.
pub(super) fn enforcer(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let decisions = list(&input["decisions"]);
    let is_ours =
        |it: &&Value| it["model"] == input["model"] && it["namespace"] == input["namespace"];
    let mut candidates: Vec<ZeroVariant> =
        decisions.iter().filter(is_ours).map(|it| candidate(it, input)).collect();
    candidates.extend(undecided(input, &candidates));
    // What a variant runs, and whether there is anything to decide, is looked at before.
    let mut images = input["container_images"].as_object().into_iter().flat_map(Map::values);
    let unknown = images.any(|image| !text(image).contains("vllm"));
    if unknown || decisions.is_empty() {
        let unchanged: Vec<u64> = decisions.iter().map(|it| count(&it["target"])).collect();
        return compare(expected, &unchanged, &json!({"to_zero": false, "queried": false}));
    }
    let (policy, retention) = policy(input);
    let settled = settle(policy, finished(input), &candidates);
    let mut targets = settled.targets.iter().map(|target| u64::from(target.count()));
    let ours: Vec<u64> = decisions
        .iter()
        .map(|it| if is_ours(&it) { targets.next().unwrap() } else { count(&it["target"]) })
        .collect();
    let queried = matches!(settled.outcome, Settlement::ToZero | Settlement::NotIdle);
    let to_zero = settled.outcome == Settlement::ToZero;
    let mut answer = json!({"to_zero": to_zero, "queried": queried});
    if queried {
        answer["retention"] = json!(retention);
    }
    compare(expected, &ours, &answer)
}

/// The targets of the decisions of one model, and whether it goes to zero.
pub(super) fn settled(model: &Value, policy: ZeroPolicy, decisions: &[Value]) -> (Vec<u32>, bool) {
    let mut candidates: Vec<ZeroVariant> =
        decisions.iter().map(|decision| candidate(decision, model)).collect();
    candidates.extend(undecided(model, &candidates));
    let settled = settle(policy, finished(model), &candidates);
    let targets = settled.targets.iter().take(decisions.len()).map(|target| target.count());
    (targets.collect(), settled.outcome == Settlement::ToZero)
}

/// The requests of a model that finished; `None` when they could not be counted.
fn finished(model: &Value) -> Option<Requests> {
    let failed = model["request_count_query_fails"] == true;
    let finished = Requests::new(model["request_count"].as_f64().unwrap_or_default());
    finished.filter(|_| !failed)
}

fn compare(expected: &Value, targets: &[u64], answer: &Value) -> Outcome {
    let theirs: Vec<u64> =
        list(&expected["decisions"]).iter().map(|it| count(&it["target"])).collect();
    let same = theirs == targets
        && (expected["scaled_to_zero"] == true) == answer["to_zero"]
        && (expected["request_count_queried"] == true) == answer["queried"]
        && expected.get("retention_s").unwrap_or(&Value::Null) == &answer["retention"];
    if same {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("ours {targets:?} {answer}, theirs {expected}"))
    }
}

fn candidate(decision: &Value, input: &Value) -> ZeroVariant {
    let state = list(&input["states"]).iter().find(|state| state["variant"] == decision["variant"]);
    let min = state.map_or(0, |state| count(&state["min"]));
    ZeroVariant {
        variant: key(&decision["namespace"], &decision["variant"]),
        cost: decision["cost"].as_f64().and_then(CostPerHour::new),
        current: Some(replicas(count(&decision["current"]))),
        target: replicas(count(&decision["target"])),
        bounds: Bounds::new(replicas(min), None).unwrap(),
    }
}

/// Variants of the model that must have replicas, and for which nothing has been decided.
fn undecided(input: &Value, decided: &[ZeroVariant]) -> Vec<ZeroVariant> {
    let states = list(&input["states"]).iter().filter(|state| count(&state["min"]) > 0);
    states
        .map(|state| {
            let target = state["current"].clone();
            let variant = state["variant"].clone();
            let decision =
                json!({"namespace": input["namespace"], "variant": variant, "target": target});
            candidate(&decision, input)
        })
        .filter(|state| decided.iter().all(|decided| decided.variant != state.variant))
        .collect()
}

/// The setting that holds: inline, of the model, the default one, the environment.
fn policy(input: &Value) -> (ZeroPolicy, u64) {
    let config = &input["config"];
    let map = &config["scale_to_zero_configmap"];
    let entries = [&map[text(&input["model"])], &map["default"]];
    let inline = config["inline_scale_to_zero_enabled"].as_bool();
    let written = entries.iter().find_map(|entry| entry["enabled"].as_bool());
    let environment = text(&config["env_WVA_SCALE_TO_ZERO"]).eq_ignore_ascii_case("true");
    let retention = entries.iter().find_map(|entry| seconds(text(&entry["retention_period"])));
    let retention = retention.unwrap_or(RETENTION);
    #[expect(clippy::cast_precision_loss, reason = "minutes")]
    let idle = ZeroPolicy::AfterIdle(Seconds::new(retention as f64).unwrap());
    let enabled = inline.or(written).unwrap_or(environment);
    (if enabled { idle } else { ZeroPolicy::KeepOne }, retention)
}

/// A length of time as Go writes it, such as `1h30m`, if it is above zero.
fn seconds(text: &str) -> Option<u64> {
    let mut total = 0;
    let mut digits = String::new();
    for character in text.chars() {
        let unit = match character {
            '0'..='9' => {
                digits.push(character);
                continue;
            }
            'h' => 3600,
            'm' => 60,
            's' => 1,
            _ => return None,
        };
        total += digits.parse::<u64>().ok()? * unit;
        digits.clear();
    }
    (total > 0 && digits.is_empty()).then_some(total)
}

/// `scale_from_zero`: which workloads are woken in one tick.
pub(super) fn scale_from_zero(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let mut woken = BTreeMap::new();
    let mut error = false;
    for variant in list(&input["variants"]) {
        let priced = variant["cost_annotation"].as_str().is_none_or(|it| it.parse::<f64>().is_ok());
        let present = variant["workload_missing"] != true;
        if variant["managed"] != true || !priced || !present {
            continue;
        }
        let asleep = ZeroVariant {
            variant: key(&variant["namespace"], &variant["workload"]),
            cost: variant["cost_annotation"]
                .as_str()
                .and_then(|it| CostPerHour::new(it.parse().ok()?)),
            // An object that does not say how many replicas it wants has one.
            current: Some(replicas(variant["spec_replicas"].as_u64().unwrap_or(1))),
            target: Replicas::ZERO,
            bounds: Bounds::new(Replicas::ZERO, None).unwrap(),
        };
        let in_front = queue(input, variant);
        let zero = asleep.current == Some(Replicas::ZERO);
        error |= zero && in_front == FrontQueue::Unknown;
        let variants = wake(in_front, &[asleep]);
        woken.extend(variants.iter().map(|it| (it.to_string(), json!(1))));
    }
    let ours = json!({"workloads_patched_to_replicas": woken, "tick_returns_error": error});
    let mut possible = list(&case["alternatives"]).iter().chain([expected]);
    if possible.any(|expected| *expected == ours) {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("ours {ours}, theirs {expected}"))
    }
}

/// The queue of the model in the first pool that selects the workload.
fn queue(input: &Value, variant: &Value) -> FrontQueue {
    let Some(labels) = variant["pod_labels"].as_object() else { return FrontQueue::Unknown };
    let pool = list(&input["inference_pools"]).iter().find(|pool| {
        let mut selector = pool["selector"].as_object().into_iter().flatten();
        pool["namespace"] == variant["namespace"]
            && selector.all(|(name, value)| labels.get(name) == Some(value))
    });
    let Some(pool) = pool else { return FrontQueue::NoQueue };
    if pool["scrape_fails"] == true {
        return FrontQueue::Unknown;
    }
    let queued = list(&pool["epp_series"])
        .iter()
        .filter(|series| series["metric"] == "inference_extension_flow_control_queue_size")
        .filter(|series| series["labels"]["target_model_name"] == variant["model"])
        .filter_map(|series| Requests::new(series["value"].as_f64()?))
        .sum();
    FrontQueue::Queued(queued)
}

fn key(namespace: &Value, variant: &Value) -> VariantKey {
    VariantKey {
        namespace: Namespace::new(text(namespace)).unwrap(),
        variant: VariantName::new(text(variant)).unwrap(),
    }
}

fn replicas(count: u64) -> Replicas {
    Replicas::new(u32::try_from(count).unwrap()).unwrap()
}

/// A count; an absent one is 0.
fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}
