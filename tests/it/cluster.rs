//! The watched cluster, against an API server that is scripted.

mod config_maps;
mod discovery;
pub(crate) mod fake;
mod hpas;
mod inventory;
mod shared;
mod watches;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use plimsoll::clock::Clock;
use plimsoll::collect::cluster::{
    self, API_SERVICE, ApiServiceFields, ClusterNeeds, ClusterState, Finding, Registration,
    VariantState, WantedTarget, WatchTiming, WatchedVariant,
};
use plimsoll::fleet::{Bounds, Namespace, VariantKey, VariantName};
use plimsoll::observe::{Scale, ScaleState, ScrapeRoute, WhyScaleUnknown};
use plimsoll::units::Replicas;
use serde_json::{Value, json};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use fake::FakeCluster;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const PODS: &str = "/api/v1/namespaces/shop/pods";
const HPAS: &str = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers";

/// Short enough for a test, and far from what a slow machine makes of it.
const PACE: WatchTiming = WatchTiming {
    window: Duration::from_secs(2),
    grace: Duration::from_secs(30),
    retry_min: Duration::from_millis(10),
    retry_max: Duration::from_millis(50),
    heartbeat: Duration::from_millis(10),
};

/// The watching of a fake cluster.
struct Watching {
    needs: watch::Sender<Arc<ClusterNeeds>>,
    state: watch::Receiver<Arc<ClusterState>>,
    _stop: DropGuard,
}

impl Watching {
    fn start(fake: &FakeCluster, wanted: &[WatchedVariant]) -> Self {
        Self::needing(fake, ClusterNeeds { variants: wanted.to_vec(), ..ClusterNeeds::default() })
    }

    fn needing(fake: &FakeCluster, needs: ClusterNeeds) -> Self {
        Self::through(fake.client(), PACE, needs)
    }

    fn through(client: kube::Client, pace: WatchTiming, needs: ClusterNeeds) -> Self {
        let (sender, receiver) = watch::channel(Arc::new(needs));
        let stop = CancellationToken::new();
        let state = cluster::watch(
            client,
            receiver,
            pace,
            Clock::start(),
            &TaskTracker::new(),
            stop.clone(),
        );
        Self { needs: sender, state, _stop: stop.drop_guard() }
    }

    /// Waits until the variant is as it should be.
    async fn until(
        &mut self,
        key: &VariantKey,
        is: impl Fn(&VariantState) -> bool,
    ) -> VariantState {
        let reached = self.state.wait_for(|state| state.variants.get(key).is_some_and(&is));
        let reached = tokio::time::timeout(Duration::from_mins(1), reached).await;
        let reached = reached.map(|state| state.unwrap().variants[key].clone());
        reached.unwrap_or_else(|_| panic!("never reached, but {:#?}", self.state.borrow()))
    }

    async fn until_scale(&mut self, key: &VariantKey, scale: &Scale) -> VariantState {
        self.until(key, |state| state.scale == *scale).await
    }

    /// Waits until the listing grows old: ten heartbeats that do not renew it.
    async fn until_stale(&mut self, key: &VariantKey) -> Timestamp {
        let as_of = |state: &ClusterState| state.variants[key].as_of;
        let mut last = as_of(&self.state.borrow_and_update());
        for _ in 0..1000 {
            for _ in 0..10 {
                self.state.changed().await.unwrap();
            }
            let now = as_of(&self.state.borrow_and_update());
            if now == last {
                return now;
            }
            last = now;
        }
        panic!("the listing never grew old");
    }
}

fn variant(name: &str) -> VariantKey {
    in_namespace("shop", name)
}

fn in_namespace(namespace: &str, name: &str) -> VariantKey {
    VariantKey {
        namespace: Namespace::new(namespace).unwrap(),
        variant: VariantName::new(name).unwrap(),
    }
}

fn deployment_of(variant: &VariantKey, name: &str) -> WatchedVariant {
    WatchedVariant {
        variant: variant.clone(),
        target: WantedTarget::Scale {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            name: name.to_owned(),
        },
    }
}

fn pod(name: &str, ready: bool) -> Value {
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "llama"}},
        "spec": {"nodeName": "node-0"},
        "status": {
            "phase": "Running", "podIP": "127.0.64.1",
            "conditions": [{"type": "Ready", "status": if ready { "True" } else { "False" }}],
        },
    })
}

