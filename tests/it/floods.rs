//! Both servers under floods: connections that stall, peers that do not read, streams that are
//! reset, each from many addresses of the loopback network.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::{IpAddr, SocketAddr};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::Request;
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use plimsoll::server::ServerLimits;
use plimsoll::server::admin::access::AccessPolicy;
use plimsoll::server::admin::{self, AdminLimits, Hooks};
use plimsoll::server::budget::{BudgetLimits, SlotLimits};
use plimsoll::server::document::DocumentResponse;
use plimsoll::server::rendering::SharedRendering;
use plimsoll::server::shed::{ShedListener, ShedMetrics};
use plimsoll::server::stream::StreamLimits;
use rustls::pki_types::ServerName;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::daemon::text;
use crate::external_metrics_harness::{
    BASE, Fixture, HPA, Http, Leaf, Options, Use, Validity, client_tls, counter,
};
use crate::hostile::{SETTINGS, STALLS, preface, reset_streams};

/// A test that waits for so long has failed; nothing is expected to come near it.
const PATIENCE: Duration = Duration::from_mins(1);

/// Short enough to wait for, where only the end of a limit is awaited.
const SHORT: Duration = Duration::from_millis(100);

/// Larger than all buffers of the kernel between two ends of a connection.
const LARGE_PAGE: usize = 16 << 20;

const PROBE: &[u8] = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const LARGE: &[u8] = b"GET /metrics HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";

async fn patiently<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future).await.expect("it happens in time")
}

/// One of the clients at 127.0.0.1, 127.0.0.2 and so on.
fn client(number: u8) -> IpAddr {
    IpAddr::from([127, 0, 0, number])
}

/// Connects from an address, with a small buffer for what arrives.
async fn connect(server: SocketAddr, from: IpAddr) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4096).unwrap();
    socket.bind(SocketAddr::new(from, 0)).unwrap();
    patiently(socket.connect(server)).await.unwrap()
}

/// Connections that say one of [`STALLS`] and no more, as many from each of the addresses.
async fn stalled(server: SocketAddr, addresses: u8, each: usize) -> Vec<TcpStream> {
    let mut open = Vec::new();
    for number in 0..each {
        for address in 2..2 + addresses {
            let mut stream = connect(server, client(address)).await;
            let _closed = stream.write_all(STALLS[number % STALLS.len()]).await;
            open.push(stream);
        }
    }
    open
}

/// A client that asks for the large page and takes a single byte of it.
async fn slow_reader(server: SocketAddr, from: IpAddr) -> TcpStream {
    let mut stream = connect(server, from).await;
    stream.write_all(LARGE).await.unwrap();
    patiently(stream.read_exact(&mut [0])).await.unwrap();
    stream
}

/// Everything that the server sends until it closes, after some bytes were sent.
async fn dialogue(mut stream: impl AsyncReadExt + AsyncWriteExt + Unpin, bytes: &[u8]) -> Vec<u8> {
    // The server may close before all is sent.
    let _closed = stream.write_all(bytes).await;
    let mut received = Vec::new();
    let _reset = patiently(stream.read_to_end(&mut received)).await;
    received
}

/// The connections of a kind that a server with this registry closed to make room for others.
fn closed(registry: &prometheus::Registry, kind: &str) -> usize {
    let count = counter(registry, "plimsoll_connections_shed_total", &[("kind", kind)]);
    format!("{count:.0}").parse().unwrap()
}

fn is_ok(answer: &[u8]) -> bool {
    answer.starts_with(b"HTTP/1.1 200 OK")
}

// === the plain port ===

/// A plain port whose metrics are a large page.
struct PlainPort {
    address: SocketAddr,
    connections: TaskTracker,
    registry: prometheus::Registry,
    _stop: DropGuard,
}

