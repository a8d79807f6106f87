//! The record of every replica: scrapes in, observations out.
//!
//! A [`FleetRecorder`] holds the windows of each replica's series, and combines the ranks of a
//! replica by the rule that fits each family. Requests are added up. KV usage is a mean if it
//! measures load, and a maximum if it guards against a hot spot. A replica is forgotten when it is
//! no longer listed, so a replaced pod takes its windows with it.
//!
//! A tick visits each replica once. Its scrapes are recorded right before it is observed, while its
//! record is in the CPU cache. Recording all scrapes first would wait for the memory of each record
//! twice.

mod horizon;
mod ranks;
mod replica;
mod snapshots;
mod work;

use std::collections::BTreeMap;

use jiff::Timestamp;
use smallvec::SmallVec;

use crate::fleet::per_variant::PerVariant;
use crate::fleet::{Bounds, ReplicaKey, VariantKey, VariantSpec};
use crate::observe::histogram::Histogram;
use crate::observe::record::replica::{ObservationTimes, ReplicaRecord, span};
use crate::observe::{
    Freshness, Inputs, MeasuredSince, Observation, ReplicaListing, ReplicaObservation, Scale,
    ScaleState, Scrape, ScrapeRoute, Startup,
};
use crate::units::{Fraction, Replicas, Requests, Seconds};

pub use crate::observe::record::horizon::{Horizon, RecordDetail};

/// The record of every listed replica.
#[derive(Clone, Debug, Default)]
pub struct FleetRecorder {
    records: Records,
    /// The record of each scrape of the last tick. The scrape at the same position nearly always
    /// belongs to the same record in the next tick.
    places: Vec<usize>,
    arrived: ArrivedScrapes,
    settled: PerVariant<SteadyReplicas>,
    next: LookupCursor,
}

/// The scrapes of a tick, in the order of the records that they are for.
#[derive(Clone, Debug, Default)]
struct ArrivedScrapes {
    /// Pairs of a record's position and a scrape's position, with each record's scrapes in order of
    /// time.
    sorted: Vec<(usize, usize)>,
    /// The scrapes that have been recorded.
    taken: usize,
    /// The records that are up to date.
    reached: usize,
}

/// The instant and the horizon of an observation, and the scrapes since the previous one.
struct RecordInputs<'a> {
    now: Timestamp,
    horizon: Horizon,
    scrapes: &'a [Scrape],
}

/// The probable positions of the variant that is observed next: right after those of the last one.
#[derive(Clone, Copy, Debug, Default)]
struct LookupCursor {
    record: usize,
    settled: usize,
}

/// Records in the order of their keys. Lookups in this order need no search. A tick looks up every
/// replica, and a search among thousands compares a dozen names.
#[derive(Clone, Debug, Default)]
struct Records {
    sorted: Vec<(ReplicaKey, ReplicaRecord)>,
}

/// The keys of a variant's replicas. Nearly all variants have a few, and these need no allocation.
type ReplicaKeys<'a> = SmallVec<[&'a ReplicaKey; 8]>;

