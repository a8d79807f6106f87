//! The daemon's connection to a cluster: a client, and the watches that it shares.

use std::sync::Arc;

use anyhow::Context;
use prometheus::IntGauge;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, error, info_span, warn};

use crate::collect::cluster::{self, ApiServiceFields, ClusterNeeds, ClusterState, WatchTiming};
use crate::config::{Config, Kubernetes, LeaderElection};
use crate::daemon::announce::Announcer;
use crate::daemon::context::DaemonContext;
use crate::daemon::needs;
use crate::daemon::registration::{self, FollowedRegistration, RegistrationReport};
use crate::daemon::sharing::{Channels, Sharing};
use crate::leader::elect::Elector;
use crate::leader::share::DocumentWriter;
use crate::leader::{self, Leadership};
use crate::publish::events::{EventRecorder, EventReporter};
use crate::server::auth::TrustAnchor;
use crate::telemetry::Telemetry;

/// A cluster that is watched.
pub(crate) struct Cluster {
    client: kube::Client,
    state: watch::Receiver<Arc<ClusterState>>,
    needs: Arc<watch::Sender<Arc<ClusterNeeds>>>,
    recorder: Option<EventRecorder>,
    trust: watch::Receiver<Option<Arc<TrustAnchor>>>,
}

impl Cluster {
    /// Starts to watch the objects that the configuration needs. The API server may be unreachable.
    pub(crate) async fn connect(
        config: &Config,
        common: &DaemonContext,
        telemetry: &Telemetry,
    ) -> anyhow::Result<Self> {
        let DaemonContext { clock, tasks, stop, .. } = common;
        let Kubernetes { kubeconfig, context, events, .. } = &config.keys.kubernetes;
        let connected = cluster::client(kubeconfig.as_deref(), context.as_deref()).await;
        let client = connected.context("kubernetes")?;

        let pace = WatchTiming::default();
        let (needs, needed) = watch::channel(Arc::new(needs::of(config)));
        let state = cluster::watch(client.clone(), needed, pace, *clock, tasks, stop.clone());
        let authentication = cluster::authentication(client.clone(), pace, tasks, stop.clone());
        let (anchors, trust) = watch::channel(None);
        tasks.spawn(follow_trust(authentication, anchors, stop.clone()));

        let recorder = events.then(|| {
            let reporter = EventReporter { client: client.clone(), instance: identity() };
            EventRecorder::start(reporter, *clock, telemetry.events.clone(), tasks, stop.clone())
        });

        Ok(Self { client, state, needs: Arc::new(needs), recorder, trust })
    }

    pub(crate) fn client(&self) -> kube::Client {
        self.client.clone()
    }

    pub(crate) fn state(&self) -> watch::Receiver<Arc<ClusterState>> {
        self.state.clone()
    }

    pub(crate) fn needs(&self) -> Arc<watch::Sender<Arc<ClusterNeeds>>> {
        Arc::clone(&self.needs)
    }

    /// The recorder of Kubernetes Events, if they are enabled.
    pub(crate) fn recorder(&self) -> Option<EventRecorder> {
        self.recorder.clone()
    }

    /// The announcer of changes, if Kubernetes Events are enabled.
    pub(crate) fn announcer(&self) -> Option<Announcer> {
        Some(Announcer::new(self.recorder()?, self.needs.subscribe()))
    }

    /// Takes part in the leader election, and shares the leader's decisions.
    pub(crate) fn share(
        &self,
        election: &LeaderElection,
        common: &DaemonContext,
        telemetry: &Telemetry,
    ) -> anyhow::Result<Sharing> {
        let DaemonContext { clock, heartbeat, tasks, stop, retire, .. } = common;
        let settings = settings(election)?;
        let (drafts, to_write) = watch::channel(None);
        let client = self.client();
        let pace = WatchTiming::default();
        let (elector, leadership) =
            Elector::new(client.clone(), settings.clone(), *clock, heartbeat.clone());
        let (desk, seat) = DocumentWriter::new(
            client.clone(),
            settings.clone(),
            *clock,
            leadership.clone(),
            to_write,
            telemetry.leading.write_failures.clone(),
        );

        let document = settings.document();
        let sightings = cluster::document(
            client,
            &settings.namespace,
            &document,
            pace,
            *clock,
            tasks,
            stop.clone(),
        );

        tasks.spawn(elector.run(retire.clone()).instrument(info_span!("election")));
        tasks.spawn(show_losses(leadership.clone(), telemetry.leading.leader.clone()));
        tasks.spawn(desk.run(stop.clone()).instrument(info_span!("sharing")));
        let channels = Channels { leadership, seat, sightings, drafts };
        Ok(Sharing::new(*clock, channels, telemetry.leading.clone()))
    }

