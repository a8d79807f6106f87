//! Accelerators: what nodes have, what others take, what quotas allow, and what a replica takes.
//!
//! Nodes, `ResourceQuota`s and the pods that ask for accelerators are watched, where that is
//! switched on, and put together into an [`Inventory`] by [`Seen::inventory`], which is pure. Of a
//! pod only its node and what it asks for are kept, and of one that asks for no accelerator
//! nothing: most of a cluster's pods leave no trace here.

mod run;

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1 as core;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

pub(crate) use crate::collect::cluster::inventory::run::watch;

use crate::collect::cluster::follow::ObjectName;
use crate::collect::cluster::keys::Scope;
use crate::collect::cluster::world::Feed;
use crate::collect::cluster::{ClusterState, Wanted, WantedTarget};
use plimsoll_core::fleet::{Accelerator, Incarnation, Namespace, Resource, VariantKey};
use plimsoll_core::observe::inventory::{
    Inventory, Known, NodeStock, QuotaStock, ReplicaUnit, UnitSource,
};
use plimsoll_core::units::Gpus;

/// Resources that are accelerators. Those that end with `-` or `Ascend` stand for all that begin so.
const ACCELERATORS: [&str; 11] = [
    "nvidia.com/gpu",
    "nvidia.com/gpu.shared",
    "nvidia.com/mig-",
    "amd.com/gpu",
    "gpu.intel.com/i915",
    "gpu.intel.com/xe",
    "habana.ai/gaudi",
    "google.com/tpu",
    "aws.amazon.com/neuron",
    "aws.amazon.com/neurondevice",
    "huawei.com/Ascend",
];

/// The resource of a whole card of NVIDIA.
const NVIDIA: &str = "nvidia.com/gpu";
/// How the resources of its partitions begin.
const MIG: &str = "nvidia.com/mig-";

/// What a quota on a resource begins with.
const REQUESTS: &str = "requests.";

/// The label with the name of a pod's `LeaderWorkerSet`, and the one with its group in that.
const GROUPS_OF: &str = "leaderworkerset.sigs.k8s.io/name";
const GROUP: &str = "leaderworkerset.sigs.k8s.io/group-index";

/// What of a cluster's accelerators is to be watched.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Accelerators {
    /// Nodes, and the pods of all namespaces that ask for accelerators.
    pub nodes: bool,
    /// `ResourceQuota`s, and the pods of their namespaces that ask for accelerators.
    pub quotas: bool,
}

/// A node, as far as it has accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Node {
    /// Whether new pods can go there: it is ready, and not cordoned.
    open: bool,
    /// What it has, with the product of each.
    stock: BTreeMap<Resource, (Accelerator, Gpus)>,
}

/// A pod that asks for accelerators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taker {
    uid: Incarnation,
    node: Option<String>,
    /// Whether it holds what it asks for: it has neither ended nor been told to.
    stays: bool,
    /// Whether it has ended, and holds nothing.
    ended: bool,
    takes: BTreeMap<Resource, Gpus>,
    /// Its `LeaderWorkerSet`, and which group of it.
    group: Option<(String, String)>,
}

/// A quota, as far as it is of accelerators: what it allows and what is used of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota(BTreeMap<Resource, (Gpus, Gpus)>);

/// What the watches have said.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    pub(crate) nodes: Option<Feed<Node>>,
    pub(crate) pods: BTreeMap<Scope, Feed<Taker>>,
    pub(crate) quotas: BTreeMap<Scope, Feed<Quota>>,
}

// === impl Node ===

