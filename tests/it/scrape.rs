//! The scraper against servers that answer, misbehave, and go away.

pub(crate) mod server;
mod tls;

use std::io::Write;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use bytes::Bytes;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt, stream};
use http_body_util::{BodyExt, StreamBody};
use hyper::body::Frame;
use hyper::{HeaderMap, Response, StatusCode, header};
use plimsoll::clock::Clock;
use plimsoll::collect::exposition::LayoutMemory;
use plimsoll::collect::scrape::{
    ClientSettings, ScrapeError, ScrapeLimits, ScrapeMetrics, ScrapeSettings, Scraper, Target,
    TargetBoard, phase,
};
use plimsoll::fleet::{ModelName, Namespace, ReplicaKey, ReplicaName, VariantKey, VariantName};
use plimsoll::observe::engine::Engine;
use plimsoll::observe::{HttpReading, RankReading, Reading, Scrape, ScrapeFailure};
use prometheus::Registry;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::sync::{Notify, Semaphore, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::scrape::server::{Body, Server, full, page, read_request};

/// A test that waits for so long has failed; nothing is expected to come near it.
const PATIENCE: Duration = Duration::from_mins(1);

/// A reader for tests: the first line of a page is `model NAME`.
fn read_model(
    _memory: &mut LayoutMemory,
    body: &[u8],
    _content_type: Option<&str>,
) -> Result<Reading, ScrapeError> {
    let name = str::from_utf8(body).ok().and_then(|text| text.strip_prefix("model "));
    let name = name.and_then(|rest| rest.split('\n').next()).and_then(ModelName::new);
    let name = name.ok_or_else(|| ScrapeError::new(ScrapeFailure::Malformed, "no model"))?;
    Ok(reading(name))
}

fn reading(model: ModelName) -> Reading {
    Reading {
        engine: Engine::Vllm,
        samples: 1,
        started: None,
        models: vec![model],
        http: HttpReading::default(),
        rejected: None,
        lora: None,
        ranks: vec![RankReading::default()],
    }
}

fn model(name: &str) -> ModelName {
    ModelName::new(name).unwrap()
}

fn settings() -> ScrapeSettings {
    ScrapeSettings {
        interval: Duration::from_millis(50),
        timeout: Duration::from_millis(50),
        body_limit: 1 << 20,
        client: ClientSettings::default(),
    }
}

/// Leaves time for a handshake on a busy machine.
fn slow_settings() -> ScrapeSettings {
    let interval = Duration::from_millis(400);
    ScrapeSettings { interval, timeout: interval, ..settings() }
}

fn replica(name: &str) -> ReplicaKey {
    let variant = VariantKey {
        namespace: Namespace::new("llm").unwrap(),
        variant: VariantName::new("chat-h100").unwrap(),
    };
    ReplicaKey { variant, replica: ReplicaName::new(name).unwrap(), incarnation: None }
}

fn target(name: &str, url: &str, settings: ScrapeSettings) -> Target {
    Target {
        replica: replica(name),
        url: url.to_owned(),
        models: Vec::new(),
        settings: Arc::new(settings),
    }
}

/// A target with the patience of a test, whose first turn comes at once nevertheless.
fn patient_target(url: &str, client: ClientSettings) -> Target {
    patient_targets(url, client).next().unwrap()
}

fn patient_targets(url: &str, client: ClientSettings) -> impl Iterator<Item = Target> {
    let settings = ScrapeSettings { interval: PATIENCE, timeout: PATIENCE, client, ..settings() };
    let at_once = |name: &String| phase(&replica(name), PATIENCE) < PATIENCE / 5000;
    let names = (0..1_000_000).map(|number| number.to_string()).filter(at_once);
    names.map(move |name| target(&name, url, settings.clone()))
}

/// A scraper at work.
struct Bench {
    targets: watch::Sender<Arc<Vec<Target>>>,
    scrapes: mpsc::Receiver<Scrape>,
    board: TargetBoard,
    registry: Registry,
    tracker: TaskTracker,
    stop: CancellationToken,
    _guard: DropGuard,
}

impl Bench {
    fn new(targets: Vec<Target>) -> Self {
        Self::with_limits(targets, ScrapeLimits::default(), 1024)
    }

    fn with_limits(targets: Vec<Target>, limits: ScrapeLimits, capacity: usize) -> Self {
        Self::start(targets, capacity, |metrics, scrapes| {
            let credentials_refresh = Duration::from_millis(20);
            let limits = ScrapeLimits { credentials_refresh, ..limits };
            Scraper::with_reader(Clock::start(), limits, metrics, scrapes, read_model)
        })
    }

    fn start(
        targets: Vec<Target>,
        capacity: usize,
        make: impl FnOnce(ScrapeMetrics, mpsc::Sender<Scrape>) -> Scraper,
    ) -> Self {
        let registry = Registry::new();
        let metrics = ScrapeMetrics::register(&registry).unwrap();
        let (outlet, scrapes) = mpsc::channel(capacity);
        let subject = make(metrics, outlet);
        let board = subject.board();
        let (targets, receiver) = watch::channel(Arc::new(targets));
        let (tracker, stop) = (TaskTracker::new(), CancellationToken::new());
        tracker.spawn(subject.run(receiver, tracker.clone(), stop.clone()));
        let guard = stop.clone().drop_guard();
        Self { targets, scrapes, board, registry, tracker, stop, _guard: guard }
    }

    /// The next scrape of any target.
    async fn next(&mut self) -> Scrape {
        patiently(self.scrapes.recv()).await.unwrap()
    }

    /// Waits for a scrape like this.
    async fn until(&mut self, want: impl Fn(&Scrape) -> bool) -> Scrape {
        patiently(async {
            loop {
                let scrape = self.scrapes.recv().await.unwrap();
                if want(&scrape) {
                    return scrape;
                }
            }
        })
        .await
    }

    async fn until_answered(&mut self) -> Reading {
        self.until(|scrape| scrape.outcome.is_ok()).await.outcome.unwrap()
    }

    async fn until_failed(&mut self, failure: ScrapeFailure) {
        self.until(|scrape| scrape.outcome == Err(failure)).await;
    }

    /// The value of a counter or gauge, all its series together.
    fn metric(&self, name: &str) -> u64 {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name).unwrap();
        let values = family
            .get_metric()
            .iter()
            .map(|metric| metric.get_counter().get_value() + metric.get_gauge().get_value());
        values.map(|value| format!("{value:.0}").parse::<u64>().unwrap()).sum()
    }

    /// Waits until a metric is at least this.
    async fn until_metric(&self, name: &str, least: u64) {
        patiently(async {
            while self.metric(name) < least {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        })
        .await;
    }
}

async fn patiently<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("nothing happened for a minute")
}

