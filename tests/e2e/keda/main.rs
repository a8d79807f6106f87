//! Plimsoll beside KEDA, which owns the external metrics API: a real operator and metrics adapter
//! read the gauge from a real Prometheus and scale by it. `tests/e2e/run-keda` builds and runs all.
//!
//! A replica is full at a load of 1, and `n` replicas carry a load of up to `0.7 * n`, as in
//! `tests/e2e`.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(dead_code, reason = "the stage is shared with tests that use more of it")]

#[path = "../daemon.rs"]
mod daemon;
#[path = "../engines.rs"]
mod engines;
mod keda;
#[path = "../live.rs"]
mod live;
mod objects;
#[path = "../page.rs"]
mod page;
#[path = "../picker.rs"]
mod picker;
#[path = "../stage.rs"]
mod stage;
mod triggers;
#[path = "../wait.rs"]
mod wait;

use std::sync::OnceLock;
use std::time::Duration;

use crate::daemon::{Daemon, Knows, configuration};
use crate::keda::Keda;
use crate::stage::{Stage, stage};
use crate::wait::{PATIENCE, stays, until, within};

/// The `ScaledObject` that users are given.
const SCALED_OBJECT: &str = include_str!("../../../examples/keda-scaledobject.yaml");

/// The same example as WVA's users have it, after the change that the guide asks for.
const MIGRATED: &str = include_str!("../../../examples/wva-migration/after/scaledobject.yaml");

/// KEDA fails over after three failures, which here are seconds apart; this is many times longer.
const OUTAGE: Duration = Duration::from_secs(45);

fn keda(stage: &Stage) -> &'static Keda {
    static KEDA: OnceLock<Keda> = OnceLock::new();
    KEDA.get_or_init(|| Keda::start(stage))
}

/// The configuration without the external metrics API, which is KEDA's here.
fn gauge_only(stage: &Stage, namespace: &str) -> String {
    without_api(&configuration(stage, namespace, Knows::ByConfiguration))
}

fn without_api(whole: &str) -> String {
    let (start, rest) = whole.split_once("external_metrics:").unwrap();
    let (_, end) = rest.split_once("kubernetes:").unwrap();
    format!("{start}kubernetes:{end}")
}

/// Makes a namespace with the variant and a `ScaledObject` that scales it by the gauge.
fn open(stage: &Stage, namespace: &str, scaled_object: &str) {
    stage.deploy(namespace, 1, PATIENCE);
    scale_by(stage, namespace, scaled_object);
}

fn scale_by(stage: &Stage, namespace: &str, scaled_object: &str) {
    let prometheus = &keda(stage).prometheus;
    let object = scaled_object
        .replace("http://prometheus.monitoring:9090", prometheus)
        .replace("namespace: shop", &format!("namespace: {namespace}"))
        .replace("namespace=\"shop\"", &format!("namespace=\"{namespace}\""));
    stage.apply(&object);
}

/// Sets the load and waits until number and Deployment are at the replicas that carry it.
fn follows(stage: &Stage, daemon: &Daemon, namespace: &str, load: f64, replicas: u32) {
    stage.engines.load(namespace, load);
    until(&format!("{replicas} replicas at a load of {load}"), || {
        let there = daemon.desired(stage) == Some(replicas)
            && stage.replicas(namespace) == Some(replicas)
            && stage.engines.ready(namespace) == replicas;
        there.then_some(())
    });
}

/// The status of a condition of the `ScaledObject`.
fn condition(stage: &Stage, namespace: &str, kind: &str) -> Option<String> {
    let path = format!("jsonpath={{.status.conditions[?(@.type==\"{kind}\")].status}}");
    stage.kubectl(&["get", "scaledobject", "llama", "-n", namespace, "-o", &path]).ok()
}

#[test]
fn a_keda_scales_by_the_gauge_up_and_down_and_plimsoll_takes_its_bounds() {
    let stage = &stage();
    open(stage, "tide", SCALED_OBJECT);
    stage.engines.load("tide", 0.3);
    let daemon = Daemon::launch(stage, "tide", &gauge_only(stage, "tide"));
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    until("the bounds of KEDA's HPA", || {
        (daemon.gauge(stage, "plimsoll_max_replicas", &["variant=\"llama\""])? == 20).then_some(())
    });
    follows(stage, &daemon, "tide", 2.0, 3);
    stays("3 replicas", Duration::from_secs(10), || stage.replicas("tide") == Some(3));
    follows(stage, &daemon, "tide", 0.3, 1);
    let follower = ["hpa=\"keda-hpa-llama\"", "scaled_object=\"llama\""];
    let ignores = daemon.gauge(stage, "plimsoll_hpa_ignores_desired", &follower);
    assert_eq!(ignores, Some(0), "KEDA's HPA is known to read the number");
    let log = daemon.log();
    assert!(log.contains("The external metrics API is not served"), "{log}");
    assert!(!log.contains("does not read the desired replicas"), "{log}");
}

#[test]
fn b_a_plimsoll_that_is_gone_drops_no_replica() {
    let stage = &stage();
    open(stage, "gone", SCALED_OBJECT);
    stage.engines.load("gone", 0.3);
    let daemon = Daemon::launch(stage, "gone", &gauge_only(stage, "gone"));
    follows(stage, &daemon, "gone", 2.0, 3);
    drop(daemon);
    until("KEDA falling back", || {
        assert_eq!(stage.replicas("gone"), Some(3), "while the number cannot be read");
        (condition(stage, "gone", "Fallback")? == "True").then_some(())
    });
    stays("3 replicas", OUTAGE, || stage.replicas("gone") == Some(3));
    let daemon = Daemon::launch(stage, "gone", &gauge_only(stage, "gone"));
    follows(stage, &daemon, "gone", 2.7, 4);
}

