//! A scene: the daemon, the simulated fleet that it scales, and everyone who looks on.
//!
//! A replica is full at a load of 1, and Plimsoll keeps a spare of a tenth below its threshold of
//! 0.8: so `n` replicas carry a load of up to `0.7 * n`.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use plimsoll::clock::Clock;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::cluster;
use crate::daemon::{Daemon, Launch};
use crate::external_metrics_harness::{Use, Validity, write_leaf};
use crate::fleet::Fleet;
use crate::gate::{Gate, Way};
use crate::it::cluster::fake::FakeCluster;
use crate::page::MODEL;
use crate::watcher::{Credentials, Endpoint, Noticed, RESIDENT_MAX, Watcher};

/// The load that three replicas carry, and two do not.
pub(crate) const LOAD: f64 = 2.0;

/// A load that four replicas carry, and three do not.
pub(crate) const MORE: f64 = 2.7;

/// A load that one replica carries.
pub(crate) const LESS: f64 = 0.3;

/// The time that a fault lasts. Without a fault, a lower load takes replicas away within it.
pub(crate) const FAULT: Duration = Duration::from_secs(8);

/// The time after which something that should happen has not happened.
const PATIENCE: Duration = Duration::from_secs(90);

/// What differs between scenes.
pub(crate) struct Setting {
    pub(crate) replicas: u32,
    pub(crate) load: f64,
    /// Daemons that serve one API. Two and more elect a leader.
    pub(crate) daemons: usize,
    pub(crate) elects: bool,
    /// Changes the configuration.
    pub(crate) configure: fn(&mut Value),
    pub(crate) launch: Launch,
}

/// One daemon of a scene.
struct Member {
    config: PathBuf,
    daemon: Daemon,
    gate: Gate,
}

/// A running scene. Dropping it ends everything.
pub(crate) struct Scene {
    pub(crate) fleet: Arc<Fleet>,
    pub(crate) fake: Arc<tokio::sync::Mutex<FakeCluster>>,
    pub(crate) folder: TempDir,
    pub(crate) credentials: Credentials,
    pub(crate) watcher: Watcher,
    pub(crate) launch: Launch,
    members: Vec<Member>,
    clock: Clock,
    _playing: JoinSet<()>,
}

/// What was found out in a scene.
#[derive(Clone, Debug, Default)]
pub(crate) struct Finding {
    /// What was observed, beside what every scene observes.
    pub(crate) note: String,
    /// From the end of the fault until the right number is served, in seconds.
    pub(crate) recovery: Option<f64>,
    pub(crate) noticed: Noticed,
}

// === impl Setting ===

impl Default for Setting {
    fn default() -> Self {
        Self {
            replicas: 3,
            load: LOAD,
            daemons: 1,
            elects: false,
            configure: |_| {},
            launch: Launch::default(),
        }
    }
}

// === impl Scene ===

impl Scene {
    /// Starts everything, and waits until the HPA gets the right number.
    pub(crate) async fn start(setting: &Setting) -> Result<Self> {
        let replicas = setting.replicas;
        let scene = Self::open(setting).await?;
        scene.until(replicas).await.context("before the fault")?;
        scene.watcher.floor(replicas);
        Ok(scene)
    }

    /// Starts everything, and waits for nothing.
    pub(crate) async fn open(setting: &Setting) -> Result<Self> {
        let mut scene = Self::set_up(setting).await?;
        for _ in 0..setting.daemons {
            scene.join(setting).await?;
        }
        Ok(scene)
    }

    /// Everything but the daemons.
    pub(crate) async fn set_up(setting: &Setting) -> Result<Self> {
        let credentials = Credentials::new();
        let fleet = Arc::new(Fleet::start(setting.load).await);
        let fake =
            Arc::new(tokio::sync::Mutex::new(cluster::create(&credentials.front_proxy.pem).await));
        {
            let fake = fake.lock().await;
            cluster::scale(&fake, setting.replicas);
            cluster::run_pods(&fake, setting.replicas);
        }
        fleet.share(setting.replicas);

        let watcher = Watcher::new();
        let mut playing = JoinSet::new();
        playing.spawn(watcher.clone().probe());
        playing.spawn(watcher.clone().weigh());
        playing.spawn(watcher.clone().ask(follow(&fake, &fleet, setting.replicas)));
        Ok(Self {
            fleet,
            fake,
            folder: tempfile::tempdir()?,
            credentials,
            watcher,
            launch: setting.launch.clone(),
            members: Vec::new(),
            clock: Clock::start(),
            _playing: playing,
        })
    }

