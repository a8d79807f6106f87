//! Reader of WVA's whole V2 decision: analyzers, ballot, optimizer and the rule of zero, over
//! cycles; and what follows the analysis in its V1 decision, the rule of zero and the limiter.
//!
//! The parts are the library's, each by WVA's rules and with WVA's defects kept. What is put
//! together here as WVA does it: which analyzers vote, that each brings its own thresholds, what is
//! free of an inventory, and that the rule of zero comes last.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use plimsoll::analyze::ballot::{Analyzer, Vote, VotingRight};
use plimsoll::analyze::capacity::{CapacityReport, Totals, Utilization};
use plimsoll::analyze::tokens;
use plimsoll::analyze::tokens::knowledge::Knowledge;
use plimsoll::decide::optimize::{Candidate, Headroom, ReportFreshness, SupplyHeadroom};
use plimsoll::decide::zero::ZeroPolicy;
use plimsoll::fleet::{Bounds, ModelKey};
use plimsoll::units::{Fraction, Gpus, Replicas, Seconds, Weight};
use serde_json::{Value, json};

use crate::reference::wva::ballot::{Anchor, anchor};
use crate::reference::wva::optimize::{
    Defects, Model, Plan, Rescale, Share, Voice, cost_aware, greedy_by_score,
};
use crate::reference::wva::throughput::Curves;

use super::Outcome;
use super::fields::{list, note, number, text, whole};
use super::limit::{granted, stock};
use super::tokens::{STRANGERS, close, has_strangers, knowledge, model, policy};
use super::zero::settled;

const SPLIT: &str = "roles are split by the report that sizes them";

/// What one analyzer brings, apart from what it finds.
struct Entry {
    analyzer: Analyzer,
    franchise: VotingRight,
    score: Weight,
    utilization: Utilization,
}

/// What analyzers remember.
struct Memory {
    knowledge: Knowledge,
    curves: BTreeMap<ModelKey, Curves>,
    informed: BTreeMap<(ModelKey, Analyzer), Timestamp>,
}

/// A model in one cycle.
struct Case<'a> {
    from: &'a Value,
    key: ModelKey,
    reports: Vec<CapacityReport>,
    /// Whether each report's analyzer has ever had anything to say.
    standings: Vec<ReportFreshness>,
    anchor: Option<Anchor>,
}

/// `pipeline_v2`: each cycle's ballots, targets, and models that go to zero.
pub(super) fn decisions(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let entries = entries(input);
    let mut memory =
        Memory { knowledge: knowledge(input), curves: BTreeMap::new(), informed: BTreeMap::new() };
    for (index, cycle) in list(input, "cycles").iter().enumerate() {
        let models: &[Value] = cycle.as_array().map(Vec::as_slice).unwrap_or_default();
        if models.iter().any(has_strangers) {
            return Outcome::Differs(STRANGERS);
        }
        let seconds = 15 * i64::try_from(index).unwrap();
        let now = Timestamp::UNIX_EPOCH + SignedDuration::from_secs(3600 + seconds);
        let cases: Vec<Case<'_>> =
            models.iter().map(|from| Case::new(now, from, input, &entries, &mut memory)).collect();
        let compared = same_ballots(&cases, &entries, list(&expected[index], "ballot"))
            .and_then(|()| same_targets(input, &cases, &entries, &expected[index]));
        match compared {
            Ok(()) => {}
            Err(_) if sized_alone(input, &cases, &entries) => return Outcome::Differs(SPLIT),
            Err(why) => return Outcome::Failed(format!("cycle {index}: {why}; {}", note(case))),
        }
    }
    Outcome::Passed
}

