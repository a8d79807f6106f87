//! What may be used, as metrics.

use crate::publish::PublishedVariant;
use crate::publish::gauges::{
    ALLOWED, ALLOWED_COST, CUT, HELD, HELD_COST, OF_OTHERS, ON_NODES, PRICE, SOURCE_AGE, Sheet,
    UNREAD, count, one_if,
};
use plimsoll_core::decide::limit::{LimitReport, Reading, Row, Spending};
use plimsoll_core::decide::limited::{Limited, Price, Short};
use plimsoll_core::decide::{Decision, Reason};
use plimsoll_core::observe::inventory::NodeStock;
use plimsoll_core::units::{Gpus, Replicas, Seconds};

impl Sheet {
    /// What one limit allows.
    pub(super) fn limit(&mut self, report: &LimitReport) {
        let LimitReport { name, reading, rows, spending, price, stock } = report;
        let limit = name.as_str();
        for Row { kind, allowed, held } in rows {
            let labels = [limit, kind.as_ref().map_or("", |kind| kind.as_str())];
            let gpus = |gpus: Gpus| f64::from(gpus.count());
            self.set(&ALLOWED, &labels, allowed.map(gpus));
            self.set(&HELD, &labels, Some(gpus(*held)));
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
            Reading::Known => Some(Seconds::ZERO),
            Reading::Held(age) => Some(*age),
            Reading::Unread => None,
        };
        self.set(&SOURCE_AGE, &[limit], age.map(Seconds::seconds));
        self.set(&UNREAD, &[limit], Some(one_if(*reading == Reading::Unread)));
        if let Some(Price { of, next, carries, unit }) = price {
            let of = match of {
                Short::Accelerator(kind) => kind.as_ref().map_or("", |kind| kind.as_str()),
                Short::CostPerHour => "cost_per_hour",
            };
            let labels = [limit, of, next.namespace.as_str(), next.variant.as_str(), unit.label()];
            self.set(&PRICE, &labels, Some(carries.amount()));
        }
    }

    /// By which limits a variant is cut, and by how much.
    pub(super) fn cuts(&mut self, published: &PublishedVariant, decision: &Decision) {
        let spec = &published.spec;
        for step in &decision.steps {
            let Reason::Limited(Limited::Cut { cut, .. }) = &step.reason else { continue };
            let labels = [
                spec.key.namespace.as_str(),
                spec.model.as_str(),
                spec.key.variant.as_str(),
                cut.limit.as_str(),
            ];
            let less: Replicas = step.before.beyond(step.after);
            self.set(&CUT, &labels, Some(count(less)));
        }
    }
}
