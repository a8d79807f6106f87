//! Migrations: samples of other autoscalers become configurations that are valid, and manifests
//! that are followed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use k8s_openapi::api::autoscaling::v2::HorizontalPodAutoscaler;
use plimsoll::config::{Files, load, yaml};
use serde_json::Value;

use crate::cluster::fake::FakeCluster;
use crate::events::write_kubeconfig;

fn plimsoll(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// The files of a migration by their names.
fn migrated(source: &str, folder: &str) -> BTreeMap<String, String> {
    let output = tempfile::tempdir().unwrap();
    let into = output.path().join("new");
    let data = Path::new("tests/data/migrate").join(folder);
    let arguments = ["migrate", source, data.to_str().unwrap(), "--output"];
    let ran = plimsoll(&[arguments.as_slice(), &[into.to_str().unwrap()]].concat());
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));

    let printed = text(&ran.stdout);
    let files: BTreeMap<String, String> = printed
        .lines()
        .map(|path| {
            let name = Path::new(path).strip_prefix(&into).unwrap().to_str().unwrap();
            (name.to_owned(), std::fs::read_to_string(path).unwrap())
        })
        .collect();

    // Without errors and warnings, with the environment of this test.
    let loaded = load(&into.join("plimsoll.yaml"), Files::MustExist);
    let loaded = loaded.unwrap_or_else(|error| panic!("{error}\n{}", files["plimsoll.yaml"]));
    assert_eq!(loaded.warnings, [], "{}", files["plimsoll.yaml"]);
    assert_chart_takes(&files["values.yaml"]);
    files
}

/// Checks that the chart knows each key of the values.
fn assert_chart_takes(values: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema = std::fs::read_to_string(root.join("charts/plimsoll/values.schema.json")).unwrap();
    let mut sections = vec![(yaml::read(values).unwrap(), serde_json::from_str(&schema).unwrap())];
    let mut keys = 0;
    while let Some((section, schema)) = sections.pop() {
        let schema: Value = schema;
        let Some(known) = schema["properties"].as_object() else { continue };
        for (key, value) in section.as_object().into_iter().flatten() {
            let of_key = known.get(key).unwrap_or_else(|| panic!("no value {key}:\n{values}"));
            sections.push((value.clone(), of_key.clone()));
            keys += 1;
        }
    }
    assert!(keys >= 4, "{values}");
}

fn manifest(files: &BTreeMap<String, String>, name: &str) -> Value {
    let path = format!("manifests/{name}.yaml");
    let text = files.get(&path).unwrap_or_else(|| panic!("{path} among {:?}", files.keys()));
    yaml::read(text).unwrap()
}

fn manifests(files: &BTreeMap<String, String>) -> Vec<&str> {
    files.keys().filter_map(|name| name.strip_prefix("manifests/")?.strip_suffix(".yaml")).collect()
}

/// Everything that a migration writes, for review.
fn whole(files: &BTreeMap<String, String>) -> String {
    let parts: Vec<String> =
        files.iter().map(|(name, text)| format!("===== {name}\n{text}")).collect();
    parts.concat()
}

/// Checks that an HPA reads the number of this variant alone, and follows it exactly.
fn assert_follows(hpa: &Value, variant: &str) {
    let read: HorizontalPodAutoscaler = serde_json::from_value(hpa.clone()).unwrap();
    let spec = read.spec.unwrap();
    let metrics = spec.metrics.unwrap();
    let [metric] = metrics.as_slice() else { panic!("{metrics:?}") };
    let external = metric.external.as_ref().unwrap();
    assert_eq!(external.metric.name, "plimsoll_desired_replicas");
    let labels = external.metric.selector.as_ref().unwrap().match_labels.as_ref().unwrap();
    assert_eq!(labels, &BTreeMap::from([("variant".to_owned(), variant.to_owned())]));
    assert_eq!(external.target.average_value.as_ref().unwrap().0, "1");
    for direction in ["scaleUp", "scaleDown"] {
        assert_eq!(hpa["spec"]["behavior"][direction]["tolerance"], "0");
    }
}

#[test]
fn the_samples_of_the_workload_variant_autoscaler_become_settings_and_followers() {
    let files = migrated("wva", "wva");
    assert_eq!(
        manifests(&files),
        [
            "llm-d-sim-hpa-dev-model-hpa-lws",
            "llm-d-sim-hpa-model-a-hpa",
            "llm-d-sim-scaledobject-sample-deployment-scaler"
        ]
    );
    assert_follows(&manifest(&files, "llm-d-sim-hpa-dev-model-hpa-lws"), "dev-model-hpa-lws");
    let differences = &files["differences.md"];
    assert!(
        differences.contains("selects variant_name sample-deployment, but WVA names the variant"),
        "{differences}"
    );
    insta::assert_snapshot!("migrate_wva", whole(&files));
}

