//! Readers of WVA's optimizers: cost-aware, greedy by score, and the shares of its rescale step.
//!
//! [`Case`] holds the models of a case as reports and candidates. The rules are asked with WVA's
//! defects kept, so nearly every case is matched, those that show a defect too. Asked with them
//! mended, every case is held against what any answer must keep to: nobody takes more than is
//! free.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity};
use plimsoll::decide::optimize::{Candidate, Headroom, ReportFreshness, SupplyHeadroom};
use plimsoll::fleet::{Accelerator, Bounds, ModelKey, ModelName, Namespace, Role, VariantKey};
use plimsoll::units::{Amount, CostPerHour, Fraction, Gpus, Replicas, Weight};
use serde_json::Value;

use crate::reference::wva::optimize::{
    Claim, Defects, Method, Model, Plan, Rescale, Share, Voice, cost_aware, greedy_by_score,
    water_fill,
};

use super::Outcome;
use super::fields::{amount, list, note, number, text, variant_key, whole};

/// What a part of a note means for our answer.
const DEFECTS: [(&str, &str); 2] = [
    ("tie in cost per capacity", "ties are broken by name"),
    ("although units differ", "roles are split by the report that sizes them"),
];

/// One variant's targets by model and name.
type Targets = BTreeMap<(ModelKey, String), u32>;

/// A model with the reports that it borrows.
struct Case {
    key: ModelKey,
    priority: Weight,
    candidates: Vec<Candidate>,
    /// With score, standing, and whether it votes.
    reports: Vec<(CapacityReport, Weight, ReportFreshness)>,
    /// Sizes and identity put together; `None` when the model is held.
    sizing: Option<CapacityReport>,
}

/// `optimizer_cost_aware`.
pub(super) fn cost_aware_rule(case: &Value) -> Outcome {
    let cases: Vec<Case> = list(&case["input"], "models").iter().map(Case::new).collect();
    let plans = |defects| -> Vec<Plan> {
        cases.iter().filter_map(Case::model).map(|it| cost_aware(&it, defects)).collect()
    };
    judge(case, &plans(Defects::Kept))
}

/// `optimizer_greedy`.
pub(super) fn greedy(case: &Value) -> Outcome {
    let input = &case["input"];
    let cases: Vec<Case> = list(input, "models").iter().map(Case::new).collect();
    let models: Vec<Model<'_>> = cases.iter().filter_map(Case::model).collect();
    let namespaces = match &input["rescale_namespaces"] {
        Value::Object(map) => map.keys().filter(|key| map[*key] == true).cloned().collect(),
        other => texts(other),
    };
    let rescale = Rescale {
        cluster: if input["rescale_cluster"] == true { Share::Anew } else { Share::Kept },
        namespaces: namespaces.iter().filter_map(|name| Namespace::new(name)).collect(),
    };
    let room = room(list(input, "constraints"));
    let mended = greedy_by_score(&models, room.clone(), &rescale, Defects::Mended);
    if let Err(why) = keeps_inside(&models, &mended, room.clone()) {
        return Outcome::Failed(why);
    }
    judge(case, &greedy_by_score(&models, room, &rescale, Defects::Kept))
}

/// `rescale_targets`.
pub(super) fn shares(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let claims: Vec<Claim> = list(input, "models")
        .iter()
        .map(|model| Claim {
            key: model_key("", &text(model, "id")),
            weight: Weight::new(number(model, "priority") * number(model, "demand")).unwrap(),
            floor: Gpus::new(whole(&model["floor_gpus"])),
            cap: Gpus::new(whole(&model["cap_gpus"])),
        })
        .collect();
    let ours = water_fill(Gpus::new(whole(&input["budget_gpus"])), &claims);
    if (ours.over > Gpus::ZERO) != (expected["over_budget"] == true) {
        return Outcome::Failed(format!("over by {}", ours.over));
    }
    for (claim, share) in claims.iter().zip(&ours.gpus) {
        let theirs = whole(&expected["target_gpus"][claim.key.model.as_str()]);
        if share.count() != theirs {
            return Outcome::Failed(format!("{} gets {share}, not {theirs}", claim.key.model));
        }
    }
    Outcome::Passed
}

