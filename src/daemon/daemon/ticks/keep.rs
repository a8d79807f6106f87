//! What survives a restart or a failover: the state file, and what replicas share of the memory.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tracing::{error, info, warn};

use crate::daemon::ticks::Ticks;
use crate::publish::state::{self, Memories};
use crate::publish::{Published, PublishedVariant};
use crate::telemetry::{StateDocument, Telemetry};
use plimsoll_core::fleet::{Fleet, VariantKey};
use plimsoll_core::pipeline::{Number, Pipeline};

/// How often the state file is written while nothing changes. A restart then shows an age that is
/// at most this much too old, and has forgotten at most this much of what was learned.
const SAVE_INTERVAL: Duration = Duration::from_secs(15);

impl state::Saved {
    /// Lets a pipeline go on from it: with its number, if that was in force until lately, and with
    /// all that it knew.
    pub fn resume(&self, now: Timestamp, pipeline: &mut Pipeline) {
        let Self { variant, model, desired, at, memory, .. } = self;
        if self.is_recent(now) {
            pipeline.restore(now, variant.clone(), *desired, *at);
        }
        let Some(memory) = memory.clone() else { return };
        let memory = if self.is_recent(now) { memory } else { memory.knowledge() };
        pipeline.recall(now, model, variant, &memory);
    }
}

impl Ticks {
    /// Puts the numbers of before a restart in force for variants that are seen for the first time.
    /// Those that are discovered are not there in the first tick.
    pub(super) fn restore(&mut self, now: Timestamp, fleet: &Fleet) {
        let seen: Vec<VariantKey> =
            self.saved.keys().filter(|key| fleet.get(key).is_some()).cloned().collect();
        let saved = seen.into_iter().filter_map(|key| self.saved.remove(&key));
        let saved: Vec<state::Saved> = saved.filter(|saved| saved.is_known(now)).collect();
        for saved in &saved {
            saved.resume(now, &mut self.pipeline);
        }
        if let Some(tracer) = &mut self.tracer {
            tracer.restored(saved);
        }
    }

    /// Keeps the numbers of variants that have just left, in case they come back: what is no longer
    /// declared may be discovered in a moment.
    pub(super) fn put_by(&mut self) {
        let written = self.parts.clock.now();
        let shown = self.parts.published.borrow().clone();
        let known = self.directory.fleet();
        for (key, variant) in shown.variants.iter().filter(|(key, _)| known.get(key).is_none()) {
            let Some(decided) = &variant.decided else { continue };
            let (desired, at, variant) = (decided.decision.desired(), decided.at, key.clone());
            let model = decided.decision.model.clone();
            let memory = self.pipeline.memory(&model, key);
            let strange = Vec::new();
            let saved = state::Saved { variant, model, desired, at, written, memory, strange };
            self.saved.insert(key.clone(), saved);
        }
        // Those of before the restart are as many as the file has, and may be discovered late.
        let began = self.began;
        self.saved
            .retain(|_, it| it.is_recent(written) || (it.written < began && it.is_known(written)));
    }

    /// Writes the state file when a number has changed, and from time to time.
    pub(super) fn save(&mut self, before: &Published, after: &Arc<Published>) {
        let Some(path) = self.state_file.clone() else { return };
        let numbers = |published: &Published| -> Vec<_> {
            let desired = |variant: &PublishedVariant| {
                variant.decided.as_ref().map(|decided| decided.decision.desired())
            };
            published.variants.iter().map(|(key, it)| (key.clone(), desired(it))).collect()
        };
        let elapsed = self.parts.clock.elapsed();
        let due = self.saved_at.is_none_or(|at| elapsed.saturating_sub(at) >= SAVE_INTERVAL);
        // A save that is under way on a slow disk is not overtaken; the next one is due at once.
        let busy = self.saving.as_ref().is_some_and(|saving| !saving.is_finished());
        if busy && numbers(before) != numbers(after) {
            self.saved_at = None;
        }
        if busy || (!due && numbers(before) == numbers(after)) {
            return;
        }
        self.saved_at = Some(elapsed);
        let (published, unseen) = (Arc::clone(after), self.unseen());
        let now = self.parts.clock.now();
        let memories = memories(&self.pipeline, &published);
        let telemetry = self.parts.telemetry.clone();
        let save = move || write(&path, now, (&published, &memories, &unseen), &telemetry);
        self.saving = Some(self.parts.tracker.spawn_blocking(save));
    }

    /// Shows what was learned, now and then: a lesson takes longer than a tick.
    pub(super) fn show_cards(&mut self) {
        let elapsed = self.parts.clock.elapsed();
        if self.cards_at.is_some_and(|at| elapsed.saturating_sub(at) < SAVE_INTERVAL) {
            return;
        }
        self.cards_at = Some(elapsed);
        self.parts.cards.send_replace(Arc::new(self.pipeline.cards().cloned().collect()));
    }