/// What comes of one scrape, and the detail of its failure.
async fn outcome(target: Target) -> (Result<Reading, ScrapeFailure>, String) {
    let mut bench = Bench::new(vec![target]);
    let outcome = bench.next().await.outcome;
    let failure = bench.board.snapshot().into_values().next().unwrap().failure;
    assert_eq!(failure.as_ref().map(|failure| failure.class), outcome.as_ref().err().copied());
    (outcome, failure.map_or_else(String::new, |failure| failure.detail))
}

async fn failure(target: Target) -> (ScrapeFailure, String) {
    let (outcome, detail) = outcome(target).await;
    (outcome.unwrap_err(), detail)
}

/// The failure of one scrape of a server that answers every request with these bytes.
async fn failure_of_raw_answer(answer: &'static [u8]) -> (ScrapeFailure, String) {
    let server = Server::raw(async move |mut stream| {
        read_request(&mut stream).await;
        stream.write_all(answer).await.unwrap();
    })
    .await;
    failure(patient_target(&server.url(), ClientSettings::default())).await
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn gzip_response(bytes: &[u8]) -> Response<Body> {
    Response::builder().header(header::CONTENT_ENCODING, "gzip").body(full(bytes)).unwrap()
}

// === what is asked ===

#[tokio::test]
async fn the_scrapes_of_a_target_use_one_connection() {
    let server = Server::http(async |_| page("model a\n")).await;
    let mut bench = Bench::new(vec![target("a", &server.url(), settings())]);
    let mut scrapes = Vec::new();
    while scrapes.iter().filter(|scrape: &&Scrape| scrape.outcome.is_ok()).count() < 5 {
        scrapes.push(bench.next().await);
    }
    let mut readings = scrapes.iter().filter_map(|scrape| scrape.outcome.as_ref().ok());
    assert!(readings.all(|reading| reading.models == [model("a")]));
    // A machine that is busy enough makes a scrape time out, which closes its connection, or stands
    // still for longer than an idle connection is kept.
    let failures = scrapes.iter().filter(|scrape| scrape.outcome.is_err()).count();
    let stood_still = |two: &&[Scrape]| two[1].at.duration_since(two[0].at).as_secs() >= 2;
    let pauses = scrapes.windows(2).filter(stood_still).count();
    let most = 1 + failures + pauses;
    assert!(server.connections() <= most, "{} connections, not {most}", server.connections());
    assert!(bench.metric("plimsoll_scrape_body_bytes_total") >= 5 * 8);
    assert_eq!(bench.metric("plimsoll_scrape_targets"), 1);
}

#[tokio::test]
async fn a_connection_that_would_be_idle_for_too_long_is_closed_after_the_scrape() {
    let server = Server::http(async |request| {
        let asked = request.headers().get(header::CONNECTION);
        page(&format!("model {}\n", asked.map_or("kept", |it| it.to_str().unwrap())))
    })
    .await;
    let interval = Duration::from_secs(2);
    let often = ScrapeSettings { interval, timeout: interval, ..settings() };
    let often = target("a", &server.url(), often);
    let seldom = patient_target(&server.url(), ClientSettings::default());

    for (target, wanted) in [(often, "kept"), (seldom, "close")] {
        let reading = Bench::new(vec![target]).until_answered().await;
        assert_eq!(reading.models, [model(wanted)]);
    }
}

#[tokio::test]
async fn a_request_says_who_asks_and_for_what_and_no_secrets() {
    let asked: Arc<Mutex<Option<HeaderMap>>> = Arc::default();
    let seen = Arc::clone(&asked);
    let server = Server::http(move |request| {
        *seen.lock().unwrap() = Some(request.headers().clone());
        async { page("model a\n") }
    })
    .await;
    let (outcome, _) = outcome(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(outcome, Ok(reading(model("a"))));
    let headers = asked.lock().unwrap().take().unwrap();
    let agent = format!("plimsoll/{}", env!("CARGO_PKG_VERSION"));
    assert_eq!(headers[header::USER_AGENT], agent);
    assert!(headers[header::ACCEPT].to_str().unwrap().starts_with("text/plain;version=0.0.4"));
    assert_eq!(headers[header::ACCEPT_ENCODING], "gzip");
    assert!(!headers.contains_key(header::AUTHORIZATION));
}

#[tokio::test]
async fn a_compressed_page_is_read() {
    let server = Server::http(async |_| gzip_response(&gzip(b"model a\n"))).await;
    let (outcome, _) = outcome(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(outcome, Ok(reading(model("a"))));
}

#[tokio::test]
async fn what_a_server_compressed_in_parts_is_one_page() {
    let body = [gzip(b"model "), gzip(b"a\n")].concat();
    let server = Server::http(move |_| {
        let mut response = gzip_response(&body);
        response.headers_mut().insert(header::CONTENT_ENCODING, "X-Gzip".parse().unwrap());
        async { response }
    })
    .await;
    let (outcome, detail) = outcome(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(outcome, Ok(reading(model("a"))), "{detail}");
}

#[tokio::test]
async fn a_path_is_asked_for_with_what_must_be_escaped_escaped() {
    let server = Server::http(async |request| page(&format!("model {}\n", request.uri()))).await;
    let url = format!("http://{}/a/../<b>?c=`d`", server.address);
    let (outcome, detail) = outcome(patient_target(&url, ClientSettings::default())).await;
    assert_eq!(outcome, Ok(reading(model("/%3Cb%3E?c=`d`"))), "{detail}");
}

#[test]
fn the_proxy_of_the_environment_is_not_used() {
    // The environment of a process with threads cannot be changed, so another test of this binary
    // runs again in a process of its own.
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "scrape::a_compressed_page_is_read"])
        .env_remove("no_proxy")
        .env_remove("NO_PROXY")
        .env("http_proxy", "http://127.0.0.1:1")
        .env("HTTP_PROXY", "http://127.0.0.1:1")
        .env("ALL_PROXY", "http://127.0.0.1:1")
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[tokio::test]
async fn a_bearer_token_is_sent_and_follows_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("token");
    std::fs::write(&path, "first\n").unwrap();
    let server = Server::http(async |request| {
        let token = request.headers().get(header::AUTHORIZATION);
        match token.and_then(|token| token.to_str().unwrap().strip_prefix("Bearer ")) {
            Some(token) => page(&format!("model {token}\n")),
            None => page("model nobody\n"),
        }
    })
    .await;
    let client =
        ClientSettings { bearer_token_file: Some(path.clone()), ..ClientSettings::default() };
    let mut bench =
        Bench::new(vec![target("a", &server.url(), ScrapeSettings { client, ..settings() })]);
    assert_eq!(bench.until_answered().await.models, [model("first")]);
    std::fs::write(&path, "second\n").unwrap();
    let second = Ok(reading(model("second")));
    bench.until(|scrape| scrape.outcome == second).await;
}

#[tokio::test]
async fn a_token_that_cannot_be_read_is_a_failure_and_nothing_is_asked() {
    let server = Server::http(async |_| page("model a\n")).await;
    let client = ClientSettings {
        bearer_token_file: Some("/nonexistent/token".into()),
        ..ClientSettings::default()
    };
    let (class, detail) = failure(patient_target(&server.url(), client)).await;
    assert_eq!(class, ScrapeFailure::Connection);
    assert!(detail.starts_with("cannot read /nonexistent/token: No such file"), "{detail}");
    assert_eq!(server.connections(), 0);
}

// === what goes wrong ===

#[tokio::test]
async fn a_closed_port_is_refused() {
    let url = {
        let listener = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 77), 0)).await.unwrap();
        format!("http://{}/metrics", listener.local_addr().unwrap())
    };
    let (class, detail) = failure(patient_target(&url, ClientSettings::default())).await;
    assert_eq!(class, ScrapeFailure::Refused);
    assert!(detail.contains("Connection refused"), "{detail}");
    assert!(!detail.contains("http://"), "the URL is in a field of its own: {detail}");
}

