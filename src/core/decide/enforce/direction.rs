//! The direction of a change in desired replicas.

use serde::{Deserialize, Serialize};

use crate::units::Replicas;

/// The direction of a change in desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingDirection {
    /// To more replicas.
    Up,
    /// To fewer replicas.
    Down,
}

/// The published desired replicas before and after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedReplicas {
    /// In effect until this tick.
    pub before: Replicas,
    /// In effect from this tick on.
    pub after: Replicas,
}

impl PublishedReplicas {
    /// Returns the direction of the change; `None` if the value did not change.
    #[must_use]
    pub fn direction(self) -> Option<ScalingDirection> {
        match self.after.cmp(&self.before) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(ScalingDirection::Up),
            std::cmp::Ordering::Less => Some(ScalingDirection::Down),
        }
    }
}
