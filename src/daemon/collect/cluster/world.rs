//! The state of all watches, and the state of each variant that follows from it.
//!
//! [`WatchedObjects`] are the objects of one watch. [`ClusterView`] holds those of all watches.
//! [`ClusterView::judge`] is the pure step that computes a [`ClusterState`] from them.

pub(crate) mod pods;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use kube::api::DynamicObject;

use crate::collect::cluster::config_maps::Texts;
use crate::collect::cluster::discovery::ledger::{Claim, Discovery};
use crate::collect::cluster::discovery::object::{AnnotatedObject, ObjectRef, ObjectRole};
use crate::collect::cluster::discovery::scope::{
    DiscoveryScope, NamespaceFacts, needed_to_discover,
};
use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::hpa::{Finding, FollowedVariant, HpaFacts};
use crate::collect::cluster::keda::ScaledObject;
use crate::collect::cluster::keys::{TargetKey, WatchKey, WatchReach};
use crate::collect::cluster::pod::ClusterPod;
use crate::collect::cluster::scale::{ScaleAnswer, ScaleEntry, ScaleFacts};
use crate::collect::cluster::scalers::{Scalers, TargetScalers};
use crate::collect::cluster::seldon::{self, ModelFacts, ServerFacts};
use crate::collect::cluster::state::{ClusterState, VariantState};
use crate::collect::cluster::target::{WantedTarget, WatchedVariant};
use crate::collect::cluster::template::ObjectTemplate;
use crate::collect::cluster::watched::{ClockReading, WatchedObjects};
use crate::collect::cluster::world::pods::{GroupPods, PodWatches, SelectedGroup};
use plimsoll_core::fleet::{Namespace, VariantKey};
use plimsoll_core::observe::hosting::HostedModels;
use plimsoll_core::observe::template::PodTemplate;
use plimsoll_core::observe::{Scale, ScaleState, WhyScaleUnknown};
use plimsoll_core::units::Replicas;

/// The relevant parts of a scale target.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TargetObject {
    /// Its resource version. For scaling, only a change of version matters.
    pub(crate) version: String,
    /// Its annotations, if it may declare a variant.
    pub(crate) marked: Option<AnnotatedObject>,
    /// Its pod template, if relevant.
    pub(crate) template: Option<ObjectTemplate>,
    /// Its capabilities and bounds, if it is a server that hosts several models.
    pub(crate) server: Option<ServerFacts>,
}

/// The latest state of all watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClusterView {
    pub(crate) reach: WatchReach,
    pub(crate) targets: BTreeMap<WatchKey, WatchedObjects<TargetObject>>,
    pub(crate) scales: BTreeMap<TargetKey, ScaleEntry>,
    pub(crate) hpas: BTreeMap<WatchKey, WatchedObjects<HpaFacts>>,
    pub(crate) scaled_objects: BTreeMap<WatchKey, WatchedObjects<ScaledObject>>,
    pub(crate) models: BTreeMap<WatchKey, WatchedObjects<ModelFacts>>,
    /// The variants whose scale targets are servers that host several models.
    pub(crate) hosts: BTreeSet<VariantKey>,
    pub(crate) pods: PodWatches,
    pub(crate) namespaces: BTreeMap<WatchKey, WatchedObjects<NamespaceFacts>>,
    /// The `ConfigMap`s that pod templates refer to, each watched by name.
    pub(crate) config_maps: BTreeMap<WatchKey, WatchedObjects<Arc<Texts>>>,
}

// === impl ClusterView ===

