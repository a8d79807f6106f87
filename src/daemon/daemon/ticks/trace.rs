//! The trace that a daemon writes: the records of the loop, and the thread that writes them.
//!
//! A tick never waits for the disk. Its inputs and decisions go into a queue. If the queue is full,
//! or the disk fails, the tick is missing from the trace and counted as lost. The trace then
//! continues in a new file that begins with the state at that time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

use crate::config::{Config, Trace};
use crate::daemon::ticks::keep;
use crate::publish::state::SavedDecision;
use crate::publish::{Published, PublishedDecision};
use crate::telemetry::tracing::{TraceMetrics, TraceOutcome};
use crate::trace::{
    FileStart, RecordedResult, TraceError, TraceLimits, TraceRecord, TraceTick, TraceWriter,
};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, DesiredReplicas, Pipeline};
use plimsoll_core::settings::values::Bytes;

/// The maximum ticks that wait to be written: some seconds of a disk that stalls for a moment.
const QUEUE: usize = 16;

/// The pause after a failure before the next attempt. A full disk stays full for a while.
const RETRY: Duration = Duration::from_mins(1);

/// Writes the records of the loop.
pub(crate) struct Tracer {
    queue: mpsc::Sender<RecordBatch>,
    condition: Arc<AtomicU8>,
    metrics: TraceMetrics,
    /// The configuration in effect, as YAML.
    config: String,
    /// The records that precede the next tick.
    pending: Vec<TraceRecord>,
    /// The reason that the next tick begins a file, if it does.
    begins: Option<FileStart>,
    /// The leader's desired replicas that the tick follows, if another replica decides.
    follows: Option<BTreeMap<VariantKey, DesiredReplicas>>,
    failed_at: Option<Duration>,
}

/// Records that are written together.
struct RecordBatch {
    begins: Option<FileStart>,
    records: Vec<TraceRecord>,
}

/// The state of the writing thread, as the loop sees it.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriterCondition {
    /// It writes.
    Writes,
    /// It writes, and another file should begin.
    Full,
    /// It cannot write.
    Failed,
}

// === impl WriterCondition ===

impl WriterCondition {
    const fn code(self) -> u8 {
        match self {
            Self::Writes => 0,
            Self::Full => 1,
            Self::Failed => 2,
        }
    }

    const fn of(code: u8) -> Self {
        match code {
            0 => Self::Writes,
            1 => Self::Full,
            _ => Self::Failed,
        }
    }
}

// === impl Tracer ===

impl Tracer {
    /// Starts the writing thread, which ends when the tracer is dropped.
    pub(crate) fn start(
        config: &Config,
        began: Timestamp,
        metrics: TraceMetrics,
        tracker: &TaskTracker,
    ) -> Option<Self> {
        let Trace { dir, max_file_size: Bytes(file_size), max_files: files } =
            config.keys.trace.clone()?;

        let (queue, batches) = mpsc::channel(QUEUE);
        let condition = Arc::new(AtomicU8::new(WriterCondition::Writes.code()));
        let writer = TraceWriter::new(dir, TraceLimits { file_size, files }, began);
        let told = Arc::clone(&condition);
        let counted = metrics.clone();
        tracker.spawn_blocking(move || write(writer, batches, &told, &counted));

        Some(Self {
            queue,
            condition,
            metrics,
            config: config.print(),
            pending: Vec::new(),
            begins: Some(FileStart::Process),
            follows: None,
            failed_at: None,
        })
    }

    /// Records a reload of the configuration.
    pub(super) fn reloaded(&mut self, config: &Config) {
        self.config = config.print();
        self.pending.push(TraceRecord::Config(self.config.clone()));
    }

    /// Records states that were restored from outside.
    pub(super) fn restored(&mut self, saved: Vec<SavedDecision>) {
        if !saved.is_empty() {
            self.pending.push(TraceRecord::Restored(saved));
        }
    }

    /// Records that the next tick follows these desired replicas.
    pub(super) fn follows(&mut self, numbers: BTreeMap<VariantKey, DesiredReplicas>) {
        self.follows = Some(numbers);
    }

    /// The state before the tick, if the tick begins a file of the trace. `found` is the result of
    /// the tick before.
    pub(super) fn checkpoint(
        &mut self,
        now: Timestamp,
        elapsed: Duration,
        pipeline: &Pipeline,
        found: Option<&Published>,
    ) -> Option<Vec<SavedDecision>> {
        if !self.wants_checkpoint(elapsed) {
            return None;
        }
        let Some(found) = found else { return Some(Vec::new()) };

        let memories = keep::memories(pipeline, found);
        let mut checkpoint = Vec::new();
        for (key, variant) in &found.variants {
            let Some(PublishedDecision { decision, .. }) = &variant.decided else { continue };
            checkpoint.push(SavedDecision {
                variant: key.clone(),
                model: variant.spec.model_key(),
                desired: decision.desired(),
                at: decision.inputs_at,
                written: now,
                memory: memories.get(key).cloned(),
                strange: Vec::new(),
            });
        }

        Some(checkpoint)
    }

