//! The cluster: scale targets, their pods and their HPAs, watched.
//!
//! What is watched follows from the variants: the kinds of their scale targets and what scales them
//! in their namespaces, and the pods behind each target. Nothing is watched in a namespace without a
//! variant, and a namespace that refuses leaves the others alone. The scale subresource, which
//! cannot be watched, is read when its object has changed. Where variants are to be discovered as
//! well, the same watches see every object that may declare one; over a whole cluster there is then
//! one watch for each kind, and none for each namespace.
//!
//! A listing carries `as_of`, the last instant at which every watch that it rests on was connected
//! and had told all it knew. While the watches are sound it advances with the heartbeat; when one
//! breaks, or is silent for longer than a sound one can be, it stands still and the last state is
//! kept. So an API server that is away looks like a listing that grows old, never like an empty
//! cluster. A connection that dies without a word is noticed after [`Pace::window`] and
//! [`Pace::grace`], and `as_of` is too young by up to that much until then.

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
mod scalers;
mod template;
mod world;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

pub use crate::collect::cluster::client::{ClientError, client};
use crate::collect::cluster::discovery::Discover;
pub use crate::collect::cluster::discovery::Discovery;
pub use crate::collect::cluster::document::{Sighting, document};
pub use crate::collect::cluster::follow::Pace;
pub use crate::collect::cluster::hpa::{
    Direction, Finding, Follower, Ignored, Tolerances, Windows,
};
pub use crate::collect::cluster::inventory::Accelerators;
pub use crate::collect::cluster::keda::Paused;
pub use crate::collect::cluster::registration::{
    API_SERVICE, Expected, Registration, authentication, registration,
};
pub use crate::collect::cluster::run::watch;
use plimsoll_core::fleet::{Incarnation, ReplicaKey, ReplicaName, Role, VariantKey};
use plimsoll_core::observe::inventory::{Inventory, ReplicaUnit};
use plimsoll_core::observe::template::Template;
use plimsoll_core::observe::{Autoscaler, Listing, Scale, Start, Way, WhyUnknown};
use plimsoll_core::units::Replicas;

/// What is to be watched.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Needs {
    /// The variants that are declared.
    pub variants: Vec<Wanted>,
    /// What is to be discovered beside them, if anything.
    pub discover: Option<Discover>,
    /// What of accelerators is to be watched.
    pub accelerators: Accelerators,
}

/// A variant whose scale target is to be watched.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The variant; its namespace is where the target is.
    pub variant: VariantKey,
    /// Its scale target.
    pub target: WantedTarget,
}

/// What is scaled when a variant is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WantedTarget {
    /// An object with a scale subresource, of whatever kind.
    Scale {
        /// Its API version, such as `apps/v1`.
        api_version: String,
        /// Its kind, such as `Deployment`.
        kind: String,
        /// Its name.
        name: String,
    },
    /// The pods that this label selector matches, where nothing has a scale subresource.
    Selector(String),
    /// Nothing: its replicas are listed outside the cluster. Its name is taken all the same.
    Elsewhere,
}

/// What is known of every wanted variant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ClusterState {
    /// Each wanted variant of the cluster, declared or discovered, known or not.
    pub variants: BTreeMap<VariantKey, VariantState>,
    /// What is discovered.
    pub discovery: Arc<Discovery>,
    /// What there is of accelerators, where they are watched.
    pub inventory: Arc<Inventory>,
}

/// What is known of one variant.
#[derive(Clone, Debug, PartialEq)]
pub struct VariantState {
    /// The pods behind its target in the order of their names: all of them, whatever their state.
    pub pods: Vec<Pod>,
    /// Its scale target.
    pub scale: Scale,
    /// When all of this was last known to be true; when the watching began, if it never was.
    pub as_of: Timestamp,
    /// The HPA that reads its desired number, if there is exactly one and it reads it as it should.
    pub follower: Option<Follower>,
    /// What keeps its HPA from following its desired number.
    pub findings: Vec<Finding>,
    /// What its pods say that they serve of a request, if they do.
    pub role: Option<Role>,
    /// What its scale target says of the pods that it makes, if that matters, and once it is known
    /// what it takes from `ConfigMap`s, or that this cannot be.
    pub template: Option<Arc<Template>>,
    /// What its scale target says that one replica takes.
    unit: Option<ReplicaUnit>,
    current: Option<Replicas>,
}

