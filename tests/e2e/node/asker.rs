//! Asks for the HPA's number all the time, as many HPAs would.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Request;
use serde_json::Value;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::cluster::{Cluster, METRIC};

/// Callers that ask side by side.
const CALLERS: usize = 4;

/// The pause of a caller between two requests.
const PAUSE: Duration = Duration::from_millis(50);

/// Callers in the background.
pub(crate) struct Asker<'c> {
    cluster: &'c Cluster,
    stop: CancellationToken,
    callers: Vec<JoinHandle<()>>,
    answers: Arc<Mutex<Answers>>,
}

/// What the callers got.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answers {
    pub(crate) answers: usize,
    /// Each different number once, in the order in which they came.
    pub(crate) values: Vec<String>,
    pub(crate) failures: Vec<String>,
}

impl<'c> Asker<'c> {
    pub(crate) fn start(cluster: &'c Cluster) -> Self {
        let stop = CancellationToken::new();
        let answers = Arc::new(Mutex::new(Answers::default()));
        let spawned = (0..CALLERS).map(|_| {
            let client = cluster.client.clone();
            let heard = Arc::clone(&answers);
            let ending = stop.clone();
            cluster.runtime.spawn(async move {
                while !ending.is_cancelled() {
                    let answer = ask(client.clone()).await;
                    heard.lock().unwrap().add(answer);
                    tokio::time::sleep(PAUSE).await;
                }
            })
        });
        let callers = spawned.collect();
        Self { cluster, stop, callers, answers }
    }

    pub(crate) fn stop(self) -> Answers {
        let Self { cluster, stop, callers, answers } = self;
        stop.cancel();
        for caller in callers {
            cluster.runtime.block_on(caller).unwrap();
        }
        answers.lock().unwrap().clone()
    }
}

impl Answers {
    fn add(&mut self, answer: Result<String, String>) {
        self.answers += 1;
        match answer {
            Ok(value) if self.values.contains(&value) => {}
            Ok(value) => self.values.push(value),
            Err(failure) => self.failures.push(failure),
        }
    }
}

async fn ask(client: kube::Client) -> Result<String, String> {
    let request = Request::get(METRIC).body(Vec::new()).map_err(|error| error.to_string())?;
    let list: Value = client.request(request).await.map_err(|error| error.to_string())?;
    let value = list["items"][0]["value"].as_str();
    value.map(str::to_owned).ok_or_else(|| list.to_string())
}
