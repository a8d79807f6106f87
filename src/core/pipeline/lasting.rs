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

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    /// Checks the replicas that have lasted for a minute, at each second at which so many are
    /// present.
    fn assert_lasting(steps: &[(i64, u32, u32)]) {
        let mut replicas = LastingReplicas::default();
        for &(second, present, lasting) in steps {
            replicas.update(at(second), Replicas::saturating(present), Seconds::literal(60));
            assert_eq!(replicas.count().count(), lasting, "{second} s: {present} present");
        }
    }

    #[test]
    fn replicas_have_lasted_after_their_time_whatever_else_comes_and_goes() {
        assert_lasting(&[
            (0, 2, 0),
            (59, 2, 0),
            (60, 2, 2),
            // Another one comes, and the first two have still lasted.
            (70, 3, 2),
            (129, 3, 2),
            (130, 3, 3),
            // Two go, and then one of them comes again.
            (140, 1, 1),
            (150, 2, 1),
            (210, 2, 2),
            // The clock went back.
            (100, 2, 2),
        ]);
    }

    #[test]
    fn replicas_last_while_others_come() {
        assert_lasting(&[(0, 1, 0), (50, 2, 0), (100, 3, 1), (150, 4, 2)]);
    }
}
