//! The common parts of the stock HPAs, each of which has its own file below.
//!
//! # Model
//!
//! `autoscaling/v2` with one metric, a target of `averageValue` and no `behavior`. Each sync of 15
//! s scales up to at most double, or to 4 if that is more. The tolerance is 0.1, and scale-down
//! goes to the highest recommendation of the last five minutes.
//!
//! The metric is a sum over the serving replicas, read without loss. It has no delay, unless the
//! scenario's own HPA has one; then this HPA has the same delay.
//!
//! # Source
//!
//! Kubernetes 1.36, "Horizontal Pod Autoscaling", "Algorithm details" and "Default behavior"; the
//! arithmetic is in `src/lab/simulate/scaler.rs`.

pub(crate) mod in_flight;
pub(crate) mod kv;
pub(crate) mod waiting;

use crate::simulate::Micros;
use crate::simulate::scaler::{MilliValue, ScalerSettings};
use crate::simulate::scenario::{Actuator, Hpa, Keda, SYNC, Signal, Variant};
use plimsoll_core::units::Replicas;

/// A stock HPA for a variant, with this target for the average of a signal per replica.
fn hpa(variant: &Variant, signal: Signal, target: MilliValue) -> Actuator {
    let (sync, delay) = match &variant.actuator {
        Actuator::Hpa(hpa) | Actuator::Keda(Keda { hpa, .. }) => (hpa.sync, hpa.delay),
        Actuator::Fixed | Actuator::Law(_) => (SYNC, Micros::ZERO),
    };

    let bounds = variant.spec.bounds;
    // An HPA on its own replicas' gauges cannot scale up from zero.
    let min = bounds.min().max(Replicas::ONE);
    let max = bounds.max().unwrap_or(min);
    Actuator::Hpa(Hpa { signal, settings: ScalerSettings::new(min, max, target), sync, delay })
}
