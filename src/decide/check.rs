//! What must hold of any finished set of decisions.
//!
//! The stages before this one are meant to make these things true. This one does not trust them: a
//! set that breaks an invariant is not published, whatever the reason, and the last good set stays
//! in force.

use std::collections::BTreeMap;
use std::fmt;

use crate::decide::{Basis, Decision};
use crate::fleet::{Fleet, VariantKey};
use crate::units::Replicas;

/// An invariant that a set of decisions breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A number is outside its variant's bounds.
    OutOfBounds(VariantKey, Replicas),
    /// A decision is about a variant that does not exist.
    NotInFleet(VariantKey),
    /// A variant has two decisions.
    Twice(VariantKey),
    /// A decision has no steps, or a step does not begin where the one before it ends.
    BrokenChain(VariantKey),
    /// A number was lowered although there is no fresh data.
    LoweredBlindly(VariantKey),
}

impl Violation {
    /// The violation as a label value.
    #[must_use]
    pub const fn label(&self) -> &'static str {
        match self {
            Self::OutOfBounds(..) => "out_of_bounds",
            Self::NotInFleet(_) => "not_in_fleet",
            Self::Twice(_) => "twice",
            Self::BrokenChain(_) => "broken_chain",
            Self::LoweredBlindly(_) => "lowered_blindly",
        }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(variant, desired) => {
                write!(f, "{variant} would get {desired} replicas, outside its bounds")
            }
            Self::NotInFleet(variant) => write!(f, "{variant} is not in the fleet"),
            Self::Twice(variant) => write!(f, "{variant} has two decisions"),
            Self::BrokenChain(variant) => {
                write!(f, "the steps of {variant} do not lead to its number")
            }
            Self::LoweredBlindly(variant) => {
                write!(f, "{variant} would be lowered without fresh data")
            }
        }
    }
}

/// Checks a set of decisions against the fleet that they are for and the numbers in force.
///
/// # Errors
///
/// The first invariant that does not hold, in the order of the decisions.
pub fn check(
    decisions: &[Decision],
    fleet: &Fleet,
    in_force: &BTreeMap<VariantKey, Replicas>,
) -> Result<(), Violation> {
    for (index, decision) in decisions.iter().enumerate() {
        let variant = &decision.variant;
        if fleet.get(variant).is_none() {
            return Err(Violation::NotInFleet(variant.clone()));
        }
        if decisions[..index].last().is_some_and(|before| before.variant >= *variant) {
            return Err(Violation::Twice(variant.clone()));
        }
        let broken = decision.steps.windows(2).any(|pair| pair[0].after != pair[1].before);
        if broken || decision.steps.is_empty() {
            return Err(Violation::BrokenChain(variant.clone()));
        }
        let desired = decision.desired();
        if decision.bounds.clamp(desired) != desired {
            return Err(Violation::OutOfBounds(variant.clone(), desired));
        }
        // A maximum that was lowered applies without data, too.
        let capped = decision.bounds.max() == Some(desired);
        let lowered = in_force.get(variant).is_some_and(|before| desired < *before);
        if decision.basis == Basis::Held && lowered && !capped {
            return Err(Violation::LoweredBlindly(variant.clone()));
        }
    }
    Ok(())
}
