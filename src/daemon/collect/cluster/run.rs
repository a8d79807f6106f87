//! The watching: starts the watches that are needed, stops those that are not, publishes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::core::v1 as core;
use kube::api::{Api, DynamicObject};
use kube::core::{ApiResource, GroupVersion, PartialObjectMeta};
use kube::{Client, discovery};
use tokio::sync::{mpsc, watch};
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info, info_span, warn};

use crate::clock::Clock;
use crate::collect::cluster::config_maps::{Texts, texts};
use crate::collect::cluster::discovery::ledger::{Discovery, Ledger};
use crate::collect::cluster::discovery::{Discover, Marked, is_excluded};
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
    Kind(WatchKey, u64, ApiResource),
    Target(WatchKey, u64, Change<TargetObject>),
    Hpa(WatchKey, u64, Change<Hpa>),
    ScaledObject(WatchKey, u64, Change<ScaledObject>),
    Pod(WatchKey, u64, Change<Pod>),
    Namespace(WatchKey, u64, Change<bool>),
    ConfigMap(WatchKey, u64, Change<Arc<Texts>>),
    Scale(TargetKey, String, ScaleAnswer),
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
        let now = self.now();
        let live = |watches: &BTreeMap<WatchKey, (u64, DropGuard)>, key, number| {
            watches.get(key).is_some_and(|(running, _)| *running == number)
        };
        let world = &mut self.world;
        let changes_discovery = match report {
            Report::Kind(key, number, resource) if live(&self.watches, &key, number) => {
                self.resources.insert(key, resource);
                false
            }
            Report::Target(key, number, change) if live(&self.watches, &key, number) => {
                take_marked(&mut world.targets, now, &key, change, |it| it.marked.as_ref())
            }
            Report::Hpa(key, number, change) if live(&self.watches, &key, number) => {
                take_marked(&mut world.hpas, now, &key, change, |it| it.marked.as_ref())
            }
            Report::ScaledObject(key, number, change) if live(&self.watches, &key, number) => {
                take_marked(&mut world.scaled_objects, now, &key, change, |it| it.marked.as_ref())
            }
            Report::Namespace(key, number, change) if live(&self.watches, &key, number) => {
                take(&mut world.namespaces, now, &key, change);
                true
            }
            Report::Pod(key, number, change) if live(&self.watches, &key, number) => {
                take(&mut world.pods, now, &key, change);
                false
            }
            Report::ConfigMap(key, number, change) if live(&self.watches, &key, number) => {
                take(&mut world.config_maps, now, &key, change);
                false
            }
            Report::Scale(key, version, answer) if self.reads.contains_key(&key) => {
                // A refusal is tried again by the same task; every other answer ends it.
                if answer != ScaleAnswer::Forbidden {
                    self.reads.remove(&key);
                }
                world.read(now, key, version, answer);
                false
            }
            Report::Kind(..)
            | Report::Target(..)
            | Report::Hpa(..)
            | Report::ScaledObject(..)
            | Report::Namespace(..)
            | Report::Pod(..)
            | Report::ConfigMap(..)
            | Report::Scale(..) => false,
        };
        self.unsettled |= changes_discovery;
    }

    /// Finds out which variants there are, when something has changed that decides over it.
    fn discover(&mut self) {
        if !std::mem::take(&mut self.unsettled) {
            return;
        }
        let Needs { variants, discover, accelerators: _ } = &*self.needs;
        let everywhere = |discover: &Discover| discover.namespaces.is_empty();
        self.world.reach = match discover {
            Some(discover) if everywhere(discover) => Reach::Cluster,
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
        let (client, pace, reports) = (self.client.clone(), self.pace, self.reports.clone());
        let guard = match &key {
            WatchKey::Targets { .. } => {
                self.world.targets.insert(key.clone(), Feed::default());
                self.spawn(watch_targets(client, pace, key.clone(), number, reports))
            }
            WatchKey::ScaledObjects(_) => {
                self.world.scaled_objects.insert(key.clone(), Feed::default());
                self.spawn(watch_scaled_objects(client, pace, key.clone(), number, reports))
            }
            WatchKey::Namespaces => {
                self.world.namespaces.insert(key.clone(), Feed::default());
                let api: Api<PartialObjectMeta<core::Namespace>> = Api::all(client);
                let facts = |object: PartialObjectMeta<core::Namespace>| {
                    Some(is_excluded(&object.metadata))
                };
                let key = key.clone();
                let tell = move |change| {
                    send(reports.clone(), Report::Namespace(key.clone(), number, change))
                };
                self.spawn(follow(api, Selection::default(), pace, facts, tell))
            }
            WatchKey::Hpas(scope) => {
                self.world.hpas.insert(key.clone(), Feed::default());
                let api = match scope {
                    Scope::Cluster => Api::all(client),
                    Scope::Namespace(namespace) => Api::namespaced(client, namespace.as_str()),
                };
                let facts = |object: HorizontalPodAutoscaler| Some(Hpa::new(object));
                let key = key.clone();
                let tell =
                    move |change| send(reports.clone(), Report::Hpa(key.clone(), number, change));
                self.spawn(follow(api, Selection::default(), pace, facts, tell))
            }
            WatchKey::Pods { namespace, selector } => {
                self.world.pods.insert(key.clone(), Feed::default());
                let api: Api<core::Pod> = Api::namespaced(client, namespace.as_str());
                let selection = Selection { labels: Some(selector.clone()), fields: None };
                let key = key.clone();
                let tell =
                    move |change| send(reports.clone(), Report::Pod(key.clone(), number, change));
                self.spawn(follow(api, selection, pace, Pod::new, tell))
            }
            WatchKey::ConfigMap { namespace, name } => {
                self.world.config_maps.insert(key.clone(), Feed::default());
                let api: Api<core::ConfigMap> = Api::namespaced(client, namespace.as_str());
                let (selection, key) = (named(name), key.clone());
                let tell = move |change| {
                    send(reports.clone(), Report::ConfigMap(key.clone(), number, change))
                };
                self.spawn(follow(api, selection, pace, |object| Some(texts(object)), tell))
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
            warn!(watch = %key, %error, "Watch is broken: keeping what is known");
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

async fn send(reports: mpsc::Sender<Report>, report: Report) {
    // The receiver is gone only while everything is being shut down.
    let _ = reports.send(report).await;
}

/// Watches the objects of a kind: that they exist and change, and which pods they make.
async fn watch_targets(
    client: Client,
    pace: Pace,
    key: WatchKey,
    number: u64,
    reports: mpsc::Sender<Report>,
) {
    let WatchKey::Targets { scope, api_version, kind } = &key else { return };
    let broken = |failure| Report::Target(key.clone(), number, Change::Broken(failure));
    let resource = await_kind(&client, pace, (api_version, kind), &reports, broken).await;
    let api: Api<DynamicObject> = within(client, scope, &resource);
    send(reports.clone(), Report::Kind(key.clone(), number, resource)).await;
    let facts = |object: DynamicObject| TargetObject::new(api_version, kind, object);
    let tell = |change| send(reports.clone(), Report::Target(key.clone(), number, change));
    follow(api, Selection::default(), pace, facts, tell).await;
}

/// Watches `ScaledObject`s, as soon as the cluster has such a kind.
async fn watch_scaled_objects(
    client: Client,
    pace: Pace,
    key: WatchKey,
    number: u64,
    reports: mpsc::Sender<Report>,
) {
    let WatchKey::ScaledObjects(scope) = &key else { return };
    let broken = |failure| Report::ScaledObject(key.clone(), number, Change::Broken(failure));
    let kind = (keda::API_VERSION, keda::KIND);
    let resource = await_kind(&client, pace, kind, &reports, broken).await;
    let api: Api<DynamicObject> = within(client, scope, &resource);
    let facts = |object: DynamicObject| ScaledObject::new(&object);
    let tell = |change| send(reports.clone(), Report::ScaledObject(key.clone(), number, change));
    follow(api, Selection::default(), pace, facts, tell).await;
}

fn within<K>(client: Client, scope: &Scope, resource: &ApiResource) -> Api<K>
where
    K: kube::Resource<DynamicType = ApiResource>,
    K: kube::Resource<Scope = kube::core::DynamicResourceScope>,
{
    match scope {
        Scope::Cluster => Api::all_with(client, resource),
        Scope::Namespace(namespace) => Api::namespaced_with(client, namespace.as_str(), resource),
    }
}

/// Asks for the resource of a kind, an API version and a name, until there is one; reports every
/// failure as `broken` says.
async fn await_kind(
    client: &Client,
    pace: Pace,
    (api_version, kind): (&str, &str),
    reports: &mpsc::Sender<Report>,
    broken: impl Fn(Failure) -> Report,
) -> ApiResource {
    let mut retry = Retry::new(pace);
    loop {
        match discover(client, pace, api_version, kind).await {
            Ok(resource) => return resource,
            Err(failure) => {
                send(reports.clone(), broken(failure)).await;
                retry.wait().await;
            }
        }
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
            Ok(scale) => return send(reports.clone(), report(ScaleAnswer::new(scale))).await,
            Err(Failure::Absent(error)) => {
                debug!(target = %key.name, %error, "There is no scale subresource");
                return send(reports.clone(), report(ScaleAnswer::Absent)).await;
            }
            Err(Failure::Forbidden(error)) => {
                debug!(target = %key.name, %error, "The scale subresource may not be read");
                send(reports.clone(), report(ScaleAnswer::Forbidden)).await;
            }
            Err(Failure::Away(error)) => {
                debug!(target = %key.name, %error, "The scale subresource cannot be read");
            }
        }
        retry.wait().await;
    }
}
