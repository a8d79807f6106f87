//! The keys of `enforce`: windows, step policies and budgets.

use std::convert::Infallible;
use std::ops::RangeInclusive;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Serialize};

use crate::analyze::foresight::policy::JITTER_MAX;
use crate::decide::enforce::direction::ScalingDirection;
use crate::decide::enforce::turns::FLAP_BUDGET_MAX;
use crate::settings;
use crate::settings::problem::{Problems, join};
use crate::settings::{Setting, Written, hours, minutes, secs};
use crate::units::{Fraction, Replicas, Seconds};

/// The longest window that an HPA accepts.
const STABILIZATIONS: RangeInclusive<Duration> = Duration::ZERO..=hours(1);

/// A window of length zero is always empty, and one hour is the longest window that an HPA accepts.
const PANIC_WINDOWS: RangeInclusive<Duration> = secs(1)..=hours(1);

settings! {
    /// Speed of changes to published numbers, in the vocabulary of an HPA's `behavior`.
    pub struct Behavior {
        /// Rules for more replicas.
        scale_up: Rules = Rules::up();

        /// Rules for fewer replicas.
        scale_down: Rules = Rules::down();

        /// Time that a number stays before it changes direction.
        dwell as "min_dwell": Dwell;

        /// Direction changes per hour after which a number is no longer lowered.
        // Twelve direction changes are six scale-ups and six scale-downs. A large model that takes
        // minutes to load would spend most of that hour starting.
        flap_budget: u32 = 12, in 1..=FLAP_BUDGET_MAX;

        /// Definition of a burst of demand. Without this section, nothing counts as a burst.
        panic: Option<Panic>;

        /// Subtracts the stabilization windows of the HPA that follows desired replicas from those
        /// here, so that no time is waited for twice.
        deference as "defer_to_hpa": Deference = Deference::ToHpa;
    }

    /// Rules for one direction.
    pub struct Rules {
        /// Length of the window whose most cautious recommendation counts: the smallest for more
        /// replicas, the largest for fewer.
        stabilization_window: Seconds, in STABILIZATIONS;

        /// The policy that counts if there are several; `disabled` permits no change in this
        /// direction, except by scale to zero, overrides, bounds and limits.
        select as "select_policy": Select = Select::Max;

        /// Most change in a period. An empty list limits nothing.
        policies: Vec<StepPolicy>;
    }

    /// Most change in a period.
    pub struct StepKeys {
        /// Unit of `value`. Required.
        kind as "type": Option<StepType>;

        /// Amount of change. Required.
        value: Option<u32>, in 1..=1_000_000;

        /// Length of the period. Required.
        // The longest that an HPA accepts.
        period: Option<Seconds>, in secs(1)..=minutes(30);
    }

    /// Time that a number stays before it changes direction.
    #[derive(Copy)]
    pub struct Dwell {
        /// Time from a scale-up to the next scale-down.
        after_up as "after_scale_up": Seconds, in Duration::ZERO..=hours(1);

        /// Time from a scale-down to the next scale-up.
        after_down as "after_scale_down": Seconds, in Duration::ZERO..=hours(1);
    }

    /// Definition of a burst of demand. During a burst nothing is lowered, and more replicas are
    /// asked for without waiting for a window.
    #[derive(Copy)]
    pub struct Panic {
        /// Short window, of which the largest number that was asked for counts.
        // Knative's panic window, a tenth of its stable window.
        window: Seconds = secs(6), in PANIC_WINDOWS;

        /// Long window, of which the mean counts. A burst is over after this time without another.
        // Knative's stable window.
        stable_window: Seconds = minutes(1), in PANIC_WINDOWS;

        /// Smallest ratio of the short window to the mean of the long window in a burst.
        // Knative's panic threshold is 200 percent, and it accepts 110 to 1000.
        threshold: Fraction = 2.0, in 1.1..=10.0;
    }
}

/// The HPA windows that Plimsoll waits for a second time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Deference {
    /// None: the HPA's window is subtracted from Plimsoll's.
    #[default]
    ToHpa,
    /// All of them, so the two windows add up.
    None,
}

