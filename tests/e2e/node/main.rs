//! The chart's pod on real nodes: kubelet, containerd and runc run the image, kube-proxy and `CoreDNS`
//! connect it, and a real HPA scales pods of simulated engines by its numbers.
//!
//! `tests/e2e/run-node` starts the cluster and runs these inside its network, in order. Each test
//! leaves one release that works.
#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod asker;
mod cluster;
mod process;
#[expect(dead_code, reason = "its answers have limits of their own")]
#[path = "../wait.rs"]
mod wait;

use std::time::Duration;

use serde_json::Value;

use crate::asker::Asker;
use crate::cluster::{Cluster, Pod, cluster};
use crate::process::PodProcess;
use crate::wait::{stays, until};

const HPA: &str = include_str!("../../../examples/hpa.yaml");

/// Requests per second that one engine serves easily.
const LOW: f64 = 2.0;
/// Requests per second that fill one engine, and are easy for two.
const HIGH: f64 = 14.0;

/// Looks at a rest, at five a second: longer than a load is seen after it has ended.
const REST: u32 = 75;

#[test]
fn a_a_fresh_installation_is_confined_and_warns_of_nothing() {
    let cluster = cluster();
    cluster.load(LOW);
    cluster.helm("install", &[]);
    cluster.available();
    until("a decision", || (cluster.desired()? == 1).then_some(()));

    let pod = cluster.only_pod();
    let process = PodProcess::of(&pod);
    for (field, value) in [
        ("Uid", "65532"),
        ("Gid", "65532"),
        ("CapEff", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("NoNewPrivs", "1"),
        ("Seccomp", "2"),
    ] {
        assert_eq!(process.status(field), value, "{field}");
    }
    assert!(process.has_read_only_root());
    assert_eq!(process.memory_limit(), 512 << 20);

    let listed = cluster.kubectl(&["get", "externalmetrics", "-A", "--no-headers"]).unwrap();
    assert!(listed.starts_with("shop"), "{listed}");
    let log = cluster.log(&pod.name);
    let complaints: Vec<&str> = log
        .lines()
        .filter(|line| ["\"WARN\"", "\"ERROR\""].iter().any(|level| line.contains(level)))
        .filter(|line| !line.contains("no HPA scales the target"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}

#[test]
fn b_an_hpa_scales_pods_of_engines_that_take_time_to_start() {
    let cluster = cluster();
    cluster.apply(HPA);
    cluster.load(HIGH);
    until("2 engines", || (cluster.engines() >= 2).then_some(()));
    until("2 engines that serve", || (cluster.ready_engines().len() >= 2).then_some(()));
    cluster.load(LOW);
    until("1 engine", || (cluster.engines() == 1).then_some(()));
}

#[test]
fn c_a_rolling_update_under_load_fails_no_request() {
    let cluster = cluster();
    // An HPA may have followed the number before it has come to rest.
    let mut glances = 0;
    until("the number at rest", || {
        glances = if cluster.desired() == Some(1) { glances + 1 } else { 0 };
        (glances > REST).then_some(())
    });
    let asker = Asker::start(cluster);
    cluster.helm("upgrade", &["podAnnotations.update=one"]);
    cluster.rolled_out();
    cluster.helm("upgrade", &["config.shutdown.delay=6s"]);
    cluster.rolled_out();
    let heard = asker.stop();
    assert!(heard.failures.is_empty(), "{:#?} of {}", heard.failures, heard.answers);
    assert!(heard.answers > 100, "{} answers are too few to mean something", heard.answers);
    assert_eq!(heard.values, ["1"], "the number does not change by itself");
}

#[test]
fn d_a_pod_that_its_memory_limit_kills_never_takes_the_place_of_one_that_serves() {
    let cluster = cluster();
    let asker = Asker::start(cluster);
    let limits = ["resources.limits.memory=6Mi", "resources.requests.memory=6Mi"];
    cluster.helm("upgrade", &limits);
    until("a pod that is killed", || {
        cluster.plimsoll_pods().iter().any(|pod| pod.last_exit() == Some(137)).then_some(())
    });
    cluster.helm("upgrade", &[]);
    cluster.rolled_out();
    let heard = asker.stop();
    assert!(heard.failures.is_empty(), "{:#?} of {}", heard.failures, heard.answers);
}

#[test]
fn e_a_hung_process_is_restarted_by_its_liveness_probe() {
    let cluster = cluster();
    let pod = cluster.only_pod();
    PodProcess::of(&pod).signal("STOP");
    until("a restart", || (cluster.only_pod().restarts() == 1).then_some(()));
    cluster.available();
    until("a decision", || (cluster.desired()? == 1).then_some(()));
}

#[test]
fn f_a_drained_node_takes_neither_numbers_nor_requests_with_it() {
    let cluster = cluster();
    cluster.helm("upgrade", &["replicas=2"]);
    cluster.rolled_out();
    let nodes: Vec<String> = cluster.plimsoll_pods().into_iter().map(|pod| pod.node).collect();
    assert_ne!(nodes[0], nodes[1], "replicas are on different nodes");

    let leader = cluster.leader();
    let asker = Asker::start(cluster);
    let drain = ["drain", &leader.node, "--ignore-daemonsets", "--delete-emptydir-data"];
    cluster.kubectl(&drain).unwrap();
    cluster.rolled_out();
    until("another leader", || (cluster.leader().name != leader.name).then_some(()));
    let heard = asker.stop();
    cluster.kubectl(&["uncordon", &leader.node]).unwrap();
    assert!(heard.failures.is_empty(), "{:#?} of {}", heard.failures, heard.answers);
    assert_eq!(heard.values, ["1"]);
}

#[test]
fn g_a_leader_that_the_kernel_kills_for_its_memory_changes_no_number() {
    let cluster = cluster();
    // The drained replica's successor is on the other node. Those of a rolling update are on both.
    cluster.helm("upgrade", &["replicas=2", "podAnnotations.spread=again"]);
    cluster.rolled_out();
    let nodes: Vec<String> = cluster.plimsoll_pods().into_iter().map(|pod| pod.node).collect();
    assert_ne!(nodes[0], nodes[1], "a rolling update spreads replicas");
    let leader = cluster.leader();
    let asker = Asker::start(cluster);
    let process = PodProcess::of(&leader);
    until("an OOM kill", || {
        // Memory that it gives back is taken from it.
        process.squeeze();
        cluster.crowd(&leader);
        let pods = cluster.plimsoll_pods();
        let pod = pods.iter().find(|pod| pod.name == leader.name)?;
        (pod.last_reason() == Some("OOMKilled")).then_some(())
    });
    cluster.rolled_out();
    assert!(!cluster.leader().name.is_empty());
    // Requests that the killed process had are lost.
    let heard = asker.stop();
    assert_eq!(heard.values, ["1"], "{:#?}", heard.failures);
    answers_everything(cluster);
}

#[test]
fn h_a_lost_node_with_the_leader_changes_no_number() {
    let cluster = cluster();
    let leader = cluster.leader();
    let asker = Asker::start(cluster);
    cluster.node("lose", &leader.node);
    until("another leader", || (cluster.leader().name != leader.name).then_some(()));
    until("the node's loss", || (!cluster.is_ready(&leader.node)).then_some(()));
    // Requests to the lost pod fail until the API server uses the other one.
    let heard = asker.stop();
    assert_eq!(heard.values, ["1"], "{:#?}", heard.failures);
    answers_everything(cluster);
    cluster.node("thaw", &leader.node);
    until("the node", || cluster.is_ready(&leader.node).then_some(()));
    cluster.rolled_out();
}

#[test]
fn i_an_old_leader_decides_until_a_pod_that_decides_alone_is_ready() {
    let cluster = cluster();
    let alone = ["replicas=1", "leaderElection.enabled=false"];
    cluster.helm("upgrade", &[&alone[..], &["image.tag=missing"]].concat());
    until("a pod that cannot start", || {
        cluster.plimsoll_pods().iter().any(|pod| pod.waits_for("ErrImageNeverPull")).then_some(())
    });
    let old = until("one old pod", || {
        let ready: Vec<_> = cluster.plimsoll_pods().into_iter().filter(Pod::is_ready).collect();
        (ready.len() == 1).then(|| ready.into_iter().next())?
    });

    // It still decides: a number that rises is a new one.
    cluster.load(HIGH);
    until("2 engines", || (cluster.engines() >= 2).then_some(()));
    cluster.load(LOW);
    until("1 engine", || (cluster.engines() == 1).then_some(()));
    until("the new configuration in the old pod", || {
        let log = cluster.log(&old.name);
        assert!(!log.contains("must be a file in an existing folder"), "{log}");
        log.contains("cannot change at runtime").then_some(())
    });

    cluster.helm("upgrade", &alone);
    cluster.rolled_out();
    cluster.helm("upgrade", &[]);
    cluster.rolled_out();
}

#[test]
fn j_rolling_updates_on_the_network_of_a_node_end() {
    let cluster = cluster();
    // The API server and the kubelets have ports 6443 and 10250 of this network.
    for update in ["one", "two"] {
        let annotation = format!("podAnnotations.update={update}");
        cluster.helm("upgrade", &["hostNetwork=true", &annotation]);
        cluster.rolled_out();
        cluster.available();
    }
    cluster.helm("upgrade", &[]);
    cluster.rolled_out();
    cluster.available();
}

#[test]
fn k_the_demo_runs_on_a_root_that_cannot_be_written() {
    let cluster = cluster();
    cluster.apply(&DEMO.replace("IMAGE", cluster::IMAGE));
    let phase = ["get", "pod", "demo", "-n", "shop", "-o", "jsonpath={.status.phase}"];
    let ended = until("the demo's end", || {
        let now = cluster.kubectl(&phase).ok()?;
        ["Succeeded", "Failed"].contains(&now.as_str()).then_some(now)
    });
    let output = cluster.kubectl(&["logs", "demo", "-n", "shop"]).unwrap();
    assert_eq!(ended, "Succeeded", "{output}");
    let summary: Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert!(summary.is_object(), "{output}");
}

/// Asks for a while, and fails if one request does.
fn answers_everything(cluster: &Cluster) {
    let asker = Asker::start(cluster);
    stays("the API available", Duration::from_secs(5), || cluster.desired() == Some(1));
    let heard = asker.stop();
    assert!(heard.failures.is_empty(), "{:#?} of {}", heard.failures, heard.answers);
}

const DEMO: &str = "
apiVersion: v1
kind: Pod
metadata: {name: demo, namespace: shop}
spec:
  restartPolicy: Never
  containers:
  - name: demo
    image: IMAGE
    args: [demo, --for=3s, --output=json]
    securityContext: {readOnlyRootFilesystem: true, runAsNonRoot: true}
";
