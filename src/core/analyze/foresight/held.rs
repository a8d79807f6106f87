//! The hold: a need is held for a while after it was highest. A replica that is removed and needed
//! again costs its start, and the requests that are late meanwhile.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::analyze::foresight::demand::RequiredCapacity;
use crate::analyze::foresight::policy::{ForesightPolicy, ScaleDownWindow};
use crate::analyze::foresight::standby::{Relief, Standby};
use crate::analyze::foresight::{DemandForecast, RoleDemand};

/// The needs that are still held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HoldWindow {
    /// Needs that no later need reached, in order of time, so their values fall.
    pub(super) needs: VecDeque<(Timestamp, f64)>,
}

/// Seconds for which a need is held, given the start-up time in seconds.
pub(super) fn held_for(policy: &ForesightPolicy, startup: f64) -> f64 {
    policy.hold.map_or(0.0, |hold| (hold.starts.fraction() * startup).max(hold.min.seconds()))
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

    /// The largest need that was held at the last call of [`take`](Self::take). It stays while the
    /// need is not known.
    pub(super) fn last(&self) -> Option<f64> {
        self.needs.front().map(|(_, need)| *need)
    }
}

// === impl RoleDemand ===

impl RoleDemand {
    /// The largest need that is held, and its instant.
    pub(super) fn held(
        &mut self,
        now: Timestamp,
        policy: &ForesightPolicy,
        need: &RequiredCapacity,
        startup: f64,
    ) -> (Timestamp, f64) {
        // The jitter is the time for which the replica count is held instead.
        let replaced = policy.hold.filter(|hold| hold.replaces_window == ScaleDownWindow::Replaced);
        let jitter = replaced.map_or(0.0, |hold| hold.jitter.seconds());
        let length = (held_for(policy, startup) - jitter).max(0.0);
        let lasting = self.hold.take(now, (need.total - need.passing()).max(0.0), length);

        let backlog = policy.hold.and(policy.backlog);
        let drain = backlog.map_or(0.0, |backlog| backlog.drain.seconds());
        let all = self.queue.take(now, need.total, drain);
        if all.1 > lasting.1 { all } else { lasting }
    }

    /// The load that standby bridges by a forecast. Standby keeps its last bridge while there is no
    /// forecast because the arrivals are not known.
    pub(super) fn bridged(&self, found: Option<&DemandForecast>) -> f64 {
        match found {
            Some(found) => found.relief.map(|relief| relief.bridge).unwrap_or_default(),
            None => self.bridge.last().unwrap_or_default(),
        }
    }

    /// The part of standby in a need; `None` without standby. Standby bridges the load that other
    /// serving replicas cannot handle.
    pub(super) fn relieve(
        &mut self,
        now: Timestamp,
        policy: &ForesightPolicy,
        need: &RequiredCapacity,
        standby: Option<&Standby<'_>>,
    ) -> Option<Relief> {
        let Some(standby) = standby else {
            self.bridge = HoldWindow::default();
            return None;
        };

        let startup = standby.startup.seconds();
        let missing = (need.present(policy) - standby.beside).max(0.0);
        let (_, bridge) = self.bridge.take(now, missing, held_for(policy, startup));
        Some(Relief { startup, reserve: need.reserve.unwrap_or_default(), bridge })
    }
}
