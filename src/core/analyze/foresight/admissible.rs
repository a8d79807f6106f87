//! Admissible requests: the rate that a gateway may let through while no replica can be started in
//! time.
//!
//! A jump is over or has done its damage before a new replica serves. Until then a gateway that
//! rejects the excess keeps the rest in time. It needs one number for that, which [`admissible`]
//! derives from the capacity per replica and the requests that wait.
//!
//! # Model
//!
//! ```text
//! capacity   = n * mu
//! backlog    = n * max(w - usual, 0) + q * capacity / (capacity of the role)
//! admissible = max(capacity - backlog / horizon, FLOOR * capacity)
//! horizon    = max(slo.ttft, time between two scrapes)
//! ```
//!
//! - `n`: replicas of the variant that serve, those that are about to leave included.
//! - `mu`: requests/s that one replica carries at the current request mix, fully used
//!   ([`Estimate::rate`]).
//! - `w`: mean number of waiting requests per replica that reports it; `usual` of them
//!   (`backlog.usual`) wait in any case.
//! - `q`: requests that wait at the gateway.
//!
//! The backlog is worked off within the time that a first token may take. A shorter horizon than the
//! time between two scrapes would leave replicas idle until the next one.
//!
//! A model has the sum over the variants of a role. With prefill and decode apart, a request needs
//! both, so the model has the smaller sum.
//!
//! # Domain
//!
//! A variant whose replicas serve with an unknown capacity or queue has no rate, and neither has its
//! model. A variant without serving replicas has 0. A model without any has no rate: a gateway must
//! not keep it asleep.
//!
//! # Source
//!
//! The rate at which a queue of length `backlog` empties within `horizon` is a flow balance:
//! `backlog + (admissible - capacity) * horizon = 0`.

use std::collections::BTreeMap;

use derive_more::Display;
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::VariantStrides;
use crate::analyze::foresight::estimate::Estimate;
use crate::analyze::foresight::gateway::Front;
use crate::analyze::foresight::policy::Policy;
use crate::fleet::{Role, VariantKey};
use crate::units::{Replicas, RequestRate, Requests};

/// Share of the capacity that is admissible at least. A queue that was misread must not stop all
/// traffic, because requests in service are the evidence of capacity.
const FLOOR: f64 = 0.1;

/// The rate of requests that serving replicas can take in time.
#[derive(Clone, Copy, Debug, Display, PartialEq, Serialize, Deserialize)]
#[display(
    "{:.2} requests/s admissible on {serving} serving replicas, with {backlog:.0} waiting requests \
     to work off",
    variant.requests_per_second()
)]
pub struct Admissible {
    /// Rate for the variant.
    pub variant: RequestRate,
    /// Rate for its model; `None` if it is unknown for a variant that serves.
    pub model: Option<RequestRate>,
    /// Replicas of the variant that serve.
    pub serving: Replicas,
    /// Waiting requests that are worked off first.
    pub backlog: f64,
}

/// The replicas of a variant that serve.
struct Serving {
    key: VariantKey,
    replicas: Replicas,
    /// `None` if something of it is unknown.
    load: Option<Load>,
}

/// The capacity of serving replicas, and the requests that wait at them.
#[derive(Clone, Copy)]
struct Load {
    /// In requests/s.
    capacity: f64,
    /// Waiting requests beyond the usual ones.
    waiting: f64,
}

