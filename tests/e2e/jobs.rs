//! The study that the examples run on a cluster, with the real API server, Job controller, scheduler
//! and volume binder. What a kubelet would do with the pods is done here: it runs the binary with
//! their arguments, environment and volumes, and says what became of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::stage::{Stage, stage};
use crate::wait::until;

const STUDY: &str = include_str!("../../examples/simulate-job.yaml");
const MERGE: &str = include_str!("../../examples/simulate-job-merge.yaml");
const NAMESPACE: &str = "studies";

/// The index whose first pod is lost with its node.
const LOST: &str = "3";

/// How a process ends that is killed.
const KILLED: i32 = 137;

/// A node's view of the study's pods.
struct Kubelet<'s> {
    stage: &'s Stage,
    folder: PathBuf,
}

impl Kubelet<'_> {
    fn get(&self, arguments: &[&str]) -> Value {
        let all = [&["get", "-n", NAMESPACE, "-o", "json"], arguments].concat();
        serde_json::from_str(&self.stage.kubectl(&all).unwrap()).unwrap()
    }

    /// The pods of a Job that run and have not ended.
    fn running(&self, job: &str) -> Vec<Value> {
        let pods = self.get(&["pods", "-l", &format!("batch.kubernetes.io/job-name={job}")]);
        let runs = |pod: &&Value| {
            let is = |it: &Value| it["type"] == "Ready" && it["status"] == "True";
            pod["status"]["phase"] == "Running"
                && pod["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is))
        };
        pods["items"].as_array().unwrap().iter().filter(runs).cloned().collect()
    }

    /// Where a volume of a pod is on this machine.
    fn mounted(&self, pod: &Value, volume: &str) -> PathBuf {
        let volumes = pod["spec"]["volumes"].as_array().unwrap();
        let volume = volumes.iter().find(|it| it["name"] == volume).unwrap();
        if let Some(claim) = volume["persistentVolumeClaim"]["claimName"].as_str() {
            let claim = self.get(&["pvc", claim]);
            let bound = self.get(&["pv", claim["spec"]["volumeName"].as_str().unwrap()]);
            return bound["spec"]["hostPath"]["path"].as_str().unwrap().into();
        }
        let map = volume["configMap"]["name"].as_str().unwrap();
        let folder = self.folder.join(map);
        fs::create_dir_all(&folder).unwrap();
        for (name, text) in self.get(&["configmap", map])["data"].as_object().unwrap() {
            fs::write(folder.join(name), text.as_str().unwrap()).unwrap();
        }
        folder
    }

    /// Runs the container of a pod.
    fn run(&self, pod: &Value) -> Output {
        let container = &pod["spec"]["containers"][0];
        assert!(container["command"].is_null(), "the image's entry point is the binary");
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.env_clear();
        let mut environment = Vec::new();
        for variable in container["env"].as_array().into_iter().flatten() {
            let name = variable["name"].as_str().unwrap();
            let path = variable["valueFrom"]["fieldRef"]["fieldPath"].as_str();
            let value = path.map_or_else(|| variable["value"].as_str(), |path| field(pod, path));
            let value = value.unwrap_or_else(|| panic!("{variable} of {pod}"));
            command.env(name, value);
            environment.push((format!("$({name})"), value));
        }
        let mounts = container["volumeMounts"].as_array().unwrap().iter().map(|mount| {
            let volume = self.mounted(pod, mount["name"].as_str().unwrap());
            (mount["mountPath"].as_str().unwrap(), volume.display().to_string())
        });
        let mounts: Vec<_> = mounts.collect();
        for argument in container["args"].as_array().unwrap() {
            let mut argument = argument.as_str().unwrap().to_owned();
            for (name, value) in &environment {
                argument = argument.replace(name, value);
            }
            for (path, folder) in &mounts {
                argument = argument.replacen(path, folder, 1);
            }
            assert!(!argument.contains("$("), "{argument} names a variable that there is not");
            command.arg(argument);
        }
        command.output().unwrap()
    }

    /// Says how the container of a pod has ended.
    fn end(&self, pod: &Value, code: i32) {
        let name = pod["metadata"]["name"].as_str().unwrap();
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        let mut status = pod["status"]["containerStatuses"][0].clone();
        let began = status["state"]["running"]["startedAt"].clone();
        status["ready"] = json!(false);
        status["state"] = json!({"terminated": {
            "exitCode": code, "startedAt": began, "finishedAt": began,
        }});
        let patch = json!({"status": {"phase": phase, "containerStatuses": [status]}});
        let arguments = ["patch", "pod", name, "-n", NAMESPACE, "--subresource=status"];
        let patch = ["--type=merge", "-p", &patch.to_string()];
        self.stage.kubectl(&[&arguments[..], &patch[..]].concat()).unwrap();
    }

    /// Waits for a Job as its documentation does.
    fn completes(&self, job: &str) {
        let wait = ["wait", "--for=condition=complete", "--timeout=10m", "-n", NAMESPACE];
        self.stage.kubectl(&[&wait[..], &[&format!("job/{job}")]].concat()).unwrap();
    }
}

