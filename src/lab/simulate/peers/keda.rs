//! KEDA on the request rate: a `ScaledObject` with one Prometheus trigger.
//!
//! # Model
//!
//! The metric is `sum(rate(requests_total[1m]))` over the requests sent to the variant's replicas.
//! `threshold` is the requests/s of one replica, so KEDA's HPA takes `ceil(rate / threshold)`. The
//! user has to know the capacity per replica.
//!
//! # Source
//!
//! KEDA 2.18, "Scaling Deployments": `pollingInterval` 30 s and `cooldownPeriod` 300 s apply
//! between zero and one. The HPA has no `behavior`.

pub(crate) mod hindsight;

use crate::simulate::Micros;
use crate::simulate::scaler::{MilliValue, ScalerSettings};
use crate::simulate::scenario::{Actuator, COOLDOWN, Hpa, Keda, POLLING, SYNC, Signal, Variant};
use plimsoll_core::units::Replicas;

/// Scales a variant on this many requests/s per replica, in thousandths.
pub(crate) fn on_rate(variant: &Variant, target: MilliValue) -> Actuator {
    let bounds = variant.spec.bounds;
    let max = bounds.max().unwrap_or(bounds.min());
    let min = bounds.min().max(Replicas::ONE);
    let settings = ScalerSettings::new(min, max.max(min), target);
    let hpa = Hpa { signal: Signal::Sent, settings, sync: SYNC, delay: Micros::ZERO };

    Actuator::Keda(Keda {
        hpa,
        // The rate counts requests sent to replicas, so without a replica there is none.
        to_zero: false,
        polling: POLLING,
        cooldown: COOLDOWN,
        activation: MilliValue(0),
    })
}