impl ClusterView {
    /// Returns the watches that these variants need, as far as known yet, except those of pods.
    pub(crate) fn needed(&self, wanted: &[WatchedVariant]) -> BTreeSet<WatchKey> {
        let mut needed = BTreeSet::new();
        for want in wanted {
            let namespace = want.variant.namespace.clone();
            match &want.target {
                WantedTarget::Scale { .. } => {
                    let scope = self.reach.scope(&namespace);
                    needed.insert(WatchKey::Hpas(scope.clone()));
                    if self.hosts.contains(&want.variant) {
                        needed.insert(WatchKey::Models(scope.clone()));
                    }
                    needed.insert(WatchKey::ScaledObjects(scope));
                }
                WantedTarget::Selector(_) | WantedTarget::Elsewhere => {}
            }
        }

        for key in wanted.iter().filter_map(TargetKey::of) {
            needed.insert(key.watch(self.reach));
            needed.extend(self.borrowed(&key));
        }

        needed
    }

    /// Returns the groups of pods behind these variants. A target's pods are known only after its
    /// scale subresource has been read.
    pub(crate) fn groups(&self, wanted: &[WatchedVariant]) -> BTreeSet<SelectedGroup> {
        let groups = wanted.iter().filter_map(|want| {
            let namespace = want.variant.namespace.clone();
            let selector = match &want.target {
                WantedTarget::Selector(known) => known.clone(),
                WantedTarget::Scale { .. } => {
                    self.facts(&TargetKey::of(want)?)?.selector.clone()?
                }
                WantedTarget::Elsewhere => return None,
            };
            Some(SelectedGroup { namespace, selector })
        });
        groups.collect()
    }

    /// Returns the objects that may declare a variant. `None` while one of the watches has no
    /// answer yet, because precedence depends on all of them.
    pub(crate) fn marked(&self, discover: &DiscoveryScope) -> Option<Vec<&AnnotatedObject>> {
        let mut marked = Vec::new();
        for key in needed_to_discover(discover) {
            let found = match &key {
                WatchKey::Targets { .. } => marks(self.targets.get(&key), |it| it.marked.as_ref()),
                WatchKey::Hpas(_) => marks(self.hpas.get(&key), |it| it.marked.as_ref()),
                WatchKey::ScaledObjects(_) => {
                    marks(self.scaled_objects.get(&key), |it| it.marked.as_ref())
                }
                WatchKey::Namespaces => marks(self.namespaces.get(&key), |_| None),
                WatchKey::Models(_) | WatchKey::Pods(_) | WatchKey::ConfigMap { .. } => None,
            };

            marked.extend(found?);
        }

        marked.retain(|one| {
            discover.filter.accepts(&one.labels) && self.accepts(discover, &one.object.namespace)
        });
        Some(marked)
    }

    /// Returns true if variants are discovered in a namespace. A list of namespaces decides alone.
    fn accepts(&self, discover: &DiscoveryScope, namespace: &str) -> bool {
        let name = ObjectName { namespace: String::new(), name: namespace.to_owned() };
        let feed = self.namespaces.get(&WatchKey::Namespaces);
        let facts = feed.and_then(|feed| feed.items.get(&name));
        !discover.namespaces.is_empty() || discover.namespace_filter.accepts_namespace(facts)
    }

    /// Returns the targets whose scale subresource has not been read for their current version,
    /// with that version.
    pub(crate) fn unread(&self, wanted: &[WatchedVariant]) -> BTreeMap<TargetKey, String> {
        let mut unread = BTreeMap::new();
        for key in wanted.iter().filter_map(TargetKey::of) {
            let Some(version) = self.version(&key) else { continue };
            if !self.scales.get(&key).is_some_and(|entry| entry.is_read_for(version)) {
                unread.insert(key, version.to_owned());
            }
        }

        unread
    }

