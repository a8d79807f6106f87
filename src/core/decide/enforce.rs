//! Rules for the speed and the bounds of a change in desired replicas.
//!
//! Each rule is one function from a decision to a decision that appends at most one step. Terms and
//! arithmetic are those of `behavior` in `autoscaling/v2`, so they are familiar from an HPA. A
//! stabilization window takes the most cautious recommendation inside it. A policy limits the
//! change in a period, and `select` picks one of several policies.
//!
//! # Source
//!
//! Kubernetes 1.36, `pkg/controller/podautoscaler/horizontal.go`:
//! `stabilizeRecommendationWithBehaviors`, `calculateScaleUpLimitWithScalingRules`,
//! `calculateScaleDownLimitWithBehaviors`. An HPA starts from `spec.replicas`; Plimsoll starts from
//! the desired replicas that it published last.

mod behavior;
mod burst;
mod restraint;
mod saved;
mod turns;

use std::collections::VecDeque;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::policy::JITTER_MAX;
use crate::decide::{Decision, Reason, Stage, Step};
use crate::observe::AutoscalerWindows;
use crate::units::{Replicas, Seconds};

pub use crate::decide::enforce::behavior::{
    Behavior, Deference, Rules, Select, StepKeys, StepPolicy, StepType,
};
pub use crate::decide::enforce::burst::{Burst, Panic, panic};
pub use crate::decide::enforce::restraint::Restraint;
pub use crate::decide::enforce::saved::{CHANGES_MAX, SPANS_MAX, SavedHistory};
pub use crate::decide::enforce::turns::{
    DirectionTurns, Dwell, PublishedMove, TURNS_MAX, dwell, spend_turns,
};

/// Maximum number of recommendations, and of changes, in a history. With a tick per second it
/// covers the longest window that an HPA allows (3600 s). With faster ticks, the oldest entries are
/// dropped first.
const HISTORY_MAX: usize = 4096;

/// An amount of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of replicas.
    Pods(u32),
    /// A percentage of the replicas at the start of the period.
    Percent(u32),
}

/// The recommendations for a variant, and the changes of its published desired replicas.
#[derive(Clone, Debug, Default)]
pub struct ScalingHistory {
    recommendations: VecDeque<Recommendation>,
    changes: VecDeque<PublishedChange>,
    turns: DirectionTurns,
    burst: Option<Burst>,
    /// The last time that the history was written.
    latest: Option<Timestamp>,
}

/// A value that was recommended at each tick between two instants, both included. A recommendation
/// usually equals the previous one, so a window of five minutes rarely needs 300 entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The first time that it was recommended.
    #[serde(with = "crate::units::instants")]
    pub first: Timestamp,
    /// The last time that it was recommended.
    #[serde(with = "crate::units::instants")]
    pub last: Timestamp,
    /// The recommended replicas.
    pub replicas: Replicas,
}

/// A change in the published desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PublishedChange {
    /// The instant of the change.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The desired replicas before the change.
    pub before: Replicas,
}

/// The direction of a change in desired replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ScalingDirection {
    /// To more replicas.
    Up,
    /// To fewer replicas.
    Down,
}

// === impl ScalingHistory ===

impl ScalingHistory {
    /// Creates a history that starts at `now`, as if the desired replicas in effect had just been
    /// recommended. Nothing scales down before the first window is complete.
    #[must_use]
    pub fn starting(now: Timestamp, in_force: Replicas) -> Self {
        let recommended = Recommendation { first: now, last: now, replicas: in_force };
        let latest = Some(now);
        Self { recommendations: VecDeque::from([recommended]), latest, ..Self::default() }
    }

    /// Restarts with the desired replicas in effect, after a gap for which no recommendation is
    /// known. Direction changes are kept.
    pub fn begin_anew(&mut self, now: Timestamp, in_force: Replicas) {
        let turns = std::mem::take(&mut self.turns);
        *self = Self { turns, ..Self::starting(now, in_force) };
    }

    /// Adds this tick's recommendation and the values published for it. Drops entries that no rule
    /// of `behavior` reads.
    pub fn record(
        &mut self,
        now: Timestamp,
        recommended: Replicas,
        published: PublishedReplicas,
        behavior: &Behavior,
    ) {
        if self.recommendations.back().is_some_and(|latest| latest.last > now) {
            // The clock went back, so the ages are unknown; restart with the value in effect.
            self.begin_anew(now, published.before);
        }

        if let Some(panic) = behavior.panic {
            self.burst = self.burst(now, recommended, panic);
        }

        match self.recommendations.back_mut() {
            Some(latest) if latest.replicas == recommended => latest.last = now,
            Some(_) | None => self.recommendations.push_back(Recommendation {
                first: now,
                last: now,
                replicas: recommended,
            }),
        }

        if published.before != published.after {
            self.changes.push_back(PublishedChange { at: now, before: published.before });
        }

        self.turns.note(now, published, behavior.flap_budget);
        self.latest = Some(now);

        let longest = behavior.longest_window();
        while self.recommendations.len() > HISTORY_MAX
            || self.recommendations.front().is_some_and(|it| !within(now, it.last, longest))
        {
            self.recommendations.pop_front();
        }

        let longest = behavior.longest_period();
        while self.changes.len() > HISTORY_MAX
            || self.changes.front().is_some_and(|change| !within(now, change.at, longest))
        {
            self.changes.pop_front();
        }
    }

