//! Overrides: instructions of a person for one variant, until an instant.
//!
//! A *pin* sets the desired replicas. A *pause* keeps those in effect. Both end on their own, and
//! both stay within bounds, limits and the rules for missing data.

use derive_more::Display;
use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::units::Replicas;

/// The longest time for which an override is accepted. A longer one belongs in the bounds.
pub const OVERRIDE_MAX: SignedDuration = SignedDuration::from_hours(7 * 24);

/// An instruction for one variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Override {
    /// The instruction.
    pub order: Order,
    /// The instant at which it ends.
    pub until: Timestamp,
    /// The way by which it was given.
    pub by: OverrideSource,
}

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// Desire this many replicas.
    Pin(Replicas),
    /// Keep the desired replicas in effect.
    Pause,
}

/// The way by which an override was given.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OverrideSource {
    /// An annotation of an object.
    #[display("annotation")]
    Annotation,
    /// The HTTP API.
    #[display("api")]
    Api,
}

// === impl Override ===

impl Override {
    /// Returns true until the override ends. One that ends too far in the future has no effect.
    #[must_use]
    pub fn is_in_effect(&self, now: Timestamp) -> bool {
        now < self.until && self.until.duration_since(now) <= OVERRIDE_MAX
    }
}

// === impl Order ===

impl Order {
    /// The order as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Pin(_) => "pin",
            Self::Pause => "pause",
        }
    }
}
