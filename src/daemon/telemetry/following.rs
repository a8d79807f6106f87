//! The metrics of the autoscalers that follow desired replicas, and of the cluster that has them.

use prometheus::{GaugeVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of autoscalers.
#[derive(Clone)]
pub struct FollowingMetrics {
    /// 1 while an HPA's tolerance makes it ignore the published desired replicas, otherwise 0.
    pub ignores: GaugeVec,
    /// 1 for each variant whose desired replicas an autoscaler reads as they are, otherwise 0.
    pub follows: GaugeVec,
    /// 1 for each problem that keeps a variant's autoscaler from following.
    pub problems: GaugeVec,
    /// Age of the newest state that the API server confirmed, in seconds.
    pub cluster_age: GaugeVec,
}

impl FollowingMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let ignores = registrar.gauges(
            "plimsoll_hpa_ignores_desired",
            "1 while the HPA's tolerance makes it ignore desired replicas, otherwise 0.",
            &["namespace", "variant", "hpa", "scaled_object"],
        )?;
        let follows = registrar.gauges(
            "plimsoll_autoscaler_follows",
            "1 if exactly one autoscaler reads the desired replicas of the variant as they are, otherwise 0.",
            &["namespace", "variant"],
        )?;
        let problems = registrar.gauges(
            "plimsoll_autoscaler_problem",
            "1 for each problem that keeps an autoscaler from following the variant's desired replicas, or that removes replicas on an error.",
            &["namespace", "variant", "problem"],
        )?;
        let cluster_age = registrar.gauges(
            "plimsoll_cluster_state_age_seconds",
            "Age of the newest state of a scale target that the API server confirmed.",
            &[],
        )?;

        Ok(Self { ignores, follows, problems, cluster_age })
    }
}
