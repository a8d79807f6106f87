//! Router weights: the usable capacity of unlike variants of one role.
//!
//! A router that sends each replica the same number of requests fills the slow ones first. The fast
//! ones then have room that stays unused, and the sum of all capacities is too high.
//!
//! # Model
//!
//! A replica of variant `v` gets a share of requests in proportion to a weight `w`. With `A`
//! requests at all replicas together, `n` replicas and `S` requests at a variant,
//!
//! ```text
//! E = sum over time of  A * n / sum over u of (n_u * w_u)      requests at a weight of one
//! w = (S + K * q) / (E + K)                                    q = mu / mean mu,  K = 50
//! P = max over variants with replicas of  w / mu               the variant that is full first
//! usable = min(1, 1.1 * (w / mu) / P)                          of the capacity per replica
//! ```
//!
//! A router that shares by capacity has `w = q`, and all capacity is usable. That is assumed at
//! first. Up to a tenth more than its share is chance.
//!
//! The variant that is full first limits the others. Without it, `P` is that of the next variant,
//! and the usable capacity of the others is higher. It is not used, and scales down, if the need
//! costs a sixth less without it. The same applies if it keeps the others from meeting the need. A
//! minimum keeps a variant in any case.
//!
//! # Domain
//!
//! Times in which two variants serve, and a replica has two requests or more on average. With
//! fewer, a router that counts them sends each to the first idle replica, and seems to share
//! equally. Weights are remembered for ten minutes of such times. They stay while a variant has no
//! replica, because the router fills a restarted variant as before.
//!
//! # Source
//!
//! The iteration of Hunter (2004), *MM algorithms for generalized Bradley-Terry models*, with sums
//! that fade.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::analyze::foresight::capacity::RATE_MIN;
use crate::analyze::foresight::policy::Routing;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::strides::{ReplicaStrides, VariantStrides};
use crate::fleet::VariantKey;
use crate::units::{Fraction, Requests, Seconds};

/// Requests at a replica from which their distribution shows the router's weights.
pub(super) const BUSY: f64 = 2.0;

/// Seconds after which a weight is forgotten to 37%.
pub(super) const MEMORY: f64 = 600.0;

/// The weight of the assumption of a router that shares by capacity, in requests.
const ASSUMED: f64 = 50.0;

/// The requests at each variant of one role, against the expected ones.
#[derive(Clone, Debug, Default)]
pub(super) struct RouterWeights {
    looked: Option<Timestamp>,
    weighed: BTreeMap<VariantKey, RouterWeight>,
    /// The variant that is full first among the used variants.
    fullest: Option<VariantKey>,
}

/// The requests at one variant, with recent ones weighted most.
#[derive(Clone, Copy, Debug, Default)]
struct RouterWeight {
    /// Requests that came.
    came: f64,
    /// Requests expected at a weight of one.
    expected: f64,
}

/// Variants, from which the best set to use together is chosen.
struct RoutedMix<'a> {
    known: &'a [RoutedVariant<'a>],
    /// Their weights over their capacity per replica. The variants with the highest are full first.
    pressures: &'a [f64],
    policy: &'a Routing,
}

/// The shortfall and cost of a set of replicas.
#[derive(Clone, Copy, Debug)]
struct MixCost {
    /// Requests per second beyond their capacity.
    missing: f64,
    /// Their cost per hour.
    cost: f64,
}

/// One variant at one look.
#[derive(Clone, Copy, Debug)]
struct RoutedVariant<'a> {
    key: &'a VariantKey,
    replicas: f64,
    /// The minimum of its replicas.
    min: f64,
    /// Replicas that the variant may have.
    max: f64,
    /// The cost of a replica per hour.
    cost: f64,
    /// Requests that came to its replicas since the last look.
    came: f64,
    /// Requests that its replicas run, and that wait at them.
    in_flight: f64,
    /// The capacity per replica, in requests per second.
    carries: f64,
    /// Its share by capacity, as a weight.
    by_capacity: f64,
}

// === impl RouterWeights ===

