//! The daemon: builds everything, runs the loop, shuts down; the only place that starts tasks.
//!
//! [`Daemon::start`] reads from top to bottom as the data flows: what is scraped and watched, the
//! decision loop, and the two servers that show what it decides. [`Daemon::shutdown`] undoes it in
//! the order that costs no request: first the servers say that they are not ready, then they send
//! their peers away and finish, and only then does the deciding end.

mod announce;
pub mod args;
mod certificates;
mod demand;
mod directory;
mod discovery;
mod kubernetes;
mod reload;
mod sharing;
mod status;
mod ticks;
mod workloads;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ::prometheus::Registry;
use anyhow::Context;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::collect::cluster::Registration;
use crate::collect::prometheus;
use crate::collect::scrape::{self, Board, Scraper, Target};
use crate::collect::targets;
use crate::config::{self, Authorization, Config, Files, Loaded};
use crate::daemon::args::RunArgs;
use crate::daemon::certificates::Followed;
use crate::daemon::demand::WakeSignals;
use crate::daemon::directory::Surroundings;
use crate::daemon::kubernetes::Cluster;
use crate::daemon::reload::{Origin, Reloader};
use crate::daemon::sharing::Sharing;
use crate::daemon::ticks::trace::Tracer;
use crate::daemon::ticks::{Cards, InPrometheus, Parts, Ticks};
use crate::publish::Published;
use crate::publish::api::Surface;
use crate::publish::external_metrics::authorize::{
    Authorize, Lifetimes, SubjectAccessReviews, TrustFrontProxy,
};
use crate::publish::external_metrics::state::Ages;
use crate::publish::external_metrics::{self, Api};
use crate::publish::gauges::{Gauges, Wva};
use crate::publish::history::History;
use crate::server::admin::{self, Check, Hooks};
use crate::server::auth::TrustAnchor;
use crate::server::tls::{self, ServingCertificate};
use crate::server::{Limits, Phase};
use crate::telemetry::{self, LogFilter, Telemetry};
use plimsoll_core::observe::Scrape;

/// Scrapes that may wait for a tick. A thousand replicas deliver that many in eight ticks of a
/// second; when the loop stalls for longer, scraping waits and counts what it misses.
const SCRAPES_MAX: usize = 8192;

/// What a daemon may be given beside its configuration.
#[derive(Clone, Default)]
pub struct Options {
    /// The file that the configuration came from, to be loaded again when it changes.
    pub config_file: Option<PathBuf>,
    /// Whom the external metrics API believes where no cluster says so.
    pub trust: Option<Arc<TrustAnchor>>,
    /// The log filter that the admin port may replace.
    pub log: Option<LogFilter>,
}

/// A running daemon.
pub struct Daemon {
    common: Common,
    admin: SocketAddr,
    external_metrics: Option<SocketAddr>,
    shutdown: config::Shutdown,
    phase: watch::Sender<Phase>,
}

/// What all parts of a daemon use.
pub(crate) struct Common {
    pub(crate) clock: Clock,
    pub(crate) registry: Registry,
    /// Ends everything that must outlive the draining of the servers.
    pub(crate) stop: CancellationToken,
    /// Ends our part in deciding for other replicas, while what they decide is still served.
    pub(crate) retire: CancellationToken,
    pub(crate) servers: TaskTracker,
    pub(crate) tasks: TaskTracker,
    pub(crate) phases: watch::Receiver<Phase>,
    pub(crate) published: watch::Receiver<Arc<Published>>,
    pub(crate) history: Arc<History>,
    pub(crate) cards: Arc<watch::Sender<Cards>>,
    pub(crate) wva: Wva,
}

/// Runs the daemon until it is told to end.
///
/// # Errors
///
/// The configuration is wrong, an address cannot be listened on, a certificate cannot be loaded, or
/// the credentials of the cluster cannot be used.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    let RunArgs { config: file, log, log_format } = args;
    let log = telemetry::init_logs(&log, log_format)?;
    let Loaded { config, warnings } = config::load(&file, Files::MustExist)?;
    for warning in warnings {
        warn!(file = %file.display(), "{warning}");
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut ends = Signals::listen()?;
        let options = Options { config_file: Some(file), trust: None, log: Some(log) };
        let daemon = Daemon::start(config, options).await?;
        ends.next().await;
        info!("Shutting down; a second signal ends at once");
        tokio::select! {
            () = daemon.shutdown() => {}
            () = ends.next() => warn!("Ending without waiting for open requests"),
        }
        Ok(())
    })
}

// === impl Daemon ===

