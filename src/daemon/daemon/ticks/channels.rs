//! The inputs and outputs of the decision loop.

use std::sync::Arc;

use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::task::TaskTracker;

use crate::clock::Clock;
use crate::clock::heartbeat::Heartbeat;
use crate::collect::cluster::ClusterState;
use crate::collect::prometheus::{Instances, VariantQuery};
use crate::collect::scrape::Target;
use crate::config::Config;
use crate::daemon::announce::Announcer;
use crate::daemon::context::Cards;
use crate::daemon::demand::WakeSignals;
use crate::daemon::directory::ListerContext;
use crate::daemon::sharing::Sharing;
use crate::daemon::ticks::overrides::OverrideRequest;
use crate::daemon::ticks::scenes::SceneRequest;
use crate::daemon::ticks::trace::Tracer;
use crate::publish::Published;
use crate::publish::history::RecentHistory;
use crate::telemetry::Telemetry;
use plimsoll_core::observe::Scrape;

/// A configuration to apply, and the channel for its confirmation.
pub(crate) struct ConfigReload {
    /// The configuration.
    pub(crate) config: Config,
    /// Notified when the next tick will use it.
    pub(crate) done: oneshot::Sender<()>,
}

/// The queries to send to Prometheus, and the instances that it returns.
pub(crate) struct PrometheusChannels {
    pub(crate) wanted: watch::Sender<Arc<Vec<VariantQuery>>>,
    pub(crate) instances: watch::Receiver<Arc<Instances>>,
}

/// The inputs and outputs of the loop.
pub(crate) struct TickChannels {
    pub(crate) clock: Clock,
    pub(crate) heartbeat: Heartbeat,
    pub(crate) telemetry: Telemetry,
    pub(crate) published: watch::Sender<Arc<Published>>,
    pub(crate) scrapes: mpsc::Receiver<Scrape>,
    pub(crate) targets: watch::Sender<Arc<Vec<Target>>>,
    pub(crate) cluster: Option<watch::Receiver<Arc<ClusterState>>>,
    pub(crate) announcer: Option<Announcer>,
    pub(crate) sharing: Option<Sharing>,
    pub(crate) prometheus: Option<PrometheusChannels>,
    pub(crate) signals: WakeSignals,
    pub(crate) reloads: mpsc::Receiver<ConfigReload>,
    pub(crate) surroundings: ListerContext,
    pub(crate) tracker: TaskTracker,
    pub(crate) history: Arc<RecentHistory>,
    pub(crate) cards: Arc<watch::Sender<Cards>>,
    pub(crate) tracer: Option<Tracer>,
    pub(crate) scenes: mpsc::Receiver<SceneRequest>,
    pub(crate) overrides: mpsc::Receiver<OverrideRequest>,
}
