//! What the daemon has of a cluster: a client, and the watches that it shares out.

use std::sync::Arc;

use anyhow::Context;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error, info, info_span, warn};

use crate::collect::cluster::{self, ClusterState, Expected, Needs, Pace, Registration};
use crate::config::{Config, Kubernetes, LeaderElection};
use crate::daemon::announce::Announcer;
use crate::daemon::sharing::{Channels, Sharing};
use crate::daemon::{Common, directory};
use crate::leader;
use crate::leader::elect::Elector;
use crate::leader::share::Desk;
use crate::publish::events::{Recorder, Reporter};
use crate::server::auth::TrustAnchor;
use crate::telemetry::Telemetry;

/// A cluster that is watched.
pub(crate) struct Cluster {
    client: kube::Client,
    state: watch::Receiver<Arc<ClusterState>>,
    needs: Arc<watch::Sender<Arc<Needs>>>,
    recorder: Option<Recorder>,
    trust: watch::Receiver<Option<Arc<TrustAnchor>>>,
}

impl Cluster {
    /// Starts to watch what the configuration needs. The API server may be away.
    pub(crate) async fn connect(
        config: &Config,
        common: &Common,
        telemetry: &Telemetry,
    ) -> anyhow::Result<Self> {
        let Common { clock, tasks, stop, .. } = common;
        let Kubernetes { kubeconfig, context, events, .. } = &config.keys.kubernetes;
        let client = cluster::client(kubeconfig.as_deref(), context.as_deref()).await;
        let client = client.context("kubernetes")?;
        let pace = Pace::default();
        let (needs, needed) = watch::channel(Arc::new(directory::needs(config)));
        let state = cluster::watch(client.clone(), needed, pace, *clock, tasks, stop.clone());
        let authentication = cluster::authentication(client.clone(), pace, tasks, stop.clone());
        let (anchors, trust) = watch::channel(None);
        tasks.spawn(follow_trust(authentication, anchors, stop.clone()));
        let recorder = events.then(|| {
            let reporter = Reporter { client: client.clone(), instance: identity() };
            Recorder::start(reporter, *clock, telemetry.events.clone(), tasks, stop.clone())
        });
        Ok(Self { client, state, needs: Arc::new(needs), recorder, trust })
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    pub(crate) fn state(&self) -> watch::Receiver<Arc<ClusterState>> {
        self.state.clone()
    }

    pub(crate) fn needs(&self) -> Arc<watch::Sender<Arc<Needs>>> {
        Arc::clone(&self.needs)
    }

    /// Who writes Kubernetes Events, if anybody does.
    pub(crate) fn recorder(&self) -> Option<Recorder> {
        self.recorder.clone()
    }

    /// Who says what changed, if anybody does.
    pub(crate) fn announcer(&self) -> Option<Announcer> {
        Some(Announcer::new(self.recorder()?, self.needs.subscribe()))
    }

    /// Takes part in choosing who decides, and shares what is decided.
    pub(crate) fn share(
        &self,
        election: &LeaderElection,
        common: &Common,
    ) -> anyhow::Result<Sharing> {
        let Common { clock, tasks, stop, retire, .. } = common;
        let settings = settings(election)?;
        let (drafts, to_write) = watch::channel(None);
        let (client, pace) = (self.client(), Pace::default());
        let (elector, leadership) = Elector::new(client.clone(), settings.clone(), *clock);
        let (desk, seat) =
            Desk::new(client.clone(), settings.clone(), *clock, leadership.clone(), to_write);
        let document = settings.document();
        let at = (settings.namespace.as_str(), document.as_str());
        let sightings = cluster::document(client, at, pace, *clock, tasks, stop.clone());
        tasks.spawn(elector.run(retire.clone()).instrument(info_span!("election")));
        tasks.spawn(desk.run(stop.clone()).instrument(info_span!("sharing")));
        Ok(Sharing::new(*clock, Channels { leadership, seat, sightings, drafts }))
    }

    pub(crate) fn trust(&self) -> watch::Receiver<Option<Arc<TrustAnchor>>> {
        self.trust.clone()
    }

    /// Says who answers for the external metrics, in a metric and, when it changes, in the log;
    /// returns it as it changes.
    pub(crate) fn follow_registration(
        &self,
        expected: impl Fn() -> Expected + Send + 'static,
        telemetry: &Telemetry,
        common: &Common,
    ) -> watch::Receiver<Option<Registration>> {
        let Common { tasks, stop, .. } = common;
        let mut registration =
            cluster::registration(self.client(), expected, Pace::default(), tasks, stop.clone());
        let shown = registration.clone();
        let (gauge, stop) = (telemetry.api_service.clone(), stop.clone());
        tasks.spawn(async move {
            while let Some(Ok(())) = stop.run_until_cancelled(registration.changed()).await {
                let now = registration.borrow_and_update().clone();
                let Some(now) = now else { continue };
                for label in Registration::LABELS {
                    let is = f64::from(u8::from(label == now.label()));
                    gauge.with_label_values(&[label]).set(is);
                }
                say_registration(&now);
            }
        });
        shown
    }
}

/// Which of several daemons this is: the name of its pod, else of its machine.
pub(crate) fn identity() -> String {
    let named = ["POD_NAME", "HOSTNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let machine = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = named.filter(|name| !name.is_empty()).or_else(machine);
    name.map_or_else(|| "plimsoll".to_owned(), |name| name.trim().to_owned())
}

/// Where the API server puts the namespace of a pod's service account.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

fn settings(election: &LeaderElection) -> anyhow::Result<leader::Settings> {
    let LeaderElection {
        enabled: _,
        namespace,
        name,
        identity: who,
        lease_duration,
        renew_deadline,
        retry_period,
    } = election.clone();
    let own = || std::env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty());
    let file = || std::fs::read_to_string(NAMESPACE_FILE).ok().map(|text| text.trim().to_owned());
    let namespace = namespace.or_else(own).or_else(file).context(
        "kubernetes.leader_election.namespace is missing, and this is no pod whose own could be used",
    )?;
    let identity = format!("{}_{:016x}", who.unwrap_or_else(identity), rand::random::<u64>());
    let pace = leader::Pace { lease_duration, renew_deadline, retry_period };
    Ok(leader::Settings { namespace, name, identity, pace })
}

fn say_registration(registration: &Registration) {
    match registration {
        Registration::Ours => info!("The API server reaches the external metrics API"),
        Registration::Absent => warn!(
            "No APIService v1beta1.external.metrics.k8s.io is registered, so no HPA can ask us"
        ),
        Registration::ForeignService { namespace, name } => error!(
            namespace,
            service = name,
            "The APIService v1beta1.external.metrics.k8s.io belongs to another provider, and a \
             cluster has room for one: leave external_metrics out of the configuration, and let \
             the other read the gauge plimsoll_desired_replicas, as KEDA does with a prometheus \
             trigger (docs/keda.md)"
        ),
        Registration::ForeignCaBundle => error!(
            "The caBundle of the APIService v1beta1.external.metrics.k8s.io is not the authority \
             of our certificate; KEDA's operator rewrites it unless it runs with \
             --enable-apiservice-patching=false"
        ),
        Registration::Unavailable { reason } => {
            warn!(reason, "The API server does not reach the external metrics API");
        }
    }
}

/// Turns what the cluster says about authentication into a trust anchor. What cannot be used is
/// reported, and the last good one stays.
async fn follow_trust(
    mut authentication: watch::Receiver<Option<std::collections::BTreeMap<String, String>>>,
    anchors: watch::Sender<Option<Arc<TrustAnchor>>>,
    stop: CancellationToken,
) {
    loop {
        let data = authentication.borrow_and_update().clone();
        if let Some(data) = data {
            match TrustAnchor::from_config_map(&data) {
                Ok(anchor) => {
                    for header in anchor.smuggled_headers() {
                        warn!(
                            header,
                            "The front proxy is configured with a header of its own name, which \
                             API servers do not strip from users' requests"
                        );
                    }
                    anchors.send_replace(Some(Arc::new(anchor)));
                }
                Err(problem) => error!(
                    error = %format!("{:#}", anyhow::Error::new(problem)),
                    "kube-system/extension-apiserver-authentication cannot be used"
                ),
            }
        }
        match stop.run_until_cancelled(authentication.changed()).await {
            Some(Ok(())) => {}
            Some(Err(_)) | None => return,
        }
    }
}
