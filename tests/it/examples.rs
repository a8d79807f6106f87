//! The examples: each is loaded as what it is, and an example that no test knows fails.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use k8s_openapi::api::batch::v1::Job;
use k8s_openapi::api::core::v1::{
    ConfigMap, Namespace, PersistentVolumeClaim, Secret, Service, ServiceAccount,
};
use k8s_openapi::api::flowcontrol::v1::FlowSchema;
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding, Role, RoleBinding};
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use plimsoll::config::{Files, LoadedConfig, Surroundings, load, parse, yaml};
use plimsoll::publish::gauges::{FAMILIES, WVA_FAMILIES};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use yaml_rust2::{Yaml, YamlLoader};

/// Examples that are neither a configuration nor manifests, with the test that loads them.
const ELSEWHERE: &[(&str, &str)] = &[
    (
        "alertmanager.yml",
        "consequences_of_an_outage_of_the_api_server_are_marked_and_its_own_alerts_are_not",
    ),
    ("admission/admit.sh", "the_example_of_admission_writes_a_route_with_the_rate_as_its_limit"),
    ("admission/envoy.yaml", "the_example_of_admission_writes_a_route_with_the_rate_as_its_limit"),
    (
        "admission/routes.yaml.in",
        "the_example_of_admission_writes_a_route_with_the_rate_as_its_limit",
    ),
    ("cards.yaml", "the_example_of_cards_is_valid_and_says_what_it_is_for"),
    ("demo-lora.yaml", "the_demo_plays_examples_that_can_be_simulated"),
    ("demo.yaml", "the_demo_plays_examples_that_can_be_simulated"),
    ("prometheus-adapter.yaml", "the_rule_of_the_prometheus_adapter_has_one_series_per_variant"),
    ("policy-cautious.yaml", "policies_are_scored_side_by_side_on_the_recorded_load"),
    ("policy-foresight.yaml", "policies_are_scored_side_by_side_on_the_recorded_load"),
    ("prometheus-only.yml", "the_prometheus_of_the_example_scrapes_what_the_variants_match"),
    ("simulate-adapters.yaml", "with_a_slot_for_each_adapter_no_request_waits_for_one"),
    ("simulate-day.yaml", "the_example_of_a_day_compares_with_a_stock_hpa"),
    ("simulate-disaggregated.yaml", "the_example_with_roles_apart_scales_each_and_serves_both"),
    ("simulate-harsh.yaml", "the_example_of_a_day_on_which_all_goes_wrong_is_served_somehow"),
    ("simulate-jump.yaml", "foresight_serves_a_jump_as_a_stock_hpa_does_for_a_third_of_its_cost"),
    (
        "simulate-prefix.yaml",
        "the_example_of_a_prefix_cache_computes_less_of_prompts_that_begin_alike",
    ),
    (
        "simulate-spot.yaml",
        "the_example_of_spot_nodes_compares_the_least_cost_with_the_rank_of_prices",
    ),
    ("simulate-standby.yaml", "a_few_replicas_of_standby_save_most_of_what_a_jump_would_lose"),
    ("simulate-trace.yaml", "the_example_is_simulated_and_says_the_same_twice"),
    ("traces/README.md", "the_example_is_simulated_and_says_the_same_twice"),
    ("traces/azure-conversation.csv", "the_example_is_simulated_and_says_the_same_twice"),
    (
        "traces/mooncake-conversation.jsonl",
        "the_example_of_a_prefix_cache_computes_less_of_prompts_that_begin_alike",
    ),
];

/// What users of WVA have is shown with what is wrong with it.
const BEFORE: &str = "wva-migration/before/";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples")
}

/// All examples by their paths in the folder.
fn examples() -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder()];
    while let Some(inside) = folders.pop() {
        for entry in std::fs::read_dir(inside).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder()).unwrap().to_str().unwrap().to_owned();
            found.insert(name, std::fs::read_to_string(path).unwrap());
        }
    }
    found
}

