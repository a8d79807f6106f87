//! Runs the accelerator watches: starts those that are needed, and combines their state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::Api;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, info, info_span, warn};

use crate::clock::Clock;
use crate::collect::cluster::discovery::scope::scopes;
use crate::collect::cluster::follow::{
    Selection, WatchChange, WatchFailure, WatchTiming, follow, guarded,
};
use crate::collect::cluster::inventory::view::{
    AcceleratorNode, AcceleratorPod, AcceleratorQuota, InventoryView,
};
use crate::collect::cluster::keys::WatchScope;
use crate::collect::cluster::needs::ClusterNeeds;
use crate::collect::cluster::state::ClusterState;
use crate::collect::cluster::watched::{ClockReading, WatchHealth, WatchedObjects};
use crate::collect::replace;
use plimsoll_core::observe::inventory::Inventory;

/// Changes that may queue before they are processed.
const BACKLOG: usize = 256;

/// Filters out pods that have ended: they hold nothing, and clusters that run jobs have many.
pub(crate) const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// One watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum InventoryWatchKey {
    Nodes,
    Pods(WatchScope),
    Quotas(WatchScope),
}

/// A watch's report: the watch's serial number and a change.
enum InventoryReport {
    Node(u64, WatchChange<AcceleratorNode>),
    Pod(WatchScope, u64, WatchChange<AcceleratorPod>),
    Quota(WatchScope, u64, WatchChange<AcceleratorQuota>),
}

struct InventoryWatcher {
    client: Client,
    pace: WatchTiming,
    clock: Clock,
    tracker: TaskTracker,
    stop: CancellationToken,
    reports: mpsc::Sender<InventoryReport>,
    needs: watch::Receiver<Arc<ClusterNeeds>>,
    cluster: watch::Receiver<Arc<ClusterState>>,
    seen: InventoryView,
    /// The running watches. Each has a serial number, so that a late report from a stopped watch is
    /// not attributed to its successor.
    watches: BTreeMap<InventoryWatchKey, (u64, DropGuard)>,
    started: u64,
}

/// The inputs of the accelerator watches.
pub(crate) struct AcceleratorInputs {
    pub(crate) client: Client,
    pub(crate) pace: WatchTiming,
    pub(crate) needs: watch::Receiver<Arc<ClusterNeeds>>,
    pub(crate) cluster: watch::Receiver<Arc<ClusterState>>,
    pub(crate) clock: Clock,
}

