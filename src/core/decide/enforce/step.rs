//! The step that a rule appends to a decision.

use crate::decide::decision::{Decision, Stage, Step};
use crate::decide::reason::Reason;
use crate::units::Replicas;

/// Appends a step if the value changes.
pub(super) fn step(
    mut decision: Decision,
    stage: Stage,
    after: Replicas,
    reason: Reason,
) -> Decision {
    let before = decision.desired();
    if before != after {
        decision.steps.push(Step { stage, before, after, reason });
    }
    decision
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
