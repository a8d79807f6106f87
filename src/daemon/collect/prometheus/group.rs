//! From the series of two answers to one reading for each replica and instant.
//!
//! All samples of one scrape have the very same time, to the millisecond. So the samples of one
//! replica at one time are what its page said then, and they go through the same dialect that reads
//! pages: the reading is the one that a scrape of our own would have given at that instant.
//!
//! Four things stand between a database and a page:
//!
//! - **Labels.** Whoever scraped has added labels, those of `up`, and has renamed the page's own
//!   labels of the same names to `exported_…`. Both are undone.
//! - **Sources.** One replica may be scraped by two servers, or by two jobs, and its numbers are
//!   then there twice, under labels that differ in what was added. They are never put together:
//!   the source whose labels come first counts, as long as it keeps up with the others.
//! - **Completeness.** Databases that are written to remotely show the series of one scrape one
//!   after the other. A group that has fewer samples than the replica's last one waits until
//!   another answer has shown it unchanged. In an answer that is known to lack something it waits
//!   on: there is no telling what is missing.
//! - **Clocks.** A sample from the future shows that the clocks of server and daemon differ. How
//!   old any of the replica's samples are is then unknown, so none is taken.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use jiff::Timestamp;

use crate::collect::exposition::PageError;
use crate::collect::prometheus::decode::Point;
use crate::collect::prometheus::query::UP;
use crate::collect::prometheus::{LabelNames, Wanted, Which};
use crate::collect::scrape::{Failure, wrong_model};
use plimsoll_core::fleet::{ModelName, ReplicaKey, ReplicaName, VariantKey};
use plimsoll_core::observe::engine::{Engine, Label, PAGE_LABELS, Reader, SampleError};
use plimsoll_core::observe::{Reading, ScrapeFailure};

/// How far the source that counts may lag behind another of the same replica, in milliseconds,
/// before the other takes its place: two scrapes at the usual interval.
const LAG_MAX: i64 = 30_000;

/// How far ahead of ours the time of a sample may be, in milliseconds. Clocks that are kept by NTP
/// differ by far less.
const AHEAD_MAX: i64 = 5_000;

/// Replicas that one variant may have by its labels. More are a matcher that matches too much.
const INSTANCES_MAX: usize = 20_000;

/// What is known of a replica from earlier answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Known {
    /// The time of the last sample that was taken, in milliseconds.
    pub(crate) taken: Option<i64>,
    /// How many samples the last group had.
    pub(crate) expected: Option<usize>,
    /// How many samples each group had that is waited for.
    pub(crate) waiting: BTreeMap<i64, usize>,
    /// The added labels of the source that counts.
    pub(crate) source: Own,
    /// The time of the newest sample of any kind, in milliseconds.
    pub(crate) newest: Option<i64>,
    /// The two last times between samples that were taken, in milliseconds.
    pub(crate) intervals: [i64; 2],
}

/// Labels that were added by whoever scraped.
pub(crate) type Own = BTreeMap<Box<[u8]>, Box<[u8]>>;

/// Whether an answer is known to be whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Completeness {
    /// The server says nothing else.
    Whole,
    /// The server says that something is missing.
    Partial,
    /// It is about a time that is over, of which no sample is still to come.
    Past,
}

/// What one replica's page said at one instant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Taken {
    /// The replica.
    pub(crate) replica: ReplicaKey,
    /// When it was scraped.
    pub(crate) at: Timestamp,
    /// What it said.
    pub(crate) outcome: Result<Reading, Failure>,
}

/// What the answers of one kind have come to.
#[derive(Clone, Debug, Default)]
pub(crate) struct Grouped {
    /// Readings and failures, each replica's in order of time.
    pub(crate) taken: Vec<Taken>,
    /// Every replica that has series, and what is known of it now.
    pub(crate) replicas: BTreeMap<ReplicaKey, Known>,
    /// Replicas whose samples are from the future.
    pub(crate) ahead: Vec<ReplicaKey>,
    /// Series that two variants claim: an example of their replica, and how many.
    pub(crate) claimed: Option<(String, usize)>,
}

