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

use crate::fleet::VariantKey;
use crate::fleet::per_variant::PerVariant;
use crate::pipeline::lasting::LastingReplicas;
use crate::pipeline::tick::Tick;
use crate::units::{Replicas, Seconds};

/// The time for which a requested replica that sleeps may be about to wake. Engines that keep their
/// weights in memory wake within seconds.
const WAKING_MAX: Seconds = Seconds::literal(60);

/// The requested replicas that sleep, of all variants.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dormancy {
    sleeping: PerVariant<LastingReplicas>,
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

            let sleeping = self.sleeping.get_or_insert_at(0, key, LastingReplicas::default);
            sleeping.update(tick.now, asleep, WAKING_MAX);
        }
    }

    /// The dormant replicas of a variant.
    pub(crate) fn of(&self, variant: &VariantKey) -> Replicas {
        self.sleeping.get(variant).map_or(Replicas::ZERO, LastingReplicas::count)
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_795_000_000 + second).unwrap()
    }

    /// Checks the dormant replicas at each second, at which so many sleep.
    fn assert_dormant(steps: &[(i64, u32, u32)]) {
        let mut sleeping = LastingReplicas::default();
        for &(second, asleep, dormant) in steps {
            sleeping.update(at(second), Replicas::saturating(asleep), WAKING_MAX);
            assert_eq!(sleeping.count().count(), dormant, "{second} s: {asleep} asleep");
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
