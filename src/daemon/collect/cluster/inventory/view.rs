//! The state of the accelerator watches, and the inventory that follows from it.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::inventory::resource::{
    accelerators, asked, count, is_accelerator, named_for, product,
};
use crate::collect::cluster::keys::WatchScope;
use crate::collect::cluster::state::ClusterState;
use crate::collect::cluster::target::{WantedTarget, WatchedVariant};
use crate::collect::cluster::watched::WatchedObjects;
use plimsoll_core::fleet::{Accelerator, Incarnation, Namespace, Resource, VariantKey};
use plimsoll_core::observe::inventory::{
    Inventory, NodeStock, QuotaStock, ReplicaUnit, TimedValue, UnitSource,
};
use plimsoll_core::units::Gpus;

/// Prefix of a quota's keys that limit requests.
const REQUESTS: &str = "requests.";

/// The label with the name of a pod's `LeaderWorkerSet`, and the label with the pod's group in it.
const GROUPS_OF: &str = "leaderworkerset.sigs.k8s.io/name";
const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// A node with accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceleratorNode {
    /// True if new pods can be scheduled there: the node is ready and not cordoned.
    open: bool,
    /// Its accelerators by resource, with their product and count.
    stock: BTreeMap<Resource, (Accelerator, Gpus)>,
}

/// A pod that requests accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceleratorPod {
    uid: Incarnation,
    node: Option<String>,
    /// True if it keeps its accelerators: it is neither ended nor terminating.
    stays: bool,
    /// True if it has ended and holds nothing.
    ended: bool,
    takes: BTreeMap<Resource, Gpus>,
    /// Its `LeaderWorkerSet`, and its group in that set.
    group: Option<(String, String)>,
}

/// A quota's accelerators by resource, each with its limit and its use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AcceleratorQuota(BTreeMap<Resource, (Gpus, Gpus)>);

/// The latest state of all watches.
#[derive(Clone, Debug, Default)]
pub(crate) struct InventoryView {
    pub(crate) nodes: Option<WatchedObjects<AcceleratorNode>>,
    pub(crate) pods: BTreeMap<WatchScope, WatchedObjects<AcceleratorPod>>,
    pub(crate) quotas: BTreeMap<WatchScope, WatchedObjects<AcceleratorQuota>>,
}

// === impl AcceleratorNode ===

impl AcceleratorNode {
    /// Reads the object; `None` for a node without accelerators.
    pub(crate) fn new(object: core::Node) -> Option<Self> {
        let labels = object.metadata.labels.unwrap_or_default();
        let status = object.status.unwrap_or_default();
        let conditions = status.conditions.unwrap_or_default();
        let ready = conditions.iter().any(|is| is.type_ == "Ready" && is.status == "True");
        let cordoned = object.spec.is_some_and(|spec| spec.unschedulable == Some(true));

        let allocatable = status.allocatable.unwrap_or_default();
        let stock: BTreeMap<_, _> = accelerators(&allocatable)
            .map(|(resource, gpus)| {
                let product = product(resource.as_str(), &labels);
                (resource.clone(), (product.unwrap_or_else(|| named_for(&resource)), gpus))
            })
            .collect();
        (!stock.is_empty()).then_some(Self { open: ready && !cordoned, stock })
    }
}

// === impl AcceleratorPod ===

impl AcceleratorPod {
    /// Reads the object; `None` for a pod that requests no accelerators.
    pub(crate) fn new(object: core::Pod) -> Option<Self> {
        let metadata = object.metadata;
        let spec = object.spec.unwrap_or_default();
        let takes = asked(&spec);
        if takes.is_empty() {
            return None;
        }

        let phase = object.status.and_then(|status| status.phase).unwrap_or_default();
        let ended = phase == "Succeeded" || phase == "Failed";
        let labels = metadata.labels.unwrap_or_default();
        let group = labels.get(GROUPS_OF).cloned().zip(labels.get(GROUP).cloned());
        Some(Self {
            uid: Incarnation::new(metadata.uid.as_deref()?)?,
            node: spec.node_name,
            stays: !ended && metadata.deletion_timestamp.is_none(),
            ended,
            takes,
            group,
        })
    }
}

