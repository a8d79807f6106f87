//! The objects that the daemon needs of the cluster.

use std::collections::BTreeSet;

use crate::collect::cluster::discovery::scope::DiscoveryScope;
use crate::collect::cluster::target::WatchedVariant;
use plimsoll_core::fleet::VariantKey;

/// The objects to watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterNeeds {
    /// The variants in the configuration.
    pub variants: Vec<WatchedVariant>,
    /// The variants whose scale targets are servers that host several models.
    pub hosts: BTreeSet<VariantKey>,
    /// The scope of discovery, if enabled.
    pub discover: Option<DiscoveryScope>,
    /// The accelerator data to watch.
    pub accelerators: Accelerators,
}

/// The accelerator data to watch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accelerators {
    /// Nodes, and the pods of all namespaces that request accelerators.
    pub nodes: bool,
    /// `ResourceQuota`s, and the pods in their namespaces that request accelerators.
    pub quotas: bool,
}
