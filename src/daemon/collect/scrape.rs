//! Scraping: fetches the metrics of each target at an interval as a
//! [`plimsoll_core::observe::Scrape`].
//!
//! Each target has its own task, which waits for its turn, fetches the metrics, reads them, and
//! sends the result. The tasks share the HTTP clients and a semaphore that bounds concurrent
//! scrapes. A scrape is never retried before its next turn. The core treats missing data as
//! missing. A second request would only add load to an engine that is too busy to answer the first.

pub(crate) mod clients;
pub(crate) mod health;
pub(crate) mod http;
pub(crate) mod memory;
mod metrics;
pub(crate) mod page;
mod schedule;
mod settings;
mod tls;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::clock::Clock;
use crate::collect::exposition::{LayoutMemory, Layouts};
use crate::collect::scrape::clients::{ClientPool, Session};
use crate::collect::scrape::health::{StatusChange, StatusEntry};
use crate::collect::scrape::http::HttpClient;
use crate::collect::scrape::memory::ResponseMemory;
use crate::collect::scrape::page::MetricsPage;
use crate::collect::scrape::schedule::ScrapeSchedule;
use plimsoll_core::fleet::{ModelName, ReplicaKey};
use plimsoll_core::observe::{Reading, Scrape, ScrapeFailure};

pub use crate::collect::scrape::health::{ScrapeError, TargetBoard, TargetStatus};
pub use crate::collect::scrape::metrics::ScrapeMetrics;
pub use crate::collect::scrape::schedule::phase;
pub use crate::collect::scrape::settings::{ClientIdentity, ClientSettings, ScrapeSettings};

/// The size of a response that is read between two other tasks. It takes about a millisecond, and is
/// far more than an engine sends for one rank.
const READ_AT_ONCE_MAX: usize = 256 << 10;

/// Larger responses that are read at the same time. More would take the cores from everything else.
const ASIDES_MAX: usize = 2;

/// A target to scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The replica.
    pub replica: ReplicaKey,
    /// The URL of its metrics: scheme, host, port and path.
    pub url: String,
    /// The names that its metrics may give its model; if empty, any name is accepted.
    pub models: Vec<ModelName>,
    /// The scrape settings.
    pub settings: Arc<ScrapeSettings>,
}

/// Limits of the scraper as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScrapeLimits {
    /// Maximum number of concurrent scrapes.
    pub in_flight: usize,
    /// Bytes of all responses that are being received, compressed and not. Above it, the largest
    /// response is abandoned.
    pub in_flight_bytes: usize,
    /// Interval at which the files with certificates and tokens are checked for changes.
    pub credentials_refresh: Duration,
}

impl Default for ScrapeLimits {
    /// 512 concurrent scrapes. A thousand targets with an interval of a second need about 20 while
    /// they respond. The rest is for targets that hang until their timeout. 64 MiB hold a thousand
    /// ordinary responses, and are an eighth of the chart's memory limit. Credentials are read every
    /// 10 s, which is short compared to the hour that a service account's token is valid.
    fn default() -> Self {
        let credentials_refresh = Duration::from_secs(10);
        Self { in_flight: 512, in_flight_bytes: 64 << 20, credentials_refresh }
    }
}

/// Reads an engine's metrics from a body and the value of its `Content-Type`, using the memory of
/// the target's earlier responses.
pub type BodyReader = fn(&mut LayoutMemory, &[u8], Option<&str>) -> Result<Reading, ScrapeError>;

/// The reader for all known engines.
fn read_exposition(
    memory: &mut LayoutMemory,
    body: &[u8],
    content_type: Option<&str>,
) -> Result<Reading, ScrapeError> {
    let reading = memory.read(body, content_type);
    reading.map_err(|error| ScrapeError::from_error(error.failure(), &error))
}

/// Scrapes targets and sends the results.
#[derive(Debug)]
pub struct Scraper {
    shared: Arc<ScraperState>,
}

