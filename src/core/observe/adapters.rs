//! Adapters over time: the adapters that each replica of a pool has served, and the replicas on
//! which they waited.
//!
//! A scrape lists the adapters that have requests at one instant. An adapter with one request per
//! minute appears in few scrapes, so its last appearance counts. An engine keeps the most recently
//! used adapters in its slots, so these are assumed to be loaded.
//!
//! An engine without requests does not update its list, and one that has never had a request has
//! none. So a replica that reports no running and no waiting requests serves no adapter, whatever
//! its list contains. A replica with requests whose list is missing, stale or unusable is
//! *unknown*.

use std::collections::{BTreeMap, BTreeSet};

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::fleet::{ModelName, ReplicaKey};
use crate::observe::engine::lora::{Lora, Slots, WhyUnusable, lora};
use crate::observe::{RankReading, Reading, ReplicaObservation, Scrape};
use crate::units::{Replicas, Requests, Seconds};

/// The maximum age of the list of an engine with requests. The engine writes it at every step,
/// which takes seconds at most. The rest allows for clock skew.
const LIST_FRESH: Seconds = Seconds::literal(60);

/// Adapters that are remembered per pool and per replica. No real deployment has more.
const ADAPTERS_MAX: usize = 4096;

/// The record of the adapters of one pool.
#[derive(Clone, Debug, Default)]
pub struct AdapterRecorder {
    replicas: BTreeMap<ReplicaKey, ServedAdapters>,
    /// The last time that each adapter was seen on any replica, including replicas that are gone.
    seen: BTreeMap<ModelName, Timestamp>,
    /// The time since which the adapters of all scraped replicas have been known without a gap.
    since: Option<Timestamp>,
}

/// The adapters that one replica has served.
#[derive(Clone, Debug, Default)]
struct ServedAdapters {
    /// The list in its last scrape; `None` before the first.
    last: Option<Result<ListedAdapters, Unlisted>>,
    /// The last time when it had requests or its state was not known. Initially the time of its
    /// first scrape.
    worked: Option<Timestamp>,
    /// The time since which every scrape has shown requests that wait for something other than
    /// room.
    deferred_since: Option<Timestamp>,
    slots: Option<Slots>,
    adapters: BTreeMap<ModelName, AdapterTimes>,
}

/// The last times when an adapter was in a replica's scrape.
#[derive(Clone, Copy, Debug)]
struct AdapterTimes {
    /// With any request.
    seen: Timestamp,
    /// With a running request. Until there is one, the time when it was first seen.
    ran: Timestamp,
}

/// The adapters in one scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct ListedAdapters {
    running: BTreeSet<ModelName>,
    waiting: BTreeSet<ModelName>,
}

/// The reason why the adapters of a replica with requests are not known.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unlisted {
    /// Its scrape has no list.
    #[display("its metrics list no adapters; is --enable-lora set?")]
    Absent,
    /// Its list is stale.
    #[display("its list of adapters is {_0:.0} s old")]
    Stale(Seconds),
    /// Its list is unusable.
    #[display("its list of adapters is unusable: {_0}")]
    Unusable(WhyUnusable),
}

/// The adapters of a pool at one instant.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AdapterObservation {
    /// Each listed replica, in the order of their keys.
    pub replicas: Vec<ReplicaAdapters>,
    /// Each adapter that has had a request lately.
    pub adapters: BTreeMap<ModelName, AdapterHosts>,
    /// The time for which the adapters of all scraped replicas have been known without a gap.
    pub watched: Seconds,
}

/// The adapters of one replica.
#[derive(Clone, Debug, PartialEq)]
pub struct ReplicaAdapters {
    /// The replica's key.
    pub replica: ReplicaKey,
    /// `Ok` if its adapters are known, otherwise the reason. `Ok` does not apply to a replica that
    /// is not ready.
    pub known: Result<(), Option<Unlisted>>,
    /// The adapters that it can serve in one step.
    pub slots: Option<Slots>,
    /// Adapters with a running request.
    pub running: BTreeSet<ModelName>,
    /// Adapters with a waiting request.
    pub waiting: BTreeSet<ModelName>,
    /// The adapters that it used last, up to its number of slots.
    pub loaded: BTreeSet<ModelName>,
    /// The time for which it has had no request.
    pub idle: Seconds,
}

