//! The daemon: builds everything, runs the loop, shuts down; the only place that starts tasks.
//!
//! [`Daemon::start`] reads from top to bottom along the data flow: scraping and watching, the
//! decision loop, and the two servers that publish its decisions. [`Daemon::shutdown`] stops these
//! in the order that fails no request. First the servers report that they are not ready. Then they
//! ask their peers to close, and finish. The decision loop ends last.

mod announce;
pub mod args;
mod autoscalers;
mod certificates;
mod context;
mod demand;
mod directory;
mod discovery;
mod kubernetes;
mod listen;
mod liveness;
pub mod needs;
mod overrides;
mod pace;
mod registration;
mod reload;
mod scaler;
mod sharing;
mod status;
mod ticks;
mod workloads;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use tokio::sync::{mpsc, watch};
use tracing::{error, info, warn};

use crate::collect::cluster::{API_SERVICE, OBJECT_API_SERVICE};
use crate::collect::prometheus;
use crate::collect::scrape::{self, Scraper, Target, TargetBoard};
use crate::config::{self, Authorization, Config, Files, LoadedConfig};
use crate::daemon::args::RunArgs;
use crate::daemon::certificates::ManagedCertificate;
use crate::daemon::context::DaemonContext;
use crate::daemon::demand::WakeSignals;
use crate::daemon::kubernetes::Cluster;
use crate::daemon::listen::listen;
use crate::daemon::liveness::LoopLiveness;
use crate::daemon::registration::FollowedRegistration;
use crate::daemon::reload::{ConfigOrigin, Reloader};
use crate::daemon::sharing::Sharing;
use crate::daemon::ticks::Ticks;
use crate::daemon::ticks::channels::{self, PrometheusChannels, TickChannels};
use crate::daemon::ticks::overrides::OverrideRequest;
use crate::daemon::ticks::trace::Tracer;
use crate::publish::Published;
use crate::publish::api::ApiSurface;
use crate::publish::external_metrics::authorize::{
    AnswerLifetimes, Authorize, SubjectAccessReviews, TrustFrontProxy,
};
use crate::publish::external_metrics::state::DecisionAges;
use crate::publish::external_metrics::{self, ExternalMetricsApi};
use crate::publish::gauges::{DecisionGauges, WvaPublication};
use crate::server::admin::access::AccessPolicy;
use crate::server::admin::{self, AdminLimits, Hooks};
use crate::server::auth::TrustAnchor;
use crate::server::readiness::Readiness;
use crate::server::rendering::SharedRendering;
use crate::server::shed::ShedListener;
use crate::server::tls;
use crate::server::{ServerLimits, ServerPhase};
use crate::telemetry::{self, LogFilter, Telemetry};
use plimsoll_core::observe::Scrape;

/// The maximum scrapes that wait for a tick. A thousand replicas deliver this many in eight ticks
/// of one second. When the loop stalls for longer, scraping waits and counts the scrapes that it
/// misses.
const SCRAPES_MAX: usize = 8192;

/// Options of a daemon in addition to its configuration.
#[derive(Clone, Default)]
pub struct DaemonOptions {
    /// The file of the configuration, which is loaded again when it changes.
    pub config_file: Option<PathBuf>,
    /// The trust anchor of the external metrics API if no cluster provides it.
    pub trust: Option<Arc<TrustAnchor>>,
    /// The handle by which the admin port replaces the log filter.
    pub log: Option<LogFilter>,
}

/// A running daemon.
pub struct Daemon {
    common: DaemonContext,
    admin: SocketAddr,
    external_metrics: Option<SocketAddr>,
    external_scaler: Option<SocketAddr>,
    shutdown: config::Shutdown,
    phase: watch::Sender<ServerPhase>,
}

