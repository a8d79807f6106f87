//! The daemon in one process, end to end: pages in, numbers out, and a hand on it meanwhile.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use plimsoll::clock::Clock;
use plimsoll::config::{self, Files};
use plimsoll::daemon::{Daemon, DaemonOptions};
use plimsoll::simulate::page::{self, EngineIdentity};
use plimsoll::simulate::replica::stats::{Counters, Stats};
use plimsoll::telemetry::{LogFilter, LogFormat, init_logs};
use reqwest::{Client, StatusCode};
use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpListener;
use tokio_util::task::TaskTracker;

/// How long anything here may take until the test gives up. It is no measure of anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// An engine's metrics port.
pub(crate) struct Engine {
    pub(crate) address: SocketAddr,
    /// What the page says; without it there is no page.
    stats: Arc<Mutex<Option<Stats>>>,
    _tasks: TaskTracker,
}

/// A daemon with the folder that holds its configuration and its state.
pub(crate) struct Running {
    pub(crate) daemon: Daemon,
    client: Client,
    pub(crate) folder: TempDir,
}

pub(crate) fn stats(kv_blocks_used: u32) -> Stats {
    let (kv_blocks, block_size) = (1000, 16);
    let counters = Counters::default();
    Stats {
        running: 3,
        waiting: 0,
        deferred: 0,
        kv_blocks_used,
        kv_blocks,
        block_size,
        api_servers: 1,
        drafted: None,
        counters,
    }
}

impl Engine {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let shown = Arc::new(Mutex::new(Some(stats(400))));
        let (tasks, stats) = (TaskTracker::new(), Arc::clone(&shown));
        let connections = tasks.clone();
        tasks.spawn(async move {
            let started = Clock::start().now();
            while let Ok((stream, _)) = listener.accept().await {
                let stats = Arc::clone(&stats);
                let service = service_fn(move |_: Request<Incoming>| {
                    let identity = EngineIdentity { model: "m".into(), started, ready: started };
                    let page = stats.lock().unwrap().as_ref().map(|it| page::render(&identity, it));
                    let mut answer =
                        Response::new(Full::new(Bytes::from(page.clone().unwrap_or_default())));
                    if page.is_none() {
                        *answer.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
                    }
                    async move { Ok::<_, Infallible>(answer) }
                });
                let http = hyper::server::conn::http1::Builder::new();
                let connection = http.serve_connection(TokioIo::new(stream), service);
                connections.spawn(async move {
                    let _ended = connection.await;
                });
            }
        });
        Self { address, stats: shown, _tasks: tasks }
    }

    pub(crate) fn show(&self, stats: impl Into<Option<Stats>>) {
        *self.stats.lock().unwrap() = stats.into();
    }
}

/// A configuration with these variants, each a name and the address of its only target.
pub(crate) fn text(variants: &[(&str, SocketAddr)], more: &str) -> String {
    let analysis = if more.contains("analysis:") { "" } else { "analysis: saturation\n" };
    let mut text = format!(
        "server: {{listen: \"127.0.0.1:0\"}}\ntick_interval: 100ms\n\
         observe: {{window: 2s, stale_after: 5s}}\n\
         scrape: {{interval: 100ms, timeout: 100ms}}\n{analysis}{more}variants:\n"
    );
    for (name, address) in variants {
        let target = format!("{{static: [\"{address}\"]}}");
        writeln!(text, "- {{name: {name}, model: m, targets: {target}}}").unwrap();
    }
    text
}

impl Running {
    pub(crate) async fn start(text: &str) -> Self {
        Self::start_in(TempDir::new().unwrap(), text).await
    }

    pub(crate) async fn start_in(folder: TempDir, text: &str) -> Self {
        Self::start_with(folder, text, None).await
    }

