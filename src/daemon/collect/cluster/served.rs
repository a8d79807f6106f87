//! The names under which desired replicas are served.

/// The metrics with desired replicas: Plimsoll's, and the one of the workload variant autoscaler,
/// whose HPAs Plimsoll also serves.
pub(super) const METRICS: [&str; 2] = ["plimsoll_desired_replicas", "wva_desired_replicas"];

/// The metric of the external scaler, as an HPA of KEDA names it after the trigger's place.
pub(super) const SCALER_METRIC: &str = "plimsoll-desired-replicas";
