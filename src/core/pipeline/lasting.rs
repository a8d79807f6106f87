//! The replicas of a kind that have lasted: the fewest at any time of the last minutes.

use std::collections::VecDeque;

use jiff::Timestamp;

use crate::units::{Replicas, Seconds};

/// The replicas of a kind that a variant has had for a time.
#[derive(Clone, Debug, Default)]
pub(crate) struct LastingReplicas {
    /// Each count of that time, with the instant at which it began. The first one may have begun
    /// before.
    seen: VecDeque<(Timestamp, Replicas)>,
    lasting: Replicas,
}

// === impl LastingReplicas ===

impl LastingReplicas {
    /// Reads the present count. It has lasted after `time`.
    pub(crate) fn update(&mut self, now: Timestamp, present: Replicas, time: Seconds) {
        // The clock may have gone back.
        self.seen.retain(|(at, _)| *at <= now);

        if self.seen.back().is_none_or(|(_, latest)| *latest != present) {
            self.seen.push_back((now, present));
        }
        while self.seen.get(1).is_some_and(|(at, _)| is_over(now, *at, time)) {
            self.seen.pop_front();
        }

        let is_whole = self.seen.front().is_some_and(|(at, _)| is_over(now, *at, time));
        let least = self.seen.iter().map(|(_, count)| *count).min().unwrap_or_default();
        self.lasting = if is_whole { least } else { self.lasting.min(present) };
    }

    /// The replicas that have lasted. They are at most those of the last update.
    pub(crate) const fn count(&self) -> Replicas {
        self.lasting
    }
}

/// Returns true if the time since an instant is over.
fn is_over(now: Timestamp, since: Timestamp, time: Seconds) -> bool {
    now.duration_since(since).as_secs_f64() >= time.seconds()
}
