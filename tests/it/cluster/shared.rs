//! Watches that many variants share: how many there are, and which pods belong to whom.

use plimsoll::collect::cluster::{ClusterNeeds, LinkTiming, WatchTiming, WatchedVariant};
use plimsoll::fleet::VariantKey;
use plimsoll::observe::{Scale, WhyScaleUnknown};
use serde_json::{Value, json};

use super::discovery::everywhere;
use super::fake::FakeCluster;
use super::{
    DEPLOYMENTS, PACE, PODS, Watching, deploy_with, deployment_of, in_namespace, known, pod,
    variant,
};

/// Watches that outlast a test.
pub(crate) const PATIENT: WatchTiming =
    WatchTiming { window: std::time::Duration::from_mins(5), ..PACE };

pub(crate) fn labelled(name: &str, labels: &Value) -> Value {
    let mut pod = pod(name, true);
    pod["metadata"]["labels"] = labels.clone();
    pod
}

fn deployments(namespace: &str) -> String {
    format!("/apis/apps/v1/namespaces/{namespace}/deployments")
}

fn pods(namespace: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods")
}

/// Variants in one namespace, each with one pod of its own.
fn crowd(fake: &FakeCluster, count: usize) -> Vec<WatchedVariant> {
    let put = |place: usize| {
        let name = format!("model-{place}");
        deploy_with(fake, DEPLOYMENTS, &name, &format!("app={name}"), [1, 1]);
        fake.put(PODS, &labelled(&format!("{name}-a"), &json!({"app": name})));
        deployment_of(&variant(&name), &name)
    };
    (0..count).map(put).collect()
}

/// Variants in as many namespaces, each with one pod.
fn spread(fake: &FakeCluster, count: usize) -> Vec<WatchedVariant> {
    let put = |place: usize| {
        let namespace = format!("team-{place}");
        deploy_with(fake, &deployments(&namespace), "llama", "app=llama", [1, 1]);
        fake.put(&pods(&namespace), &pod("llama-a", true));
        deployment_of(&in_namespace(&namespace, "llama"), "llama")
    };
    (0..count).map(put).collect()
}

fn needs(variants: &[WatchedVariant]) -> ClusterNeeds {
    ClusterNeeds { variants: variants.to_vec(), ..ClusterNeeds::default() }
}

impl Watching {
    async fn until_all_have_one_pod(&mut self, wanted: &[WatchedVariant]) {
        for WatchedVariant { variant, .. } in wanted {
            self.until_scale(variant, &known(1, 1, 1, 0, None)).await;
        }
    }

    async fn until_pods(&mut self, key: &VariantKey, names: &[&str]) {
        let is = |name: &&str, pod: &plimsoll::collect::cluster::ClusterPod| {
            pod.name.to_string() == **name
        };
        self.until(key, |state| {
            state.pods.len() == names.len()
                && names.iter().zip(&state.pods).all(|(name, pod)| is(name, pod))
        })
        .await;
    }
}

#[tokio::test]
async fn the_variants_of_a_namespace_share_one_watch_of_its_pods() {
    let fake = FakeCluster::start().await;
    let wanted = crowd(&fake, 60);
    let mut watching = Watching::start(&fake, &wanted);
    for WatchedVariant { variant, .. } in &wanted {
        let state = watching.until_scale(variant, &known(1, 1, 1, 0, None)).await;
        assert_eq!(state.pods[0].name.to_string(), format!("{}-a", variant.variant));
    }

    assert_eq!(fake.lists_of(PODS), 1);
    assert!(fake.connections() <= 32, "{} connections", fake.connections());
}

#[tokio::test]
async fn while_nothing_changes_nothing_is_asked_and_few_connections_are_open() {
    let fake = FakeCluster::start_with_tls().await;
    let wanted = crowd(&fake, 200);
    let client = fake.client_with(LinkTiming::default());
    let mut watching = Watching::through(client, PATIENT, needs(&wanted));
    watching.until_all_have_one_pod(&wanted).await;
    assert!(fake.connections() <= 12, "{} connections", fake.connections());

    // KEDA is looked for until there is one.
    let keda = || fake.requests_of("/apis/keda.sh/v1alpha1");
    let asked = fake.all_requests() - keda();
    let since = watching.state.borrow().variants[&wanted[0].variant].as_of;
    for _ in 0..100 {
        watching.state.changed().await.unwrap();
    }
    assert_eq!(fake.all_requests() - keda(), asked);
    assert!(watching.state.borrow().variants[&wanted[0].variant].as_of > since, "it stays young");
}

#[tokio::test]
async fn passes_that_take_longer_than_a_heartbeat_hear_what_is_reported() {
    let fake = FakeCluster::start().await;
    let wanted = crowd(&fake, 200);
    let pace = WatchTiming { heartbeat: std::time::Duration::from_millis(1), ..PATIENT };
    let mut watching = Watching::through(fake.client(), pace, needs(&wanted));
    watching.until_all_have_one_pod(&wanted).await;

    fake.put(PODS, &labelled("model-7-b", &json!({"app": "model-7"})));
    watching.until_scale(&variant("model-7"), &known(1, 1, 2, 0, None)).await;
}

#[tokio::test]
async fn more_watches_than_fit_on_a_connection_take_another() {
    let fake = FakeCluster::start_with_tls().await;
    let wanted = spread(&fake, 60);
    let mut watching = Watching::through(fake.client(), PATIENT, needs(&wanted));
    watching.until_all_have_one_pod(&wanted).await;
    assert!(fake.connections() <= 12, "{} connections", fake.connections());
}