fn hpa(name: &str, target: &str) -> Value {
    json!({
        "metadata": {"name": name},
        "spec": {
            "minReplicas": 2, "maxReplicas": 8,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": target},
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "plimsoll_desired_replicas",
                           "selector": {"matchLabels": {"variant": "llama"}}},
                "target": {"type": "AverageValue", "averageValue": "1"},
            }}],
        },
    })
}

/// Puts a Deployment with its scale subresource into the namespace of the collection.
fn deploy(fake: &FakeCluster, collection: &str, name: &str, wanted: u32, current: u32) {
    deploy_with(fake, collection, name, "app=llama", [wanted, current]);
}

/// Puts a Deployment whose pods have these labels, and whose replicas are as wanted and as they are.
fn deploy_with(
    fake: &FakeCluster,
    collection: &str,
    name: &str,
    selector: &str,
    [wanted, current]: [u32; 2],
) {
    // The API server leaves a count of zero out.
    let spec = if wanted == 0 { json!({}) } else { json!({"replicas": wanted}) };
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": name},
        "spec": spec, "status": {"replicas": current, "selector": selector},
    });
    fake.document(&format!("{collection}/{name}/scale"), scale);
    fake.put(collection, &json!({"metadata": {"name": name}}));
}

fn known(wanted: u32, current: u32, ready: u32, pending: u32, bounds: Option<Bounds>) -> Scale {
    let count = Replicas::saturating;
    Scale::Known(ScaleState {
        wanted: count(wanted),
        current: count(current),
        ready: count(ready),
        pending: count(pending),
        bounds,
    })
}

fn two_to_eight() -> Option<Bounds> {
    Bounds::new(Replicas::saturating(2), Some(Replicas::saturating(8)))
}

fn names(state: &VariantState) -> Vec<String> {
    state.addresses(&variant("llama")).iter().map(|(key, _)| key.replica.to_string()).collect()
}

#[tokio::test]
async fn a_variant_is_known_with_its_scale_its_pods_and_its_bounds() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 3, 3);
    fake.put(HPAS, &hpa("llama", "llama"));
    fake.put(PODS, &pod("llama-a", true));
    fake.put(PODS, &pod("llama-b", false));
    let mut unscheduled = pod("llama-c", false);
    unscheduled["status"] = json!({"phase": "Pending"});
    fake.put(PODS, &unscheduled);
    let mut stranger = pod("stranger", true);
    stranger["metadata"]["labels"] = json!({"app": "other"});
    fake.put(PODS, &stranger);

    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let state = watching.until_scale(&llama, &known(3, 3, 1, 2, two_to_eight())).await;
    assert_eq!(names(&state), ["llama-a", "llama-b"], "a pod that is not ready may still answer");
    assert_eq!(state.pods.len(), 3);
    assert_eq!(state.findings, []);
    let listing = state.listing(&llama, ScrapeRoute::Scraped);
    assert_eq!(listing.replicas[0].incarnation.as_ref().unwrap().as_str(), "uid-llama-a");
    assert_eq!(listing.unready, listing.replicas[1..]);
    assert_eq!((listing.scale, listing.as_of), (state.scale.clone(), state.as_of));
}

