//! Plimsoll as a process.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use crate::engines::PORT;
use crate::page::MODEL;
use crate::stage::Stage;
use crate::wait::until;

/// Which of two that take turns.
#[derive(Clone, Copy)]
pub(crate) enum Replica {
    /// The one that the API server asks.
    First,
    /// The one that it does not ask.
    Second,
}

/// A running Plimsoll. Dropping it ends it by force.
pub(crate) struct Daemon {
    child: Child,
    log: PathBuf,
    url: String,
}

/// How Plimsoll knows of the variant.
#[derive(Clone, Copy)]
pub(crate) enum Knows {
    /// It is in the configuration.
    ByConfiguration,
    /// It looks through the cluster.
    ByDiscovery,
}

impl Daemon {
    /// Starts Plimsoll for the variant of one namespace, and waits until it is ready and the API
    /// server has seen it.
    pub(crate) fn start(stage: &Stage, namespace: &str) -> Self {
        Self::start_with(stage, namespace, "")
    }

    /// The same with more sections in its configuration.
    pub(crate) fn start_with(stage: &Stage, namespace: &str, sections: &str) -> Self {
        let configuration = configuration(stage, namespace, Knows::ByConfiguration);
        let configuration = if sections.contains("analysis:") {
            configuration.replace("analysis: saturation\n", "")
        } else {
            configuration
        };
        let daemon = Self::launch(stage, namespace, &(sections.to_owned() + &configuration));
        Self::wait_until_registered(stage);
        daemon
    }

    /// The same, with another way to know of the variant.
    pub(crate) fn start_knowing(stage: &Stage, namespace: &str, knows: Knows) -> Self {
        let configuration = configuration(stage, namespace, knows);
        let daemon = Self::launch(stage, namespace, &configuration);
        Self::wait_until_registered(stage);
        daemon
    }

    /// The same, as one of two of which one decides.
    pub(crate) fn start_replica(stage: &Stage, namespace: &str, replica: Replica) -> Self {
        let (name, address) = match replica {
            Replica::First => ("first", stage.address()),
            Replica::Second => ("second", stage.other_address()),
        };
        let election = election(&format!("{namespace}-{name}"));
        let alone = configuration(stage, namespace, Knows::ByConfiguration);
        let configuration =
            alone.replace(&stage.address(), &address).replace("kubernetes:", &election);
        assert!(configuration.contains(&election), "{configuration}");
        let folder = format!("{namespace}-{name}");
        let daemon = Self::launch_at(stage, &folder, &configuration, &address);
        if matches!(replica, Replica::First) {
            Self::wait_until_registered(stage);
        }
        daemon
    }

    /// Waits until the API server has seen it.
    pub(crate) fn wait_until_registered(stage: &Stage) {
        stage.look_again();
        until("the APIService available", || {
            let path = "jsonpath={.status.conditions[?(@.type==\"Available\")].status}";
            let name = "v1beta1.external.metrics.k8s.io";
            let status = stage.kubectl(&["get", "apiservice", name, "-o", path]).ok()?;
            (status == "True").then_some(())
        });
    }

