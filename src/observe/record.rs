//! The record of every replica: scrapes in, observations out.
//!
//! A [`Recorder`] holds the windows of each replica's series, and puts the ranks of one replica
//! together by the rule that fits each family: requests are added up; KV usage is a mean where it
//! measures load and a maximum where it guards against a hot spot. A replica is forgotten when it
//! is no longer listed, so a pod that is replaced takes its windows with it.

mod ranks;
mod work;

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};

use crate::fleet::{Bounds, ReplicaKey, VariantKey, VariantSpec};
use crate::observe::histogram::{Histogram, Life};
use crate::observe::record::ranks::{RankGauges, RankRecord, push, summary};
use crate::observe::record::work::WorkRecord;
use crate::observe::stride::{Odometer, Stride};
use crate::observe::window::{Counter, Gauge, Increase};
use crate::observe::{
    Freshness, Inputs, Listing, Observation, RankReading, Reading, ReplicaObservation, Scale,
    ScaleState, Scrape, ScrapeFailure, Work,
};
use crate::units::{Fraction, Replicas, RequestRate, Requests, Seconds, TokenRate, Tokens};

/// How long a listed target must refuse connections until it counts as stopped rather than lost.
/// Only where no orchestrator tells the two apart. An engine that starts again refuses connections
/// for one to four minutes, so five minutes of refusal are no restart.
const STOPPED_AFTER: SignedDuration = SignedDuration::from_mins(5);

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

/// The moment and the lengths of time with which records are looked at.
struct View {
    now: Timestamp,
    window: SignedDuration,
    /// The part of the window over which gauges are taken.
    gauges: SignedDuration,
    stale_after: Seconds,
}

#[derive(Clone, Debug, Default)]
struct Record {
    last_page: Option<Timestamp>,
    last_failure: Option<ScrapeFailure>,
    refused_since: Option<Timestamp>,
    started: Option<Timestamp>,
    asleep: bool,
    kv: RankGauges,
    waiting: RankGauges,
    running: Gauge,
    in_flight: Gauge,
    http_success: Counter,
    rejected: Counter,
    ranks: BTreeMap<u32, RankRecord>,
    work: Option<Box<WorkRecord>>,
    odometer: Option<Box<Odometer>>,
    /// Since the last pages were taken.
    strides: Vec<Stride>,
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
        self.replicas.retain(|key, record| {
            record.strides.clear();
            known.find(key)
        });
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

// === impl View ===

impl View {
    fn new(now: Timestamp, horizon: Horizon, gauges: Seconds) -> Self {
        let Horizon { window, stale_after, detail: _ } = horizon;
        Self { now, window: span(window), gauges: span(gauges), stale_after }
    }
}

// === impl Record ===

impl Record {
    fn take_all(&mut self, scrapes: &[&Scrape], horizon: Horizon) {
        for Scrape { replica: _, at, outcome } in scrapes {
            match outcome {
                Ok(reading) => self.take(*at, reading, horizon),
                Err(failure) => self.fail(*at, *failure),
            }
        }
    }

    fn take(&mut self, at: Timestamp, reading: &Reading, horizon: Horizon) {
        let window = span(horizon.window);
        let life = Life::between(self.started, reading.started);
        self.last_page = Some(at);
        self.last_failure = None;
        self.refused_since = None;
        self.started = reading.started.or(self.started);
        self.asleep = reading.ranks.iter().any(|rank| rank.asleep == Some(true));
        self.take_gauges(at, &reading.ranks, window);
        push(&mut self.http_success, at, reading.http.success, life, window);
        push(&mut self.rejected, at, reading.rejected, life, window);
        // A rank that is gone takes its windows with it, as a replica does.
        self.ranks.retain(|known, _| reading.ranks.iter().any(|rank| rank.rank == *known));
        for rank in &reading.ranks {
            self.ranks.entry(rank.rank).or_default().take(at, rank, life, window);
        }
        match horizon.detail {
            Detail::Load => (self.work, self.odometer) = (None, None),
            Detail::Work => {
                let work = self.work.get_or_insert_default();
                work.take(at, &reading.ranks, life, window);
                self.strides.extend(self.odometer.get_or_insert_default().take(at, reading));
            }
        }
    }

