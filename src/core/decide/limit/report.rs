//! The allowance of each limit and the part that is held, for display.

use crate::decide::limit::holdings::LimitUse;
use crate::decide::limit::ledger::holdings;
use crate::decide::limit::supply::{Allowance, LimitSource, SupplyLimit};
use crate::decide::limit::want::Want;
use crate::decide::limited::ShadowPrice;
use crate::decide::optimize::room::Headroom;
use crate::fleet::{Accelerator, LimitName};
use crate::observe::inventory::NodeStock;
use crate::units::{CostPerHour, Gpus, Seconds};

/// One limit at one instant.
#[derive(Clone, Debug, PartialEq)]
pub struct LimitReport {
    /// Its name.
    pub name: LimitName,
    /// The freshness of its value.
    pub reading: LimitReading,
    /// Its allowance for accelerators; empty for a budget, and while nothing has been read.
    pub rows: Vec<AllowanceRow>,
    /// Its allowance for spending, if it is a budget.
    pub spending: Option<Spending>,
    /// The gain from one more unit, while the limit cuts and the gain is known.
    pub price: Option<ShadowPrice>,
    /// The accelerators on nodes, if the limit counts those; products have their normalized names.
    pub stock: Vec<NodeStock>,
}

/// The freshness of a limit's value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum LimitReading {
    /// The value is known.
    Known,
    /// The limit cannot be read, and its value of this age applies.
    Held(Seconds),
    /// The limit has never been read, and nothing may scale up above its minimum.
    Unread,
}

/// The allowance for one kind of accelerator.
#[derive(Clone, Debug, PartialEq)]
pub struct AllowanceRow {
    /// The kind; `None` if all kinds count together.
    pub kind: Option<Accelerator>,
    /// The allowance; `None` without a limit.
    pub allowed: Option<Gpus>,
    /// The amount that variants hold.
    pub held: Gpus,
}

/// The allowance of a budget.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spending {
    /// The allowance.
    pub allowed: CostPerHour,
    /// The amount that is spent.
    pub held: CostPerHour,
}

/// Returns each limit with the holdings of these variants, in the order of the limits.
#[must_use]
pub fn report(wants: &[Want], limits: &[SupplyLimit]) -> Vec<LimitReport> {
    let used = holdings(wants, limits);
    limits.iter().zip(&used).map(|(limit, used)| report_of(limit, used)).collect()
}

fn report_of(limit: &SupplyLimit, used: &LimitUse) -> LimitReport {
    let reading = match &limit.source {
        LimitSource::Read(_) => LimitReading::Known,
        LimitSource::Held { age, .. } => LimitReading::Held(*age),
        LimitSource::Unread => LimitReading::Unread,
    };

    let mut rows = Vec::new();
    let mut spending = None;
    match limit.source.allowance() {
        None => {}
        Some(allowance @ (Allowance::Kinds(_) | Allowance::Nodes(_))) => {
            let kinds = allowance.kinds().into_iter().flatten();
            rows.extend(kinds.map(|(kind, most)| AllowanceRow {
                kind: Some(kind.clone()),
                allowed: match most {
                    Headroom::Limited(gpus) => Some(*gpus),
                    Headroom::Unlimited => None,
                },
                held: used.kinds.get(kind).copied().unwrap_or_default(),
            }));
        }
        Some(Allowance::Total(total)) => {
            rows.push(AllowanceRow { kind: None, allowed: Some(*total), held: used.total });
        }
        Some(Allowance::Budget(allowed)) => {
            spending = Some(Spending { allowed: *allowed, held: used.cost });
        }
    }

    let name = limit.name.clone();
    let price = None;
    let stock = Vec::new();
    LimitReport { name, reading, rows, spending, price, stock }
}
