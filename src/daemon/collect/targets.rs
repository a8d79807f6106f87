//! Targets that are listed outside Kubernetes: static, in files, in DNS.
//!
//! A [`Lister`] reads its source at an interval, and publishes its list as [`TargetList`]. If a
//! source cannot be read or fully parsed, nothing changes. The last good list stays, and its age
//! shows that it has not been confirmed since. Losing a name server or half of a file therefore
//! never looks like losing replicas. Only a file that contains `[]` lists no targets.

mod address;
mod dns;
mod file_sd;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use prometheus::{IntCounterVec, Registry};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::clock::Clock;
use crate::collect::file::FileError;
use crate::collect::scrape::{ScrapeSettings, Target};
use crate::collect::targets::dns::Resolver;
use crate::collect::targets::file_sd::TargetFiles;
use crate::telemetry::registrar::Registrar;
use plimsoll_core::fleet::{ModelName, ReplicaKey, VariantKey};
use plimsoll_core::settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::collect::targets::address::{Address, AddressError};
pub use crate::collect::targets::dns::NameServer;

/// Interval at which a static list is confirmed. It is always true, but consumers judge every list
/// by its age. This interval is well below the age at which any of them abandons a list.
const STATIC_REFRESH: Duration = Duration::from_secs(5);

/// The shortest time between two readings. Configured ones are longer, and 0 would spin.
const REFRESH_MIN: Duration = Duration::from_millis(10);

/// The source of one variant's target list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetSource {
    /// These addresses, `HOST:PORT` each.
    Static(Vec<String>),
    /// Files in the format of Prometheus' `file_sd_configs` (JSON or YAML).
    File {
        /// The files.
        paths: Vec<PathBuf>,
        /// Interval at which they are read.
        refresh: Duration,
    },
    /// Names in DNS.
    Dns {
        /// The names.
        names: Vec<String>,
        /// The record type to look up.
        record: Record,
        /// The port; `None` only for SRV records, which contain it.
        port: Option<u16>,
        /// Interval at which the names are looked up.
        refresh: Duration,
    },
}

/// A type of DNS record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum Record {
    /// IPv4 addresses.
    A,
    /// IPv6 addresses.
    Aaaa,
    /// Hosts and ports.
    Srv,
}

settings! { plain: Record; }

/// The parts of a metrics URL that an address may lack.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Port for addresses that have none.
    pub port: u16,
    /// Path of the metrics, such as `/metrics`.
    pub path: String,
}

/// The scheme of a page's URL.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Plain HTTP.
    Http,
    /// HTTP over TLS.
    Https,
}

settings! { plain: Scheme; }

/// The list from a source.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetList {
    /// The addresses, sorted, each once.
    pub addresses: Vec<Address>,
    /// The time at which the source last confirmed the list.
    pub as_of: Timestamp,
}

/// The reason why a source has no list.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListError {
    /// A file cannot be read.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file is not a list of groups of targets.
    #[error("{} is not a list of targets: {detail}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The problem, and its position.
        detail: String,
    },
    /// An entry is not an address.
    #[error("{text:?} is not a target")]
    Address {
        /// The entry.
        text: String,
        /// The problem with it.
        #[source]
        source: AddressError,
    },
    /// The name does not exist, or has no records of this type.
    #[error("{name} has no {} records", record.label())]
    NoRecords {
        /// The name.
        name: String,
        /// The record type that was looked up.
        record: Record,
    },
    /// No name server answered.
    #[error("no name server answered for {name}")]
    NoAnswer {
        /// The name.
        name: String,
    },
    /// The lookup failed in another way.
    #[error("cannot look up {name}: {detail}")]
    Lookup {
        /// The name.
        name: String,
        /// The error.
        detail: String,
    },
    /// The system's name servers cannot be determined.
    #[error("the system's name servers are unknown: {detail}")]
    NoResolver {
        /// The error.
        detail: String,
    },
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

// === impl Record ===

impl Record {
    /// The type as written in zone files.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::A => "A",
            Self::Aaaa => "AAAA",
            Self::Srv => "SRV",
        }
    }
}

// === impl Scheme ===

impl Scheme {
    /// The scheme as written in URLs.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
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

// === impl ListError ===

impl ListError {
    /// The error as a label value.
    const fn label(&self) -> &'static str {
        match self {
            Self::File(_) => "unreadable",
            Self::Malformed { .. } => "malformed",
            Self::Address { .. } => "bad_address",
            Self::NoRecords { .. } => "no_records",
            Self::NoAnswer { .. } => "no_answer",
            Self::Lookup { .. } => "lookup_failed",
            Self::NoResolver { .. } => "no_resolver",
        }
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
            "Readings of a list of targets that failed, so that the last good list stayed.",
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
            tracing::error!(source, reason, error, "Targets cannot be listed; the last list stays");
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
            Self::Files(files) => files.read().await,
            Self::Dns(resolver) => resolver.read().await,
        }
    }
}

fn parse(text: &str) -> Result<Address, ListError> {
    text.parse().map_err(|source| ListError::Address { text: text.to_owned(), source })
}
