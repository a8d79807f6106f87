//! A model in front of which requests queue while no replica serves it.
//!
//! The first replicas of a model take a start-up time. Until then, only its queue shows its load.
//! So a fleet without replicas, or with only starting ones, is sized by its queue.
//!
//! # Model
//!
//! `q` is the number of requests in the queue, and `a` requests per second join it. A replica
//! handles `mu` requests per second, and a request stays `L` seconds at a replica. A replica
//! requested now serves in `S` seconds. Replicas that already start will handle `A` requests per
//! second, and the queue was first seen `e` seconds ago:
//!
//! ```text
//! left = max(0, q + a S - A min(e, S))
//! need = max(a + left / S,  min(q, left) / max(L, 30 s))
//! ```
//!
//! `left` are the requests that still queue when a replica requested now serves. If `left` is 0,
//! that replica would come too late for any of them. The first term works them off in one start-up
//! time, so that no request waits for longer than two. The second term lets the queue fit into all
//! batches at once: a replica runs `mu L` requests, by Little's law.
//!
//! `a` is the least rate of the last three times 5 s. A burst fills a queue without bringing a rate
//! that lasts.
//!
//! While no capacity is known, the second term has the places of a replica instead of `mu L`: the
//! configured places, or 256, of each of its data-parallel ranks. So `q / places` replicas are
//! needed.
//!
//! # Units
//!
//! Requests, seconds, and requests per second.
//!
//! # Domain
//!
//! No replica that serves, reporting or not, and a signal that counts requests.

use jiff::Timestamp;

use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity, amount};
use crate::analyze::foresight::arrivals::{ArrivalHistory, STRIDE};
use crate::analyze::foresight::demand::{DemandInputs, RequiredCapacity};
use crate::analyze::foresight::gateway::{GatewayBacklog, GatewaySignals};
use crate::analyze::foresight::policy::ForesightPolicy;
use crate::analyze::foresight::role_fleet::RoleFleet;
use crate::analyze::foresight::state::Foresight;
use crate::analyze::foresight::strides::VariantStrides;
use crate::fleet::ModelKey;
use crate::units::Replicas;

/// Parts of a stride, each of `STRIDE / PARTS` seconds. Requests must arrive in each to be a rate.
const PARTS: i32 = 3;

/// Seconds of arrivals from which their mean counts if readings are too far apart for parts.
const KNOWN_FOR: f64 = 2.0 * STRIDE as f64;

/// A queue that no replica works off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WakeQueue {
    /// Requests in it.
    requests: f64,
    /// Seconds since the first of them was seen.
    waited: f64,
}

/// The replicas that will work off the queue.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supply {
    /// Requests per second that starting replicas will handle.
    pub(super) rate: f64,
    /// Seconds that a request stays at a replica.
    pub(super) stay: f64,
    /// Seconds until a replica requested now serves.
    pub(super) startup: f64,
}

// === impl Foresight ===

impl Foresight {
    /// The queue of a model that no replica serves; `None` without a queue, or if a replica serves.
    pub(super) fn unserved(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        front: GatewaySignals,
    ) -> Option<WakeQueue> {
        let requests = front.queued.map_or(0.0, |queued| queued.requests.requests());
        if requests <= 0.0 || variants.iter().any(serves) {
            self.unserved.remove(model);
            return None;
        }

        let since = self.unserved.entry(model.clone()).or_insert(now);
        *since = now.min(*since);
        let waited = now.duration_since(*since).as_secs_f64();
        Some(WakeQueue { requests, waited })
    }
}

/// Returns true if some replica of a variant serves, reporting or not.
fn serves(variant: &VariantStrides<'_>) -> bool {
    !variant.replicas.is_empty() || variant.silent > Replicas::ZERO
}

// === impl RoleFleet ===

impl RoleFleet<'_> {
    /// The capacity that works off a queue once the first replicas serve, which takes `startup`
    /// seconds.
    pub(super) fn coming(&self, startup: f64) -> Supply {
        let staying = self.known().map(|(variant, it)| (variant.staying(), it.counts()));
        let rates = staying.map(|(replicas, rate)| f64::from(replicas.count()) * rate);
        let stays = self.known().map(|(_, it)| it.stay.seconds());
        Supply { rate: rates.sum(), stay: stays.fold(0.0, f64::max), startup }
    }
}

// === impl WakeQueue ===

