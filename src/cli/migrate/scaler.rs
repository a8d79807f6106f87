//! HPAs and `ScaledObject`s that follow Plimsoll's number.
//!
//! Everything that does not decide the number of replicas stays as it is written: the target, the
//! bounds, labels, and the windows and policies of an HPA's behavior.

use serde_json::{Map, Value, json};

use crate::cli::migrate::migration::Migration;
use crate::cli::migrate::object::{Manifest, text};
use plimsoll_core::observe::engine::Engine;

/// The metric with desired replicas.
pub(super) const METRIC: &str = "plimsoll_desired_replicas";

/// The metric with the age of the decision behind it.
const AGE: &str = "plimsoll_decision_age_seconds";

/// The Workload Variant Autoscaler's metric.
pub(super) const WVA_METRIC: &str = "wva_desired_replicas";

/// Parts of the names of metrics that engines' gateways and accelerators have. Plimsoll's decision
/// takes the place of these metrics, and of those of the engines.
const SERVING_METRICS: [&str; 5] = ["inference_", "_epp_", "llm_d_", "DCGM_FI_", WVA_METRIC];

/// The labels that name a model in the metrics of engines and gateways.
const MODEL_LABELS: [&str; 3] = ["model_name", "target_model_name", "model"];

/// The types of triggers that follow the load of a container.
const LOAD_TRIGGERS: [&str; 2] = ["cpu", "memory"];

/// Returns true if this text names a metric whose place Plimsoll takes. Names of engines' metrics
/// begin with the engine and a colon, which some collectors replace.
fn is_of_engine(text: &str) -> bool {
    Engine::ALL
        .iter()
        .any(|engine| text.split(engine.label()).skip(1).any(|rest| rest.starts_with([':', '_'])))
        || SERVING_METRICS.iter().any(|part| text.contains(part))
}

/// Returns true if an HPA or a `ScaledObject` reads such a metric.
pub(super) fn reads_engine(object: &Manifest) -> bool {
    let metrics = object.value.pointer("/spec/metrics").and_then(Value::as_array);
    let triggers = object.value.pointer("/spec/triggers").and_then(Value::as_array);
    metrics.into_iter().flatten().any(|metric| is_of_engine(&metric_name(metric)))
        || triggers.into_iter().flatten().any(|trigger| is_of_engine(query(trigger)))
}

/// Returns the model that the selectors and queries of a scaler name.
pub(super) fn model_in_metrics(object: &Manifest) -> Option<String> {
    let metrics = object.value.pointer("/spec/metrics").and_then(Value::as_array);
    let selected = metrics.into_iter().flatten().find_map(|metric| {
        let of_metric = source(metric)?;
        let labels = of_metric.pointer("/metric/selector/matchLabels")?;
        MODEL_LABELS.iter().find_map(|label| labels.get(*label)?.as_str().map(str::to_owned))
    });

    let triggers = object.value.pointer("/spec/triggers").and_then(Value::as_array);
    selected.or_else(|| triggers.into_iter().flatten().find_map(|it| label_in(query(it))))
}

/// Returns the value of a model's label in a query, if it must be equal to one name.
fn label_in(query: &str) -> Option<String> {
    MODEL_LABELS.iter().find_map(|label| {
        let (before, after) = query.split_once(&format!("{label}=\""))?;
        let is_whole = !before.ends_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
        let (value, _) = after.split_once('"').filter(|_| is_whole)?;

        Some(value.to_owned()).filter(|value| !value.is_empty())
    })
}

/// Points an HPA at desired replicas, and notes each change.
pub(super) fn follow_as_hpa(hpa: &mut Manifest, variant: &str, migration: &mut Migration) {
    migration.external = true;
    let before = hpa.clone();
    let version = text(&hpa.value, "/apiVersion").unwrap_or_default().to_owned();

    if version != "autoscaling/v2" {
        hpa.value["apiVersion"] = json!("autoscaling/v2");
        migration.differs_in(&before, format!("becomes autoscaling/v2, from {version}"));
    }

    let Some(spec) = hpa.value.get_mut("spec").and_then(Value::as_object_mut) else { return };

    if let Some(target) = spec.remove("targetCPUUtilizationPercentage") {
        let text = format!("no longer follows CPU ({target}%): Plimsoll reads the engines' load");
        migration.differs_in(&before, text);
    }

    for metric in spec.get("metrics").and_then(Value::as_array).into_iter().flatten() {
        migration.differs_in(&before, replaced(metric));
    }

    spec.insert(
        "metrics".to_owned(),
        json!([{
            "type": "External",
            "external": {
                "metric": {"name": METRIC, "selector": {"matchLabels": {"variant": variant}}},
                "target": {"type": "AverageValue", "averageValue": "1"},
            },
        }]),
    );
    let behavior = spec.entry("behavior".to_owned()).or_insert_with(|| json!({}));
    open(behavior, &before, migration);
}

