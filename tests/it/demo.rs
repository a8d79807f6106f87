//! The demo's fleet on real sockets, and its HPA against a server that plays the daemon.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll::clock::Clock;
use plimsoll::demo::actuator::{HpaActuator, MetricAnswer};
use plimsoll::demo::args::{DemoOutput, DemoScenario};
use plimsoll::demo::pki::Pki;
use plimsoll::demo::scenario::DemoSetup;
use plimsoll::demo::stage::DemoStage;
use plimsoll::demo::{DemoParts, drive};
use plimsoll::publish::Published;
use plimsoll::simulate::Micros;
use plimsoll::simulate::scaler::MilliValue;
use plimsoll::units::Replicas;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// What the server says of each variant: a quantity, or a status.
type Values = Arc<Mutex<BTreeMap<&'static str, Result<&'static str, u16>>>>;
/// The paths with their queries, and the users, of all questions.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// The demo's scenario with starts that take so long.
fn played(startup: &str) -> DemoSetup {
    let paths = [0, 1, 2].map(|at| format!("variants[{at}].startup.load"));
    let settings = paths.each_ref().map(|path| (path.as_str(), json!(startup)));
    DemoSetup::read(DemoScenario::Standard, 1, &settings).unwrap()
}

/// Serves what an external metrics API would, to holders of the front proxy's certificate only.
async fn serve(pki: &Pki, values: Values, seen: Seen, tracker: &TaskTracker) -> SocketAddr {
    let mut authority = rustls::RootCertStore::empty();
    authority.add(CertificateDer::from_pem_slice(pki.proxy_authority.as_bytes()).unwrap()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let verifier = rustls::server::WebPkiClientVerifier::builder_with_provider(
        Arc::new(authority),
        Arc::clone(&provider),
    )
    .build()
    .unwrap();
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_client_cert_verifier(verifier)
        .with_single_cert(
            vec![CertificateDer::from_pem_slice(pki.serving_certificate.as_bytes()).unwrap()],
            PrivateKeyDer::from_pem_slice(pki.serving_key.as_bytes()).unwrap(),
        )
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tracker.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let Ok(stream) = acceptor.accept(stream).await else { continue };
            let service = hyper::service::service_fn(|request: Request<Incoming>| {
                let response = answer(&request, &values, &seen);
                async move { Ok::<_, Infallible>(response) }
            });
            let _ = hyper_util::server::conn::auto::Builder::new(TokioExecutor::new())
                .serve_connection(TokioIo::new(stream), service)
                .await;
        }
    });
    address
}

fn answer(request: &Request<Incoming>, values: &Values, seen: &Seen) -> Response<Full<Bytes>> {
    let path = request.uri().path_and_query().unwrap().as_str().to_owned();
    let user = request.headers()["x-remote-user"].to_str().unwrap().to_owned();
    let variant = path.rsplit("%3D").next().unwrap();
    let value = values.lock().unwrap()[variant];
    seen.lock().unwrap().push((path, user));
    match value {
        Ok(quantity) => Response::new(Full::from(format!(
            r#"{{"kind":"ExternalMetricValueList","apiVersion":"external.metrics.k8s.io/v1beta1",
            "metadata":{{}},"items":[{{"metricName":"plimsoll_desired_replicas","metricLabels":{{}},
            "timestamp":"2026-11-21T08:00:00Z","value":"{quantity}"}}]}}"#
        ))),
        Err(status) => {
            let mut response = Response::new(Full::default());
            *response.status_mut() = status.try_into().unwrap();
            response
        }
    }
}

fn targets(directory: &Path, variant: &str) -> Vec<String> {
    let text = std::fs::read_to_string(DemoStage::targets_file(directory, variant)).unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list[0]["labels"]["variant"], variant);
    serde_json::from_value(list[0]["targets"].clone()).unwrap()
}

