//! Backtests of models whose roles are apart: what a simulation traced is scored as that simulation.

use std::fs;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tempfile::TempDir;

use crate::backtest::{ends, row};
use crate::study::simulate;

const EXAMPLE: &str = "examples/simulate-disaggregated.yaml";

/// What Plimsoll's own run of the example came to, with a trace of it.
fn traced(folder: &Path, more: &[&str]) -> Value {
    let trace = folder.display().to_string();
    let own = [EXAMPLE, "--policy", "plimsoll", "--json", "-", "--trace", &trace];
    let Output { status, stdout, stderr } = simulate(&[&own[..], more].concat());
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&stderr));
    let results: Value = serde_json::from_slice(&stdout).unwrap();
    results["runs"][0].clone()
}

#[test]
fn a_trace_of_roles_apart_is_scored_as_the_simulation_that_made_it() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().join("trace");
    // Slower than in the example: where replicas start too late, little decides who is served.
    let points = "models[0].workload.drawn.points=[{at: 0s, rate: 8}, {at: 12m, rate: 24}]";
    let made = traced(&trace, &["--set", "length=12m", "--set", points]);
    let policy = folder.path().join("same.yaml");
    fs::write(&policy, "{}\n").unwrap();
    let trace = trace.to_str().unwrap();
    // As in the example: its objectives, the median of its starts, and a move of 3,600 tokens.
    let given = [
        ["--slo-ttft", "2s"],
        ["--slo-itl", "40ms"],
        ["--start-time", "80s"],
        ["--transfer-time", "14ms"],
        ["--policy", policy.to_str().unwrap()],
    ];
    let (said, _) = ends(0, &[&[trace][..], &given.concat()].concat());
    assert!(said.contains("all match"), "the pipeline is the same: {said}");
    let [within, hours, cost] = row(&said, "recorded")[..3] else { panic!("{said}") };
    assert_eq!(row(&said, "recorded"), row(&said, "same"), "{said}");
    let of = |what: &str| made[what].as_f64().unwrap();
    // Served within two in a hundred of the requests, and for a cost within a tenth: times of arrival
    // are known to ten seconds, lengths to the bucket, and starts all take as long.
    assert!((within / 100.0 - of("within_slo")).abs() < 0.02, "{} of\n{said}", of("within_slo"));
    assert!((cost / of("cost") - 1.0).abs() < 0.1, "{} of\n{said}", of("cost"));
    assert!((hours / of("replica_hours") - 1.0).abs() < 0.1, "{}", of("replica_hours"));
    // What happened is what was simulated, but for drains, which no scale target shows.
    assert!((row(&said, "as it was")[1] / of("cost") - 1.0).abs() < 0.01, "{said}");
    assert!(!said.contains("left out") && !said.contains("--transfer-time"), "{said}");
    // Without the option, what is assumed is said.
    let (said, _) = ends(0, &[trace, "--policy", policy.to_str().unwrap()]);
    assert!(
        said.contains(
            "the trace does not have the transfer time of its cache from prefill to decode"
        ),
        "{said}"
    );
}

#[test]
fn a_model_of_which_one_role_was_idle_is_not_scored_by_the_other() {
    let folder = TempDir::new().unwrap();
    let (trace, policy) = (folder.path().join("trace"), folder.path().join("same.yaml"));
    // One replica has all prompts, and of the many for answers each has hardly any.
    let short = [
        ["--set", "length=2m"],
        ["--set", "models[0].workload.drawn.points=[{at: 0s, rate: 1}]"],
        ["--set", "models[0].workload.drawn.output={fixed: 1}"],
        ["--set", "variants[1].replicas={min: 16, max: 16}"],
        ["--set", "models[0].router=round_robin"],
    ];
    traced(&trace, &short.concat());
    fs::write(&policy, "{}\n").unwrap();
    let (_, error) = ends(64, &[trace.to_str().unwrap(), "--policy", policy.to_str().unwrap()]);
    assert!(error.contains("no variant with the role decode of meta-llama/"), "{error}");
    assert!(error.contains("default/llama-decode is left out: its metrics don't show"), "{error}");
}

