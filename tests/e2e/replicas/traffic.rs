//! Requests for desired replicas by way of the API server, at a steady rate.

use std::fmt;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use plimsoll::clock::Clock;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use crate::stage::Stage;

/// Time between two requests: 200 per second.
const GAP: Duration = Duration::from_millis(5);

/// The most requests at the same time: those of ten seconds. Fewer are sent while more wait.
const AT_ONCE: usize = 2_000;

/// Longer than the API server keeps a connection that has died silently.
const ANSWER_MAX: Duration = Duration::from_mins(1);

/// One request and its outcome.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    /// When it was sent, on the clock of the traffic.
    pub(crate) sent: Duration,
    pub(crate) took: Duration,
    /// The desired replicas, or the reason why there are none.
    pub(crate) number: Result<String, String>,
}

/// Requests in progress.
pub(crate) struct Traffic {
    clock: Clock,
    end: CancellationToken,
    answers: Arc<Mutex<Vec<Answer>>>,
    running: JoinHandle<()>,
}

/// The outcome of all requests.
pub(crate) struct Record(pub(crate) Vec<Answer>);

impl Traffic {
    /// Asks for the variant `llama` of a namespace, as the cluster's administrator, for whom the API
    /// server has no limit of requests in flight.
    pub(crate) fn start(stage: &Stage, namespace: &str) -> Self {
        let pki = stage.cluster().join("pki");
        let read = |name: &str| fs::read(pki.join(name)).unwrap();
        let identity = [read("admin.crt"), read("admin.key")].concat();
        // Over HTTP/1.1 a request that waits delays no other.
        let client = reqwest::Client::builder()
            .http1_only()
            .tls_certs_only(reqwest::Certificate::from_pem_bundle(&read("ca.crt")).unwrap())
            .identity(reqwest::Identity::from_pem(&identity).unwrap())
            .timeout(ANSWER_MAX)
            .no_proxy()
            .build()
            .unwrap();
        let url = format!(
            "https://{}.0.1:6443/apis/external.metrics.k8s.io/v1beta1/namespaces/{namespace}/\
             plimsoll_desired_replicas?labelSelector=variant%3Dllama",
            stage.net
        );

        let clock = Clock::start();
        let end = CancellationToken::new();
        let answers = Arc::default();
        let running = stage.spawn(send(client, url, clock, end.clone(), Arc::clone(&answers)));
        Self { clock, end, answers, running }
    }

    /// The time on the clock of [`Answer::sent`].
    pub(crate) fn now(&self) -> Duration {
        self.clock.elapsed()
    }

    /// Sends no more, and waits for all answers.
    pub(crate) fn end(self, stage: &Stage) -> Record {
        self.end.cancel();
        stage.run(self.running).unwrap();
        Record(std::mem::take(&mut *self.answers.lock().unwrap()))
    }
}

async fn send(
    client: reqwest::Client,
    url: String,
    clock: Clock,
    end: CancellationToken,
    answers: Arc<Mutex<Vec<Answer>>>,
) {
    let mut turns = tokio::time::interval(GAP);
    // A machine that was busy for a moment is not made busier.
    turns.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let places = Arc::new(Semaphore::new(AT_ONCE));
    let mut requests = JoinSet::new();
    while end.run_until_cancelled(turns.tick()).await.is_some() {
        let place = Arc::clone(&places).acquire_owned().await;
        let (client, url, answers) = (client.clone(), url.clone(), Arc::clone(&answers));
        requests.spawn(async move {
            let _place = place;
            let sent = clock.elapsed();
            let number = ask(&client, &url).await;
            let took = clock.elapsed().saturating_sub(sent);
            answers.lock().unwrap().push(Answer { sent, took, number });
        });
        while requests.try_join_next().is_some() {}
    }
    while requests.join_next().await.is_some() {}
}

async fn ask(client: &reqwest::Client, url: &str) -> Result<String, String> {
    let failed = |error: reqwest::Error| format!("{:#}", anyhow::Error::new(error));
    let response = client.get(url).send().await.map_err(failed)?;
    let status = response.status();
    let text = response.text().await.map_err(failed)?;
    if !status.is_success() {
        return Err(format!("{status}: {}", text.trim()));
    }
    let list: serde_json::Value = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let number = list["items"][0]["value"].as_str();
    number.map(str::to_owned).ok_or(text)
}

impl Record {
    pub(crate) fn failures(&self) -> impl Iterator<Item = &Answer> {
        self.0.iter().filter(|answer| answer.number.is_err())
    }

    /// Every answer is this number.
    pub(crate) fn is_always(&self, number: u32) {
        let number = number.to_string();
        let other = self.0.iter().find(|answer| answer.number.as_ref() != Ok(&number));
        assert!(other.is_none(), "{self}, among them {other:?} instead of {number}");
    }
}

impl fmt::Display for Record {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let longest = self.0.iter().map(|answer| answer.took).max().unwrap_or_default();
        let (all, failed) = (self.0.len(), self.failures().count());
        let sent = || self.0.iter().map(|answer| answer.sent);
        let span = sent().max().zip(sent().min()).map(|(last, first)| last.saturating_sub(first));
        let rate = Duration::from_secs(all.try_into().unwrap_or(u64::MAX))
            .div_duration_f64(span.unwrap_or_default());
        write!(
            formatter,
            "{all} requests, {rate:.0} per second, {failed} failed, the longest took {longest:.1?}"
        )
    }
}
