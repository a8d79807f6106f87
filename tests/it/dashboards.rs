//! The dashboards: laid out without overlaps, explained panel by panel, and made of metrics,
//! variables and runbooks that exist. `tests/prometheus` runs every query of theirs.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::alerts::{files, unknown};

/// Panels of Grafana 11 that this project uses. Those that Grafana has deprecated, such as `graph`,
/// `singlestat` and `table-old`, are not among them.
const KINDS: [&str; 6] = ["timeseries", "stat", "table", "state-timeline", "bargauge", "row"];

/// What every dashboard lets a person choose.
const VARIABLES: [&str; 8] =
    ["datasource", "job", "namespace", "model", "variant", "top", "plimsoll", "runbooks"];

/// What Grafana fills in itself.
const OF_GRAFANA: [&str; 6] =
    ["__all", "__data", "__interval", "__range", "__rate_interval", "__url_time_range"];

/// Columns of Grafana's grid.
const COLUMNS: u64 = 24;

fn dashboards() -> BTreeMap<String, Value> {
    let found: BTreeMap<String, Value> = files("dashboards", "json")
        .into_iter()
        .map(|(stem, path)| {
            let text = std::fs::read_to_string(path).unwrap();
            (stem, serde_json::from_str(&text).unwrap())
        })
        .collect();
    assert_eq!(found.len(), 2, "the dashboards are found");
    found
}

fn list<'a>(value: &'a Value, key: &str) -> &'a [Value] {
    value[key].as_array().map_or(&[], Vec::as_slice)
}

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Each panel of each dashboard but the rows, with a name for messages.
fn panels(dashboards: &BTreeMap<String, Value>) -> Vec<(String, &Value)> {
    let all = dashboards.iter().flat_map(|(stem, dashboard)| {
        let panels = list(dashboard, "panels").iter().filter(|panel| text(panel, "type") != "row");
        panels.map(move |panel| (format!("{stem}: {}", text(panel, "title")), panel))
    });
    all.collect()
}

/// The variables in a text: `$name` and `${name}`.
fn variables(text: &str) -> BTreeSet<String> {
    let parts = text.split('$').skip(1).map(|part| part.trim_start_matches('{'));
    let name = |part: &str| {
        part.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect::<String>()
    };
    parts.map(name).collect()
}

#[test]
fn a_dashboard_is_known_by_its_file_and_can_be_loaded_by_grafana_11() {
    for (stem, dashboard) in dashboards() {
        assert_eq!(text(&dashboard, "uid"), stem);
        assert!(text(&dashboard, "title").starts_with("Plimsoll / "), "{stem}");
        assert!(!text(&dashboard, "description").is_empty(), "{stem}");
        // The version that Grafana 11.0 writes; newer ones read it.
        assert_eq!(dashboard["schemaVersion"], 39, "{stem}");
        // An id belongs to the Grafana that it was saved in.
        assert!(dashboard.get("id").is_none_or(Value::is_null), "{stem}");
        assert_eq!(dashboard["tags"], serde_json::json!(["plimsoll"]), "{stem}");
    }
}

#[test]
fn panels_have_ids_of_their_own_and_do_not_overlap() {
    for (stem, dashboard) in dashboards() {
        let panels = list(&dashboard, "panels");
        let ids: BTreeSet<u64> = panels.iter().filter_map(|panel| panel["id"].as_u64()).collect();
        assert_eq!(ids.len(), panels.len(), "{stem}");
        let mut taken = BTreeMap::new();
        for panel in panels {
            let title = text(panel, "title");
            let [x, y, w, h] =
                ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
            assert!(w > 0 && h > 0 && x + w <= COLUMNS, "{stem}: {title}");
            for cell in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                let before = taken.insert(cell, title);
                assert_eq!(before, None, "{stem}: {title} overlaps");
            }
        }
        // A line of panels fills the width, and there is no gap between lines.
        let rows: BTreeSet<u64> = taken.keys().map(|(_, y)| *y).collect();
        assert_eq!(rows.len() as u64, rows.last().unwrap() + 1, "{stem}: a line is empty");
    }
}

