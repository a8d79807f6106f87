//! Replicas of Plimsoll that the API server asks in turn, and the parts of kubelet and endpoint
//! controller that a rollout needs: readiness probes, and the Service's endpoints.
//!
//! Each replica has a path of its own to the API server, and the API server one to each replica.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Client;
use kube::api::{Api, Patch, PatchParams};

use crate::daemon::{Daemon, Knows, configuration};
use crate::stage::Stage;
use crate::wait::{until, within};
use crate::wire::Wire;

/// The Lease of the tests: `lease_duration` and what belongs to it. On a busy machine, a renewal can
/// take seconds.
pub(crate) const LEASE: Duration = Duration::from_secs(12);
const ELECTION: &str = "lease_duration: 12s, renew_deadline: 10s, retry_period: 500ms";

/// How often a kubelet of the tests probes, and how long it waits.
const PROBE: Duration = Duration::from_millis(500);
const PROBE_MAX: Duration = Duration::from_secs(1);

/// Probes without an answer after which a pod is not ready, as by default.
const SILENT_PROBES: u32 = 3;

/// Several replicas of one Deployment.
pub(crate) struct Pair<'a> {
    stage: &'a Stage,
    namespace: &'a str,
    replicas: BTreeMap<u8, Member>,
    keeper: Arc<Keeper>,
}

/// One replica.
pub(crate) struct Member {
    pub(crate) daemon: Daemon,
    /// From the API server to the replica.
    pub(crate) inward: Wire,
    /// From the replica to the API server.
    pub(crate) outward: Wire,
}

/// Who holds the Lease, since when, and when it was last renewed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) identity: String,
    pub(crate) acquired: jiff::Timestamp,
    pub(crate) renewed: jiff::Timestamp,
}

/// Probes pods and writes endpoints.
struct Keeper {
    client: Client,
    prober: reqwest::Client,
    /// The pods' probes, by the addresses at which the API server finds them.
    pods: Mutex<BTreeMap<String, Probed>>,
    /// The endpoints that were written last.
    written: Mutex<Option<BTreeSet<String>>>,
}

struct Probed {
    url: String,
    silent: u32,
    ready: bool,
}

impl<'a> Pair<'a> {
    /// Starts two replicas, and waits until the API server asks both and one of them leads.
    pub(crate) fn start(stage: &'a Stage, namespace: &'a str) -> Self {
        let prober = reqwest::Client::builder().pool_max_idle_per_host(0).timeout(PROBE_MAX);
        let keeper = Arc::new(Keeper {
            client: stage.client(),
            prober: prober.build().unwrap(),
            pods: Mutex::default(),
            written: Mutex::default(),
        });
        stage.spawn(Arc::clone(&keeper).keep());
        let mut pair = Self { stage, namespace, replicas: BTreeMap::new(), keeper };
        let program = Path::new(env!("CARGO_BIN_EXE_plimsoll"));
        pair.add(1, program, "");
        pair.add(2, program, "");
        Daemon::wait_until_registered(stage);
        until("a leader", || pair.leader());
        pair
    }

    /// Starts another replica, with these sections in its configuration, and waits until the API
    /// server asks it.
    pub(crate) fn add(&mut self, number: u8, program: &Path, sections: &str) {
        let stage = self.stage;
        let (own, front, back) = (self.at(10, number), self.at(20, number), self.at(30, number));
        let at = |address: &str, port: u16| -> SocketAddr {
            format!("{address}:{port}").parse().unwrap()
        };
        let inward = Wire::new(stage, at(&front, 8443), at(&own, 8443));
        let api_server = format!("{}.0.1", stage.net);
        let outward = Wire::new(stage, at(&back, 6443), at(&api_server, 6443));

        let given = fs::read_to_string(stage.cluster().join("plimsoll.plimsoll.kubeconfig"));
        let given = given.unwrap();
        let server = format!("\"https://{api_server}:6443\"");
        assert!(given.contains(&server), "{given}");
        let named = format!("\"https://{back}:6443\", tls-server-name: kubernetes.default.svc");
        let kubeconfig = stage.folder.join(format!("{}-{number}.kubeconfig", self.namespace));
        fs::write(&kubeconfig, given.replace(&server, &named)).unwrap();

        let election = format!(
            "kubernetes:
  leader_election: {{enabled: true, namespace: plimsoll, identity: {}-{number}, {ELECTION}}}",
            self.namespace
        );
        let configuration = configuration(stage, self.namespace, Knows::ByConfiguration)
            .replace(&stage.address(), &own)
            .replace(
                &stage.cluster().join("plimsoll.plimsoll.kubeconfig").display().to_string(),
                &kubeconfig.display().to_string(),
            )
            .replace("kubernetes:", &election);
        let configuration =
            format!("shutdown: {{delay: 3s, drain: 5s}}\n{sections}{configuration}");
        let folder = format!("{}-{number}", self.namespace);
        let daemon = Daemon::launch_program(stage, &folder, &configuration, &own, program);
        let url = format!("http://{own}:8080/readyz");
        self.replicas.insert(number, Member { daemon, inward, outward });
        self.keeper.admit(front.clone(), url);
        until("another endpoint", || self.keeper.has(&front).then_some(()));
    }

    /// An address of a replica, in a block of ten.
    fn at(&self, block: u8, number: u8) -> String {
        format!("{}.200.{}", self.stage.net, block + number)
    }

