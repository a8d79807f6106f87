//! `plimsoll engine` as a process: what Plimsoll's own daemon and clients of `OpenAI`'s API get of it.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use plimsoll::collect::exposition;
use plimsoll::fleet::ModelName;
use plimsoll::observe::Reading;
use plimsoll::units::{Requests, Tokens};
use reqwest::{Client, StatusCode};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::daemon::{Running, text};

/// How long a response may take until a test gives up. It is no measure of anything.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running engine. Dropping it ends it by force.
struct ServedEngine {
    child: Child,
    address: SocketAddr,
    client: Client,
}

impl ServedEngine {
    fn start(arguments: &[&str]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
            .args(["engine", "--listen=127.0.0.1:0", "--startup=0s", "--seed=1"])
            .args(arguments)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let address = lines
            .map_while(Result::ok)
            .find_map(|line| line.split_once("http://")?.1.parse().ok())
            .expect("an address");
        Self { child, address, client: Client::new() }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    async fn get(&self, path: &str) -> reqwest::Response {
        self.client.get(self.url(path)).timeout(PATIENCE).send().await.unwrap()
    }

    async fn load(&self, rate: &str) -> StatusCode {
        self.client.put(self.url("/load")).body(rate.to_owned()).send().await.unwrap().status()
    }

    async fn post(&self, path: &str, body: &Value) -> reqwest::Response {
        let request = self.client.post(self.url(path)).timeout(PATIENCE);
        request.body(body.to_string()).send().await.unwrap()
    }

    async fn reading(&self) -> Reading {
        let response = self.get("/metrics").await;
        let kind = response.headers()["content-type"].to_str().unwrap().to_owned();
        exposition::read(&response.bytes().await.unwrap(), Some(&kind)).unwrap()
    }

    /// Waits until a reading is such a one.
    async fn until(&self, what: &str, is: impl Fn(&Reading) -> bool) {
        let seen = async {
            while !is(&self.reading().await) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        assert!(tokio::time::timeout(PATIENCE, seen).await.is_ok(), "never saw {what}");
    }
}

impl Drop for ServedEngine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn json_of(response: reqwest::Response) -> Value {
    serde_json::from_slice(&response.bytes().await.unwrap()).unwrap()
}

/// The events of a stream, without the last, which ends it.
fn events(stream: &str) -> Vec<Value> {
    let mut events: Vec<&str> =
        stream.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect();
    assert_eq!(events.pop(), Some("[DONE]"), "{stream}");
    events.into_iter().map(|event| serde_json::from_str(event).unwrap()).collect()
}

fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_plimsoll")).arg("engine").args(arguments).output().unwrap()
}

#[tokio::test]
async fn a_daemon_scrapes_an_engine_and_scales_by_the_load_that_it_is_given() {
    let engine = ServedEngine::start(&["--model=m", "--load=1"]);
    let daemon = Running::start(&text(&[("a", engine.address)], "")).await;
    daemon.until_desired("a", Some(1.0)).await;
    // More than any engine of the scenario serves.
    assert_eq!(engine.load("200").await, StatusCode::OK);
    daemon.until_desired("a", Some(2.0)).await;
    daemon.end().await;
}

#[tokio::test]
async fn its_metrics_are_read_as_those_of_vllm_and_count_what_clients_asked_for() {
    let engine = ServedEngine::start(&[]);
    let before = engine.reading().await;
    let model = ModelName::new("meta-llama/Llama-3.1-8B-Instruct").unwrap();
    assert_eq!(before.models, [model]);
    assert!(before.started.is_some());

    let body = json!({"prompt": "12345678", "max_tokens": 3});
    let answer = json_of(engine.post("/v1/completions", &body).await).await;
    let usage = json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5});
    assert_eq!(answer["usage"], usage, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "length");
    assert_eq!(answer["choices"][0]["text"], " token token token");

    let rank = engine.reading().await.ranks[0].clone();
    assert_eq!(rank.generation_tokens, Tokens::new(3.0));
    assert_eq!(rank.prompt_tokens, Tokens::new(2.0));
}

#[tokio::test]
async fn a_stream_has_every_token_once_and_the_usage_if_asked_for() {
    let engine = ServedEngine::start(&[]);
    let body = json!({"prompt": [1, 2, 3], "max_tokens": 40, "stream": true});
    let response = engine.post("/v1/completions", &body).await;
    assert!(response.headers()["content-type"].to_str().unwrap().starts_with("text/event-stream"));
    let streamed = events(&response.text().await.unwrap());
    let said: String =
        streamed.iter().filter_map(|event| event["choices"][0]["text"].as_str()).collect();
    assert_eq!(said, " token".repeat(40));
    assert!(streamed.len() > 1, "the answer came at once");
    assert_eq!(streamed.last().unwrap()["choices"][0]["finish_reason"], "length");

    let body = json!({
        "messages": [{"role": "user", "content": "hello"}], "stream": true,
        "stream_options": {"include_usage": true},
    });
    let response = engine.post("/v1/chat/completions", &body).await;
    let streamed = events(&response.text().await.unwrap());
    let [first, .., end, usage] = streamed.as_slice() else { panic!("{streamed:?}") };
    assert_eq!(first["choices"][0]["delta"]["role"], "assistant");
    assert_eq!(end["choices"][0]["finish_reason"], "stop");
    let content = streamed.iter().filter_map(|it| it["choices"][0]["delta"]["content"].as_str());
    let tokens = content.collect::<String>().matches(" token").count();
    assert_eq!(usage["usage"]["completion_tokens"], tokens);
}

