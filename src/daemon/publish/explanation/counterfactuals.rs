//! Counterfactuals as JSON and in words.

use schemars::JsonSchema;
use serde::Serialize;

use plimsoll_core::fleet::Accelerator;
use plimsoll_core::observe::overrides::Order;
use plimsoll_core::pipeline::counterfactual::{
    ChangeAnswer, ChangedInput, LoadAnswer, LoadMeasure, LoadThreshold, Unanswered,
};
use plimsoll_core::units::{Replicas, Seconds};

/// The loads above and below which the desired replicas change.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LoadAnswer")]
pub(super) struct LoadLine {
    /// `arrivals` in requests per second, or `kv_usage` as a share of the cache, with queues in
    /// proportion.
    measure: &'static str,
    /// The load now.
    now: f64,
    /// The lowest load at which more replicas than the desired ones settle; below `now` while a
    /// scale-up waits. Null if there is none within reach.
    up: Option<ThresholdLine>,
    /// The highest load at which fewer replicas than the desired ones settle; above `now` while a
    /// scale-down waits. Null if there is none within reach.
    down: Option<ThresholdLine>,
    /// All of this as a sentence.
    pub(super) text: String,
}

/// A load, and the number at it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LoadThreshold")]
struct ThresholdLine {
    /// The load.
    load: f64,
    /// The desired replicas at that load, once every wait has ended.
    desired: u32,
}

/// A changed input, and the number with it.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Change")]
pub(super) struct ChangeLine {
    /// The input: `ttft`, `itl`, `accelerators`, `budget`, `override`, `maximum` or
    /// `minimum`.
    input: &'static str,
    /// The limit that is changed; null of another input.
    limit: Option<String>,
    /// The unit of the values: `s`, `replicas`, `accelerators` or `per_hour`.
    unit: &'static str,
    /// The value in effect; null of a limit, and of a pause.
    from: Option<f64>,
    /// The other value; of a limit, the amount in addition. Null if the input is taken away.
    to: Option<f64>,
    /// The desired replicas with it, once every wait has ended.
    desired: u32,
    /// All of this as a sentence.
    pub(super) text: String,
}

/// The reason why a search has no answer.
pub(super) const CUT_SHORT: &str =
    "the search was cut short, as it took too long or too many steps";

/// The reason why no load is known, in words.
pub(super) const fn why(why: &Unanswered) -> &'static str {
    match why {
        Unanswered::NoDecision => "there are no desired replicas",
        Unanswered::NoData => "the desired replicas stay as before, because data is missing",
        Unanswered::Overridden => "a pin or a pause decides",
        Unanswered::NoLoad => "no requests arrive",
        Unanswered::OtherAnalyzer => {
            "the analyzers that decide measure it in a unit that cannot be changed afterward"
        }
        Unanswered::TooCostly => CUT_SHORT,
    }
}

// === impl LoadLine ===

impl LoadLine {
    pub(super) fn new(answer: &LoadAnswer) -> Self {
        let LoadAnswer { measure, now, up, down } = *answer;
        Self {
            measure: match measure {
                LoadMeasure::Arrivals => "arrivals",
                LoadMeasure::KvUsage => "kv_usage",
            },
            now,
            up: up.map(ThresholdLine::new),
            down: down.map(ThresholdLine::new),
            text: text(answer),
        }
    }
}

impl ThresholdLine {
    fn new(threshold: LoadThreshold) -> Self {
        Self { load: threshold.load, desired: threshold.desired.count() }
    }
}

fn text(answer: &LoadAnswer) -> String {
    let LoadAnswer { measure, now, up, down } = *answer;
    let amount = |load: f64| match measure {
        LoadMeasure::Arrivals => format!("{load:.2} requests/s"),
        LoadMeasure::KvUsage => format!("{:.1}% KV cache usage", 100.0 * load),
    };

    let more = match up {
        Some(LoadThreshold { load, desired }) => {
            format!("Scales up to {desired} above {}", amount(load))
        }
        None => "No load in the search range scales it up".to_owned(),
    };
    let fewer = match down {
        Some(LoadThreshold { load, desired }) => {
            format!("down to {desired} below {}", amount(load))
        }
        None => "no load in the search range scales it down".to_owned(),
    };
    format!("{more}, now {}; {fewer}", amount(now))
}

