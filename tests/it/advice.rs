//! `plimsoll advise` and `plimsoll report` as their users see them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::study::simulate;

/// A fleet whose load never changes, and which one replica would be enough for.
const STEADY: &str = "\
seed: 1
length: 20m
models:
- name: m<b>
  slo: {ttft: 2s, itl: 60ms}
  workload:
    drawn: {rate: 6, prompt: {fixed: 800}, output: {fixed: 180}}
variants:
- name: v
  accelerator: H100
  cost: 2.5
  replicas: {min: MIN, max: 8, initial: MIN}
  engine: {alpha: 7.05ms, beta: 19.5us, delta: 25.4us, kv_tokens: 458000}
  startup: {load: 60s}
policy:
  tick_interval: 5s
  scrape: {interval: 5s}
  observe: {stale_after: 30s}
  capacity: {slo: {ttft: 2s, itl: 60ms}}
";

/// The engine of [`STEADY`] on another accelerator.
const CARD: &str = "\
version: 1
cards:
- model: m<b>
  accelerator: L40S
  iteration: {alpha: 0.00705, beta: 1.95e-5, delta: 2.54e-5}
  requests: {prompt: 800, output: 180, held: 900}
  lessons: {count: 1840, prompt: 201, batch: 41}
  shown: {most_running: 96, busiest: 8192}
";

fn run(command: &str, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg(command)
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

/// The standard output of a command that succeeds.
fn output(command: &str, arguments: &[&str]) -> String {
    let Output { status, stdout, stderr } = run(command, arguments);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

/// The trace of a scenario that Plimsoll decides.
fn traced(folder: &Path, scenario: &str) -> PathBuf {
    let (file, trace) = (folder.join("scenario.yaml"), folder.join("trace"));
    fs::write(&file, scenario).unwrap();
    let arguments = ["--policy", "plimsoll", "--json", "-", "--trace"];
    let paths = [file.to_str().unwrap(), trace.to_str().unwrap()];
    let Output { status, stderr, .. } =
        simulate(&[&paths[..1], &arguments[..], &paths[1..]].concat());
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    trace
}

fn advice(trace: &Path, more: &[&str]) -> Value {
    let own = [trace.to_str().unwrap(), "--output", "json", "--slo-itl", "60ms"];
    serde_json::from_str(&output("advise", &[&own[..], more].concat())).unwrap()
}

fn levers<'v>(advice: &'v Value, list: &str) -> Vec<&'v str> {
    advice[list].as_array().unwrap().iter().map(|it| it["lever"].as_str().unwrap()).collect()
}

#[test]
fn a_minimum_that_nothing_needs_is_proposed_with_the_money_that_it_saves() {
    let folder = TempDir::new().unwrap();
    let trace = traced(folder.path(), &STEADY.replace("MIN", "6"));
    let found = advice(&trace, &["--seeds", "1"]);
    let first = &found["proposals"][0];
    assert_eq!(first["lever"], "lower_minimum", "{found:#}");
    assert_eq!(first["subject"], "default/v");
    let today = found["models"][0]["cost_per_month"]["mean"].as_f64().unwrap();
    // Six replicas at 2.5 for 730 hours.
    assert!((today / 10_950.0 - 1.0).abs() < 0.01, "{today}");
    let recorded = found["models"][0]["recorded_cost_per_month"].as_f64().unwrap();
    assert!((recorded / today - 1.0).abs() < 0.01, "{recorded} of {today}");
    let [mean, low, high] =
        ["mean", "low", "high"].map(|it| first["per_month"][it].as_f64().unwrap());
    assert!(low <= mean && mean <= high && high < 0.0, "{first}");
    assert!(mean <= -0.3 * today, "half of the replicas at least can go: {mean} of {today}");
    assert!(first["attainment_after"].as_f64().unwrap() > 0.99, "{first}");
    let money: Vec<f64> = found["proposals"]
        .as_array()
        .unwrap()
        .iter()
        .map(|it| it["per_month"]["mean"].as_f64().unwrap())
        .collect();
    assert!(money.is_sorted(), "{money:?}");
    assert_eq!(advice(&trace, &["--seeds", "1"]), found, "one trace and one seed have one result");
}

