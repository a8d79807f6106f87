//! The alerts: each is complete, has a runbook, is tested where it fires and where it does not, and
//! is made of metrics that exist. What the expressions do is tested by promtool
//! (`tests/prometheus/alerts`), which parses them too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::Deserialize;

const RUNBOOKS: &str = "alerts/runbooks.md";

/// What an expression may be made of besides Plimsoll's own metrics: what Prometheus says of its
/// targets and alerts.
const OF_PROMETHEUS: [&str; 2] = ["ALERTS", "up"];

#[derive(Deserialize)]
struct Rules {
    groups: Vec<Group>,
}

#[derive(Deserialize)]
struct Group {
    name: String,
    rules: Vec<Alert>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Alert {
    alert: String,
    expr: String,
    #[serde(rename = "for")]
    _patience: Option<String>,
    labels: BTreeMap<String, String>,
    annotations: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Tests {
    rule_files: Vec<String>,
    tests: Vec<Test>,
}

#[derive(Deserialize)]
struct Test {
    name: String,
    alert_rule_test: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    alertname: String,
    exp_alerts: Vec<Expected>,
}

#[derive(Deserialize)]
struct Expected {
    exp_labels: BTreeMap<String, String>,
    exp_annotations: BTreeMap<String, String>,
}

fn read(path: impl AsRef<Path>) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The files of a folder with this extension, by their stems.
pub(crate) fn files(folder: &str, extension: &str) -> BTreeMap<String, PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let paths = std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path());
    let wanted = paths.filter(|path| path.extension().is_some_and(|it| it == extension));
    wanted.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect()
}

fn groups() -> BTreeMap<String, Group> {
    let parse = |(stem, path): (String, PathBuf)| {
        let rules: Rules = serde_saphyr::from_str(&read(&path)).unwrap();
        let [group] = <[Group; 1]>::try_from(rules.groups).ok().expect("one group a file");
        (stem, group)
    };
    files("alerts", "yaml").into_iter().map(parse).collect()
}

fn alerts() -> Vec<Alert> {
    groups().into_values().flat_map(|group| group.rules).collect()
}

/// The headings of the runbooks with what is below each.
fn runbooks() -> BTreeMap<String, String> {
    let text = read(RUNBOOKS);
    let sections = text.split("\n## ").skip(1);
    sections
        .map(|section| {
            let (heading, body) = section.split_once('\n').unwrap();
            (heading.to_owned(), body.to_owned())
        })
        .collect()
}

/// The metrics that docs/metrics.md has, with those that a histogram is made of.
fn documented() -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for line in read("docs/metrics.md").lines() {
        let mut cells = line.trim_matches('|').split('|').map(str::trim);
        let (Some(name), Some(kind)) = (cells.next(), cells.next()) else { continue };
        let Some(name) = name.strip_prefix('`').and_then(|name| name.strip_suffix('`')) else {
            continue;
        };
        match kind {
            "histogram" => {
                names.extend(["bucket", "count", "sum"].map(|part| format!("{name}_{part}")));
            }
            "counter" | "gauge" => {
                names.insert(name.to_owned());
            }
            _ => {}
        }
    }
    assert!(names.len() > 50, "the tables of docs/metrics.md are found");
    names
}

/// The metrics that an expression selects: names outside quotes, braces and lists of labels
/// that are neither functions nor keywords.
pub(crate) fn selected(expr: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 8] = ["and", "or", "unless", "bool", "by", "without", "on", "ignoring"];
    // A list of labels follows these.
    const LISTS: [&str; 6] = ["by", "without", "on", "ignoring", "group_left", "group_right"];
    let mut names = BTreeSet::new();
    let mut rest = expr;
    let mut list_follows = false;
    while let Some(first) = rest.chars().next() {
        let skip_to = |end: char| rest[1..].find(end).map_or(rest.len(), |at| at + 2);
        let length = match first {
            '"' => skip_to('"'),
            '{' => skip_to('}'),
            '[' => skip_to(']'),
            '(' if list_follows => skip_to(')'),
            first if first.is_ascii_alphabetic() || first == '_' => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != ':');
                end.unwrap_or(rest.len())
            }
            // A number may have an exponent, which is no name.
            first if first.is_ascii_digit() => {
                let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '.');
                end.unwrap_or(rest.len())
            }
            first => first.len_utf8(),
        };
        let (token, after) = rest.split_at(length);
        if first.is_ascii_alphabetic() || first == '_' {
            let function = after.trim_start().starts_with('(');
            // The list of an aggregation may stand between its name and its argument.
            let aggregation = LISTS[..2].iter().any(|list| after.trim_start().starts_with(list));
            if !function && !aggregation && !KEYWORDS.contains(&token) && !LISTS.contains(&token) {
                names.insert(token.to_owned());
            }
        }
        if !token.trim().is_empty() {
            list_follows = LISTS.contains(&token);
        }
        rest = after;
    }
    names
}

/// The metrics of an expression that do not exist.
pub(crate) fn unknown(expr: &str) -> Vec<String> {
    let documented = documented();
    let known = |name: &String| documented.contains(name) || OF_PROMETHEUS.contains(&name.as_str());
    selected(expr).into_iter().filter(|name| !known(name)).collect()
}

