//! The dashboards and the alerts on a real Prometheus, which scrapes the demo.
//!
//! `tests/prometheus/run` builds Prometheus and runs this, `tests/panels/run` its module `panels`. The demo is the real daemon under
//! simulated load, so every query gets what it would get in a cluster, but for what only a cluster
//! has: HPAs and the `APIService`. `tests/e2e/panels.rs` has those.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod dashboards;
mod panels;
mod stage;
#[expect(dead_code, reason = "the tests of the status page press keys")]
#[path = "../browser/webdriver.rs"]
mod webdriver;

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::dashboards::{OF_A_CLUSTER, Query, dashboards, queries, root};
use crate::stage::{Answer, Stage};

/// More metrics that the demo does not have: those of alerts, and of what goes wrong.
const ELSEWHERE: [&str; 3] = ["ALERTS{", "plimsoll_stuck_replicas", "plimsoll_tls_failures_total"];

impl Query {
    /// What a dashboard gets that shows the time from `start` to `end`.
    async fn answer(&self, stage: &Stage, start: f64, end: f64, step: u32) -> Value {
        stage.fetch(&self.path(start, end, step)).await
    }

    fn is_of_elsewhere(&self) -> bool {
        // Without a cluster, no state of it is old.
        let age = "unless on (job, instance) plimsoll_cluster_state_age_seconds";
        let drawn = self.expr.replace(age, "");
        OF_A_CLUSTER.iter().chain(&ELSEWHERE).any(|metric| drawn.contains(metric))
    }
}

/// The expressions of all alerts, as Prometheus has loaded them.
fn rules(answer: &Value) -> BTreeMap<String, Value> {
    let groups = answer["data"]["groups"].as_array().unwrap();
    let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
    rules.map(|rule| (rule["name"].as_str().unwrap().to_owned(), rule.clone())).collect()
}

/// The names of the alerts in the files.
fn written() -> BTreeSet<String> {
    let files = std::fs::read_dir(root("alerts")).unwrap().map(|entry| entry.unwrap().path());
    let yaml = files.filter(|path| path.extension().is_some_and(|it| it == "yaml"));
    let text: String = yaml.map(|path| std::fs::read_to_string(path).unwrap()).collect();
    text.lines()
        .filter_map(|line| line.trim().strip_prefix("- alert: ").map(str::to_owned))
        .collect()
}

/// The load rises until numbers are raised and replicas follow, so that there is something to show.
async fn the_fleet_grows(stage: &Stage) {
    let grown = "sum(plimsoll_desired_changes_total{direction=\"up\"}) >= 2 \
                 and sum(plimsoll_ready_replicas) >= 5";
    stage
        .until(async |stage| match stage.query(grown).await {
            Answer::Series(_) => Vec::new(),
            Answer::Nothing => vec![grown.to_owned()],
            Answer::Refused(why) => panic!("{grown}: {why}"),
        })
        .await;
}

/// A panel is done when it has shown something: load, scaling and quantiles take their time.
async fn every_panel_shows_something(stage: &Stage) {
    let mut waiting = queries();
    assert!(waiting.len() > 90, "the queries are found");
    stage
        .until(async |stage| {
            let mut still = Vec::new();
            let now = stage.now().await;
            for query in std::mem::take(&mut waiting) {
                match Answer::new(&query.answer(stage, now - 60.0, now, 5).await) {
                    Answer::Series(_) => {}
                    Answer::Nothing if query.is_of_elsewhere() => {}
                    Answer::Nothing => still.push(query),
                    Answer::Refused(why) => panic!("{}: {}: {why}", query.panel, query.expr),
                }
            }
            waiting = still;
            waiting.iter().map(|query| format!("{}: {}", query.panel, query.expr)).collect()
        })
        .await;
}

/// What may be chosen is there to be chosen.
async fn every_variable_has_values(stage: &Stage) {
    for dashboard in dashboards() {
        for variable in dashboard["templating"]["list"].as_array().unwrap() {
            if variable["type"] == "query" {
                let question = variable["definition"].as_str().unwrap();
                let question = question.replace("$namespace", ".*").replace("$model", ".*");
                assert!(!stage.label_values(&question).await.is_empty(), "{question}");
            }
        }
    }
}

/// An expression may hold for a moment while the HPA acts. One that never lets go would fire.
async fn no_alert_holds(stage: &Stage) {
    let loaded = rules(&stage.get("rules", &[]).await);
    assert_eq!(loaded.keys().cloned().collect::<BTreeSet<_>>(), written());
    let expr = |rule: &Value| rule["query"].as_str().unwrap().to_owned();
    let mut holding: Vec<(String, String)> =
        loaded.iter().map(|(name, rule)| (name.clone(), expr(rule))).collect();
    stage
        .until(async |stage| {
            let (mut still, mut said) = (Vec::new(), Vec::new());
            for (name, expr) in std::mem::take(&mut holding) {
                match stage.query(&expr).await {
                    Answer::Nothing => {}
                    Answer::Series(series) => {
                        said.push(format!("{name}: {series}"));
                        still.push((name, expr));
                    }
                    Answer::Refused(why) => panic!("{name}: {why}"),
                }
            }
            holding = still;
            said
        })
        .await;
    for (name, rule) in rules(&stage.get("rules", &[]).await) {
        assert_eq!(rule["health"], "ok", "{name}: {}", rule["lastError"]);
        assert_ne!(rule["state"], "firing", "{name}");
    }
}

#[tokio::test]
async fn every_panel_shows_the_demo_and_every_alert_stays_silent_on_it() {
    let mut stage = Stage::open(&root("alerts")).await;
    the_fleet_grows(&stage).await;
    every_panel_shows_something(&stage).await;
    every_variable_has_values(&stage).await;
    no_alert_holds(&stage).await;

    // The same Prometheus notices when the daemon is gone, so the silence before means something.
    stage.end_the_demo();
    stage
        .until(async |stage| {
            let rules = rules(&stage.get("rules", &[]).await);
            let down = &rules["PlimsollDown"]["state"];
            if down == "pending" { Vec::new() } else { vec![format!("PlimsollDown is {down}")] }
        })
        .await;
}

#[tokio::test]
async fn two_hundred_variants_draw_no_more_lines_than_are_chosen() {
    let stage = Stage::crowd(67).await;
    let crowded = "count(plimsoll_variant_info) >= 200 \
                   and count(plimsoll_saturation_ratio) >= 200";
    stage
        .until(async |stage| match stage.query(crowded).await {
            Answer::Series(_) => Vec::new(),
            Answer::Nothing => vec![crowded.to_owned()],
            Answer::Refused(why) => panic!("{crowded}: {why}"),
        })
        .await;
    let now = stage.now().await;
    let mut full = 0;
    for query in queries().into_iter().filter(|it| !it.of_table) {
        let answer = query.answer(&stage, now - 10.0, now, 5).await;
        let lines = answer["data"]["result"].as_array().unwrap().len();
        // Others have a line for each reason, alert or other word of a fixed list.
        let most = if query.draws_a_line_for_each() { 10 } else { 60 };
        assert!(lines <= most, "{}: {lines} lines: {}", query.panel, query.expr);
        full += usize::from(lines == 10);
    }
    assert!(full >= 15, "{full} queries have more variants than they may show");
}
