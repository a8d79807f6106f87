//! Readers of WVA's saturation analyzer (V1) and of the decisions made from it.
//!
//! [`Role`] holds the variants of one model and role as plain numbers. [`Role::ours`] asks the
//! library, [`Role::expected`] says in a few lines of plain arithmetic what our answer should be,
//! and [`Role::defects`] says from the input alone which of WVA's defects the case runs into. Only
//! where it runs into one may the answer differ from WVA's.

use std::collections::{BTreeMap, BTreeSet};

use plimsoll::analyze::saturation::{
    SaturationAnalysis, SaturationReplicaLoad, SaturationTarget, SaturationVariant, ScaleDown,
    SpareLow, Thresholds, TransitionPatience, TransitionRule, analyze, targets,
};
use plimsoll::decide::Reason;
use plimsoll::fleet::{Bounds, Namespace, ReplicaKey, ReplicaName, VariantKey, VariantName};
use plimsoll::units::{CostPerHour, Fraction, Replicas, Requests};
use serde_json::{Value, json};

use super::Outcome;
use super::pipeline::enforced_and_limited;

/// WVA adds in the order of a map, so the last digits of its sums move.
const TOLERANCE: f64 = 1e-9;

/// What WVA charges for a variant whose cost nobody states.
const COST: f64 = 10.0;

/// One line of `replicas`, with what is usable of it.
struct Row {
    pod: String,
    variant: String,
    kv: Option<f64>,
    queue: Option<f64>,
}

/// One line of `states`; a maximum of 0 is none.
struct State {
    variant: String,
    role: String,
    current: u32,
    desired: u32,
    pending: u32,
    min: u32,
    max: Option<u32>,
    cost: f64,
}

/// The variants of one model and role.
struct Role {
    namespace: String,
    thresholds: [f64; 4],
    rows: Vec<Row>,
    states: Vec<State>,
}

/// WVA's defects, in the order in which a case that runs into several is counted.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Defect {
    InvertedBounds,
    NotAQuantity,
    MissingSeries,
    UnclampedTransition,
    IgnoredStart,
    LostStep,
    StrangersTurn,
}

impl Defect {
    const fn label(self) -> &'static str {
        match self {
            Self::InvertedBounds => "bounds with the minimum above the maximum are refused",
            Self::NotAQuantity => "a replica with NaN, infinite or negative load is unknown",
            Self::MissingSeries => "a replica with a missing series is unknown",
            Self::UnclampedTransition => "bounds hold in a transition too",
            Self::IgnoredStart => "a variant that is all pending answers the deficit",
            Self::LostStep => "a variant at its bound lets the next one move",
            Self::StrangersTurn => "a variant without a state does not take the step",
        }
    }
}

/// `saturation_v1`: the analysis of one model, and a target a variant.
pub(super) fn analyzer(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let rows = rows(input, note(case).contains("missing metric series"));
    let role = Role {
        namespace: text(input, "namespace"),
        thresholds: thresholds(&input["config"]),
        states: states(input, &costs(input)),
        rows,
    };
    let verdict = Verdict {
        up: expected["should_scale_up"] == true,
        safe: expected["scale_down_safe"] == true,
    };
    let defects = role.defects(verdict, note(case));
    let Some((analysis, ours)) = role.ours() else {
        return refused(&defects);
    };
    let unreadable =
        defects.iter().find(|d| matches!(d, Defect::NotAQuantity | Defect::MissingSeries));
    if input["analysis_is_nil"] != true
        && unreadable.is_none()
        && let Err(why) = same_analysis(&analysis, expected)
    {
        return Outcome::Failed(why);
    }
    let wva: BTreeMap<&str, u32> = expected["target"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(variant, target)| (variant.as_str(), whole(target)))
        .collect();
    match judge(&role, &ours, &wva, &defects) {
        // The same target from another analysis is not the same answer.
        Outcome::Passed if let Some(defect) = unreadable => Outcome::Differs(defect.label()),
        outcome => outcome,
    }
}

