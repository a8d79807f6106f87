//! The record of one replica: its pages in, what they show together out.

use jiff::{SignedDuration, Timestamp};

use crate::fleet::ReplicaKey;
use crate::observe::histogram::{Histogram, Life};
use crate::observe::record::ranks::{Grown, RankRecord, column as rank_column, grow};
use crate::observe::record::work::WorkRecord;
use crate::observe::record::{Detail, Horizon};
use crate::observe::stride::{Gone, Odometer, Stride, arrived};
use crate::observe::window::{Columns, Counter, Increase, Page, Pane, Window, length, nanoseconds};
use crate::observe::{
    Freshness, GaugeSummary, RankReading, Reading, ReplicaObservation, Scrape, ScrapeFailure, Work,
};
use crate::units::{Fraction, RequestRate, Requests, Seconds, TokenRate, Tokens};

/// How long a listed target must refuse connections until it counts as stopped rather than lost.
/// Only where no orchestrator tells the two apart. An engine that starts again refuses connections
/// for one to four minutes, so five minutes of refusal are no restart.
const STOPPED_AFTER: SignedDuration = SignedDuration::from_mins(5);

/// Gauges of a replica's window, its ranks put together.
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

/// Gauges of the window of the rank that has the most: the first two of those above.
const HOTTEST: usize = 2;

/// The moment and the lengths of time with which records are looked at.
pub(crate) struct View {
    now: Timestamp,
    /// The same in nanoseconds since the epoch, as are the lengths of time.
    at: i64,
    window: i64,
    /// The part of the window over which gauges are taken.
    gauges: i64,
    stale_after: Seconds,
    detail: Detail,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    last_page: Option<Timestamp>,
    last_failure: Option<ScrapeFailure>,
    refused_since: Option<Timestamp>,
    started: Option<Timestamp>,
    asleep: bool,
    window: Window<{ gauge::ALL }, { counter::ALL }>,
    /// What the rank with the most says. With one rank, as nearly all replicas have, that is what
    /// all of them say, and only one is kept.
    hottest: Option<Box<Window<{ HOTTEST }, 0>>>,
    answered: Counter,
    rejected: Counter,
    /// In order of rank.
    ranks: Vec<RankRecord>,
    work: Option<Box<WorkRecord>>,
    odometer: Option<Box<Odometer>>,
    /// What was counted since pages were last taken.
    strides: Vec<Stride>,
}

/// What the ranks say of one gauge.
struct Gathered {
    sum: f64,
    largest: f64,
}

/// A gauge over a window, before it has a unit.
#[derive(Clone, Copy)]
struct Summary {
    last: f64,
    mean: f64,
    peak: f64,
    age: Seconds,
}

// === impl View ===

impl View {
    pub(crate) fn new(now: Timestamp, horizon: Horizon, gauges: Seconds) -> Self {
        let Horizon { window, stale_after, detail } = horizon;
        let (at, window, gauges) = (nanoseconds(now), span(window), span(gauges));
        Self { now, at, window, gauges, stale_after, detail }
    }
}

// === impl Record ===

impl Record {
    /// Forgets what the tick before has been told.
    pub(crate) fn begin_tick(&mut self) {
        self.strides.clear();
    }

    /// Takes in a page or what came in its place; `window` is in nanoseconds.
    pub(crate) fn take(&mut self, scrape: &Scrape, window: i64, detail: Detail) {
        match &scrape.outcome {
            Ok(reading) => self.read(scrape.at, reading, window, detail),
            Err(failure) => self.fail(scrape.at, *failure),
        }
    }

    fn read(&mut self, at: Timestamp, reading: &Reading, window: i64, detail: Detail) {
        let life = Life::between(self.started, reading.started);
        let page = Page { at: nanoseconds(at), life, window };
        self.last_page = Some(at);
        self.last_failure = None;
        self.refused_since = None;
        self.started = reading.started.or(self.started);
        self.asleep = reading.ranks.iter().any(|rank| rank.asleep == Some(true));
        self.take_together(&page, reading);
        // A rank that is gone takes its windows with it, as a replica does.
        self.ranks.retain(|known| reading.ranks.iter().any(|rank| rank.rank == known.rank));
        for rank in &reading.ranks {
            let index = self.ranks.partition_point(|known| known.rank < rank.rank);
            if self.ranks.get(index).is_none_or(|known| known.rank != rank.rank) {
                self.ranks.insert(index, RankRecord::new(rank.rank));
            }
            self.ranks[index].take(&page, rank);
        }
        match detail {
            Detail::Load => (self.work, self.odometer) = (None, None),
            Detail::Work => {
                let work = self.work.get_or_insert_default();
                work.take(&page, &reading.ranks);
                self.strides.extend(self.odometer.get_or_insert_default().take(at, reading));
            }
        }
    }

    /// Puts the ranks' gauges together at this instant. Where one rank does not report a gauge,
    /// the replica does not: a sum with a part missing would look like less load.
    fn take_together(&mut self, page: &Page, reading: &Reading) {
        let ranks = &reading.ranks;
        let kv = Gathered::of(ranks, |rank| rank.kv_usage.map(Fraction::fraction));
        let waiting = Gathered::of(ranks, |rank| rank.waiting.map(Requests::requests));
        let running = Gathered::of(ranks, |rank| rank.running.map(Requests::requests));
        if ranks.len() > 1 {
            // Up to this page there was one rank, or none.
            let together = [gauge::KV, gauge::WAITING];
            self.hottest.get_or_insert_with(|| Box::new(self.window.of_gauges(together)));
        }
        if let Some(hottest) = &mut self.hottest {
            let largest = |all: Option<&Gathered>| all.map(|all| all.largest);
            hottest.push(page, [largest(kv.as_ref()), largest(waiting.as_ref())], []);
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
            | ScrapeFailure::Down => None,
        };
    }

