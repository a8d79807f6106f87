//! The server under the external metrics API: connections, certificates, shutting down.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::ByteString;
use plimsoll::clock::Clock;
use plimsoll::server::auth::{ConnectionPeer, UserIdentity, identify};
use plimsoll::server::budget::{BudgetLimits, SlotLimits};
use plimsoll::server::shed::{ShedConnections, ShedListener, ShedMetrics};
use plimsoll::server::tls::{
    CertificateError, CertificateReload, ServingCertificate, server_config,
};
use plimsoll::server::{Handler, ServerLimits, ServerPhase, ServerTransport, serve};
use rcgen::{KeyPair, PKCS_RSA_SHA256};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::external_metrics_harness::{
    Authority, BASE, Fixture, Http, Leaf, Options, Use, Validity, answer, client_tls,
    serving_certificate, trust, variant, write_leaf,
};

/// Long enough that only what never happens takes longer.
const NEVER: Duration = Duration::from_mins(1);

/// A handler that accepts no peer before its first request.
#[derive(Clone)]
struct Answering<F>(F);

impl<F, A> Handler for Answering<F>
where
    F: Fn(Request<Incoming>, Arc<ConnectionPeer>) -> A + Clone + Send + Sync + 'static,
    A: Future<Output = Response<Full<Bytes>>> + Send + 'static,
{
    type Body = Full<Bytes>;

    fn accepts(&self, _peer: &ConnectionPeer) -> bool {
        false
    }

    fn answer(
        &self,
        request: Request<Incoming>,
        peer: Arc<ConnectionPeer>,
    ) -> impl Future<Output = Response<Full<Bytes>>> + Send + 'static {
        (self.0)(request, peer)
    }
}

/// Counts the connections that a server without a registry closes.
pub(crate) fn uncounted() -> ShedConnections {
    ShedMetrics::register(&prometheus::Registry::new()).unwrap().of(ShedListener::Plain)
}

async fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> TlsStream<TcpStream> {
    let stream = TcpStream::connect(address).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    TlsConnector::from(Arc::clone(config)).connect(name, stream).await.unwrap()
}

/// Everything that the server says until it closes, after some bytes were sent.
async fn dialogue<S>(mut stream: S, bytes: &[u8]) -> String
where
    S: AsyncReadExt + AsyncWriteExt + Unpin,
{
    // The server may close before all is sent.
    let _ = stream.write_all(bytes).await;
    let mut said = Vec::new();
    let _ = tokio::time::timeout(NEVER, stream.read_to_end(&mut said)).await.expect("it closes");
    String::from_utf8_lossy(&said).into_owned()
}

impl Fixture {
    fn tls(&self, leaf: Option<&Leaf>, http: Http) -> Arc<ClientConfig> {
        Arc::new(client_tls(&self.serving.pem, leaf, http))
    }

    /// What the server says on an HTTP/1.1 connection on which nobody has a certificate.
    async fn raw(&self, bytes: &[u8]) -> String {
        dialogue(connect(self.address, &self.tls(None, Http::One)).await, bytes).await
    }
}

async fn with_limits(limits: ServerLimits) -> Fixture {
    Fixture::start(Options { limits, ..Options::default() }).await
}

// === bad peers ===

