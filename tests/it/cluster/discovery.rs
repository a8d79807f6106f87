//! Variants that are discovered, and bounds that KEDA imposes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::collect::cluster::discovery::{
    AnnotationRules, Claimant, DiscoveredVariant, DiscoveryScope, Filter, ObjectionCause,
    ReadingFallback, Standing, Vocabulary,
};
use plimsoll::collect::cluster::{
    ClusterNeeds, ClusterState, Discovery, Finding, ScaledObjectPause,
};
use plimsoll::fleet::{Bounds, Namespace, Role};
use plimsoll::observe::{Scale, WhyScaleUnknown};
use plimsoll::units::Replicas;
use serde_json::{Value, json};

use super::fake::FakeCluster;
use super::{
    DEPLOYMENTS, HPAS, PODS, Watching, deploy, deployment_of, hpa, in_namespace, known, pod,
    two_to_eight, variant,
};

const KEDA: &str = "/apis/keda.sh/v1alpha1";
const SCALED_OBJECTS: &str = "/apis/keda.sh/v1alpha1/namespaces/shop/scaledobjects";
const NAMESPACES: &str = "/api/v1/namespaces";

pub(super) fn everywhere() -> DiscoveryScope {
    DiscoveryScope {
        namespaces: Vec::new(),
        namespace_filter: Filter::all(),
        filter: Filter::all(),
        rules: AnnotationRules::of(Vocabulary::WithWva),
    }
}

fn start(fake: &FakeCluster, discover: DiscoveryScope) -> Watching {
    Watching::needing(fake, ClusterNeeds { discover: Some(discover), ..ClusterNeeds::default() })
}

/// A cluster that knows all kinds of workloads but `LeaderWorkerSet`s, and KEDA's.
async fn cluster_with_keda() -> FakeCluster {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    fake.resources(KEDA, &[("scaledobjects", "ScaledObject")]);
    fake
}

fn workloads(fake: &FakeCluster) {
    let kinds = [("deployments", "Deployment"), ("statefulsets", "StatefulSet")];
    fake.resources("/apis/apps/v1", &kinds);
}

fn annotated(mut object: Value, annotations: &Value) -> Value {
    object["metadata"]["annotations"] = annotations.clone();
    let name = object["metadata"]["name"].as_str().unwrap().to_owned();
    object["metadata"]["uid"] = json!(format!("uid-{name}"));
    object
}

fn model(name: &str) -> Value {
    json!({"plimsoll.dev/model": name})
}

fn scaled_object(name: &str, target: &str, spec: &Value) -> Value {
    let mut spec = spec.clone();
    spec["scaleTargetRef"] = json!({"name": target});
    json!({"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject",
           "metadata": {"name": name}, "spec": spec})
}

impl Watching {
    /// Waits until what is discovered is as it should be.
    async fn until_discovered(&mut self, is: impl Fn(&Discovery) -> bool) -> Arc<Discovery> {
        let reached = self.state.wait_for(|state: &Arc<ClusterState>| is(&state.discovery));
        let reached = tokio::time::timeout(Duration::from_mins(1), reached).await;
        let reached = reached.map(|state| Arc::clone(&state.unwrap().discovery));
        reached.unwrap_or_else(|_| panic!("never, but {:#?}", self.state.borrow().discovery))
    }

    /// Waits until these are the variants, and gives the one of that name, if it is one.
    async fn until_variants(&mut self, names: &[&str]) -> Arc<Discovery> {
        let names: BTreeSet<String> = names.iter().map(|name| (*name).to_owned()).collect();
        self.until_discovered(|discovery| discovery.complete && keys(discovery) == names).await
    }
}

fn keys(discovery: &Discovery) -> BTreeSet<String> {
    discovery.variants.keys().map(ToString::to_string).collect()
}

fn by(discovery: &Discovery, key: &str) -> (String, String) {
    let found = discovery.variants.iter().find(|(known, _)| known.to_string() == key);
    let DiscoveredVariant { object, model, .. } = found.unwrap().1;
    (object.to_string(), model.to_string())
}

