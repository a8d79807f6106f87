//! Prometheus as the source: the same readings as from pages, and nothing shrinks on what is wrong.

pub(crate) mod server;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use jiff::Timestamp;
use plimsoll::clock::Clock;
use plimsoll::collect::exposition;
use plimsoll::collect::prometheus::{
    Instances, LabelNames, Method, PrometheusMetrics, PrometheusSettings, PrometheusSource,
    QueryFailure, QueryOutcome, SeriesSelection, VariantQuery,
};
use plimsoll::collect::scrape::{ClientSettings, TargetBoard};
use plimsoll::config::{self, Files};
use plimsoll::daemon::{Daemon, DaemonOptions};
use plimsoll::fleet::{
    Incarnation, ModelName, Namespace, ReplicaKey, ReplicaName, VariantKey, VariantName,
};
use plimsoll::observe::{Reading, Scrape, ScrapeFailure};
use plimsoll::simulate::page::{self, EngineIdentity};
use plimsoll::simulate::replica::stats::Stats;
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

use crate::daemon::stats;
use crate::external_metrics_harness::{Fixture, Options};
use crate::pages;
use crate::prometheus::server::{GLANCE, Play, Server, Target};

/// How long anything here may take until the test gives up. It is no measure of anything.
const PATIENCE: Duration = Duration::from_mins(2);

// === readings ===

fn variant(name: &str) -> VariantKey {
    let (namespace, variant) = (Namespace::new("llm"), VariantName::new(name));
    VariantKey { namespace: namespace.unwrap(), variant: variant.unwrap() }
}

fn settings(url: String) -> PrometheusSettings {
    PrometheusSettings {
        url,
        method: Method::Post,
        interval: Duration::from_millis(50),
        timeout: Duration::from_secs(10),
        lookback: Duration::from_mins(5),
        stale_after: Duration::from_mins(1),
        series_limit: 10_000,
        body_limit: 64 << 20,
        client: ClientSettings::default(),
        basic_auth: None,
        headers: BTreeMap::new(),
        header_files: BTreeMap::new(),
        parameters: BTreeMap::new(),
        matched: BTreeMap::new(),
        labels: LabelNames::default(),
    }
}

/// A source that runs alone.
struct Alone {
    registry: ::prometheus::Registry,
    scrapes: mpsc::Receiver<Scrape>,
    instances: watch::Receiver<Arc<Instances>>,
    _stop: DropGuard,
    wanted: watch::Sender<Arc<Vec<VariantQuery>>>,
}

impl Alone {
    fn start(settings: PrometheusSettings, wanted: Vec<VariantQuery>) -> Self {
        let (inlet, scrapes) = mpsc::channel(10_000);
        let registry = ::prometheus::Registry::new();
        let metrics = PrometheusMetrics::register(&registry).unwrap();
        let source =
            PrometheusSource::new(settings, Clock::start(), metrics, TargetBoard::default(), inlet);
        let (wanted, asked) = watch::channel(Arc::new(wanted));
        let (found, instances) = watch::channel(Arc::default());
        let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
        tasks.spawn(source.run(asked, found, tasks.clone(), stop.clone()));
        Self { registry, scrapes, instances, _stop: stop.drop_guard(), wanted }
    }

    /// The value of a gauge without labels, once it has one.
    fn gauge(&self, name: &str) -> Option<f64> {
        let families = self.registry.gather();
        let family = families.iter().find(|family| family.name() == name)?;
        Some(family.get_metric().first()?.get_gauge().get_value())
    }

    async fn next(&mut self) -> Scrape {
        let scrape = tokio::time::timeout(PATIENCE, self.scrapes.recv()).await;
        scrape.expect("a scrape arrives").expect("the source runs")
    }
}

pub(crate) fn labels(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
}

