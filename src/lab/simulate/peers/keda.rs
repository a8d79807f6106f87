//! KEDA on the rate of requests: a `ScaledObject` with one Prometheus trigger.
//!
//! # Model
//!
//! `sum(rate(requests_total[1m]))` over what was sent to the variant's replicas, with the requests a
//! second of one replica as `threshold`: KEDA's HPA takes `ceil(rate / threshold)`. What one replica
//! carries is for its user to know.
//!
//! # Source
//!
//! KEDA 2.18, "Scaling Deployments": `pollingInterval` 30 s and `cooldownPeriod` 300 s apply between
//! zero and one, the HPA has no `behavior`.

pub(crate) mod hindsight;

use crate::simulate::Micros;
use crate::simulate::scaler::{MilliValue, Settings};
use crate::simulate::scenario::{Actuator, COOLDOWN, Hpa, Keda, POLLING, SYNC, Signal, Variant};
use plimsoll_core::units::Replicas;

/// Scales a variant on this many requests a second for each replica, in thousandths.
pub(crate) fn on_rate(variant: &Variant, target: MilliValue) -> Actuator {
    let bounds = variant.spec.bounds;
    let max = bounds.max().unwrap_or(bounds.min());
    let min = bounds.min().max(Replicas::ONE);
    let settings = Settings::new(min, max.max(min), target);
    let hpa = Hpa { signal: Signal::Sent, settings, sync: SYNC, delay: Micros::ZERO };
    Actuator::Keda(Keda {
        hpa,
        // The rate is what was sent to replicas: without one there is none.
        to_zero: false,
        polling: POLLING,
        cooldown: COOLDOWN,
        activation: MilliValue(0),
    })
}