    /// Puts the ranks' gauges together at this instant. Where one rank does not report a gauge,
    /// the replica does not: a sum with a part missing would look like less load.
    fn take_gauges(&mut self, at: Timestamp, ranks: &[RankReading], window: SignedDuration) {
        let kv = all(ranks, |rank| rank.kv_usage.map(Fraction::fraction));
        let waiting = all(ranks, |rank| rank.waiting.map(Requests::requests));
        let running = all(ranks, |rank| rank.running.map(Requests::requests));
        if let Some(kv) = &kv {
            let mean = kv.iter().sum::<f64>() / kv.len() as f64;
            self.kv.push(at, mean, kv, window);
        }
        if let Some(waiting) = &waiting {
            self.waiting.push(at, waiting.iter().sum(), waiting, window);
        }
        if let Some(running) = &running {
            self.running.push(at, running.iter().sum(), window);
        }
        if let (Some(waiting), Some(running)) = (&waiting, &running) {
            let in_flight = waiting.iter().sum::<f64>() + running.iter().sum::<f64>();
            self.in_flight.push(at, in_flight, window);
        }
    }

    fn fail(&mut self, at: Timestamp, failure: ScrapeFailure) {
        self.last_failure = Some(failure);
        self.refused_since = match failure {
            ScrapeFailure::Refused => self.refused_since.or(Some(at)),
            ScrapeFailure::Timeout
            | ScrapeFailure::Connection
            | ScrapeFailure::Status
            | ScrapeFailure::TooLarge
            | ScrapeFailure::Truncated
            | ScrapeFailure::Malformed
            | ScrapeFailure::UnknownEngine
            | ScrapeFailure::WrongModel
            | ScrapeFailure::Down => None,
        };
    }

    /// Whether a target counts as a replica where nothing but its answers tells: something is
    /// there unless the connection is refused, and what has answered is only gone once it has
    /// refused for long.
    fn exists(&self, now: Timestamp) -> bool {
        match (self.refused_since, self.last_page) {
            (None, None) => self.last_failure.is_some(),
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(since), Some(_)) => now.duration_since(since) < STOPPED_AFTER,
        }
    }

    fn freshness(&self, view: &View) -> Freshness {
        let Some(last) = self.last_page else {
            return Freshness::Never { why: self.last_failure };
        };
        // A page from the future means that the clock went back; nothing says how old it is, but
        // it is not old.
        let age = Seconds::from_span(view.now.duration_since(last)).unwrap_or(Seconds::ZERO);
        if age <= view.stale_after {
            Freshness::Fresh { age }
        } else {
            Freshness::Stale { age, why: self.last_failure }
        }
    }

    fn observe(&self, view: &View, key: &ReplicaKey) -> ReplicaObservation {
        let View { now, window, .. } = *view;
        let completions = self.finished(now, window);
        let (kv_usage, kv_hottest) = self.kv.summaries(view, Fraction::new);
        let (waiting, waiting_hottest) = self.waiting.summaries(view, Requests::new);
        ReplicaObservation {
            replica: key.clone(),
            freshness: self.freshness(view),
            kv_usage,
            kv_hottest,
            waiting,
            waiting_hottest,
            running: summary(&self.running, view, Requests::new),
            arrivals: self.arrivals(now, window, completions),
            completions: completions.and_then(request_rate),
            prompt_rate: self.token_rate(now, window, |rank| &rank.prompt_tokens),
            generation_rate: self.token_rate(now, window, |rank| &rank.generation_tokens),
            ttft_mean: self.mean(|rank| rank.ttft.increase(now, window)),
            ttft: self.ttft(),
            itl_mean: self.mean(|rank| rank.itl.increase(now, window)),
            work: self.work.as_ref().map(|work| {
                let seen = work.look(now, window);
                Work { started: self.started, ..seen }
            }),
            strides: self.strides.clone(),
            asleep: self.asleep,
            unready: false,
            stopped: self
                .refused_since
                .is_some_and(|since| now.duration_since(since) >= STOPPED_AFTER),
        }
    }

