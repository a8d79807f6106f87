//! Checks of HPAs and `ScaledObject`s, by the findings of the daemon.

use kube::ResourceExt as _;
use serde_json::Value;

use crate::cli::doctor::checks::fleet::of_known;
use crate::cli::doctor::evidence::Evidence;
use crate::cli::doctor::verdict::{Findings, Symptom, Unseen, Verdict};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::{Scale, ScaleState};
use plimsoll_core::units::{NounCount, Replicas};
use plimsoll_daemon::collect::cluster::{
    Finding, HpaFollower, IgnoredChange, ScaledObjectFault, VariantState,
};
use plimsoll_daemon::collect::exposition::samples::ExpositionSample;
use plimsoll_daemon::config::counted;

/// The check that a finding belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ScalerCheck {
    Reads,
    Target,
    Selector,
    Metrics,
    Directions,
    Policies,
    Conditions,
    Enabled,
    Triggers,
    Fallback,
    Paused,
}

/// The gauge of variants whose load asks for more than their maximum.
const SHORT_AT_MAXIMUM: &str = "plimsoll_short_at_maximum";

/// Names in the triggers of a `ScaledObject` that reads desired replicas.
const TRIGGER_NAMES: [&str; 2] = ["plimsoll", "wva_desired_replicas"];

pub(super) fn reads(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Reads)
}

pub(super) fn target(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Target)
}

pub(super) fn selector(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Selector)
}

pub(super) fn metrics(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Metrics)
}

pub(super) fn directions(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Directions)
}

pub(super) fn policies(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Policies)
}

pub(super) fn conditions(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Conditions)
}

pub(super) fn enabled(evidence: &Evidence) -> Findings {
    findings(evidence, ScalerCheck::Enabled)
}

pub(super) fn triggers(evidence: &Evidence) -> Findings {
    of_keda(evidence, ScalerCheck::Triggers)
}

pub(super) fn fallback(evidence: &Evidence) -> Findings {
    of_keda(evidence, ScalerCheck::Fallback)
}

pub(super) fn paused(evidence: &Evidence) -> Findings {
    of_keda(evidence, ScalerCheck::Paused)
}

fn of_keda(evidence: &Evidence, check: ScalerCheck) -> Findings {
    let objects = evidence.cluster()?.scaled_objects.read();
    match objects {
        Ok(objects) if objects.is_empty() => {
            Err(Unseen::NotApplicable("the cluster has no ScaledObject".to_owned()))
        }
        Err(Unseen::NotApplicable(_)) => {
            Err(Unseen::NotApplicable("the cluster has no KEDA".to_owned()))
        }
        // This user may see those of the variants' namespaces only.
        Ok(_) | Err(Unseen::Unknown(_)) => findings(evidence, check),
    }
}

/// Judges the findings of all variants that belong to a check. A variant whose target is not known
/// has none, and the check `targets` reports it.
fn findings(evidence: &Evidence, check: ScalerCheck) -> Findings {
    of_known(evidence, |key, variant| {
        if !is_scaled(evidence, key) {
            return Vec::new();
        }
        let judged = variant.findings.iter().map(|finding| (finding, class(finding)));
        let ours = judged.filter(|(_, (of, _))| *of == check);
        ours.map(|(finding, (_, verdict))| {
            Symptom::new(verdict, finding.to_string()).of(key).fix(edit(key, finding))
        })
        .collect()
    })
}

/// Returns true if the variant has a scale target. Others are not scaled by an HPA.
fn is_scaled(evidence: &Evidence, key: &VariantKey) -> bool {
    use plimsoll_daemon::config::VariantTargets;

    let Ok(config) = evidence.config() else { return true };
    let declared = config.config.variants.iter().find(|variant| variant.spec.key == *key);
    declared.is_none_or(|variant| matches!(variant.targets, VariantTargets::ScaleTarget(_)))
}

