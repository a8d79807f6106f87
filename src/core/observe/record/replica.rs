//! The record of one replica: its scrapes in, its observation out.

use jiff::{SignedDuration, Timestamp};

use crate::fleet::ReplicaKey;
use crate::observe::histogram::{Histogram, ProcessLife};
use crate::observe::record::horizon::{Horizon, RecordDetail};
use crate::observe::record::ranks::{CounterIncreases, RankCounters, column as rank_column, grow};
use crate::observe::record::work::WorkRecord;
use crate::observe::stride::{DepartedRequests, IntervalDelta, Odometer, arrived};
use crate::observe::window::{
    Counter, Increase, Pane, ScrapeTime, ScrapeWindow, length, nanoseconds,
};
use crate::observe::{
    Freshness, GaugeSummary, RankReading, Reading, ReplicaObservation, ReplicaWork, Scrape,
    ScrapeFailure,
};
use crate::units::{Fraction, RequestRate, Requests, Seconds, TokenRate, Tokens};

/// The time for which a listed target must refuse connections to count as stopped rather than lost.
/// Used only if no orchestrator distinguishes the two. A restarting engine refuses connections for
/// one to four minutes, so five minutes of refusal are not a restart.
const STOPPED_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Gauges of a replica's window, its ranks combined.
mod gauge {
    pub(super) const KV: usize = 0;
    pub(super) const WAITING: usize = 1;
    pub(super) const RUNNING: usize = 2;
    pub(super) const ALL: usize = 3;
}

/// Counters of a replica's window.
mod counter {
    pub(super) const ANSWERED: usize = 0;
    pub(super) const REJECTED: usize = 1;
    pub(super) const ALL: usize = 2;
}

/// Gauges that also have a window of the largest value over the ranks: the first two of those
/// above.
const HOTTEST: usize = 2;

/// The instant and the lengths of time of an observation.
pub(crate) struct ObservationTimes {
    now: Timestamp,
    /// The instant in nanoseconds since the epoch. The lengths are in nanoseconds too.
    at: i64,
    window: i64,
    /// The part of the window over which gauges are taken.
    gauges: i64,
    stale_after: Seconds,
    detail: RecordDetail,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct ReplicaRecord {
    last_page: Option<Timestamp>,
    last_failure: Option<ScrapeFailure>,
    refused_since: Option<Timestamp>,
    started: Option<Timestamp>,
    asleep: bool,
    window: ScrapeWindow<{ gauge::ALL }, { counter::ALL }>,
    /// The largest value over the ranks, for the first gauges. With one rank, as nearly all
    /// replicas have, it equals the combined gauges, and only one window is kept.
    hottest: Option<Box<ScrapeWindow<{ HOTTEST }, 0>>>,
    answered: Counter,
    rejected: Counter,
    /// In order of rank.
    ranks: Vec<RankCounters>,
    work: Option<Box<WorkRecord>>,
    odometer: Option<Box<Odometer>>,
    /// The strides since the previous tick.
    strides: Vec<IntervalDelta>,
}

/// One gauge over all ranks.
struct CombinedGauge {
    sum: f64,
    largest: f64,
}

/// A gauge over a window, before it has a unit.
#[derive(Clone, Copy)]
struct UnitlessGauge {
    last: f64,
    mean: f64,
    peak: f64,
    age: Seconds,
}

// === impl ObservationTimes ===

impl ObservationTimes {
    pub(crate) fn new(now: Timestamp, horizon: Horizon, gauges: Seconds) -> Self {
        let Horizon { window, stale_after, detail } = horizon;
        Self {
            now,
            at: nanoseconds(now),
            window: span(window),
            gauges: span(gauges),
            stale_after,
            detail,
        }
    }
}

// === impl ReplicaRecord ===

impl ReplicaRecord {
    /// Forgets the strides that the previous tick has used.
    pub(crate) fn begin_tick(&mut self) {
        self.strides.clear();
    }

    /// Records a reading or a failure; `window` is in nanoseconds.
    pub(crate) fn take(&mut self, scrape: &Scrape, window: i64, detail: RecordDetail) {
        match &scrape.outcome {
            Ok(reading) => self.read(scrape.at, reading, window, detail),
            Err(failure) => self.fail(scrape.at, *failure),
        }
    }