/// The same replicas, measured without a gap.
#[derive(Clone, Debug)]
struct SteadyReplicas {
    /// In the order of their keys.
    measured: Vec<ReplicaKey>,
    since: Timestamp,
    /// The time since which any replica has been measured.
    begun: Timestamp,
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
        horizon: impl Fn(ScrapeRoute) -> Horizon,
    ) -> BTreeMap<VariantKey, Observation> {
        self.begin(inputs);
        // Both are in the order of their keys, so one comparison each replaces a search.
        let mut listings = inputs.listings.iter().peekable();
        let observations = inputs
            .fleet
            .variants()
            .map(|spec| {
                while listings.next_if(|(key, _)| **key < spec.key).is_some() {}
                let found = listings.next_if(|(key, _)| **key == spec.key);
                let listing = found.map(|(_, it)| it);
                let horizon = horizon(listing.map(|listing| listing.way).unwrap_or_default());
                let moment = RecordInputs { now, horizon, scrapes: &inputs.scrapes };
                (spec.key.clone(), self.observe_one(&moment, spec, listing))
            })
            .collect();

        self.arrived.take_until(
            self.records.sorted.len(),
            &mut self.records,
            &inputs.scrapes,
            horizon(ScrapeRoute::Scraped),
        );
        observations
    }

    /// Creates a record for each listed replica, and assigns the scrapes to records.
    fn begin(&mut self, inputs: &Inputs) {
        self.records.keep(inputs);
        self.next = LookupCursor::default();
        if !self.settled.keys().eq(inputs.fleet.variants().map(|spec| &spec.key)) {
            self.settled.retain(|key| inputs.fleet.get(key).is_some());
        }

        self.places.resize(inputs.scrapes.len(), 0);
        (self.arrived.taken, self.arrived.reached) = (0, 0);
        self.arrived.sorted.clear();
        for (index, (scrape, place)) in inputs.scrapes.iter().zip(&mut self.places).enumerate() {
            if let Some(found) = self.records.find(&scrape.replica, *place) {
                *place = found;
                self.arrived.sorted.push((found, index));
            }
        }

        self.arrived.sorted.sort_unstable();
    }

    /// After a gap, forgets since when replicas have been measured without one.
    pub fn unsettle(&mut self) {
        self.settled.clear();
    }

    fn observe_one(
        &mut self,
        moment: &RecordInputs<'_>,
        spec: &VariantSpec,
        listing: Option<&ReplicaListing>,
    ) -> Observation {
        let RecordInputs { now, horizon, .. } = *moment;
        let mut keys: ReplicaKeys<'_> =
            listing.map(|listing| listing.replicas.iter().collect()).unwrap_or_default();
        if !self.records.are_at(self.next.record, &keys) {
            keys.sort();
        }

        let (mut replicas, mut ttft, end) = self.look(moment, &keys, listing, horizon.window);
        let measured_since = self.settle(now, &spec.key, &replicas);
        let settled_since = measured_since.map(|it| it.same);
        // Peaks from before the current set of replicas show the load on another replica count.
        // Replicas that a new one has relieved would request yet another.
        let settled = settled_since.and_then(|since| Seconds::from_span(now.duration_since(since)));
        if let Some(settled) = settled.filter(|settled| *settled < horizon.window) {
            (replicas, ttft, _) = self.look(moment, &keys, listing, settled);
        }

        self.next = LookupCursor { record: end, settled: self.next.settled + 1 };
        let (state, scale_unknown) = match listing.map(|listing| &listing.scale) {
            Some(Scale::Known(state)) => (Some(*state), None),
            Some(Scale::Unknown(why)) => (None, Some(why.clone())),
            Some(Scale::Targets) => (Some(self.targets(now, &keys, &replicas)), None),
            None => (None, None),
        };

        // A ready pod that has never reported is as new as one that is not ready yet.
        let unheard = match listing.map(|listing| &listing.scale) {
            Some(Scale::Known(_)) => count(replicas.iter().filter(|replica| {
                !replica.unready && matches!(replica.freshness, Freshness::Never { .. })
            })),
            Some(Scale::Targets | Scale::Unknown(_)) | None => Replicas::ZERO,
        };

        Observation {
            wanted: state.map(|state| state.wanted),
            current: state.map(|state| state.current),
            ready: state.map(|state| state.ready),
            pending: state.map_or(Replicas::ZERO, |state| state.pending + unheard),
            unheard,
            bounds: state.and_then(|state| state.bounds).unwrap_or(spec.bounds),
            replicas,
            ttft,
            scale_unknown,
            listed_at: listing.map(|listing| listing.as_of),
            measured_since,
            startup: Startup {
                stuck: Replicas::ZERO,
                unschedulable: Replicas::ZERO,
                starts: 0,
                to_ready: None,
                to_serving: None,
            },
        }
    }

    /// Observes each listed replica, with its gauges over the last `gauges` of the window. Also
    /// returns the times to first token of replicas with fresh data, and the end position of these
    /// replicas' records.
    fn look(
        &mut self,
        moment: &RecordInputs<'_>,
        keys: &[&ReplicaKey],
        listing: Option<&ReplicaListing>,
        gauges: Seconds,
    ) -> (Vec<ReplicaObservation>, Option<Histogram>, usize) {
        let RecordInputs { now, horizon, scrapes } = *moment;
        let never = ReplicaRecord::default();
        let view = ObservationTimes::new(now, horizon, gauges);
        let mut seen = Vec::with_capacity(keys.len());
        let mut ttft = None;
        let mut place = self.next.record;
        for key in keys {
            let found = self.records.find(key, place);
            place = found.map_or(place, |found| found + 1);
            self.arrived.take_until(place, &mut self.records, scrapes, horizon);
            let record = found.map_or(&never, |found| &self.records.sorted[found].1);
            let unready = listing.is_some_and(|listing| listing.unready.contains(key));
            let replica = ReplicaObservation { unready, ..record.observe(&view, key) };
            if replica.freshness.is_fresh() {
                record.add_ttft(&mut ttft);
            }

            seen.push(replica);
        }

        (seen, ttft, place)
    }

    /// The scale of listed targets without an orchestrator: those that have answered and have not
    /// stopped.
    fn targets(
        &self,
        now: Timestamp,
        keys: &[&ReplicaKey],
        replicas: &[ReplicaObservation],
    ) -> ScaleState {
        let known = keys.iter().filter_map(|key| self.records.get(key));
        let exist = count(known.filter(|record| record.exists(now)));

        ScaleState {
            wanted: exist,
            current: exist,
            ready: count(replicas.iter().filter(|replica| replica.freshness.is_fresh())),
            pending: Replicas::ZERO,
            bounds: None,
        }
    }

    fn settle(
        &mut self,
        now: Timestamp,
        variant: &VariantKey,
        replicas: &[ReplicaObservation],
    ) -> Option<MeasuredSince> {
        let mut measured: ReplicaKeys<'_> = replicas
            .iter()
            .filter(|replica| replica.load().is_some())
            .map(|replica| &replica.replica)
            .collect();
        measured.dedup();
        if measured.is_empty() {
            self.settled.remove(variant);
            return None;
        }

        // If the clock went back, the wait would otherwise grow by the size of the jump.
        let known = self.settled.get_at(self.next.settled, variant).filter(|it| it.since <= now);
        if let Some(SteadyReplicas { measured: before, since, begun }) = known
            && before.iter().eq(measured.iter().copied())
        {
            return Some(MeasuredSince { any: *begun, same: *since });
        }

        let begun = known.map_or(now, |it| it.begun);
        let copied = measured.into_iter().cloned().collect();
        self.settled
            .insert(variant.clone(), SteadyReplicas { measured: copied, since: now, begun });
        Some(MeasuredSince { any: begun, same: now })
    }
}