/// Runs the daemon until it gets a signal to end.
///
/// # Errors
///
/// The configuration is wrong, an address cannot be listened on, a certificate cannot be loaded, or
/// the credentials of the cluster cannot be used.
pub fn run(args: RunArgs) -> anyhow::Result<()> {
    let RunArgs { config: file, log: filter, log_format } = args;
    let log = telemetry::init_logs(&filter, log_format)?;
    if let Err(error) = telemetry::raise_descriptor_limit() {
        warn!(%error, "The limit of open files cannot be raised");
    }

    let LoadedConfig { config, warnings } = config::load(&file, Files::MustExist)?;
    for warning in warnings {
        warn!(file = %file.display(), "{warning}");
    }

    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    runtime.block_on(async {
        let mut ends = TerminationSignals::listen()?;
        let filter = Some(log.filter.clone());
        let options = DaemonOptions { config_file: Some(file), trust: None, log: filter };
        let daemon = Box::pin(Daemon::start(config, options)).await?;
        ends.next().await;
        info!("Shutting down; a second signal ends the process at once");
        tokio::select! {
            () = daemon.shutdown() => {}
            () = ends.next() => warn!("Ending without waiting for open requests"),
        }

        anyhow::Ok(())
    })?;

    // A thread that waits for a disk that hangs must not keep the process.
    runtime.shutdown_background();
    Ok(())
}

// === impl Daemon ===

impl Daemon {
    /// Builds everything and starts to decide.
    ///
    /// # Errors
    ///
    /// An address cannot be listened on, a certificate cannot be loaded, or the credentials of the
    /// cluster cannot be used. An API server or a replica that does not answer is not an error.
    pub async fn start(config: Config, options: DaemonOptions) -> anyhow::Result<Self> {
        let (phase, phases) = watch::channel(ServerPhase::Serving);
        let (outlet, published) = watch::channel(Arc::default());
        let common = DaemonContext::new(&config, published, phases)?;
        let telemetry = registered(&common, options.log.as_ref())?;
        let cluster = Box::pin(connect(&config, &common, &telemetry)).await?;
        let (inlet, scrapes) = mpsc::channel(SCRAPES_MAX);
        let (targets, board) = scrape(&config, &common, inlet.clone())?;
        let prometheus = ask_prometheus(&config, &common, board.clone(), inlet)?;
        let (requests, inboxes) = channels::requests();
        let parts = TickChannels {
            clock: common.clock,
            heartbeat: common.heartbeat.clone(),
            telemetry: telemetry.clone(),
            published: outlet,
            scrapes,
            targets,
            cluster: cluster.as_ref().map(Cluster::state),
            announcer: cluster.as_ref().and_then(Cluster::announcer),
            sharing: sharing(&config, cluster.as_ref(), &common, &telemetry)?,
            prometheus,
            signals: WakeSignals::start(&config, &common)?,
            inboxes,
            surroundings: common.surroundings()?,
            tracker: common.tasks.clone(),
            history: Arc::clone(&common.history),
            cards: Arc::clone(&common.cards),
            tracer: tracer(&config, &common, &telemetry),
        };

        let leadership = parts.sharing.as_ref().map(Sharing::leadership);
        let ticks = Ticks::new(&config, parts);
        let mut ready = Readiness::new(common.phases.clone());
        let external_metrics = match &config.keys.external_metrics {
            Some(settings) => {
                let trust = trust(options.trust.as_ref(), cluster.as_ref())?;
                let served =
                    serve_external_metrics(settings, &common, trust, cluster.as_ref(), &telemetry);
                let MetricsApiEndpoint { address, followed, ready: all } = served.await?;
                ready = all;
                let name = registered_as(settings);
                let registration = cluster
                    .as_ref()
                    .map(|it| it.follow_registration(name, followed.expected, &telemetry, &common));
                Some((address, registration))
            }
            None => not_served(cluster.as_ref()),
        };

        let ages = decision_ages(&config.keys, &telemetry);
        let external_scaler = Box::pin(scaler::serve(&config.keys, ages, &common)).await?;
        let (external_metrics, registration) = external_metrics.unzip();
        let from = ConfigOrigin { file: options.config_file, config: config.clone() };
        let needs = cluster.as_ref().map(Cluster::needs);
        let reloader = Reloader::new(from, requests.reloads, needs, telemetry, common.clock).await;
        let sources = status::ApiSources {
            board,
            registration: registration.flatten(),
            ready: ready.clone(),
            cluster: cluster.as_ref().map(Cluster::state),
            scenes: requests.scenes,
            leadership,
        };
        let api = status::surface(&common, ages, &reloader, sources);
        let shown = AdminComponents { api, ready, log: options.log, overrides: requests.overrides };
        let admin = serve_admin(&config, &common, &reloader, shown)?;
        common.tasks.spawn(Arc::clone(&reloader).follow(common.stop.clone()));
        common.tasks.spawn(liveness::decide(ticks, common.stop.clone(), common.retire.clone()));
        let shutdown = timing_of_the_end(&config, external_metrics.or(external_scaler));
        Ok(Self { common, admin, external_metrics, external_scaler, shutdown, phase }
            .announced(&config))
    }