impl Node {
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

// === impl Taker ===

impl Taker {
    /// Reads the object; `None` for a pod that asks for no accelerators.
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

// === impl Quota ===

impl Quota {
    /// Reads the object; `None` for a quota that says nothing of accelerators.
    pub(crate) fn new(object: core::ResourceQuota) -> Option<Self> {
        let status = object.status.unwrap_or_default();
        let spec = object.spec.unwrap_or_default();
        let used = status.used.unwrap_or_default();
        let hard = status.hard.or(spec.hard).unwrap_or_default();
        let limits = hard.iter().filter_map(|(key, quantity)| {
            let name = key.strip_prefix(REQUESTS).filter(|name| is_accelerator(name))?;
            let used = used.get(key).map(count).unwrap_or_default();
            Some((Resource::new(name)?, (count(quantity), used)))
        });
        let limits: BTreeMap<_, _> = limits.collect();
        (!limits.is_empty()).then_some(Self(limits))
    }
}

// === impl Seen ===

impl Seen {
    /// What follows for the variants.
    pub(crate) fn inventory(&self, wanted: &[Wanted], cluster: &ClusterState) -> Inventory {
        let ours = Ours::new(wanted, cluster);
        let pods: Vec<(&ObjectName, &Taker, Option<&VariantKey>)> = self
            .pods
            .values()
            .flat_map(Feed::objects)
            .filter(|(_, pod)| !pod.ended)
            .map(|(name, pod)| (name, pod, ours.variant(name, pod)))
            .collect();
        let taken_at = oldest(self.pods.values());
        let nodes = self.nodes.as_ref().and_then(|nodes| {
            let as_of = nodes.known()?.min(taken_at?);
            Some(Known { value: stock(nodes, &pods), as_of })
        });
        let quotas = oldest(self.quotas.values()).and_then(|as_of| {
            let value = self.quotas.values().flat_map(|feed| left(feed, &pods)).collect();
            Some(Known { value, as_of: as_of.min(taken_at?) })
        });
        let free = self.nodes.as_ref().map(|nodes| free(nodes, &pods)).unwrap_or_default();
        let units = units(&pods, self.nodes.as_ref());
        Inventory { nodes, free, quotas, units, pods: largest(&pods) }
    }
}

/// When all of these were last known to be true; `None` while one has never been read.
fn oldest<'a, T: 'a>(feeds: impl Iterator<Item = &'a Feed<T>>) -> Option<Timestamp> {
    let known: Option<Vec<Timestamp>> = feeds.map(Feed::known).collect();
    known?.into_iter().min()
}

/// Which pods are replicas of variants, or parts of one.
struct Ours<'a> {
    pods: BTreeMap<&'a Incarnation, &'a VariantKey>,
    /// The `LeaderWorkerSet`s, of whose pods only the leaders are known by their selector.
    groups: BTreeMap<(&'a str, &'a str), &'a VariantKey>,
}

impl<'a> Ours<'a> {
    fn new(wanted: &'a [Wanted], cluster: &'a ClusterState) -> Self {
        let pods = cluster
            .variants
            .iter()
            .flat_map(|(key, state)| state.pods.iter().map(move |pod| (&pod.uid, key)));
        let discovered = cluster.discovery.variants.values();
        let discovered = discovered.map(|one| (&one.key, &one.target));
        let wanted = wanted.iter().map(|one| (&one.variant, &one.target));
        let groups = wanted.chain(discovered).filter_map(|(key, target)| match target {
            WantedTarget::Scale { kind, name, .. } if kind == "LeaderWorkerSet" => {
                Some(((key.namespace.as_str(), name.as_str()), key))
            }
            WantedTarget::Scale { .. } | WantedTarget::Selector(_) | WantedTarget::Elsewhere => {
                None
            }
        });
        Self { pods: pods.collect(), groups: groups.collect() }
    }

    fn variant(&self, name: &ObjectName, pod: &Taker) -> Option<&'a VariantKey> {
        let by_group = || {
            let (set, _) = pod.group.as_ref()?;
            self.groups.get(&(name.namespace.as_str(), set.as_str()))
        };
        self.pods.get(&pod.uid).or_else(by_group).copied()
    }
}

/// A pod that is there, and whose replica it is, if it is one of a variant.
type Found<'a> = (&'a ObjectName, &'a Taker, Option<&'a VariantKey>);

/// What nodes have, by product. A node that takes no new pods has what ours hold there and no more.
fn stock(nodes: &Feed<Node>, pods: &[Found<'_>]) -> Vec<NodeStock> {
    // By node and resource: what ours hold, and what others do. One of ours that is told to stop
    // does not count as ours any more, and holds what it has until it is gone.
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
            let taken = taken.get(&(name.name.as_str(), resource)).copied();
            let (ours, others) = taken.unwrap_or_default();
            let row = products.entry(product).or_insert_with(|| NodeStock {
                product: product.clone(),
                allocatable: Gpus::ZERO,
                used_by_others: Gpus::ZERO,
            });
            if node.open {
                row.allocatable += *has;
                // No node gives more than it has.
                row.used_by_others += others.min(*has);
            } else {
                row.allocatable += ours;
            }
        }
    }
    products.into_values().collect()
}

