//! Object metrics of Plimsoll in a cluster where another provider has external metrics.

use std::fs;
use std::process::{Child, Command};
use std::time::Duration;

use crate::daemon::{Daemon, Knows, configuration};
use crate::keda::{SERVICE, certificates_for};
use crate::stage::{Stage, stage, tools};
use crate::wait::{PATIENCE, stays, until};
use crate::{follows, keda};

const HPA: &str = include_str!("../../../examples/hpa-object.yaml");

/// The Service by which the cluster knows the Prometheus adapter.
const ADAPTER: &str = "prometheus-adapter";

/// What ties Plimsoll's Object metrics to a cluster. `CA_BUNDLE` is filled in.
const REGISTRATION: &str = "
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta2.custom.metrics.k8s.io}
spec:
  group: custom.metrics.k8s.io
  version: v1beta2
  groupPriorityMinimum: 100
  versionPriority: 50
  service: {namespace: plimsoll, name: plimsoll, port: 8443}
  caBundle: CA_BUNDLE
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: plimsoll-registration}
rules:
- apiGroups: [apiregistration.k8s.io]
  resources: [apiservices]
  resourceNames: [v1beta1.external.metrics.k8s.io, v1beta2.custom.metrics.k8s.io]
  verbs: [list, watch]
";

/// What ties the Prometheus adapter to it, over whatever provider there was.
const ADAPTER_REGISTRATION: &str = "
apiVersion: v1
kind: Service
metadata: {name: prometheus-adapter, namespace: keda}
spec: {type: ExternalName, externalName: ADDRESS, ports: [{port: 6443}]}
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1beta1.external.metrics.k8s.io}
spec:
  group: external.metrics.k8s.io
  version: v1beta1
  groupPriorityMinimum: 100
  versionPriority: 100
  service: {namespace: keda, name: prometheus-adapter, port: 6443}
  caBundle: CA_BUNDLE
";

/// The rule with which stock HPAs read the number through the adapter.
const RULES: &str = include_str!("../../../examples/prometheus-adapter.yaml");

/// The Prometheus adapter as a process. Dropping it ends it by force.
struct Adapter(Child);

impl Adapter {
    /// Starts it as the provider of external metrics.
    fn start(stage: &Stage, prometheus: &str) -> Self {
        let folder = stage.folder.join("prometheus-adapter");
        let address = format!("{}.200.5", stage.net);
        let ca = certificates_for(&folder, &address, &format!("{ADAPTER}.keda.svc"));
        let ca = serde_json::to_string(&k8s_openapi::ByteString(ca.into_bytes())).unwrap();
        let kubeconfig = stage.cluster().join("admin.kubeconfig").display().to_string();
        let file = |name: &str| folder.join(name).display().to_string();
        fs::write(folder.join("rules.yaml"), RULES).unwrap();
        let log = fs::File::create(folder.join("adapter.log")).unwrap();
        let child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL"])
            .arg(tools().join("prometheus-adapter"))
            .arg(format!("--lister-kubeconfig={kubeconfig}"))
            .arg(format!("--authentication-kubeconfig={kubeconfig}"))
            .arg(format!("--authorization-kubeconfig={kubeconfig}"))
            .arg(format!("--bind-address={address}"))
            .arg("--secure-port=6443")
            .arg(format!("--tls-cert-file={}", file("tls.crt")))
            .arg(format!("--tls-private-key-file={}", file("tls.key")))
            .arg(format!("--config={}", file("rules.yaml")))
            .arg(format!("--prometheus-url={prometheus}"))
            .arg("--metrics-relist-interval=5s")
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap();
        stage.apply(&ADAPTER_REGISTRATION.replace("ADDRESS", &address).replace("CA_BUNDLE", &ca));
        until("the Prometheus adapter registered", || registered(stage, ADAPTER));
        Self(child)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Returns something if this Service has external metrics and answers for them.
fn registered(stage: &Stage, service: &str) -> Option<()> {
    stage.look_again();
    let path = "jsonpath={.spec.service.name} \
                {.status.conditions[?(@.type==\"Available\")].status}";
    let name = "v1beta1.external.metrics.k8s.io";
    let found = stage.kubectl(&["get", "apiservice", name, "-o", path]).ok()?;
    (found == format!("{service} True")).then_some(())
}

#[test]
fn m_object_metrics_are_followed_next_to_any_external_provider() {
    let stage = &stage();
    let prometheus = &keda(stage).prometheus;
    let namespace = "objects";
    stage.deploy(namespace, 1, PATIENCE);
    stage.engines.load(namespace, 0.3);
    let ca = fs::read(stage.cluster().join("pki/serving-ca.crt")).unwrap();
    let ca = serde_json::to_string(&k8s_openapi::ByteString(ca)).unwrap();
    stage.apply(&REGISTRATION.replace("CA_BUNDLE", &ca));
    let text = configuration(stage, namespace, Knows::ByConfiguration);
    let text = text.replace("external_metrics:\n", "external_metrics:\n  object_metrics: true\n");
    let daemon = Daemon::launch(stage, namespace, &text);
    stage.apply(&HPA.replace("namespace: shop", &format!("namespace: {namespace}")));

    follows(stage, &daemon, namespace, 2.0, 3);
    follows(stage, &daemon, namespace, 0.3, 1);
    until("KEDA still has external metrics", || registered(stage, SERVICE));
    until("a known registration", || {
        let ours = ["state=\"ours\""];
        (daemon.gauge(stage, "plimsoll_apiservice_state", &ours)? == 1).then_some(())
    });
    let ignores = ["variant=\"llama\"", "hpa=\"llama\""];
    assert_eq!(daemon.gauge(stage, "plimsoll_hpa_ignores_desired", &ignores), Some(0));

    let adapter = Adapter::start(stage, prometheus);
    let path = format!(
        "/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/plimsoll_desired_replicas\
         ?labelSelector=variant%3Dllama"
    );
    follows(stage, &daemon, namespace, 2.0, 3);
    until("the number through the rule of the Prometheus adapter", || {
        let list = stage.kubectl(&["get", "--raw", &path]).ok()?;
        let list: serde_json::Value = serde_json::from_str(&list).ok()?;
        let [item] = list["items"].as_array()?.as_slice() else { return None };
        (item["metricLabels"]["variant"] == "llama" && item["value"] == "3").then_some(())
    });

    // Its end is its own affair.
    drop(adapter);
    until("no external metrics", || stage.kubectl(&["get", "--raw", &path]).err());
    follows(stage, &daemon, namespace, 2.7, 4);
    stays("4 replicas", Duration::from_secs(20), || stage.replicas(namespace) == Some(4));

    // A Plimsoll that is gone leaves an HPA without its metric, which keeps the replicas.
    drop(daemon);
    stays("4 replicas", Duration::from_secs(30), || stage.replicas(namespace) == Some(4));

    // Other tests need KEDA.
    stage.apply(&keda(stage).manifests);
    until("KEDA registered again", || registered(stage, SERVICE));
}
