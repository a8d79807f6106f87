//! The ablation: the effect of terms and constants of `capacity` on every workload or world.
//!
//! Plimsoll plays each workload again with one change. It switches a term off, halves and doubles a
//! constant, or moves a constant as far as it stays meaningful. A term whose change has no effect
//! anywhere is not worth having.

use serde_json::{Map, Value};

use crate::study::results::RunResult;
use plimsoll_daemon::config::yaml;

/// The section of a scenario that contains the changed keys.
const SECTION: &str = "policy.capacity";

/// The changes, which are made one at a time.
const CHANGES: [(&str, &str); 49] = [
    ("foresight.drift.enabled", "false"),
    ("foresight.jump.enabled", "false"),
    ("foresight.growth.enabled", "false"),
    ("foresight.ramp.enabled", "false"),
    ("foresight.unevenness.enabled", "false"),
    ("foresight.young.enabled", "false"),
    ("foresight.bursts.enabled", "false"),
    ("foresight.backlog.enabled", "false"),
    ("foresight.routing.enabled", "false"),
    ("foresight.hold.enabled", "false"),
    ("foresight.absences.enabled", "false"),
    ("foresight.cold_start.enabled", "false"),
    ("foresight.error_budget.enabled", "true"),
    ("utilization", "0.8"),
    ("utilization", "0.9"),
    ("utilization", "1.1"),
    ("foresight.limit_share", "0.84"),
    ("foresight.limit_share", "1.0"),
    ("foresight.reaction_time", "11s"),
    ("foresight.reaction_time", "44s"),
    ("foresight.look_back", "450s"),
    ("foresight.look_back", "30m"),
    ("foresight.growth.quantile", "0.5"),
    ("foresight.growth.quantile", "1.0"),
    ("foresight.growth.cap", "1.0"),
    ("foresight.growth.cap", "2.2"),
    ("foresight.ramp.certainty", "1.25"),
    ("foresight.ramp.certainty", "5.0"),
    ("foresight.ramp.jump", "0.25"),
    ("foresight.ramp.jump", "1.0"),
    ("foresight.ramp.bend", "1.0"),
    ("foresight.ramp.bend", "3.0"),
    ("foresight.ramp.cap", "1.25"),
    ("foresight.ramp.cap", "5.0"),
    ("foresight.unevenness.deviations", "0.25"),
    ("foresight.unevenness.deviations", "1.0"),
    ("foresight.young.margin", "0.45"),
    ("foresight.young.margin", "1.8"),
    ("foresight.bursts.quantile", "0.5"),
    ("foresight.bursts.quantile", "0.99"),
    ("foresight.bursts.over", "5m"),
    ("foresight.bursts.ttft_share", "0.3"),
    ("foresight.bursts.ttft_share", "1.2"),
    ("foresight.backlog.drain", "15s"),
    ("foresight.backlog.drain", "60s"),
    ("foresight.hold.starts", "1.0"),
    ("foresight.hold.starts", "4.0"),
    ("foresight.rounding.spare", "0.1"),
    ("foresight.rounding.spare", "0.4"),
];

/// One change.
#[derive(Clone, Debug)]
pub(crate) struct AblationChange {
    /// Its name in the table.
    pub(crate) name: String,
    /// The path in a scenario.
    path: String,
    value: Value,
}

/// All changes, in the order of the table.
pub(crate) fn changes() -> Vec<AblationChange> {
    CHANGES.iter().map(|(key, text)| change(key, text)).collect()
}

fn change(key: &str, text: &str) -> AblationChange {
    let short = key.strip_prefix("foresight.").unwrap_or(key);
    let name = match short.strip_suffix(".enabled") {
        Some(term) if text == "true" => format!("with `{term}`"),
        Some(term) => format!("without `{term}`"),
        None => format!("`{short}: {text}`"),
    };

    let value = yaml::read(text).unwrap_or_else(|_| Value::String(text.to_owned()));
    AblationChange { name, path: format!("{SECTION}.{key}"), value }
}

impl AblationChange {
    /// These settings with the change on top.
    pub(crate) fn over(&self, settings: &Map<String, Value>) -> Map<String, Value> {
        let mut changed = settings.clone();
        changed.insert(self.path.clone(), self.value.clone());
        changed
    }

    /// Returns true if a run had this change.
    pub(crate) fn is_of(&self, run: &RunResult) -> bool {
        run.settings.get(&self.path) == Some(&self.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Terms that the twenty workloads cannot show: one needs a gateway, one needs days.
    const ELSEWHERE: [&str; 2] = ["gateway", "schedule"];

    #[test]
    fn each_term_that_can_be_switched_is_switched() {
        let schema = plimsoll_daemon::config::schema();
        let terms = schema.pointer("/properties/capacity/properties/foresight/properties").unwrap();
        let mut switched = 0;
        for (name, term) in terms.as_object().unwrap() {
            let can_be_switched = term.pointer("/properties/enabled").is_some();
            if !can_be_switched || ELSEWHERE.contains(&name.as_str()) {
                continue;
            }

            let key = format!("foresight.{name}.enabled");
            assert!(CHANGES.iter().any(|(changed, _)| *changed == key), "{key}");
            switched += 1;
        }
        assert!(switched > 10, "{switched}");
    }
}