#[test]
fn the_metrics_of_an_expression_are_found() {
    let names = |expr| selected(expr).into_iter().collect::<Vec<_>>().join(" ");
    assert_eq!(names("absent(plimsoll_a)"), "plimsoll_a");
    assert_eq!(
        names("sum by (le, job) (rate(plimsoll_a{x=~\"up|b\"}[5m])) / on (job) up > 1e6"),
        "plimsoll_a up"
    );
    assert_eq!(names("a unless on () max without (x) (b offset 5m) * on (x) group_left (y) c"), {
        "a b c offset"
    });
}

#[test]
fn every_file_has_one_group_that_is_named_after_it() {
    for (stem, group) in groups() {
        assert_eq!(group.name, format!("plimsoll-{stem}"));
        assert!(!group.rules.is_empty(), "{stem}");
    }
}

#[test]
fn every_alert_says_how_bad_it_is_what_it_means_and_where_to_read_on() {
    let mut names = BTreeSet::new();
    for alert in alerts() {
        let Alert { alert: name, labels, annotations, .. } = alert;
        assert!(names.insert(name.clone()), "{name} is there twice");
        assert!(name.starts_with("Plimsoll"), "{name}");
        let severity = labels.get("severity").map(String::as_str);
        assert!(matches!(severity, Some("critical" | "warning")), "{name}: {severity:?}");
        let said: BTreeSet<&str> = annotations.keys().map(String::as_str).collect();
        assert_eq!(said, BTreeSet::from(["description", "runbook_url", "summary"]), "{name}");
        assert_eq!(
            annotations["runbook_url"],
            format!("{RUNBOOKS}#{}", name.to_ascii_lowercase()),
            "{name}"
        );
        // One that is about nothing that is there has no labels to name.
        let names_it = annotations.values().any(|text| text.contains("{{"));
        assert!(names_it || name == "PlimsollAbsent", "{name} says which and how much");
        assert!(annotations["summary"].len() <= 120, "{name}: a summary is a line");
        assert!(!annotations["summary"].ends_with('.'), "{name}: a summary is no sentence");
        assert!(annotations["description"].trim_end().ends_with('.'), "{name}");
    }
    assert!(names.len() >= 30, "the alerts are found");
}

#[test]
fn every_alert_has_a_runbook_and_every_runbook_an_alert() {
    let runbooks = runbooks();
    let named: BTreeSet<String> = alerts().into_iter().map(|alert| alert.alert).collect();
    assert_eq!(runbooks.keys().cloned().collect::<BTreeSet<_>>(), named);
    for (name, body) in runbooks {
        let body = body.to_lowercase();
        for part in ["**meaning.**", "**impact.**", "**check", "fix", "**silence"] {
            assert!(body.contains(part), "{name} has no {part}");
        }
    }
}

#[test]
fn every_alert_is_in_the_table_of_the_documentation() {
    let documentation = read("docs/monitoring.md");
    for Alert { alert, labels, .. } in alerts() {
        let anchor = alert.to_ascii_lowercase();
        let severity = &labels["severity"];
        let row = format!("| [{alert}](../{RUNBOOKS}#{anchor}) | {severity} | ");
        assert!(documentation.contains(&row), "docs/monitoring.md has no row {row}");
    }
}

#[test]
fn every_alert_is_tested_where_it_fires_and_where_it_does_not() {
    let mut tests: BTreeMap<String, Tests> = files("alerts/tests", "yaml")
        .into_iter()
        .map(|(stem, path)| (stem, serde_saphyr::from_str(&read(path)).unwrap()))
        .collect();
    for (stem, group) in groups() {
        let Tests { rule_files, tests } = tests.remove(&stem).unwrap();
        assert_eq!(rule_files, [format!("../{stem}.yaml")]);
        let names: BTreeSet<&str> = tests.iter().map(|test| test.name.as_str()).collect();
        assert_eq!(names.len(), tests.len(), "{stem}: every test has a name of its own");
        for Alert { alert, .. } in group.rules {
            let cases = || {
                let cases = tests.iter().flat_map(|test| &test.alert_rule_test);
                cases.filter(|case| case.alertname == alert)
            };
            assert!(cases().any(|case| case.exp_alerts.is_empty()), "{alert} never stays silent");
            let fires = cases().flat_map(|case| &case.exp_alerts).collect::<Vec<_>>();
            assert!(!fires.is_empty(), "{alert} never fires");
            for Expected { exp_labels, exp_annotations } in fires {
                assert!(exp_labels.contains_key("severity"), "{alert}");
                assert!(exp_annotations.values().all(|text| !text.contains("{{")), "{alert}");
            }
        }
    }
    assert!(tests.is_empty(), "every file of tests belongs to a file of alerts");
}

#[test]
fn every_metric_of_an_alert_is_documented() {
    for Alert { alert, expr, .. } in alerts() {
        assert_eq!(unknown(&expr), Vec::<String>::new(), "{alert}");
    }
}

#[test]
fn every_metric_in_a_query_of_a_runbook_is_documented() {
    let text = read(RUNBOOKS);
    let queries = text.split("```promql\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    let mut seen = 0;
    for line in queries.flat_map(str::lines) {
        assert_eq!(unknown(line), Vec::<String>::new(), "{line}");
        seen += 1;
    }
    assert!(seen > 30, "the queries are found");
}
