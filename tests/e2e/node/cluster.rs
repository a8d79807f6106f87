//! The cluster that `tests/e2e/run-node` has started, and the release in it.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use plimsoll::collect::cluster::client;
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::wait::until;

/// The image that `tests/e2e/run-node` has given to the nodes.
pub(crate) const IMAGE: &str = "registry.example/plimsoll:node";

/// The path of the number that the HPA follows.
pub(crate) const METRIC: &str = "/apis/external.metrics.k8s.io/v1beta1/namespaces/shop/\
                                 plimsoll_desired_replicas?labelSelector=variant%3Dllama";

const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/charts/plimsoll");
const NODE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/tools/node");
const ENGINES: &str = include_str!("../../../examples/engines.yaml");

const VALUES: &str = "
image: {repository: registry.example/plimsoll, tag: node, pullPolicy: Never}
config:
  observe: {window: 10s, stale_after: 5s}
  analysis: saturation
  enforce: {scale_down: {stabilization_window: 10s}}
  variants:
  - name: llama
    namespace: shop
    model: meta-llama/Llama-3.1-8B-Instruct
    accelerator: L40S
    targets: {scale_target: {api_version: apps/v1, kind: Deployment, name: llama}}
";

/// The cluster, with engines.
pub(crate) struct Cluster {
    folder: PathBuf,
    pub(crate) client: kube::Client,
    pub(crate) runtime: Runtime,
    /// The load of all engines together, in requests per second.
    load: Mutex<f64>,
}

/// A pod of the release.
#[derive(Clone, Debug)]
pub(crate) struct Pod {
    pub(crate) name: String,
    pub(crate) node: String,
    object: Value,
}

/// The cluster, whose engines are made at the first call.
pub(crate) fn cluster() -> &'static Cluster {
    static CLUSTER: OnceLock<&'static Cluster> = OnceLock::new();
    CLUSTER.get_or_init(Cluster::open)
}

// === impl Pod ===

impl Pod {
    pub(crate) fn address(&self) -> &str {
        self.object["status"]["podIP"].as_str().unwrap_or_default()
    }

    pub(crate) fn uid(&self) -> &str {
        self.object["metadata"]["uid"].as_str().unwrap()
    }

    pub(crate) fn container(&self) -> &str {
        self.status()["containerID"].as_str().unwrap().trim_start_matches("containerd://")
    }

    pub(crate) fn restarts(&self) -> u64 {
        self.status()["restartCount"].as_u64().unwrap_or_default()
    }

    pub(crate) fn last_exit(&self) -> Option<i64> {
        let status = self.status();
        let ended = [&status["lastState"]["terminated"], &status["state"]["terminated"]];
        ended.into_iter().find_map(|it| it["exitCode"].as_i64())
    }

    pub(crate) fn last_reason(&self) -> Option<&str> {
        self.status()["lastState"]["terminated"]["reason"].as_str()
    }

    pub(crate) fn waits_for(&self, reason: &str) -> bool {
        self.status()["state"]["waiting"]["reason"] == reason
    }

    pub(crate) fn is_ready(&self) -> bool {
        self.status()["ready"] == true
    }

    fn status(&self) -> &Value {
        &self.object["status"]["containerStatuses"][0]
    }
}

// === impl Cluster ===

impl Cluster {
    fn open() -> &'static Self {
        let named = std::env::var_os("PLIMSOLL_NODE_DIR");
        let folder = PathBuf::from(named.expect("tests/e2e/run-node sets PLIMSOLL_NODE_DIR"));
        let runtime = Runtime::new().unwrap();
        let admin = folder.join("cluster/admin.kubeconfig");
        let client = runtime.block_on(client(Some(&admin), None)).unwrap();
        fs::write(folder.join("values.yaml"), VALUES).unwrap();
        let cluster: &'static Self =
            Box::leak(Box::new(Self { folder, client, runtime, load: Mutex::new(0.0) }));

