//! The objects of the simulated cluster: a Deployment with its pods and its HPA, and the front
//! proxy's authority.

use serde_json::{Value, json};

use crate::external_metrics_harness::config_map;
use crate::fleet;
use crate::it::cluster::fake::FakeCluster;

pub(crate) const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
pub(crate) const PODS: &str = "/api/v1/namespaces/shop/pods";
pub(crate) const HPAS: &str = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers";
pub(crate) const TRUST: &str = "/api/v1/namespaces/kube-system/configmaps";
pub(crate) const LEASES: &str = "/apis/coordination.k8s.io/v1/namespaces/plimsoll/leases";
pub(crate) const DOCUMENTS: &str = "/api/v1/namespaces/plimsoll/configmaps";
pub(crate) const REVIEWS: &str = "/apis/authorization.k8s.io/v1/subjectaccessreviews";

/// The bounds of the HPA.
pub(crate) const MIN: u32 = 1;
pub(crate) const MAX: u32 = 8;

/// The `ConfigMap` with the front proxy's authority.
pub(crate) fn trust(authority: &str) -> Value {
    json!({
        "metadata": {"name": "extension-apiserver-authentication"},
        "data": config_map(authority, r#"["front-proxy-client"]"#),
    })
}

/// Creates everything but the pods.
pub(crate) async fn create(authority: &str) -> FakeCluster {
    let fake = FakeCluster::start().await;
    let hpas = [("horizontalpodautoscalers", "HorizontalPodAutoscaler")];
    fake.resources("/apis/autoscaling/v2", &hpas);
    fake.put(TRUST, &trust(authority));
    let hpa = json!({
        "metadata": {"name": "llama", "uid": "uid-of-hpa"},
        "spec": {
            "minReplicas": MIN, "maxReplicas": MAX,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
            "metrics": [{"type": "External", "external": {
                "metric": {"name": "plimsoll_desired_replicas",
                           "selector": {"matchLabels": {"variant": "llama"}}},
                "target": {"type": "AverageValue", "averageValue": "1"},
            }}],
            "behavior": {"scaleUp": {"tolerance": "0", "stabilizationWindowSeconds": 0},
                         "scaleDown": {"tolerance": "0", "stabilizationWindowSeconds": 0}},
        },
    });
    fake.put(HPAS, &hpa);
    fake
}

/// Sets the replicas of the Deployment, without its pods.
pub(crate) fn scale(fake: &FakeCluster, replicas: u32) {
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "llama"},
        "spec": {"replicas": replicas},
        "status": {"replicas": replicas, "selector": "app=llama"},
    });
    fake.document(&format!("{DEPLOYMENTS}/llama/scale"), scale);
    fake.put(
        DEPLOYMENTS,
        &json!({
            "metadata": {"name": "llama", "uid": "uid-of-llama", "generation": replicas},
            "spec": {"replicas": replicas}, "status": {"replicas": replicas},
        }),
    );
}

pub(crate) fn pod_name(number: u32) -> String {
    format!("llama-{number}")
}

/// A pod that runs and is ready, at the address of the engine with its number.
pub(crate) fn pod(number: u32) -> Value {
    let name = pod_name(number);
    json!({
        "metadata": {"name": name, "uid": format!("uid-{name}"), "labels": {"app": "llama"}},
        "spec": {"nodeName": format!("node-{number}")},
        "status": {
            "phase": "Running", "podIP": fleet::address(number).to_string(),
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True",
                            "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        },
    })
}

/// Makes the pods of this many replicas, and no others.
pub(crate) fn run_pods(fake: &FakeCluster, replicas: u32) {
    let wanted: Vec<String> = (0..replicas).map(pod_name).collect();
    for object in fake.objects(PODS) {
        let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        if !wanted.contains(&name) {
            fake.delete(PODS, &name);
        }
    }
    let known = fake.objects(PODS);
    for number in 0..replicas {
        if !known.iter().any(|it| it["metadata"]["name"] == pod_name(number).as_str()) {
            fake.put(PODS, &pod(number));
        }
    }
}