#[tokio::test]
async fn plain_http_is_not_answered() {
    let fixture = Fixture::start(Options::default()).await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    let said = dialogue(stream, b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n").await;
    assert!(!said.contains("HTTP/"), "{said:?}");
}

#[tokio::test]
async fn a_handshake_that_stalls_is_cut_off() {
    let limits =
        ServerLimits { handshake_max: Duration::from_millis(50), ..ServerLimits::default() };
    let fixture = with_limits(limits).await;
    let stream = TcpStream::connect(fixture.address).await.unwrap();
    assert_eq!(dialogue(stream, b"").await, "");
}

#[tokio::test]
async fn a_request_that_dribbles_is_cut_off() {
    let limits = ServerLimits { header_max: Duration::from_millis(50), ..ServerLimits::default() };
    let fixture = with_limits(limits).await;
    for head in ["", "GET /livez HTTP/1.1\r\nX-Slow: "] {
        let said = fixture.raw(head.as_bytes()).await;
        assert!(!said.contains("200 OK"), "{said}");
    }
}

#[tokio::test]
async fn a_silent_http2_connection_is_told_to_go_away() {
    let limits = ServerLimits { idle_max: Duration::from_millis(50), ..ServerLimits::default() };
    let fixture = with_limits(limits).await;
    let stream = connect(fixture.address, &fixture.tls(None, Http::Two)).await;
    let (_sender, connection) = handshake(stream).await;
    tokio::time::timeout(NEVER, connection).await.expect("it ends").unwrap();
}

#[tokio::test]
async fn an_http2_peer_that_grants_a_response_no_window_is_cut_off() {
    let limits = ServerLimits { read_max: Duration::from_millis(50), ..ServerLimits::default() };
    let fixture = with_limits(limits).await;
    let stream = connect(fixture.address, &fixture.tls(None, Http::Two)).await;
    let executor = TokioExecutor::new();
    let mut client = hyper::client::conn::http2::Builder::new(executor);
    client.initial_stream_window_size(0);
    let (mut sender, connection) = client.handshake(TokioIo::new(stream)).await.unwrap();
    let tasks = TaskTracker::new();
    let connection = tasks.spawn(connection);
    assert_eq!(send(&mut sender).await, None, "the response never arrives");
    tokio::time::timeout(NEVER, connection).await.expect("it ends").unwrap().unwrap_err();

    // Responses that are read may be as many, and as far apart, as they like.
    let stream = connect(fixture.address, &fixture.tls(None, Http::Two)).await;
    let (mut sender, connection) = handshake(stream).await;
    tasks.spawn(connection);
    for _ in 0..4 {
        assert!(send(&mut sender).await.is_some());
        tokio::time::sleep(Duration::from_millis(60)).await;
    }
}

#[tokio::test]
async fn large_headers_are_refused_and_large_identities_are_not() {
    let fixture = Fixture::start(Options::default()).await;
    let filler = "a".repeat(10_000_000);
    let head = format!("GET /livez HTTP/1.1\r\nHost: a\r\nX-Filler: {filler}\r\n\r\n");
    let said = fixture.raw(head.as_bytes()).await;
    assert!(!said.contains("200 OK"), "{said}");
    let many = "X-Filler: a\r\n".repeat(500_000);
    let said =
        fixture.raw(format!("GET /livez HTTP/1.1\r\nHost: a\r\n{many}\r\n").as_bytes()).await;
    assert!(!said.contains("200 OK"), "{said}");
    let line = format!("GET /{filler} HTTP/1.1\r\nHost: a\r\n\r\n");
    assert!(!fixture.raw(line.as_bytes()).await.contains("200 OK"));

    for http in [Http::One, Http::Two] {
        let client = fixture.proxy(http);
        let large = client.get(BASE).header("X-Filler", &filler[..100_000]).send().await;
        assert!(large.is_err() || large.unwrap().status() == 431, "{http:?}");
        let groups = (0..500).fold(client.get(BASE), |request, group| {
            request.header("X-Remote-Group", format!("team-{group}"))
        });
        assert_eq!(answer(groups).await.code, 200, "{http:?}");
    }
}

/// The front proxy's user in all attacks.
const HONEST: &str = "X-Remote-User: honest\r\n";

/// A request that the front proxy has never made.
const INNER: &str = "GET /inner HTTP/1.1\r\nHost: a\r\nX-Remote-User: smuggled\r\n\r\n";

/// The path of a request, and the user that the server believes it to be of.
type RecordedRequest = (String, Option<UserIdentity>);

/// The front proxy's connection to a server that records in whose name it was asked for what.
struct Recorder {
    address: SocketAddr,
    config: Arc<ClientConfig>,
    seen: Arc<Mutex<Vec<RecordedRequest>>>,
    _phase: watch::Sender<ServerPhase>,
}

impl Recorder {
    async fn start() -> Self {
        let (front_proxy, serving) = (Authority::new("front-proxy-ca"), Authority::new("ca"));
        let leaf = front_proxy.issue("front-proxy-client", Use::Client, Validity::Now);
        let anchor = trust(&front_proxy.pem, r#"["front-proxy-client"]"#);
        let seen: Arc<Mutex<Vec<_>>> = Arc::default();
        let record = Arc::clone(&seen);
        let clock = Clock::start();
        let respond = move |request: Request<Incoming>, peer: Arc<ConnectionPeer>| {
            let identity = identify(clock.now(), request.headers(), &peer, &anchor);
            record.lock().unwrap().push((request.uri().path().to_owned(), identity.ok()));
            std::future::ready(Response::new(Full::new(Bytes::from_static(b"done"))))
        };

        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let phase = watch::Sender::new(ServerPhase::Serving);
        let changes = phase.subscribe();
        let tls = server_config(serving_certificate(&serving).await).unwrap();
        let limits =
            ServerLimits { header_max: Duration::from_millis(200), ..ServerLimits::default() };
        TaskTracker::new().spawn(async move {
            let respond = Answering(respond);
            let tracker = TaskTracker::new();
            let tls = ServerTransport::Tls(tls);
            serve(listener, tls, limits, uncounted(), changes, &tracker, respond).await;
        });
        let config = Arc::new(client_tls(&serving.pem, Some(&leaf), Http::One));
        Self { address, config, seen, _phase: phase }
    }

    /// Sends some bytes on a connection of their own. Returns the path and the user of each request
    /// that the server has seen in them.
    async fn sees(&self, bytes: &str) -> Vec<(String, Option<String>)> {
        dialogue(connect(self.address, &self.config).await, bytes.as_bytes()).await;
        let seen = std::mem::take(&mut *self.seen.lock().unwrap());
        seen.into_iter().map(|(path, identity)| (path, identity.map(|it| it.user))).collect()
    }
}

#[tokio::test]
async fn a_request_in_the_body_of_another_is_not_seen() {
    let recorder = Recorder::start().await;
    let length = INNER.len();
    let chunk = format!("{length:x}\r\n{INNER}\r\n0\r\n\r\n");
    for (framing, body) in [
        (format!("Content-Length: {length}\r\n"), INNER),
        (format!("Content-Length: {length}\r\nContent-Length: {length}\r\n"), INNER),
        (format!("Content-Length: {length}\r\nExpect: 100-continue\r\n"), INNER),
        ("Transfer-Encoding: chunked\r\n".to_owned(), &chunk),
        ("Transfer-Encoding: CHUNKED\r\n".to_owned(), &chunk),
        ("Transfer-Encoding: gzip, chunked\r\n".to_owned(), &chunk),
    ] {
        let request = format!("POST /outer HTTP/1.1\r\nHost: a\r\n{HONEST}{framing}\r\n{body}");
        let seen = recorder.sees(&request).await;
        let outer = ("/outer".to_owned(), Some("honest".to_owned()));
        assert_eq!(seen, [outer], "{request:?}");
    }
}

#[tokio::test]
async fn one_request_of_two_meanings_never_becomes_two() {
    let recorder = Recorder::start().await;
    for framing in [
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "Content-Length: 0\r\nContent-Length: 5\r\n\r\n",
        "Content-Length: 0, 5\r\n\r\n",
        "Content-Length: +0\r\n\r\n",
        "Content-Length: 0x0\r\n\r\n",
        "Content-Length: -1\r\n\r\n",
        "Content-Length: 18446744073709551616\r\n\r\n",
        "Content-Length : 0\r\n\r\n",
        "Transfer-Encoding: x\r\n\r\n",
        "Transfer-Encoding: chunked, identity\r\n\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n0x0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n-0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n10000000000000000\r\n\r\n",
    ] {
        let request = format!("POST /outer HTTP/1.1\r\nHost: a\r\n{HONEST}{framing}{INNER}");
        let seen = recorder.sees(&request).await;
        let is_outer = |(path, user): &(String, Option<String>)| {
            path == "/outer" && user.as_deref() == Some("honest")
        };
        assert!(seen.len() <= 1 && seen.iter().all(is_outer), "{request:?} is seen as {seen:?}");
    }

    let outer = format!("POST /outer HTTP/1.1\r\nHost: a\r\n{HONEST}Content-Length: 0\r\n\r\n");
    let seen = recorder.sees(&format!("{outer}{INNER}")).await;
    assert_eq!(seen.len(), 2, "two requests are seen as two");
}

#[tokio::test]
async fn smuggled_identities_are_not_believed() {
    let recorder = Recorder::start().await;
    let close = "Connection: close\r\n";
    for (target, headers) in [
        ("/outer", format!("{HONEST}X-Remote-User : smuggled\r\n")),
        ("/outer", format!("{HONEST}X-A: b\r\n X-Remote-User: smuggled\r\n")),
        ("/outer", format!("{HONEST}X-A: b\nX-Remote-User: smuggled\r\n")),
        ("/outer", format!("{HONEST}X-A: b\rX-Remote-User: smuggled\r\n")),
        ("/outer", format!("{HONEST}X-Remote-User: smuggled\r\n")),
        ("/outer", format!("X-Remote-User: smuggled\r\n{HONEST}")),
        ("/outer", format!("{HONEST}X-Remote_User: smuggled\r\n")),
        ("/outer?X-Remote-User=smuggled", HONEST.to_owned()),
        ("https://smuggled@a/outer", HONEST.to_owned()),
        ("/outer", "X-Remote-User : smuggled\r\n".to_owned()),
        ("/outer", "X-A: b\r\n X-Remote-User: smuggled\r\n".to_owned()),
        ("/outer", "X-A: b\rX-Remote-User: smuggled\r\n".to_owned()),
        ("/outer", "X-Remote-User: smuggled\0\r\n".to_owned()),
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: a\r\n{headers}");
        let seen = recorder.sees(&format!("{head}{close}\r\n")).await;
        let users: Vec<&str> = seen.iter().filter_map(|(_, user)| user.as_deref()).collect();
        assert!(users.iter().all(|user| *user == "honest"), "{head:?} is seen as {seen:?}");
        assert!(seen.len() <= 1, "{head:?} is seen as {seen:?}");
    }
}

#[tokio::test]
async fn pipelined_requests_keep_their_identities_apart() {
    let recorder = Recorder::start().await;
    let named = "X-Remote-User: first\r\nX-Remote-Group: admins\r\n";
    let pipelined = format!(
        "GET /1 HTTP/1.1\r\nHost: a\r\n\r\n\
         GET /2 HTTP/1.1\r\nHost: a\r\n{named}\r\n\
         POST /3 HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nab\
         GET /4 HTTP/1.1\r\nHost: a\r\n{HONEST}Connection: close\r\n\r\n"
    );
    dialogue(connect(recorder.address, &recorder.config).await, pipelined.as_bytes()).await;

    let user = |name: &str, groups: &[&str]| UserIdentity {
        user: name.to_owned(),
        groups: groups.iter().map(|group| (*group).to_owned()).collect(),
        ..UserIdentity::default()
    };
    let expected = [
        ("/1".to_owned(), None),
        ("/2".to_owned(), Some(user("first", &["admins", "system:authenticated"]))),
        ("/3".to_owned(), None),
        ("/4".to_owned(), Some(user("honest", &["system:authenticated"]))),
    ];
    assert_eq!(*recorder.seen.lock().unwrap(), expected);
}

#[tokio::test]
async fn odd_requests_of_the_front_proxy_are_neither_obeyed_nor_answered_with_a_document() {
    let limits = ServerLimits { header_max: Duration::from_millis(200), ..ServerLimits::default() };
    let fixture = with_limits(limits).await;
    let config = fixture.tls(Some(&fixture.proxy_leaf), Http::One);
    let close = "Connection: close\r\n";
    for request in [
        format!("CONNECT a:443 HTTP/1.1\r\nHost: a\r\n{HONEST}{close}\r\n{INNER}"),
        format!("OPTIONS * HTTP/1.1\r\nHost: a\r\n{HONEST}{close}\r\n"),
        format!("GET {BASE}/namespaces/chat/.. HTTP/1.1\r\nHost: a\r\n{HONEST}{close}\r\n"),
        format!("GET {BASE} HTTP/1.1\r\nHost: a\r\n{close}\r\n"),
        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(),
        format!("GET {BASE}\r\n\r\n"),
    ] {
        let said = dialogue(connect(fixture.address, &config).await, request.as_bytes()).await;
        assert!(!said.contains("APIResourceList"), "{request:?}: {said}");
        assert!(!said.contains("HTTP/1.1 200"), "{request:?}: {said}");
    }

    let upgrade = "Connection: Upgrade, close\r\nUpgrade: h2c\r\n";
    let request = format!("GET {BASE} HTTP/1.1\r\nHost: a\r\n{HONEST}{upgrade}\r\n");
    let said = dialogue(connect(fixture.address, &config).await, request.as_bytes()).await;
    assert!(said.starts_with("HTTP/1.1 200"), "who asks for an upgrade goes on without: {said}");
    assert!(said.contains("APIResourceList"), "{said}");
}

#[tokio::test]
async fn a_connection_above_the_limit_is_answered_at_once_and_the_oldest_is_closed() {
    let connections = BudgetLimits {
        strangers: SlotLimits { total: 1, per_address: 1 },
        ..ServerLimits::default().connections
    };
    let fixture = with_limits(ServerLimits { connections, ..ServerLimits::default() }).await;
    let config = fixture.tls(None, Http::One);
    let first = connect(fixture.address, &config).await;
    let request = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    assert!(fixture.raw(request).await.contains("200 OK"));
    assert_eq!(dialogue(first, b"").await, "");
}

// === TLS ===

#[tokio::test]
async fn tls_1_2_and_resumed_sessions_carry_the_identity() {
    let fixture = Fixture::start(Options::default()).await;
    let request =
        format!("GET {BASE} HTTP/1.1\r\nHost: a\r\nX-Remote-User: u\r\nConnection: close\r\n\r\n");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let template = fixture.tls(Some(&fixture.proxy_leaf), Http::One);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(pem_certificate(&fixture.serving.pem)).unwrap();
        let config = ClientConfig::builder_with_provider(Arc::clone(template.crypto_provider()))
            .with_protocol_versions(&[version])
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(Arc::clone(&template.client_auth_cert_resolver));
        let config = Arc::new(config);
        let mut kinds = Vec::new();
        for _ in 0..2 {
            let stream = connect(fixture.address, &config).await;
            kinds.push(stream.get_ref().1.handshake_kind());
            let said = dialogue(stream, request.as_bytes()).await;
            assert!(said.contains("200 OK"), "{version:?}: {said}");
        }
        assert_eq!(kinds[1], Some(rustls::HandshakeKind::Resumed), "{version:?}");
    }
}

fn pem_certificate(pem: &str) -> rustls::pki_types::CertificateDer<'static> {
    rustls::pki_types::pem::PemObject::from_pem_slice(pem.as_bytes()).unwrap()
}

