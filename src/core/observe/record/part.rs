//! A part of the fleet in one tick: consecutive variants and their records.

use std::iter::Peekable;

use jiff::Timestamp;
use smallvec::SmallVec;

use crate::fleet::per_variant::PerVariant;
use crate::fleet::{ReplicaKey, VariantKey, VariantSpec};
use crate::observe::histogram::Histogram;
use crate::observe::record::horizon::Horizon;
use crate::observe::record::records::{RecordsPart, Serials};
use crate::observe::record::replica::{ObservationTimes, ReplicaRecord, span};
use crate::observe::{
    Freshness, MeasuredSince, Observation, ReplicaListing, ReplicaObservation, Scale, ScaleState,
    Scrape, ScrapeFailure, ScrapeRoute, Startup,
};
use crate::units::{Replicas, Seconds};

/// Consecutive variants of a fleet, with the state to observe them. Parts share nothing that one of
/// them changes.
pub(super) struct FleetPart<'a> {
    pub(super) records: RecordsPart<'a>,
    pub(super) arrived: ArrivedScrapes<'a>,
    pub(super) settled: &'a PerVariant<SteadyReplicas>,
    /// The changes to `settled`.
    pub(super) resettled: Vec<(VariantKey, Option<SteadyReplicas>)>,
    pub(super) next: LookupCursor,
}

/// The scrapes of a part, in the order of the records that they are for.
pub(super) struct ArrivedScrapes<'a> {
    /// Pairs of a record's position and a scrape's position, with each record's scrapes in order of
    /// time.
    pub(super) sorted: &'a [(usize, usize)],
    /// The position of the part's first record.
    pub(super) first: usize,
    /// The records that are up to date.
    pub(super) reached: usize,
}

/// The instant and the horizon of an observation, and the scrapes since the previous one.
pub(super) struct RecordInputs<'a, H> {
    pub(super) now: Timestamp,
    pub(super) horizon: &'a H,
    pub(super) scrapes: &'a [Scrape],
}

/// The inputs of one variant.
struct VariantInputs<'a> {
    now: Timestamp,
    horizon: Horizon,
    scrapes: &'a [Scrape],
}

/// The probable positions of the variant that is observed next: right after those of the last one.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LookupCursor {
    pub(super) record: usize,
    pub(super) settled: usize,
}

/// The keys of a variant's replicas. Nearly all variants have a few, and these need no allocation.
type ReplicaKeys<'a> = SmallVec<[&'a ReplicaKey; 8]>;

/// Listed replicas at one instant.
struct ListedReplicas {
    observed: Vec<ReplicaObservation>,
    /// The times to first token of replicas with fresh data.
    ttft: Option<Histogram>,
    /// The records of the replicas whose load is known.
    measured: Serials,
    /// The end of these replicas' records.
    end: usize,
}

/// The same replicas, measured without a gap.
#[derive(Clone, Debug)]
pub(super) struct SteadyReplicas {
    /// Their records, in the order of their keys.
    measured: Serials,
    since: Timestamp,
    /// The time since which any replica has been measured.
    begun: Timestamp,
}

// === impl FleetPart ===

