//! The record of every replica: scrapes in, observations out.
//!
//! A [`Recorder`] holds the windows of each replica's series, and puts the ranks of one replica
//! together by the rule that fits each family: requests are added up; KV usage is a mean where it
//! measures load and a maximum where it guards against a hot spot. A replica is forgotten when it
//! is no longer listed, so a pod that is replaced takes its windows with it.
//!
//! A tick visits each replica once: what its scrapes bring is taken in just before it is looked at,
//! while its record is at hand. To take in all scrapes first would wait for the memory of each
//! record twice.

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
use crate::observe::record::replica::{Record, View, span};
use crate::observe::{
    Freshness, Inputs, Listing, MeasuredSince, Observation, ReplicaObservation, Scale, ScaleState,
    Scrape, Startup, Way,
};
use crate::units::{Fraction, Replicas, Requests, Seconds};

/// Lengths of time that the record depends on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Horizon {
    /// Length of the window over which peaks, means and rates are taken.
    pub window: Seconds,
    /// Age from which a replica's data is too old to act on.
    pub stale_after: Seconds,
    /// How much is kept.
    pub detail: Detail,
}

/// How much is kept of each replica. Windows that nobody reads would cost memory and time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Detail {
    /// How loaded it is.
    #[default]
    Load,
    /// In addition, what its requests look like.
    Work,
}

/// The record of every listed replica.
#[derive(Clone, Debug, Default)]
pub struct Recorder {
    records: Records,
    /// For each scrape of the last tick, which record it went to: nearly always, the one in the
    /// same place goes there as well.
    places: Vec<usize>,
    arrived: Arrived,
    settled: PerVariant<Settled>,
    next: Next,
}

/// The scrapes of a tick, in the order of the records that they are for.
#[derive(Clone, Debug, Default)]
struct Arrived {
    /// A record and a scrape for it, each by its place; a record's scrapes in order of time.
    sorted: Vec<(usize, usize)>,
    /// How many of them have been taken in.
    taken: usize,
    /// How many records have been brought up to date.
    reached: usize,
}

/// When replicas are looked at, how, and what has come of them since.
struct Moment<'a> {
    now: Timestamp,
    horizon: Horizon,
    scrapes: &'a [Scrape],
}

/// Where the variant that is observed next probably is: behind the one that was observed last.
#[derive(Clone, Copy, Debug, Default)]
struct Next {
    record: usize,
    settled: usize,
}

/// Records in the order of their keys. What is asked for in this order is found without a search:
/// a tick asks for every replica, and a search among thousands compares a dozen names.
#[derive(Clone, Debug, Default)]
struct Records {
    sorted: Vec<(ReplicaKey, Record)>,
}

/// The keys of a variant's replicas. Nearly all have a few, and for those nothing is allocated.
type Keys<'a> = SmallVec<[&'a ReplicaKey; 8]>;

/// The same replicas, measured without a gap.
#[derive(Clone, Debug)]
struct Settled {
    /// In the order of their keys.
    measured: Vec<ReplicaKey>,
    since: Timestamp,
    /// Since when some replica has been measured.
    begun: Timestamp,
}

// === impl Recorder ===

impl Recorder {
    /// A record of nothing.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// What is known of every variant at `now`, with what one tick brings: scrapes are recorded,
    /// unlisted replicas are forgotten.
    pub fn observe(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        horizon: impl Fn(Way) -> Horizon,
    ) -> BTreeMap<VariantKey, Observation> {
        self.begin(inputs);
        // Both are in the order of their keys, which takes a comparison each instead of a search.
        let mut listings = inputs.listings.iter().peekable();
        let observe = |spec: &VariantSpec| {
            while listings.next_if(|(key, _)| **key < spec.key).is_some() {}
            let listing = listings.next_if(|(key, _)| **key == spec.key);
            let listing = listing.map(|(_, listing)| listing);
            let horizon = horizon(listing.map(|listing| listing.way).unwrap_or_default());
            let moment = Moment { now, horizon, scrapes: &inputs.scrapes };
            (spec.key.clone(), self.observe_one(&moment, spec, listing))
        };
        let observations = inputs.fleet.variants().map(observe).collect();
        self.arrived.take_until(
            self.records.sorted.len(),
            &mut self.records,
            &inputs.scrapes,
            horizon(Way::Scraped),
        );
        observations
    }