fn any_of(name: &str) -> VariantQuery {
    let job = [("job".to_owned(), "vllm".to_owned())];
    VariantQuery {
        variant: variant(name),
        models: Vec::new(),
        which: SeriesSelection::Match(job.into()),
    }
}

/// The reading of a page that a server has scraped, with these labels added.
async fn reading(page: &str, added: &[(&str, &str)]) -> Result<Reading, ScrapeFailure> {
    let server = Server::start().await;
    server.show(vec![Target { labels: labels(added), page: Some(page.to_owned()) }]);
    let mut source = Alone::start(settings(server.url()), vec![any_of("a")]);
    source.next().await.outcome
}

/// The pages of this repository whose reading a server cannot give.
const OTHERS: [&str; 3] = [
    // Prometheus converts it.
    "vllm-0.33.0-openmetrics.txt.gz",
    // Families without a sample are known by their HELP lines only.
    "vllm-0.32.0-idle.txt.gz",
    "vllm-dp2-before-first-request.txt",
];

#[tokio::test]
async fn a_reading_of_samples_is_the_reading_of_the_page_that_they_came_from() {
    let all = pages::names();
    let names = all.iter().filter(|name| !OTHERS.contains(&name.as_str()));
    let read =
        names.map(|name| async move {
            let page = String::from_utf8(pages::page(name)).unwrap();
            let want = exposition::read(page.as_bytes(), None).unwrap();
            // Labels of the target that the page has as well, so that its own are renamed.
            for added in [
                &[("job", "vllm"), ("instance", "10.0.0.1:8000")][..],
                &[("job", "vllm"), ("instance", "a"), ("model_name", "mine"), ("engine", "x")][..],
                &[
                    ("job", "vllm"),
                    ("instance", "a"),
                    ("method", "m"),
                    ("le", "1"),
                    ("status", "s"),
                ][..],
            ] {
                assert_eq!(reading(&page, added).await.as_ref(), Ok(&want), "{name} {added:?}");
            }
        });
    futures_util::future::join_all(read).await;
}

#[tokio::test]
async fn two_servers_or_jobs_with_the_same_replica_are_never_added_up() {
    let page = String::from_utf8(pages::page("vllm-0.33.0-dp2-multi.txt.gz")).unwrap();
    let want = exposition::read(page.as_bytes(), None).unwrap();
    let server = Server::start().await;
    let twin = |more: (&str, &str), page: &str| Target {
        labels: labels(&[("job", "vllm"), ("instance", "a"), more]),
        page: Some(page.to_owned()),
    };
    let other =
        page.replace("num_requests_waiting{engine=\"0\"", "num_requests_waiting{engine=\"9\"");
    server.show(vec![
        twin(("prometheus_replica", "b"), &other),
        twin(("prometheus_replica", "a"), &page),
    ]);
    let mut source = Alone::start(settings(server.url()), vec![any_of("a")]);
    for _ in 0..10 {
        let Scrape { replica, outcome, .. } = source.next().await;
        assert_eq!((replica.replica.as_str(), outcome.as_ref()), ("a", Ok(&want)));
    }
    // The one that counts ends, and the other takes its place.
    server.show(vec![twin(("prometheus_replica", "b"), &other)]);
    let other = exposition::read(other.as_bytes(), None).unwrap();
    while source.next().await.outcome.as_ref() != Ok(&other) {}
}

#[tokio::test]
async fn a_sidecar_in_the_same_pod_is_not_the_replica() {
    let page = String::from_utf8(pages::page("vllm-v0.txt")).unwrap();
    let want = exposition::read(page.as_bytes(), None).unwrap();
    let server = Server::start().await;
    let target = |container: &str, page: Option<&str>| Target {
        labels: labels(&[("job", "vllm"), ("instance", "a"), ("container", container)]),
        page: page.map(str::to_owned),
    };
    server.show(vec![
        target(
            "an-agent",
            Some("process_start_time_seconds 5\nhttp_requests_total{status=\"200\"} 1\n"),
        ),
        target("engine", Some(&page)),
    ]);
    let mut source = Alone::start(settings(server.url()), vec![any_of("a")]);
    assert_eq!(source.next().await.outcome, Ok(want));
    server.show(vec![
        target("an-agent", Some("process_start_time_seconds 5\n")),
        target("engine", None),
    ]);
    while source.next().await.outcome != Err(ScrapeFailure::Down) {}
}

