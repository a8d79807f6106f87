//! What the watches have said, and what follows from it for each variant.
//!
//! A [`Feed`] is one watch's objects with how far they can be trusted; [`World`] is all feeds; and
//! [`World::judge`] is the pure step from there to a [`ClusterState`]. A feed that breaks keeps its
//! objects: the cluster does not change because we cannot see it. Only its time stands still.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v1;
use kube::api::DynamicObject;

use crate::collect::cluster::config_maps::Texts;
use crate::collect::cluster::discovery::ledger::{Claim, Discovery};
use crate::collect::cluster::discovery::{Discover, Marked, ObjectRef, Source};
use crate::collect::cluster::follow::{Change, Failure, ObjectName};
use crate::collect::cluster::hpa::{Finding, Hpa};
use crate::collect::cluster::keda::ScaledObject;
use crate::collect::cluster::keys::{Reach, Scope, TargetKey, WatchKey};
use crate::collect::cluster::scalers::{Of, Scalers};
use crate::collect::cluster::template::Written;
use crate::collect::cluster::{ClusterState, Pod, VariantState, Wanted, WantedTarget};
use plimsoll_core::fleet::Namespace;
use plimsoll_core::observe::{Scale, ScaleState, WhyUnknown};
use plimsoll_core::units::Replicas;

/// An instant on both clocks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Wall-clock time, which is what `as_of` means.
    pub(crate) wall: Timestamp,
    /// Monotonic time, which decides how long a watch has been silent.
    pub(crate) elapsed: Duration,
}

/// The kinds of workloads whose annotations may declare a variant.
pub(crate) const WORKLOADS: [(&str, &str); 3] = [
    ("apps/v1", "Deployment"),
    ("apps/v1", "StatefulSet"),
    ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"),
];

/// How a watch is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Health {
    /// It is being started, resumed or started over.
    Waiting,
    /// It is connected.
    Live,
    /// It failed, and is tried again.
    Broken(Failure),
}

/// The objects of one watch, by name.
#[derive(Clone, Debug)]
pub(crate) struct Feed<T> {
    items: BTreeMap<ObjectName, T>,
    pub(crate) health: Health,
    synced: bool,
    /// Whether the API server has ever said what there is, or that it will not.
    answered: bool,
    heard: Duration,
    true_at: Option<Timestamp>,
}

/// What the scale subresource of one target says. It cannot be watched, so it is read again
/// whenever the object has changed, and is as old as the version of the object it was read for.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScaleEntry {
    answered: Option<(String, ScaleAnswer)>,
    /// The last facts that were told; a refusal afterwards does not undo them.
    facts: Option<ScaleFacts>,
    true_at: Option<Timestamp>,
}

/// The answer to a read of the scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ScaleAnswer {
    Known(ScaleFacts),
    Forbidden,
    /// The object is gone, or its kind cannot be scaled.
    Absent,
}

/// The scale subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ScaleFacts {
    wanted: Replicas,
    current: Replicas,
    /// Absent when the kind does not say which pods are its own.
    selector: Option<String>,
}

/// A scale target, as far as it matters.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TargetObject {
    /// Its resource version: that it has changed is all that scaling needs to know of it.
    pub(crate) version: String,
    /// What it says of a variant, if it does.
    pub(crate) marked: Option<Marked>,
    /// What it says of the pods that it makes, if they matter.
    pub(crate) template: Option<Written>,
}

/// What all watches have said.
#[derive(Clone, Debug, Default)]
pub(crate) struct World {
    pub(crate) reach: Reach,
    pub(crate) targets: BTreeMap<WatchKey, Feed<TargetObject>>,
    pub(crate) scales: BTreeMap<TargetKey, ScaleEntry>,
    pub(crate) hpas: BTreeMap<WatchKey, Feed<Hpa>>,
    pub(crate) scaled_objects: BTreeMap<WatchKey, Feed<ScaledObject>>,
    pub(crate) pods: BTreeMap<WatchKey, Feed<Pod>>,
    /// Whether each namespace wants its objects left alone.
    pub(crate) namespaces: BTreeMap<WatchKey, Feed<bool>>,
    /// What pod templates take from `ConfigMap`s, each watched by its name.
    pub(crate) config_maps: BTreeMap<WatchKey, Feed<Arc<Texts>>>,
}