#[test]
fn every_panel_says_what_it_shows_and_in_what_unit() {
    let dashboards = dashboards();
    let mut titles = BTreeSet::new();
    for (name, panel) in panels(&dashboards) {
        assert!(titles.insert(name.clone()), "{name} is there twice");
        assert!(KINDS.contains(&text(panel, "type")), "{name}: {}", text(panel, "type"));
        assert!(text(panel, "description").len() > 30, "{name} has no description");
        let defaults = &panel["fieldConfig"]["defaults"];
        assert!(!text(defaults, "unit").is_empty(), "{name} has no unit");
        assert!(!list(&defaults["thresholds"], "steps").is_empty(), "{name} has no thresholds");
    }
    assert!(titles.len() > 40, "the panels are found");
}

/// The end of a metric's name is its unit. Rates, counts and quotients have a unit of their own.
#[test]
fn a_number_is_shown_in_the_unit_of_its_metric() {
    let units = [
        ("_seconds", &["s"][..]),
        ("_bytes", &["bytes"]),
        ("_ratio", &["percentunit"]),
        ("_per_second", &["reqps", "si:tok/s"]),
    ];
    let dashboards = dashboards();
    let mut seen = 0;
    for (name, panel) in panels(&dashboards).into_iter().filter(|it| it.1["type"] != "table") {
        let unit = text(&panel["fieldConfig"]["defaults"], "unit");
        for expr in list(panel, "targets").iter().map(|target| text(target, "expr")) {
            if ["rate(", "increase(", "count(", "over_time(", " / "]
                .iter()
                .any(|it| expr.contains(it))
            {
                continue;
            }
            // Old states of the cluster are left out, and not drawn.
            let age = "unless on (job, instance) plimsoll_cluster_state_age_seconds";
            let drawn = expr.replace(age, "");
            let words = drawn.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let metrics =
                words.filter(|it| it.starts_with("plimsoll_") || it.starts_with("process_"));
            for metric in metrics {
                let Some((_, fitting)) = units.iter().find(|(end, _)| metric.ends_with(end)) else {
                    continue;
                };
                assert!(fitting.contains(&unit), "{name}: {metric} in {unit}");
                seen += 1;
            }
        }
    }
    assert!(seen > 40, "{seen} numbers with a unit are found");
}

#[test]
fn every_query_asks_the_chosen_data_source_for_metrics_that_exist() {
    let dashboards = dashboards();
    for (name, panel) in panels(&dashboards) {
        let targets = list(panel, "targets");
        assert!(!targets.is_empty(), "{name} has no query");
        let letters: BTreeSet<&str> = targets.iter().map(|target| text(target, "refId")).collect();
        assert_eq!(letters.len(), targets.len(), "{name}");
        for source in targets.iter().chain([panel]).map(|it| &it["datasource"]) {
            assert_eq!(text(source, "type"), "prometheus", "{name}");
            assert_eq!(text(source, "uid"), "${datasource}", "{name}");
        }
        for target in targets {
            let expr = text(target, "expr");
            assert_eq!(unknown(expr), Vec::<String>::new(), "{name}: {expr}");
            if !["stat", "table"].contains(&text(panel, "type")) {
                assert!(target.get("legendFormat").is_some(), "{name}: a series has no name");
            }
        }
    }
}

/// A fleet may have hundreds of variants: a panel draws the largest, and none is repeated.
#[test]
fn panels_are_bounded_and_draw_no_line_without_data() {
    let dashboards = dashboards();
    for (name, panel) in panels(&dashboards) {
        assert!(panel.get("repeat").is_none(), "{name} is repeated");
        let kind = text(panel, "type");
        for target in list(panel, "targets") {
            let expr = text(target, "expr");
            // A count of nothing is 0; a line of nothing is none.
            assert!(kind == "stat" || !expr.contains("vector("), "{name}: {expr}");

            let lines = ["(namespace, model, variant", "(namespace, variant", "(namespace, model"];
            let many = expr.contains("by ") && lines.iter().any(|it| expr.contains(it));
            let bounded = expr.contains("$top") || ["stat", "table"].contains(&kind);
            let aggregated =
                expr.starts_with("sum by (limit)") || expr.starts_with("sum by (freshness)");
            assert!(!many || bounded || aggregated, "{name}: {expr}");
        }
    }
}

