//! A fleet of which only the queues are known, because foresight has learned nothing yet.
//!
//! # Model
//!
//! ```text
//! need = min(m * requests in flight / running requests of the fullest replica, 4 * replicas)
//! ```
//!
//! in replicas. `replicas` were requested a quarter of a minute ago. `m` is 1.3, or 2 until enough
//! answers have ended to know their lengths. Until then only requests since the start of the load
//! are in flight. If a time of unknown scale has lasted `t`, its median is `2 t`, so twice as many
//! will be in flight.
//!
//! This is too much while the fullest replica is not full, such as in the first seconds of a burst.
//! So a fleet may scale to four times its size at once. Requests must then wait for a quarter of a
//! minute before it may scale to four times that. Once answers have ended, the waiting requests are
//! a queue that new replicas work off, and `replicas` are the measured ones.
//!
//! # Source
//!
//! Gott, *Implications of the Copernican principle for our future prospects* (1993): the prior of a
//! time of unknown scale, and its median.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity, amount};
use crate::analyze::foresight::gateway::QueueReading;
use crate::analyze::foresight::policy::ColdStart;
use crate::analyze::foresight::strides::VariantStrides;
use crate::units::{Replicas, Requests};

/// Seconds after which a fleet may grow again by the same factor.
const AGAIN: f64 = 15.0;

/// The size of a fleet, which bounds its growth.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ColdFleet {
    since: Option<Timestamp>,
    replicas: f64,
    /// Replicas that were last requested.
    asked: f64,
    /// True if enough answers have ended to know their lengths.
    has_answers: bool,
}

/// The need of the replicas of a role, of which only the queues are known. It is enough replicas for
/// all requests in flight, if each runs as many as the fullest does now.
pub(super) fn cold_start(
    policy: Option<&ColdStart>,
    variants: &[&VariantStrides<'_>],
    queued: Option<QueueReading>,
    base: &mut ColdFleet,
) -> CapacityReport {
    let replicas = variants.iter().flat_map(|variant| &variant.replicas);
    let count = replicas.clone().count() as f64;
    let running = replicas.clone().filter_map(|it| it.running).map(Requests::requests);
    let fullest = running.clone().fold(0.0, f64::max);

    let at_replicas: f64 = replicas.filter_map(|it| it.waiting).map(Requests::requests).sum();
    let waiting = at_replicas + queued.map_or(0.0, |queued| queued.requests.requests());
    let overrun = policy
        .filter(|it| count > 0.0 && fullest >= 1.0 && waiting > it.waiting.requests() * count);

    let capacities: Vec<VariantCapacity> = variants
        .iter()
        .map(|variant| VariantCapacity {
            key: variant.spec.key.clone(),
            role: variant.spec.role,
            cost: variant.spec.cost,
            replicas: variant.staying().beyond(variant.pending),
            pending: variant.pending.min(variant.staying()),
            per_replica: overrun.map(|_| amount(fullest)),
            demand: amount(0.0),
            confidence: Confidence::Assumed,
        })
        .collect();

    let mut total = Totals::of(&capacities);
    if let Some(ColdStart { margin, unended, times, .. }) = overrun {
        let share = if base.has_answers { *margin } else { (*margin).max(*unended) };
        let size = if base.has_answers { count } else { base.replicas };
        let most = times.fraction() * size * fullest;
        let wanted = (share.fraction() * (running.sum::<f64>() + waiting)).min(most);
        base.asked = wanted / fullest;
        total.demand = amount(wanted);
        total.required = amount(wanted - total.anticipated.amount());
    }

    CapacityReport {
        unit: Unit::RequestsInFlight,
        variants: capacities,
        total,
        roles: BTreeMap::new(),
    }
}

// === impl ColdFleet ===

impl ColdFleet {
    /// Takes the size of a fleet, or the last requested one if that is larger, every [`AGAIN`]
    /// seconds.
    pub(super) fn renew(
        &mut self,
        now: Timestamp,
        variants: &[&VariantStrides<'_>],
        has_answers: bool,
    ) {
        self.has_answers = has_answers;
        let age = self.since.map(|since| now.duration_since(since).as_secs_f64());
        if age.is_some_and(|age| (0.0..AGAIN).contains(&age)) {
            return;
        }

        let replicas: Replicas = variants.iter().map(|it| it.staying()).sum();
        self.since = Some(now);
        self.replicas = f64::from(replicas.count()).max(self.asked);
        self.asked = 0.0;
    }
}
