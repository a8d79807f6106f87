//! The trace that a daemon writes: what leaves the loop, and the thread that writes it.
//!
//! A tick never waits for the disk. What it got and decided goes into a queue; when that is full, or
//! the disk refuses, the tick is lost to the trace and counted, and the trace goes on in a new file
//! that begins with what is known then.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::mpsc;
use tokio_util::task::TaskTracker;
use tracing::{error, info};

use crate::config::{Config, Trace};
use crate::daemon::ticks::{Ticks, keep};
use crate::publish::state::Saved;
use crate::publish::{Published, PublishedVariant};
use crate::telemetry::tracing::{Outcome, Tracing};
use crate::trace::{Begins, Limits, Record, Said, Tick, TraceError, Writer};
use plimsoll_core::fleet::VariantKey;
use plimsoll_core::observe::Inputs;
use plimsoll_core::pipeline::{Decisions, Number};
use plimsoll_core::settings::values::Bytes;

/// Ticks that may wait to be written: some seconds of a disk that has stopped for a moment.
const QUEUE: usize = 16;

/// How long after a failure it is tried again. A disk that is full stays so for a while.
const RETRY: Duration = Duration::from_mins(1);

/// Writes what the loop gives it.
pub(crate) struct Tracer {
    queue: mpsc::Sender<Batch>,
    condition: Arc<AtomicU8>,
    metrics: Tracing,
    /// The configuration that is in force, as YAML.
    config: String,
    /// What goes before the next tick.
    pending: Vec<Record>,
    /// What the next tick begins, if it begins a file.
    begins: Option<Begins>,
    /// The numbers that the tick follows, where another decides.
    follows: Option<BTreeMap<VariantKey, Number>>,
    failed_at: Option<Duration>,
}

/// What is written together.
struct Batch {
    begins: Option<Begins>,
    records: Vec<Record>,
}

/// How the writing thread does, as it tells the loop.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Condition {
    /// It writes.
    Writes,
    /// It writes, and wants to begin another file.
    Full,
    /// It cannot write.
    Failed,
}

// === impl Condition ===

impl Condition {
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
    /// Starts the thread that writes. It ends when this is dropped.
    pub(crate) fn start(
        config: &Config,
        began: Timestamp,
        metrics: Tracing,
        tracker: &TaskTracker,
    ) -> Option<Self> {
        let Trace { dir, max_file_size: Bytes(file_size), max_files: files } =
            config.keys.trace.clone()?;
        let (queue, batches) = mpsc::channel(QUEUE);
        let condition = Arc::new(AtomicU8::new(Condition::Writes.code()));
        let writer = Writer::new(dir, Limits { file_size, files }, began);
        let (told, counted) = (Arc::clone(&condition), metrics.clone());
        tracker.spawn_blocking(move || write(writer, batches, &told, &counted));
        Some(Self {
            queue,
            condition,
            metrics,
            config: config.print(),
            pending: Vec::new(),
            begins: Some(Begins::Process),
            follows: None,
            failed_at: None,
        })
    }

    /// The configuration has been loaded again.
    pub(super) fn reloaded(&mut self, config: &Config) {
        self.config = config.print();
        self.pending.push(Record::Config(self.config.clone()));
    }

    /// Numbers have been put in force from outside.
    pub(super) fn restored(&mut self, saved: Vec<Saved>) {
        if !saved.is_empty() {
            self.pending.push(Record::Restored(saved));
        }
    }

    /// The next tick follows these numbers.
    pub(super) fn follows(&mut self, numbers: BTreeMap<VariantKey, Number>) {
        self.follows = Some(numbers);
    }

    /// Whether the next tick begins a file that needs to know what is known so far.
    fn wants_checkpoint(&mut self, elapsed: Duration) -> bool {
        match Condition::of(self.condition.load(Ordering::Relaxed)) {
            Condition::Writes => {}
            Condition::Full => {
                self.begins.get_or_insert(Begins::Rotation);
            }
            Condition::Failed => {
                let failed_at = *self.failed_at.get_or_insert(elapsed);
                if elapsed.saturating_sub(failed_at) < RETRY {
                    return false;
                }
                self.begins = Some(Begins::Gap);
            }
        }
        self.begins.is_some_and(|begins| begins != Begins::Process)
    }