    /// Starts one more daemon, which is asked as soon as it is ready.
    pub(crate) async fn join(&mut self, setting: &Setting) -> Result<()> {
        self.launch_one(setting).await?;
        let index = self.members.len() - 1;
        self.until_ready(index).await?;
        self.introduce(index)
    }

    /// Starts one more daemon, which is not asked yet.
    pub(crate) async fn launch_one(&mut self, setting: &Setting) -> Result<()> {
        let server = self.server().await;
        let gate = Gate::start(server).await;
        let folder = self.folder.path().join(format!("daemon-{}", self.members.len()));
        fs::create_dir_all(folder.join("state"))?;
        let config = folder.join("plimsoll.yaml");
        fs::write(folder.join("kubeconfig"), kubeconfig(gate.address).to_string())?;
        let leaf = self.credentials.serving.issue("plimsoll", Use::Server, Validity::Now);
        write_leaf(&folder, &leaf);
        let mut text = configuration(&self.fleet);
        if setting.elects {
            let identity = format!("daemon-{}", self.members.len());
            text["kubernetes"]["leader_election"] = json!({
                "enabled": true, "namespace": "plimsoll", "identity": identity,
                "lease_duration": "3s", "renew_deadline": "2s", "retry_period": "200ms",
            });
        }
        (setting.configure)(&mut text);
        fs::write(&config, text.to_string())?;

        let daemon = Box::pin(Daemon::start(&config, &self.launch)).await?;
        self.members.push(Member { config, daemon, gate });
        Ok(())
    }

    async fn server(&self) -> SocketAddr {
        let url = self.fake.lock().await.url();
        url.trim_start_matches("http://").parse().expect("an address")
    }

    /// Makes a daemon known to those who look on.
    pub(crate) fn introduce(&self, index: usize) -> Result<()> {
        let daemon = &self.members[index].daemon;
        let endpoint =
            Endpoint::new(&self.credentials, daemon.process(), daemon.plain, daemon.tls)?;
        self.watcher.put(index, endpoint);
        Ok(())
    }

    pub(crate) fn daemon(&self, index: usize) -> &Daemon {
        &self.members[index].daemon
    }

    /// The configuration file of the first daemon.
    pub(crate) fn config(&self) -> PathBuf {
        self.members[0].config.clone()
    }

    /// The way of a daemon to the API server.
    pub(crate) fn set_way(&self, index: usize, way: Way) {
        self.members[index].gate.set(way);
    }

    /// Ends a daemon by force.
    pub(crate) fn kill(&mut self, index: usize) {
        self.watcher.expect_answers(index, false);
        self.members[index].daemon.kill();
    }

    /// Starts a daemon again that has ended. It is asked as soon as it is ready.
    pub(crate) async fn restart(&mut self, index: usize) -> Result<()> {
        let daemon = Box::pin(Daemon::start(&self.members[index].config, &self.launch)).await?;
        self.members[index].daemon = daemon;
        self.until_ready(index).await?;
        self.introduce(index)
    }

    /// Waits until a daemon is ready, as a kubelet sees it.
    pub(crate) async fn until_ready(&self, index: usize) -> Result<()> {
        let url = format!("http://{}/readyz", self.members[index].daemon.plain);
        let until = self.clock.elapsed() + PATIENCE;
        while self.clock.elapsed() < until {
            if reqwest::get(&url).await.is_ok_and(|it| it.status() == 200) {
                return Ok(());
            }
            sleep(Duration::from_millis(20)).await;
        }
        bail!("the daemon is not ready")
    }

    /// Waits until a daemon has ended by itself.
    pub(crate) async fn until_ended(&mut self, index: usize) -> Result<()> {
        self.members[index].daemon.ended().await
    }

    /// The value of the first sample of a daemon's metrics that begins like this.
    pub(crate) async fn sample_of(&self, index: usize, start: &str) -> Result<Option<f64>> {
        let url = format!("http://{}/metrics", self.members[index].daemon.plain);
        let page = reqwest::get(url).await?.text().await?;
        let line = page.lines().find(|line| line.starts_with(start));
        let value = line.and_then(|line| line.rsplit(' ').next());
        Ok(value.map(str::parse).transpose()?)
    }

