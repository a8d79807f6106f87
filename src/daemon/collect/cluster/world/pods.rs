//! The pods of a namespace or of the cluster, watched once and divided among variants.
//!
//! A scale target selects its pods by labels. A watch for each selector would cost the API server a
//! request and a stream for each variant, so one watch sees all pods of its scope. [`SharedPods`]
//! assigns each pod to the [`SelectedGroup`]s whose selectors match its labels. It does so when a
//! pod or its labels change, and not for each look at the state.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

use crate::collect::cluster::follow::{ObjectName, WatchChange};
use crate::collect::cluster::keys::WatchScope;
use crate::collect::cluster::pod::ClusterPod;
use crate::collect::cluster::watched::{ClockReading, WatchedObjects};
use plimsoll_core::fleet::Namespace;
use plimsoll_core::fleet::selector::Selector;
use plimsoll_core::observe::WhyScaleUnknown;

/// Namespaces with variants up to which each has a watch of its pods. Above, a watch of all pods
/// takes their place if the other watches cover the cluster too.
const NAMESPACES_MAX: usize = 20;

/// The labels of a pod.
type PodLabels = BTreeMap<String, String>;

/// The pods of a namespace that a label selector matches.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SelectedGroup {
    pub(crate) namespace: Namespace,
    pub(crate) selector: String,
}

/// A pod with its labels.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LabelledPod {
    labels: Arc<PodLabels>,
    pod: ClusterPod,
}

/// The pods of one watch, divided into groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedPods {
    pub(crate) watched: WatchedObjects<LabelledPod>,
    groups: BTreeMap<SelectedGroup, GroupMembers>,
    /// Each set of labels once, because the pods of a template share theirs.
    labels: BTreeSet<Arc<PodLabels>>,
}

/// The members of a group.
#[derive(Clone, Debug, Default)]
struct GroupMembers {
    /// `None` if the text of the group is not a selector.
    selector: Option<Selector>,
    names: BTreeSet<ObjectName>,
}

/// The watches of pods, each by its scope.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodWatches {
    watches: BTreeMap<WatchScope, SharedPods>,
    /// True once one watch covers the cluster. It stays so until the watches of other kinds cover
    /// namespaces again.
    wide: bool,
}

/// The pods of one group, with the state of their watch.
#[derive(Clone, Copy)]
pub(crate) struct GroupPods<'a> {
    watched: &'a WatchedObjects<LabelledPod>,
    members: &'a GroupMembers,
}

// === impl LabelledPod ===

impl LabelledPod {
    /// Reads the object; `None` if it has no name or uid, which an API server never sends.
    pub(crate) fn new(mut object: core::Pod) -> Option<Self> {
        // A pod reads one label on its own.
        let labels = object.metadata.labels.clone().unwrap_or_default();
        object.metadata.managed_fields = None;
        Some(Self { labels: Arc::new(labels), pod: ClusterPod::new(object)? })
    }
}

// === impl SharedPods ===

impl SharedPods {
    /// Applies a change, and moves the pods whose labels it changes.
    pub(crate) fn absorb(&mut self, now: ClockReading, change: WatchChange<LabelledPod>) {
        let divided = match change {
            WatchChange::Synced(items) => WatchChange::Synced(self.replace(items)),
            WatchChange::Applied(name, applied) => {
                let pod = self.interned(applied);
                self.regroup(&name, Some(&pod.labels));
                WatchChange::Applied(name, pod)
            }
            WatchChange::Deleted(name) => {
                self.regroup(&name, None);
                WatchChange::Deleted(name)
            }
            other => other,
        };

        self.watched.absorb(now, divided);
        // A set of labels that only this collection holds belongs to no pod.
        if self.labels.len() > 2 * self.watched.items.len() {
            self.labels.retain(|labels| Arc::strong_count(labels) > 1);
        }
    }

    /// Divides a complete list.
    fn replace(
        &mut self,
        items: BTreeMap<ObjectName, LabelledPod>,
    ) -> BTreeMap<ObjectName, LabelledPod> {
        let gone: Vec<ObjectName> =
            self.watched.items.keys().filter(|name| !items.contains_key(*name)).cloned().collect();
        for name in gone {
            self.regroup(&name, None);
        }

        let pods: BTreeMap<ObjectName, LabelledPod> =
            items.into_iter().map(|(name, pod)| (name, self.interned(pod))).collect();
        for (name, pod) in &pods {
            self.regroup(name, Some(&pod.labels));
        }

        pods
    }

    /// Replaces the pod's labels by the equal ones of another pod, if there are any.
    fn interned(&mut self, pod: LabelledPod) -> LabelledPod {
        if let Some(labels) = self.labels.get(&pod.labels) {
            return LabelledPod { labels: Arc::clone(labels), pod: pod.pod };
        }

        self.labels.insert(Arc::clone(&pod.labels));
        pod
    }

    /// Moves a pod to the groups that its next labels belong to.
    fn regroup(&mut self, name: &ObjectName, labels: Option<&Arc<PodLabels>>) {
        let before = self.watched.get(name).map(|pod| &pod.labels);
        if before == labels {
            return;
        }

        for (_, members) in groups_in(&mut self.groups, &name.namespace) {
            if labels.is_some_and(|labels| members.accept(labels)) {
                members.names.insert(name.clone());
            } else {
                members.names.remove(name);
            }
        }
    }

