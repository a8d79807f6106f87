//! `plimsoll simulate` as its users see it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

const EXAMPLE: &str = "examples/simulate-trace.yaml";

fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("simulate")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What is said of a scenario with this text, and of the files beside it.
fn refusal(scenario: &str, files: &[(&str, &str)]) -> String {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    let path = folder.path().join("scenario.yaml");
    fs::write(&path, scenario).unwrap();
    let output = simulate(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(64), "{}", text(&output.stdout));
    assert!(output.stdout.is_empty());
    text(&output.stderr).replace(&format!("{}/", folder.path().display()), "")
}

#[test]
fn the_example_is_simulated_and_says_the_same_twice() {
    let output = simulate(&[EXAMPLE]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(
        table.starts_with("examples/simulate-trace.yaml: 0:10:00 simulated, seed 1\n"),
        "{table}"
    );
    for word in ["within SLO", "worst minute", "replica-hours", "llama-h100"] {
        assert!(table.contains(word), "{table}");
    }
    assert_eq!(simulate(&[EXAMPLE]), output, "one scenario and one seed have one result");
    assert_ne!(simulate(&[EXAMPLE, "--seed", "2"]).stdout, output.stdout);
}

#[test]
fn everything_that_is_wrong_is_listed_with_its_line_and_path() {
    let scenario = "\
length: 0s
models:
- name: m
  slo: {ttft: 2s}
  workload:
    drawn:
      rate: .nan
      prompt: {min: 9, max: 3}
      output: {fixed: 0}
variants:
- name: V
  replicas: {min: 5, max: 2}
- name: v
  model: other
  replicas: {max: 2}
  engine: {alpha: 7, beta: 1us, delta: 1us, kv_tokens: 4}
  autoscaler: {follows: waiting}
policy:
  saturation: {kv_cache_threshold: 3}
  variants: []
colour: red
";
    let said = refusal(scenario, &[]);
    for line in [
        "scenario.yaml:1: error: length must be from",
        "scenario.yaml:4: error: models[0].slo.itl is required",
        "scenario.yaml:7: error: models[0].workload.drawn.rate must be a number",
        "scenario.yaml:8: error: models[0].workload.drawn.prompt.max must not be below min",
        "scenario.yaml:9: error: models[0].workload.drawn.output.fixed must be from 1",
        "scenario.yaml:11: error: variants[0].name must",
        "scenario.yaml:12: error: variants[0].replicas.max must not be below",
        "scenario.yaml:16: error: variants[1].engine.alpha must be a duration",
        "scenario.yaml:16: error: variants[1].engine.kv_tokens must be at least one block",
        "scenario.yaml:17: error: variants[1].autoscaler.target is required",
        "scenario.yaml:19: error: policy.saturation.kv_cache_threshold must be above 0",
        "scenario.yaml:20: error: policy.variants says nothing",
        "scenario.yaml:21: error: colour is not a known key",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

#[test]
fn a_trace_with_mistakes_is_refused_with_their_lines() {
    let scenario = |format: &str| {
        format!(
            "models:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  workload:\n    \
             trace: {{file: trace, format: {format}}}\nvariants:\n- name: v\n  \
             replicas: {{max: 1}}\n  engine: {{alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}}\n"
        )
    };
    let head = "seconds,input_tokens,output_tokens\n";
    for (format, trace, said) in [
        ("csv", format!("{head}1,10,10\n0.5,10,10\n"), "line 3: its time is before"),
        ("csv", format!("{head}nan,10,10\n"), "line 2: its time is NaN s"),
        ("csv", format!("{head}-1,10,10\n"), "line 2: its time is -1 s"),
        ("csv", format!("{head}1,0,10\n"), "line 2: 0 is not a number of tokens"),
        ("csv", format!("{head}1,10\n"), "line 2: has 2 fields instead of 3"),
        ("csv", head.to_owned(), "has no requests"),
        ("csv", "a,b\n".to_owned(), "line 1: must begin with seconds,input_tokens"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n".to_owned(), "not a date"),
        ("mooncake", "{\"timestamp\": 1}\n".to_owned(), "line 1: has no number input_length"),
        ("jsonl", "[\n".to_owned(), "line 1: is not JSON"),
    ] {
        let refusal = refusal(&scenario(format), &[("trace", &trace)]);
        assert!(
            refusal.contains("scenario.yaml:5: error: models[0].workload.trace.file"),
            "{refusal}"
        );
        assert!(refusal.contains(said), "{said} is not in\n{refusal}");
    }
}

#[test]
fn a_scenario_that_is_not_there_or_is_no_yaml_exits_64() {
    let output = simulate(&["no/such.yaml"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("cannot read the scenario no/such.yaml"));
    assert!(refusal("a: [", &[]).contains("is not YAML"));
    assert!(refusal("- a\n", &[]).contains("must be a mapping"));
    assert!(Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE).exists());
}
