//! State that survives a restart or a failover: the state file, and the memory that replicas share.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::collect::cluster::discovery::ledger::VARIANTS_MAX;
use crate::publish::Published;
use crate::publish::state::{self, VariantMemories};
use crate::telemetry::{StateDocument, Telemetry};
use plimsoll_core::fleet::{Fleet, VariantKey};
use plimsoll_core::pipeline::{DesiredReplicas, Pipeline};
use plimsoll_core::units::Replicas;

/// The interval at which an unchanged state file is written. After a restart, ages are at most this
/// much too high, and at most this much learning is lost.
pub(super) const SAVE_INTERVAL: Duration = Duration::from_secs(15);

/// The maximum number of variants that have left and whose states are kept: as many as are
/// discovered at once. Objects that are created and deleted without end must not fill the memory.
const LEFT_MAX: usize = VARIANTS_MAX;

/// The saved states, and the state file.
pub(super) struct StateKeeper {
    /// The file; `None` if the shared document replaces it, or nothing survives a restart.
    file: Option<PathBuf>,
    /// The states from before a restart or an outage whose variants were not seen yet.
    outlived: BTreeMap<VariantKey, state::SavedDecision>,
    /// The states of variants that have left the fleet of this process.
    left: BTreeMap<VariantKey, state::SavedDecision>,
    saved_at: Option<Duration>,
    saving: Option<StateSave>,
    clock: Clock,
    telemetry: Telemetry,
    tracker: TaskTracker,
}

/// A save of the state file that may still run.
struct StateSave {
    task: JoinHandle<()>,
    /// The time when it was started, or last reported to take too long.
    complained_at: Duration,
}

impl StateSave {
    /// Counts and reports a save that takes longer than the interval between two saves. A disk that
    /// hangs delays no decision, but nothing new would survive a restart.
    fn complain(&mut self, elapsed: Duration, telemetry: &Telemetry) {
        if elapsed.saturating_sub(self.complained_at) < SAVE_INTERVAL {
            return;
        }

        self.complained_at = elapsed;
        telemetry.state_failures.with_label_values(&["write"]).inc();
        warn!("The state file is still being written: its disk is slow or hangs");
    }
}

impl state::SavedDecision {
    /// Restores a pipeline from this state: always its knowledge, and its desired replicas if they
    /// were in effect recently.
    pub fn resume(&self, now: Timestamp, pipeline: &mut Pipeline) {
        let Self { variant, model, desired, at, memory, .. } = self;
        if self.is_recent(now) {
            pipeline.restore(now, variant.clone(), *desired, *at);
        }

        let Some(remembered) = memory.clone() else { return };
        let restored = if self.is_recent(now) { remembered } else { remembered.knowledge() };
        pipeline.recall(now, model, variant, &restored);
    }
}

impl StateKeeper {
    /// Loads the saved states of a state file; without a file there are none.
    pub(super) fn load(
        file: Option<PathBuf>,
        clock: Clock,
        telemetry: Telemetry,
        tracker: TaskTracker,
    ) -> Self {
        let now = clock.now();
        let outlived = file.as_ref().map(|path| load(now, path, &telemetry)).unwrap_or_default();
        let left = BTreeMap::new();
        Self { file, outlived, left, saved_at: None, saving: None, clock, telemetry, tracker }
    }

    /// Keeps states from before an outage until their variants are seen.
    pub(super) fn inherit(&mut self, states: Vec<state::SavedDecision>) {
        self.outlived.extend(states.into_iter().map(|saved| (saved.variant.clone(), saved)));
    }

    /// Saves with the next tick.
    pub(super) fn hurry(&mut self) {
        self.saved_at = None;
    }

    /// Continues with another state file, or none.
    pub(super) fn set_file(&mut self, file: Option<PathBuf>) {
        self.file = file;
    }

