//! Answers of Prometheus' query API.

use plimsoll::collect::prometheus::{QueryOutcome, decode};
use serde_json::Value;

/// The series limit, low enough for the fuzzer to exceed it.
const LIMIT: usize = 8;

/// The longest failure text, including the truncation mark; it is logged as one line.
const DETAIL_MAX: usize = 403;

type Labels = Vec<(Vec<u8>, Vec<u8>)>;

/// Decodes a response. The result must match a reader that keeps the whole JSON in memory, and a
/// rejection must have a reason.
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
            assert!(
                failure.outcome != QueryOutcome::Truncated || !is_json,
                "whole, but called cut"
            );
            return;
        }
    };
    assert_eq!(answer.series, shown.len());
    assert_eq!(answer.samples, shown.iter().map(|(_, samples)| samples).sum::<usize>());
    assert!(answer.warnings.is_empty() || answer.is_partial, "a warning, and yet whole");
    // A JSON tree rejects parts that the decoder skips, such as a number beyond the range.
    let Ok(tree) = serde_json::from_slice::<Value>(input) else { return };
    // For a duplicate key, a tree keeps the last value, while the decoder adds them up.
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
