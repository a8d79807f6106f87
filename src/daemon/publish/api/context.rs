//! The inputs of one response.

use std::time::Duration;

use jiff::Timestamp;

use crate::publish::Published;
use crate::publish::history::RecentHistory;

/// The inputs that all parts of one response share.
pub(crate) struct ResponseContext<'a> {
    pub(crate) published: &'a Published,
    pub(crate) history: &'a RecentHistory,
    pub(crate) now: Timestamp,
    pub(crate) elapsed: Duration,
}

impl ResponseContext<'_> {
    /// Returns the seconds since `then`, an instant on the monotonic clock.
    pub(crate) fn seconds_since(&self, then: Duration) -> f64 {
        self.elapsed.saturating_sub(then).as_secs_f64()
    }
}