impl RouterWeights {
    /// The usable share of the capacity per replica, for each variant of a side.
    pub(super) fn usable(
        &mut self,
        through: Timestamp,
        side: &RoleFleet<'_>,
        need: f64,
        policy: &Routing,
    ) -> Vec<Fraction> {
        let routed = routed(side);
        let known: Vec<RoutedVariant<'_>> = routed.iter().copied().flatten().collect();
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
        let mut usable = Vec::with_capacity(routed.len());
        for variant in &routed {
            let share = variant.and_then(|_| shares.next());
            usable.push(share.unwrap_or(Fraction::ONE));
        }

        usable
    }

    /// Takes in the arrivals since the last look.
    fn look(&mut self, through: Timestamp, known: &[RoutedVariant<'_>]) {
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

    fn weight(&self, routed: &RoutedVariant<'_>) -> f64 {
        let RouterWeight { came, expected } =
            self.weighed.get(routed.key).copied().unwrap_or_default();
        (came + ASSUMED * routed.by_capacity) / (expected + ASSUMED)
    }
}

// === impl RoutedMix ===

impl RoutedMix<'_> {
    /// The variant that is full first, in the best set to use together.
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

    /// The usable share of a variant's capacity per replica if `highest` is the highest pressure in
    /// use. Zero if its own pressure is higher.
    fn usable(&self, at: usize, highest: f64) -> Fraction {
        let even = self.policy.even.fraction();
        let pressure = self.pressures[at];
        let is_used = pressure <= even * highest;
        let usable = if is_used { (even * pressure / highest).min(1.0) } else { 0.0 };
        Fraction::new(usable).unwrap_or(Fraction::ONE)
    }

    /// The cheapest replicas that meet a need, of the variants with no higher pressure than this.
    fn plan(&self, highest: f64, need: f64) -> MixCost {
        let mut used: Vec<(&RoutedVariant<'_>, f64)> = Vec::new();
        for (at, it) in self.known.iter().enumerate() {
            let rate = it.carries * self.usable(at, highest).fraction();
            if rate > 0.0 {
                used.push((it, rate));
            }
        }
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

    /// Returns true if the other variants are so much better that they replace the present ones.
    fn is_worth(&self, other: MixCost, used: MixCost) -> bool {
        let worth = self.policy.worth.fraction();
        match other.missing.total_cmp(&used.missing) {
            Ordering::Equal => worth * other.cost < used.cost,
            Ordering::Less => worth * other.missing < used.missing,
            Ordering::Greater => false,
        }
    }
}

/// The variants of a side as the router sees them; `None` for a variant without known capacity.
fn routed<'a>(side: &RoleFleet<'a>) -> Vec<Option<RoutedVariant<'a>>> {
    let mut rates = Vec::new();
    for (_, carried) in &side.variants {
        let rate = carried.map(|it| it.rate.requests_per_second());
        rates.push(rate.filter(|rate| *rate > RATE_MIN));
    }

    let known = rates.iter().flatten().count().max(1) as f64;
    let mean = rates.iter().flatten().sum::<f64>() / known;
    let variants = side.variants.iter().zip(rates);
    variants
        .map(|((it, _), rate)| rate.map(|rate| RoutedVariant::new(it, rate, rate / mean)))
        .collect()
}

// === impl RoutedVariant ===

impl<'a> RoutedVariant<'a> {
    fn new(variant: &'a VariantStrides<'a>, carries: f64, by_capacity: f64) -> Self {
        let replicas = &variant.replicas;
        let came = replicas.iter().flat_map(|it| it.strides).filter_map(|it| it.arrived);

        Self {
            key: &variant.spec.key,
            replicas: replicas.len() as f64,
            min: f64::from(variant.min.count()),
            max: f64::from(variant.current.count().saturating_add(variant.room.count())),
            cost: variant.spec.cost.per_hour(),
            came: came.map(Requests::requests).sum(),
            in_flight: replicas.iter().filter_map(ReplicaStrides::in_flight).sum(),
            carries,
            by_capacity,
        }
    }
}
