//! The settings of the Workload Variant Autoscaler: its `ConfigMap`s, and its controller.
//!
//! # Source
//!
//! `config/base/manager` and `config/samples` of its repository, August 2026.

use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::cli::migrate::migration::Migration;
use crate::cli::migrate::object::Manifest;
use plimsoll_daemon::config::written::WrittenDuration;
use plimsoll_daemon::config::yaml::{self, SyntaxError};

/// The entry for all models.
const DEFAULT: &str = "default";

/// Thresholds of its percentage-based analyzer, and the keys of `saturation`.
const THRESHOLDS: [(&str, &str); 4] = [
    ("kvCacheThreshold", "kv_cache_threshold"),
    ("queueLengthThreshold", "queue_length_threshold"),
    ("kvSpareTrigger", "kv_spare_trigger"),
    ("queueSpareTrigger", "queue_spare_trigger"),
];

/// Settings of its controller without an equal here, with the reason.
const WITHOUT_EQUAL: [(&str, &str); 4] = [
    ("GLOBAL_OPT_INTERVAL", "Plimsoll decides every second (tick_interval)"),
    ("EXPERIMENTAL_COORDINATOR_ENABLED", "Plimsoll never writes maxReplicas; limits share GPUs"),
    ("WVA_NODE_SELECTOR", "limits.nodes counts all nodes"),
    ("WVA_LIMITED_MODE", "limits.nodes limits by the nodes' accelerators"),
];

/// An entry of a `ConfigMap`, as YAML.
struct SettingsEntry<'a> {
    map: &'a Manifest,
    name: &'a str,
    fields: Map<String, Value>,
}

/// Reads the settings into the configuration, after the variants.
///
/// # Errors
///
/// Entries are not YAML. All of them are listed.
pub(super) fn settings(objects: &[Manifest], migration: &mut Migration) -> Result<(), Vec<String>> {
    let mut problems = Vec::new();

    for object in objects {
        if object.kind() == "ConfigMap" {
            let read = read(object, migration);
            problems.extend(read.err().unwrap_or_default());
        } else if object.kind() == "Deployment" && is_controller(object) {
            let environment = environment(object);
            controller(object, &environment, migration);
        }
    }

    let texts = [
        "WVA decides every 15 s (GLOBAL_OPT_INTERVAL), and Plimsoll every second",
        "missing, stale and NaN data is 0 in WVA and can scale down a model; Plimsoll keeps \
         replicas without fresh data",
        "WVA starts from the existing pods, and Plimsoll from the target's spec.replicas",
        "compatibility.wva_metrics is off so that both can run side by side; set it to true once \
         WVA is gone, and dashboards find wva_desired_replicas again",
    ];

    for text in texts {
        migration.differs(text);
    }

    if problems.is_empty() { Ok(()) } else { Err(problems) }
}

fn read(map: &Manifest, migration: &mut Migration) -> Result<(), Vec<String>> {
    let name = map.name();

    if name.ends_with("saturation-scaling-config") {
        saturation(map, &entries(map)?, migration);
    } else if name.ends_with("scale-to-zero-config") {
        for entry in entries(map)? {
            zero(&entry, migration);
        }
    } else if name.ends_with("queueing-model-config") {
        queueing(map, &entries(map)?, migration);
    } else if name.ends_with("service-classes-config") {
        service_classes(map, &entries(map)?, migration);
    } else if name.ends_with("manager-config") || name.ends_with("variantautoscaling-config") {
        controller(map, &main_settings(map)?, migration);
    }

    Ok(())
}

fn entries(map: &Manifest) -> Result<Vec<SettingsEntry<'_>>, Vec<String>> {
    let data = map.value.get("data").and_then(Value::as_object);
    let mut entries = Vec::new();
    let mut problems = Vec::new();

    for (name, text) in data.into_iter().flatten() {
        match mapping(map, name, text) {
            Ok(fields) => entries.push(SettingsEntry { map, name, fields }),
            Err(problem) => problems.push(problem),
        }
    }

    if problems.is_empty() { Ok(entries) } else { Err(problems) }
}

/// The settings of the main `ConfigMap`, which are its entries, or are in a file that is an entry.
fn main_settings(map: &Manifest) -> Result<Map<String, Value>, Vec<String>> {
    let written = map.value.get("data").and_then(Value::as_object);
    let mut settings = Map::new();
    let mut problems = Vec::new();

    for (name, text) in written.into_iter().flatten() {
        let is_file = Path::new(name).extension().is_some_and(|it| it == "yaml" || it == "yml");
        if !is_file {
            settings.insert(name.clone(), text.clone());
            continue;
        }

        match mapping(map, name, text) {
            Ok(fields) => settings.extend(fields),
            Err(problem) => problems.push(problem),
        }
    }

    if problems.is_empty() { Ok(settings) } else { Err(problems) }
}