#[tokio::test]
async fn a_client_that_leaves_frees_its_seat() {
    let engine = ServedEngine::start(&[]);
    let body = json!({"prompt": "a", "max_tokens": 60_000, "stream": true});
    let mut response = engine.post("/v1/completions", &body).await;
    response.chunk().await.unwrap().expect("a token");
    engine.until("a request", |it| it.ranks[0].running == Requests::new(1.0)).await;
    drop(response);
    engine.until("a free seat", |it| it.ranks[0].running == Requests::new(0.0)).await;
}

#[tokio::test]
async fn what_an_engine_cannot_answer_is_refused_with_the_reason() {
    let engine = ServedEngine::start(&[]);
    let huge = "a".repeat(2 << 20);
    for (body, status, reason) in [
        (json!({"max_tokens": 1}), StatusCode::BAD_REQUEST, "prompt is required"),
        (json!({"prompt": "a", "model": "other"}), StatusCode::NOT_FOUND, "does not exist"),
        (json!({"prompt": "a", "max_tokens": 90_000}), StatusCode::BAD_REQUEST, "cache has"),
        (json!({"prompt": huge}), StatusCode::PAYLOAD_TOO_LARGE, "larger than"),
    ] {
        let response = engine.post("/v1/completions", &body).await;
        assert_eq!(response.status(), status, "{reason}");
        let answer = json_of(response).await;
        let message = answer["error"]["message"].as_str().unwrap();
        assert!(message.contains(reason), "{message}");
    }

    for load in ["-1", "many", "1e9", "NaN"] {
        assert_eq!(engine.load(load).await, StatusCode::BAD_REQUEST, "{load}");
    }
    assert_eq!(engine.get("/load").await.text().await.unwrap(), "0\n");
    assert_eq!(engine.get("/elsewhere").await.status(), StatusCode::NOT_FOUND);
    assert_eq!(engine.get("/v1/completions").await.status(), StatusCode::METHOD_NOT_ALLOWED);
    assert_eq!(engine.get("/health").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_head_that_is_too_large_ends_its_connection_and_no_other() {
    let engine = ServedEngine::start(&[]);
    let mut stream = TcpStream::connect(engine.address).await.unwrap();
    let head = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nX: {}\r\n", "x".repeat(100 << 10));
    // The engine may close the connection before everything is written.
    let _cut_off = stream.write_all(head.as_bytes()).await;
    let mut answer = Vec::new();
    let _reset = stream.read_to_end(&mut answer).await;
    let text = String::from_utf8_lossy(&answer);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
    assert_eq!(engine.get("/health").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn a_termination_lets_answers_end_and_takes_no_new_requests() {
    let mut engine = ServedEngine::start(&[]);
    let body = json!({"prompt": "a", "max_tokens": 100, "stream": true});
    let mut response = engine.post("/v1/completions", &body).await;
    let first = response.chunk().await.unwrap().expect("a token");
    let kill = Command::new("kill").args(["-s", "TERM", &engine.child.id().to_string()]).status();
    assert!(kill.unwrap().success());

    let mut stream = String::from_utf8(first.to_vec()).unwrap();
    while let Some(chunk) = response.chunk().await.unwrap() {
        stream += str::from_utf8(&chunk).unwrap();
    }
    let said = events(&stream);
    let text = said.iter().filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(text.collect::<String>().matches(" token").count(), 100);
    assert!(engine.child.wait().unwrap().success());
}

#[test]
fn what_is_wrong_with_the_command_line_is_said() {
    for (arguments, reason) in [
        (&["--variant=other"][..], "it has llama-l40s, llama-h100, qwen-a100"),
        (&["--load=many"], "must be requests per second, from 0 to 10000"),
        (&["--startup=5"], "a duration has a unit"),
        (&["--set=variants[0].engine.seats=0"], "variants[0].engine.seats"),
        (&["examples/simulate-trace.yaml"], "must be drawn or closed"),
        (&["missing.yaml"], "cannot read the scenario missing.yaml"),
    ] {
        let Output { status, stderr, .. } = run(arguments);
        let said = String::from_utf8_lossy(&stderr);
        assert!(said.contains(reason), "{arguments:?}: {said}");
        assert_eq!(status.code(), Some(64), "{arguments:?}: {said}");
    }
}
