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

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, VariantCapacity, amount,
};
use crate::analyze::foresight::gateway::Queued;
use crate::analyze::foresight::policy::ColdStart;
use crate::analyze::foresight::{Analysis, ReplicaStrides, VariantStrides};
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

/// What a fleet needs of which nothing is known but its queues: as many replicas as hold what is in
/// flight, if each holds as much as the fullest now.
pub(super) fn cold_start(
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
    let withheld = Some(SpareWithheld::DemandUnknown);
    let (foreseen, floors) = (BTreeMap::new(), BTreeMap::new());
    let (bridges, cards, estimates) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
    let slowest = BTreeMap::new();
    let spare_withheld = withheld;
    Analysis { report, foreseen, spare_withheld, floors, bridges, cards, estimates, slowest }
}

// === impl Base ===

impl Base {
    /// Takes the size of a fleet, or the last one asked for, if it was last taken a while ago.
    pub(super) fn renew(
        &mut self,
        now: Timestamp,
        variants: &[VariantStrides<'_>],
        has_answers: bool,
    ) {
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
