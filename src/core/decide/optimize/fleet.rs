//! Plans for several models inside limits that they share.
//!
//! Each model is first planned as if it were alone. If the plans do not fit together, the limits
//! decide the part of each model. A model that was cut is planned again with its grant and with all
//! unused capacity: a model without H100s may use A100s. The order is class, then weight, then key.
//! Each model takes its part before the next one is planned, so nothing is granted twice. The
//! result passes the limits once more, so a bug in this module cannot exceed them.

use std::collections::BTreeMap;

use crate::decide::limit::{
    AcceleratorLedger, Grant, Grants, Priority, SupplyLimit, Want, holdings, limit_beside,
};
use crate::decide::optimize::least_cost::{Consent, OptimizerPolicy};
use crate::decide::optimize::model::{Candidate, Few, PlanModel};
use crate::decide::optimize::plan::ModelPlan;
use crate::decide::optimize::rule::plan;
use crate::decide::optimize::sheet::row_of;
use crate::fleet::VariantKey;
use crate::units::Replicas;

/// The plans of all models, and the grants of the limits.
#[must_use]
#[derive(Clone, Debug, PartialEq)]
pub struct FleetPlan {
    /// In the order of the models.
    pub plans: Vec<ModelPlan>,
    /// The grant of each variant, in the order of the plans.
    pub grants: Grants,
    /// The grants for the first plans: the cuts, their limits, and the gain from one more unit.
    pub contended: Grants,
    /// The first plans of the models that were planned again, by their position.
    pub alone: BTreeMap<usize, ModelPlan>,
}

/// A model and its priority.
#[derive(Clone, Debug)]
pub struct Contender<'a> {
    /// The model.
    pub model: PlanModel<'a>,
    /// Its priority among the models.
    pub priority: Priority,
}

/// Plans all models inside the limits, each by the rule of the policy.
pub fn plan_all(
    contenders: &[Contender<'_>],
    limits: &[SupplyLimit],
    policy: &OptimizerPolicy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> FleetPlan {
    let mut plans: Vec<ModelPlan> =
        contenders.iter().map(|it| plan(&it.model, None, policy, check)).collect();
    let mut rows: Vec<Want> = Vec::with_capacity(plans.iter().map(|it| it.placements.len()).sum());
    let mut spans = Vec::with_capacity(plans.len());
    for (contender, plan) in contenders.iter().zip(&plans) {
        let start = rows.len();
        add_wants(&mut rows, contender, plan);
        spans.push(start..rows.len());
    }

    let held_now = holdings(&rows, limits);
    let contended = limit_beside(&rows, limits, held_now.clone());
    let mut again = Vec::new();
    for (position, span) in spans.iter().enumerate() {
        if is_cut(&rows[span.clone()], &contended.grants[span.clone()]) {
            again.push(position);
        }
    }

    if again.is_empty() {
        let grants = contended.clone();
        let alone = BTreeMap::new();
        return FleetPlan { plans, grants, contended, alone };
    }

    again.sort_by(|&a, &b| {
        let one = &contenders[a];
        let other = &contenders[b];
        (other.priority.class.cmp(&one.priority.class))
            .then(other.priority.weight.compare(one.priority.weight))
            .then_with(|| one.model.key.cmp(&other.model.key))
    });

    // The holdings so far. Each variant holds its grant, and the next model can use the part that a
    // model leaves unused in the end.
    let mut ledger = AcceleratorLedger::new(limits);
    for (row, grant) in rows.iter().zip(&contended.grants) {
        ledger.hold(row, held(row, grant));
    }

    let mut alone = BTreeMap::new();
    for position in again {
        let turn = &contenders[position];
        let span = spans[position].clone();
        let own = &mut rows[span.clone()];
        for (row, grant) in own.iter().zip(&contended.grants[span]) {
            ledger.release(row, held(row, grant));
            ledger.hold(row, row.current);
        }

        let inside = plan(&turn.model, ledger.room(own).as_ref(), policy, check);
        alone.insert(position, std::mem::replace(&mut plans[position], inside));
        for (row, placement) in own.iter_mut().zip(&plans[position].placements) {
            row.desired = placement.after;
            ledger.release(row, row.current);
            ledger.hold(row, row.current.max(row.desired));
        }
    }

    let grants = limit_beside(&rows, limits, held_now);
    FleetPlan { plans, grants, contended, alone }
}

/// Returns true if a variant gets less than it wants.
fn is_cut(rows: &[Want], grants: &[Grant]) -> bool {
    rows.iter().zip(grants).any(|(row, grant)| grant.granted < row.desired)
}

/// Returns the replicas that a variant holds once it has its grant.
fn held(row: &Want, grant: &Grant) -> Replicas {
    row.current.max(grant.granted)
}

/// Adds the wants of a plan, in the order of its placements.
fn add_wants(rows: &mut Vec<Want>, contender: &Contender<'_>, plan: &ModelPlan) {
    let PlanModel { key, candidates, sizing, .. } = &contender.model;
    let mut sorted: Few<&Candidate> = candidates.iter().collect();
    sorted.sort_by(|a, b| a.key.cmp(&b.key));

    rows.extend(sorted.into_iter().zip(&plan.placements).enumerate().map(
        |(position, (candidate, placement))| Want {
            key: candidate.key.clone(),
            model: key.clone(),
            priority: contender.priority,
            accelerator: candidate.accelerator.clone(),
            gpus: candidate.gpus,
            cost: candidate.cost,
            size: row_of(sizing, position, &candidate.key).and_then(|row| row.per_replica),
            bounds: candidate.bounds,
            current: candidate.current,
            desired: placement.after,
        },
    ));
}