#[tokio::test]
async fn an_annotated_hpa_is_a_variant_from_its_creation_to_its_end() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(PODS, &pod("llama-a", true));
    let mut watching = start(&fake, everywhere());
    watching.until_variants(&[]).await;

    fake.put(HPAS, &annotated(hpa("scaler", "llama"), &model("m")));
    let found = watching.until_variants(&["shop/llama"]).await;
    let hpa = "HorizontalPodAutoscaler shop/scaler".to_owned();
    assert_eq!(by(&found, "shop/llama"), (hpa, "m".to_owned()));
    assert_eq!(found.standings[&Standing::Accepted], 1);
    assert_eq!(found.objections, []);
    let llama = variant("llama");
    let state = watching.until_scale(&llama, &known(1, 1, 1, 0, two_to_eight())).await;
    assert_eq!(state.addresses(&llama).len(), 1);

    fake.delete(HPAS, "scaler");
    watching.until_variants(&[]).await;
    watching.state.wait_for(|state| state.variants.is_empty()).await.unwrap();
}

#[tokio::test]
async fn nothing_is_discovered_before_every_kind_has_been_listed() {
    let fake = cluster_with_keda().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(HPAS, &annotated(hpa("llama", "llama"), &model("hpa")));
    fake.put(SCALED_OBJECTS, &annotated(scaled_object("a", "llama", &json!({})), &model("keda")));
    let mut watching = start(&fake, everywhere());
    loop {
        let state = watching.state.borrow_and_update().clone();
        if let Some(first) = state.discovery.variants.values().next() {
            assert_eq!(first.model.as_str(), "keda", "the HPA was never in force");
            break;
        }
        watching.state.changed().await.unwrap();
    }
}

#[tokio::test]
async fn annotations_that_become_wrong_leave_the_last_sound_ones_in_force() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    let sound = json!({"plimsoll.dev/model": "m", "plimsoll.dev/cost": "3"});
    fake.put(HPAS, &annotated(hpa("llama", "llama"), &sound));
    let mut watching = start(&fake, everywhere());
    let before = watching.until_variants(&["shop/llama"]).await;

    let wrong = json!({"plimsoll.dev/model": "m", "plimsoll.dev/cost": "NaN",
                       "plimsoll.dev/port": "0"});
    fake.put(HPAS, &annotated(hpa("llama", "llama"), &wrong));
    let refused = |found: &Discovery| found.standings.get(&Standing::Refused) == Some(&1);
    let found = watching.until_discovered(refused).await;
    assert_eq!(found.variants, before.variants);
    let [objection] = found.objections.as_slice() else { panic!("{:?}", found.objections) };
    let ObjectionCause::Refused { problems, kept: ReadingFallback::LastReading } = &objection.cause
    else {
        panic!("{objection:?}")
    };
    assert_eq!(problems.len(), 2, "all mistakes are named: {problems:?}");
    assert_eq!(objection.object.uid.as_deref(), Some("uid-llama"));

    // One that was never sound has nothing to fall back to, and does not keep others from theirs.
    deploy(&fake, DEPLOYMENTS, "qwen", 1, 1);
    fake.put(HPAS, &annotated(hpa("qwen", "qwen"), &wrong));
    let found = watching
        .until_discovered(|found| found.standings.get(&Standing::Refused) == Some(&2))
        .await;
    assert_eq!(keys(&found), BTreeSet::from(["shop/llama".to_owned()]));

    let mended = json!({"plimsoll.dev/model": "m", "plimsoll.dev/cost": "4"});
    fake.put(HPAS, &annotated(hpa("llama", "llama"), &mended));
    let found = watching.until_discovered(|found| found.variants != before.variants).await;
    assert_eq!(found.standings[&Standing::Refused], 1);

    // To take the mark away is no mistake, whatever else is left.
    fake.put(HPAS, &annotated(hpa("llama", "llama"), &json!({"plimsoll.dev/cost": "4"})));
    watching.until_variants(&[]).await;
}