    /// Restores the desired replicas of variants that are seen for the first time after a restart, or
    /// that come back. Discovered variants are not there in the first tick. Returns the restored
    /// states.
    pub(super) fn restore(
        &mut self,
        now: Timestamp,
        fleet: &Fleet,
        pipeline: &mut Pipeline,
    ) -> Vec<state::SavedDecision> {
        self.expire(now);
        let mut seen = BTreeMap::new();
        for states in [&mut self.outlived, &mut self.left] {
            seen.extend(states.extract_if(.., |key, _| fleet.get(key).is_some()));
        }

        let known: Vec<state::SavedDecision> = seen.into_values().collect();
        for saved in &known {
            saved.resume(now, pipeline);
        }
        known
    }

    /// Keeps the state of variants that have just left, in case they come back. A variant that is
    /// no longer declared may be discovered in a moment, and an object that is replaced is gone for
    /// a moment.
    pub(super) fn put_by(&mut self, shown: &Published, known: &Fleet, pipeline: &Pipeline) {
        let written = self.clock.now();
        for (key, variant) in shown.variants.iter().filter(|(key, _)| known.get(key).is_none()) {
            let Some(decided) = &variant.decided else { continue };
            let desired = decided.decision.desired();
            let at = decided.at;
            let variant = key.clone();
            let model = decided.decision.model.clone();
            let memory = pipeline.memory(&model, key);
            let strange = Vec::new();
            let saved =
                state::SavedDecision { variant, model, desired, at, written, memory, strange };
            self.left.insert(key.clone(), saved);
        }

        self.expire(written);
        drop_oldest(&mut self.left, LEFT_MAX);
    }

    /// Drops the states that are too old. Outlived states are kept longer: their document limits
    /// their count, and their variants may be discovered late.
    fn expire(&mut self, now: Timestamp) {
        self.outlived.retain(|_, it| it.is_known(now));
        self.left.retain(|_, it| it.is_recent(now));
        // After the clock went back, a variant that left earlier has not left later than now.
        for saved in self.left.values_mut() {
            saved.written = saved.written.min(now);
        }
    }

    /// Writes the state file when desired replicas have changed, and at a fixed interval.
    pub(super) fn save(
        &mut self,
        before: &Published,
        after: &Arc<Published>,
        fleet: &Fleet,
        pipeline: &Pipeline,
    ) {
        let Some(path) = self.file.clone() else { return };
        let elapsed = self.clock.elapsed();
        let due = self.saved_at.is_none_or(|at| elapsed.saturating_sub(at) >= SAVE_INTERVAL);
        let changed = numbers(before) != numbers(after);

        // A running save on a slow disk is not overtaken; the next save is due at once.
        if let Some(saving) = self.saving.as_mut().filter(|saving| !saving.task.is_finished()) {
            saving.complain(elapsed, &self.telemetry);
            if changed {
                self.saved_at = None;
            }
            return;
        }
        if !due && !changed {
            return;
        }

        self.saved_at = Some(elapsed);
        let task = self.start_saving(path, Arc::clone(after), fleet, pipeline);
        self.saving = Some(StateSave { task, complained_at: elapsed });
    }

    fn start_saving(
        &self,
        path: PathBuf,
        published: Arc<Published>,
        fleet: &Fleet,
        pipeline: &Pipeline,
    ) -> JoinHandle<()> {
        let unseen = self.unseen(fleet);
        let now = self.clock.now();
        let memories = memories(pipeline, &published);
        let telemetry = self.telemetry.clone();

        self.tracker.spawn_blocking(move || {
            if let Err(problem) = state::save(&path, now, &published, &memories, &unseen) {
                telemetry.state_failures.with_label_values(&["write"]).inc();
                let text = format!("{:#}", anyhow::Error::new(problem));
                error!(error = %text, "The state file cannot be written");
            }
        })
    }

    /// The saved states of variants that have not been seen but may still appear. Discovery in a
    /// cluster shows them late, and later still while the API server refuses requests.
    fn unseen(&self, fleet: &Fleet) -> Vec<state::SavedDecision> {
        let now = self.clock.now();
        let mut states = self.outlived.clone();
        states.extend(self.left.clone());
        states.retain(|key, saved| fleet.get(key).is_none() && saved.is_known(now));
        states.into_values().collect()
    }