    async fn start_with(folder: TempDir, text: &str, log: Option<LogFilter>) -> Self {
        let file = folder.path().join("plimsoll.yaml");
        fs::write(&file, text).unwrap();
        let loaded = config::load(&file, Files::MustExist);
        let loaded = loaded.unwrap_or_else(|error| panic!("{text}\n{error:?}"));
        let options = DaemonOptions { config_file: Some(file), log, ..DaemonOptions::default() };
        let daemon = Box::pin(Daemon::start(loaded.config, options)).await.unwrap();
        Self { daemon, client: Client::new(), folder }
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.folder.path().join("plimsoll.yaml")
    }

    pub(crate) fn request(&self, method: &str, path: &str) -> reqwest::RequestBuilder {
        let url = format!("http://{}{path}", self.daemon.admin());
        self.client.request(method.parse().unwrap(), url)
    }

    pub(crate) async fn ask(&self, method: &str, path: &str) -> (StatusCode, String) {
        let answer = self.request(method, path).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    }

    /// The value of the first sample that begins like this.
    pub(crate) async fn sample(&self, start: &str) -> Option<f64> {
        let (_, page) = self.ask("GET", "/metrics").await;
        let line = page.lines().find(|line| line.starts_with(start))?;
        Some(line.rsplit(' ').next().unwrap().parse().unwrap())
    }

    pub(crate) async fn desired(&self, variant: &str) -> Option<f64> {
        let (_, page) = self.ask("GET", "/metrics").await;
        let label = format!("variant=\"{variant}\"}}");
        let of =
            |line: &&str| line.starts_with("plimsoll_desired_replicas{") && line.contains(&label);
        Some(page.lines().find(of)?.rsplit(' ').next().unwrap().parse().unwrap())
    }

    /// Waits until the variant's number is this.
    pub(crate) async fn until_desired(&self, variant: &str, want: Option<f64>) {
        let change = async {
            while self.desired(variant).await != want {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let changed = tokio::time::timeout(PATIENCE, change).await.is_ok();
        let decisions = self.ask("GET", "/api/v1/decisions").await.1;
        assert!(changed, "{variant} is not {want:?}\n{decisions}");
    }

    /// Waits until a sample has this value.
    pub(crate) async fn until_sample(&self, start: &str, want: f64) {
        let is = |value: f64| Some(value) == Some(want);
        assert!(self.until(start, is).await, "{start} {want}");
    }

    /// Waits until a sample has such a value, and says whether it ever had.
    pub(crate) async fn until(&self, start: &str, accepts: impl Fn(f64) -> bool) -> bool {
        let change = async {
            while !self.sample(start).await.is_some_and(&accepts) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(PATIENCE, change).await.is_ok()
    }

    /// Ends the daemon and gives back its folder.
    pub(crate) async fn end(self) -> TempDir {
        tokio::time::timeout(PATIENCE, self.daemon.shutdown()).await.unwrap();
        self.folder
    }
}

const RELOADED: &str = "plimsoll_config_last_reload_successful";

#[tokio::test]
async fn a_change_of_the_file_during_the_start_is_loaded() {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("plimsoll.yaml");
    fs::write(&file, text(&[("a", engine.address)], "")).unwrap();
    let loaded = config::load(&file, Files::MustExist).unwrap();
    fs::write(&file, text(&[("b", engine.address)], "")).unwrap();
    let options = DaemonOptions { config_file: Some(file), ..DaemonOptions::default() };
    let daemon = Box::pin(Daemon::start(loaded.config, options)).await.unwrap();
    let running = Running { daemon, client: Client::new(), folder };
    running.until_desired("b", Some(1.0)).await;
    drop(running.end().await);
}

#[tokio::test]
async fn pages_become_numbers_on_every_surface() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    daemon.until_desired("a", Some(1.0)).await;
    engine.show(Stats { waiting: 20, ..stats(950) });
    daemon.until_desired("a", Some(2.0)).await;
    for path in ["/livez", "/healthz", "/readyz"] {
        assert_eq!(daemon.ask("GET", path).await.0, StatusCode::OK, "{path}");
    }
    let decisions: Value =
        serde_json::from_str(&daemon.ask("GET", "/api/v1/decisions").await.1).unwrap();
    let variant = &decisions["variants"][0];
    assert_eq!((&variant["variant"], &variant["desired"]), (&"a".into(), &2.into()), "{variant}");
    assert!(variant["because"].as_str().unwrap().contains("1 -> 2"), "{variant}");
    let number = daemon.daemon.published().borrow().variants.values().next().unwrap().clone();
    assert_eq!(number.decided.unwrap().decision.desired().count(), 2);
    assert_eq!(daemon.ask("POST", "/metrics").await.0, StatusCode::METHOD_NOT_ALLOWED);
    daemon.end().await;
}

#[tokio::test]
async fn losing_every_page_keeps_the_number_and_says_that_it_is_held() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    engine.show(stats(950));
    daemon.until_desired("a", Some(2.0)).await;
    engine.show(None);
    daemon.until_sample("plimsoll_decision_held{", 1.0).await;
    assert_eq!(daemon.desired("a").await, Some(2.0));
    let (_, said) = daemon.ask("GET", "/api/v1/decisions").await;
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let replica = &said["variants"][0]["replicas"][0];
    assert_eq!(replica["freshness"], "stale");
    assert!(replica["failure_detail"].as_str().is_some_and(|it| !it.is_empty()), "{replica}");
    daemon.end().await;
}

#[tokio::test]
async fn a_reload_adds_and_removes_variants_with_all_their_series() {
    let (engine, second) = (Engine::start().await, Engine::start().await);
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    daemon.until_desired("a", Some(1.0)).await;
    fs::write(daemon.file(), text(&[("a", engine.address), ("b", second.address)], "")).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::OK);
    daemon.until_desired("b", Some(1.0)).await;
    fs::write(daemon.file(), text(&[("b", second.address)], "")).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::OK);
    daemon.until_desired("a", None).await;
    let (_, page) = daemon.ask("GET", "/metrics").await;
    let left: Vec<_> = page.lines().filter(|line| line.contains("variant=\"a\"")).collect();
    assert!(left.is_empty(), "{left:?}");
    assert_eq!(daemon.desired("b").await, Some(1.0), "what stays is not disturbed");
    daemon.end().await;
}

