//! The largest batches that the replicas of a variant ran.
//!
//! # Model
//!
//! The most requests that ran and the most tokens of an iteration are lower bounds: a batch can
//! hold at least that. Requests that wait for a place, on several scrapes in a row, show an upper
//! bound. All three are inferred from one moment, so they fade with a time constant of [`HALVED`]:
//!
//! ```text
//! most running, most tokens:   * 2^(-t / 3 days)     or a later measurement, if that is more
//! places of a full batch:      * 2^(t / 3 days)      or a later measurement
//! ```
//!
//! So a limit inferred from something else, such as a gateway's, is tried again. A fleet whose
//! assumed places grow by 26% per day meets the true limit within days, and scales down in small
//! steps until then. A real limit shows itself again in five scrapes, or in three that are 10 s
//! apart.

use crate::analyze::foresight::card::EngineProfile;
use crate::analyze::foresight::lesson::IterationSample;
use crate::analyze::foresight::policy::Learning;
use crate::analyze::foresight::strides::EngineLimits;
use crate::observe::stride::IntervalDelta;
use crate::units::{Requests, Seconds};

/// Seconds in which a maximum is forgotten by half. With three days, the maximum of a busy day
/// counts for most of the next, and a wrong inference is corrected within a week.
const HALVED: f64 = 3.0 * 24.0 * 3600.0;

/// The places of a full batch count only from this share of the most requests that ran.
const NEAR: f64 = 0.9;

/// The share of the KV cache in use below which a queue has another cause.
const KV_ROOM: f64 = 0.9;

/// The share of an iteration's tokens in use below which a queue has another cause.
const BUDGET_ROOM: f64 = 0.8;

/// Consecutive scrapes that must show the same limit of the batch.
const FULL_PAGES: u32 = 5;

/// The same for scrapes that are far apart, between which most requests were replaced.
const FULL_PAGES_APART: u32 = 3;

/// Seconds from which scrapes are far apart.
const APART: f64 = 10.0;

/// The share of a full batch by which its running requests may differ, and at least one request.
/// Requests that end in an iteration leave their places to the next one.
const FULL_SPREAD: f64 = 0.03;

/// The largest batches, per rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Maxima {
    /// The most requests that ran.
    pub(super) most_running: f64,
    /// Requests that ran while the batch was full.
    pub(super) full_at: Option<f64>,
    /// The most tokens of an iteration, on average over a lesson. The largest iteration that an
    /// engine counts shows no limit, because a prompt counts whole in the iteration that ends it.
    pub(super) busiest: f64,
}

/// Consecutive scrapes on which requests waited for a place, with the requests that ran meanwhile.
///
/// While the batch is full, the running requests stay constant. While a prompt waits for its turn
/// in an iteration, they vary, and show nothing about places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FullBatch {
    pages: u32,
    /// The shortest time in seconds between two of them.
    apart: f64,
    least: f64,
    most: f64,
}

/// The queue in front of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum UpstreamQueue {
    /// No queue that holds requests back.
    Nothing,
    /// A gateway that holds requests back once the replica has as many as it allows.
    FullGateway,
}

/// The settings and surroundings of a replica, in addition to its counters.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReplicaContext<'a> {
    pub(crate) behind: UpstreamQueue,
    pub(crate) told: EngineLimits,
    /// Tokens that an iteration may have.
    pub(crate) budget: f64,
    pub(crate) learning: &'a Learning,
}

// === impl Maxima ===

impl Maxima {
    /// Lets time pass.
    pub(super) fn age(&mut self, elapsed: Seconds) {
        let kept = (-elapsed.seconds() / HALVED).exp2();
        self.most_running *= kept;
        self.busiest *= kept;
        self.full_at = self.full_at.map(|full| full / kept);
    }

    /// Takes in the requests that a rank runs, and the places of its batch if they fill it. Far
    /// fewer places than requests that ran are not the limit of the engine, and replace no known
    /// one.
    pub(super) fn take(&mut self, running: f64, full: Option<f64>) {
        self.most_running = self.most_running.max(running);
        let near = full.filter(|full| *full >= NEAR * self.most_running);
        self.full_at = near.or(self.full_at);
    }

    /// The places that requests were seen to wait for, unless many more have run.
    pub(super) fn shown(&self) -> Option<f64> {
        self.full_at.filter(|full| *full >= self.most_running * NEAR)
    }

    /// Places in the batch: the measured places if requests waited for one. Otherwise the
    /// configured or usual places, or the most requests that ran if that is more. The places of a
    /// card count until more requests run.
    pub(super) fn seats(&self, usual: f64, card: Option<&EngineProfile>) -> f64 {
        let ran = card.map_or(0.0, |learned| learned.most_running.requests());
        let most = usual.max(self.most_running).max(ran);
        if let Some(full) = self.shown() {
            return full.min(most);
        }

        let full = card.and_then(|learned| learned.full_at).map(Requests::requests);
        full.filter(|full| *full >= self.most_running.max(ran) * NEAR).unwrap_or(most)
    }
}

// === impl FullBatch ===

impl FullBatch {
    /// Adds a scrape, which comes some time after the last. Returns the running requests once
    /// enough scrapes in a row agree.
    pub(super) fn take(&mut self, running: f64, elapsed: Seconds) -> Option<f64> {
        let least = self.least.min(running);
        let most = self.most.max(running);
        *self = if self.pages > 0 && most - least <= (FULL_SPREAD * most).max(1.0) {
            let apart = self.apart.min(elapsed.seconds());
            Self { pages: self.pages + 1, apart, least, most }
        } else {
            Self { pages: 1, apart: f64::INFINITY, least: running, most: running }
        };

        let enough = if self.apart < APART { FULL_PAGES } else { FULL_PAGES_APART };
        (self.pages >= enough).then_some(self.most)
    }
}