/// Derives the admissible rate of each variant of a model from the capacity per replica.
#[must_use]
pub fn admissible(
    policy: &Policy,
    front: Front,
    variants: &[VariantStrides<'_>],
    estimates: &BTreeMap<VariantKey, Estimate>,
) -> BTreeMap<VariantKey, Admissible> {
    let usual = policy.backlog.unwrap_or_default().usual.requests();
    let horizon = horizon(policy, variants);
    let queued = front.queued.map_or(0.0, |queued| queued.requests.requests());

    let mut roles: BTreeMap<Role, Vec<Serving>> = BTreeMap::new();
    for variant in variants {
        let serving = Serving::of(variant, estimates.get(&variant.spec.key), usual);
        roles.entry(variant.spec.role).or_default().push(serving);
    }

    let mut found = BTreeMap::new();
    let mut totals = Vec::new();
    for members in roles.values() {
        let capacity: f64 = members.iter().filter_map(|it| it.load).map(|it| it.capacity).sum();
        let delay = if capacity > 0.0 { queued / capacity } else { 0.0 };

        let rates: Vec<_> = members.iter().map(|it| it.admissible(delay, horizon)).collect();
        let serves = members.iter().any(|it| it.replicas > Replicas::ZERO);
        totals.push(total(&rates).filter(|_| serves));

        let keys = members.iter().map(|it| it.key.clone());
        found.extend(keys.zip(rates).filter_map(|(key, rate)| Some((key, rate?))));
    }

    let model = totals.into_iter().reduce(|a, b| Some(a?.min(b?))).flatten();
    if found.values().all(|it| it.serving == Replicas::ZERO) {
        return BTreeMap::new();
    }
    for rate in found.values_mut() {
        rate.model = model.and_then(RequestRate::new);
    }
    found
}

/// The time in which a backlog is worked off, in seconds.
fn horizon(policy: &Policy, variants: &[VariantStrides<'_>]) -> f64 {
    let replicas = variants.iter().flat_map(|variant| &variant.replicas);
    let looks = replicas.filter_map(|replica| replica.strides.last());
    let apart = looks.map(|stride| stride.elapsed.seconds()).fold(0.0, f64::max);

    policy.ttft.seconds().max(apart)
}

/// The sum over all variants of a role, in requests/s.
fn total(rates: &[Option<Admissible>]) -> Option<f64> {
    rates.iter().map(|rate| Some(rate.as_ref()?.variant.requests_per_second())).sum()
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// Replicas that serve, those that are about to leave included.
    fn serving(&self) -> Replicas {
        self.current.beyond(self.pending)
    }
}

// === impl Serving ===

impl Serving {
    fn of(variant: &VariantStrides<'_>, estimate: Option<&Estimate>, usual: f64) -> Self {
        let replicas = variant.serving();
        let idle = Load { capacity: 0.0, waiting: 0.0 };
        let load = if replicas == Replicas::ZERO {
            Some(idle)
        } else {
            estimate.and_then(|estimate| Load::of(variant, replicas, estimate, usual))
        };

        Self { key: variant.spec.key.clone(), replicas, load }
    }

    /// The rate that leaves time for the waiting requests, those at the gateway included, which take
    /// the whole role `delay` seconds.
    fn admissible(&self, delay: f64, horizon: f64) -> Option<Admissible> {
        let Load { capacity, waiting } = self.load?;
        let backlog = waiting + delay * capacity;
        let rate = (capacity - backlog / horizon).max(FLOOR * capacity);

        let variant = RequestRate::new(rate)?;
        Some(Admissible { variant, model: None, serving: self.replicas, backlog })
    }
}

// === impl Load ===

impl Load {
    /// The load of some replicas, of which those count as the others that do not report a queue.
    fn of(
        variant: &VariantStrides<'_>,
        replicas: Replicas,
        estimate: &Estimate,
        usual: f64,
    ) -> Option<Self> {
        let reported = variant.replicas.iter().filter_map(|replica| replica.waiting);
        let waiting: Vec<f64> = reported.map(Requests::requests).collect();
        if waiting.is_empty() {
            return None;
        }
        let mean = waiting.iter().sum::<f64>() / waiting.len() as f64;

        let count = f64::from(replicas.count());
        let capacity = count * estimate.rate.requests_per_second();
        Some(Self { capacity, waiting: count * (mean - usual).max(0.0) })
    }
}
