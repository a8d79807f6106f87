//! Groups the series of two answers into one reading for each replica and instant.
//!
//! All samples of one scrape have the same time, to the millisecond. The samples of one replica at
//! one time are therefore its metrics at that time. They go through the same dialect that reads
//! /metrics responses. The reading is the one that Plimsoll's own scrape would have returned at
//! that instant.
//!
//! A database differs from a /metrics response in four ways:
//!
//! - **Labels.** The scraper has added the labels of `up`, and has renamed metric labels with the
//!   same names to `exported_…`. Both changes are undone.
//! - **Sources.** If two servers or two jobs scrape one replica, its values occur twice. Their
//!   labels differ in the added ones. The two are never combined. The source whose labels sort
//!   first counts, as long as it keeps up with the others. If their engines have started at
//!   different times, these are several engines, and none counts.
//! - **Completeness.** Databases with remote write show the series of one scrape one after the
//!   other. A group with fewer samples than the replica's last one waits until another answer shows
//!   it unchanged. If an answer is known to be incomplete, the group continues to wait, because the
//!   missing part is unknown.
//! - **Clocks.** A sample from the future shows that the clocks of server and daemon differ. The
//!   age of all of the replica's samples is then unknown, so none is used.

use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::collect::exposition::PageError;
use crate::collect::prometheus::decode::Point;
use crate::collect::prometheus::query::{MatchKind, UP};
use crate::collect::prometheus::selection::{LabelNames, SeriesSelection, VariantQuery};
use crate::collect::prometheus::series::{
    BufferedSeries, ScraperLabels, SeriesSource, is_engine, name, show_several_engines, sources,
    value_of,
};
use crate::collect::scrape::{ScrapeError, wrong_model};
use plimsoll_core::fleet::{ModelName, ReplicaKey, ReplicaName, VariantKey};
use plimsoll_core::observe::engine::{Label, ReadingBuilder, SampleError};
use plimsoll_core::observe::{Reading, ScrapeFailure};

/// The lag of the current source behind another source of the same replica, in milliseconds, above
/// which the other replaces it: two scrapes at the usual interval.
const LAG_MAX: i64 = 30_000;

/// The tolerated lead of a sample's time over the daemon's clock, in milliseconds. Clocks that NTP
/// synchronizes differ by far less.
const AHEAD_MAX: i64 = 5_000;

/// The maximum number of replicas that a label match may find for one variant. More indicate a
/// matcher that matches too much.
const INSTANCES_MAX: usize = 20_000;

/// Describes samples of several engines.
const AMBIGUOUS: &str = "several engines have these labels: their series show different starts of \
    the process. Select one's own cluster with prometheus.match";

/// The state of a replica from earlier answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct ReplicaProgress {
    /// The time of the last reading, in milliseconds.
    pub(crate) taken: Option<i64>,
    /// The number of samples in the last group.
    pub(crate) expected: Option<usize>,
    /// The number of samples in each waiting group.
    pub(crate) waiting: BTreeMap<i64, usize>,
    /// The labels that the current source has added.
    pub(crate) source: ScraperLabels,
    /// The time of the newest sample of any kind, in milliseconds.
    pub(crate) newest: Option<i64>,
    /// The last two intervals between readings, in milliseconds.
    pub(crate) intervals: [i64; 2],
}

/// The completeness of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// The server does not report missing data.
    Whole,
    /// The server reports missing data.
    Partial,
    /// The answer covers a past time, for which no sample can still arrive.
    Past,
}

/// One replica's metrics at one instant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReplicaScrape {
    /// The replica.
    pub(crate) replica: ReplicaKey,
    /// The time of the scrape.
    pub(crate) at: Timestamp,
    /// The reading, or the failure of the scrape.
    pub(crate) outcome: Result<Reading, ScrapeError>,
}

/// The result of grouping the answers for one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct AnswerGroups {
    /// Readings and failures, in order of time for each replica.
    pub(crate) taken: Vec<ReplicaScrape>,
    /// The current state of every replica that has series.
    pub(crate) replicas: BTreeMap<ReplicaKey, ReplicaProgress>,
    /// Replicas whose samples are from the future.
    pub(crate) ahead: Vec<ReplicaKey>,
    /// The series that two variants claim: an example of their replica, and their number.
    pub(crate) claimed: Option<(String, usize)>,
}

/// Groups the series of answers by replica and instant.
pub(crate) struct Grouping<'w, 'p> {
    labels: &'w LabelNames,
    listed: BTreeMap<(&'w [u8], &'w [u8]), Vec<&'w ReplicaKey>>,
    matched: Vec<&'w VariantQuery>,
    models: BTreeMap<&'w ReplicaKey, &'w [ModelName]>,
    models_of_matched: BTreeMap<&'w VariantKey, &'w [ModelName]>,
    instances: BTreeMap<(usize, Vec<u8>), ReplicaKey>,
    candidates: BTreeMap<ReplicaKey, ReplicaSeries<'p>>,
    claimed: Option<(String, usize)>,
    /// The labels of a series without the added ones; kept to reuse its memory for all series.
    page: Vec<Label<'p>>,
}

