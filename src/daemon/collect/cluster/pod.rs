//! Pods: the relevant parts of a pod, read from its object.

use std::net::IpAddr;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

use crate::collect::cluster::discovery::annotation::WVA_ROLE;
use plimsoll_core::fleet::{Incarnation, ReplicaKey, ReplicaName, Role, VariantKey};

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

// === impl ClusterPod ===

impl ClusterPod {
    /// Reads the object; `None` if it has no name or uid, which an API server never sends.
    pub(crate) fn new(object: core::Pod) -> Option<Self> {
        let status = object.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|is| is.type_ == "Ready" && is.status == "True");
        let unschedulable = conditions.iter().find(|is| {
            // Scheduling gates and the scheduler's own errors have other reasons and do not count.
            is.type_ == "PodScheduled"
                && is.status == "False"
                && is.reason.as_deref() == Some("Unschedulable")
        });

        let created = object.metadata.creation_timestamp.map(|at| at.0);
        Some(Self {
            name: ReplicaName::new(object.metadata.name.as_deref()?)?,
            uid: Incarnation::new(object.metadata.uid.as_deref()?)?,
            ip: status.pod_ip.and_then(|ip| ip.parse().ok()),
            phase: match status.phase.as_deref() {
                Some("Pending") => PodPhase::Pending,
                Some("Running") => PodPhase::Running,
                Some("Succeeded") => PodPhase::Succeeded,
                Some("Failed") => PodPhase::Failed,
                _ => PodPhase::Unknown,
            },
            created,
            ready_since: ready.and_then(since),
            ready: ready.is_some(),
            unschedulable_since: unschedulable.and_then(|is| since(is).or(created)),
            terminating: object.metadata.deletion_timestamp.is_some(),
            node: object.spec.and_then(|spec| spec.node_name),
            role: object.metadata.labels.and_then(|labels| role(labels.get(WVA_ROLE)?)),
        })
    }

    /// Returns true if the pod is one of its target's replicas: neither finished nor terminating.
    #[must_use]
    pub fn counts(&self) -> bool {
        !self.terminating && !matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Returns true if the pod serves requests.
    #[must_use]
    pub fn serves(&self) -> bool {
        self.counts() && self.phase == PodPhase::Running && self.ready
    }

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

fn since(condition: &core::PodCondition) -> Option<Timestamp> {
    Some(condition.last_transition_time.as_ref()?.0)
}

/// The role in a pod's label; `None` if it is empty. Any value other than `prefill` and `decode`
/// means both.
fn role(label: &str) -> Option<Role> {
    match label {
        "" => None,
        "prefill" => Some(Role::Prefill),
        "decode" => Some(Role::Decode),
        _ => Some(Role::Both),
    }
}