/// State that the tasks of all targets share.
#[derive(Debug)]
struct ScraperState {
    clock: Clock,
    reader: BodyReader,
    layouts: Arc<Layouts>,
    clients: ClientPool<HttpClient>,
    permits: Semaphore,
    asides: Semaphore,
    memory: Arc<ResponseMemory>,
    metrics: ScrapeMetrics,
    board: TargetBoard,
    scrapes: mpsc::Sender<Scrape>,
}

/// A target that has a task; dropping it stops the task.
#[derive(Debug)]
struct ScrapeTask {
    target: Target,
    _stop: DropGuard,
}

// === impl Scraper ===

impl Scraper {
    /// Creates a scraper that sends to `scrapes`. While that channel is full, the targets wait, and
    /// their lost turns are counted as missed.
    #[must_use]
    pub fn new(
        clock: Clock,
        limits: ScrapeLimits,
        metrics: ScrapeMetrics,
        scrapes: mpsc::Sender<Scrape>,
    ) -> Self {
        Self::with_reader(clock, limits, metrics, scrapes, read_exposition)
    }

    /// Creates a scraper that reads responses with `reader`.
    #[must_use]
    pub fn with_reader(
        clock: Clock,
        limits: ScrapeLimits,
        metrics: ScrapeMetrics,
        scrapes: mpsc::Sender<Scrape>,
        reader: BodyReader,
    ) -> Self {
        let ScrapeLimits { in_flight, in_flight_bytes, credentials_refresh } = limits;
        let shared = ScraperState {
            clock,
            reader,
            layouts: Arc::default(),
            clients: ClientPool::new(http::client, credentials_refresh),
            permits: Semaphore::new(in_flight.clamp(1, Semaphore::MAX_PERMITS)),
            asides: Semaphore::new(ASIDES_MAX),
            memory: ResponseMemory::new(in_flight_bytes),
            metrics,
            board: TargetBoard::default(),
            scrapes,
        };

        Self { shared: Arc::new(shared) }
    }

    /// Returns the board with the status of each target.
    #[must_use]
    pub fn board(&self) -> TargetBoard {
        self.shared.board.clone()
    }

    /// Scrapes the targets in `targets`, until `stop` is cancelled.
    ///
    /// A target that disappears is abandoned immediately, even during a scrape. An unchanged target
    /// keeps its turns and its connection. If the sender of `targets` is dropped, the last targets
    /// stay.
    pub async fn run(
        self,
        mut targets: watch::Receiver<Arc<Vec<Target>>>,
        tracker: TaskTracker,
        stop: CancellationToken,
    ) {
        let mut running = BTreeMap::new();
        let mut last = Arc::default();
        loop {
            let wanted = Arc::clone(&targets.borrow_and_update());
            // An unchanged list needs no work, and no repeated warning.
            if wanted != last {
                self.reconcile(&wanted, &mut running, &tracker, &stop);
                last = wanted;
            }

            match stop.run_until_cancelled(targets.changed()).await {
                Some(Ok(())) => {}
                Some(Err(_)) => {
                    stop.cancelled().await;
                    break;
                }
                None => break,
            }
        }

        self.reconcile(&[], &mut running, &tracker, &stop);
    }

    /// Stops the tasks of targets that are gone or changed, and starts missing ones.
    fn reconcile(
        &self,
        wanted: &[Target],
        running: &mut BTreeMap<ReplicaKey, ScrapeTask>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let targets = unique(wanted);
        running.retain(|replica, running| {
            let stays = targets.get(replica).is_some_and(|target| **target == running.target);
            if !stays {
                self.shared.board.remove(replica);
            }
            stays
        });

        for (replica, target) in targets {
            if !running.contains_key(replica) {
                running.insert(replica.clone(), self.start(target, tracker, stop));
            }
        }

        self.shared.metrics.set_targets(running.len());
    }