/// `pipeline_v1`: the targets of each role of each model, then what rule of zero and limiter leave.
pub(super) fn pipeline(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let mut held = Vec::new();
    let mut differs = None;
    for model in list(input, "models") {
        let decisions: Vec<&Value> = list(expected, "decisions")
            .iter()
            .filter(|d| d["model"] == model["model"] && d["namespace"] == model["namespace"])
            .collect();
        for role in roles(model, thresholds(&input["config"])) {
            match same_role(&role, &decisions, &mut held, note(case)) {
                Outcome::Passed => {}
                Outcome::Differs(class) => differs = differs.or(Some(class)),
                failed => return failed,
            }
        }
    }
    let mut expect_held: Vec<String> = list(expected, "variants_held_by_safety_net")
        .iter()
        .map(|variant| variant.as_str().unwrap().to_owned())
        .collect();
    held.sort();
    expect_held.sort();
    if held != expect_held {
        return Outcome::Failed(format!("held {held:?}, not {expect_held:?}"));
    }
    if let Some(class) = differs {
        return Outcome::Differs(class);
    }
    let (ours, theirs) = (enforced_and_limited(input, expected), list(expected, "decisions"));
    let wrong = ours.iter().zip(theirs).find(|((target, is_cut), theirs)| {
        (*target, *is_cut) != (whole(&theirs["target"]), theirs["limited"] == true)
    });
    match wrong {
        None => Outcome::Passed,
        Some((ours, theirs)) => Outcome::Failed(format!("{ours:?}, not {theirs}")),
    }
}

/// Compares one role of a model with the decisions for it.
fn same_role(role: &Role, decisions: &[&Value], held: &mut Vec<String>, note: &str) -> Outcome {
    if role.rows.is_empty() {
        held.extend(role.states.iter().map(|state| state.variant.clone()));
    }
    let defects = role.defects(role.verdict(), note);
    let Some((analysis, ours)) = role.ours() else {
        return refused(&defects);
    };
    let mut wva = BTreeMap::new();
    for state in &role.states {
        let Some(decision) = decisions.iter().find(|d| d["variant"] == state.variant.as_str())
        else {
            continue;
        };
        wva.insert(state.variant.as_str(), whole(&decision["target_before_limiter"]));
        if let Some(variant) = analysis.variants.get(&key(&role.namespace, &state.variant)) {
            let ours = [variant.spare.kv.fraction(), variant.kv_mean.fraction()];
            let theirs = [number(decision, "spare"), number(decision, "util")];
            if !ours.iter().zip(theirs).all(|(ours, theirs)| close(*ours, theirs)) {
                let which = &state.variant;
                return Outcome::Failed(format!("{which}: spare and use {ours:?}, not {theirs:?}"));
            }
        }
    }
    judge(role, &ours, &wva, &defects)
}

/// A case that cannot be put to us must be one that we know to refuse.
fn refused(defects: &BTreeSet<Defect>) -> Outcome {
    if defects.contains(&Defect::InvertedBounds) {
        Outcome::Differs(Defect::InvertedBounds.label())
    } else {
        Outcome::Failed("the input is refused".to_owned())
    }
}

/// Our targets must be ours, and WVA's too unless the case runs into a defect.
fn judge(
    role: &Role,
    ours: &[SaturationTarget],
    wva: &BTreeMap<&str, u32>,
    defects: &BTreeSet<Defect>,
) -> Outcome {
    for SaturationTarget { outcome, .. } in ours {
        let (said, decided) = (outcome.to_string(), Reason::Load(outcome.clone()).to_string());
        if said != decided {
            return Outcome::Failed(format!("{said:?} becomes {decided:?} in a decision"));
        }
    }
    let ours: BTreeMap<&str, u32> =
        ours.iter().map(|target| (target.variant.variant.as_str(), role.count(target))).collect();
    let expected = role.expected();
    if ours != expected {
        return Outcome::Failed(format!("targets {ours:?}, not {expected:?}"));
    }
    let same = wva.iter().all(|(variant, target)| ours.get(variant) == Some(target));
    match defects.first() {
        _ if same => Outcome::Passed,
        Some(defect) => Outcome::Differs(defect.label()),
        None => Outcome::Failed(format!("targets {ours:?}, but WVA's are {wva:?}")),
    }
}

