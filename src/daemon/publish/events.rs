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
//! note: "desired 2 -> 3: analyze: 2 -> 3, KV spare low (0.045 < 0.100)"
//! regarding: {apiVersion: autoscaling/v2, kind: HorizontalPodAutoscaler, namespace: shop, name: llama-l4, uid: …}
//! reportingController: plimsoll
//! reportingInstance: plimsoll-7c9d-x2x4q
//! ```
//!
//! The name contains a hash of the object and the event's content. So two writers that report the
//! same thing write the same object: the second writer increases the count in `series`.

mod correlate;
pub mod decisions;
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
use crate::publish::events::write::EventWriter;

/// Events that may wait to be written. If the desired replicas of 1,000 variants change at once,
/// all of these events fit. Beyond that the oldest events are dropped, because the newest describe
/// the current state.
const QUEUE_MAX: usize = 1024;

/// The interval at which gathered counts are checked and written if due.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// The longest note that the API server accepts, in bytes.
const NOTE_MAX: usize = 1024;

/// The object that an event is about. The object is namespaced, and the event is in the same
/// namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EventSubject {
    /// Its API version, such as `apps/v1`.
    pub api_version: String,
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid. An unknown uid is looked up when the event is written, because `kubectl describe`
    /// shows only events with the uid of the object.
    pub uid: Option<String>,
}

/// An event to report to users on an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportedEvent {
    /// The object.
    pub on: EventSubject,
    /// The kind of event.
    pub reason: EventReason,
    /// The event as a sentence with its values; text beyond 1,024 bytes is cut.
    pub note: String,
}

/// The severity of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventSeverity {
    /// Routine.
    Normal,
    /// Needs attention.
    Warning,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $label:literal, $severity:ident, $action:literal;)*) => {
        /// The kind of an event. docs/events.md describes when each kind is written and how to
        /// respond.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum EventReason {
            $($(#[$doc])* $reason,)*
        }

        impl EventReason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$reason),*];

            /// Returns the reason as Kubernetes writes it.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$reason => $label,)* }
            }

            /// Returns the severity of the event.
            #[must_use]
            pub const fn severity(self) -> EventSeverity {
                match self { $(Self::$reason => EventSeverity::$severity,)* }
            }

            /// Returns the action that Plimsoll was taking.
            #[must_use]
            pub const fn action(self) -> &'static str {
                match self { $(Self::$reason => $action,)* }
            }
        }
    };
}

reasons! {
    /// Desired replicas increased.
    ScaledUp = "ScaledUp", Normal, "Decide";
    /// Desired replicas decreased.
    ScaledDown = "ScaledDown", Normal, "Decide";
    /// The desired replicas are held or unset because data is missing.
    DecisionHeld = "DecisionHeld", Warning, "Decide";
    /// Decisions use fresh data again.
    DecisionResumed = "DecisionResumed", Normal, "Decide";
    /// The load requires more than the maximum replicas.
    AtMaximum = "AtMaximum", Warning, "Decide";
    /// A limit keeps the variant from getting the replicas that it requires.
    LimitReached = "LimitReached", Warning, "Decide";
    /// A replica is slower than its peers.
    SlowReplica = "SlowReplica", Warning, "Decide";
    /// The HPA keeps the current replicas, because the desired replicas are within its tolerance.
    HpaIgnoresDesired = "HPAIgnoresDesired", Warning, "JudgeHPA";
    /// The HPA is configured so that it computes another value from the desired replicas.
    HpaMisconfigured = "HPAMisconfigured", Warning, "JudgeHPA";
    /// KEDA scaling is paused.
    KedaPaused = "KEDAPaused", Warning, "JudgeHPA";
    /// The annotations of an object are invalid.
    AnnotationsRefused = "AnnotationsRefused", Warning, "Discover";
    /// Annotations of an object have no effect.
    AnnotationsWithoutEffect = "AnnotationsWithoutEffect", Warning, "Discover";
    /// Another variant already has the scale target of this object.
    ScaleTargetTaken = "ScaleTargetTaken", Warning, "Discover";
    /// Another variant already has the name of this object's variant.
    VariantNameTaken = "VariantNameTaken", Warning, "Discover";
    /// More objects declare variants than Plimsoll watches.
    TooManyVariants = "TooManyVariants", Warning, "Discover";
    /// The variant is scraped without the credentials of the configuration.
    CredentialsWithheld = "CredentialsWithheld", Warning, "Discover";
}

