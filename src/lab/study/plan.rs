//! The runs of a study: every combination of its sweep and policies, with every seed.

use serde_json::{Map, Value};

use crate::simulate::peers::Peer;
use plimsoll_daemon::config::yaml;

/// The variable in which Kubernetes gives a pod of an Indexed Job its index, from 0 on.
pub(crate) const JOB_INDEX: &str = "JOB_COMPLETION_INDEX";

/// More runs than are practical.
const RUNS_MAX: usize = 100_000;

/// One run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    /// Its place among all runs of the study.
    pub(crate) index: usize,
    /// The settings that differ from the file, by path.
    pub(crate) settings: Map<String, Value>,
    pub(crate) peer: Peer,
    /// The offset of its seed from the first seed.
    pub(crate) seed: u64,
}

/// The reason that runs cannot be planned, with its place.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct PlanError(pub(crate) String);

/// Plans all runs: settings in the order of the file, then peers, then seeds. A setting replaces
/// the sweep at its path. Sweep values that are not lists are skipped, because the code that reads
/// the scenario reports them.
pub(crate) fn plan(
    sweep: &Value,
    set: &Map<String, Value>,
    peers: &[Peer],
    seeds: u32,
) -> Result<Vec<Plan>, PlanError> {
    // A setting inside of a swept value is applied after the sweep, and every other setting before.
    let before = set.iter().filter(|(path, _)| !is_inside(sweep, path));
    let mut settings: Vec<Map<String, Value>> =
        vec![before.map(|(path, value)| (path.clone(), value.clone())).collect()];
    for (path, values) in sweep.as_object().into_iter().flatten() {
        if set.contains_key(path) {
            continue;
        }

        let Some(values) = values.as_array().filter(|values| !values.is_empty()) else { continue };
        settings = settings
            .iter()
            .flat_map(|before| {
                values.iter().map(move |value| {
                    let mut settings = before.clone();
                    settings.insert(path.clone(), value.clone());
                    settings
                })
            })
            .take(RUNS_MAX + 1)
            .collect();
    }

    for settings in &mut settings {
        let after = set.iter().filter(|(path, _)| is_inside(sweep, path));
        settings.extend(after.map(|(path, value)| (path.clone(), value.clone())));
    }

    let count = settings.len() * peers.len() * seeds as usize;
    if count > RUNS_MAX {
        return Err(PlanError(format!("there must be at most {RUNS_MAX} runs, not {count}")));
    }

    let mut plans = Vec::with_capacity(count);
    for settings in &settings {
        for &peer in peers {
            for seed in 0..u64::from(seeds) {
                plans.push(Plan { index: plans.len(), settings: settings.clone(), peer, seed });
            }
        }
    }

    Ok(plans)
}

/// Returns true for a path inside of a swept value.
fn is_inside(sweep: &Value, path: &str) -> bool {
    path.char_indices()
        .any(|(at, character)| matches!(character, '.' | '[') && sweep.get(&path[..at]).is_some())
}

/// Reads `PATH=VALUE`, the value as YAML.
pub(crate) fn setting(text: &str) -> Result<(String, Value), PlanError> {
    let (path, written) = text
        .split_once('=')
        .ok_or_else(|| PlanError(format!("--set {text} must be PATH=VALUE")))?;
    let value = yaml::read(written).unwrap_or_else(|_| Value::String(written.to_owned()));
    Ok((path.to_owned(), value))
}

/// Sets the value at a path such as `models[0].slo.ttft`. Missing mappings on the way are created;
/// lists are not extended.
pub(crate) fn set(root: &mut Value, path: &str, value: Value) -> Result<(), PlanError> {
    let mut place = root;
    for part in path.split('.') {
        let (name, indices) = part.split_once('[').map_or((part, ""), |(name, rest)| (name, rest));
        if place.is_null() {
            *place = Value::Object(Map::new());
        }

        let map =
            place.as_object_mut().ok_or_else(|| wrong(path, "has a part that is not a mapping"))?;
        place = map.entry(name).or_insert(Value::Null);

        for index in indices.split('[').filter(|index| !index.is_empty()) {
            let at = index
                .strip_suffix(']')
                .and_then(number)
                .ok_or_else(|| wrong(path, "has an index that is not a number"))?;
            place = place.get_mut(at).ok_or_else(|| wrong(path, "has an index out of range"))?;
        }
    }

    *place = value;
    Ok(())
}

fn number(text: &str) -> Option<usize> {
    text.parse().ok()
}

fn wrong(place: &str, why: &str) -> PlanError {
    PlanError(format!("{place} {why}"))
}

/// A part of a study: every n-th run from the i-th on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shard {
    first: usize,
    every: usize,
}

impl Shard {
    /// The whole study.
    pub(crate) const WHOLE: Self = Self { first: 0, every: 1 };

