//! The metrics that an HPA reads, and the variants that their selectors match.

use std::collections::BTreeSet;

use k8s_openapi::api::autoscaling::v2::{
    ExternalMetricSource, HorizontalPodAutoscalerSpec, MetricSpec, MetricTarget, ObjectMetricSource,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, LabelSelectorRequirement};

use crate::collect::cluster::hpa::finding::{Finding, NAMES_MAX};
use crate::collect::cluster::hpa::quantity::is_one;
use crate::collect::cluster::served::{METRICS, SCALER_METRIC};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::fleet::selector::{Selector, is_label_key, is_label_value};

/// The label by which the metrics of KEDA's HPAs are selected.
pub(super) const KEDA_LABEL: &str = "scaledobject.keda.sh/name";

/// The labels by which an HPA's metric selector names a variant.
const VARIANT_LABELS: [&str; 2] = ["variant", "variant_name"];

/// The labels by which an HPA's metric selector names a variant's namespace.
const NAMESPACE_LABELS: [&str; 2] = ["namespace", "exported_namespace"];

/// The metrics of an HPA.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct HpaMetrics {
    /// The desired replicas that it reads, of any variant.
    desired: Vec<DesiredMetric>,
    /// The names of its other metrics.
    others: Vec<String>,
}

/// One External or Object metric of a known name in an HPA.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct DesiredMetric {
    metric: String,
    selector: MetricSelector,
    target: TargetValue,
}

/// The selector of a metric.
#[derive(Clone, Debug, PartialEq)]
enum MetricSelector {
    /// It matches these labels.
    Labels(Selector),
    /// It is the trigger of a `ScaledObject`, whose query is not in the HPA.
    Trigger,
    /// It is invalid, for this reason.
    Invalid(String),
}

/// The way in which an HPA compares a metric.
#[derive(Clone, Debug, PartialEq)]
enum TargetValue {
    /// By its share per replica.
    Average(String),
    /// By this target type.
    Other(String),
}

// === impl HpaMetrics ===

impl HpaMetrics {
    /// Reads the metrics of an HPA.
    pub(super) fn new(spec: HorizontalPodAutoscalerSpec) -> Self {
        let mut metrics = Self::default();
        for metric in spec.metrics.into_iter().flatten() {
            match (metric.external, metric.object) {
                (Some(external), _) if is_desired(&external) => {
                    metrics.desired.push(DesiredMetric::external(external));
                }
                (_, Some(object)) if METRICS.contains(&object.metric.name.as_str()) => {
                    metrics.desired.push(DesiredMetric::object(object));
                }
                (external, object) => {
                    metrics.others.push(name(MetricSpec { external, object, ..metric }));
                }
            }
        }

        metrics
    }

    /// The metrics that can have this variant's desired replicas.
    pub(super) fn of(&self, variant: &VariantKey) -> Vec<&DesiredMetric> {
        self.desired.iter().filter(|metric| metric.covers(variant) != Some(false)).collect()
    }

    /// The metrics that do not have this variant's desired replicas.
    pub(super) fn besides(&self, variant: &VariantKey) -> Vec<String> {
        let desired = self.desired.iter().filter(|metric| metric.covers(variant) == Some(false));
        desired.map(DesiredMetric::label).chain(self.others.iter().cloned()).collect()
    }
}

fn is_desired(external: &ExternalMetricSource) -> bool {
    METRICS.contains(&external.metric.name.as_str()) || is_keda(external)
}

/// Returns true if this metric of a KEDA trigger can only be desired replicas. The external scaler's
/// has a name of its own. The HPA does not contain the query or the URL of the other triggers, but
/// no other metric is divided by 1.
fn is_keda(external: &ExternalMetricSource) -> bool {
    let trigger = external.metric.name.strip_prefix('s').and_then(|rest| rest.split_once('-'));
    let kind = trigger
        .filter(|(index, _)| index.bytes().all(|byte| byte.is_ascii_digit()))
        .map(|(_, name)| name)
        .unwrap_or_default();
    let is_named = kind == SCALER_METRIC;
    let is_possible = kind.starts_with("prometheus") || kind.starts_with("metric-api-");
    let labels = external.metric.selector.as_ref().and_then(|it| it.match_labels.as_ref());
    let by_one = external.target.average_value.as_ref().is_some_and(|average| is_one(&average.0));
    (is_named || is_possible && by_one)
        && labels.is_some_and(|labels| labels.contains_key(KEDA_LABEL))
}

/// Returns the name of a metric for people.
fn name(metric: MetricSpec) -> String {
    let MetricSpec { container_resource, external, object, pods, resource, type_ } = metric;
    let name = resource
        .map(|it| it.name)
        .or(container_resource.map(|it| it.name))
        .or(external.map(|it| it.metric.name))
        .or(object.map(|it| it.metric.name))
        .or(pods.map(|it| it.metric.name));
    name.map_or(type_.clone(), |name| format!("{name} ({type_})"))
}

// === impl DesiredMetric ===

impl DesiredMetric {
    fn external(external: ExternalMetricSource) -> Self {
        let selector = if METRICS.contains(&external.metric.name.as_str()) {
            MetricSelector::new(external.metric.selector.unwrap_or_default())
        } else {
            MetricSelector::Trigger
        };
        Self { metric: external.metric.name, selector, target: target_value(external.target) }
    }

    /// Without a selector, the metric is of the variant with the name of the object.
    fn object(object: ObjectMetricSource) -> Self {
        let ObjectMetricSource { described_object, metric, target } = object;
        let mut selector = metric.selector.unwrap_or_default();
        if selector == LabelSelector::default() {
            let variant = (VARIANT_LABELS[0].to_owned(), described_object.name);
            selector.match_labels = Some([variant].into());
        }

        Self {
            metric: metric.name,
            selector: MetricSelector::new(selector),
            target: target_value(target),
        }
    }