    /// Divides the pods into these groups and no others.
    fn divide(&mut self, groups: &BTreeSet<&SelectedGroup>) {
        self.groups.retain(|group, _| groups.contains(group));
        for group in groups {
            if self.groups.contains_key(*group) {
                continue;
            }

            let mut members =
                GroupMembers { selector: group.selector.parse().ok(), names: BTreeSet::new() };
            let pods = in_namespace(&self.watched.items, group.namespace.as_str());
            let names = pods.filter(|(_, pod)| members.accept(&pod.labels)).map(|(name, _)| name);
            members.names = names.cloned().collect();
            self.groups.insert((*group).clone(), members);
        }
    }
}

/// Returns the groups of a namespace.
fn groups_in<'a>(
    groups: &'a mut BTreeMap<SelectedGroup, GroupMembers>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a SelectedGroup, &'a mut GroupMembers)> {
    let first = Namespace::new(namespace)
        .map(|namespace| SelectedGroup { namespace, selector: String::new() });
    let from = first.map(|first| groups.range_mut(first..)).into_iter().flatten();
    from.take_while(move |(group, _)| group.namespace.as_str() == namespace)
}

/// Returns the pods of a namespace.
fn in_namespace<'a>(
    pods: &'a BTreeMap<ObjectName, LabelledPod>,
    namespace: &'a str,
) -> impl Iterator<Item = (&'a ObjectName, &'a LabelledPod)> {
    let first = ObjectName { namespace: namespace.to_owned(), name: String::new() };
    pods.range(first..).take_while(move |(name, _)| name.namespace == namespace)
}

// === impl GroupMembers ===

impl GroupMembers {
    fn accept(&self, labels: &PodLabels) -> bool {
        self.selector
            .as_ref()
            .is_some_and(|selector| selector.accepts(|key| labels.get(key).map(String::as_str)))
    }
}

// === impl PodWatches ===

impl PodWatches {
    /// Returns the scopes to watch for these groups. `cluster` is true if the watches of other kinds
    /// cover the cluster.
    ///
    /// A watch of all pods takes the place of the others only once it has listed them. If it is
    /// refused, the namespaces keep theirs.
    pub(crate) fn scopes(
        &mut self,
        groups: &BTreeSet<SelectedGroup>,
        cluster: bool,
    ) -> BTreeSet<WatchScope> {
        let namespaces: BTreeSet<&Namespace> =
            groups.iter().map(|group| &group.namespace).collect();
        self.wide = cluster && (self.wide || namespaces.len() > NAMESPACES_MAX);

        let whole = self.watches.get(&WatchScope::Cluster).map(|pods| &pods.watched);
        let listed = whole.is_some_and(|whole| whole.synced);
        let refused = whole.is_some_and(|whole| whole.answered);
        let each = namespaces.into_iter().cloned().map(WatchScope::Namespace);
        let mut scopes: BTreeSet<WatchScope> = match (self.wide, listed) {
            (true, true) => BTreeSet::new(),
            (true, false) => {
                each.filter(|scope| refused || self.watches.contains_key(scope)).collect()
            }
            (false, _) => each.collect(),
        };
        if self.wide {
            scopes.insert(WatchScope::Cluster);
        }

        scopes
    }

    /// Divides the pods of each watch into these groups.
    pub(crate) fn divide(&mut self, groups: &BTreeSet<SelectedGroup>) {
        for (scope, pods) in &mut self.watches {
            let covered = groups.iter().filter(|group| match scope {
                WatchScope::Cluster => true,
                WatchScope::Namespace(namespace) => group.namespace == *namespace,
            });
            pods.divide(&covered.collect());
        }
    }

    /// Starts with no pods for a watch of this scope.
    pub(crate) fn insert(&mut self, scope: WatchScope) {
        self.watches.insert(scope, SharedPods::default());
    }

    /// Returns the pods of the watch of this scope.
    pub(crate) fn get_mut(&mut self, scope: &WatchScope) -> Option<&mut SharedPods> {
        self.watches.get_mut(scope)
    }

    /// Forgets the pods of other scopes.
    pub(crate) fn retain(&mut self, keep: impl Fn(&WatchScope) -> bool) {
        self.watches.retain(|scope, _| keep(scope));
    }

    /// Returns the state of every watch.
    pub(crate) fn watched(&mut self) -> impl Iterator<Item = &mut WatchedObjects<LabelledPod>> {
        self.watches.values_mut().map(|pods| &mut pods.watched)
    }

    /// Returns the pods of a group, from the watch that has listed them.
    pub(crate) fn group(&self, group: &SelectedGroup) -> Option<GroupPods<'_>> {
        let whole = self.watches.get(&WatchScope::Cluster);
        let own = self.watches.get(&WatchScope::Namespace(group.namespace.clone()));
        let pods = whole.filter(|it| it.watched.synced).or(own).or(whole)?;
        Some(GroupPods { watched: &pods.watched, members: pods.groups.get(group)? })
    }
}

// === impl GroupPods ===

impl<'a> GroupPods<'a> {
    /// The last instant at which all of this was known to be true.
    pub(crate) fn true_at(self) -> Option<Timestamp> {
        self.watched.true_at
    }

    /// The reason why these pods are unknown, if so.
    pub(crate) fn unknown(self) -> Option<WhyScaleUnknown> {
        // An HPA cannot scale a target either if its selector is not valid.
        let valid = self.members.selector.is_some();
        self.watched.unknown().or((!valid).then_some(WhyScaleUnknown::NoSuchTarget))
    }

    /// Returns the pods in the order of their names.
    pub(crate) fn pods(self) -> impl Iterator<Item = &'a ClusterPod> {
        self.members.names.iter().filter_map(|name| Some(&self.watched.get(name)?.pod))
    }
}
