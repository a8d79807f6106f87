//! Holds the Lease or waits for it.
//!
//! Each turn reads the Lease and writes it if [`judge`] decides so. A write names the version that
//! it replaces, so if two contenders write, the API server rejects one. If the API server is
//! unreachable, a leader stops leading after the renew deadline, and no other replica can take
//! over.
//!
//! A replica whose decision loop stands still releases the Lease and does not contend for it.

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
use crate::clock::heartbeat::Heartbeat;
use crate::leader::lease::{LeaseAction, LeaseRecord, ObservedLease, judge};
use crate::leader::{ElectionSettings, Leadership};

/// Time limit for releasing the Lease at shutdown. If the release does not arrive, the other
/// replicas wait until the Lease expires.
const RELEASE_MAX: Duration = Duration::from_secs(2);

/// The maximum extra wait of a contender, as a share of the retry period. It keeps contenders from
/// asking in step.
const JITTER: f64 = 0.2;

/// Takes part in the leader election.
pub struct Elector {
    api: Api<Lease>,
    settings: ElectionSettings,
    clock: Clock,
    /// The progress of the loop that decides while this replica leads.
    heartbeat: Heartbeat,
    leadership: watch::Sender<Leadership>,
    seen: Option<ObservedLease>,
    /// The resource version of the Lease as this replica last read or wrote it.
    version: Option<String>,
    /// The time when this replica acquired the Lease.
    acquired: Option<Timestamp>,
    /// True if a failure was logged and has not ended yet.
    troubled: bool,
}

/// The outcome of a turn without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnOutcome {
    /// This replica holds the Lease.
    Held,
    /// Another replica holds the Lease.
    NotHeld,
    /// Another replica wrote the Lease in between.
    Overtaken,
}

impl Elector {
    /// Creates a contender and a receiver for the leadership that it observes.
    #[must_use]
    pub fn new(
        client: kube::Client,
        settings: ElectionSettings,
        clock: Clock,
        heartbeat: Heartbeat,
    ) -> (Self, watch::Receiver<Leadership>) {
        let api = Api::namespaced(client, &settings.namespace);
        let (leadership, receiver) = watch::channel(Leadership::default());
        let seen = None;
        let version = None;
        let acquired = None;
        let troubled = false;

        let elector =
            Self { api, settings, clock, heartbeat, leadership, seen, version, acquired, troubled };
        (elector, receiver)
    }

    /// Takes part in the election until `retire` is cancelled, and then releases the Lease.
    pub async fn run(mut self, retire: CancellationToken) {
        while retire.run_until_cancelled(self.take_turn()).await.is_some() {}

        if self.is_leading() {
            self.give_up("this replica ends").await;
        }
    }

    /// Stops leading and releases the Lease.
    async fn give_up(&mut self, why: &str) {
        self.step_down(why);
        self.version = None;

        let released = timeout(RELEASE_MAX, self.release()).await;
        if !matches!(released, Ok(Ok(()))) {
            warn!("The Lease could not be released; the other replicas wait until it expires");
        }
    }

