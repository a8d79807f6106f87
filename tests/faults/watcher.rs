//! Everyone who notices a fault: an HPA that asks through the front proxy, a kubelet that probes,
//! and the memory and open files of the daemons.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use plimsoll::clock::Clock;
use serde_json::Value;
use tokio::time::sleep;

use crate::cluster::{MAX, MIN};
use crate::daemon::Usage;
use crate::external_metrics_harness::{
    Authority, BASE, HPA, Http, Leaf, Use, Validity, client_tls,
};

/// The time in which an answer counts as an answer.
const ANSWER_MAX: Duration = Duration::from_secs(5);

/// Resident memory that no fault may exceed, in MiB: the limit of the chart.
pub(crate) const RESIDENT_MAX: f64 = 512.0;

/// The certificates of both sides.
pub(crate) struct Credentials {
    pub(crate) serving: Authority,
    pub(crate) front_proxy: Authority,
    pub(crate) proxy_leaf: Leaf,
}

/// One daemon as its clients see it.
#[derive(Clone)]
pub(crate) struct Endpoint {
    process: u32,
    tls: reqwest::Client,
    plain: reqwest::Client,
    url: String,
    livez: String,
    /// The daemon should answer: it was neither ended nor paused by the scenario.
    pub(crate) should_answer: bool,
}

/// All that was noticed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Noticed {
    /// Answers to the HPA with a number.
    pub(crate) answered: u32,
    /// Answers without one, which an HPA takes as "stay".
    pub(crate) unavailable: u32,
    pub(crate) usage: Usage,
    /// The last number.
    pub(crate) number: Option<u32>,
    pub(crate) least: Option<u32>,
    pub(crate) most: Option<u32>,
    pub(crate) broken: Vec<String>,
}

struct Watched {
    endpoints: Vec<Endpoint>,
    /// No number may be less than this.
    floor: u32,
    /// An HPA may get no number: nothing was decided yet.
    may_be_unavailable: bool,
    /// Requests may fail, because the daemon's clock runs too fast for them.
    may_fail: bool,
    noticed: Noticed,
    turn: usize,
}

/// The clients, and what they noticed. Clones are the same.
#[derive(Clone)]
pub(crate) struct Watcher(Arc<Mutex<Watched>>);

// === impl Credentials ===

impl Credentials {
    pub(crate) fn new() -> Self {
        let front_proxy = Authority::new("front-proxy-ca");
        let proxy_leaf = front_proxy.issue("front-proxy-client", Use::Client, Validity::Now);
        Self { serving: Authority::new("serving-ca"), front_proxy, proxy_leaf }
    }
}

// === impl Endpoint ===

impl Endpoint {
    pub(crate) fn new(
        credentials: &Credentials,
        process: u32,
        plain: SocketAddr,
        tls: SocketAddr,
    ) -> Result<Self> {
        let Credentials { serving, proxy_leaf, .. } = credentials;
        let config = client_tls(&serving.pem, Some(proxy_leaf), Http::Two);
        let builder = reqwest::Client::builder().no_proxy().timeout(ANSWER_MAX);
        let client = builder.tls_backend_preconfigured(config).build()?;
        let path = "namespaces/shop/plimsoll_desired_replicas?labelSelector=variant%3Dllama";
        Ok(Self {
            process,
            tls: client,
            plain: reqwest::Client::builder().no_proxy().timeout(ANSWER_MAX).build()?,
            url: format!("https://{tls}{BASE}/{path}"),
            livez: format!("http://{plain}/livez"),
            should_answer: true,
        })
    }

    /// Asks as an HPA. None: the number is not available, which every HPA holds on.
    async fn ask(&self) -> Result<Option<u32>> {
        let response = self.tls.get(&self.url).header("X-Remote-User", HPA).send().await?;
        let status = response.status();
        let text = response.text().await?;
        if status == 503 {
            return Ok(None);
        }
        ensure!(status == 200, "{status}: {text}");
        let list: Value = serde_json::from_str(&text)?;
        let value = list["items"][0]["value"].as_str().context("no number")?;
        Ok(Some(value.parse().with_context(|| format!("{value} is no number of replicas"))?))
    }

    async fn probe(&self) -> Result<()> {
        let status = self.plain.get(&self.livez).send().await?.status();
        ensure!(status == 200, "{status}");
        Ok(())
    }
}

// === impl Watcher ===

