//! A round: two queries of each kind, and what they say about every replica.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::prometheus::client::{Client, Question};
use crate::collect::prometheus::decode::{Answer, decode};
use crate::collect::prometheus::failure::{Failure, Outcome};
use crate::collect::prometheus::group::{Completeness, Grouped, Grouping, Known, Taken};
use crate::collect::prometheus::metrics::{Metrics, count};
use crate::collect::prometheus::query::{Kind, kinds, selector};
use crate::collect::prometheus::{Found, Instances, Settings, Wanted, Which};
use crate::collect::scrape::Board;
use crate::collect::scrape::health::{Change, Entry, record};
use plimsoll_core::fleet::{ReplicaKey, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_core::observe::engine::Samples;

/// How much older than the last sample that was taken the samples are that are asked for again.
/// A scrape is written when it ends, at most ten seconds after its time unless configured, and
/// remote writing adds some seconds to that.
const OVERLAP: SignedDuration = SignedDuration::from_secs(30);

/// How far into the future is asked. If the server's clock is ahead of ours, that is where its
/// newest samples are; servers allow ten minutes at least.
const AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// How often the files with certificates and tokens are looked at again.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// Rounds, and what is known from one to the next.
pub(crate) struct Rounds {
    settings: Arc<Settings>,
    client: Client,
    clock: Clock,
    metrics: Metrics,
    board: Board,
    replicas: BTreeMap<ReplicaKey, Known>,
    /// Variants that have been asked for before.
    asked: BTreeSet<VariantKey>,
    entries: BTreeMap<ReplicaKey, Entry>,
    instances: Instances,
    /// What the last round of each kind came to.
    outcomes: BTreeMap<Kind, Outcome>,
    /// Variants with listed replicas, of which none has had series.
    unmatched: BTreeSet<VariantKey>,
    ahead: bool,
    claimed: bool,
    slow: bool,
}

/// What one kind's queries came to.
struct Answers {
    outcome: Outcome,
    detail: String,
    series: usize,
    grouped: Option<Grouped>,
}

// === impl Rounds ===

impl Rounds {
    pub(crate) fn new(settings: Settings, clock: Clock, metrics: Metrics, board: Board) -> Self {
        let settings = Arc::new(settings);
        let client = Client::new(Arc::clone(&settings), CREDENTIALS_REFRESH);
        Self {
            settings,
            client,
            clock,
            metrics,
            board,
            replicas: BTreeMap::new(),
            asked: BTreeSet::new(),
            entries: BTreeMap::new(),
            instances: Instances::new(),
            outcomes: BTreeMap::new(),
            unmatched: BTreeSet::new(),
            ahead: false,
            claimed: false,
            slow: false,
        }
    }

    /// The replicas that were found by labels.
    pub(crate) fn instances(&self) -> Instances {
        self.instances.clone()
    }

    /// Asks for everything once.
    pub(crate) async fn turn(
        &mut self,
        wanted: &Arc<Vec<Wanted>>,
        tracker: &TaskTracker,
    ) -> Vec<Scrape> {
        let kinds = kinds(wanted);
        self.forget(wanted, &kinds);
        let (mut scrapes, mut series, mut all_whole) = (Vec::new(), 0, true);
        let (mut ahead, mut claimed) = (Vec::new(), None);
        for kind in kinds.keys() {
            let now = self.clock.now();
            let answers = self.ask(kind, wanted, now, tracker).await;
            self.tell(kind, &answers);
            series += answers.series;
            all_whole &= answers.outcome.is_whole();
            let Some(mut grouped) = answers.grouped else { continue };
            ahead.append(&mut grouped.ahead);
            claimed = claimed.or(grouped.claimed.take());
            scrapes.extend(self.take(kind, wanted, now, answers.outcome, grouped));
        }
        if kinds.is_empty() {
            return scrapes;
        }
        self.metrics.up.set(i64::from(all_whole));
        self.metrics.series.set(count(series));
        if all_whole {
            self.metrics.succeeded(self.clock.now());
        }
        self.tell_ahead(&ahead);
        self.tell_claimed(claimed);
        self.tell_intervals();
        scrapes
    }

    /// Asks for one kind of replicas.
    async fn ask(
        &self,
        kind: &Kind,
        wanted: &Arc<Vec<Wanted>>,
        now: Timestamp,
        tracker: &TaskTracker,
    ) -> Answers {
        let mut bodies = Vec::new();
        for samples in [Samples::Numbers, Samples::Buckets] {
            let question = self.question(kind, wanted, now, samples);
            let began = self.clock.elapsed();
            let body = self.client.ask(&question, began).await;
            let took = self.clock.elapsed().saturating_sub(began);
            self.metrics.asked(took, body.as_ref().ok().map(Bytes::len));
            match body {
                Ok(body) => bodies.push(body),
                Err(failure) => return self.failed(&failure),
            }
        }
        let reading = Reading {
            wanted: Arc::clone(wanted),
            kind: kind.clone(),
            settings: Arc::clone(&self.settings),
            known: self.replicas.clone(),
            asked: self.asked.clone(),
            now: now.as_millisecond(),
        };
        // An answer of a thousand replicas takes a second to read, and a tick must not wait for it.
        let metrics = self.metrics.clone();
        let read = tracker.spawn_blocking(move || reading.read(&bodies, &metrics)).await;
        match read {
            Ok(Ok(answers)) => answers,
            Ok(Err(failure)) => self.failed(&failure),
            // The process ends.
            Err(ended) => self.failed(&Failure::from_error(Outcome::Malformed, &ended)),
        }
    }

    fn failed(&self, failure: &Failure) -> Answers {
        let Failure { outcome, detail } = failure.clone();
        self.metrics.answered(outcome, 0);
        Answers { outcome, detail, series: 0, grouped: None }
    }

    fn question(
        &self,
        kind: &Kind,
        wanted: &[Wanted],
        now: Timestamp,
        samples: Samples,
    ) -> Question {
        let own = of_kind(wanted, kind);
        let at = now.saturating_add(AHEAD).unwrap_or(now);
        let range = Duration::try_from(at.duration_since(self.since(kind, &own, now)));
        let range = range.unwrap_or(self.settings.lookback);
        let labels = &self.settings.labels;
        let query = selector(&own, samples, labels, range, self.client.room());
        Question { query, at }
    }

    /// From when on samples are asked for: from what the replica that lags most was last seen at,
    /// of those that are still there.
    fn since(&self, kind: &Kind, own: &[&Wanted], now: Timestamp) -> Timestamp {
        let lookback = SignedDuration::try_from(self.settings.lookback).unwrap_or(OVERLAP);
        let earliest = now.saturating_sub(lookback).unwrap_or(now);
        let latest = now.saturating_sub(OVERLAP).unwrap_or(now);
        // What does not fit into one answer is asked for in as short a range as can be.
        if self.outcomes.get(kind) == Some(&Outcome::TooLarge) {
            return latest;
        }
        let variants: BTreeSet<&VariantKey> = own.iter().map(|one| &one.variant).collect();
        let known = self.replicas.iter().filter(|(key, _)| variants.contains(&key.variant));
        let taken = known.filter_map(|(_, known)| Timestamp::from_millisecond(known.taken?).ok());
        let oldest = taken.filter(|taken| *taken >= earliest).min();
        let since = oldest.and_then(|oldest| oldest.saturating_sub(OVERLAP).ok());
        since.unwrap_or(earliest).clamp(earliest, latest)
    }

    /// Takes over what the answers of one kind say.
    fn take(
        &mut self,
        kind: &Kind,
        wanted: &[Wanted],
        now: Timestamp,
        outcome: Outcome,
        grouped: Grouped,
    ) -> Vec<Scrape> {
        let Grouped { taken, replicas, .. } = grouped;
        let newest = replicas.values().filter_map(|known| known.newest).max();
        if let Some(newest) = newest.and_then(|newest| Timestamp::from_millisecond(newest).ok()) {
            self.metrics.saw(newest);
        }
        self.replicas.extend(replicas);
        self.asked.extend(of_kind(wanted, kind).into_iter().map(|one| one.variant.clone()));
        if outcome.is_whole() {
            self.list(kind, wanted, now);
            self.tell_unmatched(wanted, kind);
        }
        taken.into_iter().map(|taken| self.tell_reading(taken)).collect()
    }

    /// Writes down which replicas the labels find. An answer that is not whole is no list.
    fn list(&mut self, kind: &Kind, wanted: &[Wanted], now: Timestamp) {
        let lookback = i64::try_from(self.settings.lookback.as_millis()).unwrap_or(i64::MAX);
        let earliest = now.as_millisecond().saturating_sub(lookback);
        for one in of_kind(wanted, kind) {
            let Which::Match(_) = &one.which else { continue };
            self.replicas.retain(|key, known| {
                key.variant != one.variant || known.newest.is_some_and(|newest| newest >= earliest)
            });
            let own = self.replicas.keys().filter(|key| key.variant == one.variant);
            let found = Found { replicas: own.cloned().collect(), as_of: now };
            // A variant without a single series may as well have a matcher that is wrong.
            if !found.replicas.is_empty() {
                self.instances.insert(one.variant.clone(), found);
            }
        }
    }

    /// Forgets what is no longer wanted.
    fn forget(&mut self, wanted: &[Wanted], kinds: &BTreeMap<Kind, Vec<&Wanted>>) {
        let mut listed: BTreeSet<&ReplicaKey> = BTreeSet::new();
        let mut matched: BTreeSet<&VariantKey> = BTreeSet::new();
        for one in wanted {
            match &one.which {
                Which::Pods(replicas) | Which::Instances(replicas) => listed.extend(replicas),
                Which::Match(_) => {
                    matched.insert(&one.variant);
                }
            }
        }
        let stays = |key: &ReplicaKey| listed.contains(key) || matched.contains(&key.variant);
        self.replicas.retain(|key, _| stays(key));
        let replicas = &self.replicas;
        self.entries.retain(|key, _| {
            let stays = replicas.contains_key(key);
            if !stays {
                self.board.remove(key);
            }
            stays
        });
        self.instances.retain(|key, _| matched.contains(key));
        self.asked.retain(|key| wanted.iter().any(|one| one.variant == *key));
        self.outcomes.retain(|kind, _| kinds.contains_key(kind));
        self.metrics.replicas.set(count(self.replicas.len()));
    }

    /// Says what became of a kind's queries, when it is not what it was.
    fn tell(&mut self, kind: &Kind, answers: &Answers) {
        let Answers { outcome, detail, .. } = answers;
        let before = self.outcomes.insert(kind.clone(), *outcome);
        if before == Some(*outcome) {
            tracing::debug!(outcome = outcome.label(), detail, "Prometheus was asked");
            return;
        }
        let (url, label) = (&self.settings.url, outcome.label());
        match outcome {
            Outcome::Answered => tracing::info!(url, "Prometheus answers in full"),
            Outcome::Empty => tracing::warn!(
                url,
                outcome = label,
                "Prometheus has no series of these replicas; is it the right server or tenant, \
                 does it scrape them, and do the labels match? {detail}"
            ),
            Outcome::Partial => tracing::warn!(
                url,
                outcome = label,
                "Prometheus gives partial answers: {detail}. No number is lowered on them"
            ),
            Outcome::NativeHistograms => tracing::warn!(
                url,
                outcome = label,
                "Prometheus keeps {detail} as a native histogram, which has no classic buckets, so \
                 latencies and lengths are unknown. Set always_scrape_classic_histograms: true, or \
                 convert_classic_histograms_to_nhcb: false"
            ),
            _ => tracing::warn!(
                url,
                outcome = label,
                error = detail,
                "Prometheus cannot be used; what is known grows old and no number changes"
            ),
        }
    }

    /// Writes a reading on the board and into the log, and hands it on.
    fn tell_reading(&mut self, taken: Taken) -> Scrape {
        let Taken { replica, at, outcome } = taken;
        let url = || format!("{} (by Prometheus)", self.settings.url);
        let entry = self
            .entries
            .entry(replica.clone())
            .or_insert_with(|| self.board.add(replica.clone(), url()));
        let change = record(entry, at, outcome.as_ref().map(|_| ()));
        let ReplicaKey { variant, replica: name, incarnation: _ } = &replica;
        match &outcome {
            Ok(_) => self.metrics.readings.inc(),
            Err(failure) => {
                self.metrics.failed_readings.inc();
                if change == Change::Fails {
                    let (reason, error) = (failure.class.label(), &failure.detail);
                    tracing::warn!(%variant, replica = %name, reason, %error, "Replica gives no reading");
                }
            }
        }
        if change == Change::Recovers {
            tracing::info!(%variant, replica = %name, "Replica gives readings again");
        }
        let outcome = outcome.map_err(|failure| failure.class);
        Scrape { replica, at, outcome }
    }

    /// Says which variants have replicas of which Prometheus has no series at all.
    fn tell_unmatched(&mut self, wanted: &[Wanted], kind: &Kind) {
        for one in of_kind(wanted, kind) {
            let seen = self
                .replicas
                .iter()
                .any(|(key, known)| key.variant == one.variant && known.newest.is_some());
            let variant = &one.variant;
            if seen {
                if self.unmatched.remove(variant) {
                    tracing::info!(%variant, "Prometheus has series of this variant");
                }
            } else if self.unmatched.insert(variant.clone()) {
                tracing::warn!(
                    %variant,
                    "Prometheus has no series of this variant's replicas; it is looked for by {}",
                    self.sought(&one.which)
                );
            }
        }
    }

    /// By what a variant's series are found, for the log.
    fn sought(&self, which: &Which) -> String {
        let labels = &self.settings.labels;
        match which {
            Which::Pods(_) => format!("the labels {} and {}", labels.namespace, labels.pod),
            Which::Instances(_) => format!("the label {}", labels.instance),
            Which::Match(matched) => {
                let pairs: Vec<String> =
                    matched.iter().map(|(name, value)| format!("{name}={value:?}")).collect();
                pairs.join(", ")
            }
        }
    }

    fn tell_ahead(&mut self, ahead: &[ReplicaKey]) {
        self.metrics.ahead.set(count(ahead.len()));
        if let Some(first) = ahead.first().filter(|_| !self.ahead) {
            tracing::error!(
                replicas = ahead.len(),
                "Samples are from the future, as those of {} {}: the clocks of Prometheus and of \
                 this machine differ. Samples of such replicas are refused",
                first.variant,
                first.replica
            );
        }
        self.ahead = !ahead.is_empty();
    }

    fn tell_claimed(&mut self, claimed: Option<(String, usize)>) {
        let series = claimed.as_ref().map_or(0, |(_, series)| *series);
        self.metrics.claimed.set(count(series));
        let is = claimed.is_some();
        if let Some((example, series)) = claimed.filter(|_| !self.claimed) {
            tracing::error!(
                series,
                "More than one variant claims the same series, as those of {example}; none gets them"
            );
        }
        self.claimed = is;
    }

    /// Warns where Prometheus scrapes too seldom for data to stay fresh from one sample to the
    /// next.
    fn tell_intervals(&mut self) {
        let longest = self.replicas.values().map(|known| {
            let [before, last] = known.intervals;
            // One scrape that was missed is no interval.
            before.min(last)
        });
        let longest = Duration::from_millis(
            u64::try_from(longest.max().unwrap_or_default()).unwrap_or_default(),
        );
        self.metrics.interval.set(longest.as_secs_f64());
        let Settings { stale_after, interval, .. } = &*self.settings;
        let needed = longest.saturating_mul(2) + *interval;
        let slow = needed > *stale_after;
        if slow && !self.slow {
            tracing::warn!(
                scrape_interval = ?longest,
                stale_after = ?stale_after,
                "Prometheus scrapes too seldom: one missed scrape makes a replica stale. Scrape \
                 more often, or set prometheus.stale_after to {needed:?} or more"
            );
        }
        self.slow = slow;
    }
}

/// What reading a round's answers needs.
struct Reading {
    wanted: Arc<Vec<Wanted>>,
    kind: Kind,
    settings: Arc<Settings>,
    known: BTreeMap<ReplicaKey, Known>,
    asked: BTreeSet<VariantKey>,
    now: i64,
}

impl Reading {
    fn read(&self, bodies: &[Bytes], metrics: &Metrics) -> Result<Answers, Failure> {
        let Self { wanted, kind, settings, known, asked, now } = self;
        let wanted = of_kind(wanted, kind);
        let [numbers, buckets] = bodies else {
            return Err(Failure::new(Outcome::Malformed, "there are not two answers"));
        };
        let limit = settings.series_limit;
        let mut grouping = Grouping::new(&wanted, &settings.labels, known, asked, *now);
        let mut number = |labels: &[_], points: &[_]| grouping.number(labels, points);
        let first = decode(numbers, limit, &mut number)?;
        let first_outcome = outcome(&first);
        metrics.answered(
            if first.series == 0 { Outcome::Empty } else { first_outcome },
            first.samples,
        );
        grouping.begin_groups(*now);
        let mut bucket = |labels: &[_], points: &[_]| grouping.bucket(labels, points);
        let second = decode(buckets, limit, &mut bucket)?;
        let second_outcome = outcome(&second);
        metrics.answered(second_outcome, second.samples);
        let worst = [first_outcome, second_outcome].into_iter().max().unwrap_or(Outcome::Answered);
        let partial = [first_outcome, second_outcome].contains(&Outcome::Partial);
        let (outcome, completeness) = match (first.series, partial) {
            (_, true) => (Outcome::Partial, Completeness::Partial),
            (0, false) => (Outcome::Empty, Completeness::Whole),
            (_, false) => (worst, Completeness::Whole),
        };
        let detail = detail(outcome, &first, &second);
        let series = first.series + second.series;
        let grouped = (outcome != Outcome::Empty).then(|| grouping.finish(completeness));
        Ok(Answers { outcome, detail, series, grouped })
    }
}

fn outcome(answer: &Answer) -> Outcome {
    if answer.is_partial {
        Outcome::Partial
    } else if answer.native_histogram.is_some() {
        Outcome::NativeHistograms
    } else {
        Outcome::Answered
    }
}

fn detail(outcome: Outcome, first: &Answer, second: &Answer) -> String {
    match outcome {
        Outcome::Partial => {
            let warnings: Vec<&str> =
                first.warnings.iter().chain(&second.warnings).map(String::as_str).collect();
            if warnings.is_empty() { "isPartial is true".into() } else { warnings.join("; ") }
        }
        Outcome::NativeHistograms => first
            .native_histogram
            .iter()
            .chain(&second.native_histogram)
            .next()
            .cloned()
            .unwrap_or_default(),
        _ => String::new(),
    }
}

/// The variants of one kind.
fn of_kind<'w>(wanted: &'w [Wanted], kind: &Kind) -> Vec<&'w Wanted> {
    wanted.iter().filter(|one| Kind::of(&one.which) == *kind).collect()
}