fn server_leaf(authority: &Authority, validity: Validity) -> Leaf {
    authority.issue("plimsoll", Use::Server, validity)
}

async fn load(directory: &Path, leaf: &Leaf) -> Result<ServingCertificate, CertificateError> {
    ServingCertificate::load(Clock::start().now(), write_leaf(directory, leaf)).await
}

/// The contents of the first OCTET STRING of a PKCS#8 document: the key in its older form.
fn inner_key(pkcs8: &[u8]) -> Vec<u8> {
    // Lengths below 128 take one byte; longer ones say first how many bytes they take.
    let header = |at: usize| match pkcs8[at + 1] {
        short @ 0..0x80 => (at + 2, usize::from(short)),
        long => {
            let bytes = usize::from(long & 0x7f);
            let length = &pkcs8[at + 2..at + 2 + bytes];
            (at + 2 + bytes, length.iter().fold(0, |sum, byte| sum << 8 | usize::from(*byte)))
        }
    };
    let (mut at, _) = header(0);
    while pkcs8[at] != 0x04 {
        let (start, length) = header(at);
        at = start + length;
    }
    let (start, length) = header(at);
    pkcs8[start..start + length].to_vec()
}

fn pem(label: &str, der: Vec<u8>) -> String {
    let text = serde_json::to_value(ByteString(der)).unwrap();
    let text = text.as_str().unwrap();
    let lines: Vec<&str> =
        text.as_bytes().chunks(64).map(|line| std::str::from_utf8(line).unwrap()).collect();
    format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", lines.join("\n"))
}

