//! Decides for each event whether it is created as an object, counted in an existing one or
//! dropped.
//!
//! This module does no I/O; the caller passes the monotonic time. Its memory is bounded in size and
//! in time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::events::event::{EventSubject, ReportedEvent};

/// The time after its last repetition for which a repeated event counts as the same. Kubernetes'
/// own recorder uses ten minutes.
const SERIES_WINDOW: Duration = Duration::from_mins(10);

/// The interval at which the count of one event is written. `kubectl` shows minutes.
const SERIES_INTERVAL: Duration = Duration::from_mins(1);

/// The maximum number of events and of objects that are remembered, as in Kubernetes' own recorder.
/// The entry unused for longest is removed first; at worst, an Event object is written again.
const REMEMBERED_MAX: usize = 4096;

/// Rate limit for new events on one object: 25 at once, then one per five minutes. These are the
/// values of the spam filter in Kubernetes' own recorder.
const OBJECT: RateLimit = RateLimit { burst: 25.0, per_second: 1.0 / 300.0 };

/// Rate limit for all writes: 200 at once, for a fleet whose variants change together, then one per
/// second. The API server keeps events for an hour, so at most 3,800 objects of 1 KB exist at a
/// time.
const TOTAL: RateLimit = RateLimit { burst: 200.0, per_second: 1.0 };

/// The share of each namespace: 25 at once, then one per ten seconds. Beyond its share, a namespace
/// may use the writes above [`RESERVE`], so that a fleet in one namespace has room for 100 at once.
const NAMESPACE: RateLimit = RateLimit { burst: 25.0, per_second: 0.1 };

/// The writes that are kept for namespaces within their shares: half of the burst, which is four
/// shares.
const RESERVE: f64 = 100.0;

/// The handling of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EventHandling {
    /// Create an object.
    Create,
    /// It repeats a recent event; its count is written later.
    Gather,
    /// Drop it.
    Limited,
}

/// The recent events.
#[derive(Debug)]
pub(crate) struct Correlator {
    said: BTreeMap<ReportedEvent, WrittenEvent>,
    objects: BTreeMap<EventSubject, RateBucket>,
    writes: WriteBudget,
}

/// The writes of all events, with a share for each namespace.
#[derive(Debug)]
struct WriteBudget {
    namespaces: BTreeMap<String, RateBucket>,
    total: RateBucket,
}

/// An event that was written.
#[derive(Debug)]
struct WrittenEvent {
    /// The number of repetitions that have not been written yet.
    gathered: u32,
    said_at: Duration,
    written_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct RateLimit {
    burst: f64,
    per_second: f64,
}

/// A token bucket.
#[derive(Debug)]
struct RateBucket {
    limit: RateLimit,
    tokens: f64,
    at: Duration,
}

// === impl RateBucket ===

impl RateBucket {
    const fn full(limit: RateLimit) -> Self {
        Self { limit, tokens: limit.burst, at: Duration::ZERO }
    }

    fn refill(&mut self, now: Duration) {
        let gained = now.saturating_sub(self.at).as_secs_f64() * self.limit.per_second;
        self.tokens = (self.tokens + gained).min(self.limit.burst);
        self.at = now;
    }

    fn has(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= 1.0
    }

    fn take(&mut self) {
        self.tokens -= 1.0;
    }

    fn is_full(&mut self, now: Duration) -> bool {
        self.refill(now);
        self.tokens >= self.limit.burst
    }
}

// === impl WriteBudget ===

impl WriteBudget {
    /// Takes one write for a namespace: from its share, or else from the rest above the reserve.
    fn take(&mut self, now: Duration, namespace: &str) -> bool {
        if !self.total.has(now) {
            return false;
        }

        let own = match self.namespaces.get_mut(namespace) {
            Some(known) => known,
            None => self
                .namespaces
                .entry(namespace.to_owned())
                .or_insert_with(|| RateBucket::full(NAMESPACE)),
        };
        if own.has(now) {
            own.take();
        } else if self.total.tokens <= RESERVE {
            return false;
        }

        self.total.take();
        true
    }

