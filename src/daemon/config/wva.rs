//! The saturation thresholds of the workload variant autoscaler, from its own `ConfigMap`.
//!
//! `wva-saturation-scaling-config` has an entry `default` and entries for single models, each a
//! small YAML text. Mounted as a volume it is a folder with a file for each entry:
//!
//! ```yaml
//! # granite-lab
//! model_id: ibm/granite-13b
//! namespace: lab
//! kvCacheThreshold: 0.75
//! ```
//!
//! An entry changes only its own keys. WVA completes an entry with its built-in defaults before it
//! merges the entry over `default`. In WVA, overriding one threshold therefore resets the others in
//! `default`. A setting in an entry that Plimsoll does not support is a warning. An invalid
//! threshold is an error; WVA drops the whole entry and only logs that.

pub(crate) mod entries;

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::config::check::Checks;
use crate::config::names;
use crate::config::wva::entries::Entries;
use crate::config::yaml::{self, FilePosition};
use plimsoll_core::analyze::saturation;
use plimsoll_core::settings::problem::nearest;
use plimsoll_core::settings::{Written, above_zero};

/// Thresholds, each of which may be absent.
type Thresholds = Written<saturation::Thresholds>;

/// The configuration key, with which the paths of problems begin.
pub(crate) const KEY: &str = "compatibility.wva_config";

/// The entry for all models.
pub(crate) const DEFAULT: &str = "default";

/// WVA's names of the thresholds, with the largest value of each.
const THRESHOLDS: [(&str, f64); 4] = [
    ("kvCacheThreshold", 1.0),
    ("queueLengthThreshold", 1e6),
    ("kvSpareTrigger", 1.0),
    ("queueSpareTrigger", 1e6),
];

/// The fields that select an entry's model.
const MODEL: &str = "model_id";
const NAMESPACE: &str = "namespace";

/// The field that lets models scale to zero: a mapping with `enabled`.
const ZERO: &str = "scaleToZero";

/// The fields that WVA reads and Plimsoll ignores, and the consequence.
const IGNORED: [(&str, &str); 8] = [
    ("analyzers", "the percentages decide, as in WVA without this section"),
    ("analyzerName", "the percentages decide, as in WVA without this key"),
    ("scaleUpThreshold", "it belongs to WVA's token-based analyzer"),
    ("scaleDownBoundary", "it belongs to WVA's token-based analyzer"),
    ("priority", "it belongs to WVA's GPU limiter"),
    ("enableLimiter", "Plimsoll does not read WVA's GPU limiter"),
    ("enableRescale", "Plimsoll does not read WVA's GPU limiter"),
    ("limiters", "Plimsoll does not read WVA's GPU limiter"),
];

/// The thresholds that the entries set; unset ones are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct WvaDefaults {
    /// True if the `ConfigMap` is mounted.
    pub(crate) mounted: bool,
    /// The thresholds for all models.
    pub(crate) default: Thresholds,
    /// The thresholds for single models, by `MODEL#NAMESPACE`.
    pub(crate) overrides: BTreeMap<String, Thresholds>,
    /// True if models may scale to zero.
    pub(crate) zero: Option<bool>,
    /// The same for single models.
    pub(crate) zero_overrides: BTreeMap<String, bool>,
}

/// Reads the thresholds, and notes errors and ignored fields with entry and line.
pub(crate) fn parse(entries: &Entries, checks: &mut Checks<'_>) -> WvaDefaults {
    let mut wva = WvaDefaults::default();
    let mut owners: BTreeMap<String, &str> = BTreeMap::new();
    for (name, text) in entries {
        let Some(entry) = WvaEntry::read(name, text, checks) else { continue };
        if name == DEFAULT {
            wva.default = entry.thresholds(checks);
            wva.zero = entry.zero(checks);
            continue;
        }

        let Some(model) = entry.model(checks) else { continue };
        let thresholds = entry.thresholds(checks);
        let zero = entry.zero(checks);
        if let Some(first) = owners.get(&model) {
            let rule = format!("has no effect: the entry {first} is also for {model}");
            checks.problems.warning(entry.path(), rule);
            continue;
        }

        owners.insert(model.clone(), name);
        wva.zero_overrides.extend(zero.map(|zero| (model.clone(), zero)));
        wva.overrides.insert(model, thresholds);
    }

    wva
}

/// One entry as written.
struct WvaEntry<'a> {
    name: &'a str,
    text: &'a str,
    fields: Map<String, Value>,
}