    /// Whether a target counts as a replica where nothing but its answers tells: something is
    /// there unless the connection is refused, and what has answered is only gone once it has
    /// refused for long.
    pub(crate) fn exists(&self, now: Timestamp) -> bool {
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

    pub(crate) fn observe(&self, view: &View, key: &ReplicaKey) -> ReplicaObservation {
        let View { now, at, window, gauges, .. } = *view;
        let pane = self.window.pane(at, window);
        let recent = if gauges == window { pane } else { self.window.pane(at, gauges) };
        let [kv, waiting, running] = summaries(&recent, view);
        let kv_usage = kv.and_then(|kv| kv.of(Fraction::new));
        let waiting = waiting.and_then(|waiting| waiting.of(Requests::new));
        let (kv_hottest, waiting_hottest) = match &self.hottest {
            None => (kv_usage, waiting),
            Some(hottest) => {
                let [kv, waiting] = summaries(&hottest.pane(at, gauges), view);
                let waiting = waiting.and_then(|waiting| waiting.of(Requests::new));
                (kv.and_then(|kv| kv.of(Fraction::new)), waiting)
            }
        };
        let grown = self.grown(view);
        let mean = |columns: Columns| Seconds::new(columns.mean(&grown)?);
        ReplicaObservation {
            replica: key.clone(),
            freshness: self.freshness(view),
            kv_usage,
            kv_hottest,
            waiting,
            waiting_hottest,
            running: running.and_then(|running| running.of(Requests::new)),
            arrivals: arrivals(&pane, &grown),
            completions: grown[rank_column::FINISHED].and_then(request_rate),
            prompt_rate: grown[rank_column::PROMPT_TOKENS].and_then(token_rate),
            generation_rate: grown[rank_column::GENERATION_TOKENS].and_then(token_rate),
            ttft_mean: mean(rank_column::TTFT),
            itl_mean: mean(rank_column::ITL),
            strides: match view.detail {
                Detail::Work => self.strides.clone(),
                Detail::Load => Vec::new(),
            },
            work: self.work.as_ref().map(|work| {
                let seen = work.look(at, window);
                Work { started: self.started, ..seen }
            }),
            asleep: self.asleep,
            unready: false,
            stopped: self
                .refused_since
                .is_some_and(|since| now.duration_since(since) >= STOPPED_AFTER),
        }
    }

    /// By how much what its ranks count has grown, all of them together.
    fn grown(&self, view: &View) -> Grown {
        let View { at, window, .. } = *view;
        let grown = |rank: &RankRecord| rank.window.pane(at, window).increases();
        match self.ranks.as_slice() {
            [rank] => grown(rank),
            ranks => Increase::added(ranks.iter().map(grown)),
        }
    }

    /// Adds the times to first token of all ranks in the window to `all`.
    pub(crate) fn add_ttft(&self, all: &mut Option<Histogram>) {
        self.ranks.iter().for_each(|rank| rank.ttft_buckets.add_to(all));
    }
}

// === impl Gathered ===

impl Gathered {
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

// === impl Summary ===

impl Summary {
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

/// The length of time in nanoseconds; lengths that these cannot hold are longer than any window.
pub(crate) fn span(time: Seconds) -> i64 {
    length(SignedDuration::try_from_secs_f64(time.seconds()).unwrap_or(SignedDuration::MAX))
}

/// Requests that arrived in the window, a second; [`arrived`] says how they are counted.
fn arrivals(
    pane: &Pane<'_, { gauge::ALL }, { counter::ALL }>,
    grown: &Grown,
) -> Option<RequestRate> {
    let finished = grown[rank_column::FINISHED]?;
    let (first, last) = pane.ends([gauge::WAITING, gauge::RUNNING])?;
    let increases = pane.increases();
    let amount = |column: usize| increases[column].map_or(0.0, |grown| grown.amount);
    let gone = Gone {
        finished: finished.amount,
        asked: grown[rank_column::ASKED].map(|grown| grown.amount),
        answered: amount(counter::ANSWERED),
        rejected: amount(counter::REJECTED),
    };
    request_rate(Increase { amount: arrived(gone, last - first), ..finished })
}

fn request_rate(grown: Increase) -> Option<RequestRate> {
    Requests::new(grown.amount)?.per(grown.elapsed)
}

fn token_rate(grown: Increase) -> Option<TokenRate> {
    Tokens::new(grown.amount)?.per(grown.elapsed)
}

/// Summaries of the gauges; `None` for what is too old to act on.
fn summaries<const G: usize, const C: usize>(
    pane: &Pane<'_, G, C>,
    view: &View,
) -> [Option<Summary>; G] {
    let seen = pane.means_and_peaks();
    std::array::from_fn(|column| {
        let (last, age) = pane.last(view.at, column)?;
        let (mean, peak) = seen[column].filter(|_| age <= view.stale_after)?;
        Some(Summary { last, mean, peak, age })
    })
}
