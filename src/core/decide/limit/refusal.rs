//! The reasons why a limit refuses a replica.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::decide::limit::holdings::{LimitUse, left_of_kind};
use crate::decide::limit::supply::{Allowance, SupplyLimit};
use crate::decide::limit::want::Want;
use crate::decide::optimize::room::Headroom;
use crate::fleet::{Accelerator, LimitName};
use crate::units::{CostPerHour, Gpus, Replicas};

/// Sums of prices differ in their last digits, and a budget of 0.30 must pay for three times 0.10.
/// A gap below this share of the budget counts as zero.
const BUDGET_SLACK: f64 = 1e-9;

/// A limit that keeps a variant from having more replicas.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("limited by {limit}: {why}")]
pub struct Cut {
    /// The limit.
    pub limit: LimitName,
    /// The reason for the refusal.
    pub why: GrantRefusal,
}

/// The reason why a limit refuses a replica.
#[derive(Clone, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GrantRefusal {
    /// A replica needs more than is free.
    #[display(
        "a replica needs {needed} {} and {free} are free",
        kind.as_ref().map_or("accelerators", Accelerator::as_str)
    )]
    Accelerators {
        /// The kind; `None` if all kinds count together.
        kind: Option<Accelerator>,
        /// Accelerators per replica.
        needed: Gpus,
        /// Free accelerators.
        free: Gpus,
    },
    /// Enough is free in total, but no node has enough for a pod.
    #[display(
        "a pod needs {needed} {kind} on one node, and at most {largest} are free on one ({free} \
         on all)"
    )]
    Scattered {
        /// The kind.
        kind: Accelerator,
        /// Accelerators per pod.
        needed: Gpus,
        /// Free accelerators on the node that has most.
        largest: Gpus,
        /// Free accelerators on all nodes together.
        free: Gpus,
    },
    /// A replica costs more than is left of the budget.
    #[display("a replica costs {needed:.2} per hour and {left:.2} is left")]
    Budget {
        /// Cost per replica.
        needed: CostPerHour,
        /// The rest of the budget.
        left: CostPerHour,
    },
    /// The limit does not list the kind.
    #[display("it has no {_0}")]
    NotListed(Accelerator),
    /// The accelerator of the variant is unknown.
    #[display("the variant's accelerator is unknown")]
    UnknownKind,
    /// The limit has never been read.
    #[display("it has not been read yet")]
    Unread,
}

impl SupplyLimit {
    /// Returns the reason why one more replica is refused, if it is.
    pub(super) fn refuses(&self, want: &Want, used: &LimitUse) -> Option<GrantRefusal> {
        match self.source.allowance() {
            Some(Allowance::Budget(budget)) => {
                let left = budget.beyond(used.cost);
                let short = want.cost.per_hour() - left.per_hour();
                let refused = short > BUDGET_SLACK * budget.per_hour();
                refused.then_some(GrantRefusal::Budget { needed: want.cost, left })
            }
            // Replicas without accelerators are limited by money alone.
            None | Some(Allowance::Total(_) | Allowance::Kinds(_) | Allowance::Nodes(_))
                if want.gpus == Gpus::ZERO =>
            {
                None
            }
            None => Some(GrantRefusal::Unread),
            Some(Allowance::Total(total)) => {
                shortage(want, None, Headroom::Limited(*total).without(used.total))
            }
            Some(allowance @ (Allowance::Kinds(_) | Allowance::Nodes(_))) => {
                let kinds = allowance.kinds()?;
                let Some(kind) = self.kind(want) else { return Some(GrantRefusal::UnknownKind) };
                let Some(headroom) = kinds.get(kind) else {
                    return Some(GrantRefusal::NotListed(kind.clone()));
                };

                let held = used.kinds.get(kind).copied().unwrap_or_default();
                let left = headroom.without(held);
                shortage(want, Some(kind), left).or_else(|| scattered(allowance, want, kind, used))
            }
        }
    }
}

/// Returns the refusal of one more replica, if fewer accelerators are free than it takes.
fn shortage(want: &Want, kind: Option<&Accelerator>, free: Headroom) -> Option<GrantRefusal> {
    match free {
        Headroom::Limited(free) if free < want.gpus => {
            Some(GrantRefusal::Accelerators { kind: kind.cloned(), needed: want.gpus, free })
        }
        Headroom::Limited(_) | Headroom::Unlimited => None,
    }
}

/// Returns the reason why no node fits one more replica, if nodes are known.
fn scattered(
    allowance: &Allowance,
    want: &Want,
    kind: &Accelerator,
    used: &LimitUse,
) -> Option<GrantRefusal> {
    let Allowance::Nodes(nodes) = allowance else { return None };
    let fit = nodes.fit(&used.started, want, kind, Replicas::ONE)?;

    (fit == Replicas::ZERO).then(|| GrantRefusal::Scattered {
        kind: kind.clone(),
        needed: nodes.pod(want),
        largest: nodes.largest(kind),
        free: match left_of_kind(&nodes.kinds, kind, used) {
            Headroom::Limited(free) => free,
            Headroom::Unlimited => Gpus::ZERO,
        },
    })
}
