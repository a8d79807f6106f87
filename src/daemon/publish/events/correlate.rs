//! Decides for each event whether it is created as an object, counted in an existing one or
//! dropped.
//!
//! This module does no I/O; the caller passes the monotonic time. Its memory is bounded in size and
//! in time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::events::{EventSubject, ReportedEvent};

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

/// Rate limit for all writes: 100 at once, for a fleet whose variants change together, then one per
/// second. The API server keeps events for an hour, so at most 3,700 objects of 1 KB exist at a
/// time.
const TOTAL: RateLimit = RateLimit { burst: 100.0, per_second: 1.0 };

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
}

// === impl Correlator ===

impl Default for Correlator {
    fn default() -> Self {
        Self { said: BTreeMap::new(), objects: BTreeMap::new(), total: RateBucket::full(TOTAL) }
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
        if !(object.has(now) && self.total.has(now)) {
            return EventHandling::Limited;
        }

        object.take();
        self.total.take();
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
        let Self { said, objects, total } = self;
        let mut due = Vec::new();
        said.retain(|event, said| {
            let written = now.saturating_sub(said.written_at);
            if said.gathered > 0 && written >= SERIES_INTERVAL && total.has(now) {
                total.take();
                due.push((event.clone(), std::mem::take(&mut said.gathered)));
                said.written_at = now;
            }

            said.gathered > 0 || now.saturating_sub(said.said_at) < SERIES_WINDOW
        });

        objects.retain(|_, bucket| {
            bucket.refill(now);
            bucket.tokens < bucket.limit.burst
        });
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
    use crate::publish::events::EventReason;

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

    #[test]
    fn all_objects_together_are_limited_too() {
        let mut correlator = Correlator::default();
        let verdicts = (0..300).map(|index| {
            let object = format!("object-{index}");
            correlator.admit(at(0), &event(&object, "note"))
        });
        assert_eq!(verdicts.filter(|verdict| *verdict == EventHandling::Create).count(), 100);
        assert_eq!(correlator.admit(at(5), &event("late", "note")), EventHandling::Create);
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut correlator = Correlator::default();
        for second in 0..10_000_u64 {
            let object = format!("object-{second}");
            let _created_or_not = correlator.admit(at(second), &event(&object, "note"));
        }

        assert_eq!(correlator.said.len(), REMEMBERED_MAX);
        assert!(correlator.objects.len() <= REMEMBERED_MAX);
        let _due = correlator.due(at(100_000));
        assert!(correlator.said.is_empty() && correlator.objects.is_empty());
    }
}
