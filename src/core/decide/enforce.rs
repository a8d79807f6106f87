//! Rules for the speed and the bounds of a change in desired replicas.
//!
//! Each rule is one function from a decision to a decision that appends at most one step. Terms and
//! arithmetic are those of `behavior` in `autoscaling/v2`, so they are familiar from an HPA. A
//! stabilization window takes the most cautious recommendation inside it. A policy limits the
//! change in a period, and `select` picks one of several policies.
//!
//! # The `behavior` of an HPA
//!
//! - Plimsoll's own limits are the section `enforce` of the configuration, with the terms of an
//!   HPA's `behavior`. `enforce/behavior.rs` declares the keys, and the rules below apply them.
//! - The daemon's `collect/cluster/hpa.rs` reads the windows and tolerances of a real HPA's
//!   `behavior`. Only the windows matter to decisions: [`stabilize_before`] subtracts them.
//! - The lab's `simulate/scaler.rs` models an HPA with all of its `behavior`.
//!
//! # Source
//!
//! Kubernetes 1.36, `pkg/controller/podautoscaler/horizontal.go`:
//! `stabilizeRecommendationWithBehaviors`, `calculateScaleUpLimitWithScalingRules`,
//! `calculateScaleDownLimitWithBehaviors`. An HPA starts from `spec.replicas`; Plimsoll starts from
//! the desired replicas that it published last.

mod behavior;
mod burst;
pub(super) mod direction;
mod flapping;
mod history;
pub(super) mod restraint;
mod saved;
mod step;
mod turns;
mod window;

use jiff::Timestamp;

use crate::decide::decision::{Decision, Stage};
use crate::decide::enforce::step::{step, step_or_note};
use crate::decide::reason::Reason;
use crate::observe::AutoscalerWindows;
use crate::units::{Replicas, Seconds};

pub use crate::decide::enforce::behavior::{
    Amount, Behavior, Deference, Dwell, Panic, Rules, Select, StepKeys, StepPolicy, StepType,
};
pub use crate::decide::enforce::burst::panic;
pub use crate::decide::enforce::direction::{PublishedReplicas, ScalingDirection};
pub use crate::decide::enforce::flapping::{dwell, spend_turns};
pub use crate::decide::enforce::history::{Burst, PublishedChange, Recommendation, ScalingHistory};
pub use crate::decide::enforce::restraint::Restraint;
pub use crate::decide::enforce::saved::{CHANGES_MAX, SPANS_MAX, SavedHistory};
pub(crate) use crate::decide::enforce::turns::FLAP_BUDGET_MAX;
pub use crate::decide::enforce::turns::{DirectionTurns, PublishedMove, Swing, TURNS_MAX};
pub use crate::decide::enforce::window::remaining;

// === the rules ===

/// Takes the most cautious recommendation inside these windows, shortened by the time that an HPA
/// waits on its own.
///
/// An HPA takes the most cautious value that it has read in its own window. Each of these values is
/// already the most cautious one in Plimsoll's window. An HPA window that follows a Plimsoll window
/// therefore acts as one window with the sum of both lengths. Plimsoll subtracts the HPA's window
/// from its own, and a change takes effect after the longer of the two. Step policies are not
/// subtracted: of two rate limits the stricter one applies, and they do not add up.
pub fn stabilize_before(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    ours: StabilizationWindows,
    deference: Deference,
    autoscaler: Option<&AutoscalerWindows>,
) -> Decision {
    let hpa = match (deference, autoscaler) {
        (Deference::ToHpa, Some(autoscaler)) => autoscaler,
        (Deference::ToHpa, None) | (Deference::None, _) => {
            return ours.apply(decision, now, in_force, history);
        }
    };

    let left = ours.without(hpa);
    let waited = ours.stabilize(decision.desired(), now, in_force, history);
    let stabilized = left.apply(decision, now, in_force, history);
    let held = stabilized.desired();
    if held != waited {
        let window = if waited > held { hpa.scale_down } else { hpa.scale_up };
        let why = Restraint::LeftToHpa { hpa: hpa.name.clone(), window };
        return step_or_note(stabilized, Stage::Stabilize, held, Reason::Restrained(why));
    }

    stabilized
}

/// Takes the largest recommendation in the short time `jitter`, however long an autoscaler waits
/// afterwards. A value that jitters around a whole number must not change direction every second.
pub fn settle(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    jitter: Seconds,
) -> Decision {
    StabilizationWindows { up: Seconds::ZERO, down: jitter }.apply(decision, now, in_force, history)
}