/// What becomes of the targets of the analysis: one for each decision, and whether a limit cut it.
pub(super) fn enforced_and_limited(input: &Value, expected: &Value) -> Vec<(u32, bool)> {
    let mut rows: Vec<Value> = list(expected, "decisions").to_vec();
    let policy = zero_policy(input);
    for model in list(input, "models") {
        let is_its =
            |row: &Value| row["model"] == model["model"] && row["namespace"] == model["namespace"];
        let mut its: Vec<&mut Value> = rows.iter_mut().filter(|row| is_its(row)).collect();
        for row in &mut its {
            let state = list(model, "states").iter().find(|it| it["variant"] == row["variant"]);
            row["target"] = row["target_before_limiter"].clone();
            for bound in ["min", "max"] {
                row[bound] = state.map_or(Value::Null, |state| state[bound].clone());
            }
        }
        let decided: Vec<Value> = its.iter().map(|row| (**row).clone()).collect();
        for (row, target) in its.into_iter().zip(settled(model, policy, &decided).0) {
            row["target"] = Value::from(target);
        }
    }
    match input.get("limiter_inventory") {
        Some(inventory) => granted(inventory, &rows),
        None => rows.iter().map(|row| (whole(&row["target"]), false)).collect(),
    }
}

fn zero_policy(input: &Value) -> ZeroPolicy {
    match &input["scale_to_zero"] {
        Value::Bool(true) => ZeroPolicy::AfterIdle(Seconds::literal(600)),
        _ => ZeroPolicy::KeepOne,
    }
}

/// The analyzers of a case: tokens always, and the others that are asked for.
fn entries(input: &Value) -> Vec<Entry> {
    let written = list(input, "analyzers");
    let of = |analyzer, name: &str| {
        let entry = written.iter().find(|entry| entry["type"] == name && entry["enabled"] != false);
        let votes = entry.is_some() || (written.is_empty() && analyzer == Analyzer::Tokens);
        let share = |field: &str| {
            let own = entry.filter(|entry| entry.get(field).is_some());
            Fraction::new(number(own.unwrap_or(&input["config"]), field)).unwrap()
        };
        let score = entry.and_then(|entry| Weight::new(number(entry, "score")));
        Entry {
            analyzer,
            franchise: if votes { VotingRight::Votes } else { VotingRight::Shown },
            score: score.filter(|score| *score > Weight::ZERO).unwrap_or(Weight::ONE),
            utilization: Utilization {
                grow: share("scale_up_ratio"),
                shrink: share("scale_down_ratio"),
            },
        }
    };
    let tokens = of(Analyzer::Tokens, "saturation");
    let throughput = of(Analyzer::Throughput, "throughput");
    let others = [throughput].into_iter().filter(|entry| entry.franchise == VotingRight::Votes);
    [tokens].into_iter().chain(others).collect()
}

