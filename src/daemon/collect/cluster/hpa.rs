//! HPAs: the bounds that they impose, and the desired replicas that they will not follow.
//!
//! A stock HPA that reads the desired replicas as an External metric with `AverageValue` 1 proposes
//! exactly that count, but only outside its tolerance band. Ten replicas and a desired count of 11
//! are a ratio of 1.1. The default tolerance of 10% hides it: the HPA does nothing and reports
//! nothing. No encoding of the metric avoids the band, because the same value determines the ratio
//! and the result. This module therefore computes the band as the HPA does, and reports the gap.
//!
//! Of an HPA's `behavior`, it reads the tolerances and the stabilization windows, and no policies.
//! Decisions subtract the windows from Plimsoll's own (`decide/enforce.rs` in the core).

use std::fmt;

use k8s_openapi::api::autoscaling::v2::{
    ExternalMetricSource, HPAScalingRules, HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec,
    MetricTarget,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
use crate::collect::cluster::keda::{MADE_FOR, ScaledObjectPause};
use crate::collect::cluster::target::{WantedTarget, group_of};
use plimsoll_core::fleet::{Bounds, VariantName};
use plimsoll_core::units::{Fraction, Replicas, Seconds};

/// The External metrics with desired replicas: Plimsoll's, and the one of the workload variant
/// autoscaler, whose HPAs Plimsoll also serves.
const METRICS: [&str; 2] = ["plimsoll_desired_replicas", "wva_desired_replicas"];

/// The label by which the metrics of KEDA's HPAs are selected.
const KEDA_LABEL: &str = "scaledobject.keda.sh/name";

/// The labels by which an HPA's metric selector names a variant.
const VARIANT_LABELS: [&str; 2] = ["variant", "variant_name"];

/// The cluster-wide default of `--horizontal-pod-autoscaler-tolerance`. It cannot be read through
/// the API. An operator who changes it must therefore set the tolerance in each HPA.
const DEFAULT_TOLERANCE: f64 = 0.1;

/// The relevant parts of an HPA.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HpaFacts {
    /// The group of the object that it scales.
    pub(crate) group: String,
    /// The kind of the object that it scales.
    pub(crate) kind: String,
    /// The name of the object that it scales.
    pub(crate) target: String,
    /// Its replica bounds; `None` if they contradict each other.
    pub(crate) bounds: Option<Bounds>,
    /// The `ScaledObject` for which KEDA created it, if any.
    pub(crate) made_for: Option<String>,
    /// Its annotations, if it may declare a variant.
    pub(crate) marked: Option<AnnotatedObject>,
    tolerances: Tolerances,
    windows: Windows,
    reads: Vec<ExternalMetric>,
}

/// One External metric of a known name in an HPA.
#[derive(Clone, Debug, PartialEq)]
struct ExternalMetric {
    metric: String,
    variant: Option<String>,
    target: TargetValue,
}

/// The way in which an HPA compares a metric.
#[derive(Clone, Debug, PartialEq)]
enum TargetValue {
    /// By its share per replica.
    Average(String),
    /// By this target type.
    Other(String),
}

/// The fractions by which desired replicas may differ from current ones without the HPA acting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// Tolerance above the current replicas.
    pub up: Fraction,
    /// Tolerance below the current replicas.
    pub down: Fraction,
}

/// The stabilization windows that an HPA sets.
///
/// Without a window, an HPA scales up immediately. It scales down after
/// `--horizontal-pod-autoscaler-downscale-stabilization`, which cannot be read through the API.
/// Assuming that flag's default could leave a variant without any window, so a window that is not
/// set counts as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Windows {
    /// Before it adds replicas.
    pub up: Seconds,
    /// Before it removes replicas.
    pub down: Seconds,
}

/// An HPA that reads a variant's desired replicas and follows them exactly, except for its
/// tolerance.
#[derive(Clone, Debug, PartialEq)]
pub struct HpaFollower {
    /// The HPA's name.
    pub hpa: String,
    /// Its tolerances.
    pub tolerances: Tolerances,
    /// Its stabilization windows.
    pub windows: Windows,
}