#[tokio::test]
async fn samples_are_taken_once_and_in_order_and_the_next_query_asks_for_what_is_newer() {
    let page = String::from_utf8(pages::page("vllm-v0.txt")).unwrap();
    let server = Server::start().await;
    let target = labels(&[("job", "vllm"), ("instance", "a")]);
    server.show(vec![Target { labels: target, page: Some(page) }]);
    let mut source = Alone::start(settings(server.url()), vec![any_of("a")]);
    let mut last = Timestamp::UNIX_EPOCH;
    for _ in 0..30 {
        let at = source.next().await.at;
        assert!(at > last, "{at} comes after {last}");
        last = at;
    }
    let range = |asked: &server::Asked| -> u32 {
        let (_, range) = asked.form["query"].rsplit_once('[').unwrap();
        range.trim_end_matches("s]").parse().unwrap()
    };
    let ranges: Vec<u32> = server.asked().iter().map(range).collect();
    assert_eq!(ranges[0], 360, "the lookback and the minute ahead");
    assert!((91..360).contains(ranges.last().unwrap()), "{ranges:?}");
    let found = source.instances.borrow().get(&variant("a")).cloned().unwrap();
    assert_eq!(found.replicas[0].replica.as_str(), "a");
}

#[tokio::test]
async fn pods_are_found_by_namespace_and_name_and_a_new_life_takes_no_samples_of_the_old() {
    let page = String::from_utf8(pages::page("vllm-v0.txt")).unwrap();
    let server = Server::start().await;
    let target = |namespace: &str, pod: &str| Target {
        labels: labels(&[("namespace", namespace), ("pod", pod), ("instance", "10.0.0.1:8000")]),
        page: Some(page.clone()),
    };
    server.show(vec![target("llm", "a-0"), target("llm", "a-1"), target("other", "a-0")]);
    let pod = |uid: &str| {
        let replica = ReplicaKey {
            variant: variant("a"),
            replica: ReplicaName::new("a-0").unwrap(),
            incarnation: Incarnation::new(uid),
        };
        VariantQuery { which: SeriesSelection::Pods(vec![replica]), ..any_of("a") }
    };
    let mut source = Alone::start(settings(server.url()), vec![pod("one")]);
    for _ in 0..5 {
        let key = source.next().await.replica;
        assert_eq!((key.replica.as_str(), key.incarnation), ("a-0", Incarnation::new("one")));
    }
    let query = server.asked().pop().unwrap().form["query"].clone();
    assert!(query.contains(",namespace=~\"llm\",pod=~\"a-0\"}"), "{query}");
    let born = Clock::start().now();
    source.wanted.send_replace(Arc::new(vec![pod("two")]));
    let first = loop {
        let scrape = source.next().await;
        if scrape.replica.incarnation == Incarnation::new("two") {
            break scrape;
        }
    };
    assert!(first.at > born, "{} is of the life before {born}", first.at);
}

/// The claimed series of the last round of a source without a single scrape.
async fn claimed_without_a_scrape(mut source: Alone) -> f64 {
    let nothing = tokio::time::timeout(Duration::from_millis(500), source.scrapes.recv()).await;
    assert!(nothing.is_err(), "{nothing:?}");
    source.gauge("plimsoll_prometheus_claimed_series").unwrap()
}