    /// Reads `I/N`, with I from 1 to N, or `job/N`, where `job_index` is the index from 0 on.
    pub(crate) fn parse(text: &str, job_index: Option<&str>) -> Result<Self, PlanError> {
        let option = format!("--shard {text}");
        let (shard, count) = text
            .split_once('/')
            .and_then(|(shard, count)| Some((shard, number(count)?)))
            .ok_or_else(|| {
                wrong(&option, "must be I/N with I from 1 to N, such as 2/8, or job/N")
            })?;

        let first = if shard == "job" {
            let index = job_index.ok_or_else(|| {
                let why = format!("needs {JOB_INDEX}, which the pods of an Indexed Job have");
                wrong(&option, &why)
            })?;
            number(index).filter(|index| *index < count).ok_or_else(|| {
                let why = format!("needs {JOB_INDEX} from 0 to below {count}, not {index:?}");
                wrong(&option, &why)
            })?
        } else {
            let from_one = number(shard).filter(|shard| (1..=count).contains(shard));
            let why = "must be I/N with I from 1 to N, such as 2/8";
            from_one.ok_or_else(|| wrong(&option, why))? - 1
        };

        Ok(Self { first, every: count })
    }

    /// Returns true if a run belongs to the shard.
    pub(crate) const fn has(self, index: usize) -> bool {
        index % self.every == self.first
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_combination_is_run_with_every_seed_and_belongs_to_one_shard() {
        let sweep = json!({"a": [1, 2], "b.c": ["x", "y", "z"]});
        let peers = [Peer::Scenario, Peer::parse("static:2").unwrap()];
        let plans = plan(&sweep, &Map::new(), &peers, 2).unwrap();
        assert_eq!(plans.len(), 24);
        assert_eq!(plans[23].settings, *json!({"a": 2, "b.c": "z"}).as_object().unwrap());
        for plan in &plans {
            let shards = ["1/5", "2/5", "3/5", "4/5", "5/5"];
            let of = shards.iter().filter(|text| Shard::parse(text, None).unwrap().has(plan.index));
            assert_eq!(of.count(), 1);
        }

        for wrong in ["0/2", "3/2", "a/b", "1", "1/0", "job/2", "job/0", "job"] {
            assert!(Shard::parse(wrong, None).is_err(), "{wrong}");
        }

        let passed_over = plan(&json!({"a": [], "b": 5}), &Map::new(), &peers, 1).unwrap();
        assert_eq!(passed_over.len(), peers.len());
    }

    #[test]
    fn the_pods_of_an_indexed_job_count_from_zero() {
        let [first, last] = ["1/8", "8/8"].map(|text| Shard::parse(text, None));
        assert_eq!(Shard::parse("job/8", Some("0")), first);
        assert_eq!(Shard::parse("job/8", Some("7")), last);
        for wrong in ["8", "-1", ""] {
            let said = Shard::parse("job/8", Some(wrong)).unwrap_err().to_string();
            assert!(said.contains("from 0 to below 8"), "{said}");
        }
    }

    /// The settings of each plan, as JSON.
    fn settings(sweep: &Value, set: &[&str]) -> Vec<String> {
        let set = set.iter().map(|text| setting(text).unwrap()).collect();
        let plans = plan(sweep, &set, &[Peer::Scenario], 1).unwrap();
        plans.iter().map(|plan| Value::Object(plan.settings.clone()).to_string()).collect()
    }

    #[test]
    fn what_is_set_is_not_swept_and_what_is_set_inside_of_it_comes_after_it() {
        let sweep = json!({"a.b": [1, 2], "c": [{"d": 1}, {"d": 2}]});
        assert_eq!(
            settings(&sweep, &["a.b=7"]),
            [r#"{"a.b":7,"c":{"d":1}}"#, r#"{"a.b":7,"c":{"d":2}}"#],
            "one value instead of two"
        );
        assert_eq!(settings(&sweep, &["a.b=7", "c=null"]), [r#"{"a.b":7,"c":null}"#]);

        // A whole value and a part of it: the last setting wins.
        let first = &settings(&sweep, &["a={}", "c.e=5"])[0];
        assert_eq!(first, r#"{"a":{},"a.b":1,"c":{"d":1},"c.e":5}"#);
    }

    #[test]
    fn a_path_is_set_where_it_leads() {
        let mut root = json!({"a": [{"b": 1}], "c": 2});
        set(&mut root, "a[0].b", json!(3)).unwrap();
        set(&mut root, "d.e.f", json!("x")).unwrap();
        assert_eq!(root, json!({"a": [{"b": 3}], "c": 2, "d": {"e": {"f": "x"}}}));
        for wrong in ["a[1].b", "a[x].b", "c.d"] {
            assert!(set(&mut root, wrong, json!(1)).is_err(), "{wrong}");
        }

        assert_eq!(setting("a.b=[1, 2]").unwrap(), ("a.b".to_owned(), json!([1, 2])));
        assert!(setting("a.b").is_err());
    }
}
