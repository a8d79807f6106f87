//! The hold: a need is held for a while after it was highest. A replica that is removed and needed
//! again costs its start, and the requests that are late meanwhile.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::analyze::foresight::arrivals::HORIZON_MAX;
use crate::analyze::foresight::policy::ForesightPolicy;

/// The needs that are still held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HoldWindow {
    /// Needs that no later need reached, in order of time, so their values fall.
    pub(super) needs: VecDeque<(Timestamp, f64)>,
}

/// Seconds for which a need is held, given the start-up time in seconds. Starts of more than an hour
/// count as one hour, as for the forecast.
pub(super) fn held_for(policy: &ForesightPolicy, startup: f64) -> f64 {
    let start = startup.min(HORIZON_MAX as f64);
    policy.hold.map_or(0.0, |hold| (hold.starts.fraction() * start).max(hold.min.seconds()))
}

// === impl HoldWindow ===

impl HoldWindow {
    /// Adds a need. Returns the largest need within the last `length` seconds, and its instant.
    pub fn take(&mut self, now: Timestamp, need: f64, length: f64) -> (Timestamp, f64) {
        // After a clock jump back, needs that lie in the future would otherwise be held forever.
        self.needs.retain(|(at, _)| *at <= now && now.duration_since(*at).as_secs_f64() <= length);
        while self.needs.back().is_some_and(|(_, value)| *value <= need) {
            self.needs.pop_back();
        }

        self.needs.push_back((now, need));
        self.needs.front().copied().unwrap_or((now, need))
    }

    /// Multiplies every need that is held.
    pub(super) fn scale(&mut self, factor: f64) {
        for (_, need) in &mut self.needs {
            *need *= factor;
        }
    }

    /// The largest need that was held at the last call of [`take`](Self::take). It stays while the
    /// need is not known.
    pub(super) fn last(&self) -> Option<f64> {
        self.needs.front().map(|(_, need)| *need)
    }
}
