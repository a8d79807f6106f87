//! Scraping: one page of each target in each interval, turned into [`plimsoll_core::observe::Scrape`].
//!
//! Each target has a task of its own, which waits for its turn, asks for its page, reads it, and
//! sends what came of it. The tasks share the HTTP clients, and a semaphore that bounds how many
//! pages are on their way at once. A scrape is never tried again before its next turn: the core
//! treats missing data as missing, and a second request would only add to the load of an engine
//! that is too busy to answer the first.

pub(crate) mod clients;
pub(crate) mod health;
pub(crate) mod http;
mod metrics;
pub(crate) mod page;
mod schedule;
mod tls;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hyper::Uri;
use jiff::Timestamp;
use tokio::sync::{Semaphore, mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::Instrument;

use crate::clock::Clock;
use crate::collect::exposition::{Layouts, Memory};
use crate::collect::scrape::clients::{Clients, Session};
use crate::collect::scrape::health::{Change, Entry};
use crate::collect::scrape::http::HttpClient;
use crate::collect::scrape::page::Page;
use crate::collect::scrape::schedule::Schedule;
use plimsoll_core::fleet::{ModelName, ReplicaKey};
use plimsoll_core::observe::{Reading, Scrape, ScrapeFailure};

pub use crate::collect::scrape::health::{Board, Failure, Status};
pub use crate::collect::scrape::metrics::Metrics;
pub use crate::collect::scrape::schedule::phase;

/// How the targets of one variant are scraped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Time between two scrapes of one target.
    pub interval: Duration,
    /// Time after which a scrape is given up; not longer than the interval.
    pub timeout: Duration,
    /// Largest body that is read, in bytes, after decompression.
    pub body_limit: usize,
    /// TLS and credentials.
    pub client: Client,
}

/// TLS and credentials of a scrape.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Client {
    /// PEM bundle of the authorities that are trusted instead of the system's.
    pub ca_file: Option<PathBuf>,
    /// PEM certificate chain and key that we present.
    pub identity: Option<Identity>,
    /// Skips the check of the server's certificate.
    pub insecure_skip_verify: bool,
    /// File with a bearer token, read again as it rotates.
    pub bearer_token_file: Option<PathBuf>,
}

/// A client certificate and its key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Identity {
    /// PEM certificate chain.
    pub cert_file: PathBuf,
    /// PEM key.
    pub key_file: PathBuf,
}

/// One thing to scrape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// The replica that it is.
    pub replica: ReplicaKey,
    /// Where its page is: scheme, host, port and path.
    pub url: String,
    /// The names under which its page may speak of its model; none means that any will do.
    pub models: Vec<ModelName>,
    /// How it is scraped.
    pub settings: Arc<Settings>,
}

/// What bounds the scraper as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Scrapes that may be on their way at once.
    pub in_flight: usize,
    /// How often the files with certificates and tokens are looked at again.
    pub credentials_refresh: Duration,
}

impl Default for Limits {
    /// 512 scrapes at once: a thousand targets each second need about 20 while they answer, and
    /// the rest leaves room for the turns of those that hang until their timeout. Credentials are
    /// read every 10 s, which is short beside the hour for which a service account's token lives.
    fn default() -> Self {
        Self { in_flight: 512, credentials_refresh: Duration::from_secs(10) }
    }
}

/// Reads the page of an engine: its body, and the value of its `Content-Type`, with what is
/// remembered of the target's pages.
pub type Reader = fn(&mut Memory, &[u8], Option<&str>) -> Result<Reading, Failure>;

/// The reader of all engines that are known.
fn read_exposition(
    memory: &mut Memory,
    body: &[u8],
    content_type: Option<&str>,
) -> Result<Reading, Failure> {
    let reading = memory.read(body, content_type);
    reading.map_err(|error| Failure::from_error(error.failure(), &error))
}

/// Scrapes targets and sends what comes of it.
#[derive(Debug)]
pub struct Scraper {
    shared: Arc<Shared>,
}

/// What the tasks of all targets use.
#[derive(Debug)]
struct Shared {
    clock: Clock,
    reader: Reader,
    layouts: Arc<Layouts>,
    clients: Clients<HttpClient>,
    permits: Semaphore,
    metrics: Metrics,
    board: Board,
    scrapes: mpsc::Sender<Scrape>,
}

