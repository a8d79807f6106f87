//! The demo, and a Prometheus that scrapes it each second.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};
use std::time::Duration;

use plimsoll::clock::Clock;
use serde_json::Value;

use crate::dashboards::shows_something;

/// The longest that anything may take to show. Half a wave of the demo's load is 90 s, and the
/// machine may be slow.
const PATIENCE: Duration = Duration::from_mins(4);

/// How often a condition is looked at.
const LOOK: Duration = Duration::from_secs(1);

/// The demo and its Prometheus, which both end with this.
pub(crate) struct Stage {
    demo: Process,
    _prometheus: Process,
    client: reqwest::Client,
    url: String,
    /// The demo's plain HTTP port.
    pub(crate) page: String,
    _folder: tempfile::TempDir,
}

/// A process that is killed when this is dropped.
struct Process(Child);

/// What Prometheus says to a query.
pub(crate) enum Answer {
    /// Series with at least one number, as JSON.
    Series(String),
    /// No series, or none with a number.
    Nothing,
    /// An error.
    Refused(String),
}

impl Drop for Process {
    fn drop(&mut self) {
        let _gone_already = self.0.kill();
        let _status = self.0.wait();
    }
}

impl Stage {
    /// Starts both, with the alerts of `alerts`.
    pub(crate) async fn open(alerts: &Path) -> Self {
        Self::start(|target| {
            format!(
                "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\n\
                 rule_files: ['{}/*.yaml']\n\
                 scrape_configs:\n- job_name: plimsoll\n  honor_labels: true\n  \
                 static_configs: [{{targets: ['{target}']}}]\n",
                alerts.display()
            )
        })
        .await
    }

    /// Starts both, and scrapes the demo's variants this many times, each time into other namespaces.
    pub(crate) async fn crowd(fleets: usize) -> Self {
        Self::start(|target| {
            let fleet =
                |number| format!("{{targets: ['{target}'], labels: {{fleet: '{number}'}}}}");
            let fleets: Vec<String> = (0..fleets).map(fleet).collect();
            format!(
                "global: {{scrape_interval: 5s}}\n\
                 scrape_configs:\n- job_name: plimsoll\n  honor_labels: true\n  \
                 metric_relabel_configs:\n  \
                 - {{source_labels: [namespace, fleet], separator: '-', regex: '(.+-.+)', \
                 target_label: namespace}}\n  \
                 - {{regex: fleet, action: labeldrop}}\n  \
                 static_configs: [{}]\n",
                fleets.join(", ")
            )
        })
        .await
    }

    /// Starts both, Prometheus with the configuration for the demo's address.
    async fn start(config: impl FnOnce(&str) -> String) -> Self {
        let mut demo = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args([
                "demo",
                "--policy",
                "foresight",
                "--seed",
                "2",
                "--output",
                "json",
                "--listen",
                "127.0.0.1:0",
            ])
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let target = said(demo.stderr.take().unwrap(), "The daemon's HTTP port is http://").await;
        let demo = Process(demo);

        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config(&target)).unwrap();
        let mut prometheus = Command::new(program())
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg("--web.listen-address=127.0.0.1:0")
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let log = prometheus.stderr.take().unwrap();
        let prometheus = Process(prometheus);
        let address = said(log, "msg=\"Listening on\" component=web address=").await;
        let url = format!("http://{address}/api/v1");
        let client = reqwest::Client::new();
        let stage = Self {
            demo,
            _prometheus: prometheus,
            client,
            url,
            page: format!("http://{target}"),
            _folder: folder,
        };
        stage.until(async |stage| stage.unready(&address).await).await;
        stage
    }

    /// What keeps Prometheus from answering: it listens before it can.
    async fn unready(&self, address: &str) -> Vec<String> {
        match self.client.get(format!("http://{address}/-/ready")).send().await {
            Ok(answer) if answer.status().is_success() => Vec::new(),
            Ok(answer) => vec![format!("Prometheus is ready: {}", answer.status())],
            Err(error) => vec![format!("Prometheus is ready: {error}")],
        }
    }

    /// Kills the demo.
    pub(crate) fn end_the_demo(&mut self) {
        self.demo.0.kill().unwrap();
        self.demo.0.wait().unwrap();
    }

    /// Looks until nothing is missing any more.
    pub(crate) async fn until(&self, mut missing: impl AsyncFnMut(&Self) -> Vec<String>) {
        let clock = Clock::start();
        let deadline = clock.elapsed() + PATIENCE;
        loop {
            let missing = missing(self).await;
            if missing.is_empty() {
                return;
            }
            assert!(clock.elapsed() < deadline, "still missing:\n{}", missing.join("\n"));
            tokio::time::sleep(LOOK).await;
        }
    }

    /// What an endpoint of the HTTP API answers.
    pub(crate) async fn get(&self, path: &str, query: &[(&str, &str)]) -> Value {
        let pairs = form_urlencoded::Serializer::new(String::new()).extend_pairs(query).finish();
        self.fetch(&format!("{path}?{pairs}")).await
    }

    /// What a path of the HTTP API answers, with its parameters.
    pub(crate) async fn fetch(&self, path: &str) -> Value {
        let url = format!("{}/{path}", self.url);
        let answer = self.client.get(url).send().await.unwrap().bytes().await.unwrap();
        serde_json::from_slice(&answer).unwrap()
    }

    /// What an expression is now.
    pub(crate) async fn query(&self, expr: &str) -> Answer {
        let answer = self.get("query", &[("query", expr)]).await;
        Answer::new(&answer)
    }

    /// The clock of Prometheus, in seconds since 1970.
    pub(crate) async fn now(&self) -> f64 {
        let now = self.get("query", &[("query", "time()")]).await;
        now["data"]["result"][0].as_f64().unwrap()
    }

    /// The values of `label_values(SELECTOR, LABEL)`.
    pub(crate) async fn label_values(&self, question: &str) -> Vec<Value> {
        let inside = question.strip_prefix("label_values(").unwrap().strip_suffix(')').unwrap();
        let (selector, label) = inside.rsplit_once(", ").unwrap();
        let answer = self.get(&format!("label/{label}/values"), &[("match[]", selector)]).await;
        answer["data"].as_array().unwrap().clone()
    }
}

impl Answer {
    pub(crate) fn new(answer: &Value) -> Self {
        if answer["status"] != "success" {
            return Self::Refused(answer["error"].to_string());
        }
        if shows_something(answer) {
            Self::Series(answer["data"]["result"].to_string())
        } else {
            Self::Nothing
        }
    }
}

/// Prometheus, where `tests/prometheus/run` has built it.
fn program() -> PathBuf {
    let tools = std::env::var_os("TOOLS").expect("run tests/prometheus/run, which sets TOOLS");
    Path::new(&tools).join("prometheus")
}

/// What follows `prefix` in a line of a log. The rest of the log is read to its end, so that whoever
/// writes it never waits.
async fn said(log: ChildStderr, prefix: &'static str) -> String {
    let (found, seen) = tokio::sync::oneshot::channel();
    std::thread::spawn(move || {
        let mut found = Some(found);
        let mut all = String::new();
        for line in BufReader::new(log).lines().map_while(Result::ok) {
            if let Some((_, rest)) = line.split_once(prefix)
                && let Some(found) = found.take()
            {
                let word = rest.split_whitespace().next().unwrap_or_default().to_owned();
                let _nobody_waits = found.send(word);
            }
            if found.is_some() {
                all.push_str(&line);
                all.push('\n');
            }
        }
        assert!(found.is_none(), "no line has {prefix:?}:\n{all}");
    });
    seen.await.expect("the process says where it listens")
}