/// The reason for scaling up as WVA writes it.
fn in_words_of_wva(low: &SpareLow) -> String {
    match (low.kv, low.queue) {
        (Some((kv, kv_trigger)), Some((queue, queue_trigger))) => format!(
            "both KV spare ({kv:.3} < {kv_trigger:.3}) and queue spare ({queue:.1} < \
             {queue_trigger:.1})"
        ),
        (Some((kv, trigger)), None) => format!("KV spare low ({kv:.3} < {trigger:.3})"),
        (None, Some((queue, trigger))) => format!("queue spare low ({queue:.1} < {trigger:.1})"),
        (None, None) => "spare low".to_owned(),
    }
}

fn same_analysis(ours: &SaturationAnalysis, expected: &Value) -> Result<(), String> {
    let counts = |measured: Replicas, non_saturated: Replicas| {
        [f64::from(measured.count()), f64::from(non_saturated.count())]
    };
    let same = |what: &str, ours: &[f64], from: &Value, names: &[&str]| {
        let theirs: Vec<f64> = names.iter().map(|name| number(from, name)).collect();
        let same = ours.iter().zip(&theirs).all(|(ours, theirs)| close(*ours, *theirs));
        same.then_some(()).ok_or_else(|| format!("{what}: {ours:?}, not {theirs:?}"))
    };
    let spares = ["avg_spare_kv_frac", "avg_spare_queue_reqs"];
    let totals = counts(ours.measured, ours.non_saturated);
    same("totals", &totals, expected, &["total_replicas", "non_saturated"])?;
    let spare = [ours.spare.kv.fraction(), ours.spare.queue.requests()];
    same("spare", &spare, expected, &spares)?;

    let reason = text(expected, "scale_up_reason").replace(" Saturation low", " low");
    let our_reason = ours.scale_up.map(|low| in_words_of_wva(&low)).unwrap_or_default();
    if (ours.scale_up.is_some(), &our_reason) != (expected["should_scale_up"] == true, &reason) {
        return Err(format!("scale up {our_reason:?}, not {reason:?}"));
    }
    let shrinks = matches!(ours.scale_down, ScaleDown::Safe(_));
    if shrinks != (expected["scale_down_safe"] == true) {
        return Err(format!("scale down is {:?}", ours.scale_down));
    }

    let variants = list(expected, "variants");
    if variants.len() != ours.variants.len() {
        return Err(format!("{} variants, not {}", ours.variants.len(), variants.len()));
    }
    for ((key, variant), theirs) in ours.variants.iter().zip(variants) {
        let name = key.variant.as_str();
        if name != text(theirs, "variant") {
            return Err(format!("variant {name}, not {}", theirs["variant"]));
        }
        let totals = counts(variant.measured, variant.non_saturated);
        same(name, &totals, theirs, &["replicas", "non_saturated"])?;
        let spare = [variant.spare.kv.fraction(), variant.spare.queue.requests()];
        same(name, &spare, theirs, &spares)?;
        let peaks =
            [variant.kv_max.fraction(), variant.kv_mean.fraction(), variant.queue_max.requests()];
        let names = ["max_kv_usage_frac", "avg_kv_usage_frac", "max_queue_reqs"];
        same(name, &peaks, theirs, &names)?;
        let saturated: BTreeSet<&str> =
            variant.saturated.iter().map(|replica| replica.replica.as_str()).collect();
        let pods: BTreeSet<&str> =
            list(theirs, "saturated_pods").iter().filter_map(Value::as_str).collect();
        if saturated != pods {
            return Err(format!("{name}: saturated {saturated:?}, not {pods:?}"));
        }
    }
    Ok(())
}

/// What the analysis says.
#[derive(Clone, Copy)]
struct Verdict {
    up: bool,
    safe: bool,
}

// === impl Role ===

