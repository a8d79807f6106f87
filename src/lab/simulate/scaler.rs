//! A model of the stock HPA: one `autoscaling/v2` object with one External metric.
//!
//! [`Scaler::sync`] models one sync period of the controller of Kubernetes 1.36. It turns the
//! metric's value into a proposal, applies the stabilization windows and the rate policies, and
//! returns the replica count for the scale subresource. The scaler's state is the controller's
//! memory: past recommendations and past scale events.
//!
//! # Model
//!
//! With `averageValue` T, the metric's sum U and `status.replicas` S, the ratio is U / (T·S).
//! Within the tolerances, `1 - down ..= 1 + up`, the proposal is S; otherwise it is ceil(U / T).
//!
//! The comparison is the interval form of Kubernetes 1.33 and later, both ends included. So 20 ->
//! 22 stays at 20 with the tolerance of 0.1; in earlier releases, a rounding error lets it pass.
//!
//! An object without `behavior` stays without it: the API server sets no defaults for a missing
//! section. The controller then holds the highest recommendation within the scale-down window. Each
//! sync scales up to at most double the replicas, or to 4 if that is more.
//!
//! A target at zero is left alone unless this HPA scaled it to zero. The condition `ScaledToZero`
//! of Kubernetes 1.36 records that.
//!
//! # Limits
//!
//! The model omits several metrics, pod readiness, which External metrics ignore, and the delay of
//! the controller's queue. `make e2e` feeds the same values to this model and to the real
//! controller, and compares (`tests/e2e/twin.rs`).

use std::cmp::Ordering;

use crate::simulate::Micros;
use plimsoll_core::decide::enforce::{Amount, ScalingDirection, Select};
use plimsoll_core::units::Replicas;

/// A metric's value in thousandths, summed over all items. The HPA reads nothing finer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MilliValue(pub i64);

/// The metric could not be read. The cause is irrelevant to an HPA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricError;

/// The parts of the HPA object that the arithmetic reads.
#[derive(Clone, Debug, PartialEq)]
pub struct ScalerSettings {
    /// `minReplicas`.
    pub min: Replicas,
    /// `maxReplicas`.
    pub max: Replicas,
    /// `averageValue` of the target; must be above zero.
    pub target: MilliValue,
    /// True if the object has `behavior`. Otherwise only the tolerances and the scale-down window
    /// apply, which are then settings of the controller.
    pub behavior: bool,
    /// `behavior.scaleUp`.
    pub up: Rules,
    /// `behavior.scaleDown`.
    pub down: Rules,
}

/// One direction of `behavior`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// The largest distance of the ratio from 1 without a change.
    pub tolerance: f64,
    /// `stabilizationWindowSeconds`.
    pub window: Micros,
    /// `selectPolicy`.
    pub select: Select,
    /// The rate policies.
    pub policies: Vec<ScalingPolicy>,
}

/// The most that desired replicas may change in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ScalingPolicy {
    /// The amount.
    pub amount: Amount,
    /// `periodSeconds`.
    pub period: Micros,
}

/// The result of a sync.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncOutcome {
    /// The replica count to write, which may equal the current one.
    Scale(Replicas),
    /// The metric could not be read, so nothing changes.
    Hold,
    /// The target is at zero and this HPA did not scale it there, which disables the HPA.
    Disabled,
}

/// An HPA object with the controller's memory of it.
#[derive(Clone, Debug)]
pub struct Scaler {
    settings: ScalerSettings,
    recommendations: Vec<(Micros, i64)>,
    ups: Vec<(Micros, i64)>,
    downs: Vec<(Micros, i64)>,
    /// The condition `ScaledToZero`.
    at_zero: bool,
}

// === impl ScalerSettings ===

impl ScalerSettings {
    /// An object with only bounds and target, and a controller with its own defaults.
    #[must_use]
    pub fn new(min: Replicas, max: Replicas, target: MilliValue) -> Self {
        Self { behavior: false, ..Self::with_behavior(min, max, target) }
    }

    /// The object that the API server makes of an empty `behavior`.
    #[must_use]
    pub fn with_behavior(min: Replicas, max: Replicas, target: MilliValue) -> Self {
        Self {
            min,
            max,
            target,
            behavior: true,
            up: Rules {
                tolerance: 0.1,
                window: Micros::ZERO,
                select: Select::Max,
                policies: vec![per_15s(Amount::Percent(100)), per_15s(Amount::Pods(4))],
            },
            down: Rules {
                tolerance: 0.1,
                window: Micros::from_secs(300),
                select: Select::Max,
                policies: vec![per_15s(Amount::Percent(100))],
            },
        }
    }

