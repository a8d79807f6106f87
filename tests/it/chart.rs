//! The Helm chart, as far as it can be held to the sources without helm; `tests/chart/run` has it.

use std::path::Path;

use serde_json::{Value, json};

/// What the chart sets itself, so that no value may: as in tests/chart/sync.
const OWN: [&str; 13] = [
    "server.listen",
    "external_metrics.enabled",
    "external_metrics.listen",
    "external_metrics.tls",
    "external_metrics.object_metrics",
    "external_scaler",
    "kubernetes.enabled",
    "kubernetes.kubeconfig",
    "kubernetes.context",
    "kubernetes.leader_election.enabled",
    "kubernetes.leader_election.namespace",
    "kubernetes.leader_election.name",
    "state_file",
];

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Removes the lists of required keys, because the environment may give what the values lack.
fn allow_environment(schema: &mut Value) {
    match schema {
        Value::Object(map) => {
            if map.get("required").is_some_and(Value::is_array) {
                map.shift_remove("required");
            }
            map.values_mut().for_each(allow_environment);
        }
        Value::Array(items) => items.iter_mut().for_each(allow_environment),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[test]
fn the_values_know_the_configuration_key_by_key() {
    let mut wanted = plimsoll::config::schema();
    allow_environment(&mut wanted);
    for path in OWN {
        let (sections, key) = path.rsplit_once('.').unwrap_or(("", path));
        let mut section = &mut wanted;
        for name in sections.split('.').filter(|name| !name.is_empty()) {
            section = &mut section["properties"][name];
        }
        let keys = section["properties"].as_object_mut().unwrap();
        assert!(keys.shift_remove(key).is_some(), "there is no key {path}");
    }
    // Helm merges mappings over several files, and replaces lists.
    let variants = &mut wanted["properties"]["variants"];
    variants["type"] = json!(["array", "object", "null"]);
    variants["additionalProperties"] = json!({
        "type": ["object", "null"],
        "if": {"type": "object"},
        "then": {"$ref": "#/properties/config/properties/variants/items"},
    });
    let schema: Value = serde_json::from_str(&read("charts/plimsoll/values.schema.json")).unwrap();
    let config = &schema["properties"]["config"];
    assert!(
        config["properties"] == wanted["properties"],
        "the configuration has changed: run tests/chart/sync"
    );
    assert_eq!(config["additionalProperties"], false);
    let sync = read("tests/chart/sync");
    for path in OWN {
        let written = path.split('.').map(|part| format!("\"{part}\"")).collect::<Vec<_>>();
        assert!(sync.contains(&format!("[{}]", written.join(", "))), "tests/chart/sync: {path}");
    }
}

#[test]
fn what_the_daemon_cannot_change_while_it_runs_restarts_its_pods() {
    let mut keys = Vec::new();
    collect_restarts(&plimsoll::config::schema(), "", &mut keys);
    assert!(keys.iter().any(|key| key == "shutdown"), "{keys:?}");
    let template = read("charts/plimsoll/templates/_config.tpl");
    let fixed = template.split("define \"plimsoll.fixedConfig\"").nth(1).unwrap();
    for key in keys {
        let section = key.split('.').next().unwrap();
        let known = [&*key, section].iter().any(|key| fixed.contains(&format!("\"{key}\"")));
        assert!(known, "templates/_config.tpl does not have {key} in plimsoll.fixedConfig");
    }
}

/// Adds the keys below a path whose change needs a restart.
fn collect_restarts(schema: &Value, path: &str, keys: &mut Vec<String>) {
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        if property["x-restart"] == true {
            keys.push(path);
        } else {
            collect_restarts(property, &path, keys);
        }
    }
}

#[test]
fn the_chart_has_the_version_of_the_program() {
    let chart = read("charts/plimsoll/Chart.yaml");
    let version = env!("CARGO_PKG_VERSION");
    assert!(chart.contains(&format!("\nappVersion: \"{version}\"\n")), "{chart}");
    assert!(chart.contains(&format!("\nversion: {version}\n")), "{chart}");
}