    /// Takes one turn and waits for the next.
    async fn take_turn(&mut self) {
        let began = self.clock.elapsed();
        let pace = self.settings.pace;
        if !self.heartbeat.may_lead() {
            if self.is_leading() {
                self.give_up("the decision loop stands still").await;
            }
            return sleep(pace.retry_period).await;
        }

        // A hanging request must not prolong the leadership.
        let left = self.leadership.borrow().until.map(|until| until.saturating_sub(began));
        let limit = left.unwrap_or(pace.renew_deadline);
        let outcome = match timeout(limit, self.contend()).await {
            Ok(result) => result.map_err(|error| error.to_string()),
            Err(_) => Err("the request timed out".to_owned()),
        };
        match outcome {
            Ok(turn) => {
                self.recovered();
                match turn {
                    TurnOutcome::Held => self.lead(began + pace.renew_deadline),
                    TurnOutcome::NotHeld => self.step_down("another replica holds the Lease"),
                    // A leader reads the Lease again immediately to see the new holder.
                    TurnOutcome::Overtaken if self.is_leading() => return,
                    TurnOutcome::Overtaken => {}
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

    /// Reads the Lease, and acquires or renews it if this replica may.
    async fn contend(&mut self) -> kube::Result<TurnOutcome> {
        let name = self.settings.name.clone();
        // The Lease is as this replica last wrote it, unless another replica wrote it since. In
        // that case the API server rejects this write.
        if self.version.is_none() {
            let found = self.api.get_opt(&name).await?;
            let now = self.clock.elapsed();
            let before = self.seen.take();
            self.seen = found.as_ref().map(|lease| ObservedLease::see(before, record(lease), now));
            self.version = found.and_then(|lease| lease.metadata.resource_version);
            self.tell_holder();
        }

        let ElectionSettings { identity, pace, .. } = &self.settings;
        let transitions = match judge(self.seen.as_ref(), identity, *pace, self.clock.elapsed()) {
            LeaseAction::Wait => {
                self.version = None;
                return Ok(TurnOutcome::NotHeld);
            }
            LeaseAction::Acquire(transitions) => {
                self.acquired = Some(self.clock.now());
                transitions
            }
            LeaseAction::Renew(transitions) => transitions,
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
                let now = self.clock.elapsed();
                let before = self.seen.take();
                self.seen = Some(ObservedLease::see(before, record(&lease), now));
                self.version = lease.metadata.resource_version;
                Ok(TurnOutcome::Held)
            }
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(TurnOutcome::Overtaken),
            Err(error) => Err(error),
        }
    }

    /// Returns the Lease as this replica writes it.
    fn lease(&self, version: Option<String>, transitions: i32) -> Lease {
        let ElectionSettings { namespace, name, identity, pace } = self.settings.clone();

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

    /// Releases the Lease if this replica still holds it, so that the other replicas need not wait.
    async fn release(&self) -> kube::Result<()> {
        let ElectionSettings { name, identity, .. } = &self.settings;
        let found = self.api.get(name).await?;
        let LeaseRecord { holder, transitions, .. } = record(&found);
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
            info!(identity, "This replica is the leader and decides");
        }
        let leadership = Leadership { until: Some(until), holder: Some(identity.clone()) };
        self.leadership.send_replace(leadership);
    }

    fn step_down(&self, why: &str) {
        if !self.is_leading() {
            return;
        }
        warn!(why, "This replica is no longer the leader; it shows the leader's decisions");
        self.leadership.send_modify(|leadership| leadership.until = None);
    }

    fn tell_holder(&self) {
        let holder = self.seen.as_ref().and_then(|seen| seen.record.holder.clone());

        self.leadership.send_if_modified(|known| {
            let differs = known.holder != holder;
            if differs {
                info!(holder = holder.as_deref().unwrap_or("none"), "The Lease has a holder");
                known.holder.clone_from(&holder);
            }
            differs
        });
    }

    fn say(&mut self, error: &str) {
        if !std::mem::replace(&mut self.troubled, true) {
            let ElectionSettings { namespace, name, .. } = &self.settings;
            warn!(
                namespace,
                lease = name,
                error,
                "The Lease cannot be read or written. In its namespace, the service account needs \
                 get, create and update of leases in the group coordination.k8s.io"
            );
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.troubled) {
            info!("The Lease can be read and written again");
        }
    }
}

/// Rounds down to the whole seconds that a Lease has, at least 1. Only tests use shorter durations.
fn whole_seconds(duration: Duration) -> i32 {
    i32::try_from(duration.as_secs()).unwrap_or(i32::MAX).max(1)
}

/// Reads the record of a Lease. A Lease with an empty holder name counts as not held.
fn record(lease: &Lease) -> LeaseRecord {
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|it| u64::try_from(it).ok());

    LeaseRecord {
        holder: spec.holder_identity.filter(|holder| !holder.is_empty()),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        transitions: spec.lease_transitions.unwrap_or_default(),
        renewed: spec.renew_time.map(|MicroTime(at)| at.to_string()).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};
    use tokio_util::task::TaskTracker;

    use super::*;
    use crate::fixtures::{CapturedLog, ScriptedApi};
    use crate::leader::ElectionTiming;

    const LONG: Duration = Duration::from_hours(1);
    const RETRY: Duration = Duration::from_millis(100);

    /// An elector, and the token that retires it. Only the retry period is short.
    fn elector(client: kube::Client) -> (Elector, watch::Receiver<Leadership>) {
        let pace =
            ElectionTiming { lease_duration: 2 * LONG, renew_deadline: LONG, retry_period: RETRY };
        let settings = ElectionSettings {
            namespace: "plimsoll".to_owned(),
            name: "plimsoll".to_owned(),
            identity: "me".to_owned(),
            pace,
        };
        let clock = Clock::start();
        Elector::new(client, settings, clock, Heartbeat::start(clock, LONG))
    }

    fn lease(holder: &str, version: usize) -> (u16, Value) {
        let spec = json!({"holderIdentity": holder, "leaseDurationSeconds": 7200,
                          "leaseTransitions": 4, "renewTime": "2026-11-21T09:30:00.000000Z"});
        let metadata = json!({"name": "plimsoll", "resourceVersion": version.to_string()});
        (200, json!({"metadata": metadata, "spec": spec}))
    }

    const REFUSED: &str = "The Lease cannot be read or written";
    const AGAIN: &str = "The Lease can be read and written again";

    #[tokio::test(start_paused = true)]
    async fn a_leader_renews_at_each_period_and_looks_at_once_who_has_overtaken_it() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let client = api.client(|number, _| match number {
            0 => (404, Value::Null),
            1 | 2 => lease("me", number),
            3 => (409, Value::Null),
            _ => lease("other", 9),
        });
        let (elector, leadership) = elector(client);
        let retire = CancellationToken::new();
        let running = TaskTracker::new().spawn(elector.run(retire.clone()));
        let asked = api.until(7).await;
        assert_eq!(api.methods()[..7], ["GET", "POST", "PUT", "PUT", "GET", "GET", "GET"]);
        let at: Vec<u128> = asked.iter().map(|it| it.at.as_millis()).collect();
        assert_eq!(at[..5], [0, 0, 100, 200, 200]);
        for (before, after) in [(at[4], at[5]), (at[5], at[6])] {
            // Who only waits does so for up to a fifth longer.
            assert!((100..=121).contains(&(after - before)), "{at:?}");
        }

        let now = leadership.borrow().clone();
        assert_eq!(now, Leadership { until: None, holder: Some("other".to_owned()) });
        assert_eq!(asked[2].body["metadata"]["resourceVersion"], "1");
        assert_eq!(log.count("This replica is the leader"), 1);
        assert_eq!(log.count("This replica is no longer the leader"), 1);
        assert_eq!(log.count("The Lease has a holder"), 1);
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (0, 0), "a conflict is no failure");

        retire.cancel();
        running.await.unwrap();
        assert_eq!(api.methods().iter().filter(|it| *it == "PUT").count(), 2, "nothing to release");
    }

