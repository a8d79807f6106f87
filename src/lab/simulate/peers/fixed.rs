//! A fixed replica count, as most fleets have before they get an autoscaler.
//!
//! # Model
//!
//! Every variant has this many replicas from start to end, regardless of its bounds. A replica that
//! is lost to a crash or a node reclaim is replaced.
//!
//! # Source
//!
//! Kubernetes 1.36, "Deployments": `spec.replicas` without an autoscaler.

use crate::simulate::scenario::{Actuator, Variant};
use plimsoll_core::units::Replicas;

/// Fixes the replica count of a variant.
pub(crate) fn keep(variant: &mut Variant, count: Replicas) {
    variant.initial = count;
    variant.actuator = Actuator::Fixed;
}