/// A pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pod {
    /// Its name.
    pub name: ReplicaName,
    /// Its uid, which tells it from another pod of that name.
    pub uid: Incarnation,
    /// Its address, once it has one.
    pub ip: Option<IpAddr>,
    /// Where it is in its life.
    pub phase: Phase,
    /// Whether it is ready to serve.
    pub ready: bool,
    /// Whether it has been told to stop.
    pub terminating: bool,
    /// The node that it runs on, once it has one.
    pub node: Option<String>,
    /// What its labels say that it serves of a request, if they do.
    pub role: Option<Role>,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Since when it is ready, if it is and its node says so.
    pub ready_since: Option<Timestamp>,
    /// Since when its scheduler finds no node for it, if so.
    pub unschedulable_since: Option<Timestamp>,
}

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    /// Not all containers have started.
    Pending,
    /// A container runs.
    Running,
    /// All containers have ended well.
    Succeeded,
    /// All containers have ended, at least one badly.
    Failed,
    /// The node does not say.
    Unknown,
}

// === impl ClusterState ===

impl ClusterState {
    /// The HPAs that carry out the variants' numbers, with what they wait by themselves.
    #[must_use]
    pub fn autoscalers(&self) -> BTreeMap<VariantKey, Autoscaler> {
        let autoscaler = |(key, state): (&VariantKey, &VariantState)| {
            let Follower { hpa, tolerances: _, windows: Windows { up, down } } =
                state.follower.clone()?;
            Some((key.clone(), Autoscaler { name: hpa, scale_up: up, scale_down: down }))
        };
        self.variants.iter().filter_map(autoscaler).collect()
    }
}

// === impl VariantState ===

impl VariantState {
    fn unknown(why: WhyUnknown, as_of: Timestamp) -> Self {
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

    /// Whether the variant's HPA leaves the replicas as they are though `desired` is another
    /// number; says with what tolerance, and what to do.
    #[must_use]
    pub fn ignored(&self, desired: Replicas) -> Option<Ignored> {
        self.follower.as_ref()?.ignored(self.current?, desired)
    }

    /// The HPA that scales the target, if there is exactly one, whether it does as it is told or
    /// not.
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

    /// The pods that should answer when they are scraped: running, not terminating, with an
    /// address.
    ///
    /// Those that are not ready are among them. An engine answers while it is being warmed up or
    /// fails its probe under load, and what it then says is worth hearing; the listing says which
    /// they are.
    #[must_use]
    pub fn addresses(&self, variant: &VariantKey) -> Vec<(ReplicaKey, IpAddr)> {
        self.answering().filter_map(|pod| Some((pod.key(variant), pod.ip?))).collect()
    }

    /// The listing that the pipeline takes, for pages that come this way.
    #[must_use]
    pub fn listing(&self, variant: &VariantKey, way: Way) -> Listing {
        Listing {
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

    /// When its replicas started, as far as the cluster says.
    fn starts(&self, variant: &VariantKey) -> impl Iterator<Item = (ReplicaKey, Start)> {
        self.pods.iter().filter(|pod| pod.counts()).filter_map(|pod| {
            let ready = pod.ready_since.filter(|_| pod.serves());
            let unschedulable = pod.unschedulable_since.filter(|_| pod.node.is_none());
            Some((pod.key(variant), Start { created: pod.created?, ready, unschedulable }))
        })
    }

    fn answering(&self) -> impl Iterator<Item = &Pod> {
        self.pods
            .iter()
            .filter(|pod| pod.counts() && pod.phase == Phase::Running && pod.ip.is_some())
    }
}

// === impl ClusterState ===

impl ClusterState {
    /// When the replicas of all variants started, as far as the cluster says.
    #[must_use]
    pub fn starts(&self) -> BTreeMap<ReplicaKey, Start> {
        self.variants.iter().flat_map(|(key, state)| state.starts(key)).collect()
    }
}

// === impl Pod ===

impl Pod {
    /// The replica that this pod is of a variant.
    #[must_use]
    pub fn key(&self, variant: &VariantKey) -> ReplicaKey {
        ReplicaKey {
            variant: variant.clone(),
            replica: self.name.clone(),
            incarnation: Some(self.uid.clone()),
        }
    }
}