// === impl AcceleratorQuota ===

impl AcceleratorQuota {
    /// Reads the object; `None` for a quota without accelerators.
    pub(crate) fn new(object: core::ResourceQuota) -> Option<Self> {
        let status = object.status.unwrap_or_default();
        let spec = object.spec.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let hard = status.hard.or(spec.hard).unwrap_or_default();

        let pairs = hard.iter().filter_map(|(key, quantity)| {
            let name = key.strip_prefix(REQUESTS).filter(|rest| is_accelerator(rest))?;
            let taken = used.get(key).map(count).unwrap_or_default();
            Some((Resource::new(name)?, (count(quantity), taken)))
        });
        let limits: BTreeMap<_, _> = pairs.collect();
        (!limits.is_empty()).then_some(Self(limits))
    }
}

// === impl InventoryView ===

impl InventoryView {
    /// Computes the inventory for the variants.
    pub(crate) fn inventory(&self, wanted: &[WatchedVariant], cluster: &ClusterState) -> Inventory {
        let ours = VariantPods::new(wanted, cluster);
        let pods: Vec<(&ObjectName, &AcceleratorPod, Option<&VariantKey>)> = self
            .pods
            .values()
            .flat_map(WatchedObjects::objects)
            .filter(|(_, pod)| !pod.ended)
            .map(|(name, pod)| (name, pod, ours.variant(name, pod)))
            .collect();

        let taken_at = oldest(self.pods.values());
        let nodes = self.nodes.as_ref().and_then(|feed| {
            let as_of = feed.known()?.min(taken_at?);
            Some(TimedValue { value: stock(feed, &pods), as_of })
        });
        let quotas = oldest(self.quotas.values()).and_then(|as_of| {
            let value = self.quotas.values().flat_map(|feed| left(feed, &pods)).collect();
            Some(TimedValue { value, as_of: as_of.min(taken_at?) })
        });

        let free = self.nodes.as_ref().map(|nodes| free(nodes, &pods)).unwrap_or_default();
        let units = units(&pods, self.nodes.as_ref());
        Inventory { nodes, free, quotas, units, pods: largest(&pods) }
    }
}

/// Returns the last instant at which all of these were known to be true; `None` if one has never
/// been read.
fn oldest<'a, T: 'a>(feeds: impl Iterator<Item = &'a WatchedObjects<T>>) -> Option<Timestamp> {
    let known: Option<Vec<Timestamp>> = feeds.map(WatchedObjects::known).collect();
    known?.into_iter().min()
}

/// The variants' own pods.
struct VariantPods<'a> {
    pods: BTreeMap<&'a Incarnation, &'a VariantKey>,
    /// The `LeaderWorkerSet`s. Selectors find only the leaders of their pods.
    groups: BTreeMap<(&'a str, &'a str), &'a VariantKey>,
}

impl<'a> VariantPods<'a> {
    fn new(wanted: &'a [WatchedVariant], cluster: &'a ClusterState) -> Self {
        let pods = cluster
            .variants
            .iter()
            .flat_map(|(key, state)| state.pods.iter().map(move |pod| (&pod.uid, key)));
        let discovered = cluster.discovery.variants.values().map(|one| (&one.key, &one.target));
        let declared = wanted.iter().map(|one| (&one.variant, &one.target));
        let groups = declared.chain(discovered).filter_map(|(key, target)| match target {
            WantedTarget::Scale { kind, name, .. } if kind == "LeaderWorkerSet" => {
                Some(((key.namespace.as_str(), name.as_str()), key))
            }
            WantedTarget::Scale { .. } | WantedTarget::Selector(_) | WantedTarget::Elsewhere => {
                None
            }
        });

        Self { pods: pods.collect(), groups: groups.collect() }
    }

