//! Answers of Prometheus' query API.

use plimsoll::collect::prometheus::{Outcome, decode};
use serde_json::Value;

/// Few enough that the fuzzer can write more.
const LIMIT: usize = 8;

/// The longest text of a failure, with the mark that it was cut; it is a line of the log.
const DETAIL_MAX: usize = 403;

type Labels = Vec<(Vec<u8>, Vec<u8>)>;

/// Reads an answer. What is read is what a reader sees that keeps all of the JSON in memory, and a
/// refusal says why.
pub fn check(input: &[u8]) {
    let mut shown: Vec<(Labels, usize)> = Vec::new();
    let read = decode(input, LIMIT, &mut |labels, points| {
        let own = |label: &plimsoll::observe::engine::Label<'_>| {
            (label.name.to_vec(), label.value.to_vec())
        };
        shown.push((labels.iter().map(own).collect(), points.len()));
    });
    assert!(shown.len() <= LIMIT, "more series than were allowed");
    let answer = match read {
        Ok(answer) => answer,
        Err(failure) => {
            assert!(!failure.detail.is_empty() && failure.detail.len() <= DETAIL_MAX);
            let is_json = serde_json::from_slice::<Value>(input).is_ok();
            assert!(failure.outcome != Outcome::Truncated || !is_json, "whole, but called cut");
            return;
        }
    };
    assert_eq!(answer.series, shown.len());
    assert_eq!(answer.samples, shown.iter().map(|(_, samples)| samples).sum::<usize>());
    assert!(answer.warnings.is_empty() || answer.is_partial, "a warning, and yet whole");
    // A tree refuses what we skip, such as a number that is larger than all others.
    let Ok(tree) = serde_json::from_slice::<Value>(input) else { return };
    // Of a key that comes twice a tree keeps the last, and ours the sum.
    let text = String::from_utf8_lossy(input);
    if text.contains("\\u")
        || ["data\"", "result\""].iter().any(|key| text.matches(key).count() > 1)
    {
        return;
    }
    let series = tree["data"]["result"].as_array().map_or(0, Vec::len);
    assert_eq!(answer.series, series, "series");
    for ((labels, samples), one) in
        shown.iter().zip(tree["data"]["result"].as_array().into_iter().flatten())
    {
        assert!(*samples >= one["values"].as_array().map_or(0, Vec::len), "a sample is lost");
        for (name, value) in one["metric"].as_object().into_iter().flatten() {
            let own =
                (name.as_bytes().to_vec(), value.as_str().unwrap_or_default().as_bytes().to_vec());
            assert!(labels.contains(&own), "the label {name} is lost");
        }
    }
}
