//! The counters of an endpoint picker: requests that it has routed, by the model that they ask for.
//!
//! The picker counts a request once it has chosen a replica. `target_model_name` is the model after
//! rewrites, so an adapter's own name. Series of different priorities, tenants and requested names
//! add up. Releases export several names of one counter side by side; only the first that is present
//! counts.
//!
//! A model has a series from its first request on. A picker without any has routed nothing since
//! its start. After a thousand names, further models are counted together as `other`.
//!
//! # Source
//!
//! llm-d-router 0.9 and 0.10 (`pkg/epp/metrics/llm_d_router_metrics.go`), and the Gateway API
//! inference extension 0.3 to 1.5 (`pkg/epp/metrics/metrics.go`), whose counters had the subsystem
//! `inference_model` up to 1.0 and `inference_objective` since.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::collect::demand::epp::{MODEL, OTHER};
use crate::collect::exposition::samples::ExpositionSample;
use plimsoll_core::fleet::ModelName;
use plimsoll_core::fleet::names::is_model_name;
use plimsoll_core::observe::routed::RoutedCounts;

/// The counter of routed requests, newest name first.
const COUNTERS: [&str; 4] = [
    "llm_d_epp_request_total",
    "llm_d_router_epp_request_total",
    "inference_objective_request_total",
    "inference_model_request_total",
];

/// The gauges that a picker exports before its first request, by which its response is recognized.
const READY: [&str; 3] =
    ["llm_d_epp_ready_endpoints", "llm_d_router_epp_ready_endpoints", "inference_pool_ready_pods"];

/// The start of the process, which tells two pickers behind one address apart.
const PROCESS: &str = "process_start_time_seconds";

/// Models that are told apart. A picker names a thousand and the models of its rewrites.
const MODELS_MAX: usize = 4096;

/// Returns true if a metric is needed to read the counters.
pub(crate) fn wants(name: &str) -> bool {
    COUNTERS.contains(&name) || READY.contains(&name) || name == PROCESS
}

/// Reads the counters; `None` if the response is not that of an endpoint picker, or a count is not
/// a number.
pub(crate) fn read(at: Timestamp, samples: &[ExpositionSample]) -> Option<RoutedCounts> {
    let counter = COUNTERS.into_iter().find(|it| shows(samples, it));
    if counter.is_none() && !READY.into_iter().any(|gauge| shows(samples, gauge)) {
        return None;
    }

    let process = samples.iter().find(|sample| sample.name == PROCESS).map(|sample| sample.value);
    let mut counts = RoutedCounts { at, process, requests: BTreeMap::new(), others: 0.0 };
    for sample in samples.iter().filter(|sample| Some(sample.name.as_str()) == counter) {
        if !sample.value.is_finite() || sample.value < 0.0 {
            return None;
        }

        let mut labels = MODEL.iter().filter_map(|label| sample.labels.get(*label));
        let name = labels.find(|it| !it.is_empty()).filter(|it| is_model_name(it));
        let named = name.filter(|name| *name != OTHER).and_then(|name| ModelName::new(name));
        let is_new = named.as_ref().is_some_and(|name| !counts.requests.contains_key(name));
        match named.filter(|_| !is_new || counts.requests.len() < MODELS_MAX) {
            Some(name) => *counts.requests.entry(name).or_default() += sample.value,
            None => counts.others += sample.value,
        }
    }

    Some(counts)
}

fn shows(samples: &[ExpositionSample], name: &str) -> bool {
    samples.iter().any(|sample| sample.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collect::exposition::samples::samples;

    /// Shows the counts of a response.
    fn shown(page: &str) -> String {
        let found = samples(page.as_bytes(), None, &wants).unwrap();
        let Some(counts) = read(Timestamp::UNIX_EPOCH, &found) else { return "none".to_owned() };
        let named = counts.requests.iter().map(|(name, count)| format!("{name} {count}"));
        let others = Some(format!("others {}", counts.others)).filter(|_| counts.others > 0.0);
        let process = counts.process.map(|it| format!("process {it}"));
        named.chain(others).chain(process).collect::<Vec<_>>().join(", ")
    }

    /// The responses of an endpoint picker of each release line, as its own tests expect them.
    #[test]
    fn requests_add_up_by_target_model_under_the_newest_name() {
        let router = "\
            # HELP llm_d_epp_request_total [ALPHA] Total number of processed requests.\n\
            # TYPE llm_d_epp_request_total counter\n\
            llm_d_epp_request_total{fairness_id=\"tenant-a\",model_name=\"m10\",priority=\"0\",target_model_name=\"t10\"} 2\n\
            llm_d_epp_request_total{fairness_id=\"tenant-b\",model_name=\"m10\",priority=\"0\",target_model_name=\"t11\"} 1\n\
            llm_d_epp_request_total{fairness_id=\"tenant-c\",model_name=\"m20\",priority=\"0\",target_model_name=\"t10\"} 1\n";
        let objective = "\
            inference_objective_request_total{model_name=\"m10\",priority=\"0\",target_model_name=\"t10\"} 3\n\
            inference_objective_request_total{model_name=\"m10\",priority=\"0\",target_model_name=\"t11\"} 1\n";
        let model =
            "inference_model_request_total{model_name=\"m10\",target_model_name=\"t10\"} 5\n";
        let ready = "inference_pool_ready_pods{name=\"pool\"} 2\n";
        let process = "process_start_time_seconds 1.7e+09\n";
        let other = "llm_d_epp_request_total{model_name=\"m\",target_model_name=\"other\"} 4\n";
        let broken = "llm_d_epp_request_total{model_name=\"m\",target_model_name=\"t\"} NaN\n";

        for (page, expected) in [
            (router.to_owned(), "t10 3, t11 1"),
            (router.to_owned() + objective + ready, "t10 3, t11 1"),
            (objective.to_owned() + process, "t10 3, t11 1, process 1700000000"),
            (model.to_owned(), "t10 5"),
            (ready.to_owned(), ""),
            (router.to_owned() + other, "t10 3, t11 1, others 4"),
            (broken.to_owned(), "none"),
            (process.to_owned(), "none"),
        ] {
            assert_eq!(shown(&page), expected, "{page}");
        }
    }

    #[test]
    fn names_beyond_the_bound_are_counted_together() {
        let lines = (0..MODELS_MAX + 10).map(|it| {
            format!("inference_model_request_total{{target_model_name=\"m{it:05}\"}} 1\n")
        });
        let page: String = lines.collect();
        let found = samples(page.as_bytes(), None, &wants).unwrap();
        let counts = read(Timestamp::UNIX_EPOCH, &found).unwrap();
        assert_eq!((counts.requests.len(), counts.others), (MODELS_MAX, 10.0));

        let long = "x".repeat(10_000);
        let page = format!("inference_model_request_total{{target_model_name=\"{long}\"}} 7\n");
        assert_eq!(shown(&page), "others 7");
    }
}