/// The replicas on which an adapter has been seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdapterHosts {
    /// Replicas on which it has had a request in the window.
    pub hosts: Replicas,
    /// The hosts with fresh data on which it has had no slot for all of the window.
    pub starved: Replicas,
}

/// The lengths of time for the assessment of adapters.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdapterHorizon {
    /// The maximum age of an adapter's last request for the adapter to count as seen.
    pub idle_after: Seconds,
    /// The time without a slot after which an adapter is starved.
    pub window: Seconds,
}

// === impl AdapterRecorder ===

impl AdapterRecorder {
    /// Records one scrape of one of the pool's replicas.
    pub fn take(&mut self, scrape: &Scrape) {
        let Scrape { replica, at, outcome } = scrape;
        let Ok(reading) = outcome else { return };
        let served = self.replicas.entry(replica.clone()).or_default();
        served.take(*at, reading);

        if let Some(Ok(listed)) = &served.last {
            for adapter in listed.running.union(&listed.waiting) {
                if self.seen.len() < ADAPTERS_MAX || self.seen.contains_key(adapter) {
                    let seen = self.seen.entry(adapter.clone()).or_insert(*at);
                    *seen = *at.max(seen);
                }
            }
        }
    }

    /// After a gap, forgets for how long adapters have been watched.
    pub fn unsettle(&mut self) {
        self.since = None;
    }

    /// The adapters on these replicas, as known at `now`.
    pub fn observe(
        &mut self,
        now: Timestamp,
        listed: &[ReplicaObservation],
        horizon: AdapterHorizon,
    ) -> AdapterObservation {
        self.replicas.retain(|key, _| listed.iter().any(|replica| replica.replica == *key));
        self.seen.retain(|_, seen| Seconds::between(*seen, now) <= horizon.idle_after);
        let replicas: Vec<ReplicaAdapters> =
            listed.iter().map(|replica| self.replica(now, replica, horizon)).collect();
        let lost = replicas
            .iter()
            .any(|replica| replica.known.is_err() && self.replicas.contains_key(&replica.replica));
        if lost || self.since.is_some_and(|since| since > now) {
            self.since = None;
        }

        let since = *self.since.get_or_insert(now);
        // The last list of a silent replica does not show that an adapter waits on it now.
        let fresh = listed.iter().filter(|replica| replica.freshness.is_fresh());
        let answering: BTreeSet<&ReplicaKey> = fresh.map(|replica| &replica.replica).collect();
        let adapters = self.seen.keys().map(|adapter| {
            let found = self.replicas.iter().filter_map(|(replica, served)| {
                let sighting = served.adapters.get(adapter)?;
                let is_short = answering.contains(replica)
                    && served.starves(now, adapter, *sighting, horizon.window);
                (is_short || Seconds::between(sighting.seen, now) <= horizon.window)
                    .then_some(is_short)
            });
            let hosts: Vec<bool> = found.collect();
            let starved = Replicas::capped(hosts.iter().filter(|is_short| **is_short).count());
            (adapter.clone(), AdapterHosts { hosts: Replicas::capped(hosts.len()), starved })
        });

        AdapterObservation {
            adapters: adapters.collect(),
            watched: if lost { Seconds::ZERO } else { Seconds::between(since, now) },
            replicas,
        }
    }