    /// Logs the start.
    fn announced(self, config: &Config) -> Self {
        info!(
            version = env!("CARGO_PKG_VERSION"),
            admin = %self.admin,
            external_metrics = self.external_metrics.map(|address| address.to_string()),
            external_scaler = self.external_scaler.map(|address| address.to_string()),
            variants = config.variants.len(),
            config = config.hash(),
            "Plimsoll runs"
        );

        self
    }

    /// The published state that every surface shows, as it changes.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Arc<Published>> {
        self.common.published.clone()
    }

    /// The address of the plain HTTP port.
    #[must_use]
    pub const fn admin(&self) -> SocketAddr {
        self.admin
    }

    /// The address of the external metrics API, if it is served.
    #[must_use]
    pub const fn external_metrics(&self) -> Option<SocketAddr> {
        self.external_metrics
    }

    /// Shuts down: unready, then draining, then stopped. It takes the configured delay, at most the
    /// configured drain time, and a moment.
    pub async fn shutdown(self) {
        let config::Shutdown { delay, drain } = self.shutdown;
        let DaemonContext { servers, tasks, stop, retire, .. } = self.common;
        self.phase.send_replace(ServerPhase::Unready);
        retire.cancel();
        tokio::time::sleep(delay).await;

        self.phase.send_replace(ServerPhase::Draining);
        servers.close();
        // The servers limit their own draining; the margin is for closing connections.
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

/// The times of a shutdown. No load balancer sends requests to a daemon without a cluster and without
/// servers for autoscalers, so it ends without a delay.
const fn timing_of_the_end(config: &Config, served: Option<SocketAddr>) -> config::Shutdown {
    let config::Shutdown { delay, drain } = config.keys.shutdown;
    let is_balanced = config.keys.kubernetes.enabled || served.is_some();
    config::Shutdown { delay: if is_balanced { delay } else { Duration::ZERO }, drain }
}

/// The writer of the trace, if the configuration enables one.
fn tracer(config: &Config, common: &DaemonContext, telemetry: &Telemetry) -> Option<Tracer> {
    Tracer::start(config, common.clock.now(), telemetry.tracing.clone(), &common.tasks)
}

/// The sharing of decisions with other replicas, if leader election is enabled.
fn sharing(
    config: &Config,
    cluster: Option<&Cluster>,
    common: &DaemonContext,
    telemetry: &Telemetry,
) -> anyhow::Result<Option<Sharing>> {
    let election = config.keys.kubernetes.leader_election();
    let both = cluster.zip(election);
    both.map(|(cluster, election)| cluster.share(election, common, telemetry)).transpose()
}

/// The sender of scrape targets, and the board of their scrape problems.
type ScrapeHandles = (watch::Sender<Arc<Vec<Target>>>, TargetBoard);

fn scrape(
    config: &Config,
    common: &DaemonContext,
    scrapes: mpsc::Sender<Scrape>,
) -> anyhow::Result<ScrapeHandles> {
    let (targets, wanted) = watch::channel(Arc::default());
    let limits = scrape::ScrapeLimits {
        in_flight: config.keys.scrape.concurrency,
        ..scrape::ScrapeLimits::default()
    };
    let metrics = scrape::ScrapeMetrics::register(&common.registry)?;

    let running = Scraper::new(common.clock, limits, metrics, scrapes);
    let board = running.board();
    common.tasks.spawn(running.run(wanted, common.tasks.clone(), common.stop.clone()));
    Ok((targets, board))
}

fn ask_prometheus(
    config: &Config,
    common: &DaemonContext,
    board: TargetBoard,
    scrapes: mpsc::Sender<Scrape>,
) -> anyhow::Result<Option<PrometheusChannels>> {
    let Some(settings) = config.prometheus.clone() else { return Ok(None) };
    let DaemonContext { clock, registry, tasks, stop, .. } = common;
    let metrics = prometheus::PrometheusMetrics::register(registry)?;

    let (wanted, asked) = watch::channel(Arc::default());
    let (found, instances) = watch::channel(Arc::default());
    let source = prometheus::PrometheusSource::new(settings, *clock, metrics, board, scrapes);
    tasks.spawn(source.run(asked, found, tasks.clone(), stop.clone()));
    Ok(Some(PrometheusChannels { wanted, instances }))
}

/// The trust anchor of the external metrics API, as it changes.
type WatchedTrustAnchor = watch::Receiver<Option<Arc<TrustAnchor>>>;

fn trust(
    given: Option<&Arc<TrustAnchor>>,
    cluster: Option<&Cluster>,
) -> anyhow::Result<WatchedTrustAnchor> {
    match (given, cluster) {
        (Some(anchor), _) => Ok(watch::channel(Some(Arc::clone(anchor))).1),
        (None, Some(cluster)) => Ok(cluster.trust()),
        (None, None) => anyhow::bail!(
            "external_metrics needs kubernetes.enabled: the cluster names the API's trusted \
             clients"
        ),
    }
}

/// The address and the certificate of the external metrics API, if it is served.
struct MetricsApiEndpoint {
    address: SocketAddr,
    followed: ManagedCertificate,
    /// The readiness of the whole daemon.
    ready: Readiness,
}

/// The address of the external metrics API if it is served, and the state of its `APIService`.
type ApiRegistration = (SocketAddr, Option<FollowedRegistration>);

/// The `APIService` whose state is watched: with Object metrics, another provider may have the other.
const fn registered_as(settings: &config::ExternalMetrics) -> &'static str {
    if settings.object_metrics { OBJECT_API_SERVICE } else { API_SERVICE }
}