// === impl Feed ===

impl<T> Default for Feed<T> {
    fn default() -> Self {
        Self {
            items: BTreeMap::new(),
            health: Health::Waiting,
            synced: false,
            answered: false,
            heard: Duration::ZERO,
            true_at: None,
        }
    }
}

impl<T> Feed<T> {
    pub(crate) fn absorb(&mut self, now: Now, change: Change<T>) {
        match change {
            Change::Synced(items) => {
                self.items = items;
                self.synced = true;
                self.answered = true;
            }
            Change::Applied(name, item) => {
                self.items.insert(name, item);
            }
            Change::Deleted(name) => {
                self.items.remove(&name);
            }
            Change::Alive => {}
            Change::Resuming => {
                self.health = Health::Waiting;
                return;
            }
            Change::Broken(failure) => {
                self.answered |= !matches!(failure, Failure::Away(_));
                self.health = Health::Broken(failure);
                return;
            }
        }
        self.health = Health::Live;
        self.heard = now.elapsed;
        self.true_at = Some(now.wall);
    }

    /// Time has passed: what a connected watch says is still true, unless it has been silent for
    /// longer than a sound one can be.
    pub(crate) fn age(&mut self, now: Now, quiet: Duration) {
        if self.health == Health::Live && now.elapsed.saturating_sub(self.heard) <= quiet {
            self.true_at = Some(now.wall);
        }
    }

    /// The object of this name.
    pub(crate) fn get(&self, name: &ObjectName) -> Option<&T> {
        self.items.get(name)
    }

    /// All objects.
    pub(crate) fn objects(&self) -> impl Iterator<Item = (&ObjectName, &T)> {
        self.items.iter()
    }

    /// Whether the API server has ever said what there is, or that it will not.
    pub(crate) const fn is_answered(&self) -> bool {
        self.answered
    }

    /// When all of this was last known to be true; `None` while it has never been told.
    pub(crate) fn known(&self) -> Option<Timestamp> {
        self.true_at.filter(|_| self.synced)
    }

    /// Whether there is no object of this name, as opposed to not knowing.
    fn lacks(&self, name: &ObjectName) -> bool {
        self.synced && !self.items.contains_key(name)
    }

    /// Why these objects cannot be spoken of, if so.
    fn unknown(&self) -> Option<WhyUnknown> {
        match &self.health {
            Health::Broken(Failure::Forbidden(_)) => Some(WhyUnknown::Forbidden),
            Health::Broken(Failure::Absent(_)) => Some(WhyUnknown::NoSuchTarget),
            Health::Broken(Failure::Away(_)) | Health::Waiting | Health::Live => {
                (!self.synced).then_some(WhyUnknown::NotListed)
            }
        }
    }
}

// === impl ScaleAnswer ===

impl ScaleAnswer {
    /// Reads the subresource. A count of zero is left out on the wire, so absent means zero.
    pub(crate) fn new(scale: v1::Scale) -> Self {
        let count = |n: i32| Replicas::saturating(u32::try_from(n).unwrap_or(0));
        let status = scale.status.unwrap_or_default();
        Self::Known(ScaleFacts {
            wanted: count(scale.spec.and_then(|spec| spec.replicas).unwrap_or(0)),
            current: count(status.replicas),
            selector: status.selector.filter(|selector| !selector.is_empty()),
        })
    }
}

// === impl World ===

impl World {
    /// The watches that these variants need, as far as is known yet: which pods are a target's is
    /// known only when its scale subresource has been read.
    pub(crate) fn needed(&self, wanted: &[Wanted]) -> BTreeSet<WatchKey> {
        let mut needed = BTreeSet::new();
        for want in wanted {
            let namespace = want.variant.namespace.clone();
            match &want.target {
                WantedTarget::Scale { .. } => {
                    let scope = self.reach.scope(&namespace);
                    needed.insert(WatchKey::Hpas(scope.clone()));
                    needed.insert(WatchKey::ScaledObjects(scope));
                }
                WantedTarget::Selector(selector) => {
                    needed.insert(WatchKey::Pods { namespace, selector: selector.clone() });
                }
                WantedTarget::Elsewhere => {}
            }
        }
        for key in wanted.iter().filter_map(TargetKey::of) {
            needed.insert(key.watch(self.reach));
            needed.extend(self.borrowed(&key));
            if let Some(selector) = self.facts(&key).and_then(|facts| facts.selector.clone()) {
                needed.insert(WatchKey::Pods { namespace: key.namespace, selector });
            }
        }
        needed
    }