    /// Returns the problem for which the HPA does not compute the metric's value, if any.
    pub(super) fn misread(&self, name: &str) -> Option<Finding> {
        let hpa = name.to_owned();
        let metric = self.metric.clone();
        match (&self.selector, &self.target) {
            (MetricSelector::Invalid(found), _) => {
                Some(Finding::WrongSelector { hpa, metric, found: found.clone() })
            }
            (_, TargetValue::Average(found)) if is_one(found) => None,
            (_, TargetValue::Average(found)) => {
                Some(Finding::WrongAverageValue { hpa, metric, found: found.clone() })
            }
            (_, TargetValue::Other(found)) => {
                Some(Finding::WrongTargetType { hpa, metric, found: found.clone() })
            }
        }
    }

    /// Returns the problem that the metric is not of this variant alone, if that is certain.
    pub(super) fn summed(
        &self,
        hpa: &str,
        variant: &VariantKey,
        neighbors: &BTreeSet<&str>,
    ) -> Option<Finding> {
        let MetricSelector::Labels(selector) = &self.selector else { return None };
        let others = others(selector, variant, neighbors);
        let is_open = selector.keys().all(|key| NAMESPACE_LABELS.contains(&key));
        (is_open || !others.is_empty()).then(|| Finding::SumsVariants {
            hpa: hpa.to_owned(),
            metric: self.metric.clone(),
            selector: selector.to_string(),
            others,
            variant: variant.variant.to_string(),
        })
    }

    fn covers(&self, variant: &VariantKey) -> Option<bool> {
        match &self.selector {
            MetricSelector::Labels(selector) => {
                covers(selector, variant.namespace.as_str(), variant.variant.as_str())
            }
            MetricSelector::Trigger => Some(true),
            MetricSelector::Invalid(_) => None,
        }
    }

    fn label(&self) -> String {
        let Self { metric, selector, target: _ } = self;
        match selector {
            MetricSelector::Labels(selector) => format!("{metric} of {selector}"),
            MetricSelector::Trigger | MetricSelector::Invalid(_) => metric.clone(),
        }
    }
}

/// Returns the target to compare with. The HPA controller prefers an average value to any other
/// field, whatever the type.
fn target_value(target: MetricTarget) -> TargetValue {
    let MetricTarget { average_value, average_utilization: _, type_, value: _ } = target;
    average_value.map_or(TargetValue::Other(type_), |average| TargetValue::Average(average.0))
}

// === selectors ===

/// Returns true if a selector matches a variant; `None` if that depends on unknown labels, such as
/// its model.
fn covers(selector: &Selector, namespace: &str, variant: &str) -> Option<bool> {
    let known = |key: &str| {
        if VARIANT_LABELS.contains(&key) {
            // Other names are not label values, and are published under another value.
            Some(variant).filter(|name| is_label_value(name))
        } else {
            Some(namespace).filter(|_| NAMESPACE_LABELS.contains(&key))
        }
    };

    if !selector.on_keys(|key| known(key).is_some()).accepts(known) {
        return Some(false);
    }
    selector.keys().all(|key| known(key).is_some()).then_some(true)
}

/// Returns other variants of the namespace that the selector certainly matches, at most one more
/// than a message names.
fn others(selector: &Selector, variant: &VariantKey, neighbors: &BTreeSet<&str>) -> Vec<String> {
    let listed = VARIANT_LABELS.iter().find_map(|key| selector.listed_values(key));
    let candidates: Vec<&str> = match listed {
        Some(values) => values.into_iter().filter(|name| neighbors.contains(name)).collect(),
        None => neighbors.iter().copied().collect(),
    };

    let namespace = variant.namespace.as_str();
    candidates
        .into_iter()
        .filter(|name| *name != variant.variant.as_str())
        .filter(|name| covers(selector, namespace, name) == Some(true))
        .take(NAMES_MAX + 1)
        .map(str::to_owned)
        .collect()
}

// === impl MetricSelector ===

impl MetricSelector {
    /// Reads a selector as an HPA controller does, which sends it as text. Without a selector, the
    /// text is empty and matches everything.
    fn new(selector: LabelSelector) -> Self {
        let LabelSelector { match_labels, match_expressions } = selector;
        let labels = match_labels.into_iter().flatten().map(|(key, value)| {
            LabelSelectorRequirement { key, operator: "In".to_owned(), values: Some(vec![value]) }
        });
        let requirements: Result<Vec<String>, String> =
            labels.chain(match_expressions.into_iter().flatten()).map(requirement).collect();
        let parsed = requirements
            .and_then(|texts| texts.join(",").parse().map_err(|error| format!("{error}")));
        parsed.map_or_else(Self::Invalid, Self::Labels)
    }
}

fn requirement(requirement: LabelSelectorRequirement) -> Result<String, String> {
    let LabelSelectorRequirement { key, operator, values: listed } = requirement;
    let values = listed.unwrap_or_default();
    if !is_label_key(&key) {
        return Err(format!("{key:?} is not a label key"));
    }
    if let Some(value) = values.iter().find(|value| !is_label_value(value)) {
        return Err(format!("{value:?} is not a label value"));
    }

    match (operator.as_str(), values.as_slice()) {
        ("In", [value]) => Ok(format!("{key}={value}")),
        ("In", [_, ..]) => Ok(format!("{key} in ({})", values.join(","))),
        ("NotIn", [_, ..]) => Ok(format!("{key} notin ({})", values.join(","))),
        ("Exists", []) => Ok(key),
        ("DoesNotExist", []) => Ok(format!("!{key}")),
        _ => Err(format!("operator {operator:?} does not take {} values", values.len())),
    }
}
