//! `plimsoll doctor`: a healthy fleet passes, and each way of breaking it is found.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use serde_json::Value;

use crate::daemon::{Daemon, Knows, configuration};
use crate::page::MODEL;
use crate::stage::{Stage, control_plane, stage, tools};
use crate::wait::{PATIENCE, until};

/// The registration of external metrics.
const API_SERVICE: &str = "v1beta1.external.metrics.k8s.io";

/// The `ConfigMap` of the front proxy's authorities.
const TRUST: [&str; 4] = ["configmap", "extension-apiserver-authentication", "-n", "kube-system"];

/// A URL at which nothing answers.
const NOWHERE: &str = "http://127.0.0.1:9";

/// The runs until something must be found, and the time between two of them. Together they are
/// longer than a cache of the API server keeps anything.
const RUNS: u32 = 120;
const PAUSE: Duration = Duration::from_millis(300);

/// Runs `plimsoll doctor` on one stage.
struct Doctor<'s> {
    stage: &'s Stage,
    /// The arguments of every run.
    arguments: Vec<String>,
}

/// What one run found.
struct Report {
    code: i32,
    checks: Value,
}

impl<'s> Doctor<'s> {
    /// With a configuration, and the daemon that runs with it.
    fn new(stage: &'s Stage, config: &Path, daemon: &[&str]) -> Self {
        let kubeconfig = stage.cluster().join("admin.kubeconfig");
        let mut arguments: Vec<String> =
            ["--config", text(config), "--kubeconfig", text(&kubeconfig)]
                .map(str::to_owned)
                .to_vec();
        arguments.extend(daemon.iter().map(|argument| (*argument).to_owned()));
        Self { stage, arguments }
    }

    /// The same with another value of an argument.
    fn with(&self, name: &str, value: &str) -> Self {
        let mut arguments = self.arguments.clone();
        let at = arguments.iter().position(|argument| argument == name).unwrap();
        value.clone_into(&mut arguments[at + 1]);
        Self { stage: self.stage, arguments }
    }

    /// The same with a configuration in which a text is another one.
    fn configured(&self, folder: &Path, old: &str, new: &str) -> Self {
        let at = self.arguments.iter().position(|argument| argument == "--config").unwrap();
        let config = fs::read_to_string(&self.arguments[at + 1]).unwrap();
        assert!(config.contains(old), "{old} is not in:\n{config}");
        let changed = folder.join("changed.yaml");
        fs::write(&changed, config.replace(old, new)).unwrap();
        self.with("--config", text(&changed))
    }

    fn run(&self) -> Report {
        self.report(&mut Command::new(env!("CARGO_BIN_EXE_plimsoll")))
    }

    /// Runs it as a plugin of kubectl. Pods of this cluster can't be reached, so the plugin forwards no
    /// port, and the daemon is the one in the arguments.
    fn run_by_kubectl(&self) -> Report {
        let plugin = Path::new(env!("CARGO_MANIFEST_DIR")).join("packaging");
        let program = Path::new(env!("CARGO_BIN_EXE_plimsoll")).parent().unwrap().to_owned();
        let folders = [plugin, program, tools(), "/usr/bin".into(), "/bin".into()];
        let mut command = Command::new(tools().join("kubectl"));
        command.arg("plimsoll").env("PATH", std::env::join_paths(folders).unwrap());
        self.report(&mut command)
    }

    fn report(&self, command: &mut Command) -> Report {
        let Output { status, stdout, stderr } = command
            .args(["doctor", "--output", "json"])
            .args(&self.arguments)
            .env_remove("KUBECONFIG")
            .output()
            .unwrap();
        let shown = String::from_utf8_lossy(&stderr).into_owned();
        let report: Value = serde_json::from_slice(&stdout).unwrap_or_else(|_| panic!("{shown}"));
        Report { code: status.code().unwrap(), checks: report["checks"].clone() }
    }

    /// Runs it with a clock that is an hour ahead.
    fn run_ahead(&self, faketime: &Path) -> Report {
        let environment = [
            ("LD_PRELOAD", text(faketime)),
            ("FAKETIME", "+1h"),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1"),
        ];
        self.report(Command::new(env!("CARGO_BIN_EXE_plimsoll")).envs(environment))
    }