#[tokio::test]
async fn a_server_that_never_answers_times_out() {
    let server = Server::raw(async |mut stream| {
        read_request(&mut stream).await;
        std::future::pending::<()>().await;
    })
    .await;
    let (class, detail) = failure(target("a", &server.url(), settings())).await;
    assert_eq!(class, ScrapeFailure::Timeout);
    assert_eq!(detail, "no complete response within 50ms");
}

#[tokio::test]
async fn a_server_that_stalls_after_its_headers_times_out() {
    let server = Server::raw(async |mut stream| {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 8\r\n\r\nmod").await.unwrap();
        std::future::pending::<()>().await;
    })
    .await;
    let mut bench = Bench::new(vec![target("a", &server.url(), settings())]);
    bench.until_failed(ScrapeFailure::Timeout).await;
    bench.until_failed(ScrapeFailure::Timeout).await;
}

#[tokio::test]
async fn a_server_that_hangs_up_without_an_answer_is_a_broken_connection() {
    let (class, _) = failure_of_raw_answer(b"").await;
    assert_eq!(class, ScrapeFailure::Connection);
    let (class, _) = failure_of_raw_answer(b"SSH-2.0-OpenSSH_9.6\r\n").await;
    assert_eq!(class, ScrapeFailure::Connection);
}

