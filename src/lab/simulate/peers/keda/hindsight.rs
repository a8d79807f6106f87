//! KEDA on the request rate, with the best target in hindsight: the limit of tuning this one
//! setting.
//!
//! # Model
//!
//! As [`keda-rate`](crate::simulate::peers::keda), with one target for all variants. Candidate
//! targets are a factor of 1.25 apart, from 0.2 times the weakest variant's capacity to 1.5 times
//! the strongest's. The result is the highest target that serves 99% of requests within SLO. If no
//! target does, it is the one that served the most of those tried.
//!
//! # Source
//!
//! The search is Plimsoll's own.
//!
//! # Limits
//!
//! The targets are bisected, which assumes that a lower target never serves fewer requests.

use crate::simulate::Micros;
use crate::simulate::peers::goal::{self, GOAL};
use crate::simulate::peers::unplayable::Unplayable;
use crate::simulate::peers::{demand, keda};
use crate::simulate::run::{self, Watch};
use crate::simulate::scaler::MilliValue;
use crate::simulate::scenario::Scenario;
use plimsoll_core::units::Replicas;

/// The lowest target relative to the weakest variant's capacity, and the highest relative to the
/// strongest's.
const LOWEST: f64 = 0.2;
const HIGHEST: f64 = 1.5;

/// The ratio of two adjacent targets.
const STEP: f64 = 1.25;

/// The maximum number of targets.
const TARGETS_MAX: usize = 40;

/// Gives the variants of a scenario KEDA with the best target.
///
/// # Errors
///
/// The requests cannot be known, or an engine's settings are invalid.
pub(crate) fn apply(
    scenario: &mut Scenario,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<(), Unplayable> {
    let targets = targets(scenario, seed)?;
    let mut most_served = 0.0;
    let mut chosen = 0;
    let mut low = 0;
    let mut high = targets.len();
    // Targets below `low` serve enough requests; targets from `high` on do not.
    while low < high && watch.goes_on(Micros::ZERO) {
        let middle = usize::midpoint(low, high);
        let share = attained(scenario, targets[middle], seed, watch)?;
        if share >= GOAL {
            low = middle + 1;
        } else {
            high = middle;
        }
        if share > most_served {
            most_served = share;
            chosen = middle;
        }
    }

    follow(scenario, targets[low.checked_sub(1).unwrap_or(chosen)]);
    Ok(())
}

/// The targets in ascending order, in thousandths of a request per second.
fn targets(scenario: &Scenario, seed: u64) -> Result<Vec<MilliValue>, Unplayable> {
    let mut lowest = f64::INFINITY;
    let mut highest = 0.0_f64;
    for model in 0..scenario.models.len() {
        let mean = demand::mean(&demand::requests(scenario, seed, model)?);
        for (_, rate, _) in demand::cheapest_first(scenario, model, mean) {
            lowest = lowest.min(rate);
            highest = highest.max(rate);
        }
    }

    let mut targets = Vec::new();
    let mut target = LOWEST * lowest;
    while targets.len() < TARGETS_MAX && (targets.is_empty() || target <= HIGHEST * highest) {
        targets.push(milli(target));
        target *= STEP;
    }

    Ok(targets)
}

#[expect(clippy::cast_possible_truncation, reason = "rates are far below the limit")]
fn milli(rate: f64) -> MilliValue {
    MilliValue(((rate * 1000.0).round() as i64).max(1))
}

/// The share of requests that a target serves well.
fn attained(
    scenario: &Scenario,
    target: MilliValue,
    seed: u64,
    watch: &mut impl Watch,
) -> Result<f64, Unplayable> {
    let mut followed = scenario.clone();
    follow(&mut followed, target);
    Ok(goal::attained(&run::run(&followed, seed, watch)?))
}

fn follow(scenario: &mut Scenario, target: MilliValue) {
    for variant in &mut scenario.variants {
        variant.initial = variant.initial.max(Replicas::ONE);
        variant.actuator = keda::on_rate(variant, target);
    }
}
