//! A fleet of which nothing is known but its queues.

use std::collections::BTreeMap;

use crate::analyze::capacity::{
    CapacityReport, Confidence, SpareWithheld, Totals, Unit, VariantCapacity, amount,
};
use crate::analyze::foresight::gateway::Queued;
use crate::analyze::foresight::policy::ColdStart;
use crate::analyze::foresight::{Analysis, ReplicaStrides, VariantStrides};
use crate::units::{Replicas, Requests};

/// What a fleet needs of which nothing is known but its queues: as many replicas as hold what is in
/// flight, if each holds as much as the fullest now.
pub(super) fn cold_start(
    policy: Option<&ColdStart>,
    variants: &[VariantStrides<'_>],
    queued: Option<Queued>,
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
    if let Some(ColdStart { margin, times, .. }) = overrun {
        let most = times.fraction() * count * fullest;
        let wanted = (margin.fraction() * (running + waiting)).min(most);
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
    Analysis { report, foreseen, spare_withheld: withheld, floors, bridges, cards, estimates }
}

// === impl VariantStrides ===

impl VariantStrides<'_> {
    /// Replicas that are there or will be, and stay.
    pub(super) fn staying(&self) -> Replicas {
        self.current.beyond(self.leaving)
    }
}
