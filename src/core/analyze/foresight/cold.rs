//! A fleet of which nothing is known but its queues.
//!
//! # Model
//!
//! ```text
//! need = min(m * requests in flight / those that the fullest replica runs, 4 * replicas)
//! ```
//!
//! in replicas, where `replicas` are those that were asked for a quarter of a minute ago, and `m` is
//! 1.3, or 2 while no ten answers have ended. Until then requests in flight are only those that came
//! since the load began. Of a time of unknown scale that has lasted `t` the median is `2 t`, and so
//! twice as many will be in flight.
//!
//! This is too much while the fullest replica is not full, such as in the first seconds of a burst.
//! So a fleet may take four times its size at once, and must see requests wait for a quarter of a
//! minute before it takes four times that. Once answers have ended, what waits is a queue that new
//! replicas work off, and `replicas` are those that are measured.
//!
//! # Source
//!
//! Gott, *Implications of the Copernican principle for our future prospects* (1993): the prior of a
//! time of unknown scale, and its median.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::analyze::capacity::{CapacityReport, Confidence, Totals, Unit, VariantCapacity, amount};
use crate::analyze::foresight::gateway::Queued;
use crate::analyze::foresight::policy::{ColdStart, Policy};
use crate::analyze::foresight::seen::Seen;
use crate::analyze::foresight::{Analysis, Foresight, ReplicaStrides, VariantStrides};
use crate::fleet::ModelKey;
use crate::units::{Replicas, Requests};

/// Seconds after which a fleet may grow again by as much.
const AGAIN: f64 = 15.0;

/// The size of a fleet, by which its growth is bounded.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Base {
    since: Option<Timestamp>,
    replicas: f64,
    /// Replicas that were last asked for.
    asked: f64,
    /// Whether enough answers have ended to know how long they are.
    has_answers: bool,
}

// === impl Foresight ===

impl Foresight {
    /// What a model needs of which nothing is known but its queues.
    pub(super) fn start_cold(
        &mut self,
        now: Timestamp,
        policy: &Policy,
        model: &ModelKey,
        variants: &[VariantStrides<'_>],
        queued: Option<Queued>,
    ) -> Analysis {
        // Engines that do not say how long outputs take never teach anything: what sizes them
        // meanwhile does so for good, and must not be interrupted.
        let seen = |it: &VariantStrides<'_>| self.variants.get(&it.spec.key);
        let teaches = variants.iter().filter_map(seen).any(Seen::counts_time);
        let policy = policy.cold_start.as_ref().filter(|_| teaches);
        let has_answers = self.has_answers(model);
        let base = self.cold.entry(model.clone()).or_default();
        base.renew(now, variants, has_answers);
        cold_start(policy, variants, queued, base)
    }

    /// Whether enough answers of a model have ended to know how long they are.
    fn has_answers(&self, model: &ModelKey) -> bool {
        self.demands.iter().any(|((of, _), it)| of == model && it.lengths.telling().is_some())
    }
}

/// What a fleet needs of which nothing is known but its queues: as many replicas as hold what is in
/// flight, if each holds as much as the fullest now.
fn cold_start(
    policy: Option<&ColdStart>,
    variants: &[VariantStrides<'_>],
    queued: Option<Queued>,
    base: &mut Base,
) -> Analysis {
    let replicas = || variants.iter().flat_map(|variant| &variant.replicas);
    let sum = |of: fn(&ReplicaStrides<'_>) -> Option<Requests>| -> f64 {
        replicas().filter_map(of).map(Requests::requests).sum()
    };
    let queued = queued.map_or(0.0, |queued| queued.requests.requests());
    let (waiting, running) = (sum(|it| it.waiting) + queued, sum(|it| it.running));
    let count = replicas().count() as f64;
    let fullest = replicas().filter_map(|it| it.running).map(Requests::requests);
    let fullest = fullest.fold(0.0, f64::max);
    let overruns = |it: &&ColdStart| waiting > it.waiting.requests() * count;
    let overrun = policy.filter(|_| count > 0.0 && fullest >= 1.0).filter(overruns);
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
        let margin = if base.has_answers { *margin } else { (*margin).max(*unended) };
        let size = if base.has_answers { count } else { base.replicas };
        let most = times.fraction() * size * fullest;
        let wanted = (margin.fraction() * (running + waiting)).min(most);
        base.asked = wanted / fullest;
        total.demand = amount(wanted);
        total.required = amount(wanted - total.anticipated.amount());
    }
    let report = CapacityReport {
        unit: Unit::RequestsInFlight,
        variants: capacities,
        total,
        roles: BTreeMap::new(),
    };
    Analysis::without_capacity(report)
}

// === impl Base ===

impl Base {
    /// Takes the size of a fleet, or the last one asked for, if it was last taken a while ago.
    fn renew(&mut self, now: Timestamp, variants: &[VariantStrides<'_>], has_answers: bool) {
        self.has_answers = has_answers;
        let age = self.since.map(|since| now.duration_since(since).as_secs_f64());
        if age.is_some_and(|age| (0.0..AGAIN).contains(&age)) {
            return;
        }

        let replicas: Replicas = variants.iter().map(VariantStrides::staying).sum();
        self.since = Some(now);
        self.replicas = f64::from(replicas.count()).max(self.asked);
        self.asked = 0.0;
    }
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// Replicas that are there or will be, and stay.
    pub(super) fn staying(&self) -> Replicas {
        self.current.beyond(self.leaving)
    }
}
