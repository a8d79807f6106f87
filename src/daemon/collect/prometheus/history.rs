//! The past, as recorded by a Prometheus: the readings of a span of time in which no daemon ran.
//!
//! Queries and decoding are those of a
//! [`PrometheusSource`](crate::collect::prometheus::PrometheusSource), with two differences. The
//! past is complete: no sample can still arrive, so no reading waits. The caller must handle
//! failures, because no later round replaces the data.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::collect::prometheus::client::{PrometheusClient, Question};
use crate::collect::prometheus::decode::decode;
use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome};
use crate::collect::prometheus::group::{
    AnswerGroups, Completeness, Grouping, ReplicaProgress, ReplicaScrape,
};
use crate::collect::prometheus::query::{MatchKind, kinds, selector};
use crate::collect::prometheus::selection::VariantQuery;
use crate::collect::prometheus::settings::PrometheusSettings;
use crate::collect::scrape::ScrapeError;
use plimsoll_core::fleet::{ReplicaKey, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_core::observe::engine::Samples;

/// Interval at which the files with certificates and tokens are checked for changes.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// Queries one Prometheus about the past.
pub struct PrometheusHistory {
    settings: Arc<PrometheusSettings>,
    client: PrometheusClient,
    replicas: BTreeMap<ReplicaKey, ReplicaProgress>,
}

/// The readings of a span of time.
#[derive(Debug, Default)]
pub struct PastReadings {
    /// The readings and failures, in the order of their times.
    pub scrapes: Vec<Scrape>,
    /// The reason of the first failure, for each variant with failures.
    pub details: BTreeMap<VariantKey, String>,
    /// The server's message, if it reports that data is missing.
    pub missing: Option<String>,
}

impl PrometheusHistory {
    /// Creates a client for the server in the settings.
    #[must_use]
    pub fn new(settings: PrometheusSettings) -> Self {
        let shared = Arc::new(settings);
        let client = PrometheusClient::new(Arc::clone(&shared), CREDENTIALS_REFRESH);
        Self { settings: shared, client, replicas: BTreeMap::new() }
    }

    /// Returns the scrapes after `from` and up to `to`. Spans must be queried in the order of time.
    /// `elapsed` is the monotonic time.
    ///
    /// # Errors
    ///
    /// The query API did not return a complete answer in time. The same span may be queried again.
    pub async fn between(
        &mut self,
        wanted: &[VariantQuery],
        from: Timestamp,
        to: Timestamp,
        elapsed: Duration,
    ) -> Result<PastReadings, QueryFailure> {
        let mut past = PastReadings::default();
        let mut replicas = BTreeMap::new();
        for (kind, own) in kinds(wanted) {
            let mut bodies = Vec::new();
            for samples in [Samples::Numbers, Samples::Buckets] {
                let question = self.question(&own, samples, from, to);
                bodies.push(self.client.ask(&question, elapsed).await?);
            }

            let grouped = self.read(&kind, wanted, &bodies, to, &mut past)?;
            let Some(AnswerGroups { taken, replicas: known, claimed, .. }) = grouped else {
                continue;
            };
            replicas.extend(known);
            if let Some((example, count)) = claimed {
                past.missing.get_or_insert_with(|| {
                    format!(
                        "{count} series, such as of {example}, match several variants, so \
                        none uses them"
                    )
                });
            }

            for ReplicaScrape { replica, at, outcome: reading } in taken {
                if at <= from || at > to {
                    continue;
                }
                let outcome = reading.map_err(|ScrapeError { class, detail }| {
                    past.details.entry(replica.variant.clone()).or_insert(detail);
                    class
                });
                past.scrapes.push(Scrape { replica, at, outcome });
            }
        }

        self.replicas.extend(replicas);
        past.scrapes.sort_by(|a, b| (a.at, &a.replica).cmp(&(b.at, &b.replica)));
        Ok(past)
    }

    fn question(
        &self,
        own: &[&VariantQuery],
        samples: Samples,
        from: Timestamp,
        to: Timestamp,
    ) -> Question {
        let range = Duration::try_from(to.duration_since(from)).unwrap_or_default();
        let room = self.client.room();
        Question { query: selector(own, samples, &self.settings, range, room), at: to }
    }

    fn read(
        &self,
        kind: &MatchKind,
        wanted: &[VariantQuery],
        bodies: &[bytes::Bytes],
        to: Timestamp,
        past: &mut PastReadings,
    ) -> Result<Option<AnswerGroups>, QueryFailure> {
        let [numbers, buckets] = bodies else {
            return Err(QueryFailure::new(QueryOutcome::Malformed, "there are not two answers"));
        };
        let limit = self.settings.series_limit;
        let now = to.as_millisecond();
        let labels = &self.settings.labels;
        let mut grouping =
            Grouping::new(wanted, kind, labels, &self.replicas, &BTreeSet::new(), now);
        let first = decode(numbers, limit, &mut |labels, points| grouping.number(labels, points))?;
        grouping.begin_groups(now);
        let second = decode(buckets, limit, &mut |labels, points| grouping.bucket(labels, points))?;
        for answer in [&first, &second] {
            if answer.is_partial || !answer.warnings.is_empty() {
                past.missing.get_or_insert_with(|| answer.warnings.join("; "));
            }
            if let Some(name) = &answer.native_histogram {
                past.missing.get_or_insert_with(|| {
                    format!("{name} is kept as a native histogram, which has no buckets to read")
                });
            }
        }

        Ok((first.series > 0).then(|| grouping.finish(Completeness::Past)))
    }
}