/// A change of desired replicas that an HPA does not act on.
#[derive(Clone, Debug, PartialEq)]
pub struct IgnoredChange {
    /// The HPA's name.
    pub hpa: String,
    /// The replicas that exist.
    pub current: Replicas,
    /// The desired replicas that the HPA ignores.
    pub desired: Replicas,
    /// The direction of the ignored change.
    pub direction: Direction,
    /// The tolerance that hides the change.
    pub tolerance: Fraction,
}

/// The direction of a change of replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// More replicas.
    Up,
    /// Fewer replicas.
    Down,
}

/// A problem that keeps an HPA from following a variant's desired replicas.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Finding {
    /// The HPA compares the metric by a target type other than `AverageValue`.
    WrongTargetType {
        /// The HPA's name.
        hpa: String,
        /// The metric that it reads.
        metric: String,
        /// The type that it uses.
        found: String,
    },
    /// The HPA divides the metric by a value other than 1.
    WrongAverageValue {
        /// The HPA's name.
        hpa: String,
        /// The metric that it reads.
        metric: String,
        /// The divisor that it uses.
        found: String,
    },
    /// No HPA acts on the desired replicas: the target's HPA does not read them, or there is none.
    NotRead {
        /// The scale target's HPA, if there is one.
        hpa: Option<String>,
    },
    /// KEDA is paused, so it leaves the replicas alone.
    Paused {
        /// The `ScaledObject`'s name.
        scaled_object: String,
        /// The kind of pause.
        how: ScaledObjectPause,
    },
}

// === impl HpaFacts ===

impl HpaFacts {
    /// Reads the object.
    pub(crate) fn new(object: HorizontalPodAutoscaler) -> Self {
        let HorizontalPodAutoscaler { metadata, spec: written, status: _ } = object;
        let spec = written.unwrap_or_default();
        let api_version = spec.scale_target_ref.api_version.as_deref().unwrap_or_default();
        let labels = metadata.labels.as_ref();
        let made_for = labels.and_then(|labels| labels.get(MADE_FOR)).cloned();
        // KEDA copies the annotations of a `ScaledObject` to the HPA that it creates for it.
        let marked = if made_for.is_some() { None } else { marked(&metadata, &spec) };

        Self {
            group: group_of(api_version).to_owned(),
            kind: spec.scale_target_ref.kind.clone(),
            target: spec.scale_target_ref.name.clone(),
            bounds: bounds(&spec),
            made_for,
            marked,
            tolerances: tolerances(&spec),
            windows: windows(&spec),
            reads: reads(spec),
        }
    }

    /// Returns the follower if this HPA follows the variant's desired replicas, and the problems in
    /// how it reads them.
    pub(crate) fn follow(
        &self,
        name: &str,
        variant: &VariantName,
    ) -> (Option<HpaFollower>, Vec<Finding>) {
        let mut follower = None;
        let mut findings = Vec::new();
        let ours = self
            .reads
            .iter()
            .filter(|read| read.variant.as_ref().is_none_or(|name| name == variant.as_str()));
        for read in ours {
            let hpa = name.to_owned();
            let metric = read.metric.clone();
            match &read.target {
                TargetValue::Average(found) if is_one(found) => {
                    let tolerances = self.tolerances;
                    let windows = self.windows;
                    follower = Some(HpaFollower { hpa, tolerances, windows });
                }
                TargetValue::Average(found) => {
                    findings.push(Finding::WrongAverageValue { hpa, metric, found: found.clone() });
                }
                TargetValue::Other(found) => {
                    findings.push(Finding::WrongTargetType { hpa, metric, found: found.clone() });
                }
            }
        }

        if follower.is_none() && findings.is_empty() {
            findings.push(Finding::NotRead { hpa: Some(name.to_owned()) });
        }

        (follower, findings)
    }
}