    /// The objects that may declare a variant; `None` while one of the watches has never been
    /// answered, because what is in force depends on all of them.
    pub(crate) fn marked(&self, discover: &Discover) -> Option<Vec<&Marked>> {
        let mut marked = Vec::new();
        for key in needed_to_discover(discover) {
            let found = match &key {
                WatchKey::Targets { .. } => marks(self.targets.get(&key), |it| it.marked.as_ref()),
                WatchKey::Hpas(_) => marks(self.hpas.get(&key), |it| it.marked.as_ref()),
                WatchKey::ScaledObjects(_) => {
                    marks(self.scaled_objects.get(&key), |it| it.marked.as_ref())
                }
                WatchKey::Namespaces => marks(self.namespaces.get(&key), |_| None),
                WatchKey::Pods { .. } | WatchKey::ConfigMap { .. } => None,
            };
            marked.extend(found?);
        }
        let excluded = |namespace: &str| {
            let name = ObjectName { namespace: String::new(), name: namespace.to_owned() };
            let feed = self.namespaces.get(&WatchKey::Namespaces);
            feed.and_then(|feed| feed.items.get(&name)).is_some_and(|excluded| *excluded)
        };
        marked
            .retain(|one| discover.filter.accepts(&one.labels) && !excluded(&one.object.namespace));
        Some(marked)
    }

    /// The targets whose scale subresource has not been read for their present version, with it.
    pub(crate) fn unread(&self, wanted: &[Wanted]) -> BTreeMap<TargetKey, String> {
        let mut unread = BTreeMap::new();
        for key in wanted.iter().filter_map(TargetKey::of) {
            let Some(version) = self.version(&key) else { continue };
            let answered = self.scales.get(&key).and_then(|entry| entry.answered.as_ref());
            // A refusal is not an answer: it is asked again until it is granted.
            let current = |(read, answer): &(String, ScaleAnswer)| {
                read == version && *answer != ScaleAnswer::Forbidden
            };
            if !answered.is_some_and(current) {
                unread.insert(key, version.to_owned());
            }
        }
        unread
    }

    /// Takes in the answer to a read that was made for this version of the object.
    pub(crate) fn read(&mut self, now: Now, key: TargetKey, version: String, answer: ScaleAnswer) {
        let entry = self.scales.entry(key).or_default();
        match &answer {
            ScaleAnswer::Known(facts) => entry.facts = Some(facts.clone()),
            ScaleAnswer::Absent => entry.facts = None,
            ScaleAnswer::Forbidden => {}
        }
        if answer != ScaleAnswer::Forbidden {
            entry.true_at = Some(now.wall);
        }
        entry.answered = Some((version, answer));
    }

    /// Forgets the scale of objects that are not wanted or do not exist.
    pub(crate) fn forget(&mut self, wanted: &[Wanted]) {
        let wanted: BTreeSet<TargetKey> = wanted.iter().filter_map(TargetKey::of).collect();
        let gone: Vec<TargetKey> = self
            .scales
            .keys()
            .filter(|key| {
                let feed = self.targets.get(&key.watch(self.reach));
                !wanted.contains(key) || feed.is_some_and(|feed| feed.lacks(&key.object()))
            })
            .cloned()
            .collect();
        for key in gone {
            self.scales.remove(&key);
        }
    }

    /// Lets time pass for every feed.
    pub(crate) fn age(&mut self, now: Now, quiet: Duration) {
        self.targets.values_mut().for_each(|feed| feed.age(now, quiet));
        self.hpas.values_mut().for_each(|feed| feed.age(now, quiet));
        self.scaled_objects.values_mut().for_each(|feed| feed.age(now, quiet));
        self.pods.values_mut().for_each(|feed| feed.age(now, quiet));
        let current: Vec<(TargetKey, Option<Timestamp>)> = self
            .scales
            .iter()
            .filter(|(key, entry)| {
                let read = entry.answered.as_ref().map(|(version, _)| version.as_str());
                let told = !matches!(entry.answered, Some((_, ScaleAnswer::Forbidden)));
                told && read.is_some() && read == self.version(key)
            })
            .map(|(key, _)| {
                let feed = self.targets.get(&key.watch(self.reach));
                (key.clone(), feed.and_then(|feed| feed.true_at))
            })
            .collect();
        for (key, true_at) in current {
            if let Some(entry) = self.scales.get_mut(&key) {
                entry.true_at = entry.true_at.max(true_at);
            }
        }
    }

