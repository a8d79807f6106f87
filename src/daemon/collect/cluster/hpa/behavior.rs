//! The `behavior` of an HPA: its tolerances, its windows, and the changes that its policies delay.

use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerSpec,
};

use crate::collect::cluster::hpa::finding::{Direction, Finding};
use crate::collect::cluster::hpa::pace::{
    BoundsChange, HpaPolicy, PolicyAmount, PolicyChoice, is_slower, usual_policies_down,
    usual_policies_up,
};
use crate::collect::cluster::hpa::quantity::quantity;
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::{Fraction, Seconds};

/// The cluster-wide default of `--horizontal-pod-autoscaler-tolerance`. It cannot be read through
/// the API. An operator who changes it must therefore set the tolerance in each HPA.
const DEFAULT_TOLERANCE: f64 = 0.1;

/// The default of `--horizontal-pod-autoscaler-downscale-stabilization`, in seconds.
const DOWNSCALE_WINDOW: u32 = 300;

/// The maximum policies of an HPA that are judged.
const POLICIES_MAX: usize = 16;

/// The fractions by which desired replicas may differ from current ones without the HPA acting.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerances {
    /// Tolerance above the current replicas.
    pub up: Fraction,
    /// Tolerance below the current replicas.
    pub down: Fraction,
}

/// The stabilization windows that an HPA sets.
///
/// Without a window, an HPA scales up immediately. It scales down after
/// `--horizontal-pod-autoscaler-downscale-stabilization`, which cannot be read through the API.
/// Assuming that flag's default could leave a variant without any window, so a window that is not
/// set counts as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Windows {
    /// Before it adds replicas.
    pub up: Seconds,
    /// Before it removes replicas.
    pub down: Seconds,
}

/// The speed of an HPA: its windows and policies as the controller applies them, defaults included.
#[derive(Clone, Debug, PartialEq)]
pub struct HpaPace {
    up: DirectionPace,
    down: DirectionPace,
}

/// The speed of an HPA in one direction.
#[derive(Clone, Debug, PartialEq)]
enum DirectionPace {
    /// It never changes replicas in this direction.
    Disabled,
    /// It waits for a window, and then keeps to its policies.
    Steps {
        window: Seconds,
        /// `None` if the policies cannot be read or are too many.
        policies: Option<Vec<HpaPolicy>>,
        choice: PolicyChoice,
    },
}

/// The time that an HPA takes for a change.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ChangeTime {
    /// The window in which every recommendation must agree.
    pub window: Seconds,
    /// The time from the first step to the last; `None` if it is not known or above an hour.
    pub steps: Option<Seconds>,
}

/// The parts of `behavior` that keep an HPA from a change for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Obstacle {
    /// It never changes replicas in this direction.
    Disabled(Direction),
    /// It takes this many seconds from one of its bounds to the other, or more than are simulated.
    Slow(Direction, Option<u32>, BoundsChange),
}

/// Reads the tolerances.
pub(super) fn tolerances(spec: &HorizontalPodAutoscalerSpec) -> Tolerances {
    Tolerances {
        up: tolerance(rules(spec, Direction::Up)),
        down: tolerance(rules(spec, Direction::Down)),
    }
}

/// Reads the stabilization windows.
pub(super) fn windows(spec: &HorizontalPodAutoscalerSpec) -> Windows {
    Windows { up: window(rules(spec, Direction::Up)), down: window(rules(spec, Direction::Down)) }
}

/// Reads the speed in both directions.
pub(super) fn pace(spec: &HorizontalPodAutoscalerSpec) -> HpaPace {
    HpaPace {
        up: DirectionPace::new(rules(spec, Direction::Up), Direction::Up),
        down: DirectionPace::new(rules(spec, Direction::Down), Direction::Down),
    }
}

/// Reads the policies, and returns the obstacle that they are to an HPA with these bounds.
pub(super) fn obstacles(
    spec: &HorizontalPodAutoscalerSpec,
    bounds: Option<Bounds>,
) -> Vec<Obstacle> {
    let directions = [Direction::Up, Direction::Down].into_iter();
    directions
        .filter_map(|direction| obstacle(rules(spec, direction)?, direction, bounds))
        .collect()
}

fn rules(spec: &HorizontalPodAutoscalerSpec, direction: Direction) -> Option<&HPAScalingRules> {
    let behavior = spec.behavior.as_ref()?;
    match direction {
        Direction::Up => behavior.scale_up.as_ref(),
        Direction::Down => behavior.scale_down.as_ref(),
    }
}