    fn read(&mut self, at: Timestamp, reading: &Reading, window: i64, detail: RecordDetail) {
        let life = ProcessLife::between(self.started, reading.started);
        let page = ScrapeTime { at: nanoseconds(at), life, window };
        self.last_page = Some(at);
        self.last_failure = None;
        self.refused_since = None;
        self.started = reading.started.or(self.started);
        self.asleep = reading.ranks.iter().any(|rank| rank.asleep == Some(true));
        self.take_together(&page, reading);
        // A rank that is gone takes its windows with it, as a replica does.
        self.ranks.retain(|known| reading.ranks.iter().any(|rank| rank.rank == known.rank));
        // Without spare capacity: nearly all replicas have one rank, which never changes.
        self.ranks.reserve_exact(reading.ranks.len().saturating_sub(self.ranks.len()));
        for rank in &reading.ranks {
            let index = self.ranks.partition_point(|known| known.rank < rank.rank);
            if self.ranks.get(index).is_none_or(|known| known.rank != rank.rank) {
                self.ranks.insert(index, RankCounters::new(rank.rank));
            }
            self.ranks[index].take(&page, rank);
        }

        match detail {
            RecordDetail::Load => (self.work, self.odometer) = (None, None),
            RecordDetail::Work => {
                let work = self.work.get_or_insert_default();
                work.take(&page, &reading.ranks);
                if let Some(stride) = self.odometer.get_or_insert_default().take(at, reading) {
                    self.strides.reserve_exact(1);
                    self.strides.push(stride);
                }
            }
        }
    }

    /// Combines the ranks' gauges at this instant. If one rank does not report a gauge, the replica
    /// has no value for it. A sum with a part missing would look like less load.
    fn take_together(&mut self, page: &ScrapeTime, reading: &Reading) {
        let ranks = &reading.ranks;
        let kv = CombinedGauge::of(ranks, |rank| rank.kv_usage.map(Fraction::fraction));
        let waiting = CombinedGauge::of(ranks, |rank| rank.waiting.map(Requests::requests));
        let running = CombinedGauge::of(ranks, |rank| rank.running.map(Requests::requests));
        if ranks.len() > 1 {
            // Up to this scrape there was one rank, or none.
            let together = [gauge::KV, gauge::WAITING];
            self.hottest.get_or_insert_with(|| Box::new(self.window.of_gauges(together)));
        }

        if let Some(hottest) = &mut self.hottest {
            let largest = [&kv, &waiting].map(|all| all.as_ref().map(|it| it.largest));
            hottest.push(page, largest, []);
        }

        let mut gauges = [None; gauge::ALL];
        gauges[gauge::KV] = kv.map(|kv| kv.sum / ranks.len() as f64);
        gauges[gauge::WAITING] = waiting.map(|waiting| waiting.sum);
        gauges[gauge::RUNNING] = running.map(|running| running.sum);
        let mut growths = [None; counter::ALL];
        growths[counter::ANSWERED] = grow(&mut self.answered, page, reading.http.success);
        growths[counter::REJECTED] = grow(&mut self.rejected, page, reading.rejected);
        self.window.push(page, gauges, growths);
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
            | ScrapeFailure::Down
            | ScrapeFailure::Ambiguous => None,
        };
    }

    /// Returns true if a target counts as a replica when only its responses show that. A target
    /// exists unless it refuses connections. A target that has answered is gone only once it has
    /// refused for long.
    pub(crate) fn exists(&self, now: Timestamp) -> bool {
        match (self.refused_since, self.last_page) {
            (None, None) => self.last_failure.is_some(),
            (None, Some(_)) => true,
            (Some(_), None) => false,
            (Some(since), Some(_)) => now.duration_since(since) < STOPPED_AFTER,
        }
    }

    fn freshness(&self, view: &ObservationTimes) -> Freshness {
        let Some(last) = self.last_page else {
            return Freshness::Never { why: self.last_failure };
        };

        // A scrape from the future means that the clock went back. Its age is not known, but it is
        // not old.
        let age = Seconds::between(last, view.now);
        if age <= view.stale_after {
            Freshness::Fresh { age }
        } else {
            Freshness::Stale { age, why: self.last_failure }
        }
    }