#[tokio::test]
async fn two_variants_that_claim_one_series_both_get_nothing() {
    let page = String::from_utf8(pages::page("vllm-v0.txt")).unwrap();
    let server = Server::start().await;
    let target = |instance: &str, zone: &str| Target {
        labels: labels(&[("job", "vllm"), ("instance", instance), ("zone", zone)]),
        page: Some(page.clone()),
    };
    server.show(vec![target("both", "1"), target("one", "2")]);
    let zone = VariantQuery {
        which: SeriesSelection::Match([("zone".to_owned(), "1".to_owned())].into()),
        ..any_of("b")
    };
    let mut job = any_of("a");
    job.which = SeriesSelection::Match([("job".to_owned(), "vllm".to_owned())].into());
    let both = |one: &str, two: &str| VariantQuery {
        which: SeriesSelection::Match([("job".into(), one.into())].into()),
        ..any_of(two)
    };
    let twice = vec![both("vllm", "a"), both("vllm", "b")];
    let of_labels = Alone::start(settings(server.url()), twice.clone());
    let of_one_kind = claimed_without_a_scrape(of_labels).await;
    assert!(of_one_kind > 0.0);

    // Labels of another kind have queries of their own.
    let listed = ReplicaKey {
        variant: variant("c"),
        replica: ReplicaName::new("both").unwrap(),
        incarnation: None,
    };
    let instances = VariantQuery { which: SeriesSelection::Instances(vec![listed]), ..any_of("c") };
    let thrice = [twice, vec![instances.clone()]].concat();
    let of_both = claimed_without_a_scrape(Alone::start(settings(server.url()), thrice)).await;
    let times = of_both / of_one_kind;
    assert!((times - 2.0).abs() < f64::EPSILON, "each kind of query has its own: {times}");
    for other in [zone, instances] {
        let mut source = Alone::start(settings(server.url()), vec![job.clone(), other]);
        for _ in 0..10 {
            let replica = source.next().await.replica;
            assert_eq!((replica.variant, replica.replica.as_str()), (variant("a"), "one"));
        }
    }
}

#[tokio::test]
async fn engines_of_two_clusters_with_the_same_labels_are_told_apart_by_their_start() {
    let page = String::from_utf8(pages::page("vllm-0.33.0-dp2-multi.txt.gz")).unwrap();
    let cluster = |name: &str, start: &str| Target {
        labels: labels(&[("job", "vllm"), ("instance", "a"), ("cluster", name)]),
        page: Some(format!("process_start_time_seconds {start}\n{page}")),
    };
    let server = Server::start().await;
    server.show(vec![cluster("here", "1.7e9"), cluster("there", "1.6e9")]);
    let mut source = Alone::start(settings(server.url()), vec![any_of("a")]);
    for _ in 0..10 {
        assert_eq!(source.next().await.outcome, Err(ScrapeFailure::Ambiguous));
    }

    // Only one's own is left, as with `prometheus.match`.
    server.show(vec![cluster("here", "1.7e9")]);
    while source.next().await.outcome.is_err() {}

    // Twins show the same start.
    server.show(vec![cluster("here", "1.7e9"), cluster("there", "1.7e9")]);
    let mut source = Alone::start(settings(server.url()), vec![any_of("a")]);
    for _ in 0..10 {
        assert!(source.next().await.outcome.is_ok());
    }
}

#[tokio::test]
async fn a_replica_of_another_model_gives_a_failure_and_no_reading() {
    let page = String::from_utf8(pages::page("vllm-v0.txt")).unwrap();
    let server = Server::start().await;
    let target = labels(&[("job", "vllm"), ("instance", "a")]);
    server.show(vec![Target { labels: target, page: Some(page) }]);
    let wanted = VariantQuery { models: vec![ModelName::new("another").unwrap()], ..any_of("a") };
    let mut source = Alone::start(settings(server.url()), vec![wanted]);
    assert_eq!(source.next().await.outcome, Err(ScrapeFailure::WrongModel));
}

