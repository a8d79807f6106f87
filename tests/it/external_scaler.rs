//! The gRPC server for KEDA, by a client that speaks the protocol as KEDA's Go library does.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::{SendRequest, handshake};
use hyper::header::HeaderMap;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll::clock::Clock;
use plimsoll::decide::NoData;
use plimsoll::publish::Published;
use plimsoll::publish::external_metrics::state::DecisionAges;
use plimsoll::publish::external_scaler::messages::{
    GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse, ScaledObjectRef,
};
use plimsoll::publish::external_scaler::metrics::ScalerMetrics;
use plimsoll::publish::external_scaler::streams::StreamBudgetLimits;
use plimsoll::publish::external_scaler::{ExternalScaler, METRIC, limits, serve};
use plimsoll::server::client_authority::ClientAuthority;
use plimsoll::server::tls::{mutual_config, server_config};
use plimsoll::server::{ServerLimits, ServerPhase, ServerTransport};
use prost::Message;
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_rustls::TlsConnector;
use tokio_util::task::TaskTracker;

use crate::external_metrics_harness::{
    Authority, Http, Leaf, Use, Validity, Variant, client_tls, published, serving_certificate,
    variant,
};
use crate::external_metrics_transport::uncounted;

const OK: &str = "0";
const INVALID_ARGUMENT: &str = "3";
const NOT_FOUND: &str = "5";
const RESOURCE_EXHAUSTED: &str = "8";
const UNIMPLEMENTED: &str = "12";
const UNAVAILABLE: &str = "14";

/// Messages as KEDA 2.21's own Go package writes them (`proto.MarshalOptions{Deterministic: true}`).
const GO_REF: &str = "0a056c6c616d61120473686f701a1e0a0d7363616c657241646472657373120d706c696d736f\
                      6c6c3a363434341a100a0776617269616e7412056c6c616d61";
const GO_ASK: &str = "0a3f0a056c6c616d61120473686f701a1e0a0d7363616c657241646472657373120d706c696d\
                      736f6c6c3a363434341a100a0776617269616e7412056c6c616d611219706c696d736f6c6c2d\
                      646573697265642d7265706c69636173";
const GO_ACTIVE: &str = "0801";
const GO_INACTIVE: &str = "";
const GO_SPEC: &str = "0a260a19706c696d736f6c6c2d646573697265642d7265706c69636173100119000000000000\
                       f03f";
const GO_THREE: &str = "0a260a19706c696d736f6c6c2d646573697265642d7265706c6963617310031900000000000\
                        00840";
const GO_ZERO: &str = "0a1b0a19706c696d736f6c6c2d646573697265642d7265706c69636173";

/// A running server.
struct Scaler {
    address: SocketAddr,
    clock: Clock,
    published: watch::Sender<Arc<Published>>,
    phase: watch::Sender<ServerPhase>,
    tracker: TaskTracker,
    registry: prometheus::Registry,
    served: JoinHandle<()>,
}

/// The limits and the protocol of a server.
struct Options {
    streams: StreamBudgetLimits,
    limits: ServerLimits,
    transport: ServerTransport,
}

impl Default for Options {
    fn default() -> Self {
        let streams = StreamBudgetLimits::default();
        Self { streams, limits: limits(), transport: ServerTransport::Plain }
    }
}

/// A connection to a server.
#[derive(Clone)]
struct Keda(SendRequest<Full<Bytes>>);

/// The response to a call of one message.
#[derive(Debug)]
struct Answer {
    status: String,
    message: String,
    data: Vec<u8>,
}

impl Scaler {
    async fn start(options: Options) -> Self {
        let Options { streams, limits, transport } = options;
        let clock = Clock::start();
        let registry = prometheus::Registry::new();
        let published = watch::Sender::new(published([]));
        let phase = watch::Sender::new(ServerPhase::Serving);
        let tracker = TaskTracker::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let ages = DecisionAges { fresh: Duration::from_secs(45), hold: Duration::from_mins(5) };
        let metrics = ScalerMetrics::register(&registry).unwrap();
        let seen = phase.subscribe();
        let of = published.subscribe();
        let scaler = ExternalScaler::new(of, clock, ages, seen.clone(), streams, metrics);
        let tasks = tracker.clone();
        let served = tracker.spawn(async move {
            serve(listener, Arc::new(scaler), transport, limits, uncounted(), seen, &tasks).await;
        });
        Self { address, clock, published, phase, tracker, registry, served }
    }

