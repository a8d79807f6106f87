//! Variants that starve next to idle ones.
//!
//! A router that ignores the capacity of replicas fills the slow variant of a role, while the fast
//! variant has room. The sum of both is then enough, but requests wait, because a request cannot
//! move from one replica to another. This module reports that, and the replicas that the variant's
//! own requests need. Desired replicas do not depend on it, because a router that weighs replicas
//! by capacity needs no others.
//!
//! # Model
//!
//! A variant gets `a` requests per second, and has `n` replicas with a capacity of `mu` each. Its
//! use is `u = a / (n mu)`, a mean over a minute. A variant *starves* once all of this is true for
//! a minute:
//!
//! - More requests than usual wait at each of its replicas on average.
//! - The other variants of its role have room: `u <= 1/2` for all of them together.
//! - Fewer than one request waits at each replica of the others on average.
//!
//! Its own requests need
//!
//! ```text
//! replicas = ceil((a + min(waiting / 30 s, a / 4)) / mu)
//! ```
//!
//! It starves until the router shares differently: until for five minutes its use is at most 1.2
//! times the use of the others. An empty queue does not end it, because more replicas also empty
//! it.
//!
//! # Units
//!
//! Requests, seconds, and requests per second.

use std::collections::BTreeMap;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::capacity::RATE_MIN;
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::{Role, VariantKey};
use crate::units::{Replicas, Requests, Seconds};

/// Seconds over which arrivals are averaged, and for which a variant must seem to starve.
const SUSTAINED: f64 = 60.0;

/// Seconds for which a variant must seem relieved.
const RELIEVED: f64 = 300.0;

/// Use of the other variants up to which they have room.
const ROOM: f64 = 0.5;

/// The most that a queue adds to its arrivals, as a share: the queue is gone by the time that more
/// replicas serve.
const DRAINED_MAX: f64 = 0.25;

/// The highest use of a variant, relative to the use of the others, if the router shares by
/// capacity.
const EVEN: f64 = 1.2;

/// The longest time in seconds between two looks. After a longer time, the average starts over.
const GAP_MAX: f64 = 120.0;

/// A variant whose replicas have queues while others have room.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display(
    "it starves: {arriving:.2} requests/s arrive and {waiting:.0} wait, while other variants use \
     {:.0}% of their capacity; its own requests need {replicas} replicas",
    100.0 * others
)]
pub struct Starvation {
    /// Requests per second that come to its replicas.
    pub arriving: f64,
    /// Requests that wait at them.
    pub waiting: f64,
    /// The share of their capacity that others of its role use.
    pub others: f64,
    /// The replicas that its own requests need.
    pub replicas: Replicas,
}

/// The arrivals of a variant, and whether it starves.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrivalShare {
    looked: Option<Timestamp>,
    /// Requests that came since arrivals were last averaged.
    came: f64,
    rate: f64,
    known: f64,
    /// Seconds for which it has seemed to starve, or to be relieved if it starves.
    changing: f64,
    starves: bool,
}

/// A variant at one look.
struct VariantSnapshot<'a, 's> {
    variant: &'a VariantStrides<'a>,
    carries: f64,
    share: &'s ArrivalShare,
    elapsed: f64,
}

/// The variants of a model that starve.
pub(super) fn starving_variants(
    sides: &BTreeMap<Role, RoleFleet<'_>>,
    through: Timestamp,
    policy: &ForesightPolicy,
    shares: &mut BTreeMap<VariantKey, ArrivalShare>,
) -> BTreeMap<VariantKey, Starvation> {
    sides.values().flat_map(|side| starving(side, through, policy, shares)).collect()
}

/// The variants of a side that starve, with the need of each.
fn starving(
    side: &RoleFleet<'_>,
    through: Timestamp,
    policy: &ForesightPolicy,
    shares: &mut BTreeMap<VariantKey, ArrivalShare>,
) -> BTreeMap<VariantKey, Starvation> {
    let mut elapsed = BTreeMap::new();
    for (variant, _) in side.known() {
        let share = shares.entry(variant.spec.key.clone()).or_default();
        elapsed.insert(&variant.spec.key, share.look(through, variant));
    }

    let mut looks: Vec<VariantSnapshot<'_, '_>> = Vec::new();
    for (variant, carried) in side.known() {
        let key = &variant.spec.key;
        let carries = carried.rate.requests_per_second();
        if let (Some(share), Some(elapsed)) = (shares.get(key), elapsed.get(key))
            && carries > RATE_MIN
            && !variant.replicas.is_empty()
        {
            looks.push(VariantSnapshot { variant, carries, share, elapsed: *elapsed });
        }
    }

    let usual = policy.backlog.unwrap_or_default().usual.requests();
    let found: Vec<(VariantKey, Impression)> = looks
        .iter()
        .map(|look| (look.variant.spec.key.clone(), look.seems(&looks, usual)))
        .collect();

    let mut starving = BTreeMap::new();
    for (key, seeming) in found {
        let Some(share) = shares.get_mut(&key) else { continue };
        share.change(&seeming);
        if share.starves {
            starving.insert(key, seeming.starving(policy));
        }
    }

    starving
}