    /// What follows for each variant. `since` is the age of what nothing has been heard of.
    pub(crate) fn judge(
        &self,
        wanted: &[Wanted],
        discovery: &Arc<Discovery>,
        since: Timestamp,
    ) -> ClusterState {
        let mut owners: BTreeMap<Claim, Vec<String>> = BTreeMap::new();
        for want in wanted {
            let Some(claim) = Claim::of(&want.variant, &want.target) else { continue };
            let owner = format!("variant {}", want.variant.variant);
            owners.entry(claim).or_default().push(owner);
        }
        let scalers = Scalers::new(
            self.hpas.values().flat_map(|feed| &feed.items),
            self.scaled_objects.values().flat_map(|feed| &feed.items),
        );
        let variants = wanted.iter().filter_map(|want| {
            let claims = owners.get(&Claim::of(&want.variant, &want.target)?)?;
            let state = match &want.target {
                WantedTarget::Scale { .. } => {
                    let key = TargetKey::of(want)?;
                    self.judge_target(want, &key, scalers.of(&key), claims, since)
                }
                WantedTarget::Selector(selector) => {
                    self.judge_selector(want, selector, claims, since)
                }
                WantedTarget::Elsewhere => return None,
            };
            Some((want.variant.clone(), state))
        });
        let (variants, discovery) = (variants.collect(), Arc::clone(discovery));
        ClusterState { variants, discovery, inventory: Arc::default() }
    }

    fn judge_target(
        &self,
        want: &Wanted,
        key: &TargetKey,
        scalers: Option<&Of<'_>>,
        claims: &[String],
        since: Timestamp,
    ) -> VariantState {
        let mut state = VariantState::unknown(WhyUnknown::NotListed, since);
        let Some(feed) = self.targets.get(&key.watch(self.reach)) else { return state };
        if feed.lacks(&key.object()) {
            state.as_of = feed.true_at.unwrap_or(since);
            state.scale = Scale::Unknown(feed.unknown().unwrap_or(WhyUnknown::NoSuchTarget));
            return state;
        }
        if let Some(written) = feed.get(&key.object()).and_then(|it| it.template.as_ref()) {
            state.unit = written.unit().cloned();
            state.template = self.template(key, written);
        }
        let entry = self.scales.get(key);
        let scope = self.reach.scope(&key.namespace);
        let hpas = self.hpas.get(&WatchKey::Hpas(scope.clone()));
        let scaled_objects = self.scaled_objects.get(&WatchKey::ScaledObjects(scope));
        let facts = self.facts(key);
        let pods = facts.and_then(|facts| self.pods_of(&key.namespace, facts));
        let ages = [
            feed.true_at,
            entry.and_then(|entry| entry.true_at),
            hpas.and_then(|feed| feed.true_at),
            pods.and_then(|feed| feed.true_at),
        ];
        // A cluster without KEDA has nothing here that could grow old.
        let keda = scaled_objects.filter(|feed| feed.synced).map(|feed| feed.true_at);
        let ages = ages.into_iter().chain(keda);
        state.as_of = ages.map(|at| at.unwrap_or(since)).min().unwrap_or(since);
        state.current = facts.map(|facts| facts.current);
        state.pods = pods.into_iter().flat_map(|pods| pods.items.values().cloned()).collect();
        state.role = state.pods.iter().filter(|pod| pod.counts()).find_map(|pod| pod.role);
        let unheard = !scaled_objects.is_some_and(|feed| feed.answered);
        if !unheard && hpas.is_some_and(|feed| feed.unknown().is_none()) {
            let not_read = || (None, vec![Finding::NotRead { hpa: None }]);
            (state.follower, state.findings) =
                scalers.map_or_else(not_read, |of| of.follow(&want.variant.variant));
        }
        let answer = entry.and_then(|entry| entry.answered.as_ref()).map(|(_, answer)| answer);
        let blind = feed
            .unknown()
            .or_else(|| hpas.map_or(Some(WhyUnknown::NotListed), Feed::unknown))
            .or_else(|| unheard.then_some(WhyUnknown::NotListed));
        state.scale = match (blind, answer) {
            (Some(why), _) => Scale::Unknown(why),
            (None, None) => Scale::Unknown(WhyUnknown::NotListed),
            (None, Some(ScaleAnswer::Forbidden)) => Scale::Unknown(WhyUnknown::Forbidden),
            (None, Some(ScaleAnswer::Absent)) => Scale::Unknown(WhyUnknown::NoSuchTarget),
            (None, Some(ScaleAnswer::Known(facts))) => scale(facts, pods, scalers, claims),
        };
        state
    }