/// The documents of a YAML file, as JSON.
pub(crate) fn documents(name: &str, text: &str) -> Vec<Value> {
    let documents =
        YamlLoader::load_from_str(text).unwrap_or_else(|error| panic!("{name}: {error}"));
    documents.iter().map(json).collect()
}

fn json(yaml: &Yaml) -> Value {
    match yaml {
        Yaml::Real(text) => json!(text.parse::<f64>().unwrap()),
        Yaml::Integer(number) => json!(number),
        Yaml::String(text) => json!(text),
        Yaml::Boolean(flag) => json!(flag),
        Yaml::Array(items) => items.iter().map(json).collect(),
        Yaml::Hash(map) => {
            let pair =
                |(key, value): (&Yaml, &Yaml)| (key.as_str().unwrap().to_owned(), json(value));
            map.iter().map(pair).collect()
        }
        Yaml::Null => Value::Null,
        Yaml::Alias(_) | Yaml::BadValue => panic!("an example has an alias or a bad value"),
    }
}

fn surroundings() -> Surroundings {
    Surroundings {
        origin: "an example".to_owned(),
        base: "/etc/plimsoll".into(),
        environment: BTreeMap::new(),
        files: Files::NotChecked,
    }
}

/// Reads a manifest as an object of its kind. Nothing in it may be unknown to that kind.
fn strictly<K: Serialize + DeserializeOwned>(name: &str, manifest: &Value) {
    let object: K =
        serde_json::from_value(manifest.clone()).unwrap_or_else(|error| panic!("{name}: {error}"));
    let again = serde_json::to_value(object).unwrap();
    lost(name, manifest, &again);
}

/// Fails on the first key of a manifest that reading it has dropped.
fn lost(path: &str, written: &Value, read: &Value) {
    match (written, read) {
        (Value::Object(written), Value::Object(read)) => {
            for (key, value) in written {
                let at = format!("{path}.{key}");
                lost(&at, value, read.get(key).unwrap_or_else(|| panic!("{at} is unknown")));
            }
        }
        (Value::Array(written), Value::Array(read)) => {
            assert_eq!(written.len(), read.len(), "{path}");
            for (at, (written, read)) in written.iter().zip(read).enumerate() {
                lost(&format!("{path}[{at}]"), written, read);
            }
        }
        _ => assert_eq!(written, read, "{path}"),
    }
}

/// Loads one manifest of an example.
fn manifest(name: &str, manifest: &Value) {
    let kind = manifest["kind"].as_str().unwrap_or_else(|| panic!("{name} has no kind"));
    let read: fn(&str, &Value) = match kind {
        "APIService" => strictly::<APIService>,
        "ClusterRole" => strictly::<ClusterRole>,
        "ClusterRoleBinding" => strictly::<ClusterRoleBinding>,
        "ConfigMap" => strictly::<ConfigMap>,
        "Deployment" => strictly::<Deployment>,
        "FlowSchema" => strictly::<FlowSchema>,
        "HorizontalPodAutoscaler" => hpa,
        "Job" => strictly::<Job>,
        "Namespace" => strictly::<Namespace>,
        "PersistentVolumeClaim" => strictly::<PersistentVolumeClaim>,
        "PodDisruptionBudget" => strictly::<PodDisruptionBudget>,
        "Role" => strictly::<Role>,
        "RoleBinding" => strictly::<RoleBinding>,
        "ScaledObject" => scaled_object,
        "Secret" => strictly::<Secret>,
        "Service" => strictly::<Service>,
        "ServiceAccount" => strictly::<ServiceAccount>,
        "StatefulSet" => strictly::<StatefulSet>,
        other => panic!("{name}: no test loads a {other}"),
    };
    read(name, manifest);
}

/// An HPA that follows the number exactly.
fn hpa(name: &str, manifest: &Value) {
    strictly::<HorizontalPodAutoscaler>(name, manifest);
    let metrics = &manifest["spec"]["metrics"][0];
    let metric = metrics.get("external").unwrap_or(&metrics["object"]);
    known_metric(name, metric["metric"]["name"].as_str().unwrap());
    assert_eq!(metric["target"], json!({"type": "AverageValue", "averageValue": "1"}), "{name}");
    if !name.starts_with(BEFORE) {
        exactly(name, &manifest["spec"]["behavior"]);
    }
}

