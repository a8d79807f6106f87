//! Engines: a real vLLM server on the address of every pod, on the CPU, with a model of random
//! weights.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use tokio::task::JoinSet;

/// The port of every engine.
pub(crate) const PORT: u16 = 8000;

/// How often the pods are looked at.
const LOOK: Duration = Duration::from_millis(500);

/// Installs, starts and stops servers.
const SERVER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/e2e/vllm/server");

/// All engines.
#[derive(Clone, Default)]
pub(crate) struct Engines {
    answering: Arc<Mutex<BTreeMap<String, BTreeSet<String>>>>,
}

impl Engines {
    /// The servers of a namespace that answer.
    pub(crate) fn ready(&self, namespace: &str) -> u32 {
        u32::try_from(self.addresses(namespace).len()).unwrap()
    }

    /// The addresses of the servers of a namespace that answer.
    pub(crate) fn addresses(&self, namespace: &str) -> Vec<String> {
        let answering = self.answering.lock().unwrap();
        answering.get(namespace).map(|set| set.iter().cloned().collect()).unwrap_or_default()
    }

    /// Keeps a server on the address of every running pod. As in a cluster, a pod runs long before
    /// its engine answers; unlike in most, kwok calls it ready at once.
    pub(crate) async fn serve(self, client: Client) {
        let api: Api<Pod> = Api::all(client);
        let labels = ListParams::default().labels("app=llama");
        let mut started: BTreeSet<(String, String)> = BTreeSet::new();
        let mut starting = JoinSet::new();
        loop {
            if let Ok(pods) = api.list(&labels).await {
                let running: BTreeSet<(String, String)> =
                    pods.items.iter().filter_map(address).collect();
                for pod in running.difference(&started).cloned().collect::<Vec<_>>() {
                    starting.spawn(self.clone().start(pod.clone()));
                    started.insert(pod);
                }
                for pod in started.difference(&running).cloned().collect::<Vec<_>>() {
                    self.answering.lock().unwrap().entry(pod.0.clone()).or_default().remove(&pod.1);
                    tokio::task::spawn_blocking({
                        let address = pod.1.clone();
                        move || server("down", &address)
                    });
                    started.remove(&pod);
                }
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn start(self, (namespace, address): (String, String)) {
        let up = address.clone();
        let answers = tokio::task::spawn_blocking(move || server("up", &up)).await.unwrap();
        assert!(
            answers,
            "the server on {address} did not start; its log is in {}",
            folder().display()
        );
        self.answering.lock().unwrap().entry(namespace).or_default().insert(address);
    }
}

fn server(command: &str, address: &str) -> bool {
    let status = Command::new(SERVER)
        .arg(command)
        .arg(folder())
        .arg(address)
        .arg(PORT.to_string())
        .env("WAIT", "600")
        .stdout(Stdio::null())
        .status();
    status.unwrap().success()
}

/// Where vLLM is installed and its logs are.
fn folder() -> PathBuf {
    PathBuf::from(std::env::var_os("PLIMSOLL_VLLM").expect("run tests/e2e/run-vllm, which sets it"))
}

/// Where a pod that runs has its engine.
fn address(pod: &Pod) -> Option<(String, String)> {
    let status = pod.status.as_ref()?;
    let runs = status.phase.as_deref() == Some("Running");
    let stays = pod.metadata.deletion_timestamp.is_none();
    let address = status.pod_ip.clone().filter(|_| runs && stays)?;
    Some((pod.metadata.namespace.clone()?, address))
}
