//! Reader of WVA's ballot of analyzers.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::ballot::{Analyzer, Vote, VotingRight};
use plimsoll::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity};
use plimsoll::fleet::Role;
use plimsoll::units::{Amount, CostPerHour, Replicas, Seconds};
use serde_json::Value;

use crate::reference::wva::ballot::anchor;

use super::Outcome;
use super::tokens::{close, key, list, number, role, same_totals, text, whole};

/// `ballot`: which analyzers vote, and the report that replicas are sized by.
pub(super) fn ballot(case: &Value) -> Outcome {
    let (votes, expected) = (list(&case["input"], "ballot"), &case["expected"]);
    let now = Timestamp::UNIX_EPOCH + SignedDuration::from_hours(1);
    let found: Vec<Option<CapacityReport>> = votes.iter().map(report).collect();
    let papers: Vec<Vote<'_>> = votes
        .iter()
        .zip(&found)
        .map(|(vote, report)| Vote {
            analyzer: analyzer(&vote["analyzer"]),
            franchise: if vote["enabled"] == true {
                VotingRight::Votes
            } else {
                VotingRight::Shown
            },
            informed_at: (vote["live"] == true && is_informative(vote)).then_some(now),
            report: report.as_ref(),
        })
        .collect();
    let names: Vec<Analyzer> = papers
        .iter()
        .filter(|vote| vote.franchise == VotingRight::Votes)
        .map(|vote| vote.analyzer)
        .collect();
    if names != list(expected, "voting").iter().map(analyzer).collect::<Vec<_>>() {
        return Outcome::Failed(format!("{names:?} vote"));
    }
    let ours = anchor(now, Seconds::new(90.0).unwrap(), &papers);
    let Some(ours) = ours else {
        let held = expected["anchor"].is_null();
        return if held { Outcome::Passed } else { Outcome::Failed("held".to_owned()) };
    };
    if expected["anchor"].is_null() || analyzer(&expected["anchor_sized_by"]) != ours.sized_by {
        return Outcome::Failed(format!("sized by {}", ours.sized_by));
    }
    match same_report(&ours.report, &expected["anchor"]) {
        Ok(()) => Outcome::Passed,
        Err(why) => Outcome::Failed(why),
    }
}

/// WVA's names for analyzers.
fn analyzer(name: &Value) -> Analyzer {
    match name.as_str() {
        Some("saturation") => Analyzer::Tokens,
        Some("throughput") => Analyzer::Throughput,
        _ => Analyzer::Queueing,
    }
}

/// A report of which WVA knows where at least one capacity comes from.
fn is_informative(vote: &Value) -> bool {
    list(&vote["result"], "variants")
        .iter()
        .any(|variant| variant["reason"] != "no-data" && variant["reason"] != "error")
}

fn report(vote: &Value) -> Option<CapacityReport> {
    let result = vote.get("result").filter(|result| !result.is_null())?;
    let roles: BTreeMap<Role, Totals> = result
        .get("roles")
        .and_then(Value::as_object)
        .into_iter()
        .flatten()
        .map(|(name, roles)| (role(&serde_json::json!({ "role": name })), totals(roles)))
        .collect();
    let variants = list(result, "variants").iter().map(|variant| VariantCapacity {
        key: key("n", &text(variant, "variant")),
        role: role(variant),
        cost: CostPerHour::new(number(variant, "cost")).unwrap(),
        replicas: Replicas::saturating(whole(&variant["replicas"])),
        pending: Replicas::saturating(whole(&variant["pending"])),
        per_replica: Amount::new(number(variant, "per_replica_cap")),
        demand: amount(variant, "demand"),
        confidence: Confidence::Measured,
    });
    let unit = match analyzer(&vote["analyzer"]) {
        Analyzer::Tokens => Unit::KvTokens,
        Analyzer::Throughput => Unit::OutputTokensPerSecond,
        _ => Unit::RequestsPerSecond,
    };
    Some(CapacityReport { unit, variants: variants.collect(), total: totals(result), roles })
}

fn totals(from: &Value) -> Totals {
    Totals {
        supply: amount(from, "supply"),
        anticipated: amount(from, "anticipated_supply"),
        demand: amount(from, "demand"),
        required: amount(from, "required"),
        spare: amount(from, "spare"),
    }
}

fn amount(from: &Value, name: &str) -> Amount {
    Amount::new(number(from, name)).unwrap()
}

fn same_report(ours: &CapacityReport, expected: &Value) -> Result<(), String> {
    let variants = list(expected, "variants");
    if ours.variants.len() != variants.len() {
        return Err(format!("{} variants, not {}", ours.variants.len(), variants.len()));
    }
    for (variant, expected) in ours.variants.iter().zip(variants) {
        let per_replica = variant.per_replica.unwrap_or_default().amount();
        let fields = [
            ("replicas", f64::from(variant.replicas.count())),
            ("pending", f64::from(variant.pending.count())),
            ("per_replica_cap", per_replica),
            ("total_cap", variant.carried_by(variant.replicas).amount()),
            ("demand", variant.demand.amount()),
            ("cost", variant.cost.per_hour()),
        ];
        for (name, value) in fields {
            if !close(value, number(expected, name)) {
                return Err(format!("{}: {name} {value}, not {}", variant.key, expected[name]));
            }
        }
        if variant.key.variant.as_str() != expected["variant"] || variant.role != role(expected) {
            return Err(format!("{} as {:?}", variant.key, variant.role));
        }
    }
    same_totals(&ours.total, expected)?;
    ours.roles.iter().try_for_each(|(role, totals)| {
        same_totals(totals, &expected["roles"][role.label()])
            .map_err(|why| format!("{}: {why}", role.label()))
    })
}