impl Role {
    /// The library's answer; `None` when the library cannot be asked such a thing.
    fn ours(&self) -> Option<(SaturationAnalysis, Vec<SaturationTarget>)> {
        let [kv, queue, kv_spare, queue_spare] = self.thresholds;
        let thresholds = Thresholds {
            kv_cache: Fraction::new(kv)?,
            queue_length: Requests::new(queue)?,
            kv_spare: Fraction::new(kv_spare)?,
            queue_spare: Requests::new(queue_spare)?,
        };
        let loads: Vec<SaturationReplicaLoad> = self
            .rows
            .iter()
            .filter_map(|row| {
                Some(SaturationReplicaLoad {
                    replica: ReplicaKey {
                        variant: key(&self.namespace, &row.variant),
                        replica: ReplicaName::new(&row.pod)?,
                        incarnation: None,
                    },
                    kv: Fraction::new(row.kv?)?,
                    queue: Requests::new(row.queue?)?,
                })
            })
            .collect();
        let states: Vec<SaturationVariant> = self
            .states
            .iter()
            .map(|state| {
                let bounds =
                    Bounds::new(Replicas::new(state.min)?, state.max.map(Replicas::saturating))?;
                Some(SaturationVariant {
                    key: key(&self.namespace, &state.variant),
                    current: Replicas::new(state.current)?,
                    pending: Replicas::new(state.pending)?,
                    asleep: Replicas::ZERO,
                    desired: (state.desired > 0).then(|| Replicas::saturating(state.desired)),
                    patience: TransitionPatience::Left,
                    cost: CostPerHour::new(state.cost)?,
                    bounds,
                })
            })
            .collect::<Option<_>>()?;
        let analysis = analyze(&loads, &thresholds);
        let targets = targets(&analysis, &states, TransitionRule::PendingOnly);
        Some((analysis, targets))
    }

    /// The replicas of a target. Without any metrics WVA keeps the current counts and applies no
    /// bounds, which are a step of their own here.
    fn count(&self, target: &SaturationTarget) -> u32 {
        if self.rows.is_empty() { target.asked.count() } else { target.after.count() }
    }

    /// The rows with two sound numbers.
    fn sound(&self) -> Vec<(&str, f64, f64)> {
        self.rows
            .iter()
            .filter_map(|row| Some((row.variant.as_str(), row.kv?, row.queue?)))
            .filter(|(_, kv, queue)| [kv, queue].iter().all(|x| x.is_finite() && **x >= 0.0))
            .collect()
    }

    fn is_measured(&self, state: &State) -> bool {
        self.sound().iter().any(|(variant, _, _)| *variant == state.variant)
    }

    /// The verdict on the sound rows, in plain arithmetic.
    fn verdict(&self) -> Verdict {
        let [kv_max, queue_max, kv_trigger, queue_trigger] = self.thresholds;
        let rows = self.sound();
        let free: Vec<_> =
            rows.iter().filter(|(_, kv, q)| *kv < kv_max && *q < queue_max).collect();
        let number = free.len() as f64;
        let mean = |spare: &dyn Fn(f64, f64) -> f64| {
            let sum: f64 = free.iter().map(|(_, kv, queue)| spare(*kv, *queue)).sum();
            if free.is_empty() { 0.0 } else { sum / number }
        };
        let (kv, queue) = (mean(&|kv, _| kv_max - kv), mean(&|_, queue| queue_max - queue));
        let left = |max: f64, spare: f64| max - (max - spare) * number / (number - 1.0);
        Verdict {
            up: !rows.is_empty() && (kv < kv_trigger || queue < queue_trigger),
            safe: free.len() >= 2
                && left(kv_max, kv) >= kv_trigger
                && left(queue_max, queue) >= queue_trigger,
        }
    }

    /// Whether a variant that reports keeps the whole model waiting.
    fn waits(&self) -> bool {
        self.states
            .iter()
            .any(|state| self.is_measured(state) && (state.wishes() || state.pending > 0))
    }

    /// Whether a variant that does not report is starting.
    fn starts(&self) -> bool {
        self.states.iter().any(|state| !self.is_measured(state) && state.pending > 0)
    }

