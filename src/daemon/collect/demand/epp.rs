//! The queue of an endpoint picker: what the flow control of the Gateway API inference extension
//! and of llm-d says of requests that no replica has yet.
//!
//! Its metrics have had four prefixes, and releases write several of them side by side for a while:
//! the first of this list that is on a page counts, and they are never added. They are there only
//! with the feature gate `flowControl`.
//!
//! A model has a series from its first request on. Where flow control is on, a model without a
//! series has never queued, which is nothing; where no metric of it is on the page, nobody can say.
//! After a thousand names, further models are counted together as `other`, and while something of
//! these queues nobody can say of a model without a series either.

use std::collections::BTreeMap;

use crate::collect::demand::{Amounts, Rest};
use crate::collect::exposition::samples::Sample;
use plimsoll_core::units::Requests;

/// The prefixes, the newest first: llm-d-router since 0.9, two names of before, and the inference
/// extension up to 1.5.
const PREFIXES: [&str; 4] = [
    "llm_d_epp_flow_control_",
    "llm_d_router_epp_flow_control_",
    "llm_d_inference_scheduler_flow_control_",
    "inference_extension_flow_control_",
];

/// The gauge of requests that queue, after the prefix.
const QUEUE: &str = "queue_size";

/// The labels with the model, the more exact one first: the name after rewriting, and as asked for.
const MODEL: [&str; 2] = ["target_model_name", "model_name"];

/// What stands for all models beyond the picker's limit of names.
const OTHER: &str = "other";

/// Whether a metric is one of flow control.
pub(crate) fn wants(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// What queues of each model; `None` where the page has no metric of flow control.
pub(crate) fn read(samples: &[Sample]) -> Option<Amounts> {
    let is_there = |prefix: &&&str| samples.iter().any(|sample| sample.name.starts_with(**prefix));
    let prefix = PREFIXES.iter().find(is_there)?;
    let mut models: BTreeMap<String, Option<Requests>> = BTreeMap::new();
    let is_queue = |sample: &&Sample| sample.name.strip_prefix(prefix) == Some(QUEUE);
    for sample in samples.iter().filter(is_queue) {
        let mut names = MODEL.iter().filter_map(|label| sample.labels.get(*label));
        let Some(name) = names.find(|name| !name.is_empty()) else { continue };
        let amount = Requests::new(sample.value);
        let known = models.entry(name.clone()).or_insert(Some(Requests::ZERO));
        *known = known.zip(amount).map(|(a, b)| a + b);
    }
    let others = models.remove(OTHER);
    let rest = if others.is_none_or(|it| it == Some(Requests::ZERO)) {
        Rest::Nothing
    } else {
        Rest::Unknown
    };
    Some(Amounts::ByModel { models, rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::exposition::samples::samples;
    use plimsoll_core::fleet::ModelName;

    /// What a page says of the model `m`.
    fn says(page: &str) -> String {
        let amounts = read(&samples(page.as_bytes(), None, &wants).unwrap());
        let Some(amounts) = amounts else { return "no flow control".to_owned() };
        let queued = amounts.of(&ModelName::new("m").unwrap());
        queued.map_or_else(|| "unknown".to_owned(), |queued| queued.requests().to_string())
    }

    #[test]
    fn what_queues_is_the_sum_over_priorities_by_the_newest_name() {
        let old = "inference_extension_flow_control_queue_size";
        let new = "llm_d_epp_flow_control_queue_size";
        let one = |name: &str, labels: &str, value: &str| format!("{name}{{{labels}}} {value}\n");
        let both = "priority=\"0\",model_name=\"asked\",target_model_name=\"m\"";
        let more = "priority=\"1\",model_name=\"asked\",target_model_name=\"m\"";
        for (page, queued) in [
            (one(old, both, "2"), "2"),
            (one(old, both, "2") + &one(new, both, "2") + &one(new, more, "3"), "5"),
            (one(new, "model_name=\"m\",target_model_name=\"\"", "4"), "4"),
            (one(new, "model_name=\"m\",target_model_name=\"other-model\"", "4"), "0"),
            (one(new, both, "NaN"), "unknown"),
            (one("llm_d_epp_ready_endpoints", "", "0"), "no flow control"),
            (one("llm_d_epp_flow_control_pool_saturation", "", "1"), "0"),
            (one(new, "target_model_name=\"other\"", "0"), "0"),
            (one(new, "target_model_name=\"other\"", "1"), "unknown"),
            (one(new, "target_model_name=\"other\"", "1") + &one(new, both, "1"), "1"),
        ] {
            assert_eq!(says(&page), queued, "{page}");
        }
    }
}
