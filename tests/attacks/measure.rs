//! Measurements while an attack runs: a kubelet, an API server and a Prometheus, each at its own
//! address, on a thread of their own.

use std::cell::RefCell;
use std::net::IpAddr;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use plimsoll::clock::Clock;
use serde_json::Value;
use tokio::sync::oneshot;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::aim::{Aim, Credentials};
use crate::engine::MODEL;
use crate::external_metrics_harness::{BASE, HPA, Http, client_tls};
use crate::target::{Target, Usage};

/// The time in which an answer counts as an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

const KUBELET: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 200, 0, 1));
const API_SERVER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 200, 0, 2));
const PROMETHEUS: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(127, 200, 0, 3));

/// The times of one kind of request, and the requests that failed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Latencies {
    times: Vec<Duration>,
    /// Requests that were answered, but not at the first try.
    retried: usize,
    pub(crate) failures: Vec<String>,
}

/// All measurements of one attack.
#[derive(Clone, Debug, Default)]
pub(crate) struct Measured {
    /// `GET /livez` on the plain port, each on a new connection.
    pub(crate) probe: Latencies,
    /// Requests of an HPA on the connection that the API server keeps.
    pub(crate) kept: Latencies,
    /// Requests of an HPA, each on a new connection.
    pub(crate) fresh: Latencies,
    ticks: Option<TickCount>,
    ticks_before: Option<TickCount>,
    /// The greatest age of the data behind the honest variant's decision.
    pub(crate) age: f64,
    pub(crate) usage: Usage,
}

/// The ticks of a daemon since its start.
#[derive(Clone, Copy, Debug)]
struct TickCount {
    count: f64,
    seconds: f64,
}

/// A measurement that goes on until it is finished.
pub(crate) struct Measurement {
    stop: CancellationToken,
    thread: JoinHandle<Result<Measured>>,
}

/// A client of one of the ports.
pub(crate) struct Client {
    inner: reqwest::Client,
    url: String,
}

// === impl Client ===

impl Client {
    fn plain(aim: &Aim, from: IpAddr, path: &str) -> Result<Self> {
        let builder = reqwest::Client::builder().no_proxy().local_address(from);
        let inner = builder.pool_max_idle_per_host(0).timeout(ANSWER_MAX).build()?;
        Ok(Self { inner, url: format!("http://{}{path}", aim.plain) })
    }

    /// The API server, which asks for the number of the honest variant.
    pub(crate) fn front_proxy(aim: &Aim, credentials: &Credentials) -> Result<Self> {
        let Credentials { serving, proxy_leaf, .. } = credentials;
        let inner = reqwest::Client::builder()
            .tls_backend_preconfigured(client_tls(&serving.pem, Some(proxy_leaf), Http::Two))
            .no_proxy()
            .local_address(API_SERVER)
            .timeout(ANSWER_MAX)
            .build()?;
        let path = "namespaces/shop/plimsoll_desired_replicas?labelSelector=variant%3Dgood";
        Ok(Self { inner, url: format!("https://{}{BASE}/{path}", aim.tls) })
    }

    async fn get(&self) -> Result<String> {
        let request = self.inner.get(&self.url).header("X-Remote-User", HPA);
        let response = request.send().await?;
        let status = response.status();
        let text = response.text().await?;
        ensure!(status == 200, "{status}: {text}");
        Ok(text)
    }

    /// Asks for the number of the honest variant, which must be there.
    pub(crate) async fn ask(&self) -> Result<()> {
        let list: Value = serde_json::from_str(&self.get().await?)?;
        let value = list["items"][0]["value"].as_str();
        ensure!(value.is_some_and(|value| value != "0"), "no number: {list}");
        Ok(())
    }
}

// === impl Latencies ===

impl Latencies {
    fn note(&mut self, took: Duration, outcome: Result<()>) {
        match outcome {
            Ok(()) => self.times.push(took),
            Err(error) => self.failures.push(format!("{error:#} ({took:.1?})")),
        }
    }

    pub(crate) fn requests(&self) -> usize {
        self.times.len() + self.failures.len()
    }

    /// Median and maximum in milliseconds, and the failures if there are any.
    pub(crate) fn cell(&self) -> String {
        let mut times = self.times.clone();
        times.sort();
        let show = |time: Option<&Duration>| {
            time.map_or("–".to_owned(), |time| format!("{:.1}", 1e3 * time.as_secs_f64()))
        };
        let retried = match self.retried {
            0 => String::new(),
            retried => format!(", {retried} of {} retried", self.requests()),
        };
        let failed = match self.failures.len() {
            0 => String::new(),
            failed => format!(", **{failed} of {} failed**", self.requests()),
        };
        format!("{} / {}{retried}{failed}", show(times.get(times.len() / 2)), show(times.last()))
    }
}

// === impl Measured ===

impl Measured {
    /// The ticks since the first look, and the mean time of each in milliseconds.
    pub(crate) fn tick_cell(&self) -> String {
        let (Some(before), Some(after)) = (self.ticks_before, self.ticks) else {
            return "–".to_owned();
        };
        let count = after.count - before.count;
        if count < 1.0 {
            return "–".to_owned();
        }

        format!("{:.1}", 1e3 * (after.seconds - before.seconds) / count)
    }

