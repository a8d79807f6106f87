//! The status of an HPA: the conditions that keep it from scaling.

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscalerStatus;

use crate::collect::cluster::hpa::finding::{Finding, HpaCondition};

/// The reason of `ScalingActive` while a target without replicas switches the HPA off.
const SWITCHED_OFF: &str = "ScalingDisabled";

/// A condition that Kubernetes reports as false.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct FalseCondition {
    condition: HpaCondition,
    reason: String,
}

/// Reads the conditions that are false. Absent conditions and those of unknown state say nothing.
pub(super) fn conditions(status: Option<HorizontalPodAutoscalerStatus>) -> Vec<FalseCondition> {
    let all = status.and_then(|status| status.conditions).into_iter().flatten();
    all.filter(|one| one.status == "False")
        .filter_map(|one| {
            let condition = HpaCondition::of(&one.type_)?;
            Some(FalseCondition { condition, reason: one.reason.unwrap_or_default() })
        })
        .collect()
}

// === impl FalseCondition ===

impl FalseCondition {
    /// Returns true if it says that the HPA is switched off, because its target has no replicas.
    pub(super) fn is_switched_off(&self) -> bool {
        self.condition == HpaCondition::ScalingActive && self.reason == SWITCHED_OFF
    }

    /// Returns the problem that it is for an HPA. The message is not part of it, because it changes
    /// with every attempt.
    pub(super) fn finding(&self, hpa: &str) -> Finding {
        let Self { condition, reason } = self.clone();
        Finding::ConditionFalse { hpa: hpa.to_owned(), condition, reason }
    }
}
