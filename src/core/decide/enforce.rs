//! How fast a number may move, and between which bounds.
//!
//! Each rule is one function from a decision to a decision that appends at most one step. The words
//! and the arithmetic are those of `behavior` in `autoscaling/v2`, so that a user who knows an HPA
//! knows these: a stabilisation window takes the most cautious recommendation inside it, a policy
//! says what may change in a period, and `select` says which of several policies counts.
//!
//! # Source
//!
//! Kubernetes 1.36, `pkg/controller/podautoscaler/horizontal.go`:
//! `stabilizeRecommendationWithBehaviors`, `calculateScaleUpLimitWithScalingRules`,
//! `calculateScaleDownLimitWithBehaviors`. What an HPA reads from `spec.replicas` is here the
//! number that was published before.

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
use crate::observe::Autoscaler;
use crate::units::{Replicas, Seconds};

pub use crate::decide::enforce::behavior::{
    Behavior, Deference, Rules, Select, StepKeys, StepPolicy, StepType,
};
pub use crate::decide::enforce::burst::{Burst, Panic, panic};
pub use crate::decide::enforce::restraint::Restraint;
pub use crate::decide::enforce::saved::{CHANGES_MAX, SPANS_MAX, SavedHistory};
pub use crate::decide::enforce::turns::{Dwell, Moved, TURNS_MAX, Turns, dwell, spend_turns};

/// Recommendations and changes that a history keeps at most. With a tick each second it covers the
/// longest window that an HPA allows (3600 s); with faster ticks, the oldest go first.
const HISTORY_MAX: usize = 4096;

/// An amount of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// So many replicas.
    Pods(u32),
    /// So many per cent of the replicas at the start of the period.
    Percent(u32),
}

/// What was recommended for a variant, and how its published number has moved.
#[derive(Clone, Debug, Default)]
pub struct History {
    recommendations: VecDeque<Recommendation>,
    changes: VecDeque<Change>,
    turns: Turns,
    burst: Option<Burst>,
    /// When it was written last.
    latest: Option<Timestamp>,
}

/// A number that was recommended at each tick between two instants, both included. Nearly always
/// it is the one of the tick before, and a window of five minutes need not hold it 300 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recommendation {
    /// When it was recommended first.
    #[serde(with = "crate::units::instants")]
    pub first: Timestamp,
    /// When it was recommended last.
    #[serde(with = "crate::units::instants")]
    pub last: Timestamp,
    /// The number.
    pub replicas: Replicas,
}

/// A change of the published number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Change {
    /// When.
    #[serde(with = "crate::units::instants")]
    pub at: Timestamp,
    /// The number before it.
    pub before: Replicas,
}

/// Where a published number may move to from where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To more replicas.
    Up,
    /// To fewer replicas.
    Down,
}

// === impl History ===

impl History {
    /// A history that begins at `now` with a number that is in force, as if it had just been
    /// recommended. So nothing shrinks before the window has been seen once.
    #[must_use]
    pub fn starting(now: Timestamp, in_force: Replicas) -> Self {
        let recommended = Recommendation { first: now, last: now, replicas: in_force };
        let latest = Some(now);
        Self { recommendations: VecDeque::from([recommended]), latest, ..Self::default() }
    }

    /// Begins anew with the number in force, after a time of which nobody can say what would have
    /// been recommended. How often the number has turned stays known.
    pub fn begin_anew(&mut self, now: Timestamp, in_force: Replicas) {
        let turns = std::mem::take(&mut self.turns);
        *self = Self { turns, ..Self::starting(now, in_force) };
    }

