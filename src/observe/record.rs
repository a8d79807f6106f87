//! The record of every replica: scrapes in, observations out.
//!
//! A [`Recorder`] holds the windows of each replica's series, and puts the ranks of one replica
//! together by the rule that fits each family: requests are added up; KV usage is a mean where it
//! measures load and a maximum where it guards against a hot spot. A replica is forgotten when it
//! is no longer listed, so a pod that is replaced takes its windows with it.

mod ranks;
mod replica;
mod snapshots;
mod work;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::fleet::{Bounds, ReplicaKey, VariantKey, VariantSpec};
use crate::observe::record::replica::{Record, View};
use crate::observe::{
    Freshness, Inputs, Listing, Observation, ReplicaObservation, Scale, ScaleState, Scrape,
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
    replicas: BTreeMap<ReplicaKey, Record>,
    settled: BTreeMap<VariantKey, Settled>,
}

/// The same replicas, measured without a gap.
#[derive(Clone, Debug)]
struct Settled {
    /// In the order of their keys.
    measured: Vec<ReplicaKey>,
    since: Timestamp,
}

/// Keys in ascending order that are walked along with others in the same order. With thousands of
/// replicas this takes a few comparisons each, where a search takes a dozen.
struct Merge<'a> {
    sorted: &'a [&'a ReplicaKey],
}

// === impl Recorder ===

impl Recorder {
    /// A record of nothing.
    #[must_use]
    pub const fn new() -> Self {
        Self { replicas: BTreeMap::new(), settled: BTreeMap::new() }
    }

    /// Takes in what one tick brings: scrapes are recorded, unlisted replicas are forgotten.
    pub fn take(&mut self, inputs: &Inputs, horizon: Horizon) {
        let mut listed: Vec<&ReplicaKey> =
            inputs.listings.values().flat_map(|listing| &listing.replicas).collect();
        listed.sort_unstable();
        listed.dedup();
        let mut known = Merge::new(&listed);
        self.replicas.retain(|key, _| known.find(key));
        self.settled.retain(|key, _| inputs.fleet.get(key).is_some());
        let mut scrapes: Vec<&Scrape> = inputs.scrapes.iter().collect();
        // The sort is stable: each replica's scrapes stay in order of time.
        scrapes.sort_by(|a, b| a.replica.cmp(&b.replica));
        let mut known = Merge::new(&listed);
        scrapes.retain(|scrape| known.find(&scrape.replica));
        self.record(&scrapes, horizon);
    }

    /// Records scrapes that are in the order of their replicas.
    fn record(&mut self, scrapes: &[&Scrape], horizon: Horizon) {
        let mut new = Vec::new();
        let mut records = self.replicas.iter_mut().peekable();
        for scrapes in scrapes.chunk_by(|a, b| a.replica == b.replica) {
            let Some(Scrape { replica, .. }) = scrapes.first() else { continue };
            while records.next_if(|(key, _)| *key < replica).is_some() {}
            if let Some((_, record)) = records.next_if(|(key, _)| *key == replica) {
                record.take_all(scrapes, horizon);
            } else {
                let mut record = Record::default();
                record.take_all(scrapes, horizon);
                new.push((replica.clone(), record));
            }
        }
        self.replicas.extend(new);
    }

    /// Forgets since when replicas have been measured without a gap: there has been one.
    pub fn unsettle(&mut self) {
        self.settled.clear();
    }

    /// Says what is known of one variant at `now`.
    pub fn observe(
        &mut self,
        now: Timestamp,
        spec: &VariantSpec,
        listing: Option<&Listing>,
        horizon: Horizon,
    ) -> Observation {
        let mut keys: Vec<&ReplicaKey> =
            listing.map(|listing| listing.replicas.iter().collect()).unwrap_or_default();
        keys.sort();
        let mut replicas = self.look(now, &keys, listing, horizon, horizon.window);
        let settled_since = self.settle(now, &spec.key, &replicas);
        // Peaks of before the replicas were these say what another number of them carried: those
        // that a new replica has relieved would ask for one more.
        let settled = settled_since.and_then(|since| Seconds::from_span(now.duration_since(since)));
        if let Some(settled) = settled.filter(|settled| *settled < horizon.window) {
            replicas = self.look(now, &keys, listing, horizon, settled);
        }
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
            scale_unknown,
            listed_at: listing.map(|listing| listing.as_of),
            settled_since,
        }
    }

    /// Each listed replica, with its gauges over the last `gauges` of the window.
    fn look(
        &self,
        now: Timestamp,
        keys: &[&ReplicaKey],
        listing: Option<&Listing>,
        horizon: Horizon,
        gauges: Seconds,
    ) -> Vec<ReplicaObservation> {
        let never = Record::default();
        let first = keys.first().copied();
        let mut records =
            first.into_iter().flat_map(|first| self.replicas.range(first..)).peekable();
        let view = View::new(now, horizon, gauges);
        let look = |key: &&ReplicaKey| {
            while records.next_if(|(known, _)| *known < *key).is_some() {}
            let record = records.peek().filter(|(known, _)| *known == *key);
            let record = record.map_or(&never, |(_, record)| *record);
            let unready = listing.is_some_and(|listing| listing.unready.contains(key));
            ReplicaObservation { unready, ..record.observe(&view, key) }
        };
        keys.iter().map(look).collect()
    }

    /// What the targets themselves say about scale: those that have answered and have not stopped.
    fn targets(
        &self,
        now: Timestamp,
        keys: &[&ReplicaKey],
        replicas: &[ReplicaObservation],
    ) -> ScaleState {
        let exists =
            |key: &&&ReplicaKey| self.replicas.get(key).is_some_and(|record| record.exists(now));
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
    ) -> Option<Timestamp> {
        let mut measured: Vec<&ReplicaKey> = replicas
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
        if let Some(Settled { measured: known, since }) = self.settled.get(variant)
            && known.iter().eq(measured.iter().copied())
            && *since <= now
        {
            return Some(*since);
        }
        let measured = measured.into_iter().cloned().collect();
        self.settled.insert(variant.clone(), Settled { measured, since: now });
        Some(now)
    }
}

// === impl Merge ===

impl<'a> Merge<'a> {
    fn new(sorted: &'a [&'a ReplicaKey]) -> Self {
        Self { sorted }
    }

    /// Whether the key is there. Keys are asked for in ascending order.
    fn find(&mut self, key: &ReplicaKey) -> bool {
        while let Some((first, rest)) = self.sorted.split_first() {
            match (*first).cmp(key) {
                Ordering::Less => self.sorted = rest,
                Ordering::Equal => return true,
                Ordering::Greater => return false,
            }
        }
        false
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
            scale_unknown: None,
            listed_at: None,
            settled_since: None,
        }
    }
}

// === helpers ===

fn count(items: impl Iterator) -> Replicas {
    Replicas::saturating(u32::try_from(items.count()).unwrap_or(u32::MAX))
}
