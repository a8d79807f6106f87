//! The scope of discovery: the namespaces and objects in which variants are looked for.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use crate::collect::cluster::discovery::annotation::AnnotationRules;
use crate::collect::cluster::keys::{WatchKey, WatchScope};
use plimsoll_core::fleet::Namespace;

/// Namespace annotations that exclude the namespace's objects if one of them is `"true"`.
const EXCLUDE: [&str; 2] = ["plimsoll.dev/exclude", "wva.llmd.ai/exclude"];

/// The kinds of workloads whose annotations may declare a variant.
const WORKLOADS: [(&str, &str); 3] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
];

/// The scope of discovery.
#[derive(Clone, Debug, PartialEq)]
pub struct DiscoveryScope {
    /// The namespaces to search; all of the cluster if empty.
    pub namespaces: Vec<Namespace>,
    /// Selects namespaces by their labels, if all of the cluster is searched.
    pub namespace_filter: Filter,
    /// Selects objects by their labels.
    pub filter: Filter,
    /// The rules for annotations.
    pub rules: AnnotationRules,
}

/// The properties of a namespace that decide about discovery in it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NamespaceFacts {
    excluded: bool,
    labels: BTreeMap<String, String>,
}

/// A predicate over labels.
#[derive(Clone)]
pub struct Filter {
    text: Option<String>,
    accepts: Arc<Predicate>,
}

type Predicate = dyn Fn(&BTreeMap<String, String>) -> bool + Send + Sync;

// === impl Filter ===

impl Filter {
    /// Accepts every object.
    #[must_use]
    pub fn all() -> Self {
        Self { text: None, accepts: Arc::new(|_| true) }
    }

    /// Accepts the objects whose labels the predicate accepts. `text` is the selector that the
    /// predicate implements.
    pub fn new(
        text: &str,
        accepts: impl Fn(&BTreeMap<String, String>) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self { text: Some(text.to_owned()), accepts: Arc::new(accepts) }
    }

    pub(crate) fn accepts(&self, labels: &BTreeMap<String, String>) -> bool {
        (self.accepts)(labels)
    }

    /// Returns true if variants are discovered in a namespace. An unknown namespace is as one
    /// without labels.
    pub(crate) fn accepts_namespace(&self, facts: Option<&NamespaceFacts>) -> bool {
        match facts {
            Some(NamespaceFacts { excluded, labels }) => !excluded && self.accepts(labels),
            None => self.accepts(&BTreeMap::new()),
        }
    }
}

impl PartialEq for Filter {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl fmt::Debug for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Filter({:?})", self.text)
    }
}

// === impl NamespaceFacts ===

impl NamespaceFacts {
    /// Reads a namespace.
    pub(crate) fn new(metadata: &ObjectMeta) -> Self {
        let annotations = metadata.annotations.as_ref();
        let mut marks = EXCLUDE.iter().filter_map(|key| annotations?.get(*key));
        let excluded = marks.any(|value| value == "true");
        Self { excluded, labels: metadata.labels.clone().unwrap_or_default() }
    }
}

// === watches ===

/// Returns the watches that see all objects that may declare a variant.
pub(crate) fn needed_to_discover(discover: &DiscoveryScope) -> BTreeSet<WatchKey> {
    let mut needed = BTreeSet::new();
    for scope in scopes(discover) {
        needed.insert(WatchKey::Hpas(scope.clone()));
        needed.insert(WatchKey::ScaledObjects(scope.clone()));
        needed.extend(WORKLOADS.map(|(api_version, kind)| WatchKey::Targets {
            scope: scope.clone(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        }));
        if scope == WatchScope::Cluster {
            needed.insert(WatchKey::Namespaces);
        }
    }

    needed
}

/// The scopes in which variants are discovered.
pub(crate) fn scopes(discover: &DiscoveryScope) -> Vec<WatchScope> {
    if discover.namespaces.is_empty() {
        return vec![WatchScope::Cluster];
    }
    discover.namespaces.iter().cloned().map(WatchScope::Namespace).collect()
}
