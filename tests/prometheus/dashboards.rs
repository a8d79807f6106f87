//! The queries of the dashboards.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// What Grafana puts in the place of its variables: all of everything, a range that the demo has
/// filled, and an interval with several scrapes in it.
const CHOSEN: [(&str, &str); 8] = [
    ("$job", ".*"),
    ("$top", "10"),
    ("$__rate_interval", "15s"),
    ("$__range", "2m"),
    ("$__interval", "5s"),
    ("$namespace", ".*"),
    ("$model", ".*"),
    ("$variant", ".*"),
];

/// Metrics that a daemon has only in a cluster, or with a Prometheus as the source and limits. The
/// tests on a control plane have them.
pub(crate) const OF_A_CLUSTER: [&str; 13] = [
    "plimsoll_apiservice_state",
    "plimsoll_autoscaler_follows",
    "plimsoll_autoscaler_problem",
    "plimsoll_cluster_state_age_seconds",
    "plimsoll_discovery_objects",
    "plimsoll_events_total",
    "plimsoll_hpa_ignores_desired",
    "plimsoll_limit_shadow_price",
    "plimsoll_limited_replicas",
    "plimsoll_prometheus_",
    "plimsoll_shared_document_bytes",
    "plimsoll_slo_itl_seconds",
    "plimsoll_unschedulable_replicas",
];

/// A query of a panel.
pub(crate) struct Query {
    pub(crate) panel: String,
    pub(crate) expr: String,
    instant: bool,
    /// A row of a table each, or a line.
    pub(crate) of_table: bool,
    /// How its lines are named.
    legend: String,
}

pub(crate) fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

pub(crate) fn dashboards() -> Vec<Value> {
    let files = std::fs::read_dir(root("dashboards")).unwrap().map(|entry| entry.unwrap().path());
    let dashboards: Vec<Value> = files
        .filter(|path| path.extension().is_some_and(|it| it == "json"))
        .map(|path| serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap())
        .collect();
    assert_eq!(dashboards.len(), 2, "the dashboards are found");
    dashboards
}

pub(crate) fn queries() -> Vec<Query> {
    let mut queries = Vec::new();
    for dashboard in dashboards() {
        for panel in dashboard["panels"].as_array().unwrap() {
            for target in panel["targets"].as_array().into_iter().flatten() {
                let title = format!("{} / {}", dashboard["uid"], panel["title"]);
                queries.push(Query::of(title, target));
            }
        }
    }
    queries
}

/// Whether an answer has a number to draw.
pub(crate) fn shows_something(answer: &Value) -> bool {
    let numbers = |series: &Value| {
        let many = series["values"].as_array().into_iter().flatten();
        many.chain(series.get("value")).any(|sample| sample[1] != "NaN")
    };
    answer["data"]["result"].as_array().is_some_and(|series| series.iter().any(numbers))
}

impl Query {
    /// The query of a target, with a value in the place of each variable.
    pub(crate) fn of(panel: String, target: &Value) -> Self {
        let expr = target["expr"].as_str().unwrap().to_owned();
        let expr = CHOSEN.iter().fold(expr, |expr, (name, value)| expr.replace(name, value));
        assert!(!expr.contains('$'), "{panel}: {expr}");
        let legend = target["legendFormat"].as_str().unwrap_or_default().to_owned();
        let (instant, of_table) = (target["instant"] == true, target["format"] == "table");
        Self { panel, expr, instant, of_table, legend }
    }

    /// Names each line by what there is any number of.
    pub(crate) fn draws_a_line_for_each(&self) -> bool {
        let many = ["{{namespace}}", "{{model}}", "{{variant}}", "{{hpa}}"];
        many.iter().any(|label| self.legend.contains(label))
    }

    /// The path under `/api/v1` that a dashboard asks for that shows the time from `start` to `end`.
    pub(crate) fn path(&self, start: f64, end: f64, step: u32) -> String {
        let mut pairs = form_urlencoded::Serializer::new(String::new());
        pairs.append_pair("query", &self.expr);
        if self.instant {
            pairs.append_pair("time", &end.to_string());
            return format!("query?{}", pairs.finish());
        }

        pairs.append_pair("start", &start.to_string());
        pairs.append_pair("end", &end.to_string());
        pairs.append_pair("step", &step.to_string());
        format!("query_range?{}", pairs.finish())
    }
}