/// Puts answers together.
pub(crate) struct Grouping<'w, 'p> {
    labels: &'w LabelNames,
    listed: BTreeMap<(&'w [u8], &'w [u8]), Vec<&'w ReplicaKey>>,
    matched: Vec<&'w Wanted>,
    models: BTreeMap<&'w ReplicaKey, &'w [ModelName]>,
    models_of_matched: BTreeMap<&'w VariantKey, &'w [ModelName]>,
    instances: BTreeMap<(usize, Vec<u8>), ReplicaKey>,
    candidates: BTreeMap<ReplicaKey, Candidate<'p>>,
    claimed: Option<(String, usize)>,
    /// Labels of a series without what was added; kept because all series share it.
    page: Vec<Label<'p>>,
}

/// A replica whose series are being put together.
#[derive(Default)]
struct Candidate<'p> {
    known: Known,
    series: Vec<Held<'p>>,
    source: Source,
    groups: BTreeMap<i64, Group<'p>>,
    is_ahead: bool,
}

/// A series that waits until it is known which labels were added.
struct Held<'p> {
    labels: Vec<Label<'p>>,
    points: Vec<Point>,
}

/// Who has scraped a replica, by the labels that it adds.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Source {
    /// The labels that tell it from other sources.
    own: Own,
    /// Those that it adds and engines have too.
    shared: Own,
}

/// What one source says of one replica at one instant.
#[derive(Default)]
struct Group<'p> {
    reader: Reader<'p>,
    up: Option<f64>,
    /// Samples of any kind, by which it is told whether all have come.
    count: usize,
    samples: usize,
    has_engine: bool,
    error: Option<(Vec<u8>, SampleError)>,
}

// === impl Grouping ===

impl<'w, 'p> Grouping<'w, 'p> {
    /// A grouping of the series of these replicas, with what is known of them, and of which
    /// variants anything was known before.
    pub(crate) fn new(
        wanted: &[&'w Wanted],
        labels: &'w LabelNames,
        known: &BTreeMap<ReplicaKey, Known>,
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
            let (replicas, namespace) = match &one.which {
                Which::Pods(replicas) => (replicas, one.variant.namespace.as_str()),
                Which::Instances(replicas) => (replicas, ""),
                Which::Match(_) => {
                    grouping.matched.push(one);
                    grouping.models_of_matched.insert(&one.variant, &one.models);
                    continue;
                }
            };
            for replica in replicas {
                let name = (namespace.as_bytes(), replica.replica.as_str().as_bytes());
                grouping.listed.entry(name).or_default().push(replica);
                grouping.models.insert(replica, &one.models);
                let mut known = known.get(replica).cloned();
                // A pod that comes later may have the name of one that is gone, whose samples
                // are still there.
                if asked.contains(&one.variant) && replica.incarnation.is_some() {
                    known = known.or_else(|| Some(Known { taken: Some(now), ..Known::default() }));
                }
                let candidate =
                    Candidate { known: known.unwrap_or_default(), ..Candidate::default() };
                grouping.candidates.insert(replica.clone(), candidate);
            }
        }
        for (replica, known) in known {
            if grouping.models_of_matched.contains_key(&replica.variant) {
                let candidate = Candidate { known: known.clone(), ..Candidate::default() };
                grouping.candidates.insert(replica.clone(), candidate);
            }
        }
        grouping
    }

