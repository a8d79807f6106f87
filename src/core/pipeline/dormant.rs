//! Requested replicas that sleep.
//!
//! A sleeping engine answers and serves no requests, until something other than Plimsoll wakes it.
//! So it is known: no load is assumed for it, and it blocks no scale-down.
//!
//! A requested replica that sleeps may be about to wake, so at first it counts as one that starts.
//! After [`WAKING_MAX`] it is *dormant*: it has no capacity, and stays on top of the planned
//! replicas. The time goes on while other replicas are requested. Otherwise each scale-up would
//! count the same sleeping replicas as supply again.

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
#[derive(Clone, Copy, Debug)]
struct SleepingReplicas {
    all: Replicas,
    dormant: Replicas,
    /// The last time at which more of them slept than before.
    since: Timestamp,
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

            let first = SleepingReplicas::beginning(tick.now);
            self.sleeping.get_or_insert_at(0, key, || first).update(tick.now, asleep);
        }
    }

    /// The dormant replicas of a variant.
    pub(crate) fn of(&self, variant: &VariantKey) -> Replicas {
        self.sleeping.get(variant).map_or(Replicas::ZERO, |it| it.dormant)
    }
}

// === impl SleepingReplicas ===

impl SleepingReplicas {
    const fn beginning(now: Timestamp) -> Self {
        Self { all: Replicas::ZERO, dormant: Replicas::ZERO, since: now }
    }

    fn update(&mut self, now: Timestamp, asleep: Replicas) {
        // The clock may have gone back.
        self.since = if asleep > self.all { now } else { self.since.min(now) };
        self.all = asleep;

        let is_over = now.duration_since(self.since) >= WAKING_MAX;
        self.dormant = if is_over { asleep } else { self.dormant.min(asleep) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    #[test]
    fn a_replica_that_sleeps_is_dormant_after_a_minute_whatever_else_is_requested() {
        let mut sleeping = SleepingReplicas::beginning(at(0));
        let steps = [
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
        ];

        for (second, asleep, dormant) in steps {
            sleeping.update(at(second), Replicas::saturating(asleep));
            assert_eq!(sleeping.dormant.count(), dormant, "{second} s: {asleep} asleep");
        }
    }
}