/// A target that has a task; dropping it stops the task.
#[derive(Debug)]
struct Running {
    target: Target,
    _stop: DropGuard,
}

// === impl Scraper ===

impl Scraper {
    /// A scraper that sends to `scrapes`. While that channel is full the targets wait, and the
    /// turns that they lose are counted as missed.
    #[must_use]
    pub fn new(
        clock: Clock,
        limits: Limits,
        metrics: Metrics,
        scrapes: mpsc::Sender<Scrape>,
    ) -> Self {
        Self::with_reader(clock, limits, metrics, scrapes, read_exposition)
    }

    /// A scraper whose pages are read by `reader`.
    #[must_use]
    pub fn with_reader(
        clock: Clock,
        limits: Limits,
        metrics: Metrics,
        scrapes: mpsc::Sender<Scrape>,
        reader: Reader,
    ) -> Self {
        let Limits { in_flight, credentials_refresh } = limits;
        let shared = Shared {
            clock,
            reader,
            layouts: Arc::default(),
            clients: Clients::new(http::client, credentials_refresh),
            permits: Semaphore::new(in_flight.clamp(1, Semaphore::MAX_PERMITS)),
            metrics,
            board: Board::default(),
            scrapes,
        };
        Self { shared: Arc::new(shared) }
    }

    /// Where the status of each target can be read.
    #[must_use]
    pub fn board(&self) -> Board {
        self.shared.board.clone()
    }

    /// Scrapes whatever `targets` holds, until `stop` is cancelled.
    ///
    /// A target that disappears is given up at once, even in the middle of a scrape; one that stays
    /// the same keeps its turns and its connection. When the sender of `targets` is gone the last
    /// targets stay.
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
            // A list that is only confirmed needs no work, and no second warning.
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

    /// Stops the tasks of targets that are gone or changed, and starts those that are missing.
    fn reconcile(
        &self,
        wanted: &[Target],
        running: &mut BTreeMap<ReplicaKey, Running>,
        tracker: &TaskTracker,
        stop: &CancellationToken,
    ) {
        let wanted = unique(wanted);
        running.retain(|replica, running| {
            let stays = wanted.get(replica).is_some_and(|target| **target == running.target);
            if !stays {
                self.shared.board.remove(replica);
            }
            stays
        });
        for (replica, target) in wanted {
            if !running.contains_key(replica) {
                running.insert(replica.clone(), self.start(target, tracker, stop));
            }
        }
        self.shared.metrics.set_targets(running.len());
    }

    fn start(&self, target: &Target, tracker: &TaskTracker, stop: &CancellationToken) -> Running {
        let entry = self.shared.board.add(target.replica.clone(), target.url.clone());
        let stop = stop.child_token();
        let ReplicaKey { variant, replica, incarnation: _ } = &target.replica;
        let span = tracing::info_span!("scrape", %variant, %replica);
        let task = Arc::clone(&self.shared).scrape_at_intervals(target.clone(), entry);
        tracker.spawn(stop.clone().run_until_cancelled_owned(task).instrument(span));
        Running { target: target.clone(), _stop: stop.drop_guard() }
    }
}

/// The targets by replica; of two for one replica the first stays.
fn unique(targets: &[Target]) -> BTreeMap<&ReplicaKey, &Target> {
    let mut unique: BTreeMap<&ReplicaKey, &Target> = BTreeMap::new();
    for target in targets {
        let first = unique.entry(&target.replica).or_insert(target);
        if first.url != target.url {
            let ReplicaKey { variant, replica, incarnation: _ } = &target.replica;
            let (used, unused) = (&first.url, &target.url);
            tracing::warn!(%variant, %replica, used, unused, "Two targets have one name");
        }
    }
    unique
}

// === impl Shared ===

impl Shared {
    /// Scrapes one target on its schedule, until nobody listens.
    async fn scrape_at_intervals(self: Arc<Self>, target: Target, entry: Entry) {
        let session = self.clients.session(&target.settings.client, &target.url);
        let address = page::address(&target.url);
        let mut memory = Memory::new(Arc::clone(&self.layouts));
        let mut schedule = Schedule::start(&target.replica, target.settings.interval).await;
        while let Ok(permit) = schedule.turn(&self.permits, &self.metrics.missed).await {
            let (at, outcome) = self.scrape(&target, &address, &session, &mut memory).await;
            drop(permit);
            self.tell(&target, &entry, at, outcome.as_ref().map(|_| ()));
            let outcome = outcome.map_err(|failure| failure.class);
            let scrape = Scrape { replica: target.replica.clone(), at, outcome };
            if self.scrapes.send(scrape).await.is_err() {
                return;
            }
        }
    }