#[tokio::test]
async fn a_broken_configuration_is_refused_whole_and_the_last_good_one_stays() {
    let engine = Engine::start().await;
    let good = text(&[("a", engine.address)], "");
    let daemon = Running::start(&good).await;
    daemon.until_desired("a", Some(1.0)).await;
    assert_eq!(daemon.sample(RELOADED).await, Some(1.0));
    let broken = text(&[("b", engine.address)], "saturation: {kv_cache_threshold: 7, colour: 1}\n");
    fs::write(daemon.file(), broken).unwrap();
    let (status, said) = daemon.ask("POST", "/-/reload").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(said.contains("kv_cache_threshold") && said.contains("colour"), "{said}");
    assert_eq!(daemon.sample(RELOADED).await, Some(0.0));
    assert_eq!((daemon.desired("a").await, daemon.desired("b").await), (Some(1.0), None));
    fs::write(daemon.file(), &good).unwrap();
    assert_eq!(daemon.ask("POST", "/-/reload").await.0, StatusCode::OK);
    assert_eq!(daemon.sample(RELOADED).await, Some(1.0));
    daemon.end().await;
}

#[tokio::test]
async fn a_key_that_cannot_change_is_refused_by_name_with_everything_beside_it() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    daemon.until_desired("a", Some(1.0)).await;
    let other = text(&[("b", engine.address)], "compatibility: {wva_metrics: true}\n");
    fs::write(daemon.file(), other).unwrap();
    let (status, said) = daemon.ask("POST", "/-/reload").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(said.contains("compatibility.wva_metrics") && said.contains("restart"), "{said}");
    assert_eq!((daemon.desired("a").await, daemon.desired("b").await), (Some(1.0), None));
    daemon.end().await;
}