#[test]
fn c_without_the_two_guards_of_the_example_everything_goes_to_zero() {
    let stage = &stage();
    let (start, rest) = SCALED_OBJECT.split_once("  fallback:").unwrap();
    let (_, end) = rest.split_once("  triggers:").unwrap();
    let without = format!("{start}  cooldownPeriod: 5\n  triggers:{end}")
        .replace("minReplicaCount: 1", "minReplicaCount: 0")
        .replace("ignoreNullValues: \"false\"", "activationThreshold: \"0\"");
    stage.deploy("trap", 1, PATIENCE);
    stage.engines.load("trap", 0.3);
    let daemon = Daemon::launch(stage, "trap", &gauge_only(stage, "trap"));
    // Before there is a number the trap closes at once. KEDA asks for what was known at the last
    // whole second, so a number must have been there for longer than that.
    let query = "/api/v1/query?query=plimsoll_desired_replicas%7Bnamespace%3D%22trap%22%7D\
                 %20offset%202s";
    let query = format!("{}{query}", keda(stage).prometheus);
    until("the number in Prometheus", || stage.page(&query)?.contains("\"value\"").then_some(()));
    scale_by(stage, "trap", &without);
    follows(stage, &daemon, "trap", 2.0, 3);
    drop(daemon);
    within(OUTAGE * 4, "the trap closing", || (stage.replicas("trap")? == 0).then_some(()));
}

#[test]
fn d_a_provider_that_is_there_already_is_named_with_what_to_do() {
    let stage = &stage();
    open(stage, "foreign", SCALED_OBJECT);
    stage.engines.load("foreign", 0.3);
    let daemon =
        Daemon::launch(stage, "foreign", &configuration(stage, "foreign", Knows::ByConfiguration));
    until("a foreign provider", || {
        let label = ["state=\"foreign_service\""];
        (daemon.gauge(stage, "plimsoll_apiservice_state", &label)? == 1).then_some(())
    });
    let log = daemon.log();
    for part in [keda::SERVICE, "remove external_metrics from", "prometheus trigger"] {
        assert!(log.contains(part), "no {part} in\n{log}");
    }
    follows(stage, &daemon, "foreign", 2.0, 3);
}

#[test]
fn e_the_scaled_object_of_the_migration_guide_works_with_the_old_annotations_and_metric() {
    let stage = &stage();
    let grant = ["create", "clusterrolebinding", "plimsoll-discovery"];
    let whom = ["--clusterrole=plimsoll-discovery", "--serviceaccount=plimsoll:plimsoll"];
    stage.kubectl(&[grant.as_slice(), &whom].concat()).unwrap();
    open(stage, "moved", MIGRATED);
    stage.engines.load("moved", 0.3);
    // The variant is known by WVA's annotations alone, and WVA's name of the metric is read.
    let discovers = without_api(&configuration(stage, "moved", Knows::ByDiscovery));
    assert!(discovers.contains("wva_metrics: true"), "{discovers}");
    let daemon = Daemon::launch(stage, "moved", &discovers);
    follows(stage, &daemon, "moved", 2.0, 3);
}

#[test]
fn f_every_scaled_object_of_the_examples_is_one_for_keda_and_nothing_in_it_is_dropped() {
    let stage = &stage();
    keda(stage);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/examples");
    let mut seen = 0;
    for (file, text) in yaml_files(std::path::Path::new(folder)) {
        if !text.contains("kind: ScaledObject") {
            continue;
        }
        seen += 1;
        let namespace = text.lines().find_map(|line| line.trim().strip_prefix("namespace: "));
        let _there_already = stage.kubectl(&["create", "namespace", namespace.unwrap()]);
        // Strict: a field that the definition does not have is an error, and not dropped.
        let arguments = ["apply", "--dry-run=server", "--validate=strict", "-f", &file];
        let outcome = stage.kubectl(&arguments);
        assert!(outcome.is_ok(), "{file}: {outcome:?}");
    }
    assert!(seen >= 3, "{seen} ScaledObjects");
}

/// Why docs/migrating-from-wva.md says that entries are found by what is inside them.
#[test]
fn g_no_config_map_has_a_key_with_a_hash_in_it() {
    let stage = &stage();
    let file = stage.folder.join("overrides.yaml");
    let text = "{apiVersion: v1, kind: ConfigMap, metadata: {name: a, namespace: default}, \
                data: {\"llama#shop\": \"kvCacheThreshold: 0.7\"}}\n";
    std::fs::write(&file, text).unwrap();
    let arguments = ["apply", "--dry-run=server", "-f", file.to_str().unwrap()];
    let refused = stage.kubectl(&arguments).unwrap_err();
    assert!(refused.contains("a valid config key must consist of"), "{refused}");
}

fn yaml_files(folder: &std::path::Path) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(yaml_files(&path));
        } else if path.extension().is_some_and(|extension| extension == "yaml") {
            let text = std::fs::read_to_string(&path).unwrap();
            found.push((path.to_str().unwrap().to_owned(), text));
        }
    }
    found
}