    /// The numbers of variants that have not been seen and may yet be: a cluster that is looked
    /// through shows them late, and later still while it refuses to.
    fn unseen(&self) -> Vec<state::Saved> {
        let now = self.parts.clock.now();
        let fleet = self.directory.fleet();
        let unseen = self.saved.values().filter(|it| fleet.get(&it.variant).is_none());
        unseen.filter(|saved| saved.is_known(now)).cloned().collect()
    }

    /// Writes the state file one last time, after a save that is under way: two writers would mix
    /// their files. Before the first tick there is nothing that the file does not know.
    pub(super) async fn save_last(mut self) {
        if let Some(saving) = self.saving.take() {
            let _reported_in_the_log = saving.await;
        }
        let published = self.parts.published.borrow().clone();
        let unseen = self.unseen();
        if let Some(path) = self.state_file.take().filter(|_| published.generation > 0) {
            let now = self.parts.clock.now();
            let memories = memories(&self.pipeline, &published);
            let telemetry = self.parts.telemetry.clone();
            let save = move || write(&path, now, (&published, &memories, &unseen), &telemetry);
            let _reported_in_the_log = self.parts.tracker.spawn_blocking(save).await;
        }
    }
}

/// What the state file says that was in force. One that cannot be read is set aside.
pub(super) fn load(
    now: Timestamp,
    path: &Path,
    telemetry: &Telemetry,
) -> BTreeMap<VariantKey, state::Saved> {
    let problem = match state::load(path) {
        Ok(saved) => return in_force(now, saved, telemetry),
        Err(problem) => problem,
    };
    telemetry.state_failures.with_label_values(&["read"]).inc();
    error!(
        error = %format!("{:#}", anyhow::Error::new(problem)),
        "Starting without the numbers of before the restart: every replica count stays as it is \
         until there is data"
    );
    match state::set_aside(path) {
        Ok(aside) => {
            let path = aside.display();
            warn!(%path, "The state file is set aside; delete it when you have looked at it");
        }
        Err(problem) => {
            let error = format!("{:#}", anyhow::Error::new(problem));
            error!(%error, "The state file stays where it is, and the next one will replace it");
        }
    }
    BTreeMap::new()
}

/// The numbers of before a restart that can be in force, by their variants.
fn in_force(
    now: Timestamp,
    saved: Vec<state::Saved>,
    telemetry: &Telemetry,
) -> BTreeMap<VariantKey, state::Saved> {
    let strange: BTreeSet<&String> = saved.iter().flat_map(|it| &it.strange).collect();
    count_unknown(telemetry, StateDocument::File, strange.len());
    if !strange.is_empty() {
        warn!(
            ?strange,
            "The state file remembers what this release does not know: it is left out, and the \
             numbers are in force"
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
            "Numbers of before the restart are too old to be in force"
        );
    }
    if !recent.is_empty() {
        info!(variants = recent.len(), "The numbers of before the restart are in force");
    }
    let known = saved.into_iter().filter(|saved| saved.is_known(now));
    known.map(|saved| (saved.variant.clone(), saved)).collect()
}

/// Shows how much of a document this release does not know.
pub(super) fn count_unknown(telemetry: &Telemetry, document: StateDocument, words: usize) {
    telemetry.state_unknown_words.with_label_values(&[document.label()]).set(words as f64);
}

/// What the pipeline remembers of every variant that has a number.
pub(super) fn memories(pipeline: &Pipeline, published: &Published) -> Memories {
    let memory = |(key, variant): (&VariantKey, &PublishedVariant)| {
        Some((key.clone(), pipeline.memory(&variant.spec.model_key(), key)?))
    };
    published.variants.iter().filter_map(memory).collect()
}

/// Goes on from numbers that another replica has put in force, with what it remembers of those
/// that are new here. Returns these.
pub(super) fn take_over(
    pipeline: &mut Pipeline,
    now: Timestamp,
    numbers: &BTreeMap<VariantKey, Number>,
    shared: &state::shared::SharedMemories,
) -> Vec<state::Saved> {
    let is_new = |key: &&VariantKey| !pipeline.has_number(key);
    let new: Vec<VariantKey> = numbers.keys().filter(is_new).cloned().collect();
    pipeline.take_over(now, numbers);
    let recalled = new.into_iter().filter_map(|key| {
        let (model, memory) = shared.get(&key)?;
        let Number { desired, inputs_at: at } = *numbers.get(&key)?;
        pipeline.recall(now, model, &key, memory);
        let (model, memory) = (model.clone(), Some(memory.clone()));
        let strange = Vec::new();
        Some(state::Saved { variant: key, model, desired, at, written: now, memory, strange })
    });
    recalled.collect()
}

fn write(
    path: &Path,
    now: Timestamp,
    (published, memories, unseen): (&Published, &Memories, &[state::Saved]),
    telemetry: &Telemetry,
) {
    if let Err(problem) = state::save(path, now, published, memories, unseen) {
        telemetry.state_failures.with_label_values(&["write"]).inc();
        error!(error = %format!("{:#}", anyhow::Error::new(problem)), "The state file cannot be written");
    }
}