    /// Writes the state file one last time, after a running save, because two writers would mix
    /// their files. Before the first tick there is nothing new to save.
    pub(super) async fn save_last(
        mut self,
        published: Arc<Published>,
        fleet: &Fleet,
        pipeline: &Pipeline,
    ) {
        if let Some(saving) = self.saving.take() {
            let _reported_in_the_log = saving.task.await;
        }

        if let Some(path) = self.file.take().filter(|_| published.generation > 0) {
            let _reported_in_the_log = self.start_saving(path, published, fleet, pipeline).await;
        }
    }
}

/// Drops the states of the variants that left first, until there are at most `limit`.
fn drop_oldest(left: &mut BTreeMap<VariantKey, state::SavedDecision>, limit: usize) {
    let mut ages: Vec<(Timestamp, VariantKey)> =
        left.values().map(|it| (it.written, it.variant.clone())).collect();
    ages.sort_unstable();
    let excess = ages.len().saturating_sub(limit);
    for (_, variant) in ages.into_iter().take(excess) {
        left.remove(&variant);
    }
}

/// The states in the state file that were in effect. An unreadable file is set aside.
fn load(
    now: Timestamp,
    path: &Path,
    telemetry: &Telemetry,
) -> BTreeMap<VariantKey, state::SavedDecision> {
    let problem = match state::load(path) {
        Ok(saved) => return in_force(now, saved, telemetry),
        Err(why) => why,
    };
    telemetry.state_failures.with_label_values(&["read"]).inc();
    error!(
        error = %format!("{:#}", anyhow::Error::new(problem)),
        "Starting without saved decisions: replica counts stay as they are until there is data"
    );
    match state::set_aside(path) {
        Ok(aside) => {
            let path = aside.display();
            warn!(%path, "The state file was set aside; delete it after you have inspected it");
        }
        Err(problem) => {
            let error = format!("{:#}", anyhow::Error::new(problem));
            error!(%error, "The state file stays in place until the next one replaces it");
        }
    }

    BTreeMap::new()
}

/// The states from before a restart that can be in effect, by variant.
fn in_force(
    now: Timestamp,
    saved: Vec<state::SavedDecision>,
    telemetry: &Telemetry,
) -> BTreeMap<VariantKey, state::SavedDecision> {
    let strange: BTreeSet<&String> = saved.iter().flat_map(|it| &it.strange).collect();
    count_unknown(telemetry, StateDocument::File, strange.len());
    if !strange.is_empty() {
        warn!(
            ?strange,
            "The state file has values unknown to this release: they are skipped, and the desired \
             replicas are in effect"
        );
    }

    let (recent, old): (Vec<_>, Vec<_>) = saved.iter().partition(|saved| saved.is_recent(now));
    if let Some(latest) = old.iter().map(|it| it.written).max() {
        let variants = old.len();
        let learned = old.iter().filter(|it| it.is_known(now)).count();
        warn!(
            variants,
            learned,
            %latest,
            "Saved desired replicas are too old to be in effect"
        );
    }

    if !recent.is_empty() {
        info!(variants = recent.len(), "Saved desired replicas are in effect");
    }

    let known = saved.into_iter().filter(|saved| saved.is_known(now));
    known.map(|saved| (saved.variant.clone(), saved)).collect()
}

/// Exports the count of words in a document that this release does not know.
pub(super) fn count_unknown(telemetry: &Telemetry, document: StateDocument, words: usize) {
    telemetry.state_unknown_words.with_label_values(&[document.label()]).set(words as f64);
}

/// The pipeline's memory of every decided variant.
pub(super) fn memories(pipeline: &Pipeline, published: &Published) -> VariantMemories {
    let mut memories = VariantMemories::new();
    for (key, variant) in &published.variants {
        if let Some(memory) = pipeline.memory(&variant.spec.model_key(), key) {
            memories.insert(key.clone(), memory);
        }
    }

    memories
}

