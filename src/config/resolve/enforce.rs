//! How fast numbers may move, and how often they may turn.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::analyze::foresight::policy::Window;
use crate::config::check::{Checks, Durations};
use crate::config::file;
use crate::config::problem::join;
use crate::config::resolve::seconds;
use crate::config::written::WrittenDuration;
use crate::decide::enforce::{
    Amount, Behavior, Deference, Dwell, Panic, Rules, Select, StepPolicy, TURNS_MAX,
};
use crate::units::{Fraction, Seconds};

const HOUR: Duration = Duration::from_hours(1);

/// The longest window and the longest period that an HPA accepts.
const STABILIZATIONS: Durations = Duration::ZERO..=HOUR;
const PERIODS: Durations = Duration::from_secs(1)..=Duration::from_mins(30);
/// The period of the HPA's loop.
const PERIOD: Duration = Duration::from_secs(15);
/// What an HPA waits before it scales down.
const SCALE_DOWN_STABILIZATION: Duration = Duration::from_mins(5);

/// Six times up and down again in an hour: a large model that takes minutes to load would be
/// starting for most of it.
const FLAP_BUDGET: u32 = 12;

/// Knative's panic window, a tenth of its stable window.
const PANIC_WINDOW: Duration = Duration::from_secs(6);
/// Knative's stable window.
const PANIC_STABLE_WINDOW: Duration = Duration::from_mins(1);
/// Knative's panic threshold, 200 per cent.
const PANIC_THRESHOLD: f64 = 2.0;
/// Windows of no length see nothing, and an hour is the longest that an HPA accepts.
const PANIC_WINDOWS: Durations = Duration::from_secs(1)..=HOUR;
/// Knative accepts 110 to 1000 per cent.
const PANIC_THRESHOLDS: RangeInclusive<f64> = 1.1..=10.0;

/// Whether a lower number that `foresight` alone finds, which has held by itself what was needed,
/// waits for the window of scaling down, too: where somebody has written one.
pub(super) fn window(section: &file::Enforce) -> Window {
    let written = section.scale_down.as_ref().and_then(|rules| rules.stabilization_window);
    if written.is_some() { Window::Waited } else { Window::Replaced }
}

/// The rules that published numbers follow.
pub(super) fn resolve(section: file::Enforce, checks: &mut Checks<'_>) -> Behavior {
    let file::Enforce { scale_up, scale_down, min_dwell, flap_budget, panic, defer_to_hpa } =
        section;
    let file::Dwell { after_scale_up, after_scale_down } = min_dwell.unwrap_or_default();
    let mut dwell = |key, written| {
        let path = join("enforce.min_dwell", key);
        checks.duration(&path, written, &STABILIZATIONS).map_or(Seconds::ZERO, seconds)
    };
    let dwell = Dwell {
        after_up: dwell("after_scale_up", after_scale_up),
        after_down: dwell("after_scale_down", after_scale_down),
    };
    let most = u32::try_from(TURNS_MAX).unwrap_or(u32::MAX);
    let flap_budget = checks.number("enforce.flap_budget", flap_budget, &(1..=most));
    Behavior {
        scale_up: rules("enforce.scale_up", scale_up, &scale_up_default(), checks),
        scale_down: rules("enforce.scale_down", scale_down, &scale_down_default(), checks),
        dwell,
        flap_budget: flap_budget.unwrap_or(FLAP_BUDGET),
        panic: panic.map(|section| resolve_panic(&section, checks)),
        deference: if defer_to_hpa.unwrap_or(true) { Deference::ToHpa } else { Deference::None },
    }
}

fn resolve_panic(section: &file::Panic, checks: &mut Checks<'_>) -> Panic {
    let file::Panic { window, stable_window, threshold } = *section;
    let path = |key| join("enforce.panic", key);
    let window = checks.duration(&path("window"), window, &PANIC_WINDOWS).unwrap_or(PANIC_WINDOW);
    let stable_window = checks
        .duration(&path("stable_window"), stable_window, &PANIC_WINDOWS)
        .unwrap_or(PANIC_STABLE_WINDOW);
    if window >= stable_window {
        let rule = format!(
            "must be shorter than enforce.panic.stable_window, which is {}",
            WrittenDuration(stable_window)
        );
        checks.problems.error(path("window"), rule, WrittenDuration(window));
    }
    let threshold = checks.number(&path("threshold"), threshold, &PANIC_THRESHOLDS);
    Panic {
        window: seconds(window),
        stable_window: seconds(stable_window),
        threshold: Fraction::new(threshold.unwrap_or(PANIC_THRESHOLD)).unwrap_or(Fraction::ONE),
    }
}

/// What may be added in a period: a few replicas at once, and doubling beyond.
fn scale_up_default() -> Rules {
    let policy = |amount| StepPolicy { amount, period: seconds(PERIOD) };
    Rules {
        stabilization_window: Seconds::ZERO,
        select: Select::Max,
        policies: vec![policy(Amount::Pods(4)), policy(Amount::Percent(100))],
    }
}

/// What may be taken away in a period: everything, after the window.
fn scale_down_default() -> Rules {
    Rules {
        stabilization_window: seconds(SCALE_DOWN_STABILIZATION),
        select: Select::Max,
        policies: vec![StepPolicy { amount: Amount::Percent(100), period: seconds(PERIOD) }],
    }
}

fn rules(
    path: &str,
    section: Option<file::Rules>,
    default: &Rules,
    checks: &mut Checks<'_>,
) -> Rules {
    let file::Rules { stabilization_window, select_policy, policies } = section.unwrap_or_default();
    let window = join(path, "stabilization_window");
    let policies_path = join(path, "policies");
    Rules {
        stabilization_window: checks
            .duration(&window, stabilization_window, &STABILIZATIONS)
            .map_or(default.stabilization_window, seconds),
        select: match select_policy {
            Some(file::SelectPolicy::Max) => Select::Max,
            Some(file::SelectPolicy::Min) => Select::Min,
            Some(file::SelectPolicy::Disabled) => Select::Disabled,
            None => default.select,
        },
        policies: policies.map_or_else(
            || default.policies.clone(),
            |written| {
                written
                    .iter()
                    .enumerate()
                    .filter_map(|(at, policy)| Some((at, policy.clone()?)))
                    .filter_map(|(at, policy)| {
                        step_policy(&format!("{policies_path}[{at}]"), &policy, checks)
                    })
                    .collect()
            },
        ),
    }
}

fn step_policy(
    path: &str,
    written: &file::StepPolicy,
    checks: &mut Checks<'_>,
) -> Option<StepPolicy> {
    let file::StepPolicy { r#type, value, period } = written;
    let missing =
        [("type", r#type.is_none()), ("value", value.is_none()), ("period", period.is_none())];
    for (key, missing) in missing {
        if missing {
            checks.problems.missing(join(path, key), "is missing");
        }
    }
    let value = checks.number(&join(path, "value"), *value, &(1..=1_000_000));
    let period = checks.duration(&join(path, "period"), *period, &PERIODS);
    let amount = match (*r#type)? {
        file::StepType::Pods => Amount::Pods(value?),
        file::StepType::Percent => Amount::Percent(value?),
    };
    Some(StepPolicy { amount, period: seconds(period?) })
}