/// A replica whose series are being grouped.
#[derive(Default)]
struct ReplicaSeries<'p> {
    known: ReplicaProgress,
    series: Vec<BufferedSeries<'p>>,
    source: SeriesSource,
    groups: BTreeMap<i64, SampleGroup<'p>>,
    is_ahead: bool,
    is_ambiguous: bool,
}

/// The samples from one source for one replica at one instant.
#[derive(Default)]
struct SampleGroup<'p> {
    reader: ReadingBuilder<'p>,
    up: Option<f64>,
    /// The number of samples of any kind, which determines whether the group is complete.
    count: usize,
    samples: usize,
    has_engine: bool,
    error: Option<(Vec<u8>, SampleError)>,
}

// === impl Grouping ===

impl<'w, 'p> Grouping<'w, 'p> {
    /// Creates a grouping for the replicas of one kind, with their known state. The other kinds
    /// show which series several variants claim. `asked` are the variants that were queried before.
    pub(crate) fn new(
        wanted: &'w [VariantQuery],
        kind: &MatchKind,
        labels: &'w LabelNames,
        known: &BTreeMap<ReplicaKey, ReplicaProgress>,
        asked: &BTreeSet<VariantKey>,
        now: i64,
    ) -> Self {
        let mut grouping = Self {
            labels,
            listed: BTreeMap::new(),
            matched: Vec::new(),
            models: BTreeMap::new(),
            models_of_matched: BTreeMap::new(),
            instances: BTreeMap::new(),
            candidates: BTreeMap::new(),
            claimed: None,
            page: Vec::new(),
        };

        for one in wanted {
            let is_own = MatchKind::of(&one.which) == *kind;
            let (replicas, namespace) = match &one.which {
                SeriesSelection::Pods(replicas) => (replicas, one.variant.namespace.as_str()),
                SeriesSelection::Instances(replicas) => (replicas, ""),
                SeriesSelection::Match(_) => {
                    grouping.matched.push(one);
                    if is_own {
                        grouping.models_of_matched.insert(&one.variant, &one.models);
                    }
                    continue;
                }
            };

            for replica in replicas {
                let name = (namespace.as_bytes(), replica.replica.as_str().as_bytes());
                grouping.listed.entry(name).or_default().push(replica);
                if !is_own {
                    continue;
                }

                grouping.models.insert(replica, &one.models);
                let mut state = known.get(replica).cloned();
                // A new pod may have the name of a deleted one, whose samples still exist.
                if asked.contains(&one.variant) && replica.incarnation.is_some() {
                    state = state.or_else(|| {
                        Some(ReplicaProgress { taken: Some(now), ..ReplicaProgress::default() })
                    });
                }

                let candidate =
                    ReplicaSeries { known: state.unwrap_or_default(), ..ReplicaSeries::default() };
                grouping.candidates.insert(replica.clone(), candidate);
            }
        }

        for (replica, known) in known {
            if grouping.models_of_matched.contains_key(&replica.variant) {
                let candidate = ReplicaSeries { known: known.clone(), ..ReplicaSeries::default() };
                grouping.candidates.insert(replica.clone(), candidate);
            }
        }

        grouping
    }

