//! WVA's enforcer and its scale-from-zero engine.
//!
//! An idle model goes to zero even while its load asks for more, idle means that no request has
//! finished, and a variant with a minimum leaves all targets as they are. Every variant without
//! replicas wakes for queued requests, whatever the others do.

use std::cmp::Ordering;

use plimsoll::decide::zero::{FrontQueue, ZeroPolicy, ZeroVariant};
use plimsoll::fleet::VariantKey;
use plimsoll::units::{CostPerHour, Replicas, Requests};

/// The cost of a variant whose cost is not above zero.
const COST: f64 = 10.0;

/// The targets of a model, and their reason.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settled {
    /// A target for each candidate, in their order.
    pub(crate) targets: Vec<Replicas>,
    pub(crate) outcome: Outcome,
}

/// The reason of a model's targets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// They stay, and no request count was asked for.
    Unchanged,
    /// They stay, because requests finished or could not be counted.
    NotIdle,
    /// They are zero.
    ToZero,
    /// The cheapest variant keeps one replica.
    KeptOne,
}

/// Settles the targets of all variants of a model of which so many requests finished; `None` when
/// they could not be counted.
pub(crate) fn settle(
    policy: ZeroPolicy,
    finished: Option<Requests>,
    candidates: &[ZeroVariant],
) -> Settled {
    let targets: Vec<Replicas> = candidates.iter().map(|candidate| candidate.target).collect();
    if candidates.iter().any(|candidate| candidate.bounds.min() > Replicas::ZERO) {
        return Settled { targets, outcome: Outcome::Unchanged };
    }

    match policy {
        ZeroPolicy::KeepOne if targets.iter().all(|target| *target == Replicas::ZERO) => {
            keep_one(targets, candidates)
        }
        ZeroPolicy::KeepOne => Settled { targets, outcome: Outcome::Unchanged },
        ZeroPolicy::AfterIdle(_) if finished == Some(Requests::ZERO) => {
            Settled { targets: vec![Replicas::ZERO; targets.len()], outcome: Outcome::ToZero }
        }
        ZeroPolicy::AfterIdle(_) => Settled { targets, outcome: Outcome::NotIdle },
    }
}

/// Gives one replica to the cheapest variant.
fn keep_one(mut targets: Vec<Replicas>, candidates: &[ZeroVariant]) -> Settled {
    let cheapest = (0..candidates.len()).min_by(|a, b| cheaper(&candidates[*a], &candidates[*b]));
    let Some(cheapest) = cheapest else {
        return Settled { targets, outcome: Outcome::Unchanged };
    };
    targets[cheapest] = Replicas::ONE;
    Settled { targets, outcome: Outcome::KeptOne }
}

/// The variants that wake for queued requests, the cheapest first.
pub(crate) fn wake(in_front: FrontQueue, candidates: &[ZeroVariant]) -> Vec<VariantKey> {
    match in_front {
        FrontQueue::Queued(queued) if queued > Requests::ZERO => {}
        FrontQueue::Queued(_) | FrontQueue::NoQueue | FrontQueue::Unknown => return Vec::new(),
    }

    let mut asleep: Vec<&ZeroVariant> =
        candidates.iter().filter(|it| it.current == Some(Replicas::ZERO)).collect();
    asleep.sort_by(|a, b| cheaper(a, b));
    asleep.into_iter().map(|it| it.variant.clone()).collect()
}

/// The cheaper variant first; of two that cost the same the one whose name comes first.
fn cheaper(a: &ZeroVariant, b: &ZeroVariant) -> Ordering {
    let cost = |candidate: &ZeroVariant| {
        let stated = candidate.cost.filter(|cost| *cost > CostPerHour::ZERO);
        stated.map_or(COST, CostPerHour::per_hour)
    };
    cost(a).total_cmp(&cost(b)).then_with(|| a.variant.cmp(&b.variant))
}
