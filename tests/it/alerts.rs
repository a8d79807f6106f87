//! The alerts: each is complete, has a page, is tested where it fires and where it does not, and is
//! made of metrics that exist. What the expressions do is tested by promtool
//! (`tests/prometheus/alerts`), which parses them too.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use regex::Regex;
use serde::Deserialize;

use crate::readability::{Source, sources};

/// The folder with a page for each alert, and the page that lists them.
const PAGES: &str = "docs/alerts";
const INDEX: &str = "docs/alerts.md";
const INDEX_HEAD: &str = "\
# Alerts

One page per alert: its meaning, its impact on users, the first command, and causes from likely to
unlikely, each with the command that shows it and the fix. The page of an early warning refers to
the causes of its critical alert.
[Monitoring](monitoring.md#alerts) describes how to load the alerts.
[examples/alertmanager.yml](../examples/alertmanager.yml) has routes for them.

## How to use these pages

- **Plimsoll never changes a replica count.** When it fails, HPAs get no answer and keep their
  replicas. The danger is load that rises meanwhile.
- To take over by hand, raise `minReplicas` of the HPA. It also holds without Plimsoll:

  ```console
  $ kubectl patch hpa HPA -n NAMESPACE --patch '{\"spec\": {\"minReplicas\": 4}}'
  ```

- `kubectl plimsoll doctor` checks the configuration, the cluster and the daemon
  ([docs](doctor.md)). If nothing scales, start with it.
- `kubectl plimsoll explain NAMESPACE/VARIANT` shows why a variant has its desired replicas, and
  what would change them ([docs](explain.md)).
- The commands use the namespace `plimsoll` and a Deployment with that name. `$PLIMSOLL` is the
  plain HTTP port:

  ```console
  $ kubectl -n plimsoll port-forward deploy/plimsoll 8080 &
  $ PLIMSOLL=http://localhost:8080
  ```

- For a bug report, keep the output of these:

  ```console
  $ curl -s $PLIMSOLL/api/v1/decisions > decisions.json
  $ curl -s $PLIMSOLL/metrics > metrics.txt
  $ kubectl -n plimsoll logs -l app.kubernetes.io/name=plimsoll --prefix --tail=-1 > plimsoll.log
  ```

- The dashboards *Plimsoll / Operator* and *Plimsoll / Capacity* show the same over time.
  [Failure behavior](safety.md) describes what Plimsoll does in each failure.

## All alerts

`critical` means that users are affected or will be soon; `warning` can wait for the morning. The
time is how long the condition holds before the alert fires.

| alert | severity | time | meaning |
|---|---|---|---|
";

/// The warning that precedes each page: the same condition for a shorter time, or a milder one.
const WARNED_BY: [(&str, &str); 12] = [
    ("PlimsollAbsent", "PlimsollDown"),
    ("PlimsollApiNotAsked", "PlimsollApiQuiet"),
    ("PlimsollApiServerUnreachable", "PlimsollApiServerAway"),
    ("PlimsollApiServiceNotOurs", "PlimsollApiServiceLost"),
    ("PlimsollCertificateExpires", "PlimsollCertificateExpiresSoon"),
    ("PlimsollDecisionExpired", "PlimsollDecisionHeld"),
    ("PlimsollNoLeader", "PlimsollLeaderMissing"),
    ("PlimsollOverloadedAtMaximum", "PlimsollAtMaximum"),
    ("PlimsollScaleUpNotActuated", "PlimsollScaleUpSlow"),
    ("PlimsollSloBurnFast", "PlimsollSloBurn"),
    ("PlimsollTicksStalled", "PlimsollTicksLate"),
    ("PlimsollVariantsLeftOut", "PlimsollSharedDocumentFull"),
];

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
    patience: Option<String>,
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

/// The pages by the alerts that they are named after.
fn pages() -> BTreeMap<String, String> {
    let read_page = |(stem, path): (String, PathBuf)| (stem, read(path));
    files(PAGES, "md").into_iter().map(read_page).collect()
}

/// The text below a heading of a page.
fn section<'a>(page: &'a str, heading: &str) -> Option<&'a str> {
    let (_, rest) = page.split_once(&format!("\n## {heading}\n"))?;
    Some(rest.split("\n## ").next().unwrap_or(rest).trim())
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
    const KEYWORDS: [&str; 9] =
        ["and", "or", "unless", "bool", "offset", "by", "without", "on", "ignoring"];
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
            // A variable of a dashboard.
            '$' => {
                let end = rest[1..].find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
                end.map_or(rest.len(), |at| at + 1)
            }
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
    assert_eq!(names("topk($top, plimsoll_a{x=~\"$y\"} @ end())"), "plimsoll_a");
    assert_eq!(
        names("sum by (le, job) (rate(plimsoll_a{x=~\"up|b\"}[5m])) / on (job) up > 1e6"),
        "plimsoll_a up"
    );
    assert_eq!(names("a unless on () max without (x) (b offset 5m) * on (x) group_left (y) c"), {
        "a b c"
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
        assert_eq!(annotations["runbook_url"], format!("{PAGES}/{name}.md"), "{name}");
        let needs = labels.get("needs").map(String::as_str);
        assert!(matches!(needs, None | Some("api_server")), "{name}: {needs:?}");
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
fn every_alert_has_a_page_and_every_page_an_alert() {
    let alerts: BTreeMap<String, Alert> =
        alerts().into_iter().map(|alert| (alert.alert.clone(), alert)).collect();
    let pages = pages();
    assert!(pages.keys().eq(alerts.keys()), "{:?} {:?}", pages.keys(), alerts.keys());

    for (name, page) in pages {
        assert!(page.starts_with(&format!("# {name}\n")), "{name}");
        let severity = &alerts[&name].labels["severity"];
        assert!(page.contains(&format!("\nSeverity: `{severity}`. ")), "{name}: {severity}");
        for heading in ["Meaning", "Impact", "First command", "Causes and fixes", "Silence"] {
            let text = section(&page, heading).unwrap_or_default();
            assert!(!text.is_empty(), "{name} has no {heading}");
        }
        let first = section(&page, "First command").unwrap();
        assert!(first.starts_with("```"), "{name}: {first}");

        // Each cause has a command and a fix, or is that of the alert that follows.
        let causes = section(&page, "Causes and fixes").unwrap();
        let numbered = causes.lines().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        let count = numbered.count();
        assert_eq!(causes.matches("Fix: ").count(), count, "{name}: a cause has no fix");
        assert_eq!(causes.matches("```").count(), 2 * count, "{name}: a cause has no command");
        assert!(
            count > 0 || causes.starts_with("The same as those of [Plimsoll"),
            "{name} has no causes"
        );
    }
}

#[test]
fn every_page_is_linked_from_the_index_which_is_generated() {
    use std::fmt::Write;

    let pages = pages();
    let mut text = INDEX_HEAD.to_owned();
    for Alert { alert, labels, patience, .. } in alerts() {
        let meaning = section(&pages[&alert], "Meaning").unwrap().replace('\n', " ");
        let meaning = meaning.split_inclusive(". ").next().unwrap().trim().to_owned();
        let meaning = meaning.replace("](../", "](").replace("](Plimsoll", "](alerts/Plimsoll");
        let patience = patience.unwrap_or_else(|| "0".to_owned());
        let severity = &labels["severity"];
        let link = format!("[{alert}](alerts/{alert}.md)");
        writeln!(text, "| {link} | {severity} | {patience} | {meaning} |").unwrap();
    }

    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(INDEX);
    if std::env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
        std::fs::write(&path, &text).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap_or_default();
    let command = "INSTA_UPDATE=always cargo test --workspace --all-features --test it alerts";
    assert!(written == text, "{INDEX} is out of date; write it with `{command}`");
}

#[test]
fn a_warning_precedes_every_page() {
    let alerts: BTreeMap<String, Alert> =
        alerts().into_iter().map(|alert| (alert.alert.clone(), alert)).collect();
    let severity = |name: &str| alerts[name].labels["severity"].as_str();
    let critical = alerts.keys().filter(|name| severity(name) == "critical");
    assert!(critical.map(String::as_str).eq(WARNED_BY.map(|(name, _)| name)));

    for (name, warning) in WARNED_BY {
        assert_eq!(severity(warning), "warning", "{warning}");
        let (page, warning) = (&alerts[name], &alerts[warning]);
        let is_same = page.expr == warning.expr;
        assert!(
            !is_same || seconds(warning.patience.as_deref()) < seconds(page.patience.as_deref()),
            "{name}"
        );
    }
}

/// The seconds of a duration such as `90s` or `5m`.
fn seconds(patience: Option<&str>) -> u32 {
    let Some(text) = patience else { return 0 };
    let (number, unit) = text.split_at(text.len() - 1);
    let times = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        _ => panic!("{text}"),
    };
    times * number.parse::<u32>().unwrap()
}

/// Plimsoll reads these only through the API server, so an outage leaves them as they are or failing.
#[test]
fn consequences_of_an_outage_of_the_api_server_are_marked_and_its_own_alerts_are_not() {
    let marked: BTreeSet<String> = alerts()
        .into_iter()
        .filter(|alert| alert.labels.contains_key("needs"))
        .map(|alert| alert.alert)
        .collect();
    for name in ["PlimsollNoLeader", "PlimsollDecisionHeld", "PlimsollApiNotAsked"] {
        assert!(marked.contains(name), "{name}");
    }
    for name in ["PlimsollApiServerAway", "PlimsollApiServerUnreachable", "PlimsollTicksStalled"] {
        assert!(!marked.contains(name), "{name}");
    }
    let inhibition = read("examples/alertmanager.yml");
    assert!(inhibition.contains("needs=\"api_server\""), "{inhibition}");
    for (page, warning) in WARNED_BY {
        assert!(inhibition.contains(&format!("{page:?}")), "{page} inhibits {warning}");
        assert!(inhibition.contains(&format!("{warning:?}")), "{page} inhibits {warning}");
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
fn every_metric_that_a_page_names_is_documented() {
    let documented = documented();
    let mut queries = 0;
    for (name, page) in pages() {
        for query in page.split("```promql\n").skip(1) {
            let query = query.split("```").next().unwrap();
            assert_eq!(unknown(query), Vec::<String>::new(), "{name}: {query}");
            queries += 1;
        }
        let words = page.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        for word in words.filter(|word| word.starts_with("plimsoll_")) {
            assert!(documented.contains(word), "{name}: {word}");
        }
    }
    assert!(queries > 50, "the queries are found");
}

#[test]
fn commands_of_the_pages_find_lines_that_the_daemon_logs() {
    let command = Regex::new(r"logs [^|\n]*\| grep (?:-\w+ )*(?:'([^'\n]+)'|(\w+))").unwrap();
    let escape = Regex::new(r"\\(?:\s+|.)").unwrap();
    let literals = sources().into_iter().flat_map(|path| Source::read(&path).strings);
    let texts: Vec<String> =
        literals.map(|it| escape.replace_all(&it, "").to_lowercase()).collect();

    let mut found = 0;
    for (name, page) in pages() {
        for captures in command.captures_iter(&page) {
            let pattern = captures.get(1).or(captures.get(2)).unwrap().as_str().to_lowercase();
            for line in pattern.split('|') {
                assert!(texts.iter().any(|it| it.contains(line)), "{name}: nothing logs {line}");
                found += 1;
            }
        }
    }
    assert!(found >= 15, "{found} patterns");
}
