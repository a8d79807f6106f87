//! Servers of Seldon Core 2, scaled by a stock HPA to the copies of their models.
//!
//! The test takes the part of Seldon's operator: it makes `status.replicas` what `spec.replicas`
//! asks for. Everything else is real.

use crate::daemon::{Daemon, Knows, configuration};
use crate::stage::{Stage, stage};
use crate::wait::{stays, until};
use crate::{A_WHILE, REST};

const KINDS: &str = include_str!("manifests/seldon.yaml");

/// A server, the HPA that scales it, and what Plimsoll may see of both.
const SERVER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: mesh}
---
apiVersion: mlops.seldon.io/v1alpha1
kind: Server
metadata: {name: mlserver, namespace: mesh}
spec: {replicas: 1, serverConfig: mlserver}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: mlserver, namespace: mesh}
spec:
  scaleTargetRef: {apiVersion: mlops.seldon.io/v1alpha1, kind: Server, name: mlserver}
  minReplicas: 1
  maxReplicas: 6
  metrics:
  - type: External
    external:
      metric: {name: plimsoll_desired_replicas, selector: {matchLabels: {variant: mlserver}}}
      target: {type: AverageValue, averageValue: \"1\"}
  behavior:
    scaleUp: {tolerance: \"0\"}
    scaleDown: {tolerance: \"0\", stabilizationWindowSeconds: 0}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: plimsoll-watch, namespace: mesh}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: plimsoll-watch}
subjects: [{kind: ServiceAccount, name: plimsoll, namespace: plimsoll}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: plimsoll-seldon, namespace: mesh}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: plimsoll-seldon}
subjects: [{kind: ServiceAccount, name: plimsoll, namespace: plimsoll}]
";

fn model(stage: &Stage, name: &str, replicas: u32) {
    stage.apply(&format!(
        "apiVersion: mlops.seldon.io/v1alpha1\nkind: Model\nmetadata: {{name: {name}, namespace: \
         mesh}}\nspec: {{storageUri: \"gs://models/{name}\", requirements: [sklearn], replicas: \
         {replicas}}}\n"
    ));
}

/// Does what Seldon's operator does with a count, and returns the count.
fn operate(stage: &Stage) -> Option<u32> {
    let server = ["-n", "mesh", "server.mlops.seldon.io", "mlserver"];
    let read = |path: &str| {
        let path = format!("jsonpath={{{path}}}");
        stage.kubectl(&[&["get"], server.as_slice(), &["-o", &path]].concat()).ok()
    };
    let wanted: u32 = read(".spec.replicas")?.parse().ok()?;
    if read(".status.replicas") != Some(wanted.to_string()) {
        let status = format!(
            "{{\"status\": {{\"replicas\": {wanted}, \"selector\": \"seldon-server=mlserver\"}}}}"
        );
        let patch = ["--subresource=status", "--type=merge", "-p", &status];
        stage.kubectl(&[&["patch"], server.as_slice(), &patch].concat()).ok()?;
    }
    Some(wanted)
}

/// The HPA brings the server to this number of replicas, and leaves it there.
fn settles(stage: &Stage, daemon: &Daemon, replicas: u32) {
    let mut glances = 0;
    until(&format!("{replicas} server replicas"), || {
        let there = operate(stage) == Some(replicas) && desired(stage, daemon) == Some(replicas);
        glances = if there { glances + 1 } else { 0 };
        (glances > REST / 4).then_some(())
    });
}

fn desired(stage: &Stage, daemon: &Daemon) -> Option<u32> {
    daemon.gauge(stage, "plimsoll_desired_replicas", &["variant=\"mlserver\""])
}

#[test]
fn a_server_of_seldon_has_a_replica_for_each_copy_of_its_largest_model() {
    let stage = &stage();
    stage.apply(KINDS);
    until("the kinds", || stage.kubectl(&["get", "servers,models", "-A"]).ok());
    stage.apply(SERVER);
    model(stage, "iris", 1);
    operate(stage);

    let plain = configuration(stage, "mesh", Knows::ByDiscovery);
    let configuration = plain
        .replace("discovery: {enabled: true}", "discovery: {enabled: false}")
        .replace("wva_metrics: true", "wva_metrics: false")
        .replace(
            "variants: []",
            "pools:\n  mesh/mlserver: {source: seldon, packing: {window: 10s, interval: 1s}}\n\
             variants:\n- name: mlserver\n  namespace: mesh\n  model: mlserver\n  targets:\n    \
             scale_target: {api_version: mlops.seldon.io/v1alpha1, kind: Server, name: mlserver}",
        );
    let daemon = Daemon::launch(stage, "mesh", &configuration);
    Daemon::wait_until_registered(stage);
    settles(stage, &daemon, 1);

    // Each copy needs a replica of its own.
    model(stage, "iris", 4);
    model(stage, "income", 2);
    settles(stage, &daemon, 4);
    let decisions = daemon.decisions(stage).unwrap();
    assert!(decisions.contains("\"adapter\":\"income\""), "{decisions}");
    assert!(decisions.contains("pool_copies"), "{decisions}");

    // The maximum of the HPA holds.
    model(stage, "income", 9);
    settles(stage, &daemon, 6);

    // A Plimsoll that may not see models has no number, and nothing is lowered.
    drop(daemon);
    stage.kubectl(&["delete", "rolebinding", "plimsoll-seldon", "-n", "mesh"]).unwrap();
    model(stage, "income", 1);
    model(stage, "iris", 1);
    let daemon = Daemon::launch(stage, "mesh-again", &configuration);
    Daemon::wait_until_registered(stage);
    stays("six server replicas", A_WHILE, || {
        operate(stage).is_none_or(|replicas| replicas == 6) && desired(stage, &daemon).is_none()
    });

    let binding = SERVER.rsplit("---").next().unwrap();
    stage.apply(binding);
    settles(stage, &daemon, 1);
    stage.kubectl(&["delete", "namespace", "mesh", "--wait=false"]).unwrap();
}