impl Watcher {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(Watched {
            endpoints: Vec::new(),
            floor: 0,
            may_be_unavailable: true,
            may_fail: false,
            noticed: Noticed::default(),
            turn: 0,
        })))
    }

    /// Adds the endpoint of a daemon, or replaces it.
    pub(crate) fn put(&self, index: usize, endpoint: Endpoint) {
        let mut watched = self.0.lock().unwrap();
        if index < watched.endpoints.len() {
            watched.endpoints[index] = endpoint;
        } else {
            watched.endpoints.push(endpoint);
        }
    }

    /// Tells that a daemon was ended or paused, or that it answers again.
    pub(crate) fn expect_answers(&self, index: usize, should_answer: bool) {
        self.0.lock().unwrap().endpoints[index].should_answer = should_answer;
    }

    /// From here on no number may be less than this, and there must be one.
    pub(crate) fn floor(&self, replicas: u32) {
        let mut watched = self.0.lock().unwrap();
        watched.floor = replicas;
        watched.may_be_unavailable = false;
        (watched.noticed.least, watched.noticed.most) = (None, None);
        (watched.noticed.answered, watched.noticed.unavailable) = (0, 0);
    }

    /// From here on no number may be less than this. What was noticed before still counts.
    pub(crate) fn raise_floor(&self, replicas: u32) {
        self.0.lock().unwrap().floor = replicas;
    }

    /// An HPA may get no number, for example because a new daemon has no data yet.
    pub(crate) fn permit_unavailable(&self, permitted: bool) {
        self.0.lock().unwrap().may_be_unavailable = permitted;
    }

    /// Requests of HPAs and kubelets may fail.
    pub(crate) fn permit_failures(&self) {
        self.0.lock().unwrap().may_fail = true;
    }

    pub(crate) fn noticed(&self) -> Noticed {
        self.0.lock().unwrap().noticed.clone()
    }

    pub(crate) fn number(&self) -> Option<u32> {
        self.0.lock().unwrap().noticed.number
    }

    pub(crate) fn break_rule(&self, rule: String) {
        let mut watched = self.0.lock().unwrap();
        // The first ones say enough.
        if watched.noticed.broken.len() < 5 {
            watched.noticed.broken.push(rule);
        }
    }

    /// The endpoint whose turn it is, of those that should answer.
    fn next(&self) -> Option<(usize, Endpoint)> {
        let mut watched = self.0.lock().unwrap();
        watched.turn += 1;
        let (turn, count) = (watched.turn, watched.endpoints.len());
        let indexes = (0..count).map(|offset| (turn + offset) % count);
        let index = indexes.into_iter().find(|index| watched.endpoints[*index].should_answer)?;
        Some((index, watched.endpoints[index].clone()))
    }

    /// An HPA that asks ten times a second, and follows the number by `scale`.
    pub(crate) async fn ask(self, scale: impl Fn(u32)) {
        let clock = Clock::start();
        loop {
            sleep(Duration::from_millis(100)).await;
            let Some((index, endpoint)) = self.next() else { continue };
            let began = clock.elapsed();
            let outcome = endpoint.ask().await;
            let took = clock.elapsed().saturating_sub(began);
            let mut watched = self.0.lock().unwrap();
            // An answer of a daemon that was ended meanwhile counts for nothing.
            let still = watched.endpoints.get(index);
            if !still.is_some_and(|it| it.should_answer && it.process == endpoint.process) {
                continue;
            }

            let Watched { floor, may_be_unavailable, may_fail, .. } = *watched;
            let noticed = &mut watched.noticed;
            let broken = match outcome {
                Ok(Some(number)) => {
                    noticed.answered += 1;
                    noticed.number = Some(number);
                    noticed.least = Some(noticed.least.map_or(number, |it| it.min(number)));
                    noticed.most = Some(noticed.most.map_or(number, |it| it.max(number)));
                    let bounds = floor.max(MIN)..=MAX;
                    let fits = bounds.contains(&number);
                    (!fits).then(|| format!("{number} replicas, not {bounds:?}"))
                }
                Ok(None) => {
                    noticed.unavailable += 1;
                    (!may_be_unavailable).then(|| "an HPA gets no number".to_owned())
                }
                Err(_) if may_fail => None,
                Err(error) => Some(format!("an HPA request fails: {error:#} ({took:.1?})")),
            };
            let number = noticed.number.filter(|_| broken.is_none());
            drop(watched);
            if let Some(number) = number {
                scale(number);
            }
            if let Some(broken) = broken {
                self.break_rule(broken);
            }
        }
    }

    /// A kubelet that probes every daemon twice a second.
    pub(crate) async fn probe(self) {
        loop {
            sleep(Duration::from_millis(500)).await;
            let endpoints = self.0.lock().unwrap().endpoints.clone();
            for (index, endpoint) in endpoints.iter().enumerate() {
                if !endpoint.should_answer {
                    continue;
                }
                let Err(error) = endpoint.probe().await else { continue };
                let watched = self.0.lock().unwrap();
                let (now, may_fail) = (watched.endpoints[index].clone(), watched.may_fail);
                drop(watched);
                if !may_fail && now.should_answer && now.process == endpoint.process {
                    self.break_rule(format!("a probe fails: {error:#}"));
                }
            }
        }
    }

    /// Memory and files of every daemon.
    pub(crate) async fn weigh(self) {
        loop {
            sleep(Duration::from_millis(100)).await;
            let mut watched = self.0.lock().unwrap();
            let processes: Vec<u32> = watched.endpoints.iter().map(|it| it.process).collect();
            let usages = processes.into_iter().filter_map(|process| Usage::of(process).ok());
            watched.noticed.usage = usages.fold(watched.noticed.usage, Usage::max);
        }
    }
}
