//! A model in front of which requests queue while no replica serves it.
//!
//! The first replicas of a model take a start-up time, and until then its queue is all that is seen
//! of its load. So a fleet that has no replicas, or only some that start, is sized by its queue.
//!
//! # Model
//!
//! With `q` requests in the queue, `a` requests a second that join it, `mu` the rate that a replica
//! handles, `L` the seconds that a request stays there, and `S` those until a replica that is asked
//! for now serves. Those that start already handle `A` requests a second, and began `e` seconds ago:
//!
//! ```text
//! left = max(0, q + a S - A min(e, S))
//! need = max(a + left / S,  min(q, left) / max(L, 30 s))
//! ```
//!
//! `left` are the requests that still queue when a replica that is asked for now serves. If they are
//! none, it would come too late for any. The first term works them off in one start-up time, so that
//! no request waits for longer than two. The second lets the queue fit into all batches at once: a
//! replica has `mu L` requests, by Little's law.
//!
//! `a` is the least rate of the last three times 5 s. A burst fills a queue, and brings no rate that
//! lasts.
//!
//! While no capacity is known, the second term has the places of an engine in place of `mu L`: those
//! that it was told, or 256. So `q / places` replicas are asked for.
//!
//! # Units
//!
//! Requests, seconds, and requests a second.
//!
//! # Domain
//!
//! No replica that serves, neither one that reports nor one that is silent, and a signal that counts
//! requests.

use jiff::Timestamp;

use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity, amount};
use crate::analyze::foresight::arrivals::{Arrivals, STRIDE};
use crate::analyze::foresight::demand::{Need, Setting};
use crate::analyze::foresight::gateway::{Front, Held};
use crate::analyze::foresight::policy::Policy;
use crate::analyze::foresight::{Analysis, Foresight, Side, VariantStrides};
use crate::fleet::ModelKey;
use crate::units::Replicas;

/// Parts of a stride in each of which requests must arrive to be a rate, each of this many seconds.
const PARTS: i32 = 3;

/// Seconds of arrivals from which their mean is believed if readings are too far apart for parts.
const KNOWN_FOR: f64 = 2.0 * STRIDE as f64;

/// A queue that no replica works off.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct WakeQueue {
    /// Requests in it.
    requests: f64,
    /// Seconds since the first of them was seen.
    waited: f64,
}

/// What will work it off.
#[derive(Clone, Copy, Debug)]
pub(super) struct Supply {
    /// Requests a second that replicas which start will handle.
    pub(super) rate: f64,
    /// Seconds that a request stays at a replica.
    pub(super) stay: f64,
    /// Seconds until a replica that is asked for now serves.
    pub(super) startup: f64,
}

// === impl Foresight ===

impl Foresight {
    /// The queue of a model that no replica serves; `None` if there is none, or one serves.
    pub(super) fn unserved(
        &mut self,
        now: Timestamp,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        front: Front,
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

/// Whether some replica of a variant serves, as far as is known.
fn serves(variant: &VariantStrides<'_>) -> bool {
    !variant.replicas.is_empty() || variant.silent > Replicas::ZERO
}

// === impl Side ===

impl Side<'_> {
    /// What works off a queue once the first replicas serve, which take so many seconds.
    pub(super) fn coming(&self, startup: f64) -> Supply {
        let staying = |it: &VariantStrides<'_>| f64::from(it.staying().count());
        let rates = self.known().map(|(variant, it)| staying(variant) * it.counts());
        let stays = self.known().map(|(_, it)| it.stay.seconds());
        Supply { rate: rates.sum(), stay: stays.fold(0.0, f64::max), startup }
    }
}

// === impl WakeQueue ===

impl WakeQueue {
    /// What must be handled, where the capacity of a replica is known.
    pub(super) fn need(self, arrivals: &Arrivals, setting: &Setting<'_>, coming: Supply) -> Need {
        let Setting { through, policy, ahead, .. } = *setting;
        let Supply { rate, stay, startup } = coming;
        let gateway = policy.gateway.unwrap_or_default();
        let arriving = arriving(arrivals, through);
        let known = policy.schedule.zip(ahead);
        let usual = known.map(|(it, ahead)| it.share.fraction() * ahead.rise());
        let expected = arriving.max(usual.unwrap_or(0.0));

        let start = startup.max(1.0);
        let served = rate * self.waited.min(start);
        let left = (self.requests + expected * start - served).max(0.0);
        let in_time = expected + left / start;
        let at_once = self.requests.min(left) / stay.max(gateway.drain.seconds());
        let adds = in_time.max(at_once) - expected;

        let used = policy.used.fraction().max(f64::MIN_POSITIVE);
        let allowed = policy.ttft.seconds();
        let held = Held { requests: self.requests, adds, takes: None, allowed };
        Need {
            arriving,
            usual,
            gateway: Some(held),
            total: expected / used + adds,
            ..Need::default()
        }
    }

    /// The replicas that hold it all at once, while no capacity is known; `None` if one does.
    pub(super) fn by_places(
        self,
        policy: &Policy,
        variants: &[VariantStrides<'_>],
    ) -> Option<Analysis> {
        let places = |it: &VariantStrides<'_>| it.told.seats.unwrap_or(policy.seats).requests();
        let fewest = variants.iter().map(places).reduce(f64::min)?;
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
                per_replica: Some(amount(places(variant))),
                demand: amount(0.0),
                confidence: Confidence::Assumed,
            })
            .collect();
        let mut roles = Totals::by_role(&capacities);
        let mut total = Totals::of(&capacities);
        // Each part of a model gets all of its requests.
        for totals in roles.values_mut().chain([&mut total]) {
            totals.demand = amount(self.requests);
            totals.required = amount(self.requests - totals.anticipated.amount());
        }
        if !roles.is_empty() {
            total = roles.values().copied().sum();
        }

        let unit = Unit::RequestsInFlight;
        let report = CapacityReport { unit, variants: capacities, total, roles };
        Some(Analysis::without_capacity(report))
    }
}

/// Requests a second that join a queue and go on to do so.
fn arriving(arrivals: &Arrivals, through: Timestamp) -> f64 {
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