/// Follows the fleet until a condition holds, which it does sooner or later.
async fn follow_until(stage: &mut DemoStage, mut holds: impl AsyncFnMut() -> bool) {
    loop {
        stage.follow().unwrap();
        if holds().await {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_replica_is_listed_at_once_refuses_until_it_is_ready_and_again_when_it_drains() {
    let directory = tempfile::tempdir().unwrap();
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let played = played("200ms");
    let mut stage =
        DemoStage::open(&played, directory.path(), Clock::start(), &tracker, &cancel).unwrap();
    let shared = stage.shared();
    assert_eq!(targets(directory.path(), "llama-h100").len(), 1);
    assert_eq!(targets(directory.path(), "qwen-a100").len(), 1);

    let page =
        reqwest::get(format!("http://{}/metrics", targets(directory.path(), "qwen-a100")[0]))
            .await
            .unwrap();
    assert_eq!(page.headers()["content-type"], "text/plain; version=1.0.0; charset=utf-8");
    let text = page.text().await.unwrap();
    assert!(text.contains("model_name=\"Qwen/Qwen2.5-7B-Instruct\""), "it is Qwen's page");

    shared.fleet().scale(0, Replicas::saturating(2));
    stage.follow().unwrap();
    let second = targets(directory.path(), "llama-l40s").last().unwrap().clone();
    assert_eq!(targets(directory.path(), "llama-l40s").len(), 2, "a starting replica is listed");
    follow_until(&mut stage, async || TcpStream::connect(&second).await.is_ok()).await;
    assert_eq!(shared.fleet().view()[0].ready, 2, "it answers because it is ready");

    shared.fleet().scale(0, Replicas::ONE);
    follow_until(&mut stage, async || TcpStream::connect(&second).await.is_err()).await;
    assert!(!targets(directory.path(), "llama-l40s").contains(&second), "it is no target any more");
    cancel.cancel();
    tracker.close();
    tracker.wait().await;
}

#[tokio::test]
async fn a_starting_replica_refuses_connections() {
    let directory = tempfile::tempdir().unwrap();
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let played = played("1000000s");
    let mut stage =
        DemoStage::open(&played, directory.path(), Clock::start(), &tracker, &cancel).unwrap();
    stage.shared().fleet().scale(2, Replicas::saturating(3));
    stage.follow().unwrap();
    let listed = targets(directory.path(), "qwen-a100");
    assert_eq!(listed.len(), 3);
    for address in &listed[1..] {
        let error = TcpStream::connect(address).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    }
}

#[tokio::test]
async fn the_hpa_asks_as_the_aggregation_layer_does_and_holds_on_anything_but_a_value() {
    let directory = tempfile::tempdir().unwrap();
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let played = played("1000000s");
    let stage =
        DemoStage::open(&played, directory.path(), Clock::start(), &tracker, &cancel).unwrap();
    let shared = stage.shared();
    let pki = Pki::generate().unwrap();
    let values = Values::default();
    *values.lock().unwrap() = BTreeMap::from([
        ("llama-l40s", Ok("3")),
        ("llama-h100", Err(503)),
        ("qwen-a100", Ok("1500m")),
    ]);
    let seen = Seen::default();
    let api = serve(&pki, Arc::clone(&values), Arc::clone(&seen), &tracker).await;
    let (mut actuator, followed) = HpaActuator::new(played.scenario, api, &pki).unwrap();

    actuator.sync(&shared).await;
    let counts = || {
        let view = shared.fleet().view();
        view.iter().map(|variant| variant.ready + variant.starting).collect::<Vec<_>>()
    };
    assert_eq!(counts(), [3, 1, 2]);
    let answers = || followed.borrow().iter().map(|f| f.answer.clone()).collect::<Vec<_>>();
    assert_eq!(
        answers(),
        [
            MetricAnswer::Value(MilliValue(3_000)),
            MetricAnswer::Status(503),
            MetricAnswer::Value(MilliValue(1_500))
        ]
    );
    let question = "/apis/external.metrics.k8s.io/v1beta1/namespaces/demo/plimsoll_desired_replicas\
                    ?labelSelector=variant%3Dllama-l40s";
    let user = "system:serviceaccount:kube-system:horizontal-pod-autoscaler";
    assert_eq!(seen.lock().unwrap()[0], (question.to_owned(), user.to_owned()));

    *values.lock().unwrap() = BTreeMap::from([
        ("llama-l40s", Err(500)),
        ("llama-h100", Err(404)),
        ("qwen-a100", Err(503)),
    ]);
    actuator.sync(&shared).await;
    assert_eq!(counts(), [3, 1, 2], "errors change nothing");
    let crews = shared.fleet().score().variants;
    let log = crews.iter().map(|crew| (crew.ups, crew.downs)).collect::<Vec<_>>();
    assert_eq!(log, [(1, 0), (0, 0), (1, 0)]);
}

#[tokio::test]
async fn without_a_daemon_the_demo_holds_and_still_sums_up() {
    let directory = tempfile::tempdir().unwrap();
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let played = played("10s");
    let stage =
        DemoStage::open(&played, directory.path(), Clock::start(), &tracker, &cancel).unwrap();
    let unused = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let (_publish, published) = watch::channel(Arc::new(Published::default()));
    let summary = drive(DemoParts {
        played,
        stage,
        published,
        api: unused,
        pki: Pki::generate().unwrap(),
        length: Some(Micros::new(1)),
        output: DemoOutput::Json,
        tracker,
        cancel,
    })
    .await
    .unwrap();
    let json = summary.json();
    for variant in json["summary"]["variants"].as_array().unwrap() {
        assert_eq!((&variant["scaled_up"], &variant["scaled_down"]), (&0.into(), &0.into()));
    }
    assert!(summary.to_string().contains("always the largest"));
}
