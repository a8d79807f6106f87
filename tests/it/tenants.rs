//! Tenants of one cluster: what an annotation cannot do to the operator, or to another tenant.

use std::convert::Infallible;
use std::fs;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use plimsoll::clock::Clock;
use plimsoll::simulate::page::{self, EngineIdentity};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

use crate::cluster::fake::FakeCluster;
use crate::daemon::{Engine, Running, stats};
use crate::events::{a_cluster_with_an_engine, configuration};

const HPAS: &str = "/apis/autoscaling/v2/namespaces/shop/horizontalpodautoscalers";
const EVENTS: &str = "/apis/events.k8s.io/v1/namespaces/shop/events";
const TOKEN: &str = "the-operators-token";

/// A pod of a tenant, which keeps what it is sent.
struct Tenant {
    address: SocketAddr,
    /// The `Authorization` header of each request.
    received: Arc<Mutex<Vec<Option<String>>>>,
    _tasks: TaskTracker,
}

impl Tenant {
    async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let tasks = TaskTracker::new();
        let connections = tasks.clone();
        let heard = Arc::clone(&received);

        tasks.spawn(async move {
            let started = Clock::start().now();
            while let Ok((stream, _)) = listener.accept().await {
                let heard = Arc::clone(&heard);
                let service = service_fn(move |request: Request<Incoming>| {
                    let sent = request.headers().get(header::AUTHORIZATION);
                    heard.lock().unwrap().push(sent.map(|it| it.to_str().unwrap().to_owned()));
                    let identity = EngineIdentity { model: "m".into(), started, ready: started };
                    let body = Bytes::from(page::render(&identity, &stats(400)));
                    async move { Ok::<_, Infallible>(Response::new(Full::new(body))) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let connection = http.serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    let _ended = connection.await;
                });
            }
        });

        Self { address, received, _tasks: tasks }
    }

    fn received(&self) -> Vec<Option<String>> {
        self.received.lock().unwrap().clone()
    }