fn judge(case: &Value, plans: &[Plan]) -> Outcome {
    let ours: Targets = plans
        .iter()
        .flat_map(|plan| {
            plan.targets.iter().map(|(key, replicas)| {
                let name = key.variant.as_str().to_owned();
                ((plan.model.clone(), name), replicas.count())
            })
        })
        .collect();
    let theirs: Targets = case["expected"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| {
            let key = model_key(&text(row, "namespace"), &text(row, "model"));
            ((key, text(row, "variant")), whole(&row["target"]))
        })
        .collect();
    let defect = DEFECTS.iter().find(|(words, _)| note(case).contains(words));
    if ours == theirs {
        return Outcome::Passed;
    }
    let differing: Vec<_> = (ours.iter())
        .filter(|(key, target)| theirs.get(*key) != Some(target))
        .map(|((key, name), target)| {
            let other = theirs.get(&(key.clone(), name.clone()));
            format!("{key} {name}: {target}, not {other:?}")
        })
        .collect();
    match defect {
        Some((_, class)) => Outcome::Differs(class),
        None => Outcome::Failed(differing.join(", ")),
    }
}

/// Whether what is added fits into what was free.
fn keeps_inside(
    models: &[Model<'_>],
    plans: &[Plan],
    mut room: SupplyHeadroom,
) -> Result<(), String> {
    for (model, plan) in models.iter().zip(plans) {
        for candidate in &model.candidates {
            let after = plan.target(&candidate.key).unwrap();
            let (Some(kind), added) = (&candidate.accelerator, after.beyond(candidate.current))
            else {
                continue;
            };
            let free = room.free(&candidate.key.namespace, kind);
            let taken = candidate.gpus.times(added);
            if Headroom::Limited(taken) > free && added > Replicas::ZERO {
                return Err(format!("{} takes {taken} of {free}", candidate.key));
            }
            room.take(&candidate.key.namespace, kind, taken);
        }
        let known = matches!(plan.method, Method::GreedyByScore | Method::Rescale);
        if !known {
            return Err(format!("planned {:?}", plan.method));
        }
    }
    Ok(())
}

impl Case {
    fn new(model: &Value) -> Self {
        let namespace = text(model, "namespace");
        let ballot = list(model, "ballot");
        let sizing = sizing(&namespace, ballot);
        let states = list(model, "states");
        let candidates = states
            .iter()
            .filter_map(|state| {
                let key = variant_key(&namespace, &text(state, "variant"));
                let row = identity(ballot).iter().find(|row| row["variant"] == state["variant"])?;
                let max = Some(whole(&state["max"])).filter(|max| *max > 0);
                let min = whole(&state["min"]);
                Some(Candidate {
                    key,
                    role: role(&text(row, "role")),
                    accelerator: Accelerator::new(&text(row, "accelerator")),
                    gpus: Gpus::new(whole(&state["gpus"]).max(1)),
                    cost: CostPerHour::new(number(row, "cost")).unwrap(),
                    leaving: Replicas::ZERO,
                    untried: false,
                    list_price: CostPerHour::new(number(row, "cost")).unwrap(),
                    mismatch: Fraction::ONE,
                    bounds: Bounds::new(
                        Replicas::saturating(min),
                        max.map(|max| Replicas::saturating(max.max(min))),
                    )
                    .unwrap(),
                    current: Replicas::saturating(whole(&state["current"])),
                    pending: Replicas::saturating(whole(&state["pending"])),
                })
            })
            .collect();
        let reports = ballot
            .iter()
            .filter(|entry| entry["enabled"] == true)
            .map(|entry| {
                let score = Weight::new(number(entry, "score")).filter(|it| *it > Weight::ZERO);
                let live = entry["live"] == true;
                let standing = if live { ReportFreshness::Live } else { ReportFreshness::Stale };
                (report(&namespace, entry), score.unwrap_or(Weight::ONE), standing)
            })
            .collect();
        let priority = Weight::new(number(model, "priority")).unwrap();
        Self {
            key: model_key(&namespace, &text(model, "model")),
            priority,
            candidates,
            reports,
            sizing,
        }
    }

    fn model(&self) -> Option<Model<'_>> {
        Some(Model {
            key: self.key.clone(),
            priority: self.priority,
            candidates: self.candidates.clone(),
            sizing: self.sizing.as_ref()?,
            voices: self
                .reports
                .iter()
                .map(|(report, score, standing)| Voice {
                    report,
                    score: *score,
                    standing: *standing,
                })
                .collect(),
        })
    }
}

/// The rows that say what a variant is: those of the saturation analyzer, if it is there.
fn identity(ballot: &[Value]) -> &[Value] {
    let saturation = ballot.iter().find(|entry| entry["analyzer"] == "saturation");
    let entry = saturation.or(ballot.first());
    entry.map(|entry| list(&entry["result"], "variants")).unwrap_or_default()
}

