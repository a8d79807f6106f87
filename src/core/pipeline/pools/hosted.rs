//! Pools whose models and copies are declared by objects of the cluster, such as the servers of
//! Seldon Core 2.
//!
//! # Model
//!
//! ```text
//! certain  = largest number of copies of a model that only this server can host
//! possible = largest number of copies of a model that this server can host
//! needed   = max(certain, min(possible, replicas), 1), within the server's own bounds
//! ```
//!
//! A model that another server can host as well therefore keeps replicas, and adds none.
//!
//! The objects do not state which replica holds which copy. Bounds take the place of it: with `c`
//! copies of all models, at least `replicas - c` replicas are empty, and at most the copies of each
//! model, or one per removed replica, have to move.
//!
//! # Source
//!
//! Seldon Core 2, "Autoscaling Servers". `docs/decisions.md` lists the differences.

use jiff::Timestamp;

use crate::decide::pools::adapters::{Copies, CopiesSource, PoolNeed, SlotNeed};
use crate::decide::pools::packing::{PackedNeeds, PoolReplicas, lower};
use crate::decide::pools::plan::LayoutPlan;
use crate::decide::pools::pooled::{AdapterState, PoolReason, PoolReport, PoolUncertainty};
use crate::decide::{Reason, Stage, Step};
use crate::observe::Observation;
use crate::observe::hosting::{HostedModel, HostedModels, ModelAssignment};
use crate::pipeline::policy::LISTING_STALE;
use crate::pipeline::pools::policy::AdapterPool;
use crate::pipeline::proposal::{Proposal, ProposalBasis};
use crate::units::{Replicas, Seconds};

/// Returns the models of a server if they are known and recent.
pub(crate) fn recent(now: Timestamp, hosted: Option<&HostedModels>) -> Option<&HostedModels> {
    hosted.filter(|hosted| {
        let age = Seconds::between(hosted.as_of, now);
        age.seconds() <= LISTING_STALE
    })
}

/// Returns the replicas that the copies of the models require, with the report of the pool.
pub(super) fn propose(
    now: Timestamp,
    packed: &mut PackedNeeds,
    policy: &AdapterPool,
    observation: &Observation,
    hosted: &HostedModels,
    in_force: Option<Replicas>,
) -> (Proposal, PoolReport) {
    let before = observation.wanted.unwrap_or_default();
    let asked = in_force.unwrap_or(before);
    let certain = most(&hosted.models, |model| model.assignment == ModelAssignment::Certain);
    let possible = most(&hosted.models, |_| true);
    let certain_copies = certain.map_or(Replicas::ZERO, |model| model.copies);
    let possible_copies = possible.map_or(Replicas::ZERO, |model| model.copies);
    let kept = possible_copies.min(asked);
    let bounds = hosted.bounds.unwrap_or_default();
    let needed = bounds.clamp(certain_copies.max(kept).max(Replicas::ONE));

    let is_unsure = kept == asked && kept > certain_copies;
    let unsure = possible.filter(|_| is_unsure).map(|model| PoolUncertainty::Unassigned {
        model: model.name.clone(),
        copies: model.copies,
    });
    let most = if kept > certain_copies { possible } else { certain };
    let need = PoolNeed {
        copies: most.filter(|it| it.copies > Replicas::ZERO).map(|it| (it.name.clone(), it.copies)),
        slots: SlotNeed::Uncounted,
        load: Some(Replicas::ZERO),
    };

    let going = asked.beyond(needed);
    let present = PoolReplicas {
        asked,
        empty: asked.beyond(hosted.models.iter().map(|model| model.copies).sum()),
        moving: moving(observation, asked),
        moved: hosted.models.iter().map(|model| model.copies.min(going)).sum(),
    };
    let lowering = lower(now, packed, needed, present, &policy.packing);
    let report = report(hosted, &need, needed, observation);
    let after = lowering.replicas();
    let reason = Reason::Pool(Box::new(PoolReason { need, lowering, unsure }));
    let steps = vec![Step { stage: Stage::Pool, before, after, reason }];
    let basis = ProposalBasis::Copies;
    (Proposal { before, steps, basis, admissible: None, sizing: None }, report)
}

/// Returns the model with the most copies; of several, the first by name.
fn most(models: &[HostedModel], counts: impl Fn(&HostedModel) -> bool) -> Option<&HostedModel> {
    models
        .iter()
        .filter(|model| counts(model))
        .min_by_key(|model| (std::cmp::Reverse(model.copies), &model.name))
}

/// Replicas that are requested and do not exist, or that are leaving.
fn moving(observation: &Observation, in_force: Replicas) -> Replicas {
    let current = observation.current.unwrap_or_default();
    let wanted = observation.wanted.unwrap_or_default();
    observation.leaving(in_force).max(wanted.beyond(current))
}

fn report(
    hosted: &HostedModels,
    need: &PoolNeed,
    needed: Replicas,
    observation: &Observation,
) -> PoolReport {
    let adapters = hosted.models.iter().map(|model| AdapterState {
        copies: Copies {
            adapter: model.name.clone(),
            wanted: model.copies,
            source: CopiesSource::Declared(model.copies),
        },
        arriving: None,
        hosts: Replicas::ZERO,
        starved: Replicas::ZERO,
    });

    PoolReport {
        slots: None,
        adapters: adapters.collect(),
        replicas: Vec::new(),
        need: need.clone(),
        unmet: needed.beyond(observation.bounds.clamp(needed)),
        plan: LayoutPlan::default(),
        places: std::collections::BTreeMap::new(),
        departures: Vec::new(),
    }
}

#[cfg(test)]
mod tests;
