//! The forecast demand and the capacity per replica, as metrics.

use crate::publish::PublishedVariant;
use crate::publish::gauges::{
    ADMISSIBLE, CARRIES, CARRIES_HIGH, CARRIES_LOW, MODEL_ADMISSIBLE, MetricSheet, NEED, NEED_HELD,
    SLOWEST, STARVING, labels, one_if,
};
use plimsoll_core::decide::sized::{
    AdmissibleRate, CapacityEstimate, CapacityInterval, DemandForecast, SlowestReplica,
};
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::units::RequestRate;

impl MetricSheet {
    /// Sets the `foresight` metrics of a decision on fresh data, if `foresight` contributed to it.
    /// Variants of one role have the same need, so the order of writes does not matter.
    pub(super) fn foresight(&mut self, published: &PublishedVariant, decision: &Decision) {
        let [namespace, model, variant] = labels(published);
        if let Some(AdmissibleRate { variant: rate, model: total, .. }) = decision.admissible {
            self.set(&ADMISSIBLE, &labels(published), Some(rate.requests_per_second()));
            let per_second = total.map(RequestRate::requests_per_second);
            self.set(&MODEL_ADMISSIBLE, &[namespace, model], per_second);
        }

        let fresh = decision.sized().filter(|_| decision.basis == Basis::Fresh);
        let Some(sized) = fresh else { return };
        if let Some(DemandForecast { role, need, held, .. }) = sized.foreseen.as_deref() {
            let labels = [namespace, model, role.label()];
            self.set(&NEED, &labels, Some(need.total));
            self.set(&NEED_HELD, &labels, Some(*held));
        }

        if let Some(SlowestReplica { factor, .. }) = sized.slowest.as_deref() {
            self.set(&SLOWEST, &labels(published), Some(factor.fraction()));
        }
        if sized.foreseen.is_some() {
            let starves = one_if(sized.starving.is_some());
            self.set(&STARVING, &[namespace, model, variant], Some(starves));
        }

        if let Some(CapacityEstimate { rate, interval, said_by, .. }) = sized.carries {
            let labels = [namespace, model, variant, said_by.label()];
            let (low, high) = interval.map(|CapacityInterval { low, high }| (low, high)).unzip();
            let rates = [(&CARRIES, Some(rate)), (&CARRIES_LOW, low), (&CARRIES_HIGH, high)];
            for (family, rate) in rates {
                self.set(family, &labels, rate.map(RequestRate::requests_per_second));
            }
        }
    }
}