#[tokio::test]
async fn pods_are_followed_through_their_lives() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 2, 2);
    fake.put(PODS, &pod("llama-a", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(2, 2, 1, 1, None)).await;

    fake.put(PODS, &pod("llama-b", true));
    watching.until_scale(&llama, &known(2, 2, 2, 0, None)).await;

    let mut terminating = pod("llama-a", true);
    terminating["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    fake.put(PODS, &terminating);
    let state = watching.until_scale(&llama, &known(2, 2, 1, 1, None)).await;
    assert_eq!(names(&state), ["llama-b"], "a terminating pod is not a replica");

    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.delete(PODS, "llama-a");
    let state = watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;
    assert_eq!(names(&state), ["llama-b"]);
}

#[tokio::test]
async fn a_pod_for_which_no_node_has_room_says_since_when() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let since = "2026-01-01T00:00:10Z";
    let unplaced = |name: &str, reason: &str| {
        let condition = json!({
            "type": "PodScheduled", "status": "False", "reason": reason, "lastTransitionTime": since,
            "message": "0/3 nodes are available: 3 Insufficient nvidia.com/gpu.",
        });
        let mut pod = pod(name, false);
        pod["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        pod["spec"] = json!({});
        pod["status"] = json!({"phase": "Pending", "conditions": [condition]});
        pod
    };
    fake.put(PODS, &unplaced("llama-a", "Unschedulable"));
    fake.put(PODS, &unplaced("llama-b", "SchedulingGated"));
    fake.put(PODS, &pod("llama-c", true));
    deploy(&fake, DEPLOYMENTS, "llama", 3, 3);
    let state = watching.until_scale(&llama, &known(3, 3, 1, 2, None)).await;
    let waits: Vec<_> = state.pods.iter().map(|pod| pod.unschedulable_since).collect();
    assert_eq!(waits, [Some(since.parse().unwrap()), None, None]);
}

#[tokio::test]
async fn a_target_at_zero_is_known_to_be_at_zero() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 0, 0);
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let state = watching.until_scale(&llama, &known(0, 0, 0, 0, None)).await;
    assert_eq!(state.findings, [Finding::NotRead { hpa: None }]);
}

#[tokio::test]
async fn the_hpas_bounds_and_tolerance_are_followed() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 10, 10);
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let state = watching.until_scale(&llama, &known(10, 10, 0, 10, None)).await;
    assert_eq!(state.ignored(Replicas::saturating(11)), None, "there is no HPA to ignore it");

    fake.put(HPAS, &hpa("llama", "llama"));
    let state = watching.until_scale(&llama, &known(10, 10, 0, 10, two_to_eight())).await;
    assert!(state.ignored(Replicas::saturating(11)).is_some());

    let mut exact = hpa("llama", "llama");
    exact["spec"]["minReplicas"] = Value::Null;
    exact["spec"]["behavior"] = json!({"scaleUp": {"tolerance": "0"}});
    fake.put(HPAS, &exact);
    let one_to_eight = Bounds::new(Replicas::ONE, Some(Replicas::saturating(8)));
    let state = watching.until_scale(&llama, &known(10, 10, 0, 10, one_to_eight)).await;
    assert_eq!(state.ignored(Replicas::saturating(11)), None);

    fake.delete(HPAS, "llama");
    watching.until_scale(&llama, &known(10, 10, 0, 10, None)).await;
}

#[tokio::test]
async fn two_hpas_on_one_target_are_named_and_leave_it_unknown() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("llama-a", true));
    fake.put(HPAS, &hpa("one", "llama"));
    fake.put(HPAS, &hpa("two", "llama"));
    fake.put(HPAS, &hpa("unrelated", "other"));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let owners = WhyScaleUnknown::DuplicateOwners(vec!["HPA one".to_owned(), "HPA two".to_owned()]);
    watching.until_scale(&llama, &Scale::Unknown(owners)).await;
    let state = watching.until(&llama, |state| !state.pods.is_empty()).await;
    assert_eq!(names(&state), ["llama-a"], "its replicas are measured all the same");

    fake.delete(HPAS, "two");
    watching.until_scale(&llama, &known(1, 1, 1, 0, two_to_eight())).await;
}

#[tokio::test]
async fn two_variants_on_one_target_leave_both_unknown() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    let (one, two) = (variant("one"), variant("two"));
    let wanted = [deployment_of(&one, "llama"), deployment_of(&two, "llama")];
    let mut watching = Watching::start(&fake, &wanted);
    let names = vec!["variant one".to_owned(), "variant two".to_owned()];
    let owners = Scale::Unknown(WhyScaleUnknown::DuplicateOwners(names));
    watching.until_scale(&one, &owners).await;
    watching.until_scale(&two, &owners).await;

    let variants = vec![deployment_of(&one, "llama")];
    let needs = ClusterNeeds { variants, ..ClusterNeeds::default() };
    watching.needs.send_replace(Arc::new(needs));
    watching.until_scale(&one, &known(1, 1, 0, 1, None)).await;
    assert_eq!(watching.state.borrow().variants.get(&two), None);
}

#[tokio::test]
async fn a_target_that_is_deleted_is_unknown_and_has_no_pods_until_it_is_back() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("llama-a", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;

    fake.delete(DEPLOYMENTS, "llama");
    let gone = Scale::Unknown(WhyScaleUnknown::NoSuchTarget);
    let state = watching.until_scale(&llama, &gone).await;
    assert_eq!(state.pods, []);

    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;
}