    pub(crate) fn trust(&self) -> watch::Receiver<Option<Arc<TrustAnchor>>> {
        self.trust.clone()
    }

    /// Reports the Service that serves the external metrics, in a metric and, when it changes, in
    /// the log. Returns the registration.
    pub(crate) fn follow_registration(
        &self,
        name: &'static str,
        expected: impl Fn() -> ApiServiceFields + Send + Sync + 'static,
        telemetry: &Telemetry,
        common: &DaemonContext,
    ) -> FollowedRegistration {
        let DaemonContext { clock, tasks, stop, .. } = common;
        let registration = cluster::registration(
            self.client(),
            name,
            expected,
            WatchTiming::default(),
            tasks,
            stop.clone(),
        );
        let followed = FollowedRegistration { name, seen: registration.clone() };
        let gauge = telemetry.api_service.clone();
        let report = RegistrationReport::new(clock.elapsed());
        let stop = stop.clone();
        tasks.spawn(registration::report(name, registration, report, gauge, *clock, stop));

        followed
    }
}

/// Shows that this replica no longer leads. A decision loop that stands still does not show it.
async fn show_losses(mut leadership: watch::Receiver<Leadership>, leader: IntGauge) {
    while leadership.changed().await.is_ok() {
        if leadership.borrow_and_update().until.is_none() {
            leader.set(0);
        }
    }
}

/// The identity of this replica: its pod's name, otherwise its machine's name.
pub(crate) fn identity() -> String {
    let named = ["POD_NAME", "HOSTNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let of_pod = named.filter(|name| !name.is_empty());
    let name = of_pod.or_else(|| std::fs::read_to_string("/proc/sys/kernel/hostname").ok());
    name.map_or_else(|| "plimsoll".to_owned(), |name| name.trim().to_owned())
}

/// The file in which the kubelet puts the namespace of a pod's service account.
const NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

fn settings(election: &LeaderElection) -> anyhow::Result<leader::ElectionSettings> {
    let LeaderElection {
        enabled: _,
        namespace: given,
        name,
        identity: who,
        lease_duration,
        renew_deadline,
        retry_period,
    } = election.clone();

    let namespace = given.or_else(own_namespace).context(
        "kubernetes.leader_election.namespace is missing, and outside a pod there is no default",
    )?;
    let replica = who.unwrap_or_else(identity);
    let identity = format!("{replica}_{:016x}", rand::random::<u64>());
    let pace = leader::ElectionTiming { lease_duration, renew_deadline, retry_period };
    Ok(leader::ElectionSettings { namespace, name, identity, pace })
}

/// The namespace of the pod that this process runs in, if it runs in one.
fn own_namespace() -> Option<String> {
    let named = std::env::var("POD_NAMESPACE").ok().filter(|name| !name.is_empty());
    named.or_else(|| {
        let text = std::fs::read_to_string(NAMESPACE_FILE).ok()?;
        Some(text.trim().to_owned())
    })
}

/// Turns the cluster's authentication settings into a trust anchor. Unusable settings are reported,
/// and the last valid anchor stays.
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
                            "The front proxy has a custom header name, which API servers do not \
                             strip from users' requests"
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test]
    async fn a_loop_that_stands_still_is_not_shown_as_the_leader() {
        let led = Leadership { until: Some(Duration::from_secs(9)), ..Leadership::default() };
        let (elector, leadership) = watch::channel(led);
        let leader = IntGauge::new("leader", "help").unwrap();
        leader.set(1);

        let shows = async {
            elector.send_replace(Leadership::default());
            while leader.get() == 1 {
                tokio::task::yield_now().await;
            }
            drop(elector);
        };
        tokio::join!(show_losses(leadership, leader.clone()), shows);
        assert_eq!(leader.get(), 0);
    }
}