fn same_ballots(cases: &[Case<'_>], entries: &[Entry], ballot: &[Value]) -> Result<(), String> {
    for case in cases {
        for ((entry, report), standing) in entries.iter().zip(&case.reports).zip(&case.standings) {
            let name = match entry.analyzer {
                Analyzer::Tokens => "saturation",
                Analyzer::Queueing => "queueing-model",
                other => other.label(),
            };
            let which = format!("{} by {name}", case.key);
            let mut rows = ballot.iter().filter(|row| {
                row["model"] == case.from["model"]
                    && row["namespace"] == case.from["namespace"]
                    && row["analyzer"] == name
            });
            let theirs = rows.next().ok_or_else(|| format!("{which} is not expected"))?;
            if (*standing == ReportFreshness::Live) != (theirs["live"] == true) {
                return Err(format!("{which} is {standing:?}"));
            }
            let Totals { supply, anticipated: _, demand, required, spare } = report.total;
            let fields =
                [("supply", supply), ("demand", demand), ("required", required), ("spare", spare)];
            for (field, ours) in fields {
                if !close(ours.amount(), number(theirs, field)) {
                    let theirs = number(theirs, field);
                    return Err(format!("{which}: {field} {}, not {theirs}", ours.amount()));
                }
            }
        }
    }
    let ours = cases.len() * entries.len();
    if ours == ballot.len() { Ok(()) } else { Err(format!("{ours} reports, not {}", ballot.len())) }
}

fn same_targets(
    input: &Value,
    cases: &[Case<'_>],
    entries: &[Entry],
    expected: &Value,
) -> Result<(), String> {
    let models: Vec<Model<'_>> = cases.iter().filter_map(|case| case.model(entries)).collect();
    let plans = plans(input, cases, &models);
    let policy = zero_policy(input);
    let mut ours: Vec<Value> = Vec::new();
    let mut zeroed: Vec<String> = Vec::new();
    for case in cases {
        let plan = plans.iter().find(|plan| plan.model == case.key);
        let rows: Vec<Value> = plan.map(|plan| case.rows(plan)).unwrap_or_default();
        let (targets, to_zero) = settled(case.from, policy, &rows);
        // WVA counts a model for which nothing is decided, unless nothing is decided at all.
        if to_zero && !plans.is_empty() {
            zeroed.push(format!("{}/{}", case.key.namespace, case.key.model));
        }
        ours.extend(rows.into_iter().zip(targets).map(|(mut row, target)| {
            row["target"] = json!(target);
            row
        }));
    }
    let their_zeroed: Vec<String> = list(expected, "models_scaled_to_zero")
        .iter()
        .filter_map(Value::as_str)
        .map(str::to_owned)
        .collect();
    zeroed.sort();
    if zeroed != their_zeroed {
        return Err(format!("{zeroed:?} go to zero, not {their_zeroed:?}"));
    }
    compare(&ours, list(expected, "decisions"))
}

fn plans(input: &Value, cases: &[Case<'_>], models: &[Model<'_>]) -> Vec<Plan> {
    match input.get("limiter_inventory") {
        None => models.iter().map(|model| cost_aware(model, Defects::Kept)).collect(),
        Some(inventory) => {
            let rescale = Rescale { cluster: Share::Kept, ..Rescale::default() };
            greedy_by_score(models, room(inventory, cases), &rescale, Defects::Kept)
        }
    }
}

/// Whether some voice knows no roles where the report that sizes the variants does, and each
/// model's plan is the one that there would be without such voices.
///
/// WVA counts such a voice as a role of its own, for which there is no variant, and so adds nothing.
fn sized_alone(input: &Value, cases: &[Case<'_>], entries: &[Entry]) -> bool {
    let models: Vec<Model<'_>> = cases.iter().filter_map(|case| case.model(entries)).collect();
    let mut alone = models.clone();
    for model in &mut alone {
        let sizing = model.sizing;
        model.voices.retain(|voice| voice.report.roles.is_empty() == sizing.roles.is_empty());
    }
    let voices = |models: &[Model<'_>]| -> usize { models.iter().map(|it| it.voices.len()).sum() };
    let targets = |models: &[Model<'_>]| -> Vec<_> {
        plans(input, cases, models).into_iter().flat_map(|plan| plan.targets).collect()
    };
    voices(&alone) < voices(&models) && targets(&alone) == targets(&models)
}

fn compare(ours: &[Value], theirs: &[Value]) -> Result<(), String> {
    let table = |rows: &[Value]| -> BTreeMap<[String; 3], u32> {
        let keys = ["namespace", "model", "variant"];
        rows.iter().map(|row| (keys.map(|key| text(row, key)), whole(&row["target"]))).collect()
    };
    let (ours, theirs) = (table(ours), table(theirs));
    let mut keys: Vec<_> = ours.keys().chain(theirs.keys()).collect();
    keys.sort();
    keys.dedup();
    let wrong: Vec<String> = keys
        .into_iter()
        .filter(|key| ours.get(*key) != theirs.get(*key))
        .map(|key| format!("{key:?}: {:?}, not {:?}", ours.get(key), theirs.get(key)))
        .collect();
    if wrong.is_empty() { Ok(()) } else { Err(wrong.join(", ")) }
}

/// What is free of an inventory: what no replica of any variant holds.
fn room(inventory: &Value, cases: &[Case<'_>]) -> SupplyHeadroom {
    let mut stock = stock(list(inventory, "nodes"));
    for candidate in cases.iter().flat_map(Case::candidates) {
        let Some(kind) = candidate.accelerator else { continue };
        let used = candidate.gpus.times(candidate.current);
        stock.entry(kind).and_modify(|free| *free = free.beyond(used));
    }
    let free = stock.into_iter().map(|(kind, free)| (kind, Headroom::Limited(free)));
    SupplyHeadroom { cluster: free.collect(), ..SupplyHeadroom::default() }
}

impl<'a> Case<'a> {
    fn new(
        now: Timestamp,
        from: &'a Value,
        input: &Value,
        entries: &[Entry],
        memory: &mut Memory,
    ) -> Self {
        let key = model(from);
        let reports: Vec<CapacityReport> =
            entries.iter().map(|entry| report(now, from, input, entry, memory)).collect();
        for (entry, report) in entries.iter().zip(&reports) {
            if report.variants.iter().any(|variant| variant.per_replica.is_some()) {
                memory.informed.insert((key.clone(), entry.analyzer), now);
            }
        }
        let informed_at =
            |entry: &Entry| memory.informed.get(&(key.clone(), entry.analyzer)).copied();
        let votes: Vec<Vote<'_>> = entries
            .iter()
            .zip(&reports)
            .map(|(entry, report)| Vote {
                analyzer: entry.analyzer,
                franchise: entry.franchise,
                informed_at: informed_at(entry),
                report: Some(report),
            })
            .collect();
        let anchor = anchor(now, Seconds::literal(90), &votes);
        let standings = entries
            .iter()
            .map(|entry| match informed_at(entry) {
                Some(_) => ReportFreshness::Live,
                None => ReportFreshness::Stale,
            })
            .collect();
        Self { from, key, reports, standings, anchor }
    }

    /// Its variants; what they run on and cost is what their first replica says.
    fn candidates(&self) -> Vec<Candidate> {
        let states = list(self.from, "states");
        states
            .iter()
            .map(|state| {
                let name = text(state, "variant");
                let row = list(self.from, "replicas").iter().find(|row| row["variant"] == *name);
                let spec = super::tokens::spec(self.from, &name, row.unwrap_or(&Value::Null));
                let min = whole(&state["min"]);
                let max = Some(whole(&state["max"])).filter(|max| *max > 0);
                let max = max.map(|max| Replicas::saturating(max.max(min)));
                Candidate {
                    key: spec.key,
                    role: super::tokens::role(state),
                    accelerator: spec.accelerator,
                    gpus: Gpus::new(whole(&state["gpus"]).max(1)),
                    cost: spec.cost,
                    leaving: Replicas::ZERO,
                    untried: false,
                    list_price: spec.cost,
                    mismatch: Fraction::ONE,
                    bounds: Bounds::new(Replicas::saturating(min), max).unwrap(),
                    current: Replicas::saturating(whole(&state["current"])),
                    pending: Replicas::saturating(whole(&state["pending"])),
                }
            })
            .collect()
    }

    /// Its variants with the targets of a plan, as the rule of zero reads them.
    fn rows(&self, plan: &Plan) -> Vec<Value> {
        self.candidates()
            .iter()
            .map(|candidate| {
                json!({
                    "namespace": self.from["namespace"],
                    "model": self.from["model"],
                    "variant": candidate.key.variant.as_str(),
                    "cost": candidate.cost.per_hour(),
                    "current": candidate.current.count(),
                    "target": plan.target(&candidate.key).unwrap().count(),
                })
            })
            .collect()
    }

    /// As the optimizers see it; `None` when it is held.
    fn model(&self, entries: &[Entry]) -> Option<Model<'_>> {
        let sizing = &self.anchor.as_ref()?.report;
        let voices = entries.iter().zip(&self.reports).zip(&self.standings);
        Some(Model {
            key: self.key.clone(),
            priority: Weight::new(number(self.from, "priority")).unwrap(),
            candidates: self.candidates(),
            sizing,
            voices: voices
                .filter(|((entry, _), _)| entry.franchise == VotingRight::Votes)
                .map(|((entry, report), standing)| Voice {
                    report,
                    score: entry.score,
                    standing: *standing,
                })
                .collect(),
        })
    }
}

/// What one analyzer finds of a model.
fn report(
    now: Timestamp,
    from: &Value,
    input: &Value,
    entry: &Entry,
    memory: &mut Memory,
) -> CapacityReport {
    let utilization = entry.utilization;
    match entry.analyzer {
        Analyzer::Tokens => {
            let policy = tokens::TokenPolicy { utilization, ..policy(input) };
            super::tokens::analyzed(now, &policy, from, from, &mut memory.knowledge).report
        }
        Analyzer::Throughput => {
            let curves = memory.curves.entry(model(from)).or_default();
            super::throughput::analyzed(now, utilization, from, from, curves).report
        }
        _ => unreachable!("no case asks for it"),
    }
}
