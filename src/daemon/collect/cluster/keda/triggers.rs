//! The triggers of a `ScaledObject`, and whether they read desired replicas.
//!
//! Three kinds of triggers can: `prometheus` with a query of the gauge, `metrics-api` with the URL of
//! the JSON API, and `external` or `external-push` with the key `variant`.
//!
//! # Source
//!
//! KEDA 2.21, `pkg/scalers/prometheus_scaler.go`, `metrics_api_scaler.go` and `external_scaler.go`.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::collect::cluster::keda::fault::ScaledObjectFault;
use crate::collect::cluster::served::METRICS;
use plimsoll_core::fleet::VariantKey;

/// The maximum triggers of a `ScaledObject` that are looked at.
const TRIGGERS_MAX: usize = 32;

/// The maximum bytes of a value in a trigger's metadata that are looked at.
const VALUE_MAX: usize = 4096;

/// The path of the JSON API that a `metrics-api` trigger reads.
const JSON_PATH: &str = "/api/v1/desired";

/// The field of its response.
const JSON_FIELD: &str = "replicas";

/// A trigger that may read desired replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trigger {
    /// Its place and type, for people.
    label: String,
    kind: TriggerKind,
    metric_type: Option<String>,
    metadata: BTreeMap<String, String>,
}

/// The type of a trigger that may read desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TriggerKind {
    Prometheus,
    MetricsApi,
    External,
}

/// Returns the triggers of a `ScaledObject` that may read desired replicas.
pub(super) fn triggers(spec: &Value) -> Vec<Trigger> {
    let written = spec.get("triggers").and_then(Value::as_array).map(Vec::as_slice);
    let first = written.unwrap_or_default().iter().enumerate().take(TRIGGERS_MAX);
    first.filter_map(|(place, trigger)| Trigger::new(place, trigger)).collect()
}

// === impl Trigger ===

impl Trigger {
    fn new(place: usize, written: &Value) -> Option<Self> {
        let name = written.get("type").and_then(Value::as_str)?;
        let kind = match name {
            "prometheus" => TriggerKind::Prometheus,
            "metrics-api" => TriggerKind::MetricsApi,
            "external" | "external-push" => TriggerKind::External,
            _ => return None,
        };

        let values = written.get("metadata").and_then(Value::as_object).into_iter().flatten();
        let metadata = values.filter_map(|(key, value)| {
            let text = value.as_str()?;
            let looked_at = &text[..text.floor_char_boundary(VALUE_MAX)];
            kind.reads_key(key).then(|| (key.clone(), looked_at.to_owned()))
        });
        let metric_type = written.get("metricType").and_then(Value::as_str);

        Some(Self {
            label: format!("trigger {place} ({name})"),
            kind,
            metric_type: metric_type.filter(|it| !it.is_empty()).map(str::to_owned),
            metadata: metadata.collect(),
        })
    }

    /// Returns true if the trigger reads the desired replicas of this variant.
    pub(super) fn reads(&self, variant: &VariantKey) -> bool {
        let name = variant.variant.as_str();
        match self.kind {
            TriggerKind::Prometheus => {
                let query = self.value("query");
                METRICS.iter().any(|metric| query.contains(metric))
                    && (!query.contains("variant") || query.contains(&format!("\"{name}\"")))
            }
            TriggerKind::MetricsApi => {
                let Some((base, query)) = self.value("url").split_once('?') else { return false };
                base.ends_with(JSON_PATH)
                    && parameter(query, "variant").as_deref() == Some(name)
                    && parameter(query, "namespace").as_deref() == Some(variant.namespace.as_str())
            }
            TriggerKind::External => self.value("variant") == name,
        }
    }

    /// Returns the problems of a trigger that reads desired replicas.
    pub(super) fn faults(&self) -> Vec<ScaledObjectFault> {
        let mut faults = Vec::new();
        if self.kind == TriggerKind::Prometheus && !is_false(self.value("ignoreNullValues")) {
            faults.push(ScaledObjectFault::NullIsZero { trigger: self.label.clone() });
        }

        let found = self.value("valueLocation").to_owned();
        if self.kind == TriggerKind::MetricsApi && found != JSON_FIELD {
            faults
                .push(ScaledObjectFault::WrongValueLocation { trigger: self.label.clone(), found });
        }

        if let Some((key, activation)) = self.kind.thresholds() {
            let found = self.value(key).to_owned();
            if !is_about(&found, 1.0) {
                faults.push(ScaledObjectFault::WrongThreshold {
                    trigger: self.label.clone(),
                    key,
                    found,
                });
            }

            let found = self.value(activation).to_owned();
            if !found.is_empty() && !is_about(&found, 0.0) {
                let key = activation;
                let trigger = self.label.clone();
                faults.push(ScaledObjectFault::ActivationAboveZero { trigger, key, found });
            }
        }

        if let Some(found) = self.metric_type.clone().filter(|found| found != "AverageValue") {
            faults.push(ScaledObjectFault::WrongMetricType { trigger: self.label.clone(), found });
        }
        if self.metadata.contains_key("metricType") {
            faults.push(ScaledObjectFault::MisplacedMetricType { trigger: self.label.clone() });
        }

        faults
    }

    fn value(&self, key: &str) -> &str {
        self.metadata.get(key).map(String::as_str).unwrap_or_default()
    }
}

// === impl TriggerKind ===

impl TriggerKind {
    /// Returns true if a key of the metadata matters.
    fn reads_key(self, key: &str) -> bool {
        let own: &[&str] = match self {
            Self::Prometheus => &["query", "ignoreNullValues"],
            Self::MetricsApi => &["url", "valueLocation"],
            Self::External => &["variant"],
        };
        let of_thresholds = self.thresholds().is_some_and(|(one, two)| key == one || key == two);
        own.contains(&key) || of_thresholds || key == "metricType"
    }

    /// Returns the keys of the target value and of the activation threshold. The server of an
    /// external scaler provides the first, and knows no second.
    const fn thresholds(self) -> Option<(&'static str, &'static str)> {
        match self {
            Self::Prometheus => Some(("threshold", "activationThreshold")),
            Self::MetricsApi => Some(("targetValue", "activationTargetValue")),
            Self::External => None,
        }
    }
}

/// Returns the value of a parameter in the query of a URL.
fn parameter(query: &str, wanted: &str) -> Option<String> {
    let mut pairs = form_urlencoded::parse(query.as_bytes());
    pairs.find(|(key, _)| key == wanted).map(|(_, value)| value.into_owned())
}

/// Returns true if a text is a number as near to `value` as KEDA compares, in thousandths.
fn is_about(text: &str, value: f64) -> bool {
    text.trim().parse::<f64>().is_ok_and(|number| (number - value).abs() < 0.000_5)
}

/// Returns true if Go reads a text as false.
pub(super) fn is_false(text: &str) -> bool {
    matches!(text, "0" | "f" | "F" | "false" | "False" | "FALSE")
}
