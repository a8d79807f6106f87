//! `plimsoll simulate` as its users see it.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::{Value, json};

use crate::examples::documents;

const EXAMPLE: &str = "examples/simulate-trace.yaml";

/// What `plimsoll simulate` says to this, in the folder of the project.
pub(crate) fn simulate(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("simulate")
        .args(arguments)
        .current_dir(env!("CARGO_MANIFEST_DIR"))
        .env_clear()
        .output()
        .unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// What is said of a scenario with this text, and of the files beside it.
pub(crate) fn refusal(scenario: &str, files: &[(&str, &str)]) -> String {
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
fn a_gateway_that_is_read_gives_an_adapter_in_demand_the_copies_that_its_load_takes() {
    // One slot a replica, so that each copy is a replica: 3 adapters, and one of them has the load.
    let scenario = "\
        length: 12m\nseed: 1\nmodels:\n- name: m\n  slo: {ttft: 2s, itl: 60ms}\n  workload:\n    \
        drawn: {rate: 16, prompt: {median: 900, sigma: 0.5, max: 4000}, output: {median: 260, sigma: 0.5, max: 900}}\n  \
        adapters:\n  - {name: hot, share: 0.9}\n  - {name: warm, share: 0.05}\n  - {name: cool, share: 0.05}\n  \
        router: lora_affinity\nvariants:\n- name: v\n  replicas: {min: 3, max: 12}\n  engine:\n    \
        {alpha: 11.04ms, beta: 81.1us, delta: 60us, gamma: 31ns, kv_tokens: 90000, seats: 128, adapters: {slots: 1, load: 500ms}}\n  \
        startup: {load: 20s}\npolicy:\n  capacity: {slo: {ttft: 2s, itl: 60ms}}\n  \
        pools: {default/v: {idle_after: 2m}}\n";
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    fs::write(&path, scenario).unwrap();
    let run = |more: &[&str]| {
        let output = simulate(&[&[path.to_str().unwrap(), "--json", "-"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        let value = |what: &str| results["runs"][0][what].as_f64().unwrap();
        [value("within_slo"), value("replica_hours")]
    };
    let unread = run(&[]);
    let read = run(&["--set", "models[0].gateway.read=5s"]);
    assert!(read[1] > unread[1], "more copies need more replicas: {read:?}, {unread:?}");
    assert!(read[0] >= unread[0], "and serve more in time: {read:?}, {unread:?}");
}

#[test]
fn the_example_of_a_day_compares_with_a_stock_hpa() {
    // An hour of it is enough to see that both play.
    let shorter = ["--set", "length=1h", "--policy", "plimsoll,in-flight:60"];
    let output = simulate(&[&["examples/simulate-day.yaml"], &shorter[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("2 of 2 runs\n"), "{table}");
    assert!(table.contains("\nplimsoll") && table.contains("\nin-flight:60"), "{table}");
}

#[test]
fn foresight_serves_a_jump_as_a_stock_hpa_does_for_a_third_of_its_cost() {
    let both = ["examples/simulate-jump.yaml", "--policy", "plimsoll,in-flight:20", "--json", "-"];
    let output = simulate(&both);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |run: usize, what: &str| results["runs"][run][what].as_f64().unwrap();
    assert!(of(0, "within_slo") >= of(1, "within_slo") - 0.001, "{results}");
    assert!(of(0, "cost") * 3.0 < of(1, "cost") && of(0, "flips") <= 2.0, "{results}");
}

// A fleet of engines with few places has spare replicas, as far as metrics at a low load can show.
#[test]
fn places_that_a_pod_template_shows_are_counted_before_they_are_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    let scenario = "\
length: 20m
models:
- name: m
  slo: {ttft: 2s, itl: 100ms}
  workload:
    drawn: {rate: 3, prompt: {median: 200, sigma: 0.3}, output: {median: 200, sigma: 0.3}}
variants:
- name: v
  accelerator: H100
  cost: 3
  replicas: {min: 1, max: 20, initial: 8}
  engine: {alpha: 20ms, beta: 20us, delta: 100us, kv_tokens: 200000, seats: 4}
  startup: {load: 3m}
";
    fs::write(&path, scenario).unwrap();

    let [hidden, shown] = ["false", "true"].map(|shown| {
        let set = format!("variants[0].engine.arguments={shown}");
        let output = simulate(&[path.to_str().unwrap(), "--set", &set, "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results["runs"][0]["within_slo"].as_f64().unwrap()
    });
    assert!(shown > 0.999, "{shown}");
    assert!(hidden < 0.95, "otherwise the scenario shows nothing: {hidden}");
}

#[test]
fn the_example_of_spot_nodes_compares_the_least_cost_with_the_rank_of_prices() {
    // The rise of its wave is enough to see both choose.
    let output = simulate(&["examples/simulate-spot.yaml", "--set", "length=25m", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [exact, rank] = [0, 1].map(|run| results["runs"][run].clone());
    assert_eq!(exact["settings"]["policy.capacity.optimizer"], "least_cost");
    assert_eq!(rank["settings"]["policy.capacity.optimizer"], "rank");
    // It exchanges nothing, so it turns less often, and pays for that.
    assert!(rank["flips"].as_f64().unwrap() <= exact["flips"].as_f64().unwrap(), "{results}");
    assert!(rank["cost"].as_f64().unwrap() > 0.0, "{results}");
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
  shadow: []
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
        "scenario.yaml:20: error: policy.variants does not affect decisions",
        "scenario.yaml:21: error: policy.shadow does not affect decisions",
        "scenario.yaml:22: error: colour is not a known key",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

/// A scenario with one mistake in each part, none of which hides another.
const MISTAKEN: &str = "\
length: 5m
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  workload: {drawn: {rate: 1, prompt: {fixed: 9}, output: {fixed: 9}}}
- name: m
  slo: {ttft: 2s}
  workload: {drawn: {rate: 1, prompt: {fixed: 9}, output: {fixed: 9}}}
variants:
- name: v
  model: nobody
  replicas: {min: 1, max: 3, initial: 9}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 0}
  startup: {sigma: -2}
- name: v
  model: m
  replicas: {min: 5, max: 3}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}
policy: {tick_interval: 0s}
daemon: {scrape_loss: 2}
compare: [plimsoll, \"static:-1\", 5]
sweep:
  seed: []
  models[0].slo.itl: [50ms, -1s,
    later]
  models[9].name: [x]
  colour.red: [1]
";

#[test]
fn what_is_wrong_with_the_sweep_the_peers_and_every_part_is_said_in_one_round() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("mistaken.yaml"), MISTAKEN).unwrap();
    let more = ["--policy", "static:1,magic", "--set", "models[0].client.retries=many"];
    let output = in_folder(folder.path(), &[&["mistaken.yaml"], &more[..]].concat());
    assert_eq!(output.status.code(), Some(64));
    let said = text(&output.stderr);
    for line in [
        "mistaken.yaml:6: error: models[1].name is the name of another model",
        "mistaken.yaml:7: error: models[1].slo.itl is required",
        "mistaken.yaml:11: error: variants[0].model must be the name of a model",
        "mistaken.yaml:12: error: variants[0].replicas.initial must be from 0 to 3",
        "mistaken.yaml:13: error: variants[0].engine.kv_tokens must be from 1",
        "mistaken.yaml:14: error: variants[0].startup.sigma must be from 0",
        "mistaken.yaml:15: error: variants[1].name is the name of another variant",
        "mistaken.yaml:17: error: variants[1].replicas.max must not be below replicas.min",
        "mistaken.yaml:19: error: policy.tick_interval must be",
        "mistaken.yaml:20: error: daemon.scrape_loss must be from 0 to 1",
        "mistaken.yaml:21: error: compare[1] must be plimsoll",
        "mistaken.yaml:21: error: compare[2] must be",
        "mistaken.yaml:23: error: sweep.seed must be a list of values to try",
        "mistaken.yaml:24: error: models[0].slo.itl must be",
        "mistaken.yaml:25: error: models[0].slo.itl must be",
        "mistaken.yaml:26: error: models[9].name has an index out of range",
        "mistaken.yaml:27: error: colour is not a known key",
        "--policy magic must be plimsoll",
        "--set models[0].client.retries: error: models[0].client.retries must be",
    ] {
        assert_eq!(said.matches(line).count(), 1, "{line} is not once in\n{said}");
    }
}

#[test]
fn a_sweep_or_a_comparison_of_the_wrong_kind_is_said_and_nothing_beside_it() {
    let said = refusal(&format!("{DOUBLING}sweep: 5\n"), &[]);
    assert!(said.contains("scenario.yaml:18: error: sweep must be a mapping"), "{said}");
    let said = refusal(&format!("{DOUBLING}compare: [5]\n"), &[]);
    assert!(said.contains("scenario.yaml:18: error: compare[0] must be"), "{said}");
    assert_eq!(said.matches("error:").count(), 1, "{said}");
}

#[test]
fn each_row_of_a_trace_that_means_nothing_has_a_line_and_what_is_more_is_counted() {
    let scenario = "\
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  workload: {trace: {file: t.csv, format: csv}}
variants:
- name: v
  replicas: {max: 1}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}
";
    let trace = "seconds,input_tokens,output_tokens\n".to_owned() + &"1,0,9\n".repeat(25);
    let said = refusal(scenario, &[("t.csv", &trace)]);
    for line in 2..=21 {
        let row = format!("\n  t.csv:{line}: 0 is not a number of tokens");
        assert!(said.contains(&row), "{row} is not in\n{said}");
    }
    assert!(!said.contains("t.csv:22:") && said.contains("\n  and 5 more lines"), "{said}");
}

#[test]
fn a_simulated_queue_is_read_as_often_as_a_daemon_reads_one() {
    let with = |read: &str| {
        format!(
            "models:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  gateway: {{read: {read}}}\n  \
             workload:\n    drawn: {{rate: 1, prompt: {{fixed: 9}}, output: {{fixed: 9}}}}\n\
             variants:\n- name: a\n  replicas: {{max: 2}}\n  engine: {{alpha: 7ms, beta: 1us, \
             delta: 1us, kv_tokens: 9000}}\n"
        )
    };
    // What is read less often is silent between two readings.
    for read in ["199ms", "11s", "1h"] {
        let said = refusal(&with(read), &[]);
        let why = "scenario.yaml:4: error: models[0].gateway.read must be from 200ms to 10s";
        assert!(said.contains(why), "{said}");
    }
}

#[test]
fn roles_experts_caches_and_roll_outs_that_cannot_be_are_listed_with_their_lines() {
    let said = refusal(
        "\
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  transfer: {latency: -1s}
  workload:
    drawn: {rate: 1, prompt: {fixed: 9}, output: {fixed: 9}}
variants:
- name: a
  role: prefill
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}
- name: b
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000, prefix_hits: 0.5, prefix_caching: true}
- name: c
  role: encode
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}
  rollout: {max_surge: 1.5, max_unavailable: 0}
- name: d
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}
  rollout: {at: 1m, max_surge: 0, max_unavailable: 0}
- name: e
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000, experts: {tokens: 0}}
  accelerator: ' H100'
",
        &[],
    );
    for line in [
        "scenario.yaml:4: error: models[0].transfer.latency must be a duration",
        "scenario.yaml:9: error: variants[0].role is prefill, and no variant of m is decode",
        "scenario.yaml:26: error: variants[4].engine.experts.tokens must be from 1",
        "scenario.yaml:26: error: variants[4].engine.experts.per_token is required",
        "scenario.yaml:14: error: variants[1].engine.prefix_caching must not be true with",
        "scenario.yaml:16: error: variants[2].role must be",
        "scenario.yaml:19: error: variants[2].rollout.at is required",
        "scenario.yaml:19: error: variants[2].rollout.max_surge must be a share below 1",
        "scenario.yaml:23: error: variants[3].rollout.max_surge must not be 0",
        "scenario.yaml:27: error: variants[4].accelerator must not be empty, nor have spaces",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

#[test]
fn engines_that_cannot_be_and_lengths_that_run_backwards_are_listed_with_their_lines() {
    let text = "\
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  workload:
    drawn:
      rate: 1
      prompt: {fixed: 100}
      output: {fixed: 100}
      drift: [{at: 2m, prompt: 2}, {at: 1m}]
variants:
- name: drafting
  replicas: {max: 2}
  engine:
    {alpha: 7ms, beta: 20us, delta: 25us, kv_tokens: 10000, seats: 256, batch_tokens: 1000,
     speculation: {drafts: 3, tokens: 4.5}}
- name: crowded
  replicas: {max: 2}
  engine:
    {alpha: 7ms, beta: 20us, delta: 25us, kv_tokens: 10000, seats: 256, batch_tokens: 1000,
     speculation: {drafts: 3, tokens: 2}}
- name: sharded
  replicas: {max: 2}
  engine: {alpha: 7ms, beta: 20us, delta: 25us, kv_tokens: 10000, api_servers: 0, noise: 9,
           fetch: {share: 0.5}, prefix_hits: 0.5}
  lifecycle: {slowdown: {at: 5m}}
";
    let said = refusal(text, &[]);
    for line in [
        "scenario.yaml:9: error: models[0].workload.drawn.drift must have times that ascend",
        "variants[0].engine.speculation.tokens must not be above 4, one more than",
        "variants[1].engine.batch_tokens must not be below 1024, 4 tokens for each of engine.seats",
        "scenario.yaml:23: error: variants[2].engine.api_servers must be from 1 to 64",
        "scenario.yaml:23: error: variants[2].engine.noise must be from 0 to 2",
        "scenario.yaml:24: error: variants[2].engine.fetch must not be set with",
        "scenario.yaml:25: error: variants[2].lifecycle.slowdown.factor is required",
    ] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
}

#[test]
fn the_example_of_a_day_on_which_all_goes_wrong_is_served_somehow() {
    let output = simulate(&["examples/simulate-harsh.yaml", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &results["runs"][0];
    assert!(run["models"][0]["finished"].as_u64().unwrap() > 40_000, "{run}");
    assert!(run["variants"][0]["crashes"].as_u64().unwrap() >= 3, "{run}");
}

#[test]
fn the_example_of_a_prefix_cache_computes_less_of_prompts_that_begin_alike() {
    let output = simulate(&["examples/simulate-prefix.yaml", "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |run: usize, what: &str| results["runs"][run]["models"][0]["ttft"][what].as_f64();
    let setting = "variants[0].engine.prefix_caching";
    assert_eq!(results["runs"][0]["settings"][setting], false);
    assert!(of(1, "p50").unwrap() < of(0, "p50").unwrap(), "{results}");
    // Where no prompt is known, nothing is found, and that is said.
    let drawn = ["examples/simulate-jump.yaml", "--set", "length=5s", "--policy", "static:1"];
    let caching = ["--set", "variants[0].engine.prefix_caching=true"];
    let output = simulate(&[&drawn[..], &caching[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let said = text(&output.stderr);
    assert!(said.contains("warning: variants[0].engine.prefix_caching only finds"), "{said}");
}

#[test]
fn the_example_with_roles_apart_scales_each_and_serves_both() {
    let shorter = ["--set", "length=12m", "--policy", "plimsoll", "--json", "-"];
    let output = simulate(&[&["examples/simulate-disaggregated.yaml"], &shorter[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &results["runs"][0];
    for variant in run["variants"].as_array().unwrap() {
        assert!(variant["ups"].as_u64().unwrap() > 0, "{variant}");
    }
    assert_eq!(run["violations"], 0);
    assert!(run["within_slo"].as_f64().unwrap() > 0.5, "{run}");
    let clairvoyant = ["--policy", "plimsoll,oracle,melange"];
    let output = simulate(&[&["examples/simulate-disaggregated.yaml"], &clairvoyant[..]].concat());
    assert_eq!(output.status.code(), Some(64), "a user's choice is no mistake in the program");
    let said = text(&output.stderr);
    for policy in ["oracle", "melange"] {
        let line = format!(
            "{policy} cannot plan for meta-llama/Llama-3.1-8B-Instruct, whose variants have the roles"
        );
        assert!(said.contains(&line), "{line} is not in\n{said}");
    }
}

#[test]
fn who_reads_what_only_replicas_say_is_warned_that_it_cannot_wake_them() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zero.yaml");
    let warnings = |replicas: &str, autoscaler: &str| {
        let scenario = format!(
            "length: 5s\nmodels:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  workload:\n    \
             drawn: {{rate: 1, prompt: {{fixed: 9}}, output: {{fixed: 9}}}}\nvariants:\n- name: v\n  \
             replicas: {replicas}\n  engine: {{alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}}\n  \
             autoscaler: {autoscaler}\n"
        );
        fs::write(&path, scenario).unwrap();
        let output = simulate(&[path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    for follows in ["waiting", "in_flight", "kv_usage", "sent"] {
        for (kind, replicas) in [
            ("keda", "{min: 0, max: 3, initial: 1}"),
            ("hpa", "{min: 0, max: 3}"),
            ("keda", "{min: 1, max: 3, initial: 0}"),
        ] {
            let autoscaler = format!("{{kind: {kind}, follows: {follows}, target: 5}}");
            let said = warnings(replicas, &autoscaler);
            let line =
                "zero.yaml:11: warning: variants[0].autoscaler.follows cannot bring the variant";
            assert!(said.contains(line), "{autoscaler} {replicas}: {said}");
            assert_eq!(warnings("{min: 1, max: 3}", &autoscaler), "");
        }
    }
    assert_eq!(warnings("{min: 0, max: 3}", "{kind: keda, follows: rate, target: 5}"), "");
    assert_eq!(warnings("{min: 0, max: 3}", "{kind: none}"), "");
}

#[test]
fn a_gateway_that_is_read_is_what_wakes_a_model_and_none_is_missed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("zero.yaml");
    let warnings = |gateway: &str| {
        let scenario = format!(
            "length: 5s\nmodels:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  gateway: {gateway}\n  \
             workload:\n    drawn: {{rate: 1, prompt: {{fixed: 9}}, output: {{fixed: 9}}}}\n\
             variants:\n- name: v\n  replicas: {{min: 0, max: 3}}\n  \
             engine: {{alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}}\n\
             policy: {{scale_to_zero: {{enabled: true}}}}\n"
        );
        fs::write(&path, scenario).unwrap();
        let output = simulate(&[path.to_str().unwrap()]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    assert_eq!(warnings("{read: 1s}"), "");
    let missed = warnings("{queue: 10}");
    assert!(missed.contains("policy.scale_to_zero.wake is missing"), "{missed}");
}

#[test]
fn zero_is_never_and_a_period_of_what_does_not_begin_again_is_warned_of() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output =
            in_folder(folder.path(), &[&["study.yaml", "--json", "-"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        (results["runs"][0]["models"].clone(), text(&output.stderr))
    };
    let never = ["models[0].client.timeout", "variants[0].lifecycle.crash_every"];
    let never = [never[0], never[1], "variants[0].lifecycle.interrupt_every"];
    let set: Vec<String> = never.iter().map(|path| format!("--set={path}=0s")).collect();
    let set: Vec<&str> = set.iter().map(String::as_str).collect();
    assert_eq!(run(&set), run(&[]), "as if they were not there");
    let drawn = |rate: &str| {
        format!(
            "--set=models[0].workload.drawn={{{rate}, period: 1h, \
                                      prompt: {{fixed: 9}}, output: {{fixed: 9}}}}"
        )
    };
    for rate in ["rate: 1", "wave: {trough: 1, crest: 2, period: 1m}"] {
        let (_, said) = run(&["--set=sweep={}", &drawn(rate)]);
        assert!(said.contains("warning: models[0].workload.drawn.period has no effect"), "{said}");
    }
    let (_, said) = run(&["--set=sweep={}", &drawn("steps: [{at: 0s, rate: 1}]")]);
    assert_eq!(said, "");
}

#[test]
fn one_mistake_in_a_workload_is_one_line() {
    let both = "prompt: {fixed: 9}, output: {fixed: 9}";
    for (drawn, line) in [
        (format!("steps: [{{at: 0s, rate: -4}}], {both}"), "drawn.steps[0].rate must be from 0"),
        (format!("steps: [{{at: 0s}}], {both}"), "drawn.steps[0].rate is required"),
        (
            format!("wave: {{trough: 1, crest: 2, period: 0s}}, {both}"),
            "drawn.wave.period must be from 1ms",
        ),
        (
            format!("wave: {{trough: -1, crest: 2, period: 1m}}, {both}"),
            "drawn.wave.trough must be from 0",
        ),
        (format!("wave: {{trough: 1, crest: 2}}, {both}"), "drawn.wave.period is required"),
        (
            "rate: 1, prompt: {fixed: 9, min: 3}, output: {fixed: 9}".to_owned(),
            "drawn.prompt must have exactly one of fixed, min with max, and median",
        ),
        (
            "rate: 1, prompt: {fixed: 9}, output: {fixed: 9, sigma: 1}".to_owned(),
            "drawn.output must have exactly one of fixed",
        ),
        ("rate: 1, prompt: {fixed: 0}, output: {fixed: 9}".to_owned(), "drawn.prompt.fixed must"),
    ] {
        let said = refusal(
            &format!(
                "models:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  workload:\n    \
                 drawn: {{{drawn}}}\nvariants:\n- name: v\n  replicas: {{max: 1}}\n  \
                 engine: {{alpha: 7ms, beta: 1us, delta: 1us, kv_tokens: 9000}}\n"
            ),
            &[],
        );
        let wanted = format!("scenario.yaml:5: error: models[0].workload.{line}");
        assert!(said.contains(&wanted), "{wanted} is not in\n{said}");
        assert_eq!(said.matches("error:").count(), 1, "{drawn}\n{said}");
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
    let mooncake = |tokens: u32, ids: &str| {
        format!(
            "{{\"timestamp\": 0, \"input_length\": {tokens}, \"output_length\": 9, \
             \"hash_ids\": {ids}}}\n"
        )
    };
    for (format, trace, said) in [
        ("csv", format!("{head}1,10,10\n0.5,10,10\n"), "trace:3: its time is before"),
        ("csv", format!("{head}nan,10,10\n"), "trace:2: its time is NaN s"),
        ("csv", format!("{head}-1,10,10\n"), "trace:2: its time is -1 s"),
        ("csv", format!("{head}1,0,10\n"), "trace:2: 0 is not a number of tokens"),
        ("csv", format!("{head}1,10\n"), "trace:2: has 2 fields instead of 3"),
        ("csv", head.to_owned(), "has no requests"),
        ("csv", "a,b\n".to_owned(), "trace:1: must begin with seconds,input_tokens"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnow,1,1\n".to_owned(), "not a date"),
        ("mooncake", "{\"timestamp\": 1}\n".to_owned(), "trace:1: has no number input_length"),
        ("mooncake", mooncake(513, "[1, 2, 3]"), "trace:1: has 3 hash_ids for 513 tokens"),
        ("mooncake", mooncake(513, "[1, -2]"), "trace:1: its hash_ids are not a list of numbers"),
        ("mooncake", mooncake(513, "[1]") + "{\"timest\n", "trace:2: is not JSON"),
        ("csv", format!("{head}1,1"), "trace:2: has 2 fields instead of 3"),
        ("jsonl", "[\n".to_owned(), "trace:1: is not JSON"),
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
fn a_trace_that_was_cut_off_is_read_up_to_its_last_whole_row() {
    let folder = tempfile::tempdir().unwrap();
    let row = "{\"seconds\": 1, \"input_tokens\": 10, \"output_tokens\": 10}\n";
    for (format, trace) in [
        ("jsonl", format!("{row}{row}{{\"seconds\": 2, \"inp")),
        ("csv", "seconds,input_tokens,output_tokens\n1,10,10\n1,10,10\n2,1".to_owned()),
    ] {
        fs::write(folder.path().join("trace"), &trace).unwrap();
        let path = folder.path().join("scenario.yaml");
        let scenario = format!(
            "length: 10s\nmodels:\n- name: m\n  slo: {{ttft: 2s, itl: 60ms}}\n  workload:\n    \
             trace: {{file: trace, format: {format}}}\nvariants:\n- name: v\n  \
             replicas: {{max: 1}}\n  engine: {{alpha: 7ms, beta: 1us, delta: 1us, \
             kv_tokens: 9000}}\n"
        );
        fs::write(&path, scenario).unwrap();
        let output = simulate(&[path.to_str().unwrap(), "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let line = trace.lines().count();
        let said = format!("workload.trace.file ends in the middle of line {line}, which is left");
        assert!(text(&output.stderr).contains(&said), "{}", text(&output.stderr));
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

/// A small study: two rates, two peers, two seeds.
const STUDY: &str = "\
length: 2m
models:
- name: m
  slo: {ttft: 1s, itl: 60ms}
  workload:
    drawn:
      points: [{at: 0s, rate: 2}, {at: 1m, rate: 8}]
      prompt: {median: 300, sigma: 0.5}
      output: {min: 10, max: 100}
variants:
- name: v
  cost: 2
  replicas: {min: 1, max: 4}
  engine: {alpha: 20ms, beta: 48us, delta: 37us, gamma: 190ns, kv_tokens: 60000}
  startup: {load: 10s, sigma: 0.3}
sweep:
  models[0].workload.drawn.points[1].rate: [4, 16]
";

/// A fast replica and a slow one, each of which gets every other request.
const UNLIKE: &str = "\
length: 2m
models:
- name: m
  slo: {ttft: 1s, itl: 60ms}
  workload: {drawn: {rate: 10, prompt: {fixed: 300}, output: {fixed: 100}}}
  router: round_robin
variants:
- name: fast
  replicas: {min: 1, max: 1}
  engine: {alpha: 5ms, beta: 20us, delta: 20us, gamma: 20ns, kv_tokens: 600000}
- name: slow
  replicas: {min: 1, max: 1}
  engine: {alpha: 50ms, beta: 200us, delta: 100us, gamma: 190ns, kv_tokens: 600000, seats: 16}
";

fn in_folder(folder: &Path, arguments: &[&str]) -> Output {
    fs::write(folder.join("study.yaml"), STUDY).unwrap();
    Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .arg("simulate")
        .args(arguments)
        .current_dir(folder)
        .env_clear()
        .output()
        .unwrap()
}

const WHOLE: [&str; 5] = ["study.yaml", "--policy", "plimsoll,static:2", "--seeds", "2"];

#[test]
fn an_engine_that_is_too_small_for_half_of_its_requests_does_not_look_good() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.yaml");
    let small = "\
length: 2m
models:
- name: m
  slo: {ttft: 1s, itl: 60ms}
  workload: {drawn: {rate: 2, prompt: {min: 100, max: 2000}, output: {fixed: 10}}}
variants:
- name: v
  replicas: {min: 1, max: 8}
  engine: {alpha: 5ms, beta: 10us, delta: 10us, kv_tokens: 1000}
";
    fs::write(&path, small).unwrap();
    let report = folder.path().join("r.html");
    let arguments = |more: &[&str]| {
        let path = path.to_str().unwrap();
        simulate(&[&[path, "--policy", "static:1,oracle"], more].concat())
    };
    let output = arguments(&["--json", "-", "--report", report.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let run = &results["runs"][0];
    let count = |key: &str| run["models"][0][key].as_u64().unwrap();
    let (arrived, refused) = (count("arrived"), count("too_long"));
    assert!(refused > arrived / 3 && refused < arrived, "{run}");
    let within = run["within_slo"].as_f64().unwrap();
    let served = (count("good") as f64) / ((arrived - count("open")) as f64);
    assert!((within - served).abs() < 1e-9 && within < 0.7, "{within} and {served}");
    assert!(run["models"][0]["worst_minute_within_slo"].as_f64().unwrap() < 0.7, "{run}");
    // No number of them would hold more, so none is paid for.
    assert_eq!(results["runs"][1]["cost"], run["cost"], "{}", results["runs"][1]);
    let table = text(&arguments(&[]).stdout);
    let column = |line: &str, name: &str| {
        let head = table.lines().find(|line| line.starts_with("policy")).unwrap();
        let end = head.find(name).unwrap() + name.len();
        line[..end].rsplit(' ').next().unwrap().to_owned()
    };
    let row = table.lines().find(|line| line.starts_with("static:1")).unwrap();
    assert_eq!(column(row, "not served"), refused.to_string(), "{table}");
    let page = fs::read_to_string(report).unwrap();
    assert!(page.contains("<th>not served</th>"), "{page}");
    assert!(page.contains(&format!("<td>{refused}</td>")), "{page}");
}

#[test]
fn the_clairvoyant_schedule_pays_for_no_variant_that_it_does_not_need() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.yaml");
    let two = "\
length: 10m
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  workload: {drawn: {rate: 4, prompt: {fixed: 1000}, output: {fixed: 100}}}
variants:
- name: cheap
  cost: 2
  replicas: {min: 1, max: 4}
  engine: {alpha: 20ms, beta: 60us, delta: 60us, kv_tokens: 60000, seats: 64}
- name: dear
  cost: 10
  replicas: {min: 0, max: 2}
  engine: {alpha: 20ms, beta: 60us, delta: 60us, kv_tokens: 60000, seats: 64}
";
    fs::write(&path, two).unwrap();
    let policies = ["--policy", "static:best,oracle", "--json", "-"];
    let output = simulate(&[&[path.to_str().unwrap()], &policies[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let [fixed, oracle] = [0, 1].map(|run| results["runs"][run]["cost"].as_f64().unwrap());
    assert!(oracle <= fixed + 1e-9, "{results}");
}

#[test]
fn shards_put_together_are_the_whole_whatever_the_cores() {
    let folder = tempfile::tempdir().unwrap();
    let whole = in_folder(folder.path(), &[&WHOLE[..], &["--json", "-"]].concat());
    assert_eq!(whole.status.code(), Some(0), "{}", text(&whole.stderr));
    for shard in ["1/3", "2/3", "3/3"] {
        let name = format!("{}.json", &shard[..1]);
        let arguments = [&WHOLE[..], &["--shard", shard, "--json", &name]].concat();
        let output = in_folder(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    }
    let merge = ["--merge", "3.json", "1.json", "2.json", "--json", "-"];
    assert_eq!(in_folder(folder.path(), &merge).stdout, whole.stdout);
    let results: Value = serde_json::from_slice(&whole.stdout).unwrap();
    let runs = results["runs"].as_array().unwrap();
    assert_eq!((runs.len(), &results["planned"]), (8, &json!(8)));
    let settings = json!({"models[0].workload.drawn.points[1].rate": 16});
    assert_eq!((&runs[7]["settings"], &runs[7]["policy"]), (&settings, &json!("static:2")));
    for run in runs.iter().filter(|run| run["policy"] == "static:2") {
        let cost = run["cost"].as_f64().unwrap();
        assert!(
            (cost - 8.0 / 60.0).abs() < 1e-9,
            "two replicas for two minutes at 2 an hour: {cost}"
        );
    }
    let other = in_folder(folder.path(), &["study.yaml", "--json", "other.json"]);
    assert_eq!(other.status.code(), Some(0));
    let wrong = in_folder(folder.path(), &["--merge", "1.json", "other.json"]);
    assert_eq!(wrong.status.code(), Some(64));
    assert!(text(&wrong.stderr).contains("other.json belongs to another study"));
}

#[test]
fn shards_whose_traces_have_one_name_and_other_contents_are_not_put_together() {
    let folder = tempfile::tempdir().unwrap();
    let drawn = STUDY.find("    drawn:").unwrap()..STUDY.find("variants:").unwrap();
    let mut scenario = STUDY.split("sweep:").next().unwrap().to_owned();
    scenario.replace_range(drawn, "    trace: {file: t.csv, format: csv}\n");
    fs::write(folder.path().join("traced.yaml"), scenario).unwrap();
    let shard = |number: &str, seconds: u32| {
        let trace = format!("seconds,input_tokens,output_tokens\n1,10,10\n{seconds},10,10\n");
        fs::write(folder.path().join("t.csv"), trace).unwrap();
        let (part, json) = (format!("{number}/2"), format!("{number}.json"));
        let arguments = ["traced.yaml", "--seeds", "2", "--shard", &part, "--json", &json];
        let output = in_folder(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    };
    let merged = || in_folder(folder.path(), &["--merge", "1.json", "2.json"]);
    shard("1", 9);
    shard("2", 9);
    assert_eq!(merged().status.code(), Some(0), "{}", text(&merged().stderr));
    shard("2", 8);
    assert_eq!(merged().status.code(), Some(64));
    assert!(text(&merged().stderr).contains("2.json belongs to another study"));
}

#[test]
fn what_is_set_on_the_command_line_is_swept_no_more() {
    let folder = tempfile::tempdir().unwrap();
    let settings = |more: &[&str]| -> Vec<Value> {
        let arguments = [&["study.yaml", "--policy", "static:1", "--json", "-"], more].concat();
        let output = in_folder(folder.path(), &arguments);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        let runs = results["runs"].as_array().unwrap();
        runs.iter().map(|run| run["settings"].clone()).collect()
    };
    let path = "models[0].workload.drawn.points[1].rate";
    assert_eq!(settings(&[]), [json!({path: 4}), json!({path: 16})]);
    assert_eq!(settings(&["--set", &format!("{path}=5")]), [json!({path: 5})]);
    assert_eq!(settings(&["--set", "sweep={}"]), [json!({})]);
    assert_eq!(settings(&["--set", "sweep={seed: [7]}"]), [json!({"seed": 7})]);
    let output = in_folder(folder.path(), &["study.yaml", "--set", "compare=[static:3]"]);
    assert!(
        text(&output.stdout).contains(
            "
static:3 "
        ),
        "{}",
        text(&output.stdout)
    );
}

#[test]
fn who_is_named_twice_is_simulated_once_and_values_are_shown_as_they_are_written() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["study.yaml", "--policy", "static:2,plimsoll,static:2.0,static:2"];
    let output = in_folder(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(64), "a number of replicas is whole");
    let swept = ["--set", "sweep={'variants[0].startup.load': [10s, 20s]}", "--report", "r.html"];
    let arguments = ["study.yaml", "--policy", "static:2,kv:0.7,static:2,kv:0.70"];
    let output = in_folder(folder.path(), &[&arguments[..], &swept[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let table = text(&output.stdout);
    assert!(table.contains("4 of 4 runs") && !table.contains(" mean "), "{table}");
    assert!(table.contains(" 10s ") && !table.contains('"'), "{table}");
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.contains("variants[0].startup.load=20s<"), "{page}");
    let output =
        in_folder(folder.path(), &["study.yaml", "--set", "sweep={}", "--set", "length=1m"]);
    assert!(text(&output.stdout).contains("\nlength: 1m\n"), "{}", text(&output.stdout));
    let compared = "compare=[static:1, static:1]";
    let output = in_folder(folder.path(), &["study.yaml", "--set", "sweep={}", "--set", compared]);
    assert!(text(&output.stdout).contains("simulated, seed 1, static:1"), "{compared}");
}

#[test]
fn results_are_as_their_schema_says() {
    let schema: Value = serde_json::from_slice(&simulate(&["--schema"]).stdout).unwrap();
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/simulator.schema.json");
    let committed: Value = serde_json::from_str(&fs::read_to_string(committed).unwrap()).unwrap();
    assert!(schema == committed, "plimsoll simulate --schema > docs/simulator.schema.json");
    let output = simulate(&[EXAMPLE, "--json", "-"]);
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let keys = |value: &Value| value.as_object().unwrap().keys().cloned().collect::<BTreeSet<_>>();
    assert_eq!(keys(&results), keys(&schema["properties"]));
    let run = &results["runs"][0];
    assert_eq!(keys(run), keys(&schema["$defs"]["RunResult"]["properties"]));
    let model = &run["models"][0];
    assert_eq!(keys(model), keys(&schema["$defs"]["ModelResult"]["properties"]));
    let count = |key: &str| model[key].as_u64().unwrap();
    let ends = ["finished", "rejected", "timed_out", "failed", "too_long", "overdue", "open"];
    assert_eq!(ends.into_iter().map(count).sum::<u64>(), count("arrived"));
    let share = |key: &str| run[key].as_f64().unwrap();
    for key in ["within_slo", "within_ttft", "within_itl"] {
        assert_eq!(run[key], model[key], "one model is all of them");
        assert!(share("within_slo") <= share(key), "both are no more than each: {run}");
    }
}

/// Fails on the first key of a value that a schema does not know, or requires and misses.
fn conforms(path: &str, value: &Value, schema: &Value) {
    if let (Some(map), Some(properties)) = (value.as_object(), schema["properties"].as_object()) {
        for required in schema["required"].as_array().into_iter().flatten() {
            let key = required.as_str().unwrap();
            assert!(map.contains_key(key), "{path} has no {key}, which the schema requires");
        }
        for (key, value) in map {
            let known = properties.get(key);
            let known = known.unwrap_or_else(|| panic!("the schema does not know {path}.{key}"));
            conforms(&format!("{path}.{key}"), value, known);
        }
    }
    for (at, item) in value.as_array().into_iter().flatten().enumerate() {
        conforms(&format!("{path}[{at}]"), item, &schema["items"]);
    }
    if let (Some(text), Some(choices)) = (value.as_str(), schema["anyOf"].as_array()) {
        let has = |choice: &Value| choice.to_string().contains(&format!("\"{text}\""));
        assert!(choices.iter().any(has), "{path}: {text} is none of {choices:?}");
    }
}

fn collect_keys(schema: &Value, keys: &mut BTreeSet<String>) {
    if let Some(properties) = schema["properties"].as_object() {
        keys.extend(properties.keys().cloned());
        properties.values().for_each(|value| collect_keys(value, keys));
    }
    if schema["items"].is_object() {
        collect_keys(&schema["items"], keys);
    }
}

#[test]
fn scenarios_are_as_their_schema_says_and_each_of_its_keys_is_explained() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let schema: Value = serde_json::from_slice(&simulate(&["--schema=scenario"]).stdout).unwrap();
    let committed = fs::read_to_string(root.join("docs/scenario.schema.json")).unwrap();
    let committed: Value = serde_json::from_str(&committed).unwrap();
    assert!(schema == committed, "plimsoll simulate --schema=scenario > docs/scenario.schema.json");
    assert_eq!(schema["required"], json!(["models", "variants"]));
    let mut scenarios = 0;
    for folder in ["examples", "scoreboard"] {
        for entry in fs::read_dir(root.join(folder)).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap();
            let is_scenario = name.starts_with("simulate-") || name.starts_with("demo");
            if folder == "examples" && !is_scenario || name.contains("-job") {
                continue;
            }
            let text = fs::read_to_string(&path).unwrap();
            conforms(name, &documents(name, &text)[0], &schema);
            scenarios += 1;
        }
    }
    assert!(scenarios >= 15, "{scenarios} scenarios");
    let mut keys = BTreeSet::new();
    let mut own = schema.clone();
    own["properties"]["policy"] = json!({});
    collect_keys(&own, &mut keys);
    let document = fs::read_to_string(root.join("docs/simulator.md")).unwrap();
    let lost: Vec<&String> = keys.iter().filter(|key| !document.contains(key.as_str())).collect();
    assert!(lost.is_empty(), "docs/simulator.md does not name {lost:?}");
}

#[test]
fn the_demo_plays_examples_that_can_be_simulated() {
    for (example, loads) in [("examples/demo.yaml", false), ("examples/demo-lora.yaml", true)] {
        let output = simulate(&[example, "--set", "length=1m", "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        assert_eq!(text(&output.stderr), "", "{example}");
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        let model = &results["runs"][0]["models"][0];
        assert!(model["finished"].as_u64().unwrap() > 100, "{model}");
        assert_eq!(model["adapter_loads"].is_u64(), loads, "{model}");
    }
}

#[test]
fn a_report_is_one_file_and_a_series_has_a_row_for_each_model_and_variant() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&WHOLE[..], &["--report", "r.html", "--series", "s.csv"]].concat();
    let output = in_folder(folder.path(), &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let report = fs::read_to_string(folder.path().join("r.html")).unwrap();
    for word in ["http:", "https:", "<script", "src=", "NaN"] {
        assert!(!report.contains(word), "{word}");
    }
    assert_eq!(report.matches("<svg").count(), 6);
    assert_eq!(report.matches("<svg").count(), report.matches("</svg>").count());
    let series = fs::read_to_string(folder.path().join("s.csv")).unwrap();
    let columns = |line: &str| line.split(',').count();
    let head = columns(series.lines().next().unwrap());
    assert!(series.lines().all(|line| columns(line) == head));
    assert_eq!(series.lines().count(), 1 + 2 * 121, "a sample a second, both ends included");
    let names: Vec<&str> = series.lines().next().unwrap().split(',').collect();
    let last: Vec<&str> = series.lines().last().unwrap().split(',').collect();
    let believed = |name: &str| last[names.iter().position(|it| *it == name).unwrap()];
    for name in ["carries_per_s", "arriving_per_s", "need_per_s", "need_held_per_s"] {
        assert!(believed(name).parse::<f64>().unwrap() > 0.0, "{name}: {last:?}");
    }
    assert!(!believed("bound").is_empty(), "{last:?}");
    let again = folder.path().join("again.html");
    let arguments = [&WHOLE[..], &["--report", "again.html"]].concat();
    in_folder(folder.path(), &arguments);
    assert_eq!(fs::read_to_string(again).unwrap(), report);
}

#[test]
fn a_behavior_is_written_as_kubernetes_writes_it() {
    let folder = tempfile::tempdir().unwrap();
    let behavior = "autoscaler: {behavior: {scaleUp: {tolerance: \"0\", stabilizationWindowSeconds: 0, selectPolicy: \
                    Max, policies: [{type: Pods, value: 4, periodSeconds: 60}, {type: Percent, value: \
                    10, periodSeconds: 60}]}, scaleDown: {selectPolicy: Disabled}}}";
    let with = |behavior: &str| STUDY.replace("  startup:", &format!("  {behavior}\n  startup:"));
    fs::write(folder.path().join("pasted.yaml"), with(behavior)).unwrap();
    let output = in_folder(folder.path(), &["pasted.yaml"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(text(&output.stderr), "");

    let starts = |behavior: &str| {
        fs::write(folder.path().join("other.yaml"), with(behavior)).unwrap();
        let more = ["--set", "models[0].workload.drawn.points[1].rate=80", "--json", "-"];
        let output = in_folder(folder.path(), &[&["other.yaml"], &more[..]].concat());
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results["runs"][0]["variants"][0]["starts"].as_u64().unwrap()
    };
    assert!(starts("autoscaler: {}") > 0);
    assert_eq!(starts("autoscaler: {behavior: {scaleUp: {selectPolicy: Disabled}}}"), 0);

    let said = refusal(&with("autoscaler: {behavior: {scaleDown: {tolerance: 1500m}}}"), &[]);
    assert!(said.contains("behavior.scaleDown.tolerance must be a quantity from 0 to 1"), "{said}");
    let said = refusal(&with("autoscaler: {behavior: {scaleup: {}}}"), &[]);
    assert!(said.contains("autoscaler.behavior.scaleup") && said.contains("scaleUp"), "{said}");
}

#[test]
fn replicas_are_sized_for_the_time_that_long_prompts_are_allowed() {
    let folder = tempfile::tempdir().unwrap();
    let carries = |long: &str| {
        let slo = format!("{{ttft: 1s, itl: 60ms, ttft_per_token: 1ms, long_prompt: {long}}}");
        let scenario = STUDY
            .replace("{ttft: 1s, itl: 60ms}", &slo)
            .replace("prompt: {median: 300", "prompt: {median: 8000")
            .replace("kv_tokens: 60000", "kv_tokens: 6000000");
        fs::write(folder.path().join("long.yaml"), scenario).unwrap();
        let output = in_folder(folder.path(), &["long.yaml", "--series", "s.csv"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let series = fs::read_to_string(folder.path().join("s.csv")).unwrap();
        let mut rows = series.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let at = rows.next().unwrap().iter().position(|it| *it == "carries_per_s").unwrap();
        rows.filter_map(|row| row[at].parse::<f64>().ok()).next_back().unwrap()
    };
    let (long, never) = (carries("1000"), carries("100000"));
    assert!(long > 1.1 * never, "{long} {never}");
}

#[test]
fn a_node_that_no_replica_waits_for_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let said = |startup: &str| {
        let scenario = STUDY.replace("{load: 10s, sigma: 0.3}", startup);
        fs::write(folder.path().join("nodes.yaml"), scenario).unwrap();
        let output = in_folder(folder.path(), &["nodes.yaml"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stderr)
    };
    let warned = said("{node: 5m}");
    assert!(warned.contains("variants[0].startup.node has no effect without"), "{warned}");
    assert_eq!(said("{node: 5m, warm_nodes: 1}"), "");
}

#[test]
fn a_trace_is_read_from_the_folder_that_the_environment_names() {
    let folder = tempfile::tempdir().unwrap();
    let traces = tempfile::tempdir().unwrap();
    let rows: Vec<String> = (0..20).map(|second| format!("{second},100,10\n")).collect();
    let trace = format!("seconds,input_tokens,output_tokens\n{}", rows.concat());
    fs::write(traces.path().join("elsewhere.csv"), trace).unwrap();
    let (before, after) = STUDY.split_once("    drawn:").unwrap();
    let (_, after) = after.split_once("variants:").unwrap();
    let (after, _) = after.split_once("sweep:").unwrap();
    let scenario =
        format!("{before}    trace: {{file: elsewhere.csv, format: csv}}\nvariants:{after}");
    fs::write(folder.path().join("traced.yaml"), scenario).unwrap();
    let simulate = |traces: Option<&Path>| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.args(["simulate", "traced.yaml"]).current_dir(folder.path()).env_clear();
        command.envs(traces.map(|path| ("PLIMSOLL_TRACES", path))).output().unwrap()
    };
    assert_eq!(simulate(None).status.code(), Some(64));
    let output = simulate(Some(traces.path()));
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn a_variant_at_which_requests_wait_next_to_one_that_has_room_is_named() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("unlike.yaml"), UNLIKE).unwrap();
    let table = text(&in_folder(folder.path(), &["unlike.yaml"]).stdout);
    assert!(table.contains("\nslow starved: requests waited at it for "), "{table}");
    assert!(!table.contains("\nfast starved"), "{table}");
    let routed = ["unlike.yaml", "--set", "models[0].router=least_requests"];
    let table = text(&in_folder(folder.path(), &routed).stdout);
    assert!(!table.contains("starved"), "{table}");
}

#[test]
fn a_file_that_cannot_be_written_is_said_before_anything_is_simulated() {
    let folder = tempfile::tempdir().unwrap();
    for option in ["--json", "--series", "--cards", "--report"] {
        // Longer than any test waits.
        let long = ["study.yaml", "--seeds", "1000", "--set", "length=8000h"];
        let output = in_folder(folder.path(), &[&long[..], &[option, "none/file"]].concat());
        assert_eq!(output.status.code(), Some(69), "{option}");
        let said = text(&output.stderr);
        assert!(said.contains("cannot write none/file: No such file"), "{option}: {said}");
        let output = in_folder(folder.path(), &[&long[..], &[option, "."]].concat());
        assert!(text(&output.stderr).contains("cannot write .: Is a directory"), "{option}");
    }
    // What can be written is not touched before there is something to write.
    fs::write(folder.path().join("old.json"), "old").unwrap();
    let output = in_folder(
        folder.path(),
        &["study.yaml", "--policy", "magic", "--json", "old.json", "--report", "new.html"],
    );
    assert_eq!(output.status.code(), Some(64));
    assert_eq!(fs::read_to_string(folder.path().join("old.json")).unwrap(), "old");
    assert!(!folder.path().join("new.html").exists());
    // A device that is full is found when it is written; the table is printed all the same.
    if Path::new("/dev/full").exists() {
        let short = ["study.yaml", "--policy", "static:1", "--json", "/dev/full"];
        let output = in_folder(folder.path(), &short);
        assert_eq!(output.status.code(), Some(69), "{}", text(&output.stderr));
        assert!(text(&output.stdout).contains("2 of 2 runs"), "{}", text(&output.stdout));
        assert!(text(&output.stderr).contains("cannot write /dev/full"));
    }
}

#[test]
fn what_is_not_written_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = [&WHOLE[..], &["--json", "whole.json"]].concat();
    assert_eq!(in_folder(folder.path(), &arguments).status.code(), Some(0));
    for option in ["--series", "--cards", "--trace", "--shard", "--set", "--policy", "--seeds"] {
        let output = in_folder(folder.path(), &["--merge", "whole.json", option, "2"]);
        assert_eq!(output.status.code(), Some(64), "{option}");
        let said = text(&output.stderr);
        assert!(said.contains("cannot be used with") && said.contains(option), "{said}");
    }
    let output = in_folder(folder.path(), &["--merge", "whole.json", "--report", "r.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = fs::read_to_string(folder.path().join("r.html")).unwrap();
    assert!(page.contains("There are no charts") && !page.contains("<svg"), "{page}");
    // There are eight runs, and the ninth shard of nine has none.
    let none = ["--shard", "9/9", "--series", "s.csv", "--cards", "c.yaml", "--json", "9.json"];
    let output = in_folder(folder.path(), &[&WHOLE[..], &none[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for line in ["--series s.csv is not written", "--cards c.yaml is not written"] {
        assert!(text(&output.stderr).contains(line), "{line}: {}", text(&output.stderr));
    }
    assert!(folder.path().join("9.json").exists() && !folder.path().join("s.csv").exists());
}

#[test]
fn a_wrong_plan_exits_64_and_says_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    for (arguments, said) in [
        (&["--policy", "magic"][..], "--policy magic must be plimsoll, plimsoll-only-up, static:N"),
        (&["--shard", "4/3"], "--shard 4/3 must be I/N"),
        (&["--set", "seed"], "--set seed must be PATH=VALUE"),
        (&["--set", "models[7].name=x"], "models[7].name has an index out of range"),
        (&["--set", "colour=red"], "colour is not a known key"),
        (&["--seeds", "0"], "0 is not in 1..=100000"),
        (&["--seeds", "100000"], "there must be at most 100000 runs"),
    ] {
        let output = in_folder(folder.path(), &[&["study.yaml"], arguments].concat());
        assert_eq!(output.status.code(), Some(64), "{arguments:?}");
        assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
    }
}

/// Ten minutes of a load that doubles, which one replica carries at first.
const DOUBLING: &str = "\
length: 10m
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  workload:
    drawn:
      points: [{at: 0s, rate: 4}, {at: 2m, rate: 4}, {at: 5m, rate: 14}]
      prompt: {fixed: 1000}
      output: {fixed: 100}
variants:
- name: v
  replicas: {min: 1, max: 8}
  engine: {alpha: 20ms, beta: 60us, delta: 60us, kv_tokens: 60000, seats: 64}
  startup: {load: 30s}
policy:
  analysis: capacity
  capacity: {analyzers: [foresight], slo: {itl: 60ms}}
";

#[test]
fn every_policy_of_the_scoreboard_plays_and_the_clairvoyant_one_serves_what_it_promises() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("doubling.yaml");
    fs::write(&path, DOUBLING).unwrap();
    let out = folder.path().join("board");
    let board = |arguments: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args([&["scoreboard", "--out", out.to_str().unwrap()], arguments].concat())
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .env_clear()
            .output()
            .unwrap()
    };
    let output = board(&[path.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document = fs::read_to_string(out.with_extension("md")).unwrap();
    let row = |name: &str| {
        let line = document.lines().filter(|line| line.starts_with(&format!("| {name} |")));
        let cells: Vec<Vec<&str>> = line.map(|line| line.split(" | ").collect()).collect();
        cells[1].clone()
    };
    let number = |cell: &str| cell.trim_end_matches('%').parse::<f64>().unwrap();
    for (policy, low) in [("oracle", 99.0), ("plimsoll", 90.0), ("melange", 90.0), ("kpa:100", 0.0)]
    {
        assert!(number(row(policy)[1]) >= low, "{policy}\n{document}");
    }
    assert_eq!(row("oracle")[7], "1.00", "{document}");
    assert_eq!(document.lines().filter(|line| line.contains("dynamo-")).count(), 4);
    let page = fs::read_to_string(out.with_extension("html")).unwrap();
    assert!(page.contains("<td>llm-d-slo</td>") && !page.contains("http"), "{page}");
    let again = folder.path().join("other.yaml");
    fs::write(&again, DOUBLING.replace("itl: 60ms}}", "itl: 50ms}}")).unwrap();
    let output = board(&[path.to_str().unwrap(), again.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("must have the same policy as"), "one policy for all");
}

#[test]
fn the_best_fixed_number_is_the_one_that_trying_all_of_them_finds() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("doubling.yaml");
    fs::write(&path, DOUBLING.replace("rate: 14", "rate: 40")).unwrap();
    let numbers: Vec<String> = (1..=8).map(|count| format!("static:{count}")).collect();
    let policies = format!("{},static:best", numbers.join(","));
    let played = || simulate(&[path.to_str().unwrap(), "--policy", &policies, "--json", "-"]);
    let output = played();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(output.stdout, played().stdout, "the same bytes");
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = results["runs"].as_array().unwrap();
    let holds = |run: &&Value| run["within_slo"].as_f64().unwrap() >= 0.99;
    let first = runs.iter().position(|run| holds(&run)).unwrap();
    assert!((2..7).contains(&first), "neither bound does: {first}");
    let best = &runs[8];
    assert_eq!(best["policy"], "static:best");
    assert_eq!(best["variants"][0]["initial"], first + 1);
    for key in ["models", "variants", "cost", "within_slo"] {
        assert_eq!(best[key], runs[first][key], "it is nothing but that number: {key}");
    }
}

#[test]
fn the_best_target_of_keda_serves_enough_for_hardly_more_than_the_best_of_whole_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("doubling.yaml");
    fs::write(&path, DOUBLING).unwrap();
    let targets: Vec<String> = (1..=7).map(|rate| format!("keda-rate:{rate}")).collect();
    let policies = format!("{},keda-rate:best", targets.join(","));
    let output = simulate(&[path.to_str().unwrap(), "--policy", &policies, "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = results["runs"].as_array().unwrap();
    let holds = |run: &&Value| run["within_slo"].as_f64().unwrap() >= 0.99;
    let cost = |run: &Value| run["cost"].as_f64().unwrap();
    let (best, others) = runs.split_last().unwrap();
    let cheapest = others.iter().filter(holds).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap();
    assert!(others.iter().any(|run| !holds(&run)), "not all targets do");
    assert_eq!(best["policy"], "keda-rate:best");
    assert!(holds(&best), "{best}");
    // Targets are a quarter apart.
    assert!(cost(best) <= 1.25 * cost(cheapest), "{best} {cheapest}");
}

/// Two variants, of which neither has enough replicas to do alone.
const PAIR: &str = "\
length: 4m
models:
- name: m
  slo: {ttft: 2s, itl: 60ms}
  workload: {drawn: {rate: 40, prompt: {fixed: 1000}, output: {fixed: 100}}}
variants:
- name: fast
  cost: 3
  replicas: {min: 1, max: 3}
  engine: {alpha: 10ms, beta: 30us, delta: 30us, kv_tokens: 120000, seats: 128}
  autoscaler: {kind: none}
- name: slow
  cost: 1.4
  replicas: {min: 0, max: 4}
  engine: {alpha: 20ms, beta: 60us, delta: 60us, kv_tokens: 60000, seats: 64}
  autoscaler: {kind: none}
";

#[test]
fn the_best_fixed_numbers_of_two_variants_are_the_cheapest_of_all_combinations() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pair.yaml");
    let sweep = "sweep:\n  variants[0].replicas.initial: [1, 2, 3]\n  \
                 variants[1].replicas.initial: [0, 1, 2, 3, 4]\n";
    fs::write(&path, format!("{PAIR}{sweep}")).unwrap();
    let runs = |arguments: &[&str]| -> Vec<Value> {
        let output = simulate(&[&[path.to_str().unwrap(), "--json", "-"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results["runs"].as_array().unwrap().clone()
    };
    let all = runs(&[]);
    assert_eq!(all.len(), 15);
    let holds = |run: &&Value| run["within_slo"].as_f64().unwrap() >= 0.99;
    let cost = |run: &Value| run["cost"].as_f64().unwrap();
    let cheapest = all.iter().filter(holds).min_by(|a, b| cost(a).total_cmp(&cost(b))).unwrap();
    let mixed = |run: &Value| run["variants"][1]["initial"].as_u64().unwrap() > 0;
    assert!(mixed(cheapest) && all.iter().any(|run| !holds(&run)), "{cheapest}");
    let best = runs(&["--set", "sweep={}", "--policy", "static:best"]).remove(0);
    assert_eq!(best["variants"], cheapest["variants"]);
}

#[test]
fn where_no_fixed_number_does_there_is_no_run_and_it_is_said_why() {
    let folder = tempfile::tempdir().unwrap();
    let few = DOUBLING.replace("max: 8", "max: 1");
    fs::write(folder.path().join("few.yaml"), format!("kind: jumps\n{few}")).unwrap();
    let plimsoll = |arguments: &[&str]| {
        let mut plimsoll = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let output = plimsoll.args(arguments).current_dir(folder.path()).env_clear().output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let why = "no fixed number of replicas within the bounds of the variants serves 99% within SLO";
    let policies = ["few.yaml", "--policy", "static:best,static:1"];
    let whole = [&["simulate"], &policies[..], &["--json", "-"]].concat();
    let results: Value = serde_json::from_str(&plimsoll(&whole)).unwrap();
    assert_eq!(results["runs"].as_array().unwrap().len(), 1);
    let left_out = &results["left_out"][0];
    assert_eq!((&left_out["policy"], &left_out["index"]), (&json!("static:best"), &json!(0)));
    assert!(left_out["why"].as_str().unwrap().starts_with(why), "{left_out}");
    for shard in ["1", "2"] {
        let (part, file) = (format!("{shard}/2"), format!("{shard}.json"));
        let arguments = ["--shard", &part, "--json", &file, "--report", "r.html"];
        plimsoll(&[&["simulate"], &policies[..], &arguments].concat());
    }
    let merged = plimsoll(&["simulate", "--merge", "2.json", "1.json", "--json", "-"]);
    assert_eq!(serde_json::from_str::<Value>(&merged).unwrap(), results);
    let table = plimsoll(&["simulate", "--merge", "2.json", "1.json"]);
    assert!(table.contains(&format!("static:best, seed 1 was left out: {why}")), "{table}");
    let board = ["scoreboard", "few.yaml", "--policy", "static:best,static:1", "--out", "board"];
    plimsoll(&board);
    let document = fs::read_to_string(folder.path().join("board.md")).unwrap();
    let said = document.replace('\n', " ");
    assert!(said.contains(&format!("`static:best` with seed 1: {why}")), "{document}");
    assert!(document.contains("| static:best | - / - | - / - |"), "{document}");
    assert!(document.contains("\n| static:best | - | - |"), "{document}");
    assert!(document.contains("\n6167 requests in"), "of whoever has a run: {document}");
    assert!(!document.contains("## Gates"), "nobody promises anything: {document}");
}

#[test]
fn the_scoreboard_plays_who_and_what_is_named_twice_once_and_says_what_is_promised() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("a.yaml"), format!("kind: smooth\n{DOUBLING}")).unwrap();
    let board = |more: &[&str]| {
        let arguments = [&["scoreboard", "a.yaml", "./a.yaml", "--out", "board"], more].concat();
        let mut plimsoll = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        let output = plimsoll.args(arguments).current_dir(folder.path()).env_clear().output();
        let output = output.unwrap();
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let page = fs::read_to_string(folder.path().join("board.html")).unwrap();
        (fs::read_to_string(folder.path().join("board.md")).unwrap(), page)
    };
    let policies = "static:2,plimsoll,static:2,static:best,static:02";
    let (document, page) = board(&["--policy", policies]);
    assert!(document.contains("\n| policy | a | mean |\n"), "one workload: {document}");
    assert_eq!(document.matches("\n| static:2 |").count(), 2, "in one row of each table");
    let (_, gates) = document.split_once("\n## Gates\n").unwrap();
    let (gates, after) = gates.split_once("\n## All workloads").unwrap();
    assert!(gates.contains("\nSmooth: a.\n"), "{gates}");
    assert!(gates.contains("| smooth: at least 99% within SLO | 1 | "), "{gates}");
    assert!(gates.contains("| all: at most 1.2 times the cost of `static:best`"), "{gates}");
    assert!(!gates.contains("oracle") && !gates.contains("jumps:"), "not in this run: {gates}");
    assert!(page.contains("<h2>Gates</h2>") && page.contains("<td>smooth: at least 99"), "{page}");
    assert!(after.contains("\n`static:best` is 2 v.\n"), "{after}");
    assert!(!board(&["--policy", "waiting:5"]).0.contains("## Gates"));
    fs::write(folder.path().join("a.yaml"), format!("kind: calm\n{DOUBLING}")).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["scoreboard", "a.yaml", "--policy", "static:1", "--out", "board"])
        .current_dir(folder.path())
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(64));
    assert!(text(&output.stderr).contains("a.yaml:1: error: kind "), "{}", text(&output.stderr));
}

#[test]
fn the_scoreboard_of_several_seeds_has_their_means_and_the_worst_minute_of_all() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("doubling.yaml");
    fs::write(&path, DOUBLING).unwrap();
    let out = folder.path().join("board");
    let seeds = [path.to_str().unwrap(), "--policy", "static:1", "--seeds", "3"];
    let board = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args([&["scoreboard", "--out", out.to_str().unwrap()], &seeds[..]].concat())
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(board.status.code(), Some(0), "{}", text(&board.stderr));
    let document = fs::read_to_string(out.with_extension("md")).unwrap();
    assert!(document.contains("simulated with 3 seeds"), "{document}");
    let row = document.lines().rfind(|line| line.starts_with("| static:1 |")).unwrap();
    let number = |at: usize| {
        let cell = row.trim_matches(['|', ' ']).split(" | ").nth(at).unwrap();
        cell.trim_end_matches('%').parse::<f64>().unwrap()
    };
    let results = simulate(&[&seeds[..], &["--json", "-"]].concat());
    let results: Value = serde_json::from_slice(&results.stdout).unwrap();
    let each = |key: &str| -> Vec<f64> {
        let runs = results["runs"].as_array().unwrap();
        runs.iter().map(|run| run.pointer(key).unwrap().as_f64().unwrap()).collect()
    };
    let within = each("/within_slo");
    assert!((within[0] - within[1]).abs() > 1e-9, "seeds differ: {within:?}");
    let mean = |of: &[f64]| of.iter().sum::<f64>() / of.len() as f64;
    assert!((number(1) - 100.0 * mean(&within)).abs() < 0.006, "{row} {within:?}");
    let worst = each("/models/0/worst_minute_within_slo").into_iter().fold(1.0, f64::min);
    assert!((number(4) - 100.0 * worst).abs() < 0.006, "{row} {worst}");
    assert!((number(2) - 100.0 * mean(&each("/within_ttft"))).abs() < 0.006, "{row}");
    assert!((number(3) - 100.0 * mean(&each("/within_itl"))).abs() < 0.006, "{row}");
    assert!((number(6) - mean(&each("/cost"))).abs() < 0.006, "{row}");
}

#[test]
fn of_a_steady_load_foresight_asks_for_what_the_simulator_says_it_takes_within_a_tenth() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/steady.yaml");
    let run = |policy: &str| {
        let output = simulate(&[path.to_str().unwrap(), "--policy", policy, "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results["runs"][0].clone()
    };
    let served = |run: &Value| run["within_slo"].as_f64().unwrap();
    assert!(served(&run("static:8")) < 0.9, "eight are too few");
    assert!(served(&run("static:9")) > 0.98, "nine are nearly enough");
    let own = run("plimsoll");
    assert!(served(&own) > 0.99, "{own}");
    let last = own["decisions"].as_array().unwrap().last().unwrap();
    // Ten, and one more while little is known.
    assert!((9..=11).contains(&last["after"].as_u64().unwrap()), "{last}");
    let why = last["why"].as_str().unwrap();
    let (_, carries) = why.split_once("capacity per replica ").unwrap();
    let carries: f64 = carries.split(',').next().unwrap().parse().unwrap();
    assert!((carries / (80.0 / 9.0) - 1.0).abs() < 0.1, "{why}");
}

/// Decisions of the default policy on a scenario.
fn decided(scenario: &str, settings: &[&str]) -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(scenario);
    let settings = settings.iter().flat_map(|it| ["--set", it]);
    let arguments = [path.to_str().unwrap(), "--json", "-"].into_iter().chain(settings);
    let output = simulate(&arguments.collect::<Vec<_>>());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    results["runs"][0].clone()
}

#[test]
fn a_rollout_raises_no_desired_replicas_if_an_hpa_takes_its_surge_for_requested() {
    for analysis in ["capacity", "saturation"] {
        let analysis = format!("policy.analysis={analysis}");
        let settings = [
            &analysis,
            "variants[0].rollout={at: 10m, max_surge: 0.1, max_unavailable: 0}",
            "variants[0].autoscaler.behavior={scaleUp: {tolerance: 0.1}, scaleDown: {tolerance: 0.1}}",
        ];
        let run = decided("tests/data/steady.yaml", &settings);

        let starts = run["variants"][0]["starts"].as_u64().unwrap();
        assert!(starts >= 8, "the rollout replaces all replicas: {run}");
        let decisions = run["decisions"].as_array().unwrap();
        for decision in decisions.iter().filter(|it| it["at_s"].as_f64() > Some(600.0)) {
            let falls = decision["after"].as_u64() < decision["before"].as_u64();
            let is_needed = decision["why"].as_str().unwrap().contains("low queue headroom");
            assert!(falls || is_needed, "{decision}");
        }
    }
}

#[test]
fn the_need_of_a_step_is_requested_within_8_seconds() {
    // Thirty requests per second take three replicas of 14.3, from the 600th second on.
    let requested = |settings: &[&str]| {
        let run = decided("scoreboard/step.yaml", &[&["sweep={}"], settings].concat());
        let decisions = run["decisions"].as_array().unwrap().clone();
        let enough = decisions
            .iter()
            .find(|it| it["at_s"].as_f64().unwrap() >= 600.0 && it["after"].as_u64().unwrap() >= 3);
        enough.unwrap()["at_s"].as_f64().unwrap() - 600.0
    };
    for seed in ["seed=1", "seed=2", "seed=3"] {
        let with = requested(&[seed]);
        assert!(with <= 8.0, "{with} s, {seed}");
    }
    let without = requested(&["policy.capacity.foresight.jump.enabled=false"]);
    assert!(without > 10.0, "{without} s by the mean of 15 s");
}

#[test]
fn retries_of_clients_that_gave_up_ask_for_no_replicas() {
    let hours = |settings: &[&str]| {
        let run = decided("tests/data/retries.yaml", settings);
        run["replica_hours"].as_f64().unwrap()
    };
    let without = hours(&["models[0].client.retries=0"]);
    let with = hours(&[]);
    assert!(with < 1.3 * without, "{with} replica-hours with retries, {without} without");
}

#[test]
fn lengths_that_grow_ask_for_replicas_in_time() {
    // Prompts of twice and answers of three times the length, within ten minutes.
    let run = decided("tests/data/drift.yaml", &[]);
    let served = run["within_slo"].as_f64().unwrap();
    assert!(served > 0.95, "{served}");
    let reasons = run["decisions"].to_string();
    assert!(reasons.contains("times the work of"), "{reasons}");
}

#[test]
fn a_load_that_doubles_within_one_start_is_followed_along_its_curve() {
    // Along a straight line, 81% are served.
    let run = decided("tests/data/convex.yaml", &[]);
    let served = run["within_slo"].as_f64().unwrap();
    assert!(served > 0.88, "{served}");
}

#[test]
fn a_router_that_fills_slow_replicas_first_is_counted_on() {
    let run = |more: &[&str]| decided("tests/data/routing.yaml", more);
    let known = run(&[]);
    let unknown = run(&["policy.capacity.foresight.routing.enabled=false"]);
    let [(with, cost), (without, dearer)] = [&known, &unknown]
        .map(|it| (it["within_slo"].as_f64().unwrap(), it["cost"].as_f64().unwrap()));
    assert!(with > 0.98 && without < with - 0.03, "{with} {without}");
    assert!(cost < 1.05 * dearer, "{cost} {dearer}");
    let reasons = known["decisions"].to_string();
    assert!(reasons.contains("the router would fill it before the other variants"), "{reasons}");
}

#[test]
fn a_readable_queue_at_the_gateway_serves_a_jump_that_replicas_do_not_show() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/gateway.yaml");
    let run = |more: &[&str]| {
        let output = simulate(&[&[path.to_str().unwrap(), "--json", "-"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results["runs"][0].clone()
    };
    let served = |run: &Value| run["within_slo"].as_f64().unwrap();
    let knows = run(&[]);
    assert!(served(&knows) > 0.7, "{knows}");
    let decisions = knows["decisions"].to_string();
    assert!(decisions.contains("requests in the gateway's queue"), "{decisions}");
    assert!(decisions.contains("unless the gateway sheds"), "{decisions}");
    for unaware in
        ["models[0].gateway={per_replica: 96}", "policy.capacity.foresight.gateway.enabled=false"]
    {
        let run = run(&["--set", unaware]);
        assert!(served(&run) < served(&knows) - 0.05, "{unaware}: {run}");
        assert!(!run["decisions"].to_string().contains("gateway"), "{run}");
    }
}

#[test]
fn rejecting_what_is_not_admissible_serves_more_of_a_spike_in_time() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("scoreboard/spike.yaml");
    let run = |gateway: &str| {
        let set = format!("models[0].gateway={gateway}");
        let output = simulate(&[
            path.to_str().unwrap(),
            "--json",
            "-",
            "--set",
            "length=20m",
            "--set",
            &set,
        ]);
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        let run = &results["runs"][0];
        let rejected = run["models"][0]["rejected"].as_f64().unwrap();
        (run["within_slo"].as_f64().unwrap(), rejected)
    };
    let (all, none_rejected) = run("{}");
    let (unreported, most_rejected) = run("{admit: {}}");
    let (reported, rejected) = run("{read: 1s, admit: {}}");
    assert!(none_rejected < 0.5 && rejected > 0.0);
    assert!(reported > all + 0.04, "{reported} {all}");
    assert!(reported >= unreported && rejected <= most_rejected, "{reported} {unreported}");
}

#[test]
fn what_comes_each_day_at_nine_is_prepared_for_from_the_third_day_on() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/office.yaml");
    let output = simulate(&[path.to_str().unwrap(), "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let decisions = results["runs"][0]["decisions"].as_array().unwrap();
    let grows = |it: &&Value| it["after"].as_u64() > it["before"].as_u64().or(Some(1));
    let hour = |it: &Value| it["at_s"].as_f64().unwrap() / 3600.0;
    // The first of each day at which more is asked for.
    let first = |day: f64| {
        let of_day = |it: &&Value| hour(it) > 24.0 * day + 1.0;
        decisions.iter().filter(grows).find(of_day).unwrap()
    };
    assert!(hour(first(0.0)) >= 9.0 && hour(first(1.0)) >= 33.0, "{decisions:?}");
    let third = first(2.0);
    assert!((56.9..57.0).contains(&hour(third)), "{third}");
    assert!(third.to_string().contains("are usual in the next"), "{third}");
}

#[test]
fn a_cheaper_variant_takes_the_place_of_a_dear_one_once_and_not_again_with_each_tick() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/exchange.yaml");
    let output = simulate(&[path.to_str().unwrap(), "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let variants = results["runs"][0]["variants"].as_array().unwrap();
    let cheap = variants.iter().find(|it| it["variant"] == "cheap").unwrap();
    assert!((1..=6).contains(&cheap["peak"].as_u64().unwrap()), "{cheap}");
    let last = |name: &str| {
        let decisions = results["runs"][0]["decisions"].as_array().unwrap();
        decisions.iter().rfind(|it| it["variant"] == name).unwrap()["after"].as_u64()
    };
    assert_eq!(last("dear"), Some(0), "{results}");
    assert!(last("cheap") >= Some(3), "{results}");
}

#[test]
fn what_no_limit_has_room_for_is_not_replaced_before_something_may_go() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/exchange.yaml");
    let limit = ["--set", "policy.limits={accelerators: {H100: 5}}", "--json", "-"];
    let output = simulate(&[&[path.to_str().unwrap()], &limit[..]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let decisions = results["runs"][0]["decisions"].as_array().unwrap();
    // What the cheap variant is not given takes nothing from the dear one: 100 requests/s take three
    // replicas, and those beyond them may go without any other.
    let mut published = [0, 0];
    let mut lowered = 0;
    for it in decisions {
        let (before, after) = (it["before"].as_u64(), it["after"].as_u64().unwrap());
        published[usize::from(it["variant"] == "cheap")] = after;
        if before > Some(after) {
            lowered += 1;
            assert!(lowered > 1 || after >= 3, "{it}");
            assert!(published.iter().sum::<u64>() >= 3, "{it}");
        }
    }
    assert!(lowered >= 3, "in steps: {decisions:?}");
    let within = results["runs"][0]["within_slo"].as_f64().unwrap();
    assert!(within > 0.99, "{within}");
}

#[test]
fn a_policy_has_the_objectives_of_its_scenario_or_a_warning_says_that_it_has_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    let run = |text: &str| {
        fs::write(&path, text).unwrap();
        let output = simulate(&[path.to_str().unwrap(), "--policy", "plimsoll", "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", self::text(&output.stderr));
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        (self::text(&output.stderr), results["runs"][0]["cost"].clone())
    };
    let (said, given) = run(DOUBLING);
    assert!(!said.contains("slo"), "{said}");
    let (said, filled) = run(&DOUBLING.replace(", slo: {itl: 60ms}", ""));
    assert!(!said.contains("slo") && filled == given, "{said} {filled} {given}");
    let (said, _) = run(&DOUBLING.replace("slo: {itl: 60ms}}", "slo: {itl: 50ms}}"));
    let why = "policy.capacity.slo.itl is 50ms, so replicas are sized for that, and the requests to m \
               are judged by 60ms";
    assert!(said.contains(why), "{said}");
}

#[test]
fn a_few_replicas_of_standby_save_most_of_what_a_jump_would_lose() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/simulate-standby.yaml");
    let output = simulate(&[path.to_str().unwrap(), "--json", "-"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let runs = results["runs"].as_array().unwrap();
    let within = |at: usize| runs[at]["within_slo"].as_f64().unwrap();
    let hours = |at: usize| runs[at]["variants"][1]["replica_hours"].as_f64().unwrap();
    assert!(within(1) > within(0) + 0.08, "{} {}", within(0), within(1));
    // Three or four of them for the minutes that the others take to start.
    assert!((0.05..0.5).contains(&hours(1)), "{}", hours(1));
}

#[test]
fn the_ablation_has_a_row_for_each_change_and_some_of_them_matter() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("doubling.yaml");
    let steep = DOUBLING.replace("length: 10m", "length: 7m").replace("rate: 14", "rate: 40");
    fs::write(&path, steep).unwrap();
    let out = folder.path().join("board");
    let output = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(["scoreboard", path.to_str().unwrap(), "--policy", "plimsoll", "--ablation"])
        .args(["--out", out.to_str().unwrap()])
        .env_clear()
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let document = fs::read_to_string(out.with_extension("md")).unwrap();
    let (_, table) = document.split_once("## Ablation").unwrap();
    let (table, _) = table.split_once("\n## ").unwrap();
    let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("| ")).skip(1).collect();
    let cell = |row: &str| row.split(" | ").nth(1).unwrap().to_owned();
    assert!(rows[0].starts_with("| as it is |"), "{table}");
    assert!(document.contains(&format!("| plimsoll | {} |", cell(rows[0]))), "{document}");
    for term in ["growth", "ramp", "bursts", "backlog", "hold"] {
        let name = format!("| without `{term}` |");
        assert!(rows.iter().any(|row| row.starts_with(&name)), "{name} in\n{table}");
    }
    assert!(rows.iter().all(|row| cell(row) != "- / -"), "{table}");
    assert!(rows.iter().any(|row| cell(row) != cell(rows[0])), "{table}");
}

#[test]
fn the_scenarios_of_the_scoreboard_are_whole_but_for_traces_that_are_not_there() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("scoreboard");
    let mut policies = BTreeSet::new();
    let mut files = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let written = fs::read_to_string(&path).unwrap();
        policies.insert(written.split_once("\npolicy:").unwrap().1.to_owned());
        files += 1;
        let shorter = ["--set", "length=5s", "--policy", "static:1"];
        let output = simulate(&[&[path.to_str().unwrap()], &shorter[..]].concat());
        let said = text(&output.stderr);
        let traced = written.contains("    trace:");
        assert_eq!(output.status.code(), Some(if traced { 64 } else { 0 }), "{said}");
        let problems = said.lines().filter(|line| line.contains("error:"));
        assert!(problems.clone().all(|line| line.contains("workload.trace.file")), "{said}");
        assert_eq!(problems.count(), usize::from(traced), "{said}");
    }
    assert!(files >= 10 && policies.len() == 1, "{files} scenarios, one policy for all");
}

#[test]
fn a_scenario_says_who_is_compared_and_how_much_later_long_prompts_may_be() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("scenario.yaml");
    let run = |text: &str| {
        fs::write(&path, text).unwrap();
        let output = simulate(&[path.to_str().unwrap(), "--json", "-"]);
        assert_eq!(output.status.code(), Some(0), "{}", self::text(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()
    };
    // A prompt of 1000 tokens takes 80 ms at least, which is too late without the allowance.
    let strict = DOUBLING.replace("ttft: 2s", "ttft: 50ms").replace("length: 10m", "length: 1m");
    let compared = format!("{strict}compare: [\"static:4\", \"kpa:100\"]\n");
    let results = run(&compared);
    assert_eq!(results["runs"][0]["policy"], "static:4");
    assert_eq!(results["runs"][1]["policy"], "kpa:100");
    assert_eq!(results["runs"][0]["within_slo"], 0.0);
    let allowed =
        compared.replace("itl: 60ms}\n", "itl: 60ms, ttft_per_token: 1ms, long_prompt: 500}\n");
    assert_eq!(run(&allowed)["runs"][0]["within_slo"], 1.0);
    let said = refusal(&format!("{DOUBLING}compare: [other]\n"), &[]);
    let place = "scenario.yaml:18: error: compare[0] must be plimsoll";
    assert!(said.contains(place) && said.contains("; found other"), "{said}");
}

#[test]
fn batch_work_has_a_line_of_its_own_and_is_in_no_other_count() {
    let harsh = "examples/simulate-harsh.yaml";
    let few = ["--set", "length=20m"];
    let table = simulate(&[&[harsh][..], &few].concat());
    assert_eq!(table.status.code(), Some(0), "{}", text(&table.stderr));
    let table = text(&table.stdout);
    let (_, line) = table.split_once("\nbatch work of meta-llama/Llama-3.1-8B-Instruct: ").unwrap();
    let output = simulate(&[&[harsh, "--json", "-"][..], &few].concat());
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    let model = &results["runs"][0]["models"][0];
    let arrived = model["batch"]["arrived"].as_u64().unwrap();
    // One a second for five minutes.
    assert!((240..=360).contains(&arrived), "{arrived}");
    assert!(line.starts_with(&format!("{arrived} requests, ")), "{line}");

    let alone = [
        "--json",
        "-",
        "--set",
        "models[0].batch={drawn: {rate: 0, prompt: {fixed: 1}, output: {fixed: 1}}}",
    ];
    let output = simulate(&[&[harsh][..], &few, &alone].concat());
    let results: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(results["runs"][0]["models"][0]["arrived"], model["arrived"]);

    let output = simulate(&[harsh, "--set", "models[0].batch={slo: {ttft: 1s, itl: 1s}}"]);
    assert_eq!(output.status.code(), Some(64), "{}", text(&output.stderr));
    let said = "models[0].batch.drawn is required";
    assert!(text(&output.stderr).contains(said), "{}", text(&output.stderr));
}
