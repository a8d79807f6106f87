//! The text of plans.

use std::fmt;

use crate::decide::optimize::plan::{DemandCover, ModelPlan, Placement};
use crate::units::{CostPerHour, NounCount};

impl fmt::Display for ModelPlan {
    /// `6 -> 5 replicas for 37.00 -> 26.00 an hour: cheapest plan (optimal, 17 steps); …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model: _, method, placements, covers, cost_before, cost_after, rankings: _ } =
            self;
        let before: u32 = placements.iter().map(|it| it.before.count()).sum();
        let after: u32 = placements.iter().map(|it| it.after.count()).sum();
        write!(
            f,
            "{before} -> {} for {} -> {} per hour: {method}",
            NounCount(after, "replica", "replicas"),
            MoneyAmount(*cost_before),
            MoneyAmount(*cost_after)
        )?;
        for cover in covers {
            write!(f, "; {cover}")?;
        }
        if let Some((cover, missing)) = self.shortfall() {
            write!(
                f,
                "; {:.0}% of the {} exceed capacity within bounds and limits",
                missing.fraction() * 100.0,
                cover.unit
            )?;
        }

        Ok(())
    }
}

impl fmt::Display for DemandCover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, role, wanted, planned } = self;
        write!(f, "capacity for {planned:.1} of {wanted:.1} {unit}")?;
        match role {
            Some(role) => write!(f, " for {}", role.label()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after, cost, because } = self;
        write!(f, "{key}: {before} -> {after} at {} each, {because}", MoneyAmount(*cost))
    }
}

/// A price with two decimals, or with four if it is very small.
struct MoneyAmount(CostPerHour);

impl fmt::Display for MoneyAmount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = self.0.per_hour();
        if cost > 0.0 && cost < 0.1 { write!(f, "{cost:.4}") } else { write!(f, "{cost:.2}") }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_very_small_price_has_four_decimals() {
        let shown = |cost| MoneyAmount(CostPerHour::new(cost).unwrap()).to_string();
        let all = [0.0, 0.0123, 0.09, 0.1, 2.5].map(shown);
        assert_eq!(all, ["0.00", "0.0123", "0.0900", "0.10", "2.50"]);
    }
}