    #[tokio::test(start_paused = true)]
    async fn a_failure_is_logged_when_it_begins_and_when_it_ends_and_ends_no_lead_by_itself() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let client = api.client(|number, _| match number {
            0 | 1 => (500, Value::Null),
            2 => (404, Value::Null),
            4 | 5 => (403, Value::Null),
            _ => lease("me", number),
        });
        let (elector, leadership) = elector(client);
        let retire = CancellationToken::new();
        let running = TaskTracker::new().spawn(elector.run(retire.clone()));
        api.until(1).await;
        tokio::time::sleep(RETRY / 2).await;
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (1, 0));
        api.until(4).await;
        tokio::time::sleep(RETRY / 2).await;
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (1, 1));
        api.until(6).await;
        tokio::time::sleep(RETRY / 2).await;
        assert!(leadership.borrow().until.is_some(), "it leads until the deadline");
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (2, 1));
        api.until(9).await;
        tokio::time::sleep(RETRY / 2).await;
        let methods = ["GET", "GET", "GET", "POST", "PUT", "GET", "GET", "PUT", "PUT"];
        assert_eq!(api.methods()[..9], methods, "after a failure the Lease is read again");
        assert_eq!((log.count(REFUSED), log.count(AGAIN)), (2, 2));

        retire.cancel();
        running.await.unwrap();
        let released = api.asked().pop().unwrap();
        assert_eq!(released.body["spec"]["holderIdentity"], "");
        assert_eq!(released.body["spec"]["leaseDurationSeconds"], 1);
        assert_eq!(leadership.borrow().until, None);
        assert_eq!(log.count("could not be released"), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_that_cannot_be_given_back_is_logged_and_one_of_another_stays() {
        for (found, lines) in [((500, Value::Null), 1), (lease("other", 7), 0)] {
            let api = ScriptedApi::default();
            let log = CapturedLog::start();
            let client = api.client(move |number, request| match number {
                0 => (404, Value::Null),
                1 => lease("me", 1),
                _ if request.method == "GET" => found.clone(),
                _ => lease("me", number),
            });
            let (elector, leadership) = elector(client);
            let retire = CancellationToken::new();
            let running = TaskTracker::new().spawn(elector.run(retire.clone()));
            api.until(2).await;
            tokio::time::sleep(RETRY / 2).await;
            assert!(leadership.borrow().until.is_some());
            retire.cancel();
            running.await.unwrap();
            assert_eq!(leadership.borrow().until, None);
            assert_eq!(api.methods(), ["GET", "POST", "GET"]);
            assert_eq!(log.count("could not be released"), lines);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_leader_that_cannot_renew_in_time_leads_no_longer() {
        let api = ScriptedApi::default();
        let log = CapturedLog::start();
        let client = api.client(|number, _| match number {
            0 => (404, Value::Null),
            1 => lease("me", 1),
            _ => (500, Value::Null),
        });
        let (mut elector, mut leadership) = elector(client);
        // Of the real clock, which runs while the paused one is ahead.
        elector.settings.pace.renew_deadline = Duration::from_millis(5);
        TaskTracker::new().spawn(elector.run(CancellationToken::new()));
        let leads = leadership.wait_for(|it| it.until.is_some());
        tokio::time::timeout(LONG, leads).await.unwrap().unwrap();
        let ended = leadership.wait_for(|it| it.until.is_none());
        tokio::time::timeout(LONG, ended).await.unwrap().unwrap();
        assert_eq!(log.count("the Lease could not be renewed in time"), 1);
    }

    #[test]
    fn a_lease_has_whole_seconds_and_at_least_one() {
        for (milliseconds, seconds) in [(0, 1), (999, 1), (1999, 1), (2000, 2)] {
            assert_eq!(whole_seconds(Duration::from_millis(milliseconds)), seconds);
        }
        assert_eq!(whole_seconds(Duration::MAX), i32::MAX);
    }
}
