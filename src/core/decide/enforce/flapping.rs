//! Limits on changes of direction: the dwell time after a change, and the flap budget per hour.
//!
//! Windows and step policies bound the speed of a change in one direction. Neither limits how often
//! the direction changes. A load that swings at the rhythm of the windows would start and stop the
//! same replicas forever. Each start of a large model occupies an accelerator for minutes without
//! serving a request.

use jiff::Timestamp;

use crate::decide::decision::{Decision, Stage};
use crate::decide::enforce::behavior::Dwell;
use crate::decide::enforce::direction::{PublishedReplicas, ScalingDirection};
use crate::decide::enforce::history::ScalingHistory;
use crate::decide::enforce::restraint::Restraint;
use crate::decide::enforce::step::step;
use crate::decide::enforce::turns::HOUR;
use crate::decide::enforce::window::remaining;
use crate::decide::reason::Reason;
use crate::units::Replicas;

/// Blocks a change that would reverse a recent change.
pub fn dwell(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    dwell: Dwell,
) -> Decision {
    let wanted = PublishedReplicas { before: in_force, after: decision.desired() };
    let (Some(direction), Some(last)) = (wanted.direction(), history.turns.last()) else {
        return decision;
    };

    let time = match last.direction {
        ScalingDirection::Up => dwell.after_up,
        ScalingDirection::Down => dwell.after_down,
    };
    if last.direction == direction || last.at > now {
        return decision;
    }
    match remaining(now, last.at, time) {
        Some(remaining) => {
            let why = Restraint::Dwelling { direction, remaining };
            step(decision, Stage::Dwell, in_force, Reason::Restrained(why))
        }
        None => decision,
    }
}

/// Blocks scale-down while the flap budget of the last hour is spent. Scale-up is always allowed.
pub fn spend_turns(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    flap_budget: u32,
) -> Decision {
    if decision.desired() >= in_force {
        return decision;
    }

    let budget = usize::try_from(flap_budget).unwrap_or(usize::MAX);
    let turns: Vec<Timestamp> = history.turns.within_hour(now).collect();
    // The direction change whose expiry leaves one fewer than the budget.
    let Some(frees) = turns.len().checked_sub(budget).and_then(|at| turns.get(at)) else {
        return decision;
    };

    let refills_in = remaining(now, *frees, HOUR).unwrap_or_default();
    let turned = u32::try_from(turns.len()).unwrap_or(u32::MAX);
    let why = Restraint::FlapBudgetSpent { turned, refills_in };
    step(decision, Stage::FlapBudget, in_force, Reason::Restrained(why))
}