    /// Waits until a check has this verdict and shows these words.
    fn finds(&self, check: &str, verdict: &str, words: &str) {
        let mut last = String::new();
        for _ in 0..RUNS {
            let report = self.run();
            let found = report.check(check);
            if found["verdict"] == verdict && found.to_string().contains(words) {
                assert!(report.code >= i32::from(verdict != "ok"), "{}", report.shown());
                return;
            }
            last = report.shown();
            std::thread::sleep(PAUSE);
        }
        panic!("{check} is not {verdict} with {words:?}: {last}");
    }
}

impl Report {
    fn check(&self, name: &str) -> &Value {
        let mut all = self.checks.as_array().unwrap().iter();
        all.find(|check| check["name"] == name).unwrap_or_else(|| panic!("no check {name}"))
    }

    /// The checks that do not pass, with what they saw.
    fn problems(&self) -> BTreeSet<String> {
        let all = self.checks.as_array().unwrap().iter();
        let failing = all.filter(|it| it["verdict"] != "ok" && it["verdict"] != "not_applicable");
        failing.map(ToString::to_string).collect()
    }

    /// The names of the checks with this verdict.
    fn of(&self, verdict: &str) -> BTreeSet<&str> {
        let all = self.checks.as_array().unwrap().iter();
        let those = all.filter(|check| check["verdict"] == verdict);
        those.map(|check| check["name"].as_str().unwrap()).collect()
    }

