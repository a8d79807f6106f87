//! The watch loop: starts the watches that are needed, stops all others, and publishes the state.

mod outlet;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1 as core;
use kube::Client;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, PartialObjectMeta};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::clock::Clock;
use crate::collect::cluster::config_maps::texts;
use crate::collect::cluster::discovery::ledger::{Discovery, DiscoveryLedger};
use crate::collect::cluster::discovery::object::AnnotatedObject;
use crate::collect::cluster::discovery::scope::{NamespaceFacts, needed_to_discover};
use crate::collect::cluster::follow::{
    RequestFailure, RetryDelay, Selection, WatchChange, WatchFailure, WatchTiming, ask, guarded,
};
use crate::collect::cluster::hpa::HpaFacts;
use crate::collect::cluster::inventory::{self, AcceleratorInputs, NOT_ENDED};
use crate::collect::cluster::keys::{TargetKey, WatchKey, WatchReach};
use crate::collect::cluster::needs::ClusterNeeds;
use crate::collect::cluster::registration::named;
use crate::collect::cluster::run::outlet::{
    ClusterReport, WatchOutlet, WatchRemark, send, watch_models, watch_scaled_objects,
    watch_targets,
};
use crate::collect::cluster::scale::ScaleAnswer;
use crate::collect::cluster::state::ClusterState;
use crate::collect::cluster::target::WatchedVariant;
use crate::collect::cluster::watched::{ClockReading, WatchHealth, WatchedObjects};
use crate::collect::cluster::world::ClusterView;
use crate::collect::cluster::world::pods::LabelledPod;
use plimsoll_core::observe::Scale;
use plimsoll_core::observe::inventory::Inventory;

/// Changes that may queue before they are processed. A watch that is ahead waits, which costs
/// nothing.
const BACKLOG: usize = 256;

/// Scale subresources that are read at a time. After a start, there is one to read for each variant.
const READS: usize = 16;

/// Time for which changes are gathered before the next pass, as a multiple of the last pass's
/// duration. A pass visits every variant, and thousands of HPAs write their status all the time.
/// With this factor, passes use at most a fifth of the time. The delay is negligible with a hundred
/// variants.
const GATHERING: u32 = 4;