    fn start(
        &self,
        target: &Target,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) -> ScrapeTask {
        let entry = self.shared.board.add(target.replica.clone(), target.url.clone());
        let own_stop = stop.child_token();
        let ReplicaKey { variant, replica, incarnation: _ } = &target.replica;
        let span = tracing::info_span!("scrape", %variant, %replica);
        let task = Arc::clone(&self.shared).scrape_at_intervals(target.clone(), entry);
        tracker.spawn(own_stop.clone().run_until_cancelled_owned(task).instrument(span));
        ScrapeTask { target: target.clone(), _stop: own_stop.drop_guard() }
    }
}

/// Returns the targets by replica. Of two targets for one replica, the first stays.
fn unique(targets: &[Target]) -> BTreeMap<&ReplicaKey, &Target> {
    let mut unique: BTreeMap<&ReplicaKey, &Target> = BTreeMap::new();
    for target in targets {
        let first = unique.entry(&target.replica).or_insert(target);
        if first.url != target.url {
            let ReplicaKey { variant, replica, incarnation: _ } = &target.replica;
            let used = &first.url;
            let unused = &target.url;
            tracing::warn!(%variant, %replica, used, unused, "Two targets have the same name");
        }
    }

    unique
}

// === impl ScraperState ===

impl ScraperState {
    /// Scrapes one target on its schedule, until the receiver of the scrapes is dropped.
    async fn scrape_at_intervals(self: Arc<Self>, target: Target, entry: StatusEntry) {
        let session = self.clients.session(&target.settings.client, &target.url);
        let address = page::address(&target.url);
        let mut memory = LayoutMemory::new(Arc::clone(&self.layouts));
        let mut schedule = ScrapeSchedule::start(&target.replica, target.settings.interval).await;

        while let Ok(permit) = schedule.turn(&self.permits, &self.metrics.missed).await {
            // Boxed, so that a target takes the memory of a request only during its scrape.
            let scraping = Box::pin(async {
                let (at, result) = self.scrape(&target, &address, &session, &mut memory).await;
                drop(permit);
                self.tell(&target, &entry, at, result.as_ref().map(|_| ()));
                let outcome = result.map_err(|failure| failure.class);
                self.scrapes.send(Scrape { replica: target.replica.clone(), at, outcome }).await
            });
            if scraping.await.is_err() {
                return;
            }
        }
    }

    /// Performs one scrape. Returns the time of its request, and the result.
    async fn scrape(
        &self,
        target: &Target,
        address: &Result<Uri, ScrapeError>,
        session: &Session<HttpClient>,
        memory: &mut LayoutMemory,
    ) -> (Timestamp, Result<Reading, ScrapeError>) {
        let ScrapeSettings { interval, timeout, body_limit, client: _ } = &*target.settings;
        let time_limit = *timeout.min(interval);
        let began = self.clock.elapsed();
        let mut at = self.clock.now();
        let fetching = async {
            let client = session.ready(began).await;
            let ready =
                client.map_err(|error| ScrapeError::new(ScrapeFailure::Connection, &error))?;
            at = self.clock.now();
            let target = address.as_ref().map_err(ScrapeError::clone)?;
            page::fetch(&ready, target, *body_limit, *interval, &self.memory).await
        };

        let in_time = tokio::time::timeout(time_limit, fetching).await;
        self.metrics.attempted(self.clock.elapsed().saturating_sub(began));
        let page = in_time.unwrap_or_else(|_| {
            let detail = format!("no complete response within {time_limit:?}");
            Err(ScrapeError::new(ScrapeFailure::Timeout, &detail))
        });
        match page {
            Ok(page) => (at, self.read(target, memory, page).await),
            Err(failure) => (at, Err(failure)),
        }
    }

    async fn read(
        &self,
        target: &Target,
        memory: &mut LayoutMemory,
        page: MetricsPage,
    ) -> Result<Reading, ScrapeError> {
        self.metrics.received(page.body.len());
        let reading = if page.body.len() <= READ_AT_ONCE_MAX {
            (self.reader)(memory, &page.body, page.content_type.as_deref())?
        } else {
            self.read_aside(memory, page).await?
        };
        self.metrics.read(reading.samples);

        match wrong_model(&reading.models, &target.models) {
            Some(failure) => Err(failure),
            None => Ok(reading),
        }
    }

