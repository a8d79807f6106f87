//! The cluster: watches of scale targets, their pods and their HPAs.
//!
//! The variants determine the watches: the kinds of their scale targets, the scalers in their
//! namespaces, and the pods of these namespaces, which are divided among the targets by their
//! selectors. Plimsoll watches nothing in a namespace without a variant. A namespace that denies
//! access does not affect the others. The scale subresource cannot be watched, so it is read
//! whenever its object has changed. If discovery is enabled, the same watches also see every object
//! that may declare a variant. Discovery over a whole cluster uses one watch per kind instead of one
//! per namespace, and one watch of all pods if many namespaces have variants.
//!
//! A listing has an `as_of`: the last instant at which every watch behind it was connected and up
//! to date. While the watches are healthy, it advances with the heartbeat. It stops if one breaks
//! or reports nothing for longer than a healthy watch can, and the last state is kept. An API
//! server that is unavailable therefore looks like a listing that grows old, never like an empty
//! cluster. A connection that dies silently is noticed by its pings, within [`LinkTiming`]'s
//! `ping_interval` plus `ping_timeout`. Until then, `as_of` is too recent by at most that time.

mod client;
mod config_maps;
pub mod discovery;
mod document;
mod follow;
mod hpa;
mod inventory;
pub(crate) mod keda;
mod keys;
mod pod;
mod registration;
mod run;
mod scale;
mod scalers;
mod template;
mod world;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

pub use crate::collect::cluster::client::{KubernetesClientError, LinkTiming, client, connect};
pub use crate::collect::cluster::discovery::Discovery;
use crate::collect::cluster::discovery::DiscoveryScope;
pub use crate::collect::cluster::document::{DocumentVersion, document};
pub use crate::collect::cluster::follow::WatchTiming;
pub use crate::collect::cluster::hpa::{
    Direction, Finding, HpaFollower, IgnoredChange, Tolerances, Windows,
};
pub use crate::collect::cluster::inventory::Accelerators;
pub use crate::collect::cluster::keda::ScaledObjectPause;
pub use crate::collect::cluster::registration::{
    API_SERVICE, ApiServiceFields, Registration, authentication, registration,
};
pub use crate::collect::cluster::run::watch;
use plimsoll_core::fleet::{Incarnation, ReplicaKey, ReplicaName, Role, VariantKey};
use plimsoll_core::observe::inventory::{Inventory, ReplicaUnit};
use plimsoll_core::observe::template::PodTemplate;
use plimsoll_core::observe::{
    AutoscalerWindows, ReplicaListing, ReplicaStart, Scale, ScrapeRoute, WhyScaleUnknown,
};
use plimsoll_core::units::Replicas;

/// The objects to watch.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterNeeds {
    /// The variants in the configuration.
    pub variants: Vec<WatchedVariant>,
    /// The scope of discovery, if enabled.
    pub discover: Option<DiscoveryScope>,
    /// The accelerator data to watch.
    pub accelerators: Accelerators,
}

/// A variant whose scale target is watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchedVariant {
    /// The variant. Its target is in the variant's namespace.
    pub variant: VariantKey,
    /// Its scale target.
    pub target: WantedTarget,
}

/// The scale target of a variant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedTarget {
    /// An object of any kind that has a scale subresource.
    Scale {
        /// Its API version, such as `apps/v1`.
        api_version: String,
        /// Its kind, such as `Deployment`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The pods that this label selector matches, if no object has a scale subresource.
    Selector(String),
    /// No target in the cluster: the replicas are listed elsewhere. The variant's name is still
    /// taken.
    Elsewhere,
}

/// The known state of every wanted variant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterState {
    /// All wanted variants in the cluster, declared or discovered, including those in an unknown
    /// state.
    pub variants: BTreeMap<VariantKey, VariantState>,
    /// The discovered variants.
    pub discovery: Arc<Discovery>,
    /// The accelerators, if they are watched.
    pub inventory: Arc<Inventory>,
}

/// The known state of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantState {
    /// All pods behind its target that have not ended, in the order of their names.
    pub pods: Vec<ClusterPod>,
    /// Its scale target.
    pub scale: Scale,
    /// The last instant at which all of this was known to be true. If it never was, the instant at
    /// which watching began.
    pub as_of: Timestamp,
    /// The HPA that follows its desired replicas, if there is exactly one and it reads them
    /// correctly.
    pub follower: Option<HpaFollower>,
    /// Problems that keep its HPA from following its desired replicas.
    pub findings: Vec<Finding>,
    /// The part of a request that its pods serve, if their labels state it.
    pub role: Option<Role>,
    /// The relevant part of its target's pod template. It is absent until all referenced
    /// `ConfigMap`s have been read, or are known to be unavailable.
    pub template: Option<Arc<PodTemplate>>,
    /// The accelerators of one replica, according to its scale target.
    unit: Option<ReplicaUnit>,
    current: Option<Replicas>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterPod {
    /// Its name.
    pub name: ReplicaName,
    /// Its uid, which differs from that of another pod with the same name.
    pub uid: Incarnation,
    /// Its address, once it has one.
    pub ip: Option<IpAddr>,
    /// The phase of its life cycle.
    pub phase: PodPhase,
    /// True if it is ready to serve.
    pub ready: bool,
    /// True if it is terminating.
    pub terminating: bool,
    /// The node that it runs on, once it has one.
    pub node: Option<String>,
    /// The part of a request that it serves, if its labels state it.
    pub role: Option<Role>,
    /// Its creation time.
    pub created: Option<Timestamp>,
    /// The instant since which it is ready, if it is and its node reports the time.
    pub ready_since: Option<Timestamp>,
    /// The instant since which its scheduler finds no node for it, if so.
    pub unschedulable_since: Option<Timestamp>,
}