/// The task that runs the watches.
struct ClusterWatcher {
    client: Client,
    pace: WatchTiming,
    clock: Clock,
    tracker: TaskTracker,
    stop: CancellationToken,
    reports: mpsc::Sender<ClusterReport>,
    needs: Arc<ClusterNeeds>,
    /// The declared and the discovered variants.
    wanted: Vec<WatchedVariant>,
    ledger: DiscoveryLedger,
    discovery: Arc<Discovery>,
    /// True if a change may affect discovery.
    unsettled: bool,
    since: jiff::Timestamp,
    world: ClusterView,
    /// The running watches. Each has a serial number, so that a late report from a stopped watch is
    /// not attributed to its successor.
    watches: BTreeMap<WatchKey, (u64, DropGuard)>,
    /// The API server's resources for the kinds of the targets, such as `deployments`.
    resources: BTreeMap<WatchKey, ApiResource>,
    /// The running reads of scale subresources.
    reads: BTreeMap<TargetKey, DropGuard>,
    /// The reads that may have a request in flight.
    turns: Arc<Semaphore>,
    started: u64,
    state: watch::Sender<Arc<ClusterState>>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

/// Runs the watches in `needs`, until `stop`. `needs` may be replaced at any time. A watch that is
/// needed before and after continues undisturbed.
///
/// The receiver's value has every declared variant from the start, in an unknown state at first. It
/// is replaced with every change and with every heartbeat.
pub fn watch(
    client: Client,
    needs: watch::Receiver<Arc<ClusterNeeds>>,
    pace: WatchTiming,
    clock: Clock,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Arc<ClusterState>> {
    let (reports, inbox) = mpsc::channel(BACKLOG);
    let first = needs.borrow().clone();
    let world = ClusterView::default();
    let since = clock.now();
    let discovery = Arc::default();
    let state = world.judge(&first.variants, &discovery, since);
    let (state, published) = watch::channel(Arc::new(state));

    let inputs = AcceleratorInputs {
        client: client.clone(),
        pace,
        needs: needs.clone(),
        cluster: published.clone(),
        clock,
    };
    let inventory = inventory::watch(inputs, tracker, stop.clone());
    let watcher = ClusterWatcher {
        client,
        pace,
        clock,
        tracker: tracker.clone(),
        stop: stop.clone(),
        reports,
        wanted: first.variants.clone(),
        needs: first,
        ledger: DiscoveryLedger::default(),
        discovery,
        unsettled: true,
        since,
        world,
        watches: BTreeMap::new(),
        resources: BTreeMap::new(),
        reads: BTreeMap::new(),
        turns: Arc::new(Semaphore::new(READS)),
        started: 0,
        state,
        inventory,
    };

    let run = async move { stop.run_until_cancelled(watcher.run(needs, inbox)).await };
    tracker.spawn(run.instrument(info_span!("cluster")));
    published
}

// === impl ClusterWatcher ===

impl ClusterWatcher {
    async fn run(
        mut self,
        mut needs: watch::Receiver<Arc<ClusterNeeds>>,
        mut inbox: mpsc::Receiver<ClusterReport>,
    ) {
        let mut heartbeat = interval(self.pace.heartbeat);
        heartbeat.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut open = true;
        loop {
            let began = self.clock.elapsed();
            self.discover();
            self.reconcile();
            self.publish();

            let gather = self.clock.elapsed().saturating_sub(began) * GATHERING;
            tokio::select! {
                Some(report) = next(&mut inbox, gather) => self.absorb(report),
                changed = needs.changed(), if open => {
                    open = changed.is_ok();
                    self.needs = needs.borrow_and_update().clone();
                    self.unsettled = true;
                }
                _ = heartbeat.tick() => {
                    self.world.age(self.now(), self.pace.quiet());
                }
            }

            // A list of a hundred pods, or a burst of changes, results in one new state. A
            // heartbeat ends the gathering too: where a pass takes longer than the time between
            // heartbeats, nothing would be heard otherwise.
            while let Ok(report) = inbox.try_recv() {
                self.absorb(report);
            }
        }
    }

    fn now(&self) -> ClockReading {
        ClockReading { wall: self.clock.now(), elapsed: self.clock.elapsed() }
    }

    fn absorb(&mut self, report: ClusterReport) {
        match report {
            ClusterReport::Watch(key, number, remark) => {
                if self.watches.get(&key).is_some_and(|(running, _)| *running == number) {
                    self.unsettled |= self.hear(key, *remark);
                }
            }
            ClusterReport::Scale(key, version, answer) if self.reads.contains_key(&key) => {
                // The same task retries after a refusal. Any other answer ends it.
                if answer != ScaleAnswer::Forbidden {
                    self.reads.remove(&key);
                }
                self.world.read(self.now(), key, version, answer);
            }
            ClusterReport::Scale(..) => {}
        }
    }

    /// Applies a remark. Returns true if it may affect discovery.
    fn hear(&mut self, key: WatchKey, remark: WatchRemark) -> bool {
        let now = self.now();
        let world = &mut self.world;

        match remark {
            WatchRemark::Target(change) => {
                take_marked(&mut world.targets, now, &key, change, |it| it.marked.as_ref())
            }
            WatchRemark::Hpa(change) => {
                take_marked(&mut world.hpas, now, &key, change, |it| it.marked.as_ref())
            }
            WatchRemark::ScaledObject(change) => {
                take_marked(&mut world.scaled_objects, now, &key, change, |it| it.marked.as_ref())
            }
            WatchRemark::Model(change) => {
                take(&mut world.models, now, &key, change);
                false
            }
            WatchRemark::Namespace(change) => {
                take(&mut world.namespaces, now, &key, change);
                true
            }
            WatchRemark::Kind(resource) => {
                self.resources.insert(key, resource);
                false
            }
            WatchRemark::Pod(change) => {
                take_pods(world, now, &key, change);
                false
            }
            WatchRemark::ConfigMap(change) => {
                take(&mut world.config_maps, now, &key, change);
                false
            }
        }
    }

    /// Updates the set of variants, if a change may affect it.
    fn discover(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }

        let ClusterNeeds { variants, discover, hosts, accelerators: _ } = &*self.needs;
        self.world.hosts.clone_from(hosts);
        self.world.reach = match discover {
            Some(discover) if discover.namespaces.is_empty() => WatchReach::Cluster,
            Some(_) | None => WatchReach::Namespaces,
        };
        let next = match discover {
            None => {
                self.ledger = DiscoveryLedger::default();
                Some(Discovery { complete: true, ..Discovery::default() })
            }
            // The last discovery is kept until all of its watches have an answer.
            Some(discover) => self
                .world
                .marked(discover)
                .map(|marked| self.ledger.settle(&marked, variants, &discover.rules)),
        };

        if let Some(next) = next.filter(|next| *next != *self.discovery) {
            if discover.is_some() {
                log_discovery(&self.discovery, &next);
            }
            self.discovery = Arc::new(next);
        }

        let discovered = self
            .discovery
            .variants
            .values()
            .map(|one| WatchedVariant { variant: one.key.clone(), target: one.target.clone() });
        self.wanted = variants.iter().cloned().chain(discovered).collect();
    }

    /// Starts watches that are needed, and stops all others.
    fn reconcile(&mut self) {
        self.world.forget(&self.wanted);
        let mut needed = self.world.needed(&self.wanted);
        if let Some(discover) = &self.needs.discover {
            needed.extend(needed_to_discover(discover));
        }

        let groups = self.world.groups(&self.wanted);
        let scopes = self.world.pods.scopes(&groups, self.world.reach == WatchReach::Cluster);
        needed.extend(scopes.into_iter().map(WatchKey::Pods));

        self.forget(&needed);
        for key in needed {
            if !self.watches.contains_key(&key) {
                self.start(key);
            }
        }

        self.world.pods.divide(&groups);

        let unread = self.world.unread(&self.wanted);
        self.reads.retain(|key, _| unread.contains_key(key));
        for (key, version) in unread {
            if let Some(resource) = self.resources.get(&key.watch(self.world.reach))
                && !self.reads.contains_key(&key)
            {
                let client = self.client.clone();
                let reports = self.reports.clone();
                let api = Api::namespaced_with(client, key.namespace.as_str(), resource);
                let mut retry = RetryDelay::new(self.pace);
                if self.world.facts(&key).is_some() {
                    retry.reset();
                }

                let turns = Arc::clone(&self.turns);
                let reading =
                    read_scale(api, self.pace, retry, key.clone(), version, turns, reports);
                let guard = self.spawn(reading);
                self.reads.insert(key, guard);
            }
        }
    }

    /// Stops and forgets all other watches.
    fn forget(&mut self, needed: &BTreeSet<WatchKey>) {
        self.watches.retain(|key, _| needed.contains(key));
        self.resources.retain(|key, _| needed.contains(key));
        self.world.keep(needed);
    }

    fn start(&mut self, key: WatchKey) {
        self.started += 1;
        let number = self.started;
        let client = self.client.clone();
        let outlet = WatchOutlet {
            key: key.clone(),
            number,
            pace: self.pace,
            reports: self.reports.clone(),
        };
        let all = Selection::default();

        let guard = match &key {
            WatchKey::Targets { .. } => {
                self.world.targets.insert(key.clone(), WatchedObjects::default());
                self.spawn(watch_targets(client, outlet))
            }
            WatchKey::ScaledObjects(_) => {
                self.world.scaled_objects.insert(key.clone(), WatchedObjects::default());
                self.spawn(watch_scaled_objects(client, outlet))
            }
            WatchKey::Models(_) => {
                self.world.models.insert(key.clone(), WatchedObjects::default());
                self.spawn(watch_models(client, outlet))
            }
            WatchKey::Namespaces => {
                self.world.namespaces.insert(key.clone(), WatchedObjects::default());
                let api: Api<PartialObjectMeta<core::Namespace>> = Api::all(client);
                self.spawn(outlet.follow(
                    api,
                    all,
                    |it| Some(NamespaceFacts::new(&it.metadata)),
                    WatchRemark::Namespace,
                ))
            }
            WatchKey::Hpas(scope) => {
                self.world.hpas.insert(key.clone(), WatchedObjects::default());
                let api: Api<HorizontalPodAutoscaler> = scope.api(client);
                self.spawn(outlet.follow(api, all, |it| Some(HpaFacts::new(it)), WatchRemark::Hpa))
            }
            WatchKey::Pods(scope) => {
                self.world.pods.insert(scope.clone());
                let api: Api<core::Pod> = scope.api(client);
                let fields = Some(NOT_ENDED.to_owned());
                self.spawn(outlet.follow(
                    api,
                    Selection { fields },
                    LabelledPod::new,
                    WatchRemark::Pod,
                ))
            }
            WatchKey::ConfigMap { namespace, name } => {
                self.world.config_maps.insert(key.clone(), WatchedObjects::default());
                let api: Api<core::ConfigMap> = Api::namespaced(client, namespace.as_str());
                let selection = named(name);
                self.spawn(outlet.follow(
                    api,
                    selection,
                    |it| Some(texts(it)),
                    WatchRemark::ConfigMap,
                ))
            }
        };

        self.watches.insert(key, (number, guard));
    }

    /// Runs a task for as long as its guard is kept.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> DropGuard {
        guarded(&self.tracker, &self.stop, task)
    }

