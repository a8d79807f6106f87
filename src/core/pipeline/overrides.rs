//! Overrides: pins and pauses of single variants.
//!
//! They apply after every rule for the load and its speed, and before bounds and limits. So a
//! pinned variant still keeps to its minimum, its maximum, and every quota. While data is missing,
//! a pin may raise desired replicas and never lowers them, and the number expires as usual.
//!
//! Nothing else changes: windows go on remembering what the load recommends. Once an override has
//! ended, the number follows the load again by the usual rules.

use crate::decide::{Basis, Decision, Reason, Stage, Step};
use crate::observe::overrides::{Order, Override};
use crate::pipeline::tick::Tick;

/// Applies the override of each variant that has one.
pub(crate) fn run(tick: &Tick<'_>, decisions: Vec<Decision>) -> Vec<Decision> {
    decisions.into_iter().map(|decision| overridden(tick, decision)).collect()
}

fn overridden(tick: &Tick<'_>, mut decision: Decision) -> Decision {
    let known = tick.inputs.overrides.get(&decision.variant);
    let Some(order) = known.filter(|known| known.is_in_effect(tick.now)) else { return decision };

    let Override { order, until, by } = *order;
    let before = decision.desired();
    let in_force = tick.in_force.get(&decision.variant).map(|it| it.desired);
    let (after, reason) = match order {
        Order::Pin(replicas) => {
            let least = in_force.filter(|_| decision.basis == Basis::Held).unwrap_or_default();
            (replicas.max(least), Reason::Pinned { replicas, until, by })
        }
        Order::Pause => (in_force.unwrap_or(before), Reason::Paused { until, by }),
    };

    decision.steps.push(Step { stage: Stage::Override, before, after, reason });
    decision
}