fn exactly(name: &str, behavior: &Value) {
    for direction in ["scaleUp", "scaleDown"] {
        assert_eq!(behavior[direction]["tolerance"], "0", "{name}: {direction}");
    }
}

/// A `ScaledObject` that follows the number exactly, and drops nothing when there is none. Its shape
/// is held against KEDA's own definition by the end-to-end tests.
fn scaled_object(name: &str, manifest: &Value) {
    let spec = &manifest["spec"];
    let trigger = &spec["triggers"][0];
    let metadata = &trigger["metadata"];
    match trigger["type"].as_str() {
        Some("prometheus") => prometheus_trigger(name, manifest, metadata),
        Some("metrics-api") => {
            let url = metadata["url"].as_str().unwrap();
            assert!(url.ends_with("/api/v1/desired?namespace=shop&variant=llama"), "{name}: {url}");
            assert_eq!(metadata["valueLocation"], "replicas", "{name}");
            assert_eq!(metadata["targetValue"], "1", "{name}");
        }
        Some("external-push") => assert_eq!(metadata["variant"], "llama", "{name}"),
        other => panic!("{name}: no test knows a trigger {other:?}"),
    }
    if name.starts_with(BEFORE) {
        return;
    }

    assert_eq!(trigger["metricType"], "AverageValue", "{name}");
    assert_eq!(metadata.get("metricType"), None, "{name}: KEDA does not read it there");
    assert!(spec["minReplicaCount"].is_u64(), "{name}: KEDA would take 0");
    assert_eq!(spec["fallback"]["behavior"], "currentReplicasIfHigher", "{name}");
    assert!(spec["fallback"]["replicas"].as_u64() > Some(0), "{name}: an error would scale to 0");
    exactly(name, &spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]);
}

/// A prometheus trigger that reads one variant, and takes nothing for 0.
fn prometheus_trigger(name: &str, manifest: &Value, metadata: &Value) {
    let query = metadata["query"].as_str().unwrap();
    let metric = query.trim_start_matches("max(").split('{').next().unwrap();
    known_metric(name, metric);
    let namespace = manifest["metadata"]["namespace"].as_str().unwrap();
    assert!(query.contains(&format!("namespace=\"{namespace}\"")), "{name}: {query}");
    assert_eq!(metadata["threshold"], "1", "{name}");
    if name.starts_with(BEFORE) {
        return;
    }
    assert!(query.starts_with("max("), "{name}: {query} may be several series");
    assert_eq!(metadata["ignoreNullValues"], "false", "{name}");
}

fn known_metric(name: &str, metric: &str) {
    let mut families = FAMILIES.iter().chain(WVA_FAMILIES);
    assert!(families.any(|family| family.name == metric), "{name}: there is no metric {metric}");
}

#[test]
fn every_example_is_loaded_as_what_it_is() {
    let mut seen = 0;
    for (name, text) in examples() {
        seen += 1;
        if let Some((_, test)) = ELSEWHERE.iter().find(|(known, _)| *known == name) {
            let tests = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
            let mut files = std::fs::read_dir(tests).unwrap().map(|entry| entry.unwrap().path());
            let test = format!("fn {test}(");
            let has =
                |file: PathBuf| std::fs::read_to_string(file).is_ok_and(|it| it.contains(&test));
            assert!(files.any(has), "{name}: there is no {test}");
        } else if !text.lines().any(|line| line.starts_with("kind:")) {
            let loaded = parse(&text, &surroundings());
            let loaded = loaded.unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(loaded.warnings, Vec::new(), "{name}");
        } else {
            // What users fill in.
            let documents = documents(&name, &text.replace("CA_BUNDLE", "Q0E="));
            assert!(!documents.is_empty(), "{name} is empty");
            for document in &documents {
                manifest(&name, document);
            }
        }
    }
    assert!(seen >= 11, "{seen} examples");
}

