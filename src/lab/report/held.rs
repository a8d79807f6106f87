//! The steps that keep desired replicas from what the load asks for.

use plimsoll_core::decide::{ReasonCode, Stage, Step};

/// The direction in which a number is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum HeldDirection {
    /// There are more replicas than the load asks for.
    Higher,
    /// There are fewer.
    Lower,
    /// The number stays, and the load is not known.
    Unchanged,
}

/// The reason and the direction, if a step keeps the number from what the load asks for.
pub(crate) fn by(step: &Step) -> Option<(ReasonCode, HeldDirection)> {
    let code = step.reason.code();
    let kept = match (step.stage, step.after.cmp(&step.before)) {
        (Stage::Analyze | Stage::Share | Stage::Bridge | Stage::Pool, _) => waits(code)?,
        (Stage::Hold, _) => HeldDirection::Unchanged,
        (_, std::cmp::Ordering::Greater) => HeldDirection::Higher,
        (_, std::cmp::Ordering::Less) => HeldDirection::Lower,
        (_, std::cmp::Ordering::Equal) => return None,
    };

    Some((code, kept))
}

/// The direction for reasons of the analysis that keep a number for a time.
const fn waits(code: ReasonCode) -> Option<HeldDirection> {
    match code {
        ReasonCode::CapacityRefused
        | ReasonCode::CapacityServing
        | ReasonCode::PoolUnsure
        | ReasonCode::PoolWaiting => Some(HeldDirection::Higher),
        ReasonCode::Transition | ReasonCode::Unmeasured => Some(HeldDirection::Unchanged),
        _ => None,
    }
}
