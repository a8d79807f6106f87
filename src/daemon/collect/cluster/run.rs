//! The watching: starts the watches that are needed, stops those that are not, publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersion, PartialObjectMeta};
use kube::{Client, Resource, discovery};
use serde::de::DeserializeOwned;
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::clock::Clock;
use crate::collect::cluster::config_maps::{Texts, texts};
use crate::collect::cluster::discovery::ledger::{Discovery, Ledger};
use crate::collect::cluster::discovery::{Marked, is_excluded};
use crate::collect::cluster::follow::{
    Change, Failure, Pace, Retry, Selection, answer, follow, guarded,
};
use crate::collect::cluster::hpa::Hpa;
use crate::collect::cluster::inventory;
use crate::collect::cluster::keda::{self, ScaledObject};
use crate::collect::cluster::keys::{Reach, Scope, TargetKey, WatchKey};
use crate::collect::cluster::registration::named;
use crate::collect::cluster::world::{
    Feed, Health, Now, ScaleAnswer, TargetObject, World, needed_to_discover,
};
use crate::collect::cluster::{ClusterState, Needs, Pod, Wanted};
use plimsoll_core::observe::Scale;
use plimsoll_core::observe::inventory::Inventory;

/// Changes that may wait to be taken in. A watch that is ahead of us waits, which costs nothing.
const BACKLOG: usize = 256;

/// For how many times as long as a pass took changes are gathered before the next. A pass goes over
/// every variant, and thousands of HPAs write their status all the time; so at most a fifth of the
/// time goes into it, and with a hundred variants nobody notices.
const GATHERING: u32 = 4;

/// What a task reports.
enum Report {
    /// A remark of the watch of this key and number.
    Watch(WatchKey, u64, Box<Remark>),
    /// The scale subresource of a target, read for this version of the object.
    Scale(TargetKey, String, ScaleAnswer),
}

/// A remark of a watch.
enum Remark {
    /// The API server's name of the kind.
    Kind(ApiResource),
    Target(Change<TargetObject>),
    Hpa(Change<Hpa>),
    ScaledObject(Change<ScaledObject>),
    Pod(Change<Pod>),
    Namespace(Change<bool>),
    ConfigMap(Change<Arc<Texts>>),
}

/// Where a watch reports.
struct Outlet {
    key: WatchKey,
    number: u64,
    pace: Pace,
    reports: mpsc::Sender<Report>,
}

/// The task that runs the watches.
struct Watcher {
    client: Client,
    pace: Pace,
    clock: Clock,
    tracker: TaskTracker,
    stop: CancellationToken,
    reports: mpsc::Sender<Report>,
    needs: Arc<Needs>,
    /// The variants that are declared and those that are discovered.
    wanted: Vec<Wanted>,
    ledger: Ledger,
    discovery: Arc<Discovery>,
    /// Whether something has changed that decides over what is discovered.
    unsettled: bool,
    since: jiff::Timestamp,
    world: World,
    /// The running watches, each with a number of its own, so that a late report of one that was
    /// stopped is not taken for its successor's.
    watches: BTreeMap<WatchKey, (u64, DropGuard)>,
    /// What the API server calls the kinds of the targets, such as `deployments`.
    resources: BTreeMap<WatchKey, ApiResource>,
    /// The running reads of scale subresources.
    reads: BTreeMap<TargetKey, DropGuard>,
    started: u64,
    state: watch::Sender<Arc<ClusterState>>,
    inventory: watch::Receiver<Arc<Inventory>>,
}

