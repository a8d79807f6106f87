//! Limits on GPUs and cost, as metrics.

use std::collections::BTreeMap;

use crate::publish::PublishedVariant;
use crate::publish::gauges::sheet::MetricSheet;
use crate::publish::gauges::{
    ALLOWED, ALLOWED_COST, CUT, HELD, HELD_COST, OF_OTHERS, ON_NODES, PRICE, SOURCE_AGE, UNREAD,
    count, labels, one_if,
};
use plimsoll_core::decide::limit::{AllowanceRow, LimitReading, LimitReport, Spending};
use plimsoll_core::decide::limited::{LimitedReason, ScarceResource, ShadowPrice};
use plimsoll_core::decide::{Decision, Reason};
use plimsoll_core::observe::inventory::NodeStock;
use plimsoll_core::units::{Replicas, Seconds};

impl MetricSheet {
    /// Sets the metrics of one limit.
    pub(super) fn limit(&mut self, report: &LimitReport) {
        let LimitReport { name, reading, rows, spending, price, stock } = report;
        let limit = name.as_str();
        for AllowanceRow { kind, allowed, held } in rows {
            let labels = [limit, kind.as_ref().map_or("", |kind| kind.as_str())];
            self.set(&ALLOWED, &labels, allowed.map(|it| f64::from(it.count())));
            self.set(&HELD, &labels, Some(f64::from(held.count())));
        }

        for NodeStock { product, allocatable, used_by_others } in stock {
            self.set(&ON_NODES, &[product.as_str()], Some(f64::from(allocatable.count())));
            self.set(&OF_OTHERS, &[product.as_str()], Some(f64::from(used_by_others.count())));
        }

        if let Some(Spending { allowed, held }) = spending {
            self.set(&ALLOWED_COST, &[limit], Some(allowed.per_hour()));
            self.set(&HELD_COST, &[limit], Some(held.per_hour()));
        }

        let age = match reading {
            LimitReading::Known => Some(Seconds::ZERO),
            LimitReading::Held(since) => Some(*since),
            LimitReading::Unread => None,
        };
        self.set(&SOURCE_AGE, &[limit], age.map(Seconds::seconds));
        self.set(&UNREAD, &[limit], Some(one_if(*reading == LimitReading::Unread)));

        if let Some(ShadowPrice { of: short, next, carries, unit }) = price {
            let of = match short {
                ScarceResource::Accelerator(kind) => kind.as_ref().map_or("", |kind| kind.as_str()),
                ScarceResource::CostPerHour => "cost_per_hour",
            };
            let labels = [limit, of, next.namespace.as_str(), next.variant.as_str(), unit.label()];
            self.set(&PRICE, &labels, Some(carries.amount()));
        }
    }

    /// Sets the replicas that each limit takes from a variant. Of two cuts by one limit, the last
    /// counts.
    pub(super) fn cuts(&mut self, published: &PublishedVariant, decision: &Decision) {
        let mut cuts: BTreeMap<&str, Replicas> = BTreeMap::new();
        for step in &decision.steps {
            let Reason::Limited(LimitedReason::Cut { cut, .. }) = &step.reason else { continue };
            cuts.insert(cut.limit.as_str(), step.before.beyond(step.after));
        }

        let [namespace, model, variant] = labels(published);
        for (limit, less) in cuts {
            self.set(&CUT, &[namespace, model, variant, limit], Some(count(less)));
        }
    }
}