// === impl ChangeLine ===

impl ChangeLine {
    pub(super) fn new(answer: &ChangeAnswer) -> Self {
        let ChangeAnswer { input, desired } = answer;
        let (name, unit) = match input {
            ChangedInput::Ttft { .. } => ("ttft", "s"),
            ChangedInput::Itl { .. } => ("itl", "s"),
            ChangedInput::Accelerators { .. } => ("accelerators", "accelerators"),
            ChangedInput::Budget { .. } => ("budget", "per_hour"),
            ChangedInput::NoOverride { .. } => ("override", "replicas"),
            ChangedInput::NoMaximum { .. } => ("maximum", "replicas"),
            ChangedInput::Minimum { .. } => ("minimum", "replicas"),
        };

        let replicas = |count: &Replicas| f64::from(count.count());
        let (limit, from, to) = match input {
            ChangedInput::Ttft { from, to } | ChangedInput::Itl { from, to } => {
                (None, Some(from.seconds()), Some(to.seconds()))
            }
            ChangedInput::Accelerators { limit, more, .. } => {
                (Some(limit.to_string()), None, Some(f64::from(more.count())))
            }
            ChangedInput::Budget { limit, more } => {
                (Some(limit.to_string()), None, Some(more.per_hour()))
            }
            ChangedInput::NoOverride { order: Order::Pin(from) } => {
                (None, Some(replicas(from)), None)
            }
            ChangedInput::NoOverride { order: Order::Pause } => (None, None, None),
            ChangedInput::NoMaximum { from } => (None, Some(replicas(from)), None),
            ChangedInput::Minimum { from, to } => (None, Some(replicas(from)), Some(replicas(to))),
        };

        Self {
            input: name,
            limit,
            unit,
            from,
            to,
            desired: desired.count(),
            text: sentence(input, *desired),
        }
    }
}

/// Digits of milliseconds after the point, at most.
const DIGITS_MAX: usize = 2;

fn sentence(input: &ChangedInput, desired: Replicas) -> String {
    match input {
        ChangedInput::Ttft { from, to } => {
            let [to, now] = milliseconds([*to, *from]);
            format!("A TTFT objective of {to} (now {now}) would make {desired} enough")
        }
        ChangedInput::Itl { from, to } => {
            let [to, now] = milliseconds([*to, *from]);
            format!("An ITL objective of {to} (now {now}) would make {desired} enough")
        }
        ChangedInput::Accelerators { limit, kind, more } => {
            let name = kind.as_ref().map_or("accelerator", Accelerator::as_str);
            format!(
                "{more} more {name} in limit {limit} would allow {desired}",
                more = more.count()
            )
        }
        ChangedInput::Budget { limit, more } => {
            format!("{:.2} more per hour in limit {limit} would allow {desired}", more.per_hour())
        }
        ChangedInput::NoOverride { order } => {
            format!("Without the {}, {desired} would be desired", order.label())
        }
        ChangedInput::NoMaximum { from } => {
            format!("Without the maximum of {from}, {desired} would be desired")
        }
        ChangedInput::Minimum { from, to } => {
            format!("A minimum of {to} instead of {from} would allow {desired}")
        }
    }
}

/// Two times with as many digits as show that they differ.
fn milliseconds(times: [Seconds; 2]) -> [String; 2] {
    let least = usize::from(times.iter().any(|time| time.seconds() < 0.01));
    let mut written = (least..=DIGITS_MAX)
        .map(|digits| times.map(|time| format!("{:.digits$} ms", 1000.0 * time.seconds())));
    written.clone().find(|[a, b]| a != b).or_else(|| written.next_back()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_told_in_milliseconds_with_as_many_digits_as_they_differ_in() {
        let told = |a, b| milliseconds([a, b].map(|it| Seconds::new(it).unwrap()));
        assert_eq!(told(0.6, 1.5), ["600 ms", "1500 ms"]);
        assert_eq!(told(0.0045, 0.02), ["4.5 ms", "20.0 ms"]);
        assert_eq!(told(0.0343, 0.034), ["34.3 ms", "34.0 ms"]);
        assert_eq!(told(0.034, 0.034), ["34.00 ms", "34.00 ms"]);
    }
}