    /// What our targets should be.
    fn expected(&self) -> BTreeMap<&str, u32> {
        let verdict = self.verdict();
        let measured = || self.states.iter().filter(|state| self.is_measured(state));
        let by_cost =
            |a: &&State, b: &&State| (a.cost.total_cmp(&b.cost)).then(a.variant.cmp(&b.variant));
        let above_max = measured().any(State::is_above_max);
        let (up, down) = if self.waits() {
            (None, None)
        } else if verdict.up {
            let growing = measured().filter(|state| state.max.is_none_or(|m| state.current < m));
            (if self.starts() { None } else { growing.min_by(by_cost) }, None)
        } else if verdict.safe && !above_max {
            let shrinking = measured().filter(|s| s.current > 1 && s.current > s.min);
            (None, shrinking.max_by(by_cost))
        } else {
            (None, None)
        };
        let is = |picked: Option<&State>, state: &State| {
            picked.is_some_and(|picked| picked.variant == state.variant)
        };
        self.states
            .iter()
            .map(|state| {
                let kept = self.waits() && state.wishes();
                let base = if kept { state.desired } else { state.current };
                let asked = base + u32::from(is(up, state)) - u32::from(is(down, state));
                let bounded = if self.rows.is_empty() { asked } else { state.clamp(asked) };
                (state.variant.as_str(), bounded)
            })
            .collect()
    }

    /// Which defects of WVA the input runs into, given WVA's verdict.
    fn defects(&self, verdict: Verdict, note: &str) -> BTreeSet<Defect> {
        let waits = self.waits();
        let measured = || self.states.iter().filter(|state| self.is_measured(state));
        let by_cost =
            |a: &&State, b: &&State| (a.cost.total_cmp(&b.cost)).then(a.variant.cmp(&b.variant));
        let unsound = |value: Option<f64>| value.is_some_and(|x| !(x.is_finite() && x >= 0.0));
        let at_bound = if verdict.up {
            let pick = measured().min_by(by_cost);
            pick.is_some_and(|pick| pick.max.is_some_and(|max| pick.current >= max))
        } else {
            let pick = measured().filter(|state| state.current > 1).max_by(by_cost);
            let beside = measured().any(State::is_above_max);
            verdict.safe && pick.is_some_and(|pick| pick.current <= pick.min || beside)
        };
        let known = |row: &Row| self.states.iter().any(|state| state.variant == row.variant);
        [
            (
                Defect::InvertedBounds,
                self.states.iter().any(|state| state.max.is_some_and(|max| state.min > max)),
            ),
            (
                Defect::NotAQuantity,
                self.rows.iter().any(|row| unsound(row.kv) || unsound(row.queue)),
            ),
            (Defect::MissingSeries, note.contains("missing metric series")),
            (
                Defect::UnclampedTransition,
                waits && measured().any(|state| state.clamp(state.base()) != state.base()),
            ),
            (Defect::IgnoredStart, !waits && verdict.up && self.starts()),
            (Defect::LostStep, !waits && at_bound),
            (Defect::StrangersTurn, !self.rows.iter().all(known)),
        ]
        .into_iter()
        .filter_map(|(defect, runs_into)| runs_into.then_some(defect))
        .collect()
    }
}

// === impl State ===

impl State {
    fn wishes(&self) -> bool {
        self.desired != 0 && self.desired != self.current
    }

    fn base(&self) -> u32 {
        if self.wishes() { self.desired } else { self.current }
    }

    fn is_above_max(&self) -> bool {
        self.max.is_some_and(|max| self.current > max)
    }

    fn clamp(&self, count: u32) -> u32 {
        count.max(self.min).min(self.max.unwrap_or(u32::MAX))
    }
}

/// The roles of a model, in the order in which they are analysed.
fn roles(model: &Value, thresholds: [f64; 4]) -> Vec<Role> {
    ["both", "decode", "prefill"]
        .into_iter()
        .map(|name| {
            let states: Vec<State> = states(model, &costs(model))
                .into_iter()
                .filter(|state| state.role == name)
                .collect();
            let rows = rows(model, false)
                .into_iter()
                .filter(|row| states.iter().any(|state| state.variant == row.variant))
                .collect();
            Role { namespace: text(model, "namespace"), thresholds, rows, states }
        })
        .collect()
}