    /// Stores the answer to a read for this version of the object.
    pub(crate) fn read(
        &mut self,
        now: ClockReading,
        key: TargetKey,
        version: String,
        answer: ScaleAnswer,
    ) {
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

    /// Removes the scale of objects that are not wanted or do not exist.
    pub(crate) fn forget(&mut self, wanted: &[WatchedVariant]) {
        let keys: BTreeSet<TargetKey> = wanted.iter().filter_map(TargetKey::of).collect();
        self.scales.retain(|key, _| {
            let feed = self.targets.get(&key.watch(self.reach));
            keys.contains(key) && !feed.is_some_and(|feed| feed.lacks(&key.object()))
        });
    }

    /// Removes the objects of all watches but these.
    pub(crate) fn keep(&mut self, needed: &BTreeSet<WatchKey>) {
        self.targets.retain(|key, _| needed.contains(key));
        self.hpas.retain(|key, _| needed.contains(key));
        self.scaled_objects.retain(|key, _| needed.contains(key));
        self.models.retain(|key, _| needed.contains(key));
        self.pods.retain(|scope| needed.contains(&WatchKey::Pods(scope.clone())));
        self.namespaces.retain(|key, _| needed.contains(key));
        self.config_maps.retain(|key, _| needed.contains(key));
    }

    /// Advances time for every feed.
    pub(crate) fn age(&mut self, now: ClockReading, quiet: Duration) {
        self.targets.values_mut().for_each(|feed| feed.age(now, quiet));
        self.hpas.values_mut().for_each(|feed| feed.age(now, quiet));
        self.scaled_objects.values_mut().for_each(|feed| feed.age(now, quiet));
        self.models.values_mut().for_each(|feed| feed.age(now, quiet));
        self.pods.watched().for_each(|feed| feed.age(now, quiet));

        let current: Vec<(TargetKey, Option<Timestamp>)> = self
            .scales
            .iter()
            .filter(|(key, entry)| self.version(key).is_some_and(|it| entry.is_read_for(it)))
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

    /// Computes the state of each variant. `since` is the `as_of` of variants without any data.
    pub(crate) fn judge(
        &self,
        wanted: &[WatchedVariant],
        discovery: &Arc<Discovery>,
        since: Timestamp,
    ) -> ClusterState {
        let mut owners: BTreeMap<Claim, Vec<String>> = BTreeMap::new();
        for want in wanted {
            let Some(claim) = Claim::of(&want.variant, &want.target) else { continue };
            let owner = format!("variant {}", want.variant.variant);
            owners.entry(claim).or_default().push(owner);
        }

        let mut neighbors: BTreeMap<&Namespace, BTreeSet<&str>> = BTreeMap::new();
        for VariantKey { namespace, variant } in wanted.iter().map(|want| &want.variant) {
            neighbors.entry(namespace).or_default().insert(variant.as_str());
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
                    let of = FollowedVariant {
                        variant: &want.variant,
                        neighbors: neighbors.get(&want.variant.namespace)?,
                        wanted: self.wanted(&key),
                    };
                    self.judge_target(of, &key, scalers.of(&key), claims, since)
                }
                WantedTarget::Selector(selector) => {
                    self.judge_selector(want, selector, claims, since)
                }
                WantedTarget::Elsewhere => return None,
            };

            Some((want.variant.clone(), state))
        });