    /// Takes what a page of the daemon's metrics shows.
    fn read(&mut self, page: &str) {
        let now = ticks(page);
        self.ticks_before = self.ticks_before.or(now);
        self.ticks = now.or(self.ticks);
        let age = format!("plimsoll_decision_age_seconds{{model=\"{MODEL}\",namespace=\"shop\"");
        self.age = self.age.max(sample(page, &age).unwrap_or_default());
    }
}

/// The value of the first sample that begins like this.
fn sample(page: &str, start: &str) -> Option<f64> {
    let line = page.lines().find(|line| line.starts_with(start))?;
    line.rsplit(' ').next()?.parse().ok()
}

fn ticks(page: &str) -> Option<TickCount> {
    let count = sample(page, "plimsoll_tick_duration_seconds_count")?;
    Some(TickCount { count, seconds: sample(page, "plimsoll_tick_duration_seconds_sum")? })
}

// === impl Measurement ===

impl Measurement {
    /// Starts, and returns when the API server has its connection.
    pub(crate) async fn start(target: &Target) -> Result<Self> {
        let stop = CancellationToken::new();
        let until = stop.clone();
        let credentials = Arc::clone(&target.credentials);
        let kept = Client::front_proxy(&target.aim, &credentials)?;
        let process = target.process();
        let aim = Arc::clone(&target.aim);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;

        let (connected, connects) = oneshot::channel();
        let thread = thread::spawn(move || {
            let clock = Clock::start();
            let measured = RefCell::default();
            let surveyor = Surveyor { clock, process, aim, credentials, stop: until, measured };
            runtime.block_on(async {
                kept.ask().await?;
                let _is_awaited = connected.send(());
                surveyor.measure(&kept).await
            })?;
            Ok(surveyor.measured.into_inner())
        });

        connects.await.context("the API server cannot connect before the attack")?;
        Ok(Self { stop, thread })
    }

    /// Ends the measurement, and returns it.
    pub(crate) fn finish(self) -> Result<Measured> {
        self.stop.cancel();
        self.thread.join().unwrap()
    }
}

/// The clients that measure, with all that they have measured.
struct Surveyor {
    clock: Clock,
    process: u32,
    aim: Arc<Aim>,
    credentials: Arc<Credentials>,
    stop: CancellationToken,
    measured: RefCell<Measured>,
}

// === impl Surveyor ===

impl Surveyor {
    /// Measures until it is stopped.
    async fn measure(&self, kept: &Client) -> Result<()> {
        let livez = Client::plain(&self.aim, KUBELET, "/livez")?;
        let metrics = Client::plain(&self.aim, PROMETHEUS, "/metrics")?;
        let ((), (), connected, (), ()) = tokio::join!(
            self.probe(&livez),
            self.ask(kept),
            self.connect(),
            self.watch(),
            self.scrape(&metrics),
        );
        connected
    }

    fn since(&self, began: Duration) -> Duration {
        self.clock.elapsed().saturating_sub(began)
    }

    async fn probe(&self, livez: &Client) {
        while !self.stop.is_cancelled() {
            let began = self.clock.elapsed();
            let outcome = livez.get().await.map(drop);
            self.measured.borrow_mut().probe.note(self.since(began), outcome);
            sleep(Duration::from_millis(20)).await;
        }
    }

    async fn ask(&self, kept: &Client) {
        while !self.stop.is_cancelled() {
            let began = self.clock.elapsed();
            let outcome = kept.ask().await;
            self.measured.borrow_mut().kept.note(self.since(began), outcome);
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Asks on new connections. An API server whose connection fails opens another.
    async fn connect(&self) -> Result<()> {
        while !self.stop.is_cancelled() {
            let began = self.clock.elapsed();
            let mut tries = 1;
            let mut outcome = self.front_proxy()?.ask().await;
            while outcome.is_err() && self.since(began) < ANSWER_MAX {
                sleep(Duration::from_millis(50)).await;
                tries += 1;
                outcome = self.front_proxy()?.ask().await;
            }

            let retried = tries > 1 && outcome.is_ok();
            let took = self.since(began);
            self.note_connection(retried, took, outcome);
            sleep(Duration::from_millis(100)).await;
        }

        Ok(())
    }

    fn note_connection(&self, retried: bool, took: Duration, outcome: Result<()>) {
        let fresh = &mut self.measured.borrow_mut().fresh;
        fresh.retried += usize::from(retried);
        fresh.note(took, outcome);
    }

    fn front_proxy(&self) -> Result<Client> {
        Client::front_proxy(&self.aim, &self.credentials)
    }

    async fn watch(&self) {
        while !self.stop.is_cancelled() {
            if let Ok(usage) = Usage::of(self.process) {
                let mut measured = self.measured.borrow_mut();
                measured.usage = measured.usage.max(usage);
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    async fn scrape(&self, metrics: &Client) {
        while !self.stop.is_cancelled() {
            if let Ok(page) = metrics.get().await {
                self.measured.borrow_mut().read(&page);
            }
            sleep(Duration::from_millis(250)).await;
        }
    }
}