impl Daemon {
    /// Builds everything and starts to decide.
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, a certificate cannot be loaded, or the credentials of the
    /// cluster cannot be used. An API server or a replica that does not answer is no error.
    pub async fn start(config: Config, options: Options) -> anyhow::Result<Self> {
        let (phase, phases) = watch::channel(Phase::Serving);
        let (outlet, published) = watch::channel(Arc::new(Published::default()));
        let common = Common::new(&config, published, phases)?;
        let telemetry = Telemetry::register(&common.registry)?;
        let cluster = if config.keys.kubernetes.enabled {
            Some(Cluster::connect(&config, &common, &telemetry).await?)
        } else {
            None
        };
        let (inlet, scrapes) = mpsc::channel(SCRAPES_MAX);
        let (targets, board) = scrape(&config, &common, inlet.clone())?;
        let prometheus = ask_prometheus(&config, &common, board.clone(), inlet)?;
        let (reloads, inbox) = mpsc::channel(1);
        let parts = Parts {
            clock: common.clock,
            telemetry: telemetry.clone(),
            published: outlet,
            scrapes,
            targets,
            cluster: cluster.as_ref().map(Cluster::state),
            announcer: cluster.as_ref().and_then(Cluster::announcer),
            sharing: sharing(&config, cluster.as_ref(), &common)?,
            prometheus,
            signals: WakeSignals::start(&config, &common)?,
            reloads: inbox,
            surroundings: common.surroundings()?,
            tracker: common.tasks.clone(),
            history: Arc::clone(&common.history),
            cards: Arc::clone(&common.cards),
            tracer: tracer(&config, &common, &telemetry),
        };
        let ticks = Ticks::new(&config, parts);
        let mut certificate = None;
        let external_metrics = match &config.keys.external_metrics {
            Some(settings) => {
                let trust = trust(options.trust.as_ref(), cluster.as_ref())?;
                let served =
                    serve_external_metrics(settings, &common, trust, cluster.as_ref(), &telemetry);
                let Served { address, followed } = served.await?;
                certificate = Some(followed.certificate);
                let registration = cluster.as_ref().map(|cluster| {
                    cluster.follow_registration(followed.expected, &telemetry, &common)
                });
                Some((address, registration))
            }
            None => not_served(cluster.as_ref()),
        };
        let (external_metrics, registration) = external_metrics.unzip();
        let needs = cluster.as_ref().map(Cluster::needs);
        let from = Origin { file: options.config_file, config: config.clone() };
        let reloader = Reloader::new(from, reloads, needs, telemetry, common.clock);
        let registration = registration.flatten();
        let ready = common.ready(certificate);
        let api = status::surface(&common, &reloader, board, registration, ready.clone());
        let shown = Shown { api, ready, log: options.log };
        let admin = serve_admin(&config, &common, &reloader, shown).await?;
        common.tasks.spawn(Arc::clone(&reloader).follow(common.stop.clone()));
        common.tasks.spawn(ticks.run(common.stop.clone()));
        info!(
            version = env!("CARGO_PKG_VERSION"),
            %admin,
            external_metrics = external_metrics.map(|address| address.to_string()),
            variants = config.variants.len(),
            config = config.hash(),
            "Plimsoll runs"
        );
        Ok(Self { common, admin, external_metrics, shutdown: config.keys.shutdown, phase })
    }

    /// What all surfaces show, as it changes.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Arc<Published>> {
        self.common.published.clone()
    }

    /// Where the plain HTTP port listens.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// Where the external metrics API listens, if it is served.
    #[must_use]
    pub const fn external_metrics(&self) -> Option<SocketAddr> {
        self.external_metrics
    }

    /// Shuts down: unready, then draining, then gone. It takes the configured delay, at most the
    /// configured drain, and a moment.
    pub async fn shutdown(self) {
        let config::Shutdown { delay, drain } = self.shutdown;
        let Common { servers, tasks, stop, retire, .. } = self.common;
        self.phase.send_replace(Phase::Unready);
        retire.cancel();
        if self.external_metrics.is_some() {
            tokio::time::sleep(delay).await;
        }
        self.phase.send_replace(Phase::Draining);
        servers.close();
        // The servers bound their own draining; the margin is for closing connections.
        let bound = drain + Duration::from_secs(2);
        if tokio::time::timeout(bound, servers.wait()).await.is_err() {
            warn!("Requests are still open after the drain time");
        }
        stop.cancel();
        tasks.close();
        if tokio::time::timeout(Duration::from_secs(6), tasks.wait()).await.is_err() {
            warn!("Some tasks did not end in time");
        }
        info!("Plimsoll has ended");
    }
}

/// All readiness checks, as they are now.
pub(crate) type Readiness = Arc<dyn Fn() -> Vec<Check> + Send + Sync>;

// === impl Common ===