#[tokio::test]
async fn who_scales_is_in_force_over_what_is_scaled_and_keda_over_hpas() {
    let fake = cluster_with_keda().await;
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    let workload = json!({"metadata": {"name": "llama"}});
    fake.put(DEPLOYMENTS, &annotated(workload, &model("workload")));
    let mut watching = start(&fake, everywhere());
    let found = watching.until_variants(&["shop/llama"]).await;
    assert_eq!(by(&found, "shop/llama"), ("Deployment shop/llama".to_owned(), "workload".into()));

    fake.put(HPAS, &annotated(hpa("hpa", "llama"), &model("hpa")));
    let says = |who: &'static str| {
        move |found: &Discovery| found.variants.values().any(|one| one.model.as_str() == who)
    };
    let found = watching.until_discovered(says("hpa")).await;
    assert_eq!(found.standings[&Standing::Shadowed], 1);

    fake.put(SCALED_OBJECTS, &annotated(scaled_object("so", "llama", &json!({})), &model("keda")));
    let found = watching.until_discovered(says("keda")).await;
    let taken: Vec<_> = found.objections.iter().map(|it| it.cause.reason()).collect();
    assert_eq!(taken, ["ScaleTargetTaken", "ScaleTargetTaken"]);
    assert_eq!(found.variants.len(), 1, "the name stays: it is the target's");

    fake.delete(SCALED_OBJECTS, "so");
    watching.until_discovered(says("hpa")).await;
    fake.delete(HPAS, "hpa");
    watching.until_discovered(says("workload")).await;
}

#[tokio::test]
async fn of_two_that_claim_one_name_the_one_in_force_stays() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    for name in ["a", "b"] {
        deploy(&fake, DEPLOYMENTS, name, 1, 1);
    }
    let named = json!({"plimsoll.dev/model": "m", "plimsoll.dev/variant": "llama"});
    fake.put(HPAS, &annotated(hpa("b", "b"), &named));
    let mut watching = start(&fake, everywhere());
    watching.until_variants(&["shop/llama"]).await;

    // The other comes first by name and by age, and still comes too late.
    let mut older = annotated(hpa("a", "a"), &named);
    older["metadata"]["creationTimestamp"] = json!("2020-01-01T00:00:00Z");
    fake.put(HPAS, &older);
    let shadowed = |found: &Discovery| found.standings.get(&Standing::Shadowed) == Some(&1);
    let found = watching.until_discovered(shadowed).await;
    assert_eq!(by(&found, "shop/llama").0, "HorizontalPodAutoscaler shop/b");
    let [objection] = found.objections.as_slice() else { panic!("{:?}", found.objections) };
    assert_eq!(objection.object.name, "a");
    assert!(objection.cause.to_string().contains("plimsoll.dev/variant"), "{}", objection.cause);

    fake.delete(HPAS, "b");
    let found = watching.until_discovered(|found| !shadowed(found)).await;
    assert_eq!(by(&found, "shop/llama").0, "HorizontalPodAutoscaler shop/a");
}

#[tokio::test]
async fn the_configuration_is_in_force_over_objects_on_its_targets_and_of_its_names() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    for name in ["llama", "qwen"] {
        deploy(&fake, DEPLOYMENTS, name, 1, 1);
        fake.put(HPAS, &annotated(hpa(name, name), &model("m")));
    }
    let declared = variant("declared");
    let elsewhere = plimsoll::collect::cluster::WatchedVariant {
        variant: variant("qwen"),
        target: plimsoll::collect::cluster::WantedTarget::Elsewhere,
    };
    let variants = vec![deployment_of(&declared, "llama"), elsewhere];
    let needs = ClusterNeeds { variants, discover: Some(everywhere()), ..ClusterNeeds::default() };
    let mut watching = Watching::needing(&fake, needs);
    let found = watching
        .until_discovered(|found| found.standings.get(&Standing::Shadowed) == Some(&2))
        .await;
    assert_eq!(keys(&found), BTreeSet::new());
    let by_configuration = |key| Claimant::Configuration(key);
    let causes: Vec<&ObjectionCause> = found.objections.iter().map(|it| &it.cause).collect();
    let target = "Deployment llama".to_owned();
    let key = variant("qwen");
    assert_eq!(
        causes,
        [
            &ObjectionCause::TargetTaken { target, by: by_configuration(declared.clone()) },
            &ObjectionCause::NameTaken { key: key.clone(), by: by_configuration(key.clone()) },
        ]
    );
    watching.until_scale(&declared, &known(1, 1, 0, 1, two_to_eight())).await;
    assert_eq!(watching.state.borrow().variants.get(&key), None, "nothing of it is watched");

    // A reload that takes them out leaves them to be discovered.
    let needs = ClusterNeeds { discover: Some(everywhere()), ..ClusterNeeds::default() };
    watching.needs.send_replace(Arc::new(needs));
    watching.until_variants(&["shop/llama", "shop/qwen"]).await;
}

