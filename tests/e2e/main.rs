//! Plimsoll as a process against a real kube-apiserver, its HPA controller and its aggregation
//! layer. `tests/e2e/run` builds the control plane and runs these.
//!
//! A replica is full at a load of 1, and Plimsoll keeps a spare of a tenth below its threshold of
//! 0.8: so `n` replicas carry a load of up to `0.7 * n`.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "how long a start takes is for whoever runs this")]

mod crowd;
mod daemon;
#[expect(dead_code, reason = "the tests of all panels look at the kinds of their queries")]
#[path = "../prometheus/dashboards.rs"]
mod dashboards;
mod discovery;
mod doctor;
mod engines;
mod events;
mod jobs;
mod leader;
mod live;
mod migrate;
mod page;
mod panels;
mod picker;
mod prometheus;
mod replicas;
mod seldon;
mod stage;
mod twin;
mod wait;
mod wire;
mod zero;

use std::time::Duration;

use plimsoll::clock::Clock;

use crate::daemon::{Daemon, Knows, configuration};
use crate::stage::{Stage, stage};
use crate::wait::{stays, until};

/// Long enough for an HPA that syncs every second, and for data to become stale, several times.
const A_WHILE: Duration = Duration::from_secs(15);

/// Looks at a rest, at five a second and with a window of 5 s.
const REST: u32 = 40;

/// Sets the load and waits until the number and the Deployment have come to rest at the replicas
/// that carry it: for longer than the window, in which a peak of before is still seen.
fn follows(stage: &Stage, daemon: &Daemon, namespace: &str, load: f64, replicas: u32) {
    stage.engines.load(namespace, load);
    settles(stage, daemon, namespace, replicas);
}

/// The HPA brings the replicas to this number, and leaves them there for a few glances.
fn settles(stage: &Stage, daemon: &Daemon, namespace: &str, replicas: u32) {
    let mut glances = 0;
    until(&format!("{replicas} replicas"), || {
        let there = daemon.desired(stage) == Some(replicas)
            && stage.replicas(namespace) == Some(replicas)
            && stage.engines.ready(namespace) == replicas;
        glances = if there { glances + 1 } else { 0 };
        (glances > REST).then_some(())
    });
}

/// The count does not change. An API server that is away says nothing about it, so only glances
/// that it answers count.
fn keeps(stage: &Stage, namespace: &str, replicas: u32) {
    stays(&format!("{replicas} replicas"), A_WHILE, || {
        until("an API server that answers", || stage.replicas(namespace)) == replicas
    });
}

/// Without Plimsoll: the stage itself.
#[test]
fn a_the_stage_has_an_engine_on_the_address_of_every_pod() {
    let stage = &stage();
    stage.open("empty", 2);
    stage.engines.load("empty", 1.5);
    let path = "jsonpath={range .items[*]}{.status.podIP}{\"\\n\"}{end}";
    let pods = stage.kubectl(&["get", "pods", "-n", "empty", "-o", path]).unwrap();
    let addresses: Vec<&str> = pods.lines().collect();
    assert_eq!(addresses.len(), 2, "{pods}");
    for address in addresses {
        let url = format!("http://{address}:{}/metrics", engines::PORT);
        until("half of the load on each engine", || {
            stage.page(&url)?.contains("vllm:kv_cache_usage_perc{engine=\"0\",model_name=\"meta-llama/Llama-3.1-8B-Instruct\"} 0.75\n").then_some(())
        });
    }
    let tolerance = "jsonpath={.spec.behavior.scaleUp.tolerance}";
    let kept = stage.kubectl(&["get", "hpa", "llama", "-n", "empty", "-o", tolerance]).unwrap();
    assert_eq!(kept, "0", "the API server keeps the tolerance");
    stage.restart_api_server();
    keeps(stage, "empty", 2);
}

#[test]
fn b_the_hpa_scales_with_the_load_up_and_down() {
    let stage = &stage();
    stage.open("tide", 1);
    stage.engines.load("tide", 0.3);
    let clock = Clock::start();
    let began = clock.elapsed();
    let daemon =
        Daemon::launch(stage, "tide", &configuration(stage, "tide", Knows::ByConfiguration));
    let ready = clock.elapsed().saturating_sub(began);
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    let decided = clock.elapsed().saturating_sub(began);
    println!(
        "from the start of the process: ready in {ready:.1?}, a first number in {decided:.1?}"
    );
    Daemon::wait_until_registered(stage);
    follows(stage, &daemon, "tide", 2.0, 3);
    assert_eq!(daemon.desired(stage), Some(3));
    keeps(stage, "tide", 3);
    follows(stage, &daemon, "tide", 0.3, 1);
}