fn marked(metadata: &ObjectMeta, spec: &HorizontalPodAutoscalerSpec) -> Option<AnnotatedObject> {
    let object = ObjectRef::of("autoscaling/v2", "HorizontalPodAutoscaler", metadata);
    let reference = &spec.scale_target_ref;
    let target = WantedTarget::Scale {
        api_version: reference.api_version.clone().unwrap_or_default(),
        kind: reference.kind.clone(),
        name: reference.name.clone(),
    };

    AnnotatedObject::new(object, ObjectRole::Hpa, target, metadata)
}

fn bounds(spec: &HorizontalPodAutoscalerSpec) -> Option<Bounds> {
    // The API server's default minimum is 1.
    Bounds::new(count(spec.min_replicas.unwrap_or(1))?, Some(count(spec.max_replicas)?))
}

fn count(n: i32) -> Option<Replicas> {
    u32::try_from(n).ok().map(Replicas::saturating)
}

fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    let behavior = spec.behavior.as_ref();
    Tolerances {
        up: tolerance(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        down: tolerance(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
    }
}

fn tolerance(rules: Option<&HPAScalingRules>) -> Fraction {
    rules
        .and_then(|rules| rules.tolerance.as_ref())
        .and_then(|tolerance| quantity(&tolerance.0))
        .and_then(Fraction::new)
        .or_else(|| Fraction::new(DEFAULT_TOLERANCE))
        .unwrap_or_default()
}

fn windows(spec: &HorizontalPodAutoscalerSpec) -> Windows {
    let behavior = spec.behavior.as_ref();
    Windows {
        up: window(behavior.and_then(|behavior| behavior.scale_up.as_ref())),
        down: window(behavior.and_then(|behavior| behavior.scale_down.as_ref())),
    }
}

fn window(rules: Option<&HPAScalingRules>) -> Seconds {
    let stated = rules.and_then(|rules| rules.stabilization_window_seconds);
    stated.and_then(|seconds| Seconds::new(f64::from(seconds))).unwrap_or_default()
}

fn reads(spec: HorizontalPodAutoscalerSpec) -> Vec<ExternalMetric> {
    let external = spec.metrics.into_iter().flatten().filter_map(|metric| metric.external);

    external
        .filter(|external| METRICS.contains(&external.metric.name.as_str()) || is_keda(external))
        .map(|external| ExternalMetric {
            metric: external.metric.name,
            variant: external
                .metric
                .selector
                .and_then(|selector| selector.match_labels)
                .and_then(|labels| VARIANT_LABELS.iter().find_map(|key| labels.get(*key).cloned())),
            target: target_value(external.target),
        })
        .collect()
}

/// Returns true if this metric of a KEDA prometheus trigger can only be desired replicas. The HPA
/// does not contain the query, but no other metric is divided by 1.
fn is_keda(external: &ExternalMetricSource) -> bool {
    let trigger = external.metric.name.strip_prefix('s').and_then(|rest| rest.split_once('-'));
    let is_prometheus = trigger.is_some_and(|(index, kind)| {
        index.bytes().all(|byte| byte.is_ascii_digit()) && kind.starts_with("prometheus")
    });
    let labels = external.metric.selector.as_ref().and_then(|it| it.match_labels.as_ref());
    let by_one = external.target.average_value.as_ref().is_some_and(|average| is_one(&average.0));
    is_prometheus && by_one && labels.is_some_and(|labels| labels.contains_key(KEDA_LABEL))
}

/// Returns the target to compare with. The HPA controller prefers an average value to any other
/// field, whatever the type.
fn target_value(target: MetricTarget) -> TargetValue {
    let MetricTarget { average_value, average_utilization: _, type_, value: _ } = target;
    average_value.map_or(TargetValue::Other(type_), |average| TargetValue::Average(average.0))
}

fn is_one(text: &str) -> bool {
    quantity(text).is_some_and(|value| (value - 1.0).abs() < 1e-9)
}

/// Parses a Kubernetes quantity; `None` if the text is not one.
fn quantity(text: &str) -> Option<f64> {
    const SUFFIXES: [(&str, f64); 16] = [
        ("Ki", 1024.0),
        ("Mi", 1_048_576.0),
        ("Gi", 1_073_741_824.0),
        ("Ti", 1_099_511_627_776.0),
        ("Pi", 1_125_899_906_842_624.0),
        ("Ei", 1_152_921_504_606_846_976.0),
        ("n", 1e-9),
        ("u", 1e-6),
        ("m", 1e-3),
        ("k", 1e3),
        ("M", 1e6),
        ("G", 1e9),
        ("T", 1e12),
        ("P", 1e15),
        ("E", 1e18),
        ("", 1.0),
    ];

    let (digits, factor) = SUFFIXES
        .iter()
        .find_map(|(suffix, factor)| text.strip_suffix(suffix).map(|digits| (digits, factor)))?;
    // `f64::from_str` also accepts words such as `inf`, which are not quantities.
    let numeric = digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c))
        && digits.ends_with(|c: char| c.is_ascii_digit() || c == '.');
    numeric.then(|| digits.parse::<f64>().ok()).flatten().map(|value| value * factor)
}