        ClusterState {
            variants: variants.collect(),
            discovery: Arc::clone(discovery),
            inventory: Arc::default(),
        }
    }

    fn judge_target(
        &self,
        of: FollowedVariant<'_>,
        key: &TargetKey,
        scalers: Option<&TargetScalers<'_>>,
        claims: &[String],
        since: Timestamp,
    ) -> VariantState {
        let mut state = VariantState::unknown(WhyScaleUnknown::NotListed, since);
        let Some(feed) = self.targets.get(&key.watch(self.reach)) else { return state };
        if feed.lacks(&key.object()) {
            state.as_of = feed.true_at.unwrap_or(since);
            state.scale = Scale::Unknown(feed.unknown().unwrap_or(WhyScaleUnknown::NoSuchTarget));
            return state;
        }

        if let Some(written) = feed.get(&key.object()).and_then(|it| it.template.as_ref()) {
            state.unit = written.unit().cloned();
            state.template = self.template(key, written);
        }

        if self.hosts.contains(of.variant) {
            state.hosting = self.hosted(key, feed);
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
            pods.and_then(GroupPods::true_at),
        ];
        // Without KEDA in the cluster, from the start or no longer, there is no data here that could
        // become outdated.
        let keda = scaled_objects.filter(|feed| feed.synced).map(|feed| feed.true_at);
        let oldest = ages.into_iter().chain(keda).map(|at| at.unwrap_or(since)).min();
        state.as_of = oldest.unwrap_or(since);
        state.current = facts.map(|facts| facts.current);
        state.pods = pods.into_iter().flat_map(GroupPods::pods).cloned().collect();
        state.role = state.pods.iter().filter(|pod| pod.counts()).find_map(|pod| pod.role);
        let unheard = !scaled_objects.is_some_and(|feed| feed.answered);
        if !unheard && hpas.is_some_and(|feed| feed.unknown().is_none()) {
            (state.follower, state.findings) = match scalers {
                Some(scalers) => scalers.follow(of),
                None => (None, vec![Finding::NotRead { hpa: None }]),
            };
        }

        let answered = entry.and_then(|entry| entry.answered.as_ref());
        let blind = feed
            .unknown()
            .or_else(|| hpas.map_or(Some(WhyScaleUnknown::NotListed), WatchedObjects::unknown))
            .or_else(|| unheard.then_some(WhyScaleUnknown::NotListed));
        state.scale = match (blind, answered.map(|(_, answer)| answer)) {
            (Some(why), _) => Scale::Unknown(why),
            (None, None) => Scale::Unknown(WhyScaleUnknown::NotListed),
            (None, Some(ScaleAnswer::Forbidden)) => Scale::Unknown(WhyScaleUnknown::Forbidden),
            (None, Some(ScaleAnswer::Absent)) => Scale::Unknown(WhyScaleUnknown::NoSuchTarget),
            (None, Some(ScaleAnswer::Known(facts))) => scale(facts, pods, scalers, claims),
        };

        state
    }

    /// Returns the models of a server, given all objects of its kind. `None` until the models and
    /// the servers of its namespace are listed, and while they are not accessible.
    fn hosted(
        &self,
        key: &TargetKey,
        servers: &WatchedObjects<TargetObject>,
    ) -> Option<HostedModels> {
        let models = self.models.get(&WatchKey::Models(self.reach.scope(&key.namespace)))?;
        if models.unknown().is_some() || servers.unknown().is_some() {
            return None;
        }

        let here = key.namespace.as_str();
        let servers_here = servers.objects().filter(|(name, _)| name.namespace == here);
        let facts = servers_here.filter_map(|(name, it)| Some((&*name.name, it.server.as_ref()?)));
        let models_here = models.objects().filter(|(name, _)| name.namespace == here);
        let as_of = servers.known()?.min(models.known()?);
        Some(seldon::hosted(&key.name, &facts.collect(), &models_here.collect(), as_of))
    }

    /// Judges a variant without a scale target, whose existing pods count as the wanted replicas.
    fn judge_selector(
        &self,
        want: &WatchedVariant,
        selector: &str,
        claims: &[String],
        since: Timestamp,
    ) -> VariantState {
        let group = SelectedGroup {
            namespace: want.variant.namespace.clone(),
            selector: selector.to_owned(),
        };
        let Some(feed) = self.pods.group(&group) else {
            return VariantState::unknown(WhyScaleUnknown::NotListed, since);
        };
        let pods: Vec<ClusterPod> = feed.pods().cloned().collect();
        let existing = count(pods.iter().filter(|pod| pod.counts()));
        let ready = count(pods.iter().filter(|pod| pod.serves()));
        let scale = match feed.unknown() {
            Some(why) => Scale::Unknown(why),
            None if claims.len() > 1 => {
                Scale::Unknown(WhyScaleUnknown::DuplicateOwners(claims.into()))
            }
            None => Scale::Known(ScaleState {
                wanted: existing,
                current: existing,
                ready,
                pending: existing.beyond(ready),
                bounds: None,
            }),
        };

        let as_of = feed.true_at().unwrap_or(since);
        VariantState {
            pods,
            scale,
            as_of,
            current: Some(existing),
            follower: None,
            is_selected: true,
            findings: Vec::new(),
            role: None,
            template: None,
            hosting: None,
            unit: None,
        }
    }

    fn version(&self, key: &TargetKey) -> Option<&str> {
        let feed = self.targets.get(&key.watch(self.reach))?;
        feed.items.get(&key.object()).map(|object| object.version.as_str())
    }

    /// Returns the last known values of the target's scale subresource.
    pub(crate) fn facts(&self, key: &TargetKey) -> Option<&ScaleFacts> {
        self.scales.get(key)?.facts.as_ref()
    }

    /// Returns the replicas in the spec of the target's current version.
    fn wanted(&self, key: &TargetKey) -> Option<Replicas> {
        let entry = self.scales.get(key)?;
        let is_current = entry.is_read_for(self.version(key)?);
        entry.facts.as_ref().filter(|_| is_current).map(|facts| facts.wanted)
    }

    fn pods_of(&self, namespace: &Namespace, facts: &ScaleFacts) -> Option<GroupPods<'_>> {
        let selector = facts.selector.clone()?;
        self.pods.group(&SelectedGroup { namespace: namespace.clone(), selector })
    }

    /// Returns the watches of the `ConfigMap`s that a target's pods use.
    fn borrowed(&self, key: &TargetKey) -> impl Iterator<Item = WatchKey> {
        let feed = self.targets.get(&key.watch(self.reach));
        let written = feed.and_then(|feed| feed.get(&key.object())?.template.as_ref());
        let maps = written.into_iter().flat_map(ObjectTemplate::maps);
        maps.map(|map| watch_of(&key.namespace, map))
    }

    /// Returns the template, completed from its `ConfigMap`s. `None` while one of them has no
    /// answer yet, because an unread template does not count as changed.
    fn template(&self, key: &TargetKey, written: &ObjectTemplate) -> Option<Arc<PodTemplate>> {
        let mut feeds = written.maps().map(|map| self.config_map_feed(&key.namespace, map));
        let is_answered = feeds.all(|feed| feed.is_some_and(WatchedObjects::is_answered));
        is_answered.then(|| written.template(&|map| self.config_map_texts(&key.namespace, map)))
    }

    fn config_map_feed(
        &self,
        namespace: &Namespace,
        name: &str,
    ) -> Option<&WatchedObjects<Arc<Texts>>> {
        self.config_maps.get(&watch_of(namespace, name))
    }

    fn config_map_texts(&self, namespace: &Namespace, name: &str) -> Option<&Texts> {
        let object = ObjectName { namespace: namespace.to_string(), name: name.to_owned() };
        self.config_map_feed(namespace, name)?.get(&object).map(Arc::as_ref)
    }
}

