//! Demand: wake signals, which report queued requests even when a model has no replica, and the
//! counters of gateways, which report the requests for each adapter of a pool.
//!
//! Each signal has a task that reads a metrics endpoint or queries Prometheus at an interval. The
//! last value is kept with its time, so a failing source only lets the value age. A metric that is
//! missing from a response does not count as 0.

mod epp;
mod metrics;
mod reading;
mod routed;

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
use crate::collect::exposition::samples::{ExpositionSample, samples};
use crate::collect::prometheus::Asker;
use crate::collect::scrape::clients::{ClientPool, Session};
use crate::collect::scrape::http::{self, HttpClient};
use crate::collect::scrape::memory::ResponseMemory;
use crate::collect::scrape::{ClientSettings, page};
use plimsoll_core::fleet::{ModelKey, ModelName, Namespace};
use plimsoll_core::observe::{Naming, SignalQuantity};
use plimsoll_core::units::Requests;

pub use crate::collect::demand::metrics::SignalMetrics;
pub use crate::collect::demand::reading::{
    SignalAmounts, SignalReading, SignalReadings, UnnamedAmount,
};

/// Time after which a scrape is abandoned, because its data would come too late.
const TIMEOUT: Duration = Duration::from_secs(5);

/// Largest response after decompression: that of an endpoint picker with a thousand models.
const BODY_LIMIT: usize = 16 << 20;

/// Bytes of all responses in flight, before and after decompression.
const RESPONSES_MAX: usize = 2 * BODY_LIMIT;

/// Interval at which the files with certificates and tokens are checked for changes.
const CREDENTIALS_REFRESH: Duration = Duration::from_secs(10);

/// A wake signal, which reports the requests queued for models.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignalSettings {
    /// The readings of its values.
    pub read: ReadSettings,
    /// Its models; if empty, all models.
    pub models: Vec<ModelKey>,
    /// The namespaces of its models; if empty, all namespaces. A page names no namespace, so
    /// without models and namespaces, a model hears of the queue of its namesake in another
    /// namespace.
    pub namespaces: Vec<Namespace>,
    /// The meaning of its value.
    pub counts: SignalQuantity,
}

/// The readings of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadSettings {
    /// Its name in messages; unique.
    pub name: String,
    /// The source of its values.
    pub source: SignalSource,
    /// Time between two readings.
    pub interval: Duration,
}

/// The source of a signal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SignalSource {
    /// The metrics of an endpoint picker, which report the queued requests of each model.
    EndpointPicker(MetricsEndpoint),
    /// The metrics of an endpoint picker, which count the routed requests of each model.
    RoutedRequests(MetricsEndpoint),
    /// The sum of one metric's samples in a /metrics response.
    Metric {
        /// The metrics endpoint.
        page: MetricsEndpoint,
        /// The metric.
        metric: String,
        /// The labels that its samples must have.
        labels: BTreeMap<String, String>,
    },
    /// The sum of an expression's series in Prometheus.
    Query(String),
}

/// A metrics endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetricsEndpoint {
    /// Its URL.
    pub url: String,
    /// TLS and credentials.
    pub client: ClientSettings,
}

/// Reads signals at their intervals.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<ListenerState>,
}

#[derive(Debug)]
struct ListenerState {
    clock: Clock,
    clients: ClientPool<HttpClient>,
    memory: Arc<ResponseMemory>,
    prometheus: Option<Asker>,
    metrics: SignalMetrics,
    heard: watch::Sender<Arc<SignalReadings>>,
}

/// A signal that has a task; dropping it stops the task.
struct SignalTask {
    signal: ReadSettings,
    _stop: DropGuard,
}

// === impl SignalSettings ===

impl SignalSettings {
    /// Returns true if the signal is for this model.
    #[must_use]
    pub fn is_for(&self, model: &ModelKey) -> bool {
        let in_scope = self.namespaces.is_empty() || self.namespaces.contains(&model.namespace);
        in_scope && (self.models.is_empty() || self.models.contains(model))
    }