    /// One scrape: when its page was asked for, and what came of it.
    async fn scrape(
        &self,
        target: &Target,
        address: &Result<Uri, Failure>,
        session: &Session<HttpClient>,
        memory: &mut Memory,
    ) -> (Timestamp, Result<Reading, Failure>) {
        let Settings { interval, timeout, body_limit, client: _ } = &*target.settings;
        let timeout = *timeout.min(interval);
        let began = self.clock.elapsed();
        let mut at = self.clock.now();
        let page = async {
            let ready = session.ready(began).await;
            let ready = ready.map_err(|error| Failure::new(ScrapeFailure::Connection, &error))?;
            at = self.clock.now();
            let address = address.as_ref().map_err(Failure::clone)?;
            page::fetch(&ready, address, *body_limit).await
        };
        let page = tokio::time::timeout(timeout, page).await;
        self.metrics.attempted(self.clock.elapsed().saturating_sub(began));
        let page = page.unwrap_or_else(|_| {
            let detail = format!("there was no whole page within {timeout:?}");
            Err(Failure::new(ScrapeFailure::Timeout, &detail))
        });
        (at, page.and_then(|page| self.read(target, memory, &page)))
    }

    fn read(&self, target: &Target, memory: &mut Memory, page: &Page) -> Result<Reading, Failure> {
        self.metrics.received(page.body.len());
        let reading = (self.reader)(memory, &page.body, page.content_type.as_deref())?;
        self.metrics.read(reading.samples);
        match wrong_model(&reading.models, &target.models) {
            Some(failure) => Err(failure),
            None => Ok(reading),
        }
    }

    /// Puts an attempt into the metrics, the board and the log.
    fn tell(&self, target: &Target, entry: &Entry, at: Timestamp, outcome: Result<(), &Failure>) {
        let url = &target.url;
        let change = health::record(entry, at, outcome);
        let Err(Failure { class, detail }) = outcome else {
            match change {
                Change::Recovers => tracing::info!(url, "Target answers again"),
                Change::Answers | Change::Fails | Change::StillFails => {}
            }
            return;
        };
        self.metrics.failed(*class);
        let (reason, error) = (class.label(), detail);
        match change {
            Change::Fails => tracing::warn!(url, reason, %error, "Scrape failed"),
            Change::StillFails | Change::Recovers | Change::Answers => {
                tracing::debug!(url, reason, %error, "Scrape failed again");
            }
        }
    }
}

/// The failure of a page that names models, none of which is accepted. A page that names none, as
/// that of an engine before its first request, is nobody else's.
pub(crate) fn wrong_model(seen: &[ModelName], accepted: &[ModelName]) -> Option<Failure> {
    let others = seen.iter().all(|model| !accepted.contains(model));
    (!accepted.is_empty() && !seen.is_empty() && others).then(|| {
        let names = |models: &[ModelName]| {
            models.iter().map(ModelName::as_str).collect::<Vec<_>>().join(", ")
        };
        let detail = format!("saw {}, want {}", names(seen), names(accepted));
        Failure::new(ScrapeFailure::WrongModel, &detail)
    })
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

    #[test]
    fn a_page_is_another_models_only_if_it_names_models_and_none_is_accepted() {
        let models = |names: &[&str]| {
            names.iter().map(|name| ModelName::new(name).unwrap()).collect::<Vec<_>>()
        };
        let cases: [(&[&str], &[&str], Option<&str>); 6] = [
            (&["a"], &["a"], None),
            (&["a", "b"], &["b", "c"], None),
            (&["a"], &[], None),
            (&[], &["a"], None),
            (&["a"], &["b"], Some("saw a, want b")),
            (&["a", "b"], &["c", "d"], Some("saw a, b, want c, d")),
        ];
        for (seen, accepted, want) in cases {
            let failure = wrong_model(&models(seen), &models(accepted));
            let want = want.map(|detail| Failure::new(ScrapeFailure::WrongModel, detail));
            assert_eq!(failure, want, "saw {seen:?}, accepted {accepted:?}");
        }
    }
}
