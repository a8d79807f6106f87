//! Which watch, and which of its objects.

use std::fmt;

use k8s_openapi::NamespaceResourceScope;
use kube::{Api, Client, Resource};

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::{Wanted, WantedTarget};
use plimsoll_core::fleet::Namespace;

/// How far watches go.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Reach {
    /// Each sees one namespace, so that no right is needed beyond those with variants.
    #[default]
    Namespaces,
    /// Each sees the whole cluster, so that there is one of a kind however many namespaces there are.
    Cluster,
}

/// Where a watch looks.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Scope {
    /// In all namespaces.
    Cluster,
    /// In this one.
    Namespace(Namespace),
}

/// Which watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum WatchKey {
    /// All objects of a kind.
    Targets { scope: Scope, api_version: String, kind: String },
    /// HPAs.
    Hpas(Scope),
    /// KEDA's `ScaledObject`s.
    ScaledObjects(Scope),
    /// The pods of a namespace that a label selector matches.
    Pods { namespace: Namespace, selector: String },
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

// === impl Reach ===

impl Reach {
    /// Where a watch looks that sees what is in a namespace.
    pub(crate) fn scope(self, namespace: &Namespace) -> Scope {
        match self {
            Self::Namespaces => Scope::Namespace(namespace.clone()),
            Self::Cluster => Scope::Cluster,
        }
    }
}

// === impl Scope ===

impl Scope {
    /// The objects there.
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

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster => f.write_str("all namespaces"),
            Self::Namespace(namespace) => namespace.fmt(f),
        }
    }
}

// === impl WatchKey ===

impl WatchKey {
    /// Whether a cluster without such a kind is as it should be.
    pub(crate) fn is_optional(&self) -> bool {
        match self {
            Self::ScaledObjects(_) => true,
            Self::Targets { kind, .. } => kind == "LeaderWorkerSet",
            Self::Hpas(_) | Self::Pods { .. } | Self::Namespaces | Self::ConfigMap { .. } => false,
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
            Self::Pods { namespace, selector } => write!(f, "pods {selector} in {namespace}"),
            Self::Namespaces => f.write_str("namespaces"),
            Self::ConfigMap { namespace, name } => write!(f, "ConfigMap {namespace}/{name}"),
        }
    }
}

// === impl TargetKey ===

impl TargetKey {
    /// The scale target that is wanted, if it is one.
    pub(crate) fn of(want: &Wanted) -> Option<Self> {
        match want.target.clone() {
            WantedTarget::Scale { api_version, kind, name } => {
                let namespace = want.variant.namespace.clone();
                Some(Self { namespace, api_version, kind, name })
            }
            WantedTarget::Selector(_) | WantedTarget::Elsewhere => None,
        }
    }

    /// The watch that sees this object.
    pub(crate) fn watch(&self, reach: Reach) -> WatchKey {
        let Self { namespace, api_version, kind, name: _ } = self.clone();
        WatchKey::Targets { scope: reach.scope(&namespace), api_version, kind }
    }

    /// The object's name in that watch.
    pub(crate) fn object(&self) -> ObjectName {
        ObjectName { namespace: self.namespace.to_string(), name: self.name.clone() }
    }
}
