//! What must hold of any finished set of decisions.

use std::fmt;

use crate::fleet::VariantKey;
use crate::units::Replicas;

/// An invariant that a set of decisions breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// A number is outside its variant's bounds.
    OutOfBounds(VariantKey, Replicas),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OutOfBounds(variant, desired) => {
                write!(f, "{variant} would get {desired} replicas, outside its bounds")
            }
        }
    }
}