    fn publish(&self) {
        let mut next = self.world.judge(&self.wanted, &self.discovery, self.since);
        next.take_inventory(&self.inventory.borrow());
        let previous = self.state.send_replace(Arc::new(next));
        log_changes(&previous, &self.state.borrow());
    }
}

/// Returns the next report, after waiting for more changes to gather.
async fn next(
    inbox: &mut mpsc::Receiver<ClusterReport>,
    gather: Duration,
) -> Option<ClusterReport> {
    sleep(gather).await;
    inbox.recv().await
}

/// Applies a change. Returns true if it changes an object's annotations for discovery, which most
/// changes do not: controllers write status all the time.
fn take_marked<T>(
    feeds: &mut BTreeMap<WatchKey, WatchedObjects<T>>,
    now: ClockReading,
    key: &WatchKey,
    change: WatchChange<T>,
    marked: fn(&T) -> Option<&AnnotatedObject>,
) -> bool {
    let Some(feed) = feeds.get(key) else { return false };
    let differs = match &change {
        WatchChange::Applied(name, object) => feed.get(name).and_then(marked) != marked(object),
        WatchChange::Deleted(name) => feed.get(name).and_then(marked).is_some(),
        // The first answer may be the last one that discovery waits for.
        WatchChange::Synced(_) | WatchChange::Broken(_) => true,
        WatchChange::Alive | WatchChange::Resuming => false,
    };

    take(feeds, now, key, change);
    differs
}

