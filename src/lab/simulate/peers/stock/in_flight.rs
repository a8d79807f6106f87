//! A stock HPA on the requests in flight: waiting requests and those in the batch.
//!
//! # Model
//!
//! `vllm:num_requests_waiting` and `vllm:num_requests_running` over all replicas, with the requests
//! in flight of one replica as `averageValue`.
//!
//! # Source
//!
//! Concurrency as Knative and `KServe` define it, on the HPA instead of Knative's own autoscaler.
//! The user has to know the concurrency that one replica can handle.

use crate::simulate::peers::stock;
use crate::simulate::scaler::MilliValue;
use crate::simulate::scenario::{Actuator, Signal, Variant};

/// Scales a variant on this many requests in flight per replica, in thousandths.
pub(crate) fn on_concurrency(variant: &Variant, target: MilliValue) -> Actuator {
    stock::hpa(variant, Signal::InFlight, target)
}