settings! { switch: Deference, Deference::ToHpa, Deference::None }

/// The policy that counts if there are several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Select {
    /// The one that allows the largest change.
    #[default]
    Max,
    /// The one that allows the smallest change.
    Min,
    /// None: the number does not move in this direction.
    Disabled,
}

/// The unit of a step policy's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum StepType {
    /// Replicas.
    Pods,
    /// Percent of the replicas at the start of the period.
    Percent,
}

settings! { plain: Select; StepType; }

/// The largest change in a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepPolicy {
    /// The amount.
    pub amount: Amount,
    /// Length of the period.
    pub period: Seconds,
}

/// An amount of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// A number of replicas.
    Pods(u32),
    /// A percentage of the replicas at the start of the period.
    Percent(u32),
}

// === impl Behavior, Rules, StepPolicy, Amount ===

impl Behavior {
    /// The longest time for which a rule reads past recommendations.
    pub(super) fn longest_window(&self) -> Seconds {
        let up = self.scale_up.stabilization_window;
        let down = self.scale_down.stabilization_window;
        let panic = self.panic.map_or(Seconds::ZERO, |it| it.stable_window);
        let jitter = Seconds::new(JITTER_MAX.as_secs_f64()).unwrap_or_default();
        jitter.max(panic).max(up).max(down)
    }

    pub(super) fn longest_period(&self) -> Seconds {
        self.scale_up
            .policies
            .iter()
            .chain(&self.scale_down.policies)
            .fold(Seconds::ZERO, |longest, policy| longest.max(policy.period))
    }
}

impl Rules {
    /// An HPA's defaults for scale-up: no delay, and per loop period the larger of four replicas
    /// and a doubling.
    fn up() -> Self {
        let period = Seconds::literal(15);
        let policies =
            [Amount::Pods(4), Amount::Percent(100)].map(|amount| StepPolicy { amount, period });
        Self { policies: policies.into(), ..Self::default() }
    }

    /// An HPA's defaults for scale-down: after the recommendations of five minutes agree.
    fn down() -> Self {
        let period = Seconds::literal(15);
        Self {
            stabilization_window: Seconds::literal(300),
            policies: vec![StepPolicy { amount: Amount::Percent(100), period }],
            ..Self::default()
        }
    }
}

impl Setting for StepPolicy {
    type Written = Written<StepKeys>;
    type Plain = Self;
    type Allowed = Infallible;

    fn declared(plain: Self) -> Self {
        plain
    }

    fn read(
        written: &Self::Written,
        _: Option<&Self>,
        _: Option<&Infallible>,
        path: &str,
        problems: &mut Problems,
    ) -> Option<Self> {
        let StepKeys { kind, value, period } = settings::resolve(Some(written), path, problems);
        let missing = [
            ("type", written.kind.is_none()),
            ("value", written.value.is_none()),
            ("period", written.period.is_none()),
        ];
        for (key, _) in missing.iter().filter(|(_, missing)| *missing) {
            problems.missing(join(path, key), "is missing");
        }

        let amount = match kind? {
            StepType::Pods => Amount::Pods(value?),
            StepType::Percent => Amount::Percent(value?),
        };
        Some(Self { amount, period: period? })
    }

    fn written(&self) -> Option<Self::Written> {
        let (kind, value) = match self.amount {
            Amount::Pods(value) => (StepType::Pods, value),
            Amount::Percent(value) => (StepType::Percent, value),
        };
        let step = StepKeys { kind: Some(kind), value: Some(value), period: Some(self.period) };
        step.written()
    }

    fn schema(_: Option<&Self>, _: Option<&Infallible>, generator: &mut SchemaGenerator) -> Schema {
        StepKeys::schema(None, None, generator)
    }
}

impl Amount {
    /// Returns the replicas that this amount allows, given the replicas at the start of a period.
    /// Percentages round in favor of a change, as an HPA's do.
    pub(super) fn from(self, start: Replicas, direction: ScalingDirection) -> Replicas {
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

        Replicas::capped(moved)
    }
}
