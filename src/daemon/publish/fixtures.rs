//! Decided variants that several unit tests of this folder share.

use crate::fixtures;
use crate::publish::PublishedVariant;
use plimsoll_core::analyze::ballot::BallotVerdict;
use plimsoll_core::decide::optimize::PlanMethod;
use plimsoll_core::decide::sized::{Shortfall, SizingValues};
use plimsoll_core::decide::{Basis, Step};
use plimsoll_core::observe::Observation;
use plimsoll_core::units::{CostPerHour, Replicas};

/// A variant of four replicas whose decision has these steps.
pub(crate) fn decided(basis: Basis, steps: Vec<Step>) -> PublishedVariant {
    let mut spec = fixtures::variant("llama");
    spec.cost = CostPerHour::new(2.5).unwrap();
    let current = Some(Replicas::saturating(4));

    let mut decided = fixtures::decided(&spec, basis, steps);
    decided.decision.current = current;
    let observation = Observation { current, ..Observation::of_nothing(spec.bounds) };

    PublishedVariant { spec, observation, report: None, decided: Some(decided), undecided: None }
}

/// A sizing without capacity, forecast or findings.
pub(crate) const fn sizing() -> SizingValues {
    SizingValues {
        verdict: BallotVerdict::Held,
        method: PlanMethod::Exact { steps: 1 },
        stuck: Replicas::ZERO,
        unplaced: Replicas::ZERO,
        asleep: Replicas::ZERO,
        absent: Vec::new(),
        short: Shortfall::None,
        rank: None,
        foreseen: None,
        card: None,
        carries: None,
        slowest: None,
        starving: None,
    }
}