#[tokio::test]
async fn any_kind_with_a_scale_subresource_is_a_target_and_an_unknown_kind_is_none() {
    let fake = FakeCluster::start().await;
    fake.resources("/apis/example.org/v1", &[("pools", "Pool")]);
    deploy(&fake, "/apis/example.org/v1/namespaces/shop/pools", "llama", 2, 1);
    let of_kind = |variant: &VariantKey, api_version: &str, kind: &str| WatchedVariant {
        variant: variant.clone(),
        target: WantedTarget::Scale {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            name: "llama".to_owned(),
        },
    };
    let (pool, set, odd) = (variant("pool"), variant("set"), variant("odd"));
    let mut watching = Watching::start(
        &fake,
        &[
            of_kind(&pool, "example.org/v1", "Pool"),
            of_kind(&set, "apps/v1", "StatefulSet"),
            of_kind(&odd, "no.such.group/v1", "Pool"),
        ],
    );
    watching.until_scale(&pool, &known(2, 1, 0, 2, None)).await;
    watching.until_scale(&set, &Scale::Unknown(WhyScaleUnknown::NoSuchTarget)).await;
    watching.until_scale(&odd, &Scale::Unknown(WhyScaleUnknown::NoSuchTarget)).await;

    fake.resources("/apis/no.such.group/v1", &[("pools", "Pool")]);
    deploy(&fake, "/apis/no.such.group/v1/namespaces/shop/pools", "llama", 4, 4);
    watching.until_scale(&odd, &known(4, 4, 0, 4, None)).await;
}

#[tokio::test]
async fn a_selector_without_a_scale_target_takes_the_pods_as_they_are() {
    let fake = FakeCluster::start().await;
    fake.put(PODS, &pod("llama-a", true));
    fake.put(PODS, &pod("llama-b", false));
    let llama = variant("llama");
    let target = WantedTarget::Selector("app=llama".to_owned());
    let mut watching = Watching::start(&fake, &[WatchedVariant { variant: llama.clone(), target }]);
    let state = watching.until_scale(&llama, &known(2, 2, 1, 1, None)).await;
    assert!(state.is_selected, "no autoscaler is looked for");
}

#[tokio::test]
async fn a_namespace_that_refuses_is_forbidden_and_leaves_the_others_alone() {
    let fake = FakeCluster::start().await;
    let closed = "/api/v1/namespaces/closed/pods";
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    deploy(&fake, "/apis/apps/v1/namespaces/closed/deployments", "llama", 1, 1);
    let (open, shut) = (variant("llama"), in_namespace("closed", "llama"));
    let wanted = [deployment_of(&open, "llama"), deployment_of(&shut, "llama")];
    for refused in [
        closed,
        "/apis/apps/v1/namespaces/closed/deployments",
        "/apis/apps/v1/namespaces/closed/deployments/llama/scale",
        "/apis/autoscaling/v2/namespaces/closed",
    ] {
        fake.refuse(refused);
        let mut watching = Watching::start(&fake, &wanted);
        watching.until_scale(&shut, &Scale::Unknown(WhyScaleUnknown::Forbidden)).await;
        watching.until_scale(&open, &known(1, 1, 0, 1, None)).await;
        fake.allow(refused);
        watching.until_scale(&shut, &known(1, 1, 0, 1, None)).await;
    }
}

#[tokio::test]
async fn an_api_server_that_is_away_at_the_start_is_waited_for() {
    let mut fake = FakeCluster::away();
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let since = watching.state.borrow().variants[&llama].as_of;
    watching.until_stale(&llama).await;
    let state = watching.state.borrow().variants[&llama].clone();
    assert_eq!(state.scale, Scale::Unknown(WhyScaleUnknown::NotListed));
    assert_eq!(state.as_of, since);

    fake.come_up().await;
    let state = watching.until_scale(&llama, &known(1, 1, 0, 1, None)).await;
    assert!(state.as_of > since);
}