// === impl HpaFollower ===

impl HpaFollower {
    /// Returns the ignored change if the HPA will keep `current` replicas although `desired`
    /// differs.
    ///
    /// # Model
    ///
    /// `ratio = desired / current`; the HPA proposes `current` while `1 - down <= ratio <= 1 + up`,
    /// both ends included, and `desired` otherwise. With `current` at 0, the ratio is infinite or
    /// undefined, and both are outside the band.
    ///
    /// # Source
    ///
    /// Kubernetes 1.33 and later, `pkg/controller/podautoscaler/replica_calculator.go`. Older
    /// releases compare `|1 - ratio| <= tolerance`, which differs only on the boundary.
    #[must_use]
    pub fn ignored(&self, current: Replicas, desired: Replicas) -> Option<IgnoredChange> {
        if current == desired || current == Replicas::ZERO {
            return None;
        }

        let Tolerances { up, down } = self.tolerances;
        let ratio = f64::from(desired.count()) / f64::from(current.count());
        let within = (1.0 - down.fraction()..=1.0 + up.fraction()).contains(&ratio);
        let (direction, tolerance) =
            if desired > current { (Direction::Up, up) } else { (Direction::Down, down) };
        within.then(|| IgnoredChange {
            hpa: self.hpa.clone(),
            current,
            desired,
            direction,
            tolerance,
        })
    }
}

// === impl IgnoredChange ===

impl IgnoredChange {
    /// The lines to merge into the HPA's manifest so that it follows desired replicas exactly.
    ///
    /// They set both directions, because replicas that scale up by one also scale down by one.
    #[must_use]
    pub fn remedy(&self) -> String {
        "spec:\n  behavior:\n    scaleUp:\n      tolerance: \"0\"\n    scaleDown:\n      tolerance: \"0\"\n"
            .to_owned()
    }
}

impl fmt::Display for IgnoredChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { hpa, current, desired, direction, tolerance } = self;
        write!(
            f,
            "HPA {hpa} keeps {current} replicas although {desired} are desired: the difference is \
             within its {} tolerance of {:.1} %",
            direction.label(),
            tolerance.fraction() * 100.0
        )
    }
}