#[tokio::test]
async fn an_api_server_that_is_back_gets_few_connections() {
    let mut fake = FakeCluster::start_with_tls().await;
    let wanted = spread(&fake, 60);
    let mut watching = Watching::through(fake.client(), PATIENT, needs(&wanted));
    watching.until_all_have_one_pod(&wanted).await;

    fake.go_down().await;
    let before = fake.connections();
    for place in 0..60 {
        fake.put(&pods(&format!("team-{place}")), &pod("llama-b", true));
    }
    fake.come_up().await;
    for WatchedVariant { variant, .. } in &wanted {
        watching.until_scale(variant, &known(1, 1, 2, 0, None)).await;
    }
    assert!(fake.connections() - before <= 12, "{} connections", fake.connections() - before);
}

#[tokio::test]
async fn many_namespaces_share_one_watch_of_all_pods() {
    let fake = FakeCluster::start().await;
    let wanted = spread(&fake, 30);
    let discover = Some(everywhere());
    let needs = ClusterNeeds { discover, ..needs(&wanted) };
    let mut watching = Watching::needing(&fake, needs.clone());
    watching.until_all_have_one_pod(&wanted).await;
    let whole = async {
        while fake.lists_of("/api/v1/pods") == 0 {
            watching.state.changed().await.unwrap();
        }
    };
    tokio::time::timeout(std::time::Duration::from_mins(1), whole).await.unwrap();

    // It is told what happens in each namespace, and no variant is unknown in between.
    let last = &wanted[29].variant;
    fake.put(&pods("team-29"), &pod("llama-b", true));
    watching.until_scale(last, &known(1, 1, 2, 0, None)).await;
}

#[tokio::test]
async fn where_all_pods_may_not_be_watched_those_of_each_namespace_are() {
    let fake = FakeCluster::start().await;
    let wanted = spread(&fake, 30);
    fake.refuse("/api/v1/pods");
    let needs = ClusterNeeds { discover: Some(everywhere()), ..needs(&wanted) };
    let mut watching = Watching::needing(&fake, needs);
    watching.until_all_have_one_pod(&wanted).await;
    assert!(fake.lists_of("/api/v1/pods") > 0);

    fake.put(&pods("team-29"), &pod("llama-b", true));
    watching.until_scale(&wanted[29].variant, &known(1, 1, 2, 0, None)).await;
}

#[tokio::test]
async fn a_pod_belongs_to_the_variants_whose_selectors_match_its_labels_now() {
    let fake = FakeCluster::start().await;
    let selectors = [
        ("plain", "app=llama"),
        ("sets", "app in (llama,mistral),tier notin (canary)"),
        ("absent", "app,!tier"),
        ("unequal", "app!=llama"),
    ];
    let wanted = selectors.map(|(name, selector)| {
        deploy_with(&fake, DEPLOYMENTS, name, selector, [1, 1]);
        deployment_of(&variant(name), name)
    });
    fake.put(PODS, &labelled("p", &json!({"app": "llama"})));
    fake.put(PODS, &labelled("q", &json!({"app": "mistral", "tier": "gold"})));
    let mut watching = Watching::start(&fake, &wanted);
    let [plain, sets, absent, unequal] = selectors.map(|(name, _)| variant(name));
    watching.until_pods(&plain, &["p"]).await;
    watching.until_pods(&sets, &["p", "q"]).await;
    watching.until_pods(&absent, &["p"]).await;
    watching.until_pods(&unequal, &["q"]).await;

    fake.put(PODS, &labelled("p", &json!({"app": "mistral", "tier": "canary"})));
    watching.until_pods(&plain, &[]).await;
    watching.until_pods(&sets, &["q"]).await;
    watching.until_pods(&absent, &[]).await;
    watching.until_pods(&unequal, &["p", "q"]).await;

    // A list says the same as the changes did.
    fake.put(PODS, &labelled("q", &json!({"app": "llama"})));
    fake.delete(PODS, "p");
    fake.compact();
    watching.until_pods(&plain, &["q"]).await;
    watching.until_pods(&unequal, &[]).await;
}

#[tokio::test]
async fn a_target_whose_selector_changes_has_the_pods_of_the_new_one() {
    let fake = FakeCluster::start().await;
    deploy_with(&fake, DEPLOYMENTS, "llama", "app=llama", [1, 1]);
    fake.put(PODS, &labelled("p", &json!({"app": "llama"})));
    fake.put(PODS, &labelled("q", &json!({"app": "other"})));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_pods(&llama, &["p"]).await;

    deploy_with(&fake, DEPLOYMENTS, "llama", "app=other", [1, 1]);
    watching.until_pods(&llama, &["q"]).await;
    assert_eq!(fake.lists_of(PODS), 1);

    deploy_with(&fake, DEPLOYMENTS, "llama", "app in other", [1, 1]);
    watching.until_scale(&llama, &Scale::Unknown(WhyScaleUnknown::NoSuchTarget)).await;
}

#[tokio::test]
async fn a_pod_that_has_ended_is_no_longer_listed() {
    let fake = FakeCluster::start().await;
    deploy_with(&fake, DEPLOYMENTS, "llama", "app=llama", [1, 1]);
    fake.put(PODS, &pod("p", true));
    fake.put(PODS, &pod("q", true));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_pods(&llama, &["p", "q"]).await;

    let mut evicted = pod("p", false);
    evicted["status"]["phase"] = json!("Failed");
    fake.put(PODS, &evicted);
    watching.until_pods(&llama, &["q"]).await;
}