/// Watches what is needed, until `stop`; `needs` may be replaced at any time, and a watch that is
/// needed before and after goes on undisturbed.
///
/// The receiver's value has every declared variant from the start, unknown until more is known. It
/// is replaced with every change and with every heartbeat.
pub fn watch(
    client: Client,
    needs: watch::Receiver<Arc<Needs>>,
    pace: Pace,
    clock: Clock,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> watch::Receiver<Arc<ClusterState>> {
    let (reports, inbox) = mpsc::channel(BACKLOG);
    let first = needs.borrow().clone();
    let world = World::default();
    let (since, discovery) = (clock.now(), Arc::default());
    let state = world.judge(&first.variants, &discovery, since);
    let (state, published) = watch::channel(Arc::new(state));
    let (asked, shown, stopped) = (needs.clone(), published.clone(), stop.clone());
    let api = (client.clone(), pace);
    let inventory = inventory::watch(api, asked, shown, clock, tracker, stopped);
    let watcher = Watcher {
        client,
        pace,
        clock,
        tracker: tracker.clone(),
        stop: stop.clone(),
        reports,
        wanted: first.variants.clone(),
        needs: first,
        ledger: Ledger::default(),
        discovery,
        unsettled: true,
        since,
        world,
        watches: BTreeMap::new(),
        resources: BTreeMap::new(),
        reads: BTreeMap::new(),
        started: 0,
        state,
        inventory,
    };
    let run = async move { stop.run_until_cancelled(watcher.run(needs, inbox)).await };
    tracker.spawn(run.instrument(info_span!("cluster")));
    published
}

// === impl Watcher ===

impl Watcher {
    async fn run(
        mut self,
        mut needs: watch::Receiver<Arc<Needs>>,
        mut inbox: mpsc::Receiver<Report>,
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
            // A heartbeat begins the gathering anew, so it must not come before its end.
            let gather = gather.min(self.pace.heartbeat / 2);
            tokio::select! {
                Some(report) = next(&mut inbox, gather) => {
                    self.absorb(report);
                    // A list of a hundred pods, or a burst of changes, is one new state.
                    while let Ok(report) = inbox.try_recv() {
                        self.absorb(report);
                    }
                }
                changed = needs.changed(), if open => {
                    open = changed.is_ok();
                    self.needs = needs.borrow_and_update().clone();
                    self.unsettled = true;
                }
                _ = heartbeat.tick() => {
                    self.world.age(self.now(), self.pace.window + self.pace.grace);
                }
            }
        }
    }

    fn now(&self) -> Now {
        Now { wall: self.clock.now(), elapsed: self.clock.elapsed() }
    }

    fn absorb(&mut self, report: Report) {
        match report {
            Report::Watch(key, number, remark) => {
                if self.watches.get(&key).is_some_and(|(running, _)| *running == number) {
                    self.unsettled |= self.hear(key, *remark);
                }
            }
            Report::Scale(key, version, answer) if self.reads.contains_key(&key) => {
                // A refusal is tried again by the same task; every other answer ends it.
                if answer != ScaleAnswer::Forbidden {
                    self.reads.remove(&key);
                }
                self.world.read(self.now(), key, version, answer);
            }
            Report::Scale(..) => {}
        }
    }

    /// Takes in a remark; whether discovery depends on it.
    fn hear(&mut self, key: WatchKey, remark: Remark) -> bool {
        let now = self.now();
        let world = &mut self.world;
        match remark {
            Remark::Target(change) => {
                take_marked(&mut world.targets, now, &key, change, |it| it.marked.as_ref())
            }
            Remark::Hpa(change) => {
                take_marked(&mut world.hpas, now, &key, change, |it| it.marked.as_ref())
            }
            Remark::ScaledObject(change) => {
                take_marked(&mut world.scaled_objects, now, &key, change, |it| it.marked.as_ref())
            }
            Remark::Namespace(change) => {
                take(&mut world.namespaces, now, &key, change);
                true
            }
            Remark::Kind(resource) => {
                self.resources.insert(key, resource);
                false
            }
            Remark::Pod(change) => {
                take(&mut world.pods, now, &key, change);
                false
            }
            Remark::ConfigMap(change) => {
                take(&mut world.config_maps, now, &key, change);
                false
            }
        }
    }

    /// Finds out which variants there are, when something has changed that decides over it.
    fn discover(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let Needs { variants, discover, accelerators: _ } = &*self.needs;
        self.world.reach = match discover {
            Some(discover) if discover.namespaces.is_empty() => Reach::Cluster,
            Some(_) | None => Reach::Namespaces,
        };
        let next = match discover {
            None => {
                self.ledger = Ledger::default();
                Some(Discovery { complete: true, ..Discovery::default() })
            }
            // What was known stays while the watches have nothing to say.
            Some(discover) => self
                .world
                .marked(discover)
                .map(|marked| self.ledger.settle(&marked, variants, discover.wva)),
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
            .map(|one| Wanted { variant: one.key.clone(), target: one.target.clone() });
        self.wanted = variants.iter().cloned().chain(discovered).collect();
    }

    /// Starts what is needed and stops what is not.
    fn reconcile(&mut self) {
        self.world.forget(&self.wanted);
        let mut needed = self.world.needed(&self.wanted);
        if let Some(discover) = &self.needs.discover {
            needed.extend(needed_to_discover(discover));
        }
        self.forget(&needed);
        for key in needed {
            if !self.watches.contains_key(&key) {
                self.start(key);
            }
        }
        let unread = self.world.unread(&self.wanted);
        self.reads.retain(|key, _| unread.contains_key(key));
        for (key, version) in unread {
            if let Some(resource) = self.resources.get(&key.watch(self.world.reach))
                && !self.reads.contains_key(&key)
            {
                let (client, reports) = (self.client.clone(), self.reports.clone());
                let api = Api::namespaced_with(client, key.namespace.as_str(), resource);
                let mut retry = Retry::new(self.pace);
                if self.world.facts(&key).is_some() {
                    retry.reset();
                }
                let guard =
                    self.spawn(read_scale(api, self.pace, retry, key.clone(), version, reports));
                self.reads.insert(key, guard);
            }
        }
    }

    /// Stops and forgets what is not needed.
    fn forget(&mut self, needed: &BTreeSet<WatchKey>) {
        self.watches.retain(|key, _| needed.contains(key));
        self.resources.retain(|key, _| needed.contains(key));
        let World { targets, hpas, scaled_objects, pods, namespaces, config_maps, .. } =
            &mut self.world;
        targets.retain(|key, _| needed.contains(key));
        hpas.retain(|key, _| needed.contains(key));
        scaled_objects.retain(|key, _| needed.contains(key));
        pods.retain(|key, _| needed.contains(key));
        namespaces.retain(|key, _| needed.contains(key));
        config_maps.retain(|key, _| needed.contains(key));
    }

    fn start(&mut self, key: WatchKey) {
        self.started += 1;
        let number = self.started;
        let client = self.client.clone();
        let outlet =
            Outlet { key: key.clone(), number, pace: self.pace, reports: self.reports.clone() };
        let all = Selection::default();

        let guard = match &key {
            WatchKey::Targets { .. } => {
                self.world.targets.insert(key.clone(), Feed::default());
                self.spawn(watch_targets(client, outlet))
            }
            WatchKey::ScaledObjects(_) => {
                self.world.scaled_objects.insert(key.clone(), Feed::default());
                self.spawn(watch_scaled_objects(client, outlet))
            }
            WatchKey::Namespaces => {
                self.world.namespaces.insert(key.clone(), Feed::default());
                let api: Api<PartialObjectMeta<core::Namespace>> = Api::all(client);
                let facts = |object: PartialObjectMeta<core::Namespace>| {
                    Some(is_excluded(&object.metadata))
                };
                self.spawn(outlet.follow(api, all, facts, Remark::Namespace))
            }
            WatchKey::Hpas(scope) => {
                self.world.hpas.insert(key.clone(), Feed::default());
                let facts = |object: HorizontalPodAutoscaler| Some(Hpa::new(object));
                self.spawn(outlet.follow(scope.api(client), all, facts, Remark::Hpa))
            }
            WatchKey::Pods { namespace, selector } => {
                self.world.pods.insert(key.clone(), Feed::default());
                let api: Api<core::Pod> = Api::namespaced(client, namespace.as_str());
                let selection = Selection { labels: Some(selector.clone()), fields: None };
                self.spawn(outlet.follow(api, selection, Pod::new, Remark::Pod))
            }
            WatchKey::ConfigMap { namespace, name } => {
                self.world.config_maps.insert(key.clone(), Feed::default());
                let api: Api<core::ConfigMap> = Api::namespaced(client, namespace.as_str());
                let facts = |object| Some(texts(object));
                self.spawn(outlet.follow(api, named(name), facts, Remark::ConfigMap))
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

// === impl Outlet ===

impl Outlet {
    async fn tell(&self, remark: Remark) {
        let report = Report::Watch(self.key.clone(), self.number, Box::new(remark));
        send(&self.reports, report).await;
    }

    /// Watches for ever.
    async fn follow<K, T>(
        self,
        api: Api<K>,
        selection: Selection,
        facts: impl Fn(K) -> Option<T>,
        remark: fn(Change<T>) -> Remark,
    ) where
        K: Resource + Clone + Debug + DeserializeOwned,
    {
        let tell = |change| self.tell(remark(change));
        follow(api, selection, self.pace, facts, tell).await;
    }

    /// Asks for the resource of a kind, an API version and a name, until there is one.
    async fn await_kind<T>(
        &self,
        client: &Client,
        (api_version, kind): (&str, &str),
        remark: fn(Change<T>) -> Remark,
    ) -> ApiResource {
        let mut retry = Retry::new(self.pace);
        loop {
            match discover(client, self.pace, api_version, kind).await {
                Ok(resource) => return resource,
                Err(failure) => {
                    self.tell(remark(Change::Broken(failure))).await;
                    retry.wait().await;
                }
            }
        }
    }
}

/// The next report, once what there is has had time to gather.
async fn next(inbox: &mut mpsc::Receiver<Report>, gather: Duration) -> Option<Report> {
    sleep(gather).await;
    inbox.recv().await
}

/// Takes a change in, and says whether it changes what an object says of a variant, as most changes
/// do not: controllers write status all the time.
fn take_marked<T>(
    feeds: &mut BTreeMap<WatchKey, Feed<T>>,
    now: Now,
    key: &WatchKey,
    change: Change<T>,
    marked: fn(&T) -> Option<&Marked>,
) -> bool {
    let Some(feed) = feeds.get(key) else { return false };
    let known = |name| feed.get(name).and_then(marked);
    let differs = match &change {
        Change::Applied(name, object) => known(name) != marked(object),
        Change::Deleted(name) => known(name).is_some(),
        // The first answer may be the one that everything waits for.
        Change::Synced(_) | Change::Broken(_) => true,
        Change::Alive | Change::Resuming => false,
    };
    take(feeds, now, key, change);
    differs
}

fn take<T>(feeds: &mut BTreeMap<WatchKey, Feed<T>>, now: Now, key: &WatchKey, change: Change<T>) {
    let Some(feed) = feeds.get_mut(key) else { return };
    let before = feed.health.clone();
    feed.absorb(now, change);
    match (&before, &feed.health) {
        (Health::Broken(_), Health::Live) => info!(watch = %key, "Watch is whole again"),
        (Health::Broken(before), Health::Broken(after)) if same_kind(before, after) => {
            debug!(watch = %key, failure = ?after, "Watch is still broken");
        }
        (_, Health::Broken(Failure::Forbidden(error))) => {
            warn!(watch = %key, %error, "Watch is forbidden: grant list and watch");
        }
        (_, Health::Broken(Failure::Absent(_))) if key.is_optional() => {
            debug!(watch = %key, "There is no such resource yet");
        }
        (_, Health::Broken(Failure::Absent(error))) => {
            warn!(watch = %key, %error, "There is no such resource");
        }
        (_, Health::Broken(Failure::Away(error))) => {
            warn!(watch = %key, %error, "Watch is broken: keeping the last known state");
        }
        (_, Health::Waiting | Health::Live) => {}
    }
}

fn same_kind(one: &Failure, other: &Failure) -> bool {
    std::mem::discriminant(one) == std::mem::discriminant(other)
}

/// Says once when a scale target becomes unknown, and when it is known again.
fn log_changes(previous: &ClusterState, next: &ClusterState) {
    for (variant, state) in &next.variants {
        let before = previous.variants.get(variant);
        if let Scale::Unknown(why) = &state.scale
            && before.is_none_or(|before| before.scale != state.scale)
        {
            warn!(%variant, reason = why.label(), "Scale target is unknown: {why}");
        }
        let known = |state: &Scale| !matches!(state, Scale::Unknown(_));
        if known(&state.scale) && before.is_some_and(|before| !known(&before.scale)) {
            info!(%variant, "Scale target is known");
        }
    }
}

/// Says once which variants come, go and change.
fn log_discovery(previous: &Discovery, next: &Discovery) {
    if previous.complete != next.complete {
        info!(variants = next.variants.len(), "The cluster has been looked through");
    }
    for (variant, one) in &next.variants {
        let (model, object) = (&one.model, &one.object);
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

async fn send(reports: &mpsc::Sender<Report>, report: Report) {
    // The receiver is gone only while everything is being shut down.
    let _ = reports.send(report).await;
}

/// Watches the objects of a kind: that they exist and change, and which pods they make.
async fn watch_targets(client: Client, outlet: Outlet) {
    let WatchKey::Targets { scope, api_version, kind } = outlet.key.clone() else { return };
    let resource = outlet.await_kind(&client, (&api_version, &kind), Remark::Target).await;
    let api = within(client, &scope, &resource);
    outlet.tell(Remark::Kind(resource)).await;
    let facts = |object: DynamicObject| TargetObject::new(&api_version, &kind, object);
    outlet.follow(api, Selection::default(), facts, Remark::Target).await;
}

/// Watches `ScaledObject`s, as soon as the cluster has such a kind.
async fn watch_scaled_objects(client: Client, outlet: Outlet) {
    let WatchKey::ScaledObjects(scope) = outlet.key.clone() else { return };
    let kind = (keda::API_VERSION, keda::KIND);
    let resource = outlet.await_kind(&client, kind, Remark::ScaledObject).await;
    let api = within(client, &scope, &resource);
    let facts = |object: DynamicObject| ScaledObject::new(&object);
    outlet.follow(api, Selection::default(), facts, Remark::ScaledObject).await;
}

fn within(client: Client, scope: &Scope, resource: &ApiResource) -> Api<DynamicObject> {
    match scope {
        Scope::Cluster => Api::all_with(client, resource),
        Scope::Namespace(namespace) => Api::namespaced_with(client, namespace.as_str(), resource),
    }
}

/// Asks the API server for the resource of a kind, such as `deployments` for `Deployment`.
async fn discover(
    client: &Client,
    pace: Pace,
    api_version: &str,
    kind: &str,
) -> Result<ApiResource, Failure> {
    let version: GroupVersion = api_version
        .parse()
        .map_err(|_| Failure::Absent(format!("{api_version} is not an API version")))?;
    let kind = version.with_kind(kind);
    answer(pace, discovery::pinned_kind(client, &kind)).await.map(|(resource, _)| resource)
}

/// Reads a scale subresource until there is an answer, and after a refusal until it is granted.
async fn read_scale(
    api: Api<DynamicObject>,
    pace: Pace,
    mut retry: Retry,
    key: TargetKey,
    version: String,
    reports: mpsc::Sender<Report>,
) {
    loop {
        let report = |answer| Report::Scale(key.clone(), version.clone(), answer);
        match answer(pace, api.get_scale(&key.name)).await.map_err(|failure| retry.judge(failure)) {
            Ok(scale) => return send(&reports, report(ScaleAnswer::new(scale))).await,
            Err(Failure::Absent(error)) => {
                debug!(target = %key.name, %error, "There is no scale subresource");
                return send(&reports, report(ScaleAnswer::Absent)).await;
            }
            Err(Failure::Forbidden(error)) => {
                debug!(target = %key.name, %error, "The scale subresource may not be read");
                send(&reports, report(ScaleAnswer::Forbidden)).await;
            }
            Err(Failure::Away(error)) => {
                debug!(target = %key.name, %error, "The scale subresource cannot be read");
            }
        }
        retry.wait().await;
    }
}
