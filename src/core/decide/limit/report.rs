//! What each limit allows and how much of that is held, for whoever looks at it.

use crate::decide::limit::ledger::Used;
use crate::decide::limit::{Allowance, Ledger, Limit, LimitName, Source, Want};
use crate::decide::limited::Price;
use crate::decide::optimize::Headroom;
use crate::fleet::Accelerator;
use crate::observe::inventory::NodeStock;
use crate::units::{CostPerHour, Gpus, Seconds};

/// One limit at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitReport {
    /// Its name.
    pub name: LimitName,
    /// How far what it says can be relied on.
    pub reading: Reading,
    /// What it allows of accelerators; empty for a budget, and while nothing has been read.
    pub rows: Vec<Row>,
    /// What it allows to spend, if it is a budget.
    pub spending: Option<Spending>,
    /// What one more would buy, while it cuts and that is known.
    pub price: Option<Price>,
    /// What nodes have, if it is what nodes have; products by the names that they go by.
    pub stock: Vec<NodeStock>,
}

/// How far what a limit says can be relied on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Reading {
    /// It is known.
    Known,
    /// It cannot be read, and what it said so long ago holds.
    Held(Seconds),
    /// It has never been read, and nothing may grow.
    Unread,
}

/// What a limit allows of one kind of accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct Row {
    /// The kind; `None` where all kinds count together.
    pub kind: Option<Accelerator>,
    /// What it allows; `None` where it limits nothing.
    pub allowed: Option<Gpus>,
    /// What variants hold of it.
    pub held: Gpus,
}

/// What a budget allows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spending {
    /// What it allows.
    pub allowed: CostPerHour,
    /// What is spent.
    pub held: CostPerHour,
}

/// Each limit with what these variants hold of it, in the order of the limits.
#[must_use]
pub fn report(wants: &[Want], limits: &[Limit]) -> Vec<LimitReport> {
    let mut ledger = Ledger::new(limits);
    for want in wants {
        ledger.hold(want, want.current);
    }
    let row = |(limit, used): (&Limit, Used)| {
        let reading = match &limit.source {
            Source::Read(_) => Reading::Known,
            Source::Held { age, .. } => Reading::Held(*age),
            Source::Unread => Reading::Unread,
        };
        let (mut rows, mut spending) = (Vec::new(), None);
        match limit.source.allowance() {
            None => {}
            Some(allowance @ (Allowance::Kinds(_) | Allowance::Nodes(_))) => {
                let kinds = allowance.kinds().into_iter().flatten();
                rows.extend(kinds.map(|(kind, most)| Row {
                    kind: Some(kind.clone()),
                    allowed: match most {
                        Headroom::Limited(gpus) => Some(*gpus),
                        Headroom::Unlimited => None,
                    },
                    held: used.kinds.get(kind).copied().unwrap_or_default(),
                }));
            }
            Some(Allowance::Total(total)) => {
                rows.push(Row { kind: None, allowed: Some(*total), held: used.total });
            }
            Some(Allowance::Budget(allowed)) => {
                spending = Some(Spending { allowed: *allowed, held: used.cost });
            }
        }
        let (name, price, stock) = (limit.name.clone(), None, Vec::new());
        LimitReport { name, reading, rows, spending, price, stock }
    };
    limits.iter().zip(ledger.into_used()).map(row).collect()
}
