//! Reloads the configuration: when its file changes, on SIGHUP, and on request.
//!
//! A configuration is applied completely or rejected. A change that needs a restart, such as
//! another listen address, is rejected like any error. The decision state is kept.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Mutex, mpsc, oneshot, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;
use tracing::{error, info, warn};

use crate::clock::Clock;
use crate::collect::cluster::ClusterNeeds;
use crate::config::{self, Config, ConfigSources, Files, LoadError, LoadedConfig};
use crate::daemon::needs;
use crate::daemon::ticks::channels::ConfigReload;
use crate::publish::api::ConfigInForce;
use crate::telemetry::Telemetry;

/// The interval between comparisons of the file with the loaded content. Mounted `ConfigMap`s
/// change through a symbolic link, which file notifications miss, so the content is read.
const LOOK_INTERVAL: Duration = Duration::from_secs(5);

const LOOP_ENDED: &str = "the decision loop has ended";

/// The configuration in effect and its file.
pub(crate) struct ConfigOrigin {
    pub(crate) file: Option<PathBuf>,
    pub(crate) config: Config,
}

/// Loads the configuration again.
pub(crate) struct Reloader {
    file: Option<PathBuf>,
    /// True if the file changed while the daemon started.
    is_outdated: bool,
    inner: Mutex<ReloaderState>,
    telemetry: Telemetry,
    clock: Clock,
    shown: watch::Sender<ConfigStatus>,
}

/// The configuration in the status response.
#[derive(Clone)]
pub(crate) struct ConfigStatus {
    pub(crate) config: ConfigInForce,
    pub(crate) tick_interval: Duration,
}

struct ReloaderState {
    config: Config,
    /// The content that was last read, in effect or not.
    sources: ConfigSources,
    reloads: mpsc::Sender<ConfigReload>,
    needs: Option<Arc<watch::Sender<Arc<ClusterNeeds>>>>,
}

impl Reloader {
    pub(crate) async fn new(
        origin: ConfigOrigin,
        reloads: mpsc::Sender<ConfigReload>,
        needs: Option<Arc<watch::Sender<Arc<ClusterNeeds>>>>,
        telemetry: Telemetry,
        clock: Clock,
    ) -> Arc<Self> {
        let ConfigOrigin { file, config } = origin;
        // The configuration in effect was read earlier; this call records its sources. A start takes
        // a while, and the file may have changed since.
        let mut sources = ConfigSources::default();
        let mut is_outdated = false;
        if let Some(file) = file.clone() {
            let reading = read(file).await;
            is_outdated = match &reading {
                Ok((Ok(found), _)) => found.config.hash() != config.hash(),
                Ok((Err(_), _)) | Err(_) => true,
            };
            sources = reading.map(|(_, noted)| noted).unwrap_or_default();
        }

        let in_force = ConfigInForce {
            file: file.as_ref().map(|file| file.display().to_string()),
            hash: config.hash(),
            loaded: (clock.now(), clock.elapsed()),
            last_reload: None,
            refused_since: None,
        };

        let shown = ConfigStatus { config: in_force, tick_interval: config.keys.tick_interval };
        let inner = Mutex::new(ReloaderState { config, sources, reloads, needs });
        let reloader =
            Self { file, is_outdated, inner, telemetry, clock, shown: watch::Sender::new(shown) };
        if let Ok(inner) = reloader.inner.try_lock() {
            reloader.accepted(&inner.config);
        }

        Arc::new(reloader)
    }

    /// The configuration in effect, and the last attempt to load another.
    pub(crate) fn shown(&self) -> ConfigStatus {
        self.shown.borrow().clone()
    }

