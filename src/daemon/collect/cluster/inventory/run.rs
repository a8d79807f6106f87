//! The watching of accelerators: starts the watches that are needed, and puts together what they say.

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
use crate::collect::cluster::follow::{Change, Failure, Pace, Selection, follow, guarded};
use crate::collect::cluster::inventory::{Node, Quota, Seen, Taker};
use crate::collect::cluster::keys::Scope;
use crate::collect::cluster::world::{Feed, Health, Now, scopes};
use crate::collect::cluster::{ClusterState, Needs};
use crate::collect::replace;
use plimsoll_core::observe::inventory::Inventory;

/// Changes that may wait to be taken in.
const BACKLOG: usize = 256;

/// Pods that have ended hold nothing, and a cluster that runs jobs is full of them.
const NOT_ENDED: &str = "status.phase!=Succeeded,status.phase!=Failed";

/// One watch.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Nodes,
    Pods(Scope),
    Quotas(Scope),
}

/// What a watch reports.
enum Report {
    Node(u64, Change<Node>),
    Pod(Scope, u64, Change<Taker>),
    Quota(Scope, u64, Change<Quota>),
}

struct Watcher {
    client: Client,
    pace: Pace,
    clock: Clock,
    tracker: TaskTracker,
    stop: CancellationToken,
    reports: mpsc::Sender<Report>,
    needs: watch::Receiver<Arc<Needs>>,
    cluster: watch::Receiver<Arc<ClusterState>>,
    seen: Seen,
    /// The running watches, each with a number of its own, so that a late report of one that was
    /// stopped is not taken for its successor's.
    watches: BTreeMap<Key, (u64, DropGuard)>,
    started: u64,
}