    /// Without a scale target the pods themselves are what is wanted.
    fn judge_selector(
        &self,
        want: &Wanted,
        selector: &str,
        claims: &[String],
        since: Timestamp,
    ) -> VariantState {
        let key = WatchKey::Pods {
            namespace: want.variant.namespace.clone(),
            selector: selector.to_owned(),
        };
        let Some(feed) = self.pods.get(&key) else {
            return VariantState::unknown(WhyUnknown::NotListed, since);
        };
        let pods: Vec<Pod> = feed.items.values().cloned().collect();
        let existing = count(pods.iter().filter(|pod| pod.counts()));
        let ready = count(pods.iter().filter(|pod| pod.serves()));
        let scale = match feed.unknown() {
            Some(why) => Scale::Unknown(why),
            None if claims.len() > 1 => Scale::Unknown(WhyUnknown::DuplicateOwners(claims.into())),
            None => Scale::Known(ScaleState {
                wanted: existing,
                current: existing,
                ready,
                pending: existing.beyond(ready),
                bounds: None,
            }),
        };
        let as_of = feed.true_at.unwrap_or(since);
        VariantState {
            pods,
            scale,
            as_of,
            current: Some(existing),
            follower: None,
            findings: Vec::new(),
            role: None,
            template: None,
            unit: None,
        }
    }

    fn version(&self, key: &TargetKey) -> Option<&str> {
        let feed = self.targets.get(&key.watch(self.reach))?;
        feed.items.get(&key.object()).map(|object| object.version.as_str())
    }

    /// What the target's scale subresource last told.
    pub(crate) fn facts(&self, key: &TargetKey) -> Option<&ScaleFacts> {
        self.scales.get(key)?.facts.as_ref()
    }

    fn pods_of(&self, namespace: &Namespace, facts: &ScaleFacts) -> Option<&Feed<Pod>> {
        let selector = facts.selector.clone()?;
        self.pods.get(&WatchKey::Pods { namespace: namespace.clone(), selector })
    }
}

/// The watches that see everything that may declare a variant.
pub(crate) fn needed_to_discover(discover: &Discover) -> BTreeSet<WatchKey> {
    let mut needed = BTreeSet::new();
    for scope in scopes(discover) {
        needed.insert(WatchKey::Hpas(scope.clone()));
        needed.insert(WatchKey::ScaledObjects(scope.clone()));
        needed.extend(WORKLOADS.map(|(api_version, kind)| WatchKey::Targets {
            scope: scope.clone(),
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
        }));
        if scope == Scope::Cluster {
            needed.insert(WatchKey::Namespaces);
        }
    }
    needed
}

/// Where variants are looked for.
pub(crate) fn scopes(discover: &Discover) -> Vec<Scope> {
    if discover.namespaces.is_empty() {
        return vec![Scope::Cluster];
    }
    discover.namespaces.iter().cloned().map(Scope::Namespace).collect()
}

/// The marks on the objects of a watch; `None` while it has never been answered.
fn marks<T>(feed: Option<&Feed<T>>, marked: fn(&T) -> Option<&Marked>) -> Option<Vec<&Marked>> {
    let feed = feed.filter(|feed| feed.answered)?;
    Some(feed.items.values().filter_map(marked).collect())
}

