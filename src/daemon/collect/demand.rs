//! What queues in front of models: signals that say so while there is no replica to be asked.
//!
//! Each signal has a task of its own, which reads a page or asks Prometheus at an interval. What it
//! last said stays with its time, so a source that fails changes nothing but an age, and what is not
//! on a page is not nothing.

mod epp;
mod metrics;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::clock::Clock;
use crate::collect::chain;
use crate::collect::exposition::samples::{Sample, samples};
use crate::collect::prometheus::Asker;
use crate::collect::scrape::clients::{Clients, Session};
use crate::collect::scrape::http::{self, HttpClient};
use crate::collect::scrape::{Client, page};
use plimsoll_core::fleet::{ModelKey, ModelName};
use plimsoll_core::observe::{Counts, Naming};
use plimsoll_core::units::Requests;

pub use crate::collect::demand::metrics::Metrics;

/// Time after which a page is given up. One that takes longer says nothing in time.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest page, after decompression: that of an endpoint picker with a thousand models.
const BODY_LIMIT: usize = 16 << 20;

/// How often the files with certificates and tokens are looked at again.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// A signal that says what queues in front of models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signal {
    /// What messages call it; unique.
    pub name: String,
    /// The models that it is for; for none in the list, all that it names.
    pub models: Vec<ModelKey>,
    /// Where it is read.
    pub source: Source,
    /// How often.
    pub interval: Duration,
    /// What its number counts.
    pub counts: Counts,
}

/// Where a signal is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The page of an endpoint picker, which says what queues of each model.
    EndpointPicker(Page),
    /// The sum of one metric's samples on a page.
    Metric {
        /// The page.
        page: Page,
        /// The metric.
        metric: String,
        /// The labels that its samples must have.
        labels: BTreeMap<String, String>,
    },
    /// The sum of an expression's series in Prometheus.
    Query(String),
}

/// A page of metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// Where it is.
    pub url: String,
    /// TLS and credentials.
    pub client: Client,
}

/// What a signal last said.
#[derive(Clone, Debug, PartialEq)]
pub struct Said {
    /// When.
    pub at: Timestamp,
    /// How much.
    pub amounts: Amounts,
}

/// How much queues.
#[derive(Clone, Debug, PartialEq)]
pub enum Amounts {
    /// One number; `None` where it is not there.
    One(Option<Requests>),
    /// A number a model.
    ByModel {
        /// The models that are named, with `None` for what is no number.
        models: BTreeMap<String, Option<Requests>>,
        /// What holds for all others.
        rest: Rest,
    },
}

/// What holds for models that are not named.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing of them queues.
    Nothing,
    /// Nobody can say.
    Unknown,
}

/// What all signals last said, by their names. One that was never read is not there.
pub type Heard = BTreeMap<String, Said>;

/// Reads signals, again and again.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    clock: Clock,
    clients: Clients<HttpClient>,
    prometheus: Option<Asker>,
    metrics: Metrics,
    heard: watch::Sender<Arc<Heard>>,
}

/// A signal that has a task; dropping it stops the task.
struct Running {
    signal: Signal,
    _stop: DropGuard,
}

// === impl Signal, Amounts ===

impl Signal {
    /// Whether it is for a model.
    #[must_use]
    pub fn is_for(&self, model: &ModelKey) -> bool {
        self.models.is_empty() || self.models.contains(model)
    }

    /// Whether it speaks of a model that it is for. What the configuration says is so from the
    /// start; an endpoint picker that may be for any model is for those that it names.
    #[must_use]
    pub fn naming(&self, model: &ModelName, said: Option<&Said>) -> Naming {
        let picks = self.models.is_empty() && matches!(self.source, Source::EndpointPicker(_));
        if !picks || said.is_some_and(|said| said.amounts.name(model)) {
            Naming::Named
        } else {
            Naming::Unnamed
        }
    }
}

impl Amounts {
    /// Whether a model is named, whatever is said of it.
    fn name(&self, model: &ModelName) -> bool {
        match self {
            Self::One(_) => true,
            Self::ByModel { models, .. } => models.contains_key(model.as_str()),
        }
    }

    /// What queues of a model; `None` where nobody can say.
    #[must_use]
    pub fn of(&self, model: &ModelName) -> Option<Requests> {
        match self {
            Self::One(amount) => *amount,
            Self::ByModel { models, rest } => match (models.get(model.as_str()), rest) {
                (Some(amount), _) => *amount,
                (None, Rest::Nothing) => Some(Requests::ZERO),
                (None, Rest::Unknown) => None,
            },
        }
    }
}

// === impl Listener ===

impl Listener {
    /// Listens, with somebody to ask queries of, if there is one. What is said goes to `heard`.
    #[must_use]
    pub fn new(
        clock: Clock,
        prometheus: Option<Asker>,
        metrics: Metrics,
        heard: watch::Sender<Arc<Heard>>,
    ) -> Self {
        let clients = Clients::new(http::client, CREDENTIALS_REFRESH);
        Self { shared: Arc::new(Shared { clock, clients, prometheus, metrics, heard }) }
    }

