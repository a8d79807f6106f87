//! Assembles the demo: certificates, a fleet on its sockets, and the daemon.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::demo::args::{DemoArgs, DemoOutput};
use crate::demo::drive::{DemoParts, drive};
use crate::demo::pki::{FRONT_PROXY, Pki};
use crate::demo::scenario::DemoSetup;
use crate::demo::stage::DemoStage;
use crate::simulate::Micros;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::config::{self, Config, Files};
use plimsoll_daemon::daemon::{self, Daemon};
use plimsoll_daemon::server::auth::TrustAnchor;
use plimsoll_daemon::telemetry::{self, LogFormat};

/// The default address of the daemon's plain HTTP port.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The folder of POSIX shared memory, which containers have even without a writable disk.
const MEMORY: &str = "/dev/shm";

/// Runs the demo until its time is over or it is interrupted.
///
/// # Errors
///
/// Ports, files or the terminal are unavailable.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    let played = DemoSetup::read(args.scenario, args.seed, &args.policy.settings())?;
    // Warnings would disrupt the table, which shows the important ones itself.
    let _log = telemetry::init_logs("error", LogFormat::Text)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let summary = runtime.block_on(perform(args, played))?;
    let mut out = std::io::stdout().lock();
    if args.output == DemoOutput::Json {
        writeln!(out, "{}", summary.json())?;
    } else {
        write!(out, "{summary}")?;
    }

    Ok(out.flush()?)
}

async fn perform(
    args: DemoArgs,
    played: DemoSetup,
) -> anyhow::Result<crate::demo::summary::Summary> {
    let DemoArgs { duration, output, listen, .. } = args;
    let length = duration.map(Micros::from_duration);
    let folder = folder()?;
    let tracker = TaskTracker::new();
    let cancel = CancellationToken::new();
    let pki = Pki::generate().context("cannot make certificates")?;
    let listen_at = listen.unwrap_or(ANY_PORT);
    let config = configuration(folder.path(), &played, &pki, listen_at)?;
    let stage = DemoStage::open(&played, folder.path(), Clock::start(), &tracker, &cancel)?;
    let trust = Arc::new(trust(&pki)?);
    let options_of_daemon =
        daemon::DaemonOptions { trust: Some(trust), ..daemon::DaemonOptions::default() };
    let daemon = Box::pin(Daemon::start(config, options_of_daemon)).await?;
    if listen.is_some() {
        // Standard error may be closed.
        let _ = writeln!(std::io::stderr(), "The daemon's HTTP port is http://{}", daemon.admin());
    }

    let api = daemon.external_metrics().context("the daemon serves no external metrics")?;
    let interrupted = cancel.clone();
    tracker.spawn(async move {
        if tokio::signal::ctrl_c().await.is_ok() {
            interrupted.cancel();
        }
    });
    let published = daemon.published();
    let ending = cancel.clone();
    let tracker = tracker.clone();
    let parts = DemoParts { played, stage, published, api, pki, length, output, tracker, cancel };
    let summary = drive(parts).await;
    ending.cancel();
    daemon.shutdown().await;
    summary
}

/// A temporary folder: in memory if the disk is read-only, as in a pod with
/// `readOnlyRootFilesystem`.
fn folder() -> anyhow::Result<TempDir> {
    let usual = std::env::temp_dir();

    tempfile::tempdir_in(&usual).or_else(|error| {
        tempfile::tempdir_in(MEMORY).map_err(|_| error).with_context(|| {
            format!(
                "cannot make a temporary folder in {} or {MEMORY}: set TMPDIR to a folder that \
                 can be written",
                usual.display()
            )
        })
    })
}

/// The trust anchor of the demo's daemon: the demo itself, in place of a cluster's front proxy.
fn trust(pki: &Pki) -> anyhow::Result<TrustAnchor> {
    let entries = [
        ("requestheader-client-ca-file", pki.proxy_authority.clone()),
        ("requestheader-allowed-names", json!([FRONT_PROXY]).to_string()),
        ("requestheader-username-headers", json!(["X-Remote-User"]).to_string()),
        ("requestheader-group-headers", json!(["X-Remote-Group"]).to_string()),
        ("requestheader-extra-headers-prefix", json!(["X-Remote-Extra-"]).to_string()),
    ];

    let data: BTreeMap<String, String> =
        entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    TrustAnchor::from_config_map(&data).context("the demo's own certificates are not valid")
}

/// The daemon's configuration for the scenario, as a user would write it, with the demo's
/// certificates and target files.
fn configuration(
    folder: &Path,
    played: &DemoSetup,
    pki: &Pki,
    listen: SocketAddr,
) -> anyhow::Result<Config> {
    let mut words = played.config.clone();
    words["server"]["listen"] = json!(listen);
    words["external_metrics"] = json!({
        "enabled": true,
        "listen": "127.0.0.1:0",
        "tls": {
            "cert_file": write(folder, "tls.crt", &pki.serving_certificate)?,
            "key_file": write(folder, "tls.key", &pki.serving_key)?,
        },
        "authorization": "trust_front_proxy",
    });

    words["shutdown"] = json!({"delay": "0s", "drain": "1s"});
    words["variants"] = played.with_targets(folder);

    let surroundings = config::Surroundings {
        origin: "the demo's configuration".to_owned(),
        base: folder.to_owned(),
        environment: BTreeMap::new(),
        // The target files are written when the stage opens.
        files: Files::NotChecked,
    };

    Ok(config::parse(&words.to_string(), &surroundings)?.config)
}

fn write(folder: &Path, name: &str, text: &str) -> anyhow::Result<PathBuf> {
    let path = folder.join(name);
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}