/// A real adapter reads it in `make e2e-keda`.
#[test]
fn the_rule_of_the_prometheus_adapter_has_one_series_per_variant() {
    let examples = examples();
    let (_, text) = examples.iter().find(|(name, _)| *name == "prometheus-adapter.yaml").unwrap();
    let rules = yaml::read(text).unwrap();
    let [rule] = rules["externalRules"].as_array().unwrap().as_slice() else { panic!("{rules}") };
    let family = FAMILIES.iter().find(|family| rule["seriesQuery"] == family.name).unwrap();
    let query = rule["metricsQuery"].as_str().unwrap();
    assert!(query.starts_with("max by (variant) ("), "an HPA adds up what it gets: {query}");
    for label in ["namespace", "variant"] {
        assert!(family.labels.contains(&label), "{label}");
    }
    assert_eq!(rule["resources"]["overrides"]["namespace"]["resource"], "namespace");
}

/// `admit.sh` itself needs curl, jq and Envoy; docs/admission.md says what came of it there.
#[test]
fn the_example_of_admission_writes_a_route_with_the_rate_as_its_limit() {
    let examples = examples();
    let script = &examples["admission/admit.sh"];
    let template = &examples["admission/routes.yaml.in"];
    let names: BTreeSet<&str> = template.split('@').filter(|it| is_placeholder(it)).collect();
    assert_eq!(names.len(), 3, "{names:?}");

    let mut routes = template.clone();
    for name in &names {
        let placeholder = format!("@{name}@");
        assert!(script.contains(&format!("gsub(/{placeholder}/,")), "{name}");
        routes = routes.replace(&placeholder, "20");
    }
    let route = &documents("routes", &routes)[0]["resources"][0]["virtual_hosts"][0]["routes"][0];
    let limit = &route["typed_per_filter_config"]["envoy.filters.http.local_ratelimit"];
    assert_eq!(limit["token_bucket"]["tokens_per_fill"], 20);
    assert_eq!(limit["descriptors"][0]["entries"][0]["value"], "batch");

    let cluster = &route["route"]["cluster"];
    let envoy = &documents("envoy", &examples["admission/envoy.yaml"])[0]["static_resources"];
    assert_eq!(envoy["clusters"][0]["name"], *cluster);
    let api = std::fs::read_to_string(folder().join("../docs/api.md")).unwrap();
    for field in ["model_admissible_per_second", "age_seconds"] {
        assert!(script.contains(field) && api.contains(&format!("| `{field}` |")), "{field}");
    }
}

fn is_placeholder(text: &str) -> bool {
    !text.is_empty() && text.chars().all(|c| c.is_ascii_uppercase())
}

#[test]
fn what_the_migration_leads_to_has_the_thresholds_of_before() {
    let examples = examples();
    let map = &documents("configmap", &examples["wva-migration/before/configmap.yaml"])[0];
    let folder = tempfile::tempdir().unwrap();
    std::fs::create_dir(folder.path().join("wva")).unwrap();
    for (key, text) in map["data"].as_object().unwrap() {
        std::fs::write(folder.path().join("wva").join(key), text.as_str().unwrap()).unwrap();
    }
    let text = &examples["wva-migration/after/plimsoll.yaml"];
    let (start, rest) = text.split_once("external_metrics:").unwrap();
    let (_, end) = rest.split_once("compatibility:").unwrap();
    let text = format!("{start}compatibility:{end}")
        .replace("/etc/wva", "wva")
        .replace("/var/lib/plimsoll/", "");
    let file = folder.path().join("plimsoll.yaml");
    std::fs::write(&file, text).unwrap();
    let LoadedConfig { config, warnings } = load(&file, Files::MustExist).unwrap();
    assert_eq!(warnings, Vec::new());
    let (model, thresholds) = config.policy.overrides.first_key_value().unwrap();
    assert_eq!(model.to_string(), "meta-llama/Llama-3.1-8B-Instruct#shop");
    assert_eq!(thresholds.kv_cache.fraction().to_string(), "0.75");
    assert_eq!(thresholds.queue_length.requests().to_string(), "10");
    assert_eq!(thresholds.kv_spare, config.policy.thresholds.kv_spare);
}