impl<'a> WvaEntry<'a> {
    /// The fields of an entry; `None` if it cannot be read.
    fn read(name: &'a str, text: &'a str, checks: &mut Checks<'_>) -> Option<Self> {
        let path = format!("{KEY}/{name}");
        match yaml::read(text) {
            Ok(Value::Object(fields)) => Some(Self { name, text, fields }),
            Ok(Value::Null) => Some(Self { name, text, fields: Map::new() }),
            Ok(_) => {
                checks.problems.error_at(path, "must be a mapping of fields to values");
                None
            }
            Err(yaml::SyntaxError { line, column, message }) => {
                let place = format!("{path}{}", FilePosition(line, column));
                checks.problems.error_at(place, format!("is not YAML: {message}"));
                None
            }
        }
    }

    fn path(&self) -> String {
        format!("{KEY}/{}", self.name)
    }

    /// The place of a field: the entry, the line if it can be found, and the field.
    fn field(&self, field: &str) -> String {
        let start = format!("{field}:");
        match self.text.lines().position(|line| line.starts_with(&start)) {
            Some(line) => format!("{}:{} {field}", self.path(), line + 1),
            None => format!("{} {field}", self.path()),
        }
    }

    /// The thresholds that the entry sets. Every other field is noted.
    fn thresholds(&self, checks: &mut Checks<'_>) -> Thresholds {
        for (field, value) in &self.fields {
            self.note(field, value, checks);
        }
        let [kv_cache, queue_length, kv_spare, queue_spare] =
            THRESHOLDS.map(|(field, limit)| self.threshold(field, limit, checks));
        Thresholds { kv_cache, queue_length, kv_spare, queue_spare }
    }

    /// The value of a field, if the entry has one.
    fn value(&self, field: &str) -> Option<&Value> {
        self.fields.get(field).filter(|value| !value.is_null())
    }

    fn threshold(&self, field: &str, limit: f64, checks: &mut Checks<'_>) -> Option<f64> {
        let value = self.value(field)?;
        let Some(number) = value.as_f64() else {
            checks.problems.error(self.field(field), "must be a number", value);
            return None;
        };
        if number == 0.0 {
            let rule = "is 0, which means unset, as in WVA";
            checks.problems.warning(self.field(field), rule);
            return None;
        }

        above_zero(limit).check::<f64>(number, &self.field(field), &mut checks.problems)
    }

    /// Returns true if the entry lets models scale to zero.
    fn zero(&self, checks: &mut Checks<'_>) -> Option<bool> {
        let value = self.value(ZERO)?;
        let enabled = value.get("enabled").and_then(Value::as_bool);
        if enabled.is_none() {
            let rule = "must be a mapping with enabled, which is true or false";
            checks.problems.error(self.field(ZERO), rule, value);
        }
        enabled
    }

    /// Notes that a field other than a threshold has no effect, unless its value asks for nothing.
    fn note(&self, field: &str, value: &Value, checks: &mut Checks<'_>) {
        if THRESHOLDS.iter().any(|(known, _)| *known == field)
            || [MODEL, NAMESPACE, ZERO].contains(&field)
        {
            return;
        }
        if let Some((_, why)) = IGNORED.iter().find(|(known, _)| *known == field) {
            if !asks_for_nothing(value) {
                checks.problems.warning(self.field(field), format!("is ignored: {why}"));
            }
            return;
        }

        let known = THRESHOLDS.iter().map(|(name, _)| *name).chain([MODEL, NAMESPACE, ZERO]);
        let meant = nearest(field, known).map(|near| format!("; did you mean {near}?"));
        let rule = format!("is ignored: it is not a known field{}", meant.unwrap_or_default());
        checks.problems.warning(self.field(field), rule);
    }

    /// The model that the entry is for, as `MODEL#NAMESPACE`.
    fn model(&self, checks: &mut Checks<'_>) -> Option<String> {
        let model = self.text(MODEL, names::is_model_name, "the name of a model", checks)?;
        let rule = "the name of a namespace";
        let namespace = self.text(NAMESPACE, names::is_dns_label, rule, checks)?;
        Some(format!("{model}#{namespace}"))
    }

    /// The text of a field that every entry for a single model must have.
    fn text(
        &self,
        field: &str,
        accepts: fn(&str) -> bool,
        what: &str,
        checks: &mut Checks<'_>,
    ) -> Option<&str> {
        let Some(value) = self.value(field) else {
            let rule = format!(
                "has no effect: entries other than {DEFAULT} need {field} to name their model"
            );
            checks.problems.warning(self.path(), rule);
            return None;
        };

        let found = value.as_str().filter(|text| accepts(text));
        if found.is_none() {
            checks.problems.error(self.field(field), format!("must be {what}"), value);
        }

        found
    }
}