    /// Reads a large response on a thread of its own, so that it delays nothing else.
    async fn read_aside(
        &self,
        memory: &mut LayoutMemory,
        page: MetricsPage,
    ) -> Result<Reading, ScrapeError> {
        let _permit = self.asides.acquire().await;
        let reader = self.reader;
        let fresh = LayoutMemory::new(Arc::clone(&self.layouts));
        let mut lent = std::mem::replace(memory, fresh);
        let reading = tokio::task::spawn_blocking(move || {
            let reading = reader(&mut lent, &page.body, page.content_type.as_deref());
            (lent, reading)
        });
        let (returned, reading) = reading
            .await
            .map_err(|error| ScrapeError::from_error(ScrapeFailure::Malformed, &error))?;
        *memory = returned;

        reading
    }

    /// Records an attempt in the metrics, on the board and in the log.
    fn tell(
        &self,
        target: &Target,
        entry: &StatusEntry,
        at: Timestamp,
        outcome: Result<(), &ScrapeError>,
    ) {
        let url = &target.url;
        let change = health::record(entry, at, outcome);
        let Err(ScrapeError { class, detail }) = outcome else {
            match change {
                StatusChange::Recovers => tracing::info!(url, "Target answers again"),
                StatusChange::Answers | StatusChange::Fails | StatusChange::StillFails => {}
            }
            return;
        };

        self.metrics.failed(*class);
        let reason = class.label();
        let error = detail;
        match change {
            StatusChange::Fails => tracing::warn!(url, reason, %error, "Scrape failed"),
            StatusChange::StillFails | StatusChange::Recovers | StatusChange::Answers => {
                tracing::debug!(url, reason, %error, "Scrape failed again");
            }
        }
    }
}

/// Returns a failure if the metrics name models but none of the accepted ones. Metrics that name no
/// model are accepted, such as those of an engine before its first request.
pub(crate) fn wrong_model(seen: &[ModelName], accepted: &[ModelName]) -> Option<ScrapeError> {
    let others = seen.iter().all(|model| !accepted.contains(model));
    (!accepted.is_empty() && !seen.is_empty() && others).then(|| {
        let detail = format!("saw {}, want {}", names(seen), names(accepted));
        ScrapeError::new(ScrapeFailure::WrongModel, &detail)
    })
}

fn names(models: &[ModelName]) -> String {
    models.iter().map(ModelName::as_str).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_core::fleet::{Namespace, ReplicaName, VariantKey, VariantName};

    pub(crate) fn replica(name: &str) -> ReplicaKey {
        ReplicaKey {
            variant: VariantKey {
                namespace: Namespace::new("llm").unwrap(),
                variant: VariantName::new("chat-h100").unwrap(),
            },
            replica: ReplicaName::new(name).unwrap(),
            incarnation: None,
        }
    }

    fn models(names: &[&str]) -> Vec<ModelName> {
        names.iter().map(|name| ModelName::new(name).unwrap()).collect()
    }

    #[test]
    fn a_page_is_another_models_only_if_it_names_models_and_none_is_accepted() {
        let cases: [(&[&str], &[&str], Option<&str>); 6] = [
            (&["a"], &["a"], None),
            (&["a", "b"], &["b", "c"], None),
            (&["a"], &[], None),
            (&[], &["a"], None),
            (&["a"], &["b"], Some("saw a, want b")),
            (&["a", "b"], &["c", "d"], Some("saw a, b, want c, d")),
        ];

        for (seen, accepted, detail) in cases {
            let failure = wrong_model(&models(seen), &models(accepted));
            let want = detail.map(|detail| ScrapeError::new(ScrapeFailure::WrongModel, detail));
            assert_eq!(failure, want, "saw {seen:?}, accepted {accepted:?}");
        }
    }
}