fn watch_of(namespace: &Namespace, name: &str) -> WatchKey {
    WatchKey::ConfigMap { namespace: namespace.clone(), name: name.to_owned() }
}

/// Returns the marked objects of a watch; `None` while it has no answer yet.
fn marks<T>(
    feed: Option<&WatchedObjects<T>>,
    marked: fn(&T) -> Option<&AnnotatedObject>,
) -> Option<Vec<&AnnotatedObject>> {
    let listed = feed.filter(|feed| feed.answered)?;
    Some(listed.items.values().filter_map(marked).collect())
}

/// Returns the state of a target whose scale subresource is known.
fn scale(
    facts: &ScaleFacts,
    pods: Option<GroupPods<'_>>,
    scalers: Option<&TargetScalers<'_>>,
    claims: &[String],
) -> Scale {
    let owners = scalers.map(TargetScalers::names).unwrap_or_default();
    if owners.len() > 1 {
        return Scale::Unknown(WhyScaleUnknown::DuplicateOwners(owners));
    }
    if claims.len() > 1 {
        return Scale::Unknown(WhyScaleUnknown::DuplicateOwners(claims.into()));
    }

    // If a kind reports no selector, its pods cannot be followed, and an HPA cannot scale it
    // either.
    if facts.selector.is_none() {
        return Scale::Unknown(WhyScaleUnknown::NoSuchTarget);
    }

    let Some(pods) = pods else { return Scale::Unknown(WhyScaleUnknown::NotListed) };
    if let Some(why) = pods.unknown() {
        return Scale::Unknown(why);
    }

    let ScaleFacts { wanted, current, selector: _ } = *facts;
    let ready = count(pods.pods().filter(|pod| pod.serves()));
    let bounds = scalers.and_then(|of| of.bounds(wanted));
    let pending = wanted.max(current).beyond(ready);
    Scale::Known(ScaleState { wanted, current, ready, pending, bounds })
}