    pub(crate) fn observe(
        &self,
        view: &ObservationTimes,
        key: &ReplicaKey,
        unready: bool,
    ) -> ReplicaObservation {
        let ObservationTimes { now, at, window, gauges, .. } = *view;
        let pane = self.window.pane(at, window);
        let recent = if gauges == window { pane } else { self.window.pane(at, gauges) };
        let [kv, waiting, running] = summaries(&recent, view);
        let kv_usage = kv.and_then(|kv| kv.of(Fraction::new));
        let queue = waiting.and_then(|waiting| waiting.of(Requests::new));
        let (kv_hottest, waiting_hottest) = match &self.hottest {
            None => (kv_usage, queue),
            Some(hottest) => {
                let [kv, waiting] = summaries(&hottest.pane(at, gauges), view);
                let longest = waiting.and_then(|waiting| waiting.of(Requests::new));
                (kv.and_then(|kv| kv.of(Fraction::new)), longest)
            }
        };

        let grown = self.grown(view);
        ReplicaObservation {
            replica: key.clone(),
            freshness: self.freshness(view),
            kv_usage,
            kv_hottest,
            waiting: queue,
            waiting_hottest,
            running: running.and_then(|running| running.of(Requests::new)),
            arrivals: arrivals(&pane, &grown),
            completions: grown[rank_column::FINISHED].and_then(request_rate),
            prompt_rate: grown[rank_column::PROMPT_TOKENS].and_then(token_rate),
            generation_rate: grown[rank_column::GENERATION_TOKENS].and_then(token_rate),
            ttft_mean: rank_column::TTFT.mean(&grown).and_then(Seconds::new),
            itl_mean: rank_column::ITL.mean(&grown).and_then(Seconds::new),
            strides: match view.detail {
                RecordDetail::Work => self.strides.clone(),
                RecordDetail::Load => Vec::new(),
            },
            work: self.work.as_ref().map(|work| {
                let seen = work.look(at, window);
                ReplicaWork { started: self.started, ..seen }
            }),
            asleep: self.asleep,
            unready,
            stopped: self
                .refused_since
                .is_some_and(|since| now.duration_since(since) >= STOPPED_AFTER),
        }
    }

    /// The growth of all ranks' counters, added up.
    fn grown(&self, view: &ObservationTimes) -> CounterIncreases {
        let ObservationTimes { at, window, .. } = *view;
        match self.ranks.as_slice() {
            [rank] => rank.grown(at, window),
            ranks => Increase::added(ranks.iter().map(|rank| rank.grown(at, window))),
        }
    }

    /// Adds the times to first token of all ranks in the window to `all`.
    pub(crate) fn add_ttft(&self, all: &mut Option<Histogram>) {
        self.ranks.iter().for_each(|rank| rank.ttft_buckets.add_to(all));
    }
}

// === impl CombinedGauge ===

impl CombinedGauge {
    /// The values of all ranks, or `None` when there are no ranks or one does not report.
    fn of(ranks: &[RankReading], value: impl Fn(&RankReading) -> Option<f64>) -> Option<Self> {
        let mut gathered = Self { sum: 0.0, largest: 0.0 };
        for rank in ranks {
            let value = value(rank)?;
            gathered.sum += value;
            gathered.largest = gathered.largest.max(value);
        }
        (!ranks.is_empty()).then_some(gathered)
    }
}

// === impl UnitlessGauge ===

impl UnitlessGauge {
    fn of<Q>(self, quantity: impl Fn(f64) -> Option<Q>) -> Option<GaugeSummary<Q>> {
        let Self { last, mean, peak, age } = self;
        Some(GaugeSummary {
            last: quantity(last)?,
            mean: quantity(mean)?,
            peak: quantity(peak)?,
            age,
        })
    }
}

// === helpers ===

/// The length of time in nanoseconds. Lengths that do not fit are longer than any window.
pub(crate) fn span(time: Seconds) -> i64 {
    length(SignedDuration::try_from_secs_f64(time.seconds()).unwrap_or(SignedDuration::MAX))
}

/// Requests that arrived in the window, per second. [`arrived`] documents the count.
fn arrivals(
    pane: &Pane<'_, { gauge::ALL }, { counter::ALL }>,
    grown: &CounterIncreases,
) -> Option<RequestRate> {
    let finished = grown[rank_column::FINISHED]?;
    let (first, last) = pane.ends([gauge::WAITING, gauge::RUNNING])?;
    let increases = pane.increases();
    let [answered, rejected] = [counter::ANSWERED, counter::REJECTED]
        .map(|column| increases[column].map_or(0.0, |grown| grown.amount));
    let gone = DepartedRequests {
        finished: finished.amount,
        asked: grown[rank_column::ASKED].map(|grown| grown.amount),
        answered,
        rejected,
    };

    request_rate(Increase { amount: arrived(gone, last - first), ..finished })
}

fn request_rate(grown: Increase) -> Option<RequestRate> {
    Requests::new(grown.amount)?.per(grown.elapsed)
}

fn token_rate(grown: Increase) -> Option<TokenRate> {
    Tokens::new(grown.amount)?.per(grown.elapsed)
}

/// Summaries of the gauges; `None` for values too old to act on.
fn summaries<const G: usize, const C: usize>(
    pane: &Pane<'_, G, C>,
    view: &ObservationTimes,
) -> [Option<UnitlessGauge>; G] {
    let seen = pane.means_and_peaks();
    std::array::from_fn(|column| {
        let (last, age) = pane.last(view.at, column)?;
        let (mean, peak) = seen[column].filter(|_| age <= view.stale_after)?;
        Some(UnitlessGauge { last, mean, peak, age })
    })
}