#[tokio::test]
async fn keys_are_read_in_all_their_forms() {
    let authority = Authority::new("ca");
    let ec = KeyPair::generate().unwrap();
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).unwrap();
    for (key, label) in [(&ec, "EC PRIVATE KEY"), (&rsa, "RSA PRIVATE KEY")] {
        let leaf = authority.issue_for(key, "plimsoll", Use::Server, Validity::Now);
        let older = Leaf { key_pem: pem(label, inner_key(&key.serialize_der())), ..leaf.clone() };
        for leaf in [leaf, older] {
            let directory = tempfile::tempdir().unwrap();
            let loaded = load(directory.path(), &leaf).await;
            assert!(loaded.is_ok(), "{label}: {:?}", loaded.err());
        }
    }
}

#[tokio::test]
async fn a_certificate_that_clients_would_refuse_is_refused() {
    let authority = Authority::new("ca");
    let good = server_leaf(&authority, Validity::Now);
    let other = server_leaf(&authority, Validity::Now);
    let nameless = authority.issue("plimsoll", Use::Client, Validity::Now);
    let with_key = |key_pem: &str| Leaf { key_pem: key_pem.to_owned(), ..good.clone() };
    let with_chain = |chain_pem: &str| Leaf { chain_pem: chain_pem.to_owned(), ..good.clone() };
    for (leaf, said) in [
        (with_key(&other.key_pem), "does not match"),
        (with_key(""), "private key"),
        (with_key("-----BEGIN PRIVATE KEY-----\n"), "private key"),
        (with_key(&good.chain_pem), "private key"),
        (with_chain(""), "with a certificate"),
        (with_chain(&good.key_pem), "with a certificate"),
        (with_chain(&pem("CERTIFICATE", vec![1, 2, 3])), "cannot be read"),
        (with_chain(&"a".repeat(2_000_000)), "larger than"),
        (server_leaf(&authority, Validity::Past), "expired at 2020-01-01T00:00:00Z"),
        (server_leaf(&authority, Validity::Future), "not valid before 2080-01-01T00:00:00Z"),
        (nameless, "no subject alternative name"),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let error = load(directory.path(), &leaf).await.unwrap_err().to_string();
        assert!(error.contains(said), "{error:?} does not say {said:?}");
    }
}