#[tokio::test]
async fn a_kind_that_the_cluster_does_not_have_is_noticed_when_it_appears() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(SCALED_OBJECTS, &annotated(scaled_object("a", "llama", &json!({})), &model("m")));
    let sets = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/shop/leaderworkersets";
    let set = json!({"metadata": {"name": "big"}});
    fake.put(sets, &annotated(set, &model("m")));
    let mut watching = start(&fake, everywhere());
    watching.until_variants(&[]).await;

    fake.resources(KEDA, &[("scaledobjects", "ScaledObject")]);
    watching.until_variants(&["shop/llama"]).await;
    let kinds = [("leaderworkersets", "LeaderWorkerSet")];
    fake.resources("/apis/leaderworkerset.x-k8s.io/v1", &kinds);
    watching.until_variants(&["shop/big", "shop/llama"]).await;
}

#[tokio::test]
async fn namespaces_and_objects_that_are_left_out_are_left_alone() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    for namespace in ["shop", "lab", "old"] {
        let hpas = HPAS.replace("shop", namespace);
        let mut gold = annotated(hpa("gold", "gold"), &model("m"));
        gold["metadata"]["labels"] = json!({"tier": "gold"});
        fake.put(&hpas, &gold);
        fake.put(&hpas, &annotated(hpa("tin", "tin"), &model("m")));
    }
    let namespace = |name: &str, annotations: Value| json!({"metadata": {"name": name, "annotations": annotations}});
    fake.put(NAMESPACES, &namespace("lab", json!({"plimsoll.dev/exclude": "true"})));
    fake.put(NAMESPACES, &namespace("old", json!({"wva.llmd.ai/exclude": "true"})));
    fake.put(NAMESPACES, &namespace("shop", json!({"plimsoll.dev/exclude": "false"})));
    let gold =
        Filter::new("tier=gold", |labels| labels.get("tier").is_some_and(|tier| tier == "gold"));
    let mut watching = start(&fake, everywhere());
    watching.until_variants(&["shop/gold", "shop/tin"]).await;
    fake.put(NAMESPACES, &namespace("lab", json!({})));
    watching.until_variants(&["lab/gold", "lab/tin", "shop/gold", "shop/tin"]).await;

    let mut watching = start(&fake, DiscoveryScope { filter: gold.clone(), ..everywhere() });
    watching.until_variants(&["lab/gold", "shop/gold"]).await;

    let namespaces = ["old", "shop"].map(|name| Namespace::new(name).unwrap()).to_vec();
    let lists = fake.lists_of(NAMESPACES);
    let mut watching = start(&fake, DiscoveryScope { namespaces, filter: gold, ..everywhere() });
    watching.until_variants(&["old/gold", "shop/gold"]).await;
    assert_eq!(fake.lists_of(NAMESPACES), lists, "the list decides, and no right is needed for it");
}

#[tokio::test]
async fn namespaces_are_selected_by_labels_that_only_their_administrator_sets() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    for namespace in ["shop", "lab", "old"] {
        let mut object = annotated(hpa("llama", "llama"), &model("m"));
        object["metadata"]["labels"] = json!({"plimsoll": "on"});
        fake.put(&HPAS.replace("shop", namespace), &object);
    }

    let namespace = |name: &str, labels: Value, excluded: &str| {
        let annotations = json!({"plimsoll.dev/exclude": excluded});
        json!({"metadata": {"name": name, "labels": labels, "annotations": annotations}})
    };
    fake.put(NAMESPACES, &namespace("shop", json!({"plimsoll": "on"}), "false"));
    fake.put(NAMESPACES, &namespace("lab", json!({}), "false"));
    fake.put(NAMESPACES, &namespace("old", json!({"plimsoll": "on"}), "true"));

    let namespace_filter =
        Filter::new("plimsoll=on", |labels| labels.get("plimsoll").is_some_and(|it| it == "on"));
    let mut watching = start(&fake, DiscoveryScope { namespace_filter, ..everywhere() });
    watching.until_variants(&["shop/llama"]).await;

    fake.put(NAMESPACES, &namespace("lab", json!({"plimsoll": "on"}), "false"));
    watching.until_variants(&["lab/llama", "shop/llama"]).await;
    fake.put(NAMESPACES, &namespace("shop", json!({}), "false"));
    watching.until_variants(&["lab/llama"]).await;
}