/// The phase of a pod's life cycle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PodPhase {
    /// Not all containers have started.
    Pending,
    /// A container runs.
    Running,
    /// All containers have ended successfully.
    Succeeded,
    /// All containers have ended, at least one with a failure.
    Failed,
    /// The node does not report a known phase.
    Unknown,
}

// === impl ClusterState ===

impl ClusterState {
    /// The HPAs that actuate the variants' desired replicas, with their own stabilization windows.
    #[must_use]
    pub fn autoscalers(&self) -> BTreeMap<VariantKey, AutoscalerWindows> {
        let autoscalers = self.variants.iter().filter_map(|(key, state)| {
            let HpaFollower { hpa, tolerances: _, windows: Windows { up, down } } =
                state.follower.clone()?;
            Some((key.clone(), AutoscalerWindows { name: hpa, scale_up: up, scale_down: down }))
        });
        autoscalers.collect()
    }
}

// === impl VariantState ===

impl VariantState {
    fn unknown(why: WhyScaleUnknown, as_of: Timestamp) -> Self {
        Self {
            pods: Vec::new(),
            scale: Scale::Unknown(why),
            as_of,
            follower: None,
            findings: Vec::new(),
            role: None,
            template: None,
            unit: None,
            current: None,
        }
    }

    /// Returns the ignored change if the variant's HPA keeps its replicas although `desired`
    /// differs. It includes the tolerance that hides the change, and a remedy.
    #[must_use]
    pub fn ignored(&self, desired: Replicas) -> Option<IgnoredChange> {
        self.follower.as_ref()?.ignored(self.current?, desired)
    }

    /// The name of the HPA that scales the target, if there is exactly one. It need not follow the
    /// desired replicas.
    #[must_use]
    pub fn autoscaler(&self) -> Option<&str> {
        let found = self.findings.iter().find_map(|finding| match finding {
            Finding::WrongTargetType { hpa, .. } | Finding::WrongAverageValue { hpa, .. } => {
                Some(hpa)
            }
            Finding::NotRead { hpa } => hpa.as_ref(),
            Finding::Paused { .. } => None,
        });

        self.follower.as_ref().map(|follower| &follower.hpa).or(found).map(String::as_str)
    }

    /// The pods to scrape: running, not terminating, with an address.
    ///
    /// They include pods that are not ready. An engine also responds while it warms up, or while it
    /// fails its probe under load, and its metrics are useful then. The listing shows which pods
    /// are not ready.
    #[must_use]
    pub fn addresses(&self, variant: &VariantKey) -> Vec<(ReplicaKey, IpAddr)> {
        self.answering().filter_map(|pod| Some((pod.key(variant), pod.ip?))).collect()
    }

    /// Returns the pipeline's listing, for replicas whose metrics come this way.
    #[must_use]
    pub fn listing(&self, variant: &VariantKey, way: ScrapeRoute) -> ReplicaListing {
        ReplicaListing {
            replicas: self.answering().map(|pod| pod.key(variant)).collect(),
            unready: self
                .answering()
                .filter(|pod| !pod.ready)
                .map(|pod| pod.key(variant))
                .collect(),
            scale: self.scale.clone(),
            way,
            as_of: self.as_of,
        }
    }

    /// Returns the start times of its replicas, as far as the cluster reports them.
    fn starts(&self, variant: &VariantKey) -> impl Iterator<Item = (ReplicaKey, ReplicaStart)> {
        self.pods.iter().filter(|pod| pod.counts()).filter_map(|pod| {
            let ready = pod.ready_since.filter(|_| pod.serves());
            let unschedulable = pod.unschedulable_since.filter(|_| pod.node.is_none());
            Some((pod.key(variant), ReplicaStart { created: pod.created?, ready, unschedulable }))
        })
    }

    fn answering(&self) -> impl Iterator<Item = &ClusterPod> {
        self.pods
            .iter()
            .filter(|pod| pod.counts() && pod.phase == PodPhase::Running && pod.ip.is_some())
    }
}

// === impl ClusterState ===

impl ClusterState {
    /// The start times of all variants' replicas, as far as the cluster reports them.
    #[must_use]
    pub fn starts(&self) -> BTreeMap<ReplicaKey, ReplicaStart> {
        self.variants.iter().flat_map(|(key, state)| state.starts(key)).collect()
    }
}

// === impl ClusterPod ===

impl ClusterPod {
    /// Returns the key of this pod as a replica of a variant.
    #[must_use]
    pub fn key(&self, variant: &VariantKey) -> ReplicaKey {
        ReplicaKey {
            variant: variant.clone(),
            replica: self.name.clone(),
            incarnation: Some(self.uid.clone()),
        }
    }
}
