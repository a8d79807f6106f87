//! The need of a model's role, and the capacity of all variants that serve the role.
//!
//! `foresight` forecasts demand for a role, and all variants of the role serve it together. So both
//! sides of the comparison are sums over the role, in requests per second:
//!
//! ```text
//! capacity = sum over variants of  replicas * rate per replica * usable share
//! ```
//!
//! The replicas are those that serve, those and the pending ones, or the maximum. A capacity is
//! `None` if a variant with replicas has no known rate: it is never counted as 0.

use std::collections::BTreeMap;

use crate::publish::{Published, PublishedVariant};
use plimsoll_core::decide::sized::{CapacityEstimate, DemandForecast};
use plimsoll_core::decide::{Basis, Decision};
use plimsoll_core::fleet::{ModelKey, Role};
use plimsoll_core::units::Replicas;

/// The balances of all models and roles with a forecast.
pub type Balances = BTreeMap<(ModelKey, Role), CapacityBalance>;

/// Need against capacity of one role, in requests per second.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CapacityBalance {
    /// Requests that arrive now.
    pub arriving: f64,
    /// Arrivals that are forecast for the end of the horizon.
    pub forecast: f64,
    /// The need now: capacity that the forecast requires.
    pub need: f64,
    /// The highest need that is held, which `foresight` compares with the capacity.
    pub held: f64,
    /// Start-up time plus reaction time, in seconds, at most 3600.
    pub horizon: f64,
    /// Capacity of the replicas that serve; `None` if unknown.
    pub ready: Option<f64>,
    /// The same with the pending replicas that are expected to serve; `None` if unknown.
    pub with_pending: Option<f64>,
    /// Capacity at the maximum of each variant; `None` if unknown or without a maximum.
    pub at_maximum: Option<f64>,
}

/// The balance of each model and role that `foresight` has decided on fresh data.
#[must_use]
pub fn balances(published: &Published) -> Balances {
    let mut balances = Balances::new();
    for variant in published.variants.values() {
        let Some(forecast) = forecast(variant) else { continue };
        let role = (variant.spec.model_key(), variant.spec.role);
        balances.entry(role).or_insert_with(|| CapacityBalance::of(forecast));
    }

    // A variant without a decision of its own still belongs to the capacity of its role.
    for variant in published.variants.values() {
        let role = (variant.spec.model_key(), variant.spec.role);
        if let Some(balance) = balances.get_mut(&role) {
            balance.include(variant);
        }
    }

    balances
}

/// The decision of a variant, if it was made on fresh data.
fn fresh(variant: &PublishedVariant) -> Option<&Decision> {
    let decision = &variant.decided.as_ref()?.decision;
    (decision.basis == Basis::Fresh).then_some(decision)
}

fn forecast(variant: &PublishedVariant) -> Option<&DemandForecast> {
    fresh(variant)?.sizing.as_ref()?.foreseen.as_ref()
}

// === impl CapacityBalance ===

impl CapacityBalance {
    fn of(forecast: &DemandForecast) -> Self {
        let DemandForecast { need, held, horizon, .. } = forecast;
        Self {
            arriving: need.arriving,
            forecast: need.forecast_arrivals(),
            need: need.total,
            held: *held,
            horizon: *horizon,
            ready: Some(0.0),
            with_pending: Some(0.0),
            at_maximum: Some(0.0),
        }
    }

    fn include(&mut self, variant: &PublishedVariant) {
        let observation = &variant.observation;
        let sizing = fresh(variant).and_then(|decision| decision.sizing.as_ref());
        let rate = sizing.and_then(|it| it.carries);
        let pending = observation.pending;
        let asleep = sizing.map_or(Replicas::ZERO, |it| it.asleep);

        let stuck = observation.startup.stuck;
        let coming = pending.beyond(stuck);
        // Of listed targets, only the requested ones count toward the maximum.
        let given_up = sizing.map_or(stuck, |it| it.stuck);
        let most = variant.bounds().max().map(|max| max.beyond(given_up + asleep));
        // Requested replicas that do not exist yet are pending as well.
        let all =
            observation.current.map(|current| observation.wanted.unwrap_or(current).max(current));
        let ready = all.map(|all| all.beyond(pending + asleep));

        add(&mut self.ready, ready, rate.as_ref());
        add(&mut self.with_pending, ready.map(|ready| ready + coming), rate.as_ref());
        add(&mut self.at_maximum, most, rate.as_ref());
    }
}