#[tokio::test]
async fn a_new_certificate_replaces_the_old_one_and_a_bad_one_does_not() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("ca");
    let [first, second] = [(); 2].map(|()| server_leaf(&authority, Validity::Now));
    let certificate = Arc::new(load(directory.path(), &first).await.unwrap());
    let server =
        Generic::start(&authority, Arc::clone(&certificate), ServerLimits::default()).await;
    let now = Clock::start().now();
    let shown = async || {
        // A client that remembers nothing, because a resumed session shows no certificate.
        let config = Arc::new(client_tls(&authority.pem, None, Http::Two));
        let stream = connect(server.address, &config).await;
        stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let (mut open, connection) = handshake(connect(server.address, &server.config).await).await;
    server.tracker.spawn(connection);
    server.permits.add_permits(100);

    assert_eq!(certificate.reload(now).await.unwrap(), CertificateReload::Unchanged);
    let settings = write_leaf(directory.path(), &second);
    assert_eq!(certificate.reload(now).await.unwrap(), CertificateReload::Replaced);
    assert_eq!(shown().await, second.chain()[0]);
    assert_eq!(send(&mut open).await, Some(200), "a connection that is open goes on");

    let not_after = certificate.not_after();
    for bad in [
        Leaf { key_pem: first.key_pem.clone(), ..second.clone() },
        server_leaf(&authority, Validity::Past),
        Leaf { chain_pem: "torn".to_owned(), ..second.clone() },
    ] {
        write_leaf(directory.path(), &bad);
        assert!(certificate.reload(now).await.is_err());
    }
    std::fs::remove_file(&settings.cert_file).unwrap();
    assert!(matches!(certificate.reload(now).await, Err(CertificateError::Read { .. })));
    assert_eq!(certificate.not_after(), not_after);
    assert_eq!(shown().await, second.chain()[0]);
}

