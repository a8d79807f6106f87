//! A stock HPA on KV cache usage.
//!
//! # Model
//!
//! `vllm:kv_cache_usage_perc`, which older releases call `vllm:gpu_cache_usage_perc`, summed over
//! all replicas. The `averageValue` is a share.
//!
//! # Source
//!
//! Google's guide for GKE, "Best practices for autoscaling large language model inference workloads
//! with GPUs". It scales on this metric and calls it the second choice after the queue.

use crate::simulate::peers::stock;
use crate::simulate::scaler::MilliValue;
use crate::simulate::scenario::{Actuator, Signal, Variant};

/// Scales a variant on this KV cache usage per replica, in thousandths.
pub(crate) fn on_cache(variant: &Variant, target: MilliValue) -> Actuator {
    stock::hpa(variant, Signal::KvUsage, target)
}
