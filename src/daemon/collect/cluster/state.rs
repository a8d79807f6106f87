//! The known state of the cluster: the published result of all watches.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use crate::collect::cluster::discovery::ledger::Discovery;
use crate::collect::cluster::hpa::{Finding, HpaFollower, HpaReaction, IgnoredChange, Windows};
use crate::collect::cluster::pod::{ClusterPod, PodPhase};
use plimsoll_core::fleet::{ReplicaKey, Role, VariantKey};
use plimsoll_core::observe::hosting::HostedModels;
use plimsoll_core::observe::inventory::{Inventory, ReplicaUnit};
use plimsoll_core::observe::template::{PodTemplate, Templates};
use plimsoll_core::observe::{
    AutoscalerWindows, ReplicaListing, ReplicaStart, Scale, ScrapeRoute, WhyScaleUnknown,
};
use plimsoll_core::units::Replicas;

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
    /// True if its pods are listed by a label selector. No autoscaler is looked for then.
    pub is_selected: bool,
    /// Problems that keep its HPA from following its desired replicas.
    pub findings: Vec<Finding>,
    /// The part of a request that its pods serve, if their labels state it.
    pub role: Option<Role>,
    /// The relevant part of its target's pod template. It is absent until all referenced
    /// `ConfigMap`s have been read, or are known to be unavailable.
    pub template: Option<Arc<PodTemplate>>,
    /// The models of a server that hosts several; `None` for others, and until they are listed.
    pub hosting: Option<HostedModels>,
    /// The accelerators of one replica, according to its scale target.
    pub(super) unit: Option<ReplicaUnit>,
    pub(super) current: Option<Replicas>,
}

// === impl ClusterState ===

impl ClusterState {
    /// The HPAs that actuate the variants' desired replicas, with their own stabilization windows.
    #[must_use]
    pub fn autoscalers(&self) -> BTreeMap<VariantKey, AutoscalerWindows> {
        let autoscalers = self.variants.iter().filter_map(|(key, state)| {
            let HpaFollower { hpa, windows: Windows { up, down }, .. } = state.follower.clone()?;
            Some((key.clone(), AutoscalerWindows { name: hpa, scale_up: up, scale_down: down }))
        });
        autoscalers.collect()
    }

    /// The start times of all variants' replicas, as far as the cluster reports them.
    #[must_use]
    pub fn starts(&self) -> BTreeMap<ReplicaKey, ReplicaStart> {
        self.variants.iter().flat_map(|(key, state)| state.starts(key)).collect()
    }

    /// Returns the pod templates of all variants that have one.
    #[must_use]
    pub fn templates(&self) -> Templates {
        let variants = self.variants.iter();
        variants.filter_map(|(key, state)| Some((key.clone(), state.template.clone()?))).collect()
    }

    /// Returns the models of all servers that host several.
    #[must_use]
    pub fn hosting(&self) -> BTreeMap<VariantKey, HostedModels> {
        let variants = self.variants.iter();
        variants.filter_map(|(key, state)| Some((key.clone(), state.hosting.clone()?))).collect()
    }

    /// Sets the inventory. Templates override the accelerators of observed pods, which may come
    /// from an outdated template.
    pub(crate) fn take_inventory(&mut self, seen: &Arc<Inventory>) {
        self.inventory = Arc::clone(seen);
        for (key, state) in &self.variants {
            let Some(unit) = state.unit.clone() else { continue };
            let units = &mut Arc::make_mut(&mut self.inventory).units;
            let product = units.get(key).and_then(|seen| seen.product.clone());
            let completed = ReplicaUnit { product: unit.product.or(product), ..unit };
            units.insert(key.clone(), completed);
        }
    }
}

// === impl VariantState ===

impl VariantState {
    pub(super) fn unknown(why: WhyScaleUnknown, as_of: Timestamp) -> Self {
        Self {
            pods: Vec::new(),
            scale: Scale::Unknown(why),
            as_of,
            follower: None,
            is_selected: false,
            findings: Vec::new(),
            role: None,
            template: None,
            hosting: None,
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

    /// Returns the reaction of the variant's HPA to desired replicas; `None` if no HPA follows them,
    /// or if the existing replicas are not known.
    #[must_use]
    pub fn reaction(&self, desired: Replicas) -> Option<HpaReaction> {
        Some(self.follower.as_ref()?.reaction(self.current?, desired))
    }

    /// The replicas that exist, as the scale subresource reports them; `None` if unknown.
    #[must_use]
    pub const fn existing(&self) -> Option<Replicas> {
        self.current
    }

    /// The name of the HPA that scales the target, if there is exactly one. It need not follow the
    /// desired replicas.
    #[must_use]
    pub fn autoscaler(&self) -> Option<&str> {
        let follower = self.follower.as_ref().map(|it| it.hpa.as_str());
        follower.or_else(|| self.findings.iter().find_map(Finding::hpa))
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