    /// Writes a tick to the trace.
    pub(super) fn record(
        &mut self,
        now: Timestamp,
        inputs: Inputs,
        said: BTreeMap<VariantKey, RecordedResult>,
        checkpoint: Option<Vec<SavedDecision>>,
    ) {
        let follows = self.follows.take();
        self.send(TraceTick { now, inputs, follows, said }, checkpoint);
    }

    /// Returns true if the next tick begins a file that needs a checkpoint of the current state.
    fn wants_checkpoint(&mut self, elapsed: Duration) -> bool {
        match WriterCondition::of(self.condition.load(Ordering::Relaxed)) {
            WriterCondition::Writes => {}
            WriterCondition::Full => {
                self.begins.get_or_insert(FileStart::Rotation);
            }
            WriterCondition::Failed => {
                let failed_at = *self.failed_at.get_or_insert(elapsed);
                if elapsed.saturating_sub(failed_at) < RETRY {
                    return false;
                }
                self.begins = Some(FileStart::Gap);
            }
        }

        self.begins.is_some_and(|begins| begins != FileStart::Process)
    }

    /// Queues a tick.
    fn send(&mut self, tick: TraceTick, checkpoint: Option<Vec<SavedDecision>>) {
        let failed = self.condition.load(Ordering::Relaxed) == WriterCondition::Failed.code();
        let mut records = Vec::new();
        if self.begins.is_some() {
            records.push(TraceRecord::Config(self.config.clone()));
            records.extend(checkpoint.map(TraceRecord::Restored));
            self.pending.retain(|record| !matches!(record, TraceRecord::Config(_)));
        } else if failed {
            self.pending.clear();
            self.lost();
            return;
        }

        records.append(&mut self.pending);
        records.push(TraceRecord::Tick(Box::new(tick)));
        let begins = self.begins.take();
        if begins.is_some() {
            self.failed_at = None;
            self.condition.store(WriterCondition::Writes.code(), Ordering::Relaxed);
        }

        if self.queue.try_send(RecordBatch { begins, records }).is_err() {
            // Before the first tick there is nothing that could be missing.
            self.begins = begins.filter(|it| *it == FileStart::Process).or(Some(FileStart::Gap));
            self.lost();
        }
    }

    fn lost(&self) {
        self.metrics.ticks.with_label_values(&[TraceOutcome::Lost.label()]).inc();
    }
}

/// The results of a tick per variant.
pub(super) fn said(decisions: &Decisions) -> BTreeMap<VariantKey, RecordedResult> {
    RecordedResult::of(decisions)
}

/// Writes until the loop has ended.
fn write(
    mut writer: TraceWriter,
    mut batches: mpsc::Receiver<RecordBatch>,
    condition: &AtomicU8,
    metrics: &TraceMetrics,
) {
    let mut fails = false;
    let mut told_full = false;
    while let Some(RecordBatch { begins, records }) = batches.blocking_recv() {
        let mut outcome = Ok(0);
        if let Some(begins) = begins {
            told_full = false;
            outcome = writer.begin(begins).map(|()| 0);
        }

        let open = outcome.is_ok() && writer.is_open();
        for record in records {
            outcome = outcome.and_then(|bytes| Ok(bytes + writer.write(record)?));
        }

        let label =
            if open && outcome.is_ok() { TraceOutcome::Written } else { TraceOutcome::Lost };
        metrics.ticks.with_label_values(&[label.label()]).inc();
        match outcome {
            Ok(bytes) => {
                metrics.bytes.inc_by(bytes);
                if open && fails {
                    fails = false;
                    info!("The trace can be written again");
                }

                if writer.is_full() && !told_full {
                    told_full = true;
                    condition.store(WriterCondition::Full.code(), Ordering::Relaxed);
                }
            }
            Err(problem) => {
                condition.store(WriterCondition::Failed.code(), Ordering::Relaxed);
                tell(problem, &mut fails, metrics);
            }
        }
    }

    match writer.end() {
        Ok(bytes) => metrics.bytes.inc_by(bytes),
        Err(problem) => tell(problem, &mut fails, metrics),
    }
}

/// Logs the problem, once until writing succeeds again.
fn tell(problem: TraceError, fails: &mut bool, metrics: &TraceMetrics) {
    metrics.failures.inc();
    if !std::mem::replace(fails, true) {
        error!(
            error = %format!("{:#}", anyhow::Error::new(problem)),
            "The trace cannot be written; retrying every minute, and decisions continue"
        );
    }
}
