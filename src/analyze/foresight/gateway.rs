//! What queues at a gateway, before any replica has it.
//!
//! Requests that a gateway or an endpoint picker holds are on no replica's page. They have arrived
//! all the same: arrivals are requests that finished, and the growth of those in flight, wherever
//! they are in flight. And they are a backlog that is bound to no replica, so any new one may take
//! it, which those that wait at a replica do not allow.
//!
//! A gateway that queues serves in order. What a minute without capacity has queued is in front of
//! everything that comes later, so once the queue takes longer than a first token may, every request
//! is late until it is worked off: minutes of too little become total loss. More replicas end that
//! sooner; only a gateway that sheds what has missed its deadline avoids it. The explanation says so
//! while it happens.
//!
//! # Units
//!
//! Requests, seconds.

use jiff::Timestamp;

use crate::analyze::foresight::policy::Gateway;
use crate::analyze::foresight::schedule::Sight;
use crate::units::{Requests, Seconds};

/// The longest time in seconds between two readings whose difference is believed: the growth of an
/// unseen time is not known by its ends.
const GAP_MAX: f64 = 60.0;

/// What a signal says of requests that no replica has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Queued {
    /// How many there are.
    pub requests: Requests,
    /// When that was seen.
    pub at: Timestamp,
}

/// What signals say of the requests that no replica has.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Front {
    /// What queues; `None` where nobody says it.
    pub queued: Option<Queued>,
    /// Whether every signal that counts requests has said so of late. What one that is silent has
    /// counted is not gone.
    pub sight: Sight,
}

impl Front {
    /// A model whose requests nobody counts before a replica has them.
    pub const UNSEEN: Self = Self { queued: None, sight: Sight::Whole };
}

/// By how much a queue has grown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Growth {
    /// Up to when.
    pub(crate) at: Timestamp,
    /// In how much time.
    pub(crate) elapsed: Seconds,
    /// By how many requests; fewer than none where it got shorter.
    pub(crate) requests: f64,
}

/// A queue, as it was last seen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Queue {
    last: Option<Queued>,
}

/// A queue at a gateway as a need has it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Held {
    /// Requests in it.
    pub requests: f64,
    /// Requests a second that it asks for in addition.
    pub adds: f64,
    /// Seconds that the replicas which are there take for it; `None` where there are none.
    pub takes: Option<f64>,
    /// Seconds that the first token may take.
    pub allowed: f64,
}

impl Queue {
    /// By how much it has grown since it was last seen; nothing where it has not, where it is seen
    /// for the first time, or where nobody saw it for too long.
    pub(crate) fn take(&mut self, queued: Option<Queued>) -> Option<Growth> {
        let queued = queued?;
        if self.last.is_some_and(|last| last.at == queued.at) {
            return None;
        }
        let before = self.last.replace(queued)?;
        let elapsed = Seconds::from_span(queued.at.duration_since(before.at))?;
        let requests = queued.requests.requests() - before.requests.requests();
        let known = elapsed > Seconds::ZERO && elapsed.seconds() <= GAP_MAX;
        (known && requests.abs() > 0.0).then_some(Growth { at: queued.at, elapsed, requests })
    }
}

impl Held {
    /// What this many requests ask for beside what arrives, with replicas of which each carries so
    /// much and all that are there `supply`.
    pub(crate) fn of(
        requests: f64,
        policy: &Gateway,
        (arriving, carries, supply): (f64, f64, f64),
        allowed: f64,
    ) -> Option<Self> {
        if requests <= 0.0 {
            return None;
        }
        // Without anything that arrives, one replica works it off.
        let most = policy.cap.fraction() * arriving.max(carries);
        let adds = (requests / policy.drain.seconds()).min(most);
        let takes = (supply > 0.0).then(|| requests / supply);
        Some(Self { requests, adds, takes, allowed })
    }

    /// Whether whoever joins the queue now gets a first token too late.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.takes.is_none_or(|takes| takes > self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(second: i64, requests: f64) -> Queued {
        let at = Timestamp::from_second(1_795_000_000 + second).unwrap();
        Queued { requests: Requests::new(requests).unwrap(), at }
    }

    #[test]
    fn what_a_queue_has_grown_by_is_known_from_its_second_reading_on() {
        let mut queue = Queue::default();
        assert_eq!(queue.take(Some(queued(0, 40.0))), None, "what was there before came before");
        let grown = queue.take(Some(queued(5, 70.0))).unwrap();
        assert_eq!((grown.elapsed, grown.requests), (Seconds::literal(5), 30.0));
        assert_eq!(queue.take(Some(queued(5, 70.0))), None, "the same reading again");
        assert_eq!(queue.take(None), None, "nobody can say");
        let shorter = queue.take(Some(queued(10, 0.0))).unwrap();
        assert!((shorter.requests + 70.0).abs() < 1e-9, "{shorter:?}");
        assert_eq!(
            queue.take(Some(queued(80, 500.0))),
            None,
            "nobody saw it for more than a minute"
        );
        assert_eq!(queue.take(Some(queued(79, 0.0))), None, "a clock that went back");
    }

    #[test]
    fn a_queue_asks_for_what_works_it_off_and_not_for_more_than_its_cap() {
        let policy = Gateway::default();
        let held = |requests, supply| Held::of(requests, &policy, (10.0, 2.0, supply), 2.0);
        assert_eq!(held(0.0, 8.0), None);
        let short = held(12.0, 8.0).unwrap();
        assert!((short.adds - 12.0 / policy.drain.seconds()).abs() < 1e-9);
        assert!(!short.is_hopeless(), "it is worked off in 1.5 s");
        let long = held(1e6, 8.0).unwrap();
        assert!((long.adds - 10.0 * policy.cap.fraction()).abs() < 1e-9 && long.is_hopeless());
        assert!(held(1.0, 0.0).unwrap().is_hopeless(), "nobody serves it");
    }
}