/// The difference of a metric that an HPA no longer reads.
fn replaced(metric: &Value) -> String {
    let name = metric_name(metric);
    let target = source(metric).and_then(|source| source.get("target"));
    let written = ["averageValue", "value", "averageUtilization"].iter().find_map(|key| {
        let value = target?.get(*key)?;

        Some(value.as_str().map_or_else(|| value.to_string(), str::to_owned))
    });
    let of = written.map_or_else(String::new, |of| format!(" (target {of})"));

    match name.as_str() {
        WVA_METRIC => format!("follows {METRIC} instead of {name}"),
        name if is_of_engine(name) => format!(
            "no longer follows {name}{of}: Plimsoll reads it from the engines, and sizes by the \
             capacity that it has measured instead of a fixed target"
        ),
        name => format!(
            "no longer follows {name}{of}: an HPA follows the metric with the most replicas, so \
             it would override Plimsoll; add it again if that is intended"
        ),
    }
}

/// Opens an HPA's behavior: no tolerance, and where nothing is written, no window and no policies.
fn open(behavior: &mut Value, before: &Manifest, migration: &mut Migration) {
    if !behavior.is_object() {
        *behavior = json!({});
    }

    for (direction, policies) in [
        ("scaleUp", json!([{"type": "Pods", "value": 1000, "periodSeconds": 15}])),
        ("scaleDown", json!([{"type": "Percent", "value": 100, "periodSeconds": 15}])),
    ] {
        let rules = &mut behavior[direction];

        if !rules.is_object() {
            *rules = json!({});
        }
        let Some(rules) = rules.as_object_mut() else { continue };

        if rules.get("selectPolicy").and_then(Value::as_str) == Some("Disabled") {
            let text = format!(
                "behavior.{direction} stays Disabled: the HPA never scales in that \
                direction"
            );
            migration.differs_in(before, text);
        }

        if rules.contains_key("policies") {
            let text = format!(
                "behavior.{direction}.policies stay: they delay changes that enforce.{}.policies \
                 already limits",
                if direction == "scaleUp" { "scale_up" } else { "scale_down" }
            );
            migration.differs_in(before, text);
        } else {
            rules.insert("policies".to_owned(), policies);
        }

        rules.entry("tolerance".to_owned()).or_insert_with(|| json!("0"));

        match rules.get("stabilizationWindowSeconds").and_then(Value::as_u64) {
            None => {
                rules.insert("stabilizationWindowSeconds".to_owned(), json!(0));
            }

            Some(0) => {}
            Some(seconds) => {
                let text = format!(
                    "behavior.{direction} waits {seconds} s as before: Plimsoll subtracts that \
                     from its own window (enforce.defer_to_hpa)"
                );
                migration.differs_in(before, text);
            }
        }
    }
}

/// Points a `ScaledObject` at desired replicas, and notes each change. The trigger reads the
/// Prometheus of the first trigger that it replaces.
///
/// # Errors
///
/// No trigger reads a Prometheus, so it is unknown where KEDA finds them.
pub(super) fn follow_as_scaled_object(
    object: &mut Manifest,
    variant: &str,
    migration: &mut Migration,
) -> Result<(), String> {
    let before = object.clone();
    let namespace = object.namespace.clone();
    let Some(spec) = object.value.get_mut("spec").and_then(Value::as_object_mut) else {
        return Err("has no spec".to_owned());
    };
    let triggers = spec.get("triggers").and_then(Value::as_array).cloned().unwrap_or_default();
    let of_prometheus: Vec<&Value> =
        triggers.iter().filter(|it| text(it, "/type") == Some("prometheus")).collect();
    let engine = of_prometheus.iter().find(|it| is_of_engine(query(it)));
    let Some(model) = engine.or(of_prometheus.first()) else {
        let why = "has no prometheus trigger, so it is unknown which Prometheus KEDA reads: add \
                   one, or write the trigger of docs/keda.md";
        return Err(why.to_owned());
    };

    let mut kept = vec![trigger(model, variant, &namespace)];

    for one in &triggers {
        let kind = text(one, "/type").unwrap_or_default();

        if is_of_engine(query(one)) || LOAD_TRIGGERS.contains(&kind) {
            migration.differs_in(&before, replaced_trigger(one));
        } else {
            let text = format!(
                "keeps its {kind} trigger: KEDA follows the trigger with the most replicas, so it \
                 can add to Plimsoll's desired replicas but not reduce them"
            );
            migration.differs_in(&before, text);
            kept.push(one.clone());
        }
    }
    spec.insert("triggers".to_owned(), Value::Array(kept));
    bound(spec, &before, migration);
    guard(spec, &before, migration);

    let advanced = spec.entry("advanced".to_owned()).or_insert_with(|| json!({}));

    if let Some(advanced) = advanced.as_object_mut() {
        if advanced.remove("scalingModifiers").is_some() {
            let text = "no longer has scalingModifiers: their formula combines triggers that are \
                        replaced";
            migration.differs_in(&before, text);
        }
        let config =
            advanced.entry("horizontalPodAutoscalerConfig".to_owned()).or_insert_with(|| json!({}));
        open(&mut config["behavior"], &before, migration);
    }

    Ok(())
}