    fn variant(&self, name: &ObjectName, pod: &AcceleratorPod) -> Option<&'a VariantKey> {
        if let Some(variant) = self.pods.get(&pod.uid) {
            return Some(variant);
        }

        let (set, _) = pod.group.as_ref()?;
        self.groups.get(&(name.namespace.as_str(), set.as_str())).copied()
    }
}

/// A pod that exists, with the variant that it is part of, if any.
type PodEntry<'a> = (&'a ObjectName, &'a AcceleratorPod, Option<&'a VariantKey>);

/// Sums the nodes' accelerators by product. A node that takes no new pods counts only with the
/// accelerators that the variants' own pods hold there.
fn stock(nodes: &WatchedObjects<AcceleratorNode>, pods: &[PodEntry<'_>]) -> Vec<NodeStock> {
    // By node and resource: the variants' own use, and use by others. A variant's pod that is
    // terminating counts as another's, because it holds its accelerators until it is gone.
    let mut taken: BTreeMap<(&str, &Resource), (Gpus, Gpus)> = BTreeMap::new();
    for (_, pod, variant) in pods {
        let Some(node) = &pod.node else { continue };
        for (resource, gpus) in &pod.takes {
            let (ours, others) = taken.entry((node, resource)).or_default();
            *(if variant.is_some() && pod.stays { ours } else { others }) += *gpus;
        }
    }

    let mut products: BTreeMap<&Accelerator, NodeStock> = BTreeMap::new();
    for (name, node) in nodes.objects() {
        for (resource, (product, has)) in &node.stock {
            let held = taken.get(&(name.name.as_str(), resource)).copied();
            let (ours, others) = held.unwrap_or_default();
            let row = products.entry(product).or_insert_with(|| NodeStock {
                product: product.clone(),
                allocatable: Gpus::ZERO,
                used_by_others: Gpus::ZERO,
            });
            if node.open {
                row.allocatable += *has;
                // A node cannot provide more than it has.
                row.used_by_others += others.min(*has);
            } else {
                row.allocatable += ours;
            }
        }
    }

    products.into_values().collect()
}

/// Computes the free accelerators on each node that takes new pods, by product. The variants' own
/// pending pods have the first claim, largest first. Each goes to the node with the fewest free
/// accelerators that are enough.
fn free(
    nodes: &WatchedObjects<AcceleratorNode>,
    pods: &[PodEntry<'_>],
) -> BTreeMap<Accelerator, Vec<Gpus>> {
    let mut free: BTreeMap<(&str, &Resource), (&Accelerator, Gpus)> = BTreeMap::new();
    for (name, node) in nodes.objects().filter(|(_, node)| node.open) {
        for (resource, (product, has)) in &node.stock {
            free.insert((name.name.as_str(), resource), (product, *has));
        }
    }

    for (_, pod, _) in pods {
        let Some(node) = &pod.node else { continue };
        for (resource, gpus) in &pod.takes {
            if let Some((_, left)) = free.get_mut(&(node.as_str(), resource)) {
                *left = left.beyond(*gpus);
            }
        }
    }

    let waiting = pods
        .iter()
        .filter(|(_, pod, variant)| variant.is_some() && pod.stays && pod.node.is_none());
    let mut claims: Vec<_> = waiting.flat_map(|(_, pod, _)| &pod.takes).collect();
    claims.sort_by(|a, b| b.1.cmp(a.1));
    for (resource, gpus) in claims {
        let place = free
            .iter_mut()
            .filter(|((_, known), (_, left))| *known == resource && left >= gpus)
            .min_by_key(|(_, (_, left))| *left);
        if let Some((_, (_, left))) = place {
            *left = left.beyond(*gpus);
        }
    }

    let mut products: BTreeMap<Accelerator, Vec<Gpus>> = BTreeMap::new();
    for (product, left) in free.into_values() {
        let list = products.entry(product.clone()).or_default();
        list.extend((left > Gpus::ZERO).then_some(left));
    }

    products
}

/// Returns the accelerators that each variant's largest pod takes, of the resource that counts it.
fn largest(pods: &[PodEntry<'_>]) -> BTreeMap<VariantKey, Gpus> {
    let mut all: BTreeMap<VariantKey, Gpus> = BTreeMap::new();
    for (_, pod, variant) in pods.iter().filter(|(_, pod, _)| pod.stays) {
        let Some((variant, gpus)) = variant.zip(pod.takes.values().next()) else { continue };
        let known = all.entry(variant.clone()).or_default();
        *known = (*known).max(*gpus);
    }
    all
}

/// The accelerators that quotas leave to the variants.
fn left(quotas: &WatchedObjects<AcceleratorQuota>, pods: &[PodEntry<'_>]) -> Vec<QuotaStock> {
    let mut ours: BTreeMap<(&str, &Resource), Gpus> = BTreeMap::new();
    for (name, pod, variant) in pods {
        if variant.is_some() && pod.stays {
            for (resource, gpus) in &pod.takes {
                *ours.entry((&name.namespace, resource)).or_default() += *gpus;
            }
        }
    }

    let mut left = Vec::new();
    for (name, AcceleratorQuota(limits)) in quotas.objects() {
        let Some(namespace) = Namespace::new(&name.namespace) else { continue };
        for (resource, (hard, used)) in limits {
            let own = ours.get(&(name.namespace.as_str(), resource)).copied();
            left.push(QuotaStock {
                namespace: namespace.clone(),
                name: name.name.clone(),
                resource: resource.clone(),
                hard: *hard,
                used_by_others: used.beyond(own.unwrap_or_default()),
            });
        }
    }

    left
}

/// Returns the accelerators that each variant's replica takes: those of one pod, or of all pods of
/// a group. If replicas differ, as in a rollout, the largest one counts.
fn units(
    pods: &[PodEntry<'_>],
    nodes: Option<&WatchedObjects<AcceleratorNode>>,
) -> BTreeMap<VariantKey, ReplicaUnit> {
    let mut replicas: BTreeMap<(&VariantKey, &str), ReplicaUnit> = BTreeMap::new();
    for (name, pod, variant) in pods {
        let Some(variant) = variant.filter(|_| pod.stays) else { continue };
        // A pod that requests several resources is counted by the first.
        let Some((resource, gpus)) = pod.takes.first_key_value() else { continue };
        let replica = pod.group.as_ref().map_or(name.name.as_str(), |(_, group)| group);
        let unit = replicas.entry((variant, replica)).or_insert_with(|| ReplicaUnit {
            resource: resource.clone(),
            gpus: Gpus::ZERO,
            product: None,
            source: UnitSource::Pods,
        });

        unit.gpus += *gpus;
        unit.product = unit.product.take().or_else(|| held_product(nodes?, pod, resource));
    }

    let mut units: BTreeMap<VariantKey, ReplicaUnit> = BTreeMap::new();
    for ((variant, _), unit) in replicas {
        let known = units.entry(variant.clone()).or_insert_with(|| unit.clone());
        if known.gpus < unit.gpus || known.product.is_none() {
            *known = ReplicaUnit { gpus: known.gpus.max(unit.gpus), ..unit };
        }
    }

    units
}

/// Returns the product of the accelerators that a pod holds on its node.
fn held_product(
    nodes: &WatchedObjects<AcceleratorNode>,
    pod: &AcceleratorPod,
    resource: &Resource,
) -> Option<Accelerator> {
    let name = ObjectName { namespace: String::new(), name: pod.node.clone()? };
    let (product, _) = nodes.get(&name)?.stock.get(resource)?;
    Some(product.clone())
}