#[tokio::test]
async fn an_api_server_that_goes_away_takes_no_discovered_variant_with_it() {
    let mut fake = FakeCluster::start().await;
    workloads(&fake);
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    fake.put(HPAS, &annotated(hpa("llama", "llama"), &model("m")));
    let mut watching = start(&fake, everywhere());
    watching.until_variants(&["shop/llama"]).await;
    let llama = variant("llama");
    watching.until_scale(&llama, &known(1, 1, 0, 1, two_to_eight())).await;
    watching.until(&llama, |state| state.findings.is_empty()).await;

    fake.go_down().await;
    watching.until_stale(&llama).await;
    let state = watching.state.borrow().clone();
    assert_eq!(keys(&state.discovery), BTreeSet::from(["shop/llama".to_owned()]));
    assert_eq!(state.variants[&llama].scale, known(1, 1, 0, 1, two_to_eight()));

    fake.delete(HPAS, "llama");
    fake.come_up().await;
    watching.until_variants(&[]).await;
}

#[tokio::test]
async fn over_all_namespaces_there_is_one_watch_of_a_kind() {
    let fake = cluster_with_keda().await;
    let names: Vec<String> = (0..40).map(|at| format!("team-{at:02}")).collect();
    for name in &names {
        deploy(&fake, &DEPLOYMENTS.replace("shop", name), "llama", 1, 1);
        fake.put(&HPAS.replace("shop", name), &annotated(hpa("llama", "llama"), &model("m")));
    }
    let mut watching = start(&fake, everywhere());
    for name in &names {
        let key = in_namespace(name, "llama");
        watching.until_scale(&key, &known(1, 1, 0, 1, two_to_eight())).await;
    }
    for path in [DEPLOYMENTS, HPAS, SCALED_OBJECTS] {
        let everywhere = path.replace("/namespaces/shop", "");
        assert_eq!(fake.lists_of(&everywhere), 1, "{everywhere}");
        let each: usize = names.iter().map(|name| fake.lists_of(&path.replace("shop", name))).sum();
        assert_eq!(each, 0, "{path}");
    }
}

#[tokio::test]
async fn what_was_annotated_for_the_workload_variant_autoscaler_is_found_under_its_own_name() {
    let fake = FakeCluster::start().await;
    workloads(&fake);
    deploy(&fake, DEPLOYMENTS, "llama", 1, 1);
    let managed = json!({"llm-d.ai/managed": "true", "llm-d.ai/model-id": "meta/llama"});
    let mut object = annotated(hpa("llama-scaler", "llama"), &managed);
    object["metadata"]["labels"] = json!({"inference.optimization/acceleratorName": "H100"});
    fake.put(HPAS, &object);
    let mut replica = pod("llama-a", true);
    replica["metadata"]["labels"]["llm-d.ai/role"] = json!("prefill");
    fake.put(PODS, &replica);
    let mut watching = start(&fake, everywhere());
    let found = watching.until_variants(&["shop/llama-scaler"]).await;
    let one = &found.variants[&variant("llama-scaler")];
    assert_eq!(one.accelerator.as_ref().unwrap().as_str(), "H100");
    assert!((one.cost.per_hour() - 10.0).abs() < 1e-9, "{:?}", one.cost);
    assert_eq!(one.role, None, "the pods say it");
    let state = watching.until(&variant("llama-scaler"), |state| state.role.is_some()).await;
    assert_eq!(state.role, Some(Role::Prefill));

    let rules = AnnotationRules::of(Vocabulary::Own);
    let own = DiscoveryScope { rules, ..everywhere() };
    watching
        .needs
        .send_replace(Arc::new(ClusterNeeds { discover: Some(own), ..ClusterNeeds::default() }));
    watching.until_variants(&[]).await;
}

