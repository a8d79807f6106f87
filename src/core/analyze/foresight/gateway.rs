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

use std::collections::BTreeMap;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

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
    /// By how much that has grown, where it has and somebody saw it.
    pub grown: Option<Growth>,
    /// Requests that the gateway has rejected since the last look, if it counts them.
    pub rejected: Option<Growth>,
    /// Whether every signal that counts requests has said so of late. What one that is silent has
    /// counted is not gone.
    pub sight: Sight,
}

impl Front {
    /// A model whose requests nobody counts before a replica has them.
    pub const UNSEEN: Self =
        Self { queued: None, grown: None, rejected: None, sight: Sight::Whole };
}

/// By how much a queue has grown.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Growth {
    /// Up to when.
    pub at: Timestamp,
    /// In how much time.
    pub elapsed: Seconds,
    /// By how many requests; fewer than none where it got shorter.
    pub requests: f64,
}

/// A queue, as each signal has last said.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Queue {
    last: BTreeMap<String, Queued>,
}

/// A queue at a gateway as a need has it.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{adds:.2} for {requests:.0} that queue at the gateway")]
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

impl Queued {
    /// The most that one of several says: added up, they might count the same requests.
    pub fn most(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        let is_more =
            |a: Self, b: Self| b.requests > a.requests || (b.requests == a.requests && b.at > a.at);
        all.into_iter().reduce(|a, b| if is_more(a, b) { b } else { a })
    }
}

impl Queue {
    /// By how much it has grown since it was last seen, as the signals say that were heard both
    /// times: what one says that was silent before, or for the first time, had come before that.
    /// Nothing where it has not grown, or where nobody saw it for too long.
    pub fn take(&mut self, heard: &BTreeMap<String, Queued>) -> Option<Growth> {
        self.last.retain(|signal, _| heard.contains_key(signal));
        let again = || heard.iter().filter_map(|(signal, now)| Some((self.last.get(signal)?, now)));
        let clock_went_back = again().any(|(before, now)| now.at < before.at);
        let before = Queued::most(again().map(|(before, _)| *before));
        let now = Queued::most(again().map(|(_, now)| *now));
        let both = now.zip(before);
        if !clock_went_back && both.is_some_and(|(now, before)| now.at <= before.at) {
            // Nothing newer yet, but of signals that are heard for the first time.
            for (signal, queued) in heard {
                self.last.entry(signal.clone()).or_insert(*queued);
            }
            return None;
        }
        self.last.clone_from(heard);
        let (now, before) = both?;
        let elapsed = Seconds::from_span(now.at.duration_since(before.at))?;
        let requests = now.requests.requests() - before.requests.requests();
        let known = elapsed > Seconds::ZERO && elapsed.seconds() <= GAP_MAX;
        (known && requests.abs() > 0.0).then_some(Growth { at: now.at, elapsed, requests })
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

    /// What signals say in a second.
    fn heard(second: i64, said: &[(&str, f64)]) -> BTreeMap<String, Queued> {
        said.iter().map(|(signal, said)| ((*signal).to_owned(), queued(second, *said))).collect()
    }

    #[test]
    fn what_a_queue_has_grown_by_is_known_from_its_second_reading_on() {
        let mut queue = Queue::default();
        let mut take = |second, said: f64| queue.take(&heard(second, &[("a", said)]));
        assert_eq!(take(0, 40.0), None, "what was there before came before");
        let grown = take(5, 70.0).unwrap();
        assert_eq!((grown.elapsed, grown.requests), (Seconds::literal(5), 30.0));
        assert_eq!(take(5, 70.0), None, "the same reading again");
        let shorter = take(10, 0.0).unwrap();
        assert!((shorter.requests + 70.0).abs() < 1e-9, "{shorter:?}");
        assert_eq!(take(80, 500.0), None, "nobody saw it for more than a minute");
        assert_eq!(take(79, 0.0), None, "a clock that went back");
    }

    #[test]
    fn a_signal_that_goes_silent_or_comes_back_is_no_growth() {
        let mut queue = Queue::default();
        let mut take = |second, said: &[(&str, f64)]| {
            queue.take(&heard(second, said)).map(|grown| grown.requests)
        };
        assert_eq!(take(0, &[("a", 100.0), ("b", 5.0)]), None);
        assert_eq!(take(1, &[("b", 5.0)]), None, "what `a` has counted is not gone");
        assert_eq!(take(2, &[("b", 9.0)]), Some(4.0), "`b` is heard as before");
        assert_eq!(take(3, &[("a", 100.0), ("b", 9.0)]), None, "it has not come now");
        assert_eq!(take(4, &[("a", 103.0), ("b", 9.0)]), Some(3.0));
        // Alone, and for less than the longest gap that is believed.
        assert_eq!(take(5, &[]), None);
        assert_eq!(take(40, &[("a", 500.0)]), None);
        assert_eq!(take(41, &[("a", 501.0)]), Some(1.0));
        // One that is heard for the first time counts from there on.
        assert_eq!(take(41, &[("a", 501.0), ("b", 600.0)]), None);
        assert_eq!(take(42, &[("a", 501.0), ("b", 602.0)]), Some(2.0));
        // Read in turns, and each counts the most now and then.
        let mut at = |a: (i64, f64), b: (i64, f64)| {
            let said = [("a".to_owned(), queued(a.0, a.1)), ("b".to_owned(), queued(b.0, b.1))];
            queue.take(&said.into()).map(|grown| (grown.elapsed, grown.requests))
        };
        assert_eq!(at((44, 700.0), (42, 602.0)), Some((Seconds::literal(2), 98.0)));
        assert_eq!(at((44, 700.0), (43, 720.0)), None, "older than what was counted");
        assert_eq!(at((45, 700.0), (45, 730.0)), Some((Seconds::literal(1), 30.0)));
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