    fn replica(
        &mut self,
        now: Timestamp,
        replica: &ReplicaObservation,
        horizon: AdapterHorizon,
    ) -> ReplicaAdapters {
        let key = replica.replica.clone();
        let counts = !replica.unready && !replica.stopped;
        let Some(served) = self.replicas.get_mut(&key) else {
            let known = if counts { Err(None) } else { Ok(()) };
            let idle = Seconds::ZERO;
            let none = BTreeSet::new;
            let running = none();
            let waiting = none();
            let loaded = none();
            return ReplicaAdapters {
                replica: key,
                known,
                slots: None,
                running,
                waiting,
                loaded,
                idle,
            };
        };

        served
            .adapters
            .retain(|_, sighting| Seconds::between(sighting.seen, now) <= horizon.idle_after);
        let ListedAdapters { running, waiting } = match &served.last {
            Some(Ok(listed)) if replica.freshness.is_fresh() => listed.clone(),
            Some(_) | None => ListedAdapters::default(),
        };
        let known = match &served.last {
            _ if !counts => Ok(()),
            Some(Ok(_)) if replica.freshness.is_fresh() => Ok(()),
            Some(Err(why)) if replica.freshness.is_fresh() => Err(Some(*why)),
            Some(_) | None => Err(None),
        };

        ReplicaAdapters {
            replica: key,
            known,
            slots: served.slots,
            running,
            waiting,
            loaded: served.loaded(),
            idle: served.worked.map(|worked| Seconds::between(worked, now)).unwrap_or_default(),
        }
    }
}

// === impl ServedAdapters ===

impl ServedAdapters {
    fn take(&mut self, at: Timestamp, reading: &Reading) {
        let in_flight = requests(&reading.ranks, |rank| {
            Some(rank.running?.requests() + rank.waiting?.requests())
        });
        let listed = listed(at, reading, in_flight);
        let worked = listed.is_err() || in_flight.is_none_or(|requests| requests > Requests::ZERO);
        if worked || self.worked.is_none_or(|worked| worked > at) {
            self.worked = Some(at);
        }

        let deferred =
            requests(&reading.ranks, |rank| rank.waiting_deferred.map(Requests::requests));
        self.deferred_since = match deferred.filter(|deferred| *deferred > Requests::ZERO) {
            Some(_) => self.deferred_since.filter(|since| *since <= at).or(Some(at)),
            None => None,
        };
        self.slots = reading.lora.as_ref().and_then(|page| page.slots).or(self.slots);
        if let Ok(ListedAdapters { running, waiting }) = &listed {
            for adapter in running.union(waiting) {
                let known = self.adapters.get(adapter).copied();
                if known.is_none() && self.adapters.len() >= ADAPTERS_MAX {
                    continue;
                }
                let ran = match known {
                    Some(known) if !running.contains(adapter) => known.ran.min(at),
                    Some(_) | None => at,
                };
                self.adapters.insert(adapter.clone(), AdapterTimes { seen: at, ran });
            }
        }

        self.last = Some(listed);
    }

    /// Returns true if an adapter has waited for a slot for all of the window. Either its requests
    /// are listed as waiting and others fill the slots. Or it has been on no list since requests
    /// began to wait for something other than room.
    fn starves(
        &self,
        now: Timestamp,
        adapter: &ModelName,
        sighting: AdapterTimes,
        window: Seconds,
    ) -> bool {
        let Some(Ok(ListedAdapters { running, waiting })) = &self.last else { return false };
        let slots = self.slots.map_or(0, |it| usize::try_from(it.number()).unwrap_or(0));
        if waiting.contains(adapter) {
            let full = slots > 0 && running.len() >= slots;
            return full
                && !running.contains(adapter)
                && Seconds::between(sighting.ran, now) >= window;
        }

        let absent = !running.contains(adapter) && Seconds::between(sighting.seen, now) >= window;
        absent && self.deferred_since.is_some_and(|since| since <= sighting.seen)
    }

    /// The adapters that were used last, up to the number of slots. An engine evicts the least
    /// recently used adapter.
    fn loaded(&self) -> BTreeSet<ModelName> {
        let slots =
            self.slots.map_or(usize::MAX, |it| usize::try_from(it.number()).unwrap_or(usize::MAX));
        let mut latest: Vec<(&ModelName, &AdapterTimes)> = self.adapters.iter().collect();
        latest.sort_by_key(|(name, it)| (std::cmp::Reverse((it.ran, it.seen)), *name));
        latest.into_iter().take(slots).map(|(name, _)| name.clone()).collect()
    }
}

/// The adapters with requests in a scrape, if it lists them.
fn listed(
    at: Timestamp,
    reading: &Reading,
    in_flight: Option<Requests>,
) -> Result<ListedAdapters, Unlisted> {
    if in_flight == Some(Requests::ZERO) {
        return Ok(ListedAdapters::default());
    }

    match lora(at, reading.lora.as_deref(), LIST_FRESH) {
        Lora::Read(read) => Ok(ListedAdapters { running: read.running, waiting: read.waiting }),
        Lora::Absent => Err(Unlisted::Absent),
        Lora::Stale { age, .. } => Err(Unlisted::Stale(age)),
        Lora::Unusable(why) => Err(Unlisted::Unusable(why)),
    }
}

