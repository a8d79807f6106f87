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
mod selection;
mod series;
mod settings;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::collect::prometheus::round::QueryRounds;
use crate::collect::replace;
use crate::collect::scrape::TargetBoard;
use plimsoll_core::observe::Scrape;

pub use crate::collect::prometheus::ask::Asker;
pub use crate::collect::prometheus::decode::{AnswerSummary, Point, SeriesCallback, decode};
pub use crate::collect::prometheus::failure::{QueryFailure, QueryOutcome};
pub use crate::collect::prometheus::history::{PastReadings, PrometheusHistory};
pub use crate::collect::prometheus::metrics::PrometheusMetrics;
pub use crate::collect::prometheus::selection::{
    InstanceList, Instances, LabelNames, SeriesSelection, VariantQuery,
};
pub use crate::collect::prometheus::settings::{BasicAuth, Method, PrometheusSettings, Secret};

/// Queries one Prometheus at an interval.
pub struct PrometheusSource {
    rounds: QueryRounds,
    interval: Duration,
    scrapes: mpsc::Sender<Scrape>,
}

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