    /// Hands a tick on.
    fn send(&mut self, tick: Tick, checkpoint: Option<Vec<Saved>>) {
        let failed = self.condition.load(Ordering::Relaxed) == Condition::Failed.code();
        let mut records = Vec::new();
        if self.begins.is_some() {
            records.push(Record::Config(self.config.clone()));
            records.extend(checkpoint.map(Record::Restored));
            self.pending.retain(|record| !matches!(record, Record::Config(_)));
        } else if failed {
            self.pending.clear();
            self.lost();
            return;
        }
        records.append(&mut self.pending);
        records.push(Record::Tick(Box::new(tick)));
        let begins = self.begins.take();
        if begins.is_some() {
            self.failed_at = None;
            self.condition.store(Condition::Writes.code(), Ordering::Relaxed);
        }
        if self.queue.try_send(Batch { begins, records }).is_err() {
            // Without the first tick nothing was before it that could be missed.
            self.begins = begins.filter(|it| *it == Begins::Process).or(Some(Begins::Gap));
            self.lost();
        }
    }

    fn lost(&self) {
        self.metrics.ticks.with_label_values(&[Outcome::Lost.label()]).inc();
    }
}

impl Ticks {
    /// What the trace needs to know before a tick changes it, if it begins a file.
    pub(super) fn checkpoint(&mut self, now: Timestamp) -> Option<Vec<Saved>> {
        let tracer = self.tracer.as_mut()?;
        let wanted = tracer.wants_checkpoint(self.parts.clock.elapsed());
        let found = self.found.as_ref().filter(|_| wanted);
        if !wanted {
            return None;
        }
        let memories = found.map(|found| keep::memories(&self.pipeline, found)).unwrap_or_default();
        let saved = |(key, variant): (&VariantKey, &PublishedVariant)| {
            let decision = &variant.decided.as_ref()?.decision;
            Some(Saved {
                variant: key.clone(),
                model: variant.spec.model_key(),
                desired: decision.desired(),
                at: decision.inputs_at,
                written: now,
                memory: memories.get(key).cloned(),
                strange: Vec::new(),
            })
        };
        let all = |found: &Published| found.variants.iter().filter_map(saved).collect();
        Some(found.map(all).unwrap_or_default())
    }

    /// Writes a tick into the trace.
    pub(super) fn trace(
        &mut self,
        now: Timestamp,
        inputs: Inputs,
        said: Option<BTreeMap<VariantKey, Said>>,
        checkpoint: Option<Vec<Saved>>,
    ) {
        let Some((tracer, said)) = self.tracer.as_mut().zip(said) else { return };
        let follows = tracer.follows.take();
        tracer.send(Tick { now, inputs, follows, said }, checkpoint);
    }
}

/// What a tick said of each variant.
pub(super) fn said(decisions: &Decisions) -> BTreeMap<VariantKey, Said> {
    Said::of(decisions)
}

/// Writes until the loop has ended.
fn write(
    mut writer: Writer,
    mut batches: mpsc::Receiver<Batch>,
    condition: &AtomicU8,
    metrics: &Tracing,
) {
    let mut fails = false;
    let mut told_full = false;
    while let Some(Batch { begins, records }) = batches.blocking_recv() {
        let mut outcome = Ok(0);
        if let Some(begins) = begins {
            told_full = false;
            outcome = writer.begin(begins).map(|()| 0);
        }
        let open = outcome.is_ok() && writer.is_open();
        for record in records {
            outcome = outcome.and_then(|bytes| Ok(bytes + writer.write(record)?));
        }
        let label = if open && outcome.is_ok() { Outcome::Written } else { Outcome::Lost };
        metrics.ticks.with_label_values(&[label.label()]).inc();
        match outcome {
            Ok(bytes) => {
                metrics.bytes.inc_by(bytes);
                if open && fails {
                    fails = false;
                    info!("The trace is written again");
                }
                if writer.is_full() && !told_full {
                    told_full = true;
                    condition.store(Condition::Full.code(), Ordering::Relaxed);
                }
            }
            Err(problem) => {
                condition.store(Condition::Failed.code(), Ordering::Relaxed);
                tell(problem, &mut fails, metrics);
            }
        }
    }
    match writer.end() {
        Ok(bytes) => metrics.bytes.inc_by(bytes),
        Err(problem) => tell(problem, &mut fails, metrics),
    }
}

/// Says what went wrong, once until it is well again.
fn tell(problem: TraceError, fails: &mut bool, metrics: &Tracing) {
    metrics.failures.inc();
    if !std::mem::replace(fails, true) {
        error!(
            error = %format!("{:#}", anyhow::Error::new(problem)),
            "The trace cannot be written; it is tried again each minute, and decisions go on"
        );
    }
}
