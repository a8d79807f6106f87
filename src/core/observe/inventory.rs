//! The accelerators of a cluster, as last read.
//!
//! The reader records the time of each read, and leaves a field empty until the first read. Unknown
//! resources are never treated as unlimited.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Accelerator, Namespace, Resource, VariantKey, VariantSpec};
use crate::units::Gpus;

/// The accelerators of a cluster. A resource that is not watched or has never been read is `None`.
/// The policy distinguishes the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The accelerators of the nodes, by product.
    pub nodes: Option<TimedValue<Vec<NodeStock>>>,
    /// The free accelerators of each node that accepts new pods and has some free, by product.
    #[serde(with = "crate::fleet::entries")]
    pub free: BTreeMap<Accelerator, Vec<Gpus>>,
    /// The resources that `ResourceQuota`s leave to the variants.
    pub quotas: Option<TimedValue<Vec<QuotaStock>>>,
    /// The resources of one replica of each variant whose pod template sets them or whose pods were
    /// seen.
    #[serde(with = "crate::fleet::entries")]
    pub units: BTreeMap<VariantKey, ReplicaUnit>,
    /// The accelerators of a replica's largest pod, for the same variants.
    #[serde(with = "crate::fleet::entries")]
    pub pods: BTreeMap<VariantKey, Gpus>,
}

/// A value, and the time when it was last known to be true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TimedValue<T> {
    /// The value.
    pub value: T,
    /// The time when it was last known to be true.
    pub as_of: Timestamp,
}

/// The accelerators of one product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStock {
    /// The product from the node's label.
    pub product: Accelerator,
    /// The accelerators that can be allocated to workloads.
    pub allocatable: Gpus,
    /// The accelerators allocated to workloads that Plimsoll does not scale.
    pub used_by_others: Gpus,
}

/// One `ResourceQuota`'s limit on one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStock {
    /// The namespace that it applies to.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// The resource that it limits.
    pub resource: Resource,
    /// The limit.
    pub hard: Gpus,
    /// The part allocated to workloads that Plimsoll does not scale.
    pub used_by_others: Gpus,
}

/// The resources of one replica.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaUnit {
    /// The resource.
    pub resource: Resource,
    /// The accelerators of all pods of a replica.
    pub gpus: Gpus,
    /// The product that it runs on, if one of its pods has a node or its template selects one.
    pub product: Option<Accelerator>,
    /// The source of these values.
    pub source: UnitSource,
}

/// The source of a replica's resources.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitSource {
    /// The pod template of its scale target.
    Template,
    /// Its pods.
    Pods,
}

// === impl Inventory ===

impl Inventory {
    /// The accelerators of one replica. The declared value comes first, then that of its pod
    /// template or its pods.
    #[must_use]
    pub fn gpus(&self, spec: &VariantSpec) -> Option<Gpus> {
        spec.gpus.or(self.units.get(&spec.key).map(|unit| unit.gpus))
    }

    /// The variants of a namespace whose replicas use this resource, or whose resources are not
    /// known.
    #[must_use]
    pub fn takers<'a>(
        &self,
        namespace: &Namespace,
        resource: &Resource,
        variants: impl Iterator<Item = &'a VariantKey>,
    ) -> BTreeSet<VariantKey> {
        variants
            .filter(|key| {
                let unit = self.units.get(*key);
                key.namespace == *namespace && unit.is_none_or(|unit| unit.resource == *resource)
            })
            .cloned()
            .collect()
    }
}