    /// Forgets namespaces that have all of their share.
    fn forget(&mut self, now: Duration) {
        self.namespaces.retain(|_, own| !own.is_full(now));
    }
}

// === impl Correlator ===

impl Default for Correlator {
    fn default() -> Self {
        let writes = WriteBudget { namespaces: BTreeMap::new(), total: RateBucket::full(TOTAL) };
        Self { said: BTreeMap::new(), objects: BTreeMap::new(), writes }
    }
}

impl Correlator {
    /// Decides how to handle an event at `now`.
    pub(crate) fn admit(&mut self, now: Duration, event: &ReportedEvent) -> EventHandling {
        if let Some(said) = self.said.get_mut(event) {
            said.gathered = said.gathered.saturating_add(1);
            said.said_at = now;
            return EventHandling::Gather;
        }

        let object =
            self.objects.entry(event.on.clone()).or_insert_with(|| RateBucket::full(OBJECT));
        if !(object.has(now) && self.writes.take(now, &event.on.namespace)) {
            return EventHandling::Limited;
        }

        object.take();
        self.said
            .insert(event.clone(), WrittenEvent { gathered: 0, said_at: now, written_at: now });
        self.bound();
        EventHandling::Create
    }

    /// Removes an event whose write failed.
    pub(crate) fn forget(&mut self, event: &ReportedEvent) {
        self.said.remove(event);
    }

    /// Returns the events whose counts are due at `now`, with the repetitions since the last write.
    /// Removes events without recent repetitions.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(ReportedEvent, u32)> {
        let Self { said, objects, writes } = self;
        let mut due = Vec::new();
        said.retain(|event, said| {
            let written = now.saturating_sub(said.written_at);
            let is_due = said.gathered > 0 && written >= SERIES_INTERVAL;
            if is_due && writes.take(now, &event.on.namespace) {
                due.push((event.clone(), std::mem::take(&mut said.gathered)));
                said.written_at = now;
            }

            said.gathered > 0 || now.saturating_sub(said.said_at) < SERIES_WINDOW
        });

        objects.retain(|_, bucket| !bucket.is_full(now));
        writes.forget(now);
        due
    }

