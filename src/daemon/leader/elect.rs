//! Holding the Lease, or waiting for it.
//!
//! A turn looks at the Lease and writes it where [`judge`] says so; each write names the version
//! that it replaces, so of two contenders one is refused. An API server that is away costs a leader
//! its lead after the renew deadline, and nobody else can have it either.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
use kube::api::{Api, PostParams};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{info, warn};

use crate::clock::Clock;
use crate::leader::lease::{Judgement, Observed, Record, judge};
use crate::leader::{Leadership, Settings};

/// Time to give the Lease back at the end. Who does not get it waits for it to expire.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// How much longer than the retry period a contender waits at most, as a share of it, so that
/// contenders do not ask in step.
const JITTER: f64 = 0.2;

/// Takes part in the election.
pub struct Elector {
    api: Api<Lease>,
    settings: Settings,
    clock: Clock,
    leadership: watch::Sender<Leadership>,
    seen: Option<Observed>,
    /// The version of the Lease that we wrote last.
    version: Option<String>,
    /// When we took it.
    acquired: Option<Timestamp>,
    /// Whether a failure was said that is not over.
    troubled: bool,
}

/// How a turn ended that had no error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    /// The Lease is ours.
    Held,
    /// It is somebody else's.
    NotHeld,
    /// Somebody wrote it in between.
    Overtaken,
}

