//! The result of a migration: configuration, manifests and differences.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde_json::{Map, Value, json};

use crate::cli::migrate::object::{Manifest, TargetName};
use plimsoll_core::analyze::engine_args::ServedModel;

/// Group, kind and resource of the scale targets that the chart permits by default.
const USUAL_TARGETS: [(&str, &str, &str); 3] = [
    ("apps", "Deployment", "deployments"),
    ("apps", "StatefulSet", "statefulsets"),
    ("leaderworkerset.x-k8s.io", "LeaderWorkerSet", "leaderworkersets"),
];

/// The result of a migration.
#[derive(Debug, Default)]
pub(super) struct Migration {
    /// The sections of the configuration that the source determines.
    pub(super) sections: Map<String, Value>,
    /// The namespaces of the variants.
    pub(super) namespaces: BTreeSet<String>,
    /// The labels of objects that count, as `kubernetes.discovery.selector`.
    pub(super) selector: Option<String>,
    /// True if annotations for the Workload Variant Autoscaler declare variants.
    pub(super) wva: bool,
    /// True if an HPA reads desired replicas through the external metrics API.
    pub(super) external: bool,
    /// The variants of the configuration, which no object of the cluster declares.
    pub(super) variants: Vec<Value>,
    /// The manifests to apply.
    pub(super) manifests: Vec<Manifest>,
    /// All differences: those of the whole first.
    pub(super) differences: Vec<Deviation>,
    /// The objects that are not migrated, with the reason.
    pub(super) skipped: Vec<Deviation>,
    /// Model and variant of each migrated object, for settings of single models.
    pub(super) models: BTreeSet<(String, String)>,
}

/// A place at which decisions will differ, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Deviation {
    /// The object and its origin; `None` for the whole.
    pub(super) object: Option<String>,
    /// The difference and its reason.
    pub(super) text: String,
}

/// The model that an engine serves, and the port of its metrics.
pub(super) type EngineWorkloads = BTreeMap<TargetName, ServedModel>;

// === impl Migration ===

impl Migration {
    /// Notes a difference of the whole.
    pub(super) fn differs(&mut self, text: impl Into<String>) {
        let difference = Deviation { object: None, text: text.into() };

        if !self.differences.contains(&difference) {
            self.differences.push(difference);
        }
    }

    /// Notes a difference of an object.
    pub(super) fn differs_in(&mut self, object: &Manifest, text: impl Into<String>) {
        self.differences.push(Deviation::of(object, text));
    }

    /// Notes that an object is not migrated.
    pub(super) fn skip(&mut self, object: &Manifest, why: impl Into<String>) {
        self.skipped.push(Deviation::of(object, why));
    }

    /// Adds the manifest of a variant, without the fields that a cluster sets.
    pub(super) fn add(&mut self, mut object: Manifest, model: &str) {
        clean(&mut object.value, &object.namespace);
        self.namespaces.insert(object.namespace.clone());
        self.models.insert((model.to_owned(), object.namespace.clone()));
        self.manifests.push(object);
    }

    /// Sets a key of the configuration, such as `limits.nodes`.
    pub(super) fn set(&mut self, path: &[&str], value: Value) {
        let Some((last, sections)) = path.split_last() else { return };
        let mut at = &mut self.sections;

        for section in sections {
            let inner = at.entry((*section).to_owned()).or_insert_with(|| json!({}));

            match inner {
                Value::Object(map) => at = map,
                _ => return,
            }
        }
        at.insert((*last).to_owned(), value);
    }

    /// Returns the models of this name, as `MODEL#NAMESPACE`.
    pub(super) fn keys_of(&self, model: &str, namespace: Option<&str>) -> Vec<String> {
        if let Some(namespace) = namespace {
            return vec![format!("{model}#{namespace}")];
        }

        let named = self.models.iter().filter(|(name, _)| name == model);
        named.map(|(name, namespace)| format!("{name}#{namespace}")).collect()
    }

    /// Returns the whole configuration.
    pub(super) fn config(&self) -> Value {
        let mut kubernetes = json!({"enabled": true});
        // Without a manifest, no object declares a variant.
        if !self.manifests.is_empty() {
            let mut discovery = json!({"enabled": true, "namespaces": self.namespaces});

            if let Some(selector) = &self.selector {
                discovery["selector"] = json!(selector);
            }

            if !self.wva {
                discovery["wva"] = json!(false);
            }
            kubernetes["discovery"] = discovery;
        }

        let mut config = Map::new();
        config.insert("kubernetes".to_owned(), kubernetes);

        if self.external {
            let tls = json!({"secret": "plimsoll-certificate", "service": "plimsoll",
                             "namespace": "plimsoll"});
            config.insert("external_metrics".to_owned(), json!({"tls": {"self_managed": tls}}));
        }

        for (name, section) in &self.sections {
            match (config.get_mut(name), section) {
                (Some(Value::Object(there)), Value::Object(more)) => there.extend(more.clone()),
                _ => {
                    config.insert(name.clone(), section.clone());
                }
            }
        }
        config.insert("variants".to_owned(), json!(self.variants));
        Value::Object(config)
    }

    /// Returns the values of the chart for the same configuration. The chart connects to the cluster
    /// and manages the certificate itself.
    pub(super) fn values(&self) -> Value {
        let mut config = self.config();

        if let Some(sections) = config.as_object_mut() {
            sections.remove("external_metrics");
        }
        if let Some(kubernetes) = config.get_mut("kubernetes").and_then(Value::as_object_mut) {
            kubernetes.remove("enabled");
        }

        let mut values = json!({"externalMetrics": {"enabled": self.external}, "config": config});
        let others = self.other_targets();
        if !others.is_empty() {
            let usual = USUAL_TARGETS.map(|(group, _, resource)| (group, resource.to_owned()));
            let all = usual.into_iter().chain(others);
            let targets: Vec<_> =
                all.map(|(group, it)| json!({"apiGroup": group, "resource": it})).collect();

            values["rbac"] = json!({"scaleTargets": targets});
        }

        values
    }

    /// Returns group and resource of the scale targets that the chart does not permit on its own.
    pub(super) fn other_targets(&self) -> BTreeSet<(&str, String)> {
        let targets = self.manifests.iter().filter_map(|it| {
            let reference = it.value.pointer("/spec/scaleTargetRef")?;
            let version = reference.get("apiVersion").and_then(Value::as_str)?;
            Some((version.split_once('/')?.0, reference.get("kind")?.as_str()?))
        });
        let others = targets.filter(|(group, kind)| {
            !USUAL_TARGETS.iter().any(|(known, of, _)| known == group && of == kind)
        });

        others.map(|(group, kind)| (group, format!("{}s", kind.to_lowercase()))).collect()
    }
}

// === impl Deviation ===

impl fmt::Display for Deviation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { object, text } = self;

        match object {
            Some(object) => write!(f, "{object} {text}"),
            None => f.write_str(text),
        }
    }
}

impl Deviation {
    fn of(object: &Manifest, text: impl Into<String>) -> Self {
        let object = format!("{} ({})", object.label_text(), object.origin);
        Self { object: Some(object), text: text.into() }
    }
}

/// Removes the fields that a cluster sets, and writes the namespace.
fn clean(object: &mut Value, namespace: &str) {
    if let Some(fields) = object.as_object_mut() {
        fields.remove("status");
    }
    let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) else { return };

    for field in
        ["uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "selfLink"]
    {
        metadata.remove(field);
    }
    metadata.insert("namespace".to_owned(), json!(namespace));

    if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
        annotations.remove("kubectl.kubernetes.io/last-applied-configuration");
    }
}