#[test]
fn a_model_that_cannot_be_scored_keeps_no_other_from_being_scored() {
    let folder = TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (scenario, trace, policy) = (path("two.yaml"), path("trace"), path("same.yaml"));
    // The model whose decode replicas have next to nothing to do is the first, so the other changes
    // its place.
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join(EXAMPLE);
    let text = fs::read_to_string(example).unwrap();
    let (halves, rest) = text.split_once("variants:\n").unwrap();
    let (before, points) = halves.split_once("      points:").unwrap();
    let (_, after) = points.split_once('\n').unwrap();
    let halves = format!("{before}      rate: 1\n{after}  router: round_robin\n");
    let halves =
        halves.replace("output: {median: 300, sigma: 0.6, max: 2000}", "output: {fixed: 1}");
    let (prefill, decode) = rest.split_once("- name: llama-decode").unwrap();
    let decode = decode.replace("replicas: {min: 1, max: 12}", "replicas: {min: 24, max: 24}");
    let rest = format!("{prefill}- name: llama-decode{decode}");
    let rest = rest.replace("  role:", "  model: meta-llama/Llama-3.1-8B-Instruct\n  role:");
    let healthy = "\
- name: healthy
  slo: {ttft: 2s, itl: 40ms}
  workload:
    drawn: {rate: 8, prompt: {fixed: 500}, output: {fixed: 150}}
variants:
- name: serves
  model: healthy
  replicas: {min: 1, max: 4}
  engine: {alpha: 7.4ms, beta: 15.6us, delta: 11us, gamma: 42ns, kv_tokens: 458000}
  startup: {load: 30s}
";
    fs::write(&scenario, format!("{halves}{healthy}{rest}")).unwrap();
    let run = [&scenario, "--policy", "plimsoll", "--set", "length=4m", "--trace", &trace];
    let Output { status, stderr, .. } = simulate(&run);
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&stderr));
    fs::write(&policy, "{}\n").unwrap();
    let (said, _) = ends(0, &[&trace, "--policy", &policy, "--start-time", "30s"]);
    let left = "no variant with the role decode of meta-llama/Llama-3.1-8B-Instruct#default can be \
                simulated, so this model is left out";
    assert!(said.contains(left), "{said}");
    assert!(said.contains("serves: an iteration takes"), "{said}");
    let scored = [row(&said, "recorded"), row(&said, "same")];
    assert!(scored.iter().all(|row| row[0] > 90.0), "{said}");
    // No line has what is left out, not even the first: two replicas of it at least, for four
    // minutes, which is more than a tenth of an hour.
    let was = row(&said, "as it was")[0];
    assert!(was < 0.1 && scored.iter().all(|row| (row[1] - was).abs() < 0.03), "{said}");
}

#[test]
fn a_run_that_plimsoll_does_not_decide_in_its_own_settings_is_not_traced() {
    let folder = TempDir::new().unwrap();
    let trace = folder.path().display().to_string();
    let short = ["--set", "length=10s", "--policy", "static:2", "--trace", &trace];
    let Output { status, stderr, .. } = simulate(&[&[EXAMPLE][..], &short].concat());
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!(status.code(), Some(64), "{said}");
    assert!(said.contains("--trace: the first run has nothing to trace"), "{said}");
    // What it decides is not by the configuration that would be in the trace.
    for peer in ["wva-v1", "wva-v2"] {
        let short = ["--set", "length=10s", "--policy", peer, "--trace", &trace];
        let Output { status, stderr, .. } = simulate(&[&[EXAMPLE][..], &short].concat());
        let said = String::from_utf8_lossy(&stderr);
        assert_eq!(status.code(), Some(64), "{said}");
        let why = format!("--trace: the policy of the first run, {peer}, is not part of");
        assert!(said.contains(&why), "{said}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing is written");
    }
    // A trace is not written over, and a run without one is not a result.
    traced(folder.path(), &["--set", "length=10s"]);
    let again = ["--set", "length=10s", "--policy", "plimsoll", "--trace", &trace];
    let Output { status, stdout, stderr } = simulate(&[&[EXAMPLE][..], &again].concat());
    let said = String::from_utf8_lossy(&stderr);
    assert_eq!((status.code(), stdout.len()), (Some(69), 0), "{said}");
    assert!(said.contains("000001.trace.zst: cannot be made: File exists"), "{said}");
}