    /// Adds a series from the first answer, which contains all samples except buckets.
    pub(crate) fn number(&mut self, labels: &[Label<'p>], points: &[Point]) {
        let Some(candidate) = self.candidate(labels) else { return };
        let held = BufferedSeries { labels: labels.to_vec(), points: points.to_vec() };
        candidate.series.push(held);
    }

    /// Ends the first answer: determines each replica's source, and begins its groups.
    pub(crate) fn begin_groups(&mut self, now: i64) {
        for candidate in self.candidates.values_mut() {
            candidate.choose_source();
            candidate.begin_groups(now, &mut self.page);
        }
    }

    /// Adds a series from the second answer, which contains the buckets.
    pub(crate) fn bucket(&mut self, labels: &[Label<'p>], points: &[Point]) {
        let mut page = std::mem::take(&mut self.page);
        if let Some(candidate) = self.candidate(labels) {
            candidate.add(labels, points, GroupStart::No, &mut page);
        }
        self.page = page;
    }

    /// Returns the readings.
    pub(crate) fn finish(self, completeness: Completeness) -> AnswerGroups {
        let Self { candidates, claimed, models, models_of_matched, .. } = self;
        let mut grouped = AnswerGroups { claimed, ..AnswerGroups::default() };
        for (replica, candidate) in candidates {
            let own = models.get(&replica).or_else(|| models_of_matched.get(&replica.variant));
            let models = own.copied().unwrap_or_default();
            if candidate.is_ahead {
                grouped.ahead.push(replica.clone());
            }

            let known = candidate.finish(&replica, models, completeness, &mut grouped.taken);
            grouped.replicas.insert(replica, known);
        }

        grouped
    }

    /// Returns the replica that a series belongs to.
    fn candidate(&mut self, labels: &[Label<'_>]) -> Option<&mut ReplicaSeries<'p>> {
        let namespace = value_of(labels, &self.labels.namespace);
        let pod = value_of(labels, &self.labels.pod);
        let instance = value_of(labels, &self.labels.instance);
        let names = [namespace.zip(pod), instance.map(|name| (b"".as_slice(), name))];
        let mut listed = names.iter().flatten().filter_map(|name| self.listed.get(name)).flatten();
        let mut matched = self.matched.iter().enumerate().filter(|(_, one)| fits(one, labels));
        let [replica, other] = [listed.next(), listed.next()];
        let [first, second] = [matched.next(), matched.next()];

        match (replica, first, other.is_some() || second.is_some()) {
            // The series belongs to a replica that is not wanted.
            (None, None, _) => None,
            (Some(replica), None, false) => self.candidates.get_mut(*replica),
            (None, Some((_, one)), false) if !self.models_of_matched.contains_key(&one.variant) => {
                None
            }
            (None, Some((at, one)), false) => {
                let name = instance?.to_vec();
                if self.instances.len() >= INSTANCES_MAX {
                    return None;
                }
                let key = match self.instances.entry((at, name)) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => {
                        let replica = ReplicaName::new(&String::from_utf8_lossy(&new.key().1))?;
                        let variant = one.variant.clone();
                        new.insert(ReplicaKey { variant, replica, incarnation: None })
                    }
                };

                if !self.candidates.contains_key(key) {
                    self.candidates.insert(key.clone(), ReplicaSeries::default());
                }

                self.candidates.get_mut(key)
            }
            _ => {
                let before = self.claimed.as_ref().map_or(0, |(_, count)| *count);
                let name = pod.or(instance).unwrap_or_default();
                let example = String::from_utf8_lossy(name).into_owned();
                self.claimed = Some((example, before + 1));
                None
            }
        }
    }
}

/// Returns true if a label match selects a series with these labels.
fn fits(one: &VariantQuery, labels: &[Label<'_>]) -> bool {
    let SeriesSelection::Match(wanted) = &one.which else { return false };
    wanted.iter().all(|(name, want)| value_of(labels, name).unwrap_or_default() == want.as_bytes())
}

/// Controls whether a sample may begin a new group.
#[derive(Clone, Copy, PartialEq, Eq)]
enum GroupStart {
    Yes,
    No,
}

// === impl ReplicaSeries ===

impl<'p> ReplicaSeries<'p> {
    /// Determines the source that counts.
    fn choose_source(&mut self) {
        let newest = self.series.iter().flat_map(|held| &held.points).map(|(at, _)| *at).max();
        self.known.newest = self.known.newest.max(newest);
        let sources = sources(&self.series);

        // If a pod has a sidecar, the target with engine metrics is the replica.
        let engines: Vec<(&SeriesSource, i64)> =
            sources.iter().filter_map(|it| Some((it, self.newest_of_engine(it)?))).collect();
        let best = engines.iter().map(|(_, at)| *at).max();
        let current: Vec<&SeriesSource> = engines
            .iter()
            .filter(|(_, at)| best.is_some_and(|best| best.saturating_sub(*at) <= LAG_MAX))
            .map(|(source, _)| *source)
            .collect();
        self.is_ambiguous = show_several_engines(&current, &self.series);
        let before = sources.iter().find(|source| source.own == self.known.source);
        self.source =
            current.first().copied().or(before).or(sources.first()).cloned().unwrap_or_default();
        if best.is_some() {
            self.known.source = self.source.own.clone();
        }
    }

    /// Returns the time of the newest engine sample from a source.
    fn newest_of_engine(&self, source: &SeriesSource) -> Option<i64> {
        let own = self.series.iter().filter(|it| it.is_engine() && source.has(&it.labels));
        own.flat_map(|held| &held.points).map(|(at, _)| *at).max()
    }

    fn begin_groups(&mut self, now: i64, page: &mut Vec<Label<'p>>) {
        let series = std::mem::take(&mut self.series);
        let latest = now.saturating_add(AHEAD_MAX);
        self.is_ahead = series.iter().flat_map(|held| &held.points).any(|(at, _)| *at > latest);
        for BufferedSeries { labels, points } in series {
            self.add(&labels, &points, GroupStart::Yes, page);
        }
    }

    /// Adds a series from the current source to the groups of its samples.
    fn add(
        &mut self,
        labels: &[Label<'p>],
        points: &[Point],
        begin: GroupStart,
        page: &mut Vec<Label<'p>>,
    ) {
        if self.is_ahead || self.is_ambiguous || !self.source.has(labels) {
            return;
        }

        let Some(name) = name(labels) else { return };
        let is_engine = is_engine(name);
        self.source.undo(labels, page);
        for &(at, value) in points {
            if self.known.taken.is_some_and(|taken| at <= taken) {
                continue;
            }
            let group = match begin {
                GroupStart::Yes => Some(self.groups.entry(at).or_default()),
                GroupStart::No => self.groups.get_mut(&at),
            };
            let Some(group) = group else { continue };
            group.count += 1;
            if name == UP.as_bytes() {
                group.up = Some(value);
            } else {
                group.has_engine |= is_engine && !value.is_nan();
                group.take(name, page, value);
            }
        }
    }

    fn finish(
        self,
        replica: &ReplicaKey,
        models: &[ModelName],
        completeness: Completeness,
        all: &mut Vec<ReplicaScrape>,
    ) -> ReplicaProgress {
        let Self { mut known, groups, is_ambiguous, is_ahead, .. } = self;
        let before = std::mem::take(&mut known.waiting);
        let unused = known.newest.filter(|newest| known.taken.is_none_or(|taken| *newest > taken));
        if is_ambiguous
            && !is_ahead
            && let Some(at) =
                unused.and_then(|millisecond| Timestamp::from_millisecond(millisecond).ok())
        {
            let failure = ScrapeError::new(ScrapeFailure::Ambiguous, AMBIGUOUS);
            all.push(ReplicaScrape { replica: replica.clone(), at, outcome: Err(failure) });
            known.taken = unused;
        }

        for (at, group) in groups {
            let Ok(time) = Timestamp::from_millisecond(at) else { continue };
            let count = group.count;
            if !group.is_down() && !is_complete(&known, &before, at, count, completeness) {
                known.waiting.insert(at, count);
                continue;
            }

            if !group.is_down() {
                known.expected = Some(count);
            }
            if let Some(last) = known.taken {
                known.intervals = [known.intervals[1], at - last];
            }

            known.taken = Some(at);
            let outcome = group.finish(models);
            all.push(ReplicaScrape { replica: replica.clone(), at: time, outcome });
        }

        // Samples older than the last reading are never used.
        known.waiting.retain(|at, _| known.taken.is_none_or(|taken| *at > taken));
        known
    }
}

/// Returns true if all samples of a scrape have arrived.
fn is_complete(
    known: &ReplicaProgress,
    before: &BTreeMap<i64, usize>,
    at: i64,
    count: usize,
    completeness: Completeness,
) -> bool {
    let as_many = known.expected.is_some_and(|expected| count >= expected);
    let unchanged = before.get(&at) == Some(&count);
    match completeness {
        Completeness::Whole => as_many || unchanged,
        Completeness::Partial => as_many,
        Completeness::Past => true,
    }
}

// === impl SampleGroup ===

impl<'p> SampleGroup<'p> {
    fn take(&mut self, name: &[u8], labels: &[Label<'p>], value: f64) {
        let Some(series) = self.reader.wants(name) else { return };
        self.samples += 1;

        match self.reader.take(series, labels, value) {
            Ok(_) => {}
            // A database marks the end of a series with NaN. A /metrics response would not contain
            // it.
            Err(SampleError::NotCumulative { value }) if value.is_nan() => {}
            Err(error) => {
                self.error.get_or_insert_with(|| (name.to_vec(), error));
            }
        }
    }

    /// Returns true if the group shows that the replica could not be scraped.
    fn is_down(&self) -> bool {
        !self.has_engine && self.up.is_some_and(|up| up <= 0.0)
    }

    fn finish(self, models: &[ModelName]) -> Result<Reading, ScrapeError> {
        if self.is_down() {
            let detail = "up is 0: Prometheus could not scrape it; its page Status > Targets shows the \
                 reason";
            return Err(ScrapeError::new(ScrapeFailure::Down, detail));
        }

        if let Some((name, error)) = self.error {
            let series = String::from_utf8_lossy(&name);
            let detail = format!("the series {series} is unusable: {error}");
            return Err(ScrapeError::new(ScrapeFailure::Malformed, &detail));
        }

        let samples = self.samples;
        let read = self.reader.finish().map_err(PageError::from);
        let reading = read.map_err(|error| ScrapeError::from_error(error.failure(), &error))?;
        match wrong_model(&reading.models, models) {
            Some(failure) => Err(failure),
            None => Ok(Reading { samples, ..reading }),
        }
    }
}
