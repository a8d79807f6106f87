//! What a scenario's workload may be, as its users see it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::study::{refusal, simulate, text};

/// A scenario on one engine whose workload is this.
fn scenario(workload: &str) -> String {
    format!(
        "models:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  workload:\n    {workload}\n\
         variants:\n- name: v\n  replicas: {{min: 1, max: 1}}\n  \
         engine: {{alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}}\n  autoscaler: {{kind: none}}\n"
    )
}

/// What comes of a scenario and the files beside it, and what is said of it.
fn played(scenario: &str, files: &[(&str, &[u8])], arguments: &[&str]) -> (Value, String) {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).unwrap();
    }
    let path = folder.path().join("scenario.yaml");
    fs::write(&path, scenario).unwrap();
    let output = simulate(&[&[path.to_str().unwrap(), "--json", "-"], arguments].concat());
    let said = text(&output.stderr).replace(&format!("{}/", folder.path().display()), "");
    assert_eq!(output.status.code(), Some(0), "{said}");
    (serde_json::from_slice(&output.stdout).unwrap(), said)
}

#[test]
fn described_clients_send_what_their_windows_say_at_times_that_the_seed_draws() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/servegen");
    let workload =
        |more: &str| scenario(&format!("trace: {{file: {folder}, format: servegen{more}}}"));
    let run = |more: &str, seed: &str| {
        let (results, said) = played(&workload(more), &[], &["--seed", seed]);
        assert!(said.is_empty(), "{said}");
        results["runs"][0]["models"][0].clone()
    };
    let one = run("", "1");
    // 450 of the first client, 180 of the second and 120 of the third, in half an hour.
    assert_eq!(one["arrived"], 750);
    assert_eq!(run("", "1"), one, "one seed has one outcome");
    let other = run("", "2");
    assert_eq!(other["arrived"], 750, "how many there are is not drawn");
    assert_ne!(other, one);
    // Whatever is drawn of the first client's prompts, the others are as the histograms say.
    let prompts = one["prompt_tokens"].as_u64().unwrap();
    let rest = 150 * 300 + 180 * 50 + 120 * 400;
    assert!((rest + 300 * 100..=rest + 300 * 200).contains(&prompts), "{prompts}");
    assert_eq!(run(", rate: 2", "1")["arrived"], 1_500);
    assert_eq!(run(", speed: 2", "1")["arrived"], 750, "in a quarter of an hour");
}

#[test]
fn clients_whose_lengths_are_not_there_have_those_of_the_scenario() {
    let clients: [(&str, &[u8]); 2] = [
        ("chunk-0-trace.csv", b"0,0.1,1,Gamma,1,10\n"),
        ("chunk-1-trace.csv", b"0,0.2,1,Gamma,1,5\n"),
    ];
    let without = scenario("trace: {file: ., format: servegen}");
    let files = clients.map(|(name, bytes)| (name, std::str::from_utf8(bytes).unwrap()));
    let said = refusal(&without, &files);
    let why = "scenario.yaml:5: error: models[0].workload.trace.file must be a folder of clients: \
               chunk-0-dataset.json (and 1 more) need the lengths of requests: either";
    assert!(said.contains(why), "{said}");
    let lengths = ", prompt: {fixed: 70}, output: {fixed: 5}";
    let with = scenario(&format!("trace: {{file: ., format: servegen{lengths}}}"));
    let (results, _) = played(&with, &clients, &[]);
    let model = &results["runs"][0]["models"][0];
    assert_eq!(model["arrived"], 180);
    assert_eq!(model["prompt_tokens"].as_u64(), model["finished"].as_u64().map(|it| it * 70));
    let spread = with.replace("format: servegen", "format: servegen, spread: 5s");
    let (_, said) = played(&spread, &clients, &[]);
    assert!(
        said.contains("workload.trace.spread has no effect, because format is servegen"),
        "{said}"
    );
}

