//! Signals that wake a model: a daemon whose model has no replicas, and what stands in front of it.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use hyper::StatusCode;
use plimsoll::clock::Clock;
use serde_json::Value;
use tempfile::TempDir;

use crate::daemon::Running;
use crate::prometheus::server::{Play, Server as Prometheus};
use crate::scrape::server::{Server, page};

/// What a page of flow control says of requests that queue for the model `m`.
fn picker(queued: u32) -> String {
    format!(
        "# TYPE llm_d_epp_flow_control_queue_size gauge\n\
         llm_d_epp_flow_control_queue_size{{model_name=\"m\",target_model_name=\"m\"}} {queued}\n"
    )
}

/// A server whose page a test replaces.
async fn server(text: &Arc<Mutex<String>>) -> Server {
    let shown = Arc::clone(text);
    Server::http(move |_| {
        let text = shown.lock().unwrap().clone();
        async move {
            let mut response = page(&text);
            if text.is_empty() {
                *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
            }
            response
        }
    })
    .await
}

/// A daemon with a model without replicas, woken by this signal.
async fn asleep(signal: &str, more: &str) -> Running {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("none.json"), "[]").unwrap();
    let text = format!(
        "server: {{listen: \"127.0.0.1:0\"}}\ntick_interval: 100ms\n\
         scale_to_zero: {{enabled: true, wake: [{{name: front, interval: 200ms, {signal}}}]}}\n\
         {more}variants:\n\
         - {{name: a, model: m, source: scrape, replicas: {{min: 0, max: 3}}, \
         targets: {{file: {{paths: [none.json], refresh: 1s}}}}}}\n"
    );
    let daemon = Running::start_in(folder, &text).await;
    daemon.until_desired("a", Some(0.0)).await;
    daemon
}

async fn because(daemon: &Running) -> String {
    let answer = daemon.ask("GET", "/api/v1/decisions").await.1;
    let answer: Value = serde_json::from_str(&answer).unwrap();
    answer["variants"][0]["because"].as_str().unwrap().to_owned()
}

const READS: &str = "plimsoll_wake_signal_reads_total{outcome=\"read\",signal=\"front\"}";
const FAILS: &str = "plimsoll_wake_signal_reads_total{outcome=\"failed\",signal=\"front\"}";

/// Waits until a counter has moved by a few.
async fn until_moved(daemon: &Running, start: &str) {
    let before = daemon.sample(start).await.unwrap_or_default();
    let (mut now, mut looks) = (before, 0);
    while now < before + 3.0 {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        now = daemon.sample(start).await.unwrap_or_default();
        looks += 1;
        assert!(looks < 3_000, "{start} stays {now}");
    }
}

#[tokio::test]
async fn what_queues_at_an_endpoint_picker_wakes_a_model_and_says_so() {
    let text = Arc::new(Mutex::new(picker(0)));
    let picker_page = server(&text).await;
    let daemon = asleep(&format!("url: \"{}\"", picker_page.url()), "").await;
    until_moved(&daemon, READS).await;
    assert_eq!(daemon.desired("a").await, Some(0.0), "nothing queues");
    *text.lock().unwrap() = picker(2);
    daemon.until_desired("a", Some(1.0)).await;
    assert_eq!(because(&daemon).await, "zero: 0 -> 1, woken: front reports 2");
    *text.lock().unwrap() = picker(0);
    until_moved(&daemon, READS).await;
    assert_eq!(daemon.desired("a").await, Some(1.0), "the number leads");
    daemon.end().await;
}

#[tokio::test]
async fn a_signal_that_cannot_be_read_wakes_nothing_and_is_counted() {
    for broken in ["", "<html>\n", "other 3\n", "llm_d_epp_flow_control_queue_size{model_name"] {
        let text = Arc::new(Mutex::new(broken.to_owned()));
        let picker_page = server(&text).await;
        let daemon = asleep(&format!("url: \"{}\"", picker_page.url()), "").await;
        until_moved(&daemon, FAILS).await;
        assert_eq!(daemon.desired("a").await, Some(0.0), "{broken:?}");
        daemon.end().await;
    }
}

#[tokio::test]
async fn a_metric_of_any_page_wakes_the_models_that_it_is_for() {
    let text = Arc::new(Mutex::new("q{route=\"b\"} 7\nq{route=\"a\"} 0\n".to_owned()));
    let gateway = server(&text).await;
    let keys = "metric: q, labels: {route: a}, models: [\"m#default\"]";
    let daemon = asleep(&format!("url: \"{}\", {keys}", gateway.url()), "").await;
    until_moved(&daemon, READS).await;
    assert_eq!(daemon.desired("a").await, Some(0.0), "only samples with the labels count");
    *text.lock().unwrap() = "q{route=\"a\",zone=\"1\"} 1\nq{route=\"a\",zone=\"2\"} 2\n".to_owned();
    daemon.until_desired("a", Some(1.0)).await;
    assert_eq!(because(&daemon).await, "zero: 0 -> 1, woken: front reports 3");
    daemon.end().await;
}

#[tokio::test]
async fn an_expression_in_prometheus_wakes_a_model_and_an_empty_answer_does_not() {
    let prometheus = Prometheus::start().await;
    let (from, to) =
        ("{\"status\":\"success\",\"data\":{\"resultType\":\"matrix\",\"result\":[", "]}}");
    let empty: &'static str = format!("{from}{to}").leak();
    prometheus.play(Play::Body(empty));
    let section = format!("prometheus: {{url: \"{}\"}}\n", prometheus.url());
    let signal = "query: \"sum(rate(gateway_503_total[1m]))\", models: [\"m#default\"]";
    let daemon = asleep(signal, &section).await;
    until_moved(&daemon, FAILS).await;
    assert_eq!(daemon.desired("a").await, Some(0.0), "no series is not 0, and not more");
    let now = Clock::start().now().as_second();
    let series = format!("{{\"metric\":{{}},\"values\":[[{},\"0\"],[{now},\"0.5\"]]}}", now - 5);
    prometheus.play(Play::Body(format!("{from}{series}{to}").leak()));
    daemon.until_desired("a", Some(1.0)).await;
    assert_eq!(because(&daemon).await, "zero: 0 -> 1, woken: front reports 0.5");
    let asked = prometheus.asked();
    let forms: BTreeMap<_, _> = asked.last().unwrap().form.clone();
    assert_eq!(forms["query"], "(sum(rate(gateway_503_total[1m])))[10s:5s]");
    daemon.end().await;
}