fn count<'a>(pods: impl Iterator<Item = &'a ClusterPod>) -> Replicas {
    Replicas::capped(pods.count())
}

// === impl TargetObject ===

impl TargetObject {
    /// Reads an object of this kind.
    pub(crate) fn new(api_version: &str, kind: &str, object: DynamicObject) -> Option<Self> {
        let template = ObjectTemplate::new(&object);
        let server = ServerFacts::new(api_version, kind, &object);
        let metadata = object.metadata;

        let target = WantedTarget::Scale {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: metadata.name.clone()?,
        };
        let object = ObjectRef::of(api_version, kind, &metadata);
        let marked = AnnotatedObject::new(object, ObjectRole::Workload, target, &metadata);
        Some(Self { version: metadata.resource_version?, marked, template, server })
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::autoscaling::v1;

    use super::*;
    use crate::collect::cluster::follow::{WatchChange, WatchFailure};
    use crate::collect::cluster::keys::WatchScope;
    use crate::fixtures;
    use plimsoll_core::fleet::VariantName;

    const QUIET: Duration = Duration::from_secs(35);

    fn at(second: i64) -> ClockReading {
        ClockReading {
            wall: Timestamp::from_second(1_000 + second).unwrap(),
            elapsed: Duration::from_secs(second.try_into().unwrap()),
        }
    }

    fn want() -> WatchedVariant {
        WatchedVariant {
            variant: fixtures::variant("llama").key,
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
        TargetObject { version: version.to_owned(), marked: None, template: None, server: None }
    }

    fn synced<T>(now: ClockReading, items: BTreeMap<ObjectName, T>) -> WatchedObjects<T> {
        let mut feed = WatchedObjects::default();
        feed.absorb(now, WatchChange::Synced(items));
        feed
    }

    /// The complete state for one variant, known at this instant for version 1 of its target.
    fn world(now: ClockReading) -> ClusterView {
        let key = TargetKey::of(&want()).unwrap();
        let mut world = ClusterView::default();
        let scope = WatchScope::Namespace(key.namespace.clone());
        let targets = BTreeMap::from([(name(), at_version("1"))]);
        world.targets.insert(key.watch(WatchReach::Namespaces), synced(now, targets));
        world.hpas.insert(WatchKey::Hpas(scope.clone()), synced(now, BTreeMap::new()));
        let mut no_keda = WatchedObjects::default();
        no_keda.absorb(now, WatchChange::Broken(WatchFailure::Absent("no such group".to_owned())));
        world.scaled_objects.insert(WatchKey::ScaledObjects(scope), no_keda);
        world.read(now, key, "1".to_owned(), known(1));
        let groups = world.groups(&[want()]);
        for scope in world.pods.scopes(&groups, false) {
            world.pods.insert(scope);
        }

        world.pods.divide(&groups);
        let listed = WatchChange::Synced(BTreeMap::new());
        world.pods.watched().for_each(|feed| feed.absorb(now, listed.clone()));
        world
    }

    fn state(world: &ClusterView) -> VariantState {
        let state = world.judge(&[want()], &Arc::default(), at(0).wall);
        state.variants[&want().variant].clone()
    }

    #[test]
    fn a_quiet_world_stays_young_until_a_watch_is_silent_for_too_long() {
        let mut world = world(at(0));
        world.age(at(35), QUIET);
        assert_eq!(state(&world).as_of, at(35).wall);

        // Two of the three watches report that they are alive. The third does not.
        world.targets.values_mut().for_each(|feed| feed.absorb(at(35), WatchChange::Alive));
        world.hpas.values_mut().for_each(|feed| feed.absorb(at(35), WatchChange::Alive));
        world.age(at(36), QUIET);
        assert_eq!(state(&world).as_of, at(35).wall, "a silent watch vouches for nothing");

        world.pods.watched().for_each(|feed| feed.absorb(at(40), WatchChange::Alive));
        world.age(at(41), QUIET);
        assert_eq!(state(&world).as_of, at(41).wall);
    }

    #[test]
    fn a_broken_or_resuming_watch_keeps_its_objects_and_its_age() {
        let away = WatchChange::Broken(WatchFailure::Away("refused".to_owned()));
        for change in [away, WatchChange::Resuming] {
            let mut world = world(at(0));
            let before = state(&world);

            world.targets.values_mut().for_each(|feed| feed.absorb(at(5), change.clone()));
            world.age(at(6), QUIET);
            assert_eq!(state(&world), before, "{change:?}");
        }
    }

    #[test]
    fn a_scaled_object_ends_with_its_kind_and_no_sooner() {
        let written = serde_json::json!({"metadata": {"name": "llama"}, "spec": {
            "minReplicaCount": 2, "scaleTargetRef": {"name": "llama"}}});
        let object = ScaledObject::new(&serde_json::from_value(written).unwrap()).unwrap();
        let objects = BTreeMap::from([(name(), object)]);
        let mut world = world(at(0));
        for feed in world.scaled_objects.values_mut() {
            *feed = synced(at(0), objects.clone());
        }

        let text = || "text".to_owned();
        for (second, failure, is_kept) in [
            (1, WatchFailure::Away(text()), true),
            (2, WatchFailure::Forbidden(text()), true),
            (3, WatchFailure::Absent(text()), false),
            // An API server that restarts later brings nothing back.
            (4, WatchFailure::Away(text()), false),
        ] {
            for feed in world.scaled_objects.values_mut() {
                feed.absorb(at(second), WatchChange::Broken(failure.clone()));
                feed.forget_absent();
            }

            world.age(at(second), QUIET);
            let state = state(&world);
            let as_of = if is_kept { at(0) } else { at(second) };
            assert_eq!(state.as_of, as_of.wall, "{failure:?}");
            let Scale::Known(ScaleState { bounds, .. }) = state.scale else { panic!("{state:?}") };
            assert_eq!(bounds.is_some(), is_kept, "{failure:?}");
        }
    }

    #[test]
    fn a_scale_is_as_old_as_the_version_that_it_was_read_for() {
        let mut world = world(at(0));
        let key = TargetKey::of(&want()).unwrap();
        assert_eq!(world.unread(&[want()]), BTreeMap::new());

        let applied = WatchChange::Applied(name(), at_version("2"));
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
        assert_eq!(refused.scale, Scale::Unknown(WhyScaleUnknown::Forbidden));
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
        assert_eq!(state(&world).scale, Scale::Unknown(WhyScaleUnknown::NoSuchTarget));
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
        let duplicate = Scale::Unknown(WhyScaleUnknown::DuplicateOwners(owners));
        assert_eq!(state.variants[&want().variant].scale, duplicate);
    }
}
