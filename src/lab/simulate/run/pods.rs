//! The state of replicas.

use rand_pcg::Pcg64;

use crate::simulate::Micros;
use crate::simulate::random::{Purpose, generator};
use crate::simulate::replica::Replica;
use crate::simulate::replica::stats::Gauges;
use crate::simulate::scenario::Scenario;
use crate::simulate::score;
use plimsoll_core::fleet::ReplicaKey;
use plimsoll_core::units::Replicas;

/// The replicas of one variant.
pub(crate) struct PodSet {
    /// The desired replicas of the scale target.
    pub(crate) wanted: Replicas,
    /// The existing replicas, oldest first.
    pub(crate) pods: Vec<usize>,
    pub(crate) score: score::VariantScore,
    /// Requests sent to the replicas.
    pub(crate) sent: u64,
    /// The number of pod template changes.
    pub(crate) revision: u32,
    pub(super) created: u32,
    pub(super) starts: Pcg64,
    /// For starts before the simulation.
    pub(super) earlier_starts: Pcg64,
    pub(super) faults: Pcg64,
    /// The seed generator for the random numbers of its engines.
    pub(super) steps: Pcg64,
}

/// One replica of a variant.
pub(crate) struct SimulatedPod {
    pub(crate) variant: usize,
    pub(crate) key: ReplicaKey,
    pub(crate) state: PodState,
    /// The revision of its pod template.
    pub(crate) revision: u32,
    /// Its number among its variant's replicas, in the order of their creation, from 1 on.
    pub(crate) number: u32,
    /// The time of its creation; the start of the simulation if it was created before.
    pub(crate) created: Micros,
    /// The time that it took to start before the simulation.
    pub(crate) earlier: Micros,
    /// The time at which it gets a node.
    pub(crate) scheduled: Micros,
    /// The time at which it gets an address.
    pub(crate) reachable: Micros,
    /// The time at which its process started.
    pub(crate) process: Micros,
    /// The time at which it became ready, while it is.
    pub(crate) ready: Option<Micros>,
    /// The number of restarts of its process.
    pub(crate) life: u32,
    /// The back-off before its next restart.
    pub(crate) back_off: Micros,
    /// `None` once it has ended.
    pub(crate) replica: Option<Box<Replica>>,
    /// The time until which nothing changes that a router counts.
    pub(crate) quiet: Micros,
    pub(crate) crowd: Crowd,
    /// The last view of a router that refreshes periodically.
    pub(crate) seen: Gauges,
}

/// The requests of a replica and its seats.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Crowd {
    pub(crate) outstanding: u32,
    pub(super) seats: u32,
}

/// The lifecycle state of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PodState {
    /// Its process loads the model.
    Starting,
    /// It serves.
    Ready,
    /// It finishes its requests and takes no new ones.
    Draining,
    /// It has ended.
    Gone,
}

impl PodSet {
    pub(crate) fn new(scenario: &Scenario, seed: u64, variant: usize) -> Self {
        Self {
            wanted: scenario.variants[variant].initial,
            pods: Vec::new(),
            score: score::VariantScore::default(),
            sent: 0,
            revision: 0,
            created: 0,
            starts: generator(seed, Purpose::Starts, variant),
            earlier_starts: generator(seed, Purpose::EarlierStarts, variant),
            faults: generator(seed, Purpose::Faults, variant),
            steps: generator(seed, Purpose::Steps, variant),
        }
    }
}

impl Crowd {
    /// Requests per seat.
    pub(crate) fn share(self) -> f64 {
        f64::from(self.outstanding) / f64::from(self.seats)
    }

    /// Returns true if this has fewer requests per seat than `other`.
    pub(crate) fn is_less_than(self, other: Self) -> bool {
        let mine = u64::from(self.outstanding);
        let theirs = u64::from(other.outstanding);
        mine * u64::from(other.seats) < theirs * u64::from(self.seats)
    }
}

impl SimulatedPod {
    /// Refreshes the values that depend on the state of the replica.
    pub(crate) fn refresh(&mut self) {
        if let Some(replica) = &self.replica {
            self.quiet = replica.quiet_until();
            self.crowd.outstanding = u32::try_from(replica.outstanding()).unwrap_or(u32::MAX);
        }
    }

    /// Adapter loads of its engine.
    pub(crate) fn adapter_loads(&self) -> u64 {
        self.replica.as_ref().map_or(0, |replica| replica.adapter_loads())
    }

    /// Returns true if it has fewer requests than the limit.
    pub(crate) fn has_room(&self, limit: Option<u32>) -> bool {
        limit.is_none_or(|limit| self.crowd.outstanding < limit)
    }

    /// Records the gauges for a router.
    pub(crate) fn look(&mut self) {
        if let Some(replica) = &self.replica {
            self.seen = replica.gauges();
        }
    }

    /// Returns true if it exists and is not terminating.
    pub(crate) const fn counts(&self) -> bool {
        matches!(self.state, PodState::Starting | PodState::Ready)
    }
}
