//! Reader of WVA's parser of engine arguments.

use plimsoll::analyze::engine_args::Container;
use plimsoll::units::Tokens;
use serde_json::Value;

use crate::reference::wva::engine_args::parse;

use super::Outcome;
use super::tokens::{arguments, close, list, number, text};

/// `engine_args`: the containers of a pod.
pub(super) fn containers(case: &Value) -> Outcome {
    let (input, expected) = (&case["input"], &case["expected"]);
    let containers: Vec<Container> = list(input, "containers").iter().map(container).collect();
    let mut ours = parse(&containers);
    // What is not written there is a number as well.
    ours.sequences = Some(ours.sequences_at_once());
    let theirs = &expected["engine_params"];
    if number(theirs, "block_size_tokens") <= 0.0 {
        return Outcome::Differs("a block holds at least one token");
    }
    if ours != arguments(theirs) {
        return Outcome::Failed(format!("{ours:?}, not {theirs}"));
    }
    let fields = [
        ("record_total_kv_capacity_tokens", ours.kv_capacity().unwrap_or_default()),
        ("record_effective_capacity_tokens", ours.tokens_per_step()),
    ];
    for (name, value) in fields {
        if !close(value.tokens(), number(expected, name)) {
            return Outcome::Failed(format!("{name} {}, not {}", value.tokens(), expected[name]));
        }
    }
    let step = Tokens::new(number(theirs, "effective_max_batched_tokens"));
    if step == Some(ours.tokens_per_step()) {
        Outcome::Passed
    } else {
        Outcome::Failed(format!("{:?} a step, not {step:?}", ours.tokens_per_step()))
    }
}

fn container(from: &Value) -> Container {
    let words = |name: &str| -> Vec<String> {
        list(from, name).iter().map(|word| word.as_str().unwrap().to_owned()).collect()
    };
    let environment = from.get("env").and_then(Value::as_object).into_iter().flatten();
    Container {
        image: text(from, "image"),
        command: words("command"),
        args: words("args"),
        environment: environment
            .map(|(name, value)| (name.clone(), value.as_str().unwrap().to_owned()))
            .collect(),
        ..Container::default()
    }
}