#[test]
fn the_reader_of_answers_is_there_for_fuzzing() {
    let failure = plimsoll::collect::prometheus::decode(b"nothing", 1, &mut |_, _| {});
    let Err(QueryFailure { outcome, detail }) = failure else { panic!("it is no JSON") };
    assert_eq!((outcome, &*detail), (QueryOutcome::NotJson, "expected JSON, found: nothing"));
}

// === the daemon ===

/// The page of a replica with so many blocks of a thousand in use.
pub(crate) fn engine(kv_blocks_used: u32, waiting: u32) -> String {
    let started = Timestamp::from_second(1_700_000_000).unwrap();
    let identity = EngineIdentity { model: "m".into(), started, ready: started };
    let stats = Stats { waiting, ..stats(kv_blocks_used) };
    // Without most of its histograms, which say nothing here and keep a slow machine busy.
    let kept = |line: &&str| !line.contains("_bucket") || line.contains("time_to_first_token");
    page::render(&identity, &stats)
        .lines()
        .filter(kept)
        .fold(String::new(), |page, line| page + line + "\n")
}

/// A replica that is full, and one that is not.
const FULL: (u32, u32) = (950, 20);
const IDLE: (u32, u32) = (10, 0);
/// So that two are needed, and are enough.
const BUSY: (u32, u32) = (500, 0);

fn replicas(load: (u32, u32)) -> Vec<Target> {
    let target = |name: &str| Target {
        labels: labels(&[("job", "vllm"), ("instance", name)]),
        page: Some(engine(load.0, load.1)),
    };
    vec![target("one"), target("two")]
}

struct Running {
    daemon: Daemon,
    server: Server,
    folder: TempDir,
}

impl Running {
    async fn start(more: &str) -> Self {
        let server = Server::start().await;
        let url = server.url();
        Self::asking(server, &url, more).await
    }

    /// A daemon that asks at this address.
    async fn asking(server: Server, url: &str, more: &str) -> Self {
        server.show(replicas(FULL));
        let folder = TempDir::new().unwrap();
        let file = folder.path().join("plimsoll.yaml");
        let mut text = format!(
            "server: {{listen: \"127.0.0.1:0\"}}\ntick_interval: 100ms\n\
             observe: {{window: 1s}}\n\
             enforce: {{scale_down: {{stabilization_window: 0s}}}}\n\
             analysis: saturation\n\
             saturation: {{transition_patience: 1s}}\n\
             prometheus: {{url: \"{url}\", interval: 200ms, timeout: 3s, stale_after: 3s{more}}}\n",
        );
        text.push_str("variants:\n");
        writeln!(
            text,
            "- {{name: a, model: m, targets: {{prometheus: {{match: {{job: vllm}}}}}}}}"
        )
        .unwrap();
        fs::write(&file, &text).unwrap();
        let loaded = config::load(&file, Files::MustExist);
        let loaded = loaded.unwrap_or_else(|error| panic!("{text}\n{error}"));
        let options = DaemonOptions { config_file: Some(file), ..DaemonOptions::default() };
        let daemon = Box::pin(Daemon::start(loaded.config, options)).await.unwrap();
        Self { daemon, server, folder }
    }

    async fn page(&self) -> String {
        let url = format!("http://{}/metrics", self.daemon.admin());
        reqwest::get(url).await.unwrap().text().await.unwrap()
    }

