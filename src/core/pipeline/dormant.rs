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