    fn shown(&self) -> String {
        serde_json::to_string_pretty(&self.checks).unwrap()
    }
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A running daemon, its configuration, and the arguments with which the doctor finds it.
fn healthy(stage: &Stage, namespace: &str) -> (Daemon, PathBuf, String) {
    stage.open(namespace, 1);
    stage.engines.load(namespace, 0.3);
    let daemon = Daemon::start(stage, namespace);
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    let config = stage.folder.join(namespace).join("plimsoll.yaml");
    (daemon, config, format!("http://{}:8080", stage.address()))
}

/// Waits until nothing is wrong.
fn passes(run: impl Fn() -> Report) -> Report {
    let mut last = BTreeSet::new();
    for _ in 0..RUNS {
        let report = run();
        last = report.problems();
        if last.is_empty() {
            assert_eq!(report.code, 0);
            return report;
        }
        std::thread::sleep(PAUSE);
    }
    panic!("{last:#?}");
}

/// The library of libfaketime, if it is installed or was fetched by tests/faults/run.
fn faketime() -> Option<PathBuf> {
    let folders = [PathBuf::from("/usr/lib"), tools().join("faketime/usr/lib")];
    let entries = folders.iter().filter_map(|folder| fs::read_dir(folder).ok()).flatten();
    let paths = entries.filter_map(|it| Some(it.ok()?.path().join("faketime/libfaketimeMT.so.1")));
    paths.into_iter().find(|path| path.exists())
}

/// Applies the manifests of the stage again.
fn restore(stage: &Stage) {
    stage.apply(&stage.manifests());
}

fn patch(stage: &Stage, object: &[&str], kind: &str, change: &str) {
    let arguments = [&["patch"], object, &["--type", kind, "-p", change]].concat();
    stage.kubectl(&arguments).unwrap();
}

/// The registration at the API server.
fn registration(stage: &Stage, doctor: &Doctor<'_>) {
    let other = r#"{"spec":{"service":{"name":"other","namespace":"keda"}}}"#;
    patch(stage, &["apiservice", API_SERVICE], "merge", other);
    doctor.finds("registration", "failure", "another provider, the Service keda/other");
    let port = r#"{"spec":{"service":{"name":"plimsoll","namespace":"plimsoll","port":9}}}"#;
    patch(stage, &["apiservice", API_SERVICE], "merge", port);
    doctor.finds("service", "failure", "no port 9");
    restore(stage);

    let ca = fs::read(stage.cluster().join("pki/ca.crt")).unwrap();
    let ca = serde_json::to_string(&k8s_openapi::ByteString(ca)).unwrap();
    let bundle = format!("{{\"spec\":{{\"caBundle\":{ca}}}}}");
    patch(stage, &["apiservice", API_SERVICE], "merge", &bundle);
    stage.look_again();
    doctor.finds("ca-bundle", "failure", "x509");
    restore(stage);
}

/// The front proxy. The API server writes its `ConfigMap` again within a minute.
fn front_proxy(stage: &Stage, doctor: &Doctor<'_>) {
    let kept = stage.kubectl(&[&["get"], &TRUST[..], &["-o", "json"]].concat()).unwrap();
    let kept: Value = serde_json::from_str(&kept).unwrap();
    let data = |key: &str, value: &str| serde_json::json!({"data": {key: value}}).to_string();
    patch(stage, &TRUST, "merge", &data("requestheader-client-ca-file", ""));
    doctor.finds("front-proxy", "failure", "requestheader-client-ca-file");
    let names = r#"["X-Remote-User","X-Forwarded-User"]"#;
    let whole = serde_json::json!({"data": kept["data"]}).to_string();
    patch(stage, &TRUST, "merge", &whole);
    patch(stage, &TRUST, "merge", &data("requestheader-username-headers", names));
    doctor.finds("front-proxy-headers", "failure", "x-forwarded-user");
    patch(stage, &TRUST, "merge", &whole);
}

#[test]
#[ignore = "takes minutes: make e2e-doctor"]
fn the_doctor_finds_what_keeps_hpas_from_the_number() {
    let stage = &stage();
    let (daemon, config, url) = healthy(stage, "clinic");
    let folder = config.parent().unwrap().to_owned();
    let doctor = Doctor::new(stage, &config, &["--url", &url]);
    let report = passes(|| doctor.run());
    let plugged = passes(|| doctor.run_by_kubectl());
    assert_eq!(plugged.of("ok"), report.of("ok"));
    let sound = report.of("ok");
    for name in ["registration", "metrics-served", "hpa-tolerance", "review-access", "decisions"] {
        assert!(sound.contains(name), "{name} is not among {sound:?}");
    }

    registration(stage, &doctor);

    // The namespace cannot be deleted while the API server does not reach the API.
    let nowhere = r#"{"spec":{"externalName":"127.0.0.9"}}"#;
    patch(stage, &["service", "plimsoll", "-n", "plimsoll"], "merge", nowhere);
    stage.look_again();
    doctor.finds("registration-available", "failure", "FailedDiscoveryCheck");
    doctor.finds("metrics-path", "failure", "503");
    stage.kubectl(&["create", "namespace", "leaving"]).unwrap();
    stage.kubectl(&["delete", "namespace", "leaving", "--wait=false"]).unwrap();
    doctor.finds("namespace-deletion", "failure", "namespace leaving");
    restore(stage);
    Daemon::wait_until_registered(stage);

    // A variant that the daemon does not know.
    let second = "variants: \n- name: llama-2\n  namespace: clinic\n  model: other\n  cost: 1\n  \
                  targets: {scale_target: {api_version: apps/v1, kind: Deployment, name: two}}";
    let two = doctor.configured(&folder, "variants: ", second);
    two.finds("metrics-served", "failure", "llama-2");
    two.finds("targets", "failure", "does not exist");
    two.finds("configuration-current", "warning", "hash");

    front_proxy(stage, &doctor);

    // A clock that is an hour ahead, where libfaketime is installed, as for tests/faults/run.
    if let Some(library) = faketime() {
        let report = doctor.run_ahead(&library);
        let clocks = report.check("clocks");
        assert_eq!(clocks["verdict"], "warning", "{clocks}");
        assert!(clocks.to_string().contains("s ahead of the API server"), "{clocks}");
        assert!(clocks.to_string().contains("s ahead of the daemon"), "{clocks}");
    }

    permissions(stage, &doctor, &folder);
    restore(stage);

    // The API server itself, and an answer that is not for everybody.
    let admin = fs::read_to_string(stage.cluster().join("admin.kubeconfig")).unwrap();
    let away = folder.join("away.kubeconfig");
    fs::write(&away, admin.replace(":6443", ":9")).unwrap();
    let report = doctor.with("--kubeconfig", text(&away)).run();
    assert_eq!(report.check("api-server")["verdict"], "failure", "{}", report.shown());
    assert_eq!(report.check("hpa-reads")["verdict"], "unknown", "nothing of it was seen");
    assert_eq!(report.code, 3);

    control_plane("user", &stage.cluster(), &["guest", "/CN=guest"]);
    let guest = stage.cluster().join("guest.kubeconfig");
    let report = doctor.with("--kubeconfig", text(&guest)).run();
    for name in ["registration", "watch-access", "hpa-reads", "targets", "flow-schema", "variants"]
    {
        let check = report.check(name);
        assert_eq!(check["verdict"], "unknown", "{check}");
        let evidence = check["symptoms"][0]["evidence"].as_str().unwrap();
        assert!(evidence.contains("cannot") || evidence.contains("may not"), "{evidence}");
    }
    passes(|| doctor.run());
    drop(daemon);
}

/// Takes external metrics from the HPA controller, to which Kubernetes grants them.
/// Returns the file with its `ClusterRole`.
fn refuse_the_controller(stage: &Stage, folder: &Path) -> PathBuf {
    let role = ["clusterrole", "system:controller:horizontal-pod-autoscaler", "-o", "json"];
    let role = stage.kubectl(&[&["get"], &role[..]].concat()).unwrap();
    let mut role: Value = serde_json::from_str(&role).unwrap();
    role["metadata"]["resourceVersion"].take();
    let kept = folder.join("controller.json");
    fs::write(&kept, role.to_string()).unwrap();

    let rules = role["rules"].as_array_mut().unwrap();
    rules.retain(|rule| rule["apiGroups"][0] != "external.metrics.k8s.io");
    let without = folder.join("refused.json");
    fs::write(&without, role.to_string()).unwrap();
    stage.kubectl(&["replace", "-f", text(&without)]).unwrap();
    kept
}

fn admit_the_controller(stage: &Stage, kept: &Path) {
    stage.kubectl(&["replace", "-f", text(kept)]).unwrap();
    restore(stage);
}

/// Takes one permission after the other from the daemon and the HPA controller.
fn permissions(stage: &Stage, doctor: &Doctor<'_>, folder: &Path) {
    let kept = refuse_the_controller(stage, folder);
    doctor.finds("hpa-controller-access", "failure", "list plimsoll_desired_replicas");
    admit_the_controller(stage, &kept);

    let remove = |arguments: &[&str]| {
        stage.kubectl(&[&["delete"], arguments].concat()).unwrap();
    };
    for (check, object) in [
        ("registration-access", ["clusterrolebinding", "plimsoll-registration"].as_slice()),
        ("review-access", &["clusterrolebinding", "plimsoll-access-reviews"]),
        ("front-proxy-access", &["rolebinding", "plimsoll-authentication", "-n", "kube-system"]),
        ("watch-access", &["rolebinding", "plimsoll-watch", "-n", "clinic"]),
    ] {
        remove(object);
        doctor.finds(check, "failure", "not allowed to");
        restore(stage);
    }
    stage.deploy("clinic", 1, PATIENCE);

    let rules = "[{\"op\": \"remove\", \"path\": \"/rules/5\"}]";
    patch(stage, &["clusterrole", "plimsoll-watch"], "json", rules);
    doctor.finds("event-access", "warning", "create events.events.k8s.io in namespace clinic");
    remove(&["flowschema", "plimsoll-access-reviews"]);
    doctor.finds("flow-schema", "warning", "no FlowSchema");
    restore(stage);

    let limits = "tick_interval: 1s\nlimits: {nodes: true}\n";
    let limited = doctor.configured(folder, "tick_interval: 1s\n", limits);
    limited.finds("limit-access", "failure", "list nodes");

    let managed = "tls: {self_managed: {secret: plimsoll-certificate, service: plimsoll, \
                   namespace: plimsoll}}\n#";
    let managed = doctor.configured(folder, "tls: ", managed);
    managed.finds("certificate-access", "failure", "get secrets plimsoll-certificate");

    // Several replicas.
    let election = "kubernetes:\n  leader_election: {enabled: true, namespace: plimsoll}";
    let elected = doctor.configured(folder, "kubernetes:", election);
    elected.finds("leader", "failure", "no Lease");
    elected.finds("shared-decisions", "failure", "no ConfigMap");
    stage.apply(
        "
apiVersion: coordination.k8s.io/v1
kind: Lease
metadata: {name: plimsoll, namespace: plimsoll}
spec: {holderIdentity: gone, leaseDurationSeconds: 15, renewTime: \"2026-01-01T00:00:00.000000Z\"}
---
apiVersion: v1
kind: ConfigMap
metadata: {name: plimsoll-decisions, namespace: plimsoll}
data: {term: many}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: plimsoll, namespace: plimsoll}
spec:
  replicas: 2
  selector: {matchLabels: {app: plimsoll}}
  template:
    metadata: {labels: {app: plimsoll}}
    spec: {containers: [{name: plimsoll, image: plimsoll}]}
",
    );
    elected.finds("leader", "failure", "gone renewed the Lease");
    elected.finds("shared-decisions", "failure", "term");
    elected.finds("daemon-replicas", "ok", "2 of 2");
    doctor.finds("daemon-replicas", "failure", "on their own");
    remove(&["rolebinding", "plimsoll-leader-election", "-n", "plimsoll"]);
    elected.finds("election-access", "failure", "create leases.coordination.k8s.io");
    for object in ["lease/plimsoll", "configmap/plimsoll-decisions", "deployment/plimsoll"] {
        remove(&[object, "-n", "plimsoll"]);
    }
}

#[test]
#[ignore = "takes minutes: make e2e-doctor"]
fn the_doctor_finds_what_is_wrong_with_variants_and_their_scalers() {
    let stage = &stage();
    let (daemon, config, url) = healthy(stage, "ward");
    let folder = config.parent().unwrap().to_owned();
    let doctor = Doctor::new(stage, &config, &["--url", &url]);
    passes(|| doctor.run());
    let hpa = |kind: &str, change: &str| {
        patch(stage, &["hpa", "llama", "-n", "ward"], kind, change);
    };
    let restore = || stage.open("ward", 1);
    let metric = "/spec/metrics/0/external";
    let replace = |path: &str, value: &str| {
        format!("[{{\"op\": \"replace\", \"path\": \"{path}\", \"value\": {value}}}]")
    };
    let remove = |path: &str| format!("[{{\"op\": \"remove\", \"path\": \"{path}\"}}]");

    hpa("json", &replace(&format!("{metric}/metric/name"), "\"queue_length\""));
    doctor.finds("hpa-reads", "failure", "does not read the desired replicas");
    restore();
    hpa("json", &replace(&format!("{metric}/target"), r#"{"type": "Value", "value": "1"}"#));
    doctor.finds("hpa-target", "failure", "target type Value");
    restore();
    hpa("json", &remove(&format!("{metric}/metric/selector")));
    doctor.finds("hpa-selector", "warning", "without a selector");
    restore();
    let cpu = r#"[{"op": "add", "path": "/spec/metrics/-", "value": {"type": "Resource",
        "resource": {"name": "cpu", "target": {"type": "Utilization", "averageUtilization": 50}}}}]"#;
    hpa("json", cpu);
    doctor.finds("hpa-metrics", "warning", "also reads");
    hpa("json", &remove("/spec/metrics/1"));
    hpa("merge", r#"{"spec":{"behavior":{"scaleDown":{"selectPolicy":"Disabled"}}}}"#);
    doctor.finds("hpa-directions", "warning", "scaleDown.selectPolicy is Disabled");
    hpa("merge", r#"{"spec":{"behavior":{"scaleDown":{"selectPolicy":"Max"}}}}"#);
    let slow = r#"[{"type": "Pods", "value": 1, "periodSeconds": 1800}]"#;
    hpa("json", &replace("/spec/behavior/scaleUp/policies", slow));
    doctor.finds("hpa-policies", "warning", "scaleUp policies");
    restore();
    hpa("json", &remove("/spec/behavior/scaleUp/tolerance"));
    doctor.finds("hpa-tolerance", "warning", "ignores changes by one replica from 10");
    restore();
    stage.kubectl(&["scale", "deployment", "llama", "-n", "ward", "--replicas=0"]).unwrap();
    doctor.finds("hpa-enabled", "failure", "switched off");
    restore();

    let kept = refuse_the_controller(stage, &folder);
    doctor.finds("hpa-conditions", "failure", "ScalingActive");
    admit_the_controller(stage, &kept);

    hpa("merge", r#"{"spec":{"maxReplicas":1}}"#);
    stage.engines.load("ward", 2.0);
    doctor.finds("hpa-bounds", "warning", "the maximum is 1");
    stage.engines.load("ward", 0.3);
    restore();

    let copy = stage.kubectl(&["get", "hpa", "llama", "-n", "ward", "-o", "yaml"]).unwrap();
    let copy: Vec<&str> = copy.lines().filter(|line| !line.contains("uid:")).collect();
    let copy = copy.join("\n").replace("  name: llama\n  namespace", "  name: second\n  namespace");
    let copy: Vec<&str> = copy.lines().filter(|it| !it.contains("resourceVersion:")).collect();
    stage.create(&copy.join("\n"));
    doctor.finds("owners", "failure", "more than one owner");
    stage.kubectl(&["delete", "hpa", "second", "-n", "ward"]).unwrap();

    pods(stage, &doctor);
    // The pods must go with it.
    stage.kubectl(&["delete", "deployment", "llama", "-n", "ward"]).unwrap();
    doctor.finds("targets", "failure", "does not exist");
    doctor.finds("cluster-watches", "failure", "does not exist");
    restore();
    passes(|| doctor.run());

    annotations(stage, &doctor, &folder);
    keda(stage, &doctor);
    drop(daemon);
}

fn pods(stage: &Stage, doctor: &Doctor<'_>) {
    stage.apply(
        "
apiVersion: v1
kind: Pod
metadata: {name: lost, namespace: ward, labels: {app: llama}}
spec:
  nodeSelector: {kubernetes.io/hostname: nowhere}
  containers: [{name: engine, image: vllm}]
",
    );
    doctor.finds("pods-scheduled", "warning", "pod lost is unschedulable");
    stage.kubectl(&["delete", "pod", "lost", "-n", "ward", "--force"]).unwrap();

    // Nothing runs pods on a node that does not exist.
    let ghost = r#"{"spec":{"strategy":{"type":"Recreate","rollingUpdate":null},
        "template":{"spec":{"nodeName":"ghost"}}}}"#;
    patch(stage, &["deployment", "llama", "-n", "ward"], "strategic", ghost);
    doctor.finds("pods-ready", "failure", "none of ");
}

fn annotations(stage: &Stage, doctor: &Doctor<'_>, folder: &Path) {
    let at = doctor.arguments.iter().position(|argument| argument == "--config").unwrap();
    let config = fs::read_to_string(&doctor.arguments[at + 1]).unwrap();
    let (before, _) = config.split_once("variants: ").unwrap();
    let discovering = before
        .replace("discovery: {enabled: false}", "discovery: {enabled: true, namespaces: [ward]}");
    let file = folder.join("discovering.yaml");
    fs::write(&file, discovering).unwrap();
    let doctor = doctor.with("--config", text(&file));
    doctor.finds("variants", "failure", "no variant");

    let annotate = |object: &str, annotation: &str| {
        stage.kubectl(&["annotate", "--overwrite", object, "-n", "ward", annotation]).unwrap();
    };
    annotate("hpa/llama", &format!("plimsoll.dev/model={MODEL}"));
    doctor.finds("variants", "ok", "1 of them by annotations");
    annotate("hpa/llama", "plimsoll.dev/port=many");
    doctor.finds("annotations", "failure", "plimsoll.dev/port");
    annotate("hpa/llama", "plimsoll.dev/port-");
    annotate("hpa/llama", "plimsoll.dev/gpus=1000");
    doctor.finds("annotation-values", "warning", "plimsoll.dev/gpus");
    annotate("hpa/llama", "plimsoll.dev/gpus-");

    stage.apply(
        "
apiVersion: apps/v1
kind: Deployment
metadata:
  name: two
  namespace: ward
  annotations: {plimsoll.dev/model: other, plimsoll.dev/variant: llama}
spec:
  replicas: 0
  selector: {matchLabels: {app: two}}
  template:
    metadata: {labels: {app: two}}
    spec: {containers: [{name: engine, image: vllm}]}
",
    );
    doctor.finds("variant-names", "failure", "llama is taken by");
    stage.kubectl(&["delete", "deployment", "two", "-n", "ward"]).unwrap();
    annotate("hpa/llama", "plimsoll.dev/model-");
}

fn keda(stage: &Stage, doctor: &Doctor<'_>) {
    let crds = tools().join("keda-crds/keda.sh_scaledobjects.yaml");
    stage.create(&fs::read_to_string(&crds).unwrap());
    stage.kubectl(&["delete", "hpa", "llama", "-n", "ward"]).unwrap();
    let object = "
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: llama, namespace: ward}
spec:
  scaleTargetRef: {name: llama}
  minReplicaCount: 1
  maxReplicaCount: 8
  triggers:
  - type: prometheus
    metricType: AverageValue
    metadata:
      serverAddress: http://prometheus:9090
      query: max(plimsoll_desired_replicas{namespace=\"ward\",variant=\"llama\"})
      threshold: \"1\"
      ignoreNullValues: \"IGNORE\"
";
    let applies = |ignore: &str| {
        let object = object.replace("IGNORE", ignore);
        until("the kind of ScaledObjects", || stage.try_apply(&object).then_some(()));
    };
    applies("true");
    doctor.finds("keda-triggers", "failure", "ignoreNullValues");
    applies("false");
    doctor.finds("keda-triggers", "ok", "");

    let scaled = ["scaledobject", "llama", "-n", "ward"];
    let zero = r#"{"spec":{"minReplicaCount":0,"fallback":{"failureThreshold":3,"replicas":0}}}"#;
    patch(stage, &scaled, "merge", zero);
    doctor.finds("keda-fallback", "failure", "scales the target to 0 on an error");
    patch(stage, &scaled, "merge", r#"{"spec":{"minReplicaCount":1,"fallback":null}}"#);
    let pause = ["annotate", "scaledobject", "llama", "-n", "ward"];
    stage.kubectl(&[&pause[..], &["autoscaling.keda.sh/paused=true"]].concat()).unwrap();
    doctor.finds("keda-paused", "warning", "KEDA is paused");
    stage.kubectl(&[&pause[..], &["autoscaling.keda.sh/paused-"]].concat()).unwrap();

    let unready = r#"{"status":{"conditions":[{"type":"Ready","status":"False",
        "reason":"ScalerNotFound","message":"no such scaler"}]}}"#;
    patch(stage, &[&scaled[..], &["--subresource=status"]].concat(), "merge", unready);
    doctor.finds("keda-ready", "failure", "no such scaler");
    stage.kubectl(&["delete", "scaledobject", "llama", "-n", "ward"]).unwrap();
    stage.kubectl(&["delete", "crd", "scaledobjects.keda.sh"]).unwrap();
}