#[tokio::test]
async fn the_files_are_followed_until_they_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let authority = Authority::new("ca");
    let leaf = || server_leaf(&authority, Validity::Now);
    let certificate = Arc::new(load(directory.path(), &leaf()).await.unwrap());
    let (sender, mut outcomes) = mpsc::unbounded_channel();
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let (following, stop) = (Arc::clone(&certificate), cancel.clone());
    tracker.spawn(async move {
        let report = |outcome: &Result<CertificateReload, CertificateError>| {
            let _ = sender.send(outcome.as_ref().ok().copied());
        };
        following.follow(Clock::start(), Duration::from_millis(5), stop, report).await;
    });
    assert_eq!(outcomes.recv().await, Some(Some(CertificateReload::Unchanged)));
    write_leaf(directory.path(), &leaf());
    while outcomes.recv().await.unwrap() != Some(CertificateReload::Replaced) {}
    write_leaf(directory.path(), &Leaf { chain_pem: String::new(), ..leaf() });
    while outcomes.recv().await.unwrap().is_some() {}
    assert_eq!(certificate.not_after(), "2090-01-01T00:00:00Z".parse().ok());
    cancel.cancel();
    while outcomes.recv().await.is_some() {}
    tracker.close();
    tracker.wait().await;
}

// === shutting down ===

