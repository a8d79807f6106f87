//! Limits on resources: inventories, quotas, budgets and maxima together.
//!
//! [`limit`] turns the desired replicas of each variant into granted replicas. Every
//! [`SupplyLimit`] applies at once, so the tightest wins, and a refused replica uses nothing of the
//! other limits. Each cut names the limit that caused it. Each limit that cut reports the gain from
//! one more unit ([`LimitShadow`]).
//!
//! # Model
//!
//! Running replicas keep their accelerators. This includes a replica that is being removed, so
//! nothing becomes free before it is gone. Minima are granted first. Models below their guarantee
//! come next, regardless of their class. The rest is granted one replica at a time: within the
//! highest priority class that still lacks replicas, to the model with the smallest
//!
//! ```text
//! level = accelerators that it has / (weight * accelerators that it wants)
//! ```
//!
//! This is weighted max-min fairness of the shares of the demand (Bertsekas and Gallager, *Data
//! Networks*, 6.5.2), in whole replicas. A variant that does not fit is skipped from then on.
//! Nothing is set aside for it, and other variants get the part that it could not use.
//!
//! # Failures
//!
//! A source that cannot be read keeps its last value ([`LimitSource::Held`]). A source that was
//! never read allows no scale-up ([`LimitSource::Unread`]). Neither ever becomes unlimited. A kind
//! that a list does not name is not available.

mod explain;
mod grants;
mod holdings;
mod inventory;
mod ledger;
mod nodes;
pub(super) mod refusal;
mod report;
mod supply;
mod turns;
mod want;

#[cfg(test)]
mod tests;

use crate::decide::limit::grants::GrantState;
use crate::decide::limit::turns::TurnOrder;

pub(crate) use crate::decide::limit::grants::LimitRoom;
pub use crate::decide::limit::grants::{Grant, Grants, LimitShadow};
pub use crate::decide::limit::inventory::normalised;
pub use crate::decide::limit::ledger::{AcceleratorLedger, without};
pub(crate) use crate::decide::limit::ledger::{Holdings, holdings};
pub use crate::decide::limit::nodes::Nodes;
pub use crate::decide::limit::refusal::{Cut, GrantRefusal};
pub use crate::decide::limit::report::{AllowanceRow, LimitReading, LimitReport, Spending, report};
pub use crate::decide::limit::supply::{Allowance, LimitScope, LimitSource, SupplyLimit};
pub use crate::decide::limit::want::{Priority, Want};
pub use crate::fleet::LimitName;

/// Grants every variant the replicas that the limits allow.
pub fn limit(wants: &[Want], limits: &[SupplyLimit]) -> Grants {
    limit_beside(wants, limits, holdings(wants, limits))
}

/// Grants every variant the replicas that the limits allow next to these [holdings].
pub(crate) fn limit_beside(wants: &[Want], limits: &[SupplyLimit], held: Holdings) -> Grants {
    let mut state = GrantState::new(wants, limits, held);
    state.raise_to_minima();
    let mut turns = TurnOrder::new(&state);
    while let Some((line, at)) = turns.next(&state) {
        match state.refusal(at) {
            None => state.give(at),
            Some((limit, why)) => state.cut(at, limit, why),
        }
        turns.stand(&state, line);
    }

    state.grants()
}
