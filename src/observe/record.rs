//! The record of every replica: scrapes in, observations out.
//!
//! A [`Recorder`] holds the windows of each replica's series, and puts the ranks of one replica
//! together by the rule that fits each family: requests are added up; KV usage is a mean where it
//! measures load and a maximum where it guards against a hot spot. A replica is forgotten when it
//! is no longer listed, so a pod that is replaced takes its windows with it.

use std::collections::{BTreeMap, BTreeSet};

use jiff::{SignedDuration, Timestamp};

use crate::fleet::{Bounds, ReplicaKey, VariantKey, VariantSpec};
use crate::observe::histogram::{Histogram, Life};
use crate::observe::window::{Counter, Distribution, Gauge, Increase};
use crate::observe::{
    FinishedReading, Freshness, GaugeSummary, Inputs, Listing, Observation, RankReading, Reading,
    ReplicaObservation, Scale, ScaleState, Scrape, ScrapeFailure,
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
    measured: BTreeSet<ReplicaKey>,
    since: Timestamp,
}

#[derive(Clone, Debug, Default)]
struct Record {
    last_page: Option<Timestamp>,
    last_failure: Option<ScrapeFailure>,
    refused_since: Option<Timestamp>,
    started: Option<Timestamp>,
    asleep: bool,
    kv_mean: Gauge,
    kv_hottest: Gauge,
    waiting: Gauge,
    waiting_hottest: Gauge,
    running: Gauge,
    in_flight: Gauge,
    http_success: Counter,
    rejected: Counter,
    ranks: BTreeMap<u32, RankRecord>,
}

#[derive(Clone, Debug, Default)]
struct RankRecord {
    prompt_tokens: Counter,
    generation_tokens: Counter,
    finished: [Counter; 5],
    asked: Counter,
    ttft: Distribution,
    itl: Distribution,
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
        let listed: BTreeSet<&ReplicaKey> =
            inputs.listings.values().flat_map(|listing| &listing.replicas).collect();
        self.replicas.retain(|key, _| listed.contains(key));
        self.settled.retain(|key, _| inputs.fleet.get(key).is_some());
        let window = span(horizon.window);
        for Scrape { replica, at, outcome } in &inputs.scrapes {
            if !listed.contains(replica) {
                continue;
            }
            let record = self.replicas.entry(replica.clone()).or_default();
            match outcome {
                Ok(reading) => record.take(*at, reading, window),
                Err(failure) => record.fail(*at, *failure),
            }
        }
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
        let look = |key: &&ReplicaKey| {
            let record = self.replicas.get(key).unwrap_or(&never);
            let unready = listing.is_some_and(|listing| listing.unready.contains(key));
            ReplicaObservation { unready, ..record.observe(now, key, horizon, gauges) }
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
        let measured: BTreeSet<ReplicaKey> = replicas
            .iter()
            .filter(|replica| replica.load().is_some())
            .map(|replica| replica.replica.clone())
            .collect();
        if measured.is_empty() {
            self.settled.remove(variant);
            return None;
        }
        let settled = self
            .settled
            .entry(variant.clone())
            .or_insert_with(|| Settled { measured: measured.clone(), since: now });
        // A clock that went back would otherwise stretch the wait by the size of the jump.
        if settled.measured != measured || settled.since > now {
            *settled = Settled { measured, since: now };
        }
        Some(settled.since)
    }
}

// === impl Record ===

impl Record {
    fn take(&mut self, at: Timestamp, reading: &Reading, window: SignedDuration) {
        let life = Life::between(self.started, reading.started);
        self.last_page = Some(at);
        self.last_failure = None;
        self.refused_since = None;
        self.started = reading.started.or(self.started);
        self.asleep = reading.ranks.iter().any(|rank| rank.asleep == Some(true));
        self.take_gauges(at, &reading.ranks, window);
        push(&mut self.http_success, at, reading.http.success, life, window);
        push(&mut self.rejected, at, reading.rejected, life, window);
        for rank in &reading.ranks {
            self.ranks.entry(rank.rank).or_default().take(at, rank, life, window);
        }
    }