    /// An object that follows a metric that is itself a replica count: no tolerance, no window, and
    /// policies that never limit.
    #[must_use]
    pub fn following(min: Replicas, max: Replicas) -> Self {
        let mut settings = Self::with_behavior(min, max, MilliValue(1000));
        let period = Micros::from_secs(15);

        settings.up.tolerance = 0.0;
        settings.up.policies = vec![
            ScalingPolicy { amount: Amount::Percent(900), period },
            ScalingPolicy { amount: Amount::Pods(1000), period },
        ];
        settings.down.tolerance = 0.0;
        settings.down.window = Micros::ZERO;
        settings
    }
}

// === impl Scaler ===

impl Scaler {
    /// An object that the controller has not synced yet.
    #[must_use]
    pub const fn new(settings: ScalerSettings) -> Self {
        Self {
            settings,
            recommendations: Vec::new(),
            ups: Vec::new(),
            downs: Vec::new(),
            at_zero: false,
        }
    }

    /// The same object, whose target is at zero because this HPA scaled it there.
    #[must_use]
    pub fn resting_at_zero(self) -> Self {
        Self { at_zero: true, ..self }
    }

    /// Syncs the object once: `spec` is the scale target's desired replicas, `status` its actual
    /// replicas.
    pub fn sync(
        &mut self,
        now: Micros,
        ScaleCounts { spec, status }: ScaleCounts,
        metric: Result<MilliValue, MetricError>,
    ) -> SyncOutcome {
        let current = i64::from(spec.count());
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }

        let min = self.settings.min;
        let max = self.settings.max;
        if spec == Replicas::ZERO && !self.at_zero {
            return SyncOutcome::Disabled;
        }

        // The bounds apply even while the metric cannot be read, except for a target at zero.
        let desired = if spec > max {
            max
        } else if spec < min && spec != Replicas::ZERO {
            min
        } else {
            let Ok(value) = metric else { return SyncOutcome::Hold };
            let proposal = self.propose(status, value);
            let limited = if self.settings.behavior {
                let stabilized = self.stabilize(now, current, proposal);
                self.limit(now, current, stabilized)
            } else {
                let stabilized = self.hold_highest(now, proposal);
                self.limit_to_double(current, stabilized)
            };
            if spec == Replicas::ZERO { replicas(limited).max(min) } else { replicas(limited) }
        };

        let change = i64::from(desired.count()) - current;
        if change != 0 {
            self.at_zero = desired == Replicas::ZERO && min == Replicas::ZERO;
        }
        if change > 0 {
            self.ups.push((now, change));
        } else if change < 0 {
            self.downs.push((now, -change));
        }

