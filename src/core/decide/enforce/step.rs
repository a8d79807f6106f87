//! The step that a rule appends to a decision.

use crate::decide::decision::{Decision, Stage, Step};
use crate::decide::reason::Reason;
use crate::units::Replicas;

/// Appends a step if the value changes.
pub(super) fn step(decision: Decision, stage: Stage, after: Replicas, reason: Reason) -> Decision {
    if decision.desired() == after {
        return decision;
    }
    step_or_note(decision, stage, after, reason)
}

/// Like [`step`], but also appends a step if the value stays.
pub(super) fn step_or_note(
    mut decision: Decision,
    stage: Stage,
    after: Replicas,
    reason: Reason,
) -> Decision {
    let before = decision.desired();
    decision.steps.push(Step { stage, before, after, reason });
    decision
}
