//! The decision loop: a tick takes in what has arrived, decides, publishes, and says what changed.

mod keep;
mod shadows;
pub(crate) mod trace;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::collect::cluster::{ClusterState, Discovery, Finding, Ignored};
use crate::collect::prometheus::{self, Instances};
use crate::collect::replace;
use crate::collect::scrape::Target;
use crate::config::Config;
use crate::daemon::announce::{Announcer, Voice};
use crate::daemon::demand::WakeSignals;
use crate::daemon::directory::{self, Directory, Surroundings};
use crate::daemon::discovery::Said;
use crate::daemon::sharing::{Sharing, Standing};
use crate::daemon::ticks::shadows::Shadow;
use crate::daemon::ticks::trace::Tracer;
use crate::daemon::workloads;
use crate::leader::share::Term;
use crate::publish::history::History;
use crate::publish::{Decided, Published, PublishedVariant, state};
use crate::telemetry::{Leading, StateDocument, Telemetry};
use plimsoll_core::analyze::foresight::card::Card;
use plimsoll_core::decide::check::Violation;
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::{Inputs, Observation, Scrape};
use plimsoll_core::pipeline::{Decisions, Pipeline};
use plimsoll_core::units::Replicas;

/// How long a tick that something has called for waits for more to happen, and so the shortest time
/// between two of them. A burst of new objects is one tick.
const CALLED_AFTER: Duration = Duration::from_millis(100);

/// A configuration to go on with, and where to say that it is in force.
pub(crate) struct Reload {
    /// The configuration.
    pub(crate) config: Config,
    /// Told when the next tick will use it.
    pub(crate) done: oneshot::Sender<()>,
}

/// What was learned of engines.
pub(crate) type Cards = Arc<Vec<Arc<Card>>>;

/// What Prometheus is asked for, and what it says that there is.
pub(crate) struct InPrometheus {
    pub(crate) wanted: watch::Sender<Arc<Vec<prometheus::Wanted>>>,
    pub(crate) instances: watch::Receiver<Arc<Instances>>,
}

/// What the loop is given.
pub(crate) struct Parts {
    pub(crate) clock: Clock,
    pub(crate) telemetry: Telemetry,
    pub(crate) published: watch::Sender<Arc<Published>>,
    pub(crate) scrapes: mpsc::Receiver<Scrape>,
    pub(crate) targets: watch::Sender<Arc<Vec<Target>>>,
    pub(crate) cluster: Option<watch::Receiver<Arc<ClusterState>>>,
    pub(crate) announcer: Option<Announcer>,
    pub(crate) sharing: Option<Sharing>,
    pub(crate) prometheus: Option<InPrometheus>,
    pub(crate) signals: WakeSignals,
    pub(crate) reloads: mpsc::Receiver<Reload>,
    pub(crate) surroundings: Surroundings,
    pub(crate) tracker: TaskTracker,
    pub(crate) history: Arc<History>,
    pub(crate) cards: Arc<watch::Sender<Cards>>,
    pub(crate) tracer: Option<Tracer>,
}