/// The sum over all ranks; `None` if one does not report it, or there are none.
fn requests(ranks: &[RankReading], of: impl Fn(&RankReading) -> Option<f64>) -> Option<Requests> {
    let all: Option<Vec<f64>> = ranks.iter().map(of).collect();
    all.filter(|all| !all.is_empty()).and_then(|all| Requests::new(all.iter().sum()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::fleet::{Fleet, ReplicaName, VariantSpec};
    use crate::observe::engine::Engine;
    use crate::observe::engine::lora::LoraPage;
    use crate::observe::record::{FleetRecorder, Horizon, RecordDetail};
    use crate::observe::{HttpReading, Inputs, Observation, ReplicaListing, Scale, ScrapeRoute};

    /// A scrape of a replica with two slots. Its fields are running requests, requests that wait
    /// for something other than room, running adapters, waiting adapters, and the age of the list.
    type Page<'a> = (f64, f64, &'a [&'a str], &'a [&'a str], i64);

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_000_000 + second).unwrap()
    }

    fn names(names: &[&str]) -> BTreeSet<ModelName> {
        names.iter().map(|name| ModelName::new(name).unwrap()).collect()
    }

    fn key() -> ReplicaKey {
        let replica = ReplicaName::new("p-0").unwrap();
        ReplicaKey { variant: VariantSpec::example("pool").key, replica, incarnation: None }
    }

    fn scrape(second: i64, page: Option<Page<'_>>) -> Scrape {
        let (running, deferred, lora) = match page {
            None => (1.0, 0.0, None),
            Some((running, deferred, runs, waits, age)) => {
                let value = at(second - age).as_second() as f64;
                let slots = Slots::new(2);
                let page = LoraPage { value, slots, running: names(runs), waiting: names(waits) };
                (running, deferred, Some(Box::new(page)))
            }
        };

        let rank = RankReading {
            running: Requests::new(running),
            waiting: Requests::new(deferred),
            waiting_deferred: Requests::new(deferred),
            kv_usage: crate::units::Fraction::new(0.1),
            ..RankReading::default()
        };

        let reading = Reading {
            engine: Engine::Vllm,
            samples: 1,
            started: None,
            models: Vec::new(),
            http: HttpReading::default(),
            rejected: None,
            lora,
            ranks: vec![rank],
        };

        Scrape { replica: key(), at: at(second), outcome: Ok(reading) }
    }

    /// The observation after these scrapes, one every five seconds.
    fn after(pages: &[Option<Page<'_>>]) -> AdapterObservation {
        after_silence(pages, 0)
    }

    /// The observation after these scrapes, and this many seconds without one.
    fn after_silence(pages: &[Option<Page<'_>>], silence: i64) -> AdapterObservation {
        let mut adapters = AdapterRecorder::default();
        let mut recorder = FleetRecorder::new();
        let spec = VariantSpec::example("pool");
        let horizon =
            AdapterHorizon { idle_after: Seconds::literal(600), window: Seconds::literal(20) };
        let mut found = AdapterObservation::default();
        let last = i64::try_from(pages.len()).unwrap() * 5 - 5;
        let scrapes =
            (0..).step_by(5).zip(pages).map(|(second, page)| (second, Some(scrape(second, *page))));
        for (second, scrape) in scrapes.chain([(last + silence, None)]) {
            let listing = ReplicaListing {
                replicas: vec![key()],
                unready: Vec::new(),
                scale: Scale::Targets,
                way: ScrapeRoute::Scraped,
                as_of: at(second),
            };

            let inputs = Inputs {
                fleet: Arc::new(Fleet::new([spec.clone()])),
                listings: [(spec.key.clone(), listing)].into(),
                scrapes: scrape.iter().cloned().collect(),
                ..Inputs::default()
            };

            let length = Seconds::literal(60);
            let of_load =
                Horizon { window: length, stale_after: length, detail: RecordDetail::Load };
            let mut all = recorder.observe(at(second), &inputs, |_| of_load);
            let Observation { replicas, .. } = all.remove(&spec.key).unwrap();
            if let Some(scrape) = &scrape {
                adapters.take(scrape);
            }

            found = adapters.observe(at(second), &replicas, horizon);
        }

        found
    }

    #[test]
    fn a_replica_without_requests_serves_nothing_whatever_its_list_says() {
        let found = after(&[Some((0.0, 0.0, &["a"], &[], 3_600))]);
        assert_eq!(found.replicas[0].known, Ok(()));
        assert_eq!(found.adapters, BTreeMap::new());
        assert_eq!(found.replicas[0].slots, Slots::new(2), "this does not change");
    }

    #[test]
    fn a_replica_with_requests_and_no_list_or_an_old_one_is_unknown() {
        assert_eq!(after(&[None]).replicas[0].known, Err(Some(Unlisted::Absent)));
        let old = after(&[Some((1.0, 0.0, &["a"], &[], 90))]);
        assert!(matches!(old.replicas[0].known, Err(Some(Unlisted::Stale(_)))));
        // Two processes have added their times up.
        let sum = after(&[Some((1.0, 0.0, &["a"], &[], -1_000_000))]);
        assert!(matches!(sum.replicas[0].known, Err(Some(Unlisted::Unusable(_)))));
    }

    #[test]
    fn those_that_were_used_last_are_loaded() {
        let runs: [&[&str]; 3] = [&["a", "b"], &["c"], &["b"]];
        let found = after(&runs.map(|names| Some((1.0, 0.0, names, &[][..], 0))));
        assert_eq!(found.replicas[0].loaded, names(&["b", "c"]));
        assert_eq!(found.replicas[0].running, names(&["b"]));
        assert_eq!(found.adapters.len(), 3, "a has had a request lately");
    }

    #[test]
    fn an_adapter_that_only_waits_is_not_used() {
        let pages: [Page<'_>; 3] =
            [(1.0, 0.0, &["a"], &[], 0), (1.0, 0.0, &["b"], &[], 0), (1.0, 1.0, &["c"], &["a"], 0)];
        assert_eq!(after(&pages.map(Some)).replicas[0].loaded, names(&["b", "c"]));
    }

    #[test]
    fn an_adapter_starves_when_it_waits_for_a_slot_for_a_whole_window() {
        let page: Option<Page<'_>> = Some((2.0, 1.0, &["a", "b"], &["c"], 0));
        for (ticks, starved) in [(4, [0, 0]), (5, [0, 1])] {
            let found = after(&vec![page; ticks]);
            let names = ["a", "c"].map(|name| ModelName::new(name).unwrap());
            assert_eq!(names.map(|name| found.adapters[&name].starved.count()), starved);
        }
    }

    #[test]
    fn the_last_list_of_a_silent_replica_does_not_show_that_an_adapter_starves() {
        let page: Option<Page<'_>> = Some((2.0, 1.0, &["a", "b"], &["c"], 0));
        let c = ModelName::new("c").unwrap();
        // Its data is stale after a minute.
        for (silence, starved) in [(15, 1), (61, 0)] {
            let found = after_silence(&[page; 3], silence);
            assert_eq!(found.adapters[&c].starved.count(), starved, "{silence} s");
        }
    }

    #[test]
    fn one_that_is_on_no_list_while_requests_wait_for_slots_starves() {
        let first: Option<Page<'_>> = Some((2.0, 1.0, &["a", "c"], &[], 0));
        let then: Option<Page<'_>> = Some((2.0, 1.0, &["a", "b"], &[], 0));
        let found = after(&[first, then, then, then, then]);
        let c = found.adapters[&ModelName::new("c").unwrap()];
        assert_eq!((c.hosts.count(), c.starved.count()), (1, 1));

        let calm: Option<Page<'_>> = Some((2.0, 0.0, &["a", "b"], &[], 0));
        let found = after(&[first, calm, calm, calm, calm]);
        assert_eq!(found.adapters[&ModelName::new("c").unwrap()].starved.count(), 0);
    }
}