#[tokio::test]
async fn the_bounds_of_a_scaled_object_hold_and_not_those_of_the_hpa_that_keda_makes() {
    let fake = cluster_with_keda().await;
    deploy(&fake, DEPLOYMENTS, "llama", 3, 3);
    let marks = json!({"plimsoll.dev/model": "m"});
    let mut object = annotated(
        scaled_object("llama", "llama", &json!({"minReplicaCount": 0, "maxReplicaCount": 6})),
        &marks,
    );
    fake.put(SCALED_OBJECTS, &object);
    // KEDA copies the annotations, and raises the minimum to 1.
    let mut made = annotated(hpa("keda-hpa-llama", "llama"), &marks);
    made["metadata"]["labels"] = json!({"scaledobject.keda.sh/name": "llama"});
    fake.put(HPAS, &made);

    let bounds = |min, max| Bounds::new(Replicas::saturating(min), Some(Replicas::saturating(max)));
    let llama = variant("llama");
    let mut declared = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    declared.until_scale(&llama, &known(3, 3, 0, 3, bounds(0, 6))).await;
    let mut watching = start(&fake, everywhere());
    let found = watching.until_variants(&["shop/llama"]).await;
    assert_eq!(by(&found, "shop/llama").0, "ScaledObject shop/llama");
    assert_eq!(found.objections, [], "the HPA that KEDA makes claims nothing");
    let state = watching.until_scale(&llama, &known(3, 3, 0, 3, bounds(0, 6))).await;
    assert_eq!(state.findings, []);
    let ignored = state.ignored(Replicas::saturating(3));
    assert_eq!(ignored, None, "its HPA follows");
    assert_eq!(state.follower.unwrap().hpa, "keda-hpa-llama");

    object["metadata"]["annotations"]["autoscaling.keda.sh/paused-replicas"] = json!("2");
    object["spec"] = scaled_object("llama", "llama", &json!({}))["spec"].clone();
    fake.put(SCALED_OBJECTS, &object);
    let how = ScaledObjectPause::At(Replicas::saturating(2));
    let paused = Finding::Paused { scaled_object: "llama".to_owned(), how };
    for watching in [&mut declared, &mut watching] {
        let state = watching.until_scale(&llama, &known(3, 3, 0, 3, bounds(0, 100))).await;
        assert_eq!(state.findings, std::slice::from_ref(&paused));
    }

    // A foreign HPA beside it is a second owner; with the ScaledObject gone, its HPA is all there
    // is.
    fake.put(HPAS, &hpa("foreign", "llama"));
    let owners = vec!["ScaledObject llama".to_owned(), "HPA foreign".to_owned()];
    declared.until_scale(&llama, &Scale::Unknown(WhyScaleUnknown::DuplicateOwners(owners))).await;
    fake.delete(HPAS, "foreign");
    fake.delete(SCALED_OBJECTS, "llama");
    declared.until_scale(&llama, &known(3, 3, 0, 3, two_to_eight())).await;
}

#[tokio::test]
async fn keda_that_is_uninstalled_ends_its_bounds_and_lets_nothing_grow_old() {
    let fake = cluster_with_keda().await;
    deploy(&fake, DEPLOYMENTS, "llama", 3, 3);
    let spec = json!({"minReplicaCount": 1, "maxReplicaCount": 6});
    fake.put(SCALED_OBJECTS, &scaled_object("llama", "llama", &spec));
    let bounds = Bounds::new(Replicas::ONE, Some(Replicas::saturating(6)));
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    watching.until_scale(&llama, &known(3, 3, 0, 3, bounds)).await;

    fake.uninstall(KEDA);
    let state = watching.until_scale(&llama, &known(3, 3, 0, 3, None)).await;
    watching.until(&llama, |later| later.as_of > state.as_of).await;

    fake.install(KEDA);
    watching.until_scale(&llama, &known(3, 3, 0, 3, bounds)).await;
}

#[tokio::test]
async fn scaled_objects_that_may_not_be_seen_leave_the_hpa_to_say_the_bounds() {
    let fake = cluster_with_keda().await;
    fake.refuse(SCALED_OBJECTS);
    deploy(&fake, DEPLOYMENTS, "llama", 3, 3);
    let mut made = hpa("keda-hpa-llama", "llama");
    made["metadata"]["labels"] = json!({"scaledobject.keda.sh/name": "llama"});
    fake.put(HPAS, &made);
    let llama = variant("llama");
    let mut watching = Watching::start(&fake, &[deployment_of(&llama, "llama")]);
    let state = watching.until_scale(&llama, &known(3, 3, 0, 3, two_to_eight())).await;
    // What may not be seen does not make the rest grow old.
    watching.until(&llama, |later| later.as_of > state.as_of).await;
}
