//! The inputs of one response.

use std::time::Duration;

use jiff::Timestamp;

use crate::publish::external_metrics::state::{DecisionAges, DecisionState};
use crate::publish::history::{CauseStart, RecentHistory};
use crate::publish::{Published, PublishedVariant};

/// The inputs that all parts of one response share.
pub(crate) struct ResponseContext<'a> {
    pub(crate) published: &'a Published,
    pub(crate) history: &'a RecentHistory,
    pub(crate) now: Timestamp,
    pub(crate) elapsed: Duration,
    pub(crate) ages: DecisionAges,
}

impl ResponseContext<'_> {
    /// Returns the seconds since `then`, an instant on the monotonic clock.
    pub(crate) fn seconds_since(&self, then: Duration) -> f64 {
        self.elapsed.saturating_sub(then).as_secs_f64()
    }

    /// Returns the time at which the decision of a variant became too old to be served; `None` if
    /// it is not.
    pub(crate) fn expired(&self, variant: &PublishedVariant) -> Option<CauseStart> {
        let decided = variant.decided.as_ref()?;

        match DecisionState::at(self.elapsed, Some(decided.elapsed), self.ages) {
            DecisionState::Cold | DecisionState::Fresh { .. } | DecisionState::Hold { .. } => None,
            DecisionState::Expired { age } => {
                let since = age.saturating_sub(self.ages.hold);
                let elapsed = self.elapsed.saturating_sub(since);
                Some(CauseStart { at: self.now - since, elapsed })
            }
        }
    }
}
