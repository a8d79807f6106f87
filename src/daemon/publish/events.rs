//! Kubernetes Events: what changed, on the object that a user looks at.
//!
//! A [`Recorder`] takes events without waiting, and a task of its own writes them. A write that is
//! slow or refused costs an event, never a tick.
//!
//! `kube::runtime::events::Recorder` is not used, because it takes every event of one reason for
//! the same one for six minutes, whatever it says (`2 -> 3` and `3 -> 4` would be one event with
//! the text of the first), names events by the time (two writers make two objects), and has no
//! bound on what it writes or remembers.
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
//! The name is made from what the event says about which object, so whoever says the same thing
//! writes the same object: the second writer counts it in `series`.

mod correlate;
pub mod decisions;
mod write;

use std::collections::VecDeque;
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
use crate::publish::events::correlate::{Correlator, Verdict};
use crate::publish::events::write::Writer;

/// Events that may wait to be written. A fleet of a thousand variants whose numbers all change at
/// once fits; beyond that the oldest are dropped, because the newest say what is true.
const QUEUE_MAX: usize = 1024;

/// How often counts that have gathered are looked through.
const FLUSH_INTERVAL: Duration = Duration::from_secs(5);

/// The longest note that the API server takes, in bytes.
const NOTE_MAX: usize = 1024;

/// The object that an event is about. It is in a namespace, and so is the event.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference {
    /// Its API version, such as `apps/v1`.
    pub api_version: String,
    /// Its kind, such as `Deployment`.
    pub kind: String,
    /// Where it is.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid; looked up when the event is written, if it is not known. `kubectl describe` shows
    /// only events with the uid of the object.
    pub uid: Option<String>,
}

/// Something that a user should know about an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The object.
    pub on: Reference,
    /// What happened.
    pub reason: Reason,
    /// It in a sentence, with the numbers; what is longer than 1,024 bytes is cut.
    pub note: String,
}

/// Whether an event is a matter of course.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Severity {
    /// It is.
    Normal,
    /// Somebody should look.
    Warning,
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident = $label:literal, $severity:ident, $action:literal;)*) => {
        /// What happened. docs/events.md says of each when it is written and what to do.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
        pub enum Reason {
            $($(#[$doc])* $reason,)*
        }

        impl Reason {
            #[cfg(test)]
            const ALL: &[Self] = &[$(Self::$reason),*];

            /// The reason as Kubernetes writes it.
            #[must_use]
            pub const fn label(self) -> &'static str {
                match self { $(Self::$reason => $label,)* }
            }

            /// Whether it is a matter of course.
            #[must_use]
            pub const fn severity(self) -> Severity {
                match self { $(Self::$reason => Severity::$severity,)* }
            }

            /// What was being done.
            #[must_use]
            pub const fn action(self) -> &'static str {
                match self { $(Self::$reason => $action,)* }
            }
        }
    };
}

reasons! {
    /// The desired number was raised.
    ScaledUp = "ScaledUp", Normal, "Decide";
    /// The desired number was lowered.
    ScaledDown = "ScaledDown", Normal, "Decide";
    /// The number is kept, or there is none, for want of data.
    DecisionHeld = "DecisionHeld", Warning, "Decide";
    /// There is data to decide on again.
    DecisionResumed = "DecisionResumed", Normal, "Decide";
    /// The load asks for more than the maximum.
    AtMaximum = "AtMaximum", Warning, "Decide";
    /// A limit keeps the variant from having what is asked for it.
    LimitReached = "LimitReached", Warning, "Decide";
    /// A replica is slower than its peers.
    SlowReplica = "SlowReplica", Warning, "Decide";
    /// The HPA leaves the replicas as they are, because the number is within its tolerance.
    HpaIgnoresDesired = "HPAIgnoresDesired", Warning, "JudgeHPA";
    /// The HPA reads the number in a way that makes something else of it.
    HpaMisconfigured = "HPAMisconfigured", Warning, "JudgeHPA";
    /// KEDA has been told to leave the replicas alone.
    KedaPaused = "KEDAPaused", Warning, "JudgeHPA";
    /// The annotations of an object cannot be read.
    AnnotationsRefused = "AnnotationsRefused", Warning, "Discover";
    /// Annotations of an object have no effect.
    AnnotationsWithoutEffect = "AnnotationsWithoutEffect", Warning, "Discover";
    /// The scale target of an object is another variant's.
    ScaleTargetTaken = "ScaleTargetTaken", Warning, "Discover";
    /// The name of an object's variant is another's.
    VariantNameTaken = "VariantNameTaken", Warning, "Discover";
    /// More objects declare variants than are watched.
    TooManyVariants = "TooManyVariants", Warning, "Discover";
}

/// What became of one event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It was written as an object.
    Created,
    /// It was counted in an object that says the same.
    Counted,
    /// There have been too many.
    Limited,
    /// Too many were waiting.
    Overflowed,
    /// The object that it is about is gone.
    Gone,
    /// The API server did not take it.
    Failed,
}

/// Who writes events.
#[derive(Clone)]
pub struct Reporter {
    /// The client to write with.
    pub client: kube::Client,
    /// Which of several daemons it is: the pod's name.
    pub instance: String,
}