    /// Forgets what was received, and waits for the next requests.
    async fn received_next(&self) -> Vec<Option<String>> {
        self.received.lock().unwrap().clear();
        let arrived = async {
            while self.received().len() < 3 {
                tokio::time::sleep(std::time::Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_mins(1), arrived).await.unwrap();
        self.received()
    }
}

/// Annotates the HPA of that cluster.
fn annotate(fake: &FakeCluster, annotations: &Value) {
    let mut hpa = fake.objects(HPAS).into_iter().next().unwrap();
    hpa["metadata"]["annotations"] = annotations.clone();
    fake.put(HPAS, &hpa);
}

/// A configuration that discovers, whose scrapes have a token, and these keys as well.
async fn discovering(folder: &TempDir, fake: &FakeCluster, scrape: &str) -> String {
    let engine = Engine::start().await;
    let token = folder.path().join("token");
    fs::write(&token, TOKEN).unwrap();
    let keys = format!("timeout: 100ms, bearer_token_file: {}, {scrape}}}", token.display());
    let text = configuration(folder, fake, &engine, ", discovery: {enabled: true}");
    let (text, _declared) = text.split_once("variants:").unwrap();
    text.replace("timeout: 100ms}", &keys)
}

/// Waits for the Event that says that credentials are withheld, and returns its note.
async fn withheld(fake: &FakeCluster) -> String {
    let is = |event: &Value| event["reason"] == "CredentialsWithheld";
    let events = fake.until(EVENTS, |events| events.iter().any(is)).await;
    let event = events.iter().find(|event| is(event)).unwrap();
    assert_eq!(event["regarding"]["uid"], "uid-of-hpa");
    event["note"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn a_tenants_pod_never_sees_the_operators_token() {
    let fake = a_cluster_with_an_engine().await;
    let tenant = Tenant::start().await;
    let port = tenant.address.port();
    let annotations = json!({"plimsoll.dev/model": "m", "plimsoll.dev/port": port.to_string()});
    annotate(&fake, &annotations);

    // By default; on another port than that of the configuration; in plain text instead of TLS.
    for (scrape, named) in [
        (format!("credentials_ports: [{port}]"), "scrape.credentials_for"),
        ("credentials_for: [shop]".to_owned(), "scrape.credentials_ports"),
        (
            format!("credentials_for: [\"*\"], scheme: https, port: {port}"),
            "plimsoll.dev/scheme is http",
        ),
    ] {
        let mut annotations = annotations.clone();
        if scrape.contains("https") {
            annotations["plimsoll.dev/scheme"] = json!("http");
        }
        annotate(&fake, &annotations);

        let folder = TempDir::new().unwrap();
        let text = discovering(&folder, &fake, &scrape).await;
        let daemon = Running::start_in(folder, &text).await;
        daemon.until_desired("llama", Some(1.0)).await;
        let received = tenant.received_next().await;
        assert!(received.iter().all(Option::is_none), "{scrape}: {received:?}");

        let note = withheld(&fake).await;
        assert!(note.contains(named), "{scrape}: {note}");
        daemon.end().await;
        for event in fake.objects(EVENTS) {
            fake.delete(EVENTS, event["metadata"]["name"].as_str().unwrap());
        }
    }
}

#[tokio::test]
async fn listed_namespaces_get_the_token_as_soon_as_they_are_listed() {
    let fake = a_cluster_with_an_engine().await;
    let tenant = Tenant::start().await;
    let port = tenant.address.port();
    annotate(&fake, &json!({"plimsoll.dev/model": "m"}));
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &format!("port: {port}")).await;
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    assert!(tenant.received_next().await.iter().all(Option::is_none));

    let listed = text.replace("port:", "credentials_for: [shop], port:");
    fs::write(daemon.file(), listed).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, 200);
    let bearer = Some(format!("Bearer {TOKEN}"));
    let sent = async { while !tenant.received_next().await.iter().all(|it| *it == bearer) {} };
    tokio::time::timeout(std::time::Duration::from_mins(1), sent).await.unwrap();
    daemon.end().await;
}

#[tokio::test]
async fn the_namespace_of_a_declared_variant_may_have_what_that_variant_is_sent() {
    let fake = a_cluster_with_an_engine().await;
    let tenant = Tenant::start().await;
    let port = tenant.address.port();
    annotate(&fake, &json!({"plimsoll.dev/model": "m"}));
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &format!("port: {port}")).await
        + "variants:\n- {name: other, namespace: shop, model: n, targets: {selector: app=other}}\n";
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("llama", Some(1.0)).await;
    let bearer = Some(format!("Bearer {TOKEN}"));
    assert!(tenant.received_next().await.iter().all(|it| *it == bearer));

    // No autoscaler is looked for behind a selector.
    let series =
        |name: &str, variant: &str| format!("{name}{{namespace=\"shop\",variant=\"{variant}\"}}");
    daemon.until_sample(&series("plimsoll_autoscaler_follows", "llama"), 1.0).await;
    let other = series("plimsoll_autoscaler_follows", "other");
    assert_eq!(daemon.sample(&other).await, None);
    daemon.end().await;
}

async fn until_gpus(daemon: &Running, count: u64) {
    until_shown(daemon, "accelerators_per_replica", &json!(count)).await;
}

/// Waits until the decisions have this value of the variant in that cluster.
async fn until_shown(daemon: &Running, field: &str, value: &Value) {
    let shown = async {
        loop {
            let (_, said) = daemon.ask("GET", "/api/v1/decisions").await;
            let said: Value = serde_json::from_str(&said).unwrap();
            if said["variants"][0][field] == *value {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let shown = tokio::time::timeout(std::time::Duration::from_mins(1), shown).await;
    assert!(shown.is_ok(), "{value}: {}", daemon.ask("GET", "/api/v1/decisions").await.1);
}

/// Waits for an Event that says this of annotations.
async fn doubted(fake: &FakeCluster, said: &str) {
    let is = |event: &Value| {
        event["reason"] == "AnnotationsWithoutEffect"
            && event["note"].as_str().is_some_and(|note| note.contains(said))
    };
    fake.until(EVENTS, |events| events.iter().any(is)).await;
}

#[tokio::test]
async fn an_annotation_names_no_other_accelerator_than_the_pods_run_on() {
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
    let fake = a_cluster_with_an_engine().await;
    let tenant = Tenant::start().await;
    let port = tenant.address.port();
    let container = json!({"name": "engine", "image": "vllm/vllm-openai",
                           "resources": {"limits": {"nvidia.com/gpu": "1"}}});
    let selector = json!({"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"});
    let spec = json!({"template": {"spec": {"nodeSelector": selector, "containers": [container]}}});
    fake.put(DEPLOYMENTS, &json!({"metadata": {"name": "llama"}, "spec": spec}));
    let claim = |kind: &str| {
        annotate(&fake, &json!({"plimsoll.dev/model": "m", "plimsoll.dev/accelerator": kind}));
    };

    claim("L4");
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &format!("port: {port}")).await;
    let names = "limits: {names: {NVIDIA-H100-80GB-HBM3: big}}";
    let daemon = Running::start_in(folder, &format!("{text}\n{names}\n")).await;
    until_shown(&daemon, "accelerator", &json!("big")).await;
    doubted(&fake, "plimsoll.dev/accelerator counts as NVIDIA-H100-80GB-HBM3").await;
    daemon.end().await;
}

#[tokio::test]
async fn an_annotation_claims_no_fewer_accelerators_than_the_pods_take_and_no_more_than_allowed() {
    const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/shop/deployments";
    let fake = a_cluster_with_an_engine().await;
    let tenant = Tenant::start().await;
    let port = tenant.address.port();
    let container = json!({"name": "engine", "image": "vllm/vllm-openai",
                           "resources": {"limits": {"nvidia.com/gpu": "4"}}});
    let spec = json!({"template": {"spec": {"containers": [container]}}});
    fake.put(DEPLOYMENTS, &json!({"metadata": {"name": "llama"}, "spec": spec}));
    let claim = |gpus: &str| {
        annotate(&fake, &json!({"plimsoll.dev/model": "m", "plimsoll.dev/gpus": gpus}));
    };

    claim("0");
    let folder = TempDir::new().unwrap();
    let text = discovering(&folder, &fake, &format!("port: {port}")).await;
    let text = text.replace("discovery: {enabled: true", "discovery: {enabled: true, gpus_max: 16");
    let daemon = Running::start_in(folder, &text).await;
    until_gpus(&daemon, 4).await;
    doubted(&fake, "plimsoll.dev/gpus counts as 4, as requested in the pod template").await;

    claim("8");
    until_gpus(&daemon, 8).await;
    claim("4096");
    until_gpus(&daemon, 16).await;
    doubted(&fake, "plimsoll.dev/gpus counts as 16, which is kubernetes.discovery.gpus_max").await;
    daemon.end().await;
}