#[test]
fn the_migration_changes_nothing_that_it_does_not_say() {
    let examples = examples();
    for object in ["hpa", "scaledobject"] {
        let read = |side: &str| {
            let name = format!("wva-migration/{side}/{object}.yaml");
            documents(&name, &examples[&name]).remove(0)
        };
        let (before, after) = (read("before"), read("after"));
        assert_eq!(before["metadata"], after["metadata"], "{object}");
        assert_eq!(before["spec"]["scaleTargetRef"], after["spec"]["scaleTargetRef"], "{object}");
        for bound in ["minReplicas", "maxReplicas", "maxReplicaCount", "fallback", "metrics"] {
            assert_eq!(before["spec"][bound], after["spec"][bound], "{object}: {bound}");
        }
    }
}

/// That Prometheus takes the file is checked with promtool, beside the alerts.
#[test]
fn the_prometheus_of_the_example_scrapes_what_the_variants_match() {
    let examples = examples();
    let scraped = &documents("prometheus", &examples["prometheus-only.yml"])[0]["scrape_configs"];
    let jobs = scraped.as_array().unwrap();
    let config = &documents("plimsoll", &examples["plimsoll-prometheus-only.yaml"])[0];
    let variants = config["variants"].as_array().unwrap();
    assert!(!variants.is_empty());
    for variant in variants {
        let wanted = &variant["targets"]["prometheus"]["match"];
        let of_job = jobs.iter().find(|job| job["job_name"] == wanted["job"]).unwrap();
        let groups = of_job["static_configs"].as_array().unwrap();
        let group = groups.iter().find(|group| group["labels"]["variant"] == wanted["variant"]);
        assert!(group.is_some(), "no group of targets for {wanted}");
    }
}

/// What the containers of a Job run, with the folders that they mount in the place of theirs.
fn runs(job: &Value, index: Option<u64>, mounted: &Path) -> Output {
    let container = &job["spec"]["template"]["spec"]["containers"][0];
    let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
    command.env_clear();
    for argument in container["args"].as_array().unwrap() {
        let mut argument = argument.as_str().unwrap().to_owned();
        for mount in container["volumeMounts"].as_array().unwrap() {
            let path = mount["mountPath"].as_str().unwrap();
            argument = argument.replacen(path, &format!("{}{path}", mounted.display()), 1);
        }
        if let Some(index) = index {
            command.env("JOB_COMPLETION_INDEX", index.to_string());
            argument = argument.replace("$(JOB_COMPLETION_INDEX)", &index.to_string());
        }
        command.arg(argument);
    }
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn the_pods_of_the_indexed_job_simulate_each_run_once_and_the_other_job_puts_them_together() {
    let examples = examples();
    let [map, _, job] = &documents("job", &examples["simulate-job.yaml"])[..] else { panic!() };
    let merge = &documents("merge", &examples["simulate-job-merge.yaml"])[0];
    let folder = tempfile::tempdir().unwrap();
    for mounted in ["study", "results"] {
        std::fs::create_dir(folder.path().join(mounted)).unwrap();
    }
    for (name, text) in map["data"].as_object().unwrap() {
        // Two minutes of it are enough to see which runs there are.
        let text = text.as_str().unwrap().replace("length: 10m", "length: 2m");
        std::fs::write(folder.path().join("study").join(name), text).unwrap();
    }
    let completions = job["spec"]["completions"].as_u64().unwrap();
    assert_eq!(job["spec"]["parallelism"], completions);
    for index in 0..completions {
        runs(job, Some(index), folder.path());
    }
    let results: Value = serde_json::from_slice(&runs(merge, None, folder.path()).stdout).unwrap();
    let indices: Vec<&Value> =
        results["runs"].as_array().unwrap().iter().map(|run| &run["index"]).collect();
    let planned = results["planned"].as_u64().unwrap();
    assert_eq!(
        indices,
        (0..planned).map(Value::from).collect::<Vec<_>>().iter().collect::<Vec<_>>()
    );
    assert_eq!(planned, completions, "each pod has one run, and none has nothing to do");
}
