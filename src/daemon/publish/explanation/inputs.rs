//! The inputs of a decision with their ages.

use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Serialize;

use crate::publish::PublishedVariant;
use plimsoll_core::decide::limit::{LimitReading, LimitReport};
use plimsoll_core::observe::{DemandSignal, Freshness, Inputs, SignalValue};
use plimsoll_core::units::Seconds;

/// One input of a decision.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "Input")]
pub(super) struct InputLine {
    /// The kind: `replica_list`, `replicas`, `signal` or `limit`.
    input: &'static str,
    /// The name of a signal or a limit; null of the others.
    name: Option<String>,
    /// `fresh` if it may be used, `stale` if it is too old to be used or its last value is held,
    /// and `never` if it was never read.
    state: &'static str,
    /// Its age in seconds; null if it was never read, and of a limit that is `fresh`.
    age_seconds: Option<f64>,
    /// All of this as a sentence.
    text: String,
}

/// Returns the inputs of the last decision on a variant.
pub(super) fn lines(
    now: Timestamp,
    variant: &PublishedVariant,
    inputs: &Inputs,
    limits: &[LimitReport],
) -> Vec<InputLine> {
    let mut lines = vec![list(now, variant)];
    lines.extend(replicas(variant));
    let signals = inputs.demand.get(&variant.spec.model_key()).into_iter().flatten();
    lines.extend(signals.map(|it| signal(now, it)));
    lines.extend(limits.iter().map(limit));
    lines
}

fn list(now: Timestamp, variant: &PublishedVariant) -> InputLine {
    let at = variant.observation.listed_at;
    let age = at.and_then(|at| Seconds::from_span(now.duration_since(at))).map(Seconds::seconds);
    let count = variant.observation.replicas.len();

    InputLine {
        input: "replica_list",
        name: None,
        state: if at.is_some() { "fresh" } else { "never" },
        age_seconds: age,
        text: match age {
            Some(age) => format!("{} listed, as of {age:.1} s ago", are(count)),
            None => "the replicas have not been listed".to_owned(),
        },
    }
}

/// The scrapes of the replicas: one line for each state, with the oldest age.
fn replicas(variant: &PublishedVariant) -> Vec<InputLine> {
    let states = variant.observation.replicas.iter().map(|replica| match replica.freshness {
        Freshness::Fresh { age } => ("fresh", Some(age.seconds())),
        Freshness::Stale { age, .. } => ("stale", Some(age.seconds())),
        Freshness::Never { .. } => ("never", None),
    });
    let all: Vec<(&'static str, Option<f64>)> = states.collect();

    let mut lines = Vec::new();
    for state in ["fresh", "stale", "never"] {
        let of: Vec<Option<f64>> =
            all.iter().filter(|(it, _)| *it == state).map(|(_, age)| *age).collect();
        if of.is_empty() {
            continue;
        }

        let oldest = of.iter().flatten().copied().reduce(f64::max);
        let count = of.len();
        lines.push(InputLine {
            input: "replicas",
            name: None,
            state,
            age_seconds: oldest,
            text: match oldest {
                Some(age) => format!("{} {state}, oldest scrape {age:.1} s ago", are(count)),
                None => format!("{} without any scrape", are(count)),
            },
        });
    }

    lines
}

/// So many replicas, with the verb.
fn are(count: usize) -> String {
    if count == 1 { "1 replica is".to_owned() } else { format!("{count} replicas are") }
}

fn signal(now: Timestamp, signal: &DemandSignal) -> InputLine {
    let age = |at: Timestamp| Seconds::from_span(now.duration_since(at)).map(Seconds::seconds);
    let name = &signal.signal;
    let (read, text) = match signal.seen {
        SignalValue::Never => (None, format!("wake signal {name} has never been read")),
        SignalValue::NoNumber(at) => {
            (age(at), format!("wake signal {name} has no value for the model"))
        }
        SignalValue::Number(requests, at) => {
            (age(at), format!("wake signal {name} is {:.0}", requests.requests()))
        }
    };

    let state = match read {
        None => "never",
        Some(age) if age >= DemandSignal::STALE.seconds() => "stale",
        Some(_) => "fresh",
    };
    InputLine { input: "signal", name: Some(name.clone()), state, age_seconds: read, text }
}

fn limit(limit: &LimitReport) -> InputLine {
    let name = limit.name.to_string();
    let (state, age, text) = match limit.reading {
        LimitReading::Known => ("fresh", None, format!("limit {name} is known")),
        LimitReading::Held(age) => {
            let seconds = age.seconds();
            ("stale", Some(seconds), format!("limit {name} was last read {seconds:.0} s ago"))
        }
        LimitReading::Unread => ("never", None, format!("limit {name} has never been read")),
    };

    InputLine { input: "limit", name: Some(name), state, age_seconds: age, text }
}