    async fn plain() -> (Self, Keda) {
        let scaler = Self::start(Options::default()).await;
        let keda = scaler.connect().await.0;
        (scaler, keda)
    }

    fn publish(&self, variants: impl IntoIterator<Item = Variant>) {
        self.published.send_replace(published(variants));
    }

    /// A variant with a fresh decision.
    fn decided(&self, name: &str, desired: u32) -> Variant {
        variant("shop", name).desired(desired, self.clock.elapsed())
    }

    /// A connection, and a task that ends with it.
    async fn connect(&self) -> (Keda, JoinHandle<()>) {
        let stream = TcpStream::connect(self.address).await.unwrap();
        let (sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
        let ended = self.tracker.spawn(async move { drop(connection.await) });
        (Keda(sender), ended)
    }

    /// A connection over TLS, on which a call succeeds; `None` if it is refused.
    async fn connect_tls(&self, ca: &str, leaf: Option<&Leaf>) -> Option<Keda> {
        self.connect_with(client_tls(ca, leaf, Http::Two)).await
    }

    /// Clones of a configuration share its sessions.
    async fn connect_with(&self, config: rustls::ClientConfig) -> Option<Keda> {
        let config = Arc::new(config);
        let stream = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("127.0.0.1").unwrap();
        let stream = TlsConnector::from(config).connect(name, stream).await.ok()?;
        let (sender, connection) =
            handshake(TokioExecutor::new(), TokioIo::new(stream)).await.ok()?;
        self.tracker.spawn(async move { drop(connection.await) });
        // In TLS 1.3 the client learns of a refusal only after the handshake.
        let keda = Keda(sender);
        keda.try_send("IsActive", &encoded(&trigger("shop", "llama"))).await.ok()?;
        Some(keda)
    }

    fn metric(&self, name: &str) -> f64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name);
        let metrics = family.map(|it| it.get_metric().to_vec()).unwrap_or_default();
        metrics.iter().map(|it| it.get_gauge().get_value() + it.get_counter().get_value()).sum()
    }
}

impl Keda {
    async fn try_send(&self, call: &str, message: &[u8]) -> hyper::Result<Response<Incoming>> {
        let mut frame = BytesMut::new();
        frame.put_u8(0);
        frame.put_u32(u32::try_from(message.len()).unwrap());
        frame.put_slice(message);
        let mut sender = self.0.clone();
        sender.ready().await?;
        let request =
            Request::post(format!("http://plimsoll/externalscaler.ExternalScaler/{call}"))
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Full::new(frame.freeze()));
        sender.send_request(request.unwrap()).await
    }

    async fn send(&self, call: &str, message: &[u8]) -> Response<Incoming> {
        let response = self.try_send(call, message).await.unwrap();
        assert_eq!(response.status(), 200, "every answer of gRPC has this status");
        assert_eq!(response.headers()["content-type"], "application/grpc");
        response
    }

    async fn call(&self, call: &str, message: &[u8]) -> Answer {
        let (head, body) = self.send(call, message).await.into_parts();
        let collected = body.collect().await.unwrap();
        let trailers = collected.trailers().cloned().unwrap_or_default();
        let text = |name: &str| {
            let found = head.headers.get(name).or_else(|| trailers.get(name));
            found.map(|value| value.to_str().unwrap().to_owned()).unwrap_or_default()
        };
        let (status, message) = (text("grpc-status"), text("grpc-message"));
        let message = percent_encoding::percent_decode_str(&message).decode_utf8().unwrap().into();
        let bytes = collected.to_bytes();
        let data = if bytes.is_empty() { Vec::new() } else { unframed(&bytes) };
        Answer { status, message, data }
    }

    /// Opens a stream.
    async fn stream(&self, of: &ScaledObjectRef) -> Incoming {
        self.send("StreamIsActive", &encoded(of)).await.into_body()
    }
}

