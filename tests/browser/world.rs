//! A real daemon on the demo's simulated engines, and beside them variants that have no data.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use plimsoll::clock::Clock;
use plimsoll::config::{self, Files, Surroundings};
use plimsoll::daemon::{Daemon, Options};
use plimsoll::demo::scenario::{NAMESPACE, Scenario};
use plimsoll::demo::stage::Stage;
use plimsoll::publish::Published;
use plimsoll::simulate::Micros;
use serde_json::Value;
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
        Self::play(Scenario::standard(Micros::from_secs(60), 2).unwrap(), idle).await
    }

    /// The fleet of this scenario, beside the same.
    pub(crate) async fn play(scenario: Scenario, idle: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
        let text = configuration(&scenario, folder.path(), idle);
        let clock = Clock::start();
        let stage = Stage::open(scenario, folder.path(), clock, &tracker, &cancel).unwrap();
        let surroundings = Surroundings {
            origin: "the test".to_owned(),
            base: folder.path().to_owned(),
            environment: BTreeMap::new(),
            files: Files::NotChecked,
        };
        let config = config::parse(&text, &surroundings).unwrap_or_else(|error| panic!("{error}"));
        let daemon = Daemon::start(config.config, Options::default()).await.unwrap();
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
            variants.all(|it| it.spec.key.namespace.as_str() != NAMESPACE || it.decided.is_some())
                && !published.variants.is_empty()
        };
        self.daemon.published().wait_for(decided).await.unwrap();
    }
}

/// Gives the fleet the replicas that are desired, in the place of an HPA.
async fn follow(mut stage: Stage, published: watch::Receiver<Arc<Published>>) {
    let shared = stage.shared();
    let scenario = Arc::clone(shared.fleet().scenario());
    let mut ticks = tokio::time::interval(Duration::from_millis(100));
    loop {
        ticks.tick().await;
        for (index, (_, variant)) in scenario.variants().enumerate() {
            let now = published.borrow().clone();
            let decided = now.variants.get(&variant.key).and_then(|it| it.decided.clone());
            if let Some(decided) = decided {
                shared.fleet().scale(index, decided.decision.desired()).unwrap();
            }
        }
        stage.follow().unwrap();
    }
}

fn configuration(scenario: &Scenario, folder: &Path, idle: usize) -> String {
    let mut text = "server: {listen: '127.0.0.1:0'}\nobserve: {window: 10s, stale_after: 5s}\n\
                    shutdown: {delay: 0s, drain: 1s}\n\
                    analysis: saturation\n\
                    enforce:\n  scale_down: {stabilization_window: 20s}\n"
        .to_owned();
    for (_, variant) in scenario.variants().filter(|(model, _)| model.adapters.is_some()) {
        writeln!(text, "pools: {{{}: {{idle_after: 15s}}}}", variant.key).unwrap();
    }
    text += "variants:\n";
    for (model, variant) in scenario.variants() {
        let name = variant.key.variant.as_str();
        writeln!(
            text,
            "- name: {name}\n  namespace: {NAMESPACE}\n  model: {}\n  accelerator: {}\n  cost: {}\n  \
             replicas: {{min: {}, max: {}}}\n  \
             targets: {{file: {{paths: ['{}'], refresh: 1s}}}}",
            model.name,
            variant.accelerator,
            variant.cost.per_hour(),
            variant.min,
            variant.max,
            Stage::targets_file(folder, name).display(),
        )
        .unwrap();
    }
    // Ports on which nobody listens, and no two variants may claim one.
    let nobody = |index: usize| {
        format!("targets: {{static: ['127.1.{}.{}:1']}}", index / 250, 1 + index % 250)
    };
    let target = nobody(idle);
    writeln!(text, "- name: hostile\n  namespace: other\n  model: '{HOSTILE}'\n  {target}")
        .unwrap();
    for index in 0..idle {
        let (name, model) = (format!("idle-{index:04}"), format!("idle/model-{:03}", index / 10));
        let target = nobody(index);
        writeln!(text, "- name: {name}\n  namespace: idle\n  model: {model}\n  {target}").unwrap();
    }
    text
}