    /// Reloads on SIGHUP and when the file changes, until `stop`.
    pub(crate) async fn follow(self: Arc<Self>, stop: CancellationToken) {
        let Ok(mut hangups) = signal(SignalKind::hangup()) else {
            error!("Cannot listen for SIGHUP");
            return;
        };
        if self.is_outdated {
            let _said_in_the_log = self.reload().await;
        }

        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        loop {
            let changed = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                _ = hangups.recv() => true,
                _ = looks.tick() => self.has_changed().await,
            };

            if changed {
                let _said_in_the_log = self.reload().await;
            }
        }
    }

    async fn has_changed(&self) -> bool {
        let mut inner = self.inner.lock().await;
        let mut sources = std::mem::take(&mut inner.sources);
        let looked = spawn_blocking(move || (sources.have_changed(), sources)).await;

        match looked {
            Ok((changed, sources)) => {
                inner.sources = sources;
                changed
            }
            // Without sources, only another load can tell.
            Err(_) => true,
        }
    }

    /// Loads the configuration and applies it, or returns the reason for rejecting it.
    pub(crate) async fn reload(&self) -> Result<(), String> {
        let Some(file) = self.file.as_deref() else {
            return Err("this daemon's configuration is not from a file".into());
        };
        let mut inner = self.inner.lock().await;
        match inner.load(file).await {
            Ok(()) => {
                self.accepted(&inner.config);
                self.shown.send_modify(|shown| {
                    shown.tick_interval = inner.config.keys.tick_interval;
                    shown.config.hash = inner.config.hash();
                    shown.config.loaded = (self.clock.now(), self.clock.elapsed());
                    shown.config.last_reload = Some((self.clock.now(), Ok(())));
                    shown.config.refused_since = None;
                });

                info!(config = inner.config.hash(), "The configuration was reloaded");
                Ok(())
            }
            Err(why) => {
                self.telemetry.reload_successful.set(0);
                let now = self.clock.now();
                self.shown.send_modify(|shown| {
                    shown.config.last_reload = Some((now, Err(why.clone())));
                    shown.config.refused_since.get_or_insert(now);
                });
                error!(
                    error = why,
                    "The configuration was rejected; the last valid one stays in \
                    effect"
                );
                Err(why)
            }
        }
    }

    fn accepted(&self, config: &Config) {
        self.telemetry.reload_successful.set(1);
        let now = self.clock.now().as_duration().as_secs_f64();
        self.telemetry.reload_success_time.set(now);
        self.telemetry.config_tick_interval.set(config.keys.tick_interval.as_secs_f64());
        self.telemetry.config_info.reset();
        self.telemetry.config_info.with_label_values(&[&config.hash()]).set(1.0);
    }
}

impl ReloaderState {
    async fn load(&mut self, file: &Path) -> Result<(), String> {
        let (loaded, sources) = read(file.to_owned()).await?;
        self.sources = sources;
        let LoadedConfig { config, warnings } =
            loaded.map_err(|problem| format!("{:#}", anyhow::Error::new(problem)))?;
        for warning in warnings {
            warn!(file = %file.display(), "{warning}");
        }

        let fixed = config::restart_keys(&self.config, &config);
        if !fixed.is_empty() {
            return Err(format!(
                "{} cannot change at runtime; restart to use the new value",
                fixed.join(", ")
            ));
        }

        let (done, finished) = oneshot::channel();
        let reload = ConfigReload { config: config.clone(), done };
        self.reloads.send(reload).await.map_err(|_| LOOP_ENDED.to_owned())?;
        finished.await.map_err(|_| LOOP_ENDED.to_owned())?;
        if let Some(needs) = &self.needs {
            needs.send_replace(Arc::new(needs::of(&config)));
        }

        self.config = config;
        Ok(())
    }
}

/// Reads the configuration and notes its files. A document of many values, or a disk that hangs,
/// occupies a thread of its own, and delays neither probes nor decisions.
async fn read(file: PathBuf) -> Result<(Result<LoadedConfig, LoadError>, ConfigSources), String> {
    let reading = spawn_blocking(move || {
        let mut sources = ConfigSources::default();
        let loaded = config::load_noting(&file, Files::MustExist, &mut sources);
        (loaded, sources)
    });
    reading.await.map_err(|error| format!("reading the configuration ended early: {error}"))
}