impl PlainPort {
    async fn start(limits: AdminLimits) -> Self {
        let page = "x".repeat(LARGE_PAGE);
        let hooks = Hooks {
            access: AccessPolicy { admin_enabled: true, ..AccessPolicy::default() },
            metrics: SharedRendering::new(move || Ok(page.clone())),
            alive: Box::new(|| Ok(())),
            ready: Box::new(Vec::new),
            api: Box::new(|_| {
                Box::pin(async { DocumentResponse::plain(hyper::StatusCode::OK, "{}") })
            }),
            reload: Box::new(|| Box::pin(async { Ok(()) })),
            set_log: Box::new(|_| Ok(())),
            change_override: Box::new(|_| {
                Box::pin(async { (hyper::StatusCode::OK, "{}".to_owned()) })
            }),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let connections = TaskTracker::new();
        let stop = CancellationToken::new();
        let registry = prometheus::Registry::new();
        let shed = ShedMetrics::register(&registry).unwrap().of(ShedListener::Plain);
        let serving = admin::serve(
            listener,
            Arc::new(hooks),
            limits,
            shed,
            stop.clone(),
            connections.clone(),
        );
        TaskTracker::new().spawn(serving);
        Self { address, connections, registry, _stop: stop.drop_guard() }
    }

    async fn probe(&self, from: IpAddr) -> bool {
        is_ok(&dialogue(connect(self.address, from).await, PROBE).await)
    }

    /// The connections of a kind that were closed to make room for others.
    fn closed(&self, kind: &str) -> usize {
        closed(&self.registry, kind)
    }

    /// Waits until this many connections are open at most.
    async fn until_at_most(&self, most: usize) {
        patiently(async {
            while self.connections.len() > most {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

#[tokio::test]
async fn probes_are_answered_while_hundreds_of_connections_stall() {
    let port = PlainPort::start(AdminLimits::default()).await;
    let mut flood = stalled(port.address, 20, 10).await;
    for _ in 0..3 {
        assert!(port.probe(client(1)).await, "the kubelet has an address of its own");
        assert!(port.probe(client(2)).await, "the kubelet has the address of an attacker");
        flood.extend(stalled(port.address, 20, 2).await);
    }
    port.until_at_most(AdminLimits::default().connections.strangers.total).await;
    assert!(port.closed("stranger") > 0);
    assert_eq!(port.closed("slow_reader"), 0);
}

#[tokio::test]
async fn one_address_cannot_close_the_connections_of_another() {
    let port = PlainPort::start(AdminLimits::default()).await;
    let mut quiet = connect(port.address, client(1)).await;
    quiet.write_all(b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n").await.unwrap();
    let _flood = stalled(port.address, 3, 200).await;
    assert!(is_ok(&dialogue(quiet, b"\r\n").await));
}

#[tokio::test]
async fn a_reader_that_takes_nothing_is_dropped() {
    let silence_max = PATIENCE;
    let stream = StreamLimits { write_max: SHORT, silence_max };
    let port = PlainPort::start(AdminLimits { stream, ..AdminLimits::default() }).await;
    let reader = slow_reader(port.address, client(1)).await;
    port.connections.close();
    patiently(port.connections.wait()).await;
    let received = dialogue(reader, b"").await;
    assert!(received.len() < LARGE_PAGE, "the rest was not sent");
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_dropped() {
    let stream = StreamLimits { write_max: PATIENCE, silence_max: SHORT };
    let limits = AdminLimits { stream, head_max: PATIENCE, ..AdminLimits::default() };
    let port = PlainPort::start(limits).await;
    for stall in STALLS {
        let answer = dialogue(connect(port.address, client(1)).await, stall).await;
        assert!(!is_ok(&answer));
    }
    port.until_at_most(0).await;
}

#[tokio::test]
async fn slow_readers_together_hold_no_more_than_the_bound() {
    let connections =
        BudgetLimits { unwritten_max: 2 * LARGE_PAGE, ..AdminLimits::default().connections };
    let port = PlainPort::start(AdminLimits { connections, ..AdminLimits::default() }).await;
    let mut slow = Vec::new();
    for number in 2..10 {
        slow.push(slow_reader(port.address, client(number)).await);
    }
    port.until_at_most(2).await;
    assert_eq!((port.closed("slow_reader"), port.closed("stranger")), (6, 0));
    let page = dialogue(connect(port.address, client(1)).await, LARGE).await;
    assert!(is_ok(&page) && page.len() > LARGE_PAGE, "a reader at a normal speed gets all of it");
}

// === open files ===

#[tokio::test]
async fn a_daemon_raises_its_limit_of_open_files() {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("plimsoll.yaml");
    fs::write(&file, text(&[("a", "127.0.0.1:1".parse().unwrap())], "")).unwrap();
    let mut child = Command::new("sh")
        .args(["-c", "ulimit -Sn 100 && exec \"$0\" run --log-format json --config \"$1\""])
        .arg(env!("CARGO_BIN_EXE_plimsoll"))
        .arg(&file)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    let address = lines.find_map(|line| {
        let line: serde_json::Value = serde_json::from_str(&line.ok()?).ok()?;
        Some(line["admin"].as_str()?.to_owned())
    });

    let address = address.unwrap().parse().unwrap();
    let page = dialogue(connect(address, client(1)).await, LARGE).await;
    child.kill().unwrap();
    child.wait().unwrap();
    let page = String::from_utf8(page).unwrap();
    let limit = page.lines().find_map(|line| line.strip_prefix("process_max_fds ")).unwrap();
    assert!(limit.parse::<f64>().unwrap() > 100.0, "{limit}");
}

// === the external metrics API ===

async fn connect_tls(fixture: &Fixture, from: IpAddr, leaf: Option<&Leaf>) -> TlsStream<TcpStream> {
    let stream = connect(fixture.address, from).await;
    shake_hands(fixture, stream, leaf).await
}

async fn shake_hands(
    fixture: &Fixture,
    stream: TcpStream,
    leaf: Option<&Leaf>,
) -> TlsStream<TcpStream> {
    let config = Arc::new(client_tls(&fixture.serving.pem, leaf, Http::Two));
    let name = ServerName::try_from("127.0.0.1").unwrap();
    patiently(TlsConnector::from(config).connect(name, stream)).await.unwrap()
}

async fn front_proxy(fixture: &Fixture, from: IpAddr) -> SendRequest<Empty<Bytes>> {
    let stream = connect_tls(fixture, from, Some(&fixture.proxy_leaf)).await;
    http2_of(fixture, stream).await
}

async fn http2_of(fixture: &Fixture, stream: TlsStream<TcpStream>) -> SendRequest<Empty<Bytes>> {
    let executor = TokioExecutor::new();
    let (sender, connection) = http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
    fixture.tracker.spawn(connection);
    sender
}

/// Handshakes end only where they must make room, however long a busy machine takes for others.
fn unhurried() -> Options {
    let limits = ServerLimits { handshake_max: PATIENCE, ..ServerLimits::default() };
    Options { limits, ..Options::default() }
}

/// The status of discovery on this connection; `None` if the connection is closed.
async fn discover(sender: &mut SendRequest<Empty<Bytes>>) -> Option<u16> {
    sender.ready().await.ok()?;
    let request = Request::get(format!("https://127.0.0.1{BASE}")).header("X-Remote-User", HPA);
    let response = sender.send_request(request.body(Empty::new()).unwrap()).await.ok()?;
    let status = response.status().as_u16();
    response.into_body().collect().await.ok()?;
    Some(status)
}

#[tokio::test]
async fn strangers_cannot_keep_the_api_server_out() {
    let fixture = Fixture::start(Options::default()).await;
    let mut traffic = front_proxy(&fixture, client(1)).await;
    assert_eq!(patiently(discover(&mut traffic)).await, Some(200));

    // More addresses than there are slots, so that every single one is taken by another.
    let mut flood = stalled(fixture.address, 100, 6).await;
    for number in 2..102 {
        flood.push(connect_tls(&fixture, client(number), None).await.into_inner().0);
        if number % 20 == 0 {
            let mut probe = front_proxy(&fixture, client(1)).await;
            assert_eq!(patiently(discover(&mut probe)).await, Some(200), "a new connection");
            assert_eq!(patiently(discover(&mut traffic)).await, Some(200), "the old connection");
        }
    }
}

/// The requests at a time that the server allows on a new connection.
async fn streams_max(mut stream: TlsStream<TcpStream>) -> u32 {
    stream.write_all(&preface(&[])).await.unwrap();
    let mut head = [0; 9];
    patiently(stream.read_exact(&mut head)).await.unwrap();
    assert_eq!(head[3], SETTINGS, "{head:?}");
    let mut settings = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
    patiently(stream.read_exact(&mut settings)).await.unwrap();

    let at_a_time = settings.chunks_exact(6).find(|it| it[..2] == [0, 3]).expect("a limit");
    u32::from_be_bytes(at_a_time[2..].try_into().unwrap())
}

#[tokio::test]
async fn requests_of_the_api_server_wait_on_its_connection_and_those_of_strangers_do_not() {
    let fixture = Fixture::start(Options::default()).await;
    let api_server = connect_tls(&fixture, client(1), Some(&fixture.proxy_leaf)).await;
    let stranger = connect_tls(&fixture, client(2), None).await;

    // For 5,000 HPAs, ten seconds have 3,333 requests.
    assert!(streams_max(api_server).await > 3_333);
    assert!(streams_max(stranger).await <= 250);
}

#[tokio::test]
async fn a_handshake_of_the_api_server_outlasts_new_connections_of_strangers() {
    let fixture = Fixture::start(unhurried()).await;
    let slots = ServerLimits::default().connections;
    let api_server = connect(fixture.address, client(1)).await;
    let mut flood = Vec::new();
    for number in 2..=u8::try_from(2 * slots.strangers.total).unwrap() {
        flood.push(connect(fixture.address, client(number)).await);
    }
    // The last stranger was accepted, so the API server's connection was before.
    let late = connect_tls(&fixture, client(200), None).await;

    let stream = shake_hands(&fixture, api_server, Some(&fixture.proxy_leaf)).await;
    let mut sender = http2_of(&fixture, stream).await;
    for number in 2..=u8::try_from(2 * slots.strangers.total).unwrap() {
        flood.push(connect_tls(&fixture, client(number), None).await.into_inner().0);
    }
    assert_eq!(patiently(discover(&mut sender)).await, Some(200), "before its first request");
    drop(late);

    assert!(closed(&fixture.registry, "stranger") >= slots.strangers.total);
    assert_eq!(closed(&fixture.registry, "handshake"), 0);
}

#[tokio::test]
async fn a_handshake_that_stalls_gives_way_to_new_ones() {
    let fixture = Fixture::start(unhurried()).await;
    let slots = ServerLimits::default().connections.handshakes;
    let mut stalled = Vec::new();
    for number in 0..slots.total {
        stalled.push(connect(fixture.address, client(2 + u8::try_from(number / 2).unwrap())).await);
    }
    let mut sender = front_proxy(&fixture, client(1)).await;
    assert_eq!(patiently(discover(&mut sender)).await, Some(200));
    assert_eq!(closed(&fixture.registry, "handshake"), 1);
    assert_eq!(closed(&fixture.registry, "stranger"), 0);
}

#[tokio::test]
async fn a_certificate_of_another_authority_leaves_a_stranger_a_stranger() {
    let connections = BudgetLimits {
        strangers: SlotLimits { total: 1, per_address: 1 },
        ..ServerLimits::default().connections
    };
    let limits = ServerLimits { connections, ..ServerLimits::default() };
    let fixture = Fixture::start(Options { limits, ..Options::default() }).await;
    let forged = fixture.serving.issue("front-proxy-client", Use::Client, Validity::Now);
    let stream = connect_tls(&fixture, client(1), Some(&forged)).await;
    let executor = TokioExecutor::new();
    let (mut sender, connection) = http2::handshake(executor, TokioIo::new(stream)).await.unwrap();
    let ended = fixture.tracker.spawn(connection);
    assert_eq!(patiently(discover(&mut sender)).await, Some(401));

    let _newcomer = connect_tls(&fixture, client(2), None).await;
    let _closed = patiently(ended).await.unwrap();
    assert_eq!(discover(&mut sender).await, None);
}

#[tokio::test]
async fn a_flood_of_reset_streams_ends_its_own_connection_alone() {
    let fixture = Fixture::start(Options::default()).await;
    let mut traffic = front_proxy(&fixture, client(1)).await;
    assert_eq!(patiently(discover(&mut traffic)).await, Some(200));

    let attack = reset_streams(20_000);
    let answer = dialogue(connect_tls(&fixture, client(2), None).await, &attack).await;
    let goodbye = [&[7, 0][..], &[0; 4]].concat();
    assert!(answer.windows(6).any(|bytes| bytes == goodbye), "GOAWAY is sent");
    assert_eq!(patiently(discover(&mut traffic)).await, Some(200));
}