/// A server whose handler waits for a permit before it answers.
struct Generic {
    address: SocketAddr,
    config: Arc<ClientConfig>,
    permits: Arc<Semaphore>,
    handled: Arc<AtomicU64>,
    phase: watch::Sender<ServerPhase>,
    tracker: TaskTracker,
    ended: CancellationToken,
}

impl Generic {
    async fn start(
        authority: &Authority,
        certificate: Arc<ServingCertificate>,
        limits: ServerLimits,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let config = Arc::new(client_tls(&authority.pem, None, Http::Two));
        let permits = Arc::new(Semaphore::new(0));
        let handled = Arc::new(AtomicU64::new(0));
        let phase = watch::Sender::new(ServerPhase::Serving);
        let (tracker, ended) = (TaskTracker::new(), CancellationToken::new());
        let server_tls = server_config(certificate).unwrap();
        let (waiting, counted) = (Arc::clone(&permits), Arc::clone(&handled));
        let respond = move |_, _| {
            let waiting = Arc::clone(&waiting);
            counted.fetch_add(1, Ordering::Relaxed);
            async move {
                waiting.acquire().await.unwrap().forget();
                Response::new(Full::new(Bytes::from_static(b"done")))
            }
        };
        let (seen, tasks, end) = (phase.subscribe(), tracker.clone(), ended.clone());
        tracker.spawn(async move {
            let respond = Answering(respond);
            let tls = ServerTransport::Tls(server_tls);
            serve(listener, tls, limits, uncounted(), seen, &tasks, respond).await;
            end.cancel();
        });
        Self { address, config, permits, handled, phase, tracker, ended }
    }

    async fn fresh(limits: ServerLimits) -> Self {
        let authority = Authority::new("ca");
        let certificate = serving_certificate(&authority).await;
        Self::start(&authority, certificate, limits).await
    }
}

async fn handshake(
    stream: TlsStream<TcpStream>,
) -> (SendRequest<Empty<Bytes>>, impl Future<Output = Result<(), hyper::Error>> + Send + 'static) {
    hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await.unwrap()
}

/// The status of a request's answer; `None` when there is none.
async fn send(sender: &mut SendRequest<Empty<Bytes>>) -> Option<u16> {
    sender.ready().await.ok()?;
    let request = Request::get("https://127.0.0.1/").body(Empty::new()).unwrap();
    let response = sender.send_request(request).await.ok()?;
    let status = response.status().as_u16();
    response.into_body().collect().await.ok()?;
    Some(status)
}