/// Takes events. Clones share one queue.
#[derive(Clone, Debug)]
pub struct Recorder {
    queue: Arc<Queue>,
    clock: Clock,
    counter: IntCounterVec,
}

#[derive(Debug, Default)]
struct Queue {
    /// Each with when it happened.
    events: Mutex<VecDeque<(Timestamp, Event)>>,
    filled: Notify,
}

// === impl Outcome ===

impl Outcome {
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

// === impl Severity ===

impl Severity {
    /// The type as Kubernetes writes it.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Normal => "Normal",
            Self::Warning => "Warning",
        }
    }
}

// === impl Event ===

impl Event {
    /// The name of the object that says this about the object with this uid: the same for everyone
    /// who says it.
    fn object_name(&self, uid: Option<&str>) -> String {
        let Self { on, reason, note } = self;
        let Reference { api_version: _, kind, namespace, name, uid: _ } = on;
        let said = [kind, namespace, name, uid.unwrap_or_default(), reason.label(), note];
        // The name of an Event is at most 253 bytes, of which 17 are the point and the hash.
        let stem = name[..name.floor_char_boundary(236)].trim_end_matches(['.', '-']);
        format!("{stem}.{:016x}", hash(&said))
    }
}

/// FNV-1a over the texts and a separator after each: stable over processes and releases, so that
/// two replicas of different versions name one event alike.
fn hash(texts: &[&str]) -> u64 {
    let separated = texts.iter().flat_map(|text| text.bytes().chain([0xff]));
    separated.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The text, cut to the length that the API server takes.
fn cut(mut note: String) -> String {
    if note.len() > NOTE_MAX {
        const MARK: &str = "…";
        note.truncate(note.floor_char_boundary(NOTE_MAX - MARK.len()));
        note.push_str(MARK);
    }
    note
}

// === impl Recorder ===

impl Recorder {
    /// Starts to write what is recorded, until `stop`. What becomes of each event is counted by
    /// its reason and the outcome.
    #[must_use]
    pub fn start(
        reporter: Reporter,
        clock: Clock,
        counter: IntCounterVec,
        tracker: &TaskTracker,
        stop: CancellationToken,
    ) -> Self {
        let recorder = Self { queue: Arc::default(), clock, counter };
        let writing = recorder.clone();
        let run = async move {
            let writer = Writer::new(reporter, clock);
            stop.run_until_cancelled(writing.write(writer)).await;
        };
        tracker.spawn(run.instrument(info_span!("events")));
        recorder
    }

    /// Takes an event. When too many wait, the oldest is dropped.
    pub fn record(&self, mut event: Event) {
        event.note = cut(event.note);
        let mut events = self.queue.lock();
        if events.len() >= QUEUE_MAX
            && let Some((_, oldest)) = events.pop_front()
        {
            self.count(oldest.reason, Outcome::Overflowed, 1);
        }
        events.push_back((self.clock.now(), event));
        drop(events);
        self.queue.filled.notify_one();
    }

    fn count(&self, reason: Reason, outcome: Outcome, times: u32) {
        let labels = [reason.label(), outcome.label()];
        self.counter.with_label_values(&labels).inc_by(u64::from(times));
    }

    async fn write(self, mut writer: Writer) {
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
                    Verdict::Create => {
                        let outcome = writer.create(at, &event).await;
                        if matches!(outcome, Outcome::Gone | Outcome::Failed) {
                            // What was not written is not there to be counted in.
                            correlator.forget(&event);
                        }
                        self.count(reason, outcome, 1);
                    }
                    Verdict::Gather => {}
                    Verdict::Limited => self.count(reason, Outcome::Limited, 1),
                }
            }
            for (event, times) in correlator.due(self.clock.elapsed()) {
                let outcome = writer.count(&event, times).await;
                self.count(event.reason, outcome, times);
            }
        }
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, VecDeque<(Timestamp, Event)>> {
        // A panic while it was held cannot have left half an event behind.
        self.events.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pop(&self) -> Option<(Timestamp, Event)> {
        self.lock().pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, note: &str) -> Event {
        let on = Reference {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "shop".to_owned(),
            name: name.to_owned(),
            uid: None,
        };
        Event { on, reason: Reason::ScaledUp, note: note.to_owned() }
    }

    #[test]
    fn one_statement_has_one_name_and_another_has_another() {
        let one = event("llama", "2 -> 3").object_name(None);
        assert_eq!(one, event("llama", "2 -> 3").object_name(None));
        assert_ne!(one, event("llama", "3 -> 4").object_name(None));
        assert_ne!(one, event("llama", "2 -> 3").object_name(Some("uid")), "replaced since");
        assert!(one.starts_with("llama.") && one.len() == "llama.".len() + 16, "{one}");
        // Names are kept by releases to come, so the hash is written down.
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
        for reason in Reason::ALL {
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
        let recorder = Recorder { queue: Arc::default(), clock: Clock::start(), counter };
        for index in 0..=QUEUE_MAX {
            recorder.record(event("llama", &index.to_string()));
        }
        assert_eq!(recorder.queue.lock().len(), QUEUE_MAX);
        assert_eq!(recorder.queue.pop().unwrap().1.note, "1");
        let dropped = recorder.counter.with_label_values(&["ScaledUp", "overflowed"]);
        assert_eq!(dropped.get(), 1);
    }
}