    /// Starts Plimsoll with a configuration, which may take long to become ready.
    pub(crate) fn begin(stage: &Stage, folder: &str, configuration: &str) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
        Self::spawn(stage, folder, configuration, &stage.address(), program)
    }

    /// Starts Plimsoll with a configuration, and waits until it is ready.
    pub(crate) fn launch(stage: &Stage, folder: &str, configuration: &str) -> Self {
        Self::launch_at(stage, folder, configuration, &stage.address())
    }

    /// The same at an address.
    pub(crate) fn launch_at(
        stage: &Stage,
        folder: &str,
        configuration: &str,
        address: &str,
    ) -> Self {
        let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
        Self::launch_program(stage, folder, configuration, address, program)
    }

    /// The same on an address, with a program that may be of another release.
    pub(crate) fn launch_program(
        stage: &Stage,
        folder: &str,
        configuration: &str,
        address: &str,
        program: &Path,
    ) -> Self {
        let mut daemon = Self::spawn(stage, folder, configuration, address, program);
        until("Plimsoll ready", || {
            if let Some(status) = daemon.child.try_wait().unwrap() {
                panic!("Plimsoll ended with {status}:\n{}", daemon.log());
            }
            stage.page(&format!("{}/readyz", daemon.url)).map(|_| ())
        });
        daemon
    }

    /// The same, without waiting until it is ready.
    fn spawn(
        stage: &Stage,
        folder: &str,
        configuration: &str,
        address: &str,
        program: &Path,
    ) -> Self {
        let folder = stage.folder.join(folder);
        fs::create_dir_all(&folder).unwrap();
        let (config, log) = (folder.join("plimsoll.yaml"), folder.join("plimsoll.log"));
        fs::write(&config, configuration).unwrap();
        let output = File::options().append(true).create(true).open(&log).unwrap();
        // A test that is ended by force must not leave its daemon behind.
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(program)
            .args(["run", "--config"])
            .arg(&config)
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log, url: format!("http://{address}:8080") }
    }

    /// What it has logged.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    /// The value of the series of one of its gauges whose labels contain these; `None` while there
    /// is none.
    pub(crate) fn gauge(&self, stage: &Stage, name: &str, labels: &[&str]) -> Option<u32> {
        self.gauge_text(stage, name, labels)?.parse().ok()
    }

    /// The same, as it is written.
    pub(crate) fn gauge_text(&self, stage: &Stage, name: &str, labels: &[&str]) -> Option<String> {
        let page = stage.page(&format!("{}/metrics", self.url))?;
        let of = |line: &&str| {
            line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']))
                && labels.iter().all(|label| line.contains(label))
        };
        Some(page.lines().find(of)?.rsplit(' ').next()?.to_owned())
    }

    /// The number that it publishes.
    pub(crate) fn desired(&self, stage: &Stage) -> Option<u32> {
        self.gauge(stage, "plimsoll_desired_replicas", &["variant=\"llama\""])
    }

    /// The health of it and of its fleet.
    pub(crate) fn status(&self, stage: &Stage) -> Option<serde_json::Value> {
        serde_json::from_str(&stage.page(&format!("{}/api/v1/status", self.url))?).ok()
    }

    /// What it has decided of everything, and why.
    pub(crate) fn decisions(&self, stage: &Stage) -> Option<String> {
        stage.page(&format!("{}/api/v1/decisions", self.url))
    }

    /// Waits until it has ended in order.
    pub(crate) fn wait(&mut self) {
        let status = until("the end of Plimsoll", || self.child.try_wait().unwrap());
        assert!(status.success(), "Plimsoll ended with {status}:\n{}", self.log());
    }

    /// A line about memory of its status in /proc, such as `VmHWM`, in MiB.
    pub(crate) fn memory(&self, line: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let mut lines = status.lines().filter_map(|it| it.strip_prefix(line)?.strip_prefix(':'));
        let amount = lines.next().unwrap().trim().strip_suffix(" kB").unwrap();
        amount.parse::<u64>().unwrap() >> 10
    }

    /// Limits the files that it may have open.
    pub(crate) fn limit_files(&self, most: u32) {
        let id = self.child.id().to_string();
        let limit = format!("--nofile={most}:");
        let status = Command::new("prlimit").args(["--pid", &id, &limit]).status();
        assert!(status.unwrap().success());
    }

    /// Sends it a signal.
    pub(crate) fn signal(&self, signal: &str) {
        let status = Command::new("kill").arg(signal).arg(self.child.id().to_string()).status();
        assert!(status.unwrap().success());
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // It is gone already when the test killed it.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The start of the section about the cluster, for one of several replicas. A machine that stands
/// still for some seconds costs no leader the Lease.
pub(crate) fn election(identity: &str) -> String {
    format!(
        "kubernetes:
  leader_election: {{enabled: true, namespace: plimsoll, identity: {identity},
                    lease_duration: 15s, renew_deadline: 10s, retry_period: 500ms}}"
    )
}

/// The configuration for the variant of one namespace, with everything that needs a cluster.
pub(crate) fn configuration(stage: &Stage, namespace: &str, knows: Knows) -> String {
    let address = stage.address();
    let cluster = stage.cluster();
    let cluster = cluster.display();
    let (discovery, variants) = match knows {
        Knows::ByDiscovery => (true, "[]".to_owned()),
        Knows::ByConfiguration => (false, declared(namespace)),
    };
    format!(
        "server: {{listen: \"{address}:8080\"}}
external_metrics:
  enabled: true
  listen: \"{address}:8443\"
  tls: {{cert_file: {cluster}/pki/plimsoll.plimsoll.crt, key_file: {cluster}/pki/plimsoll.plimsoll.key}}
kubernetes:
  enabled: true
  kubeconfig: {cluster}/plimsoll.plimsoll.kubeconfig
  discovery: {{enabled: {discovery}}}
compatibility: {{wva_metrics: {discovery}}}
tick_interval: 1s
observe: {{window: 5s, stale_after: 4s}}
analysis: saturation
enforce: {{scale_down: {{stabilization_window: 5s}}}}
scrape: {{interval: 1s, timeout: 1s, port: {PORT}}}
variants: {variants}
"
    )
}

fn declared(namespace: &str) -> String {
    format!(
        "
- name: llama
  namespace: {namespace}
  model: {MODEL}
  cost: 1
  targets: {{scale_target: {{api_version: apps/v1, kind: Deployment, name: llama}}}}"
    )
}