/// The next message of a stream, or the trailers that end it.
async fn next(stream: &mut Incoming) -> Result<bool, HeaderMap> {
    let frame = stream.frame().await.expect("a stream ends with trailers").unwrap();
    match frame.into_data() {
        Ok(data) => Ok(IsActiveResponse::decode(&unframed(&data)[..]).unwrap().result),
        Err(frame) => Err(frame.into_trailers().unwrap()),
    }
}

fn unframed(bytes: &[u8]) -> Vec<u8> {
    let (head, message) = bytes.split_at(5);
    assert_eq!(head[0], 0, "not compressed");
    assert_eq!(u32::from_be_bytes(head[1..].try_into().unwrap()) as usize, message.len());
    message.to_vec()
}

fn trigger(namespace: &str, variant: &str) -> ScaledObjectRef {
    let metadata = [("scalerAddress", "plimsoll:6444"), ("variant", variant)];
    ScaledObjectRef {
        name: "llama".to_owned(),
        namespace: namespace.to_owned(),
        scaler_metadata: metadata.map(|(key, value)| (key.to_owned(), value.to_owned())).into(),
    }
}

fn asking(of: ScaledObjectRef) -> Vec<u8> {
    encoded(&GetMetricsRequest { scaled_object_ref: Some(of), metric_name: METRIC.to_owned() })
}

fn encoded(message: &impl Message) -> Vec<u8> {
    message.encode_to_vec()
}

