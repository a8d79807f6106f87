//! A real daemon on the demo's simulated engines, and beside them variants that have no data.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::clock::Clock;
use plimsoll::config::{self, Files, Surroundings};
use plimsoll::daemon::{Daemon, DaemonOptions};
use plimsoll::demo::args::DemoScenario;
use plimsoll::demo::scenario::DemoSetup;
use plimsoll::demo::stage::DemoStage;
use plimsoll::publish::Published;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A name that would do harm wherever it became markup.
pub(crate) const HOSTILE: &str = "<img src=x onerror=\"window.owned=1\">";

/// A daemon at work.
pub(crate) struct World {
    pub(crate) daemon: Daemon,
    client: reqwest::Client,
    _stop: DropGuard,
    _folder: TempDir,
}

impl World {
    /// The demo's fleet, a variant of a model with a hostile name, and `idle` variants of as many
    /// models as fit ten to one. Nobody answers for the latter.
    pub(crate) async fn start(idle: usize) -> Self {
        Self::play(DemoScenario::Standard, idle).await
    }

    /// The demo as it is, with the default policy, once it has learned and scaled up by it.
    pub(crate) async fn learned() -> Self {
        let played = DemoSetup::read(DemoScenario::Standard, 2, &[]).unwrap();
        let world = Box::pin(Self::open(played, None)).await;
        let scaled = |it: &Value| it["reason"] == "capacity_added" && it["variant"] == "llama-h100";
        loop {
            let events = world.ask("events?limit=1000").await;
            if events["events"].as_array().unwrap().iter().filter(|it| scaled(it)).count() > 1 {
                return world;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }

    /// The fleet of this scenario, with waves of a minute. The fallback decides,
    /// which needs no time to learn.
    pub(crate) async fn play(scenario: DemoScenario, idle: usize) -> Self {
        let wave = |model| format!("models[{model}].workload.drawn.wave");
        let (period, burst) = (json!("60s"), json!({"at": "41s", "length": "4s", "rate": 3}));
        let models = if scenario == DemoScenario::Standard { 0..2 } else { 0..1 };
        let paths: Vec<(String, Value)> = models
            .flat_map(|model| [("period", &period), ("burst", &burst)].map(|it| (model, it)))
            .map(|(model, (key, value))| (format!("{}.{key}", wave(model)), value.clone()))
            .collect();
        let mut settings: Vec<(&str, Value)> =
            paths.iter().map(|(path, value)| (path.as_str(), value.clone())).collect();
        settings.push(("policy.analysis", json!("saturation")));
        let played = DemoSetup::read(scenario, 2, &settings).unwrap();
        Box::pin(Self::open(played, Some(idle))).await
    }

    /// Starts a daemon on this fleet; with `idle`, next to variants that nothing answers for.
    async fn open(played: DemoSetup, idle: Option<usize>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let text = configuration(&played, folder.path(), idle);
        let clock = Clock::start();
        let stage = DemoStage::open(&played, folder.path(), clock, &tracker, &cancel).unwrap();
        let surroundings = Surroundings {
            origin: "the test".to_owned(),
            base: folder.path().to_owned(),
            environment: BTreeMap::new(),
            files: Files::NotChecked,
        };
        let config = config::parse(&text, &surroundings).unwrap_or_else(|error| panic!("{error}"));
        let daemon =
            Box::pin(Daemon::start(config.config, DaemonOptions::default())).await.unwrap();
        let published = daemon.published();
        tracker.spawn(cancel.clone().run_until_cancelled_owned(follow(stage, published)));
        let client = reqwest::Client::builder().no_proxy().build().unwrap();
        Self { daemon, client, _stop: cancel.drop_guard(), _folder: folder }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.daemon.admin())
    }

    /// What the API answers.
    pub(crate) async fn ask(&self, path: &str) -> Value {
        let answer = self.client.get(format!("{}api/v1/{path}", self.url())).send().await.unwrap();
        serde_json::from_str(&answer.text().await.unwrap()).unwrap()
    }

    /// Waits until every variant of the demo has a number.
    pub(crate) async fn until_decided(&self) {
        let decided = |published: &Arc<Published>| {
            let mut variants = published.variants.values();
            variants.all(|it| it.spec.key.namespace.as_str() != "demo" || it.decided.is_some())
                && !published.variants.is_empty()
        };
        self.daemon.published().wait_for(decided).await.unwrap();
    }
}

/// Gives the fleet the replicas that are desired, in the place of an HPA.
async fn follow(mut stage: DemoStage, published: watch::Receiver<Arc<Published>>) {
    let shared = stage.shared();
    let scenario = shared.fleet().scenario();
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        for (index, variant) in scenario.variants.iter().enumerate() {
            let now = published.borrow().clone();
            let decided = now.variants.get(&variant.spec.key).and_then(|it| it.decided.clone());
            if let Some(decided) = decided {
                shared.fleet().scale(index, decided.decision.desired());
            }
        }
        stage.follow().unwrap();
    }
}

fn configuration(played: &DemoSetup, folder: &Path, idle: Option<usize>) -> String {
    let mut config = played.config.clone();
    config["server"]["listen"] = json!("127.0.0.1:0");
    config["shutdown"] = json!({"delay": "0s", "drain": "1s"});
    let mut variants = played.with_targets(folder);
    let mut add = |name: &str, namespace: &str, model: &str, target: String| {
        let targets = json!({"static": [target]});
        let variant =
            json!({"name": name, "namespace": namespace, "model": model, "targets": targets});
        variants.as_array_mut().unwrap().push(variant);
    };
    // Ports on which nothing listens, and no two variants may claim one.
    let silent = |index: usize| format!("127.1.{}.{}:1", index / 250, 1 + index % 250);
    if let Some(idle) = idle {
        add("hostile", "other", HOSTILE, silent(idle));
    }
    for index in 0..idle.unwrap_or_default() {
        let (name, model) = (format!("idle-{index:04}"), format!("idle/model-{:03}", index / 10));
        add(&name, "idle", &model, silent(index));
    }
    config["variants"] = variants;
    config.to_string()
}
