//! Pods: the relevant parts of a pod, read from its object.

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

use crate::collect::cluster::discovery::WVA_ROLE;
use crate::collect::cluster::{ClusterPod, PodPhase};
use plimsoll_core::fleet::{Incarnation, ReplicaName, Role};

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
    pub(crate) fn counts(&self) -> bool {
        !self.terminating && !matches!(self.phase, PodPhase::Succeeded | PodPhase::Failed)
    }

    /// Returns true if the pod serves requests.
    pub(crate) fn serves(&self) -> bool {
        self.counts() && self.phase == PodPhase::Running && self.ready
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