    /// Requests finished, over all ranks and reasons.
    fn finished(&self, now: Timestamp, window: SignedDuration) -> Option<Increase> {
        added(
            self.ranks
                .values()
                .flat_map(|rank| &rank.finished)
                .filter_map(|counter| counter.increase(now, window)),
        )
    }

    /// Requests that arrived: those that left, and the growth of those in flight.
    ///
    /// `arrivals = (left + in flight at the end - in flight at the start) / elapsed`
    ///
    /// A client that hangs up is not among the finished requests of any vLLM up to 0.33, but the
    /// HTTP server counts its answer. So `left` is what finished, and in addition what was answered
    /// without finishing: the answers beyond the finished requests, which the histogram of `n`
    /// counts once where a request for two completions finishes twice. Requests that admission
    /// control turns away have arrived as well.
    ///
    /// # Source
    ///
    /// Conservation of requests over the window; what each counter counts was found in recordings
    /// of vLLM 0.11 and 0.32.
    fn arrivals(
        &self,
        now: Timestamp,
        window: SignedDuration,
        finished: Option<Increase>,
    ) -> Option<RequestRate> {
        let finished = finished?;
        let (first, last) = self.in_flight.ends(now, window)?;
        let answered = self.http_success.increase(now, window).map_or(0.0, |grown| grown.amount);
        let rejected = self.rejected.increase(now, window).map_or(0.0, |grown| grown.amount);
        let asked = self.ranks.values().filter_map(|rank| rank.asked.increase(now, window));
        let left = match added(asked) {
            Some(asked) => finished.amount + (answered - asked.amount).max(0.0),
            None => finished.amount.max(answered),
        };
        let amount = (left + last - first).max(0.0) + rejected;
        request_rate(Increase { amount, ..finished })
    }

    fn token_rate(
        &self,
        now: Timestamp,
        window: SignedDuration,
        counter: impl Fn(&RankRecord) -> &Counter,
    ) -> Option<TokenRate> {
        let grown =
            added(self.ranks.values().filter_map(|rank| counter(rank).increase(now, window)))?;
        Tokens::new(grown.amount)?.per(grown.elapsed)
    }

    /// The times to first token of all ranks in the window.
    fn ttft(&self) -> Option<Histogram> {
        let ranks = self.ranks.values().filter_map(|rank| rank.ttft.difference());
        ranks.reduce(|a, b| a.plus(&b))
    }

    /// The mean over all ranks: sums over counts, so that an idle rank does not weigh.
    fn mean(&self, increase: impl Fn(&RankRecord) -> Option<(f64, f64)>) -> Option<Seconds> {
        let (mut sum, mut count) = (0.0, 0.0);
        for (rank_sum, rank_count) in self.ranks.values().filter_map(increase) {
            sum += rank_sum;
            count += rank_count;
        }
        if count > 0.0 { Seconds::new(sum / count) } else { None }
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

/// The length of time as a span; lengths that a span cannot hold are longer than any window.
fn span(time: Seconds) -> SignedDuration {
    SignedDuration::try_from_secs_f64(time.seconds()).unwrap_or(SignedDuration::MAX)
}

/// The values of all ranks, or `None` when there are no ranks or one does not report.
fn all(ranks: &[RankReading], value: impl Fn(&RankReading) -> Option<f64>) -> Option<Vec<f64>> {
    let values: Vec<f64> = ranks.iter().map(value).collect::<Option<_>>()?;
    (!values.is_empty()).then_some(values)
}

/// The sum of increases, over the longest of their times.
fn added(increases: impl Iterator<Item = Increase>) -> Option<Increase> {
    increases
        .reduce(|a, b| Increase { amount: a.amount + b.amount, elapsed: a.elapsed.max(b.elapsed) })
}

fn request_rate(grown: Increase) -> Option<RequestRate> {
    Requests::new(grown.amount)?.per(grown.elapsed)
}
