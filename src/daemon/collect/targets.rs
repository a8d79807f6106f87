//! Targets that are listed outside Kubernetes: static, in files, in DNS.
//!
//! A [`Lister`] reads its source again and again, and publishes what it says as [`Listed`]. A source
//! that cannot be read, or cannot be understood in full, changes nothing: the last good list stays,
//! and its age shows that nobody has confirmed it since. So losing a name server or half of a file
//! never looks like losing replicas. Only a file that says `[]` lists no targets.

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
use crate::collect::scrape::{Settings, Target};
use crate::collect::targets::dns::Resolver;
use crate::collect::targets::file_sd::Files;
use crate::telemetry::registrar::Registrar;
use plimsoll_core::fleet::{ModelName, ReplicaKey, VariantKey};
use plimsoll_core::settings;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::collect::targets::address::{Address, AddressError};
pub use crate::collect::targets::dns::NameServer;

/// How often a static list is confirmed. It is always true, but its readers judge every list by
/// its age, and this is well below the age at which any of them gives up a list.
const STATIC_REFRESH: Duration = Duration::from_secs(5);

/// The shortest time between two readings; what is configured is longer, and zero would spin.
const REFRESH_MIN: Duration = Duration::from_millis(10);

/// Where the targets of one variant are listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// These addresses, `HOST:PORT` each.
    Static(Vec<String>),
    /// Files in the format of Prometheus' `file_sd_configs` (JSON or YAML).
    File {
        /// The files.
        paths: Vec<PathBuf>,
        /// How often they are read again.
        refresh: Duration,
    },
    /// Names in DNS.
    Dns {
        /// The names.
        names: Vec<String>,
        /// What is asked for.
        record: Record,
        /// The port; `None` only for SRV records, which carry it.
        port: Option<u16>,
        /// How often the names are looked up again.
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

/// How an address becomes the URL of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endpoint {
    /// `http` or `https`.
    pub scheme: Scheme,
    /// Port for addresses that have none.
    pub port: u16,
    /// Path of the page, such as `/metrics`.
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

/// What a source lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// The addresses, sorted, each once.
    pub addresses: Vec<Address>,
    /// When the source last said so.
    pub as_of: Timestamp,
}

/// Why a source gives no list.
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
        /// What is wrong with it, and where.
        detail: String,
    },
    /// An entry is not an address.
    #[error("{text:?} is not a target")]
    Address {
        /// The entry.
        text: String,
        /// What is wrong with it.
        #[source]
        source: AddressError,
    },
    /// The name does not exist, or has no records of this type.
    #[error("{name} has no {} records", record.label())]
    NoRecords {
        /// The name.
        name: String,
        /// The type that was asked for.
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
        /// What went wrong.
        detail: String,
    },
    /// The system's name servers cannot be found out.
    #[error("the system's name servers are unknown: {detail}")]
    NoResolver {
        /// What went wrong.
        detail: String,
    },
}

/// The addresses that a file of this name and content lists.
///
/// # Errors
///
/// The content is not a list of targets; says what is wrong, and where.
pub fn listed_in(path: &Path, content: &[u8]) -> Result<Vec<Address>, String> {
    file_sd::addresses_in(path, content).map_err(|error| crate::collect::chain(&error))
}

/// Counts the readings that gave no list.
#[derive(Clone, Debug)]
pub struct Metrics {
    failures: IntCounterVec,
}

/// Keeps the list of one source up to date.
#[derive(Debug)]
pub struct Lister {
    reader: Reader,
    refresh: Duration,
    clock: Clock,
    metrics: Metrics,
    /// The error of the last reading, if it failed.
    complaint: Option<String>,
}

/// A source and what reading it again can use.
#[derive(Debug)]
enum Reader {
    Static(Vec<String>),
    Files(Files),
    Dns(Box<Resolver>),
}

// === impl Record ===

impl Record {
    /// The type as it is written in zone files.
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
    /// The scheme as it is written in a URL.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
        }
    }
}

// === impl Listed ===

impl Listed {
    /// A target for each address. A replica is named for its host and port, so of two addresses
    /// that differ in nothing else the first stays.
    #[must_use]
    pub fn targets(
        &self,
        variant: &VariantKey,
        endpoint: &Endpoint,
        models: &[ModelName],
        settings: &Arc<Settings>,
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

// === impl Metrics ===

impl Metrics {
    /// Registers the metrics; what can happen to each kind of source is there from the start.
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
    /// A lister of this source, which has not been read yet.
    #[must_use]
    pub fn new(source: Source, server: NameServer, clock: Clock, metrics: Metrics) -> Self {
        let (reader, refresh) = match source {
            Source::Static(addresses) => (Reader::Static(addresses), STATIC_REFRESH),
            Source::File { paths, refresh } => (Reader::Files(Files::new(paths)), refresh),
            Source::Dns { names, record, port, refresh } => {
                let resolver = Resolver::new(names, record, port, server);
                (Reader::Dns(Box::new(resolver)), refresh)
            }
        };
        let refresh = refresh.max(REFRESH_MIN);
        Self { reader, refresh, clock, metrics, complaint: None }
    }

    /// Publishes the source's list, at once and after each refresh, until `stop` is cancelled.
    ///
    /// `listed` holds `None` until the source has been read for the first time.
    pub async fn run(
        mut self,
        listed: watch::Sender<Option<Arc<Listed>>>,
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
    async fn read(&mut self) -> Option<Listed> {
        // What is read is at least as true as when the reading began.
        let as_of = self.clock.now();
        match self.reader.read().await {
            Ok(mut addresses) => {
                if self.complaint.take().is_some() {
                    tracing::info!(source = self.reader.label(), "Targets can be listed again");
                }
                addresses.sort_unstable();
                addresses.dedup();
                Some(Listed { addresses, as_of })
            }
            Err(error) => {
                self.complain(&error);
                None
            }
        }
    }

    /// Counts every failure, and logs each once for as long as it lasts.
    fn complain(&mut self, error: &ListError) {
        let (source, reason) = (self.reader.label(), error.label());
        self.metrics.failures.with_label_values(&[source, reason]).inc();
        let complaint = crate::collect::chain(error);
        if self.complaint.as_ref() != Some(&complaint) {
            let error = &complaint;
            tracing::error!(source, reason, error, "Targets cannot be listed; the last list stays");
            self.complaint = Some(complaint);
        }
    }
}

// === impl Reader ===

impl Reader {
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
