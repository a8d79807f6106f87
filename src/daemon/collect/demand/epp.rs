//! The queue of an endpoint picker: requests without a replica, according to the flow control of
//! the Gateway API inference extension and of llm-d.
//!
//! The metrics have had four prefixes, and some releases export several of them side by side. The
//! first prefix of this list that is present counts; they are never added up. The metrics exist
//! only with the feature gate `flowControl`.
//!
//! A model has a series from its first request on. If the response has flow control metrics, a
//! model without a series has never queued, which counts as 0. If it has none, the amount is
//! unknown. After a thousand names, further models are counted together as `other`. While `other`
//! has queued requests, the amount of a model without a series is also unknown.

use std::collections::BTreeMap;

use crate::collect::demand::reading::{SignalAmounts, UnnamedAmount};
use crate::collect::exposition::samples::ExpositionSample;
use plimsoll_core::units::Requests;

/// The prefixes, newest first: llm-d-router since 0.9, two earlier names, and the inference
/// extension up to 1.5.
const PREFIXES: [&str; 4] = [
    "llm_d_epp_flow_control_",
    "llm_d_router_epp_flow_control_",
    "llm_d_inference_scheduler_flow_control_",
    "inference_extension_flow_control_",
];

/// The gauge of queued requests, without its prefix.
const QUEUE: &str = "queue_size";

/// The labels with the model, the more exact one first: the rewritten name, and the requested name.
pub(super) const MODEL: [&str; 2] = ["target_model_name", "model_name"];

/// The name for all models beyond the picker's limit on names.
pub(super) const OTHER: &str = "other";

/// Returns true if a metric belongs to flow control.
pub(crate) fn wants(name: &str) -> bool {
    PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Reads the queued requests of each model; `None` if there are no flow control metrics.
pub(crate) fn read(samples: &[ExpositionSample]) -> Option<SignalAmounts> {
    let prefix = PREFIXES
        .iter()
        .find(|start| samples.iter().any(|sample| sample.name.starts_with(**start)))?;

    let mut models: BTreeMap<String, Option<Requests>> = BTreeMap::new();
    for sample in samples {
        if sample.name.strip_prefix(prefix) != Some(QUEUE) {
            continue;
        }
        let mut names = MODEL.iter().filter_map(|label| sample.labels.get(*label));
        let Some(name) = names.find(|name| !name.is_empty()) else { continue };
        let amount = Requests::new(sample.value);
        let known = models.entry(name.clone()).or_insert(Some(Requests::ZERO));
        *known = known.zip(amount).map(|(a, b)| a + b);
    }

    let others = models.remove(OTHER);
    let rest = if others.is_none_or(|it| it == Some(Requests::ZERO)) {
        UnnamedAmount::Nothing
    } else {
        UnnamedAmount::Unknown
    };
    Some(SignalAmounts::ByModel { models, rest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::exposition::samples::samples;
    use plimsoll_core::fleet::ModelName;

    /// Shows the queued requests of the model `m`.
    fn says(page: &str) -> String {
        let amounts = read(&samples(page.as_bytes(), None, &wants).unwrap());
        let Some(amounts) = amounts else { return "no flow control".to_owned() };
        let queued = amounts.of(&ModelName::new("m").unwrap());
        queued.map_or_else(|| "unknown".to_owned(), |queued| queued.requests().to_string())
    }

    fn one(name: &str, labels: &str, value: &str) -> String {
        format!("{name}{{{labels}}} {value}\n")
    }

    #[test]
    fn what_queues_is_the_sum_over_priorities_by_the_newest_name() {
        let old = "inference_extension_flow_control_queue_size";
        let new = "llm_d_epp_flow_control_queue_size";
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