// === impl ReplicaContext ===

impl ReplicaContext<'_> {
    /// Returns true if requests wait only for a place in the batch, or for a place that a gateway
    /// allows. If the places are configured, only those of a gateway are unknown. A batch without a
    /// request is never full.
    pub(super) fn is_full(self, stride: &IntervalDelta, last: Option<IterationSample>) -> bool {
        if per_rank(stride.running, stride.ranks) < 1.0 {
            return false;
        }
        if self.behind == UpstreamQueue::FullGateway {
            return has_room_in_cache(stride);
        }

        let waits = stride.waiting.is_some_and(|waiting| waiting.requests() >= 1.0);
        let is_told = self.told.seats.is_some();
        let has_tokens_left = last
            .is_some_and(|lesson| !lesson.is_short && lesson.tokens < BUDGET_ROOM * self.budget);
        waits && !is_told && has_tokens_left && has_room_in_cache(stride)
    }
}

fn has_room_in_cache(stride: &IntervalDelta) -> bool {
    stride.kv_usage.is_some_and(|usage| usage.fraction() < KV_ROOM)
}

pub(super) fn per_rank(requests: Option<Requests>, ranks: u32) -> f64 {
    requests.map_or(0.0, Requests::requests) / f64::from(ranks.max(1))
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::analyze::foresight::policy::ForesightPolicy;
    use crate::units::Fraction;

    const DAY: Seconds = Seconds::literal(24 * 3600);

    #[test]
    fn a_limit_that_nothing_shows_again_fades_and_one_that_shows_itself_stays() {
        let mut maxima = Maxima::default();
        maxima.take(12.0, Some(12.0));
        assert!((maxima.seats(256.0, None) - 12.0).abs() < 1e-9);

        let mut real = maxima;
        for _ in 0..4 {
            maxima.age(DAY);
            real.age(DAY);
            real.take(12.0, Some(12.0));
        }

        assert!(maxima.seats(256.0, None) > 24.0, "{maxima:?}");
        assert!((real.seats(256.0, None) - 12.0).abs() < 1e-9, "{real:?}");

        (0..30).for_each(|_| maxima.age(DAY));
        assert!((maxima.seats(256.0, None) - 256.0).abs() < 1e-9, "no more than is usual");
    }

    #[test]
    fn scrapes_that_are_far_apart_show_a_full_batch_sooner() {
        let pages = |apart: u32| {
            let mut batch = FullBatch::default();
            (1..9).find(|_| batch.take(24.0, Seconds::literal(apart)).is_some())
        };

        assert_eq!((pages(1), pages(15)), (Some(5), Some(3)));

        let mut batch = FullBatch::default();
        let one_lost = [1, 1, 20].map(|apart| batch.take(24.0, Seconds::literal(apart)));
        assert_eq!(one_lost, [None; 3]);

        batch = FullBatch::default();
        let varied = [24.0, 20.0, 24.0, 22.0, 20.0].map(|it| batch.take(it, Seconds::literal(15)));
        assert_eq!(varied, [None; 5]);
    }

    #[test]
    fn far_fewer_places_than_requests_that_ran_replace_no_known_limit() {
        let mut maxima = Maxima::default();
        maxima.take(100.0, Some(100.0));
        maxima.take(20.0, Some(20.0));
        assert!((maxima.seats(256.0, None) - 100.0).abs() < 1e-9, "{maxima:?}");

        (0..7).for_each(|_| maxima.age(DAY));
        maxima.take(20.0, Some(20.0));
        assert!((maxima.seats(256.0, None) - 20.0).abs() < 1e-9, "{maxima:?}");
    }

    impl<'a> ReplicaContext<'a> {
        /// A replica without configured limits and without a queue in front of it.
        pub(in crate::analyze::foresight) fn example(policy: &'a ForesightPolicy) -> Self {
            Self {
                behind: UpstreamQueue::Nothing,
                told: EngineLimits::default(),
                budget: 2048.0,
                learning: &policy.learning,
            }
        }
    }

    /// Returns true if a replica of two ranks that runs so many requests is full behind a gateway.
    fn is_full_behind_gateway(running: f64) -> bool {
        let policy = ForesightPolicy::default();
        let behind = UpstreamQueue::FullGateway;
        let around = ReplicaContext { behind, ..ReplicaContext::example(&policy) };

        let stride = IntervalDelta {
            ranks: 2,
            running: Requests::new(running),
            kv_usage: Fraction::new(0.1),
            ..IntervalDelta::over(Timestamp::UNIX_EPOCH, Seconds::literal(1))
        };
        around.is_full(&stride, None)
    }

    #[test]
    fn a_batch_without_a_request_is_never_full() {
        assert!(is_full_behind_gateway(2.0));
        assert!(!is_full_behind_gateway(1.0));
        assert!(!is_full_behind_gateway(0.0));
    }

    #[test]
    fn a_maximum_of_long_ago_is_forgotten_and_one_of_yesterday_is_not() {
        let mut maxima = Maxima { busiest: 4000.0, ..Maxima::default() };
        maxima.take(400.0, None);
        maxima.age(DAY);
        assert!(maxima.most_running > 300.0 && maxima.busiest > 3000.0, "{maxima:?}");

        (0..13).for_each(|_| maxima.age(DAY));
        assert!(maxima.most_running < 20.0 && maxima.busiest < 200.0, "{maxima:?}");
    }
}