#[test]
fn a_fleet_of_the_right_size_is_advised_to_change_nothing() {
    let folder = TempDir::new().unwrap();
    let trace = traced(folder.path(), &STEADY.replace("MIN", "1"));
    let found = advice(&trace, &["--seeds", "1"]);
    assert_eq!(found["proposals"], Value::Array(Vec::new()), "{found:#}");
    assert!(levers(&found, "others").contains(&"faster_start"), "{found:#}");
    assert!(!levers(&found, "others").contains(&"lower_minimum"), "it is one already");
    let text = output("advise", &[trace.to_str().unwrap(), "--slo-itl", "60ms", "--seeds", "1"]);
    assert!(text.contains("\nChange nothing. "), "{text}");
    assert!(text.contains("\nNot included:\n- Traffic outside"), "{text}");
}

/// [`STEADY`] with a second variant that costs less than half.
const TWO: &str = "\
- name: cheap
  accelerator: H100
  cost: 1
  replicas: {min: 0, max: 8, initial: 0}
  engine: {alpha: 7.05ms, beta: 19.5us, delta: 25.4us, kv_tokens: 458000}
  startup: {load: 60s}
policy:
";

#[test]
fn a_change_that_leaves_requests_without_replicas_is_never_advised() {
    let folder = TempDir::new().unwrap();
    let steady = STEADY.replace("MIN", "0").replace("initial: 0", "initial: 1");
    let scenario = steady.replace("policy:\n", TWO).replace("rate: 6", "rate: 75");
    let trace = traced(folder.path(), &scenario.replace("length: 20m", "length: 12m"));
    let found = advice(&trace, &["--seeds", "1"]);
    let all = ["proposals", "others"].map(|list| found[list].as_array().unwrap().clone()).concat();
    assert!(all.iter().any(|it| it["lever"] == "drop_variant"), "{found:#}");
    for change in &all {
        let after = change["attainment_after"].as_f64().expect("a share of all requests");
        let verdict = change["verdict"].as_str().unwrap();
        assert!(after > 0.9 || verdict == "no_gain", "{change:#}");
    }
}

#[test]
fn another_accelerator_is_tried_at_its_price_if_a_card_has_its_speed() {
    let folder = TempDir::new().unwrap();
    let trace = traced(folder.path(), &STEADY.replace("MIN", "1"));
    let card = folder.path().join("cards.yaml");
    fs::write(&card, CARD).unwrap();
    let given = ["--seeds", "1", "--card", card.to_str().unwrap(), "--price"];
    // The same speed at a twentieth of the price saves; at twenty times the price it does not.
    let cheap = advice(&trace, &[&given[..], &["L40S=0.1"]].concat());
    let dear = advice(&trace, &[&given[..], &["L40S=50"]].concat());
    assert!(levers(&cheap, "proposals").contains(&"accelerator"), "{cheap:#}");
    assert!(levers(&dear, "others").contains(&"accelerator"), "{dear:#}");
    assert!(!levers(&dear, "proposals").contains(&"accelerator"), "{dear:#}");
    let without = advice(&trace, &given[..given.len() - 1]);
    assert!(!levers(&without, "others").contains(&"accelerator"), "no price is known");
}

