//! The most that the batches of a variant were seen to hold.
//!
//! # Model
//!
//! The most requests that ran and the most tokens of an iteration are bounds from below: more than
//! that fits. Requests that wait for a place, on several scrapes in a row, are a bound from above. All
//! three are inferred from one moment, so they fade with a time constant of [`HALVED`]:
//!
//! ```text
//! most running, most tokens:   * 2^(-t / 3 days)     or what was seen since, if that is more
//! places of a full batch:      * 2^(t / 3 days)      or what was shown since
//! ```
//!
//! So a limit inferred from something else, such as a gateway's, is tried again: a fleet
//! that holds 26% more each day meets the true limit within days, and shrinks by small steps until
//! then. A real limit shows itself again in five scrapes.

use crate::analyze::foresight::Told;
use crate::analyze::foresight::card::Learned;
use crate::analyze::foresight::lesson::Lesson;
use crate::analyze::foresight::policy::Learning;
use crate::observe::stride::Stride;
use crate::units::{Requests, Seconds};

/// Seconds in which a maximum is forgotten by half: three days, so that what a busy day showed counts
/// for most of the next, and a wrong inference heals within the week.
const HALVED: f64 = 3.0 * 24.0 * 3600.0;

/// The share of the most requests that ran from which a full batch is not contradicted by them.
const NEAR: f64 = 0.9;

/// The share of the KV cache below which a queue is not for lack of it.
const KV_ROOM: f64 = 0.9;

/// The share of the tokens that an iteration may have, below which a queue is not for lack of those.
const BUDGET_ROOM: f64 = 0.8;

/// Pages in a row that must show the same limit of the batch.
const FULL_PAGES: u32 = 5;

/// The share of a full batch by which what runs in it may differ, and at least one request: those
/// that end in an iteration leave their places to the next.
const FULL_SPREAD: f64 = 0.03;

/// The most that batches held, each of one rank.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Maxima {
    /// The most requests that ran.
    pub(super) most_running: f64,
    /// Requests that ran while the batch was full.
    pub(super) full_at: Option<f64>,
    /// The most tokens of an iteration, on average over a lesson.
    pub(super) busiest: f64,
}

/// Pages in a row on which requests waited for a place, and how many requests ran meanwhile.
///
/// Where there is no place for one more, their number stays. Where a prompt waits for its turn in an
/// iteration, it goes up and down, and says nothing of places.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Full {
    pages: u32,
    least: f64,
    most: f64,
}

/// What is in front of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behind {
    /// Nothing that holds requests back.
    Nothing,
    /// A gateway that gives it no more than it has.
    FullGateway,
}

/// What is known of a replica beside what it counts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Around<'a> {
    pub(crate) behind: Behind,
    pub(crate) told: Told,
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

    /// Takes in the requests that a rank runs, and whether they fill its batch.
    pub(super) fn take(&mut self, running: f64, full: Option<f64>) {
        self.most_running = self.most_running.max(running);
        self.full_at = full.or(self.full_at);
    }

    /// Places in the batch: those that it showed when requests waited for one, or else the number that
    /// the engine was told or the usual one, or more if more ran. A card counts until it is contradicted.
    pub(super) fn seats(&self, usual: f64, card: Option<&Learned>) -> f64 {
        let ran = card.map_or(0.0, |learned| learned.most_running.requests());
        let most = usual.max(self.most_running).max(ran);
        if let Some(full) = self.full_at.filter(|full| *full >= self.most_running * NEAR) {
            return full.min(most);
        }

        let full = card.and_then(|learned| learned.full_at).map(Requests::requests);
        full.filter(|full| *full >= self.most_running.max(ran) * NEAR).unwrap_or(most)
    }
}

// === impl Full ===

impl Full {
    /// What ran on enough pages in a row.
    pub(super) fn take(&mut self, running: f64) -> Option<f64> {
        let (least, most) = (self.least.min(running), self.most.max(running));
        *self = if self.pages > 0 && most - least <= (FULL_SPREAD * most).max(1.0) {
            Self { pages: self.pages + 1, least, most }
        } else {
            Self { pages: 1, least: running, most: running }
        };
        (self.pages >= FULL_PAGES).then_some(self.most)
    }
}

// === impl Around ===

impl Around<'_> {
    /// Whether requests wait for a place in the batch, or for one that a gateway allows, and for
    /// nothing else. Where the number of places was told, only a gateway's are not known.
    pub(super) fn is_full(self, stride: &Stride, last: Option<Lesson>) -> bool {
        if self.behind == Behind::FullGateway {
            return has_room_in_cache(stride);
        }
        let waits = stride.waiting.is_some_and(|waiting| waiting.requests() >= 1.0);
        let is_told = self.told.seats.is_some();
        let has_tokens_left = last
            .is_some_and(|lesson| !lesson.is_short && lesson.tokens < BUDGET_ROOM * self.budget);
        waits && !is_told && has_tokens_left && has_room_in_cache(stride)
    }
}

fn has_room_in_cache(stride: &Stride) -> bool {
    stride.kv_usage.is_some_and(|usage| usage.fraction() < KV_ROOM)
}

pub(super) fn per_rank(requests: Option<Requests>, ranks: u32) -> f64 {
    requests.map_or(0.0, Requests::requests) / f64::from(ranks.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn a_maximum_of_long_ago_is_forgotten_and_one_of_yesterday_is_not() {
        let mut maxima = Maxima { busiest: 4000.0, ..Maxima::default() };
        maxima.take(400.0, None);
        maxima.age(DAY);
        assert!(maxima.most_running > 300.0 && maxima.busiest > 3000.0, "{maxima:?}");

        (0..13).for_each(|_| maxima.age(DAY));
        assert!(maxima.most_running < 20.0 && maxima.busiest < 200.0, "{maxima:?}");
    }
}
