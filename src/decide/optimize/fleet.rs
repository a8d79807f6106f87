//! Several models at the least cost, inside limits that they share.
//!
//! Each model is planned as if it were alone. Where what all of them want does not fit, the limits
//! say who gets what, and whoever was cut is planned again in what it was given and what nobody
//! took: a model without H100s may do with A100s. That goes by class, then weight, then key, and
//! each takes what it uses before the next is planned, so nothing is given twice. What comes out
//! goes through the limits once more, so that no mistake here can exceed them.

use std::collections::BTreeMap;

use crate::decide::limit::{Grants, Ledger, Limit, Priority, Sharing, Want, limit};
use crate::decide::optimize::{Consent, Model, Plan, Policy, least_cost};
use crate::fleet::VariantKey;
use crate::units::{Amount, Replicas};

/// Plans of all models, and what the limits say of them.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPlan {
    /// In the order of the models.
    pub plans: Vec<Plan>,
    /// What each variant of these plans gets, in the order of the plans.
    pub grants: Grants,
    /// What the limits said of the first plans: who was cut, by what, and what one more would buy.
    pub contended: Grants,
    /// The first plans of those that were planned again, by their position.
    pub alone: BTreeMap<usize, Plan>,
}

/// One model with its place beside others.
#[derive(Clone, Debug)]
pub struct Contender<'a> {
    /// The model.
    pub model: Model<'a>,
    /// How it stands beside others.
    pub priority: Priority,
}

/// Plans all models at the least cost inside the limits.
pub fn least_cost_of_all(
    contenders: &[Contender<'_>],
    limits: &[Limit],
    policy: &Policy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> FleetPlan {
    let mut plans: Vec<Plan> =
        contenders.iter().map(|it| least_cost(&it.model, None, policy, check)).collect();
    let rows = |plans: &[Plan]| -> Vec<Want> {
        contenders.iter().zip(plans).flat_map(|(contender, plan)| wants(contender, plan)).collect()
    };
    let contended = limit(&rows(&plans), limits, Sharing::MaxMin);
    let given: BTreeMap<&VariantKey, Replicas> =
        contended.grants.iter().map(|grant| (&grant.key, grant.granted)).collect();
    let is_cut = |position: usize| {
        plans[position].placements.iter().any(|it| given.get(&it.key) < Some(&it.after))
    };
    let mut again: Vec<usize> = (0..plans.len()).filter(|&position| is_cut(position)).collect();
    if again.is_empty() {
        let (grants, alone) = (contended.clone(), BTreeMap::new());
        return FleetPlan { plans, grants, contended, alone };
    }
    again.sort_by(|&a, &b| {
        let (one, other) = (&contenders[a], &contenders[b]);
        (other.priority.class.cmp(&one.priority.class))
            .then(other.priority.weight.compare(one.priority.weight))
            .then_with(|| one.model.key.cmp(&other.model.key))
    });
    // What is held so far: of everybody what was granted, so that what a model does not use in the
    // end is there for the next.
    let granted = |row: &Want| row.current.max(given.get(&row.key).copied().unwrap_or_default());
    let mut ledger = Ledger::new(limits);
    for row in rows(&plans) {
        ledger.hold(&row, granted(&row));
    }
    let mut alone = BTreeMap::new();
    for position in again {
        let turn = &contenders[position];
        let own = wants(turn, &plans[position]);
        for row in &own {
            ledger.release(row, granted(row));
            ledger.hold(row, row.current);
        }
        let inside = least_cost(&turn.model, ledger.room(&own).as_ref(), policy, check);
        alone.insert(position, std::mem::replace(&mut plans[position], inside));
        for row in wants(turn, &plans[position]) {
            ledger.release(&row, row.current);
            ledger.hold(&row, row.current.max(row.desired));
        }
    }
    let grants = limit(&rows(&plans), limits, Sharing::MaxMin);
    FleetPlan { plans, grants, contended, alone }
}

/// What a plan wants.
fn wants(contender: &Contender<'_>, plan: &Plan) -> Vec<Want> {
    let sizes = |key: &VariantKey| -> Option<Amount> {
        let rows = &contender.model.sizing.variants;
        rows.iter().find(|row| row.key == *key).and_then(|row| row.per_replica)
    };
    let mut candidates: Vec<_> = contender.model.candidates.iter().collect();
    candidates.sort_by(|a, b| a.key.cmp(&b.key));
    candidates
        .into_iter()
        .zip(&plan.placements)
        .map(|(candidate, placement)| Want {
            key: candidate.key.clone(),
            model: contender.model.key.clone(),
            priority: contender.priority,
            accelerator: candidate.accelerator.clone(),
            gpus: candidate.gpus,
            cost: candidate.cost,
            size: sizes(&candidate.key),
            bounds: candidate.bounds,
            current: candidate.current,
            desired: placement.after,
        })
        .collect()
}