#[tokio::test]
async fn a_name_that_does_not_resolve_is_a_broken_connection() {
    let target = patient_target("http://replica.invalid:8000/metrics", ClientSettings::default());
    let (class, detail) = failure(target).await;
    assert_eq!(class, ScrapeFailure::Connection);
    assert!(detail.contains("dns error"), "{detail}");
}

#[tokio::test]
async fn any_status_but_200_is_a_failure() {
    for status in [
        StatusCode::NO_CONTENT,
        StatusCode::UNAUTHORIZED,
        StatusCode::NOT_FOUND,
        StatusCode::INTERNAL_SERVER_ERROR,
        StatusCode::SERVICE_UNAVAILABLE,
    ] {
        let server = Server::http(move |_| {
            let response = Response::builder().status(status).body(full(b"model a\n")).unwrap();
            async { response }
        })
        .await;
        let (class, detail) =
            failure(patient_target(&server.url(), ClientSettings::default())).await;
        assert_eq!(class, ScrapeFailure::Status, "{status}");
        assert_eq!(detail, format!("the server returned {status}"));
    }
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_is_not_followed() {
    let elsewhere = Server::http(async |_| page("model a\n")).await;
    let to = elsewhere.url();
    let location = to.clone();
    let server = Server::http(move |_| {
        let redirect = Response::builder().status(StatusCode::FOUND);
        let response = redirect.header(header::LOCATION, &location).body(full(b"")).unwrap();
        async { response }
    })
    .await;
    let (class, detail) = failure(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(class, ScrapeFailure::Status);
    assert_eq!(
        detail,
        format!("the server returned 302 Found to {to}; redirects are not followed")
    );
    assert_eq!(elsewhere.connections(), 0);
}

#[tokio::test]
async fn an_endless_page_is_given_up_at_the_limit() {
    const CHUNK: usize = 64 << 10;
    const CHUNKS: usize = (100 << 20) / CHUNK;
    let sent = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&sent);
    let chunk = Bytes::from(vec![b'#'; CHUNK]);
    let server = Server::http(move |_| {
        let (counter, chunk) = (Arc::clone(&counter), chunk.clone());
        let chunks = stream::iter(0..CHUNKS).map(move |_| {
            counter.fetch_add(CHUNK, Ordering::SeqCst);
            Ok(Frame::data(chunk.clone()))
        });
        async { Response::new(StreamBody::new(chunks).boxed_unsync()) }
    })
    .await;
    let (class, detail) = failure(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(class, ScrapeFailure::TooLarge);
    assert_eq!(detail, "the response has more than 1048576 bytes");
    // What lies in the buffers of two sockets comes on top of the limit of 1 MiB.
    let sent = sent.load(Ordering::SeqCst);
    assert!(sent < 32 << 20, "{sent} bytes of 100 MiB were taken");
}

#[tokio::test]
async fn a_page_that_announces_too_much_is_not_read() {
    let (class, _) =
        failure_of_raw_answer(b"HTTP/1.1 200 OK\r\ncontent-length: 1048577\r\n\r\n").await;
    assert_eq!(class, ScrapeFailure::TooLarge);
}

#[tokio::test]
async fn the_limit_holds_after_decompression_and_includes_its_last_byte() {
    for (size, fits) in [(1 << 20, true), ((1 << 20) + 1, false), (100 << 20, false)] {
        let mut body = b"model a\n".to_vec();
        body.resize(size, b'#');
        let (plain, packed) = (body.clone(), gzip(&body));
        let server = Server::http(move |request| {
            let response = match request.uri().path() {
                "/metrics" => gzip_response(&packed),
                _ => Response::new(full(&plain)),
            };
            async { response }
        })
        .await;
        for url in [server.url(), format!("http://{}/plain", server.address)] {
            let (outcome, _) = outcome(patient_target(&url, ClientSettings::default())).await;
            let want = if fits { Ok(reading(model("a"))) } else { Err(ScrapeFailure::TooLarge) };
            assert_eq!(outcome, want, "{size} bytes from {url}");
        }
    }
}

#[tokio::test]
async fn no_more_of_a_head_is_read_than_a_connection_may_keep() {
    for (length, fits) in [(12 << 10, true), (20 << 10, false)] {
        let server = Server::http(move |_| {
            let mut response = page("model a\n");
            response.headers_mut().insert("x-padding", "x".repeat(length).parse().unwrap());
            async { response }
        })
        .await;
        let (outcome, detail) =
            outcome(patient_target(&server.url(), ClientSettings::default())).await;
        let want = if fits { Ok(reading(model("a"))) } else { Err(ScrapeFailure::Connection) };
        assert_eq!(outcome, want, "{detail}");
        assert_eq!(detail.contains("message head is too large"), !fits, "{detail}");
    }
}

#[tokio::test]
async fn an_encoding_that_was_not_asked_for_is_malformed_and_named() {
    let server = Server::http(async |_| {
        let response = Response::builder().header(header::CONTENT_ENCODING, "br");
        response.body(full(b"model a\n")).unwrap()
    })
    .await;
    let (class, detail) = failure(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(class, ScrapeFailure::Malformed);
    assert_eq!(detail, "the response has the encoding br instead of gzip");
}

#[tokio::test]
async fn a_body_that_is_cut_off_is_truncated() {
    let answers: [&[u8]; 3] = [
        b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nmodel a\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\nmodel a\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\nmodel",
    ];
    for answer in answers {
        let (class, detail) = failure_of_raw_answer(answer).await;
        assert_eq!(class, ScrapeFailure::Truncated, "{}: {detail}", answer.escape_ascii());
        assert!(detail.starts_with("after "), "{detail}");
    }
}

#[tokio::test]
async fn a_connection_that_is_reset_within_the_body_is_truncated() {
    let server = Server::raw(async |mut stream| {
        read_request(&mut stream).await;
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nmodel").await.unwrap();
        // The headers must have been read before the reset, which throws away what has not.
        tokio::time::sleep(Duration::from_millis(100)).await;
        stream.set_zero_linger().unwrap();
    })
    .await;
    let (class, detail) = failure(patient_target(&server.url(), ClientSettings::default())).await;
    assert_eq!(class, ScrapeFailure::Truncated, "{detail}");
}

#[tokio::test]
async fn compressed_bodies_are_truncated_or_malformed_as_plain_ones_are() {
    let mut packed = gzip(&b"model a\n# and more\n".repeat(1000));
    let half = packed[..packed.len() / 2].to_vec();
    packed[12..40].fill(0xff);
    for (body, want) in [(half, ScrapeFailure::Truncated), (packed, ScrapeFailure::Malformed)] {
        let server = Server::http(move |_| {
            let response = gzip_response(&body);
            async { response }
        })
        .await;
        let (class, detail) =
            failure(patient_target(&server.url(), ClientSettings::default())).await;
        assert_eq!(class, want, "{detail}");
    }
}

#[tokio::test]
async fn a_page_of_html_is_malformed() {
    let server = Server::http(async |_| {
        let html = "<!DOCTYPE html>\n<html><body>Sign in</body></html>\n";
        let response = Response::builder().header(header::CONTENT_TYPE, "text/html");
        response.body(full(html.as_bytes())).unwrap()
    })
    .await;
    let target = patient_target(&server.url(), ClientSettings::default());
    let mut bench = Bench::start(vec![target], 1, |metrics, scrapes| {
        Scraper::new(Clock::start(), ScrapeLimits::default(), metrics, scrapes)
    });
    assert_eq!(bench.next().await.outcome, Err(ScrapeFailure::Malformed));
    assert_eq!(bench.metric("plimsoll_scrape_failures_total"), 1);
}

#[tokio::test]
async fn another_models_page_is_a_failure_that_names_both() {
    let server = Server::http(async |_| page("model a\n")).await;
    let target = patient_target(&server.url(), ClientSettings::default());
    let (class, detail) = failure(Target { models: vec![model("b")], ..target.clone() }).await;
    assert_eq!((class, &*detail), (ScrapeFailure::WrongModel, "saw a, want b"));
    let (outcome, _) = outcome(Target { models: vec![model("b"), model("a")], ..target }).await;
    assert_eq!(outcome, Ok(reading(model("a"))));
}

#[tokio::test]
async fn a_target_that_comes_back_is_read_again() {
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let switch = Arc::clone(&broken);
    let server = Server::http(move |_| {
        let status = if switch.load(Ordering::SeqCst) { 503 } else { 200 };
        let response = Response::builder().status(status).body(full(b"model a\n")).unwrap();
        async { response }
    })
    .await;
    let mut bench = Bench::new(vec![target("a", &server.url(), settings())]);
    bench.until_failed(ScrapeFailure::Status).await;
    broken.store(false, Ordering::SeqCst);
    bench.until_answered().await;
}

// === which, when, and how many ===

#[tokio::test]
async fn a_target_that_is_removed_is_given_up_in_the_middle_of_its_scrape() {
    let hung_up = Arc::new(Notify::new());
    let asked = Arc::new(Notify::new());
    let (tell_hung_up, tell_asked) = (Arc::clone(&hung_up), Arc::clone(&asked));
    let server = Server::raw(move |mut stream| {
        let (hung_up, asked) = (Arc::clone(&tell_hung_up), Arc::clone(&tell_asked));
        async move {
            read_request(&mut stream).await;
            asked.notify_one();
            assert_eq!(stream.read(&mut [0]).await.unwrap_or(0), 0);
            hung_up.notify_one();
        }
    })
    .await;
    let wedged = patient_target(&server.url(), ClientSettings::default());
    let other = Server::http(async |_| page("model a\n")).await;
    let other = target("other", &other.url(), settings());
    let mut bench = Bench::new(vec![wedged, other.clone()]);
    patiently(asked.notified()).await;
    assert_eq!(bench.board.snapshot().len(), 2);
    bench.targets.send(Arc::new(vec![other.clone()])).unwrap();
    // The scrape would go on for a minute if it were not given up.
    tokio::time::timeout(PATIENCE / 2, hung_up.notified()).await.unwrap();
    assert_eq!(bench.board.snapshot().into_keys().collect::<Vec<_>>(), [other.replica]);
    assert_eq!(bench.metric("plimsoll_scrape_targets"), 1);
    bench.until_answered().await;
}

#[tokio::test]
async fn a_target_that_changes_is_scraped_as_it_is_now() {
    let server = Server::http(async |request| {
        page(&format!("model {}\n", request.uri().path().trim_start_matches('/')))
    })
    .await;
    let at = |path: &str| {
        Arc::new(vec![target("a", &format!("http://{}/{path}", server.address), settings())])
    };
    let mut bench = Bench::new(at("old").to_vec());
    assert_eq!(bench.until_answered().await.models, [model("old")]);
    bench.targets.send(at("new")).unwrap();
    let new = Ok(reading(model("new")));
    bench.until(|scrape| scrape.outcome == new).await;
}

#[tokio::test]
async fn a_target_that_stays_is_not_started_again() {
    let server = Server::http(async |_| page("model a\n")).await;
    // Its second turn is a minute away, so a new start would have nothing to show.
    let url = server.url();
    let mut targets = patient_targets(&url, ClientSettings::default());
    let (first, second) = (targets.next().unwrap(), targets.next().unwrap());
    let mut bench = Bench::new(vec![first.clone()]);
    let scrape = bench.next().await;
    bench.targets.send(Arc::new(vec![second, first.clone()])).unwrap();
    assert_ne!(bench.next().await.replica, first.replica);
    assert_eq!(bench.board.snapshot()[&first.replica].succeeded, Some(scrape.at));
}

#[tokio::test]
async fn of_two_targets_with_one_name_the_first_is_scraped() {
    let server = Server::http(async |_| page("model a\n")).await;
    let first = target("a", &server.url(), settings());
    let second = target("a", "http://127.0.0.1:1/metrics", settings());
    let mut bench = Bench::new(vec![first, second]);
    bench.until_answered().await;
    assert_eq!(bench.metric("plimsoll_scrape_targets"), 1);
}

#[tokio::test]
async fn no_more_scrapes_are_on_their_way_than_the_bound_allows() {
    let gate = Arc::new(Semaphore::new(0));
    let (now, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (opened, inside, peak) = (Arc::clone(&gate), Arc::clone(&now), Arc::clone(&most));
    let server = Server::http(move |_| {
        let (opened, inside) = (Arc::clone(&opened), Arc::clone(&inside));
        peak.fetch_max(inside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        async move {
            let _ = opened.acquire().await;
            inside.fetch_sub(1, Ordering::SeqCst);
            page("model a\n")
        }
    })
    .await;
    let targets = patient_targets(&server.url(), ClientSettings::default()).take(10).collect();
    let limits = ScrapeLimits { in_flight: 3, ..ScrapeLimits::default() };
    let mut bench = Bench::with_limits(targets, limits, 1024);
    patiently(async {
        while now.load(Ordering::SeqCst) < 3 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    // Time for the others to break the rule.
    tokio::time::sleep(Duration::from_millis(100)).await;
    gate.add_permits(10);
    for _ in 0..10 {
        assert!(bench.next().await.outcome.is_ok());
    }
    assert_eq!(most.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn huge_pages_that_stall_fail_each_other_and_no_other() {
    let hostile = Server::http(async |_| {
        let chunks = (0..16).map(|_| Ok(Frame::data(Bytes::from(vec![b'#'; 64 << 10]))));
        Response::new(StreamBody::new(stream::iter(chunks).chain(stream::pending())).boxed_unsync())
    })
    .await;
    let sound = Server::http(async |_| page("model a\n")).await;
    let mut targets: Vec<Target> =
        patient_targets(&hostile.url(), ClientSettings::default()).take(6).collect();
    targets.push(target("sound", &sound.url(), slow_settings()));
    let limits = ScrapeLimits { in_flight_bytes: 5 << 19, ..ScrapeLimits::default() };
    let mut bench = Bench::with_limits(targets, limits, 1024);

    let mut abandoned = 0;
    while abandoned < 4 {
        let scrape = bench.next().await;
        if scrape.replica != replica("sound") {
            assert_eq!(scrape.outcome, Err(ScrapeFailure::TooLarge));
            let status = bench.board.snapshot().remove(&scrape.replica).unwrap();
            let detail = status.failure.unwrap().detail;
            assert!(detail.contains("more than 2621440 bytes together"), "{detail}");
            abandoned += 1;
        }
    }
    bench.until_answered().await;
}

#[tokio::test]
async fn turns_that_find_no_room_are_counted_as_missed_and_nothing_is_asked() {
    let asked = Arc::new(Notify::new());
    let tell_asked = Arc::clone(&asked);
    let wedged = Server::raw(move |mut stream| {
        let asked = Arc::clone(&tell_asked);
        async move {
            read_request(&mut stream).await;
            asked.notify_one();
            std::future::pending::<()>().await;
        }
    })
    .await;
    let sound = Server::http(async |_| page("model a\n")).await;
    let wedged = patient_target(&wedged.url(), ClientSettings::default());
    let limits = ScrapeLimits { in_flight: 1, ..ScrapeLimits::default() };
    let mut bench = Bench::with_limits(vec![wedged.clone()], limits, 1024);
    patiently(asked.notified()).await;
    let other = target("other", &sound.url(), settings());
    bench.targets.send(Arc::new(vec![wedged, other.clone()])).unwrap();
    bench.until_metric("plimsoll_scrape_missed_total", 2).await;
    assert_eq!(sound.connections(), 0);
    bench.targets.send(Arc::new(vec![other])).unwrap();
    bench.until_answered().await;
}

#[tokio::test]
async fn a_full_channel_holds_the_targets_back_and_loses_nothing() {
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = Arc::clone(&asked);
    let server = Server::http(move |_| {
        counter.fetch_add(1, Ordering::SeqCst);
        async { page("model a\n") }
    })
    .await;
    let target = target("a", &server.url(), slow_settings());
    let mut bench = Bench::with_limits(vec![target], ScrapeLimits::default(), 1);
    // One scrape in the channel, one that waits to be sent, and turns that go by; they are
    // counted when the target has its next turn.
    patiently(async {
        while asked.load(Ordering::SeqCst) < 2 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let (first, second, third) = (bench.next().await, bench.next().await, bench.next().await);
    assert!(first.at < second.at && second.at < third.at);
    bench.until_metric("plimsoll_scrape_missed_total", 1).await;
}

#[tokio::test]
async fn every_task_ends_when_the_scraper_is_stopped() {
    let server = Server::raw(async |_| std::future::pending().await).await;
    let targets = (0..20).map(|n| target(&n.to_string(), &server.url(), settings()));
    let bench = Bench::new(targets.collect());
    bench.until_metric("plimsoll_scrape_targets", 20).await;
    assert_eq!(bench.tracker.len(), 21);
    bench.stop.cancel();
    bench.tracker.close();
    patiently(bench.tracker.wait()).await;
    assert_eq!(bench.metric("plimsoll_scrape_targets"), 0);
    assert!(bench.board.snapshot().is_empty());
}

#[tokio::test]
async fn a_scrape_is_stamped_with_the_time_at_which_it_was_asked_for() {
    let clock = Clock::start();
    let asked = Arc::new(Mutex::new(None));
    let seen = Arc::clone(&asked);
    let server = Server::http(move |_| {
        *seen.lock().unwrap() = Some(clock.now());
        async { page("model a\n") }
    })
    .await;
    let began = clock.now();
    let mut bench = Bench::new(vec![patient_target(&server.url(), ClientSettings::default())]);
    let scrape = bench.next().await;
    let asked = asked.lock().unwrap().unwrap();
    assert!(began <= scrape.at && scrape.at <= asked, "{began} {} {asked}", scrape.at);
    let status = bench.board.snapshot().remove(&scrape.replica).unwrap();
    assert_eq!((status.attempted, status.succeeded), (Some(scrape.at), Some(scrape.at)));
}

/// Lets the reader of [`read_when_allowed`] go on.
static ALLOWED: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

/// A reader that waits until something else in the process has run, for half a minute at most.
fn read_when_allowed(
    _memory: &mut LayoutMemory,
    _body: &[u8],
    _content_type: Option<&str>,
) -> Result<Reading, ScrapeError> {
    let (allowed, changed) = &ALLOWED;
    let waiting = allowed.lock().unwrap();
    let limit = PATIENCE / 2;
    let (allowed, _) = changed.wait_timeout_while(waiting, limit, |allowed| !*allowed).unwrap();
    let refused = ScrapeError::new(ScrapeFailure::Malformed, "nothing else ran meanwhile");
    allowed.then(|| reading(model("m"))).ok_or(refused)
}

// One thread runs everything that is asynchronous.
#[tokio::test(flavor = "current_thread")]
async fn while_a_large_page_is_read_everything_else_goes_on() {
    let large = "model m\n".repeat(1 << 16);
    let server = Server::http(move |_| std::future::ready(page(&large))).await;
    let target = patient_target(&server.url(), ClientSettings::default());
    let settings = ScrapeSettings { body_limit: 8 << 20, ..(*target.settings).clone() };
    let target = Target { settings: Arc::new(settings), ..target };
    let mut bench = Bench::start(vec![target], 1024, |metrics, scrapes| {
        let limits = ScrapeLimits::default();
        Scraper::with_reader(Clock::start(), limits, metrics, scrapes, read_when_allowed)
    });

    bench.until_metric("plimsoll_scrape_body_bytes_total", 1).await;
    *ALLOWED.0.lock().unwrap() = true;
    ALLOWED.1.notify_all();
    assert_eq!(bench.next().await.outcome.unwrap().models, [model("m")]);
}