#[tokio::test]
async fn a_file_that_changes_is_taken_up_without_being_asked() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    daemon.until_desired("a", Some(1.0)).await;
    fs::write(daemon.file(), text(&[("b", engine.address)], "")).unwrap();
    daemon.until_desired("b", Some(1.0)).await;
    daemon.until_desired("a", None).await;
    daemon.end().await;
}

#[tokio::test]
async fn thresholds_of_wva_that_change_are_taken_up_and_broken_ones_refused() {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    let wva = folder.path().join("wva");
    fs::create_dir(&wva).unwrap();
    fs::write(wva.join("default"), "kvCacheThreshold: 0.8\n").unwrap();
    let keys = format!("compatibility: {{wva_config: {}}}\n", wva.display());
    let daemon = Running::start_in(folder, &text(&[("a", engine.address)], &keys)).await;
    daemon.until_desired("a", Some(1.0)).await;
    fs::write(wva.join("default"), "kvCacheThreshold: much\n").unwrap();
    daemon.until_sample(RELOADED, 0.0).await;
    assert_eq!(daemon.desired("a").await, Some(1.0));
    // 40% of the cache is in use, which is now above the threshold.
    fs::write(wva.join("default"), "kvCacheThreshold: 0.3\n").unwrap();
    daemon.until_desired("a", Some(2.0)).await;
    assert_eq!(daemon.sample(RELOADED).await, Some(1.0));
    daemon.end().await;
}

#[tokio::test]
async fn a_restart_serves_the_number_of_before_until_there_is_data() {
    let engine = Engine::start().await;
    let folder = TempDir::new().unwrap();
    let state = format!("state_file: {}\n", folder.path().join("state.json").display());
    let daemon = Running::start_in(folder, &text(&[("a", engine.address)], &state)).await;
    engine.show(stats(950));
    daemon.until_desired("a", Some(2.0)).await;
    let folder = daemon.end().await;
    // Nobody listens there, so there is no data.
    let nobody = text(&[("a", "127.0.0.1:1".parse().unwrap())], &state);
    let daemon = Running::start_in(folder, &nobody).await;
    daemon.until_desired("a", Some(2.0)).await;
    let (_, said) = daemon.ask("GET", "/api/v1/decisions").await;
    assert!(said.contains("restored after a restart"), "{said}");
    daemon.end().await;
}

