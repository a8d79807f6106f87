//! What a cluster has of accelerators, as it was last read.
//!
//! Whoever reads it says when that was, and says nothing while it has never been read: what is not
//! known is never unlimited.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{Accelerator, Namespace, Resource, VariantKey};
use crate::units::Gpus;

/// What a cluster has of accelerators. What nobody looks at is `None`, and so is what has never
/// been read; the policy says which of the two.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// What nodes have, by product.
    pub nodes: Option<Known<Vec<NodeStock>>>,
    /// What is free on each node that takes new pods and has some of it, by product.
    #[serde(with = "crate::fleet::entries")]
    pub free: BTreeMap<Accelerator, Vec<Gpus>>,
    /// What `ResourceQuota`s leave to the variants.
    pub quotas: Option<Known<Vec<QuotaStock>>>,
    /// What a replica of each variant takes, of those whose pod template says it or of which a pod
    /// has been seen.
    #[serde(with = "crate::fleet::entries")]
    pub units: BTreeMap<VariantKey, ReplicaUnit>,
    /// What the largest pod of a replica takes, of the same variants.
    #[serde(with = "crate::fleet::entries")]
    pub pods: BTreeMap<VariantKey, Gpus>,
}

/// What was read, and when it was last known to be true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Known<T> {
    /// What was read.
    pub value: T,
    /// When it was last known to be true.
    pub as_of: Timestamp,
}

/// The accelerators of one product.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeStock {
    /// The product, as the node's label has it.
    pub product: Accelerator,
    /// What workloads can be given.
    pub allocatable: Gpus,
    /// What workloads that are not decided here have been given.
    pub used_by_others: Gpus,
}

/// What one `ResourceQuota` says of one resource.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QuotaStock {
    /// Where it holds.
    pub namespace: Namespace,
    /// Its name.
    pub name: String,
    /// The resource that it limits.
    pub resource: Resource,
    /// What it allows.
    pub hard: Gpus,
    /// What workloads that are not decided here have been given of it.
    pub used_by_others: Gpus,
}

/// What one replica takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReplicaUnit {
    /// Of which resource.
    pub resource: Resource,
    /// How many, all pods of a replica together.
    pub gpus: Gpus,
    /// What product it runs on, where one of its pods has a node or its template chooses one.
    pub product: Option<Accelerator>,
    /// Who says so.
    pub source: UnitSource,
}

/// Who says what a replica takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UnitSource {
    /// The pod template of its scale target.
    Template,
    /// Pods that were seen.
    Pods,
}

// === impl Inventory ===

impl Inventory {
    /// The variants of a namespace whose replicas take this resource, or of which nobody has seen
    /// what they take.
    #[must_use]
    pub fn takers<'a>(
        &self,
        namespace: &Namespace,
        resource: &Resource,
        variants: impl Iterator<Item = &'a VariantKey>,
    ) -> BTreeSet<VariantKey> {
        let takes = |key: &&VariantKey| {
            let unit = self.units.get(*key);
            key.namespace == *namespace && unit.is_none_or(|unit| unit.resource == *resource)
        };
        variants.filter(takes).cloned().collect()
    }
}
