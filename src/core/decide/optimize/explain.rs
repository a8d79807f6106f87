//! Plans in plain words.

use std::fmt;

use crate::decide::optimize::{Because, Cover, Method, Placement, Plan};
use crate::units::{CostPerHour, Replicas};

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact { steps: 1 } => f.write_str("the least cost, exactly (1 step)"),
            Self::Exact { steps } => write!(f, "the least cost, exactly ({steps} steps)"),
            Self::Bounded { steps } => {
                write!(f, "the best of {steps} steps, perhaps not the least cost")
            }
            Self::Ranked => f.write_str("by the rank of its price"),
        }
    }
}

impl fmt::Display for Plan {
    /// `6 -> 5 replicas for 37.00 -> 26.00 an hour: the least cost, exactly (17 steps); …`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { model: _, method, placements, covers, cost_before, cost_after, rankings: _ } =
            self;
        let before: u32 = placements.iter().map(|it| it.before.count()).sum();
        let after: u32 = placements.iter().map(|it| it.after.count()).sum();
        write!(f, "{before} -> {after} replicas for ")?;
        write!(f, "{} -> {} an hour: {method}", Money(*cost_before), Money(*cost_after))?;
        for cover in covers {
            write!(f, "; {cover}")?;
        }
        if let Some((cover, missing)) = self.shortfall() {
            write!(f, "; {:.0} % of the {}", missing.fraction() * 100.0, cover.unit.label())?;
            f.write_str(" cannot be carried inside the bounds and limits")?;
        }
        Ok(())
    }
}

impl fmt::Display for Cover {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { unit, role, wanted, planned } = self;
        let (planned, wanted) = (planned.amount(), wanted.amount());
        write!(f, "carries {planned:.1} of {wanted:.1} {} wanted", unit.label())?;
        match role {
            Some(role) => write!(f, " for {}", role.label()),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { key, before, after, cost, because } = self;
        write!(f, "{key}: {before} -> {after} at {} each, {because}", Money(*cost))
    }
}

impl fmt::Display for Because {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kept => f.write_str("the plan needs no other number"),
            Self::Added => f.write_str("for what is missing"),
            Self::Tried => f.write_str("to learn what one carries, as the others do not suffice"),
            Self::Removed => f.write_str("the others carry what is wanted"),
            Self::Replaced => f.write_str("those that replace them carry load"),
            Self::Serving { planned } => {
                write!(f, "{planned} once what replaces the others carries load")
            }
            Self::Refused { planned } => {
                let are = if *planned == Replicas::ONE { "is" } else { "are" };
                write!(f, "{planned} {are} enough, but a check does not let the others go")
            }
            Self::Unknown => f.write_str("what one replica carries is unknown"),
        }
    }
}

/// A price with two digits, or with more when it is very small.
struct Money(CostPerHour);

impl fmt::Display for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cost = self.0.per_hour();
        if cost > 0.0 && cost < 0.1 { write!(f, "{cost:.4}") } else { write!(f, "{cost:.2}") }
    }
}
