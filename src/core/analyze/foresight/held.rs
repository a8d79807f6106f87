//! What was needed is held for a while: a replica that is given up and needed again costs its start,
//! and what its start lets down.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::analyze::foresight::Demand;
use crate::analyze::foresight::demand::Need;
use crate::analyze::foresight::policy::{Policy, Window};

/// What was needed, as long as it is held.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Held {
    /// Needs that no later one reached, in order of time, so their values fall.
    pub(super) needs: VecDeque<(Timestamp, f64)>,
}

/// For how long a need is held, in seconds, of what takes so long to start.
pub(super) fn held_for(policy: &Policy, startup: f64) -> f64 {
    policy.hold.map_or(0.0, |hold| (hold.starts.fraction() * startup).max(hold.min.seconds()))
}

// === impl Held ===

impl Held {
    /// The largest need of the last so many seconds, this one counted, and since when.
    pub fn take(&mut self, now: Timestamp, need: f64, length: f64) -> (Timestamp, f64) {
        // A clock that went back leaves needs of the future, which would be held for ever.
        self.needs.retain(|(at, _)| *at <= now && now.duration_since(*at).as_secs_f64() <= length);
        while self.needs.back().is_some_and(|(_, value)| *value <= need) {
            self.needs.pop_back();
        }
        self.needs.push_back((now, need));
        self.needs.front().copied().unwrap_or((now, need))
    }

    /// The largest need that was held when one was last taken. It stays for as long as nobody can say
    /// what is needed.
    pub(super) fn last(&self) -> Option<f64> {
        self.needs.front().map(|(_, need)| *need)
    }
}

// === impl Demand ===

impl Demand {
    /// The largest need that is held, and since when.
    pub(super) fn held(
        &mut self,
        now: Timestamp,
        policy: &Policy,
        need: &Need,
        startup: f64,
    ) -> (Timestamp, f64) {
        // The rest of it is held as a number of replicas.
        let replaced = policy.hold.filter(|hold| hold.replaces_window == Window::Replaced);
        let jitter = replaced.map_or(0.0, |hold| hold.jitter.seconds());
        let length = (held_for(policy, startup) - jitter).max(0.0);
        let lasting = self.hold.take(now, (need.total - need.passing()).max(0.0), length);
        let backlog = policy.hold.and(policy.backlog);
        let drain = backlog.map_or(0.0, |backlog| backlog.drain.seconds());
        let all = self.queue.take(now, need.total, drain);
        if all.1 > lasting.1 { all } else { lasting }
    }
}