impl FleetPart<'_> {
    /// Observes these variants. Both lists are in the order of their keys, so that one comparison
    /// each replaces a search.
    pub(super) fn observe<'i>(
        &mut self,
        inputs: &RecordInputs<'_, impl Fn(ScrapeRoute) -> Horizon>,
        variants: impl Iterator<Item = &'i VariantSpec>,
        listings: impl Iterator<Item = (&'i VariantKey, &'i ReplicaListing)>,
    ) -> Vec<(VariantKey, Observation)> {
        let mut listings = listings.peekable();
        let observations = variants
            .map(|spec| {
                let listing = self.listing(spec, &mut listings);
                let route = listing.map(|listing| listing.way).unwrap_or_default();
                let horizon = (inputs.horizon)(route);
                let moment = VariantInputs { now: inputs.now, horizon, scrapes: inputs.scrapes };
                (spec.key.clone(), self.observe_one(&moment, spec, listing))
            })
            .collect();

        let end = self.records.records.len();
        let horizon = (inputs.horizon)(ScrapeRoute::Scraped);
        self.arrived.take_until(end, self.records.records, inputs.scrapes, horizon);
        observations
    }

    /// The listing of a variant. Passes over those of variants that are not part of the fleet.
    fn listing<'i>(
        &mut self,
        spec: &VariantSpec,
        listings: &mut Peekable<impl Iterator<Item = (&'i VariantKey, &'i ReplicaListing)>>,
    ) -> Option<&'i ReplicaListing> {
        while let Some((_, other)) = listings.next_if(|(key, _)| **key < spec.key) {
            self.next.record += other.replicas.len();
        }
        listings.next_if(|(key, _)| **key == spec.key).map(|(_, listing)| listing)
    }

    fn observe_one(
        &mut self,
        moment: &VariantInputs<'_>,
        spec: &VariantSpec,
        listing: Option<&ReplicaListing>,
    ) -> Observation {
        let VariantInputs { now, horizon, .. } = *moment;
        let mut keys: ReplicaKeys<'_> =
            listing.map(|listing| listing.replicas.iter().collect()).unwrap_or_default();
        if !self.records.are_at(self.next.record, &keys) {
            keys.sort();
        }

        let mut seen = self.look(moment, &keys, listing, horizon.window);
        let measured_since = self.settle(now, &spec.key, &seen.measured);
        let settled_since = measured_since.map(|it| it.same);
        // Peaks from before the current set of replicas show the load on another replica count.
        // Replicas that a new one has relieved would request yet another.
        let settled = settled_since.and_then(|since| Seconds::from_span(now.duration_since(since)));
        if let Some(settled) = settled.filter(|settled| *settled < horizon.window) {
            seen = self.look(moment, &keys, listing, settled);
        }

        let ListedReplicas { observed: replicas, ttft, end, .. } = seen;
        self.next = LookupCursor { record: end, settled: self.next.settled + 1 };
        let (state, scale_unknown) = match listing.map(|listing| &listing.scale) {
            Some(Scale::Known(state)) => (Some(*state), None),
            Some(Scale::Unknown(why)) => (None, Some(why.clone())),
            Some(Scale::Targets) => (Some(self.targets(now, &keys, &replicas)), None),
            None => (None, None),
        };

        // A ready pod that has never reported is as new as one that is not ready yet.
        let unheard = match listing.map(|listing| &listing.scale) {
            Some(Scale::Known(_)) => {
                let never_answered = replicas.iter().filter(|replica| {
                    !replica.unready && matches!(replica.freshness, Freshness::Never { .. })
                });
                Replicas::capped(never_answered.count())
            }
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
            startup: Startup::default(),
        }
    }

    /// Observes each listed replica, with its gauges over the last `gauges` of the window.
    fn look(
        &mut self,
        moment: &VariantInputs<'_>,
        keys: &[&ReplicaKey],
        listing: Option<&ReplicaListing>,
        gauges: Seconds,
    ) -> ListedReplicas {
        let VariantInputs { now, horizon, scrapes } = *moment;
        let never = ReplicaRecord::default();
        let view = ObservationTimes::new(now, horizon, gauges);
        let mut observed = Vec::with_capacity(keys.len());
        let mut ttft = None;
        let mut measured = Serials::new();
        let mut end = self.next.record;
        for key in keys {
            let found = self.records.find_listed(key, end);
            end = found.map_or(end, |found| found + 1);
            self.arrived.take_until(end, self.records.records, scrapes, horizon);
            let record = found.map_or(&never, |found| &self.records.records[found]);
            let unready = listing.is_some_and(|listing| listing.unready.contains(key));
            let replica = record.observe(&view, key, unready);
            if replica.freshness.is_fresh() {
                record.add_ttft(&mut ttft);
            }
            if replica.load().is_some() {
                measured.extend(found.map(|found| self.records.serial(found)));
            }

            observed.push(replica);
        }

        measured.dedup();
        ListedReplicas { observed, ttft, measured, end }
    }

    /// The scale of listed targets without an orchestrator, which exist unless they refuse
    /// connections. Those that have never answered serve nothing that is known.
    fn targets(
        &self,
        now: Timestamp,
        keys: &[&ReplicaKey],
        replicas: &[ReplicaObservation],
    ) -> ScaleState {
        let known = keys.iter().filter_map(|key| self.records.get(key));
        let exist = Replicas::capped(known.filter(|record| record.exists(now)).count());
        let fresh = replicas.iter().filter(|replica| replica.freshness.is_fresh());
        let never_answered = replicas.iter().filter(|replica| match replica.freshness {
            Freshness::Never { why } => why.is_some_and(|why| why != ScrapeFailure::Refused),
            Freshness::Fresh { .. } | Freshness::Stale { .. } => false,
        });

        ScaleState {
            wanted: exist,
            current: exist,
            ready: Replicas::capped(fresh.count()),
            pending: Replicas::capped(never_answered.count()),
            bounds: None,
        }
    }

    /// The time since which the same replicas have been measured.
    fn settle(
        &mut self,
        now: Timestamp,
        variant: &VariantKey,
        measured: &Serials,
    ) -> Option<MeasuredSince> {
        let known = self.settled.get_at(self.next.settled, variant);
        if measured.is_empty() {
            self.resettled.extend(known.map(|_| (variant.clone(), None)));
            return None;
        }

        // If the clock went back, the wait would otherwise grow by the size of the jump.
        let known = known.filter(|it| it.since <= now);
        if let Some(SteadyReplicas { measured: before, since, begun }) = known
            && before == measured
        {
            return Some(MeasuredSince { any: *begun, same: *since });
        }

        let begun = known.map_or(now, |it| it.begun);
        let steady = SteadyReplicas { measured: measured.clone(), since: now, begun };
        self.resettled.push((variant.clone(), Some(steady)));
        Some(MeasuredSince { any: begun, same: now })
    }
}

// === impl ArrivedScrapes ===

impl ArrivedScrapes<'_> {
    /// Brings the records before `end` up to date.
    fn take_until(
        &mut self,
        end: usize,
        records: &mut [ReplicaRecord],
        scrapes: &[Scrape],
        horizon: Horizon,
    ) {
        let window = span(horizon.window);
        let detail = horizon.detail;
        while self.reached < end {
            let record = &mut records[self.reached];
            record.begin_tick();
            while let Some(((place, scrape), rest)) = self.sorted.split_first()
                && place - self.first == self.reached
            {
                record.take(&scrapes[*scrape], window, detail);
                self.sorted = rest;
            }

            self.reached += 1;
        }
    }
}
