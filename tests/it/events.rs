//! Kubernetes Events, against an API server that is scripted.

use std::fs;
use std::path::PathBuf;

use plimsoll::clock::Clock;
use plimsoll::publish::events::{
    EventReason, EventRecorder, EventReporter, EventSubject, ReportedEvent,
};
use plimsoll::simulate::replica::stats::Stats;
use prometheus::{IntCounterVec, Opts};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::cluster::fake::FakeCluster;
use crate::daemon::{Engine, Running, stats};

const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
const HPAS: &str = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers";
const PODS: &str = "/api/v1/namespaces/shop/pods";

/// A daemon's part that writes events.
struct Writing {
    recorder: EventRecorder,
    outcomes: IntCounterVec,
    _stop: DropGuard,
}

impl Writing {
    fn start(fake: &FakeCluster, instance: &str) -> Self {
        let reporter = EventReporter { client: fake.client(), instance: instance.to_owned() };
        let options = Opts::new("events", "Events.");
        let outcomes = IntCounterVec::new(options, &["reason", "outcome"]).unwrap();
        let (stop, tracker) = (CancellationToken::new(), TaskTracker::new());
        let recorder = EventRecorder::start(
            reporter,
            Clock::start(),
            outcomes.clone(),
            &tracker,
            stop.clone(),
        );
        Self { recorder, outcomes, _stop: stop.drop_guard() }
    }

    async fn until(&self, reason: EventReason, outcome: &str, count: u64) {
        let counter = self.outcomes.with_label_values(&[reason.label(), outcome]);
        let reached = async {
            while counter.get() < count {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        let reached = tokio::time::timeout(std::time::Duration::from_mins(1), reached).await;
        assert!(reached.is_ok(), "{} {outcome}, not {count}", counter.get());
    }
}

fn event(name: &str, note: &str) -> ReportedEvent {
    let on = EventSubject {
        api_version: "apps/v1".to_owned(),
        kind: "Deployment".to_owned(),
        namespace: "shop".to_owned(),
        name: name.to_owned(),
        uid: None,
    };
    ReportedEvent { on, reason: EventReason::ScaledUp, note: note.to_owned() }
}

fn deployment(name: &str) -> Value {
    json!({"metadata": {"name": name, "uid": format!("uid-of-{name}")}})
}

/// A cluster with one pod behind a Deployment that an HPA scales; the pod's page is the engine's.
pub(crate) async fn a_cluster_with_an_engine() -> FakeCluster {
    let fake = FakeCluster::start().await;
    fake.resources(
        "/apis/autoscaling/v2",
        &[("horizontalpodautoscalers", "HorizontalPodAutoscaler")],
    );
    let scale = json!({
        "kind": "Scale", "apiVersion": "autoscaling/v1", "metadata": {"name": "llama"},
        "spec": {"replicas": 1}, "status": {"replicas": 1, "selector": "app=llama"},
    });
    fake.document(&format!("{DEPLOYMENTS}/llama/scale"), scale);
    fake.put(DEPLOYMENTS, &deployment("llama"));
    fake.put(
        PODS,
        &json!({
            "metadata": {"name": "llama-0", "uid": "uid-0", "labels": {"app": "llama"}},
            "spec": {},
            "status": {"phase": "Running", "podIP": "127.0.0.1",
                       "conditions": [{"type": "Ready", "status": "True"}]},
        }),
    );
    fake.put(
        HPAS,
        &json!({
            "metadata": {"name": "llama-hpa", "uid": "uid-of-hpa"},
            "spec": {
                "minReplicas": 1, "maxReplicas": 8,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "llama"},
                "metrics": [{"type": "External", "external": {
                    "metric": {"name": "plimsoll_desired_replicas",
                               "selector": {"matchLabels": {"variant": "llama"}}},
                    "target": {"type": "AverageValue", "averageValue": "1"},
                }}],
            },
        }),
    );
    fake
}

/// Writes a kubeconfig for the cluster into the folder.
pub(crate) fn write_kubeconfig(folder: &TempDir, fake: &FakeCluster) -> PathBuf {
    let kubeconfig = folder.path().join("kubeconfig");
    let text = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "fake",
        "clusters": [{"name": "fake", "cluster": {"server": fake.url()}}],
        "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "fake"}}],
        "users": [{"name": "fake", "user": {}}],
    });
    fs::write(&kubeconfig, text.to_string()).unwrap();

    kubeconfig
}

/// A configuration for the variant of that cluster, with this next to `kubernetes.enabled`.
pub(crate) fn configuration(
    folder: &TempDir,
    fake: &FakeCluster,
    engine: &Engine,
    kubernetes: &str,
) -> String {
    let kubeconfig = write_kubeconfig(folder, fake);
    let (kubeconfig, port) = (kubeconfig.display(), engine.address.port());
    format!(
        "server: {{listen: \"127.0.0.1:0\"}}\ntick_interval: 100ms\n\
         external_metrics: {{enabled: false}}\n\
         shutdown: {{delay: 0s}}\n\
         kubernetes: {{enabled: true, kubeconfig: {kubeconfig}{kubernetes}}}\n\
         observe: {{window: 2s, stale_after: 5s}}\n\
         scrape: {{interval: 100ms, timeout: 100ms}}\n\
         analysis: saturation\n\
         variants:\n\
         - name: llama\n  namespace: shop\n  model: m\n  scrape: {{port: {port}}}\n  \
         targets: {{scale_target: {{api_version: apps/v1, kind: Deployment, name: llama}}}}\n"
    )
}

