//! A model of the stock HPA: one `autoscaling/v2` object with one External metric.
//!
//! [`Scaler::sync`] is what the controller of Kubernetes 1.36 does with the object once in each
//! sync period: from the metric's value to a proposal, through the stabilisation windows and the
//! rate policies, to the number that it writes to the scale subresource. The controller's memory —
//! past recommendations and past scale events — is the scaler's state.
//!
//! # Model
//!
//! With `averageValue` T, the metric's sum U and `status.replicas` S, the ratio is U / (T·S). Within
//! `1 - down ..= 1 + up` of the tolerances the proposal is S, else it is ceil(U / T). The comparison
//! is the interval form of Kubernetes 1.33 and later, both ends included, so that 20 -> 22 stays at
//! 20 with the tolerance of 0.1; before, a rounding error let it pass.
//!
//! An object without `behavior` stays without it: the API server gives no defaults to what is not
//! there. The controller then holds the highest recommendation of the window for scaling down, and
//! lets a number double, or grow to four, in each sync.
//!
//! A target at zero is left alone, unless it was this HPA that took it there: the condition
//! `ScaledToZero` of Kubernetes 1.36 says so.
//!
//! # Limits
//!
//! Several metrics, pod readiness, which External metrics do not look at, and the delay of the
//! controller's queue are not modelled. `make e2e` feeds the same values to this and to the real
//! controller, and compares (`tests/e2e/twin.rs`).

use std::cmp::Ordering;

use crate::simulate::Micros;
use plimsoll_core::decide::enforce::{Amount, Direction, Select};
use plimsoll_core::units::Replicas;

/// A metric's value in thousandths, summed over all items: the HPA reads nothing finer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct MilliValue(pub i64);

/// The metric could not be read; an HPA does not ask why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricError;

/// The parts of the HPA object that the arithmetic reads.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `minReplicas`.
    pub min: Replicas,
    /// `maxReplicas`.
    pub max: Replicas,
    /// `averageValue` of the target; must be above zero.
    pub target: MilliValue,
    /// Whether the object has `behavior`. Without it only the tolerances and the window for scaling
    /// down are read, which are then settings of the controller.
    pub behavior: bool,
    /// `behavior.scaleUp`.
    pub up: Rules,
    /// `behavior.scaleDown`.
    pub down: Rules,
}

/// One direction of `behavior`.
#[derive(Clone, Debug, PartialEq)]
pub struct Rules {
    /// How far from 1 the ratio may be without any change.
    pub tolerance: f64,
    /// `stabilizationWindowSeconds`.
    pub window: Micros,
    /// `selectPolicy`.
    pub select: Select,
    /// The policies.
    pub policies: Vec<Policy>,
}

/// How far the number may move in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Policy {
    /// How far.
    pub amount: Amount,
    /// `periodSeconds`.
    pub period: Micros,
}

/// What a sync came to.
#[must_use]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The number to write, which may be the present one.
    Scale(Replicas),
    /// The metric could not be read, so nothing changes.
    Hold,
    /// The target is at zero and this HPA did not take it there, which switches the HPA off.
    Disabled,
}

/// One HPA object with the controller's memory of it.
#[derive(Clone, Debug)]
pub struct Scaler {
    settings: Settings,
    recommendations: Vec<(Micros, i64)>,
    ups: Vec<(Micros, i64)>,
    downs: Vec<(Micros, i64)>,
    /// The condition `ScaledToZero`.
    at_zero: bool,
}

// === impl Settings ===

impl Settings {
    /// An object that says only its bounds and target, and a controller with its own defaults.
    #[must_use]
    pub fn new(min: Replicas, max: Replicas, target: MilliValue) -> Self {
        Self { behavior: false, ..Self::with_behavior(min, max, target) }
    }