    /// Waits until a sample has such a value.
    pub(crate) async fn until_sample(
        &self,
        index: usize,
        start: &str,
        is: impl Fn(f64) -> bool,
    ) -> Result<f64> {
        let mut last = None;
        let until = self.clock.elapsed() + PATIENCE;
        while self.clock.elapsed() < until {
            last = self.sample_of(index, start).await.ok().flatten();
            if let Some(value) = last.filter(|value| is(*value)) {
                return Ok(value);
            }
            sleep(Duration::from_millis(100)).await;
        }
        bail!("{start} is still {last:?}")
    }

    /// Asks the first daemon to read its configuration again, and returns its status.
    pub(crate) async fn reload(&self) -> Result<u16> {
        let url = format!("http://{}/-/reload", self.members[0].daemon.plain);
        Ok(reqwest::Client::new().post(url).send().await?.status().as_u16())
    }

    /// Waits until the HPA gets this number, and returns how long it took, in seconds.
    pub(crate) async fn until(&self, replicas: u32) -> Result<f64> {
        let began = self.clock.elapsed();
        while self.watcher.number() != Some(replicas) {
            if self.clock.elapsed() > began + PATIENCE {
                let number = self.watcher.number();
                let log = self.members.first().map(|it| it.daemon.log()).unwrap_or_default();
                let tail: Vec<&str> = log.lines().rev().take(5).collect();
                bail!("{number:?} replicas, not {replicas}; {tail:#?}");
            }
            sleep(Duration::from_millis(20)).await;
        }
        Ok(self.clock.elapsed().saturating_sub(began).as_secs_f64())
    }

    /// The fault is over: the load rises, and the number must follow. Returns the seconds.
    pub(crate) async fn recover(&self) -> Result<f64> {
        self.fleet.load(MORE);
        self.until(4).await.context("after the fault")
    }

    /// Everything that was noticed, after the last checks.
    pub(crate) fn finish(mut self, note: impl Into<String>, recovery: Option<f64>) -> Finding {
        for member in &mut self.members {
            let log = member.daemon.log();
            if let Some(line) = log.lines().find(|line| line.contains("panicked")) {
                self.watcher.break_rule(format!("a panic: {line}"));
            }
            if !member.daemon.is_alive() {
                self.watcher.break_rule("the daemon has ended".to_owned());
            }
        }

        let mut noticed = self.watcher.noticed();
        if noticed.usage.resident > RESIDENT_MAX {
            noticed.broken.push(format!("{:.0} MiB are resident", noticed.usage.resident));
        }
        if noticed.answered == 0 {
            noticed.broken.push("no HPA request was answered".to_owned());
        }
        Finding { note: note.into(), recovery, noticed }
    }
}

/// What an HPA and a kubelet do with a number: the Deployment and its pods follow it.
fn follow(
    fake: &Arc<tokio::sync::Mutex<FakeCluster>>,
    fleet: &Arc<Fleet>,
    replicas: u32,
) -> impl Fn(u32) + Send + 'static {
    let (fake, fleet) = (Arc::clone(fake), Arc::clone(fleet));
    let last = std::sync::atomic::AtomicU32::new(replicas);
    move |number| {
        let Ok(fake) = fake.try_lock() else { return };
        if last.swap(number, std::sync::atomic::Ordering::Relaxed) != number {
            cluster::scale(&fake, number);
            cluster::run_pods(&fake, number);
            fleet.share(number);
        }
    }
}

fn kubeconfig(api_server: SocketAddr) -> Value {
    let url = format!("http://{api_server}");
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "it",
        "clusters": [{"name": "it", "cluster": {"server": url}}],
        "users": [{"name": "it", "user": {}}],
        "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
    })
}

/// Short times, so that a fault outlasts all of them.
fn configuration(fleet: &Fleet) -> Value {
    json!({
        "server": {"listen": "127.0.0.1:0"},
        "external_metrics": {
            "listen": "127.0.0.1:0",
            "tls": {"cert_file": "tls.crt", "key_file": "tls.key"},
        },
        "shutdown": {"delay": "1s", "drain": "5s"},
        "kubernetes": {"enabled": true, "kubeconfig": "kubeconfig", "events": true},
        "tick_interval": "200ms",
        "state_file": "state/state.json",
        "observe": {"window": "2s", "stale_after": "2s"},
        "analysis": "saturation",
        "enforce": {"scale_down": {"stabilization_window": "1s"}, "flap_budget": 120},
        "scrape": {"interval": "800ms", "timeout": "800ms", "port": fleet.port},
        "variants": [{
            "name": "llama", "namespace": "shop", "model": MODEL, "cost": 1,
            "targets": {"scale_target":
                {"api_version": "apps/v1", "kind": "Deployment", "name": "llama"}},
        }],
    })
}