/// The metrics of the whole daemon.
fn registered(common: &DaemonContext, log: Option<&LogFilter>) -> anyhow::Result<Telemetry> {
    telemetry::register_line_losses(&common.registry, log)?;
    Ok(Telemetry::register(&common.registry)?)
}

/// The cluster, if the configuration enables it.
async fn connect(
    config: &Config,
    common: &DaemonContext,
    telemetry: &Telemetry,
) -> anyhow::Result<Option<Cluster>> {
    if !config.keys.kubernetes.enabled {
        return Ok(None);
    }
    Cluster::connect(config, common, telemetry).await.map(Some)
}

/// Logs that another provider must serve the desired replicas if the external metrics API is not
/// served.
fn not_served(cluster: Option<&Cluster>) -> Option<ApiRegistration> {
    if cluster.is_some() {
        info!(
            "The external metrics API is not served, so HPAs can't read desired replicas from it: \
             use another provider, such as KEDA with an external, external-push, metrics-api or \
             prometheus trigger"
        );
    }

    None
}

async fn serve_external_metrics(
    settings: &config::ExternalMetrics,
    common: &DaemonContext,
    trust: WatchedTrustAnchor,
    cluster: Option<&Cluster>,
    telemetry: &Telemetry,
) -> anyhow::Result<MetricsApiEndpoint> {
    let DaemonContext { clock, registry, servers, tasks, phases, published, wva, .. } = common;
    let metrics = external_metrics::metrics::ApiMetrics::register(registry)?;
    let followed =
        certificates::follow(settings, common, cluster, &metrics, &telemetry.certificates).await?;
    let authorizer: Arc<dyn Authorize> = match (settings.authorization, cluster) {
        (Authorization::SubjectAccessReview, Some(cluster)) => {
            let lifetimes = AnswerLifetimes::default();
            let client = cluster.client();
            Arc::new(SubjectAccessReviews::new(client, *clock, lifetimes, tasks.clone()))
        }
        (Authorization::SubjectAccessReview, None) => anyhow::bail!(
            "external_metrics.authorization: subject_access_review needs kubernetes.enabled"
        ),
        (Authorization::TrustFrontProxy, _) => Arc::new(TrustFrontProxy),
    };

    let of_api = external_metrics::ExternalMetricsSettings {
        ages: ages_of(settings),
        wva_metrics: *wva == WvaPublication::Published,
        object_metrics: settings.object_metrics,
    };
    let ready = Readiness::new(phases.clone())
        .with_trust(trust.clone())
        .with_certificate(Arc::clone(&followed.certificate));
    let api = Arc::new(ExternalMetricsApi::new(
        of_api,
        published.clone(),
        *clock,
        trust,
        authorizer,
        ready.clone(),
        metrics,
    ));

    let listener = listen(settings.listen, "external_metrics.listen")?;
    let address = listener.local_addr()?;
    let server_config = tls::server_config(Arc::clone(&followed.certificate))?;
    let connections = servers.clone();
    let limits = ServerLimits { drain_max: common.drain_max, ..ServerLimits::default() };
    let shed = common.shed.of(ShedListener::ExternalMetrics);
    let phases = phases.clone();
    servers.spawn(async move {
        let tracker = &connections;
        external_metrics::serve(listener, api, server_config, limits, shed, phases, tracker).await;
    });
    Ok(MetricsApiEndpoint { address, followed, ready })
}