        SyncOutcome::Scale(desired)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and the clamp follows"
    )]
    fn propose(&self, status: Replicas, value: MilliValue) -> i64 {
        let ScalerSettings { target: MilliValue(target), ref up, ref down, .. } = self.settings;
        // The controller treats a negative sum as an overflow, and uses the maximum instead.
        let sum = if value.0 < 0 { i64::MAX } else { value.0 };
        let usage = sum as f64;
        let per_replica = target as f64;
        let ratio = usage / (per_replica * f64::from(status.count()));

        if (1.0 - down.tolerance..=1.0 + up.tolerance).contains(&ratio) {
            i64::from(status.count())
        } else {
            ((usage / per_replica).ceil() as i64).min(i64::from(i32::MAX))
        }
    }

    fn stabilize(&mut self, now: Micros, current: i64, proposal: i64) -> i64 {
        let up_window = self.settings.up.window;
        let down_window = self.settings.down.window;
        let lowest = self.recent(now, up_window).fold(proposal, i64::min);
        let highest = self.recent(now, down_window).fold(proposal, i64::max);

        let longest = up_window.max(down_window);
        self.recommendations.retain(|(at, _)| now.since(*at) < longest);
        self.recommendations.push((now, proposal));
        // Not `clamp`, because with two windows the lower limit may be above the upper one.
        current.max(lowest).min(highest)
    }

    /// The recommendations within this window.
    fn recent(&self, now: Micros, window: Micros) -> impl Iterator<Item = i64> {
        self.recommendations
            .iter()
            .filter(move |(at, _)| now.since(*at) < window)
            .map(|(_, recommendation)| *recommendation)
    }

    /// The stabilization of an object without `behavior`.
    fn hold_highest(&mut self, now: Micros, proposal: i64) -> i64 {
        let window = self.settings.down.window;
        self.recommendations.retain(|(at, _)| now.since(*at) <= window);
        let highest = self.recommendations.iter().map(|(_, past)| *past).fold(proposal, i64::max);
        self.recommendations.push((now, proposal));
        highest
    }

    fn limit_to_double(&self, current: i64, desired: i64) -> i64 {
        let ScalerSettings { min, max, .. } = self.settings;
        let most = i64::from(max.count()).min((2 * current).max(4));
        // The minimum wins if it conflicts with the maximum, as in the controller.
        desired.min(most).max(i64::from(min.count()))
    }

    fn limit(&mut self, now: Micros, current: i64, desired: i64) -> i64 {
        let ScalerSettings { min, max, ref up, ref down, .. } = self.settings;
        // The policies of each direction use both logs.
        let longest = up.longest_period().max(down.longest_period());
        self.ups.retain(|(at, _)| now.since(*at) < longest);
        self.downs.retain(|(at, _)| now.since(*at) < longest);

        match desired.cmp(&current) {
            Ordering::Greater => {
                let allowed = self.farthest(now, current, ScalingDirection::Up).max(current);
                desired.min(allowed.min(i64::from(max.count())))
            }
            Ordering::Less => {
                let allowed = self.farthest(now, current, ScalingDirection::Down).min(current);
                desired.max(allowed.max(i64::from(min.count())))
            }
            Ordering::Equal => desired,
        }
    }

    /// The farthest replica count that the policies of a direction allow.
    fn farthest(&self, now: Micros, current: i64, direction: ScalingDirection) -> i64 {
        let ScalerSettings { up, down, .. } = &self.settings;
        let rules = match direction {
            ScalingDirection::Up => up,
            ScalingDirection::Down => down,
        };
        let limits = rules.policies.iter().map(|policy| {
            let start = self.at_period_start(now, current, policy.period);
            match (policy.amount, direction) {
                (Amount::Pods(pods), ScalingDirection::Up) => start + i64::from(pods),
                (Amount::Pods(pods), ScalingDirection::Down) => start - i64::from(pods),
                (Amount::Percent(percent), ScalingDirection::Up) => {
                    ceil(start as f64 * (1.0 + f64::from(percent) / 100.0))
                }
                (Amount::Percent(percent), ScalingDirection::Down) => {
                    cut(start as f64 * (1.0 - f64::from(percent) / 100.0))
                }
            }
        });

        let farthest = match (rules.select, direction) {
            (Select::Disabled, _) => None,
            (Select::Max, ScalingDirection::Up) | (Select::Min, ScalingDirection::Down) => {
                limits.max()
            }
            (Select::Min, ScalingDirection::Up) | (Select::Max, ScalingDirection::Down) => {
                limits.min()
            }
        };
        farthest.unwrap_or(current)
    }

    fn at_period_start(&self, now: Micros, current: i64, period: Micros) -> i64 {
        current - changed(&self.ups, now, period) + changed(&self.downs, now, period)
    }
}

/// The two counts of a scale subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScaleCounts {
    /// `spec.replicas`: the desired replicas.
    pub spec: Replicas,
    /// `status.replicas`: the existing replicas, ready or not.
    pub status: Replicas,
}

// === impl Rules ===

impl Rules {
    fn longest_period(&self) -> Micros {
        self.policies.iter().map(|policy| policy.period).max().unwrap_or_default()
    }
}

fn per_15s(amount: Amount) -> ScalingPolicy {
    ScalingPolicy { amount, period: Micros::from_secs(15) }
}

/// The sum of the changes within this period.
fn changed(events: &[(Micros, i64)], now: Micros, period: Micros) -> i64 {
    events.iter().filter(|(at, _)| now.since(*at) < period).map(|(_, change)| change).sum()
}