#[test]
fn arguments_that_cannot_be_used_are_named() {
    for (arguments, expected) in [
        (&["trace", "--price", "L40S"][..], "must be NAME=PRICE"),
        (&["trace", "--attainment", "101"], "must be from 0 to 100"),
        (&[], "required"),
    ] {
        let Output { status, stderr, .. } = run("advise", arguments);
        let error = String::from_utf8(stderr).unwrap();
        assert_eq!(status.code(), Some(64), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let folder = TempDir::new().unwrap();
    let Output { status, .. } = run("report", &[folder.path().to_str().unwrap()]);
    assert_eq!(status.code(), Some(64), "a folder without a trace");
}

#[test]
fn a_report_adds_up_what_the_trace_shows() {
    let folder = TempDir::new().unwrap();
    let trace = traced(folder.path(), &STEADY.replace("MIN", "6"));
    let trace = trace.to_str().unwrap();
    let report = output("report", &[trace, "--output", "json", "--slo-itl", "60ms"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let total = &report["total"];
    // Six replicas for twenty minutes are two hours.
    let hours = total["replica_hours"].as_f64().unwrap();
    assert!((hours - 2.0).abs() < 0.05, "{total:#}");
    assert!((total["cost"].as_f64().unwrap() - 2.5 * hours).abs() < 1e-6, "{total:#}");
    let requests = total["requests"].as_f64().unwrap();
    assert!((requests / (6.0 * 1200.0) - 1.0).abs() < 0.05, "{total:#}");
    assert!(total["ttft_within"].as_f64().unwrap() > 0.99, "{total:#}");
    assert_eq!(total["peak_replicas"], 6);
    assert_eq!(report["models"][0]["variants"][0]["variant"], "v");
    assert_eq!(report["models"][0]["cost"], total["cost"]);

    let file = folder.path().join("week.html");
    let page = output("report", &[trace, "--file", file.to_str().unwrap()]);
    assert_eq!(page, "", "it went into the file");
    let page = fs::read_to_string(file).unwrap();
    assert!(page.contains("m&lt;b&gt;") && !page.contains("m<b>"), "names are escaped");
    assert!(!page.contains("<script") && !page.contains("http:") && !page.contains("https:"));
    assert!(page.contains("default-src 'none'") && page.contains("light-dark("));
}

#[test]
fn a_report_names_the_reasons_that_kept_replicas_with_their_time() {
    let folder = TempDir::new().unwrap();
    let falling = "steps: [{at: 0s, rate: 40}, {at: 10m, rate: 2}]";
    let scenario = STEADY.replace("MIN", "1").replace("length: 20m", "length: 24m");
    let trace = traced(folder.path(), &scenario.replace("rate: 6", falling));
    let report = output("report", &[trace.to_str().unwrap(), "--output", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let total = &report["total"];
    assert!(total["scale_ups"].as_u64() > Some(0) && total["scale_downs"].as_u64() > Some(0));
    let held = total["held"].as_array().unwrap();
    let higher: Vec<&Value> = held.iter().filter(|it| it["kept"] == "higher").collect();
    assert!(!higher.is_empty(), "{total:#}");
    for row in higher {
        assert!(row["hours"].as_f64() > Some(0.0) && row["times"].as_u64() > Some(0), "{row}");
        assert!(row["meaning"].as_str().unwrap().ends_with('.'), "{row}");
    }
    let page = output("report", &[trace.to_str().unwrap()]);
    assert!(page.contains("<h2>Held, and why</h2>\n<h3>All variants</h3>"), "{page}");
}

#[test]
fn a_latency_that_no_histogram_shows_is_not_known() {
    let folder = TempDir::new().unwrap();
    let trace =
        traced(folder.path(), &STEADY.replace("MIN", "1").replace("length: 20m", "length: 5m"));
    let beyond = [trace.to_str().unwrap(), "--output", "json", "--slo-ttft", "9h"];
    let report: Value = serde_json::from_str(&output("report", &beyond)).unwrap();
    assert_eq!(report["total"]["ttft_within"], Value::Null, "beyond the last bucket");
    let page = output("report", &[trace.to_str().unwrap(), "--slo-ttft", "9h"]);
    assert!(page.contains("not known"), "{page}");
}

/// Each field of the JSON output is in a table of the document, and the other way round.
#[test]
fn every_field_of_the_output_is_documented() {
    let folder = TempDir::new().unwrap();
    let trace =
        traced(folder.path(), &STEADY.replace("MIN", "6").replace("length: 20m", "length: 10m"));
    let text = fs::read_to_string("docs/advice.md").unwrap();
    let advised = advice(&trace, &["--seeds", "1"]);
    let report = output("report", &[trace.to_str().unwrap(), "--output", "json"]);
    let report: Value = serde_json::from_str(&report).unwrap();
    let mut fields = Vec::new();
    names(&advised, &mut fields);
    names(&report, &mut fields);
    for field in fields {
        assert!(text.contains(&format!("`{field}`")), "docs/advice.md has no {field}");
    }
    for lever in levers(&advised, "others").into_iter().chain(levers(&advised, "proposals")) {
        assert!(text.contains(&format!("| `{lever}` |")), "docs/advice.md has no {lever}");
    }
}

fn names(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.push(name.clone());
                names(value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| names(value, found)),
        _ => {}
    }
}
