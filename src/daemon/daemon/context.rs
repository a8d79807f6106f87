//! The state that all parts of a daemon share: clock, metrics, tasks, and the published decisions.

use std::sync::Arc;
use std::time::Duration;

use prometheus::Registry;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::clock::heartbeat::Heartbeat;
use crate::collect::targets::TargetMetrics;
use crate::config::Config;
use crate::daemon::directory::ListerContext;
use crate::publish::Published;
use crate::publish::gauges::WvaPublication;
use crate::publish::history::RecentHistory;
use crate::server::ServerPhase;
use crate::server::shed::ShedMetrics;
use plimsoll_core::analyze::foresight::card::Card;

/// The capacity cards that were learned from engines.
pub(crate) type Cards = Arc<Vec<Arc<Card>>>;

/// The state that all parts of a daemon share.
pub(crate) struct DaemonContext {
    pub(crate) clock: Clock,
    /// The progress of the decision loop.
    pub(crate) heartbeat: Heartbeat,
    pub(crate) registry: Registry,
    /// Counts the connections that the servers close to make room for others.
    pub(crate) shed: ShedMetrics,
    /// Ends everything that must outlive the draining of the servers.
    pub(crate) stop: CancellationToken,
    /// Ends the replica's part in deciding for other replicas, while their decisions are still
    /// served.
    pub(crate) retire: CancellationToken,
    pub(crate) servers: TaskTracker,
    /// Time that open requests have to finish when the servers drain.
    pub(crate) drain_max: Duration,
    pub(crate) tasks: TaskTracker,
    pub(crate) phases: watch::Receiver<ServerPhase>,
    pub(crate) published: watch::Receiver<Arc<Published>>,
    pub(crate) history: Arc<RecentHistory>,
    pub(crate) cards: Arc<watch::Sender<Cards>>,
    pub(crate) wva: WvaPublication,
}

// === impl DaemonContext ===

impl DaemonContext {
    /// Creates the shared state of a configuration.
    pub(super) fn new(
        config: &Config,
        published: watch::Receiver<Arc<Published>>,
        phases: watch::Receiver<ServerPhase>,
    ) -> anyhow::Result<Self> {
        let clock = Clock::start();
        let heartbeat = Heartbeat::start(clock, config.keys.tick_interval);
        let registry = Registry::new();
        let wva = if config.keys.compatibility.wva_metrics {
            WvaPublication::Published
        } else {
            WvaPublication::Off
        };

        let shed = ShedMetrics::register(&registry)?;
        let stop = CancellationToken::new();
        let servers = TaskTracker::new();
        let tasks = TaskTracker::new();
        let retire = stop.child_token();
        let history = Arc::default();
        let cards = Arc::new(watch::Sender::new(Cards::default()));

        Ok(Self {
            clock,
            heartbeat,
            registry,
            shed,
            stop,
            retire,
            servers,
            drain_max: config.keys.shutdown.drain,
            tasks,
            phases,
            published,
            history,
            cards,
            wva,
        })
    }

    /// The context of the lists of replicas.
    pub(super) fn surroundings(&self) -> anyhow::Result<ListerContext> {
        Ok(ListerContext {
            clock: self.clock,
            metrics: TargetMetrics::register(&self.registry)?,
            tracker: self.tasks.clone(),
            stop: self.stop.clone(),
        })
    }
}