impl Direction {
    /// The direction, named as the HPA's fields name it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Up => "scaleUp",
            Self::Down => "scaleDown",
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WrongTargetType { hpa, metric, found } => write!(
                f,
                "HPA {hpa} reads {metric} with target type {found}, which multiplies it by the \
                 ready pods: use type AverageValue with averageValue \"1\""
            ),
            Self::WrongAverageValue { hpa, metric, found } => write!(
                f,
                "HPA {hpa} divides {metric} by {found}: set averageValue to \"1\" to get the \
                 desired number of replicas"
            ),
            Self::NotRead { hpa: Some(hpa) } => {
                write!(f, "HPA {hpa} scales the target but does not read the desired number")
            }
            Self::NotRead { hpa: None } => f.write_str("no HPA scales the target"),
            Self::Paused { scaled_object, how: ScaledObjectPause::AsItIs } => {
                write!(f, "KEDA is paused by an annotation of ScaledObject {scaled_object}")
            }
            Self::Paused { scaled_object, how: ScaledObjectPause::At(replicas) } => write!(
                f,
                "KEDA is paused at {replicas} replicas by an annotation of ScaledObject \
                 {scaled_object}"
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn hpa(target: &Value, behavior: &Value) -> HpaFacts {
        let object = json!({
            "spec": {
                "maxReplicas": 64,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
                "metrics": [{"type": "External", "external": {
                    "metric": {"name": "plimsoll_desired_replicas",
                               "selector": {"matchLabels": {"variant": "llama"}}},
                    "target": target,
                }}],
                "behavior": behavior,
            }
        });

        HpaFacts::new(serde_json::from_value(object).unwrap())
    }

    fn average(value: &str) -> Value {
        json!({"type": "AverageValue", "averageValue": value})
    }

    fn variant() -> VariantName {
        VariantName::new("llama").unwrap()
    }

    fn replicas(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    #[test]
    fn a_window_counts_only_if_it_is_stated() {
        let stated = json!({"scaleUp": {"stabilizationWindowSeconds": 30},
            "scaleDown": {"stabilizationWindowSeconds": 120}});
        for (behavior, want) in [
            (json!(null), (0.0, 0.0)),
            (stated, (30.0, 120.0)),
            (json!({"scaleDown": {"tolerance": "0"}}), (0.0, 0.0)),
        ] {
            let (follower, _) = hpa(&average("1"), &behavior).follow("llama", &variant());
            let Windows { up, down } = follower.unwrap().windows;
            assert_eq!((up.seconds(), down.seconds()), want, "{behavior}");
        }
    }

    /// Follows the HPA that KEDA creates for a trigger with this metric.
    fn keda(name: &str, label: &str, average: &str) -> (Option<HpaFollower>, Vec<Finding>) {
        let object = json!({"spec": {
            "maxReplicas": 9,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
            "metrics": [{"type": "External", "external": {
                "metric": {"name": name, "selector": {"matchLabels": {label: "llama"}}},
                "target": {"type": "AverageValue", "averageValue": average},
            }}],
        }});

        HpaFacts::new(serde_json::from_value(object).unwrap()).follow("keda-hpa-llama", &variant())
    }

    #[test]
    fn the_hpa_of_a_prometheus_trigger_of_keda_follows_where_its_threshold_is_1() {
        let (follower, findings) = keda("s0-prometheus", KEDA_LABEL, "1");
        assert_eq!(follower.unwrap().hpa, "keda-hpa-llama");
        assert_eq!(findings, []);

        for (name, label, average) in [
            ("s0-prometheus", KEDA_LABEL, "50"),
            ("s0-kafka-lag", KEDA_LABEL, "1"),
            ("s0-prometheus", "app", "1"),
            ("some-prometheus", KEDA_LABEL, "1"),
        ] {
            let (follower, findings) = keda(name, label, average);
            assert_eq!(follower, None, "{name} {label} {average}");
            assert_eq!(findings, [Finding::NotRead { hpa: Some("keda-hpa-llama".to_owned()) }]);
        }
    }

    #[test]
    fn quantities_read_as_kubernetes_writes_them() {
        for (text, value) in [
            ("0", Some(0.0)),
            ("1", Some(1.0)),
            ("1000m", Some(1.0)),
            (".5", Some(0.5)),
            ("5.", Some(5.0)),
            ("1e3", Some(1000.0)),
            ("1E", Some(1e18)),
            ("2Ki", Some(2048.0)),
            ("", None),
            ("inf", None),
            ("nan", None),
            ("one", None),
            ("m", None),
        ] {
            assert_eq!(quantity(text), value, "{text}");
        }
    }

    #[test]
    fn a_number_inside_the_band_is_ignored_and_outside_it_is_not() {
        for (behavior, current, desired, ignored) in [
            // The default of 10%, both ends included.
            (json!({}), 10, 11, true),
            (json!({}), 10, 9, true),
            (json!({}), 10, 12, false),
            (json!({}), 9, 10, false),
            (json!({}), 20, 22, true),
            (json!({}), 20, 23, false),
            (json!({}), 10, 10, false),
            (json!({}), 0, 3, false),
            (json!({}), 3, 0, false),
            // Each direction has its own tolerance.
            (json!({"scaleUp": {"tolerance": "0"}}), 10, 11, false),
            (json!({"scaleUp": {"tolerance": "0"}}), 10, 9, true),
            (json!({"scaleDown": {"tolerance": "0"}}), 10, 9, false),
            (json!({"scaleDown": {"tolerance": "0"}}), 10, 11, true),
            (json!({"scaleUp": {"tolerance": "50m"}}), 10, 11, false),
            (json!({"scaleUp": {"tolerance": "500m"}}), 10, 15, true),
        ] {
            let (follower, findings) = hpa(&average("1"), &behavior).follow("llama", &variant());
            assert_eq!(findings, []);
            let found = follower.unwrap().ignored(replicas(current), replicas(desired));
            assert_eq!(found.is_some(), ignored, "{behavior} {current} -> {desired}: {found:?}");
        }
    }

    #[test]
    fn the_remedy_makes_the_hpa_follow_what_it_ignored() {
        let (follower, _) = hpa(&average("1"), &json!({})).follow("llama", &variant());
        let ignored = follower.unwrap().ignored(replicas(10), replicas(11)).unwrap();
        assert_eq!(
            ignored.to_string(),
            "HPA llama keeps 10 replicas although 11 are desired: the difference is within its \
             scaleUp tolerance of 10.0 %"
        );
        assert_eq!(
            ignored.remedy(),
            "spec:\n  behavior:\n    scaleUp:\n      tolerance: \"0\"\n    scaleDown:\n      \
             tolerance: \"0\"\n"
        );

        let remedied = json!({"scaleUp": {"tolerance": "0"}, "scaleDown": {"tolerance": "0"}});
        let (follower, _) = hpa(&average("1"), &remedied).follow("llama", &variant());
        assert_eq!(follower.unwrap().ignored(replicas(10), replicas(11)), None);
    }

    #[test]
    fn what_keeps_an_hpa_from_following_is_found() {
        let hpa_name = "llama".to_owned();
        let metric = "plimsoll_desired_replicas".to_owned();
        let wrong_type = Finding::WrongTargetType {
            hpa: hpa_name.clone(),
            metric: metric.clone(),
            found: "Value".to_owned(),
        };
        let wrong_value =
            Finding::WrongAverageValue { hpa: hpa_name.clone(), metric, found: "2".to_owned() };

        for (target, findings) in [
            (average("1"), vec![]),
            (average("1000m"), vec![]),
            // An average value wins over the type.
            (json!({"type": "Value", "averageValue": "1"}), vec![]),
            (json!({"type": "Value", "value": "1"}), vec![wrong_type]),
            (average("2"), vec![wrong_value]),
        ] {
            let found = hpa(&target, &json!({})).follow("llama", &variant());
            assert_eq!(found.1, findings, "{target}");
            assert_eq!(found.0.is_some(), findings.is_empty(), "{target}");
        }
    }

    #[test]
    fn an_hpa_that_reads_another_variants_number_does_not_read_this_one() {
        let other = VariantName::new("other").unwrap();
        let (follower, findings) = hpa(&average("1"), &json!({})).follow("llama", &other);
        assert_eq!(follower, None);
        assert_eq!(findings, [Finding::NotRead { hpa: Some("llama".to_owned()) }]);
    }

    #[test]
    fn a_missing_minimum_is_one() {
        let hpa = hpa(&average("1"), &json!({}));
        assert_eq!(hpa.bounds, Bounds::new(Replicas::ONE, Some(replicas(64))));
    }
}