    /// Returns [`Naming::Named`] if the signal names `model`, which must be one of its models. An
    /// endpoint picker without a model list names the models in its last reading. Any other signal
    /// names its models from the start.
    #[must_use]
    pub fn naming(&self, model: &ModelName, said: Option<&SignalReading>) -> Naming {
        let picks =
            self.models.is_empty() && matches!(self.read.source, SignalSource::EndpointPicker(_));
        if !picks || said.is_some_and(|said| said.amounts.name(model)) {
            Naming::Named
        } else {
            Naming::Unnamed
        }
    }
}

// === impl ReadSettings ===

impl ReadSettings {
    fn counts_adapters(&self) -> bool {
        matches!(self.source, SignalSource::RoutedRequests(_))
    }
}

// === impl Listener ===

impl Listener {
    /// Creates a listener, with a client for Prometheus queries if one is configured. Readings go
    /// to `heard`.
    #[must_use]
    pub fn new(
        clock: Clock,
        prometheus: Option<Asker>,
        metrics: SignalMetrics,
        heard: watch::Sender<Arc<SignalReadings>>,
    ) -> Self {
        let clients = ClientPool::new(http::client, CREDENTIALS_REFRESH);
        let memory = ResponseMemory::new(RESPONSES_MAX);
        let shared = ListenerState { clock, clients, memory, prometheus, metrics, heard };
        Self { shared: Arc::new(shared) }
    }

    /// Reads the signals in `signals`, until `stop` is cancelled.
    pub async fn run(
        self,
        mut signals: watch::Receiver<Arc<Vec<ReadSettings>>>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) {
        let mut running: BTreeMap<String, SignalTask> = BTreeMap::new();
        loop {
            let wanted = Arc::clone(&signals.borrow_and_update());
            running.retain(|_, running| wanted.contains(&running.signal));
            self.shared.forget(&running);
            for signal in wanted.iter() {
                if running.contains_key(&signal.name) {
                    continue;
                }

                self.shared.metrics.begin(&signal.name);
                let own_stop = stop.child_token();
                let span = tracing::info_span!("wake", signal = signal.name);
                let task = Arc::clone(&self.shared).read_at_intervals(signal.clone());
                tracker.spawn(own_stop.clone().run_until_cancelled_owned(task).instrument(span));
                let reader = SignalTask { signal: signal.clone(), _stop: own_stop.drop_guard() };
                running.insert(signal.name.clone(), reader);
            }

            match stop.run_until_cancelled(signals.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => return stop.cancelled().await,
                None => return,
            }
        }
    }
}

impl ListenerState {
    /// Removes the readings of signals that are no longer read.
    fn forget(&self, running: &BTreeMap<String, SignalTask>) {
        self.heard.send_if_modified(|heard| {
            let before = heard.len();
            Arc::make_mut(heard).retain(|name, _| running.contains_key(name));
            heard.len() != before
        });
        self.metrics.keep(running.keys());
    }