#[test]
fn b_by_capacity_the_hpa_jumps_to_what_the_load_needs() {
    let stage = &stage();
    stage.open("capacity", 1);
    stage.engines.load("capacity", 0.3);
    let daemon = Daemon::start_with(
        stage,
        "capacity",
        "analysis: capacity\ncapacity: {analyzers: [tokens]}\n",
    );
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    // Of the tokens that a replica's cache holds, a fifth is kept free, and of the rest 15 %.
    follows(stage, &daemon, "capacity", 3.0, 5);
    keeps(stage, "capacity", 5);
    follows(stage, &daemon, "capacity", 0.3, 1);
}

/// What a configuration that says nothing about the analysis does, with shorter memories than a
/// test can wait for. Engines serve requests in real time, and nobody is told what one carries.
#[test]
fn b_by_default_the_hpa_follows_the_requests_that_come() {
    let stage = &stage();
    stage.open("requests", 1);
    stage.engines.serve_requests("requests", 11.0);
    let daemon = Daemon::start_with(
        stage,
        "requests",
        "analysis: capacity
capacity:
  start_time: 5s
  foresight:
    {history_min: 30s, reaction_time: 5s, look_back: 1m, bursts: {over: 1m}, hold: {starts: 1, min: 30s}}
",
    );
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    let learned = || daemon.decisions(stage)?.contains("capacity per replica").then_some(());
    until("a capacity that was learned", learned);
    // A replica answers some 14 requests a second.
    stage.engines.serve_requests("requests", 30.0);
    settles(stage, &daemon, "requests", 3);
    stage.engines.serve_requests("requests", 7.0);
    settles(stage, &daemon, "requests", 1);
}

#[test]
fn c_past_ten_replicas_the_number_is_followed_exactly_or_its_neglect_is_reported() {
    let stage = &stage();
    stage.open("exact", 10);
    stage.engines.load("exact", 6.9);
    let daemon = Daemon::start(stage, "exact");
    for (load, replicas) in [(6.9, 10), (7.6, 11), (8.3, 12), (7.6, 11)] {
        follows(stage, &daemon, "exact", load, replicas);
    }

    let ignores = |daemon: &Daemon| {
        daemon.gauge(stage, "plimsoll_hpa_ignores_desired", &["variant=\"llama\"", "hpa=\"llama\""])
    };
    until("an HPA that ignores nothing", || (ignores(&daemon)? == 0).then_some(()));
    let follows_it = daemon.gauge(stage, "plimsoll_autoscaler_follows", &["variant=\"llama\""]);
    assert_eq!(follows_it, Some(1));
    until("a state that the API server confirms", || {
        let age = daemon.gauge_text(stage, "plimsoll_cluster_state_age_seconds", &[])?;
        (age.parse::<f64>().ok()? < 30.0).then_some(())
    });
    let without = r#"[{"op":"remove","path":"/spec/behavior/scaleUp/tolerance"},
                      {"op":"remove","path":"/spec/behavior/scaleDown/tolerance"}]"#;
    let patch = ["patch", "hpa", "llama", "-n", "exact", "--type=json", "-p", without];
    stage.kubectl(&patch).unwrap();
    stage.engines.load("exact", 8.3);
    until("a number that is ignored", || (ignores(&daemon)? == 1).then_some(()));
    assert_eq!(daemon.desired(stage), Some(12));
    keeps(stage, "exact", 11);
    let log = daemon.log();
    for line in ["spec:", "  behavior:", "    scaleUp:", "      tolerance: \\\"0\\\""] {
        let plain = line.replace('\\', "");
        assert!(log.contains(line) || log.contains(&plain), "no remedy {line} in\n{log}");
    }

    let remedy =
        r#"{"spec":{"behavior":{"scaleUp":{"tolerance":"0"},"scaleDown":{"tolerance":"0"}}}}"#;
    stage.kubectl(&["patch", "hpa", "llama", "-n", "exact", "-p", remedy]).unwrap();
    follows(stage, &daemon, "exact", 8.3, 12);
    until("an HPA that ignores nothing", || (ignores(&daemon)? == 0).then_some(()));
}

