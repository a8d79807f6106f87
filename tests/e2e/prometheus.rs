//! A real Prometheus, as the only source of what Plimsoll knows.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use flate2::read::GzDecoder;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use plimsoll::cli::EXIT_USAGE;
use plimsoll::clock::Clock;
use plimsoll::collect::exposition;
use plimsoll::collect::prometheus::{
    LabelNames, Method, PrometheusMetrics, PrometheusSettings, PrometheusSource, SeriesSelection,
    VariantQuery,
};
use plimsoll::collect::scrape::{ClientSettings, TargetBoard};
use plimsoll::fleet::{Namespace, VariantKey, VariantName};
use plimsoll::observe::{Reading, ScrapeFailure};
use plimsoll::trace::{self, TraceRecord};
use tempfile::TempDir;
use tokio::sync::{mpsc, watch};
use tokio::task::block_in_place;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::daemon::Daemon;
use crate::engines::PORT;
use crate::stage::{Stage, stage, tools};
use crate::wait::{PATIENCE, until};
use crate::{follows, keeps};

/// A Prometheus as a process. Dropping it ends it by force.
pub(crate) struct Prometheus {
    child: Option<Child>,
    folder: PathBuf,
    /// Where its API and its pages are.
    pub(crate) url: String,
    address: String,
}

impl Prometheus {
    /// Starts one with this configuration that keeps its files in a folder, and waits until it is
    /// ready. It ends with the thread that calls this.
    pub(crate) fn start(folder: &Path, config: &str) -> Self {
        fs::create_dir_all(folder).unwrap();
        // The port is free now, and few things take one in the moment until it is used.
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
        let url = format!("http://{address}");
        let mut prometheus = Self { child: None, folder: folder.to_owned(), url, address };
        prometheus.write(config);
        prometheus.run();
        prometheus
    }

    /// Goes on with another configuration.
    pub(crate) fn configure(&self, config: &str) {
        self.write(config);
        assert!(self.answers("POST", "/-/reload"), "Prometheus refuses {config}");
    }

    /// Ends it by force. What it has stored stays.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }

    /// Starts it again, with what it has stored.
    pub(crate) fn start_again(&mut self) {
        self.kill();
        self.run();
    }

    /// Starts it again with nothing stored and another configuration.
    pub(crate) fn start_empty(&mut self, config: &str) {
        self.kill();
        fs::remove_dir_all(self.folder.join("data")).unwrap();
        self.write(config);
        self.run();
    }

    /// Whether it answers a request with success.
    fn answers(&self, method: &str, path: &str) -> bool {
        let Ok(mut stream) = TcpStream::connect(&self.address) else { return false };
        let request = format!("{method} {path} HTTP/1.0\r\nHost: {}\r\n\r\n", self.address);
        let mut answer = String::new();
        stream.write_all(request.as_bytes()).is_ok()
            && stream.read_to_string(&mut answer).is_ok()
            && answer.starts_with("HTTP/1.0 200")
    }

    fn write(&self, config: &str) {
        fs::write(self.folder.join("prometheus.yml"), config).unwrap();
    }

