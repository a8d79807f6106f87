//! The load of a variant, and the need against the capacity of its role, at one instant.

use std::time::Duration;

use crate::publish::PublishedVariant;
use crate::publish::balance::CapacityBalance;
use crate::publish::history::packed::{Millis, PackedNumber};
use crate::publish::load::ObservedLoad;
use plimsoll_core::units::{Fraction, RequestRate, Requests};

/// The load of a variant at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Hash)]
pub(crate) struct LoadSample {
    pub(super) at: Millis,
    saturation: PackedNumber,
    kv_usage: PackedNumber,
    waiting: PackedNumber,
    running: PackedNumber,
    arrivals: PackedNumber,
    forecast: PackedNumber,
    need: PackedNumber,
    held: PackedNumber,
    capacity: PackedNumber,
    capacity_pending: PackedNumber,
    capacity_maximum: PackedNumber,
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
            saturation: PackedNumber::of(saturation),
            kv_usage: PackedNumber::of(kv_usage.map(Fraction::fraction)),
            waiting: PackedNumber::of(waiting.map(Requests::requests)),
            running: PackedNumber::of(running.map(Requests::requests)),
            arrivals: PackedNumber::of(arrivals.map(RequestRate::requests_per_second)),
            forecast: PackedNumber::of(balance.map(|it| it.forecast)),
            need: PackedNumber::of(balance.map(|it| it.need)),
            held: PackedNumber::of(balance.map(|it| it.held)),
            capacity: PackedNumber::of(balance.and_then(|it| it.ready)),
            capacity_pending: PackedNumber::of(balance.and_then(|it| it.with_pending)),
            capacity_maximum: PackedNumber::of(balance.and_then(|it| it.at_maximum)),
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