impl Elector {
    /// A contender, and what it knows of who leads.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: Settings,
        clock: Clock,
    ) -> (Self, watch::Receiver<Leadership>) {
        let api = Api::namespaced(client, &settings.namespace);
        let (leadership, receiver) = watch::channel(Leadership::default());
        let (seen, version, acquired, troubled) = (None, None, None, false);
        let elector = Self { api, settings, clock, leadership, seen, version, acquired, troubled };
        (elector, receiver)
    }

    /// Takes part until `retire`, and then gives the Lease back.
    pub async fn run(mut self, retire: CancellationToken) {
        while retire.run_until_cancelled(self.take_turn()).await.is_some() {}
        if self.is_leading() {
            self.step_down("this replica ends");
            let released = timeout(RELEASE_MAX, self.release()).await;
            if !matches!(released, Ok(Ok(()))) {
                warn!("The Lease could not be given back; the others wait until it expires");
            }
        }
    }

    /// One turn, and the wait for the next.
    async fn take_turn(&mut self) {
        let began = self.clock.elapsed();
        let pace = self.settings.pace;
        // A request that hangs must not keep a leader in office.
        let left = self.leadership.borrow().until.map(|until| until.saturating_sub(began));
        let limit = left.unwrap_or(pace.renew_deadline);
        let outcome = match timeout(limit, self.contend()).await {
            Ok(outcome) => outcome.map_err(|error| error.to_string()),
            Err(_) => Err("there was no answer in time".to_owned()),
        };
        match outcome {
            Ok(turn) => {
                self.recovered();
                match turn {
                    Turn::Held => self.lead(began + pace.renew_deadline),
                    Turn::NotHeld => self.step_down("another replica holds the Lease"),
                    // A leader looks at once who did.
                    Turn::Overtaken if self.is_leading() => return,
                    Turn::Overtaken => {}
                }
            }
            Err(error) => {
                self.version = None;
                self.say(&error);
                let until = self.leadership.borrow().until;
                if until.is_some_and(|until| self.clock.elapsed() >= until) {
                    self.step_down("the Lease could not be renewed in time");
                }
            }
        }
        let jitter = if self.is_leading() { 0.0 } else { rand::random_range(0.0..=JITTER) };
        sleep(pace.retry_period.mul_f64(1.0 + jitter)).await;
    }

    fn is_leading(&self) -> bool {
        self.leadership.borrow().until.is_some()
    }

    /// Looks at the Lease and takes or renews it, if that is ours to do.
    async fn contend(&mut self) -> kube::Result<Turn> {
        let name = self.settings.name.clone();
        // What we wrote last still says it, unless somebody else wrote: then this is refused.
        if self.version.is_none() {
            let found = self.api.get_opt(&name).await?;
            let (now, before) = (self.clock.elapsed(), self.seen.take());
            self.seen = found.as_ref().map(|lease| Observed::see(before, record(lease), now));
            self.version = found.and_then(|lease| lease.metadata.resource_version);
            self.tell_holder();
        }
        let Settings { identity, pace, .. } = &self.settings;
        let transitions = match judge(self.seen.as_ref(), identity, *pace, self.clock.elapsed()) {
            Judgement::Wait => {
                self.version = None;
                return Ok(Turn::NotHeld);
            }
            Judgement::Acquire(transitions) => {
                self.acquired = Some(self.clock.now());
                transitions
            }
            Judgement::Renew(transitions) => transitions,
        };
        let known = self.version.take();
        let parameters = PostParams::default();
        let lease = self.lease(known.clone(), transitions);
        let written = match known {
            None => self.api.create(&parameters, &lease).await,
            Some(_) => self.api.replace(&name, &parameters, &lease).await,
        };
        match written {
            Ok(lease) => {
                let (now, before) = (self.clock.elapsed(), self.seen.take());
                self.seen = Some(Observed::see(before, record(&lease), now));
                self.version = lease.metadata.resource_version;
                Ok(Turn::Held)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(Turn::Overtaken),
            Err(error) => Err(error),
        }
    }

    /// The Lease as we would have it.
    fn lease(&self, version: Option<String>, transitions: i32) -> Lease {
        let Settings { namespace, name, identity, pace } = self.settings.clone();
        Lease {
            metadata: ObjectMeta {
                name: Some(name),
                namespace: Some(namespace),
                resource_version: version,
                ..ObjectMeta::default()
            },
            spec: Some(LeaseSpec {
                holder_identity: Some(identity),
                lease_duration_seconds: Some(whole_seconds(pace.lease_duration)),
                acquire_time: self.acquired.map(MicroTime),
                renew_time: Some(MicroTime(self.clock.now())),
                lease_transitions: Some(transitions),
                ..LeaseSpec::default()
            }),
        }
    }

    /// Gives the Lease back, if it is still ours, so that the others need not wait.
    async fn release(&self) -> kube::Result<()> {
        let Settings { name, identity, .. } = &self.settings;
        let found = self.api.get(name).await?;
        let Record { holder, transitions, .. } = record(&found);
        if holder.as_ref() != Some(identity) {
            return Ok(());
        }
        let mut lease = self.lease(found.metadata.resource_version, transitions);
        if let Some(spec) = &mut lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        self.api.replace(name, &PostParams::default(), &lease).await.map(|_| ())
    }

    fn lead(&self, until: Duration) {
        let identity = &self.settings.identity;
        if !self.is_leading() {
            info!(identity, "This replica leads: it decides for all");
        }
        let leadership = Leadership { until: Some(until), holder: Some(identity.clone()) };
        self.leadership.send_replace(leadership);
    }

    fn step_down(&self, why: &str) {
        if !self.is_leading() {
            return;
        }
        warn!(why, "This replica no longer leads; it shows the leader's numbers");
        self.leadership.send_modify(|leadership| leadership.until = None);
    }

    fn tell_holder(&self) {
        let holder = self.seen.as_ref().and_then(|seen| seen.record.holder.clone());
        self.leadership.send_if_modified(|known| {
            let differs = known.holder != holder;
            if differs {
                info!(holder = holder.as_deref().unwrap_or("nobody"), "The Lease has a holder");
                known.holder.clone_from(&holder);
            }
            differs
        });
    }

    fn say(&mut self, error: &str) {
        if !std::mem::replace(&mut self.troubled, true) {
            let Settings { namespace, name, .. } = &self.settings;
            warn!(
                namespace,
                lease = name,
                error,
                "The Lease cannot be read or written. The service account needs get, create and \
                 update of leases in the group coordination.k8s.io there"
            );
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.troubled) {
            info!("The Lease can be read and written again");
        }
    }
}

/// A Lease has whole seconds; a shorter duration than one is for tests.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)
}

/// What a Lease says. One without a holder's name is nobody's.
fn record(lease: &Lease) -> Record {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Record {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        renewed: spec.renew_time.map(|MicroTime(at)| at.to_string()).unwrap_or_default(),
    }
}