#[test]
fn d_engines_that_hang_change_no_count() {
    let stage = &stage();
    stage.open("wedged", 3);
    stage.engines.load("wedged", 2.0);
    let daemon = Daemon::start(stage, "wedged");
    until("a first number", || (daemon.desired(stage)? == 3).then_some(()));
    // The load falls while nobody can see it.
    stage.engines.wedge("wedged", true);
    stage.engines.load("wedged", 0.3);
    until("a held decision", || {
        (daemon.gauge(stage, "plimsoll_decision_held", &["variant=\"llama\""])? == 1).then_some(())
    });
    keeps(stage, "wedged", 3);
    stage.engines.wedge("wedged", false);
    follows(stage, &daemon, "wedged", 0.3, 1);
}

#[test]
fn e_a_killed_a_restarted_and_a_paused_plimsoll_change_no_count() {
    let stage = &stage();
    stage.open("crash", 3);
    stage.engines.load("crash", 2.0);
    let daemon = Daemon::start(stage, "crash");
    until("a first number", || (daemon.desired(stage)? == 3).then_some(()));

    daemon.signal("-STOP");
    keeps(stage, "crash", 3);
    daemon.signal("-CONT");
    keeps(stage, "crash", 3);

    drop(daemon);
    keeps(stage, "crash", 3);
    let daemon = Daemon::start(stage, "crash");
    keeps(stage, "crash", 3);
    follows(stage, &daemon, "crash", 2.7, 4);
}

#[test]
fn f_a_namespace_is_deleted_while_plimsoll_has_no_data() {
    let stage = &stage();
    stage.engines.wedge("cold", true);
    stage.open("cold", 2);
    let daemon = Daemon::start(stage, "cold");
    stage.kubectl(&["create", "namespace", "doomed"]).unwrap();
    let map = ["create", "configmap", "-n", "doomed", "something", "--from-literal=a=b"];
    stage.kubectl(&map).unwrap();
    stage.kubectl(&["delete", "namespace", "doomed", "--timeout=10m"]).unwrap();
    keeps(stage, "cold", 2);
    drop(daemon);
}

#[test]
fn g_an_api_server_that_restarts_changes_no_count() {
    let stage = &stage();
    stage.open("away", 3);
    stage.engines.load("away", 2.0);
    let daemon = Daemon::start(stage, "away");
    until("a first number", || (daemon.desired(stage)? == 3).then_some(()));
    stage.restart_api_server();
    keeps(stage, "away", 3);
    assert_eq!(daemon.desired(stage), Some(3));
    stage.look_again();
    follows(stage, &daemon, "away", 2.7, 4);
}

#[test]
fn h_kubectl_finds_its_way() {
    let stage = &stage();
    stage.open("tools", 1);
    stage.engines.load("tools", 0.3);
    let daemon = Daemon::start(stage, "tools");
    until("a first number", || daemon.desired(stage));
    let path = "/apis/external.metrics.k8s.io/v1beta1/namespaces/tools/plimsoll_desired_replicas";
    let list = until("the metric", || stage.raw(path).ok());
    let list: serde_json::Value = serde_json::from_str(&list).unwrap();
    assert_eq!(list["items"][0]["value"], "1", "{list}");
    let query = format!("{path}?labelSelector=variant%3Dother");
    let refusal = stage.raw(&query).expect_err("there is no such variant");
    assert!(refusal.contains("(NotFound)"), "{refusal}");
    assert!(refusal.contains("no variant in namespace tools matches"), "{refusal}");

    let group = "--api-group=external.metrics.k8s.io";
    let resources = ["api-resources", group, "--no-headers"];
    let resources = until("the resources", || stage.kubectl(&resources).ok());
    assert_eq!(resources.lines().count(), 1, "{resources}");
    let table = ["get", "externalmetrics", "-n", "tools"];
    let table = until("the table", || stage.kubectl(&table).ok());
    let lines: Vec<Vec<&str>> =
        table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines.len(), 2, "{table}");
    assert_eq!(lines[0], ["NAME", "VARIANT", "VALUE", "AGE", "STATE"], "{table}");
    assert_eq!(lines[1][..3], ["plimsoll_desired_replicas", "llama", "1"], "{table}");
    assert_eq!(lines[1][4], "fresh", "{table}");
    let ours = daemon.gauge(stage, "plimsoll_apiservice_state", &["state=\"ours\""]);
    assert_eq!(ours, Some(1), "Plimsoll knows that it is registered");
}
