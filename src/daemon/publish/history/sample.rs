//! The load of a variant, and the need against the capacity of its role, at one instant.

use std::time::Duration;

use crate::publish::PublishedVariant;
use crate::publish::balance::CapacityBalance;
use crate::publish::history::packed::{Millis, PackedQuantity};
use crate::publish::load::ObservedLoad;
use plimsoll_core::units::{Fraction, RequestRate, Requests};

/// The load of a variant at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct LoadSample {
    pub(super) at: Millis,
    saturation: PackedQuantity,
    kv_usage: PackedQuantity,
    waiting: PackedQuantity,
    running: PackedQuantity,
    arrivals: PackedQuantity,
    forecast: PackedQuantity,
    need: PackedQuantity,
    held: PackedQuantity,
    capacity: PackedQuantity,
    capacity_pending: PackedQuantity,
    capacity_maximum: PackedQuantity,
}

// === impl LoadSample ===

impl LoadSample {
    pub(super) fn of(
        at: Millis,
        variant: &PublishedVariant,
        balance: Option<&CapacityBalance>,
    ) -> Self {
        let ObservedLoad { kv_usage, waiting, running, arrivals } =
            ObservedLoad::of(&variant.observation.replicas);
        let saturation = variant.report.as_ref().map(|report| report.saturation.fraction());

        Self {
            at,
            saturation: PackedQuantity::of(saturation),
            kv_usage: PackedQuantity::of(kv_usage.map(Fraction::fraction)),
            waiting: PackedQuantity::of(waiting.map(Requests::requests)),
            running: PackedQuantity::of(running.map(Requests::requests)),
            arrivals: PackedQuantity::of(arrivals.map(RequestRate::requests_per_second)),
            forecast: PackedQuantity::of(balance.map(|it| it.forecast)),
            need: PackedQuantity::of(balance.map(|it| it.need)),
            held: PackedQuantity::of(balance.map(|it| it.held)),
            capacity: PackedQuantity::of(balance.and_then(|it| it.ready)),
            capacity_pending: PackedQuantity::of(balance.and_then(|it| it.with_pending)),
            capacity_maximum: PackedQuantity::of(balance.and_then(|it| it.at_maximum)),
        }
    }

    pub(crate) fn age(&self, elapsed: Duration) -> Duration {
        Millis::of(elapsed).beyond(self.at)
    }

    pub(crate) fn saturation(&self) -> Option<f64> {
        self.saturation.quantity()
    }

    pub(crate) fn kv_usage(&self) -> Option<f64> {
        self.kv_usage.quantity()
    }

    pub(crate) fn waiting(&self) -> Option<f64> {
        self.waiting.quantity()
    }

    pub(crate) fn running(&self) -> Option<f64> {
        self.running.quantity()
    }

    pub(crate) fn arrivals(&self) -> Option<f64> {
        self.arrivals.quantity()
    }

    pub(crate) fn forecast(&self) -> Option<f64> {
        self.forecast.quantity()
    }

    pub(crate) fn need(&self) -> Option<f64> {
        self.need.quantity()
    }

    pub(crate) fn held(&self) -> Option<f64> {
        self.held.quantity()
    }

    pub(crate) fn capacity(&self) -> Option<f64> {
        self.capacity.quantity()
    }

    pub(crate) fn capacity_pending(&self) -> Option<f64> {
        self.capacity_pending.quantity()
    }

    pub(crate) fn capacity_maximum(&self) -> Option<f64> {
        self.capacity_maximum.quantity()
    }
}
