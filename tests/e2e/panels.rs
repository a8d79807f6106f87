//! The panels of the dashboards that need a cluster, on a real Prometheus.

use serde_json::Value;

use crate::daemon::{Daemon, Knows, configuration, election};
use crate::dashboards::{OF_A_CLUSTER, Query, queries, root, shows_something};
use crate::discovery::Granted;
use crate::page::MODEL;
use crate::prometheus::{Prometheus, scraping};
use crate::stage::{Stage, stage};
use crate::wait::until;

const NAMESPACE: &str = "panels";

/// The time that the panels show, in seconds.
const SHOWN: f64 = 60.0;

/// A Deployment whose pods no node has room for.
fn too_large(stage: &Stage) {
    let llama = ["get", "deployment", "llama", "-n", NAMESPACE, "-o", "json"];
    let mut deployment: Value = serde_json::from_str(&stage.kubectl(&llama).unwrap()).unwrap();
    deployment["metadata"] = serde_json::json!({"name": "huge", "namespace": NAMESPACE});
    deployment["spec"]["replicas"] = 1.into();
    deployment["spec"]["selector"]["matchLabels"]["app"] = "huge".into();
    deployment["spec"]["template"]["metadata"]["labels"]["app"] = "huge".into();
    let container = &mut deployment["spec"]["template"]["spec"]["containers"][0];
    container["resources"] = serde_json::json!({"limits": {"nvidia.com/gpu": "64"}});
    stage.apply(&deployment.to_string());
}

/// Plimsoll with everything that only a cluster has: an election, discovery, limits, and a
/// Prometheus as the source.
fn everything(stage: &Stage, prometheus: &Prometheus) -> Daemon {
    let alone = configuration(stage, NAMESPACE, Knows::ByConfiguration);
    let elected = alone
        .replace("kubernetes:", &election(NAMESPACE))
        .replace("discovery: {enabled: false}", "discovery: {enabled: true}")
        .replace("analysis: saturation", "analysis: capacity\ncapacity: {slo: {itl: 100ms}}");
    let url = &prometheus.url;
    let configuration = format!(
        "{elected}
- name: huge
  namespace: {NAMESPACE}
  model: {MODEL}
  cost: 5
  targets: {{scale_target: {{api_version: apps/v1, kind: Deployment, name: huge}}}}
prometheus: {{url: \"{url}\", interval: 1s, stale_after: 5s}}
limits: {{budget_per_hour: 7}}
"
    );
    Daemon::launch(stage, NAMESPACE, &configuration)
}

/// Plimsoll with a certificate of its own.
fn managing_its_certificate(stage: &Stage) -> Daemon {
    let given = configuration(stage, NAMESPACE, Knows::ByConfiguration);
    let (start, rest) = given.split_once("tls: {").unwrap();
    let (_files, rest) = rest.split_once('}').unwrap();
    let managed = "tls: {self_managed: {secret: its-own, service: plimsoll, namespace: plimsoll}}";
    Daemon::begin(stage, NAMESPACE, &format!("{start}{managed}{rest}"))
}

/// Waits until each query with this metric has shown something, and counts them.
fn show(stage: &Stage, prometheus: &Prometheus, metric: &str) -> usize {
    let mut waiting = queries();
    waiting.retain(|query| query.expr.contains(metric));
    let found = waiting.len();
    let get = |path: &str| -> Option<Value> {
        let page = stage.page(&format!("{}/api/v1/{path}", prometheus.url))?;
        Some(serde_json::from_str(&page).unwrap())
    };
    until(&format!("a number for {metric}"), || {
        let now = get("query?query=time()")?["data"]["result"][0].as_f64()?;
        waiting.retain(|query: &Query| {
            let answer = get(&query.path(now - SHOWN, now, 5));
            !answer.as_ref().is_some_and(shows_something)
        });
        waiting.is_empty().then_some(())
    });

    found
}

#[test]
fn the_panels_that_need_a_cluster_show_something() {
    let stage = &stage();
    stage.open(NAMESPACE, 2);
    stage.engines.load(NAMESPACE, 1.3);
    too_large(stage);
    let _granted = Granted::everywhere(stage);
    let folder = stage.folder.join("panels-prometheus");
    let scraping = format!(
        "rule_files: ['{}/*.yaml']\n{}- job_name: plimsoll\n  honor_labels: true\n  \
         static_configs: [{{targets: ['{}:8080']}}]\n",
        root("alerts").display(),
        scraping(stage, NAMESPACE, ".*"),
        stage.address(),
    );
    let prometheus = Prometheus::start(&folder, &scraping);
    let daemon = everything(stage, &prometheus);
    Daemon::wait_until_registered(stage);
    // More than the budget allows.
    stage.engines.load(NAMESPACE, 4.0);
    let found: usize = OF_A_CLUSTER.iter().map(|metric| show(stage, &prometheus, metric)).sum();
    assert!(found >= 15, "{found} queries are found");

    // Its absence is an alert.
    drop(daemon);
    assert_eq!(show(stage, &prometheus, "ALERTS{"), 2);

    // Nothing allows it to keep a certificate in a Secret.
    let _unable = managing_its_certificate(stage);
    assert_eq!(show(stage, &prometheus, "plimsoll_tls_failures_total"), 1);
}
