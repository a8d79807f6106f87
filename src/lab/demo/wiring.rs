//! The demo put together: certificates, a fleet on its sockets, and the daemon beside it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::Write as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::demo::args::{DemoArgs, DemoOutput, DemoPolicy, DemoScenario};
use crate::demo::pki::{FRONT_PROXY, Pki};
use crate::demo::scenario::{NAMESPACE, Scenario};
use crate::demo::screen::Output;
use crate::demo::stage::Stage;
use crate::demo::{DemoParts, Options, drive};
use crate::simulate::Micros;
use plimsoll_daemon::clock::Clock;
use plimsoll_daemon::config::{self, Config, Files};
use plimsoll_daemon::daemon::{self, Daemon};
use plimsoll_daemon::server::auth::TrustAnchor;
use plimsoll_daemon::telemetry::{self, LogFormat};

/// Length of one wave of load: long enough for the stock arithmetic to act, short enough to watch.
const WAVE: Micros = Micros::from_secs(180);

/// How often the model of the HPA looks. A controller's default is 15 s; the demo's replicas start
/// in a tenth of the time that real ones take, and the HPA looks accordingly more often.
const SYNC_PERIOD: Duration = Duration::from_secs(1);

/// Where the daemon's plain HTTP port is when nobody asked for it.
const ANY_PORT: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// Runs the demo until its time is over or it is interrupted.
///
/// # Errors
///
/// Ports, files or the terminal cannot be had.
pub fn run(args: DemoArgs) -> anyhow::Result<()> {
    let DemoArgs { duration, output, seed, scenario, policy, listen } = args;
    let scenario = match scenario {
        DemoScenario::Standard => Scenario::standard(WAVE, seed),
        DemoScenario::Lora => Scenario::lora(WAVE, seed),
    };
    let scenario = scenario.context("the demo's scenario is not valid")?;
    // Warnings would tear the table; what matters of them is on it.
    let _log = telemetry::init_logs("error", LogFormat::Text)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    let length = duration.map(Micros::from_duration);
    let json = output == DemoOutput::Json;
    let output = match output {
        DemoOutput::Auto => Output::Auto,
        DemoOutput::Lines => Output::Text,
        DemoOutput::Json => Output::Json,
    };
    let options = Options { length, sync_period: SYNC_PERIOD, output };
    let summary = runtime.block_on(perform(options, scenario, policy, listen))?;
    let mut out = std::io::stdout().lock();
    if json {
        writeln!(out, "{}", summary.json())?;
    } else {
        write!(out, "{summary}")?;
    }
    Ok(out.flush()?)
}

