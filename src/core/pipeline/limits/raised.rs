//! A limit that allows more than it does, to find out what that would change.

use crate::decide::limit::{Allowance, LimitName, Nodes, SupplyLimit};
use crate::decide::optimize::Headroom;
use crate::fleet::Accelerator;
use crate::units::{CostPerHour, Gpus};
use std::sync::Arc;

/// A limit, and the amount that it allows in addition.
#[derive(Clone, Debug, PartialEq)]
pub struct RaisedLimit {
    /// The limit.
    pub limit: LimitName,
    /// The additional amount.
    pub by: LimitIncrease,
}

/// An additional amount of a limited resource.
#[derive(Clone, Debug, PartialEq)]
pub enum LimitIncrease {
    /// Accelerators of a kind; `None` if the limit counts all kinds together.
    Accelerators {
        /// The kind.
        kind: Option<Accelerator>,
        /// The number.
        count: Gpus,
    },
    /// Money per hour.
    CostPerHour(CostPerHour),
}

// === impl RaisedLimit ===

impl RaisedLimit {
    /// Raises the limit. A limit that was never read stays unread.
    pub(crate) fn apply(&self, limit: &mut SupplyLimit) {
        let Some(allowance) = limit.source.allowance_mut() else { return };
        match (allowance, &self.by) {
            (Allowance::Total(total), LimitIncrease::Accelerators { count, .. }) => {
                *total += *count;
            }
            (Allowance::Kinds(kinds), LimitIncrease::Accelerators { kind: Some(kind), count }) => {
                let room = kinds.entry(kind.clone()).or_insert(Headroom::Limited(Gpus::ZERO));
                if let Headroom::Limited(gpus) = room {
                    *gpus += *count;
                }
            }
            (Allowance::Nodes(nodes), LimitIncrease::Accelerators { kind: Some(kind), count }) => {
                *nodes = Arc::new(with_a_node(nodes, kind, *count));
            }
            (Allowance::Budget(budget), LimitIncrease::CostPerHour(more)) => {
                *budget += *more;
            }
            _ => {}
        }
    }
}

/// The nodes with one more, which has these accelerators.
fn with_a_node(nodes: &Nodes, kind: &Accelerator, count: Gpus) -> Nodes {
    let mut more = nodes.clone();
    let room = more.kinds.entry(kind.clone()).or_insert(Headroom::Limited(Gpus::ZERO));
    if let Headroom::Limited(gpus) = room {
        *gpus += count;
    }

    more.free.entry(kind.clone()).or_default().push(count);
    more
}