/// The state of a target whose scale subresource is known.
fn scale(
    facts: &ScaleFacts,
    pods: Option<&Feed<Pod>>,
    scalers: Option<&Of<'_>>,
    claims: &[String],
) -> Scale {
    let owners = scalers.map(Of::names).unwrap_or_default();
    if owners.len() > 1 {
        return Scale::Unknown(WhyUnknown::DuplicateOwners(owners));
    }
    if claims.len() > 1 {
        return Scale::Unknown(WhyUnknown::DuplicateOwners(claims.into()));
    }
    // A kind that does not say which pods are its own cannot be followed, nor can an HPA scale it.
    if facts.selector.is_none() {
        return Scale::Unknown(WhyUnknown::NoSuchTarget);
    }
    let Some(pods) = pods else { return Scale::Unknown(WhyUnknown::NotListed) };
    if let Some(why) = pods.unknown() {
        return Scale::Unknown(why);
    }
    let ScaleFacts { wanted, current, selector: _ } = *facts;
    let ready = count(pods.items.values().filter(|pod| pod.serves()));
    let bounds = scalers.and_then(|of| of.bounds(wanted));
    let pending = wanted.max(current).beyond(ready);
    Scale::Known(ScaleState { wanted, current, ready, pending, bounds })
}

fn count<'a>(pods: impl Iterator<Item = &'a Pod>) -> Replicas {
    Replicas::saturating(u32::try_from(pods.count()).unwrap_or(u32::MAX))
}

// === impl TargetObject ===