/// Runs the accelerator watches that are needed, until `stop`. The value is recomputed with every
/// heartbeat.
pub(crate) fn watch(
    inputs: AcceleratorInputs,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Arc<Inventory>> {
    let AcceleratorInputs { client, pace, needs, cluster, clock } = inputs;
    let (reports, inbox) = mpsc::channel(BACKLOG);
    let (sender, receiver) = watch::channel(Arc::default());
    let watcher = InventoryWatcher {
        client,
        pace,
        clock,
        tracker: tracker.clone(),
        stop: stop.clone(),
        reports,
        needs,
        cluster,
        seen: InventoryView::default(),
        watches: BTreeMap::new(),
        started: 0,
    };

    let run = async move { stop.run_until_cancelled(watcher.run(inbox, sender)).await };
    tracker.spawn(run.instrument(info_span!("accelerators")));
    receiver
}

impl InventoryWatcher {
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<InventoryReport>,
        inventory: watch::Sender<Arc<Inventory>>,
    ) {
        let mut heartbeat = interval(self.pace.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);

        loop {
            tokio::select! {
                Some(report) = inbox.recv() => self.absorb(report),
                _ = heartbeat.tick() => {
                    self.reconcile();
                    replace(&inventory, Arc::new(self.look()));
                }
            }
        }
    }

    /// Computes the current inventory.
    fn look(&mut self) -> Inventory {
        if self.watches.is_empty() {
            return Inventory::default();
        }

        let now = self.now();
        let quiet = self.pace.quiet();
        let InventoryView { nodes, pods, quotas } = &mut self.seen;
        if let Some(feed) = nodes {
            feed.age(now, quiet);
        }
        for feed in pods.values_mut() {
            feed.age(now, quiet);
        }
        for feed in quotas.values_mut() {
            feed.age(now, quiet);
        }

        let needs = self.needs.borrow().clone();
        let cluster = self.cluster.borrow().clone();
        self.seen.inventory(&needs.variants, &cluster)
    }

    fn now(&self) -> ClockReading {
        ClockReading { wall: self.clock.now(), elapsed: self.clock.elapsed() }
    }

    fn absorb(&mut self, report: InventoryReport) {
        let now = self.now();

        match report {
            InventoryReport::Node(number, change)
                if self.is_live(&InventoryWatchKey::Nodes, number) =>
            {
                take(self.seen.nodes.as_mut(), now, "nodes", change);
            }
            InventoryReport::Pod(scope, number, change)
                if self.is_live(&InventoryWatchKey::Pods(scope.clone()), number) =>
            {
                take(self.seen.pods.get_mut(&scope), now, &format!("pods in {scope}"), change);
            }
            InventoryReport::Quota(scope, number, change)
                if self.is_live(&InventoryWatchKey::Quotas(scope.clone()), number) =>
            {
                let what = format!("ResourceQuotas in {scope}");
                take(self.seen.quotas.get_mut(&scope), now, &what, change);
            }
            InventoryReport::Node(..) | InventoryReport::Pod(..) | InventoryReport::Quota(..) => {}
        }
    }

    /// Returns true if the running watch of this key has this serial number.
    fn is_live(&self, key: &InventoryWatchKey, number: u64) -> bool {
        self.watches.get(key).is_some_and(|(running, _)| *running == number)
    }

    /// Returns the watches that are needed now.
    fn needed(&self) -> BTreeSet<InventoryWatchKey> {
        let needs = self.needs.borrow().clone();
        let mut needed = BTreeSet::new();
        if needs.accelerators.nodes {
            needed.extend([InventoryWatchKey::Nodes, InventoryWatchKey::Pods(WatchScope::Cluster)]);
        }
        if needs.accelerators.quotas {
            let own = needs.variants.iter().map(|one| &one.variant.namespace).cloned();
            let looked = needs.discover.iter().flat_map(scopes);
            let mut scopes: BTreeSet<WatchScope> =
                own.map(WatchScope::Namespace).chain(looked).collect();
            if scopes.contains(&WatchScope::Cluster) {
                scopes = BTreeSet::from([WatchScope::Cluster]);
            }
            for scope in scopes {
                // A watch of all namespaces makes watches of single namespaces unnecessary.
                if !needs.accelerators.nodes {
                    needed.insert(InventoryWatchKey::Pods(scope.clone()));
                }
                needed.insert(InventoryWatchKey::Quotas(scope));
            }
        }

        needed
    }

    /// Starts watches that are needed. Stops and forgets all others.
    fn reconcile(&mut self) {
        let needed = self.needed();
        self.watches.retain(|key, _| needed.contains(key));
        let InventoryView { nodes, pods, quotas } = &mut self.seen;
        if !needed.contains(&InventoryWatchKey::Nodes) {
            *nodes = None;
        }

        pods.retain(|scope, _| needed.contains(&InventoryWatchKey::Pods(scope.clone())));
        quotas.retain(|scope, _| needed.contains(&InventoryWatchKey::Quotas(scope.clone())));
        for key in needed {
            if !self.watches.contains_key(&key) {
                self.start(key);
            }
        }
    }

    fn start(&mut self, key: InventoryWatchKey) {
        self.started += 1;
        let number = self.started;
        let pace = self.pace;
        let reports = self.reports.clone();
        let guard = match key.clone() {
            InventoryWatchKey::Nodes => {
                self.seen.nodes = Some(WatchedObjects::default());
                let api: Api<core::Node> = Api::all(self.client.clone());
                self.spawn(follow(
                    api,
                    Selection::default(),
                    pace,
                    AcceleratorNode::new,
                    move |change| send(reports.clone(), InventoryReport::Node(number, change)),
                ))
            }
            InventoryWatchKey::Pods(scope) => {
                self.seen.pods.insert(scope.clone(), WatchedObjects::default());
                let api: Api<core::Pod> = scope.api(self.client.clone());
                let fields = Some(NOT_ENDED.to_owned());
                let selection = Selection { fields };
                self.spawn(follow(api, selection, pace, AcceleratorPod::new, move |change| {
                    send(reports.clone(), InventoryReport::Pod(scope.clone(), number, change))
                }))
            }
            InventoryWatchKey::Quotas(scope) => {
                self.seen.quotas.insert(scope.clone(), WatchedObjects::default());
                let api: Api<core::ResourceQuota> = scope.api(self.client.clone());
                self.spawn(follow(
                    api,
                    Selection::default(),
                    pace,
                    AcceleratorQuota::new,
                    move |change| {
                        send(reports.clone(), InventoryReport::Quota(scope.clone(), number, change))
                    },
                ))
            }
        };

        self.watches.insert(key, (number, guard));
    }

    /// Runs a task for as long as its guard is kept.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
        guarded(&self.tracker, &self.stop, task)
    }
}

async fn send(reports: mpsc::Sender<InventoryReport>, report: InventoryReport) {
    // The receiver is dropped only during shutdown.
    let _ = reports.send(report).await;
}

/// Applies a change. Logs once when a watch breaks and once when it recovers.
fn take<T>(
    feed: Option<&mut WatchedObjects<T>>,
    now: ClockReading,
    what: &str,
    change: WatchChange<T>,
) {
    let Some(feed) = feed else { return };
    let before = feed.health.clone();
    feed.absorb(now, change);

    match (&before, &feed.health) {
        (WatchHealth::Broken(_), WatchHealth::Live) => info!(watch = what, "Watch works again"),
        (WatchHealth::Broken(_), WatchHealth::Broken(_))
        | (_, WatchHealth::Waiting | WatchHealth::Live) => {}
        (_, WatchHealth::Broken(WatchFailure::Forbidden(error))) => warn!(
            watch = what,
            %error,
            "Watch is forbidden: grant list and watch, or disable limits.nodes or limits.quotas; \
             scale-up is blocked until they have been read"
        ),
        (_, WatchHealth::Broken(WatchFailure::Absent(error) | WatchFailure::Away(error))) => {
            warn!(watch = what, %error, "Watch is broken: keeping the last known state");
        }
    }
}
