//! The past, as a Prometheus has it: the readings of a span of time, for whoever asks about a time
//! in which nobody was there to see it.
//!
//! What is asked and how it is read is what a [`Source`](crate::collect::prometheus::Source) does,
//! with two differences. The past is whole: no sample is still to come, so no reading waits. And a
//! failure is the caller's to deal with, because nothing grows old meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;

use crate::collect::prometheus::client::{Client, Question};
use crate::collect::prometheus::decode::decode;
use crate::collect::prometheus::failure::{Failure, Outcome};
use crate::collect::prometheus::group::{Completeness, Grouped, Grouping, Known, Taken};
use crate::collect::prometheus::query::{Kind, kinds, selector};
use crate::collect::prometheus::{Settings, Wanted};
use crate::collect::scrape::Failure as Failed;
use plimsoll_core::fleet::{ReplicaKey, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_core::observe::engine::Samples;

/// How often the files with certificates and tokens are looked at again.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// Asks one Prometheus about the past.
pub struct History {
    settings: Arc<Settings>,
    client: Client,
    replicas: BTreeMap<ReplicaKey, Known>,
}

/// What a span of time had.
#[derive(Debug, Default)]
pub struct Past {
    /// The readings and failures, in the order of time.
    pub scrapes: Vec<Scrape>,
    /// Of each variant of which some failed, why the first one did.
    pub details: BTreeMap<VariantKey, String>,
    /// Where the server says that something is missing: what it says.
    pub missing: Option<String>,
}

impl History {
    /// Asks the server in the settings.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        let settings = Arc::new(settings);
        let client = Client::new(Arc::clone(&settings), CREDENTIALS_REFRESH);
        Self { settings, client, replicas: BTreeMap::new() }
    }

    /// What was scraped after `from` and up to `to`. Spans are asked for in the order of time.
    /// `elapsed` is the monotonic time.
    ///
    /// # Errors
    ///
    /// There is no whole answer of the query API in time. The same span may be asked for again.
    pub async fn between(
        &mut self,
        wanted: &[Wanted],
        (from, to): (Timestamp, Timestamp),
        elapsed: Duration,
    ) -> Result<Past, Failure> {
        let mut past = Past::default();
        let mut replicas = BTreeMap::new();
        for (kind, own) in kinds(wanted) {
            let mut bodies = Vec::new();
            for samples in [Samples::Numbers, Samples::Buckets] {
                let question = self.question(&own, samples, (from, to));
                bodies.push(self.client.ask(&question, elapsed).await?);
            }
            let grouped = self.read(&kind, wanted, &bodies, to, &mut past)?;
            let Some(Grouped { taken, replicas: known, claimed, .. }) = grouped else { continue };
            replicas.extend(known);
            if let Some((example, count)) = claimed {
                past.missing.get_or_insert_with(|| {
                    format!("{count} series, such as of {example}, match several variants; none gets them")
                });
            }
            for Taken { replica, at, outcome } in taken {
                if at <= from || at > to {
                    continue;
                }
                let outcome = outcome.map_err(|Failed { class, detail }| {
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
        own: &[&Wanted],
        samples: Samples,
        (from, to): (Timestamp, Timestamp),
    ) -> Question {
        let range = Duration::try_from(to.duration_since(from)).unwrap_or_default();
        let room = self.client.room();
        Question { query: selector(own, samples, &self.settings.labels, range, room), at: to }
    }

    fn read(
        &self,
        kind: &Kind,
        wanted: &[Wanted],
        bodies: &[bytes::Bytes],
        to: Timestamp,
        past: &mut Past,
    ) -> Result<Option<Grouped>, Failure> {
        let [numbers, buckets] = bodies else {
            return Err(Failure::new(Outcome::Malformed, "there are not two answers"));
        };
        let own: Vec<&Wanted> = wanted.iter().filter(|one| Kind::of(&one.which) == *kind).collect();
        let (limit, now) = (self.settings.series_limit, to.as_millisecond());
        let labels = &self.settings.labels;
        let mut grouping = Grouping::new(&own, labels, &self.replicas, &BTreeSet::new(), now);
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
