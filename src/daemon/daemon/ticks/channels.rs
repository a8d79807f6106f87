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

/// The requests for the scene of a tick that wait at once. One explanation is computed at a time.
const SCENES_MAX: usize = 4;

/// The senders of requests to the loop.
pub(crate) struct LoopRequests {
    pub(crate) reloads: mpsc::Sender<ConfigReload>,
    pub(crate) scenes: mpsc::Sender<SceneRequest>,
    pub(crate) overrides: mpsc::Sender<OverrideRequest>,
}

/// The requests to the loop.
pub(crate) struct LoopInboxes {
    pub(crate) reloads: mpsc::Receiver<ConfigReload>,
    pub(crate) scenes: mpsc::Receiver<SceneRequest>,
    pub(crate) overrides: mpsc::Receiver<OverrideRequest>,
}

/// Both ends of the channels for requests to the loop.
pub(crate) fn requests() -> (LoopRequests, LoopInboxes) {
    let (reload_sender, reloads) = mpsc::channel(1);
    let (scene_sender, scenes) = mpsc::channel(SCENES_MAX);
    let (override_sender, overrides) = mpsc::channel(1);

    let senders =
        LoopRequests { reloads: reload_sender, scenes: scene_sender, overrides: override_sender };
    (senders, LoopInboxes { reloads, scenes, overrides })
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
    pub(crate) inboxes: LoopInboxes,
    pub(crate) surroundings: ListerContext,
    pub(crate) tracker: TaskTracker,
    pub(crate) history: Arc<RecentHistory>,
    pub(crate) cards: Arc<watch::Sender<Cards>>,
    pub(crate) tracer: Option<Tracer>,
}