#[tokio::test]
async fn a_changed_number_is_an_event_on_the_hpa() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let folder = TempDir::new().unwrap();
    let text = configuration(&folder, &fake, &engine, "");
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    let events = fake.until(EVENTS, |events| !events.is_empty()).await;
    let [event] = events.as_slice() else { panic!("one change, {events:#?}") };
    let note = event["note"].as_str().unwrap();
    assert!(note.starts_with("desired 1 -> 2: "), "{note}");
    assert_eq!(event["reason"], "ScaledUp");
    assert_eq!((&event["type"], &event["action"]), (&"Normal".into(), &"Decide".into()));
    assert_eq!(event["reportingController"], "plimsoll");
    assert_eq!(
        event["regarding"],
        json!({"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
               "namespace": "shop", "name": "llama-hpa", "uid": "uid-of-hpa"})
    );
    assert!(!event["eventTime"].is_null() && event["series"].is_null(), "{event}");
    daemon.end().await;
}

#[tokio::test]
async fn an_hpa_that_scales_nothing_is_told_once_with_the_reason() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let mut hpa = fake.objects(HPAS)[0].clone();
    hpa["status"] = json!({"conditions": [{"type": "ScalingActive", "status": "False",
        "reason": "FailedGetExternalMetric", "message": "no decision yet"}]});
    fake.put(HPAS, &hpa);
    let folder = TempDir::new().unwrap();
    let text = configuration(&folder, &fake, &engine, "");
    let daemon = Running::start_in(folder, &text).await;
    let events = fake.until(EVENTS, |events| !events.is_empty()).await;
    let [event] = events.as_slice() else { panic!("one problem, {events:#?}") };
    assert_eq!((&event["reason"], &event["type"]), (&"HPANotScaling".into(), &"Warning".into()));
    let note = event["note"].as_str().unwrap();
    assert!(note.contains("ScalingActive is False (FailedGetExternalMetric)"), "{note}");
    assert_eq!(event["regarding"]["name"], "llama-hpa");
    daemon.end().await;
}

#[tokio::test]
async fn without_events_nothing_is_written() {
    let (fake, engine) = (a_cluster_with_an_engine().await, Engine::start().await);
    let folder = TempDir::new().unwrap();
    let text = configuration(&folder, &fake, &engine, ", events: false");
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("llama", Some(2.0)).await;
    daemon.end().await;
    assert_eq!(fake.requests("POST", ""), 0);
}

#[tokio::test]
async fn equal_events_of_all_writers_are_one_object() {
    let fake = FakeCluster::start().await;
    fake.put(DEPLOYMENTS, &deployment("llama"));
    let (one, other) = (Writing::start(&fake, "one"), Writing::start(&fake, "other"));
    for _ in 0..1000 {
        one.recorder.record(event("llama", "2 -> 3"));
    }
    one.until(EventReason::ScaledUp, "created", 1).await;
    other.recorder.record(event("llama", "2 -> 3"));
    other.until(EventReason::ScaledUp, "counted", 1).await;
    let events = fake.objects(EVENTS);
    let [event] = events.as_slice() else { panic!("{events:#?}") };
    assert_eq!(event["regarding"]["uid"], "uid-of-llama");
    assert_eq!(
        (&event["series"]["count"], &event["reportingInstance"]),
        (&2.into(), &"one".into())
    );
    assert_eq!(fake.requests("POST", EVENTS), 2);
}

#[tokio::test]
async fn a_refused_event_costs_nothing_else() {
    let fake = FakeCluster::start().await;
    fake.put(DEPLOYMENTS, &deployment("llama"));
    fake.refuse(EVENTS);
    let writing = Writing::start(&fake, "one");
    writing.recorder.record(event("llama", "2 -> 3"));
    writing.until(EventReason::ScaledUp, "failed", 1).await;
    fake.allow(EVENTS);
    writing.recorder.record(event("llama", "2 -> 3"));
    writing.until(EventReason::ScaledUp, "created", 1).await;
    assert_eq!(fake.objects(EVENTS).len(), 1);
}

#[tokio::test]
async fn what_is_gone_has_no_event_and_what_cannot_be_looked_up_still_has_one() {
    let fake = FakeCluster::start().await;
    let writing = Writing::start(&fake, "one");
    writing.recorder.record(event("llama", "2 -> 3"));
    writing.until(EventReason::ScaledUp, "gone", 1).await;
    fake.refuse(DEPLOYMENTS);
    writing.recorder.record(event("llama", "3 -> 4"));
    writing.until(EventReason::ScaledUp, "created", 1).await;
    let events = fake.objects(EVENTS);
    assert!(events[0]["regarding"]["uid"].is_null(), "{events:#?}");
}

#[tokio::test]
async fn an_api_server_that_is_away_gets_the_event_when_it_is_back() {
    let mut fake = FakeCluster::start().await;
    fake.put(DEPLOYMENTS, &deployment("llama"));
    fake.go_down().await;
    let writing = Writing::start(&fake, "one");
    writing.recorder.record(event("llama", "2 -> 3"));
    fake.come_up().await;
    writing.until(EventReason::ScaledUp, "created", 1).await;
}