    /// Enforces the bounds of the memory.
    fn bound(&mut self) {
        if self.said.len() > REMEMBERED_MAX {
            let oldest = self.said.iter().min_by_key(|(_, said)| said.said_at);
            if let Some(oldest) = oldest.map(|(event, _)| event.clone()) {
                self.said.remove(&oldest);
            }
        }

        if self.objects.len() > REMEMBERED_MAX {
            let oldest = self.objects.iter().min_by_key(|(_, bucket)| bucket.at);
            if let Some(oldest) = oldest.map(|(object, _)| object.clone()) {
                self.objects.remove(&oldest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::publish::events::event::EventReason;

    fn event(object: &str, note: &str) -> ReportedEvent {
        let on = EventSubject {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "shop".to_owned(),
            name: object.to_owned(),
            uid: None,
        };

        ReportedEvent { on, reason: EventReason::ScaledUp, note: note.to_owned() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_thousand_equal_events_are_one_object_and_a_few_counts() {
        let mut correlator = Correlator::default();
        let mut created = 0;
        let mut writes = 0;
        let mut counted = 0;
        for second in 0..1000 {
            match correlator.admit(at(second), &event("a", "same")) {
                EventHandling::Create => created += 1,
                EventHandling::Gather => {}
                EventHandling::Limited => panic!("a count costs nothing"),
            }

            for (_, times) in correlator.due(at(second)) {
                writes += 1;
                counted += times;
            }
        }

        assert_eq!((created, writes), (1, 16), "one count a minute");
        let rest: u32 = correlator.due(at(2000)).iter().map(|(_, times)| times).sum();
        assert_eq!(created + counted + rest, 1000, "none is lost");
    }

    #[test]
    fn what_is_said_again_after_a_long_silence_is_written_again() {
        let mut correlator = Correlator::default();
        let said = event("a", "same");
        assert_eq!(correlator.admit(at(0), &said), EventHandling::Create);
        assert_eq!(correlator.due(at(601)), []);
        assert_eq!(correlator.admit(at(602), &said), EventHandling::Create);
    }

    /// Returns true if a new note about the object is admitted.
    fn created(correlator: &mut Correlator, object: &str, now: u64) -> bool {
        let note = format!("{object}{now}");
        correlator.admit(at(now), &event(object, &note)) == EventHandling::Create
    }

    #[test]
    fn one_object_that_is_talked_about_too_much_leaves_room_for_the_others() {
        let mut correlator = Correlator::default();
        let noisy = (0..60).filter(|it| created(&mut correlator, "noisy", *it)).count();
        assert_eq!(noisy, 25);
        assert!(created(&mut correlator, "quiet", 60), "the others are heard");
        assert!(!created(&mut correlator, "noisy", 200));
        assert!(created(&mut correlator, "noisy", 400), "one in five minutes comes back");
    }

    fn event_in(namespace: &str, object: &str, note: &str) -> ReportedEvent {
        let mut event = event(object, note);
        event.on.namespace = namespace.to_owned();
        event
    }

    /// Returns the number of new events in a namespace that are admitted of this many.
    fn admitted(correlator: &mut Correlator, now: u64, namespace: &str, events: usize) -> usize {
        let verdicts = (0..events).map(|index| {
            let object = format!("object-{index}");
            correlator.admit(at(now), &event_in(namespace, &object, &format!("{now}")))
        });
        verdicts.filter(|verdict| *verdict == EventHandling::Create).count()
    }

    #[test]
    fn all_objects_together_are_limited_too() {
        let mut correlator = Correlator::default();
        let namespaces = (0..100).map(|index| format!("namespace-{index}"));
        let all: usize = namespaces.map(|it| admitted(&mut correlator, 0, &it, 10)).sum();
        assert_eq!(all, 200);
        assert_eq!(correlator.admit(at(5), &event("late", "note")), EventHandling::Create);
    }

    #[test]
    fn a_noisy_namespace_leaves_the_others_their_share_and_alone_has_room_for_a_fleet() {
        let mut correlator = Correlator::default();
        assert_eq!(admitted(&mut correlator, 0, "noisy", 1000), 100);
        assert_eq!(admitted(&mut correlator, 0, "shop", 30), 25);

        for minute in 1..=20 {
            let _many = admitted(&mut correlator, minute * 60, "noisy", 1000);
            assert_eq!(admitted(&mut correlator, minute * 60, "shop", 5), 5, "{minute}");
        }
    }

    #[test]
    fn counts_of_a_noisy_namespace_take_no_write_of_the_others() {
        let mut correlator = Correlator::default();
        for second in 0..600 {
            let note = (second % 90).to_string();
            let noisy = event_in("noisy", "object", &note);
            let noisy = ReportedEvent { on: EventSubject { name: note, ..noisy.on }, ..noisy };
            let _handling = correlator.admit(at(second), &noisy);
            let _counts = correlator.due(at(second));
        }
        assert_eq!(admitted(&mut correlator, 600, "shop", 25), 25);
    }

    #[test]
    fn a_repetition_is_remembered_for_as_long_as_its_series_lasts() {
        let mut correlator = Correlator::default();
        let first = event("a", "first");
        let second = event("a", "second");
        correlator.admit(at(0), &first);
        correlator.admit(at(0), &second);
        assert_eq!(correlator.due(at(0)), [], "a new Event has no count");
        assert_eq!(correlator.admit(at(30), &second), EventHandling::Gather);
        assert_eq!(correlator.due(at(59)), [], "a count is written once a minute");
        assert_eq!(correlator.due(at(60)), [(second.clone(), 1)]);
        assert_eq!(correlator.due(at(120)), [], "nothing has been added since");

        // The last repetition counts, not the first.
        assert_eq!(correlator.due(at(600)), []);
        assert_eq!(correlator.admit(at(600), &first), EventHandling::Create);
        assert_eq!(correlator.admit(at(600), &second), EventHandling::Gather);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::default();
        for second in 0..10_000_u64 {
            let object = format!("object-{second}");
            let _created_or_not = correlator.admit(at(second), &event(&object, "note"));
        }

        assert_eq!(correlator.said.len(), REMEMBERED_MAX);
        assert_eq!(correlator.objects.len(), REMEMBERED_MAX);
        let oldest = event("object-0", "note");
        assert!(
            !correlator.said.contains_key(&oldest) && !correlator.objects.contains_key(&oldest.on)
        );
        let _due = correlator.due(at(100_000));
        assert!(correlator.said.is_empty() && correlator.objects.is_empty());
        assert!(correlator.writes.namespaces.is_empty());
    }
}