/// Adds the capacity of these replicas. The sum is unknown from then on if it is not known.
fn add(sum: &mut Option<f64>, replicas: Option<Replicas>, rate: Option<&CapacityEstimate>) {
    let capacity = match (replicas, rate) {
        (Some(Replicas::ZERO), _) => Some(0.0),
        (Some(replicas), Some(rate)) => Some(f64::from(replicas.count()) * rate.counts()),
        (None, _) | (_, None) => None,
    };
    *sum = sum.zip(capacity).map(|(sum, capacity)| sum + capacity);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::publish::fixtures::{decided, sizing};
    use plimsoll_core::analyze::foresight::estimate::Teacher;
    use plimsoll_core::decide::sized::{CapacityBound, SizingValues};
    use plimsoll_core::units::{Fraction, RequestRate};

    /// The capacity of a variant of 10 requests/s per replica with these values: of the ready
    /// replicas, of all, and at the maximum.
    fn capacity(
        values: SizingValues,
        change: impl FnOnce(&mut PublishedVariant),
    ) -> [Option<f64>; 3] {
        let carries = CapacityEstimate {
            rate: RequestRate::new(10.0).unwrap(),
            usable: Fraction::ONE,
            interval: None,
            bound: CapacityBound::Itl,
            said_by: Teacher::Replicas,
        };
        let mut variant = decided(Basis::Fresh, Vec::new());
        change(&mut variant);
        let sizing = SizingValues { carries: Some(carries), ..values };
        variant.decided.as_mut().unwrap().decision.sizing = Some(Arc::new(sizing));

        let none = Some(0.0);
        let mut balance = CapacityBalance {
            arriving: 0.0,
            forecast: 0.0,
            need: 0.0,
            held: 0.0,
            horizon: 0.0,
            ready: none,
            with_pending: none,
            at_maximum: none,
        };
        balance.include(&variant);
        [balance.ready, balance.with_pending, balance.at_maximum]
    }

    #[test]
    fn stuck_replicas_are_in_no_capacity() {
        let values = SizingValues { stuck: Replicas::ONE, ..sizing() };
        let found = capacity(values, |variant| {
            variant.observation.pending = Replicas::saturating(2);
            variant.observation.startup.stuck = Replicas::ONE;
        });
        // Of four replicas two are pending, of which one is stuck, and five are the maximum.
        assert_eq!(found, [Some(20.0), Some(30.0), Some(40.0)]);
    }

    #[test]
    fn listed_targets_that_none_requested_take_no_capacity_from_the_maximum() {
        let values = SizingValues { stuck: Replicas::ONE, ..sizing() };
        let found = capacity(values, |variant| {
            variant.observation.pending = Replicas::saturating(2);
            variant.observation.startup.stuck = Replicas::saturating(2);
        });
        // Two of four never answer, of which one is requested and hangs.
        assert_eq!(found, [Some(20.0), Some(20.0), Some(40.0)]);
    }

    #[test]
    fn requested_replicas_that_do_not_exist_take_no_capacity_from_those_that_serve() {
        let found = capacity(sizing(), |variant| {
            variant.observation.wanted = Some(Replicas::saturating(5));
            variant.observation.current = Some(Replicas::saturating(3));
            variant.observation.pending = Replicas::saturating(2);
        });
        assert_eq!(found, [Some(30.0), Some(50.0), Some(50.0)]);
    }

    #[test]
    fn replicas_that_sleep_are_in_no_capacity() {
        let values = SizingValues { asleep: Replicas::saturating(2), ..sizing() };
        let found = capacity(values, |variant| {
            variant.observation.current = Some(Replicas::saturating(5));
            variant.observation.pending = Replicas::ONE;
        });
        assert_eq!(found, [Some(20.0), Some(30.0), Some(30.0)]);
    }
}