#[test]
fn variants_that_are_objects_become_annotations_or_declared_variants() {
    let files = migrated("wva", "wva-2025");
    assert_eq!(manifests(&files), Vec::<&str>::new(), "no HPA of the samples is of a variant");
    insta::assert_snapshot!("migrate_wva_2025", whole(&files));

    let folder = tempfile::tempdir().unwrap();
    let object = "apiVersion: llmd.ai/v1alpha1\nkind: VariantAutoscaling\nmetadata: {name: \
                  vllme-deployment-va, namespace: llm-d-sim}\nspec: {modelID: m, scaleTargetRef: \
                  {kind: Deployment, name: vllme-deployment}, variantCost: \"3\"}\n";
    std::fs::write(folder.path().join("va.yaml"), object).unwrap();
    let sample = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/data/migrate/wva-2025/hpa-integration.yaml");
    std::fs::copy(sample, folder.path().join("hpa.yaml")).unwrap();
    let files = migrated("wva", folder.path().to_str().unwrap());
    let hpa = manifest(&files, "llm-d-sim-hpa-vllme-deployment-hpa");
    assert_follows(&hpa, "vllme-deployment-va");
    let annotations = &hpa["metadata"]["annotations"];
    assert_eq!(annotations["plimsoll.dev/model"], "m");
    assert_eq!(annotations["plimsoll.dev/variant"], "vllme-deployment-va");
    assert_eq!(annotations["plimsoll.dev/cost"], "3");
}

#[test]
fn triggers_on_metrics_of_engines_become_one_that_reads_the_number() {
    let files = migrated("keda", "keda");
    assert_eq!(manifests(&files), ["lab-scaledobject-qwen", "shop-scaledobject-llama-queue"]);

    let llama = manifest(&files, "shop-scaledobject-llama-queue");
    let [number, cron] = llama["spec"]["triggers"].as_array().unwrap().as_slice() else {
        panic!("{llama}")
    };
    assert_eq!(
        number["metadata"]["query"],
        "max(plimsoll_desired_replicas{variant=\"llama\",namespace=\"shop\"} and on (instance) \
         bottomk(1, plimsoll_decision_age_seconds{variant=\"llama\",namespace=\"shop\"}))"
    );
    assert_eq!(number["metadata"]["ignoreNullValues"], "false");
    assert_eq!(cron["type"], "cron");
    let annotations = &llama["metadata"]["annotations"];
    assert_eq!(annotations["plimsoll.dev/model"], "meta-llama/Llama-3.1-8B-Instruct");
    assert_eq!(annotations["plimsoll.dev/port"], "9000");
    insta::assert_snapshot!("migrate_keda", whole(&files));
}

#[test]
fn hpas_on_metrics_of_engines_follow_the_number_instead() {
    let files = migrated("hpa", "hpa");
    assert_eq!(manifests(&files), ["lab-hpa-mistral", "shop-hpa-gemma"]);
    let gemma = manifest(&files, "shop-hpa-gemma");
    assert_follows(&gemma, "gemma");
    assert_eq!(gemma["metadata"]["annotations"]["plimsoll.dev/model"], "gemma");
    assert_eq!(gemma["status"], Value::Null);
    assert_eq!(gemma["metadata"]["uid"], Value::Null);
    assert_follows(&manifest(&files, "lab-hpa-mistral"), "mistral");
    insta::assert_snapshot!("migrate_hpa", whole(&files));
}

#[test]
fn an_annotation_names_the_variant_that_is_followed() {
    for (source, sample, before, after) in [
        (
            "hpa",
            "hpa/external-metric.yaml",
            "{name: mistral, namespace: lab}",
            "{name: mistral, namespace: lab, annotations: {plimsoll.dev/variant: g1}}",
        ),
        (
            "wva",
            "wva/hpa.yaml",
            "    llm-d.ai/managed:",
            "    plimsoll.dev/variant: g1\n    llm-d.ai/managed:",
        ),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let path = Path::new("tests/data/migrate").join(sample);
        let annotated = std::fs::read_to_string(path).unwrap().replacen(before, after, 1);
        std::fs::write(folder.path().join("hpa.yaml"), annotated).unwrap();

        let files = migrated(source, folder.path().to_str().unwrap());
        let [name] = manifests(&files)[..] else { panic!("{files:?}") };
        assert_follows(&manifest(&files, name), "g1");
    }
}

