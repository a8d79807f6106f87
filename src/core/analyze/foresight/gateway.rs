//! The queue at a gateway, in front of all replicas.
//!
//! Requests that a gateway or an endpoint picker holds are in no replica's /metrics response. But
//! they have arrived: arrivals are the finished requests, and the growth of the requests in flight,
//! including this queue. They are also a backlog that is bound to no replica, so any new replica
//! may serve them. Requests that wait at a replica do not move to others.
//!
//! A gateway that queues serves in order. The queue of a minute without capacity is in front of
//! everything that comes later. Once the queue takes longer than a first token may, every request
//! is late until it is worked off. Minutes of too little capacity become a total loss. More
//! replicas end that sooner. Only a gateway that sheds requests past their deadline avoids it. The
//! explanation states so while it happens.
//!
//! # Units
//!
//! Requests, seconds.

use std::collections::BTreeMap;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::policy::Gateway;
use crate::analyze::foresight::schedule::ArrivalCoverage;
use crate::units::{Requests, Seconds};

/// The longest time in seconds between two readings whose difference counts. Over a longer time,
/// two readings do not show the growth in between.
const GAP_MAX: f64 = 60.0;

/// The requests that a signal counts in front of all replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueReading {
    /// The number of requests.
    pub requests: Requests,
    /// The instant of that reading.
    pub at: Timestamp,
}

/// The signals about requests in front of all replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GatewaySignals {
    /// The queue; `None` if no signal counts it.
    pub queued: Option<QueueReading>,
    /// The growth of the queue, if there was one and it was measured.
    pub grown: Option<QueueGrowth>,
    /// Requests that the gateway has rejected since the last look, if it counts them.
    pub rejected: Option<QueueGrowth>,
    /// `Whole` if every signal that counts requests reported recently. Requests that a signal
    /// counted before it stopped reporting are not gone.
    pub sight: ArrivalCoverage,
}

impl GatewaySignals {
    /// A model without a signal that counts requests in front of its replicas.
    pub const UNSEEN: Self =
        Self { queued: None, grown: None, rejected: None, sight: ArrivalCoverage::Whole };
}

/// The growth of a queue.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QueueGrowth {
    /// The end of the time.
    pub at: Timestamp,
    /// The length of the time.
    pub elapsed: Seconds,
    /// The added requests; negative if the queue got shorter.
    pub requests: f64,
}

/// A queue, with the last reading of each signal.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GatewayQueue {
    last: BTreeMap<String, QueueReading>,
}

/// The part of a gateway's queue in a need.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display("{adds:.2} for {requests:.0} requests in the gateway's queue")]
pub struct GatewayBacklog {
    /// Requests in the queue.
    pub requests: f64,
    /// Requests per second that it needs in addition.
    pub adds: f64,
    /// Seconds in which the existing replicas work it off; `None` without replicas.
    pub takes: Option<f64>,
    /// Seconds that the first token may take.
    pub allowed: f64,
}

/// The arrivals at replicas and their capacity, in requests per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct GatewayLoad {
    /// The present rate of arrivals.
    pub(crate) arriving: f64,
    /// The mean capacity per replica.
    pub(crate) carries: f64,
    /// The capacity of all existing replicas.
    pub(crate) supply: f64,
}

impl QueueReading {
    /// The highest reading of several signals. Their sum might count the same requests twice.
    pub fn most(all: impl IntoIterator<Item = Self>) -> Option<Self> {
        all.into_iter().reduce(|most, it| if it.is_more_than(most) { it } else { most })
    }

    /// Returns true if it has more requests, or as many at a later instant.
    fn is_more_than(self, other: Self) -> bool {
        self.requests > other.requests || (self.requests == other.requests && self.at > other.at)
    }
}

impl GatewayQueue {
    /// The growth since the last reading, by the signals that reported both times. A queue that a
    /// signal reports for the first time, or after a pause, had come before. `None` if the queue
    /// has not changed, or the gap between readings is too long.
    pub fn take(&mut self, heard: &BTreeMap<String, QueueReading>) -> Option<QueueGrowth> {
        self.last.retain(|signal, _| heard.contains_key(signal));
        let mut clock_went_back = false;
        let mut before = None;
        let mut now = None;
        for (signal, reading) in heard {
            if let Some(last) = self.last.get(signal) {
                clock_went_back |= reading.at < last.at;
                before = QueueReading::most(before.into_iter().chain([*last]));
                now = QueueReading::most(now.into_iter().chain([*reading]));
            }
        }

        let both = now.zip(before);
        if !clock_went_back && both.is_some_and(|(now, before)| now.at <= before.at) {
            // No newer reading yet. Only signals that report for the first time are added.
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
        (known && requests.abs() > 0.0).then_some(QueueGrowth { at: now.at, elapsed, requests })
    }
}

impl GatewayBacklog {
    /// The need for this queue in addition to the arrivals.
    pub(crate) fn of(
        requests: f64,
        policy: &Gateway,
        load: GatewayLoad,
        allowed: f64,
    ) -> Option<Self> {
        if requests <= 0.0 {
            return None;
        }

        // Without arrivals, one replica works it off.
        let GatewayLoad { arriving, carries, supply } = load;
        let most = policy.cap.fraction() * arriving.max(carries);
        let adds = (requests / policy.drain.seconds()).min(most);
        let takes = (supply > 0.0).then(|| requests / supply);
        Some(Self { requests, adds, takes, allowed })
    }

