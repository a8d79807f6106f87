//! The record of every replica: scrapes in, observations out.
//!
//! A [`FleetRecorder`] holds the windows of each replica's series, and combines the ranks of a
//! replica by the rule that fits each family. Requests are added up. KV usage is a mean if it
//! measures load, and a maximum if it guards against a hot spot. A replica is forgotten when it is
//! no longer listed, so a replaced pod takes its windows with it.
//!
//! A tick visits each replica once. Its scrapes are recorded right before it is observed, while its
//! record is in the CPU cache. Recording all scrapes first would wait for the memory of each record
//! twice. Most of a tick is waiting for the memory of records, so two threads observe the halves of
//! a large fleet. The result is the same: the halves share no record.

mod horizon;
mod part;
mod ranks;
mod records;
mod replica;
mod snapshots;
mod work;

use std::collections::BTreeMap;
use std::panic;
use std::thread::{self, ScopedJoinHandle};

use jiff::Timestamp;

use crate::fleet::per_variant::PerVariant;
use crate::fleet::{Bounds, VariantKey};
use crate::observe::record::part::{
    ArrivedScrapes, FleetPart, LookupCursor, RecordInputs, SteadyReplicas,
};
use crate::observe::record::records::Records;
use crate::observe::{Freshness, Inputs, Observation, ReplicaObservation, ScrapeRoute, Startup};
use crate::units::{Fraction, Replicas, Requests, Seconds};

pub use crate::observe::record::horizon::{Horizon, RecordDetail};

/// Replicas from which two threads observe a fleet. The records of fewer fit into the CPU cache, and
/// to start a thread then takes as long as it saves.
const SPLIT_FROM: usize = 2_000;

/// The record of every listed replica.
#[derive(Clone, Debug, Default)]
pub struct FleetRecorder {
    records: Records,
    /// The record of each scrape of the last tick. The scrape at the same position nearly always
    /// belongs to the same record in the next tick.
    places: Vec<usize>,
    /// The scrapes of the tick, as [`ArrivedScrapes`] has them.
    arrived: Vec<(usize, usize)>,
    settled: PerVariant<SteadyReplicas>,
}

// === impl FleetRecorder ===

impl FleetRecorder {
    /// Creates an empty recorder.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Observes every variant at `now`: records the scrapes of the tick and forgets unlisted
    /// replicas.
    pub fn observe(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        horizon: impl Fn(ScrapeRoute) -> Horizon + Sync,
    ) -> BTreeMap<VariantKey, Observation> {
        self.begin(inputs);
        let variants = inputs.fleet.variants().count();
        let half = if self.records.len() < SPLIT_FROM { variants } else { variants / 2 };
        let middle = inputs.fleet.variants().nth(half).map(|spec| &spec.key);
        // Without an order of the listings, one part has all variants.
        let split = middle.and_then(|key| {
            let listings = inputs.listings.range(..key);
            let before = listings.map(|(_, listing)| listing.replicas.len()).sum();
            Some((key, self.records.start_after(before)?))
        });
        let moment = RecordInputs { now, horizon: &horizon, scrapes: &inputs.scrapes };

        let all = self.records.len();
        let place = split.map_or(all, |(_, place)| place);
        let (first_scrapes, other_scrapes) =
            self.arrived.split_at(self.arrived.partition_point(|(record, _)| *record < place));
        let [first_records, other_records] = self.records.split_at(place);
        let settled = &self.settled;
        let part = |records, sorted, first, at| FleetPart {
            records,
            arrived: ArrivedScrapes { sorted, first, reached: 0 },
            settled,
            resettled: Vec::new(),
            next: LookupCursor { record: 0, settled: at },
        };
        let mut first = part(first_records, first_scrapes, 0, 0);
        let mut other = part(other_records, other_scrapes, place, half);
        let (mut observations, others) = match split {
            None => {
                let all = first.observe(&moment, inputs.fleet.variants(), inputs.listings.iter());
                (all, Vec::new())
            }
            Some((key, _)) => {
                let mut observe_others = || {
                    let variants = inputs.fleet.variants().skip(half);
                    other.observe(&moment, variants, inputs.listings.range(key..))
                };
                let (observed, others) = thread::scope(|scope| {
                    let thread = thread::Builder::new().spawn_scoped(scope, &mut observe_others);
                    let variants = inputs.fleet.variants().take(half);
                    let observed = first.observe(&moment, variants, inputs.listings.range(..key));
                    (observed, thread.ok().map(joined))
                });
                // The system may have refused another thread.
                (observed, others.unwrap_or_else(observe_others))
            }
        };

        let resettled = first.resettled.into_iter().chain(other.resettled);
        for (variant, steady) in resettled.collect::<Vec<_>>() {
            match steady {
                Some(steady) => self.settled.insert(variant, steady),
                None => self.settled.remove(&variant),
            }
        }

        observations.extend(others);
        observations.into_iter().collect()
    }

