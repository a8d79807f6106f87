//! The decision loop: a tick processes new data, decides, publishes, and reports changes.

mod autoscalers;
pub(crate) mod channels;
mod following;
mod keep;
mod orders;
pub(crate) mod overrides;
pub(crate) mod scenes;
mod shadows;
pub(crate) mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::runtime::{Handle, RuntimeFlavor};
use tokio::sync::watch;
use tokio::time::Interval;
use tokio_util::sync::CancellationToken;
use tracing::{error, info};

use crate::collect::cluster::{ClusterState, Discovery, Finding, IgnoredChange};
use crate::collect::replace;
use crate::config::Config;
use crate::daemon::announce::EventPermission;
use crate::daemon::directory::{self, Directory};
use crate::daemon::discovery::DiscoveryReporter;
use crate::daemon::sharing::{LeadershipRole, Sharing};
use crate::daemon::ticks::channels::{ConfigReload, PrometheusChannels, TickChannels};
use crate::daemon::ticks::following::FollowingSeries;
use crate::daemon::ticks::keep::{SAVE_INTERVAL, StateKeeper};
use crate::daemon::ticks::overrides::{OverrideBook, UnwrittenOrder};
use crate::daemon::ticks::scenes::SceneRequests;
use crate::daemon::ticks::shadows::ShadowPipeline;
use crate::daemon::ticks::trace::Tracer;
use crate::daemon::workloads;
use crate::leader::share::LeaderTerm;
use crate::publish::state::SavedDecision;
use crate::publish::{Published, PublishedDecision};
use crate::telemetry::{LeaderMetrics, StateDocument};
use plimsoll_core::decide::check::Violation;
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, Pipeline};
use plimsoll_core::units::Replicas;

/// The delay of a tick that an event triggers, in which more events can arrive. It is also the
/// shortest time between two such ticks. A burst of new objects is one tick.
const CALLED_AFTER: Duration = Duration::from_millis(100);

/// The loop.
pub(crate) struct Ticks {
    parts: TickChannels,
    pipeline: Pipeline,
    shadows: Vec<ShadowPipeline>,
    tracer: Option<Tracer>,
    directory: Directory,
    said: DiscoveryReporter,
    said_of_workloads: workloads::WorkloadDoubts,
    /// The state that survives a restart.
    kept: StateKeeper,
    /// The result of the last tick, published or not.
    found: Option<Arc<Published>>,
    /// The term in which this replica decides, if replicas share their decisions.
    term: Option<LeaderTerm>,
    interval: Duration,
    cards_at: Option<Duration>,
    /// The requests for the next tick's scene.
    scenes: SceneRequests,
    overrides: OverrideBook,
    /// The requests to pin or pause whose changes are not written yet, oldest first.
    unwritten: Vec<UnwrittenOrder>,
    counted: BTreeSet<(VariantKey, &'static str)>,
    ignored: BTreeMap<VariantKey, IgnoredChange>,
    findings: BTreeMap<VariantKey, Vec<Finding>>,
    /// Namespace, variant and name of each HPA that has a series, and its `ScaledObject`.
    followed: BTreeSet<[String; 4]>,
    following: FollowingSeries,
}

impl Ticks {
    /// A loop before its first tick; desired replicas in the state file are in effect from the
    /// start.
    pub(crate) fn new(config: &Config, mut parts: TickChannels) -> Self {
        let pipeline = Pipeline::new(config.policy.clone());
        // The shared document replaces the state file.
        let file = config.keys.state_file.clone().filter(|_| parts.sharing.is_none());
        let telemetry = parts.telemetry.clone();
        let kept = StateKeeper::load(file, parts.clock, telemetry, parts.tracker.clone());
        let directory = Directory::new(config, &parts.surroundings);

        // `rate()` counts the first increase only for a series that existed before it.
        for label in Violation::LABELS {
            parts.telemetry.violations.with_label_values(&[label]);
        }
        for action in ["read", "write"] {
            parts.telemetry.state_failures.with_label_values(&[action]);
        }

        Self {
            pipeline,
            shadows: shadows::replace(Vec::new(), config),
            tracer: parts.tracer.take(),
            directory,
            said: DiscoveryReporter::new(parts.telemetry.discovery_objects.clone()),
            said_of_workloads: workloads::WorkloadDoubts::default(),
            kept,
            found: None,
            term: None,
            interval: config.keys.tick_interval,
            cards_at: None,
            scenes: SceneRequests::default(),
            overrides: OverrideBook::default(),
            unwritten: Vec::new(),
            counted: BTreeSet::new(),
            ignored: BTreeMap::new(),
            findings: BTreeMap::new(),
            followed: BTreeSet::new(),
            following: FollowingSeries::default(),
            parts,
        }
    }