#[test]
fn settings_are_entries_of_the_main_config_map_or_are_in_its_file() {
    let folder = tempfile::tempdir().unwrap();
    for (file, data) in [
        (
            "entries.yaml",
            "V: '*', WATCH_NAMESPACE: lab, PROMETHEUS_BASE_URL: 'https://metrics:9090'",
        ),
        ("file.yaml", "config.yaml: 'WATCH_NAMESPACE: shop'"),
    ] {
        let name = "wva-variantautoscaling-config";
        let map = format!(
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: {name}}}\ndata: {{{data}}}\n"
        );
        std::fs::write(folder.path().join(file), map).unwrap();
    }
    let follower = std::fs::read("tests/data/migrate/wva/hpa.yaml").unwrap();
    std::fs::write(folder.path().join("hpa.yaml"), follower).unwrap();

    let files = migrated("wva", folder.path().to_str().unwrap());
    assert!(
        files["differences.md"].contains("PROMETHEUS_BASE_URL https://metrics:9090"),
        "{files:?}"
    );
    let config = yaml::read(&files["plimsoll.yaml"]).unwrap();
    let found = &config["kubernetes"]["discovery"]["namespaces"];
    assert_eq!(found, &serde_json::json!(["lab", "llm-d-sim", "shop"]));
}

#[test]
fn a_fallback_to_zero_becomes_one_that_keeps_a_replica() {
    let folder = tempfile::tempdir().unwrap();
    let sample = std::fs::read_to_string("tests/data/migrate/keda/others.yaml").unwrap();
    let sample = sample.replace("replicas: 1}", "replicas: 0, behavior: currentReplicas}");
    std::fs::write(folder.path().join("qwen.yaml"), sample).unwrap();
    let files = migrated("keda", folder.path().to_str().unwrap());
    let fallback = &manifest(&files, "lab-scaledobject-qwen")["spec"]["fallback"];
    assert_eq!(
        (&fallback["replicas"], &fallback["behavior"]),
        (&1.into(), &"currentReplicas".into())
    );
    assert!(files["differences.md"].contains("1 instead of 0 replicas"), "{files:?}");
}