    /// Takes a series of the answer that has everything but buckets.
    pub(crate) fn number(&mut self, labels: &[Label<'p>], points: &[Point]) {
        let Some(candidate) = self.candidate(labels) else { return };
        let held = Held { labels: labels.to_vec(), points: points.to_vec() };
        candidate.series.push(held);
    }

    /// Ends the first answer: finds out who has scraped each replica, and begins its groups.
    pub(crate) fn begin_groups(&mut self, now: i64) {
        for candidate in self.candidates.values_mut() {
            candidate.choose_source();
            candidate.begin_groups(now, &mut self.page);
        }
    }

    /// Takes a series of the answer that has the buckets.
    pub(crate) fn bucket(&mut self, labels: &[Label<'p>], points: &[Point]) {
        let mut page = std::mem::take(&mut self.page);
        if let Some(candidate) = self.candidate(labels) {
            candidate.add(labels, points, Begin::No, &mut page);
        }
        self.page = page;
    }

    /// The readings.
    pub(crate) fn finish(self, completeness: Completeness) -> Grouped {
        let Self { candidates, claimed, models, models_of_matched, .. } = self;
        let mut grouped = Grouped { claimed, ..Grouped::default() };
        for (replica, candidate) in candidates {
            let models = models.get(&replica).or_else(|| models_of_matched.get(&replica.variant));
            let models = models.copied().unwrap_or_default();
            if candidate.is_ahead {
                grouped.ahead.push(replica.clone());
            }
            let known = candidate.finish(&replica, models, completeness, &mut grouped.taken);
            grouped.replicas.insert(replica, known);
        }
        grouped
    }

    /// The replica that a series belongs to.
    fn candidate(&mut self, labels: &[Label<'_>]) -> Option<&mut Candidate<'p>> {
        let value = |name: &str| {
            let label = labels.iter().find(|label| *label.name == *name.as_bytes());
            label.map(|label| &*label.value)
        };
        let LabelNames { namespace, pod, instance } = self.labels;
        let pods = value(namespace).zip(value(pod)).and_then(|name| self.listed.get(&name));
        let instances = value(instance).and_then(|name| self.listed.get(&(b"".as_slice(), name)));
        let listed: &[&ReplicaKey] = pods.or(instances).map_or(&[], Vec::as_slice);
        let fits = |one: &Wanted| match &one.which {
            Which::Match(wanted) => {
                wanted.iter().all(|(name, want)| value(name).unwrap_or_default() == want.as_bytes())
            }
            Which::Pods(_) | Which::Instances(_) => false,
        };
        let mut matched = self.matched.iter().enumerate().filter(|(_, one)| fits(one));
        let (first, second) = (matched.next(), matched.next());
        let claims = listed.len() + usize::from(first.is_some()) + usize::from(second.is_some());
        match (claims, listed.first(), first) {
            // Of another replica than those that are wanted.
            (0, ..) => None,
            (1, Some(replica), _) => self.candidates.get_mut(*replica),
            (1, None, Some((at, one))) => {
                let name = value(instance)?.to_vec();
                if self.instances.len() >= INSTANCES_MAX {
                    return None;
                }
                let replica = match self.instances.entry((at, name)) {
                    std::collections::btree_map::Entry::Occupied(known) => known.into_mut(),
                    std::collections::btree_map::Entry::Vacant(new) => {
                        let replica = ReplicaKey {
                            variant: one.variant.clone(),
                            replica: ReplicaName::new(&String::from_utf8_lossy(&new.key().1))?,
                            incarnation: None,
                        };
                        new.insert(replica)
                    }
                };
                if !self.candidates.contains_key(replica) {
                    self.candidates.insert(replica.clone(), Candidate::default());
                }
                self.candidates.get_mut(replica)
            }
            _ => {
                let count = self.claimed.as_ref().map_or(0, |(_, count)| *count);
                let name = value(pod).or(value(instance)).unwrap_or_default();
                let example = String::from_utf8_lossy(name).into_owned();
                self.claimed = Some((example, count + 1));
                None
            }
        }
    }
}

/// Whether a sample begins a group that is not there yet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Begin {
    Yes,
    No,
}

// === impl Candidate ===

impl<'p> Candidate<'p> {
    /// Finds the source that counts.
    fn choose_source(&mut self) {
        let newest = self.series.iter().flat_map(|held| &held.points).map(|(at, _)| *at).max();
        self.known.newest = self.known.newest.max(newest);
        let sources = sources(&self.series);
        let at = |source: &Source| {
            let own = self.series.iter().filter(|it| it.is_engine() && source.has(&it.labels));
            own.flat_map(|held| &held.points).map(|(at, _)| *at).max()
        };
        // Of a pod with a sidecar, the target with engine metrics is the replica.
        let engines: Vec<(&Source, i64)> =
            sources.iter().filter_map(|source| Some((source, at(source)?))).collect();
        let best = engines.iter().map(|(_, at)| *at).max();
        let keeps_up = |at: i64| best.is_some_and(|best| best.saturating_sub(at) <= LAG_MAX);
        let chosen = engines.iter().find(|(_, at)| keeps_up(*at)).map(|(source, _)| *source);
        let before = || sources.iter().find(|source| source.own == self.known.source);
        let chosen = chosen.or_else(before).or(sources.first());
        self.source = chosen.cloned().unwrap_or_default();
        if best.is_some() {
            self.known.source = self.source.own.clone();
        }
    }

    fn begin_groups(&mut self, now: i64, page: &mut Vec<Label<'p>>) {
        let series = std::mem::take(&mut self.series);
        let latest = now.saturating_add(AHEAD_MAX);
        self.is_ahead = series.iter().flat_map(|held| &held.points).any(|(at, _)| *at > latest);
        for Held { labels, points } in series {
            self.add(&labels, &points, Begin::Yes, page);
        }
    }

    /// Adds a series of the source that counts to the groups of its samples.
    fn add(
        &mut self,
        labels: &[Label<'p>],
        points: &[Point],
        begin: Begin,
        page: &mut Vec<Label<'p>>,
    ) {
        if self.is_ahead || !self.source.has(labels) {
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
                Begin::Yes => Some(self.groups.entry(at).or_default()),
                Begin::No => self.groups.get_mut(&at),
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
        all: &mut Vec<Taken>,
    ) -> Known {
        let Self { mut known, groups, .. } = self;
        let before = std::mem::take(&mut known.waiting);
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
            all.push(Taken { replica: replica.clone(), at: time, outcome });
        }
        // What is older than what was taken is never taken.
        known.waiting.retain(|at, _| known.taken.is_none_or(|taken| *at > taken));
        known
    }
}

/// Whether all samples of a scrape have come.
fn is_complete(
    known: &Known,
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

// === impl Group ===

impl<'p> Group<'p> {
    fn take(&mut self, name: &[u8], labels: &[Label<'p>], value: f64) {
        let Some(series) = self.reader.wants(name) else { return };
        self.samples += 1;
        match self.reader.take(series, labels, value) {
            Ok(_) => {}
            // A database keeps a mark where a series has ended; on a page it would not be there.
            Err(SampleError::NotCumulative { value }) if value.is_nan() => {}
            Err(error) => {
                self.error.get_or_insert_with(|| (name.to_vec(), error));
            }
        }
    }

    /// Whether it says that the replica could not be scraped.
    fn is_down(&self) -> bool {
        !self.has_engine && self.up.is_some_and(|up| up <= 0.0)
    }

    fn finish(self, models: &[ModelName]) -> Result<Reading, Failure> {
        if self.is_down() {
            let detail =
                "up is 0: Prometheus could not scrape it; its page Status > Targets says why";
            return Err(Failure::new(ScrapeFailure::Down, detail));
        }
        if let Some((name, error)) = self.error {
            let name = String::from_utf8_lossy(&name);
            let detail = format!("the series {name} is unusable: {error}");
            return Err(Failure::new(ScrapeFailure::Malformed, &detail));
        }
        let samples = self.samples;
        let reading = self.reader.finish().map_err(PageError::from);
        let reading = reading.map_err(|error| Failure::from_error(error.failure(), &error))?;
        match wrong_model(&reading.models, models) {
            Some(failure) => Err(failure),
            None => Ok(Reading { samples, ..reading }),
        }
    }
}

// === impl Held ===

impl Held<'_> {
    fn is_engine(&self) -> bool {
        name(&self.labels).is_some_and(is_engine)
    }
}

// === impl Source ===

impl Source {
    /// Whether a series with these labels may be its own: none of them says otherwise. A label may
    /// be missing, because rules may drop it from what is scraped and not from `up`.
    fn has(&self, labels: &[Label<'_>]) -> bool {
        labels
            .iter()
            .all(|label| self.own.get(&*label.name).is_none_or(|value| **value == *label.value))
    }

    /// The labels that are on the page, without those that this source has added.
    fn undo<'p>(&self, labels: &[Label<'p>], page: &mut Vec<Label<'p>>) {
        page.clear();
        for label in labels {
            let added = self.own.get(&*label.name).or_else(|| self.shared.get(&*label.name));
            if *label.name == *b"__name__" || added.is_some_and(|value| **value == *label.value) {
                continue;
            }
            let Label { name, value } = label.clone();
            page.push(Label { name: self.unexported(name), value });
        }
    }

    /// The name that a label has on the page.
    fn unexported<'p>(&self, name: Cow<'p, [u8]>) -> Cow<'p, [u8]> {
        const EXPORTED: &[u8] = b"exported_";
        let added = |rest: &[u8]| self.own.contains_key(rest) || self.shared.contains_key(rest);
        match name {
            Cow::Borrowed(whole) => match whole.strip_prefix(EXPORTED) {
                Some(rest) if added(rest) => Cow::Borrowed(rest),
                Some(_) | None => Cow::Borrowed(whole),
            },
            Cow::Owned(whole) => match whole.strip_prefix(EXPORTED) {
                Some(rest) if added(rest) => Cow::Owned(rest.to_vec()),
                Some(_) | None => Cow::Owned(whole),
            },
        }
    }
}

/// Who has scraped a replica with these series, in order of the labels.
///
/// The labels of `up` are those that were added. Where nothing has kept `up`, those that all series
/// have in common but for the ones that engines write.
fn sources(series: &[Held<'_>]) -> Vec<Source> {
    let is_up = |held: &&Held<'_>| name(&held.labels) == Some(UP.as_bytes());
    let mut sources: BTreeSet<Source> =
        series.iter().filter(is_up).map(|held| source(&held.labels, |_| true)).collect();
    let without: Vec<&Held<'_>> = series
        .iter()
        .filter(|held| !sources.iter().any(|source| source.has(&held.labels)))
        .collect();
    let added: BTreeSet<&[u8]> = if sources.is_empty() {
        let names = |held: &Held<'_>| -> BTreeSet<Box<[u8]>> {
            held.labels.iter().map(|label| label.name.as_ref().into()).collect()
        };
        let all = without.iter().map(|held| names(held));
        let common = all.reduce(|common, names| &common & &names).unwrap_or_default();
        let is_common = |label: &&Label<'_>| common.contains(&*label.name);
        let first = without.first();
        first
            .map(|held| held.labels.iter().filter(is_common).map(|label| &*label.name).collect())
            .unwrap_or_default()
    } else {
        without
            .iter()
            .flat_map(|held| &held.labels)
            .map(|label| &*label.name)
            .filter(|name| sources.iter().any(|source| source.own.contains_key(*name)))
            .collect()
    };
    let more: Vec<Source> = without
        .iter()
        .map(|held| source(&held.labels, |name| added.contains(name) && !is_page_label(name)))
        .collect();
    sources.extend(more);
    sources.into_iter().collect()
}

fn source(labels: &[Label<'_>], keep: impl Fn(&[u8]) -> bool) -> Source {
    let mut source = Source::default();
    for label in labels.iter().filter(|label| *label.name != *b"__name__" && keep(&label.name)) {
        let of = if is_page_label(&label.name) { &mut source.shared } else { &mut source.own };
        of.insert(label.name.as_ref().into(), label.value.as_ref().into());
    }
    source
}

fn is_page_label(name: &[u8]) -> bool {
    PAGE_LABELS.iter().any(|known| known.as_bytes() == name)
}

fn is_engine(name: &[u8]) -> bool {
    Engine::ALL.iter().any(|engine| engine.owns(name))
}

fn name<'a>(labels: &'a [Label<'_>]) -> Option<&'a [u8]> {
    labels.iter().find(|label| *label.name == *b"__name__").map(|label| &*label.value)
}