/// The trigger with desired replicas, at the Prometheus of another trigger.
fn trigger(like: &Value, variant: &str, namespace: &str) -> Value {
    let mut metadata = Map::new();

    for key in ["serverAddress", "customHeaders", "authModes", "unsafeSsl", "timeout"] {
        if let Some(value) = like.pointer("/metadata").and_then(|it| it.get(key)) {
            metadata.insert(key.to_owned(), value.clone());
        }
    }
    let labels = format!("{{variant=\"{variant}\",namespace=\"{namespace}\"}}");
    // Of the replica with the youngest decision: one without a path to the API server shows an old
    // number.
    let query = format!("max({METRIC}{labels} and on (instance) bottomk(1, {AGE}{labels}))");
    metadata.insert("query".to_owned(), json!(query));
    metadata.insert("threshold".to_owned(), json!("1"));
    metadata.insert("ignoreNullValues".to_owned(), json!("false"));

    let mut trigger = json!({"type": "prometheus", "metricType": "AverageValue"});
    trigger["metadata"] = Value::Object(metadata);

    if let Some(reference) = like.get("authenticationRef") {
        trigger["authenticationRef"] = reference.clone();
    }
    trigger
}

fn replaced_trigger(trigger: &Value) -> String {
    let kind = text(trigger, "/type").unwrap_or_default();
    let query = query(trigger);

    if query.is_empty() {
        return format!("no longer follows {kind}: Plimsoll reads the engines' load");
    }
    let one_line: Vec<&str> = query.split_whitespace().collect();
    let threshold = trigger.pointer("/metadata/threshold").and_then(Value::as_str);

    if query.contains(WVA_METRIC) {
        return format!("follows {METRIC} instead of {WVA_METRIC}");
    }
    format!(
        "no longer follows `{}`{}: Plimsoll reads the engines, and sizes by the capacity that it \
         has measured instead of a fixed threshold",
        one_line.join(" "),
        threshold.map_or_else(String::new, |it| format!(" (threshold {it})"))
    )
}

/// Notes the bounds that mean something else with Plimsoll.
fn bound(spec: &mut Map<String, Value>, before: &Manifest, migration: &mut Migration) {
    let min = spec.get("minReplicaCount").and_then(Value::as_u64);

    if min.unwrap_or(0) == 0 {
        let written = if min.is_some() { "is 0" } else { "is not set, which means 0 for KEDA" };
        let text = format!(
            "minReplicaCount {written}: KEDA went to 0 when no trigger was active; Plimsoll keeps \
             1 replica unless scale_to_zero is enabled (docs/zero.md), which needs a signal that \
             wakes the model"
        );
        migration.differs_in(before, text);
    }

    if spec.remove("idleReplicaCount").is_some() {
        let text = "no longer has idleReplicaCount: desired replicas above 0 always count as \
            active";
        migration.differs_in(before, text);
    }
}

/// Sets the fallback that keeps replicas while the metric cannot be read.
fn guard(spec: &mut Map<String, Value>, before: &Manifest, migration: &mut Migration) {
    let min = spec.get("minReplicaCount").and_then(Value::as_u64).unwrap_or(1).max(1);

    let Some(fallback) = spec.get_mut("fallback").filter(|it| it.is_object()) else {
        let fallback = json!({
            "failureThreshold": 3, "replicas": min, "behavior": "currentReplicasIfHigher",
        });
        spec.insert("fallback".to_owned(), fallback);
        let text = "has a fallback that keeps the replicas while the metric cannot be read";
        migration.differs_in(before, text);
        return;
    };

    if fallback["replicas"].as_u64().unwrap_or(0) == 0 {
        fallback["replicas"] = json!(min);
        let text = format!("fallback has {min} instead of 0 replicas: KEDA scales to 0 on errors");
        migration.differs_in(before, text);
    }

    if !matches!(text(fallback, "/behavior"), Some("currentReplicas" | "currentReplicasIfHigher")) {
        fallback["behavior"] = json!("currentReplicasIfHigher");
        let replicas = &fallback["replicas"];
        let text = format!(
            "fallback keeps the existing replicas, and at least {replicas}: before, it set them \
             exactly"
        );
        migration.differs_in(before, text);
    }
}

/// Returns the source of a metric: the field that is named as its type.
fn source(metric: &Value) -> Option<&Value> {
    ["external", "pods", "object", "resource", "containerResource"]
        .iter()
        .find_map(|kind| metric.get(*kind))
}

/// Returns the name of an HPA's metric.
fn metric_name(metric: &Value) -> String {
    let Some(source) = source(metric) else { return String::new() };
    let name = text(source, "/metric/name").or_else(|| text(source, "/name"));
    name.unwrap_or_default().to_owned()
}

/// Returns the query of a trigger; empty if it has none.
fn query(trigger: &Value) -> &str {
    text(trigger, "/metadata/query").unwrap_or_default()
}