impl Common {
    fn new(
        config: &Config,
        published: watch::Receiver<Arc<Published>>,
        phases: watch::Receiver<Phase>,
    ) -> anyhow::Result<Self> {
        let (clock, registry) = (Clock::start(), Registry::new());
        let wva = if config.keys.compatibility.wva_metrics { Wva::Published } else { Wva::Off };
        registry.register(Box::new(Gauges::new(published.clone(), clock, wva)))?;
        let (stop, servers, tasks) =
            (CancellationToken::new(), TaskTracker::new(), TaskTracker::new());
        let (retire, history) = (stop.child_token(), Arc::default());
        let cards = Arc::new(watch::Sender::new(Cards::default()));
        Ok(Self {
            clock,
            registry,
            stop,
            retire,
            servers,
            tasks,
            phases,
            published,
            history,
            cards,
            wva,
        })
    }

    /// Every readiness check.
    /// `certificate` is what the external metrics API presents, if it is served.
    pub(crate) fn ready(&self, certificate: Option<Arc<ServingCertificate>>) -> Readiness {
        let phases = self.phases.clone();
        Arc::new(move || {
            let serving = *phases.borrow() == Phase::Serving;
            let shutdown = if serving { Ok(()) } else { Err("shutting down".into()) };
            let awaited = certificate.as_ref().is_some_and(|it| it.not_after().is_none());
            let certificate =
                if awaited { Err("no serving certificate yet".into()) } else { Ok(()) };
            vec![("ping", Ok(())), ("shutdown", shutdown), ("certificate", certificate)]
        })
    }

    fn surroundings(&self) -> anyhow::Result<Surroundings> {
        Ok(Surroundings {
            clock: self.clock,
            metrics: targets::Metrics::register(&self.registry)?,
            tracker: self.tasks.clone(),
            stop: self.stop.clone(),
        })
    }
}

/// What writes the trace, if one is written.
fn tracer(config: &Config, common: &Common, telemetry: &Telemetry) -> Option<Tracer> {
    Tracer::start(config, common.clock.now(), telemetry.tracing.clone(), &common.tasks)
}

/// What this replica shares with others, if there may be others.
fn sharing(
    config: &Config,
    cluster: Option<&Cluster>,
    common: &Common,
) -> anyhow::Result<Option<Sharing>> {
    let election = config.keys.kubernetes.leader_election();
    let both = cluster.zip(election);
    both.map(|(cluster, election)| cluster.share(election, common)).transpose()
}

/// Where targets go in, and what was wrong with each is written.
type Scraping = (watch::Sender<Arc<Vec<Target>>>, Board);

fn scrape(
    config: &Config,
    common: &Common,
    scrapes: mpsc::Sender<Scrape>,
) -> anyhow::Result<Scraping> {
    let (targets, wanted) = watch::channel(Arc::default());
    let limits =
        scrape::Limits { in_flight: config.keys.scrape.concurrency, ..scrape::Limits::default() };
    let metrics = scrape::Metrics::register(&common.registry)?;
    let running = Scraper::new(common.clock, limits, metrics, scrapes);
    let board = running.board();
    common.tasks.spawn(running.run(wanted, common.tasks.clone(), common.stop.clone()));
    Ok((targets, board))
}

fn ask_prometheus(
    config: &Config,
    common: &Common,
    board: Board,
    scrapes: mpsc::Sender<Scrape>,
) -> anyhow::Result<Option<InPrometheus>> {
    let Some(settings) = config.prometheus.clone() else { return Ok(None) };
    let Common { clock, registry, tasks, stop, .. } = common;
    let metrics = prometheus::Metrics::register(registry)?;
    let (wanted, asked) = watch::channel(Arc::default());
    let (found, instances) = watch::channel(Arc::default());
    let source = prometheus::Source::new(settings, *clock, metrics, board, scrapes);
    tasks.spawn(source.run(asked, found, tasks.clone(), stop.clone()));
    Ok(Some(InPrometheus { wanted, instances }))
}

/// Whom the external metrics API believes, as it changes.
type Trust = watch::Receiver<Option<Arc<TrustAnchor>>>;

fn trust(given: Option<&Arc<TrustAnchor>>, cluster: Option<&Cluster>) -> anyhow::Result<Trust> {
    match (given, cluster) {
        (Some(anchor), _) => Ok(watch::channel(Some(Arc::clone(anchor))).1),
        (None, Some(cluster)) => Ok(cluster.trust()),
        (None, None) => anyhow::bail!(
            "external_metrics needs kubernetes.enabled: the cluster says whom the API may believe"
        ),
    }
}

/// The external metrics API where it is served.
struct Served {
    address: SocketAddr,
    followed: Followed,
}

/// The external metrics API where it is served, and what its `APIService` says.
type Registered = (SocketAddr, Option<watch::Receiver<Option<Registration>>>);