/// Returns true if a value of an ignored field would also change nothing in WVA.
fn asks_for_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Bool(true) | Value::Number(_) | Value::String(_) => false,
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(asks_for_nothing),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::surroundings::{Files, Surroundings};

    /// The thresholds of entries, and the problems with them.
    fn check(entries: &[(&str, &str)]) -> (WvaDefaults, Vec<String>) {
        let surroundings = Surroundings {
            origin: "test".to_owned(),
            base: "/".into(),
            environment: BTreeMap::new(),
            files: Files::NotChecked,
        };

        let mut checks = Checks::new(&surroundings);
        let owned =
            entries.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
        let wva = parse(&owned, &mut checks);
        let (errors, warnings) = checks.problems.split();
        (wva, errors.into_iter().chain(warnings).map(|one| one.to_string()).collect())
    }

    #[test]
    fn an_entry_sets_what_it_has_and_nothing_else() {
        let (wva, problems) = check(&[
            ("default", "kvCacheThreshold: 0.75\nqueueLengthThreshold: 10\n"),
            ("granite", "model_id: ibm/granite-13b\nnamespace: lab\nkvSpareTrigger: 0.2\n"),
            ("nothing", "model_id: m\nnamespace: lab\n"),
        ]);
        assert_eq!(problems, Vec::<String>::new());

        let default =
            Thresholds { kv_cache: Some(0.75), queue_length: Some(10.0), ..Thresholds::default() };
        let granite = Thresholds { kv_spare: Some(0.2), ..Thresholds::default() };
        let overrides = [
            ("ibm/granite-13b#lab".to_owned(), granite),
            ("m#lab".to_owned(), Thresholds::default()),
        ];
        assert_eq!(
            wva,
            WvaDefaults { default, overrides: overrides.into(), ..WvaDefaults::default() }
        );
    }

    #[test]
    fn mistakes_are_told_with_entry_and_line() {
        let (wva, problems) = check(&[
            ("a", "model_id: 7\nnamespace: lab\n"),
            ("b", "model_id: m\nnamespace: Lab_1\n"),
            ("c", "- model_id\n"),
            ("default", "# Comment\nkvCacheThreshold: \"0.70\"\nkvSpareTrigger: 1.5\n"),
            ("d", "model_id: m\n  kvSpareTrigger: [\n"),
        ]);

        assert_eq!(
            problems,
            [
                "error: compatibility.wva_config/a:1 model_id must be the name of a model; found 7",
                "error: compatibility.wva_config/b:2 namespace must be the name of a namespace; \
                 found \"Lab_1\"",
                "error: compatibility.wva_config/c must be a mapping of fields to values",
                "error: compatibility.wva_config/d:2:17 is not YAML: mapping values are not \
                 allowed in this context; check the indentation here and in the line before",
                "error: compatibility.wva_config/default:2 kvCacheThreshold must be a number; \
                 found \"0.70\"",
                "error: compatibility.wva_config/default:3 kvSpareTrigger must be above 0 and at \
                 most 1; found 1.5",
            ]
        );
        assert_eq!(wva, WvaDefaults::default());
    }

    #[test]
    fn what_is_ignored_is_told_unless_it_asks_for_nothing() {
        let (_, problems) = check(&[
            ("a", "kvCacheThreshold: 0.5\n"),
            (
                "default",
                "analyzers:\n  - name: saturation\nscaleUpThreshold: 0.85\nenableLimiter: true\n\
                 enableRescale: false\nscaleToZero: {enabled: false}\nkvCacheThreshhold: 0.7\n\
                 queueSpareTrigger: 0\n",
            ),
            ("m-1", "model_id: m\nnamespace: lab\n"),
            ("m-2", "model_id: m\nnamespace: lab\n"),
        ]);

        let default = "warning: compatibility.wva_config/default";
        assert_eq!(
            problems,
            [
                "warning: compatibility.wva_config/a has no effect: entries other than default need model_id to name their model"
                    .to_owned(),
                format!(
                    "{default}:1 analyzers is ignored: the percentages decide, as in WVA without this section"
                ),
                format!(
                    "{default}:3 scaleUpThreshold is ignored: it belongs to WVA's token-based \
                     analyzer"
                ),
                format!(
                    "{default}:4 enableLimiter is ignored: Plimsoll does not read WVA's GPU limiter"
                ),
                format!(
                    "{default}:7 kvCacheThreshhold is ignored: it is not a known field; did you \
                     mean kvCacheThreshold?"
                ),
                format!(
                    "{default}:8 queueSpareTrigger is 0, which means unset, as in WVA"
                ),
                "warning: compatibility.wva_config/m-2 has no effect: the entry m-1 is also for m#lab"
                    .to_owned(),
            ]
        );
    }
}
