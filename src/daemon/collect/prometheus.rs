//! Prometheus as a source: samples that another has scraped, turned into [`plimsoll_core::observe::Scrape`].
//!
//! One task asks, at an interval, for the raw samples of all replicas that are wanted (`query`,
//! `client`), reads the answers (`decode`), and puts together what each replica's page said at each
//! instant (`group`). The core gets the same readings as from pages of our own, only later.
//!
//! Whatever goes wrong, nothing is sent: data that does not come grows old by itself, and the core
//! knows what to do about old data. Only `up == 0` is a scrape that failed, for that is what it is.
//! What went wrong is told by [`Outcome`], in a metric, and in the log when it changes.
//!
//! Each query asks for what is newer than what has been taken, and for a little more, because
//! samples may be written late. What is seen twice is taken once, by its time.

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
use crate::collect::prometheus::round::Rounds;
use crate::collect::replace;
use crate::collect::scrape::{self, Board};
use plimsoll_core::fleet::names::{PROMETHEUS_LABEL, is_prometheus_label};
use plimsoll_core::fleet::{ModelName, ReplicaKey, VariantKey};
use plimsoll_core::observe::Scrape;
use plimsoll_core::settings;
use plimsoll_core::settings::{TextRule, text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use crate::collect::prometheus::ask::Asker;
pub use crate::collect::prometheus::decode::{Answer, Each, Point, decode};
pub use crate::collect::prometheus::failure::{Failure, Outcome};
pub use crate::collect::prometheus::history::{History, Past};
pub use crate::collect::prometheus::metrics::Metrics;

/// How a Prometheus is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The URL below which its API is, without a slash at the end.
    pub url: String,
    /// How queries are sent.
    pub method: Method,
    /// Time between two rounds of queries.
    pub interval: Duration,
    /// Time after which a query is given up.
    pub timeout: Duration,
    /// How far back samples are asked for at most, and how long an instance without samples counts
    /// as there.
    pub lookback: Duration,
    /// Age from which data is too old to act on; the pipeline's, kept here to judge intervals.
    pub stale_after: Duration,
    /// The most series that one answer may have.
    pub series_limit: usize,
    /// Largest body that is read, in bytes, after decompression.
    pub body_limit: usize,
    /// TLS, and the file with a bearer token.
    pub client: scrape::Client,
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

/// A text that is shown nowhere.
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

/// Names of labels as the selectors of series have them.
const LABELS: TextRule = text(is_prometheus_label, PROMETHEUS_LABEL);

fn is_user(text: &str) -> bool {
    !text.is_empty() && !text.contains(':')
}

/// A variant whose replicas are asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// The variant.
    pub variant: VariantKey,
    /// The names under which its pages may speak of its model; none means that any will do.
    pub models: Vec<ModelName>,
    /// Which series are its replicas'.
    pub which: Which,
}

/// Which series are those of a variant's replicas.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those of these pods, in the variant's namespace.
    Pods(Vec<ReplicaKey>),
    /// Those of these instances.
    Instances(Vec<ReplicaKey>),
    /// Those with these labels; each instance among them is a replica.
    Match(BTreeMap<String, String>),
}

/// The replicas that were found by their labels.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// The replicas, in order.
    pub replicas: Vec<ReplicaKey>,
    /// When Prometheus last said so.
    pub as_of: Timestamp,
}

/// The replicas of each variant that is found by labels. One that was never found has no entry.
pub type Instances = BTreeMap<VariantKey, Found>;

/// Asks one Prometheus, again and again.
pub struct Source {
    rounds: Rounds,
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

    /// The text, for whoever must send it.
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

// === impl Source ===

impl Source {
    /// A source that sends to `scrapes` and writes the state of each replica on `board`.
    #[must_use]
    pub fn new(
        settings: Settings,
        clock: Clock,
        metrics: Metrics,
        board: Board,
        scrapes: mpsc::Sender<Scrape>,
    ) -> Self {
        let interval = settings.interval;
        Self { rounds: Rounds::new(settings, clock, metrics, board), interval, scrapes }
    }

    /// Asks for whatever `wanted` holds, until `stop` is cancelled. Replicas that are found by
    /// labels go to `instances`.
    pub async fn run(
        self,
        wanted: watch::Receiver<Arc<Vec<Wanted>>>,
        instances: watch::Sender<Arc<Instances>>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) {
        let Self { mut rounds, interval, scrapes } = self;
        let mut turns = tokio::time::interval(interval);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let forever = async {
            let mut wanted = wanted;
            loop {
                turns.tick().await;
                // Before the first list there is nothing to ask for, and no need to wait a turn.
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