/// The loop.
pub(crate) struct Ticks {
    parts: Parts,
    pipeline: Pipeline,
    shadows: Vec<Shadow>,
    tracer: Option<Tracer>,
    directory: Directory,
    said: Said,
    said_of_workloads: workloads::Said,
    /// Numbers of before a restart whose variants have not been seen yet.
    saved: BTreeMap<VariantKey, state::Saved>,
    /// When this process began.
    began: Timestamp,
    /// What the last tick has found, shown or not.
    found: Option<Published>,
    /// The term that we decide in, where several replicas share what they decide.
    term: Option<Term>,
    interval: Duration,
    state_file: Option<PathBuf>,
    saved_at: Option<Duration>,
    cards_at: Option<Duration>,
    saving: Option<JoinHandle<()>>,
    counted: BTreeSet<(VariantKey, &'static str)>,
    ignored: BTreeMap<VariantKey, Ignored>,
    findings: BTreeMap<VariantKey, Vec<Finding>>,
    /// Namespace, variant and name of each HPA that has a series.
    followed: BTreeSet<[String; 3]>,
}

impl Ticks {
    /// A loop that has not ticked; numbers in the state file are in force from the start.
    pub(crate) fn new(config: &Config, mut parts: Parts) -> Self {
        let pipeline = Pipeline::new(config.policy.clone());
        let now = parts.clock.now();
        let path = config.keys.state_file.as_ref().filter(|_| parts.sharing.is_none());
        let saved = path.map(|path| keep::load(now, path, &parts.telemetry)).unwrap_or_default();
        let directory = Directory::new(config, &parts.surroundings);
        // A rate sees the first increase only of a series that was there before it.
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
            said: Said::new(parts.telemetry.discovery_objects.clone()),
            said_of_workloads: workloads::Said::default(),
            saved,
            began: now,
            found: None,
            term: None,
            interval: config.keys.tick_interval,
            // What replicas share takes its place.
            state_file: config.keys.state_file.clone().filter(|_| parts.sharing.is_none()),
            saved_at: None,
            cards_at: None,
            saving: None,
            counted: BTreeSet::new(),
            ignored: BTreeMap::new(),
            findings: BTreeMap::new(),
            followed: BTreeSet::new(),
            parts,
        }
    }