/// The stabilization windows for both directions.
#[derive(Clone, Copy, Debug)]
pub struct StabilizationWindows {
    /// Before scale-up.
    pub up: Seconds,
    /// Before scale-down.
    pub down: Seconds,
}

impl StabilizationWindows {
    /// Returns the configured windows, which apply unless a decision needs others.
    #[must_use]
    pub fn of(behavior: &Behavior) -> Self {
        Self {
            up: behavior.scale_up.stabilization_window,
            down: behavior.scale_down.stabilization_window,
        }
    }

    /// Returns the rest of these windows after the time that an autoscaler waits on its own.
    fn without(self, theirs: &AutoscalerWindows) -> Self {
        Self {
            up: time_left(self.up, theirs.scale_up),
            down: time_left(self.down, theirs.scale_down),
        }
    }

    /// Returns the most cautious recommendation inside the windows.
    fn stabilize(
        self,
        recommended: Replicas,
        now: Timestamp,
        in_force: Replicas,
        history: &ScalingHistory,
    ) -> Replicas {
        let up = history.recommended_within(now, self.up).fold(recommended, Replicas::min);
        let down = history.recommended_within(now, self.down).fold(recommended, Replicas::max);
        in_force.max(up).min(down)
    }

    fn apply(
        self,
        decision: Decision,
        now: Timestamp,
        in_force: Replicas,
        history: &ScalingHistory,
    ) -> Decision {
        let recommended = decision.desired();
        let stabilized = self.stabilize(recommended, now, in_force, history);
        let window = if recommended < stabilized { self.down } else { self.up };
        step(decision, Stage::Stabilize, stabilized, Reason::Stabilized { window })
    }
}

/// Returns the rest of a window after the time that an autoscaler waits.
fn time_left(ours: Seconds, theirs: Seconds) -> Seconds {
    Seconds::new(ours.seconds() - theirs.seconds()).unwrap_or_default()
}

/// Keeps the change within the limits of the step policies for their periods.
pub fn limit_step(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &ScalingHistory,
    behavior: &Behavior,
) -> Decision {
    let wanted = decision.desired();
    let (direction, rules) = match wanted.cmp(&in_force) {
        std::cmp::Ordering::Equal => return decision,
        std::cmp::Ordering::Greater => (ScalingDirection::Up, &behavior.scale_up),
        std::cmp::Ordering::Less => (ScalingDirection::Down, &behavior.scale_down),
    };

    let Some((limit, period)) = rules.limit(direction, now, in_force, history) else {
        return decision;
    };
    let limited = match direction {
        ScalingDirection::Up => wanted.min(limit.max(in_force)),
        ScalingDirection::Down => wanted.max(limit.min(in_force)),
    };
    step(decision, Stage::StepLimit, limited, Reason::StepLimited { period })
}

/// Keeps the desired replicas within the variant's bounds.
pub fn bound(decision: Decision) -> Decision {
    let wanted = decision.desired();
    let bounds = decision.bounds;
    let bounded = bounds.clamp(wanted);
    let reason =
        if bounded > wanted { Reason::BelowMin(bounded) } else { Reason::AboveMax(bounded) };
    step(decision, Stage::Bounds, bounded, reason)
}

// === impl Rules ===

impl Rules {
    /// Returns the limit for the desired replicas and the period of the policy that sets it. Without
    /// policies there is no limit. A disabled direction has no period.
    fn limit(
        &self,
        direction: ScalingDirection,
        now: Timestamp,
        in_force: Replicas,
        history: &ScalingHistory,
    ) -> Option<(Replicas, Option<Seconds>)> {
        let allowed = self.policies.iter().map(|policy| {
            let start = history.at_period_start(now, in_force, policy.period);
            (policy.amount.from(start, direction), Some(policy.period))
        });

        match (self.select, direction) {
            (Select::Disabled, _) => Some((in_force, None)),
            (Select::Max, ScalingDirection::Up) | (Select::Min, ScalingDirection::Down) => {
                allowed.max_by_key(|(limit, _)| *limit)
            }
            (Select::Min, ScalingDirection::Up) | (Select::Max, ScalingDirection::Down) => {
                allowed.min_by_key(|(limit, _)| *limit)
            }
        }
    }
}