/// The check of a finding, and its verdict there.
fn class(finding: &Finding) -> (ScalerCheck, Verdict) {
    match finding {
        Finding::NotRead { hpa: Some(_) } => (ScalerCheck::Reads, Verdict::Failure),
        // Something else may act on the number.
        Finding::NotRead { hpa: None } => (ScalerCheck::Reads, Verdict::Warning),
        Finding::WrongTargetType { .. } | Finding::WrongAverageValue { .. } => {
            (ScalerCheck::Target, Verdict::Failure)
        }
        Finding::SumsVariants { others, .. } if others.is_empty() => {
            (ScalerCheck::Selector, Verdict::Warning)
        }
        Finding::WrongSelector { .. } | Finding::SumsVariants { .. } => {
            (ScalerCheck::Selector, Verdict::Failure)
        }
        Finding::OtherMetrics { .. } => (ScalerCheck::Metrics, Verdict::Warning),
        Finding::DirectionDisabled { .. } => (ScalerCheck::Directions, Verdict::Warning),
        Finding::SlowPolicies { .. } => (ScalerCheck::Policies, Verdict::Warning),
        Finding::ConditionFalse { .. } => (ScalerCheck::Conditions, Verdict::Failure),
        Finding::ScalingDisabled { .. } => (ScalerCheck::Enabled, Verdict::Failure),
        Finding::Paused { .. } => (ScalerCheck::Paused, Verdict::Warning),
        Finding::ScaledObject { fault, .. } => class_of_fault(fault),
    }
}

fn class_of_fault(fault: &ScaledObjectFault) -> (ScalerCheck, Verdict) {
    match fault {
        ScaledObjectFault::NullIsZero { .. }
        | ScaledObjectFault::WrongThreshold { .. }
        | ScaledObjectFault::WrongMetricType { .. }
        | ScaledObjectFault::WrongValueLocation { .. } => (ScalerCheck::Triggers, Verdict::Failure),
        ScaledObjectFault::ActivationAboveZero { .. }
        | ScaledObjectFault::MisplacedMetricType { .. }
        | ScaledObjectFault::ScalingModifiers => (ScalerCheck::Triggers, Verdict::Warning),
        ScaledObjectFault::FallbackToZero => (ScalerCheck::Fallback, Verdict::Failure),
        ScaledObjectFault::FallbackLowers { .. } => (ScalerCheck::Fallback, Verdict::Warning),
        ScaledObjectFault::ScaleInPaused | ScaledObjectFault::ScaleOutPaused => {
            (ScalerCheck::Paused, Verdict::Warning)
        }
    }
}

/// The command that changes the object of a finding.
fn edit(key: &VariantKey, finding: &Finding) -> String {
    let namespace = &key.namespace;
    match finding {
        Finding::ScaledObject { scaled_object, .. } | Finding::Paused { scaled_object, .. } => {
            format!("kubectl edit scaledobject {scaled_object} -n {namespace}")
        }
        Finding::ConditionFalse { hpa, .. } => format!("kubectl describe hpa {hpa} -n {namespace}"),
        Finding::ScalingDisabled { .. } => {
            format!("kubectl scale --replicas=1 the target in namespace {namespace}")
        }
        _ => match finding.hpa() {
            Some(hpa) => format!("kubectl edit hpa {hpa} -n {namespace}"),
            None => "kubectl apply an HPA such as examples/hpa.yaml".to_owned(),
        },
    }
}

pub(super) fn tolerance(evidence: &Evidence) -> Findings {
    let decisions = evidence.daemon.read().and_then(|daemon| daemon.decisions.read());
    let decisions = decisions.ok();
    of_known(evidence, |key, variant| {
        let desired = decisions.and_then(|all| desired(all, key));
        if let Some(ignored) = desired.and_then(|desired| variant.ignored(desired)) {
            return vec![ignores(key, &ignored)];
        }

        hides(variant).into_iter().map(|symptom| symptom.of(key)).collect()
    })
}

fn ignores(key: &VariantKey, ignored: &IgnoredChange) -> Symptom {
    let remedy = format!("kubectl edit hpa {}:\n{}", ignored.hpa, ignored.remedy());
    Symptom::failure(ignored.to_string()).of(key).fix(remedy.trim_end())
}

/// A tolerance that hides changes by one replica within the bounds of the target.
fn hides(variant: &VariantState) -> Option<Symptom> {
    let HpaFollower { hpa, tolerances, .. } = variant.follower.as_ref()?;
    let Scale::Known(ScaleState { bounds: Some(bounds), .. }) = &variant.scale else { return None };
    let most = f64::from(bounds.max()?.count());

    // One of n replicas is 1 / n of them. At the maximum, none can be added.
    let of_direction = [(tolerances.up, most - 1.0), (tolerances.down, most)];
    let hidden = of_direction.into_iter().filter_map(|(tolerance, last)| {
        let from = (1.0 / tolerance.fraction()).ceil();
        (from <= last).then_some((tolerance, from))
    });
    let (tolerance, from) = hidden.min_by(|a, b| a.1.total_cmp(&b.1))?;

    Some(Symptom::warning(format!(
        "HPA {hpa} ignores changes by one replica from {from} replicas on: its tolerance is {:.0}%",
        tolerance.fraction() * 100.0
    )))
}