    /// Ticks until `stop` is cancelled, then saves the numbers in force.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut interval = tokio::time::interval(self.interval);
        interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut cluster = self.parts.cluster.clone();
        let mut called = false;
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                Some(reload) = self.parts.reloads.recv() => {
                    interval = tokio::time::interval(reload.config.keys.tick_interval);
                    interval.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
                    self.reload(reload);
                }
                () = changed(&mut self.parts.sharing) => self.look_again(),
                _ = interval.tick() => {
                    called = false;
                    self.tick();
                }
                changed = discovered(&mut cluster, self.directory.discovery()), if !called => {
                    called = changed;
                    interval.reset_after(CALLED_AFTER.min(self.interval));
                }
            }
        }
        self.save_last().await;
    }

    fn reload(&mut self, reload: Reload) {
        let Reload { config, done } = reload;
        self.pipeline.set_policy(config.policy.clone());
        self.shadows = shadows::replace(std::mem::take(&mut self.shadows), &config);
        if let Some(tracer) = &mut self.tracer {
            tracer.reloaded(&config);
        }
        self.directory.replace(&config, &self.parts.surroundings);
        self.parts.signals.replace(&config);
        self.put_by();
        self.interval = config.keys.tick_interval;
        self.state_file = config.keys.state_file.filter(|_| self.parts.sharing.is_none());
        let _receiver_may_be_gone = done.send(());
    }

    fn tick(&mut self) {
        let began = self.parts.clock.elapsed();
        let now = self.parts.clock.now();
        let checkpoint = self.checkpoint(now);
        let inputs = self.take_inputs(now);
        let standing = self.parts.sharing.as_mut().map(Sharing::stand);
        let decisions = self.decide(now, &inputs, standing);
        if let Some(violation) = &decisions.violation {
            error!(%violation, "The decisions break an invariant; the last good ones stay");
            self.parts.telemetry.violations.with_label_values(&[violation.label()]).inc();
        }
        let said = self.tracer.as_ref().map(|_| trace::said(&decisions));
        let shadows = self.shadow(now, &inputs, &decisions);
        let before = self.parts.published.borrow().clone();
        let mut found = self.publish(now, &before, &inputs, decisions);
        found.shadows = shadows;
        let published = self.show(&before, &found, standing);
        if standing != Some(Standing::Follows) {
            self.count(&published);
        }
        self.parts.history.record(now, self.parts.clock.elapsed(), &published);
        self.found = Some(found);
        self.judge_autoscalers(&published);
        self.said_of_workloads.say(&published);
        self.save(&before, &published);
        self.show_cards();
        self.trace(now, inputs, said, checkpoint);
        self.parts.telemetry.ticks.inc();
        let took = self.parts.clock.elapsed().saturating_sub(began);
        self.parts.telemetry.tick_duration.observe(took.as_secs_f64());
        let ended = self.parts.clock.now().as_duration().as_secs_f64();
        self.parts.telemetry.last_tick.set(ended);
    }

    /// Decides. Where replicas share what they decide, what is in force is what is written, also for
    /// who writes it.
    fn decide(&mut self, now: Timestamp, inputs: &Inputs, standing: Option<Standing>) -> Decisions {
        self.say_standing(standing);
        match &self.parts.sharing {
            Some(sharing) => {
                let numbers = sharing.numbers();
                let memories = sharing.memories();
                let unknown = sharing.strange().len();
                keep::count_unknown(&self.parts.telemetry, StateDocument::Shared, unknown);
                let restored = keep::take_over(&mut self.pipeline, now, &numbers, memories);
                if let Some(tracer) = &mut self.tracer {
                    tracer.restored(restored);
                    tracer.follows(numbers.clone());
                }
                self.pipeline.follow(now, inputs, &numbers)
            }
            None => self.pipeline.tick(now, inputs),
        }
    }

    fn say_standing(&mut self, standing: Option<Standing>) {
        let term = match standing {
            Some(Standing::Leads(term)) => Some(term),
            Some(Standing::Follows) | None => None,
        };
        let Leading { leader, changes } = &self.parts.telemetry.leading;
        leader.set(i64::from(standing != Some(Standing::Follows)));
        if self.term.is_some() != term.is_some() {
            changes.inc();
        }
        self.term = term;
    }

    /// Shows what may be shown, and says what changed.
    fn show(
        &mut self,
        before: &Published,
        found: &Published,
        standing: Option<Standing>,
    ) -> Arc<Published> {
        let shown = match (&mut self.parts.sharing, standing) {
            (Some(sharing), Some(standing)) => {
                let pipeline = &self.pipeline;
                sharing.compose(standing, found, &|| keep::memories(pipeline, found))
            }
            (Some(_), None) | (None, _) => found.clone(),
        };
        let published = Arc::new(shown);
        let voice = match standing {
            None | Some(Standing::Leads(_)) => Voice::Heard,
            Some(Standing::Follows) => Voice::Silent,
        };
        if voice == Voice::Heard {
            self.say_changes(before, &published);
        }
        self.parts.published.send_replace(Arc::clone(&published));
        self.announce(before, &published, voice);
        published
    }

    /// Shows what has been written since the last tick.
    fn look_again(&mut self) {
        let standing = self.parts.sharing.as_mut().map(Sharing::stand);
        // What was found while another replica led is not ours to write: it may know no number at
        // all. The next tick goes on from the numbers in force.
        if let Some(Standing::Leads(term)) = standing
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

    fn take_inputs(&mut self, now: Timestamp) -> Inputs {
        let cluster = self.parts.cluster.as_ref().map(|cluster| cluster.borrow().clone());
        if let Some(cluster) = &cluster {
            self.directory.discover(cluster);
            self.said.say(&cluster.discovery, self.parts.announcer.as_ref());
        }
        let instances = self.parts.prometheus.as_ref().map(|it| it.instances.borrow().clone());
        let said = directory::Said { cluster: cluster.as_deref(), instances: instances.as_deref() };
        let seen = self.directory.look(now, said);
        self.restore(now, &seen.fleet);
        if let Some(InPrometheus { wanted, .. }) = &self.parts.prometheus {
            replace(wanted, Arc::new(seen.in_prometheus));
        }
        replace(&self.parts.targets, Arc::new(seen.targets));
        let mut scrapes = Vec::new();
        while let Ok(scrape) = self.parts.scrapes.try_recv() {
            scrapes.push(scrape);
        }
        // Scrapes of one replica arrive in order; two replicas' may not, and the order of arrival
        // must not matter.
        scrapes.sort_by(|a, b| (&a.replica, a.at).cmp(&(&b.replica, b.at)));
        let autoscalers = cluster.as_deref().map(ClusterState::autoscalers).unwrap_or_default();
        let demand = self.parts.signals.demand(&seen.fleet);
        let starts = cluster.as_deref().map(ClusterState::starts).unwrap_or_default();
        let inventory = cluster.as_ref().map(|it| Arc::clone(&it.inventory)).unwrap_or_default();
        let templates = cluster.as_deref().map(ClusterState::templates).unwrap_or_default();
        let (fleet, listings) = (seen.fleet, seen.listings);
        Inputs { fleet, listings, inventory, scrapes, autoscalers, demand, starts, templates }
    }

    fn publish(
        &self,
        now: Timestamp,
        before: &Published,
        inputs: &Inputs,
        mut found: Decisions,
    ) -> Published {
        let decisions = std::mem::take(&mut found.decisions).into_iter();
        let mut decisions: BTreeMap<VariantKey, Decision> =
            decisions.map(|decision| (decision.variant.clone(), decision)).collect();
        let published = inputs.fleet.variants().map(|spec| {
            let key = &spec.key;
            let known = before.variants.get(key).and_then(|variant| variant.decided.as_ref());
            let decided = decisions.remove(key).map(|decision| self.age(now, known, decision));
            let observation = found.observations.remove(key);
            let observation = observation.unwrap_or_else(|| Observation::of_nothing(spec.bounds));
            let variant = PublishedVariant {
                spec: spec.clone(),
                observation,
                report: found.variants.remove(key),
                decided,
                undecided: found.undecided.remove(key),
            };
            (key.clone(), variant)
        });
        let variants = published.collect();
        let generation = before.generation + 1;
        let Decisions { models, pools, limits, workloads, .. } = found;
        let (decided_by, shadows) = (None, BTreeMap::new());
        Published { generation, variants, models, pools, decided_by, limits, workloads, shadows }
    }

    /// Gives a decision its age on the monotonic clock. A decision that is kept ages with it,
    /// whatever the wall clock does.
    fn age(&self, now: Timestamp, known: Option<&Decided>, decision: Decision) -> Decided {
        let at = decision.inputs_at;
        let elapsed = match (decision.basis, known) {
            (Basis::Held, Some(known)) => known.elapsed,
            (Basis::Held, None) | (Basis::Fresh, _) => {
                let age = Duration::try_from(now.duration_since(at)).unwrap_or_default();
                self.parts.clock.elapsed().saturating_sub(age)
            }
        };
        Decided { decision, at, elapsed }
    }

    /// Says what changed: one line a changed variant.
    fn say_changes(&self, before: &Published, after: &Published) {
        for (key, variant) in &after.variants {
            let Some(decided) = &variant.decided else { continue };
            let decision = &decided.decision;
            let Some(because) = decision.because() else { continue };
            let (namespace, name) = (key.namespace.as_str(), key.variant.as_str());
            let known = before.variants.get(key).and_then(|it| it.decided.as_ref());
            let (new, old) = (decision.desired(), known.map(|it| it.decision.desired()));
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
            let (namespace, name) = (key.namespace.as_str(), key.variant.as_str());
            let reason = because.reason.label();
            telemetry.decisions.with_label_values(&[namespace, name, reason]).inc();
            // The series begin at 0, so that a rate sees the first change.
            for direction in ["up", "down"] {
                let _begun = telemetry.changes.with_label_values(&[namespace, name, direction]);
            }
            self.counted.insert((key.clone(), reason));
        }
        self.counted.retain(|(key, reason)| {
            let stays = after.variants.contains_key(key);
            if !stays {
                let (namespace, name) = (key.namespace.as_str(), key.variant.as_str());
                let _gone = telemetry.decisions.remove_label_values(&[namespace, name, reason]);
                for direction in ["up", "down"] {
                    let labels = [namespace, name, direction];
                    let _gone = telemetry.changes.remove_label_values(&labels);
                }
            }
            stays
        });
    }

    fn announce(&mut self, before: &Published, after: &Published, voice: Voice) {
        let now = self.parts.clock.elapsed();
        if let (Some(announcer), Some(cluster)) = (&mut self.parts.announcer, &self.parts.cluster) {
            let cluster = cluster.borrow().clone();
            announcer.decisions(now, (before, after), &cluster, voice);
        }
    }

    /// Says when an HPA will not follow a published number, and how to mend it.
    fn judge_autoscalers(&mut self, published: &Published) {
        let Some(cluster) = self.parts.cluster.as_ref().map(|it| it.borrow().clone()) else {
            return;
        };
        let gauge = self.parts.telemetry.hpa_ignores.clone();
        let mut followed = BTreeSet::new();
        for (key, state) in &cluster.variants {
            let desired = published
                .variants
                .get(key)
                .and_then(|variant| variant.decided.as_ref())
                .map(|decided| decided.decision.desired());
            let ignored = desired.and_then(|desired| state.ignored(desired));
            if let Some(follower) = &state.follower {
                let labels = [key.namespace.as_str(), key.variant.as_str(), follower.hpa.as_str()];
                gauge.with_label_values(&labels).set(f64::from(u8::from(ignored.is_some())));
                followed.insert(labels.map(str::to_owned));
            }
            self.say_ignored(key, ignored);
            if self.findings.get(key) != Some(&state.findings) {
                for finding in &state.findings {
                    let (namespace, variant) = (&key.namespace, &key.variant);
                    warn!(%namespace, %variant, "{finding}");
                    if let Some(announcer) = &self.parts.announcer {
                        announcer.finding(key, finding);
                    }
                }
                self.findings.insert(key.clone(), state.findings.clone());
            }
        }
        // Series of HPAs that are gone go with them; the others are never absent in between.
        for gone in self.followed.difference(&followed) {
            let _gone = gauge.remove_label_values(&gone.each_ref().map(String::as_str));
        }
        self.followed = followed;
        self.findings.retain(|key, _| cluster.variants.contains_key(key));
        self.ignored.retain(|key, _| cluster.variants.contains_key(key));
    }

    fn say_ignored(&mut self, key: &VariantKey, ignored: Option<Ignored>) {
        let Some(ignored) = ignored else {
            self.ignored.remove(key);
            return;
        };
        if self.ignored.get(key) != Some(&ignored) {
            warn!(
                namespace = %key.namespace,
                variant = %key.variant,
                hpa = ignored.hpa,
                current = ignored.current.count(),
                desired = ignored.desired.count(),
                "The HPA ignores the desired number, which is within its tolerance. Add to it:\n{}",
                ignored.remedy()
            );
            if let Some(announcer) = &self.parts.announcer {
                announcer.ignored(key, &ignored);
            }
            self.ignored.insert(key.clone(), ignored);
        }
    }
}

/// Waits until replicas have shared something; for ever where there is only one.
async fn changed(sharing: &mut Option<Sharing>) {
    match sharing {
        Some(sharing) => sharing.changed().await,
        None => std::future::pending().await,
    }
}

/// Waits until something else is discovered than is known. Without a cluster that is never.
async fn discovered(
    cluster: &mut Option<watch::Receiver<Arc<ClusterState>>>,
    known: &Arc<Discovery>,
) -> bool {
    let Some(cluster) = cluster else { return std::future::pending().await };
    let differs = |state: &Arc<ClusterState>| !Arc::ptr_eq(&state.discovery, known);
    if cluster.wait_for(differs).await.is_ok() {
        return true;
    }
    // The watching ends only with everything else.
    std::future::pending().await
}