// === impl ArrivedScrapes ===

impl ArrivedScrapes {
    /// Brings the records before `end` up to date.
    fn take_until(
        &mut self,
        end: usize,
        records: &mut Records,
        scrapes: &[Scrape],
        horizon: Horizon,
    ) {
        let window = span(horizon.window);
        let detail = horizon.detail;
        while self.reached < end {
            let record = &mut records.sorted[self.reached].1;
            record.begin_tick();
            while let Some((_, scrape)) =
                self.sorted.get(self.taken).filter(|(place, _)| *place == self.reached)
            {
                record.take(&scrapes[*scrape], window, detail);
                self.taken += 1;
            }

            self.reached += 1;
        }
    }
}

// === impl Records ===

impl Records {
    /// Keeps a record for each listed replica, and for no other.
    fn keep(&mut self, inputs: &Inputs) {
        let listed = inputs.listings.values().flat_map(|listing| &listing.replicas);
        if self.sorted.iter().map(|(key, _)| key).eq(listed.clone()) {
            return;
        }

        let mut keys: Vec<&ReplicaKey> = listed.collect();
        keys.sort_unstable();
        keys.dedup();

        let mut known = std::mem::take(&mut self.sorted).into_iter().peekable();
        self.sorted = keys
            .into_iter()
            .map(|key| {
                while known.next_if(|(known, _)| known < key).is_some() {}
                let found = known.next_if(|(known, _)| known == key);
                found.unwrap_or_else(|| (key.clone(), ReplicaRecord::default()))
            })
            .collect();
    }

    fn place(&self, key: &ReplicaKey) -> usize {
        self.sorted.partition_point(|(known, _)| known < key)
    }

    /// The position of this key's record, which may be `place`.
    fn find(&self, key: &ReplicaKey, place: usize) -> Option<usize> {
        if self.is_at(place, key) {
            return Some(place);
        }
        let searched = self.place(key);
        self.is_at(searched, key).then_some(searched)
    }

    fn is_at(&self, place: usize, key: &ReplicaKey) -> bool {
        self.sorted.get(place).is_some_and(|(known, _)| known == key)
    }

    /// Returns true if these are the keys of the records from `place` on.
    fn are_at(&self, place: usize, keys: &[&ReplicaKey]) -> bool {
        let known = self.sorted.get(place..).unwrap_or_default();
        known.len() >= keys.len() && known.iter().zip(keys).all(|((known, _), key)| known == *key)
    }

    fn get(&self, key: &ReplicaKey) -> Option<&ReplicaRecord> {
        self.find(key, 0).map(|place| &self.sorted[place].1)
    }
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
        count(self.replicas.iter().filter(|replica| replica.load().is_some()))
    }

    /// The age of the oldest scrape among the replicas whose load is known.
    #[must_use]
    pub fn oldest_measured(&self) -> Option<Seconds> {
        self.replicas
            .iter()
            .filter(|replica| replica.load().is_some())
            .filter_map(|replica| match replica.freshness {
                Freshness::Fresh { age } => Some(age),
                Freshness::Stale { .. } | Freshness::Never { .. } => None,
            })
            .max_by(|a, b| a.compare(*b))
    }

    /// Returns true if every listed replica has been scraped at least once.
    #[must_use]
    pub fn all_tried(&self) -> bool {
        !self.replicas.iter().any(ReplicaObservation::is_untried)
    }

    /// The observation of a variant of which only the bounds are known.
    #[must_use]
    pub const fn of_nothing(bounds: Bounds) -> Self {
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
            startup: Startup {
                stuck: Replicas::ZERO,
                unschedulable: Replicas::ZERO,
                starts: 0,
                to_ready: None,
                to_serving: None,
            },
        }
    }
}

// === helpers ===

fn count(items: impl Iterator) -> Replicas {
    Replicas::saturating(u32::try_from(items.count()).unwrap_or(u32::MAX))
}
