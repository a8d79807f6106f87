//! The traces of a scenario: their locations and hashes.

use std::fs;
use std::path::Path;

use aws_lc_rs::digest::{SHA256, digest};
use serde_json::Value;

use crate::study::fingerprint::written;
use crate::study::traces;

/// A file from which requests are read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Trace {
    /// Its name in the scenario.
    pub(crate) name: String,
    /// The first digits of its SHA-256.
    pub(crate) hash: String,
}

/// A file that is in neither folder.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} was not found; set PLIMSOLL_TRACES or --traces to its folder")]
pub(crate) struct MissingFile(pub(crate) String);

/// Finds the files that a scenario names, in its own folder or in another, and replaces the names
/// with their paths.
pub(crate) fn locate(
    scenario: &mut Value,
    folder: &Path,
    elsewhere: Option<&Path>,
) -> Result<Vec<Trace>, MissingFile> {
    let mut found = Vec::new();
    for file in files(scenario) {
        let Some(name) = file.as_str().map(str::to_owned) else { continue };
        let places = [Some(folder), elsewhere].into_iter().flatten();
        let mut paths = places.map(|place| place.join(&name));
        let (bytes, path) = paths
            .find_map(|path| Some((traces::bytes(&path).ok()?, path)))
            .ok_or_else(|| MissingFile(name.clone()))?;
        *file = Value::String(absolute(&path));
        found.push(Trace { name, hash: written(&digest(&SHA256, &bytes)) });
    }

    Ok(found)
}

/// Lets a scenario read files from another folder if its own folder does not have them.
pub(crate) fn look_elsewhere(scenario: &mut Value, folder: &Path, elsewhere: &Path) {
    for file in files(scenario) {
        let Some(name) = file.as_str() else { continue };
        let path = elsewhere.join(name);
        if !folder.join(name).exists() && path.exists() {
            *file = Value::String(absolute(&path));
        }
    }
}

/// The places of trace file names in a scenario.
fn files(scenario: &mut Value) -> Vec<&mut Value> {
    let models = scenario.get_mut("models").and_then(Value::as_array_mut);
    let keys = models.into_iter().flatten().filter_map(Value::as_object_mut).flatten();
    let workloads = keys.filter(|(key, _)| ["workload", "batch"].contains(&key.as_str()));
    let mut files = Vec::new();
    let kinds = workloads.filter_map(|(_, workload)| workload.as_object_mut()).flatten();
    for (kind, workload) in kinds {
        let Some(workload) = workload.as_object_mut() else { continue };
        for (key, value) in workload {
            match key.as_str() {
                "file" if kind == "trace" => files.push(value),
                "lengths" => files.extend(value.get_mut("file")),
                _ => {}
            }
        }
    }

    files
}

fn absolute(path: &Path) -> String {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned()).to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_trace_is_found_beside_the_scenario_or_in_the_folder_of_traces() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        fs::write(other.path().join("t.csv"), "abc").unwrap();
        let written = json!({"models": [{"workload": {"trace": {"file": "t.csv"}}}, {}]});
        let mut scenario = written.clone();
        let missing = locate(&mut scenario, folder.path(), None);
        assert_eq!(missing, Err(MissingFile("t.csv".to_owned())));
        assert_eq!(scenario, written, "nothing is changed");

        let found = locate(&mut scenario, folder.path(), Some(other.path())).unwrap();
        // The first digits of the published SHA-256 of "abc".
        let hash = "ba7816bf8f01cfea".to_owned();
        assert_eq!(found, [Trace { name: "t.csv".to_owned(), hash }]);
        let path = scenario.pointer("/models/0/workload/trace/file").unwrap().as_str().unwrap();
        assert!(Path::new(path).is_absolute() && Path::new(path).exists(), "{path}");
    }

    fn drawn(file: &str) -> Value {
        json!({"workload": {"drawn": {"lengths": {"file": file}}}})
    }

    fn file(scenario: &Value, model: usize) -> &str {
        let path = format!("/models/{model}/workload/drawn/lengths/file");
        scenario.pointer(&path).unwrap().as_str().unwrap()
    }

    #[test]
    fn a_file_is_read_from_elsewhere_only_if_the_scenario_s_own_folder_does_not_have_it() {
        let folder = tempfile::tempdir().unwrap();
        let other = tempfile::tempdir().unwrap();
        for file in ["a.csv", "b.csv"] {
            fs::write(other.path().join(file), "").unwrap();
        }

        fs::write(folder.path().join("b.csv"), "").unwrap();
        let batch = json!({"batch": {"drawn": {"lengths": {"file": "a.csv"}}}});
        let mut scenario =
            json!({"models": [drawn("a.csv"), drawn("b.csv"), drawn("c.csv"), batch]});

        look_elsewhere(&mut scenario, folder.path(), other.path());

        let found = fs::canonicalize(other.path().join("a.csv")).unwrap();
        assert_eq!(Path::new(file(&scenario, 0)), found);
        assert_eq!([file(&scenario, 1), file(&scenario, 2)], ["b.csv", "c.csv"]);
        let of_batch = scenario.pointer("/models/3/batch/drawn/lengths/file").unwrap();
        assert_eq!(Path::new(of_batch.as_str().unwrap()), found);
    }

    #[test]
    fn a_folder_of_clients_is_hashed_with_their_windows_and_their_lengths_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let clients = folder.path().join("clients");
        fs::create_dir(&clients).unwrap();
        // In the order of their numbers, which differs from the order of their names.
        for (name, text) in [
            ("chunk-10-trace.csv", "c"),
            ("chunk-2-dataset.json", "b"),
            ("chunk-2-trace.csv", "a"),
            ("README.md", "d"),
        ] {
            fs::write(clients.join(name), text).unwrap();
        }

        let mut scenario = json!({"models": [{"workload": {"trace": {"file": "clients"}}}]});
        let found = locate(&mut scenario, folder.path(), None).unwrap();
        assert_eq!(found[0].hash, "ba7816bf8f01cfea", "that of abc");
    }
}