/// Reads the fields of an entry.
fn mapping(map: &Manifest, name: &str, text: &Value) -> Result<Map<String, Value>, String> {
    let entry = format!("{} {} data.{name}", map.origin, map.label_text());

    match yaml::read(text.as_str().unwrap_or_default()) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(format!("{entry} must be a mapping of fields to values")),
        Err(SyntaxError { line, message, .. }) => {
            let place = line.map_or_else(String::new, |line| format!(" line {line}"));
            Err(format!("{entry}{place} is not YAML: {message}"))
        }
    }
}

// === impl SettingsEntry ===

impl SettingsEntry<'_> {
    fn text(&self, field: &str) -> Option<&str> {
        self.fields.get(field).and_then(Value::as_str)
    }

    fn number(&self, field: &str) -> Option<f64> {
        self.fields.get(field).and_then(Value::as_f64).filter(|number| *number != 0.0)
    }

    fn flag(&self, field: &str) -> Option<bool> {
        self.fields.get(field).and_then(Value::as_bool)
    }

    /// The models that an entry is for, as `MODEL#NAMESPACE`; `None` for all of them.
    fn keys(&self, migration: &Migration) -> Option<Vec<String>> {
        if self.name == DEFAULT {
            return None;
        }

        Some(match (self.text("model_id"), self.name.split_once('#')) {
            (Some(model), _) => migration.keys_of(model, self.text("namespace")),
            (None, Some((model, namespace))) => migration.keys_of(model, Some(namespace)),
            (None, None) => Vec::new(),
        })
    }

    fn differs(&self, migration: &mut Migration, text: &str) {
        migration.differs_in(self.map, format!("entry {}: {text}", self.name));
    }
}

