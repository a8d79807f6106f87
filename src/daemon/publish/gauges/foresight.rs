//! The forecast demand, the capacity and the late first tokens, as metrics.

use crate::publish::PublishedVariant;
use crate::publish::gauges::sheet::MetricSheet;
use crate::publish::gauges::{
    ADMISSIBLE, CAPACITY, CARRIES, CARRIES_HIGH, CARRIES_LOW, FIRST_TOKENS, LATE_FIRST_TOKENS,
    LEARNED, MODEL_ADMISSIBLE, NEED, NEED_HELD, SLO_ITL, SLO_LATE_SHARE, SLO_TTFT, SLOWEST,
    STARVING, labels, one_if,
};
use plimsoll_core::decide::outlook::{CapacityOutlook, LatencyObjectives, VariantOutlook};
use plimsoll_core::decide::sized::{
    AdmissibleRate, CapacityEstimate, CapacityInterval, DemandForecast, SlowestReplica,
};
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::units::{RequestRate, Seconds};

impl MetricSheet {
    /// Sets the capacity, the objectives and the late first tokens of a variant.
    pub(super) fn outlook(&mut self, published: &PublishedVariant, outlook: &VariantOutlook) {
        let VariantOutlook { capacity, objectives, first_tokens, .. } = outlook;
        let labels = labels(published);
        self.set(&LEARNED, &labels, Some(one_if(outlook.is_learned())));

        if let Some(CapacityOutlook { now, when_ready, at_maximum }) = capacity {
            let [namespace, model, variant] = labels;
            let role = published.spec.role.label();
            let all =
                [("now", Some(now)), ("ready", Some(when_ready)), ("maximum", at_maximum.as_ref())];
            for (when, rate) in all {
                let labels = [namespace, model, variant, role, when];
                self.set(&CAPACITY, &labels, rate.map(|it| it.requests_per_second()));
            }
        }

        let LatencyObjectives { ttft, itl, late_share } = objectives;
        self.set(&SLO_ITL, &labels, itl.map(Seconds::seconds));
        if let Some(firsts) = first_tokens {
            self.set(&SLO_TTFT, &labels, Some(ttft.seconds()));
            self.set(&SLO_LATE_SHARE, &labels, Some(late_share.fraction()));
            self.set(&FIRST_TOKENS, &labels, Some(firsts.seen));
            self.set(&LATE_FIRST_TOKENS, &labels, Some(firsts.late));
        }
    }

    /// Sets the `foresight` metrics of a decision on fresh data, if `foresight` contributed to it.
    /// Variants of one role have the same need, so the order of writes does not matter.
    pub(super) fn foresight(&mut self, published: &PublishedVariant, decision: &Decision) {
        let [namespace, model, variant] = labels(published);
        if let Some(AdmissibleRate { variant: rate, model: total, .. }) = decision.admissible {
            self.set(&ADMISSIBLE, &labels(published), Some(rate.requests_per_second()));
            let per_second = total.map(RequestRate::requests_per_second);
            self.set(&MODEL_ADMISSIBLE, &[namespace, model], per_second);
        }

        let fresh = decision.sizing.as_ref().filter(|_| decision.basis == Basis::Fresh);
        let Some(sizing) = fresh else { return };
        if let Some(DemandForecast { role, need, held, .. }) = &sizing.foreseen {
            let labels = [namespace, model, role.label()];
            self.set(&NEED, &labels, Some(need.total));
            self.set(&NEED_HELD, &labels, Some(*held));
        }

        if let Some(SlowestReplica { factor, .. }) = &sizing.slowest {
            self.set(&SLOWEST, &labels(published), Some(factor.fraction()));
        }
        if sizing.foreseen.is_some() {
            let starves = one_if(sizing.starving.is_some());
            self.set(&STARVING, &[namespace, model, variant], Some(starves));
        }

        if let Some(CapacityEstimate { rate, interval, said_by, .. }) = sizing.carries {
            let labels = [namespace, model, variant, said_by.label()];
            let (low, high) = interval.map(|CapacityInterval { low, high }| (low, high)).unzip();
            let rates = [(&CARRIES, Some(rate)), (&CARRIES_LOW, low), (&CARRIES_HIGH, high)];
            for (family, rate) in rates {
                self.set(family, &labels, rate.map(RequestRate::requests_per_second));
            }
        }
    }
}