fn replicas(count: i64) -> Replicas {
    Replicas::capped(count.max(0))
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates")]
fn ceil(value: f64) -> i64 {
    value.ceil() as i64
}

#[expect(clippy::cast_possible_truncation, reason = "the cast saturates, and cutting is the rule")]
fn cut(value: f64) -> i64 {
    value as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn n(count: u32) -> Replicas {
        Replicas::saturating(count)
    }

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    fn steady(count: u32) -> ScaleCounts {
        ScaleCounts { spec: n(count), status: n(count) }
    }

    fn open(tolerance: f64) -> ScalerSettings {
        let mut settings = ScalerSettings::following(n(1), n(1000));
        settings.up.tolerance = tolerance;
        settings.down.tolerance = tolerance;
        settings
    }

    #[test]
    fn the_tolerance_band_includes_both_of_its_ends() {
        // Measured on Kubernetes 1.20, except for 20 -> 22, which newer releases ignore.
        for (from, milli, want) in [
            (20, 21_000, 20),
            (20, 22_000, 20),
            (20, 22_001, 23),
            (22, 23_000, 22),
            (22, 21_000, 22),
            (22, 20_000, 22),
            (22, 19_000, 19),
            (19, 18_000, 19),
            (19, 17_000, 17),
            (9, 10_000, 10),
            (10, 9_000, 10),
            (10, 8_999, 9),
        ] {
            let outcome = Scaler::new(open(0.1)).sync(at(0), steady(from), Ok(MilliValue(milli)));
            assert_eq!(outcome, SyncOutcome::Scale(n(want)), "{from} replicas and {milli}m");
        }
    }

    #[test]
    fn without_tolerance_the_metric_is_followed_exactly_and_rounded_up() {
        for (from, milli, want) in [
            (20, 21_000, 21),
            (20, 19_000, 19),
            (7, 7_500, 8),
            (8, 7_001, 8),
            (5, 5_000, 5),
            (3, 0, 1),
            (3, -5_000, 1000),
            (3, 1_000_000_000_000_000, 1000),
        ] {
            let outcome = Scaler::new(open(0.0)).sync(at(0), steady(from), Ok(MilliValue(milli)));
            assert_eq!(outcome, SyncOutcome::Scale(n(want)), "{from} replicas and {milli}m");
        }
    }

    #[test]
    fn within_tolerance_a_surge_of_pods_becomes_the_new_number() {
        let surge = ScaleCounts { spec: n(10), status: n(11) };
        let outcome = Scaler::new(open(0.1)).sync(at(0), surge, Ok(MilliValue(10_000)));
        assert_eq!(outcome, SyncOutcome::Scale(n(11)));
        let outcome = Scaler::new(open(0.0)).sync(at(0), surge, Ok(MilliValue(10_000)));
        assert_eq!(outcome, SyncOutcome::Scale(n(10)), "without tolerance there is no drift");
    }

    fn sync_without_metric(settings: &ScalerSettings, count: u32) -> SyncOutcome {
        Scaler::new(settings.clone()).sync(at(0), steady(count), Err(MetricError))
    }

    #[test]
    fn bounds_hold_without_a_metric_and_everything_else_does_not_move() {
        let mut settings = ScalerSettings::following(n(2), n(10));
        assert_eq!(sync_without_metric(&settings, 5), SyncOutcome::Hold);
        assert_eq!(sync_without_metric(&settings, 1), SyncOutcome::Scale(n(2)));
        assert_eq!(sync_without_metric(&settings, 11), SyncOutcome::Scale(n(10)));
        assert_eq!(sync_without_metric(&settings, 0), SyncOutcome::Disabled);

        settings.min = Replicas::ZERO;
        let outcome = sync_without_metric(&settings, 0);
        assert_eq!(outcome, SyncOutcome::Disabled, "somebody else took it to zero");
        let mut scaler = Scaler::new(settings).resting_at_zero();
        assert_eq!(scaler.sync(at(0), steady(0), Err(MetricError)), SyncOutcome::Hold);
    }

    #[test]
    fn from_zero_the_first_value_decides() {
        let mut settings = ScalerSettings::following(n(0), n(10));
        settings.up.tolerance = 0.1;
        let mut scaler = Scaler::new(settings).resting_at_zero();
        assert_eq!(scaler.sync(at(0), steady(0), Ok(MilliValue(3_000))), SyncOutcome::Scale(n(3)));
        assert_eq!(scaler.sync(at(15), steady(3), Ok(MilliValue(0))), SyncOutcome::Scale(n(0)));
        assert_eq!(scaler.sync(at(30), steady(0), Ok(MilliValue(0))), SyncOutcome::Scale(n(0)));
    }

    #[test]
    fn scaling_down_waits_for_the_highest_recommendation_of_the_window() {
        let settings = ScalerSettings::with_behavior(n(1), n(100), MilliValue(1000));
        let mut scaler = Scaler::new(settings);
        let mut current = 10;
        let mut seen = Vec::new();
        for (second, milli) in [(0, 10_000), (15, 4_000), (30, 6_000), (299, 3_000), (300, 3_000)] {
            let outcome = scaler.sync(at(second), steady(current), Ok(MilliValue(milli)));
            let SyncOutcome::Scale(next) = outcome else { panic!("{outcome:?}") };
            current = next.count();
            seen.push(current);
        }

        assert_eq!(seen, [10, 10, 10, 10, 6], "the sample of second 0 has left after 300 s");
        assert_eq!(
            scaler.sync(at(330), steady(6), Ok(MilliValue(3_000))),
            SyncOutcome::Scale(n(3)),
            "and so has that of second 30"
        );
    }

    #[test]
    fn scaling_up_waits_for_the_lowest_recommendation_of_its_window() {
        let mut settings = ScalerSettings::following(n(1), n(100));
        settings.up.window = at(60);
        let mut scaler = Scaler::new(settings);
        assert_eq!(scaler.sync(at(0), steady(2), Ok(MilliValue(9_000))), SyncOutcome::Scale(n(2)));
        assert_eq!(scaler.sync(at(30), steady(2), Ok(MilliValue(5_000))), SyncOutcome::Scale(n(2)));
        assert_eq!(scaler.sync(at(60), steady(2), Ok(MilliValue(8_000))), SyncOutcome::Scale(n(5)));
    }

    #[test]
    fn default_policies_double_or_add_four_in_fifteen_seconds() {
        let settings = ScalerSettings::with_behavior(n(1), n(100), MilliValue(1000));
        let mut scaler = Scaler::new(settings);
        for (second, from, want) in [(0, 1, 5), (10, 5, 5), (15, 5, 10), (30, 10, 20), (45, 20, 40)]
        {
            let outcome = scaler.sync(at(second), steady(from), Ok(MilliValue(90_000)));
            assert_eq!(outcome, SyncOutcome::Scale(n(want)), "at second {second}");
        }
    }

    #[test]
    fn without_behavior_a_number_doubles_or_grows_to_four_in_each_sync() {
        let mut scaler = Scaler::new(ScalerSettings::new(n(1), n(30), MilliValue(1000)));
        for (second, from, want) in [(0, 1, 4), (1, 4, 8), (2, 8, 16), (3, 16, 30), (4, 30, 30)] {
            let outcome = scaler.sync(at(second), steady(from), Ok(MilliValue(90_000)));
            assert_eq!(outcome, SyncOutcome::Scale(n(want)), "at second {second}");
        }
    }

    #[test]
    fn without_behavior_the_highest_recommendation_of_five_minutes_is_held() {
        let mut scaler = Scaler::new(ScalerSettings::new(n(1), n(30), MilliValue(1000)));
        for (second, milli, from, want) in [
            (0, 10_000, 10, 10),
            (15, 4_000, 10, 10),
            (300, 3_000, 10, 10),
            (301, 3_000, 10, 4),
            (320, 3_000, 4, 3),
        ] {
            let outcome = scaler.sync(at(second), steady(from), Ok(MilliValue(milli)));
            assert_eq!(outcome, SyncOutcome::Scale(n(want)), "at second {second}");
        }
    }

    #[test]
    fn select_policy_picks_the_larger_or_the_smaller_change_or_none() {
        for (select, up, down) in
            [(Select::Max, 20, 5), (Select::Min, 12, 8), (Select::Disabled, 10, 10)]
        {
            let mut settings = ScalerSettings::following(n(1), n(100));
            settings.up.select = select;
            settings.up.policies = vec![per_15s(Amount::Pods(2)), per_15s(Amount::Percent(100))];
            settings.down.select = select;
            settings.down.policies = vec![per_15s(Amount::Pods(2)), per_15s(Amount::Percent(50))];

            for (milli, expected) in [(90_000, up), (1_000, down)] {
                let mut scaler = Scaler::new(settings.clone());
                let outcome = scaler.sync(at(0), steady(10), Ok(MilliValue(milli)));
                assert_eq!(outcome, SyncOutcome::Scale(n(expected)), "{select:?}");
            }
        }
    }

    #[test]
    fn changes_of_both_directions_count_into_a_period() {
        let mut settings = ScalerSettings::following(n(1), n(100));
        settings.down.policies = vec![ScalingPolicy { amount: Amount::Pods(2), period: at(60) }];
        let mut scaler = Scaler::new(settings);

        assert_eq!(scaler.sync(at(0), steady(10), Ok(MilliValue(1_000))), SyncOutcome::Scale(n(8)));
        assert_eq!(scaler.sync(at(15), steady(8), Ok(MilliValue(1_000))), SyncOutcome::Scale(n(8)));
        assert_eq!(
            scaler.sync(at(20), steady(8), Ok(MilliValue(12_000))),
            SyncOutcome::Scale(n(12))
        );
        // The period began with 12 - 4 + 2 replicas, so 8 may remain.
        assert_eq!(
            scaler.sync(at(30), steady(12), Ok(MilliValue(1_000))),
            SyncOutcome::Scale(n(8))
        );
    }
}