fn take<T>(
    feeds: &mut BTreeMap<WatchKey, WatchedObjects<T>>,
    now: ClockReading,
    key: &WatchKey,
    change: WatchChange<T>,
) {
    let Some(feed) = feeds.get_mut(key) else { return };
    let before = feed.health.clone();
    feed.absorb(now, change);
    if key.is_optional() {
        feed.forget_absent();
    }
    log_health(key, &before, &feed.health);
}

fn take_pods(
    world: &mut ClusterView,
    now: ClockReading,
    key: &WatchKey,
    change: WatchChange<LabelledPod>,
) {
    let WatchKey::Pods(scope) = key else { return };
    let Some(pods) = world.pods.get_mut(scope) else { return };
    let before = pods.watched.health.clone();
    pods.absorb(now, change);
    log_health(key, &before, &pods.watched.health);
}

/// Logs once when a watch breaks, and once when it recovers.
fn log_health(key: &WatchKey, before: &WatchHealth, after: &WatchHealth) {
    match (before, after) {
        (WatchHealth::Broken(_), WatchHealth::Live) => info!(watch = %key, "Watch works again"),
        (WatchHealth::Broken(before), WatchHealth::Broken(after)) if same_kind(before, after) => {
            debug!(watch = %key, failure = ?after, "Watch is still broken");
        }
        (_, WatchHealth::Broken(WatchFailure::Forbidden(error))) => {
            warn!(watch = %key, %error, "Watch is forbidden: grant list and watch");
        }
        (_, WatchHealth::Broken(WatchFailure::Absent(_))) if key.is_optional() => {
            debug!(watch = %key, "The cluster lacks the resource");
        }
        (_, WatchHealth::Broken(WatchFailure::Absent(error))) => {
            warn!(watch = %key, %error, "The resource does not exist");
        }
        (_, WatchHealth::Broken(WatchFailure::Away(error))) => {
            warn!(watch = %key, %error, "Watch is broken: keeping the last known state");
        }
        (_, WatchHealth::Waiting | WatchHealth::Live) => {}
    }
}