    /// Creates a record for each listed replica, and assigns the scrapes to records.
    fn begin(&mut self, inputs: &Inputs) {
        self.records.keep(inputs);
        self.settled.keep(&inputs.fleet);

        self.places.resize(inputs.scrapes.len(), 0);
        self.arrived.clear();
        for (index, (scrape, place)) in inputs.scrapes.iter().zip(&mut self.places).enumerate() {
            if let Some(found) = self.records.find(&scrape.replica, *place) {
                *place = found;
                self.arrived.push((found, index));
            }
        }

        self.arrived.sort_unstable();
    }

    /// After a gap, forgets since when replicas have been measured without one.
    pub fn unsettle(&mut self) {
        self.settled.clear();
    }
}

/// The result of a thread that has observed its part. A panic goes on in this thread.
fn joined<T>(thread: ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|why| panic::resume_unwind(why))
}

// === impl ReplicaObservation ===

impl ReplicaObservation {
    /// The peaks that measure the replica's load, if both are known and recent and it serves.
    #[must_use]
    pub fn load(&self) -> Option<(Fraction, Requests)> {
        if !self.freshness.is_fresh() || self.asleep || self.unready {
            return None;
        }
        Some((self.kv_hottest?.peak, self.waiting_hottest?.peak))
    }

    /// Returns true if the replica answers, and reports that its engine sleeps.
    #[must_use]
    pub const fn sleeps(&self) -> bool {
        self.asleep && self.freshness.is_fresh() && !self.unready
    }

    /// Returns true if the replica has answered before and no longer does.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self.freshness, Freshness::Stale { .. }) && !self.stopped && !self.unready
    }

    /// Returns true if the replica is listed and has not been scraped yet.
    #[must_use]
    pub const fn is_untried(&self) -> bool {
        matches!(self.freshness, Freshness::Never { why: None }) && !self.unready
    }
}

// === impl Observation ===

impl Observation {
    /// Replicas whose load is known.
    #[must_use]
    pub fn measured(&self) -> Replicas {
        Replicas::capped(self.replicas.iter().filter(|replica| replica.load().is_some()).count())
    }

    /// Replicas that report that their engines sleep.
    #[must_use]
    pub fn asleep(&self) -> Replicas {
        Replicas::capped(self.replicas.iter().filter(|replica| replica.sleeps()).count())
    }

    /// Replicas that leave, or will once the scale target requests no more than the desired ones.
    #[must_use]
    pub fn leaving(&self, desired: Replicas) -> Replicas {
        let wanted = self.wanted.unwrap_or_default();
        let current = self.current.unwrap_or_default();
        current.max(wanted).beyond(wanted.min(desired))
    }

    /// The age of the oldest scrape among the replicas whose load is known.
    #[must_use]
    pub fn oldest_measured(&self) -> Option<Seconds> {
        self.replicas
            .iter()
            .filter(|replica| replica.load().is_some())
            .filter_map(|replica| replica.freshness.fresh_age())
            .max_by(|a, b| a.compare(*b))
    }

    /// Returns true if every listed replica has been scraped at least once.
    #[must_use]
    pub fn all_tried(&self) -> bool {
        !self.replicas.iter().any(ReplicaObservation::is_untried)
    }

    /// The observation of a variant of which only the bounds are known.
    #[must_use]
    pub fn of_nothing(bounds: Bounds) -> Self {
        Self {
            wanted: None,
            current: None,
            ready: None,
            pending: Replicas::ZERO,
            unheard: Replicas::ZERO,
            bounds,
            replicas: Vec::new(),
            ttft: None,
            scale_unknown: None,
            listed_at: None,
            measured_since: None,
            startup: Startup::default(),
        }
    }
}
