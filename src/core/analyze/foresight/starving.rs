//! Variants that starve next to idle ones.
//!
//! A router that shares requests without looking at what replicas handle fills the slow variant of a
//! role, while the fast one has room. The sum of both is enough then, and requests wait all the same:
//! what waits at a replica is served there. This says so, and how many replicas its own requests take.
//! Nothing is decided by that: a router that weighs replicas by what they handle needs no others.
//!
//! # Model
//!
//! With `a` requests a second that come to a variant, `n` its replicas and `mu` what one handles, its
//! use is `u = a / (n mu)`, a mean of a minute. A variant *starves* from when, for a minute, more
//! requests than usual wait at each of its replicas on average, others of its role have room
//! (`u <= 1/2` of all together), and fewer than one waits at each of those. Its own requests take
//!
//! ```text
//! replicas = ceil((a + min(waiting / 30 s, a / 4)) / mu)
//! ```
//!
//! It starves until the router shares otherwise: until for five minutes its use is no more than 1.2
//! times that of the others. An empty queue is no sign of that, because more replicas empty it.
//!
//! # Units
//!
//! Requests, seconds, and requests a second.

use std::collections::BTreeMap;

use derive_more::Display;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::policy::Policy;
use crate::analyze::foresight::{Foresight, RATE_MIN, Side, VariantStrides};
use crate::fleet::{Role, VariantKey};
use crate::units::{Replicas, Requests, Seconds};

/// Seconds over which arrivals are averaged, and for which a variant must seem to starve.
const SUSTAINED: f64 = 60.0;

/// Seconds in which it must seem not to.
const RELIEVED: f64 = 300.0;

/// Use of the others up to which they have room.
const ROOM: f64 = 0.5;

/// The most that a queue adds to its arrivals: it is gone by the time that more replicas would serve.
const DRAINED_MAX: f64 = 0.25;

/// How many times the use of the others that of a variant may be if the router shares by capacity.
const EVEN: f64 = 1.2;

/// The longest time in seconds between two looks whose arrivals are averaged.
const GAP_MAX: f64 = 120.0;

/// A variant whose replicas have queues while others have room.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display(
    "it starves: {arriving:.2} requests/s come to it and {waiting:.0} wait, while others use \
     {:.0} % of their capacity; its own requests take {replicas} replicas",
    100.0 * others
)]
pub struct Starvation {
    /// Requests a second that come to its replicas.
    pub arriving: f64,
    /// Requests that wait at them.
    pub waiting: f64,
    /// The share of their capacity that others of its role use.
    pub others: f64,
    /// The replicas that its own requests take.
    pub replicas: Replicas,
}

/// The arrivals of a variant, and whether it starves.
#[derive(Clone, Debug, Default)]
pub(super) struct Share {
    looked: Option<Timestamp>,
    /// Requests that came since arrivals were last averaged.
    came: f64,
    rate: f64,
    known: f64,
    /// Seconds for which it has seemed to starve, or not to where it does.
    changing: f64,
    starves: bool,
}

/// A variant at one look.
struct Look<'a, 's> {
    variant: &'a VariantStrides<'a>,
    carries: f64,
    share: &'s Share,
    elapsed: f64,
}

// === impl Foresight ===

impl Foresight {
    /// The variants of a model that starve.
    pub(super) fn starving(
        &mut self,
        sides: &BTreeMap<Role, Side<'_>>,
        through: Timestamp,
        policy: &Policy,
    ) -> BTreeMap<VariantKey, Starvation> {
        let shares = &mut self.shares;
        sides.values().flat_map(|side| starving(side, through, policy, shares)).collect()
    }
}

/// The variants of a side that starve, with what each needs.
fn starving(
    side: &Side<'_>,
    through: Timestamp,
    policy: &Policy,
    shares: &mut BTreeMap<VariantKey, Share>,
) -> BTreeMap<VariantKey, Starvation> {
    let known = || side.known().map(|(variant, it)| (variant, it.rate.requests_per_second()));
    let mut elapsed = BTreeMap::new();
    for (variant, _) in known() {
        let share = shares.entry(variant.spec.key.clone()).or_default();
        elapsed.insert(&variant.spec.key, share.look(through, variant));
    }

    let looks: Vec<Look<'_, '_>> = known()
        .filter(|(variant, carries)| *carries > RATE_MIN && !variant.replicas.is_empty())
        .filter_map(|(variant, carries)| {
            let share = shares.get(&variant.spec.key)?;
            let elapsed = *elapsed.get(&variant.spec.key)?;
            Some(Look { variant, carries, share, elapsed })
        })
        .collect();
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

/// What a look at a variant says.
struct Impression {
    waiting: f64,
    others: f64,
    arriving: f64,
    carries: f64,
    elapsed: f64,
    /// That it starves now.
    starves: bool,
    /// That the router shares by capacity now.
    even: bool,
}

// === impl Look ===

impl Look<'_, '_> {
    fn count(&self) -> f64 {
        self.variant.replicas.len() as f64
    }

    fn waiting(&self) -> f64 {
        let waiting = self.variant.replicas.iter().filter_map(|it| it.waiting);
        waiting.map(Requests::requests).sum()
    }

    fn seems(&self, all: &[Self], usual: f64) -> Impression {
        let key = &self.variant.spec.key;
        let others = || all.iter().filter(|it| it.variant.spec.key != *key);
        let sum = |of: fn(&Self) -> f64| others().map(of).sum::<f64>();
        let capacity = sum(|it| it.count() * it.carries);
        let waiting = self.waiting();
        let is_known = all.iter().all(|it| it.share.known >= SUSTAINED);
        let use_of_others = if capacity > 0.0 { sum(|it| it.share.rate) / capacity } else { 1.0 };
        let own_use = self.share.rate / (self.count() * self.carries);
        let queues = waiting > usual * self.count();
        let have_room = use_of_others <= ROOM && sum(Self::waiting) < sum(Self::count);

        Impression {
            waiting,
            others: use_of_others,
            arriving: self.share.rate,
            carries: self.carries,
            elapsed: self.elapsed,
            starves: is_known && queues && have_room,
            even: capacity <= 0.0 || own_use < EVEN * use_of_others,
        }
    }
}

// === impl Impression ===

impl Impression {
    /// Replicas that its own requests take.
    fn needs(&self, policy: &Policy) -> f64 {
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
    fn starving(&self, policy: &Policy) -> Starvation {
        let replicas = Replicas::saturating(self.needs(policy).ceil().max(0.0) as u32);
        let Self { arriving, waiting, others, .. } = *self;
        Starvation { arriving, waiting, others, replicas }
    }
}

// === impl Share ===

impl Share {
    /// Takes in what came since the last look. Returns the seconds since then, if all of it is known.
    fn look(&mut self, through: Timestamp, variant: &VariantStrides<'_>) -> f64 {
        let strides = variant.replicas.iter().flat_map(|replica| replica.strides);
        self.came += strides.filter_map(|it| it.arrived).map(Requests::requests).sum::<f64>();
        let Some(before) = self.looked.replace(through) else {
            self.came = 0.0;
            return 0.0;
        };

        let elapsed = Seconds::from_span(through.duration_since(before)).map(Seconds::seconds);
        let is_seen = elapsed.is_some_and(|it| it <= GAP_MAX) && !variant.replicas.is_empty();
        if !is_seen {
            // A gap, a clock that went back, or no replica: what was before says nothing.
            *self = Self { looked: Some(through), starves: self.starves, ..Self::default() };
            return 0.0;
        }

        let elapsed = elapsed.unwrap_or_default();
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