/// The ages at which decisions become old, for every surface that refuses old ones. Sets the metric
/// that alerts compare with.
fn decision_ages(keys: &config::FileKeys, telemetry: &Telemetry) -> DecisionAges {
    let usual =
        DecisionAges { fresh: config::EXTERNAL_METRICS_FRESH, hold: config::EXTERNAL_METRICS_HOLD };
    let ages = keys.external_metrics.as_ref().map_or(usual, ages_of);

    telemetry.config_hold.set(ages.hold.as_secs_f64());
    ages
}

const fn ages_of(settings: &config::ExternalMetrics) -> DecisionAges {
    DecisionAges { fresh: settings.fresh, hold: settings.hold }
}

/// The parts of the admin port in addition to the shared state.
struct AdminComponents {
    api: ApiSurface,
    ready: Readiness,
    log: Option<LogFilter>,
    overrides: mpsc::Sender<OverrideRequest>,
}

fn serve_admin(
    config: &Config,
    common: &DaemonContext,
    reloader: &Arc<Reloader>,
    shown: AdminComponents,
) -> anyhow::Result<SocketAddr> {
    let hooks = Arc::new(hooks(common, reloader, access(&config.keys.server), shown));
    let listener = listen(config.keys.server.listen, "server.listen")?;
    let address = listener.local_addr()?;
    let DaemonContext { tasks, stop, .. } = common;
    let limits = AdminLimits::default();
    let shed = common.shed.of(ShedListener::Plain);
    tasks.spawn(admin::serve(listener, hooks, limits, shed, stop.clone(), tasks.clone()));

    Ok(address)
}

/// The access rules of the admin port.
fn access(keys: &config::ServerKeys) -> AccessPolicy {
    let config::ServerKeys { listen: _, admin_enabled, admin_token_file, allowed_hosts } = keys;

    AccessPolicy {
        admin_enabled: *admin_enabled,
        token_file: admin_token_file.clone(),
        allowed_hosts: allowed_hosts.clone(),
    }
}

/// The hooks of the admin port.
fn hooks(
    common: &DaemonContext,
    reloader: &Arc<Reloader>,
    access: AccessPolicy,
    shown: AdminComponents,
) -> Hooks {
    let AdminComponents { api, ready, log, overrides } = shown;
    let clock = common.clock;
    let registry = common.registry.clone();
    let gauges = DecisionGauges::new(common.published.clone(), clock, common.wva);
    let reloader = Arc::clone(reloader);
    let liveness = LoopLiveness::of(common);
    let tasks = common.tasks.clone();

    Hooks {
        access,
        metrics: SharedRendering::new(move || {
            let mut page = telemetry::render(&registry).map_err(|problem| {
                error!(error = %problem, "The metrics cannot be written");
                problem.to_string()
            })?;
            gauges.write(&mut page);
            Ok(page)
        }),
        ready: Box::new(move || ready.checks()),
        alive: Box::new(move || liveness.check()),
        api: status::answers(api, tasks.clone()),
        reload: Box::new(move || {
            let reloader = Arc::clone(&reloader);
            // A separate task, because a client that disconnects must not leave a reload half done.
            let reloading = tasks.spawn(async move { reloader.reload().await });
            Box::pin(async move { reloading.await.unwrap_or_else(|ended| Err(ended.to_string())) })
        }),
        change_override: Box::new(move |change| {
            Box::pin(overrides::change(overrides.clone(), clock, change))
        }),
        set_log: Box::new(move |filter| match &log {
            Some(log) => log.set(filter).map_err(|problem| format!("{problem:#}")),
            None => Err("the log filter of this process cannot be replaced".into()),
        }),
    }
}

/// The signals that end the process.
struct TerminationSignals {
    terminate: tokio::signal::unix::Signal,
    interrupt: tokio::signal::unix::Signal,
}

impl TerminationSignals {
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
