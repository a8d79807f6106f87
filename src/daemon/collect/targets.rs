//! Targets that are listed outside Kubernetes: static, in files, in DNS.
//!
//! A [`Lister`] reads its source at an interval, and publishes its list as [`TargetList`]. If a
//! source cannot be read or fully parsed, nothing changes. The last good list stays, and its age
//! shows that it has not been confirmed since. Losing a name server or half of a file therefore
//! never looks like losing replicas. Only a valid file without targets, such as `[]`, lists none.

mod address;
mod dns;
mod endpoint;
mod file_sd;
mod source;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus::{IntCounterVec, Registry};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::collect::scrape::{ScrapeSettings, Target};
use crate::collect::targets::dns::Resolver;
use crate::collect::targets::file_sd::TargetFiles;
use crate::collect::targets::source::{ListError, parse};
use crate::telemetry::registrar::Registrar;
use plimsoll_core::fleet::{ModelName, ReplicaKey, VariantKey};

pub use crate::collect::targets::address::{Address, AddressError};
pub use crate::collect::targets::dns::NameServer;
pub use crate::collect::targets::endpoint::{Endpoint, Scheme};
pub use crate::collect::targets::source::{Record, TargetSource};

/// Interval at which a static list is confirmed. It is always true, but consumers judge every list
/// by its age. This interval is well below the age at which any of them abandons a list.
const STATIC_REFRESH: Duration = Duration::from_secs(5);

/// The shortest time between two readings. Configured ones are longer, and 0 would spin.
const REFRESH_MIN: Duration = Duration::from_millis(10);

/// The list from a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetList {
    /// The addresses, sorted, each once.
    pub addresses: Vec<Address>,
    /// The time at which the source last confirmed the list.
    pub as_of: Timestamp,
}

/// Returns the addresses in a file with this name and content.
///
/// # Errors
///
/// The content is not a list of targets. The error states the problem and its position.
pub fn listed_in(path: &Path, content: &[u8]) -> Result<Vec<Address>, String> {
    file_sd::addresses_in(path, content).map_err(|error| crate::collect::chain(&error))
}

/// Counts the readings that failed.
#[derive(Clone, Debug)]
pub struct TargetMetrics {
    failures: IntCounterVec,
}

/// Keeps the list of one source up to date.
#[derive(Debug)]
pub struct Lister {
    reader: SourceReader,
    refresh: Duration,
    clock: Clock,
    metrics: TargetMetrics,
    /// The error of the last reading, if it failed.
    complaint: Option<String>,
}

/// A source, and the state that is kept between readings.
#[derive(Debug)]
enum SourceReader {
    Static(Vec<String>),
    Files(TargetFiles),
    Dns(Box<Resolver>),
}

// === impl TargetList ===

impl TargetList {
    /// Returns a target for each address. A replica is named for its host and port. Of two
    /// addresses with the same host and port, the first stays.
    #[must_use]
    pub fn targets(
        &self,
        variant: &VariantKey,
        endpoint: &Endpoint,
        models: &[ModelName],
        settings: &Arc<ScrapeSettings>,
    ) -> Vec<Target> {
        let mut targets = BTreeMap::new();
        for address in &self.addresses {
            let replica = address.replica(endpoint);
            targets.entry(replica.clone()).or_insert_with(|| Target {
                replica: ReplicaKey { variant: variant.clone(), replica, incarnation: None },
                url: address.url(endpoint),
                models: models.to_vec(),
                settings: Arc::clone(settings),
            });
        }

        targets.into_values().collect()
    }
}

// === impl TargetMetrics ===

impl TargetMetrics {
    /// Registers the metrics. All possible failures of each kind of source are exported from the
    /// start.
    ///
    /// # Errors
    ///
    /// The registry has a metric with one of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let failures = registrar.counters(
            "plimsoll_discovery_failures_total",
            "Failed readings of a list of targets; the last valid list stays in use.",
            &["source", "reason"],
        )?;
        let possible: [(&str, &[&str]); 3] = [
            ("static", &["bad_address"]),
            ("file", &["unreadable", "malformed", "bad_address"]),
            ("dns", &["no_records", "no_answer", "lookup_failed", "bad_address", "no_resolver"]),
        ];
        for (source, reasons) in possible {
            for reason in reasons {
                failures.with_label_values(&[source, reason]);
            }
        }

        Ok(Self { failures })
    }
}

// === impl Lister ===

impl Lister {
    /// Creates a lister for this source, without reading it yet.
    #[must_use]
    pub fn new(
        source: TargetSource,
        server: NameServer,
        clock: Clock,
        metrics: TargetMetrics,
    ) -> Self {
        let (reader, period) = match source {
            TargetSource::Static(addresses) => (SourceReader::Static(addresses), STATIC_REFRESH),
            TargetSource::File { paths, refresh } => {
                (SourceReader::Files(TargetFiles::new(paths)), refresh)
            }
            TargetSource::Dns { names, record, port, refresh } => {
                let resolver = Resolver::new(names, record, port, server);
                (SourceReader::Dns(Box::new(resolver)), refresh)
            }
        };

        let refresh = period.max(REFRESH_MIN);
        Self { reader, refresh, clock, metrics, complaint: None }
    }

    /// Publishes the source's list, immediately and after each refresh, until `stop` is cancelled.
    ///
    /// `listed` holds `None` until the first reading.
    pub async fn run(
        mut self,
        listed: watch::Sender<Option<Arc<TargetList>>>,
        stop: CancellationToken,
    ) {
        let mut turns = tokio::time::interval(self.refresh);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let forever = async {
            loop {
                turns.tick().await;
                if let Some(list) = self.read().await {
                    listed.send_replace(Some(Arc::new(list)));
                }
            }
        };

        stop.run_until_cancelled(forever).await;
    }

    /// Reads the source once.
    async fn read(&mut self) -> Option<TargetList> {
        // The list is at least as recent as the start of the reading.
        let as_of = self.clock.now();

        match self.reader.read().await {
            Ok(mut addresses) => {
                if self.complaint.take().is_some() {
                    tracing::info!(source = self.reader.label(), "Targets can be listed again");
                }
                addresses.sort_unstable();
                addresses.dedup();
                Some(TargetList { addresses, as_of })
            }
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }

    /// Counts every failure, and logs each failure once while it lasts.
    fn complain(&mut self, error: &ListError) {
        let source = self.reader.label();
        let reason = error.label();
        self.metrics.failures.with_label_values(&[source, reason]).inc();

        let complaint = crate::collect::chain(error);
        if self.complaint.as_ref() != Some(&complaint) {
            let error = &complaint;
            tracing::error!(
                source,
                reason,
                error,
                "Targets cannot be listed; the last list stays \
                in use"
            );
            self.complaint = Some(complaint);
        }
    }
}

// === impl SourceReader ===

impl SourceReader {
    const fn label(&self) -> &'static str {
        match self {
            Self::Static(_) => "static",
            Self::Files(_) => "file",
            Self::Dns(_) => "dns",
        }
    }

    async fn read(&mut self) -> Result<Vec<Address>, ListError> {
        match self {
            Self::Static(addresses) => addresses.iter().map(|text| parse(text)).collect(),
            // Boxed, so that a source takes their memory only during a reading.
            Self::Files(files) => Box::pin(files.read()).await,
            Self::Dns(resolver) => Box::pin(resolver.read()).await,
        }
    }
}