/// The report that sizes the variants: saturation if it votes, is live and informative, else the
/// only other that is.
fn sizing(namespace: &str, ballot: &[Value]) -> Option<CapacityReport> {
    let informative = |entry: &Value| {
        let rows = list(&entry["result"], "variants");
        rows.iter().any(|row| row["reason"] != "no-data" && row["reason"] != "error")
    };
    let votes = |entry: &&Value| entry["enabled"] == true;
    let usable: Vec<&Value> = ballot
        .iter()
        .filter(votes)
        .filter(|entry| entry["live"] == true && informative(entry))
        .collect();
    let is_saturation = |entry: &Value| entry["analyzer"] == "saturation";
    if let Some(entry) = usable.iter().find(|entry| is_saturation(entry)) {
        return Some(report(namespace, entry));
    }
    let [only] = usable.as_slice() else { return None };
    let mut sized = report(namespace, only);
    if ballot.iter().filter(votes).any(is_saturation) {
        let saturation = ballot.iter().find(|entry| is_saturation(entry))?;
        let known: BTreeSet<VariantKey> =
            sized.variants.iter().map(|variant| variant.key.clone()).collect();
        let others = report(namespace, saturation).variants;
        sized.variants.extend(others.into_iter().filter(|it| !known.contains(&it.key)));
    }
    Some(sized)
}

fn report(namespace: &str, entry: &Value) -> CapacityReport {
    let result = &entry["result"];
    let unit = match text(entry, "analyzer").as_str() {
        "throughput" => Unit::OutputTokensPerSecond,
        "saturation" => Unit::KvTokens,
        _ => Unit::RequestsPerSecond,
    };
    let totals = |from: &Value| Totals {
        supply: amount(from, "supply"),
        anticipated: amount(from, "anticipated_supply"),
        demand: amount(from, "demand"),
        required: amount(from, "required"),
        spare: amount(from, "spare"),
    };
    let variants = list(result, "variants").iter().map(|row| VariantCapacity {
        key: variant_key(namespace, &text(row, "variant")),
        role: role(&text(row, "role")),
        cost: CostPerHour::new(number(row, "cost")).unwrap(),
        replicas: Replicas::saturating(whole(&row["replicas"])),
        pending: Replicas::saturating(whole(&row["pending"])),
        per_replica: Amount::new(number(row, "per_replica_cap")).filter(|it| *it > Amount::ZERO),
        demand: amount(row, "demand"),
        confidence: Confidence::Measured,
    });
    let roles = result["roles"].as_object().into_iter().flatten();
    CapacityReport {
        unit,
        variants: variants.collect(),
        total: totals(result),
        roles: roles.map(|(name, from)| (role(name), totals(from))).collect(),
    }
}

/// What is free: of each kind and each namespace, the least that any provider says.
fn room(constraints: &[Value]) -> SupplyHeadroom {
    let headrooms = |pools: &Value| -> BTreeMap<Accelerator, Headroom> {
        let pools = pools.as_object().into_iter().flatten();
        pools
            .map(|(kind, pool)| {
                let limit = pool["limit_gpus"].as_i64().unwrap_or(0);
                let headroom = match u32::try_from(limit) {
                    Ok(limit) => Headroom::Limited(
                        Gpus::new(limit).beyond(Gpus::new(whole(&pool["used_gpus"]))),
                    ),
                    Err(_) => Headroom::Unlimited,
                };
                (Accelerator::new(kind).unwrap(), headroom)
            })
            .collect()
    };
    let mut room = SupplyHeadroom::default();
    for provider in constraints {
        for (kind, headroom) in headrooms(&provider["pools"]) {
            let known = room.cluster.entry(kind).or_insert(headroom);
            *known = (*known).min(headroom);
        }
        for (namespace, pools) in provider["namespace_pools"].as_object().into_iter().flatten() {
            let list = headrooms(pools);
            let known = room.namespaces.entry(Namespace::new(namespace).unwrap());
            let known = known.or_insert_with(|| list.clone());
            known.retain(|kind, _| list.contains_key(kind));
            for (kind, headroom) in known {
                *headroom = (*headroom).min(list[kind]);
            }
        }
    }
    room
}

fn role(name: &str) -> Role {
    match name {
        "prefill" => Role::Prefill,
        "decode" => Role::Decode,
        _ => Role::Both,
    }
}

fn model_key(namespace: &str, model: &str) -> ModelKey {
    ModelKey {
        namespace: Namespace::new(if namespace.is_empty() { "-" } else { namespace }).unwrap(),
        model: ModelName::new(model).unwrap(),
    }
}

fn texts(from: &Value) -> Vec<String> {
    let items = from.as_array().into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
