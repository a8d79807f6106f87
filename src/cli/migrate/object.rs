//! Kubernetes objects from files or a cluster, with their origin.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use serde_json::Value;

/// An object as written.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Manifest {
    /// The object. It has an `apiVersion`, a `kind` and a name.
    pub(super) value: Value,
    /// Its origin.
    pub(super) origin: Origin,
    /// Its namespace, or the default one.
    pub(super) namespace: String,
}

/// The origin of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    /// A file, and the line at which the object starts.
    File(Arc<PathBuf>, usize),
    /// A cluster.
    Cluster,
}

/// The object that a scaler scales: namespace, kind and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct TargetName {
    pub(super) namespace: String,
    pub(super) kind: String,
    pub(super) name: String,
}

// === impl Manifest ===

impl Manifest {
    /// Returns the object if it is one of Kubernetes. Without a namespace, it gets the default one.
    pub(super) fn new(value: Value, origin: Origin, namespace: &str) -> Option<Self> {
        let is_object = ["/apiVersion", "/kind", "/metadata/name"]
            .iter()
            .all(|path| value.pointer(path).is_some_and(Value::is_string));
        let written = value.pointer("/metadata/namespace").and_then(Value::as_str);
        let namespace = written.unwrap_or(namespace).to_owned();
        is_object.then_some(Self { value, origin, namespace })
    }

    pub(super) fn kind(&self) -> &str {
        text(&self.value, "/kind").unwrap_or_default()
    }

    pub(super) fn name(&self) -> &str {
        text(&self.value, "/metadata/name").unwrap_or_default()
    }

    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        self.value.pointer("/metadata/annotations")?.get(name)?.as_str()
    }

    pub(super) fn label(&self, name: &str) -> Option<&str> {
        self.value.pointer("/metadata/labels")?.get(name)?.as_str()
    }

    /// Returns the object in `spec.scaleTargetRef`, whose kind is a Deployment by default.
    pub(super) fn target(&self) -> Option<TargetName> {
        let reference = self.value.pointer("/spec/scaleTargetRef")?;
        let kind = reference.get("kind").and_then(Value::as_str).unwrap_or("Deployment");
        let name = reference.get("name").and_then(Value::as_str)?;

        Some(TargetName {
            namespace: self.namespace.clone(),
            kind: kind.to_owned(),
            name: name.to_owned(),
        })
    }

    /// Returns the object's own name as a target.
    pub(super) fn as_target(&self) -> TargetName {
        TargetName {
            namespace: self.namespace.clone(),
            kind: self.kind().to_owned(),
            name: self.name().to_owned(),
        }
    }

    /// Returns the name for people: kind, namespace and name.
    pub(super) fn label_text(&self) -> String {
        format!("{} {}/{}", self.kind(), self.namespace, self.name())
    }
}

// === impl Origin ===

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File(path, line) => write!(f, "{}:{line}", path.display()),
            Self::Cluster => f.write_str("the cluster"),
        }
    }
}

/// Returns the text at a JSON pointer.
pub(super) fn text<'a>(value: &'a Value, pointer: &str) -> Option<&'a str> {
    value.pointer(pointer).and_then(Value::as_str)
}