#[tokio::test]
async fn an_api_server_that_goes_away_leaves_the_last_state_to_grow_old() {
    let mut fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 2, 2);
    fake.put(PODS, &pod("llama-a", true));
    fake.put(HPAS, &hpa("llama", "llama"));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let before = watching.until_scale(&llama, &known(2, 2, 1, 1, two_to_eight())).await;
    // While all is well a listing stays young though nothing happens.
    watching.until(&llama, |state| state.as_of > before.as_of).await;

    fake.go_down().await;
    let old = watching.until_stale(&llama).await;
    let state = watching.state.borrow().variants[&llama].clone();
    assert_eq!((&state.scale, &state.pods), (&before.scale, &before.pods));

    fake.put(PODS, &pod("llama-b", true));
    fake.come_up().await;
    let state = watching.until_scale(&llama, &known(2, 2, 2, 0, two_to_eight())).await;
    assert_eq!(names(&state), ["llama-a", "llama-b"], "what happened meanwhile is learnt");
    watching.until(&llama, |state| state.as_of > old).await;
}

#[tokio::test]
async fn an_api_server_that_refuses_all_while_it_starts_takes_nothing_back() {
    let mut fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 2, 2);
    fake.put(PODS, &pod("llama-a", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let before = watching.until_scale(&llama, &known(2, 2, 1, 1, None)).await;

    fake.go_down().await;
    let scale = format!("{DEPLOYMENTS}/llama/scale");
    let refusing = [DEPLOYMENTS, PODS, HPAS, scale.as_str()];
    for path in refusing {
        fake.refuse_next(path, 3);
    }
    deploy(&fake, DEPLOYMENTS, "llama", 2, 2);
    fake.come_up().await;
    while refusing.iter().any(|path| fake.to_refuse(path) > 0) {
        watching.state.changed().await.unwrap();
        let state = watching.state.borrow_and_update().variants[&llama].clone();
        assert_eq!((&state.scale, &state.pods), (&before.scale, &before.pods));
    }
    watching.until(&llama, |state| state.as_of > before.as_of).await;
}

#[tokio::test]
async fn a_right_that_is_taken_away_for_good_leaves_the_pods_listed_but_the_scale_unknown() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("llama-a", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;

    fake.refuse(&format!("{DEPLOYMENTS}/llama/scale"));
    fake.put(DEPLOYMENTS, &json!({"metadata": {"name": "llama"}}));
    let state = watching.until_scale(&llama, &Scale::Unknown(WhyScaleUnknown::Forbidden)).await;
    assert_eq!(names(&state), ["llama-a"]);
}

#[tokio::test]
async fn a_forgotten_history_is_listed_again_without_a_gap() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("llama-a", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(1, 1, 1, 0, None)).await;
    let lists = fake.lists_of(PODS);

    let mut unready = pod("llama-a", false);
    fake.compact();
    fake.put(PODS, &unready);
    let mut last = watching.state.borrow_and_update().variants[&llama].clone();
    while last.scale != known(1, 1, 0, 1, None) {
        assert_eq!(last.scale, known(1, 1, 1, 0, None), "the state is never unknown in between");
        watching.state.changed().await.unwrap();
        last = watching.state.borrow_and_update().variants[&llama].clone();
    }
    // The change may be told before the watch is ended.
    let again = async {
        while fake.lists_of(PODS) <= lists {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let again = tokio::time::timeout(Duration::from_mins(1), again).await;
    assert!(again.is_ok(), "the pods were listed again");

    // A deletion that nobody reported is found by listing.
    unready["metadata"]["name"] = json!("llama-b");
    fake.put(PODS, &unready);
    fake.delete(PODS, "llama-a");
    fake.compact();
    let state = watching.until(&llama, |state| names(state) == ["llama-b"]).await;
    assert_eq!(state.scale, known(1, 1, 0, 1, None));
}

#[tokio::test]
async fn a_reload_leaves_the_watches_alone_that_are_still_needed() {
    let fake = FakeCluster::start().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    deploy(&fake, DEPLOYMENTS, "mistral", 2, 2);
    let (llama, mistral) = (variant("llama"), variant("mistral"));
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(1, 1, 0, 1, None)).await;
    let lists = [DEPLOYMENTS, HPAS, PODS].map(|path| fake.lists_of(path));

    let variants = vec![deployment_of(&llama, "llama"), deployment_of(&mistral, "mistral")];
    watching.needs.send_replace(Arc::new(ClusterNeeds { variants, ..ClusterNeeds::default() }));
    watching.until_scale(&mistral, &known(2, 2, 0, 2, None)).await;
    assert_eq!(watching.state.borrow().variants[&llama].scale, known(1, 1, 0, 1, None));
    assert_eq!([DEPLOYMENTS, HPAS, PODS].map(|path| fake.lists_of(path)), lists);
}

#[tokio::test]
async fn whom_to_authenticate_by_is_read_and_kept_when_it_vanishes() {
    const MAPS: &str = "/api/v1/namespaces/kube-system/configmaps";
    let name = "extension-apiserver-authentication";
    let fake = FakeCluster::start().await;
    let map = |ca: &str| json!({"metadata": {"name": name}, "data": {"client-ca-file": ca}});
    let data = |ca: &str| Some(BTreeMap::from([("client-ca-file".to_owned(), ca.to_owned())]));
    fake.put(MAPS, &json!({"metadata": {"name": "another"}, "data": {"a": "b"}}));
    fake.put(MAPS, &map("one"));
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let mut read = cluster::authentication(fake.client(), PACE, &TaskTracker::new(), stop);
    assert_eq!(*read.wait_for(|read| *read == data("one")).await.unwrap(), data("one"));

    fake.delete(MAPS, name);
    fake.put(MAPS, &map("two"));
    read.changed().await.unwrap();
    assert_eq!(*read.borrow(), data("two"), "it is never unknown in between");
}

#[tokio::test]
async fn a_taken_over_registration_is_noticed() {
    const SERVICES: &str = "/apis/apiregistration.k8s.io/v1/apiservices";
    let fake = FakeCluster::start().await;
    let expected = ApiServiceFields {
        service: Some(("plimsoll".to_owned(), "plimsoll".to_owned())),
        ca_bundle: None,
    };
    let stop = CancellationToken::new();
    let _guard = stop.clone().drop_guard();
    let mut seen = cluster::registration(
        fake.client(),
        API_SERVICE,
        move || expected.clone(),
        PACE,
        &TaskTracker::new(),
        stop,
    );
    seen.wait_for(|seen| *seen == Some(Registration::Absent)).await.unwrap();

    let object = |name: &str| {
        json!({
            "metadata": {"name": "v1beta1.external.metrics.k8s.io"},
            "spec": {"groupPriorityMinimum": 100, "versionPriority": 100,
                     "service": {"namespace": "plimsoll", "name": name}},
            "status": {"conditions": [{"type": "Available", "status": "True"}]},
        })
    };
    fake.put(SERVICES, &object("plimsoll"));
    seen.wait_for(|seen| *seen == Some(Registration::Ours)).await.unwrap();
    fake.put(SERVICES, &object("keda"));
    let foreign =
        Registration::ForeignService { namespace: "plimsoll".to_owned(), name: "keda".to_owned() };
    seen.wait_for(|seen| *seen == Some(foreign.clone())).await.unwrap();
    fake.delete(SERVICES, "v1beta1.external.metrics.k8s.io");
    seen.wait_for(|seen| *seen == Some(Registration::Absent)).await.unwrap();
}

#[tokio::test]
async fn a_kubeconfig_makes_a_client_and_a_bad_one_says_which_file() {
    let fake = FakeCluster::start().await;
    fake.document(
        "/version",
        json!({"major": "1", "minor": "36", "gitVersion": "v1.36.0",
        "gitCommit": "", "gitTreeState": "", "buildDate": "", "goVersion": "", "compiler": "",
        "platform": ""}),
    );
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("kubeconfig");
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: a\n\
         contexts: [{{name: a, context: {{cluster: a, user: a}}}}]\n\
         clusters: [{{name: a, cluster: {{server: \"{}\"}}}}]\nusers: [{{name: a, user: {{}}}}]\n",
        fake.url()
    );
    std::fs::write(&file, text).unwrap();
    let client = cluster::client(Some(&file), None).await.unwrap();
    assert_eq!(client.apiserver_version().await.unwrap().minor, "36");

    let other = cluster::client(Some(&file), Some("b")).await.err().unwrap();
    assert_eq!(other.to_string(), "the kubeconfig's context cannot be used");
    let missing = folder.path().join("missing");
    let error = cluster::client(Some(&missing), None).await.err().unwrap();
    assert_eq!(error.to_string(), format!("cannot read the kubeconfig {}", missing.display()));
}