#[test]
#[ignore = "takes minutes: make e2e-doctor"]
fn the_doctor_finds_what_is_wrong_with_the_daemon() {
    let stage = &stage();
    stage.open("practice", 1);
    stage.engines.load("practice", 0.3);
    let folder = stage.folder.join("practice");
    fs::create_dir_all(folder.join("state")).unwrap();
    let config = folder.join("plimsoll.yaml");
    let cluster = stage.cluster();
    short_certificate(&cluster);

    // All of these are wrong at once, such as a folder that cannot be created, and none keeps the daemon from deciding.
    let own = configuration(stage, "practice", Knows::ByConfiguration)
        .replace("pki/plimsoll.plimsoll.", "pki/short.");
    let wrong = format!(
        "state_file: {}\ntrace: {{dir: /sys/trace}}\nlimits: {{nodes: true}}\nprometheus: {{url: \"{NOWHERE}\", interval: 1s}}\n\
         scale_to_zero: {{wake: [{{name: gateway, url: \"{NOWHERE}/metrics\", metric: queued, \
         models: [\"{MODEL}#practice\"]}}]}}\n",
        folder.join("state/state.json").display()
    );
    let daemon = Daemon::launch(stage, "practice", &(wrong + &own));
    let url = format!("http://{}:8080", stage.address());
    let doctor = Doctor::new(stage, &config, &["--url", &url]);
    doctor.finds("certificate", "warning", "valid for");
    doctor.finds("prometheus", "failure", "plimsoll_prometheus_up is 0");
    doctor.finds("wake-signals", "failure", "signal gateway");
    doctor.finds("limits", "failure", "never been read");
    doctor.finds("trace", "warning", "plimsoll_trace_failures_total");
    doctor.finds("state-file", "ok", "");
    fs::remove_dir_all(folder.join("state")).unwrap();
    fs::write(folder.join("state"), "in the way").unwrap();
    doctor.finds("state-file", "warning", "plimsoll_state_file_failures_total");
    doctor.finds("file-descriptors", "ok", "");
    let open = until("open files", || daemon.gauge(stage, "process_open_fds", &[]));
    daemon.limit_files(open + 5);
    doctor.finds("file-descriptors", "warning", "are open");
    daemon.limit_files(4096);
    drop(daemon);

    let sound = configuration(stage, "practice", Knows::ByConfiguration);
    let slow = format!("shutdown: {{delay: 1m}}\n{sound}");
    let daemon = Daemon::launch(stage, "practice", &slow);
    doctor.finds("decisions", "ok", "");
    doctor.finds("scrapes", "ok", "");
    stage.engines.wedge("practice", true);
    doctor.finds("scrapes", "failure", "stale");
    doctor.finds("decisions", "warning", "");
    stage.engines.wedge("practice", false);

    fs::write(&config, "tick_intervall: 1s\n").unwrap();
    doctor.finds("configuration", "failure", "tick_intervall");
    daemon.signal("-HUP");
    doctor.finds("configuration-reload", "failure", "tick_intervall");
    fs::write(&config, slow).unwrap();
    daemon.signal("-HUP");
    doctor.finds("configuration-reload", "ok", "accepted");

    doctor.with("--url", NOWHERE).finds("daemon", "failure", "does not respond");
    daemon.signal("-TERM");
    doctor.finds("daemon-ready", "failure", "shutting down");
    drop(daemon);

    // Without a daemon, the cluster is judged all the same.
    let mut without = Doctor::new(stage, &config, &["--no-daemon"]);
    let report = without.run();
    assert_eq!(report.check("daemon")["verdict"], "not_applicable");
    assert_eq!(report.check("hpa-target")["verdict"], "ok", "{}", report.shown());
    without.arguments.retain(|argument| argument != "--no-daemon");
    let report = without.with("--config", "/no/such/file").run();
    assert_eq!(report.check("configuration")["verdict"], "failure");
    assert_eq!(report.check("leader")["verdict"], "unknown", "{}", report.shown());
}

/// Makes a certificate of Plimsoll's Service that expires in two days.
fn short_certificate(cluster: &Path) {
    let pki = cluster.join("pki");
    let made = Command::new("openssl")
        .args(["req", "-x509", "-new", "-subj", "/CN=plimsoll.plimsoll.svc", "-days", "2"])
        .args(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"])
        .args(["-CA", "serving-ca.crt", "-CAkey", "serving-ca.key"])
        .args(["-keyout", "short.key", "-out", "short.crt"])
        .args(["-addext", "basicConstraints=critical,CA:FALSE"])
        .args(["-addext", "subjectAltName=DNS:plimsoll.plimsoll.svc"])
        .current_dir(&pki)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
}