    async fn read_at_intervals(self: Arc<Self>, signal: ReadSettings) {
        let session = match &signal.source {
            SignalSource::EndpointPicker(page)
            | SignalSource::RoutedRequests(page)
            | SignalSource::Metric { page, .. } => {
                Some(self.clients.session(&page.client, &page.url))
            }
            SignalSource::Query(_) => None,
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
                (None | Some(Err(_)), Ok(())) => tracing::info!("The signal is read"),
                (None | Some(Ok(())), Err(error)) if signal.counts_adapters() => tracing::warn!(
                    error,
                    "The gateway of a pool cannot be read; its adapters keep their copies, and the \
                     pool its replicas"
                ),
                (None | Some(Ok(())), Err(error)) => tracing::warn!(
                    error,
                    "The wake signal cannot be read; its models neither wake nor sleep, and with \
                     foresight do not scale down if it has counted their requests"
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

    /// Reads a signal's current value.
    ///
    /// # Errors
    ///
    /// The signal cannot be read or has no value. The error is the reason.
    async fn read(
        &self,
        signal: &ReadSettings,
        session: Option<&Session<HttpClient>>,
    ) -> Result<SignalReading, String> {
        match (&signal.source, session) {
            (SignalSource::EndpointPicker(page), Some(session)) => {
                let (at, samples) = self.page(page, session, &epp::wants).await?;
                let amounts = epp::read(&samples).ok_or(
                    "the response has no flow-control metric; the endpoint picker needs its \
                     feature gate flowControl",
                )?;
                Ok(SignalReading { at, amounts })
            }
            (SignalSource::RoutedRequests(page), Some(session)) => {
                let (at, samples) = self.page(page, session, &routed::wants).await?;
                let counts = routed::read(at, &samples).ok_or(
                    "no count of routed requests is in the response; is it that of an endpoint picker?",
                )?;
                Ok(SignalReading { at, amounts: SignalAmounts::Routed(counts) })
            }
            (SignalSource::Metric { page, metric, labels }, Some(session)) => {
                let (at, samples) = self.page(page, session, &|name| name == metric).await?;
                let fitting = samples.iter().filter(|sample| {
                    labels.iter().all(|(name, value)| sample.labels.get(name) == Some(value))
                });
                let amounts: Vec<_> = fitting.map(|it| Requests::new(it.value)).collect();
                if amounts.is_empty() {
                    return Err(format!("the response does not have {metric} with these labels"));
                }

                Ok(SignalReading { at, amounts: SignalAmounts::One(amounts.into_iter().sum()) })
            }
            (SignalSource::Query(expression), _) => self.ask(expression).await,
            (
                SignalSource::EndpointPicker(_)
                | SignalSource::RoutedRequests(_)
                | SignalSource::Metric { .. },
                None,
            ) => Err("there is no client for the URL".to_owned()),
        }
    }

    /// Fetches the samples that `wants` selects, with the time of the request.
    async fn page(
        &self,
        page: &MetricsEndpoint,
        session: &Session<HttpClient>,
        wants: &(dyn Fn(&str) -> bool + Sync),
    ) -> Result<(Timestamp, Vec<ExpositionSample>), String> {
        let at = self.clock.now();
        let fetching = async {
            let ready = session.ready(self.clock.elapsed()).await.map_err(|why| why.to_string())?;
            let address = page::address(&page.url).map_err(|failure| failure.detail)?;
            // Signals are few, and their connections need not be closed early.
            let fetched =
                page::fetch(&ready, &address, BODY_LIMIT, Duration::ZERO, &self.memory).await;
            fetched.map_err(|failure| failure.detail)
        };

        let in_time = tokio::time::timeout(TIMEOUT, fetching).await;
        let fetched = in_time.map_err(|_| format!("no complete response within {TIMEOUT:?}"))??;
        let samples = samples(&fetched.body, fetched.content_type.as_deref(), wants);
        Ok((at, samples.map_err(|error| chain(&error))?))
    }

    async fn ask(&self, expression: &str) -> Result<SignalReading, String> {
        let Some(prometheus) = &self.prometheus else {
            return Err("no Prometheus is configured".to_owned());
        };

        let now = self.clock.now();
        let elapsed = self.clock.elapsed();
        let sum = prometheus.sum(expression, now, elapsed).await;
        let answer = sum.map_err(|failure| failure.detail)?;

        let (value, at) = answer.ok_or(
            "the response has no series or no number, and missing is not 0; if no series means 0, \
             return it in the expression, as in `sum(x) or vector(0)`",
        )?;
        let amount = Requests::new(value).ok_or_else(|| format!("the value {value} is below 0"))?;
        Ok(SignalReading { at, amounts: SignalAmounts::One(Some(amount)) })
    }
}