/// Watches what is needed of accelerators, until `stop`. The value is put together anew with every
/// heartbeat.
pub(crate) fn watch(
    (client, pace): (Client, Pace),
    needs: watch::Receiver<Arc<Needs>>,
    cluster: watch::Receiver<Arc<ClusterState>>,
    clock: Clock,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Arc<Inventory>> {
    let (reports, inbox) = mpsc::channel(BACKLOG);
    let (sender, receiver) = watch::channel(Arc::default());
    let watcher = Watcher {
        client,
        pace,
        clock,
        tracker: tracker.clone(),
        stop: stop.clone(),
        reports,
        needs,
        cluster,
        seen: Seen::default(),
        watches: BTreeMap::new(),
        started: 0,
    };
    let run = async move { stop.run_until_cancelled(watcher.run(inbox, sender)).await };
    tracker.spawn(run.instrument(info_span!("accelerators")));
    receiver
}

impl Watcher {
    async fn run(
        mut self,
        mut inbox: mpsc::Receiver<Report>,
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

    /// What there is now.
    fn look(&mut self) -> Inventory {
        if self.watches.is_empty() {
            return Inventory::default();
        }
        let (now, quiet) = (self.now(), self.pace.window + self.pace.grace);
        let Seen { nodes, pods, quotas } = &mut self.seen;
        if let Some(feed) = nodes {
            feed.age(now, quiet);
        }
        for feed in pods.values_mut() {
            feed.age(now, quiet);
        }
        for feed in quotas.values_mut() {
            feed.age(now, quiet);
        }
        let (needs, cluster) = (self.needs.borrow().clone(), self.cluster.borrow().clone());
        self.seen.inventory(&needs.variants, &cluster)
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.now(), elapsed: self.clock.elapsed() }
    }

    fn absorb(&mut self, report: Report) {
        let now = self.now();
        let live = |key: &Key, number| {
            self.watches.get(key).is_some_and(|(running, _)| *running == number)
        };
        match report {
            Report::Node(number, change) if live(&Key::Nodes, number) => {
                take(self.seen.nodes.as_mut(), now, "nodes", change);
            }
            Report::Pod(scope, number, change) if live(&Key::Pods(scope.clone()), number) => {
                take(self.seen.pods.get_mut(&scope), now, &format!("pods in {scope}"), change);
            }
            Report::Quota(scope, number, change) if live(&Key::Quotas(scope.clone()), number) => {
                let what = format!("ResourceQuotas in {scope}");
                take(self.seen.quotas.get_mut(&scope), now, &what, change);
            }
            Report::Node(..) | Report::Pod(..) | Report::Quota(..) => {}
        }
    }

    /// The watches that are needed now.
    fn needed(&self) -> BTreeSet<Key> {
        let needs = self.needs.borrow().clone();
        let mut needed = BTreeSet::new();
        if needs.accelerators.nodes {
            needed.extend([Key::Nodes, Key::Pods(Scope::Cluster)]);
        }
        if needs.accelerators.quotas {
            let own = needs.variants.iter().map(|one| &one.variant.namespace).cloned();
            let looked = needs.discover.iter().flat_map(scopes);
            let mut scopes: BTreeSet<Scope> = own.map(Scope::Namespace).chain(looked).collect();
            if scopes.contains(&Scope::Cluster) {
                scopes = BTreeSet::from([Scope::Cluster]);
            }
            for scope in scopes {
                // What is watched in all namespaces need not be watched in one.
                if !needs.accelerators.nodes {
                    needed.insert(Key::Pods(scope.clone()));
                }
                needed.insert(Key::Quotas(scope));
            }
        }
        needed
    }

    /// Starts what is needed and stops and forgets what is not.
    fn reconcile(&mut self) {
        let needed = self.needed();
        self.watches.retain(|key, _| needed.contains(key));
        let Seen { nodes, pods, quotas } = &mut self.seen;
        if !needed.contains(&Key::Nodes) {
            *nodes = None;
        }
        pods.retain(|scope, _| needed.contains(&Key::Pods(scope.clone())));
        quotas.retain(|scope, _| needed.contains(&Key::Quotas(scope.clone())));
        for key in needed {
            if !self.watches.contains_key(&key) {
                self.start(key);
            }
        }
    }

    fn start(&mut self, key: Key) {
        self.started += 1;
        let (number, pace, reports) = (self.started, self.pace, self.reports.clone());
        let guard = match key.clone() {
            Key::Nodes => {
                self.seen.nodes = Some(Feed::default());
                let api: Api<core::Node> = Api::all(self.client.clone());
                let tell = move |change| send(reports.clone(), Report::Node(number, change));
                self.spawn(follow(api, Selection::default(), pace, Node::new, tell))
            }
            Key::Pods(scope) => {
                self.seen.pods.insert(scope.clone(), Feed::default());
                let api: Api<core::Pod> = scope.api(self.client.clone());
                let fields = Some(NOT_ENDED.to_owned());
                let selection = Selection { fields, ..Selection::default() };
                let tell =
                    move |change| send(reports.clone(), Report::Pod(scope.clone(), number, change));
                self.spawn(follow(api, selection, pace, Taker::new, tell))
            }
            Key::Quotas(scope) => {
                self.seen.quotas.insert(scope.clone(), Feed::default());
                let api: Api<core::ResourceQuota> = scope.api(self.client.clone());
                let tell = move |change| {
                    send(reports.clone(), Report::Quota(scope.clone(), number, change))
                };
                self.spawn(follow(api, Selection::default(), pace, Quota::new, tell))
            }
        };
        self.watches.insert(key, (number, guard));
    }

    /// Runs a task for as long as its guard is kept.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
        guarded(&self.tracker, &self.stop, task)
    }
}

async fn send(reports: mpsc::Sender<Report>, report: Report) {
    // The receiver is gone only while everything is being shut down.
    let _ = reports.send(report).await;
}

/// Takes a change in, and says once when a watch breaks and when it is whole again.
fn take<T>(feed: Option<&mut Feed<T>>, now: Now, what: &str, change: Change<T>) {
    let Some(feed) = feed else { return };
    let before = feed.health.clone();
    feed.absorb(now, change);
    match (&before, &feed.health) {
        (Health::Broken(_), Health::Live) => info!(watch = what, "Watch is whole again"),
        (Health::Broken(_), Health::Broken(_)) | (_, Health::Waiting | Health::Live) => {}
        (_, Health::Broken(Failure::Forbidden(error))) => warn!(
            watch = what,
            %error,
            "Watch is forbidden: grant list and watch, or switch off limits.nodes or \
             limits.quotas; what was never read lets nothing grow"
        ),
        (_, Health::Broken(Failure::Absent(error) | Failure::Away(error))) => {
            warn!(watch = what, %error, "Watch is broken: keeping the last known state");
        }
    }
}