fn hex(text: &str) -> Vec<u8> {
    let digits = text.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

#[tokio::test]
async fn what_kedas_own_library_sends_is_read_and_what_it_reads_is_sent() {
    assert_eq!(ScaledObjectRef::decode(&hex(GO_REF)[..]).unwrap(), trigger("shop", "llama"));
    assert_eq!(asking(trigger("shop", "llama")), hex(GO_ASK));

    let (scaler, keda) = Scaler::plain().await;
    scaler.publish([scaler.decided("llama", 3)]);
    for (call, asked, answered) in [
        ("GetMetricSpec", GO_REF, GO_SPEC),
        ("GetMetrics", GO_ASK, GO_THREE),
        ("IsActive", GO_REF, GO_ACTIVE),
    ] {
        let answer = keda.call(call, &hex(asked)).await;
        assert_eq!((answer.status.as_str(), answer.data), (OK, hex(answered)), "{call}");
    }

    scaler.publish([scaler.decided("llama", 0)]);
    assert_eq!(keda.call("GetMetrics", &hex(GO_ASK)).await.data, hex(GO_ZERO));
    let inactive = keda.call("IsActive", &hex(GO_REF)).await;
    assert_eq!((inactive.status.as_str(), inactive.data), (OK, hex(GO_INACTIVE)));
}

#[tokio::test]
async fn unknown_desired_replicas_are_unavailable_and_never_zero_or_inactive() {
    let (scaler, keda) = Scaler::plain().await;
    let of = trigger("shop", "llama");
    scaler.publish([variant("shop", "llama")]);
    for call in ["GetMetrics", "IsActive"] {
        let asked = if call == "IsActive" { encoded(&of) } else { asking(of.clone()) };
        let answer = keda.call(call, &asked).await;
        assert_eq!((answer.status.as_str(), answer.data.len()), (UNAVAILABLE, 0), "{call}");
        assert!(answer.message.contains("no decision yet for shop/llama"), "{answer:?}");
    }

    scaler.publish([variant("shop", "llama").undecided(NoData::Refused)]);
    let answer = keda.call("IsActive", &encoded(&of)).await;
    assert_eq!((answer.status.as_str(), answer.data.len()), (UNAVAILABLE, 0));
    assert!(answer.message.contains("break an invariant and are not published"), "{answer:?}");

    // Without the specification KEDA makes no HPA, so it is known from the start.
    let spec = keda.call("GetMetricSpec", &encoded(&of)).await;
    let spec = GetMetricSpecResponse::decode(&spec.data[..]).unwrap();
    assert_eq!(spec.metric_specs.len(), 1);
    assert_eq!(spec.metric_specs[0].metric_name, METRIC);
}

#[tokio::test]
async fn an_old_decision_is_refused_in_the_words_of_the_external_metrics_api() {
    let registry = prometheus::Registry::new();
    let clock = Clock::start();
    let ages = DecisionAges { fresh: Duration::ZERO, hold: Duration::ZERO };
    let of = watch::Sender::new(published([variant("shop", "llama").desired(0, Duration::ZERO)]));
    let phase = watch::Sender::new(ServerPhase::Serving);
    let metrics = ScalerMetrics::register(&registry).unwrap();
    let streams = StreamBudgetLimits::default();
    let seen = phase.subscribe();
    let scaler = ExternalScaler::new(of.subscribe(), clock, ages, seen.clone(), streams, metrics);
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let stream = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
    let tracker = TaskTracker::new();
    let tasks = tracker.clone();
    tracker.spawn(async move {
        let shed = uncounted();
        serve(listener, Arc::new(scaler), ServerTransport::Plain, limits(), shed, seen, &tasks)
            .await;
    });
    let (sender, connection) = handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap();
    tracker.spawn(async move { drop(connection.await) });

    let answer = Keda(sender).call("GetMetrics", &asking(trigger("shop", "llama"))).await;
    assert_eq!(answer.status, UNAVAILABLE);
    assert!(answer.message.contains("the decision for shop/llama (0 replicas) is"), "{answer:?}");
}

#[tokio::test]
async fn a_tenant_reads_the_variants_of_its_own_namespace_only() {
    let (scaler, keda) = Scaler::plain().await;
    scaler.publish([
        scaler.decided("llama", 3),
        variant("lab", "mistral").desired(1, scaler.clock.elapsed()),
    ]);

    for call in ["GetMetrics", "IsActive", "GetMetricSpec"] {
        let of = trigger("lab", "llama");
        let asked = if call == "GetMetrics" { asking(of) } else { encoded(&of) };
        let answer = keda.call(call, &asked).await;
        assert_eq!(answer.status, NOT_FOUND, "{call}");
        let message = "there is no variant llama in namespace lab; there are: mistral";
        assert_eq!(answer.message, message, "{call}");
    }

    let mut of = trigger("lab", "llama");
    of.scaler_metadata.insert("namespace".to_owned(), "shop".to_owned());
    for call in ["IsActive", "GetMetricSpec", "StreamIsActive"] {
        let answer = keda.call(call, &encoded(&of)).await;
        assert_eq!(answer.status, INVALID_ARGUMENT, "{call}");
        assert!(answer.message.contains("remove namespace"), "{answer:?}");
    }
}

#[tokio::test]
async fn what_cannot_be_answered_says_why() {
    let (scaler, keda) = Scaler::plain().await;
    scaler.publish([scaler.decided("llama", 3)]);
    let named = |metadata: BTreeMap<String, String>| {
        encoded(&ScaledObjectRef { scaler_metadata: metadata, ..trigger("shop", "") })
    };
    let unnamed = ScaledObjectRef { namespace: String::new(), ..trigger("", "llama") };
    let other = GetMetricsRequest {
        scaled_object_ref: Some(trigger("shop", "llama")),
        metric_name: "queue".to_owned(),
    };
    let large = named(BTreeMap::from([("x".to_owned(), "x".repeat(100_000))]));
    for (call, asked, status, says) in [
        ("IsActive", named(BTreeMap::new()), INVALID_ARGUMENT, "must have the key variant"),
        ("IsActive", encoded(&unnamed), INVALID_ARGUMENT, "has no namespace"),
        ("GetMetrics", encoded(&other), NOT_FOUND, "unknown metric \"queue\"; use"),
        ("GetMetrics", Vec::new(), INVALID_ARGUMENT, "must have the key variant"),
        ("StreamMetricSpec", hex(GO_REF), UNIMPLEMENTED, "never changes"),
        ("Else", Vec::new(), UNIMPLEMENTED, "unknown call"),
        ("IsActive", large, "11", "too large"),
        ("IsActive", vec![0xff; 20], "13", ""),
    ] {
        let answer = keda.call(call, &asked).await;
        assert_eq!(answer.status, status, "{call}: {answer:?}");
        assert!(answer.message.contains(says), "{call}: {answer:?}");
    }
    let long = keda.call("IsActive", &encoded(&trigger("shop", &"é".repeat(4000)))).await;
    assert!(long.message.len() <= 1024, "a message travels in a header: {}", long.message.len());
    assert!(scaler.metric("plimsoll_external_scaler_calls_total") > 8.0);
}

#[tokio::test]
async fn a_stream_says_at_once_what_is_known_and_then_what_changes() {
    let (scaler, keda) = Scaler::plain().await;
    scaler.publish([scaler.decided("llama", 0)]);
    let mut stream = keda.stream(&trigger("shop", "llama")).await;
    assert_eq!(next(&mut stream).await, Ok(false));
    scaler.publish([scaler.decided("llama", 1)]);
    assert_eq!(next(&mut stream).await, Ok(true));
    // Changes above 0 are the HPA's, and what is not known is not sent.
    scaler.publish([scaler.decided("llama", 5)]);
    scaler.publish([variant("shop", "llama")]);
    scaler.publish([]);
    scaler.publish([scaler.decided("llama", 0)]);
    assert_eq!(next(&mut stream).await, Ok(false), "nothing was sent in between");
}

#[tokio::test]
async fn a_stream_of_a_variant_that_is_not_known_yet_waits_for_it() {
    let (scaler, keda) = Scaler::plain().await;
    let mut stream = keda.stream(&trigger("shop", "llama")).await;
    scaler.publish([variant("shop", "llama")]);
    scaler.publish([scaler.decided("llama", 2)]);
    assert_eq!(next(&mut stream).await, Ok(true));
}

#[tokio::test]
async fn draining_ends_streams_without_an_error_so_that_keda_opens_others_at_once() {
    let (scaler, keda) = Scaler::plain().await;
    scaler.publish([scaler.decided("llama", 1)]);
    let mut stream = keda.stream(&trigger("shop", "llama")).await;
    assert_eq!(next(&mut stream).await, Ok(true));
    scaler.phase.send_replace(ServerPhase::Unready);
    scaler.publish([scaler.decided("llama", 0)]);
    assert_eq!(next(&mut stream).await, Ok(false), "an unready server still serves");
    scaler.phase.send_replace(ServerPhase::Draining);
    assert_eq!(next(&mut stream).await.unwrap_err()["grpc-status"], OK);
    scaler.served.await.unwrap();
}

#[tokio::test]
async fn thousands_of_streams_share_a_connection_and_no_namespace_takes_all() {
    let streams = StreamBudgetLimits { total: 2200, per_namespace: 2000 };
    let scaler = Scaler::start(Options { streams, ..Options::default() }).await;
    let keda = scaler.connect().await.0;
    scaler.publish([scaler.decided("llama", 1)]);
    let mut open = Vec::new();
    for _ in 0..2000 {
        open.push(keda.stream(&trigger("shop", "llama")).await);
    }
    for stream in &mut open {
        assert_eq!(next(stream).await, Ok(true));
    }
    assert!((scaler.metric("plimsoll_external_scaler_streams") - 2000.0).abs() < 0.5);

    let answer = keda.call("StreamIsActive", &encoded(&trigger("shop", "llama"))).await;
    assert_eq!(answer.status, RESOURCE_EXHAUSTED);
    assert!(answer.message.contains("namespace shop already has 2000 open streams"), "{answer:?}");
    let mut others = Vec::new();
    for _ in 0..200 {
        others.push(keda.stream(&trigger("lab", "llama")).await);
    }
    let answer = keda.call("StreamIsActive", &encoded(&trigger("third", "llama"))).await;
    assert_eq!(answer.status, RESOURCE_EXHAUSTED);

    // A stream that KEDA closes makes room.
    open.pop();
    others.pop();
    while scaler.metric("plimsoll_external_scaler_streams") > 2198.5 {
        tokio::task::yield_now().await;
    }
    let mut again = keda.stream(&trigger("shop", "llama")).await;
    assert_eq!(next(&mut again).await, Ok(true));
}

#[tokio::test]
async fn a_connection_with_an_open_stream_is_not_idle() {
    let short = Duration::from_secs(1);
    let limits = ServerLimits { idle_max: short, read_max: short, ..limits() };
    let scaler = Scaler::start(Options { limits, ..Options::default() }).await;
    scaler.publish([scaler.decided("llama", 0)]);
    let (keda, _) = scaler.connect().await;
    let mut stream = keda.stream(&trigger("shop", "llama")).await;
    assert_eq!(next(&mut stream).await, Ok(false));
    // Connections without streams come and go several times meanwhile.
    for _ in 0..3 {
        let (_idle, ended) = scaler.connect().await;
        ended.await.unwrap();
    }
    let answer = keda.call("IsActive", &encoded(&trigger("shop", "llama"))).await;
    assert_eq!(answer.status, OK, "it still takes calls");
    scaler.publish([scaler.decided("llama", 1)]);
    assert_eq!(next(&mut stream).await, Ok(true));
}

#[tokio::test]
async fn with_a_client_authority_only_its_clients_are_served() {
    let serving = Authority::new("serving");
    let keda_ca = Authority::new("keda");
    let stranger_ca = Authority::new("keda");
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("ca.crt");
    std::fs::write(&file, "nothing").unwrap();
    let refused = ClientAuthority::load(file.clone()).await.unwrap_err();
    assert!(refused.to_string().contains("has no certificates"), "{refused}");
    std::fs::write(&file, &keda_ca.pem).unwrap();
    let clients = Arc::new(ClientAuthority::load(file.clone()).await.unwrap());
    let certificate = serving_certificate(&serving).await;
    let tls = mutual_config(certificate, Arc::clone(&clients) as Arc<_>).unwrap();
    let transport = ServerTransport::MutualTls(tls);
    let scaler = Scaler::start(Options { transport, ..Options::default() }).await;
    scaler.publish([scaler.decided("llama", 3)]);

    let known = keda_ca.issue("keda-operator", Use::Client, Validity::Now);
    let unknown = stranger_ca.issue("keda-operator", Use::Client, Validity::Now);
    let past = keda_ca.issue("keda-operator", Use::Client, Validity::Past);
    assert!(scaler.connect_tls(&serving.pem, Some(&known)).await.is_some());
    // This client would resume its session, without its certificate being looked at again.
    let returning = client_tls(&serving.pem, Some(&known), Http::Two);
    assert!(scaler.connect_with(returning.clone()).await.is_some());
    assert!(scaler.connect_with(returning.clone()).await.is_some());
    for leaf in [None, Some(&unknown), Some(&past)] {
        assert!(scaler.connect_tls(&serving.pem, leaf).await.is_none());
    }

    // The authority is replaced while the server runs, and one that cannot be used is not.
    let stop = tokio_util::sync::CancellationToken::new();
    let (followed, ended) = (Arc::clone(&clients), stop.clone());
    scaler.tracker.spawn(async move { followed.follow(Duration::from_millis(5), ended).await });
    std::fs::write(&file, &stranger_ca.pem).unwrap();
    while scaler.connect_tls(&serving.pem, Some(&unknown)).await.is_none() {}
    assert!(scaler.connect_tls(&serving.pem, Some(&known)).await.is_none());
    assert!(scaler.connect_with(returning).await.is_none(), "no session is resumed");
    stop.cancel();
}

#[tokio::test]
async fn over_tls_the_answers_are_the_same() {
    let serving = Authority::new("serving");
    let tls = server_config(serving_certificate(&serving).await).unwrap();
    let options = Options { transport: ServerTransport::Tls(tls), ..Options::default() };
    let scaler = Scaler::start(options).await;
    scaler.publish([scaler.decided("llama", 3)]);
    let keda = scaler.connect_tls(&serving.pem, None).await.unwrap();
    let answer = keda.call("GetMetrics", &hex(GO_ASK)).await;
    let answer = GetMetricsResponse::decode(&answer.data[..]).unwrap();
    assert_eq!(answer.metric_values[0].metric_value, 3);
}
