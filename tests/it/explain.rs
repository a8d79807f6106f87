//! `plimsoll explain` as its users see it, on a daemon, a trace and a state file.

use std::process::{Command, Output};

use jiff::{SignedDuration, Timestamp};
use reqwest::StatusCode;
use serde_json::Value;

use crate::daemon::{Engine, Running, stats, text};

/// Runs `plimsoll explain` with these arguments, away from the runtime of the daemon.
async fn explain(arguments: &[&str]) -> Output {
    let arguments: Vec<String> = arguments.iter().map(|it| (*it).to_owned()).collect();
    tokio::task::spawn_blocking(move || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_plimsoll"));
        command.arg("explain").args(arguments).output().unwrap()
    })
    .await
    .unwrap()
}

fn out(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn errors(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", errors(output)))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_number_is_explained_from_a_daemon_a_trace_and_a_state_file() {
    let engine = Engine::start().await;
    engine.show(stats(750));
    let folder = tempfile::TempDir::new().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (trace, state) = (path("trace"), path("state.json"));
    let more = format!("state_file: {state}\ntrace: {{dir: {trace}}}\n");
    let running = Running::start(&text(&[("a", engine.address)], &more)).await;
    running.until_desired("a", Some(2.0)).await;

    let url = format!("http://{}", running.daemon.admin());
    let known = explain(&["default/a", "--url", &url]).await;
    let said = out(&known);
    assert!(known.status.success(), "{said}{}", errors(&known));
    for expected in [
        "default/a: 2 desired, 1 exist, 1 ready",
        "Inputs\n  fresh   1 replica is listed",
        "Steps\n  analyze       1 -> 2",
        "Changes\n  ",
        "% KV cache usage",
        "Not known\n  the autoscaler's reaction: no cluster is watched",
    ] {
        assert!(said.contains(expected), "{expected:?} is not in\n{said}");
    }

    // The same as data, with values before words.
    let data = json(&explain(&["default/a", "--url", &url, "--output", "json"]).await);
    assert_eq!(data["variant"]["desired"], 2);
    assert_eq!(data["binding"]["stage"], "analyze");
    assert_eq!(data["load"]["measure"], "kv_usage");
    assert!(data["load"]["now"].as_f64().unwrap() > 0.7, "{data}");
    assert!(data["load"]["down"]["load"].as_f64().unwrap() < data["load"]["now"].as_f64().unwrap());
    assert_eq!(data["complete"], true);
    assert!(data["solves"].as_u64().unwrap() > 3);

    // Ticks are 100 ms apart, and there is one after the answer.
    let now = data["now"].as_str().unwrap().parse::<Timestamp>().unwrap();
    let ticks = running.sample("plimsoll_ticks_total").await.unwrap();
    assert!(running.until("plimsoll_ticks_total", |count| count > ticks).await);
    drop(running.end().await);
    let at = (now - SignedDuration::from_millis(200)).to_string();
    let arguments = ["default/a", "--trace", &trace, "--at", &at, "--output", "json"];
    let traced = json(&explain(&arguments).await);
    assert_eq!(traced["variant"]["desired"], 2);
    assert_eq!(traced["load"]["measure"], "kv_usage");
    assert!(traced["now"].as_str().unwrap() >= at.as_str(), "{traced}");

    let saved = explain(&["default/a", "--state", &state]).await;
    assert!(saved.status.success(), "{}", errors(&saved));
    assert!(out(&saved).starts_with("default/a: 2 desired\n"), "{}", out(&saved));
    assert!(out(&saved).contains("they need inputs, which a state file does not have"));

    // What is not there is an error that names what is.
    for arguments in
        [&["default/b", "--state", &state][..], &["default/b", "--trace", &trace, "--at", &at]]
    {
        let unknown = explain(arguments).await;
        assert_eq!(unknown.status.code(), Some(64), "{arguments:?}");
        assert!(errors(&unknown).contains("it has default/a"), "{}", errors(&unknown));
    }
    let late = explain(&["default/a", "--trace", &trace, "--at", "2099-01-01T00:00:00Z"]).await;
    assert_eq!(late.status.code(), Some(64));
    assert!(errors(&late).contains("it covers"), "{}", errors(&late));
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_number_or_a_variant_or_a_daemon_the_exit_code_and_the_words_say_so() {
    let engine = Engine::start().await;
    engine.show(None);
    let running = Running::start(&text(&[("a", engine.address)], "")).await;
    let url = format!("http://{}", running.daemon.admin());

    let cold = explain(&["default/a", "--url", &url]).await;
    assert_eq!(cold.status.code(), Some(1), "{}", errors(&cold));
    assert!(out(&cold).starts_with("default/a: no number"), "{}", out(&cold));
    assert!(out(&cold).contains("Not known\n  the number: "), "{}", out(&cold));
    assert!(errors(&cold).contains("default/a has no desired replicas"), "{}", errors(&cold));

    let unknown = explain(&["default/b", "--url", &url]).await;
    assert_eq!(unknown.status.code(), Some(64), "{}", errors(&unknown));
    assert!(errors(&unknown).contains("there is no variant default/b"), "{}", errors(&unknown));
    let wrong = explain(&["a", "--url", &url]).await;
    assert_eq!(wrong.status.code(), Some(64));
    assert!(errors(&wrong).contains("give NAMESPACE/VARIANT"), "{}", errors(&wrong));

    let missing = running.ask("GET", "/api/v1/explain?namespace=default").await;
    assert_eq!(missing.0, StatusCode::BAD_REQUEST);
    drop(running.end().await);
    let gone = explain(&["default/a", "--url", &url]).await;
    assert_eq!(gone.status.code(), Some(69), "{}", errors(&gone));
    assert!(errors(&gone).contains("does not respond"), "{}", errors(&gone));
}

#[tokio::test(flavor = "multi_thread")]
async fn many_explanations_at_once_keep_neither_the_loop_nor_other_answers_from_working() {
    let engine = Engine::start().await;
    engine.show(stats(500));
    let running = Running::start(&text(&[("a", engine.address)], "")).await;
    running.until_desired("a", Some(1.0)).await;

    let path = "/api/v1/explain?namespace=default&variant=a";
    let asked = futures_util::future::join_all((0..12).map(|_| running.ask("GET", path)));
    let (answers, (status, decisions)) =
        tokio::join!(asked, running.ask("GET", "/api/v1/decisions"));
    assert_eq!(status, StatusCode::OK, "{decisions}");
    for (status, body) in answers {
        let answered = status == StatusCode::OK || status == StatusCode::SERVICE_UNAVAILABLE;
        assert!(answered, "{status} {body}");
    }
    running.until_desired("a", Some(1.0)).await;
    let _folder = running.end().await;
}