impl WakeQueue {
    /// The need, if the capacity of a replica is known.
    pub(super) fn need(
        self,
        arrivals: &ArrivalHistory,
        setting: &DemandInputs<'_>,
        coming: Supply,
    ) -> RequiredCapacity {
        let DemandInputs { through, policy, ahead, .. } = *setting;
        let Supply { rate, stay, startup } = coming;
        let gateway = policy.gateway.unwrap_or_default();
        let arriving = arriving(arrivals, through);
        let known = policy.schedule.zip(ahead);
        let schedule = known.map(|(it, ahead)| it.share.fraction() * ahead.rise());
        let expected = arriving.max(schedule.unwrap_or(0.0));

        let start = startup.max(1.0);
        let served = rate * self.waited.min(start);
        let left = (self.requests + expected * start - served).max(0.0);
        let in_time = expected + left / start;
        let at_once = self.requests.min(left) / stay.max(gateway.drain.seconds());
        let adds = in_time.max(at_once) - expected;

        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let allowed = policy.ttft.seconds();
        let held = GatewayBacklog { requests: self.requests, adds, takes: None, allowed };
        RequiredCapacity {
            arriving,
            schedule,
            gateway: Some(held),
            total: expected / used + adds,
            ..RequiredCapacity::default()
        }
    }

    /// The replicas that hold the queue all at once, while no capacity is known; `None` if one
    /// replica does.
    pub(super) fn by_places(
        self,
        policy: &ForesightPolicy,
        variants: &[VariantStrides<'_>],
    ) -> Option<CapacityReport> {
        let fewest = variants.iter().map(|it| places(it, policy)).reduce(f64::min)?;
        if policy.cold_start.is_none() || self.requests <= fewest {
            return None;
        }

        let capacities: Vec<VariantCapacity> = variants
            .iter()
            .map(|variant| VariantCapacity {
                key: variant.spec.key.clone(),
                role: variant.spec.role,
                cost: variant.spec.cost,
                replicas: Replicas::ZERO,
                pending: variant.staying(),
                per_replica: Some(amount(places(variant, policy))),
                demand: amount(0.0),
                confidence: Confidence::Assumed,
            })
            .collect();

        let mut roles = Totals::by_role(&capacities);
        let mut total = Totals::of(&capacities);
        // Each role of a model gets all of its requests.
        for totals in roles.values_mut().chain([&mut total]) {
            totals.demand = amount(self.requests);
            totals.required = amount(self.requests - totals.anticipated.amount());
        }

        if !roles.is_empty() {
            total = roles.values().copied().sum();
        }

        let unit = Unit::RequestsInFlight;
        Some(CapacityReport { unit, variants: capacities, total, roles })
    }
}

/// The places in the batches of all ranks of a replica: the configured ones, or otherwise the usual
/// ones.
fn places(variant: &VariantStrides<'_>, policy: &ForesightPolicy) -> f64 {
    let ranks = variant.arguments.map_or(1.0, |it| f64::from(it.parallel.data.get()));
    ranks * variant.told.seats.unwrap_or(policy.seats).requests()
}

/// The lasting rate of requests per second that join a queue.
fn arriving(arrivals: &ArrivalHistory, through: Timestamp) -> f64 {
    let parts = arrivals.windows(through, STRIDE / i64::from(PARTS), STRIDE);
    let least = parts.iter().copied().reduce(f64::min);

    match least.filter(|_| i32::try_from(parts.len()).is_ok_and(|known| known >= PARTS)) {
        Some(least) => (least * f64::from(PARTS) / STRIDE as f64).max(0.0),
        None if parts.is_empty() && arrivals.history(through) >= KNOWN_FOR => {
            arrivals.rate(through).unwrap_or_default().max(0.0)
        }
        None => 0.0,
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;
    use std::sync::Arc;

    use super::*;
    use crate::analyze::engine_args::EngineArguments;
    use crate::fleet::VariantSpec;
    use crate::observe::engine::Engine;

    /// Returns true if one replica with this many ranks holds a queue of 2000 requests.
    fn one_holds_it(ranks: u32) -> bool {
        let mut arguments = EngineArguments::default_of(Engine::Vllm);
        arguments.parallel.data = NonZeroU32::new(ranks).unwrap();
        let told = Arc::new(arguments);

        let spec = VariantSpec::example("a");
        let variant = VariantStrides { arguments: Some(&told), ..VariantStrides::example(&spec) };
        let queue = WakeQueue { requests: 2000.0, waited: 0.0 };
        queue.by_places(&ForesightPolicy::default(), &[variant]).is_none()
    }

    #[test]
    fn every_rank_of_a_replica_has_places_for_the_queue() {
        assert!(one_holds_it(8), "2048 places");
        assert!(!one_holds_it(7), "1792 places");
        assert!(!one_holds_it(1), "256 places");
    }
}
