//! The daemon as users run it: the cost of scraping, the delay of decisions, and the time until it
//! is ready.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use plimsoll::clock::Clock;
use reqwest::Client;
use tempfile::TempDir;
use tokio::time::sleep;

use crate::engines::{Engines, MODEL};
use crate::process::{Process, Usage, load_average};

/// The size of a fleet.
struct FleetSize {
    targets: usize,
    per_variant: usize,
    /// The interval between two scrapes of a target.
    interval: String,
}

/// The warm-up until windows are full and connections are stable.
const WARM_UP: Duration = Duration::from_secs(75);

const MEASURED: Duration = Duration::from_mins(1);

/// The number of lag measurements.
const CHANGES: usize = 20;

/// A daemon and the URL of its plain port.
struct Daemon {
    process: Process,
    client: Client,
    url: String,
    _folder: TempDir,
}

/// The program to measure: this build's, or the one in the environment variable `PLIMSOLL`, for
/// example another release for comparison.
fn program() -> OsString {
    std::env::var_os("PLIMSOLL").unwrap_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into())
}

fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// The address of an engine; each has its own, as pods do.
fn address(number: usize, port: u16) -> String {
    format!("127.{}.{}.{}:{port}", 1 + number / 62_500, number / 250 % 250, 1 + number % 250)
}

impl Daemon {
    fn start(variants: &str, interval: &str) -> Result<Self> {
        let (folder, port) = (tempfile::tempdir()?, free_port()?);
        let file = folder.path().join("plimsoll.yaml");
        let text = format!(
            "server: {{listen: \"127.0.0.1:{port}\"}}\nscrape: {{interval: {interval}}}\n\
             variants:\n{variants}"
        );
        std::fs::write(&file, text)?;
        let mut command = Command::new(program());
        command.arg("run").arg("--config").arg(&file).stderr(Stdio::null()).stdout(Stdio::null());
        let client = Client::builder().no_proxy().build()?;
        let url = format!("http://127.0.0.1:{port}");
        Ok(Self { process: Process::start(command)?, client, url, _folder: folder })
    }

    async fn ready(&self) -> Result<()> {
        let clock = Clock::start();
        let began = clock.elapsed();
        while clock.elapsed().saturating_sub(began) < Duration::from_secs(30) {
            let answer = self.client.get(format!("{}/readyz", self.url)).send().await;
            if answer.is_ok_and(|answer| answer.status().is_success()) {
                return Ok(());
            }
            sleep(Duration::from_millis(1)).await;
        }
        bail!("the daemon is not ready after 30 s")
    }

    async fn metrics(&self) -> Result<String> {
        Ok(self.client.get(format!("{}/metrics", self.url)).send().await?.text().await?)
    }
}

/// The sum of a metric's samples with these labels.
fn total(page: &str, name: &str, labels: &str) -> f64 {
    let of = |line: &str| {
        let rest = line.strip_prefix(name)?;
        let named = rest.starts_with('{') || rest.starts_with(' ');
        let (series, value) = rest.rsplit_once(' ')?;
        (named && series.contains(labels)).then(|| value.parse::<f64>().ok())?
    };
    page.lines().filter_map(of).sum()
}

// === scraping ===

impl FleetSize {
    fn read(arguments: &[&str]) -> Result<Self> {
        let [targets, per_variant, interval] = match arguments {
            [] => ["1000", "4", "1s"],
            [targets, per_variant, interval] => [*targets, per_variant, interval],
            other => bail!("not TARGETS PER_VARIANT INTERVAL: {other:?}"),
        };
        let (targets, per_variant) = (targets.parse()?, per_variant.parse()?);
        Ok(Self { targets, per_variant, interval: interval.to_owned() })
    }
}

fn variants_of_all_targets(size: &FleetSize, port: u16) -> Result<String> {
    let mut text = String::new();
    for variant in 0..size.targets / size.per_variant {
        let first = variant * size.per_variant;
        let targets = (0..size.per_variant).map(|index| address(first + index, port));
        let targets = targets.map(|it| format!("\"{it}\"")).collect::<Vec<_>>().join(", ");
        writeln!(
            text,
            "- {{name: chat-{variant}, namespace: team-{variant}, model: {MODEL}, \
             targets: {{static: [{targets}]}}}}"
        )?;
    }
    Ok(text)
}

/// Scrapes a fleet for a minute: a thousand targets per second, or those of the arguments.
pub(crate) async fn scrape(arguments: &[&str]) -> Result<()> {
    let size = FleetSize::read(arguments)?;
    let mut engines = Process::this(&["serve-engines"])?;
    let port: u16 = engines.line()?.parse()?;
    let daemon = Daemon::start(&variants_of_all_targets(&size, port)?, &size.interval)?;
    daemon.ready().await?;
    sleep(WARM_UP).await;
    let (before, page_before) = (daemon.process.usage()?, daemon.metrics().await?);
    sleep(MEASURED).await;
    let (after, page) = (daemon.process.usage()?, daemon.metrics().await?);
    let grown = |name, labels| total(&page, name, labels) - total(&page_before, name, labels);
    let FleetSize { targets, per_variant, interval } = &size;
    let what = format!("plimsoll, {targets} targets, {per_variant} a variant, each {interval}");
    say_usage(&what, before, after);
    let used = after.cpu.saturating_sub(before.cpu).as_secs_f64();
    let (scrapes, ticks) = (
        grown("plimsoll_scrape_duration_seconds_count", ""),
        grown("plimsoll_tick_duration_seconds_count", ""),
    );
    println!("  {used:.1} s of processor time, {:.0} us a scrape", 1e6 * used / scrapes);
    println!(
        "  {ticks:.0} ticks; scrapes {:.0}, failed {:.0}, missed {:.0} (and {:.0} in the warm-up)",
        scrapes,
        grown("plimsoll_scrape_failures_total", ""),
        grown("plimsoll_scrape_missed_total", ""),
        total(&page_before, "plimsoll_scrape_missed_total", ""),
    );
    println!(
        "  a tick takes {:.2} ms in the mean",
        1e3 * grown("plimsoll_tick_duration_seconds_sum", "") / ticks
    );
    drop(daemon);
    match std::env::var("PROMETHEUS") {
        Ok(program) => scrape_with_prometheus(&program, &size, port).await,
        Err(_) => Ok(()),
    }
}