/// Absent numbers are 0, unless an absent one stands for a series that is missing.
fn rows(from: &Value, absent_is_missing: bool) -> Vec<Row> {
    list(from, "replicas")
        .iter()
        .map(|row| {
            let value = |name| {
                let missing = absent_is_missing && row.get(name).is_none();
                (!missing).then(|| number(row, name))
            };
            Row {
                pod: text(row, "pod"),
                variant: text(row, "variant"),
                kv: value("kv_usage_frac"),
                queue: value("queue_reqs"),
            }
        })
        .collect()
}

/// The cost of each variant that the replicas state: the first one counts.
fn costs(from: &Value) -> BTreeMap<String, f64> {
    let mut costs = BTreeMap::new();
    for row in list(from, "replicas") {
        costs.entry(text(row, "variant")).or_insert_with(|| number(row, "cost"));
    }
    costs
}

fn states(from: &Value, costs: &BTreeMap<String, f64>) -> Vec<State> {
    list(from, "states")
        .iter()
        .map(|state| {
            let variant = text(state, "variant");
            let role = text(state, "role");
            State {
                role: if role.is_empty() { "both".to_owned() } else { role },
                current: whole(&state["current"]),
                desired: whole(&state["desired"]),
                pending: whole(&state["pending"]),
                min: whole(&state["min"]),
                max: Some(whole(&state["max"])).filter(|max| *max > 0),
                cost: costs.get(&variant).copied().unwrap_or(COST),
                variant,
            }
        })
        .collect()
}

fn thresholds(config: &Value) -> [f64; 4] {
    [
        "kv_threshold_frac",
        "queue_threshold_reqs",
        "kv_spare_trigger_frac",
        "queue_spare_trigger_reqs",
    ]
    .map(|name| number(config, name))
}

fn key(namespace: &str, variant: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new(namespace).unwrap(),
        variant: VariantName::new(variant).unwrap(),
    }
}

fn note(case: &Value) -> &str {
    case["note"].as_str().unwrap_or_default()
}

fn list<'a>(from: &'a Value, name: &str) -> &'a [Value] {
    from[name].as_array().map(Vec::as_slice).unwrap_or_default()
}

fn text(from: &Value, name: &str) -> String {
    from[name].as_str().unwrap_or_default().to_owned()
}

/// A number; an absent one is 0, and those that JSON has no word for are texts.
fn number(from: &Value, name: &str) -> f64 {
    match &from[name] {
        Value::Null => 0.0,
        Value::String(text) => text.parse().unwrap(),
        other => other.as_f64().unwrap(),
    }
}

fn whole(value: &Value) -> u32 {
    if value.is_null() { 0 } else { u32::try_from(value.as_u64().unwrap()).unwrap() }
}

fn close(ours: f64, theirs: f64) -> bool {
    (ours - theirs).abs() <= TOLERANCE * ours.abs().max(theirs.abs()).max(1.0)
}

/// WVA leaves a model without metrics at its current counts, also outside its bounds.
#[test]
fn a_model_without_metrics_keeps_its_current_counts() {
    let case = |current: u32| {
        json!({
            "input": {
                "model": "shop/llama",
                "namespace": "shop",
                "config": {
                    "kv_threshold_frac": 0.8,
                    "queue_threshold_reqs": 5.0,
                    "kv_spare_trigger_frac": 0.1,
                    "queue_spare_trigger_reqs": 3.0,
                },
                "replicas": [],
                "states": [
                    {"variant": "v0", "current": current, "pending": 0, "gpus": 1, "min": 3, "max": 5},
                ],
            },
            "expected": {
                "total_replicas": 0,
                "non_saturated": 0,
                "avg_spare_kv_frac": 0.0,
                "avg_spare_queue_reqs": 0.0,
                "should_scale_up": false,
                "scale_up_reason": "",
                "scale_down_safe": false,
                "variants": [],
                "target": {"v0": current},
            },
        })
    };
    for current in [1, 4, 6] {
        assert!(matches!(analyzer(&case(current)), Outcome::Passed), "{current}");
    }
}
