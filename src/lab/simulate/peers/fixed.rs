//! A fixed number of replicas, which is what most fleets have before anybody scales them.
//!
//! # Model
//!
//! Every variant has this many replicas from the start to the end, whatever its bounds say. What is
//! lost to a crash or a node that is taken back is replaced.
//!
//! # Source
//!
//! Kubernetes 1.36, "Deployments": `spec.replicas` without an autoscaler.

use crate::simulate::scenario::{Actuator, Variant};
use plimsoll_core::units::Replicas;

/// Gives a variant this many replicas for good.
pub(crate) fn keep(variant: &mut Variant, count: Replicas) {
    variant.initial = count;
    variant.actuator = Actuator::Fixed;
}
