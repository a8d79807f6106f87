//! Plimsoll with real engines: vLLM servers on the CPU, on the addresses of the pods, scaled by a
//! real HPA controller. `tests/e2e/run-vllm` installs vLLM and runs this.
//!
//! Only the weights are not real. A server has four sequences and a small cache, so ten requests a
//! second are more than it can do.
#![expect(clippy::unwrap_used, reason = "a test may panic")]
#![expect(clippy::print_stdout, reason = "whoever runs this wants to see how it went")]
#![expect(dead_code, reason = "the stage is shared with tests that use more of it")]

#[path = "../daemon.rs"]
mod daemon;
mod engines;
#[path = "../stage.rs"]
mod stage;
#[path = "../wait.rs"]
mod wait;

/// What the engines serve.
mod page {
    /// The model that every engine serves.
    pub(crate) const MODEL: &str = "dummy/tiny-llama";
}

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::daemon::Daemon;
use crate::engines::{Engines, PORT};
use crate::stage::stage;
use crate::wait::{stays, within};

/// Long enough for a server to start on a core that another one keeps busy.
const STARTING: Duration = Duration::from_mins(10);

/// Requests a second, of 150 prompt tokens and 90 generated ones each.
const RATE: f64 = 10.0;

#[test]
fn real_engines_are_scaled_up_under_load_and_down_without() {
    let stage = &stage();
    stage.open_within("real", 1, STARTING);
    let cap = r#"{"spec":{"maxReplicas":2}}"#;
    stage.kubectl(&["patch", "hpa", "llama", "-n", "real", "-p", cap]).unwrap();
    let daemon = Daemon::start(stage, "real");
    within(STARTING, "a first number", || (daemon.desired(stage)? == 1).then_some(()));
    stays("one idle engine", Duration::from_secs(10), || stage.replicas("real") == Some(1));

    let answered = Arc::new(AtomicU64::new(0));
    let clients = Runtime::new().unwrap();
    let load = clients.spawn(load(stage.engines.clone(), Arc::clone(&answered)));
    within(STARTING, "more replicas wanted under load", || {
        (daemon.desired(stage)? == 2).then_some(())
    });
    let waiting = daemon.gauge_text(stage, "plimsoll_waiting_requests", &["variant=\"llama\""]);
    println!("scaled up with {} requests waiting", waiting.unwrap_or_default());
    within(STARTING, "the HPA scaling up", || (stage.replicas("real")? == 2).then_some(()));
    // The second engine refuses connections while it starts; that is no reason to go back.
    within(STARTING, "the second engine", || {
        assert_eq!(stage.replicas("real"), Some(2), "while the second engine starts");
        (stage.engines.ready("real") == 2).then_some(())
    });
    within(STARTING, "data of both engines", || {
        let labels = ["variant=\"llama\"", "freshness=\"fresh\""];
        (daemon.gauge(stage, "plimsoll_replicas", &labels)? == 2).then_some(())
    });
    load.abort();
    within(STARTING, "the HPA scaling down", || (stage.replicas("real")? == 1).then_some(()));
    println!("{} requests were answered", answered.load(Ordering::Relaxed));
    assert!(answered.load(Ordering::Relaxed) > 0, "nothing was served");
}

/// Open-loop load on the engines that answer, one after the other.
async fn load(engines: Engines, answered: Arc<AtomicU64>) {
    let client = reqwest::Client::new();
    let mut turns = tokio::time::interval(Duration::from_secs_f64(1.0 / RATE));
    let mut requests = JoinSet::new();
    for turn in 0_usize.. {
        turns.tick().await;
        while requests.try_join_next().is_some() {}
        let addresses = engines.addresses("real");
        let Some(address) = addresses.get(turn % addresses.len().max(1)) else { continue };
        let url = format!("http://{address}:{PORT}/v1/completions");
        // Prompts differ, or the prefix cache would do the work.
        let prompt: Vec<usize> = (0..150).map(|token| (token * 7 + turn * 13) % 1000).collect();
        let body = serde_json::json!({
            "model": page::MODEL, "prompt": prompt, "max_tokens": 90, "ignore_eos": true,
        });
        let request = client
            .post(url)
            .header("content-type", "application/json")
            .body(body.to_string())
            .timeout(Duration::from_mins(5));
        let answered = Arc::clone(&answered);
        requests.spawn(async move {
            if request.send().await.is_ok_and(|answer| answer.status().is_success()) {
                answered.fetch_add(1, Ordering::Relaxed);
            }
        });
    }
}