    /// Returns true if a request that joins the queue now gets its first token too late.
    #[must_use]
    pub fn is_hopeless(&self) -> bool {
        self.takes.is_none_or(|takes| takes > self.allowed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queued(second: i64, requests: f64) -> QueueReading {
        let at = Timestamp::from_second(1_795_000_000 + second).unwrap();
        QueueReading { requests: Requests::new(requests).unwrap(), at }
    }

    /// The readings of signals in a second.
    fn heard(second: i64, said: &[(&str, f64)]) -> BTreeMap<String, QueueReading> {
        said.iter().map(|(signal, said)| ((*signal).to_owned(), queued(second, *said))).collect()
    }

    #[test]
    fn what_a_queue_has_grown_by_is_known_from_its_second_reading_on() {
        let mut queue = GatewayQueue::default();
        assert_eq!(queue.take(&heard(0, &[("a", 40.0)])), None, "what was there came before");
        let grown = queue.take(&heard(5, &[("a", 70.0)])).unwrap();
        assert_eq!((grown.elapsed, grown.requests), (Seconds::literal(5), 30.0));

        assert_eq!(queue.take(&heard(5, &[("a", 70.0)])), None, "the same reading again");
        let shorter = queue.take(&heard(10, &[("a", 0.0)])).unwrap();
        assert!((shorter.requests + 70.0).abs() < 1e-9, "{shorter:?}");

        let unseen = queue.take(&heard(80, &[("a", 500.0)]));
        assert_eq!(unseen, None, "nobody saw it for more than a minute");
        assert_eq!(queue.take(&heard(79, &[("a", 0.0)])), None, "a clock that went back");
    }

    #[test]
    fn a_signal_that_goes_silent_or_comes_back_is_no_growth() {
        let mut queue = GatewayQueue::default();
        for (second, said, expected) in [
            (0, &[("a", 100.0), ("b", 5.0)][..], None),
            // The requests that `a` has counted are not gone, and `b` is heard as before.
            (1, &[("b", 5.0)], None),
            (2, &[("b", 9.0)], Some(4.0)),
            // They have not come now.
            (3, &[("a", 100.0), ("b", 9.0)], None),
            (4, &[("a", 103.0), ("b", 9.0)], Some(3.0)),
            // Alone, and within the longest gap that counts.
            (5, &[], None),
            (40, &[("a", 500.0)], None),
            (41, &[("a", 501.0)], Some(1.0)),
            // A signal that reports for the first time counts from then on.
            (41, &[("a", 501.0), ("b", 600.0)], None),
            (42, &[("a", 501.0), ("b", 602.0)], Some(2.0)),
        ] {
            let grown = queue.take(&heard(second, said)).map(|grown| grown.requests);
            assert_eq!(grown, expected, "{said:?} in second {second}");
        }

        // Two signals are read in turns, and each has the highest reading at times.
        for (a, b, expected) in [
            (queued(44, 700.0), queued(42, 602.0), Some((Seconds::literal(2), 98.0))),
            // Older than the reading that was counted.
            (queued(44, 700.0), queued(43, 720.0), None),
            (queued(45, 700.0), queued(45, 730.0), Some((Seconds::literal(1), 30.0))),
        ] {
            let grown = queue.take(&[("a".to_owned(), a), ("b".to_owned(), b)].into());
            assert_eq!(grown.map(|grown| (grown.elapsed, grown.requests)), expected, "{a:?} {b:?}");
        }
    }

    #[test]
    fn a_queue_asks_for_what_works_it_off_and_not_for_more_than_its_cap() {
        let policy = Gateway::default();
        let load = GatewayLoad { arriving: 10.0, carries: 2.0, supply: 8.0 };
        assert_eq!(GatewayBacklog::of(0.0, &policy, load, 2.0), None);

        let short = GatewayBacklog::of(12.0, &policy, load, 2.0).unwrap();
        assert!((short.adds - 12.0 / policy.drain.seconds()).abs() < 1e-9);
        assert!(!short.is_hopeless(), "it is worked off in 1.5 s");

        let long = GatewayBacklog::of(1e6, &policy, load, 2.0).unwrap();
        assert!((long.adds - 10.0 * policy.cap.fraction()).abs() < 1e-9 && long.is_hopeless());

        let unserved =
            GatewayBacklog::of(1.0, &policy, GatewayLoad { supply: 0.0, ..load }, 2.0).unwrap();
        assert!(unserved.is_hopeless(), "nobody serves it");
    }
}
