//! Requested replicas that sleep.
//!
//! A sleeping engine answers and serves no requests, until something other than Plimsoll wakes it.
//! So it is known: no load is assumed for it, and it blocks no scale-down.
//!
//! A requested replica that sleeps may be about to wake, so at first it counts as one that starts.
//! After [`WAKING_MAX`] it is *dormant*: it has no capacity, and stays on top of the planned
//! replicas. So the dormant replicas are the fewest that slept at any time of the last minute. The
//! time goes on while other replicas are requested or fall asleep. Otherwise each of them would let
//! the same sleeping replicas count as supply again.

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};

use crate::fleet::VariantKey;
use crate::fleet::per_variant::PerVariant;
use crate::pipeline::tick::Tick;
use crate::units::Replicas;

/// The time for which a requested replica that sleeps may be about to wake. Engines that keep their
/// weights in memory wake within seconds.
const WAKING_MAX: SignedDuration = SignedDuration::from_mins(1);

/// The requested replicas that sleep, of all variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dormancy {
    sleeping: PerVariant<SleepingReplicas>,
}

/// The requested replicas of one variant that sleep.
#[derive(Clone, Debug, Default)]
struct SleepingReplicas {
    /// Each count of the last [`WAKING_MAX`], with the time at which it began. The first one may
    /// have begun before.
    seen: VecDeque<(Timestamp, Replicas)>,
    dormant: Replicas,
}

// === impl Dormancy ===

impl Dormancy {
    /// Reads the observations of one tick, and forgets variants that are gone.
    pub(crate) fn run(&mut self, tick: &Tick<'_>) {
        self.sleeping.keep(&tick.inputs.fleet);
        for member in &tick.members {
            let key = &member.spec.key;
            let asleep = member.asleep();
            if asleep == Replicas::ZERO {
                self.sleeping.remove(key);
                continue;
            }

            let sleeping = self.sleeping.get_or_insert_at(0, key, SleepingReplicas::default);
            sleeping.update(tick.now, asleep);
        }
    }

    /// The dormant replicas of a variant.
    pub(crate) fn of(&self, variant: &VariantKey) -> Replicas {
        self.sleeping.get(variant).map_or(Replicas::ZERO, |it| it.dormant)
    }
}

// === impl SleepingReplicas ===

impl SleepingReplicas {
    fn update(&mut self, now: Timestamp, asleep: Replicas) {
        // The clock may have gone back.
        self.seen.retain(|(at, _)| *at <= now);
        if self.seen.back().is_none_or(|(_, latest)| *latest != asleep) {
            self.seen.push_back((now, asleep));
        }
        while self.seen.get(1).is_some_and(|(at, _)| is_over(now, *at)) {
            self.seen.pop_front();
        }

        let is_whole = self.seen.front().is_some_and(|(at, _)| is_over(now, *at));
        let least = self.seen.iter().map(|(_, count)| *count).min().unwrap_or_default();
        self.dormant = if is_whole { least } else { self.dormant.min(asleep) };
    }
}

/// Returns true if a replica that sleeps since an instant is no longer about to wake.
fn is_over(now: Timestamp, since: Timestamp) -> bool {
    now.duration_since(since) >= WAKING_MAX
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    /// Checks the dormant replicas at each second, at which so many sleep.
    fn assert_dormant(steps: &[(i64, u32, u32)]) {
        let mut sleeping = SleepingReplicas::default();
        for &(second, asleep, dormant) in steps {
            sleeping.update(at(second), Replicas::saturating(asleep));
            assert_eq!(sleeping.dormant.count(), dormant, "{second} s: {asleep} asleep");
        }
    }

    #[test]
    fn a_replica_that_sleeps_is_dormant_after_a_minute_whatever_else_is_requested() {
        assert_dormant(&[
            (0, 2, 0),
            (59, 2, 0),
            (60, 2, 2),
            // Another one falls asleep, and the first two stay dormant.
            (70, 3, 2),
            (129, 3, 2),
            (130, 3, 3),
            // Two wake, and then one of them sleeps again.
            (140, 1, 1),
            (150, 2, 1),
            (210, 2, 2),
            // The clock went back.
            (100, 2, 2),
        ]);
    }

    #[test]
    fn replicas_that_sleep_become_dormant_while_others_fall_asleep() {
        assert_dormant(&[(0, 1, 0), (50, 2, 0), (100, 3, 1), (150, 4, 2)]);
    }
}