    /// Puts the ranks' gauges together at this instant. Where one rank does not report a gauge,
    /// the replica does not: a sum with a part missing would look like less load.
    fn take_gauges(&mut self, at: Timestamp, ranks: &[RankReading], window: SignedDuration) {
        let kv = all(ranks, |rank| rank.kv_usage.map(Fraction::fraction));
        let waiting = all(ranks, |rank| rank.waiting.map(Requests::requests));
        let running = all(ranks, |rank| rank.running.map(Requests::requests));
        if let Some(kv) = &kv {
            self.kv_mean.push(at, kv.iter().sum::<f64>() / kv.len() as f64, window);
            self.kv_hottest.push(at, largest(kv), window);
        }
        if let Some(waiting) = &waiting {
            self.waiting.push(at, waiting.iter().sum(), window);
            self.waiting_hottest.push(at, largest(waiting), window);
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
            | ScrapeFailure::WrongModel => None,
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

    fn freshness(&self, now: Timestamp, horizon: Horizon) -> Freshness {
        let Some(last) = self.last_page else {
            return Freshness::Never { why: self.last_failure };
        };
        // A page from the future means that the clock went back; nothing says how old it is, but
        // it is not old.
        let age = Seconds::from_span(now.duration_since(last)).unwrap_or(Seconds::ZERO);
        if age <= horizon.stale_after {
            Freshness::Fresh { age }
        } else {
            Freshness::Stale { age, why: self.last_failure }
        }
    }

    fn observe(
        &self,
        now: Timestamp,
        key: &ReplicaKey,
        horizon: Horizon,
        gauges: Seconds,
    ) -> ReplicaObservation {
        let window = span(horizon.window);
        let seen = Horizon { window: gauges, ..horizon };
        let completions = self.finished(now, window);
        ReplicaObservation {
            replica: key.clone(),
            freshness: self.freshness(now, horizon),
            kv_usage: summary(&self.kv_mean, now, seen, Fraction::new),
            kv_hottest: summary(&self.kv_hottest, now, seen, Fraction::new),
            waiting: summary(&self.waiting, now, seen, Requests::new),
            waiting_hottest: summary(&self.waiting_hottest, now, seen, Requests::new),
            running: summary(&self.running, now, seen, Requests::new),
            arrivals: self.arrivals(now, window, completions),
            completions: completions.and_then(request_rate),
            prompt_rate: self.token_rate(now, window, |rank| &rank.prompt_tokens),
            generation_rate: self.token_rate(now, window, |rank| &rank.generation_tokens),
            ttft_mean: self.mean(now, window, |rank| &rank.ttft),
            ttft: self.ttft(),
            itl_mean: self.mean(now, window, |rank| &rank.itl),
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
    fn mean(
        &self,
        now: Timestamp,
        window: SignedDuration,
        distribution: impl Fn(&RankRecord) -> &Distribution,
    ) -> Option<Seconds> {
        let (mut sum, mut count) = (0.0, 0.0);
        for rank in self.ranks.values() {
            if let Some((rank_sum, rank_count)) = distribution(rank).increase(now, window) {
                sum += rank_sum;
                count += rank_count;
            }
        }
        if count > 0.0 { Seconds::new(sum / count) } else { None }
    }
}

// === impl RankRecord ===

impl RankRecord {
    fn take(&mut self, at: Timestamp, rank: &RankReading, life: Life, window: SignedDuration) {
        push_tokens(&mut self.prompt_tokens, at, rank.prompt_tokens, life, window);
        push_tokens(&mut self.generation_tokens, at, rank.generation_tokens, life, window);
        let FinishedReading { stop, length, abort, error, other } = rank.finished;
        for (counter, value) in self.finished.iter_mut().zip([stop, length, abort, error, other]) {
            push(counter, at, value, life, window);
        }
        if let Some(asked) = &rank.completions_asked {
            self.asked.push(at, asked.count, life, window);
        }
        if let Some(ttft) = &rank.ttft {
            self.ttft.push(at, ttft, life, window);
        }
        if let Some(itl) = &rank.itl {
            self.itl.push(at, itl, life, window);
        }
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

fn largest(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// The sum of increases, over the longest of their times.
fn added(increases: impl Iterator<Item = Increase>) -> Option<Increase> {
    increases
        .reduce(|a, b| Increase { amount: a.amount + b.amount, elapsed: a.elapsed.max(b.elapsed) })
}

fn request_rate(grown: Increase) -> Option<RequestRate> {
    Requests::new(grown.amount)?.per(grown.elapsed)
}

fn push(
    counter: &mut Counter,
    at: Timestamp,
    value: Option<Requests>,
    life: Life,
    window: SignedDuration,
) {
    if let Some(value) = value {
        counter.push(at, value.requests(), life, window);
    }
}

fn push_tokens(
    counter: &mut Counter,
    at: Timestamp,
    value: Option<Tokens>,
    life: Life,
    window: SignedDuration,
) {
    if let Some(value) = value {
        counter.push(at, value.tokens(), life, window);
    }
}

fn summary<Q>(
    gauge: &Gauge,
    now: Timestamp,
    horizon: Horizon,
    quantity: impl Fn(f64) -> Option<Q>,
) -> Option<GaugeSummary<Q>> {
    let (last, age) = gauge.last(now)?;
    if age > horizon.stale_after {
        return None;
    }
    let (mean, peak) = gauge.mean_and_peak(now, span(horizon.window))?;
    Some(GaugeSummary { last: quantity(last)?, mean: quantity(mean)?, peak: quantity(peak)?, age })
}