    pub(crate) fn member(&self, number: u8) -> &Member {
        &self.replicas[&number]
    }

    /// The numbers of all replicas.
    pub(crate) fn numbers(&self) -> Vec<u8> {
        self.replicas.keys().copied().collect()
    }

    /// Whether the API server may be told to ask a replica.
    pub(crate) fn is_endpoint(&self, number: u8) -> bool {
        self.keeper.has(&self.at(20, number))
    }

    /// Ends a replica as a kubelet does, and waits until it is gone.
    pub(crate) fn terminate(&mut self, number: u8) {
        self.member(number).daemon.signal("-TERM");
        self.wait(number);
    }

    /// Waits until a replica is gone.
    pub(crate) fn wait(&mut self, number: u8) {
        let mut member = self.replicas.remove(&number).unwrap();
        member.daemon.wait();
        self.keeper.forget(&self.at(20, number));
    }

    /// Ends a replica by force. Its endpoint goes when its pod is next probed.
    pub(crate) fn kill(&mut self, number: u8) {
        drop(self.replicas.remove(&number));
    }

    /// The replica that holds the Lease and knows it.
    pub(crate) fn leader(&self) -> Option<u8> {
        let leads = |member: &Member| member.daemon.gauge(self.stage, "plimsoll_leader", &[]);
        let holder = self.holder()?.identity;
        let number = self
            .replicas
            .keys()
            .copied()
            .find(|number| holder.starts_with(&format!("{}-{number}_", self.namespace)))?;
        (leads(&self.replicas[&number])? == 1).then_some(number)
    }

    /// The holder that the Lease names.
    pub(crate) fn holder(&self) -> Option<Holder> {
        let api: Api<Lease> = Api::namespaced(self.stage.client(), "plimsoll");
        let spec = self.stage.run(api.get("plimsoll")).ok()?.spec?;
        Some(Holder {
            identity: spec.holder_identity.filter(|identity| !identity.is_empty())?,
            acquired: spec.acquire_time?.0,
            renewed: spec.renew_time?.0,
        })
    }

    /// Waits until another replica leads. Returns the time since the last renewal of the old leader.
    pub(crate) fn handover(&self, from: u8) -> Duration {
        let of_old = format!("{}-{from}_", self.namespace);
        let mut last = None;
        let next = within(LEASE * 20, "another leader", || {
            let holder = self.holder()?;
            if holder.identity.starts_with(&of_old) {
                last = Some(holder);
                return None;
            }
            Some(holder)
        });
        let renewed = last.map_or(next.acquired, |last| last.renewed);
        next.acquired.duration_since(renewed).unsigned_abs()
    }
}

// === impl Keeper ===

impl Keeper {
    fn admit(&self, address: String, url: String) {
        self.pods.lock().unwrap().insert(address, Probed { url, silent: 0, ready: false });
    }

    fn forget(&self, address: &str) {
        self.pods.lock().unwrap().remove(address);
    }

    fn has(&self, address: &str) -> bool {
        self.written.lock().unwrap().as_ref().is_some_and(|all| all.contains(address))
    }

    async fn keep(self: Arc<Self>) {
        loop {
            let pods: Vec<(String, String)> = {
                let pods = self.pods.lock().unwrap();
                pods.iter().map(|(address, pod)| (address.clone(), pod.url.clone())).collect()
            };
            let client = &self.prober;
            let probes = pods
                .into_iter()
                .map(|(address, url)| async move { (address, client.get(&url).send().await) });
            for (address, answer) in futures_util::future::join_all(probes).await {
                if let Some(pod) = self.pods.lock().unwrap().get_mut(&address) {
                    pod.judge(&answer);
                }
            }
            self.publish().await;
            tokio::time::sleep(PROBE).await;
        }
    }

    /// Writes the ready pods, if others were written last.
    async fn publish(&self) {
        let ready: BTreeSet<String> = {
            let pods = self.pods.lock().unwrap();
            let ready = pods.iter().filter(|(_, pod)| pod.ready);
            ready.map(|(address, _)| address.clone()).collect()
        };
        if self.written.lock().unwrap().as_ref() == Some(&ready) {
            return;
        }
        // The API server accepts no loopback addresses here, except as names.
        let endpoints: Vec<serde_json::Value> = ready
            .iter()
            .map(|address| serde_json::json!({"addresses": [address], "conditions": {"ready": true}}))
            .collect();
        let slice = serde_json::json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": "plimsoll-e2e",
                "labels": {"kubernetes.io/service-name": "plimsoll"},
            },
            "addressType": "FQDN",
            "ports": [{"name": "https", "port": 8443}],
            "endpoints": endpoints,
        });
        let api: Api<EndpointSlice> = Api::namespaced(self.client.clone(), "plimsoll");
        let parameters = PatchParams::apply("e2e").force();
        if api.patch("plimsoll-e2e", &parameters, &Patch::Apply(slice)).await.is_ok() {
            *self.written.lock().unwrap() = Some(ready);
        }
    }
}

impl Probed {
    /// A refusal counts at once: the kubelet also sees that a process has ended.
    fn judge(&mut self, answer: &reqwest::Result<reqwest::Response>) {
        match answer {
            Ok(response) => {
                self.silent = 0;
                self.ready = response.status().is_success();
            }
            Err(error) if error.is_timeout() => {
                self.silent += 1;
                self.ready &= self.silent < SILENT_PROBES;
            }
            Err(_) => self.ready = false,
        }
    }
}
