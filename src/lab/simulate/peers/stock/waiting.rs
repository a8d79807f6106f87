//! A stock HPA on the requests waiting in the engines' queues.
//!
//! # Model
//!
//! `vllm:num_requests_waiting` over all replicas, with the requests in one replica's queue as
//! `averageValue`. An engine queues only once its batch or its cache is full, so this metric reacts
//! only after an overload has started.
//!
//! # Source
//!
//! Most guides for vLLM on Kubernetes scale on this metric. An example is the vLLM production
//! stack's "Autoscaling with KEDA", whose target is 5.

use crate::simulate::peers::stock;
use crate::simulate::scaler::MilliValue;
use crate::simulate::scenario::{Actuator, Signal, Variant};

/// Scales a variant on this many waiting requests per replica, in thousandths.
pub(crate) fn on_queue(variant: &Variant, target: MilliValue) -> Actuator {
    stock::hpa(variant, Signal::Waiting, target)
}