async fn perform(
    options: Options,
    scenario: Scenario,
    policy: DemoPolicy,
    listen: Option<SocketAddr>,
) -> anyhow::Result<crate::demo::summary::Summary> {
    let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
    let (tracker, cancel) = (TaskTracker::new(), CancellationToken::new());
    let pki = Pki::generate().context("cannot make certificates")?;
    let listen_at = listen.unwrap_or(ANY_PORT);
    let config = configuration(folder.path(), &scenario, &pki, (listen_at, policy))?;
    let stage = Stage::open(scenario, folder.path(), Clock::start(), &tracker, &cancel)?;
    let trust = Arc::new(trust(&pki)?);
    let options_of_daemon = daemon::Options { trust: Some(trust), ..daemon::Options::default() };
    let daemon = Daemon::start(config, options_of_daemon).await?;
    if listen.is_some() {
        // Whoever asked for it is not always reading standard error.
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
    let parts = DemoParts { stage, published, api, pki, options, tracker: tracker.clone(), cancel };
    let summary = drive(parts).await;
    ending.cancel();
    daemon.shutdown().await;
    summary
}

/// Whom the demo's daemon believes: the demo itself, in the place of a cluster's front proxy.
fn trust(pki: &Pki) -> anyhow::Result<TrustAnchor> {
    let data = [
        ("requestheader-client-ca-file", pki.proxy_authority.clone()),
        ("requestheader-allowed-names", json!([FRONT_PROXY]).to_string()),
        ("requestheader-username-headers", json!(["X-Remote-User"]).to_string()),
        ("requestheader-group-headers", json!(["X-Remote-Group"]).to_string()),
        ("requestheader-extra-headers-prefix", json!(["X-Remote-Extra-"]).to_string()),
    ];
    let data: BTreeMap<String, String> =
        data.into_iter().map(|(key, value)| (key.to_owned(), value)).collect();
    TrustAnchor::from_config_map(&data).context("the demo's own certificates are not valid")
}

/// The daemon's configuration, as a user would write it. It differs from the defaults only in its
/// times, which are as much shorter as the demo's replicas start faster.
fn configuration(
    folder: &Path,
    scenario: &Scenario,
    pki: &Pki,
    (listen, policy): (SocketAddr, DemoPolicy),
) -> anyhow::Result<Config> {
    let write = |name: &str, text: &str| -> anyhow::Result<PathBuf> {
        let path = folder.join(name);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
        Ok(path)
    };
    let cert = write("tls.crt", &pki.serving_certificate)?;
    let key = write("tls.key", &pki.serving_key)?;
    let mut text = format!(
        "server: {{listen: '{listen}'}}\n\
         external_metrics:\n  enabled: true\n  listen: '127.0.0.1:0'\n  \
         tls: {{cert_file: {cert}, key_file: {key}}}\n  authorization: trust_front_proxy\n\
         shutdown: {{delay: 0s, drain: 1s}}\n\
         observe: {{window: 10s, stale_after: 5s}}\n\
         enforce:\n  scale_down: {{stabilization_window: 20s}}\n\
         {analysis}{pools}variants:\n",
        analysis = analysis(policy, scenario),
        pools = pools(scenario),
        cert = quoted(&cert),
        key = quoted(&key),
    );
    for (model, variant) in scenario.variants() {
        let name = variant.key.variant.as_str();
        writeln!(
            text,
            "- name: {name}\n  namespace: {NAMESPACE}\n  model: {model}\n  \
             accelerator: {accelerator}\n  cost: {cost}\n  \
             replicas: {{min: {min}, max: {max}}}\n  \
             targets: {{file: {{paths: [{path}], refresh: 1s}}}}",
            model = model.name,
            accelerator = variant.accelerator,
            cost = variant.cost.per_hour(),
            min = variant.min,
            max = variant.max,
            path = quoted(&Stage::targets_file(folder, name)),
        )?;
    }
    let surroundings = config::Surroundings {
        origin: "the demo's configuration".to_owned(),
        base: folder.to_owned(),
        environment: BTreeMap::new(),
        // The lists of targets are written when the stage opens.
        files: Files::NotChecked,
    };
    Ok(config::parse(&text, &surroundings)?.config)
}

/// The sections that say by what is decided.
fn analysis(policy: DemoPolicy, scenario: &Scenario) -> String {
    let analyzers = match policy {
        DemoPolicy::Saturation => return "analysis: saturation\n".to_owned(),
        DemoPolicy::Tokens => "tokens",
        DemoPolicy::Throughput => "throughput",
        DemoPolicy::Queueing => "queueing",
        DemoPolicy::Foresight => "foresight",
        DemoPolicy::All => "tokens, throughput, queueing",
    };
    let slo = match policy {
        DemoPolicy::Queueing | DemoPolicy::Foresight | DemoPolicy::All => {
            let [ttft, itl] = [scenario.slo.ttft, scenario.slo.itl].map(|limit| {
                let milliseconds = limit.seconds() * 1e3;
                format!("{milliseconds:.0}ms")
            });
            format!(", slo: {{ttft: {ttft}, ttft_percentile: 95, itl: {itl}}}")
        }
        DemoPolicy::Saturation | DemoPolicy::Tokens | DemoPolicy::Throughput => String::new(),
    };
    // As short as the other windows are.
    let times = match policy {
        DemoPolicy::Foresight => {
            ", start_time: 5s, foresight: {reaction_time: 2s, look_back: 1m, history_min: 30s, \
             hold: {min: 20s}}"
        }
        DemoPolicy::Saturation
        | DemoPolicy::Tokens
        | DemoPolicy::Throughput
        | DemoPolicy::Queueing
        | DemoPolicy::All => "",
    };
    format!("analysis: capacity\ncapacity: {{analyzers: [{analyzers}]{slo}{times}}}\n")
}

/// The section of pools. Its times are short as the others are.
fn pools(scenario: &Scenario) -> String {
    let mut text = String::new();
    for (_, variant) in scenario.variants().filter(|(model, _)| model.adapters.is_some()) {
        let keys = "{idle_after: 15s, packing: {window: 15s, interval: 30s}}";
        let _infallible = writeln!(text, "  {}: {keys}", variant.key);
    }
    if text.is_empty() { text } else { format!("pools:\n{text}") }
}

/// A path as a YAML string.
fn quoted(path: &Path) -> String {
    format!("'{}'", path.display().to_string().replace('\'', "''"))
}
