//! An endpoint picker in front of engines, which shows the requests that queue for a model.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::page::MODEL;
use crate::stage::Stage;

/// An endpoint picker's page of metrics. It ends with the process.
pub(crate) struct Picker {
    queued: Arc<AtomicU32>,
    pub(crate) url: String,
}

impl Picker {
    pub(crate) fn start(stage: &Stage) -> Self {
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

    pub(crate) fn queue(&self, requests: u32) {
        self.queued.store(requests, Ordering::Relaxed);
    }
}