#[tokio::test]
async fn a_number_that_was_not_served_for_long_is_not_in_effect_after_a_restart() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("state.json");
    let state = format!("state_file: {}\n", path.display());
    let line = r#"{"namespace":"default","variant":"a","model":"m","desired":12,"at":"2020-01-01T00:00:00Z"}"#;
    let saved = format!(r#"{{"version":3,"written":"2020-01-01T00:00:01Z","decisions":[{line}]}}"#);
    fs::write(&path, saved).unwrap();
    let engine = Engine::start().await;
    let daemon = Running::start_in(folder, &text(&[("a", engine.address)], &state)).await;
    daemon.until_desired("a", Some(1.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn a_daemon_that_is_ended_before_it_has_decided_leaves_the_state_file_alone() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("state.json");
    let now = Clock::start().now();
    let line =
        format!(r#"{{"namespace":"default","variant":"a","model":"m","desired":12,"at":"{now}"}}"#);
    fs::write(&path, format!(r#"{{"version":3,"written":"{now}","decisions":[{line}]}}"#)).unwrap();
    let state = format!("state_file: {}\n", path.display());
    let nobody = text(&[("a", "127.0.0.1:1".parse().unwrap())], &state);
    let folder = Running::start_in(folder, &nobody).await.end().await;
    let kept = fs::read_to_string(folder.path().join("state.json")).unwrap();
    assert!(kept.contains("\"desired\":12"), "{kept}");
}

#[tokio::test]
async fn a_state_file_that_cannot_be_read_is_set_aside_counted_and_no_reason_not_to_start() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("state.json");
    fs::write(&path, r#"{"version":9,"written":"#).unwrap();
    let engine = Engine::start().await;
    let state = format!("state_file: {}\n", path.display());
    let daemon = Running::start_in(folder, &text(&[("a", engine.address)], &state)).await;
    daemon.until_desired("a", Some(1.0)).await;
    let failures = "plimsoll_state_file_failures_total{action=\"read\"}";
    assert_eq!(daemon.sample(failures).await, Some(1.0));
    let folder = daemon.end().await;
    let aside = fs::read_to_string(folder.path().join("state.json.corrupt")).unwrap();
    assert_eq!(aside, r#"{"version":9,"written":"#);
    let written = fs::read_to_string(folder.path().join("state.json")).unwrap();
    assert!(written.starts_with("{\"version\":3,"), "{written}");
}

#[tokio::test]
async fn what_a_later_release_remembers_is_counted_and_costs_no_number() {
    let folder = TempDir::new().unwrap();
    let path = folder.path().join("state.json");
    let now = Clock::start().now();
    let line = format!(
        r#"{{"namespace":"default","variant":"a","model":"m","desired":12,"at":"{now}",
             "memory":{{"clairvoyance":{{"at":1}},"augury":[],"history":{{"turned":[]}}}}}}"#
    );
    fs::write(&path, format!(r#"{{"version":3,"written":"{now}","decisions":[{line}]}}"#)).unwrap();
    let state = format!("state_file: {}\n", path.display());
    let nobody = text(&[("a", "127.0.0.1:1".parse().unwrap())], &state);
    let daemon = Running::start_in(folder, &nobody).await;
    daemon.until_desired("a", Some(12.0)).await;
    let unknown = async |document: &str| {
        let series = format!("plimsoll_state_unknown_words{{document=\"{document}\"}}");
        daemon.sample(&series).await
    };
    assert_eq!((unknown("file").await, unknown("shared").await), (Some(2.0), Some(0.0)));
    let folder = daemon.end().await;
    // What is written now is of this release.
    let daemon = Running::start_in(folder, &nobody).await;
    daemon.until_desired("a", Some(12.0)).await;
    let series = "plimsoll_state_unknown_words{document=\"file\"}";
    assert_eq!(daemon.sample(series).await, Some(0.0));
    daemon.end().await;
}

#[tokio::test]
async fn an_ended_daemon_no_longer_listens() {
    let engine = Engine::start().await;
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    let (client, ready) =
        (daemon.client.clone(), format!("http://{}/readyz", daemon.daemon.admin()));
    // An open connection does not hold the end up.
    let _idle = tokio::net::TcpStream::connect(daemon.daemon.admin()).await.unwrap();
    daemon.end().await;
    assert!(client.get(ready).send().await.is_err());
}

#[tokio::test]
async fn the_log_filter_is_replaced_by_one_that_can_be_read_and_kept_otherwise() {
    let engine = Engine::start().await;
    let log = init_logs("off", LogFormat::Text).unwrap();
    let text = text(&[("a", engine.address)], "");
    let filter = Some(log.filter.clone());
    let daemon = Running::start_with(TempDir::new().unwrap(), &text, filter).await;
    let put = async |filter: String| {
        let answer = daemon.request("PUT", "/-/log").body(filter).send().await.unwrap();
        (answer.status(), answer.text().await.unwrap())
    };
    assert_eq!(put("plimsoll=error,off\n".into()).await.0, StatusCode::OK);
    let (status, said) = put("plimsoll=loud".into()).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert!(said.contains("\"plimsoll=loud\" is not a log filter"), "{said}");
    assert_eq!(put("x".repeat(5000)).await.0, StatusCode::PAYLOAD_TOO_LARGE);
    assert_eq!(put("off".into()).await.0, StatusCode::OK);
    assert_eq!(daemon.ask("GET", "/-/log").await.0, StatusCode::METHOD_NOT_ALLOWED);
    daemon.end().await;
}