#[tokio::test]
async fn draining_says_goodbye_and_finishes_what_has_begun() {
    let server = Generic::fresh(ServerLimits::default()).await;
    server.phase.send_replace(ServerPhase::Unready);
    let (mut sender, connection) = handshake(connect(server.address, &server.config).await).await;
    let goodbye = server.tracker.spawn(connection);
    server.permits.add_permits(1);
    assert_eq!(send(&mut sender).await, Some(200), "an unready server still serves");
    let under_way = server.tracker.spawn(async move { send(&mut sender).await });
    while server.handled.load(Ordering::Relaxed) < 2 {
        tokio::task::yield_now().await;
    }

    server.phase.send_replace(ServerPhase::Draining);
    while TcpStream::connect(server.address).await.is_ok() {
        tokio::task::yield_now().await;
    }
    assert!(!server.ended.is_cancelled(), "a request is under way");
    server.permits.add_permits(1);
    assert_eq!(under_way.await.unwrap(), Some(200));
    goodbye.await.unwrap().expect("the connection ends with a goodbye, not with an error");
    server.ended.cancelled().await;
    server.tracker.close();
    server.tracker.wait().await;
}

#[tokio::test]
async fn draining_is_bounded() {
    let limits = ServerLimits { drain_max: Duration::from_millis(50), ..ServerLimits::default() };
    let server = Generic::fresh(limits).await;
    let (mut sender, connection) = handshake(connect(server.address, &server.config).await).await;
    server.tracker.spawn(connection);
    let stuck = server.tracker.spawn(async move { send(&mut sender).await });
    while server.handled.load(Ordering::Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    server.phase.send_replace(ServerPhase::Draining);
    server.ended.cancelled().await;
    assert_eq!(stuck.await.unwrap(), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_request_that_arrives_while_draining_is_answered() {
    let server = Generic::fresh(ServerLimits::default()).await;
    server.permits.add_permits(Semaphore::MAX_PERMITS / 2);
    let clients: Vec<_> = (0..8)
        .map(|_| {
            let (address, config) = (server.address, Arc::clone(&server.config));
            let tracker = server.tracker.clone();
            server.tracker.spawn(async move {
                let (mut sender, connection) = handshake(connect(address, &config).await).await;
                tracker.spawn(connection);
                let mut answered = 0;
                while let Some(200) = send(&mut sender).await {
                    answered += 1;
                }
                answered
            })
        })
        .collect();
    while server.handled.load(Ordering::Relaxed) < 500 {
        tokio::task::yield_now().await;
    }
    server.phase.send_replace(ServerPhase::Unready);
    server.phase.send_replace(ServerPhase::Draining);
    let mut answered = 0;
    for client in clients {
        answered += client.await.unwrap();
    }
    server.ended.cancelled().await;
    assert_eq!(answered, server.handled.load(Ordering::Relaxed));
}

#[tokio::test]
async fn a_dropped_phase_drains() {
    let server = Generic::fresh(ServerLimits::default()).await;
    drop(server.phase);
    server.ended.cancelled().await;
}

#[tokio::test]
async fn the_api_serves_until_it_drains() {
    let fixture = Fixture::start(Options::default()).await;
    fixture.publish([variant("chat", "a").desired(3, fixture.clock.elapsed())]);
    let path = format!("{BASE}/namespaces/chat/plimsoll_desired_replicas");
    let client = fixture.proxy(Http::Two);
    let kubelet = fixture.client(None, Http::One);
    fixture.phase.send_replace(ServerPhase::Unready);
    assert_eq!(answer(kubelet.request("GET", "/readyz")).await.code, 500);
    assert_eq!(client.ask(&path).await.code, 200, "only the probe knows");
    assert_eq!(client.ask(BASE).await.code, 200);
    fixture.phase.send_replace(ServerPhase::Draining);
    fixture.tracker.close();
    fixture.tracker.wait().await;
    assert!(TcpStream::connect(fixture.address).await.is_err());
}