    /// Adds this tick's recommendation and what was published for it, and forgets what no rule of
    /// `behavior` looks at.
    pub fn record(
        &mut self,
        now: Timestamp,
        recommended: Replicas,
        published: Published,
        behavior: &Behavior,
    ) {
        if self.recommendations.back().is_some_and(|latest| latest.last > now) {
            // The clock went back, so the ages are unknown; begin again with what is in force.
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
            self.changes.push_back(Change { at: now, before: published.before });
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

    /// The published number at the start of a period that ends at `now`.
    fn at_period_start(&self, now: Timestamp, published: Replicas, period: Seconds) -> Replicas {
        self.changes
            .iter()
            .find(|change| within(now, change.at, period))
            .map_or(published, |change| change.before)
    }
}

/// A published number before and after a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published {
    /// In force until now.
    pub before: Replicas,
    /// In force from now on.
    pub after: Replicas,
}

impl Published {
    /// Where it moved; `None` if it did not.
    #[must_use]
    pub fn direction(self) -> Option<Direction> {
        match self.after.cmp(&self.before) {
            std::cmp::Ordering::Equal => None,
            std::cmp::Ordering::Greater => Some(Direction::Up),
            std::cmp::Ordering::Less => Some(Direction::Down),
        }
    }
}

// === the rules ===

/// Takes the most cautious recommendation inside these windows, but leaves to an HPA what it waits
/// by itself.
///
/// An HPA takes the most cautious of the numbers that it has read in its own window, each of which is
/// the most cautious of ours: a window of theirs after a window of ours is one window of their sum.
/// So theirs is taken off ours, and the number moves after the longer of the two. Step policies are
/// not taken off: of two limits on a rate, the stricter holds, and nothing adds up.
pub fn stabilize_before(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    (history, ours, deference): (&History, Windows, Deference),
    autoscaler: Option<&Autoscaler>,
) -> Decision {
    let theirs = match (deference, autoscaler) {
        (Deference::ToHpa, Some(theirs)) => theirs,
        (Deference::ToHpa, None) | (Deference::None, _) => {
            return ours.apply(decision, now, in_force, history);
        }
    };
    let left = ours.without(theirs);
    let waited = ours.stabilize(decision.desired(), now, in_force, history);
    let decision = left.apply(decision, now, in_force, history);
    let held = decision.desired();
    if held != waited {
        let window = if waited > held { theirs.scale_down } else { theirs.scale_up };
        let hpa = theirs.name.clone();
        let reason = Reason::Restrained(Restraint::LeftToHpa { hpa, window });
        return step_or_note(decision, Stage::Stabilize, held, reason);
    }
    decision
}

/// Takes the largest number that was recommended in so short a time, whatever an autoscaler waits
/// afterwards: what jitters around a whole number is no reason to turn a number each second.
pub fn settle(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &History,
    jitter: Seconds,
) -> Decision {
    Windows { up: Seconds::ZERO, down: jitter }.apply(decision, now, in_force, history)
}

/// The stabilisation windows of both directions.
#[derive(Clone, Copy, Debug)]
pub struct Windows {
    /// Before more replicas.
    pub up: Seconds,
    /// Before fewer.
    pub down: Seconds,
}

impl Windows {
    /// Those that hold for everything that says nothing else.
    #[must_use]
    pub fn of(behavior: &Behavior) -> Self {
        Self {
            up: behavior.scale_up.stabilization_window,
            down: behavior.scale_down.stabilization_window,
        }
    }

    /// What is left of these where an autoscaler waits its own.
    fn without(self, theirs: &Autoscaler) -> Self {
        let left = |ours: Seconds, theirs: Seconds| {
            Seconds::new(ours.seconds() - theirs.seconds()).unwrap_or_default()
        };
        Self { up: left(self.up, theirs.scale_up), down: left(self.down, theirs.scale_down) }
    }

