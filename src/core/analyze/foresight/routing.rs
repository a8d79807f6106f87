//! What the router lets unlike variants of one role carry.
//!
//! A router that sends each replica as many requests fills the slow ones first. The fast ones have
//! room then that nothing uses, and the sum of what all could carry says too much.
//!
//! # Model
//!
//! A replica of variant `v` gets a share of requests in proportion to a weight `w`. With `A` requests
//! that came to all replicas together, `n` replicas and `S` requests that came to a variant,
//!
//! ```text
//! E = sum over time of  A * n / sum over u of (n_u * w_u)      requests at a weight of one
//! w = (S + K * q) / (E + K)                                    q = mu / mean mu,  K = 50
//! P = max over variants with replicas of  w / mu               the variant that is full first
//! usable = min(1, 1.1 * (w / mu) / P)                          of what a replica carries
//! ```
//!
//! A router that shares by capacity has `w = q`, and all of it is usable. That is assumed at first.
//! Up to a tenth more than its share is what chance does.
//!
//! A variant that is full first keeps the others from being used. Without it, `P` is that of the next,
//! and the others carry more. It is not used, and goes, where the need costs a sixth less without it,
//! or where it keeps the others from carrying the need. A minimum keeps a variant in any case.
//!
//! # Domain
//!
//! Times in which two variants serve, and a replica has two requests or more on average: with fewer, a
//! router that counts them sends each to the first idle replica and seems to share alike. Weights are
//! remembered for ten minutes of such times, and while a variant has no replica: one that is started
//! again is not filled otherwise than before.
//!
//! # Source
//!
//! The iteration of Hunter (2004), *MM algorithms for generalized Bradley-Terry models*, with sums that
//! fade.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::analyze::foresight::policy::Routing;
use crate::analyze::foresight::{
    Foresight, Policy, RATE_MIN, ReplicaStrides, Side, VariantStrides,
};
use crate::fleet::{ModelKey, Role, VariantKey};
use crate::units::{Fraction, Requests, Seconds};

/// Requests at a replica from which the way that they are shared says something.
pub(super) const BUSY: f64 = 2.0;

/// Seconds after which a weight is forgotten to a third.
pub(super) const MEMORY: f64 = 600.0;

/// Requests that the assumption of a router that shares by capacity is worth.
const ASSUMED: f64 = 50.0;

/// What came to each variant of one role, against what was to be expected.
#[derive(Clone, Debug, Default)]
pub(super) struct RouterWeights {
    looked: Option<Timestamp>,
    weighed: BTreeMap<VariantKey, Weighed>,
    /// The variant that is filled first of those that are used.
    fullest: Option<VariantKey>,
}

/// What came to one variant, the recent first.
#[derive(Clone, Copy, Debug, Default)]
struct Weighed {
    /// Requests.
    came: f64,
    /// Requests at a weight of one.
    expected: f64,
}

/// Variants of which some are best used together.
struct RoutedMix<'a> {
    known: &'a [Routed<'a>],
    /// Their weights over what their replicas carry: those with the highest are full first.
    pressures: &'a [f64],
    policy: &'a Routing,
}

/// Replicas of some variants.
#[derive(Clone, Copy, Debug)]
struct MixCost {
    /// Requests a second that they do not carry.
    missing: f64,
    /// What they cost an hour.
    cost: f64,
}

/// One variant at one look.
#[derive(Clone, Copy, Debug)]
struct Routed<'a> {
    key: &'a VariantKey,
    replicas: f64,
    /// Replicas that it has at least.
    min: f64,
    /// Replicas that it may have.
    max: f64,
    /// What a replica costs an hour.
    cost: f64,
    /// Requests that came to its replicas since the last look.
    came: f64,
    /// Requests that its replicas run, and that wait at them.
    in_flight: f64,
    /// Requests a second that a replica carries.
    carries: f64,
    /// Its share by capacity, as a weight.
    by_capacity: f64,
}

