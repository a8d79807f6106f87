//! What the stock HPAs have in common; each is in a file of its own below.
//!
//! # Model
//!
//! `autoscaling/v2` with one metric and a target of `averageValue`, without `behavior`: at most
//! doubled, or to four, in each sync of 15 s; a tolerance of 0.1; scaled down to the highest
//! recommendation of five minutes. The metric is a sum over the replicas that serve, read without
//! loss or delay unless the scenario's own HPA has one, which this one then has, too.
//!
//! # Source
//!
//! Kubernetes 1.36, "Horizontal Pod Autoscaling", "Algorithm details" and "Default behavior"; the
//! arithmetic is in `src/simulate/scaler.rs`.

pub(crate) mod in_flight;
pub(crate) mod kv;
pub(crate) mod waiting;

use crate::simulate::Micros;
use crate::simulate::scaler::{MilliValue, Settings};
use crate::simulate::scenario::{Actuator, Hpa, Keda, SYNC, Signal, Variant};
use plimsoll_core::units::Replicas;

/// A stock HPA of a variant that aims at this average of a signal for each replica.
fn hpa(variant: &Variant, signal: Signal, target: MilliValue) -> Actuator {
    let (sync, delay) = match &variant.actuator {
        Actuator::Hpa(hpa) | Actuator::Keda(Keda { hpa, .. }) => (hpa.sync, hpa.delay),
        Actuator::Fixed | Actuator::Law(_) => (SYNC, Micros::ZERO),
    };
    let bounds = variant.spec.bounds;
    // An HPA on its own replicas' gauges cannot come back from zero.
    let min = bounds.min().max(Replicas::ONE);
    let max = bounds.max().unwrap_or(min);
    Actuator::Hpa(Hpa { signal, settings: Settings::new(min, max, target), sync, delay })
}
