//! Accelerators of a cluster: what nodes have without what others take, and what quotas leave.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::collect::cluster::{
    Accelerators, ClusterNeeds, ClusterState, WantedTarget, WatchedVariant,
};
use plimsoll::fleet::{Accelerator, Resource};
use plimsoll::observe::inventory::{Inventory, NodeStock, QuotaStock, ReplicaUnit, UnitSource};
use plimsoll::units::Gpus;
use serde_json::{Value, json};

use super::fake::FakeCluster;
use super::{DEPLOYMENTS, HPAS, PODS, Watching, deploy, deployment_of, hpa, variant};

const NODES: &str = "/api/v1/nodes";
const OTHERS: &str = "/api/v1/namespaces/batch/pods";
const QUOTAS: &str = "/api/v1/namespaces/shop/resourcequotas";
const H100: &str = "NVIDIA-H100-80GB-HBM3";

/// A node with its labels and what it has.
fn node(name: &str, labels: &Value, allocatable: &Value) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": labels},
        "spec": {},
        "status": {"allocatable": allocatable,
                   "conditions": [{"type": "Ready", "status": "True"}]}
    })
}

fn h100s(name: &str) -> Value {
    node(
        name,
        &json!({"nvidia.com/gpu.product": H100}),
        &json!({"cpu": "96", "nvidia.com/gpu": "8"}),
    )
}

/// A running pod on a node that asks for a resource.
fn taker(name: &str, node: Option<&str>, resource: &str, count: u32) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "llama"}},
        "spec": {"nodeName": node,
                 "containers": [{"name": "engine",
                                 "resources": {"limits": {resource: count.to_string()}}}]},
        "status": {"phase": "Running", "podIP": "10.1.2.3",
                   "conditions": [{"type": "Ready", "status": "True"}]}
    })
}

fn start(
    fake: &FakeCluster,
    accelerators: Accelerators,
    variants: Vec<WatchedVariant>,
) -> Watching {
    Watching::needing(fake, ClusterNeeds { variants, accelerators, ..ClusterNeeds::default() })
}

async fn until(watching: &mut Watching, is: impl Fn(&Inventory) -> bool) -> Arc<Inventory> {
    let reached = watching.state.wait_for(|state: &Arc<ClusterState>| is(&state.inventory));
    let reached = tokio::time::timeout(Duration::from_mins(1), reached).await;
    let reached = reached.map(|state| Arc::clone(&state.unwrap().inventory));
    reached
        .unwrap_or_else(|_| panic!("never reached, but {:#?}", watching.state.borrow().inventory))
}

fn stock(product: &str, allocatable: u32, used_by_others: u32) -> NodeStock {
    NodeStock {
        product: Accelerator::new(product).unwrap(),
        allocatable: Gpus::new(allocatable),
        used_by_others: Gpus::new(used_by_others),
    }
}

fn nodes(inventory: &Inventory) -> Option<&Vec<NodeStock>> {
    inventory.nodes.as_ref().map(|known| &known.value)
}

