//! Prometheus as a source: turns its scraped samples into [`plimsoll_core::observe::Scrape`].
//!
//! One task queries, at an interval, the raw samples of all wanted replicas (`query`, `client`) and
//! decodes the answers (`decode`). It then reconstructs each replica's metrics at each instant
//! (`group`). The core gets the same readings as from Plimsoll's own scrapes, only later.
//!
//! If a query fails, nothing is sent. The last data ages, and the core handles old data. A failed
//! scrape is sent only if Prometheus recorded one (`up == 0`), or if the samples are unusable. The
//! [`QueryOutcome`] of each query is in a metric, and in the log when it changes.
//!
//! Each query covers the time since the last reading and a little more, because samples may be
//! written late. A sample that occurs twice is identified by its time and used once.

mod ask;
mod client;
mod decode;
mod failure;
mod group;
mod history;
mod metrics;
mod query;
mod round;

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::prometheus::round::QueryRounds;
use crate::collect::replace;
use crate::collect::scrape::{self, TargetBoard};
use plimsoll_core::fleet::names::{PROMETHEUS_LABEL, is_prometheus_label};
use plimsoll_core::fleet::{ModelName, ReplicaKey, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_core::settings;
use plimsoll_core::settings::{TextRule, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::collect::prometheus::ask::Asker;
pub use crate::collect::prometheus::decode::{AnswerSummary, Point, SeriesCallback, decode};
pub use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome};
pub use crate::collect::prometheus::history::{PastReadings, PrometheusHistory};
pub use crate::collect::prometheus::metrics::PrometheusMetrics;

/// The settings for queries to a Prometheus.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrometheusSettings {
    /// The base URL of its API, without a trailing slash.
    pub url: String,
    /// How queries are sent.
    pub method: Method,
    /// Time between two rounds of queries.
    pub interval: Duration,
    /// Time after which a query is abandoned.
    pub timeout: Duration,
    /// The longest range of a query, and the time for which an instance without samples still
    /// counts as existing.
    pub lookback: Duration,
    /// Age from which data is too old to act on. It belongs to the pipeline and is used here to
    /// check scrape intervals.
    pub stale_after: Duration,
    /// The maximum number of series in one answer.
    pub series_limit: usize,
    /// Largest body that is read, in bytes, after decompression.
    pub body_limit: usize,
    /// TLS, and the file with a bearer token.
    pub client: scrape::ClientSettings,
    /// A user and the file with the password.
    pub basic_auth: Option<BasicAuth>,
    /// Headers of every query.
    pub headers: BTreeMap<String, Secret>,
    /// Headers of every query whose values are in files, read again for each.
    pub header_files: BTreeMap<String, PathBuf>,
    /// Parameters of every query.
    pub parameters: BTreeMap<String, String>,
    /// The labels by which replicas are found.
    pub labels: LabelNames,
}

/// How queries are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// In the body of a POST, or by GET where the server refuses that.
    Post,
    /// In the URL.
    Get,
}

settings! { plain: Method; }

/// A text that is never shown.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

settings! {
    /// The labels by which replicas are found.
    // The defaults are the names that the Prometheus Operator gives.
    #[derive(Eq)]
    pub struct LabelNames {
        /// The namespace of a pod.
        namespace: String = "namespace", in LABELS;

        /// The name of a pod.
        pod: String = "pod", in LABELS;

        /// The address that was scraped.
        instance: String = "instance", in LABELS;
    }

    /// A user and the file with the password.
    #[derive(Eq)]
    pub struct BasicAuth {
        /// The user.
        username: String, in text(is_user, "must be a user's name, without `:`"),
            required "is missing";

        /// The file with the password, read again for each query.
        password_file: PathBuf, required "is missing";
    }
}

/// Label names that are valid in series selectors.
const LABELS: TextRule = text(is_prometheus_label, PROMETHEUS_LABEL);

fn is_user(text: &str) -> bool {
    !text.is_empty() && !text.contains(':')
}

/// A variant whose replicas are queried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VariantQuery {
    /// The variant.
    pub variant: VariantKey,
    /// The names that its metrics may give its model; if empty, any name is accepted.
    pub models: Vec<ModelName>,
    /// Selects the series of its replicas.
    pub which: SeriesSelection,
}

/// Selects the series of a variant's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SeriesSelection {
    /// The series of these pods, in the variant's namespace.
    Pods(Vec<ReplicaKey>),
    /// The series of these instances.
    Instances(Vec<ReplicaKey>),
    /// The series with these labels. Each instance among them is a replica.
    Match(BTreeMap<String, String>),
}

/// The replicas that a label match found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InstanceList {
    /// The replicas, in order.
    pub replicas: Vec<ReplicaKey>,
    /// The time at which Prometheus last confirmed them.
    pub as_of: Timestamp,
}

/// The replicas of each variant that is matched by labels. Variants without any match have no
/// entry.
pub type Instances = BTreeMap<VariantKey, InstanceList>;

/// Queries one Prometheus at an interval.
pub struct PrometheusSource {
    rounds: QueryRounds,
    interval: Duration,
    scrapes: mpsc::Sender<Scrape>,
}

// === impl Secret ===

impl Secret {
    /// Hides a text.
    #[must_use]
    pub const fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the text, for sending it.
    #[must_use]
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

// === impl LabelNames ===

// === impl PrometheusSource ===

impl PrometheusSource {
    /// Creates a source that sends to `scrapes` and records the status of each replica on `board`.
    #[must_use]
    pub fn new(
        settings: PrometheusSettings,
        clock: Clock,
        metrics: PrometheusMetrics,
        board: TargetBoard,
        scrapes: mpsc::Sender<Scrape>,
    ) -> Self {
        let interval = settings.interval;
        Self { rounds: QueryRounds::new(settings, clock, metrics, board), interval, scrapes }
    }

    /// Queries the variants in `wanted`, until `stop` is cancelled. Replicas that label matches
    /// find go to `instances`.
    pub async fn run(
        self,
        mut wanted: watch::Receiver<Arc<Vec<VariantQuery>>>,
        instances: watch::Sender<Arc<Instances>>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) {
        let Self { mut rounds, interval, scrapes } = self;
        let mut turns = tokio::time::interval(interval);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let forever = async {
            loop {
                turns.tick().await;
                // Before the first list there are no variants to query. The first query after it
                // does not wait for a turn.
                if wanted.borrow().is_empty() && wanted.changed().await.is_err() {
                    return;
                }

                let all = Arc::clone(&wanted.borrow_and_update());
                for scrape in rounds.turn(&all, &tracker).await {
                    if scrapes.send(scrape).await.is_err() {
                        return;
                    }
                }

                replace(&instances, Arc::new(rounds.instances()));
            }
        };

        stop.run_until_cancelled(forever).await;
    }
}