    /// Ticks until `stop` is cancelled, then saves the desired replicas in effect.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut interval = tokio::time::interval(self.interval);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut cluster = self.parts.cluster.clone();
        let mut called = false;
        loop {
            let awaited = self.parts.sharing.as_ref().and_then(Sharing::awaited_in);
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(reload) = self.parts.inboxes.reloads.recv() => {
                    interval = tokio::time::interval(reload.config.keys.tick_interval);
                    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    self.reload(reload);
                }
                () = changed(&mut self.parts.sharing) => {
                    aside(|| self.look_again());
                    self.answer_orders();
                }
                Some(request) = self.parts.inboxes.overrides.recv() => {
                    self.order(request);
                    self.call(&mut interval, &mut called);
                }
                Some(request) = self.parts.inboxes.scenes.recv() => {
                    self.scenes.add(request);
                    self.call(&mut interval, &mut called);
                }
                _ = interval.tick() => {
                    called = false;
                    aside(|| self.tick());
                    self.answer_orders();
                }
                () = passed(awaited) => {
                    aside(|| self.tick());
                    self.answer_orders();
                }
                () = discovered(&mut cluster, self.directory.discovery()), if !called => {
                    self.call(&mut interval, &mut called);
                }
            }
        }

        let published = self.parts.published.borrow().clone();
        self.kept.save_last(published, self.directory.fleet(), &self.pipeline).await;
    }

    /// Brings the next tick forward, once: later events do not delay it.
    fn call(&self, interval: &mut Interval, called: &mut bool) {
        if !std::mem::replace(called, true) {
            interval.reset_after(CALLED_AFTER.min(self.interval));
        }
    }

    fn reload(&mut self, reload: ConfigReload) {
        let ConfigReload { config, done } = reload;
        self.pipeline.set_policy(config.policy.clone());
        self.shadows = shadows::replace(std::mem::take(&mut self.shadows), &config);
        if let Some(tracer) = &mut self.tracer {
            tracer.reloaded(&config);
        }

        self.directory.replace(&config, &self.parts.surroundings);
        self.parts.signals.replace(&config);
        self.put_by();
        self.interval = config.keys.tick_interval;
        let file = config.keys.state_file.filter(|_| self.parts.sharing.is_none());
        self.kept.set_file(file);
        let _receiver_may_be_gone = done.send(());
    }

    /// Keeps the state of variants that have just left the fleet, in case they come back.
    fn put_by(&mut self) {
        let shown = self.parts.published.borrow().clone();
        self.kept.put_by(&shown, self.directory.fleet(), &self.pipeline);
    }

    fn tick(&mut self) {
        let began = self.parts.clock.elapsed();
        let now = self.parts.clock.now();
        let checkpoint = self.checkpoint(now);
        let standing = self.parts.sharing.as_mut().map(Sharing::stand);
        if let Some(sharing) = &mut self.parts.sharing {
            self.kept.inherit(sharing.take_outlived());
        }

        let inputs = self.take_inputs(now, standing);
        let decisions = self.decide(now, &inputs, standing);
        if let Some(violation) = &decisions.violation {
            error!(%violation, "The decisions break an invariant; the last valid ones stay in \
                effect");
            self.parts.telemetry.violations.with_label_values(&[violation.label()]).inc();
        }

        let said = self.tracer.as_ref().map(|_| trace::said(&decisions));
        let shadows = shadows::decide(&mut self.shadows, now, &inputs, &decisions);
        let before = self.parts.published.borrow().clone();
        let unshadowed = self.publish(now, &before, &inputs, decisions);
        let found = Arc::new(Published { shadows, ..unshadowed });

        let published = self.show(&before, &found, standing);
        if standing != Some(LeadershipRole::Follows) {
            self.count(&published);
        }

        self.parts.history.record(now, self.parts.clock.elapsed(), &published);
        self.found = Some(found);
        self.judge_autoscalers(&published);
        self.said_of_workloads.say(&published);
        self.kept.save(&before, &published, self.directory.fleet(), &self.pipeline);
        self.show_cards();
        if let Some((tracer, said)) = self.tracer.as_mut().zip(said) {
            tracer.record(now, inputs, said, checkpoint);
        }

        self.parts.telemetry.ticks.inc();
        let took = self.parts.clock.elapsed().saturating_sub(began);
        self.parts.telemetry.tick_duration.observe(took.as_secs_f64());
        let ended = self.parts.clock.now().as_duration().as_secs_f64();
        self.parts.telemetry.last_tick.set(ended);
        self.parts.heartbeat.beat(self.interval);
    }

    /// Decides. If replicas share their decisions, the written decisions are in effect, also for
    /// the replica that writes them.
    fn decide(
        &mut self,
        now: Timestamp,
        inputs: &Inputs,
        standing: Option<LeadershipRole>,
    ) -> Decisions {
        self.say_standing(standing);
        let Some(sharing) = &self.parts.sharing else {
            self.scenes.answer(&self.pipeline, now, inputs, None);
            return self.pipeline.tick(now, inputs);
        };

        let numbers = sharing.numbers();
        let memories = sharing.memories();
        let unknown = sharing.strange().len();
        keep::count_unknown(&self.parts.telemetry, StateDocument::Shared, unknown);
        let restored = keep::take_over(&mut self.pipeline, now, &numbers, memories);
        if let Some(tracer) = &mut self.tracer {
            tracer.restored(restored);
            tracer.follows(numbers.clone());
        }

        self.scenes.answer(&self.pipeline, now, inputs, Some(&numbers));
        self.pipeline.follow(now, inputs, &numbers)
    }

    /// The state before the tick, if the tick begins a file of the trace.
    fn checkpoint(&mut self, now: Timestamp) -> Option<Vec<SavedDecision>> {
        let tracer = self.tracer.as_mut()?;
        tracer.checkpoint(now, self.parts.clock.elapsed(), &self.pipeline, self.found.as_deref())
    }

    fn say_standing(&mut self, standing: Option<LeadershipRole>) {
        let term = match standing {
            Some(LeadershipRole::Leads(led)) => Some(led),
            Some(LeadershipRole::Follows) | None => None,
        };
        let LeaderMetrics { leader, changes, .. } = &self.parts.telemetry.leading;
        leader.set(i64::from(standing != Some(LeadershipRole::Follows)));
        if self.term.is_some() != term.is_some() {
            changes.inc();
        }

        self.term = term;
    }

    /// Publishes the part of the tick's result that may be published, and reports the changes.
    fn show(
        &mut self,
        before: &Published,
        found: &Arc<Published>,
        standing: Option<LeadershipRole>,
    ) -> Arc<Published> {
        let published = match (&mut self.parts.sharing, standing) {
            (Some(sharing), Some(standing)) => {
                let pipeline = &self.pipeline;
                Arc::new(sharing.compose(standing, found, &|| keep::memories(pipeline, found)))
            }
            (Some(_), None) | (None, _) => Arc::clone(found),
        };

        let voice = match standing {
            None | Some(LeadershipRole::Leads(_)) => EventPermission::Heard,
            Some(LeadershipRole::Follows) => EventPermission::Silent,
        };
        if voice == EventPermission::Heard {
            self.say_changes(before, &published);
        }

        self.parts.published.send_replace(Arc::clone(&published));
        self.announce(before, &published, voice);
        published
    }

    /// Publishes the decisions that were written since the last tick.
    fn look_again(&mut self) {
        let standing = self.parts.sharing.as_mut().map(Sharing::stand);

        // A result from the time when another replica led must not be written: it can lack desired
        // replicas. The next tick continues from the ones in effect.
        if let Some(LeadershipRole::Leads(term)) = standing
            && self.term != Some(term)
        {
            return;
        }

        if let Some(found) = self.found.take() {
            let before = self.parts.published.borrow().clone();
            let _shown = self.show(&before, &found, standing);
            self.found = Some(found);
        }
    }

    fn take_inputs(&mut self, now: Timestamp, standing: Option<LeadershipRole>) -> Inputs {
        let cluster = self.parts.cluster.as_ref().map(|it| it.borrow().clone());
        if let Some(cluster) = &cluster {
            if self.directory.discover(cluster) {
                self.put_by();
            }

            let objections = self.directory.objections();
            self.said.say(&cluster.discovery, objections, self.parts.announcer.as_ref());
        }

        let instances = self.parts.prometheus.as_ref().map(|it| it.instances.borrow().clone());
        let said = directory::DirectoryInputs {
            cluster: cluster.as_deref(),
            instances: instances.as_deref(),
        };
        let seen = self.directory.look(now, said);
        let restored = self.kept.restore(now, &seen.fleet, &mut self.pipeline);
        self.overrides.restore(&restored);
        if let Some(tracer) = &mut self.tracer {
            tracer.restored(restored);
        }

        if let Some(PrometheusChannels { wanted, .. }) = &self.parts.prometheus {
            replace(wanted, Arc::new(seen.in_prometheus));
        }

        replace(&self.parts.targets, Arc::new(seen.targets));
        let mut scrapes = Vec::new();
        while let Ok(scrape) = self.parts.scrapes.try_recv() {
            scrapes.push(scrape);
        }

        // Scrapes of one replica arrive in order, but scrapes of two replicas may not. The order of
        // arrival must not matter.
        scrapes.sort_by(|a, b| (&a.replica, a.at).cmp(&(&b.replica, b.at)));
        let autoscalers = cluster.as_deref().map(ClusterState::autoscalers).unwrap_or_default();
        let demand = self.parts.signals.demand(&seen.fleet);
        let routed = self.parts.signals.routed();
        let starts = cluster.as_deref().map(ClusterState::starts).unwrap_or_default();
        let inventory = cluster.as_ref().map(|it| Arc::clone(&it.inventory)).unwrap_or_default();
        let templates = cluster.as_deref().map(ClusterState::templates).unwrap_or_default();
        let fleet = seen.fleet;
        let listings = seen.listings;
        let hosting = cluster.as_deref().map(ClusterState::hosting).unwrap_or_default();
        let discovery = cluster.as_ref().map(|it| it.discovery.as_ref());
        let overrides = self.orders(now, standing, discovery);
        Inputs {
            fleet,
            listings,
            inventory,
            scrapes,
            autoscalers,
            demand,
            starts,
            templates,
            hosting,
            overrides,
            routed,
        }
    }

    /// Publishes the learned cards at an interval, because learning takes longer than a tick.
    fn show_cards(&mut self) {
        let elapsed = self.parts.clock.elapsed();
        if self.cards_at.is_some_and(|at| elapsed.saturating_sub(at) < SAVE_INTERVAL) {
            return;
        }
        self.cards_at = Some(elapsed);
        self.parts.cards.send_replace(Arc::new(self.pipeline.cards().cloned().collect()));
    }

    fn publish(
        &self,
        now: Timestamp,
        before: &Published,
        inputs: &Inputs,
        found: Decisions,
    ) -> Published {
        let generation = before.generation + 1;
        let published = Published::of(generation, &inputs.fleet, found, |key, decision| {
            let known = before.variants.get(key).and_then(|variant| variant.decided.as_ref());
            self.age(now, known, decision)
        });
        Published { findings: self.cluster_findings(), ..published }
    }

    /// The problems that keep desired replicas from being followed, as sentences.
    fn cluster_findings(&self) -> BTreeMap<VariantKey, Vec<String>> {
        let Some(watched) = &self.parts.cluster else { return BTreeMap::new() };
        let cluster = watched.borrow();

        let mut all = BTreeMap::new();
        for (key, state) in &cluster.variants {
            let found: Vec<_> = self.problems(state).map(ToString::to_string).collect();
            if !found.is_empty() {
                all.insert(key.clone(), found);
            }
        }
        all
    }

    /// Gives a decision its age on the monotonic clock. A held decision ages with that clock, and
    /// changes of the wall clock have no effect.
    fn age(
        &self,
        now: Timestamp,
        known: Option<&PublishedDecision>,
        decision: Decision,
    ) -> PublishedDecision {
        let at = decision.inputs_at;
        let elapsed = match (decision.basis, known) {
            (Basis::Held, Some(known)) => known.elapsed,
            (Basis::Held, None) | (Basis::Fresh, _) => {
                let age = Duration::try_from(now.duration_since(at)).unwrap_or_default();
                self.parts.clock.elapsed().saturating_sub(age)
            }
        };

        PublishedDecision { decision, at, elapsed }
    }

    /// Logs the changes: one line per changed variant.
    fn say_changes(&self, before: &Published, after: &Published) {
        for (key, variant) in &after.variants {
            let Some(decided) = &variant.decided else { continue };
            let decision = &decided.decision;
            let Some(because) = decision.because() else { continue };
            let namespace = key.namespace.as_str();
            let name = key.variant.as_str();
            let known = before.variants.get(key).and_then(|it| it.decided.as_ref());
            let new = decision.desired();
            let old = known.map(|it| it.decision.desired());
            if old == Some(new) {
                continue;
            }

            info!(
                namespace,
                variant = name,
                model = %variant.spec.model,
                before = old.map_or_else(|| "none".into(), |old| old.to_string()),
                desired = new.count(),
                current = variant.observation.current.map(Replicas::count),
                because = %because,
                "Desired replicas changed"
            );
            if let Some(old) = old {
                let direction = if new > old { "up" } else { "down" };
                let labels = [namespace, name, direction];
                self.parts.telemetry.changes.with_label_values(&labels).inc();
            }
        }
    }

    /// Counts the decisions of a tick.
    fn count(&mut self, after: &Published) {
        let telemetry = &self.parts.telemetry;
        for (key, variant) in &after.variants {
            let decision = variant.decided.as_ref().map(|decided| &decided.decision);
            let Some(because) = decision.and_then(Decision::because) else { continue };
            let namespace = key.namespace.as_str();
            let name = key.variant.as_str();
            let reason = because.reason.label();
            telemetry.decisions.with_label_values(&[namespace, name, reason]).inc();
            // The series begin at 0, so that `rate()` counts the first change.
            for direction in ["up", "down"] {
                let _begun = telemetry.changes.with_label_values(&[namespace, name, direction]);
            }

            self.counted.insert((key.clone(), reason));
        }

        self.counted.retain(|(key, reason)| {
            let stays = after.variants.contains_key(key);
            if !stays {
                let namespace = key.namespace.as_str();
                let name = key.variant.as_str();
                let _gone = telemetry.decisions.remove_label_values(&[namespace, name, reason]);
                for direction in ["up", "down"] {
                    let labels = [namespace, name, direction];
                    let _gone = telemetry.changes.remove_label_values(&labels);
                }
            }

            stays
        });
    }

    fn announce(&mut self, before: &Published, after: &Published, voice: EventPermission) {
        let now = self.parts.clock.elapsed();
        if let (Some(announcer), Some(cluster)) = (&mut self.parts.announcer, &self.parts.cluster) {
            let state = cluster.borrow().clone();
            announcer.decisions(now, before, after, &state, voice);
        }
    }
}