    /// Reads whatever `signals` holds, until `stop` is cancelled.
    pub async fn run(
        self,
        mut signals: watch::Receiver<Arc<Vec<Signal>>>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) {
        let mut running: BTreeMap<String, Running> = BTreeMap::new();
        loop {
            let wanted = Arc::clone(&signals.borrow_and_update());
            running.retain(|_, running| wanted.contains(&running.signal));
            self.shared.forget(&running);
            for signal in wanted.iter() {
                if running.contains_key(&signal.name) {
                    continue;
                }
                self.shared.metrics.begin(&signal.name);
                let stop = stop.child_token();
                let span = tracing::info_span!("wake", signal = signal.name);
                let task = Arc::clone(&self.shared).read_at_intervals(signal.clone());
                tracker.spawn(stop.clone().run_until_cancelled_owned(task).instrument(span));
                let task = Running { signal: signal.clone(), _stop: stop.drop_guard() };
                running.insert(signal.name.clone(), task);
            }
            match stop.run_until_cancelled(signals.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => return stop.cancelled().await,
                None => return,
            }
        }
    }
}

impl Shared {
    /// Forgets what signals have said that are not read any more.
    fn forget(&self, running: &BTreeMap<String, Running>) {
        self.heard.send_if_modified(|heard| {
            let before = heard.len();
            Arc::make_mut(heard).retain(|name, _| running.contains_key(name));
            heard.len() != before
        });
        self.metrics.keep(running.keys());
    }

    async fn read_at_intervals(self: Arc<Self>, signal: Signal) {
        let session = match &signal.source {
            Source::EndpointPicker(page) | Source::Metric { page, .. } => {
                Some(self.clients.session(&page.client, &page.url))
            }
            Source::Query(_) => None,
        };
        let mut turns = tokio::time::interval(signal.interval);
        turns.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut before: Option<Result<(), String>> = None;
        loop {
            turns.tick().await;
            let read = self.read(&signal, session.as_deref()).await;
            self.metrics.read(&signal.name, read.is_ok());
            let now = read.as_ref().map(|_| ()).map_err(Clone::clone);
            match (&before, &now) {
                (None | Some(Err(_)), Ok(())) => tracing::info!("The wake signal is read"),
                (None | Some(Ok(())), Err(error)) => tracing::warn!(
                    error,
                    "The wake signal cannot be read; it wakes no model, lets none sleep, and none shrink \
                     whose requests it has counted"
                ),
                (Some(Ok(())), Ok(())) | (Some(Err(_)), Err(_)) => {}
            }
            before = Some(now);
            if let Ok(said) = read {
                self.heard.send_modify(|heard| {
                    Arc::make_mut(heard).insert(signal.name.clone(), said);
                });
            }
        }
    }

    /// What a signal says now.
    ///
    /// # Errors
    ///
    /// It cannot be read, or says nothing; says why.
    async fn read(
        &self,
        signal: &Signal,
        session: Option<&Session<HttpClient>>,
    ) -> Result<Said, String> {
        match (&signal.source, session) {
            (Source::EndpointPicker(page), Some(session)) => {
                let (at, samples) = self.page(page, session, &epp::wants).await?;
                let amounts = epp::read(&samples).ok_or(
                    "no metric of flow control is on the page; the endpoint picker needs its \
                     feature gate flowControl",
                )?;
                Ok(Said { at, amounts })
            }
            (Source::Metric { page, metric, labels }, Some(session)) => {
                let (at, samples) = self.page(page, session, &|name| name == metric).await?;
                let fits = |sample: &&Sample| {
                    labels.iter().all(|(name, value)| sample.labels.get(name) == Some(value))
                };
                let amounts: Vec<_> =
                    samples.iter().filter(fits).map(|it| Requests::new(it.value)).collect();
                if amounts.is_empty() {
                    return Err(format!("{metric} with these labels is not on the page"));
                }
                Ok(Said { at, amounts: Amounts::One(amounts.into_iter().sum()) })
            }
            (Source::Query(expression), _) => self.ask(expression).await,
            (Source::EndpointPicker(_) | Source::Metric { .. }, None) => {
                Err("there is no client for the page".to_owned())
            }
        }
    }

    /// When a page was asked for, and the samples on it that are wanted.
    async fn page(
        &self,
        page: &Page,
        session: &Session<HttpClient>,
        wants: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<(Timestamp, Vec<Sample>), String> {
        let at = self.clock.now();
        let fetched = async {
            let ready = session.ready(self.clock.elapsed()).await.map_err(|why| why.to_string())?;
            let address = page::address(&page.url).map_err(|failure| failure.detail)?;
            page::fetch(&ready, &address, BODY_LIMIT).await.map_err(|failure| failure.detail)
        };
        let fetched = tokio::time::timeout(TIMEOUT, fetched).await;
        let fetched =
            fetched.map_err(|_| format!("there was no whole page within {TIMEOUT:?}"))??;
        let samples = samples(&fetched.body, fetched.content_type.as_deref(), wants);
        Ok((at, samples.map_err(|error| chain(&error))?))
    }

    async fn ask(&self, expression: &str) -> Result<Said, String> {
        let Some(prometheus) = &self.prometheus else {
            return Err("there is no Prometheus to ask".to_owned());
        };
        let (now, elapsed) = (self.clock.now(), self.clock.elapsed());
        let answer = prometheus.sum(expression, now, elapsed).await;
        let answer = answer.map_err(|failure| failure.detail)?;
        let (value, at) = answer.ok_or(
            "the answer has no series, or not a number; nothing is not 0 here, so let the \
             expression say 0, as in `sum(x) or vector(0)`, where that is what it means",
        )?;
        let amount =
            Requests::new(value).ok_or_else(|| format!("the answer {value} is below 0"))?;
        Ok(Said { at, amounts: Amounts::One(Some(amount)) })
    }
}
