//! The `behavior` of an HPA: its tolerances, its windows, and the changes that its policies delay.

use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerSpec,
};

use crate::collect::cluster::hpa::finding::{Direction, Finding};
use crate::collect::cluster::hpa::quantity::quantity;
use plimsoll_core::fleet::Bounds;
use plimsoll_core::units::{Fraction, Seconds};

/// The cluster-wide default of `--horizontal-pod-autoscaler-tolerance`. It cannot be read through
/// the API. An operator who changes it must therefore set the tolerance in each HPA.
const DEFAULT_TOLERANCE: f64 = 0.1;

/// The seconds between two decisions of an HPA.
const SYNC_PERIOD: u32 = 15;

/// The seconds for which a change is simulated.
const SIMULATED: u32 = 3_600;

/// The maximum policies of an HPA that are judged.
const POLICIES_MAX: usize = 16;

/// The seconds that policies may take longer than the default ones. An engine takes longer to
/// start.
const SLOW: u32 = 60;

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

/// The parts of `behavior` that keep an HPA from a change for some time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Obstacle {
    /// It never changes replicas in this direction.
    Disabled(Direction),
    /// It takes this many seconds from one of its bounds to the other, or more than are simulated.
    Slow(Direction, Option<u32>),
}

/// The largest change in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
struct HpaPolicy {
    amount: PolicyAmount,
    period: u32,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum PolicyAmount {
    Pods(u32),
    Percent(u32),
}

/// The policy that counts if there are several.
#[derive(Clone, Copy, Debug, PartialEq)]
enum PolicyChoice {
    Largest,
    Smallest,
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
    let ends = ends(bounds?, direction)?;
    let takes = takes(&policies?, choice, direction, ends);
    let usual = takes_usually(direction, ends);
    let is_slow =
        takes.is_none_or(|seconds| usual.is_some_and(|usual| seconds > usual.saturating_add(SLOW)));
    is_slow.then_some(Obstacle::Slow(direction, takes))
}

/// The first and the last count of the longest change. At 0 replicas an HPA does nothing.
fn ends(bounds: Bounds, direction: Direction) -> Option<[u32; 2]> {
    let least = bounds.min().count().max(1);
    let most = bounds.max()?.count().max(least);
    Some(match direction {
        Direction::Up => [least, most],
        Direction::Down => [most, least],
    })
}

/// The seconds for the change without stated policies, by the API server's defaults.
fn takes_usually(direction: Direction, ends: [u32; 2]) -> Option<u32> {
    let period = SYNC_PERIOD;
    let doubling = HpaPolicy { amount: PolicyAmount::Percent(100), period };
    let four = HpaPolicy { amount: PolicyAmount::Pods(4), period };
    let policies = match direction {
        Direction::Up => vec![doubling, four],
        Direction::Down => vec![doubling],
    };
    takes(&policies, PolicyChoice::Largest, direction, ends)
}

/// Returns the seconds until an HPA with these policies has changed replicas from the first count
/// to the last; `None` if it takes longer than is simulated.
///
/// # Source
///
/// Kubernetes 1.36, `pkg/controller/podautoscaler/horizontal.go`:
/// `calculateScaleUpLimitWithScalingRules`, `calculateScaleDownLimitWithBehaviors`.
fn takes(
    policies: &[HpaPolicy],
    choice: PolicyChoice,
    direction: Direction,
    [first, last]: [u32; 2],
) -> Option<u32> {
    // The replicas after each decision, of which the last are those of now.
    let mut counts = vec![first];
    for round in 0..=SIMULATED / SYNC_PERIOD {
        let now = *counts.last()?;
        if now == last {
            return Some(round.saturating_sub(1) * SYNC_PERIOD);
        }

        let changes = policies.iter().map(|policy| policy.change(&counts, direction));
        let change = match choice {
            PolicyChoice::Largest => changes.max(),
            PolicyChoice::Smallest => changes.min(),
        }?;
        counts.push(match direction {
            Direction::Up => now.saturating_add(change).min(last),
            Direction::Down => now.saturating_sub(change).max(last),
        });
    }

    None
}

// === impl Obstacle ===

impl Obstacle {
    /// Returns the problem that it is for an HPA.
    pub(super) fn finding(self, name: &str) -> Finding {
        let hpa = name.to_owned();
        match self {
            Self::Disabled(direction) => Finding::DirectionDisabled { hpa, direction },
            Self::Slow(direction, takes) => Finding::SlowPolicies { hpa, direction, takes },
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

    /// Returns the change that it still allows, after these counts at successive decisions.
    fn change(&self, counts: &[u32], direction: Direction) -> u32 {
        let Some(now) = counts.last().copied() else { return 0 };
        let rounds =
            usize::try_from(self.period.div_ceil(SYNC_PERIOD)).unwrap_or(usize::MAX).max(1);
        let start = counts[counts.len().saturating_sub(rounds)];
        match (self.amount, direction) {
            (PolicyAmount::Pods(pods), _) => pods.saturating_sub(start.abs_diff(now)),
            (PolicyAmount::Percent(percent), _) => {
                let share = (u64::from(start) * u64::from(percent)).div_ceil(100);
                u32::try_from(share).unwrap_or(u32::MAX).saturating_sub(start.abs_diff(now))
            }
        }
    }
}
