//! Kubernetes Events: changes, reported on the object that a user looks at.
//!
//! A [`EventRecorder`] queues events without blocking, and a separate task writes them. A slow or
//! rejected write can lose an event, but never delays a tick.
//!
//! `kube::runtime::events::Recorder` is unsuitable for three reasons:
//!
//! - For six minutes it treats all events with the same reason as one event, whatever their text.
//!   `2 -> 3` and `3 -> 4` would become one event with the first text.
//! - It names events by time, so two writers create two objects.
//! - It limits neither its writes nor its memory.
//!
//! # Shape
//!
//! ```yaml
//! apiVersion: events.k8s.io/v1
//! kind: Event
//! metadata: {namespace: shop, name: llama-l4.5c1f0e9a7b3d2468}
//! type: Normal
//! reason: ScaledUp
//! action: Decide
//! note: "desired 2 -> 3: analyze: 2 -> 3, low KV-cache headroom (0.045 < 0.100)"
//! regarding: {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, namespace: shop, name: llama-l4, uid: …}
//! reportingController: plimsoll
//! reportingInstance: plimsoll-7c9d-x2x4q
//! ```
//!
//! The name contains a hash of the object and the event's content. So two writers that report the
//! same thing write the same object: the second writer increases the count in `series`.

mod correlate;
pub mod decisions;
mod event;
mod write;

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use prometheus::IntCounterVec;
use tokio::sync::Notify;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, info_span};

use crate::clock::Clock;
use crate::publish::events::correlate::{Correlator, EventHandling};
use crate::publish::events::event::cut;
use crate::publish::events::write::{EventOutcome, EventWriter};

pub use crate::publish::events::event::{EventReason, EventSeverity, EventSubject, ReportedEvent};
pub use crate::publish::events::write::EventReporter;

/// Events that may wait to be written. If the desired replicas of 1,000 variants change at once,
/// all of these events fit. Beyond that the oldest events are dropped, because the newest describe
/// the current state.
const QUEUE_MAX: usize = 1024;

/// The interval at which gathered counts are checked and written if due.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// Accepts events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct EventRecorder {
    queue: Arc<EventQueue>,
    clock: Clock,
    counter: IntCounterVec,
}

#[derive(Debug, Default)]
struct EventQueue {
    /// Each event with the time when it happened.
    events: Mutex<VecDeque<(Timestamp, ReportedEvent)>>,
    filled: Notify,
}

/// Returns the place of the oldest event of the namespace with the most events.
fn to_drop(events: &VecDeque<(Timestamp, ReportedEvent)>) -> usize {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (_, event) in events {
        *counts.entry(&event.on.namespace).or_default() += 1;
    }

    let loudest = counts.iter().max_by_key(|(_, count)| **count).map(|(namespace, _)| *namespace);
    let mut namespaces = events.iter().map(|(_, event)| event.on.namespace.as_str());
    namespaces.position(|namespace| Some(namespace) == loudest).unwrap_or_default()
}

// === impl EventRecorder ===

impl EventRecorder {
    /// Starts the task that writes recorded events until `stop` is cancelled. Each event is counted
    /// by its reason and outcome.
    #[must_use]
    pub fn start(
        reporter: EventReporter,
        clock: Clock,
        counter: IntCounterVec,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let recorder = Self { queue: Arc::default(), clock, counter };
        let writing = recorder.clone();
        let run = async move {
            let writer = EventWriter::new(reporter, clock);
            stop.run_until_cancelled(writing.write(writer)).await;
        };

        tracker.spawn(run.instrument(info_span!("events")));
        recorder
    }

    /// Queues an event. If the queue is full, the oldest event of the namespace with the most
    /// events is dropped.
    pub fn record(&self, mut event: ReportedEvent) {
        event.note = cut(event.note);
        let mut events = self.queue.lock();
        if events.len() >= QUEUE_MAX {
            let place = to_drop(&events);
            let dropped = events.remove(place).map(|(_, event)| event.reason);
            self.count(dropped.unwrap_or(event.reason), EventOutcome::Overflowed, 1);
        }

        events.push_back((self.clock.now(), event));
        drop(events);
        self.queue.filled.notify_one();
    }

    fn count(&self, reason: EventReason, outcome: EventOutcome, times: u32) {
        let labels = [reason.label(), outcome.label()];
        self.counter.with_label_values(&labels).inc_by(u64::from(times));
    }

    async fn write(self, mut writer: EventWriter) {
        let mut correlator = Correlator::default();
        let mut flushes = interval(FLUSH_INTERVAL);
        flushes.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.queue.filled.notified() => {}
                _ = flushes.tick() => {}
            }

            while let Some((at, event)) = self.queue.pop() {
                let reason = event.reason;
                match correlator.admit(self.clock.elapsed(), &event) {
                    EventHandling::Create => {
                        let outcome = writer.create(at, &event).await;
                        if matches!(outcome, EventOutcome::Gone | EventOutcome::Failed) {
                            // No object exists that later events could be counted in.
                            correlator.forget(&event);
                        }
                        self.count(reason, outcome, 1);
                    }
                    EventHandling::Gather => {}
                    EventHandling::Limited => self.count(reason, EventOutcome::Limited, 1),
                }
            }

            for (event, times) in correlator.due(self.clock.elapsed()) {
                let outcome = writer.count(&event, times).await;
                self.count(event.reason, outcome, times);
            }
        }
    }
}

impl EventQueue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Timestamp, ReportedEvent)>> {
        // A panic while the lock was held cannot leave a partial event behind.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<(Timestamp, ReportedEvent)> {
        self.lock().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::events::event::tests::event;

    #[test]
    fn a_full_queue_drops_the_oldest_and_counts_it() {
        let options = prometheus::Opts::new("events", "Events.");
        let counter = IntCounterVec::new(options, &["reason", "outcome"]).unwrap();
        let recorder = EventRecorder { queue: Arc::default(), clock: Clock::start(), counter };
        for index in 0..=QUEUE_MAX {
            recorder.record(event("llama", &index.to_string()));
        }

        assert_eq!(recorder.queue.lock().len(), QUEUE_MAX);
        assert_eq!(recorder.queue.pop().unwrap().1.note, "1");
        let dropped = recorder.counter.with_label_values(&["ScaledUp", "overflowed"]);
        assert_eq!(dropped.get(), 1);
    }

    #[test]
    fn a_full_queue_drops_events_of_the_namespace_with_the_most() {
        let options = prometheus::Opts::new("events", "Events.");
        let counter = IntCounterVec::new(options, &["reason", "outcome"]).unwrap();
        let recorder = EventRecorder { queue: Arc::default(), clock: Clock::start(), counter };
        let mut quiet = event("llama", "of another namespace");
        quiet.on.namespace = "quiet".to_owned();
        recorder.record(quiet.clone());
        for index in 0..2 * QUEUE_MAX {
            recorder.record(event("llama", &index.to_string()));
        }

        assert_eq!(recorder.queue.lock().len(), QUEUE_MAX);
        assert_eq!(recorder.queue.pop().unwrap().1, quiet);
    }
}
