//! What the scenarios play on: control planes of which each serves one scenario at a time, and the
//! engines in them.

use std::fs;
use std::io::Write as _;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use k8s_openapi::api::apps::v1::Deployment;
use kube::{Api, Client};
use plimsoll::clock::Clock;
use plimsoll::collect::cluster;
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

use crate::engines::Engines;
use crate::wait::{ANSWER_MAX, PATIENCE, within};

const TOOLS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/tools");

/// How long a busy machine may keep the API server from reaching Plimsoll.
const REACHED_WITHIN: Duration = Duration::from_secs(30);

/// The words of kubectl for an answer that the API server did not get, or that it did not give.
const UNREACHED: [&str; 3] = [
    "the server is currently unable to handle the request",
    "the server was unable to return a response in the time allotted",
    "Unable to connect to the server",
];

const PLIMSOLL: &str = include_str!("manifests/plimsoll.yaml");
const VARIANT: &str = include_str!("manifests/variant.yaml");
/// The Service of the manifests, and the one whose endpoints the API server picks.
const NAMED_SERVICE: &str = "{type: ExternalName, externalName: ADDRESS, ports: [{port: 8443}]}";
const PICKED_SERVICE: &str = "{ports: [{name: https, port: 8443}]}";
/// The HPA is the one that users are given.
const HPA: &str = include_str!("../../examples/hpa.yaml");