/// What is free on each node that takes new pods, by product. Pods of ours that wait for a node have
/// the first claim, largest first, each on the node that has least beside it.
fn free(nodes: &Feed<Node>, pods: &[Found<'_>]) -> BTreeMap<Accelerator, Vec<Gpus>> {
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
    let waits = pods.iter().filter(|(_, pod, variant)| variant.is_some() && pod.stays);
    let waits = waits.filter(|(_, pod, _)| pod.node.is_none());
    let mut waits: Vec<_> = waits.flat_map(|(_, pod, _)| &pod.takes).collect();
    waits.sort_by(|a, b| b.1.cmp(a.1));
    for (resource, gpus) in waits {
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

/// What the largest pod of each variant takes, of the resource that it is counted by.
fn largest(pods: &[Found<'_>]) -> BTreeMap<VariantKey, Gpus> {
    let mut all: BTreeMap<VariantKey, Gpus> = BTreeMap::new();
    for (_, pod, variant) in pods.iter().filter(|(_, pod, _)| pod.stays) {
        let Some((variant, gpus)) = variant.zip(pod.takes.values().next()) else { continue };
        let known = all.entry(variant.clone()).or_default();
        *known = (*known).max(*gpus);
    }
    all
}

/// What quotas leave to the variants.
fn left(quotas: &Feed<Quota>, pods: &[Found<'_>]) -> Vec<QuotaStock> {
    let mut ours: BTreeMap<(&str, &Resource), Gpus> = BTreeMap::new();
    for (name, pod, variant) in pods {
        if variant.is_some() && pod.stays {
            for (resource, gpus) in &pod.takes {
                *ours.entry((&name.namespace, resource)).or_default() += *gpus;
            }
        }
    }
    let of = |(name, Quota(limits)): (&ObjectName, &Quota)| {
        let namespace = Namespace::new(&name.namespace);
        let row = |(resource, (hard, used)): (&Resource, &(Gpus, Gpus))| {
            let ours = ours.get(&(name.namespace.as_str(), resource)).copied();
            Some(QuotaStock {
                namespace: namespace.clone()?,
                name: name.name.clone(),
                resource: resource.clone(),
                hard: *hard,
                used_by_others: used.beyond(ours.unwrap_or_default()),
            })
        };
        limits.iter().filter_map(row).collect::<Vec<_>>()
    };
    quotas.objects().flat_map(of).collect()
}

/// What a replica of each variant takes: a pod, or all pods of a group. Of several that differ, as
/// in a rollout, the one that takes most.
fn units(pods: &[Found<'_>], nodes: Option<&Feed<Node>>) -> BTreeMap<VariantKey, ReplicaUnit> {
    let product = |pod: &Taker, resource: &Resource| {
        let name = ObjectName { namespace: String::new(), name: pod.node.clone()? };
        let (product, _) = nodes?.get(&name)?.stock.get(resource)?;
        Some(product.clone())
    };
    let mut replicas: BTreeMap<(&VariantKey, &str), ReplicaUnit> = BTreeMap::new();
    for (name, pod, variant) in pods {
        let Some(variant) = variant.filter(|_| pod.stays) else { continue };
        // A pod that asks for several resources is counted by the first.
        let Some((resource, gpus)) = pod.takes.first_key_value() else { continue };
        let replica = pod.group.as_ref().map_or(name.name.as_str(), |(_, group)| group);
        let unit = replicas.entry((variant, replica)).or_insert_with(|| ReplicaUnit {
            resource: resource.clone(),
            gpus: Gpus::ZERO,
            product: None,
            source: UnitSource::Pods,
        });
        unit.gpus += *gpus;
        unit.product = unit.product.take().or_else(|| product(pod, resource));
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

// === resources ===

/// Whether pods ask for accelerators by this resource.
fn is_accelerator(resource: &str) -> bool {
    ACCELERATORS.iter().any(|known| match *known {
        prefix if prefix.ends_with('-') || prefix.ends_with("Ascend") => {
            resource.starts_with(prefix)
        }
        whole => resource == whole,
    })
}

fn accelerators(
    quantities: &BTreeMap<String, Quantity>,
) -> impl Iterator<Item = (Resource, Gpus)> + '_ {
    let known = quantities.iter().filter(|(name, _)| is_accelerator(name));
    known
        .filter_map(|(name, quantity)| Some((Resource::new(name)?, count(quantity))))
        .filter(|(_, gpus)| *gpus > Gpus::ZERO)
}

/// What a pod asks for: all containers together, or the init container that asks for most, beside
/// the init containers that go on running.
///
/// Kubernetes has no overcommitment of these resources, so a limit is a request, and the other way
/// round.
pub(crate) fn asked(spec: &core::PodSpec) -> BTreeMap<Resource, Gpus> {
    let of = |container: &core::Container| -> Vec<(Resource, Gpus)> {
        let Some(resources) = &container.resources else { return Vec::new() };
        let asked = resources.requests.as_ref().or(resources.limits.as_ref());
        let limits = resources.limits.as_ref();
        let both = asked.into_iter().chain(limits).flat_map(accelerators);
        both.collect::<BTreeMap<_, _>>().into_iter().collect()
    };
    let mut all: BTreeMap<Resource, Gpus> = BTreeMap::new();
    let mut most: BTreeMap<Resource, Gpus> = BTreeMap::new();
    for container in spec.init_containers.iter().flatten() {
        let stays = container.restart_policy.as_deref() == Some("Always");
        for (resource, gpus) in of(container) {
            let beside = all.get(&resource).copied().unwrap_or_default();
            let peak = most.entry(resource.clone()).or_default();
            *peak = (*peak).max(beside + gpus);
            if stays {
                *all.entry(resource).or_default() += gpus;
            }
        }
    }
    for container in &spec.containers {
        for (resource, gpus) in of(container) {
            *all.entry(resource).or_default() += gpus;
        }
    }
    for (resource, gpus) in most {
        let sum = all.entry(resource).or_default();
        *sum = (*sum).max(gpus);
    }
    all
}

/// The product that a node's labels name for a resource, if they do.
pub(crate) fn product(resource: &str, labels: &BTreeMap<String, String>) -> Option<Accelerator> {
    let label = |name: &str| labels.get(name).filter(|text| !text.is_empty());
    // Clouds write products in lower case, and everybody else in upper.
    let cloud = |name: &str| label(name).map(|text| text.to_ascii_uppercase());
    let nvidia = || {
        label("nvidia.com/gpu.product")
            .cloned()
            .or_else(|| cloud("cloud.google.com/gke-accelerator"))
            .or_else(|| cloud("karpenter.k8s.aws/instance-gpu-name"))
    };
    let text = match resource {
        NVIDIA => nvidia(),
        "nvidia.com/gpu.shared" => nvidia().map(|product| {
            if product.ends_with("-SHARED") { product } else { format!("{product}-SHARED") }
        }),
        "amd.com/gpu" => label("amd.com/gpu.product-name").cloned(),
        "gpu.intel.com/i915" | "gpu.intel.com/xe" => label("gpu.intel.com/product").cloned(),
        "google.com/tpu" => label("cloud.google.com/gke-tpu-accelerator").cloned(),
        other => label(&format!("{other}.product")).cloned().or_else(|| {
            let profile = other.strip_prefix(MIG)?;
            Some(format!("{}-MIG-{profile}", nvidia()?))
        }),
    };
    text.as_deref().and_then(Accelerator::new)
}

/// What an accelerator is called that no label names: as its resource is, without the vendor.
fn named_for(resource: &Resource) -> Accelerator {
    let text = resource.as_str();
    let name = text.rsplit_once('/').map_or(text, |(_, name)| name);
    let vendor = text.split_once('.').map_or("", |(vendor, _)| vendor);
    let whole = if matches!(name, "gpu" | "i915" | "xe") { vendor } else { name };
    Accelerator::new(whole)
        .unwrap_or_else(|| Accelerator::new("unknown").expect("the text is not empty"))
}

/// A count as a quantity writes it. What is no count is none: devices are whole, and are written
/// in digits.
fn count(quantity: &Quantity) -> Gpus {
    let text = quantity.0.as_str();
    let (digits, factor) = text.strip_suffix('k').map_or((text, 1), |digits| (digits, 1000));
    let count: Option<u32> = digits.parse().ok();
    Gpus::new(count.and_then(|count| count.checked_mul(factor)).unwrap_or_default())
}
