//! The series of a run as CSV: a row for each model and each variant at each sample.

use std::fmt::Write as _;

use crate::simulate::Micros;
use crate::simulate::score::ForesightEstimate;
use crate::study::execute::FirstRun;
use plimsoll_core::units::{Replicas, RequestRate};

/// The columns. Those of models are empty in rows of variants, and vice versa.
const HEAD: &str = "seconds,kind,name,arrived,held,judged,good,ttft_p95_s,itl_p95_s,desired,wanted,\
                    ready,starting,draining,running,waiting,kv_usage,carries_per_s,\
                    carries_low_per_s,carries_high_per_s,bound,arriving_per_s,need_per_s,\
                    need_held_per_s";

/// The text of the file.
pub(crate) fn csv(FirstRun { scenario, outcome }: &FirstRun) -> String {
    let mut text = format!("{HEAD}\n");
    for sample in &outcome.series {
        let at = sample.at.seconds();
        for (model, seen) in scenario.models.iter().zip(&sample.models) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                text,
                "{at},model,{},{},{},{},{},{},{},,,,,,,,,,,,,,,",
                quoted(model.key.model.as_str()),
                seen.arrived,
                seen.held,
                seen.judged,
                seen.good,
                seconds(seen.ttft_p95),
                seconds(seen.itl_p95),
            );
        }

        for (variant, seen) in scenario.variants.iter().zip(&sample.variants) {
            let desired = seen.desired.map(Replicas::count).map(|count| count.to_string());
            let _ = writeln!(
                text,
                "{at},variant,{},,,,,,,{},{},{},{},{},{},{},{},{}",
                quoted(variant.spec.key.variant.as_str()),
                desired.unwrap_or_default(),
                seen.wanted,
                seen.ready,
                seen.starting,
                seen.draining,
                seen.running,
                seen.waiting,
                seen.kv,
                belief(&seen.belief),
            );
        }
    }

    text
}

fn seconds(time: Option<Micros>) -> String {
    time.map_or(String::new(), |time| time.seconds().to_string())
}

/// The columns of a belief; empty if it is unknown.
fn belief(ForesightEstimate { carries, required }: &ForesightEstimate) -> String {
    let interval = carries.and_then(|it| it.interval);
    let bound = carries.map(|it| it.bound.label()).unwrap_or_default();

    let [rate, low, high] =
        [carries.map(|it| it.rate), interval.map(|it| it.low), interval.map(|it| it.high)]
            .map(|rate| column(rate.map(RequestRate::requests_per_second)));
    let [arriving, need, held] =
        [required.map(|it| it.arriving), required.map(|it| it.need), required.map(|it| it.held)]
            .map(column);
    format!("{rate},{low},{high},{bound},{arriving},{need},{held}")
}

fn column(rate: Option<f64>) -> String {
    rate.map(|it| it.to_string()).unwrap_or_default()
}

/// A name, quoted as in RFC 4180 if it has a comma or a quote.
fn quoted(name: &str) -> String {
    if name.contains([',', '"']) {
        return format!("\"{}\"", name.replace('"', "\"\""));
    }
    name.to_owned()
}