    fn recommended_within(
        &self,
        now: Timestamp,
        window: Seconds,
    ) -> impl Iterator<Item = Replicas> + '_ {
        self.recommendations
            .iter()
            .filter(move |it| it.first <= now && within(now, it.last.min(now), window))
            .map(|it| it.replicas)
    }

    /// The published desired replicas at the start of a period that ends at `now`.
    fn at_period_start(&self, now: Timestamp, published: Replicas, period: Seconds) -> Replicas {
        self.changes
            .iter()
            .find(|change| within(now, change.at, period))
            .map_or(published, |change| change.before)
    }
}

/// The published desired replicas before and after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedReplicas {
    /// In effect until this tick.
    pub before: Replicas,
    /// In effect from this tick on.
    pub after: Replicas,
}

impl PublishedReplicas {
    /// Returns the direction of the change; `None` if the value did not change.
    #[must_use]
    pub fn direction(self) -> Option<ScalingDirection> {
        match self.after.cmp(&self.before) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(ScalingDirection::Up),
            std::cmp::Ordering::Less => Some(ScalingDirection::Down),
        }
    }
}

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

/// Appends a step if the value changes.
fn step(mut decision: Decision, stage: Stage, after: Replicas, reason: Reason) -> Decision {
    let before = decision.desired();
    if before != after {
        decision.steps.push(Step { stage, before, after, reason });
    }
    decision
}

/// Like [`step`], but also appends a step if the value stays.
fn step_or_note(mut decision: Decision, stage: Stage, after: Replicas, reason: Reason) -> Decision {
    let before = decision.desired();
    decision.steps.push(Step { stage, before, after, reason });
    decision
}

fn within(now: Timestamp, at: Timestamp, window: Seconds) -> bool {
    now.duration_since(at).as_secs_f64() < window.seconds() && at <= now
}

// === impl Behavior, Rules, Amount ===

impl Behavior {
    /// The longest time for which a rule reads past recommendations.
    fn longest_window(&self) -> Seconds {
        let StabilizationWindows { up, down } = StabilizationWindows::of(self);
        let panic = self.panic.map_or(Seconds::ZERO, |it| it.stable_window);
        let jitter = Seconds::new(JITTER_MAX.as_secs_f64()).unwrap_or_default();
        jitter.max(panic).max(up).max(down)
    }

    fn longest_period(&self) -> Seconds {
        self.scale_up
            .policies
            .iter()
            .chain(&self.scale_down.policies)
            .fold(Seconds::ZERO, |longest, policy| longest.max(policy.period))
    }
}

impl Rules {
    /// Returns the limit for the desired replicas and the period of the policy that sets it; `None`
    /// without policies.
    fn limit(
        &self,
        direction: ScalingDirection,
        now: Timestamp,
        in_force: Replicas,
        history: &ScalingHistory,
    ) -> Option<(Replicas, Seconds)> {
        let allowed = self.policies.iter().map(|policy| {
            let start = history.at_period_start(now, in_force, policy.period);
            (policy.amount.from(start, direction), policy.period)
        });

        match (self.select, direction) {
            (Select::Disabled, _) => Some((in_force, Seconds::ZERO)),
            (Select::Max, ScalingDirection::Up) | (Select::Min, ScalingDirection::Down) => {
                allowed.max_by_key(|(limit, _)| *limit)
            }
            (Select::Min, ScalingDirection::Up) | (Select::Max, ScalingDirection::Down) => {
                allowed.min_by_key(|(limit, _)| *limit)
            }
        }
    }
}

impl Amount {
    /// Returns the replicas that this amount allows, given the replicas at the start of a period.
    /// Percentages round in favor of a change, as an HPA's do.
    fn from(self, start: Replicas, direction: ScalingDirection) -> Replicas {
        let count = u64::from(start.count());
        let moved = match (self, direction) {
            (Self::Pods(pods), ScalingDirection::Up) => count + u64::from(pods),
            (Self::Pods(pods), ScalingDirection::Down) => count.saturating_sub(u64::from(pods)),
            (Self::Percent(percent), ScalingDirection::Up) => {
                (count * (100 + u64::from(percent))).div_ceil(100)
            }
            (Self::Percent(percent), ScalingDirection::Down) => {
                count * 100_u64.saturating_sub(u64::from(percent)) / 100
            }
        };

        Replicas::saturating(u32::try_from(moved).unwrap_or(u32::MAX))
    }
}

/// Returns the time until data that has been complete since `since` covers `window`.
#[must_use]
pub fn remaining(now: Timestamp, since: Timestamp, window: Seconds) -> Option<Seconds> {
    let seen = now.duration_since(since).max(SignedDuration::ZERO).as_secs_f64();
    Seconds::new(window.seconds() - seen).filter(|left| *left > Seconds::ZERO)
}