// === impl Foresight ===

impl Foresight {
    /// Notes the share of what replicas carry that the router lets them.
    pub(super) fn route(
        &mut self,
        model: &ModelKey,
        through: Timestamp,
        policy: &Policy,
        sides: &mut BTreeMap<Role, Side<'_>>,
    ) {
        let Some(policy) = &policy.routing else { return };
        for side in sides.values_mut() {
            let Some(demand) = self.demands.get_mut(&(model.clone(), side.role)) else { continue };
            let need = demand.hold.last().unwrap_or_default();
            let usable = demand.router.usable(through, side, need, policy);
            for ((_, carried), usable) in side.variants.iter_mut().zip(usable) {
                if let Some(carried) = carried {
                    carried.usable = usable;
                }
            }
        }
    }
}

// === impl RouterWeights ===

impl RouterWeights {
    /// The usable share of what a replica of each variant of a side carries.
    fn usable(
        &mut self,
        through: Timestamp,
        side: &Side<'_>,
        need: f64,
        policy: &Routing,
    ) -> Vec<Fraction> {
        let routed = routed(side);
        let known: Vec<Routed<'_>> = routed.iter().copied().flatten().collect();
        if known.len() < 2 {
            return vec![Fraction::ONE; routed.len()];
        }
        self.weighed.retain(|key, _| side.variants.iter().any(|(it, _)| it.spec.key == *key));
        self.look(through, &known);

        let pressures: Vec<f64> = known.iter().map(|it| self.weight(it) / it.carries).collect();
        let mix = RoutedMix { known: &known, pressures: &pressures, policy };
        let fullest = mix.fullest(self.fullest.as_ref(), need);
        self.fullest = Some(known[fullest].key.clone());
        let mut shares = (0..known.len()).map(|at| mix.usable(at, pressures[fullest]));
        let mut share = |known: Option<Routed<'_>>| known.and_then(|_| shares.next());
        routed.into_iter().map(|it| share(it).unwrap_or(Fraction::ONE)).collect()
    }

    /// Takes in what came since the last look.
    fn look(&mut self, through: Timestamp, known: &[Routed<'_>]) {
        let before = self.looked.replace(through);
        let passed = before.and_then(|before| Seconds::from_span(through.duration_since(before)));
        let replicas: f64 = known.iter().map(|it| it.replicas).sum();
        let came: f64 = known.iter().map(|it| it.came).sum();
        let in_flight: f64 = known.iter().map(|it| it.in_flight).sum();
        let present = known.iter().filter(|it| it.replicas > 0.0).count();
        if present < 2 || came <= 0.0 || in_flight < BUSY * replicas {
            return;
        }

        let weights: f64 = known.iter().map(|it| it.replicas * self.weight(it)).sum();
        let kept = (-passed.unwrap_or_default().seconds() / MEMORY).exp();
        for it in known.iter().filter(|it| it.replicas > 0.0) {
            let weighed = self.weighed.entry(it.key.clone()).or_default();
            weighed.came = kept * weighed.came + it.came;
            weighed.expected = kept * weighed.expected + came * it.replicas / weights;
        }
    }

    fn weight(&self, routed: &Routed<'_>) -> f64 {
        let Weighed { came, expected } = self.weighed.get(routed.key).copied().unwrap_or_default();
        (came + ASSUMED * routed.by_capacity) / (expected + ASSUMED)
    }
}

// === impl RoutedMix ===

impl RoutedMix<'_> {
    /// The variant that is the first to be full, of those that are best used together.
    fn fullest(&self, before: Option<&VariantKey>, need: f64) -> usize {
        let Self { known, pressures, .. } = *self;
        let forced = known.iter().zip(pressures).filter(|(it, _)| it.min > 0.0);
        let lowest = forced.map(|(_, pressure)| *pressure).fold(0.0, f64::max);
        let mut limits: Vec<usize> =
            (0..known.len()).filter(|&at| pressures[at] >= lowest).collect();
        limits.sort_by(|&a, &b| pressures[b].total_cmp(&pressures[a]).then(a.cmp(&b)));

        let chosen = limits.iter().copied().find(|&at| Some(known[at].key) == before);
        let mut best = chosen.or_else(|| limits.first().copied()).unwrap_or_default();
        for at in limits {
            let [other, used] = [at, best].map(|at| self.plan(pressures[at], need));
            if self.is_worth(other, used) {
                best = at;
            }
        }
        best
    }