fn same_kind(one: &WatchFailure, other: &WatchFailure) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Logs once when a scale target becomes unknown, and once when it is known again.
fn log_changes(previous: &ClusterState, next: &ClusterState) {
    for (variant, state) in &next.variants {
        let before = previous.variants.get(variant);
        if let Scale::Unknown(why) = &state.scale
            && before.is_none_or(|before| before.scale != state.scale)
        {
            warn!(%variant, reason = why.label(), "Scale target is unknown: {why}");
        }

        let was_unknown = before.is_some_and(|before| matches!(before.scale, Scale::Unknown(_)));
        if was_unknown && !matches!(state.scale, Scale::Unknown(_)) {
            info!(%variant, "Scale target is known");
        }
    }
}

/// Logs once for each variant that appears, disappears or changes.
fn log_discovery(previous: &Discovery, next: &Discovery) {
    if previous.complete != next.complete {
        info!(variants = next.variants.len(), "The cluster has been scanned");
    }
    for (variant, one) in &next.variants {
        let model = &one.model;
        let object = &one.object;
        match previous.variants.get(variant) {
            None => info!(%variant, %model, %object, "Variant is discovered"),
            Some(before) if before != one => {
                info!(%variant, %model, %object, "Discovered variant has changed");
            }
            Some(_) => {}
        }
    }

    for variant in previous.variants.keys().filter(|key| !next.variants.contains_key(*key)) {
        info!(%variant, "Discovered variant is gone");
    }
}

/// Reads a scale subresource until there is an answer. A refusal is reported, and the read is
/// repeated until access is granted.
async fn read_scale(
    api: Api<DynamicObject>,
    pace: WatchTiming,
    mut retry: RetryDelay,
    key: TargetKey,
    version: String,
    turns: Arc<Semaphore>,
    reports: mpsc::Sender<ClusterReport>,
) {
    loop {
        let read = ask_in_turn(&turns, pace, api.get_scale(&key.name)).await;
        let RequestFailure { failure, pause, .. } = match read {
            Ok(scale) => {
                return send(&reports, scale_report(&key, &version, ScaleAnswer::new(scale))).await;
            }
            Err(failure) => failure,
        };

        match retry.judge(failure) {
            WatchFailure::Absent(error) => {
                debug!(target = %key.name, %error, "The scale subresource does not exist");
                return send(&reports, scale_report(&key, &version, ScaleAnswer::Absent)).await;
            }
            WatchFailure::Forbidden(error) => {
                debug!(target = %key.name, %error, "The scale subresource may not be read");
                send(&reports, scale_report(&key, &version, ScaleAnswer::Forbidden)).await;
            }
            WatchFailure::Away(error) => {
                debug!(target = %key.name, %error, "The scale subresource cannot be read");
            }
        }

        retry.wait(pause).await;
    }
}

/// Makes a request when it is its turn.
async fn ask_in_turn<T>(
    turns: &Semaphore,
    pace: WatchTiming,
    request: impl Future<Output = kube::Result<T>>,
) -> Result<T, RequestFailure> {
    // The semaphore is never closed.
    let _turn = turns.acquire().await.ok();
    ask(pace, request).await
}

fn scale_report(key: &TargetKey, version: &str, answer: ScaleAnswer) -> ClusterReport {
    ClusterReport::Scale(key.clone(), version.to_owned(), answer)
}