    /// What the API server makes of an object whose `behavior` is there and says nothing.
    #[must_use]
    pub fn with_behavior(min: Replicas, max: Replicas, target: MilliValue) -> Self {
        let fifteen = Micros::from_secs(15);
        let policy = |amount| Policy { amount, period: fifteen };
        Self {
            min,
            max,
            target,
            behavior: true,
            up: Rules {
                tolerance: 0.1,
                window: Micros::ZERO,
                select: Select::Max,
                policies: vec![policy(Amount::Percent(100)), policy(Amount::Pods(4))],
            },
            down: Rules {
                tolerance: 0.1,
                window: Micros::from_secs(300),
                select: Select::Max,
                policies: vec![policy(Amount::Percent(100))],
            },
        }
    }

    /// An object that follows a metric that is itself a number of replicas: no tolerance, no window,
    /// and policies that never limit.
    #[must_use]
    pub fn following(min: Replicas, max: Replicas) -> Self {
        let mut settings = Self::with_behavior(min, max, MilliValue(1000));
        let period = Micros::from_secs(15);
        settings.up.tolerance = 0.0;
        settings.up.policies = vec![
            Policy { amount: Amount::Percent(900), period },
            Policy { amount: Amount::Pods(1000), period },
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
    pub const fn new(settings: Settings) -> Self {
        Self {
            settings,
            recommendations: Vec::new(),
            ups: Vec::new(),
            downs: Vec::new(),
            at_zero: false,
        }
    }

    /// The same, when the target is at zero because this HPA has taken it there.
    #[must_use]
    pub fn resting_at_zero(self) -> Self {
        Self { at_zero: true, ..self }
    }

    /// Syncs the object once: `spec` is what the scale target asks for, `status` what it has.
    pub fn sync(
        &mut self,
        now: Micros,
        Scale { spec, status }: Scale,
        metric: Result<MilliValue, MetricError>,
    ) -> Outcome {
        let current = i64::from(spec.count());
        if self.recommendations.is_empty() {
            self.recommendations.push((now, current));
        }
        let (min, max) = (self.settings.min, self.settings.max);
        if spec == Replicas::ZERO && !self.at_zero {
            return Outcome::Disabled;
        }
        // The bounds hold even while the metric cannot be read, but for a target at zero.
        let desired = if spec > max {
            max
        } else if spec < min && spec != Replicas::ZERO {
            min
        } else {
            let Ok(value) = metric else { return Outcome::Hold };
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
        Outcome::Scale(desired)
    }

    #[expect(
        clippy::cast_possible_truncation,
        reason = "the cast saturates, and the clamp follows"
    )]
    fn propose(&self, status: Replicas, value: MilliValue) -> i64 {
        let Settings { target, ref up, ref down, .. } = self.settings;
        // The controller takes a negative sum for one that has overflowed, and as large as can be.
        let usage = if value.0 < 0 { i64::MAX } else { value.0 };
        let (usage, target) = (usage as f64, target.0 as f64);
        let ratio = usage / (target * f64::from(status.count()));
        if (1.0 - down.tolerance..=1.0 + up.tolerance).contains(&ratio) {
            i64::from(status.count())
        } else {
            ((usage / target).ceil() as i64).min(i64::from(i32::MAX))
        }
    }

    fn stabilize(&mut self, now: Micros, current: i64, proposal: i64) -> i64 {
        let (up_window, down_window) = (self.settings.up.window, self.settings.down.window);
        let recent = |window: Micros| {
            self.recommendations
                .iter()
                .filter(move |(at, _)| now.since(*at) < window)
                .map(|(_, recommendation)| *recommendation)
        };
        let lowest = recent(up_window).fold(proposal, i64::min);
        let highest = recent(down_window).fold(proposal, i64::max);
        let longest = up_window.max(down_window);
        self.recommendations.retain(|(at, _)| now.since(*at) < longest);
        self.recommendations.push((now, proposal));
        // Not `clamp`: with two windows the lower limit may be above the upper one.
        current.max(lowest).min(highest)
    }

    /// What an object without `behavior` does against flapping.
    fn hold_highest(&mut self, now: Micros, proposal: i64) -> i64 {
        let window = self.settings.down.window;
        self.recommendations.retain(|(at, _)| now.since(*at) <= window);
        let highest = self.recommendations.iter().map(|(_, past)| *past).fold(proposal, i64::max);
        self.recommendations.push((now, proposal));
        highest
    }

    fn limit_to_double(&self, current: i64, desired: i64) -> i64 {
        let Settings { min, max, .. } = self.settings;
        let (min, max) = (i64::from(min.count()), i64::from(max.count()));
        let most = max.min((2 * current).max(4));
        // As the controller: the minimum wins where the two are at odds.
        desired.min(most).max(min)
    }

    fn limit(&mut self, now: Micros, current: i64, desired: i64) -> i64 {
        let Settings { min, max, ref up, ref down, .. } = self.settings;
        // The policies of each direction look at both logs.
        let longest = up.longest_period().max(down.longest_period());
        self.ups.retain(|(at, _)| now.since(*at) < longest);
        self.downs.retain(|(at, _)| now.since(*at) < longest);
        match desired.cmp(&current) {
            Ordering::Greater => {
                let allowed = self.farthest(now, current, Direction::Up).max(current);
                desired.min(allowed.min(i64::from(max.count())))
            }
            Ordering::Less => {
                let allowed = self.farthest(now, current, Direction::Down).min(current);
                desired.max(allowed.max(i64::from(min.count())))
            }
            Ordering::Equal => desired,
        }
    }

    /// How far the policies of a direction let the number move.
    fn farthest(&self, now: Micros, current: i64, direction: Direction) -> i64 {
        let Settings { up, down, .. } = &self.settings;
        let rules = match direction {
            Direction::Up => up,
            Direction::Down => down,
        };
        let limits = rules.policies.iter().map(|policy| {
            let start = self.at_period_start(now, current, policy.period);
            match (policy.amount, direction) {
                (Amount::Pods(pods), Direction::Up) => start + i64::from(pods),
                (Amount::Pods(pods), Direction::Down) => start - i64::from(pods),
                (Amount::Percent(percent), Direction::Up) => {
                    ceil(start as f64 * (1.0 + f64::from(percent) / 100.0))
                }
                (Amount::Percent(percent), Direction::Down) => {
                    cut(start as f64 * (1.0 - f64::from(percent) / 100.0))
                }
            }
        });
        let farthest = match (rules.select, direction) {
            (Select::Disabled, _) => None,
            (Select::Max, Direction::Up) | (Select::Min, Direction::Down) => limits.max(),
            (Select::Min, Direction::Up) | (Select::Max, Direction::Down) => limits.min(),
        };
        farthest.unwrap_or(current)
    }

    fn at_period_start(&self, now: Micros, current: i64, period: Micros) -> i64 {
        let changed = |events: &[(Micros, i64)]| -> i64 {
            events.iter().filter(|(at, _)| now.since(*at) < period).map(|(_, change)| change).sum()
        };
        current - changed(&self.ups) + changed(&self.downs)
    }
}

/// The two counts of a scale subresource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// `spec.replicas`: what is asked for.
    pub spec: Replicas,
    /// `status.replicas`: what exists, ready or not.
    pub status: Replicas,
}