/// The outcome of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventOutcome {
    /// It was created as an object.
    Created,
    /// It was counted in an existing object with the same content.
    Counted,
    /// The rate limit dropped it.
    Limited,
    /// The queue was full and dropped it.
    Overflowed,
    /// The object that it is about no longer exists.
    Gone,
    /// The API server did not accept it.
    Failed,
}

/// The writer of events.
#[derive(Clone)]
pub struct EventReporter {
    /// The client that writes them.
    pub client: kube::Client,
    /// The name of the pod, which identifies this daemon replica.
    pub instance: String,
}

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

// === impl EventOutcome ===

impl EventOutcome {
    const fn label(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Counted => "counted",
            Self::Limited => "limited",
            Self::Overflowed => "overflowed",
            Self::Gone => "gone",
            Self::Failed => "failed",
        }
    }
}

// === impl EventSeverity ===

impl EventSeverity {
    /// Returns the type as Kubernetes writes it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

// === impl ReportedEvent ===

impl ReportedEvent {
    /// Returns the name of the Event object for the object with this uid. Every writer of the same
    /// event computes the same name.
    fn object_name(&self, uid: Option<&str>) -> String {
        let Self { on, reason, note } = self;
        let EventSubject { api_version: _, kind, namespace, name, uid: _ } = on;
        let said = [kind, namespace, name, uid.unwrap_or_default(), reason.label(), note];
        // The name of an Event has at most 253 bytes; the dot and the hash take 17 of them.
        let stem = name[..name.floor_char_boundary(236)].trim_end_matches(['.', '-']);
        format!("{stem}.{:016x}", hash(&said))
    }
}

/// FNV-1a over the texts with a separator after each. The hash is stable across processes and
/// releases, so replicas of different versions give an event the same name.
fn hash(texts: &[&str]) -> u64 {
    let separated = texts.iter().flat_map(|text| text.bytes().chain([0xff]));
    separated.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
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

/// Cuts the text to the length that the API server accepts.
fn cut(mut note: String) -> String {
    if note.len() > NOTE_MAX {
        const MARK: &str = "…";
        note.truncate(note.floor_char_boundary(NOTE_MAX - MARK.len()));
        note.push_str(MARK);
    }
    note
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

    fn event(name: &str, note: &str) -> ReportedEvent {
        let on = EventSubject {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: None,
        };

        ReportedEvent { on, reason: EventReason::ScaledUp, note: note.to_owned() }
    }

    #[test]
    fn one_statement_has_one_name_and_another_has_another() {
        let one = event("llama", "2 -> 3").object_name(None);
        assert_eq!(one, event("llama", "2 -> 3").object_name(None));
        assert_ne!(one, event("llama", "3 -> 4").object_name(None));
        assert_ne!(one, event("llama", "2 -> 3").object_name(Some("uid")), "replaced since");
        assert!(one.starts_with("llama.") && one.len() == "llama.".len() + 16, "{one}");
        // Later releases must compute the same names, so this test pins the hash.
        assert_eq!(format!("{:016x}", hash(&["a"])), "089bc907b544c769");
    }

    #[test]
    fn the_longest_name_and_note_are_what_the_api_server_takes() {
        let name = format!("{}.b", "a".repeat(251));
        let named = event(&name, "note").object_name(None);
        assert!(named.len() <= 253, "{named}");
        let note = cut("é".repeat(1000));
        assert!(note.len() <= NOTE_MAX && note.ends_with("é…"), "{}", note.len());
        assert_eq!(cut("short".to_owned()), "short");
    }

    #[test]
    fn labels_are_what_the_api_server_takes() {
        for reason in EventReason::ALL {
            for text in [reason.label(), reason.action()] {
                assert!(text.len() <= 128 && text.chars().all(char::is_alphanumeric), "{text}");
                assert!(text.starts_with(char::is_uppercase), "{text}");
            }
        }
    }

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