/// A cluster with one variant, one of whose replicas takes four of a node's H100s.
fn cluster(fake: &FakeCluster) -> Vec<WatchedVariant> {
    deploy(fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(HPAS, &hpa("llama", "llama"));
    fake.put(PODS, &taker("llama-0", Some("n1"), "nvidia.com/gpu", 4));
    vec![deployment_of(&variant("llama"), "llama")]
}

const ON_NODES: Accelerators = Accelerators { nodes: true, quotas: false };

#[tokio::test]
async fn what_others_take_is_not_there_and_what_ours_take_is() {
    let fake = FakeCluster::start().await;
    let wanted = cluster(&fake);
    fake.put(NODES, &h100s("n1"));
    fake.put(NODES, &h100s("n2"));
    fake.put(NODES, &node("cpu", &json!({}), &json!({"cpu": "96"})));
    fake.put(OTHERS, &taker("train", Some("n2"), "nvidia.com/gpu", 6));
    fake.put(OTHERS, &taker("waits", None, "nvidia.com/gpu", 8));
    let mut watching = start(&fake, ON_NODES, wanted);
    let inventory = until(&mut watching, |it| nodes(it) == Some(&vec![stock(H100, 16, 6)])).await;
    let unit = ReplicaUnit {
        resource: Resource::new("nvidia.com/gpu").unwrap(),
        gpus: Gpus::new(4),
        product: Accelerator::new(H100),
        source: UnitSource::Pods,
    };
    assert_eq!(inventory.units, BTreeMap::from([(variant("llama"), unit)]));
    assert_eq!(inventory.pods, BTreeMap::from([(variant("llama"), Gpus::new(4))]));
    assert_eq!(inventory.free[&Accelerator::new(H100).unwrap()], [4, 2].map(Gpus::new));
    // A pod of ours that waits has the node on which it leaves least.
    fake.put(PODS, &taker("llama-1", None, "nvidia.com/gpu", 2));
    let waits = [Gpus::new(4)];
    until(&mut watching, |it| it.free.values().any(|free| *free == waits)).await;
    fake.delete(PODS, "llama-1");
    // One of ours that is told to stop is not ours, and holds what it has until it is gone.
    fake.delete(OTHERS, "train");
    until(&mut watching, |it| nodes(it) == Some(&vec![stock(H100, 16, 0)])).await;
    let mut going = taker("llama-0", Some("n1"), "nvidia.com/gpu", 4);
    going["metadata"]["deletionTimestamp"] = json!("2026-11-22T03:00:00Z");
    fake.put(PODS, &going);
    until(&mut watching, |it| nodes(it) == Some(&vec![stock(H100, 16, 4)])).await;
}

#[tokio::test]
async fn a_node_that_takes_no_pods_has_what_ours_hold_there() {
    let fake = FakeCluster::start().await;
    let wanted = cluster(&fake);
    let mut cordoned = h100s("n1");
    cordoned["spec"]["unschedulable"] = json!(true);
    fake.put(NODES, &cordoned);
    let mut broken = h100s("n2");
    broken["status"]["conditions"][0]["status"] = json!("Unknown");
    fake.put(NODES, &broken);
    let mut watching = start(&fake, ON_NODES, wanted);
    until(&mut watching, |it| nodes(it) == Some(&vec![stock(H100, 4, 0)])).await;
}

#[tokio::test]
async fn products_are_told_apart_by_what_labels_say_of_each_resource() {
    let fake = FakeCluster::start().await;
    let mixed = json!({"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"});
    let has = json!({"nvidia.com/gpu": "4", "nvidia.com/mig-1g.10gb": "14"});
    fake.put(NODES, &node("mig", &mixed, &has));
    let gke = json!({"cloud.google.com/gke-accelerator": "nvidia-l4"});
    fake.put(NODES, &node("gke", &gke, &json!({"nvidia.com/gpu": "2"})));
    let amd = json!({"amd.com/gpu.product-name": "AMD_Instinct_MI300X_OAM"});
    fake.put(NODES, &node("amd", &amd, &json!({"amd.com/gpu": "8"})));
    fake.put(NODES, &node("bare", &json!({}), &json!({"habana.ai/gaudi": "8"})));
    let mut watching = start(&fake, ON_NODES, Vec::new());
    let want = vec![
        stock("AMD_Instinct_MI300X_OAM", 8, 0),
        stock("NVIDIA-A100-SXM4-80GB", 4, 0),
        stock("NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", 14, 0),
        stock("NVIDIA-L4", 2, 0),
        stock("gaudi", 8, 0),
    ];
    until(&mut watching, |it| nodes(it) == Some(&want)).await;
}

#[tokio::test]
async fn a_group_of_pods_is_one_replica_and_its_workers_are_ours() {
    let fake = FakeCluster::start().await;
    fake.put(NODES, &h100s("n1"));
    let sets = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/shop/leaderworkersets";
    fake.resources("/apis/leaderworkerset.x-k8s.io/v1", &[("leaderworkersets", "LeaderWorkerSet")]);
    deploy(&fake, sets, "llama", 1, 1);
    for (name, count) in [("llama-0", 1), ("llama-0-1", 2), ("llama-0-2", 2)] {
        let mut pod = taker(name, Some("n1"), "nvidia.com/gpu", count);
        pod["metadata"]["labels"] = json!({
            "leaderworkerset.sigs.k8s.io/name": "llama",
            "leaderworkerset.sigs.k8s.io/group-index": "0"
        });
        fake.put(PODS, &pod);
    }
    let target = WantedTarget::Scale {
        api_version: "leaderworkerset.x-k8s.io/v1".to_owned(),
        kind: "LeaderWorkerSet".to_owned(),
        name: "llama".to_owned(),
    };
    let wanted = vec![WatchedVariant { variant: variant("llama"), target }];
    let mut watching = start(&fake, ON_NODES, wanted);
    let inventory = until(&mut watching, |it| nodes(it) == Some(&vec![stock(H100, 8, 0)])).await;
    assert_eq!(inventory.units[&variant("llama")].gpus, Gpus::new(5));
}

#[tokio::test]
async fn a_quota_leaves_what_others_have_not_used() {
    let fake = FakeCluster::start().await;
    let wanted = cluster(&fake);
    let quota = json!({
        "metadata": {"name": "gpus", "uid": "uid-gpus"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "12", "requests.cpu": "40"}},
        "status": {"hard": {"requests.nvidia.com/gpu": "12", "requests.cpu": "40"},
                   "used": {"requests.nvidia.com/gpu": "7"}}
    });
    fake.put(QUOTAS, &quota);
    let mut watching = start(&fake, Accelerators { nodes: false, quotas: true }, wanted);
    let want = vec![QuotaStock {
        namespace: variant("llama").namespace,
        name: "gpus".to_owned(),
        resource: Resource::new("nvidia.com/gpu").unwrap(),
        hard: Gpus::new(12),
        used_by_others: Gpus::new(3),
    }];
    let is = |it: &Inventory| it.quotas.as_ref().is_some_and(|known| known.value == want);
    let inventory = until(&mut watching, is).await;
    assert_eq!(inventory.nodes, None, "nodes are not looked at");
    assert_eq!(fake.lists_of(NODES), 0, "and not asked for");
}