/// What an API server logs.
const AUDIT: &str = "
apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [\"system:serviceaccount:plimsoll:plimsoll\"]}
- {level: None}
";

/// A control plane with Plimsoll's manifests applied, and engines in its pods.
pub(crate) struct Stage {
    /// Where it keeps its files.
    pub(crate) folder: PathBuf,
    /// `127.N`, the block of addresses that is its own.
    pub(crate) net: String,
    /// What the pods' engines say.
    pub(crate) engines: Engines,
    client: Client,
    browser: reqwest::Client,
    runtime: Runtime,
    kind: StageKind,
}

/// What a stage has beyond the usual.
#[derive(Clone, Copy, PartialEq, Eq)]
enum StageKind {
    /// Nothing. The Service's name leads to the address of one process.
    Plain,
    /// The API server picks an endpoint of the Service for each request.
    Endpoints,
    /// There are addresses for 6,000 pods. The API server logs each request of Plimsoll, and reads
    /// each page of a list from etcd, so that a list can be forgotten before its last page.
    Audited,
}

/// Stages on which nothing plays at the moment.
static FREE: Mutex<Vec<&Stage>> = Mutex::new(Vec::new());

/// A stage that one scenario has to itself until it drops this.
pub(crate) struct Lease {
    stage: &'static Stage,
    clock: Clock,
    began: Duration,
}

/// Lends a stage on which nothing plays, and builds one when there is none, so there are as many as
/// scenarios run at once. They end with this process.
pub(crate) fn stage() -> Lease {
    lend(StageKind::Plain)
}

/// The same, with an API server that picks one of the Service's endpoints for each request. The
/// scenario manages the endpoints.
pub(crate) fn stage_with_endpoints() -> Lease {
    lend(StageKind::Endpoints)
}

/// The same, with room for 6,000 pods and [`Stage::audit`].
pub(crate) fn stage_with_audit() -> Lease {
    lend(StageKind::Audited)
}

fn lend(kind: StageKind) -> Lease {
    let clock = Clock::start();
    let began = clock.elapsed();
    let free = {
        let mut all = FREE.lock().unwrap();
        let place = all.iter().position(|stage| stage.kind == kind);
        place.map(|place| all.swap_remove(place))
    };
    let stage = free.unwrap_or_else(|| Box::leak(Box::new(Stage::build(kind))));

    Lease { stage, clock, began }
}

impl Deref for Lease {
    type Target = Stage;

    fn deref(&self) -> &Stage {
        self.stage
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let took = self.clock.elapsed().saturating_sub(self.began).as_secs();
        let thread = std::thread::current();
        let scenario = thread.name().unwrap_or_default();
        let folder = self.stage.folder.display();
        // Past the capture of the tests' output, so that it is seen at once.
        let _ = writeln!(std::io::stderr(), "{took:>4} s  {scenario} in {folder}");

        FREE.lock().unwrap().push(self.stage);
    }
}

impl Stage {
    fn build(kind: StageKind) -> Self {
        static BUILT: AtomicU32 = AtomicU32::new(0);
        let folder = std::env::var_os("PLIMSOLL_E2E_DIR")
            .map_or_else(|| tempfile::tempdir().unwrap().keep(), PathBuf::from);
        let folder = folder.join(format!("stage-{}", BUILT.fetch_add(1, Ordering::Relaxed) + 1));
        let cluster = folder.join("cluster");
        fs::create_dir_all(&cluster).unwrap();
        let (nodes, flags) = match kind {
            StageKind::Plain => ("12", String::new()),
            StageKind::Endpoints => ("12", "--enable-aggregator-routing=true".to_owned()),
            StageKind::Audited => {
                let (policy, log) = (cluster.join("audit.yaml"), cluster.join("audit.log"));
                fs::write(&policy, AUDIT).unwrap();
                let policy = format!("--audit-policy-file {}", policy.display());
                let log = format!("--audit-log-path {}", log.display());
                ("24", format!("{policy} {log} --feature-gates ListFromCacheSnapshot=false"))
            }
        };
        let environment = [("NODES", nodes), ("APISERVER_ARGS", flags.as_str())];
        control_plane_with("up", &cluster, &[], &environment);
        control_plane("cert", &cluster, &["plimsoll", "plimsoll"]);
        let net = fs::read_to_string(cluster.join("net")).unwrap().trim().to_owned();
        let runtime = Runtime::new().unwrap();
        let admin = cluster.join("admin.kubeconfig");
        let client = runtime.block_on(cluster::client(Some(&admin), None)).unwrap();
        let engines = Engines::default();
        runtime.spawn(engines.clone().serve(client.clone()));
        // A connection that is kept would show the end of a process late.
        let browser = reqwest::Client::builder().pool_max_idle_per_host(0).build().unwrap();
        let stage = Self { folder, net, engines, client, browser, runtime, kind };
        stage.apply(&stage.manifests());
        control_plane("kubeconfig", &stage.cluster(), &["plimsoll", "plimsoll"]);
        stage
    }

    /// The manifests of Plimsoll, which are applied from the start.
    pub(crate) fn manifests(&self) -> String {
        let ca = fs::read(self.cluster().join("pki/serving-ca.crt")).unwrap();
        let ca = k8s_openapi::ByteString(ca);
        let ca = serde_json::to_string(&ca).unwrap();
        let manifests = match self.kind {
            StageKind::Plain | StageKind::Audited => PLIMSOLL.replace("ADDRESS", &self.address()),
            StageKind::Endpoints => PLIMSOLL.replace(NAMED_SERVICE, PICKED_SERVICE),
        };
        manifests.replace("CA_BUNDLE", &ca)
    }

    /// The control plane's folder.
    pub(crate) fn cluster(&self) -> PathBuf {
        self.folder.join("cluster")
    }

    /// The address on which Plimsoll listens.
    pub(crate) fn address(&self) -> String {
        format!("{}.200.1", self.net)
    }

    /// The address of another Plimsoll, which the API server does not ask.
    pub(crate) fn other_address(&self) -> String {
        format!("{}.200.2", self.net)
    }

    /// Runs kubectl as the cluster's administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(text) } else { Err(errors) }
    }

    /// The answer of Plimsoll to a request by way of the API server, or its error. On a busy machine
    /// the API server may not reach Plimsoll in time, and is asked again.
    pub(crate) fn raw(&self, path: &str) -> Result<String, String> {
        within(REACHED_WITHIN, &format!("an answer to {path}"), || {
            let answer = self.kubectl(&["get", "--raw", path]);
            let unreached = answer
                .as_ref()
                .is_err_and(|error| UNREACHED.iter().any(|words| error.contains(words)));
            (!unreached).then_some(answer)
        })
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new(tools().join("kubectl"));
        command.arg("--kubeconfig").arg(self.cluster().join("admin.kubeconfig"));
        command
    }

    /// Applies manifests.
    pub(crate) fn apply(&self, manifests: &str) {
        assert!(self.try_apply(manifests), "kubectl apply failed");
    }

    /// Applies manifests, if the API server takes them.
    pub(crate) fn try_apply(&self, manifests: &str) -> bool {
        self.feed(&["apply", "-f", "-"], manifests).is_some()
    }

    /// Creates objects that are too large to be applied.
    pub(crate) fn create(&self, manifests: &str) {
        assert!(self.feed(&["create", "-f", "-"], manifests).is_some(), "kubectl create failed");
    }

    /// A manifest as JSON.
    pub(crate) fn as_json(&self, manifest: &str) -> serde_json::Value {
        let arguments = ["create", "--dry-run=client", "-o", "json", "-f", "-"];
        serde_json::from_str(&self.feed(&arguments, manifest).unwrap()).unwrap()
    }

    /// Runs kubectl on manifests; `None` when it fails.
    fn feed(&self, arguments: &[&str], manifests: &str) -> Option<String> {
        let mut command = self.kubectl_command();
        let child = command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn();
        let mut child = child.unwrap();
        child.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// A client with the administrator's rights.
    pub(crate) fn client(&self) -> Client {
        self.client.clone()
    }

    /// Runs a task beside the scenario.
    pub(crate) fn spawn<F>(&self, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(task)
    }

    /// Waits for a request.
    pub(crate) fn run<F: Future>(&self, request: F) -> F::Output {
        self.runtime.block_on(request)
    }

    /// Makes a namespace with the variant `llama`, of so many replicas, and the HPA that scales it.
    pub(crate) fn open(&self, namespace: &str, replicas: u32) {
        self.open_within(namespace, replicas, PATIENCE);
    }

    /// The same, with another patience.
    pub(crate) fn open_within(&self, namespace: &str, replicas: u32, patience: Duration) {
        self.deploy(namespace, replicas, patience);
        self.apply(&HPA.replace("namespace: shop", &format!("namespace: {namespace}")));
    }

    /// The same without the HPA.
    pub(crate) fn deploy(&self, namespace: &str, replicas: u32, patience: Duration) {
        let variant = VARIANT.replace("NAMESPACE", namespace);
        self.apply(&variant.replace("REPLICAS", &replicas.to_string()));
        let ready = || (self.engines.ready(namespace) == replicas).then_some(());
        within(patience, &format!("{replicas} ready pods in {namespace}"), ready);
    }

    /// The replicas that the Deployment is asked for; `None` while the API server is away.
    pub(crate) fn replicas(&self, namespace: &str) -> Option<u32> {
        let api: Api<Deployment> = Api::namespaced(self.client.clone(), namespace);
        let deployment = self.runtime.block_on(api.get("llama")).ok()?;
        deployment.spec?.replicas?.try_into().ok()
    }

    /// The requests of Plimsoll, one line of JSON for each. A watch has two: it has begun, and it
    /// has ended.
    pub(crate) fn audit(&self) -> Vec<serde_json::Value> {
        let log = fs::read_to_string(self.cluster().join("audit.log")).unwrap_or_default();
        // The last line may be half written.
        log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The page at a URL; `None` while nothing answers there.
    pub(crate) fn page(&self, url: &str) -> Option<String> {
        let get = async {
            let answer = self.browser.get(url).timeout(ANSWER_MAX).send();
            answer.await?.error_for_status()?.text().await
        };
        self.runtime.block_on(get).ok()
    }

    /// Has the API server look at the provider now; on its own it looks every half minute.
    pub(crate) fn look_again(&self) {
        let name = "apiservice/v1beta1.external.metrics.k8s.io";
        let now = format!("plimsoll.test/look-again={}", rand::random::<u32>());
        self.kubectl(&["annotate", "--overwrite", name, &now]).unwrap();
    }

    /// Ends the API server and starts it again.
    pub(crate) fn restart_api_server(&self) {
        control_plane("restart", &self.cluster(), &["kube-apiserver"]);
    }

    /// Ends etcd by force: the API server answers, and reads nothing that it does not know.
    pub(crate) fn kill_etcd(&self) {
        let process = fs::read_to_string(self.cluster().join("run/etcd.pid")).unwrap();
        let id = process.split_whitespace().next().unwrap();
        assert!(Command::new("kill").args(["-KILL", id]).status().unwrap().success());
    }

    /// Starts etcd again.
    pub(crate) fn restart_etcd(&self) {
        control_plane("restart", &self.cluster(), &["etcd"]);
    }
}

/// Where the programs are.
pub(crate) fn tools() -> PathBuf {
    let cache = || {
        let home = PathBuf::from(std::env::var_os("HOME").unwrap());
        std::env::var_os("XDG_CACHE_HOME").map_or_else(|| home.join(".cache"), PathBuf::from)
    };
    std::env::var_os("TOOLS").map_or_else(|| cache().join("plimsoll/tools"), PathBuf::from)
}

/// Runs a command on a control plane.
pub(crate) fn control_plane(command: &str, folder: &Path, arguments: &[&str]) {
    control_plane_with(command, folder, arguments, &[]);
}

fn control_plane_with(
    command: &str,
    folder: &Path,
    arguments: &[&str],
    environment: &[(&str, &str)],
) {
    let status = Command::new(Path::new(TOOLS).join("control-plane"))
        .arg(command)
        .arg(folder)
        .args(arguments)
        .envs(environment.iter().copied())
        .env("TOOLS", tools())
        .env("OWNER", std::process::id().to_string())
        .status()
        .unwrap();
    assert!(status.success(), "control-plane {command} failed");
}