impl TargetObject {
    /// Reads an object of this kind.
    pub(crate) fn new(api_version: &str, kind: &str, object: DynamicObject) -> Option<Self> {
        let template = Written::new(&object);
        let metadata = object.metadata;
        let target = WantedTarget::Scale {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: metadata.name.clone()?,
        };
        let object = ObjectRef::of(api_version, kind, &metadata);
        let marked = Marked::new(object, Source::Workload, target, &metadata);
        Some(Self { version: metadata.resource_version?, marked, template })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::fleet::{VariantKey, VariantName};

    const QUIET: Duration = Duration::from_secs(35);

    fn at(second: i64) -> Now {
        Now {
            wall: Timestamp::from_second(1_000 + second).unwrap(),
            elapsed: Duration::from_secs(second.try_into().unwrap()),
        }
    }

    fn want() -> Wanted {
        Wanted {
            variant: VariantKey {
                namespace: Namespace::new("shop").unwrap(),
                variant: VariantName::new("llama").unwrap(),
            },
            target: WantedTarget::Scale {
                api_version: "apps/v1".to_owned(),
                kind: "Deployment".to_owned(),
                name: "llama".to_owned(),
            },
        }
    }

    fn known(wanted: u32) -> ScaleAnswer {
        ScaleAnswer::Known(ScaleFacts {
            wanted: Replicas::saturating(wanted),
            current: Replicas::saturating(wanted),
            selector: Some("app=llama".to_owned()),
        })
    }

    fn name() -> ObjectName {
        ObjectName { namespace: "shop".to_owned(), name: "llama".to_owned() }
    }

    fn at_version(version: &str) -> TargetObject {
        TargetObject { version: version.to_owned(), marked: None, template: None }
    }

    fn synced<T>(now: Now, items: BTreeMap<ObjectName, T>) -> Feed<T> {
        let mut feed = Feed::default();
        feed.absorb(now, Change::Synced(items));
        feed
    }

    /// Everything that one variant needs, known at this instant for version 1 of its target.
    fn world(now: Now) -> World {
        let key = TargetKey::of(&want()).unwrap();
        let mut world = World::default();
        let scope = Scope::Namespace(key.namespace.clone());
        let targets = BTreeMap::from([(name(), at_version("1"))]);
        world.targets.insert(key.watch(Reach::Namespaces), synced(now, targets));
        world.hpas.insert(WatchKey::Hpas(scope.clone()), synced(now, BTreeMap::new()));
        let mut no_keda = Feed::default();
        no_keda.absorb(now, Change::Broken(Failure::Absent("no such group".to_owned())));
        world.scaled_objects.insert(WatchKey::ScaledObjects(scope), no_keda);
        world.read(now, key, "1".to_owned(), known(1));
        for pods in world.needed(&[want()]) {
            if matches!(pods, WatchKey::Pods { .. }) {
                world.pods.insert(pods, synced(now, BTreeMap::new()));
            }
        }
        world
    }

    fn state(world: &World) -> VariantState {
        let state = world.judge(&[want()], &Arc::default(), at(0).wall);
        state.variants[&want().variant].clone()
    }

    #[test]
    fn a_quiet_world_stays_young_until_a_watch_is_silent_for_too_long() {
        let mut world = world(at(0));
        world.age(at(35), QUIET);
        assert_eq!(state(&world).as_of, at(35).wall);
        // Of the three watches two give a sign of life, and one does not.
        world.targets.values_mut().for_each(|feed| feed.absorb(at(35), Change::Alive));
        world.hpas.values_mut().for_each(|feed| feed.absorb(at(35), Change::Alive));
        world.age(at(36), QUIET);
        assert_eq!(state(&world).as_of, at(35).wall, "a silent watch vouches for nothing");
        world.pods.values_mut().for_each(|feed| feed.absorb(at(40), Change::Alive));
        world.age(at(41), QUIET);
        assert_eq!(state(&world).as_of, at(41).wall);
    }

    #[test]
    fn a_broken_or_resuming_watch_keeps_its_objects_and_its_age() {
        let away = Change::Broken(Failure::Away("refused".to_owned()));
        for change in [away, Change::Resuming] {
            let mut world = world(at(0));
            let before = state(&world);
            world.targets.values_mut().for_each(|feed| feed.absorb(at(5), change.clone()));
            world.age(at(6), QUIET);
            assert_eq!(state(&world), before, "{change:?}");
        }
    }

    #[test]
    fn a_scale_is_as_old_as_the_version_that_it_was_read_for() {
        let mut world = world(at(0));
        let key = TargetKey::of(&want()).unwrap();
        assert_eq!(world.unread(&[want()]), BTreeMap::new());

        let applied = Change::Applied(name(), at_version("2"));
        world.targets.values_mut().for_each(|feed| feed.absorb(at(3), applied.clone()));
        world.age(at(9), QUIET);
        let unread = BTreeMap::from([(key.clone(), "2".to_owned())]);
        assert_eq!(world.unread(&[want()]), unread);
        let before = state(&world);
        assert_eq!(before.as_of, at(0).wall, "the old scale is not vouched for");
        assert_eq!(before.current, Some(Replicas::ONE), "but it is kept");

        world.read(at(10), key.clone(), "2".to_owned(), known(4));
        world.age(at(11), QUIET);
        let after = state(&world);
        assert_eq!((after.as_of, after.current), (at(11).wall, Some(Replicas::saturating(4))));

        world.read(at(12), key.clone(), "2".to_owned(), ScaleAnswer::Forbidden);
        let unread = BTreeMap::from([(key, "2".to_owned())]);
        assert_eq!(world.unread(&[want()]), unread, "a refusal is asked again");
        let refused = state(&world);
        assert_eq!(refused.scale, Scale::Unknown(WhyUnknown::Forbidden));
        assert_eq!(refused.current, after.current, "what was told before is kept");
        world.age(at(13), QUIET);
        assert_eq!(state(&world).as_of, at(11).wall, "a refusal vouches for nothing");
    }

    #[test]
    fn a_kind_that_does_not_say_which_pods_are_its_own_is_no_target() {
        let mut world = world(at(0));
        let scale = v1::Scale {
            spec: Some(v1::ScaleSpec { replicas: Some(2) }),
            status: Some(v1::ScaleStatus { replicas: 2, selector: Some(String::new()) }),
            ..v1::Scale::default()
        };
        let key = TargetKey::of(&want()).unwrap();
        world.read(at(1), key, "1".to_owned(), ScaleAnswer::new(scale));
        assert_eq!(state(&world).scale, Scale::Unknown(WhyUnknown::NoSuchTarget));
    }

    #[test]
    fn versions_of_one_group_are_one_claim() {
        let mut other = want();
        other.variant.variant = VariantName::new("other").unwrap();
        if let WantedTarget::Scale { api_version, .. } = &mut other.target {
            *api_version = "apps/v1beta2".to_owned();
        }
        let world = world(at(0));
        let state = world.judge(&[want(), other], &Arc::default(), at(0).wall);
        let owners = vec!["variant llama".to_owned(), "variant other".to_owned()];
        let duplicate = Scale::Unknown(WhyUnknown::DuplicateOwners(owners));
        assert_eq!(state.variants[&want().variant].scale, duplicate);
    }
}