#[test]
fn clients_with_mistakes_are_refused_with_all_their_files_and_lines() {
    let scenario = scenario("trace: {file: ., format: servegen}");
    let trace = "\
0,0.5,1,Gamma,1,2
600,0.5,1,Pareto,1,2
1200,-1,1,Gamma,1,2
1000,1,1,Gamma,1,2
0,1,1,Gamma,1,2
1800,1,,,,
2400,1,1,Weibull,,
3000,1,1
4200,nan,1,Gamma,1,2
4800,1,1,Gamma,1e9,2
1200000000,1,1,Gamma,1,2
";
    let dataset = "{\"0\": {\"input_tokens\": \"{9: 1.0}\"},\n \"600\": {\"input_tokens\": \"9\",\n  \
                   \"output_tokens\": \"{}\"},\n \"x\": {}, \"1200\": {\"input_tokens\": \"{-1: 1}\"},\n\
                   \"1800\": {\"input_tokens\": \"{1: 0}\", \"output_tokens\": \"{1: 1}\"}}";
    let said = refusal(
        &scenario,
        &[
            ("chunk-0-trace.csv", trace),
            ("chunk-0-dataset.json", dataset),
            ("chunk-1-trace.csv", "0,1,1,Gamma,1,1\n"),
            ("chunk-1-dataset.json", "{\n]"),
        ],
    );
    for line in [
        "chunk-0-trace.csv:2: \"Pareto\" is neither Gamma nor Weibull",
        "chunk-0-trace.csv:3: its rate is -1; it must be from 0 to 1000000",
        "chunk-0-trace.csv:4: begins at 1000 s; windows begin every 600 s",
        "chunk-0-trace.csv:5: begins before the window above ends",
        "chunk-0-trace.csv:6: has a rate, and neither a distribution nor a variation",
        "chunk-0-trace.csv:7: has no shape of its Weibull distribution",
        "chunk-0-trace.csv:8: has 3 fields instead of 6",
        "chunk-0-trace.csv:9: its rate is NaN",
        "chunk-0-trace.csv:10: its shape is 1000000000",
        "chunk-0-trace.csv:11: begins more than 366 days after the first",
        "chunk-0-dataset.json:1: \"0\" has input_tokens and no output_tokens",
        "chunk-0-dataset.json:2: \"600\" input_tokens: must be a dictionary such as",
        "chunk-0-dataset.json:4: \"x\" \"x\" is not a number",
        "chunk-0-dataset.json:4: \"1200\" input_tokens: -1 tokens must be from 0",
        "chunk-0-dataset.json:5: \"1800\" input_tokens: weighs nothing",
        "chunk-1-dataset.json:2: is not JSON",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    assert!(!said.contains("need the lengths of requests"), "{said}");
    let none = refusal(&scenario, &[]);
    assert!(none.contains("has no chunk-*-trace.csv"), "{none}");
    let silent = refusal(&scenario, &[("chunk-0-trace.csv", "0,0,0,,0,0\n")]);
    assert!(silent.contains("has no window in which a client sends anything"), "{silent}");
    let file = scenario.replace("file: .,", "file: x.csv,");
    let no_folder = refusal(&file, &[("x.csv", "0,1,1,Gamma,1,1\n")]);
    assert!(no_folder.contains("must be a folder with chunk-*-trace.csv"), "{no_folder}");
}

#[test]
fn with_a_slot_for_each_adapter_no_request_waits_for_one() {
    let example = "examples/simulate-adapters.yaml";
    let output = simulate(&[example, "--set", "length=3m", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let p95 = |run: usize| results["runs"][run]["models"][0]["ttft"]["p95"].as_f64().unwrap();
    assert_eq!(results["runs"][2]["settings"]["variants[0].engine.adapters.slots"], 6);
    assert!(p95(0) > 2.0 * p95(2), "{} with two slots, {} with six", p95(0), p95(2));
    assert!(p95(2) < 0.5, "{}", p95(2));
    let loads = |run: usize| results["runs"][run]["models"][0]["adapter_loads"].as_u64().unwrap();
    assert_eq!(loads(2), 12, "each of six once on each of two replicas");
    assert!(loads(0) > 10 * loads(2), "{} with two slots", loads(0));
    let one = ["--set", "length=1m", "--set", "sweep={}"];
    for more in [&one[..2], &one[..]] {
        let table = text(&simulate(&[&[example], more].concat()).stdout);
        let columns = table.lines().filter(|line| line.ends_with("  adapter loads")).count();
        assert_eq!(columns, 1, "{table}");
    }
}

const ADAPTERS: &str = "drawn: {rate: 4, prompt: {median: 300}, output: {median: 80}}";

#[test]
fn adapters_that_all_have_a_slot_and_take_no_time_to_load_change_nothing() {
    let plain = scenario(ADAPTERS).replace("models:", "length: 5m\nmodels:");
    let of = |scenario: &str| {
        let (results, said) = played(scenario, &[], &[]);
        assert!(said.is_empty(), "{said}");
        let mut model = results["runs"][0]["models"][0].clone();
        let loads = model.as_object_mut().unwrap().remove("adapter_loads").unwrap();
        assert_eq!(loads.is_null(), !scenario.contains("share"), "only where some are asked for");
        (model, results["runs"][0]["variants"][0].clone())
    };
    let shares = "adapters: [{name: a, share: 0.5}, {name: b, share: 0.3}]";
    let asked = plain.replace("  workload:", &format!("  {shares}\n  workload:"));
    let with = |adapters: &str| {
        asked.replace("kv_tokens: 9000", &format!("kv_tokens: 9000, adapters: {adapters}"))
    };
    assert_eq!(of(&with("{slots: 2}")), of(&plain));
    let (slow, _) = of(&with("{slots: 1, load: 50ms}"));
    assert_ne!(slow, of(&plain).0);
    assert_eq!(slow["arrived"], of(&plain).0["arrived"], "the same requests arrive");
}

#[test]
fn adapters_that_cannot_be_are_listed_with_their_lines() {
    let said = refusal(
        "\
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  adapters:
  - {name: a, share: 0.7}
  - {name: a, share: 0.6}
  - {name: m, share: 0}
  - {share: 0.1}
  - {name: b}
  workload:
    drawn: {rate: 1, prompt: {fixed: 9}, output: {fixed: 9}}
variants:
- name: v
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}
- name: w
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000, adapters: {slots: 0, load: -1s}}
",
        &[],
    );
    for line in [
        "scenario.yaml:4: error: models[0].adapters must have shares that are at most 1 together",
        "scenario.yaml:6: error: models[0].adapters[1].name is the name of the model or of another",
        "scenario.yaml:7: error: models[0].adapters[2].name is the name of the model or of another",
        "scenario.yaml:7: error: models[0].adapters[2].share must be above 0 and at most 1",
        "scenario.yaml:8: error: models[0].adapters[3].name is required",
        "scenario.yaml:9: error: models[0].adapters[4].share is required",
        "scenario.yaml:15: error: variants[0].engine.adapters is required, because requests of m",
        "scenario.yaml:18: error: variants[1].engine.adapters.slots must be from 1 to 64",
        "scenario.yaml:18: error: variants[1].engine.adapters.load must be a duration",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    let nobody = scenario(ADAPTERS).replace("kv_tokens: 9000", "kv_tokens: 9000, adapters: {}");
    let (_, said) = played(&nobody, &[], &["--set", "length=5s"]);
    assert!(said.contains("engine.adapters has no effect, because no request of m asks"), "{said}");
}

#[test]
fn a_trace_lasts_as_long_as_a_scenario_may_and_a_rate_is_one_that_can_be() {
    let csv = scenario("trace: {file: t.csv, format: csv}");
    let rows = |last: &str| format!("seconds,input_tokens,output_tokens\n0,9,9\n{last},9,9\n");
    for (last, why) in [
        ("31622401", "t.csv:3: its time is more than 366 days after the first"),
        ("1e30", "t.csv:3: its time is 1000000000000000000000000000000 s; it must be from 0 to"),
        ("1e-3", "error: length must be given, from 1s to 8784h, because the longest trace lasts"),
    ] {
        let said = refusal(&csv, &[("t.csv", &rows(last))]);
        assert!(said.contains(why), "{why} is not in\n{said}");
    }
    let slow = csv.replace("format: csv", "format: csv, speed: 0.000001");
    let said = refusal(&slow, &[("t.csv", &rows("60"))]);
    assert!(said.contains("error: length must be given"), "{said}");
    let (results, _) = played(&csv, &[("t.csv", rows("60").as_bytes())], &[]);
    assert_eq!(results["runs"][0]["models"][0]["arrived"], 2);
    // Whatever day it was recorded on.
    let day = "seconds,input_tokens,output_tokens\n1700000000,9,9\n1700000060,9,9\n";
    let (results, _) = played(&csv, &[("t.csv", day.as_bytes())], &[]);
    assert_eq!(results["runs"][0]["models"][0]["arrived"], 2);
    for rate in ["1e12", "-4"] {
        let drawn = format!("drawn: {{rate: {rate}, prompt: {{fixed: 9}}, output: {{fixed: 9}}}}");
        let said = refusal(&scenario(&drawn), &[]);
        let why = "scenario.yaml:5: error: models[0].workload.drawn.rate must be from 0 to 1000000";
        assert!(said.contains(why) && said.matches("error:").count() == 1, "{said}");
    }
}

#[test]
fn a_request_that_arrives_at_the_very_end_is_no_part_of_it() {
    let csv = scenario("trace: {file: t.csv, format: csv}");
    let rows = "seconds,input_tokens,output_tokens\n0,9,9\n10,9,9\n20,9,9\n";
    // The trace lasts 30 s, at whose end it begins again.
    for (length, arrived) in [("30s", 3), ("30001ms", 4), ("20s", 2), ("20001ms", 3)] {
        let set = format!("length={length}");
        let (results, _) = played(&csv, &[("t.csv", rows.as_bytes())], &["--set", &set]);
        assert_eq!(results["runs"][0]["models"][0]["arrived"], arrived, "in {length}");
    }
    let (results, _) = played(&csv, &[("t.csv", rows.as_bytes())], &[]);
    assert_eq!(results["runs"][0]["models"][0]["arrived"], 3, "as many as it has rows");
}

#[test]
fn a_byte_order_mark_means_nothing_and_a_packed_trace_is_said_to_be_packed() {
    let row = "{\"seconds\": 1, \"input_tokens\": 10, \"output_tokens\": 10}\n";
    let head = "seconds,input_tokens,output_tokens\n";
    for (format, trace) in
        [("jsonl", format!("\u{feff}{row}")), ("csv", format!("\u{feff}{head}0,9,9\n"))]
    {
        let marked = scenario(&format!("trace: {{file: t, format: {format}}}"));
        let marked = format!("\u{feff}{marked}");
        let (results, said) = played(&marked, &[("t", trace.as_bytes())], &[]);
        assert_eq!(results["runs"][0]["models"][0]["arrived"], 1, "{said}");
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    fs::write(&path, scenario("trace: {file: t, format: csv}")).unwrap();
    for (bytes, why) in [
        (&b"\x1f\x8b\x08\0"[..], "t is compressed with gzip; decompress it first"),
        (b"seconds,input_tokens,output_tokens\n\xff", "t is not UTF-8 text"),
    ] {
        fs::write(folder.path().join("t"), bytes).unwrap();
        let output = simulate(&[path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(64));
        assert!(text(&output.stderr).contains(why), "{}", text(&output.stderr));
    }
}

#[test]
fn lengths_without_times_are_played_with_a_warning_alone() {
    let lengths = "num_prefill_tokens,num_decode_tokens\n10,5\n20,5\n30,5\n";
    let trace = scenario("trace: {file: t, format: vidur}");
    let (results, said) = played(&trace, &[("t", lengths.as_bytes())], &[]);
    assert_eq!(results["runs"][0]["models"][0]["arrived"], 3);
    let why = "scenario.yaml:5: warning: models[0].workload.trace.format has only lengths, so one";
    assert!(said.contains(why), "{said}");
    let drawn = scenario("drawn: {rate: 1, lengths: {file: t, format: vidur}}");
    let (_, said) = played(&drawn, &[("t", lengths.as_bytes())], &["--set", "length=5s"]);
    assert!(said.is_empty(), "{said}");
}

#[test]
fn the_scoreboard_says_where_a_trace_that_is_not_there_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    fs::write(&path, scenario("trace: {file: no-such.csv, format: csv}")).unwrap();
    let out = folder.path().join("board");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("scoreboard")
        .args([&path, Path::new("--out"), &out])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let board = fs::read_to_string(out.with_extension("md")).unwrap();
    assert!(
        board.contains("no-such.csv was not found; set PLIMSOLL_TRACES or --traces"),
        "{board}"
    );
}