// === impl Rules ===

impl Rules {
    fn longest_period(&self) -> Micros {
        self.policies.iter().map(|policy| policy.period).max().unwrap_or_default()
    }
}

fn replicas(count: i64) -> Replicas {
    Replicas::saturating(u32::try_from(count.max(0)).unwrap_or(u32::MAX))
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

    fn steady(count: u32) -> Scale {
        Scale { spec: n(count), status: n(count) }
    }

    fn open(tolerance: f64) -> Settings {
        let mut settings = Settings::following(n(1), n(1000));
        settings.up.tolerance = tolerance;
        settings.down.tolerance = tolerance;
        settings
    }

    #[test]
    fn the_tolerance_band_includes_both_of_its_ends() {
        // Measured on Kubernetes 1.20 but for 20 -> 22, which newer releases swallow.
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
            assert_eq!(outcome, Outcome::Scale(n(want)), "{from} replicas and {milli}m");
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
            assert_eq!(outcome, Outcome::Scale(n(want)), "{from} replicas and {milli}m");
        }
    }

    #[test]
    fn within_tolerance_a_surge_of_pods_becomes_the_new_number() {
        let surge = Scale { spec: n(10), status: n(11) };
        let outcome = Scaler::new(open(0.1)).sync(at(0), surge, Ok(MilliValue(10_000)));
        assert_eq!(outcome, Outcome::Scale(n(11)));
        let outcome = Scaler::new(open(0.0)).sync(at(0), surge, Ok(MilliValue(10_000)));
        assert_eq!(outcome, Outcome::Scale(n(10)), "without tolerance there is no drift");
    }

    #[test]
    fn bounds_hold_without_a_metric_and_everything_else_does_not_move() {
        let mut settings = Settings::following(n(2), n(10));
        let sync = |settings: &Settings, count| {
            Scaler::new(settings.clone()).sync(at(0), steady(count), Err(MetricError))
        };
        assert_eq!(sync(&settings, 5), Outcome::Hold);
        assert_eq!(sync(&settings, 1), Outcome::Scale(n(2)));
        assert_eq!(sync(&settings, 11), Outcome::Scale(n(10)));
        assert_eq!(sync(&settings, 0), Outcome::Disabled);
        settings.min = Replicas::ZERO;
        assert_eq!(sync(&settings, 0), Outcome::Disabled, "somebody else took it to zero");
        let mut scaler = Scaler::new(settings).resting_at_zero();
        assert_eq!(scaler.sync(at(0), steady(0), Err(MetricError)), Outcome::Hold);
    }

    #[test]
    fn from_zero_the_first_value_decides() {
        let mut settings = Settings::following(n(0), n(10));
        settings.up.tolerance = 0.1;
        let mut scaler = Scaler::new(settings).resting_at_zero();
        assert_eq!(scaler.sync(at(0), steady(0), Ok(MilliValue(3_000))), Outcome::Scale(n(3)));
        assert_eq!(scaler.sync(at(15), steady(3), Ok(MilliValue(0))), Outcome::Scale(n(0)));
        assert_eq!(scaler.sync(at(30), steady(0), Ok(MilliValue(0))), Outcome::Scale(n(0)));
    }

    #[test]
    fn scaling_down_waits_for_the_highest_recommendation_of_the_window() {
        let settings = Settings::with_behavior(n(1), n(100), MilliValue(1000));
        let mut scaler = Scaler::new(settings);
        let mut current = 10;
        let mut seen = Vec::new();
        for (second, milli) in [(0, 10_000), (15, 4_000), (30, 6_000), (299, 3_000), (300, 3_000)] {
            let outcome = scaler.sync(at(second), steady(current), Ok(MilliValue(milli)));
            let Outcome::Scale(next) = outcome else { panic!("{outcome:?}") };
            current = next.count();
            seen.push(current);
        }
        assert_eq!(seen, [10, 10, 10, 10, 6], "the sample of second 0 has left after 300 s");
        assert_eq!(
            scaler.sync(at(330), steady(6), Ok(MilliValue(3_000))),
            Outcome::Scale(n(3)),
            "and so has that of second 30"
        );
    }

    #[test]
    fn scaling_up_waits_for_the_lowest_recommendation_of_its_window() {
        let mut settings = Settings::following(n(1), n(100));
        settings.up.window = at(60);
        let mut scaler = Scaler::new(settings);
        assert_eq!(scaler.sync(at(0), steady(2), Ok(MilliValue(9_000))), Outcome::Scale(n(2)));
        assert_eq!(scaler.sync(at(30), steady(2), Ok(MilliValue(5_000))), Outcome::Scale(n(2)));
        assert_eq!(scaler.sync(at(60), steady(2), Ok(MilliValue(8_000))), Outcome::Scale(n(5)));
    }

    #[test]
    fn default_policies_double_or_add_four_in_fifteen_seconds() {
        let settings = Settings::with_behavior(n(1), n(100), MilliValue(1000));
        let mut scaler = Scaler::new(settings);
        for (second, from, want) in [(0, 1, 5), (10, 5, 5), (15, 5, 10), (30, 10, 20), (45, 20, 40)]
        {
            let outcome = scaler.sync(at(second), steady(from), Ok(MilliValue(90_000)));
            assert_eq!(outcome, Outcome::Scale(n(want)), "at second {second}");
        }
    }

    #[test]
    fn without_behavior_a_number_doubles_or_grows_to_four_in_each_sync() {
        let mut scaler = Scaler::new(Settings::new(n(1), n(30), MilliValue(1000)));
        for (second, from, want) in [(0, 1, 4), (1, 4, 8), (2, 8, 16), (3, 16, 30), (4, 30, 30)] {
            let outcome = scaler.sync(at(second), steady(from), Ok(MilliValue(90_000)));
            assert_eq!(outcome, Outcome::Scale(n(want)), "at second {second}");
        }
    }

    #[test]
    fn without_behavior_the_highest_recommendation_of_five_minutes_is_held() {
        let mut scaler = Scaler::new(Settings::new(n(1), n(30), MilliValue(1000)));
        for (second, milli, from, want) in [
            (0, 10_000, 10, 10),
            (15, 4_000, 10, 10),
            (300, 3_000, 10, 10),
            (301, 3_000, 10, 4),
            (320, 3_000, 4, 3),
        ] {
            let outcome = scaler.sync(at(second), steady(from), Ok(MilliValue(milli)));
            assert_eq!(outcome, Outcome::Scale(n(want)), "at second {second}");
        }
    }

    #[test]
    fn select_policy_picks_the_larger_or_the_smaller_change_or_none() {
        for (select, up, down) in
            [(Select::Max, 20, 5), (Select::Min, 12, 8), (Select::Disabled, 10, 10)]
        {
            let policies = |percent| {
                vec![
                    Policy { amount: Amount::Pods(2), period: at(15) },
                    Policy { amount: Amount::Percent(percent), period: at(15) },
                ]
            };
            let mut settings = Settings::following(n(1), n(100));
            settings.up.select = select;
            settings.up.policies = policies(100);
            settings.down.select = select;
            settings.down.policies = policies(50);
            let sync = |milli| {
                Scaler::new(settings.clone()).sync(at(0), steady(10), Ok(MilliValue(milli)))
            };
            assert_eq!(sync(90_000), Outcome::Scale(n(up)), "{select:?}");
            assert_eq!(sync(1_000), Outcome::Scale(n(down)), "{select:?}");
        }
    }

    #[test]
    fn changes_of_both_directions_count_into_a_period() {
        let mut settings = Settings::following(n(1), n(100));
        settings.down.policies = vec![Policy { amount: Amount::Pods(2), period: at(60) }];
        let mut scaler = Scaler::new(settings);
        assert_eq!(scaler.sync(at(0), steady(10), Ok(MilliValue(1_000))), Outcome::Scale(n(8)));
        assert_eq!(scaler.sync(at(15), steady(8), Ok(MilliValue(1_000))), Outcome::Scale(n(8)));
        assert_eq!(scaler.sync(at(20), steady(8), Ok(MilliValue(12_000))), Outcome::Scale(n(12)));
        // The period began with 12 - 4 + 2 replicas, so 8 may be left.
        assert_eq!(scaler.sync(at(30), steady(12), Ok(MilliValue(1_000))), Outcome::Scale(n(8)));
    }
}
