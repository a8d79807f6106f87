//! The invariants that a set of decisions can break.

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::fleet::VariantKey;
use crate::units::Replicas;

/// An invariant that a set of decisions breaks.
#[derive(Clone, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Violation {
    /// Desired replicas are outside the variant's bounds.
    #[display("{_0} would get {_1} replicas, outside its bounds")]
    OutOfBounds(VariantKey, Replicas),
    /// A decision is about a variant that does not exist.
    #[display("{_0} is not in the fleet")]
    NotInFleet(VariantKey),
    /// A variant has two decisions.
    #[display("{_0} has two decisions")]
    Twice(VariantKey),
    /// A decision has no steps, or a step does not start where the previous step ends.
    #[display("the steps of {_0} do not lead to its desired replicas")]
    BrokenChain(VariantKey),
    /// Desired replicas drop although there is no fresh data.
    #[display("{_0} would scale down without fresh data")]
    LoweredBlindly(VariantKey),
}

impl Violation {
    /// Every label value, so that the series exist before a violation occurs.
    pub const LABELS: [&'static str; 5] =
        ["out_of_bounds", "not_in_fleet", "twice", "broken_chain", "lowered_blindly"];

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::VariantSpec;

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn key() -> VariantKey {
        VariantSpec::example("a").key
    }

    #[test]
    fn every_violation_has_its_series_before_it_happens() {
        let all = [
            Violation::OutOfBounds(key(), n(1)),
            Violation::NotInFleet(key()),
            Violation::Twice(key()),
            Violation::BrokenChain(key()),
            Violation::LoweredBlindly(key()),
        ];

        assert_eq!(all.each_ref().map(Violation::label), Violation::LABELS);
    }
}