    async fn sample(&self, start: &str) -> Option<f64> {
        let page = self.page().await;
        let line = page.lines().find(|line| line.starts_with(start))?;
        Some(line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    async fn queries(&self, outcome: &str) -> f64 {
        let name = format!("plimsoll_prometheus_queries_total{{outcome=\"{outcome}\"}}");
        self.sample(&name).await.unwrap()
    }

    async fn desired(&self) -> Option<f64> {
        self.sample("plimsoll_desired_replicas{").await
    }

    /// Waits until a sample is so.
    async fn until(&self, start: &str, what: &str, is: impl Fn(f64) -> bool) {
        let change = async {
            while !self.sample(start).await.is_some_and(&is) {
                tokio::time::sleep(GLANCE).await;
            }
        };
        let came = tokio::time::timeout(PATIENCE, change).await.is_ok();
        assert!(came, "{start} never was {what}:\n{}", self.page().await);
    }

    async fn until_desired(&self, want: f64) {
        let is = |desired: f64| (desired - want).abs() < 0.5;
        self.until("plimsoll_desired_replicas{", &want.to_string(), is).await;
    }
}

/// Has the server play, and holds that the metric tells it apart, that no number changes though
/// there is nothing to do any more, and that all is well once the server is.
async fn changes_no_count(play: Play, outcome: &str) {
    let running = Running::start("").await;
    running.until_desired(3.0).await;
    running.server.play(play.clone());
    let counted = format!("plimsoll_prometheus_queries_total{{outcome=\"{outcome}\"}}");
    running.until(&counted, "counted", |count| count > 0.0).await;
    running.server.show(replicas(IDLE));
    running.until("plimsoll_decision_held{", "1", |held| held > 0.0).await;
    for _ in 0..20 {
        assert_eq!(running.desired().await, Some(3.0), "{play:?}");
        tokio::time::sleep(GLANCE).await;
    }
    assert_eq!(running.sample("plimsoll_prometheus_up").await, Some(0.0), "{play:?}");
    running.server.play(Play::Well);
    running.until_desired(1.0).await;
    assert_eq!(running.sample("plimsoll_prometheus_up").await, Some(1.0), "{play:?}");
    running.daemon.shutdown().await;
}

/// Replicas whose data is too old.
const STALE: &str = "plimsoll_replicas{freshness=\"stale\"";

const HTML: &str = "<html><head><title>Sign in</title></head>";

#[tokio::test(flavor = "multi_thread")]
async fn whatever_the_server_answers_no_count_changes_and_the_metric_says_what_it_was() {
    let error = "{\"status\":\"error\",\"errorType\":\"execution\",\"error\":\"too much\"}";
    let vector = "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[\
                  {\"metric\":{},\"value\":[1,\"0\"]}]}}";
    let none = "{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\",\"result\":[]}}";
    let plays = [
        (Play::Status(401, "no org id"), "unauthorized"),
        (Play::Status(403, HTML), "forbidden"),
        (Play::Status(404, "404 page not found"), "not_found"),
        (Play::Status(302, ""), "redirected"),
        (Play::Status(429, "{}"), "rate_limited"),
        (Play::Status(400, error), "rejected"),
        (Play::Status(422, error), "query_error"),
        (Play::Status(503, error), "server_error"),
        (Play::Body(error), "query_error"),
        (Play::Body(HTML), "not_json"),
        (Play::Body(""), "not_json"),
        (Play::Body("{\"hello\":\"world\"}"), "malformed"),
        (Play::Body(vector), "wrong_type"),
        (Play::Body(none), "empty"),
        (Play::Cut, "truncated"),
        (Play::Break, "truncated"),
        (Play::Hang, "timeout"),
    ];
    let all = plays.map(|(play, outcome)| Box::pin(changes_no_count(play, outcome)));
    // A few at once, because each has a daemon and a server of its own.
    futures_util::stream::iter(all).buffer_unordered(3).collect::<()>().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_does_not_listen_changes_no_count() {
    let running = Running::start("").await;
    running.until_desired(3.0).await;
    let Running { daemon, server, folder } = running;
    drop(server);
    let running = Running { daemon, server: Server::start().await, folder };
    let refused = "plimsoll_prometheus_queries_total{outcome=\"refused\"}";
    running.until(refused, "counted", |count| count > 0.0).await;
    running.until("plimsoll_decision_held{", "1", |held| held > 0.0).await;
    assert_eq!(running.desired().await, Some(3.0));
    running.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_whose_certificate_is_not_trusted_is_told_from_one_that_cannot_be_reached() {
    let untrusted = Fixture::start(Options::default()).await;
    let url = format!("https://{}", untrusted.address);
    let running = Running::asking(Server::start().await, &url, "").await;
    let counted = "plimsoll_prometheus_queries_total{outcome=\"tls\"}";
    running.until(counted, "counted", |count| count > 0.0).await;
    running.daemon.shutdown().await;
}

/// Two replicas that are both needed; then `play` begins and shows `left` of them, and what is left
/// goes idle once the rest is too old. Nothing may be taken away before all of it is seen again.
async fn shrinks_only_on_what_is_whole(play: Play, left: fn(Vec<Target>) -> Vec<Target>) {
    let running = Running::start("").await;
    running.server.show(replicas(BUSY));
    running.until_desired(2.0).await;
    running.server.play(play);
    running.server.show(left(replicas(BUSY)));
    running.until(STALE, "1", |stale| stale > 0.0).await;
    running.server.show(left(replicas(IDLE)));
    // Longer than the window, in which the load of before is still seen.
    for _ in 0..75 {
        assert_eq!(running.desired().await, Some(2.0));
        tokio::time::sleep(GLANCE).await;
    }
    running.server.show(replicas(IDLE));
    running.server.play(Play::Well);
    running.until_desired(1.0).await;
    running.daemon.shutdown().await;
}

fn one(targets: Vec<Target>) -> Vec<Target> {
    targets.into_iter().take(1).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_partial_answer_is_not_complete_for_any_server() {
    for more in ["\"warnings\":[\"store-1 is away\"],", "\"isPartial\":true,"] {
        Box::pin(shrinks_only_on_what_is_whole(Play::More(more), one)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_is_down_or_gone_from_the_answer_is_not_idle() {
    let down = |mut targets: Vec<Target>| {
        targets[1].page = None;
        targets
    };
    for left in [one, down] {
        Box::pin(shrinks_only_on_what_is_whole(Play::Well, left)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn values_that_are_no_numbers_are_absent_and_never_zero() {
    let running = Running::start("").await;
    running.until_desired(3.0).await;
    running.server.play(Play::Value("NaN"));
    running.until("plimsoll_decision_held{", "1", |held| held > 0.0).await;
    assert_eq!(running.desired().await, Some(3.0));
    running.server.show(replicas(IDLE));
    running.server.play(Play::Well);
    running.until_desired(1.0).await;
    running.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn samples_from_the_future_are_refused_and_counted() {
    let running = Running::start("").await;
    running.until_desired(3.0).await;
    running.server.play(Play::Ahead(30_000));
    running.server.show(replicas(IDLE));
    let ahead = "plimsoll_prometheus_replicas_ahead";
    running.until(ahead, "2", |count| count > 1.5).await;
    running.until("plimsoll_decision_held{", "1", |held| held > 0.0).await;
    assert_eq!(running.desired().await, Some(3.0));
    running.server.play(Play::Well);
    running.until(ahead, "0", |count| count < 0.5).await;
    running.until_desired(1.0).await;
    running.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn native_histograms_are_reported_and_the_gauges_decide() {
    let running = Running::start("").await;
    running.server.play(Play::Native);
    let counted = "plimsoll_prometheus_queries_total{outcome=\"native_histograms\"}";
    running.until(counted, "counted", |count| count > 0.0).await;
    running.until_desired(3.0).await;
    running.server.show(replicas(IDLE));
    running.until_desired(1.0).await;
    running.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_that_are_too_large_change_no_count() {
    let small = [(", body_limit: 4KiB", "too_large"), (", series_limit: 100", "too_many_series")];
    for (limit, outcome) in small {
        let running = Running::start(limit).await;
        let target = |at: u32| Target {
            labels: labels(&[("job", "vllm"), ("instance", &at.to_string())]),
            page: Some(engine(FULL.0, FULL.1)),
        };
        running.server.show((0..10).map(target).collect());
        let counted = format!("plimsoll_prometheus_queries_total{{outcome=\"{outcome}\"}}");
        running.until(&counted, "counted", |count| count > 0.0).await;
        assert_eq!(running.sample("plimsoll_prometheus_up").await, Some(0.0));
        running.daemon.shutdown().await;
    }
}

/// The times of the newest sample and of the last complete responses.
async fn times(running: &Running) -> [Option<f64>; 2] {
    let newest = "plimsoll_prometheus_newest_sample_timestamp_seconds ";
    let success = "plimsoll_prometheus_last_success_timestamp_seconds ";
    [running.sample(newest).await, running.sample(success).await]
}

#[tokio::test(flavor = "multi_thread")]
async fn times_are_absent_until_there_is_one() {
    let running = Running::start(", body_limit: 4KiB").await;
    let counted = "plimsoll_prometheus_queries_total{outcome=\"too_large\"}";
    running.until(counted, "counted", |count| count > 0.0).await;
    assert_eq!(times(&running).await, [None; 2]);
    running.daemon.shutdown().await;

    let running = Running::start("").await;
    running.until_desired(3.0).await;
    assert!(times(&running).await.iter().all(Option::is_some));
    running.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_takes_no_post_is_asked_by_get() {
    let running = Running::start("").await;
    running.server.play(Play::OnlyGet);
    running.until_desired(3.0).await;
    assert!(running.queries("rejected").await <= 1.0, "it is found out once");
    assert_eq!(running.server.asked().last().unwrap().method, hyper::Method::GET);
    running.daemon.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn headers_passwords_and_parameters_are_sent_and_shown_nowhere() {
    let folder = TempDir::new().unwrap();
    let (password, token) = (folder.path().join("password"), folder.path().join("token"));
    fs::write(&password, "open sesame\n").unwrap();
    fs::write(&token, "s3cret\n").unwrap();
    let more = format!(
        ", headers: {{X-Scope-OrgID: tenant-7}}, header_files: {{X-Token: {}}}, \
         basic_auth: {{username: Aladdin, password_file: {}}}, parameters: {{dedup: \"true\"}}",
        token.display(),
        password.display()
    );
    let running = Running::start(&more).await;
    running.until_desired(3.0).await;
    let asked = running.server.asked().pop().unwrap();
    assert_eq!(asked.path, "/api/v1/query");
    assert_eq!(asked.headers["x-scope-orgid"], "tenant-7");
    assert_eq!(asked.headers["x-token"], "s3cret");
    assert_eq!(asked.headers["authorization"], "Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ==");
    assert_eq!((&*asked.form["dedup"], &*asked.form["limit"]), ("true", "300001"));
    // It is read again for each query.
    fs::write(&token, "other\n").unwrap();
    let renewed = async {
        while running.server.asked().last().unwrap().headers["x-token"] != "other" {
            tokio::time::sleep(GLANCE).await;
        }
    };
    tokio::time::timeout(PATIENCE, renewed).await.unwrap();
    fs::remove_file(&token).unwrap();
    let counted = "plimsoll_prometheus_queries_total{outcome=\"credentials\"}";
    running.until(counted, "counted", |count| count > 0.0).await;
    let text = format!(
        "prometheus: {{url: \"http://p\"{more}}}\n\
         variants: [{{name: a, model: m, targets: {{static: [\"a:1\"]}}}}]\n"
    );
    let surroundings = config::Surroundings {
        origin: "test".into(),
        base: "/".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    };
    let config = config::parse(&text, &surroundings).unwrap().config;
    let shown = [config.print(), format!("{config:?}")];
    for text in &shown {
        assert!(!text.contains("tenant-7"), "{text}");
    }
    running.daemon.shutdown().await;
}