    /// Has a record for each listed replica, and knows which scrape is for which.
    fn begin(&mut self, inputs: &Inputs) {
        self.records.keep(inputs);
        self.next = Next::default();
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

    /// Forgets since when replicas have been measured without a gap: there has been one.
    pub fn unsettle(&mut self) {
        self.settled.clear();
    }

    fn observe_one(
        &mut self,
        moment: &Moment<'_>,
        spec: &VariantSpec,
        listing: Option<&Listing>,
    ) -> Observation {
        let Moment { now, horizon, .. } = *moment;
        let mut keys: Keys<'_> =
            listing.map(|listing| listing.replicas.iter().collect()).unwrap_or_default();
        if !self.records.are_at(self.next.record, &keys) {
            keys.sort();
        }
        let (mut replicas, mut ttft, end) = self.look(moment, &keys, listing, horizon.window);
        let measured_since = self.settle(now, &spec.key, &replicas);
        let settled_since = measured_since.map(|it| it.same);
        // Peaks of before the replicas were these say what another number of them carried: those
        // that a new replica has relieved would ask for one more.
        let settled = settled_since.and_then(|since| Seconds::from_span(now.duration_since(since)));
        if let Some(settled) = settled.filter(|settled| *settled < horizon.window) {
            (replicas, ttft, _) = self.look(moment, &keys, listing, settled);
        }
        self.next = Next { record: end, settled: self.next.settled + 1 };
        let (state, scale_unknown) = match listing.map(|listing| &listing.scale) {
            Some(Scale::Known(state)) => (Some(*state), None),
            Some(Scale::Unknown(why)) => (None, Some(why.clone())),
            Some(Scale::Targets) => (Some(self.targets(now, &keys, &replicas)), None),
            None => (None, None),
        };
        // A pod that is ready and was never heard is as new as one that is not ready yet.
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

    /// Each listed replica, with its gauges over the last `gauges` of the window, the times to first
    /// token of those with fresh data, and where the records of these replicas end.
    fn look(
        &mut self,
        moment: &Moment<'_>,
        keys: &[&ReplicaKey],
        listing: Option<&Listing>,
        gauges: Seconds,
    ) -> (Vec<ReplicaObservation>, Option<Histogram>, usize) {
        let Moment { now, horizon, scrapes } = *moment;
        let never = Record::default();
        let view = View::new(now, horizon, gauges);
        let (mut seen, mut ttft) = (Vec::with_capacity(keys.len()), None);
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

    /// What the targets themselves say about scale: those that have answered and have not stopped.
    fn targets(
        &self,
        now: Timestamp,
        keys: &[&ReplicaKey],
        replicas: &[ReplicaObservation],
    ) -> ScaleState {
        let exists =
            |key: &&&ReplicaKey| self.records.get(key).is_some_and(|record| record.exists(now));
        let exist = count(keys.iter().filter(exists));
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
        let mut measured: Keys<'_> = replicas
            .iter()
            .filter(|replica| replica.load().is_some())
            .map(|replica| &replica.replica)
            .collect();
        measured.dedup();
        if measured.is_empty() {
            self.settled.remove(variant);
            return None;
        }

        // A clock that went back would otherwise stretch the wait by the size of the jump.
        let known = self.settled.get_at(self.next.settled, variant).filter(|it| it.since <= now);
        if let Some(Settled { measured: before, since, begun }) = known
            && before.iter().eq(measured.iter().copied())
        {
            return Some(MeasuredSince { any: *begun, same: *since });
        }

        let begun = known.map_or(now, |it| it.begun);
        let measured = measured.into_iter().cloned().collect();
        self.settled.insert(variant.clone(), Settled { measured, since: now, begun });
        Some(MeasuredSince { any: begun, same: now })
    }
}

// === impl Arrived ===

impl Arrived {
    /// Brings the records before `end` up to date.
    fn take_until(
        &mut self,
        end: usize,
        records: &mut Records,
        scrapes: &[Scrape],
        horizon: Horizon,
    ) {
        let (window, detail) = (span(horizon.window), horizon.detail);
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
    /// Has a record for each listed replica, and for no other.
    fn keep(&mut self, inputs: &Inputs) {
        let listed = || inputs.listings.values().flat_map(|listing| &listing.replicas);
        if self.sorted.iter().map(|(key, _)| key).eq(listed()) {
            return;
        }
        let mut keys: Vec<&ReplicaKey> = listed().collect();
        keys.sort_unstable();
        keys.dedup();
        let mut known = std::mem::take(&mut self.sorted).into_iter().peekable();
        let record = |key: &ReplicaKey| {
            while known.next_if(|(known, _)| known < key).is_some() {}
            let known = known.next_if(|(known, _)| known == key);
            known.unwrap_or_else(|| (key.clone(), Record::default()))
        };
        self.sorted = keys.into_iter().map(record).collect();
    }

    fn place(&self, key: &ReplicaKey) -> usize {
        self.sorted.partition_point(|(known, _)| known < key)
    }

    /// Where the record of this key is, which may be `place`.
    fn find(&self, key: &ReplicaKey, place: usize) -> Option<usize> {
        let is_at = |place: &usize| self.sorted.get(*place).is_some_and(|(known, _)| known == key);
        Some(place).filter(is_at).or_else(|| Some(self.place(key)).filter(is_at))
    }

    /// Whether these are the keys of the records from `place` on.
    fn are_at(&self, place: usize, keys: &[&ReplicaKey]) -> bool {
        let known = self.sorted.get(place..).unwrap_or_default();
        known.len() >= keys.len() && known.iter().zip(keys).all(|((known, _), key)| known == *key)
    }

    fn get(&self, key: &ReplicaKey) -> Option<&Record> {
        self.find(key, 0).map(|place| &self.sorted[place].1)
    }
}

// === impl ReplicaObservation ===

impl ReplicaObservation {
    /// The peaks that say how loaded the replica is, if both are known and recent and it serves.
    #[must_use]
    pub fn load(&self) -> Option<(Fraction, Requests)> {
        if !self.freshness.is_fresh() || self.asleep || self.unready {
            return None;
        }
        Some((self.kv_hottest?.peak, self.waiting_hottest?.peak))
    }

    /// Whether the replica has answered before and no longer does.
    #[must_use]
    pub const fn is_lost(&self) -> bool {
        matches!(self.freshness, Freshness::Stale { .. }) && !self.stopped && !self.unready
    }

    /// Whether the replica is listed and has not been tried yet.
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

    /// The age of the oldest page among the replicas whose load is known.
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

    /// Whether every listed replica has been tried at least once.
    #[must_use]
    pub fn all_tried(&self) -> bool {
        !self.replicas.iter().any(ReplicaObservation::is_untried)
    }

    /// The bounds of a variant that nothing is known of.
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