/// Computes while another thread takes over the tasks of this one. However long a tick takes, probes
/// are answered and the Lease is kept or given back.
fn aside(compute: impl FnOnce()) {
    match Handle::current().runtime_flavor() {
        RuntimeFlavor::MultiThread => tokio::task::block_in_place(compute),
        // There is no other thread.
        _ => compute(),
    }
}

/// Waits until a replica has shared something; forever if there is only one replica.
async fn changed(sharing: &mut Option<Sharing>) {
    match sharing {
        Some(sharing) => sharing.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits for the tick that a request asked for, unless an earlier one comes; forever without a
/// request.
async fn passed(wait: Option<Duration>) {
    match wait {
        Some(wait) => tokio::time::sleep(wait.max(CALLED_AFTER)).await,
        None => std::future::pending().await,
    }
}

/// Waits until the discovery differs from `known`; forever without a cluster.
async fn discovered(
    cluster: &mut Option<watch::Receiver<Arc<ClusterState>>>,
    known: &Arc<Discovery>,
) {
    let Some(cluster) = cluster else { return std::future::pending().await };
    if cluster.wait_for(|state| !Arc::ptr_eq(&state.discovery, known)).await.is_ok() {
        return;
    }
    // The watch ends only with the whole daemon.
    std::future::pending::<()>().await;
}
