//! Several models, inside limits that they share.
//!
//! Each model is planned as if it were alone. Where what all of them want does not fit, the limits
//! say who gets what, and whoever was cut is planned again in what it was given and what nobody
//! took: a model without H100s may do with A100s. That goes by class, then weight, then key, and
//! each takes what it uses before the next is planned, so nothing is given twice. What comes out
//! goes through the limits once more, so that no mistake here can exceed them.

use std::collections::BTreeMap;

use crate::decide::limit::{Grant, Grants, Ledger, Limit, Priority, Want, limit};
use crate::decide::optimize::sheet::row_of;
use crate::decide::optimize::{Candidate, Consent, Few, Model, Plan, Policy, plan};
use crate::fleet::VariantKey;
use crate::units::Replicas;

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

/// Plans all models inside the limits, each by the rule of the policy.
pub fn plan_all(
    contenders: &[Contender<'_>],
    limits: &[Limit],
    policy: &Policy,
    check: &dyn Fn(&VariantKey, Replicas) -> Consent,
) -> FleetPlan {
    let mut plans: Vec<Plan> =
        contenders.iter().map(|it| plan(&it.model, None, policy, check)).collect();
    let mut rows: Vec<Want> = Vec::with_capacity(plans.iter().map(|it| it.placements.len()).sum());
    let mut spans = Vec::with_capacity(plans.len());
    for (contender, plan) in contenders.iter().zip(&plans) {
        let start = rows.len();
        add_wants(&mut rows, contender, plan);
        spans.push(start..rows.len());
    }
    let contended = limit(&rows, limits);
    let is_cut = |position: &usize| {
        let span = spans[*position].clone();
        let mut own = rows[span.clone()].iter().zip(&contended.grants[span]);
        own.any(|(row, grant)| grant.granted < row.desired)
    };
    let mut again: Vec<usize> = (0..plans.len()).filter(is_cut).collect();
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
    let granted = |(row, grant): (&Want, &Grant)| row.current.max(grant.granted);
    let mut ledger = Ledger::new(limits);
    for held in rows.iter().zip(&contended.grants) {
        ledger.hold(held.0, granted(held));
    }
    let mut alone = BTreeMap::new();
    for position in again {
        let (turn, span) = (&contenders[position], spans[position].clone());
        let own = &mut rows[span.clone()];
        for held in own.iter().zip(&contended.grants[span]) {
            ledger.release(held.0, granted(held));
            ledger.hold(held.0, held.0.current);
        }
        let inside = plan(&turn.model, ledger.room(own).as_ref(), policy, check);
        alone.insert(position, std::mem::replace(&mut plans[position], inside));
        for (row, placement) in own.iter_mut().zip(&plans[position].placements) {
            row.desired = placement.after;
            ledger.release(row, row.current);
            ledger.hold(row, row.current.max(row.desired));
        }
    }
    let grants = limit(&rows, limits);
    FleetPlan { plans, grants, contended, alone }
}

/// Adds what a plan wants, in the order of its placements.
fn add_wants(rows: &mut Vec<Want>, contender: &Contender<'_>, plan: &Plan) {
    let Model { key, candidates, sizing, .. } = &contender.model;
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
