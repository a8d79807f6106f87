//! Keys that identify watches and their objects.

use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::target::{WantedTarget, WatchedVariant};
use plimsoll_core::fleet::Namespace;

/// The reach of watches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum WatchReach {
    /// Each watch covers one namespace, so rights are needed only in namespaces with variants.
    #[default]
    Namespaces,
    /// Each watch covers the cluster, so there is one per kind, whatever the number of namespaces.
    Cluster,
}

/// The scope of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WatchScope {
    /// All namespaces.
    Cluster,
    /// This namespace.
    Namespace(Namespace),
}

/// The key of a watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WatchKey {
    /// All objects of a kind.
    Targets { scope: WatchScope, api_version: String, kind: String },
    /// HPAs.
    Hpas(WatchScope),
    /// KEDA's `ScaledObject`s.
    ScaledObjects(WatchScope),
    /// Seldon's `Model`s.
    Models(WatchScope),
    /// All pods.
    Pods(WatchScope),
    /// The metadata of all namespaces.
    Namespaces,
    /// The `ConfigMap` of this name.
    ConfigMap { namespace: Namespace, name: String },
}

/// A scale target.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct TargetKey {
    pub(crate) namespace: Namespace,
    pub(crate) api_version: String,
    pub(crate) kind: String,
    pub(crate) name: String,
}

// === impl WatchReach ===

impl WatchReach {
    /// Returns the scope of a watch that covers this namespace.
    pub(crate) fn scope(self, namespace: &Namespace) -> WatchScope {
        match self {
            Self::Namespaces => WatchScope::Namespace(namespace.clone()),
            Self::Cluster => WatchScope::Cluster,
        }
    }
}

// === impl WatchScope ===

impl WatchScope {
    /// Returns the API for the objects in this scope.
    pub(crate) fn api<K>(&self, client: Client) -> Api<K>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>,
    {
        match self {
            Self::Cluster => Api::all(client),
            Self::Namespace(namespace) => Api::namespaced(client, namespace.as_str()),
        }
    }
}

impl fmt::Display for WatchScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("all namespaces"),
            Self::Namespace(namespace) => namespace.fmt(f),
        }
    }
}

// === impl WatchKey ===

impl WatchKey {
    /// Returns true if the cluster may lack this kind.
    pub(crate) fn is_optional(&self) -> bool {
        match self {
            Self::ScaledObjects(_) | Self::Models(_) => true,
            Self::Targets { kind, .. } => kind == "LeaderWorkerSet",
            Self::Hpas(_) | Self::Pods(_) | Self::Namespaces | Self::ConfigMap { .. } => false,
        }
    }
}

impl fmt::Display for WatchKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Targets { scope, api_version, kind } => {
                write!(f, "{api_version} {kind} in {scope}")
            }
            Self::Hpas(scope) => write!(f, "HPAs in {scope}"),
            Self::ScaledObjects(scope) => write!(f, "ScaledObjects in {scope}"),
            Self::Models(scope) => write!(f, "Models in {scope}"),
            Self::Pods(scope) => write!(f, "pods in {scope}"),
            Self::Namespaces => f.write_str("namespaces"),
            Self::ConfigMap { namespace, name } => write!(f, "ConfigMap {namespace}/{name}"),
        }
    }
}

// === impl TargetKey ===

impl TargetKey {
    /// Returns the wanted scale target, if there is one.
    pub(crate) fn of(want: &WatchedVariant) -> Option<Self> {
        match want.target.clone() {
            WantedTarget::Scale { api_version, kind, name } => {
                let namespace = want.variant.namespace.clone();
                Some(Self { namespace, api_version, kind, name })
            }
            WantedTarget::Selector(_) | WantedTarget::Elsewhere => None,
        }
    }

    /// Returns the watch that covers this object.
    pub(crate) fn watch(&self, reach: WatchReach) -> WatchKey {
        let Self { namespace, api_version, kind, name: _ } = self.clone();
        WatchKey::Targets { scope: reach.scope(&namespace), api_version, kind }
    }

    /// Returns the object's name in that watch.
    pub(crate) fn object(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.to_string(), name: self.name.clone() }
    }
}