        cluster.kubectl(&["create", "namespace", "shop"]).unwrap();
        cluster.apply(&ENGINES.replace("IMAGE", IMAGE));
        std::thread::spawn(|| {
            loop {
                cluster.share_load();
                std::thread::sleep(Duration::from_millis(500));
            }
        });
        until("an engine", || (cluster.ready_engines().len() == 1).then_some(()));
        cluster
    }

    pub(crate) fn helm(&self, command: &str, set: &[&str]) {
        let values = self.folder.join("values.yaml");
        let mut helm = Command::new("helm");
        helm.args([command, "plimsoll", CHART, "-n", "plimsoll", "--values"]).arg(values);
        if command == "install" {
            helm.arg("--create-namespace");
        }
        for set in set {
            helm.args(["--set", set]);
        }
        for kind in ["cache", "config", "data"] {
            let name = format!("HELM_{}_HOME", kind.to_uppercase());
            helm.env(name, self.folder.join("helm").join(kind));
        }

        let output = helm.output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm {command} {set:?}: {errors}");
    }

    /// Runs kubectl as the cluster's administrator.
    pub(crate) fn kubectl(&self, arguments: &[&str]) -> Result<String, String> {
        let output = self.kubectl_command().args(arguments).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr).into_owned();
        if output.status.success() { Ok(text) } else { Err(errors) }
    }

    fn kubectl_command(&self) -> Command {
        let mut command = Command::new("kubectl");
        command.env("KUBECONFIG", self.folder.join("cluster/admin.kubeconfig"));
        command
    }

    pub(crate) fn apply(&self, manifests: &str) {
        let mut command = self.kubectl_command();
        command.args(["apply", "-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(manifests.as_bytes()).unwrap();
        assert!(child.wait().unwrap().success(), "kubectl apply failed");
    }

    /// Runs a command of `tests/e2e/tools/node` on the node with this name.
    pub(crate) fn node(&self, command: &str, node: &str) {
        let number = node.trim_start_matches("node-");
        let status = Command::new(NODE).arg(command).arg(&self.folder).arg(number).status();
        assert!(status.unwrap().success(), "{command} {node}");
    }

    fn get(&self, arguments: &[&str]) -> Value {
        let all = [&["get", "-o", "json"], arguments].concat();
        serde_json::from_str(&self.kubectl(&all).unwrap()).unwrap()
    }

    /// Waits until the API server reaches the release.
    pub(crate) fn available(&self) {
        let api_service = "apiservice/v1beta1.external.metrics.k8s.io";
        let wait = ["wait", api_service, "--for=condition=Available", "--timeout=3m"];
        self.kubectl(&wait).unwrap();
    }

    /// Waits until the last upgrade is rolled out, and no older pod is left.
    pub(crate) fn rolled_out(&self) {
        let status = ["rollout", "status", "deployment/plimsoll", "-n", "plimsoll", "--timeout=3m"];
        self.kubectl(&status).unwrap();
        let replicas = self.get(&["deployment", "plimsoll", "-n", "plimsoll"])["spec"]["replicas"]
            .as_u64()
            .unwrap();
        until("only the pods of the last upgrade", || {
            (self.plimsoll_pods().len() as u64 == replicas).then_some(())
        });
    }

    /// The pods of the release, oldest first.
    pub(crate) fn plimsoll_pods(&self) -> Vec<Pod> {
        let selector = "--selector=app.kubernetes.io/instance=plimsoll";
        let sort = "--sort-by=.metadata.creationTimestamp";
        let list = self.get(&["pods", "-n", "plimsoll", selector, sort]);
        let items = list["items"].as_array().unwrap().iter().map(|object| Pod {
            name: object["metadata"]["name"].as_str().unwrap().to_owned(),
            node: object["spec"]["nodeName"].as_str().unwrap_or_default().to_owned(),
            object: object.clone(),
        });
        items.collect()
    }

    pub(crate) fn only_pod(&self) -> Pod {
        let pods = self.plimsoll_pods();
        assert_eq!(pods.len(), 1, "{pods:?}");
        pods.into_iter().next().unwrap()
    }

    /// The pod that holds the lease.
    pub(crate) fn leader(&self) -> Pod {
        until("a leader", || {
            let lease = self.get(&["lease", "plimsoll", "-n", "plimsoll"]);
            let holder = lease["spec"]["holderIdentity"].as_str()?.to_owned();
            self.plimsoll_pods().into_iter().find(|pod| holder.starts_with(&pod.name))
        })
    }

    pub(crate) fn log(&self, pod: &str) -> String {
        self.kubectl(&["logs", pod, "-n", "plimsoll"]).unwrap()
    }

    pub(crate) fn is_ready(&self, node: &str) -> bool {
        let path = "jsonpath={.status.conditions[?(@.type==\"Ready\")].status}";
        self.kubectl(&["get", "node", node, "-o", path]).unwrap() == "True"
    }

    /// The number that an HPA gets.
    pub(crate) fn desired(&self) -> Option<u32> {
        let answer = self.kubectl(&["get", "--raw", METRIC]).ok()?;
        let list: Value = serde_json::from_str(&answer).unwrap();
        list["items"][0]["value"].as_str()?.parse().ok()
    }

    /// The replicas of the engines' Deployment.
    pub(crate) fn engines(&self) -> u64 {
        let deployment = self.get(&["deployment", "llama", "-n", "shop"]);
        deployment["spec"]["replicas"].as_u64().unwrap()
    }

    /// The addresses of engines that serve.
    pub(crate) fn ready_engines(&self) -> Vec<String> {
        let slices = self.get(&[
            "endpointslices",
            "-n",
            "shop",
            "--selector=kubernetes.io/service-name=llama",
        ]);
        let endpoints = slices["items"].as_array().unwrap().iter();
        endpoints
            .flat_map(|slice| slice["endpoints"].as_array().cloned().unwrap_or_default())
            .filter(|endpoint| endpoint["conditions"]["ready"] == true)
            .filter_map(|endpoint| endpoint["addresses"][0].as_str().map(str::to_owned))
            .collect()
    }

    /// Opens many connections to a pod at once, each with a request for its metrics.
    pub(crate) fn crowd(&self, pod: &Pod) {
        let url = format!("http://{}:8080/metrics", pod.address());
        self.runtime.block_on(async {
            let ask = || async {
                let request = reqwest::Client::new().get(&url).timeout(Duration::from_secs(2));
                // The pod may end at any time.
                let _ = request.send().await;
            };
            futures_util::future::join_all((0..60).map(|_| ask())).await;
        });
    }

    /// Sets the load of all engines together, in requests per second.
    pub(crate) fn load(&self, load: f64) {
        *self.load.lock().unwrap() = load;
        self.share_load();
    }

    /// Divides the load among the engines that serve, as a router does.
    fn share_load(&self) {
        let engines = self.ready_engines();
        let share = *self.load.lock().unwrap() / engines.len().max(1) as f64;
        let shares: BTreeMap<String, f64> = engines.into_iter().map(|it| (it, share)).collect();
        self.runtime.block_on(async {
            for (address, share) in shares {
                // An engine may end at any time.
                let _ = reqwest::Client::new()
                    .put(format!("http://{address}:8000/load"))
                    .timeout(Duration::from_secs(2))
                    .body(share.to_string())
                    .send()
                    .await;
            }
        });
    }
}
