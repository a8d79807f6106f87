//! Pods: what matters of one, read from its object.

use k8s_openapi::api::core::v1 as core;

use crate::collect::cluster::discovery::WVA_ROLE;
use crate::collect::cluster::{Phase, Pod};
use plimsoll_core::fleet::{Incarnation, ReplicaName, Role};

// === impl Pod ===

impl Pod {
    /// Reads the object; `None` for one without a name or a uid, which no API server sends.
    pub(crate) fn new(object: core::Pod) -> Option<Self> {
        let status = object.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().find(|is| is.type_ == "Ready" && is.status == "True");
        let unschedulable = conditions.iter().find(|is| {
            // A scheduling gate is none of the scheduler's findings, and neither is its own failure.
            is.type_ == "PodScheduled"
                && is.status == "False"
                && is.reason.as_deref() == Some("Unschedulable")
        });
        let created = object.metadata.creation_timestamp.map(|at| at.0);
        let since = |is: &core::PodCondition| Some(is.last_transition_time.as_ref()?.0);
        Some(Self {
            name: ReplicaName::new(object.metadata.name.as_deref()?)?,
            uid: Incarnation::new(object.metadata.uid.as_deref()?)?,
            ip: status.pod_ip.and_then(|ip| ip.parse().ok()),
            phase: match status.phase.as_deref() {
                Some("Pending") => Phase::Pending,
                Some("Running") => Phase::Running,
                Some("Succeeded") => Phase::Succeeded,
                Some("Failed") => Phase::Failed,
                _ => Phase::Unknown,
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

    /// Whether the pod is one of its target's replicas: neither finished nor on its way out.
    pub(crate) fn counts(&self) -> bool {
        !self.terminating && !matches!(self.phase, Phase::Succeeded | Phase::Failed)
    }

    /// Whether the pod serves requests.
    pub(crate) fn serves(&self) -> bool {
        self.counts() && self.phase == Phase::Running && self.ready
    }
}

/// The role that a pod's label names. Whatever is neither of the two halves is the whole.
fn role(label: &str) -> Option<Role> {
    match label {
        "" => None,
        "prefill" => Some(Role::Prefill),
        "decode" => Some(Role::Decode),
        _ => Some(Role::Both),
    }
}
