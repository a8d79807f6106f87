//! A model that goes to zero by a real HPA with `minReplicas: 0`, and comes back by what queues in
//! front of it.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::daemon::Daemon;
use crate::page::MODEL;
use crate::stage::{Stage, stage};
use crate::wait::until;
use crate::{follows, keeps};

/// An endpoint picker's page of metrics. It ends with the process.
struct Picker {
    queued: Arc<AtomicU32>,
    url: String,
}

impl Picker {
    fn start(stage: &Stage) -> Self {
        let listener = TcpListener::bind((stage.other_address(), 0)).unwrap();
        let url = format!("http://{}/metrics", listener.local_addr().unwrap());
        let queued = Arc::new(AtomicU32::new(0));
        let shown = Arc::clone(&queued);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let _head: Vec<_> =
                    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
                let queued = shown.load(Ordering::Relaxed);
                let page = format!(
                    "llm_d_epp_flow_control_queue_size{{target_model_name=\"{MODEL}\"}} {queued}\n"
                );
                let length = page.len();
                let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close";
                let answer = format!("{head}\r\nContent-Length: {length}\r\n\r\n{page}");
                // A client that has gone is nothing to us.
                let _sent = stream.write_all(answer.as_bytes());
            }
        });
        Self { queued, url }
    }

    fn queue(&self, requests: u32) {
        self.queued.store(requests, Ordering::Relaxed);
    }
}

#[test]
fn a_an_idle_model_goes_to_zero_and_wakes_by_the_queue_in_front_of_it() {
    let stage = &stage();
    stage.open("nightly", 1);
    stage.engines.load("nightly", 0.3);
    let from_zero = r#"{"spec":{"minReplicas":0}}"#;
    stage.kubectl(&["patch", "hpa", "llama", "-n", "nightly", "-p", from_zero]).unwrap();
    let picker = Picker::start(stage);
    let daemon = Daemon::start_with(
        stage,
        "nightly",
        &format!(
            "scale_to_zero: {{enabled: true, after: 20s, awake_for: 20s, \
             wake: [{{name: epp, url: \"{}\"}}]}}\n",
            picker.url
        ),
    );
    until("a first number", || (daemon.desired(stage)? == 1).then_some(()));
    keeps(stage, "nightly", 1);
    stage.engines.load("nightly", 0.0);
    until("no replica", || (stage.replicas("nightly")? == 0).then_some(()));
    keeps(stage, "nightly", 0);

    picker.queue(3);
    until("a replica", || (stage.replicas("nightly")? == 1).then_some(()));
    picker.queue(0);
    keeps(stage, "nightly", 1);
    follows(stage, &daemon, "nightly", 1.3, 2);
    follows(stage, &daemon, "nightly", 0.0, 0);
    let log = daemon.log();
    assert!(log.contains("woken: epp says 3"), "{log}");
}