    /// The usable share of what a replica carries, if this is the highest pressure of those that are
    /// used; zero where its own is higher.
    fn usable(&self, at: usize, highest: f64) -> Fraction {
        let even = self.policy.even.fraction();
        let pressure = self.pressures[at];
        let is_used = pressure <= even * highest;
        let usable = if is_used { (even * pressure / highest).min(1.0) } else { 0.0 };
        Fraction::new(usable).unwrap_or(Fraction::ONE)
    }

    /// The cheapest replicas that carry a need, of the variants with no higher pressure than this.
    fn plan(&self, highest: f64, need: f64) -> MixCost {
        let rate = |at: usize| self.known[at].carries * self.usable(at, highest).fraction();
        let all = self.known.iter().enumerate().map(|(at, it)| (it, rate(at)));
        let mut used: Vec<(&Routed<'_>, f64)> = all.filter(|(_, rate)| *rate > 0.0).collect();
        used.sort_by(|a, b| (a.0.cost / a.1).total_cmp(&(b.0.cost / b.1)));

        let kept: f64 = used.iter().map(|(it, rate)| it.min * rate).sum();
        let cost = used.iter().map(|(it, _)| it.min * it.cost).sum();
        let mut plan = MixCost { missing: (need - kept).max(0.0), cost };
        for (it, rate) in used {
            let more = (plan.missing / rate).ceil().min((it.max - it.min).max(0.0));
            plan.missing = (plan.missing - more * rate).max(0.0);
            plan.cost += more * it.cost;
        }
        plan
    }

    /// Whether other variants are so much better that the present ones are given up.
    fn is_worth(&self, other: MixCost, used: MixCost) -> bool {
        let worth = self.policy.worth.fraction();
        match other.missing.total_cmp(&used.missing) {
            Ordering::Equal => worth * other.cost < used.cost,
            Ordering::Less => worth * other.missing < used.missing,
            Ordering::Greater => false,
        }
    }
}

/// The variants of a side as the router sees them, where what a replica carries is known.
fn routed<'a>(side: &Side<'a>) -> Vec<Option<Routed<'a>>> {
    let carried = side.variants.iter().map(|(_, carried)| carried.as_ref());
    let rates: Vec<Option<f64>> = carried
        .map(|it| Some(it?.rate.requests_per_second()).filter(|rate| *rate > RATE_MIN))
        .collect();
    let known = rates.iter().flatten().count().max(1) as f64;
    let mean = rates.iter().flatten().sum::<f64>() / known;
    let variants = side.variants.iter().zip(rates);
    variants.map(|((it, _), rate)| rate.map(|rate| Routed::new(it, rate, rate / mean))).collect()
}

// === impl Routed ===

impl<'a> Routed<'a> {
    fn new(variant: &'a VariantStrides<'a>, carries: f64, by_capacity: f64) -> Self {
        let replicas = &variant.replicas;
        let came = replicas.iter().flat_map(|it| it.strides).filter_map(|it| it.arrived);
        Self {
            key: &variant.spec.key,
            replicas: replicas.len() as f64,
            min: f64::from(variant.spec.bounds.min().count()),
            max: f64::from(variant.current.count().saturating_add(variant.room.count())),
            cost: variant.spec.cost.per_hour(),
            came: came.map(Requests::requests).sum(),
            in_flight: replicas.iter().filter_map(ReplicaStrides::in_flight).sum(),
            carries,
            by_capacity,
        }
    }
}