#[tokio::test]
async fn what_may_not_be_read_is_unknown_and_what_was_read_grows_old() {
    let fake = FakeCluster::start().await;
    fake.put(NODES, &h100s("n1"));
    fake.refuse(NODES);
    let wanted = cluster(&fake);
    let mut watching = start(&fake, ON_NODES, wanted);
    // Pods are read, and say what a replica takes; nodes are not.
    let inventory = until(&mut watching, |it| !it.units.is_empty()).await;
    assert_eq!(inventory.nodes, None);
    fake.allow(NODES);
    until(&mut watching, |it| it.nodes.is_some()).await;
    fake.refuse(NODES);
    fake.compact();
    let as_of = |state: &ClusterState| state.inventory.nodes.as_ref().unwrap().as_of;
    let mut last = as_of(&watching.state.borrow_and_update());
    for _ in 0..1000 {
        for _ in 0..10 {
            watching.state.changed().await.unwrap();
        }
        let now = as_of(&watching.state.borrow_and_update());
        if now == last {
            return;
        }
        last = now;
    }
    panic!("what cannot be read never grew old");
}

#[tokio::test]
async fn a_replica_takes_what_its_template_says_before_what_its_pods_took() {
    let fake = FakeCluster::start().await;
    let wanted = cluster(&fake);
    fake.put(NODES, &h100s("n1"));
    let mut watching = start(&fake, ON_NODES, wanted);
    let unit = |inventory: &Inventory| {
        let unit = inventory.units.get(&variant("llama"))?;
        Some((unit.gpus.count(), unit.source))
    };
    until(&mut watching, |it| unit(it) == Some((4, UnitSource::Pods))).await;
    let template = json!({"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai",
        "args": ["--max-num-seqs", "64"],
        "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    fake.put(DEPLOYMENTS, &json!({"metadata": {"name": "llama"}, "spec": {"template": template}}));
    let seen = until(&mut watching, |it| unit(it) == Some((8, UnitSource::Template))).await;
    assert_eq!(seen.units[&variant("llama")].product, Accelerator::new(H100), "of its pods' node");
}

#[tokio::test]
async fn a_group_at_zero_has_a_size_without_nodes_that_are_watched_and_a_kind_that_is_not_there_has_none()
 {
    let fake = FakeCluster::start().await;
    let group = |name: &str| WatchedVariant {
        variant: variant(name),
        target: WantedTarget::Scale {
            api_version: "leaderworkerset.x-k8s.io/v1".to_owned(),
            kind: "LeaderWorkerSet".to_owned(),
            name: name.to_owned(),
        },
    };
    let mut watching = start(&fake, Accelerators::default(), vec![group("big")]);
    watching
        .until(&variant("big"), |state| {
            state.scale
                == plimsoll::observe::Scale::Unknown(
                    plimsoll::observe::WhyScaleUnknown::NoSuchTarget,
                )
        })
        .await;
    fake.resources("/apis/leaderworkerset.x-k8s.io/v1", &[("leaderworkersets", "LeaderWorkerSet")]);
    let sets = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/shop/leaderworkersets";
    deploy(&fake, sets, "big", 0, 0);
    let pods = json!({"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai",
        "resources": {"limits": {"nvidia.com/gpu": "8"}}}]}});
    fake.put(
        sets,
        &json!({"metadata": {"name": "big"},
        "spec": {"leaderWorkerTemplate": {"size": 2, "workerTemplate": pods}}}),
    );
    let seen = until(&mut watching, |it| it.units.contains_key(&variant("big"))).await;
    assert_eq!(seen.units[&variant("big")].gpus, Gpus::new(16));
    let state = watching.state.borrow().clone();
    assert_eq!(state.templates()[&variant("big")].containers[0].image, "vllm/vllm-openai");
}