#[test]
fn a_scale_target_of_another_kind_is_permitted_in_the_chart() {
    let folder = tempfile::tempdir().unwrap();
    let sample = std::fs::read_to_string("tests/data/migrate/hpa/external-metric.yaml").unwrap();
    let rollout =
        sample.replacen("apps/v1, kind: Deployment", "argoproj.io/v1alpha1, kind: Rollout", 1);
    std::fs::write(folder.path().join("mistral.yaml"), rollout).unwrap();
    let files = migrated("hpa", folder.path().to_str().unwrap());
    let values = yaml::read(&files["values.yaml"]).unwrap();
    let targets = values["rbac"]["scaleTargets"].as_array().unwrap();
    assert_eq!(targets.len(), 4, "{targets:?}");
    let rollouts = serde_json::json!({"apiGroup": "argoproj.io", "resource": "rollouts"});
    assert!(targets.contains(&rollouts), "{targets:?}");
    assert!(files["differences.md"].contains("rollouts.argoproj.io"), "{files:?}");
    assert_eq!(
        files["annotate.sh"],
        "#!/bin/sh\nset -e\nkubectl annotate --overwrite -n lab horizontalpodautoscaler mistral \
         plimsoll.dev/model=Mistral-7B\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn one_namespace_of_a_cluster_is_read_alone_and_annotated_in_that_cluster() {
    let fake = FakeCluster::start().await;
    let sample = std::fs::read_to_string("tests/data/migrate/hpa/external-metric.yaml").unwrap();
    let hpa = sample.split("---").next().unwrap().replace("v2beta2", "v2");
    fake.put(
        "/apis/autoscaling/v2/namespaces/lab/horizontalpodautoscalers",
        &yaml::read(&hpa).unwrap(),
    );
    fake.refuse("/api/v1/configmaps");
    let folder = tempfile::tempdir().unwrap();
    let kubeconfig = write_kubeconfig(&folder, &fake);

    let into = folder.path().join("new");
    let of_cluster = ["--kubeconfig", kubeconfig.to_str().unwrap(), "--context", "fake"];
    let arguments = ["migrate", "hpa", "--namespace", "lab", "--output", into.to_str().unwrap()];
    let ran = plimsoll(&[arguments.as_slice(), &of_cluster].concat());
    assert_eq!(ran.status.code(), Some(0), "{}", text(&ran.stderr));

    let script = std::fs::read_to_string(into.join("annotate.sh")).unwrap();
    let command = format!("kubectl {} annotate --overwrite -n lab ", of_cluster.join(" "));
    assert!(script.contains(&command), "{script}");
}

#[test]
fn a_trigger_for_other_metrics_stays_although_a_label_has_the_name_of_an_engine() {
    const QUERY: &str = "sum(vllm:num_requests_running{model_name=\"Qwen/Qwen3-32B\"})";
    let folder = tempfile::tempdir().unwrap();
    let sample = std::fs::read_to_string("tests/data/migrate/keda/others.yaml").unwrap();
    let object = sample.split("---").next().unwrap();
    for (query, stays) in [("rate(http_requests{namespace=\"vllm\"}[1m])", true), (QUERY, false)] {
        let second = format!(
            "  - type: prometheus\n    metadata: {{query: '{query}', threshold: \"7\", \
             serverAddress: \"http://prometheus:9090\"}}\n"
        );
        std::fs::write(folder.path().join("qwen.yaml"), object.to_owned() + &second).unwrap();

        let files = migrated("keda", folder.path().to_str().unwrap());
        let manifest = &files["manifests/lab-scaledobject-qwen.yaml"];
        assert_eq!(manifest.contains(query), stays, "{manifest}");
    }
}

#[test]
fn what_is_migrated_is_migrated_no_second_time() {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in migrated("hpa", "hpa") {
        if let Some(name) = name.strip_prefix("manifests/") {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
    }

    let again = plimsoll(&["migrate", "hpa", folder.path().to_str().unwrap()]);
    assert_eq!(again.status.code(), Some(64));
    let errors = text(&again.stderr);
    assert!(errors.starts_with("plimsoll: found nothing to migrate among 2 objects\n"), "{errors}");
    assert_eq!(errors.matches("follows Plimsoll already").count(), 2, "{errors}");
}

#[test]
fn everything_is_printed_as_one_stream_of_documents() {
    let output = plimsoll(&["migrate", "keda", "tests/data/migrate/keda"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let printed = text(&output.stdout);
    let documents: Vec<&str> = printed.split("---\n").collect();
    assert_eq!(documents.len(), 4, "{printed}");
    assert!(documents[0].starts_with("# plimsoll.yaml\n"), "{printed}");
    for document in &documents[1..3] {
        assert_eq!(yaml::read(document).unwrap()["kind"], "ScaledObject", "{document}");
    }
    assert!(documents[3].lines().all(|line| line.starts_with('#')), "{printed}");
}

#[test]
fn mistakes_name_the_file_and_the_line_and_write_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let broken = folder.path().join("broken.yaml");
    std::fs::write(&broken, "a: 1\nb: c: d\n").unwrap();
    let into: PathBuf = folder.path().join("out");
    let folder = folder.path().to_str().unwrap();
    let ran = plimsoll(&["migrate", "keda", folder, "--output", into.to_str().unwrap()]);
    assert_eq!(ran.status.code(), Some(64));
    let errors = text(&ran.stderr);
    assert!(errors.contains(&format!("{}:2 is not YAML: ", broken.display())), "{errors}");
    assert!(!into.exists());

    std::fs::write(
        &broken,
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: wva-saturation-scaling-config}\ndata: \
         {default: \"kvCacheThreshold: [\"}\n---\napiVersion: llmd.ai/v1alpha1\nkind: \
         VariantAutoscaling\nmetadata: {name: a}\nspec: {modelID: m, scaleTargetRef: {name: a}}\n",
    )
    .unwrap();
    let ran = plimsoll(&["migrate", "wva", folder]);
    assert_eq!(ran.status.code(), Some(64));
    let errors = text(&ran.stderr);
    let place = format!(
        "{}:1 ConfigMap default/wva-saturation-scaling-config data.default",
        broken.display()
    );
    assert!(errors.contains(&place), "{errors}");

    let ran = plimsoll(&["migrate", "hpa", "tests/data/migrate/hpa", "--output", folder]);
    assert_eq!(ran.status.code(), Some(64));
    assert!(text(&ran.stderr).contains("is not an empty folder"), "{}", text(&ran.stderr));

    let ran = plimsoll(&["migrate", "wva", "--kubeconfig", "/nonexistent/config"]);
    assert_eq!(ran.status.code(), Some(69));
    let errors = text(&ran.stderr);
    assert_eq!(errors.matches("No such file").count(), 1, "{errors}");

    let ran = plimsoll(&["migrate", "wva", "examples/wva-migration"]);
    assert_eq!(ran.status.code(), Some(64));
    let errors = text(&ran.stderr);
    assert!(errors.contains(" is also in ") && errors.contains("; give one"), "{errors}");
}