/// What a field path of a pod stands for: an annotation or a label.
fn field<'p>(pod: &'p Value, path: &str) -> Option<&'p str> {
    let (map, key) = path.strip_prefix("metadata.")?.strip_suffix("']")?.split_once("['")?;
    pod["metadata"][map][key].as_str()
}

fn index(pod: &Value) -> &str {
    pod["metadata"]["annotations"]["batch.kubernetes.io/job-completion-index"].as_str().unwrap()
}

/// The manifests of an example as a user makes them: with an image.
fn manifests(example: &str) -> String {
    example.replace("image: IMAGE", "image: plimsoll:e2e")
}

/// A volume that all can write, which the claim of the examples is bound to.
fn volume(path: &Path) -> String {
    format!(
        "apiVersion: v1\nkind: PersistentVolume\nmetadata: {{name: plimsoll-study}}\nspec:\n  \
         accessModes: [ReadWriteMany]\n  capacity: {{storage: 1Gi}}\n  \
         claimRef: {{namespace: {NAMESPACE}, name: plimsoll-study}}\n  \
         hostPath: {{path: {}}}\n",
        path.display()
    )
}

#[test]
fn i_the_jobs_of_the_examples_come_to_what_one_machine_comes_to() {
    let stage = &stage();
    let kubelet = Kubelet { stage, folder: stage.folder.join("studies") };
    let results = kubelet.folder.join("results");
    fs::create_dir_all(&results).unwrap();
    stage.kubectl(&["create", "namespace", NAMESPACE]).unwrap();
    stage.apply(&volume(&results));
    // Two minutes of it are as good as ten.
    let study = manifests(STUDY).replace("length: 10m", "length: 2m");
    assert!(study.contains("length: 2m"), "{study}");
    stage.apply(&study);

    let (job, merge) = ("plimsoll-study", "plimsoll-study-merge");
    let completions = kubelet.get(&["job", job])["spec"]["completions"].as_u64().unwrap();
    let mut lost = None;
    let mut played = Vec::new();
    until("every shard", || {
        for pod in kubelet.running(job) {
            if index(&pod) == LOST && lost.is_none() {
                kubelet.end(&pod, KILLED);
                lost = pod["metadata"]["name"].as_str().map(str::to_owned);
                continue;
            }
            assert_ne!(pod["metadata"]["name"].as_str(), lost.as_deref(), "it has ended");
            let Output { status, stderr, .. } = kubelet.run(&pod);
            assert!(status.success(), "{}: {}", index(&pod), String::from_utf8_lossy(&stderr));
            kubelet.end(&pod, 0);
            played.push(index(&pod).to_owned());
        }
        (played.len() as u64 >= completions).then_some(())
    });
    kubelet.completes(job);
    played.sort_unstable();
    let all: Vec<String> = (0..completions).map(|index| index.to_string()).collect();
    assert_eq!(played, all, "each index once, that of the lost pod by another");
    assert!(lost.is_some());

    stage.apply(&manifests(MERGE));
    let pod = until("the pod that merges", || kubelet.running(merge).pop());
    let merged = kubelet.run(&pod);
    assert!(merged.status.success(), "{}", String::from_utf8_lossy(&merged.stderr));
    kubelet.end(&pod, 0);
    kubelet.completes(merge);

    let scenario = kubelet.folder.join("plimsoll-study/study.yaml");
    let whole = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["simulate", scenario.to_str().unwrap(), "--seeds=2", "--json=-"])
        .env_clear()
        .output()
        .unwrap();
    assert!(whole.status.success(), "{}", String::from_utf8_lossy(&whole.stderr));
    let [merged, whole] = [merged, whole].map(|output| String::from_utf8(output.stdout).unwrap());
    assert_eq!(merged, whole, "byte for byte");
    assert_eq!(fs::read_dir(&results).unwrap().count() as u64, completions);
}
