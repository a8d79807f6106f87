//! The objectives of a policy, which can differ from those by which a scenario judges its requests.

use std::time::Duration;

use serde_json::{Map, Value, json};

use crate::simulate::Micros;
use crate::simulate::scenario::{Model, Slo};
use crate::study::resolve::variants::Models;
use plimsoll_daemon::config::check::Checks;
use plimsoll_daemon::config::written::WrittenDuration;

/// The name of an objective, and its value in a model's SLO.
type Objective = (&'static str, fn(&Slo) -> Micros);

const OBJECTIVES: [Objective; 3] = [
    ("ttft", |slo| slo.ttft),
    ("ttft_per_token", |slo| slo.ttft_per_token),
    ("itl", |slo| slo.itl),
];

/// Adds the objectives by which requests are judged to a policy that sets none, if all models have
/// the same. Warns if the policy sets others, because it then sizes for objectives that the
/// scenario does not judge by.
pub(crate) fn shared(
    mut words: Map<String, Value>,
    models: &Models,
    checks: &mut Checks<'_>,
) -> Map<String, Value> {
    let resolved: Vec<&Model> = models.resolved.iter().flatten().collect();
    for (key, of) in OBJECTIVES {
        let Some(first) = resolved.first().map(|model| of(&model.slo)) else { break };
        let written = words.get("capacity").and_then(|it| it.get("slo")?.get(key));
        match written.map(|it| it.as_str().and_then(WrittenDuration::parse)) {
            Some(Some(written)) => {
                let objective = Micros::from_duration(written.0);
                if let Some(model) = resolved.iter().find(|model| of(&model.slo) != objective) {
                    let judged = WrittenDuration(Duration::from_micros(of(&model.slo).micros()));
                    let name = &model.key.model;
                    let rule = format!(
                        "is {written}, so replicas are sized for that, and the requests to {name} \
                         are judged by {judged}, the {key} of its slo"
                    );
                    checks.problems.warning(format!("policy.capacity.slo.{key}"), rule);
                }
            }
            // An objective of another type is reported where the policy is resolved.
            Some(None) => {}
            None if resolved.iter().any(|model| of(&model.slo) != first) => {}
            None => {
                let objective = WrittenDuration(Duration::from_micros(first.micros()));
                fill(&mut words, key, json!(objective.to_string()));
            }
        }
    }

    let slo = words.get("capacity").and_then(|it| it.get("slo"));
    let has_more = slo.is_some_and(|slo| slo.get("ttft_per_token").is_some());
    if let Some(first) = resolved.first().filter(|_| has_more)
        && resolved.iter().all(|model| model.slo.long_prompt == first.slo.long_prompt)
    {
        fill(&mut words, "long_prompt", json!(first.slo.long_prompt));
    }

    words
}

fn fill(words: &mut Map<String, Value>, key: &str, value: Value) {
    let capacity = words.entry("capacity").or_insert_with(|| json!({}));
    let Some(capacity) = capacity.as_object_mut() else { return };
    let slo = capacity.entry("slo").or_insert_with(|| json!({}));
    let Some(slo) = slo.as_object_mut() else { return };
    slo.entry(key).or_insert(value);
}
