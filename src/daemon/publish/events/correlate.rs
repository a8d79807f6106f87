//! Which events are written, which are counted in one that says the same, and which are too many.
//!
//! Pure: it is given the monotonic time. What is remembered is bounded in number and in time.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::publish::events::{Event, Reference};

/// How long after it was last said a statement is still the same one. Kubernetes' own recorder
/// takes ten minutes.
const SERIES_WINDOW: Duration = Duration::from_mins(10);

/// How often the count of one statement is written. `kubectl` shows minutes.
const SERIES_INTERVAL: Duration = Duration::from_mins(1);

/// Statements and objects that are remembered, each; Kubernetes' own recorder remembers as many.
/// The longest unused is forgotten first, which at worst writes an object once more.
const REMEMBERED_MAX: usize = 4096;

/// New events on one object: 25 at once, then one in five minutes, as the spam filter of
/// Kubernetes' own recorder has it.
const OBJECT: Limit = Limit { burst: 25.0, per_second: 1.0 / 300.0 };

/// Writes in all: a hundred at once, for a fleet whose numbers move together, then one a second.
/// The API server keeps events for an hour, so at most 3,700 objects of a kilobyte are there.
const TOTAL: Limit = Limit { burst: 100.0, per_second: 1.0 };

/// What is to be done with an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Write it.
    Create,
    /// It was said a moment ago; its count is written in time.
    Gather,
    /// Drop it.
    Limited,
}

/// What was said lately.
#[derive(Debug)]
pub(crate) struct Correlator {
    said: BTreeMap<Event, Said>,
    objects: BTreeMap<Reference, Bucket>,
    total: Bucket,
}

/// A statement that was written.
#[derive(Debug)]
struct Said {
    /// How often it was said and not written yet.
    gathered: u32,
    said_at: Duration,
    written_at: Duration,
}

#[derive(Clone, Copy, Debug)]
struct Limit {
    burst: f64,
    per_second: f64,
}

/// A token bucket.
#[derive(Debug)]
struct Bucket {
    limit: Limit,
    tokens: f64,
    at: Duration,
}

// === impl Bucket ===

impl Bucket {
    const fn full(limit: Limit) -> Self {
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
        Self { said: BTreeMap::new(), objects: BTreeMap::new(), total: Bucket::full(TOTAL) }
    }
}

impl Correlator {
    /// Decides about an event at `now`.
    pub(crate) fn admit(&mut self, now: Duration, event: &Event) -> Verdict {
        if let Some(said) = self.said.get_mut(event) {
            said.gathered = said.gathered.saturating_add(1);
            said.said_at = now;
            return Verdict::Gather;
        }
        let object = self.objects.entry(event.on.clone()).or_insert_with(|| Bucket::full(OBJECT));
        if !(object.has(now) && self.total.has(now)) {
            return Verdict::Limited;
        }
        object.take();
        self.total.take();
        self.said.insert(event.clone(), Said { gathered: 0, said_at: now, written_at: now });
        self.bound();
        Verdict::Create
    }

    /// Forgets that an event was written, because it was not.
    pub(crate) fn forget(&mut self, event: &Event) {
        self.said.remove(event);
    }

    /// The statements whose counts are to be written at `now`, with how often they were said since
    /// they were last written. Forgets what was not said for long.
    pub(crate) fn due(&mut self, now: Duration) -> Vec<(Event, u32)> {
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

    /// Keeps what is remembered within its bounds.
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
    use crate::publish::events::Reason;

    fn event(object: &str, note: &str) -> Event {
        let on = Reference {
            api_version: "apps/v1".to_owned(),
            kind: "Deployment".to_owned(),
            namespace: "shop".to_owned(),
            name: object.to_owned(),
            uid: None,
        };
        Event { on, reason: Reason::ScaledUp, note: note.to_owned() }
    }

    fn at(seconds: u64) -> Duration {
        Duration::from_secs(seconds)
    }

    #[test]
    fn a_thousand_equal_events_are_one_object_and_a_few_counts() {
        let mut correlator = Correlator::default();
        let (mut created, mut writes, mut counted) = (0, 0, 0);
        for second in 0..1000 {
            match correlator.admit(at(second), &event("a", "same")) {
                Verdict::Create => created += 1,
                Verdict::Gather => {}
                Verdict::Limited => panic!("a count costs nothing"),
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
        assert_eq!(correlator.admit(at(0), &said), Verdict::Create);
        assert_eq!(correlator.due(at(601)), []);
        assert_eq!(correlator.admit(at(602), &said), Verdict::Create);
    }

    #[test]
    fn one_object_that_is_talked_about_too_much_leaves_room_for_the_others() {
        let mut correlator = Correlator::default();
        let mut created = |object: &str, now: u64| {
            let note = format!("{object}{now}");
            correlator.admit(at(now), &event(object, &note)) == Verdict::Create
        };
        let noisy = (0..60).filter(|second| created("noisy", *second)).count();
        assert_eq!(noisy, 25);
        assert!(created("quiet", 60), "the others are heard");
        assert!(!created("noisy", 200));
        assert!(created("noisy", 400), "one in five minutes comes back");
    }

    #[test]
    fn all_objects_together_are_limited_too() {
        let mut correlator = Correlator::default();
        let verdicts = (0..300).map(|index| {
            let object = format!("object-{index}");
            correlator.admit(at(0), &event(&object, "note"))
        });
        assert_eq!(verdicts.filter(|verdict| *verdict == Verdict::Create).count(), 100);
        assert_eq!(correlator.admit(at(5), &event("late", "note")), Verdict::Create);
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
