//! A cluster that is migrated: what `plimsoll migrate` prints is accepted, and followed.

use std::fs;
use std::process::Command;

use plimsoll::config::yaml;

use crate::daemon::{Daemon, Knows, configuration};
use crate::engines::PORT;
use crate::follows;
use crate::page::MODEL;
use crate::stage::{stage, tools};
use crate::wait::{PATIENCE, until};

/// An HPA as users have it who read the length of the queue through an adapter.
const HPA: &str = "
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: llama, namespace: settler}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: llama}
  minReplicas: 1
  maxReplicas: 8
  metrics:
  - type: External
    external:
      metric:
        name: vllm_num_requests_waiting
        selector: {matchLabels: {app: llama}}
      target: {type: AverageValue, averageValue: \"5\"}
";

/// Runs `plimsoll migrate` and returns its files by name.
fn migrate(arguments: &[&str]) -> Vec<(String, String)> {
    let output = tempfile::tempdir().unwrap();
    let folder = output.path().join("new");
    let ran = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("migrate")
        .args(arguments)
        .arg("--output")
        .arg(&folder)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .output()
        .unwrap();
    assert!(ran.status.success(), "{}", String::from_utf8_lossy(&ran.stderr));
    let listed = String::from_utf8(ran.stdout).unwrap();
    listed.lines().map(|path| (path.to_owned(), fs::read_to_string(path).unwrap())).collect()
}

fn manifests(files: &[(String, String)]) -> impl Iterator<Item = &str> {
    files.iter().filter(|(path, _)| path.contains("/manifests/")).map(|(_, text)| text.as_str())
}

#[test]
fn a_cluster_is_migrated_and_its_hpa_follows() {
    let stage = &stage();
    stage.deploy("settler", 1, PATIENCE);
    // The name of the model is in the arguments of the engine alone.
    let add = format!(
        "[{{\"op\": \"add\", \"path\": \"/spec/template/spec/containers/0/args\", \"value\": \
         [\"--model\", \"{MODEL}\", \"--port\", \"{PORT}\"]}}]"
    );
    let patch = ["patch", "deployment", "llama", "-n", "settler", "--type=json", "-p", &add];
    stage.kubectl(&patch).unwrap();
    stage.apply(HPA);
    let kubeconfig = stage.cluster().join("admin.kubeconfig");
    let kubeconfig = kubeconfig.to_str().unwrap();
    let files = migrate(&["hpa", "--kubeconfig", kubeconfig, "--namespace", "settler"]);
    let of_config = files.iter().find(|(path, _)| path.ends_with("plimsoll.yaml"));
    let (_, config) = of_config.unwrap();

    // The address and the certificate are the stage's, and everything else is as migrated.
    stage.engines.load("settler", 0.3);
    let mut keys = yaml::read(config).unwrap();
    let of_stage = yaml::read(&configuration(stage, "settler", Knows::ByDiscovery)).unwrap();
    let discovery = keys["kubernetes"]["discovery"].clone();
    assert_eq!(discovery["namespaces"], serde_json::json!(["settler"]));
    for (key, value) in of_stage.as_object().unwrap() {
        keys[key] = value.clone();
    }
    keys["kubernetes"]["discovery"] = discovery;

    let grant = ["create", "rolebinding", "plimsoll-discovery", "-n", "settler"];
    let whom = ["--clusterrole=plimsoll-discovery", "--serviceaccount=plimsoll:plimsoll"];
    stage.kubectl(&[grant.as_slice(), &whom].concat()).unwrap();
    let daemon = Daemon::launch(stage, "settler", &yaml::write(&keys).unwrap());
    Daemon::wait_until_registered(stage);
    manifests(&files).for_each(|manifest| stage.apply(manifest));
    follows(stage, &daemon, "settler", 2.0, 3);
}

#[test]
fn what_is_migrated_from_the_samples_is_accepted_by_the_api_server() {
    let stage = &stage();
    let crds = tools().join("keda-crds/keda.sh_scaledobjects.yaml");
    stage.create(&fs::read_to_string(&crds).unwrap());
    for namespace in ["shop", "lab", "llm-d-sim"] {
        stage.kubectl(&["create", "namespace", namespace]).unwrap();
    }

    let mut applied = 0;
    for (source, folder) in [("wva", "wva"), ("keda", "keda"), ("hpa", "hpa")] {
        let files = migrate(&[source, &format!("tests/data/migrate/{folder}")]);
        for manifest in manifests(&files) {
            until("the kind of ScaledObjects", || stage.try_apply(manifest).then_some(()));
            applied += 1;
        }
    }
    assert!(applied >= 7, "{applied}");

    let kept = "jsonpath={.spec.behavior.scaleUp.tolerance}";
    let tolerance = stage.kubectl(&["get", "hpa", "gemma", "-n", "shop", "-o", kept]).unwrap();
    assert_eq!(tolerance, "0", "the API server keeps the tolerance");
    for namespace in ["shop", "lab", "llm-d-sim"] {
        stage.kubectl(&["delete", "namespace", namespace, "--wait=false"]).unwrap();
    }
    stage.kubectl(&["delete", "crd", "scaledobjects.keda.sh"]).unwrap();
}