/// The measurements of one look at a variant.
struct Impression {
    waiting: f64,
    others: f64,
    arriving: f64,
    carries: f64,
    elapsed: f64,
    /// True if it starves at this look.
    starves: bool,
    /// True if the router shares by capacity at this look.
    even: bool,
}

// === impl VariantSnapshot ===

impl VariantSnapshot<'_, '_> {
    fn count(&self) -> f64 {
        self.variant.replicas.len() as f64
    }

    fn waiting(&self) -> f64 {
        let waiting = self.variant.replicas.iter().filter_map(|it| it.waiting);
        waiting.map(Requests::requests).sum()
    }

    fn seems(&self, all: &[Self], usual: f64) -> Impression {
        let key = &self.variant.spec.key;
        let others = all.iter().filter(|it| it.variant.spec.key != *key);
        let capacity: f64 = others.clone().map(|it| it.count() * it.carries).sum();
        let arriving: f64 = others.clone().map(|it| it.share.rate).sum();
        let queued: f64 = others.clone().map(Self::waiting).sum();
        let replicas: f64 = others.map(Self::count).sum();
        let use_of_others = if capacity > 0.0 { arriving / capacity } else { 1.0 };
        let have_room = use_of_others <= ROOM && queued < replicas;

        let waiting = self.waiting();
        let is_known = all.iter().all(|it| it.share.known >= SUSTAINED);
        let own_use = self.share.rate / (self.count() * self.carries);
        let has_queue = waiting > usual * self.count();

        Impression {
            waiting,
            others: use_of_others,
            arriving: self.share.rate,
            carries: self.carries,
            elapsed: self.elapsed,
            starves: is_known && has_queue && have_room,
            even: capacity <= 0.0 || own_use < EVEN * use_of_others,
        }
    }
}

// === impl Impression ===

impl Impression {
    /// Replicas that its own requests need.
    fn needs(&self, policy: &ForesightPolicy) -> f64 {
        let backlog = policy.backlog.unwrap_or_default();
        let drain = self.waiting / backlog.drain.seconds();
        let most = DRAINED_MAX * self.arriving;
        (self.arriving + drain.min(most)) / self.carries - policy.rounding.excess.fraction()
    }

    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it saturates, and no fleet is so large"
    )]
    fn starving(&self, policy: &ForesightPolicy) -> Starvation {
        let replicas = Replicas::saturating(self.needs(policy).ceil().max(0.0) as u32);
        let Self { arriving, waiting, others, .. } = *self;
        Starvation { arriving, waiting, others, replicas }
    }
}

// === impl ArrivalShare ===

impl ArrivalShare {
    /// Takes in the arrivals since the last look. Returns the seconds since then, or 0 if they are
    /// not fully known.
    fn look(&mut self, through: Timestamp, variant: &VariantStrides<'_>) -> f64 {
        let strides = variant.replicas.iter().flat_map(|replica| replica.strides);
        self.came += strides.filter_map(|it| it.arrived).map(Requests::requests).sum::<f64>();
        let Some(before) = self.looked.replace(through) else {
            self.came = 0.0;
            return 0.0;
        };

        let span = Seconds::from_span(through.duration_since(before)).map(Seconds::seconds);
        let is_seen = span.is_some_and(|it| it <= GAP_MAX) && !variant.replicas.is_empty();
        if !is_seen {
            // After a gap, a clock jump back, or without replicas, earlier arrivals do not count.
            *self = Self { looked: Some(through), starves: self.starves, ..Self::default() };
            return 0.0;
        }

        let elapsed = span.unwrap_or_default();
        if elapsed > 0.0 {
            self.known += elapsed;
            // A plain mean at first.
            let weight = (1.0 - (-elapsed / SUSTAINED).exp()).max(elapsed / self.known).min(1.0);
            self.rate += weight * (self.came / elapsed - self.rate);
            self.came = 0.0;
        }

        elapsed
    }

    fn change(&mut self, seeming: &Impression) {
        let (changes, after) =
            if self.starves { (seeming.even, RELIEVED) } else { (seeming.starves, SUSTAINED) };
        self.changing = if changes { self.changing + seeming.elapsed } else { 0.0 };
        if self.changing >= after {
            self.starves = !self.starves;
            self.changing = 0.0;
        }
    }
}
