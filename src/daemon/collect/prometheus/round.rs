//! A round: two queries per kind of selector, and the readings of each replica that they return.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use jiff::{SignedDuration, Timestamp};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::prometheus::client::{PrometheusClient, Question};
use crate::collect::prometheus::decode::{AnswerSummary, decode};
use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome};
use crate::collect::prometheus::group::{
    AnswerGroups, Completeness, Grouping, ReplicaProgress, ReplicaScrape,
};
use crate::collect::prometheus::metrics::{PrometheusMetrics, count};
use crate::collect::prometheus::query::{MatchKind, kinds, selector};
use crate::collect::prometheus::selection::{
    InstanceList, Instances, SeriesSelection, VariantQuery,
};
use crate::collect::prometheus::settings::PrometheusSettings;
use crate::collect::scrape::TargetBoard;
use crate::collect::scrape::health::{StatusChange, StatusEntry, record};
use plimsoll_core::fleet::{ReplicaKey, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_core::observe::engine::Samples;

/// Overlap with the range before the last reading. Prometheus writes a scrape when it ends, by
/// default at most ten seconds after its time. Remote write adds some seconds.
const OVERLAP: SignedDuration = SignedDuration::from_secs(30);

/// Distance into the future of the evaluation time. If the server's clock is ahead of the daemon's,
/// its newest samples are there. Servers allow at least ten minutes.
const AHEAD: SignedDuration = SignedDuration::from_mins(1);

/// Interval at which the files with certificates and tokens are checked for changes.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// Runs the rounds, and keeps the state from one to the next.
pub(crate) struct QueryRounds {
    settings: Arc<PrometheusSettings>,
    client: PrometheusClient,
    clock: Clock,
    metrics: PrometheusMetrics,
    board: TargetBoard,
    replicas: BTreeMap<ReplicaKey, ReplicaProgress>,
    /// Variants that earlier rounds have queried.
    asked: BTreeSet<VariantKey>,
    entries: BTreeMap<ReplicaKey, StatusEntry>,
    instances: Instances,
    /// The outcome of the last round for each kind.
    outcomes: BTreeMap<MatchKind, QueryOutcome>,
    /// Variants with listed replicas but without any series so far.
    unmatched: BTreeSet<VariantKey>,
    ahead: bool,
    claimed: bool,
    slow: bool,
}

/// The result of one kind's queries.
struct RoundResult {
    outcome: QueryOutcome,
    detail: String,
    series: usize,
    grouped: Option<AnswerGroups>,
}

// === impl QueryRounds ===

impl QueryRounds {
    pub(crate) fn new(
        settings: PrometheusSettings,
        clock: Clock,
        metrics: PrometheusMetrics,
        board: TargetBoard,
    ) -> Self {
        let shared = Arc::new(settings);
        let client = PrometheusClient::new(Arc::clone(&shared), CREDENTIALS_REFRESH);

        Self {
            settings: shared,
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

    /// The replicas that label matches have found.
    pub(crate) fn instances(&self) -> Instances {
        self.instances.clone()
    }

    /// Runs one round.
    pub(crate) async fn turn(
        &mut self,
        wanted: &Arc<Vec<VariantQuery>>,
        tracker: &TaskTracker,
    ) -> Vec<Scrape> {
        let kinds = kinds(wanted);
        self.forget(wanted, &kinds);
        let mut scrapes = Vec::new();
        let mut series = 0;
        let mut all_whole = true;
        let mut ahead = Vec::new();
        let mut claimed: Option<(String, usize)> = None;
        for kind in kinds.keys() {
            let now = self.clock.now();
            let answers = self.ask(kind, wanted, now, tracker).await;
            self.tell(kind, &answers);
            series += answers.series;
            all_whole &= answers.outcome.is_whole();
            let Some(mut grouped) = answers.grouped else { continue };
            ahead.append(&mut grouped.ahead);
            if let Some((example, count)) = grouped.claimed.take() {
                claimed.get_or_insert((example, 0)).1 += count;
            }
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

        let newest = self.replicas.values().filter_map(|known| known.newest).max();
        if let Some(newest) = newest.and_then(|newest| Timestamp::from_millisecond(newest).ok()) {
            self.metrics.saw(newest);
        }

        self.tell_ahead(&ahead);
        self.tell_claimed(claimed);
        self.tell_intervals();
        scrapes
    }

    /// Queries one kind of replicas.
    async fn ask(
        &self,
        kind: &MatchKind,
        wanted: &Arc<Vec<VariantQuery>>,
        now: Timestamp,
        tracker: &TaskTracker,
    ) -> RoundResult {
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

        let reading = RoundInput {
            wanted: Arc::clone(wanted),
            kind: kind.clone(),
            settings: Arc::clone(&self.settings),
            known: self.replicas.clone(),
            asked: self.asked.clone(),
            now: now.as_millisecond(),
        };

        // The answer for a thousand replicas takes a second to decode, and a tick must not wait for
        // it.
        let metrics = self.metrics.clone();
        let read = tracker.spawn_blocking(move || reading.read(&bodies, &metrics)).await;
        match read {
            Ok(Ok(answers)) => answers,
            Ok(Err(failure)) => self.failed(&failure),
            // The process is shutting down.
            Err(ended) => self.failed(&QueryFailure::from_error(QueryOutcome::Malformed, &ended)),
        }
    }

    fn failed(&self, failure: &QueryFailure) -> RoundResult {
        let QueryFailure { outcome, detail } = failure.clone();
        self.metrics.answered(outcome, 0);
        RoundResult { outcome, detail, series: 0, grouped: None }
    }

    fn question(
        &self,
        kind: &MatchKind,
        wanted: &[VariantQuery],
        now: Timestamp,
        samples: Samples,
    ) -> Question {
        let own = of_kind(wanted, kind);
        let at = now.saturating_add(AHEAD).unwrap_or(now);
        let span = at.duration_since(self.since(kind, &own, now));
        let range = Duration::try_from(span).unwrap_or(self.settings.lookback);
        let query = selector(&own, samples, &self.settings, range, self.client.room());
        Question { query, at }
    }

    /// Returns the start of the range to query: [`OVERLAP`] before the last reading of the replica
    /// that lags most, among those that still exist.
    fn since(&self, kind: &MatchKind, own: &[&VariantQuery], now: Timestamp) -> Timestamp {
        let lookback = SignedDuration::try_from(self.settings.lookback).unwrap_or(OVERLAP);
        let earliest = now.saturating_sub(lookback).unwrap_or(now);
        let latest = now.saturating_sub(OVERLAP).unwrap_or(now);
        // If an answer was too large, the range is as short as possible.
        if self.outcomes.get(kind) == Some(&QueryOutcome::TooLarge) {
            return latest;
        }

        let variants: BTreeSet<&VariantKey> = own.iter().map(|one| &one.variant).collect();
        let known = self.replicas.iter().filter(|(key, _)| variants.contains(&key.variant));
        let taken = known.filter_map(|(_, known)| Timestamp::from_millisecond(known.taken?).ok());
        let oldest = taken.filter(|taken| *taken >= earliest).min();
        let since = oldest.and_then(|oldest| oldest.saturating_sub(OVERLAP).ok());
        since.unwrap_or(earliest).clamp(earliest, latest)
    }

    /// Applies the answers for one kind.
    fn take(
        &mut self,
        kind: &MatchKind,
        wanted: &[VariantQuery],
        now: Timestamp,
        outcome: QueryOutcome,
        grouped: AnswerGroups,
    ) -> Vec<Scrape> {
        let AnswerGroups { taken, replicas, .. } = grouped;
        self.replicas.extend(replicas);
        self.asked.extend(of_kind(wanted, kind).into_iter().map(|one| one.variant.clone()));
        if outcome.is_whole() {
            self.list(kind, wanted, now);
            self.tell_unmatched(wanted, kind);
        }

        taken.into_iter().map(|taken| self.tell_reading(taken)).collect()
    }

    /// Updates the replicas that label matches find. Only a complete answer is a valid list.
    fn list(&mut self, kind: &MatchKind, wanted: &[VariantQuery], now: Timestamp) {
        let lookback = i64::try_from(self.settings.lookback.as_millis()).unwrap_or(i64::MAX);
        let earliest = now.as_millisecond().saturating_sub(lookback);

        for one in of_kind(wanted, kind) {
            let SeriesSelection::Match(_) = &one.which else { continue };
            self.replicas.retain(|key, known| {
                key.variant != one.variant || known.newest.is_some_and(|newest| newest >= earliest)
            });
            let own = self.replicas.keys().filter(|key| key.variant == one.variant);
            let found = InstanceList { replicas: own.cloned().collect(), as_of: now };
            // A variant without a single series may have a wrong matcher.
            if !found.replicas.is_empty() {
                self.instances.insert(one.variant.clone(), found);
            }
        }
    }

    /// Forgets all state that is no longer wanted.
    fn forget(&mut self, wanted: &[VariantQuery], kinds: &BTreeMap<MatchKind, Vec<&VariantQuery>>) {
        let mut listed: BTreeSet<&ReplicaKey> = BTreeSet::new();
        let mut matched: BTreeSet<&VariantKey> = BTreeSet::new();
        for one in wanted {
            match &one.which {
                SeriesSelection::Pods(replicas) | SeriesSelection::Instances(replicas) => {
                    listed.extend(replicas);
                }
                SeriesSelection::Match(_) => {
                    matched.insert(&one.variant);
                }
            }
        }

        self.replicas.retain(|key, _| listed.contains(key) || matched.contains(&key.variant));
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

    /// Logs the outcome of a kind's queries if it has changed.
    fn tell(&mut self, kind: &MatchKind, answers: &RoundResult) {
        let RoundResult { outcome, detail, .. } = answers;
        let before = self.outcomes.insert(kind.clone(), *outcome);
        if before == Some(*outcome) {
            tracing::debug!(outcome = outcome.label(), detail, "Prometheus was asked");
            return;
        }

        let url = &self.settings.url;
        let label = outcome.label();
        match outcome {
            QueryOutcome::Answered => tracing::info!(url, "Prometheus returns complete responses"),
            QueryOutcome::Empty => tracing::warn!(
                url,
                outcome = label,
                "Prometheus has no series of these replicas; is it the right server or tenant, \
                 does it scrape them, and do the labels match? {detail}"
            ),
            QueryOutcome::Partial => tracing::warn!(
                url,
                outcome = label,
                "Prometheus returns partial responses: {detail}. They block scale-down. Replicas \
                 without an earlier reading get none, so after a restart, load causes no scale-up \
                 either"
            ),
            QueryOutcome::NativeHistograms => tracing::warn!(
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
                "Prometheus cannot be used; data becomes stale and desired replicas do not change"
            ),
        }
    }

    /// Records a reading on the board and in the log, and returns it.
    fn tell_reading(&mut self, taken: ReplicaScrape) -> Scrape {
        let ReplicaScrape { replica, at, outcome } = taken;
        let entry = self.entries.entry(replica.clone()).or_insert_with(|| {
            let url = format!("{} (by Prometheus)", self.settings.url);
            self.board.add(replica.clone(), url)
        });
        let change = record(entry, at, outcome.as_ref().map(|_| ()));
        let ReplicaKey { variant, replica: name, incarnation: _ } = &replica;
        match &outcome {
            Ok(_) => self.metrics.readings.inc(),
            Err(failure) => {
                self.metrics.failed_readings.inc();
                if change == StatusChange::Fails {
                    let reason = failure.class.label();
                    let error = &failure.detail;
                    tracing::warn!(%variant, replica = %name, reason, %error, "Replica has no \
                        reading");
                }
            }
        }

        if change == StatusChange::Recovers {
            tracing::info!(%variant, replica = %name, "Replica has readings again");
        }

        Scrape { replica, at, outcome: outcome.map_err(|failure| failure.class) }
    }

    /// Logs variants whose replicas have no series in Prometheus.
    fn tell_unmatched(&mut self, wanted: &[VariantQuery], kind: &MatchKind) {
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
                    "Prometheus has no series of this variant's replicas, which are matched by {}",
                    self.sought(&one.which)
                );
            }
        }
    }

    /// Describes the labels that select a variant's series, for the log.
    fn sought(&self, which: &SeriesSelection) -> String {
        let labels = &self.settings.labels;

        match which {
            SeriesSelection::Pods(_) => {
                format!("the labels {} and {}", labels.namespace, labels.pod)
            }
            SeriesSelection::Instances(_) => format!("the label {}", labels.instance),
            SeriesSelection::Match(matched) => {
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
                "Samples are from the future, such as those of {} {}: the clocks of Prometheus \
                 and of this machine differ. Samples of such replicas are refused",
                first.variant,
                first.replica
            );
        }

        self.ahead = !ahead.is_empty();
    }

    fn tell_claimed(&mut self, claimed: Option<(String, usize)>) {
        self.metrics.claimed.set(count(claimed.as_ref().map_or(0, |(_, series)| *series)));
        let is_claimed = claimed.is_some();
        if let Some((example, series)) = claimed.filter(|_| !self.claimed) {
            tracing::error!(
                series,
                "Several variants claim the same series, such as those of {example}, so none uses \
                 them"
            );
        }

        self.claimed = is_claimed;
    }

    /// Warns if Prometheus scrapes too seldom to keep data fresh from one sample to the next.
    fn tell_intervals(&mut self) {
        let intervals = self.replicas.values().map(|known| {
            let [before, last] = known.intervals;
            // A single missed scrape does not count as an interval.
            before.min(last)
        });
        let milliseconds = u64::try_from(intervals.max().unwrap_or_default()).unwrap_or_default();
        let longest = Duration::from_millis(milliseconds);
        self.metrics.interval.set(longest.as_secs_f64());
        let PrometheusSettings { stale_after, interval, .. } = &*self.settings;
        let needed = longest.saturating_mul(2) + *interval;
        let slow = needed > *stale_after;
        if slow && !self.slow {
            tracing::warn!(
                scrape_interval = ?longest,
                stale_after = ?stale_after,
                "Prometheus scrapes too rarely: one missed scrape makes a replica stale. Scrape \
                 more often, or set prometheus.stale_after to {needed:?} or more"
            );
        }

        self.slow = slow;
    }
}

/// The input for decoding a round's answers.
struct RoundInput {
    wanted: Arc<Vec<VariantQuery>>,
    kind: MatchKind,
    settings: Arc<PrometheusSettings>,
    known: BTreeMap<ReplicaKey, ReplicaProgress>,
    asked: BTreeSet<VariantKey>,
    now: i64,
}

impl RoundInput {
    fn read(
        &self,
        bodies: &[Bytes],
        metrics: &PrometheusMetrics,
    ) -> Result<RoundResult, QueryFailure> {
        let Self { wanted, kind, settings, known, asked, now } = self;
        let [numbers, buckets] = bodies else {
            return Err(QueryFailure::new(QueryOutcome::Malformed, "there are not two answers"));
        };

        let limit = settings.series_limit;
        let mut grouping = Grouping::new(wanted, kind, &settings.labels, known, asked, *now);
        let first = decode(numbers, limit, &mut |labels, points| grouping.number(labels, points))?;
        let first_outcome = outcome(&first);
        metrics.answered(
            if first.series == 0 { QueryOutcome::Empty } else { first_outcome },
            first.samples,
        );

        grouping.begin_groups(*now);
        let second = decode(buckets, limit, &mut |labels, points| grouping.bucket(labels, points))?;
        let second_outcome = outcome(&second);
        metrics.answered(second_outcome, second.samples);

        let worst =
            [first_outcome, second_outcome].into_iter().max().unwrap_or(QueryOutcome::Answered);
        let partial = [first_outcome, second_outcome].contains(&QueryOutcome::Partial);
        let (outcome, completeness) = match (first.series, partial) {
            (_, true) => (QueryOutcome::Partial, Completeness::Partial),
            (0, false) => (QueryOutcome::Empty, Completeness::Whole),
            (_, false) => (worst, Completeness::Whole),
        };

        let detail = detail(outcome, &first, &second);
        let series = first.series + second.series;
        let grouped = (outcome != QueryOutcome::Empty).then(|| grouping.finish(completeness));
        Ok(RoundResult { outcome, detail, series, grouped })
    }
}

fn outcome(answer: &AnswerSummary) -> QueryOutcome {
    if answer.is_partial {
        QueryOutcome::Partial
    } else if answer.native_histogram.is_some() {
        QueryOutcome::NativeHistograms
    } else {
        QueryOutcome::Answered
    }
}

fn detail(outcome: QueryOutcome, first: &AnswerSummary, second: &AnswerSummary) -> String {
    match outcome {
        QueryOutcome::Partial => {
            let warnings: Vec<&str> =
                first.warnings.iter().chain(&second.warnings).map(String::as_str).collect();
            if warnings.is_empty() { "isPartial is true".into() } else { warnings.join("; ") }
        }
        QueryOutcome::NativeHistograms => first
            .native_histogram
            .iter()
            .chain(&second.native_histogram)
            .next()
            .cloned()
            .unwrap_or_default(),
        _ => String::new(),
    }
}

/// Returns the variants of one kind.
fn of_kind<'w>(wanted: &'w [VariantQuery], kind: &MatchKind) -> Vec<&'w VariantQuery> {
    wanted.iter().filter(|one| MatchKind::of(&one.which) == *kind).collect()
}