/// A panel may draw negative values downward, and still ranks variants by their size.
#[test]
fn panels_rank_by_the_values_themselves() {
    let dashboards = dashboards();
    let mut seen = 0;
    for (name, panel) in panels(&dashboards) {
        for target in list(panel, "targets") {
            let expr = text(target, "expr");
            assert!(!expr.contains("topk($top, -"), "{name}: {expr}");
            seen += usize::from(expr.contains("topk($top, "));
        }
    }
    assert!(seen > 10, "the rankings are found");
}

/// Two replicas of the daemon publish the same variants, so a gauge of theirs is never summed as it
/// is. Only the leader counts decisions and their changes.
#[test]
fn gauges_of_variants_are_taken_once() {
    let dashboards = dashboards();
    let mut seen = 0;
    for (name, panel) in panels(&dashboards) {
        for target in list(panel, "targets") {
            let expr = text(target, "expr");
            for at in expr.match_indices("variant=~\"$variant\"").map(|(at, _)| at) {
                let before = &expr[..at];
                let aggregated = before.contains("max by (") || before.starts_with("max(");
                let counted = [
                    "rate(plimsoll_decisions_total{",
                    "sum by (namespace, variant) (increase(plimsoll_desired_changes_total{",
                ]
                .iter()
                .any(|counter| before.contains(counter));
                assert!(aggregated || counted, "{name}: {expr}");
                seen += 1;
            }
        }
    }
    assert!(seen > 50, "the selectors are found");
}

/// A daemon that is cut off keeps its last counts. The difference of two maxima would mix them with
/// the counts of the leader.
#[test]
fn a_difference_is_taken_within_one_daemon() {
    let dashboards = dashboards();
    let mut seen = 0;
    for (name, panel) in panels(&dashboards) {
        for target in list(panel, "targets") {
            let query = text(target, "expr");
            assert!(!query.contains("}) - max by ("), "{name}: {query}");
            seen += usize::from(query.contains("} - plimsoll_"));
        }
    }

    assert!(seen > 4, "the differences are found");
}

#[test]
fn every_variable_that_is_used_exists_and_every_one_that_exists_is_used() {
    for (stem, dashboard) in dashboards() {
        let defined: Vec<&str> = list(&dashboard["templating"], "list")
            .iter()
            .map(|variable| text(variable, "name"))
            .collect();
        assert_eq!(defined, VARIABLES, "{stem}");
        let used = variables(&dashboard.to_string());
        let known: BTreeSet<String> =
            VARIABLES.iter().chain(&OF_GRAFANA).map(|name| (*name).to_owned()).collect();
        assert!(used.is_subset(&known), "{stem}: {:?}", used.difference(&known));
        for name in VARIABLES {
            assert!(used.contains(name), "{stem}: ${name} is not used");
        }
    }
}

#[test]
fn every_runbook_that_a_panel_leads_to_exists() {
    let pages: BTreeSet<String> = files("docs/alerts", "md").into_keys().collect();
    let dashboards = dashboards();
    let mut linked = BTreeSet::new();
    for (name, panel) in panels(&dashboards) {
        for link in list(panel, "links") {
            let Some(alert) = text(link, "title").strip_prefix("Runbook: ") else { continue };
            assert!(pages.contains(alert), "{name}: {alert}");
            let url = format!("${{runbooks}}/docs/alerts/{alert}.html");
            assert_eq!(text(link, "url"), url, "{name}");
            linked.insert(alert.to_owned());
        }
    }
    // Where nothing is left to draw, a panel cannot lead to the runbook; and what only those have
    // who limit by a cluster or have wake signals has no panel, because it would be empty for
    // everybody else.
    let unlinked: Vec<&str> =
        pages.iter().map(String::as_str).filter(|alert| !linked.contains(*alert)).collect();
    assert_eq!(unlinked, ["PlimsollAbsent", "PlimsollLimitUnreadable", "PlimsollWakeSignalSilent"]);
}