/// The desired replicas of every variant, if it is decided.
fn numbers(published: &Published) -> Vec<(&VariantKey, Option<Replicas>)> {
    let mut numbers = Vec::new();
    for (key, variant) in &published.variants {
        numbers.push((key, variant.decided.as_ref().map(|it| it.decision.desired())));
    }

    numbers
}

/// Continues from the desired replicas that another replica has put into effect, with its memories
/// of those variants that are new in this pipeline. Returns the restored states.
pub(super) fn take_over(
    pipeline: &mut Pipeline,
    now: Timestamp,
    numbers: &BTreeMap<VariantKey, DesiredReplicas>,
    shared: &state::shared::SharedMemories,
) -> Vec<state::SavedDecision> {
    let mut new = numbers.clone();
    new.retain(|key, _| !pipeline.has_number(key));
    pipeline.take_over(now, numbers);

    let mut recalled = Vec::new();
    for (variant, DesiredReplicas { desired, inputs_at, .. }) in new {
        let known = state::SavedDecision::shared(variant, desired, inputs_at, now, shared);
        let Some(saved) = known else { continue };
        if let Some(memory) = &saved.memory {
            pipeline.recall(now, &saved.model, &saved.variant, memory);
        }

        recalled.push(saved);
    }

    recalled
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The state of a variant that left at this second.
    fn left(name: &str, second: i64) -> state::SavedDecision {
        let at = Timestamp::from_second(second).unwrap();
        let text = format!(
            r#"{{"version":3,"written":"{at}","decisions":[{{"namespace":"shop","variant":"{name}","model":"m","desired":3,"at":"{at}"}}]}}"#
        );
        state::parse(Path::new("state.json"), text.as_bytes()).unwrap().remove(0)
    }

    #[test]
    fn of_too_many_states_those_of_the_variants_that_left_first_are_dropped() {
        let mut states = BTreeMap::new();
        for (name, second) in [("one", 1_003), ("three", 1_001), ("two", 1_002)] {
            let state = left(name, second);
            states.insert(state.variant.clone(), state);
        }

        drop_oldest(&mut states, 3);
        assert_eq!(states.len(), 3);
        drop_oldest(&mut states, 2);
        let names: Vec<&str> = states.keys().map(|key| key.variant.as_str()).collect();
        assert_eq!(names, ["one", "two"]);
    }

    #[test]
    fn a_clock_that_goes_back_keeps_no_state_of_a_variant_that_left_for_longer() {
        let telemetry = Telemetry::register(&prometheus::Registry::new()).unwrap();
        let mut keeper = StateKeeper::load(None, Clock::start(), telemetry, TaskTracker::new());
        let future = left("early", 10_000);
        keeper.left.insert(future.variant.clone(), future);

        // The clock went back by an hour, and another variant leaves a minute later.
        keeper.expire(Timestamp::from_second(6_400).unwrap());
        let leaver = left("late", 6_460);
        let key = leaver.variant.clone();
        keeper.left.insert(key.clone(), leaver);
        let mut states = keeper.left.clone();
        drop_oldest(&mut states, 1);
        assert!(states.contains_key(&key), "it left last");

        keeper.expire(Timestamp::from_second(6_400 + 15 * 60).unwrap());
        assert_eq!(keeper.left.len(), 2);
        keeper.expire(Timestamp::from_second(6_401 + 15 * 60).unwrap());
        assert_eq!(keeper.left.keys().collect::<Vec<_>>(), [&key]);
    }

    #[tokio::test]
    async fn a_save_that_hangs_is_counted_once_an_interval() {
        let registry = prometheus::Registry::new();
        let telemetry = Telemetry::register(&registry).unwrap();
        let task = TaskTracker::new().spawn(std::future::pending());
        let mut saving = StateSave { task, complained_at: Duration::ZERO };

        for (elapsed, counted) in [(14, 0), (15, 1), (16, 1), (29, 1), (30, 2)] {
            saving.complain(Duration::from_secs(elapsed), &telemetry);
            let failures = telemetry.state_failures.with_label_values(&["write"]).get();
            assert_eq!(failures, counted, "after {elapsed} s");
        }
        saving.task.abort();
    }
}
