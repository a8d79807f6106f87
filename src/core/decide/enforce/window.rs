//! Windows of time that end now.

use jiff::{SignedDuration, Timestamp};

use crate::units::Seconds;

/// Returns true if an instant is in the window that ends now.
pub(super) fn within(now: Timestamp, at: Timestamp, window: Seconds) -> bool {
    now.duration_since(at).as_secs_f64() < window.seconds() && at <= now
}

/// Returns the time until data that has been complete since `since` covers `window`.
#[must_use]
pub fn remaining(now: Timestamp, since: Timestamp, window: Seconds) -> Option<Seconds> {
    let seen = now.duration_since(since).max(SignedDuration::ZERO).as_secs_f64();
    Seconds::new(window.seconds() - seen).filter(|left| *left > Seconds::ZERO)
}