/// The entries of the variants in the decisions.
pub(super) fn entries(decisions: &Value) -> &[Value] {
    decisions["variants"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// The name of an entry, as `NAMESPACE/VARIANT`.
pub(super) fn name(entry: &Value) -> String {
    let part = |key: &str| entry[key].as_str().unwrap_or_default().to_owned();
    format!("{}/{}", part("namespace"), part("variant"))
}

fn desired(decisions: &Value, key: &VariantKey) -> Option<Replicas> {
    let wanted = key.to_string();
    let entry = entries(decisions).iter().find(|entry| name(entry) == wanted)?;
    let desired = entry["desired"].as_u64()?;
    Some(Replicas::capped(desired))
}

pub(super) fn bounds(evidence: &Evidence) -> Findings {
    let daemon = evidence.daemon.read()?;
    let decisions = daemon.decisions.read()?;
    let metrics = daemon.samples(SHORT_AT_MAXIMUM);
    let samples = metrics.as_deref().unwrap_or_default();

    let short: Vec<Symptom> = entries(decisions)
        .iter()
        .filter_map(|entry| {
            let found = shortfall(entry).or_else(|| beyond(entry, samples))?;
            Some(Symptom::warning(found).of(name(entry)))
        })
        .collect();

    if short.is_empty() {
        metrics?;
        return Ok(vec![Symptom::ok(counted(entries(decisions).len(), "variant"))]);
    }
    Ok(short)
}

/// The shortfall of a variant whose analyzers plan within its maximum; `None` if the gauge shows
/// none.
fn beyond(entry: &Value, samples: &[&ExpositionSample]) -> Option<String> {
    let is_short = samples.iter().filter(|sample| sample.value > 0.0).any(|sample| {
        ["namespace", "variant"]
            .iter()
            .all(|label| sample.labels.get(*label).map(String::as_str) == entry[*label].as_str())
    });

    is_short.then(|| format!("the load needs more than the maximum of {}", entry["max"]))
}

/// The shortfall of a variant that is at its maximum; `None` if there is none.
fn shortfall(entry: &Value) -> Option<String> {
    let count = |key: &str| entry[key].as_u64();
    let most = count("max")?;
    let needed = count("unconstrained").filter(|needed| *needed > most);
    if let Some(needed) = needed {
        let need = NounCount(needed, "replica", "replicas");
        return Some(format!("the load needs {need}, and the maximum is {most}"));
    }

    let saturated = count("saturated").filter(|saturated| *saturated > 0)?;
    let is_full = count("desired") == Some(most);
    let full = NounCount(saturated, "replica is saturated", "replicas are saturated");
    is_full.then(|| format!("{full}, and the maximum is {most}"))
}

pub(super) fn keda_ready(evidence: &Evidence) -> Findings {
    let cluster = evidence.cluster()?;
    let objects = match cluster.scaled_objects.read() {
        Ok(objects) => objects,
        Err(Unseen::NotApplicable(_)) => {
            return Err(Unseen::NotApplicable("the cluster has no KEDA".to_owned()));
        }
        Err(unknown) => return Err(unknown),
    };

    let mut judged = 0;
    let mut symptoms = Vec::new();
    for object in objects {
        let triggers = object.data["spec"]["triggers"].to_string();
        if !TRIGGER_NAMES.iter().any(|name| triggers.contains(name)) {
            continue;
        }

        judged += 1;
        let namespace = object.namespace().unwrap_or_default();
        let found = object.data["status"]["conditions"].as_array().into_iter().flatten();
        let failing = found.filter_map(failing);
        let label = format!("ScaledObject {namespace}/{}", object.name_any());
        symptoms.extend(failing.map(|symptom| symptom.of(&label)));
    }

    if judged == 0 {
        return Err(Unseen::NotApplicable("no ScaledObject reads desired replicas".to_owned()));
    }
    if symptoms.is_empty() {
        symptoms.push(Symptom::ok(counted(judged, "ScaledObject")));
    }
    Ok(symptoms)
}

/// The symptom of a condition that KEDA reports.
fn failing(condition: &Value) -> Option<Symptom> {
    let verdict = match (condition["type"].as_str()?, condition["status"].as_str()?) {
        ("Ready", "False") => Verdict::Failure,
        ("Fallback", "True") => Verdict::Warning,
        _ => return None,
    };
    let text = |key: &str| condition[key].as_str().unwrap_or_default();
    let evidence = format!(
        "its condition {} is {}: {} {}",
        text("type"),
        text("status"),
        text("reason"),
        text("message")
    );
    Some(Symptom::new(verdict, evidence.trim_end()))
}