fn tolerance(rules: Option<&HPAScalingRules>) -> Fraction {
    rules
        .and_then(|rules| rules.tolerance.as_ref())
        .and_then(|tolerance| quantity(&tolerance.0))
        .and_then(Fraction::new)
        .or_else(|| Fraction::new(DEFAULT_TOLERANCE))
        .unwrap_or_default()
}

fn window(rules: Option<&HPAScalingRules>) -> Seconds {
    let stated = rules.and_then(|rules| rules.stabilization_window_seconds);
    stated.and_then(|seconds| Seconds::new(f64::from(seconds))).unwrap_or_default()
}

fn obstacle(
    rules: &HPAScalingRules,
    direction: Direction,
    bounds: Option<Bounds>,
) -> Option<Obstacle> {
    let choice = match rules.select_policy.as_deref() {
        Some("Disabled") => return Some(Obstacle::Disabled(direction)),
        Some("Min") => PolicyChoice::Smallest,
        Some(_) | None => PolicyChoice::Largest,
    };

    let stated = rules.policies.as_ref().filter(|it| (1..=POLICIES_MAX).contains(&it.len()))?;
    let policies: Option<Vec<HpaPolicy>> = stated.iter().map(HpaPolicy::new).collect();
    let change = longest(bounds?, direction)?;
    let takes = change.takes(&policies?, choice);
    is_slower(takes, change.takes_usually()).then_some(Obstacle::Slow(direction, takes, change))
}

/// At 0 replicas an HPA does nothing.
fn longest(bounds: Bounds, direction: Direction) -> Option<BoundsChange> {
    let least = bounds.min().count().max(1);
    let most = bounds.max()?.count().max(least);
    Some(match direction {
        Direction::Up => BoundsChange { first: least, last: most },
        Direction::Down => BoundsChange { first: most, last: least },
    })
}

// === impl HpaPace, DirectionPace ===

impl HpaPace {
    /// Returns the time for a change between two counts; `None` if the HPA never makes it.
    pub(super) fn time(&self, change: BoundsChange) -> Option<ChangeTime> {
        let pace = if change.last > change.first { &self.up } else { &self.down };
        match pace {
            DirectionPace::Disabled => None,
            DirectionPace::Steps { window, policies, choice } => {
                let takes = policies.as_ref().and_then(|it| change.takes(it, *choice));
                let steps = takes.and_then(|seconds| Seconds::new(f64::from(seconds)));
                Some(ChangeTime { window: *window, steps })
            }
        }
    }
}

impl DirectionPace {
    fn new(rules: Option<&HPAScalingRules>, direction: Direction) -> Self {
        let choice = match rules.and_then(|rules| rules.select_policy.as_deref()) {
            Some("Disabled") => return Self::Disabled,
            Some("Min") => PolicyChoice::Smallest,
            Some(_) | None => PolicyChoice::Largest,
        };

        let stated = rules.and_then(|rules| rules.stabilization_window_seconds);
        let (usual_window, usual_policies) = match direction {
            Direction::Up => (Seconds::ZERO, usual_policies_up()),
            Direction::Down => (Seconds::literal(DOWNSCALE_WINDOW), usual_policies_down()),
        };
        let window = stated.and_then(|seconds| Seconds::new(f64::from(seconds)));
        let window = window.unwrap_or(usual_window);

        let policies = match rules.and_then(|rules| rules.policies.as_ref()) {
            Some(stated) if (1..=POLICIES_MAX).contains(&stated.len()) => {
                stated.iter().map(HpaPolicy::new).collect()
            }
            Some(stated) if !stated.is_empty() => None,
            Some(_) | None => Some(usual_policies),
        };
        Self::Steps { window, policies, choice }
    }
}

// === impl Obstacle ===

impl Obstacle {
    /// Returns the problem that it is for an HPA.
    pub(super) fn finding(self, name: &str) -> Finding {
        let hpa = name.to_owned();
        match self {
            Self::Disabled(direction) => Finding::DirectionDisabled { hpa, direction },
            Self::Slow(direction, takes, change) => {
                Finding::SlowPolicies { hpa, direction, takes, change }
            }
        }
    }
}

// === impl HpaPolicy ===

impl HpaPolicy {
    fn new(policy: &HPAScalingPolicy) -> Option<Self> {
        let HPAScalingPolicy { period_seconds, type_, value } = policy;
        let number = u32::try_from(*value).ok()?;
        let amount = match type_.as_str() {
            "Pods" => PolicyAmount::Pods(number),
            "Percent" => PolicyAmount::Percent(number),
            _ => return None,
        };
        Some(Self { amount, period: u32::try_from(*period_seconds).ok()? })
    }
}
