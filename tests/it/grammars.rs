//! Label selectors and quantities are read as Kubernetes reads them: the inputs are what the fuzzer
//! has found, the answers those of Kubernetes' own libraries (tests/data/kubernetes/README.md).

use std::collections::BTreeMap;

use plimsoll::publish::quantity::{ParseQuantityError, Quantity};
use plimsoll::publish::selector::Selector;
use serde_json::Value;

/// The labels that the selectors were tried on.
const LABELS: [&[(&str, &str)]; 4] = [
    &[],
    &[("variant", "a"), ("namespace", "shop"), ("size", "10")],
    &[("variant", ""), ("in", "out"), ("example.com/role", "both")],
    &[("a", "a"), ("b", "-1"), ("c", "9223372036854775807")],
];

/// What Kubernetes said of each input; `None` where it refused it.
fn answers(name: &str) -> Vec<(String, Option<Value>)> {
    let path = format!("{}/tests/data/kubernetes/{name}.jsonl", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(path).unwrap();
    let answers = text.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        let accepted = !line["canonical"].is_null();
        (line["input"].as_str().unwrap().to_owned(), accepted.then_some(line))
    });
    answers.collect()
}

/// Kubernetes ends a selector at a NUL, wherever it is; here it is refused, as no label has one.
#[test]
fn selectors_are_accepted_and_match_as_in_kubernetes() {
    let mut wrong = Vec::new();
    let answers = answers("selector");
    for (input, answer) in &answers {
        let read = input.parse::<Selector>().ok();
        let matches = read.map(|selector| {
            LABELS.map(|labels| {
                let labels = labels.iter().map(|(key, value)| (*key, (*value).to_owned()));
                Value::Bool(selector.matches(&labels.collect::<BTreeMap<_, _>>()))
            })
        });
        if input.contains('\0') {
            assert_eq!(matches, None, "{input:?}");
            continue;
        }
        let want = answer.as_ref().map(|answer| answer["matches"].as_array().unwrap().clone());
        if matches.as_ref().map(|matches| matches.to_vec()) != want {
            wrong.push(format!("{input:?}: {matches:?}, and in Kubernetes {want:?}"));
        }
    }
    assert!(answers.len() > 200, "{} selectors", answers.len());
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}

/// Quantities without a digit are refused here, and Kubernetes takes some of them for 0. Less than a
/// thousandth below zero is 0 here, and in Kubernetes a thousandth below.
const OTHERWISE: [&str; 3] = ["E", "-5n", "-8e-8"];

/// What does not fit into 64 bits is refused here; Kubernetes takes it and computes something else.
#[test]
fn quantities_are_accepted_and_as_large_as_in_kubernetes() {
    let mut wrong = Vec::new();
    let answers = answers("quantity");
    for (input, answer) in &answers {
        if OTHERWISE.contains(&input.as_str()) {
            continue;
        }
        let want = answer.as_ref().map(|answer| answer["canonical"].as_str().unwrap());
        let agrees = match input.parse::<Quantity>() {
            Ok(quantity) => want == Some(&quantity.milli().to_string()),
            Err(ParseQuantityError::OutOfRange) => want.is_some(),
            Err(ParseQuantityError::Malformed) => want.is_none(),
        };
        if !agrees {
            wrong.push(format!(
                "{input:?}: {:?}, and in Kubernetes {want:?}",
                input.parse::<Quantity>()
            ));
        }
    }
    assert!(answers.len() > 40, "{} quantities", answers.len());
    assert!(wrong.is_empty(), "{} differ:\n{}", wrong.len(), wrong.join("\n"));
}