    fn run(&mut self) {
        let log = self.folder.join("prometheus.log");
        let output = File::options().append(true).create(true).open(&log).unwrap();
        let flag = |name: &str, value: &Path| format!("--{name}={}", value.display());
        // A test that is ended by force must not leave it behind.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(tools().join("prometheus"))
            .arg(flag("config.file", &self.folder.join("prometheus.yml")))
            .arg(flag("storage.tsdb.path", &self.folder.join("data")))
            .arg(format!("--web.listen-address={}", self.address))
            .args(["--web.enable-lifecycle", "--log.level=warn"])
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        until("Prometheus ready", || {
            if let Some(status) = child.try_wait().unwrap() {
                panic!("Prometheus ended with {status}:\n{}", fs::read_to_string(&log).unwrap());
            }
            self.answers("GET", "/-/ready").then_some(())
        });
        self.child = Some(child);
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Scrapes the pods of one namespace every second, as a `PodMonitor` would; `keep` is a regular
/// expression of their names.
pub(crate) fn scraping(stage: &Stage, namespace: &str, keep: &str) -> String {
    let kubeconfig = stage.cluster().join("admin.kubeconfig");
    format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}}
scrape_configs:
- job_name: llm/llama
  kubernetes_sd_configs:
  - {{role: pod, kubeconfig_file: \"{}\", namespaces: {{names: [{namespace}]}}}}
  relabel_configs:
  - {{source_labels: [__meta_kubernetes_pod_phase], regex: Running, action: keep}}
  - {{source_labels: [__meta_kubernetes_pod_name], regex: \"{keep}\", action: keep}}
  - {{source_labels: [__meta_kubernetes_pod_ip], regex: (.+), replacement: \"$1:{PORT}\", target_label: __address__}}
  - {{source_labels: [__meta_kubernetes_namespace], target_label: namespace}}
  - {{source_labels: [__meta_kubernetes_pod_name], target_label: pod}}
",
        kubeconfig.display()
    )
}

/// A Prometheus that scrapes a namespace, and Plimsoll that knows nothing else of it.
fn both(stage: &Stage, namespace: &str) -> (Prometheus, Daemon) {
    let folder = stage.folder.join(format!("{namespace}-prometheus"));
    let prometheus = Prometheus::start(&folder, &scraping(stage, namespace, ".*"));
    let section =
        format!("prometheus: {{url: \"{}\", interval: 1s, stale_after: 5s}}\n", prometheus.url);
    (prometheus, Daemon::start_with(stage, namespace, &section))
}

fn held(stage: &Stage, daemon: &Daemon, want: u32) {
    until(&format!("plimsoll_decision_held {want}"), || {
        let held = daemon.gauge(stage, "plimsoll_decision_held", &["variant=\"llama\""])?;
        (held == want).then_some(())
    });
}

/// Waits until so many replicas have data that is too old.
fn unseen(stage: &Stage, daemon: &Daemon, want: u32) {
    until(&format!("{want} stale replicas"), || {
        let old = daemon.gauge(stage, "plimsoll_replicas", &["freshness=\"stale\""])?;
        (old == want).then_some(())
    });
}

#[test]
fn a_a_prometheus_that_is_the_only_source_scales_up_and_down() {
    let stage = &stage();
    stage.open("told", 1);
    stage.engines.load("told", 0.3);
    let (_prometheus, daemon) = both(stage, "told");
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    assert_eq!(
        daemon.gauge(stage, "plimsoll_scrape_targets", &[]),
        Some(0),
        "no page is asked for"
    );
    follows(stage, &daemon, "told", 2.0, 3);
    keeps(stage, "told", 3);
    follows(stage, &daemon, "told", 0.3, 1);
}

#[test]
fn b_a_dead_an_empty_and_a_half_blind_prometheus_change_no_count() {
    let stage = &stage();
    stage.open("blind", 3);
    stage.engines.load("blind", 2.0);
    let (mut prometheus, daemon) = both(stage, "blind");
    until("a first number", || (daemon.desired(stage)? == 3).then_some(()));
    held(stage, &daemon, 0);

    // The load falls while nobody can see it.
    prometheus.kill();
    stage.engines.load("blind", 0.3);
    held(stage, &daemon, 1);
    keeps(stage, "blind", 3);
    stage.engines.load("blind", 2.0);
    prometheus.start_again();
    held(stage, &daemon, 0);

    let pods = stage.kubectl(&["get", "pods", "-n", "blind", "-o", "name"]).unwrap();
    let one = pods.lines().next().unwrap().trim_start_matches("pod/").to_owned();
    prometheus.configure(&scraping(stage, "blind", &one));
    // Until it has looked for targets again, it scrapes the others too.
    until("one target", || {
        let page = stage.page(&format!("{}/api/v1/targets?state=active", prometheus.url))?;
        let targets: serde_json::Value = serde_json::from_str(&page).unwrap();
        (targets["data"]["activeTargets"].as_array()?.len() == 1).then_some(())
    });
    stage.engines.load("blind", 0.3);
    unseen(stage, &daemon, 2);
    keeps(stage, "blind", 3);
    stage.engines.load("blind", 2.0);
    prometheus.configure(&scraping(stage, "blind", ".*"));
    unseen(stage, &daemon, 0);

    prometheus.start_empty("scrape_configs: []\n");
    stage.engines.load("blind", 0.3);
    held(stage, &daemon, 1);
    let empty = ["outcome=\"empty\""];
    until("an empty answer", || {
        let count = daemon.gauge(stage, "plimsoll_prometheus_queries_total", &empty)?;
        (count > 0).then_some(())
    });
    keeps(stage, "blind", 3);

    prometheus.start_empty(&scraping(stage, "blind", ".*"));
    follows(stage, &daemon, "blind", 0.3, 1);
}

// === without Kubernetes ===

const PAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/pages");

struct Page {
    name: String,
    body: Bytes,
    content_type: &'static str,
    reading: Reading,
}

/// The pages that have an engine's metrics, and what a scrape of our own reads on them.
fn pages() -> Vec<Page> {
    let mut pages = Vec::new();
    for entry in fs::read_dir(PAGES).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let bytes = fs::read(&path).unwrap();
        let mut body = Vec::new();
        match name.strip_suffix(".gz").unwrap_or(&name) {
            text if Path::new(text).extension().is_none_or(|it| it != "txt") => continue,
            text if text == name => body = bytes,
            _ => {
                GzDecoder::new(bytes.as_slice()).read_to_end(&mut body).unwrap();
            }
        }
        let content_type = if body.ends_with(b"# EOF\n") {
            "application/openmetrics-text; version=1.0.0; charset=utf-8"
        } else {
            "text/plain; version=0.0.4; charset=utf-8"
        };
        let reading = exposition::read(&body, Some(content_type)).unwrap();
        // A page that has no samples yet leaves no trace in a database.
        if !reading.ranks.is_empty() {
            pages.push(Page { name, body: body.into(), content_type, reading });
        }
    }
    pages
}

/// Serves each page at its name.
async fn serve(pages: Arc<Vec<Page>>, tasks: TaskTracker) -> String {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let connections = tasks.clone();
    tasks.spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let pages = Arc::clone(&pages);
            let service = service_fn(move |request: Request<Incoming>| {
                let path = request.uri().path().trim_start_matches('/');
                let page = pages.iter().find(|page| page.name == path).unwrap();
                let mut response = Response::new(Full::new(page.body.clone()));
                let content_type = page.content_type.parse().unwrap();
                response.headers_mut().insert("content-type", content_type);
                async move { Ok::<_, std::convert::Infallible>(response) }
            });
            let http = hyper::server::conn::http1::Builder::new();
            let connection = http.serve_connection(TokioIo::new(stream), service);
            connections.spawn(async move {
                let _ended = connection.await;
            });
        }
    });
    address
}

fn variant(name: &str) -> VariantKey {
    let (namespace, variant) = (Namespace::new("pages"), VariantName::new(name));
    VariantKey { namespace: namespace.unwrap(), variant: variant.unwrap() }
}

#[tokio::test(flavor = "multi_thread")]
async fn c_readings_from_a_real_prometheus_are_those_of_the_pages() {
    let folder = TempDir::new().unwrap();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let pages = Arc::new(pages());
    assert!(pages.len() > 8, "the pages are found");
    let address = serve(Arc::clone(&pages), tasks.clone()).await;
    let mut config =
        "global: {scrape_interval: 1s, scrape_timeout: 1s}\nscrape_configs:\n".to_owned();
    for (Page { name, .. }, other) in pages.iter().zip(pages.iter().cycle().skip(1)) {
        // Another cluster has the same job and address, and another page.
        let there = format!("cluster: other, __metrics_path__: /{}", other.name);
        let targets = ["cluster: here", &there]
            .map(|labels| format!("{{targets: [\"{address}\"], labels: {{{labels}}}}}"))
            .join(", ");
        let configs = format!("static_configs: [{targets}]");
        writeln!(config, "- {{job_name: {name}, metrics_path: /{name}, {configs}}}").unwrap();
    }
    let prometheus = block_in_place(|| Prometheus::start(folder.path(), &config));
    let settings = PrometheusSettings {
        url: prometheus.url.clone(),
        method: Method::Post,
        interval: Duration::from_secs(1),
        timeout: PATIENCE,
        lookback: Duration::from_mins(5),
        stale_after: Duration::from_mins(1),
        series_limit: 100_000,
        body_limit: 64 << 20,
        client: ClientSettings::default(),
        basic_auth: None,
        headers: [].into(),
        header_files: [].into(),
        parameters: [].into(),
        matched: [("cluster".to_owned(), "here".to_owned())].into(),
        labels: LabelNames::default(),
    };
    let (inlet, mut scrapes) = mpsc::channel(10_000);
    let metrics = PrometheusMetrics::register(&prometheus_registry()).unwrap();
    let source =
        PrometheusSource::new(settings, Clock::start(), metrics, TargetBoard::default(), inlet);
    let wanted = |page: &Page| VariantQuery {
        variant: variant(&page.name),
        models: Vec::new(),
        which: SeriesSelection::Match([("job".to_owned(), page.name.clone())].into()),
    };
    let (_wanted, asked) = watch::channel(Arc::new(pages.iter().map(wanted).collect()));
    let (found, _instances) = watch::channel(Arc::default());
    tasks.spawn(source.run(asked, found, tasks.clone(), stop.clone()));
    let mut missing: Vec<&Page> = pages.iter().collect();
    let compared = async {
        while !missing.is_empty() {
            let scrape = scrapes.recv().await.unwrap();
            // On a busy machine Prometheus may not get a page in time, and scrapes it again.
            if scrape.outcome == Err(ScrapeFailure::Down) {
                continue;
            }
            let name = scrape.replica.variant.variant.as_str().to_owned();
            let page = pages.iter().find(|page| page.name == name).unwrap();
            assert_eq!(scrape.outcome.as_ref(), Ok(&page.reading), "{name}");
            missing.retain(|page| page.name != name);
        }
    };
    let all = tokio::time::timeout(PATIENCE, compared).await;
    assert!(all.is_ok(), "a page never came");
    stop.cancel();
}

/// The readings that a backtest of the last seconds has found, and what it printed. Until
/// Prometheus has scraped once there is nothing to replay, which is no success and says so.
fn backtest(url: &str, folder: &Path, save: &str) -> (Vec<Reading>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.current_dir(folder).args(["backtest", "--prometheus", url, "--config", "past.yaml"]);
    let output = command.args(["--from", "20s", "--step", "1s", "--save", save]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let error = String::from_utf8(output.stderr).unwrap();
    if error.contains("Prometheus has no reading of any variant") {
        assert_eq!(output.status.code(), Some(EXIT_USAGE.into()), "{said}\n{error}");
        return (Vec::new(), said);
    }
    assert_eq!(output.status.code(), Some(0), "{said}\n{error}");
    let mut readings = Vec::new();
    for mut reader in trace::files(&[folder.join(save)]).unwrap().readers {
        while let Some(record) = reader.record().unwrap() {
            let TraceRecord::Tick(tick) = record else { continue };
            readings.extend(tick.inputs.scrapes.into_iter().filter_map(|it| it.outcome.ok()));
        }
    }
    (readings, said)
}

#[tokio::test(flavor = "multi_thread")]
async fn d_a_backtest_reads_from_a_real_prometheus_what_the_pages_said() {
    let folder = TempDir::new().unwrap();
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let pages = Arc::new(pages());
    let page = pages.iter().find(|page| page.name.contains("0.33.0-dp1")).unwrap();
    let address = serve(Arc::clone(&pages), tasks.clone()).await;
    let scraping = format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n- {{job_name: past, \
         metrics_path: /{}, static_configs: [{{targets: [\"{address}\"]}}]}}\n",
        page.name
    );
    let data = folder.path().join("prometheus");
    let prometheus = block_in_place(|| Prometheus::start(&data, &scraping));
    let config = format!(
        "prometheus: {{url: \"{}\"}}\nvariants: [{{name: past, model: {:?}, \
         targets: {{prometheus: {{match: {{job: past}}}}}}}}]\n",
        prometheus.url,
        page.reading.models[0].as_str()
    );
    fs::write(folder.path().join("past.yaml"), config).unwrap();
    let (readings, said) = block_in_place(|| {
        let mut run = 0;
        until("ten scrapes", || {
            run += 1;
            let save = format!("past-{run}");
            let (readings, said) = backtest(&prometheus.url, folder.path(), &save);
            (readings.len() >= 10).then_some((readings, said))
        })
    });
    for reading in readings {
        assert_eq!(reading, page.reading);
    }
    assert!(said.contains("20 decisions, all match"), "{said}");
    stop.cancel();
}

fn prometheus_registry() -> ::prometheus::Registry {
    ::prometheus::Registry::new()
}