fn say_usage(who: &str, before: Usage, after: Usage) {
    let cpu = after.cpu.saturating_sub(before.cpu).as_secs_f64() / MEASURED.as_secs_f64();
    println!(
        "{who}: {cpu:.2} cores, {:.0} MB resident, {:.0} MB at most; load average {}",
        after.resident,
        after.resident_max,
        load_average()
    );
}

/// The same targets, scraped by Prometheus, which stores the samples.
async fn scrape_with_prometheus(program: &str, size: &FleetSize, port: u16) -> Result<()> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("prometheus.yml");
    let targets: Vec<String> =
        (0..size.targets).map(|it| format!("'{}'", address(it, port))).collect();
    let text = format!(
        "global: {{scrape_interval: {}, scrape_timeout: 900ms}}\n\
         scrape_configs: [{{job_name: vllm, static_configs: [{{targets: [{}]}}]}}]\n",
        size.interval,
        targets.join(", ")
    );
    std::fs::write(&file, text)?;
    let mut command = Command::new(program);
    command.arg(format!("--config.file={}", file.display()));
    command.arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()));
    command.arg(format!("--web.listen-address=127.0.0.1:{}", free_port()?));
    command.stderr(Stdio::null()).stdout(Stdio::null());
    let prometheus = Process::start(command)?;
    sleep(WARM_UP).await;
    let before = prometheus.usage()?;
    sleep(MEASURED).await;
    say_usage("Prometheus, the same targets", before, prometheus.usage()?);
    Ok(())
}

// === lag ===

/// The delay from a change of a gauge to a change of the desired replicas, with default settings.
/// One variant after the other fills up, each once, because scale-down takes minutes.
pub(crate) async fn lag() -> Result<()> {
    let engines = Engines::start().await?;
    let mut text = String::new();
    for variant in 0..CHANGES {
        let target = address(variant, engines.port);
        writeln!(
            text,
            "- {{name: chat-{variant}, namespace: team-{variant}, model: {MODEL}, \
             targets: {{static: [\"{target}\"]}}, scrape: {{path: /metrics/{variant}}}}}"
        )?;
    }
    let daemon = Daemon::start(&text, "1s")?;
    daemon.ready().await?;
    let clock = Clock::start();
    let desired = async |variant: usize| -> Result<f64> {
        let labels = format!("variant=\"chat-{variant}\"");
        Ok(total(&daemon.metrics().await?, "plimsoll_desired_replicas", &labels))
    };
    while desired(CHANGES - 1).await? < 1.0 {
        sleep(Duration::from_millis(100)).await;
    }
    let mut lags = Vec::new();
    for variant in 0..CHANGES {
        // Uneven pauses, so that changes occur at any time between two scrapes.
        let pause = 1000 + 137 * u64::try_from(variant)? % 1000;
        sleep(Duration::from_millis(pause)).await;
        if desired(variant).await? > 1.0 {
            bail!("chat-{variant} grows before it is full");
        }
        engines.full.store(variant + 1, Ordering::SeqCst);
        let began = clock.elapsed();
        while desired(variant).await? < 2.0 {
            if clock.elapsed().saturating_sub(began) > Duration::from_secs(30) {
                bail!("chat-{variant} is full and does not grow");
            }
            sleep(Duration::from_millis(5)).await;
        }
        lags.push(clock.elapsed().saturating_sub(began));
    }
    say_times("lag from a gauge to the number", lags)
}

fn say_times(what: &str, mut times: Vec<Duration>) -> Result<()> {
    times.sort();
    let (first, last) = (times.first().context("no times")?, times.last().context("no times")?);
    println!(
        "{what}, {} times: min {first:.3?}, median {:.3?}, max {last:.3?}; load average {}",
        times.len(),
        times[times.len() / 2],
        load_average()
    );
    Ok(())
}

// === start ===

/// The time until the process reports that it is ready, without Kubernetes.
pub(crate) async fn start() -> Result<()> {
    let clock = Clock::start();
    let mut times = Vec::new();
    for _ in 0..10 {
        let target = format!("127.0.0.1:{}", free_port()?);
        let began = clock.elapsed();
        let daemon = Daemon::start(
            &format!("- {{name: chat, model: {MODEL}, targets: {{static: [\"{target}\"]}}}}\n"),
            "1s",
        )?;
        daemon.ready().await?;
        times.push(clock.elapsed().saturating_sub(began));
    }
    say_times("start to ready without Kubernetes", times)
}