    /// The most cautious number inside the windows.
    fn stabilize(
        self,
        recommended: Replicas,
        now: Timestamp,
        in_force: Replicas,
        history: &History,
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
        history: &History,
    ) -> Decision {
        let recommended = decision.desired();
        let stabilized = self.stabilize(recommended, now, in_force, history);
        let window = if recommended < stabilized { self.down } else { self.up };
        step(decision, Stage::Stabilize, stabilized, Reason::Stabilized { window })
    }
}

/// Keeps the number within what the policies let it move in their periods.
pub fn limit_step(
    decision: Decision,
    now: Timestamp,
    in_force: Replicas,
    history: &History,
    behavior: &Behavior,
) -> Decision {
    let wanted = decision.desired();
    let (direction, rules) = match wanted.cmp(&in_force) {
        std::cmp::Ordering::Equal => return decision,
        std::cmp::Ordering::Greater => (Direction::Up, &behavior.scale_up),
        std::cmp::Ordering::Less => (Direction::Down, &behavior.scale_down),
    };
    let Some((limit, period)) = rules.limit(direction, now, in_force, history) else {
        return decision;
    };
    let limited = match direction {
        Direction::Up => wanted.min(limit.max(in_force)),
        Direction::Down => wanted.max(limit.min(in_force)),
    };
    step(decision, Stage::StepLimit, limited, Reason::StepLimited { period })
}

/// Keeps the number within the variant's bounds.
pub fn bound(decision: Decision) -> Decision {
    let (wanted, bounds) = (decision.desired(), decision.bounds);
    let bounded = bounds.clamp(wanted);
    let reason =
        if bounded > wanted { Reason::BelowMin(bounded) } else { Reason::AboveMax(bounded) };
    step(decision, Stage::Bounds, bounded, reason)
}

/// Appends a step if the number changes.
fn step(mut decision: Decision, stage: Stage, after: Replicas, reason: Reason) -> Decision {
    let before = decision.desired();
    if before != after {
        decision.steps.push(Step { stage, before, after, reason });
    }
    decision
}

/// As [`step`], but notes also that the number stays.
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
    /// The longest time of which a rule looks at what was recommended.
    fn longest_window(&self) -> Seconds {
        let Windows { up, down } = Windows::of(self);
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
    /// How far the number may move, and the period of the policy that says so; `None` without
    /// policies.
    fn limit(
        &self,
        direction: Direction,
        now: Timestamp,
        in_force: Replicas,
        history: &History,
    ) -> Option<(Replicas, Seconds)> {
        let allowed = self.policies.iter().map(|policy| {
            let start = history.at_period_start(now, in_force, policy.period);
            (policy.amount.from(start, direction), policy.period)
        });
        match (self.select, direction) {
            (Select::Disabled, _) => Some((in_force, Seconds::ZERO)),
            (Select::Max, Direction::Up) | (Select::Min, Direction::Down) => {
                allowed.max_by_key(|(limit, _)| *limit)
            }
            (Select::Min, Direction::Up) | (Select::Max, Direction::Down) => {
                allowed.min_by_key(|(limit, _)| *limit)
            }
        }
    }
}

impl Amount {
    /// The number that this amount leads to from the number at the start of a period. Percentages
    /// round in favour of movement, as an HPA's do.
    fn from(self, start: Replicas, direction: Direction) -> Replicas {
        let start = u64::from(start.count());
        let moved = match (self, direction) {
            (Self::Pods(pods), Direction::Up) => start + u64::from(pods),
            (Self::Pods(pods), Direction::Down) => start.saturating_sub(u64::from(pods)),
            (Self::Percent(percent), Direction::Up) => {
                (start * (100 + u64::from(percent))).div_ceil(100)
            }
            (Self::Percent(percent), Direction::Down) => {
                start * 100_u64.saturating_sub(u64::from(percent)) / 100
            }
        };
        Replicas::saturating(u32::try_from(moved).unwrap_or(u32::MAX))
    }
}

/// How long it takes until data that began to be complete at `since` covers `window`.
#[must_use]
pub fn remaining(now: Timestamp, since: Timestamp, window: Seconds) -> Option<Seconds> {
    let seen = now.duration_since(since).max(SignedDuration::ZERO).as_secs_f64();
    Seconds::new(window.seconds() - seen).filter(|left| *left > Seconds::ZERO)
}