/// Reads the thresholds. With `analyzers`, WVA sizes by these, as `capacity.analyzers`.
fn saturation(map: &Manifest, entries: &[SettingsEntry<'_>], migration: &mut Migration) {
    let default = entries.iter().find(|entry| entry.name == DEFAULT);
    let sizes = default.is_some_and(|entry| {
        let analyzers = entry.fields.get("analyzers").and_then(Value::as_array);
        analyzers.is_some_and(|list| !list.is_empty())
            || entry.text("analyzerName") == Some("saturation")
    });
    migration.set(&["analysis"], json!(if sizes { "capacity" } else { "saturation" }));

    if sizes {
        migration.differs_in(
            map,
            "sizes by tokens as WVA does with analyzers; Plimsoll's default, foresight, needs no \
             thresholds and scales ahead of the load: remove analysis, capacity and saturation to \
             use it",
        );
    }

    for entry in entries {
        let Some(keys) = entry.keys(migration) else {
            for (theirs, ours) in THRESHOLDS {
                if let Some(number) = entry.number(theirs) {
                    migration.set(&["saturation", ours], json!(number));
                }
            }

            if sizes {
                analyzers(entry, migration);
            }
            limits(entry, migration);
            continue;
        };

        if keys.is_empty() {
            entry.differs(migration, "belongs to no migrated model, and is left out");
        }

        if entry.name.contains('#') {
            entry.differs(
                migration,
                "WVA reads this key from files only: the API server accepts no # in a ConfigMap",
            );
        } else {
            entry.differs(
                migration,
                "takes effect in Plimsoll; WVA looks entries up by MODEL#NAMESPACE and never \
                 finds it",
            );
        }

        for key in keys {
            model(entry, &key, sizes, migration);
        }
    }
}

/// Reads the entry of one model.
fn model(entry: &SettingsEntry<'_>, key: &str, sizes: bool, migration: &mut Migration) {
    for (theirs, ours) in THRESHOLDS {
        if let Some(number) = entry.number(theirs) {
            migration.set(&["saturation", "overrides", key, ours], json!(number));
        }
    }

    if let Some(priority) = entry.number("priority") {
        migration.set(&["limits", "models", key, "weight"], json!(priority));
    }

    if let Some(enabled) = entry.fields.get("scaleToZero").and_then(|it| it.get("enabled")) {
        allow_zero(entry.map, &["scale_to_zero", "overrides", key], enabled, migration);
    }
    let own = ["analyzers", "scaleUpThreshold", "scaleDownBoundary"];

    if sizes && own.iter().any(|field| entry.fields.contains_key(*field)) {
        entry.differs(migration, "in Plimsoll, analyzers and their thresholds apply to all models");
    }
}

/// Reads the analyzers of the entry for all models.
fn analyzers(entry: &SettingsEntry<'_>, migration: &mut Migration) {
    let mut names = Vec::new();
    let listed = entry.fields.get("analyzers").and_then(Value::as_array);

    for one in listed.into_iter().flatten() {
        let name = one.get("type").or_else(|| one.get("name")).and_then(Value::as_str);
        let is_off = one.get("enabled").and_then(Value::as_bool) == Some(false);

        match name.unwrap_or_default() {
            _ if is_off => {}
            "saturation" => names.push("tokens"),
            "throughput" => names.push("throughput"),
            "queueing" | "queueing-model" => names.push("queueing"),
            other => entry.differs(
                migration,
                &format!(
                    "Plimsoll has no equivalent of analyzer \
                {other}"
                ),
            ),
        }

        if one.get("score").and_then(Value::as_f64).is_some_and(|it| (it - 1.0).abs() > 1e-9) {
            entry.differs(migration, "score: all analyzers have the same weight in Plimsoll");
        }
    }

    if names.is_empty() {
        names.push("tokens");
    }
    names.dedup();
    migration.set(&["capacity", "analyzers"], json!(names));
    let shares =
        [("scaleUpThreshold", "scale_up_threshold"), ("scaleDownBoundary", "scale_down_boundary")];
    for (theirs, ours) in shares {
        if let Some(number) = entry.number(theirs) {
            migration.set(&["capacity", ours], json!(number));
        }
    }
}

/// Reads the GPU limiter and scale to zero from the entry for all models.
fn limits(entry: &SettingsEntry<'_>, migration: &mut Migration) {
    if let Some(enabled) = entry.fields.get("scaleToZero").and_then(|it| it.get("enabled")) {
        allow_zero(entry.map, &["scale_to_zero"], enabled, migration);
    }

    if entry.flag("enableLimiter") != Some(true) {
        return;
    }

    let mut quotas = Map::new();
    let limiters = entry.fields.get("limiters").and_then(Value::as_array);

    for limiter in limiters.into_iter().flatten() {
        let scope = limiter.get("scope").and_then(Value::as_str).unwrap_or("cluster");

        match limiter.get("quotas").and_then(Value::as_object) {
            Some(own) if scope == "cluster" => quotas.extend(own.clone()),
            Some(_) => entry.differs(
                migration,
                &format!("limiter of scope {scope}: write limits.namespaces by hand"),
            ),
            None => {}
        }
    }

    if quotas.is_empty() {
        migration.set(&["limits", "nodes"], json!(true));
    } else {
        migration.set(&["limits", "accelerators"], Value::Object(quotas));
        entry
            .differs(migration, "limits: Plimsoll gives no accelerators of a kind without a quota");
    }

    if entry.flag("enableRescale") == Some(true) {
        entry.differs(
            migration,
            "enableRescale: models share scarce accelerators by weight, without taking replicas \
             from others at once (docs/limits.md)",
        );
    }
}

/// Reads an entry of the scale-to-zero settings.
fn zero(entry: &SettingsEntry<'_>, migration: &mut Migration) {
    let sections = match entry.keys(migration) {
        None => vec![None],
        Some(keys) => keys.into_iter().map(Some).collect(),
    };
    let retention = entry.text("retention_period");
    let after = retention.and_then(WrittenDuration::parse).map(|WrittenDuration(after)| {
        let known = after.clamp(Duration::from_secs(10), Duration::from_hours(168));
        json!(WrittenDuration(known).to_string())
    });

    if let Some(text) = retention.filter(|_| after.is_none()) {
        entry.differs(migration, &format!("retention_period {text} is not a duration"));
    }

    for key in sections {
        let section: Vec<&str> = match &key {
            None => vec!["scale_to_zero"],
            Some(key) => vec!["scale_to_zero", "overrides", key],
        };

        if let Some(enabled) = entry.fields.get("enable_scale_to_zero") {
            allow_zero(entry.map, &section, enabled, migration);
        }

        if let Some(after) = &after {
            migration.set(&[section.as_slice(), &["after"]].concat(), after.clone());
        }
    }
}

/// Sets whether models may scale to zero. A permission is not taken over: without a signal, nothing
/// would wake a model.
fn allow_zero(from: &Manifest, section: &[&str], enabled: &Value, migration: &mut Migration) {
    let path = [section, &["enabled"]].concat();

    if enabled == &json!(true) {
        let text = format!(
            "lets models scale to zero: {} is false until scale_to_zero.wake names a signal that \
             wakes them (docs/zero.md); WVA reads the queue of the endpoint picker",
            path.join(".")
        );
        migration.differs_in(from, text);
    }
    migration.set(&path, json!(false));
}

/// Reads the objectives of the queueing model, which hold for all models here.
fn queueing(map: &Manifest, entries: &[SettingsEntry<'_>], migration: &mut Migration) {
    if entries.iter().any(|entry| entry.name == DEFAULT) {
        migration.differs_in(
            map,
            "with this default entry, WVA of August 2026 refuses to decide; Plimsoll decides. \
             capacity.analyzers: [queueing] is the same model",
        );
    }
    let targets = entries.iter().filter_map(|entry| {
        Some((entry.name, entry.number("targetTTFT")?, entry.number("targetITL")?))
    });

    objectives(map, &targets.collect::<Vec<_>>(), migration);
}

/// Reads the objectives of service classes.
fn service_classes(map: &Manifest, entries: &[SettingsEntry<'_>], migration: &mut Migration) {
    let lists = entries.iter().filter_map(|entry| entry.fields.get("data")?.as_array());
    let targets = lists.flatten().filter_map(|one| {
        let ttft = one.get("slo-ttft")?.as_f64()?;
        let itl = one.get("slo-tpot")?.as_f64()?;

        Some((one.get("model")?.as_str()?, ttft, itl))
    });

    objectives(map, &targets.collect::<Vec<_>>(), migration);
}

/// Sets the strictest of these objectives, in milliseconds.
fn objectives(map: &Manifest, targets: &[(&str, f64, f64)], migration: &mut Migration) {
    let shortest_ttft = targets.iter().map(|(_, ttft, _)| *ttft).reduce(f64::min);
    let shortest_itl = targets.iter().map(|(_, _, itl)| *itl).reduce(f64::min);
    let (Some(ttft), Some(itl)) = (shortest_ttft, shortest_itl) else { return };

    migration.set(&["capacity", "slo", "ttft"], json!(format!("{}ms", ttft.ceil())));
    migration.set(&["capacity", "slo", "itl"], json!(format!("{}ms", itl.ceil())));
    let names: Vec<&str> = targets.iter().map(|(name, _, _)| *name).collect();
    let text = format!(
        "capacity.slo applies to all models, and is the strictest of {}: time to first token \
         {ttft} ms, between tokens {itl} ms",
        names.join(", ")
    );
    migration.differs_in(map, text);
}

/// Reads the settings of the controller, from its file or its environment.
fn controller(from: &Manifest, values: &Map<String, Value>, migration: &mut Migration) {
    if let Some(namespace) = setting(values, "WATCH_NAMESPACE") {
        migration.namespaces.insert(namespace);
    }

    if let Some(instance) = setting(values, "CONTROLLER_INSTANCE") {
        migration.selector = Some(format!("wva.llmd.ai/controller-instance={instance}"));
    }

    if setting(values, "WVA_SCALE_TO_ZERO").is_some() {
        allow_zero(from, &["scale_to_zero"], &json!(true), migration);
    }

    if setting(values, "WVA_LIMITED_MODE").is_some() {
        migration.set(&["limits", "nodes"], json!(true));
    }

    if let Some(url) = setting(values, "PROMETHEUS_BASE_URL") {
        let text = format!(
            "PROMETHEUS_BASE_URL {url}: Plimsoll scrapes the replicas every second; to read that \
             Prometheus instead, add the section prometheus (docs/prometheus.md)"
        );
        migration.differs_in(from, text);
    }

    for (name, why) in WITHOUT_EQUAL {
        if setting(values, name).is_some() {
            migration.differs_in(from, format!("{name} has no equal: {why}"));
        }
    }
}

/// Returns the text of a setting that is written and not off.
fn setting(values: &Map<String, Value>, name: &str) -> Option<String> {
    let written = values.get(name)?;
    let text = written.as_str().map_or_else(|| written.to_string(), str::to_owned);

    Some(text).filter(|text| !text.is_empty() && text != "false")
}

/// Returns true if a Deployment runs the controller.
fn is_controller(object: &Manifest) -> bool {
    let containers = object.value.pointer("/spec/template/spec/containers");
    containers.and_then(Value::as_array).into_iter().flatten().any(|container| {
        let image = container.get("image").and_then(Value::as_str).unwrap_or_default();
        image.contains("workload-variant-autoscaler")
    })
}

/// Returns the variables of all containers of a Deployment that have values.
fn environment(object: &Manifest) -> Map<String, Value> {
    let listed = object.value.pointer("/spec/template/spec/containers").and_then(Value::as_array);
    let containers = listed.into_iter().flatten();
    let variables = containers.filter_map(|container| container.get("env")?.as_array()).flatten();
    let values = variables.filter_map(|variable| {
        Some((variable.get("name")?.as_str()?.to_owned(), variable.get("value")?.clone()))
    });
    values.collect()
}