/// Says who has to carry the numbers where the external metrics API is not served.
fn not_served(cluster: Option<&Cluster>) -> Option<Registered> {
    if cluster.is_some() {
        info!(
            "The external metrics API is not served, so HPAs do not get numbers from here: another \
             provider has to read the gauge plimsoll_desired_replicas, as KEDA does with a \
             prometheus trigger"
        );
    }
    None
}

async fn serve_external_metrics(
    settings: &config::ExternalMetrics,
    common: &Common,
    trust: Trust,
    cluster: Option<&Cluster>,
    telemetry: &Telemetry,
) -> anyhow::Result<Served> {
    let Common { clock, registry, servers, tasks, phases, published, wva, .. } = common;
    let metrics = external_metrics::metrics::Metrics::register(registry)?;
    let followed =
        certificates::follow(settings, common, cluster, &metrics, &telemetry.certificates).await?;
    let authorizer: Arc<dyn Authorize> = match (settings.authorization, cluster) {
        (Authorization::SubjectAccessReview, Some(cluster)) => {
            let lifetimes = Lifetimes::default();
            let (client, tasks) = (cluster.client(), tasks.clone());
            Arc::new(SubjectAccessReviews::new(client, *clock, lifetimes, tasks))
        }
        (Authorization::SubjectAccessReview, None) => anyhow::bail!(
            "external_metrics.authorization: subject_access_review needs kubernetes.enabled"
        ),
        (Authorization::TrustFrontProxy, _) => Arc::new(TrustFrontProxy),
    };
    let of_api = external_metrics::Settings {
        ages: Ages { fresh: settings.fresh, hold: settings.hold },
        wva_metrics: *wva == Wva::Published,
    };
    let api = Api::new(of_api, published.clone(), *clock, trust, authorizer, metrics);
    let listener = listen(settings.listen, "external_metrics.listen").await?;
    let address = listener.local_addr()?;
    let server_config = tls::server_config(Arc::clone(&followed.certificate))?;
    let (connections, phases) = (servers.clone(), phases.clone());
    servers.spawn(async move {
        let (api, limits) = (Arc::new(api), Limits::default());
        external_metrics::serve(listener, api, server_config, limits, phases, &connections).await;
    });
    Ok(Served { address, followed })
}

/// What the admin port shows and does beside what all parts use.
struct Shown {
    api: Surface,
    ready: Readiness,
    log: Option<LogFilter>,
}

async fn serve_admin(
    config: &Config,
    common: &Common,
    reloader: &Arc<Reloader>,
    shown: Shown,
) -> anyhow::Result<SocketAddr> {
    let hooks = Arc::new(hooks(common, reloader, shown));
    let listener = listen(config.keys.server.listen, "server.listen").await?;
    let address = listener.local_addr()?;
    let Common { tasks, stop, .. } = common;
    tasks.spawn(admin::serve(listener, hooks, stop.clone(), tasks.clone()));
    Ok(address)
}

async fn listen(address: SocketAddr, key: &str) -> anyhow::Result<TcpListener> {
    TcpListener::bind(address).await.with_context(|| format!("{key}: cannot listen on {address}"))
}

/// What the admin port shows and does.
fn hooks(common: &Common, reloader: &Arc<Reloader>, shown: Shown) -> Hooks {
    let Shown { api, ready, log } = shown;
    let (registry, reloader) = (common.registry.clone(), Arc::clone(reloader));
    let api = status::answers(api, common.tasks.clone());
    let (deciding, alive_phases, tasks) =
        (common.published.clone(), common.phases.clone(), common.tasks.clone());
    Hooks {
        metrics: Box::new(move || {
            telemetry::render(&registry).map_err(|problem| {
                error!(error = %problem, "The page of metrics cannot be written");
                problem.to_string()
            })
        }),
        ready: Box::new(move || ready()),
        alive: Box::new(move || {
            // The loop drops its end only when it ends, which outside a shutdown is a panic.
            let draining = *alive_phases.borrow() == Phase::Draining;
            let ended = deciding.has_changed().is_err();
            if ended && !draining { Err("the decision loop has ended".into()) } else { Ok(()) }
        }),
        api,
        reload: Box::new(move || {
            let reloader = Arc::clone(&reloader);
            // A task of its own, because a client that hangs up must not leave a reload half done.
            let reloading = tasks.spawn(async move { reloader.reload().await });
            Box::pin(async move { reloading.await.unwrap_or_else(|ended| Err(ended.to_string())) })
        }),
        set_log: Box::new(move |filter| match &log {
            Some(log) => log.set(filter).map_err(|problem| format!("{problem:#}")),
            None => Err("the log filter of this process cannot be replaced".into()),
        }),
    }
}

/// The signals that end the process.
struct Signals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl Signals {
    fn listen() -> anyhow::Result<Self> {
        use tokio::signal::unix::{SignalKind, signal};
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
