//! Logs and self-monitoring metrics of the daemon.
//!
//! Logs go to stderr as text or JSON lines, and never block the thread that logs. Their filter can be
//! replaced while the daemon runs.
//! These metrics describe the health of the daemon. The metrics of its decisions are in
//! [`crate::publish::gauges`].

mod certificates;
mod descriptors;
pub mod filter;
mod following;
mod leading;
mod lines;
pub(crate) mod registrar;
pub mod tracing;

use std::fs;
use std::io::IsTerminal;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Counter, Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, Registry, TextEncoder,
};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry as Subscriber, reload};

pub use crate::telemetry::certificates::CertificateMetrics;
use crate::telemetry::descriptors::descriptor_limit;
pub use crate::telemetry::descriptors::raise_descriptor_limit;
pub use crate::telemetry::filter::LogError;
pub use crate::telemetry::following::FollowingMetrics;
pub use crate::telemetry::leading::LeaderMetrics;
use crate::telemetry::lines::{LineFlush, LineLossCollector, LineLosses};
use crate::telemetry::registrar::Registrar;
use crate::telemetry::tracing::TraceMetrics;

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// Lines for people.
    #[default]
    #[value(verbatim_doc_comment)]
    Text,
    /// One JSON object a line.
    #[value(verbatim_doc_comment)]
    Json,
}

/// The running log. Dropping it writes the lines that still wait.
pub struct LogOutput {
    /// Replaces the filter.
    pub filter: LogFilter,
    _flush: LineFlush,
}

/// Replaces the log filter while the daemon runs.
#[derive(Clone)]
pub struct LogFilter {
    handle: reload::Handle<EnvFilter, Subscriber>,
    losses: LineLosses,
}

/// The self-monitoring metrics of the daemon.
#[derive(Clone)]
pub struct Telemetry {
    /// Ticks of the decision loop.
    pub ticks: IntCounter,
    /// Duration of a tick.
    pub tick_duration: Histogram,
    /// When the last tick ended, in seconds since the epoch.
    pub last_tick: Gauge,
    /// Decisions by the reason of the step that explains them.
    pub decisions: IntCounterVec,
    /// Changes of the published desired replicas, by direction.
    pub changes: IntCounterVec,
    /// Sets of decisions that were not published, by the invariant that they broke.
    pub violations: IntCounterVec,
    /// Always 1, with the configuration's hash as a label.
    pub config_info: GaugeVec,
    /// 1 if the last reload of the configuration was accepted, otherwise 0.
    pub reload_successful: IntGauge,
    /// The time when a configuration was last accepted, in seconds since the epoch.
    pub reload_success_time: Gauge,
    /// Age above which the external metrics API refuses a decision, in seconds.
    pub config_hold: Gauge,
    /// Configured time between two ticks, in seconds.
    pub config_tick_interval: Gauge,
    /// Metrics of the autoscalers that follow desired replicas.
    pub following: FollowingMetrics,
    /// The state of the `APIService` that points at this daemon.
    pub api_service: GaugeVec,
    /// Which of several replicas decides.
    pub leading: LeaderMetrics,
    /// Kubernetes Events by reason and outcome.
    pub events: IntCounterVec,
    /// Metrics of the self-managed certificates.
    pub certificates: CertificateMetrics,
    /// Cluster objects that declare variants, by outcome: accepted, refused, shadowed or surplus.
    pub discovery_objects: GaugeVec,
    /// Failed attempts to read or write the state file.
    pub state_failures: IntCounterVec,
    /// Words in state documents of another release that this release does not know.
    pub state_unknown_words: GaugeVec,
    /// Metrics of the trace.
    pub tracing: TraceMetrics,
}

/// A document that preserves desired replicas beyond the process that decided them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDocument {
    /// The state file, as read at startup.
    File,
    /// The document that the leader writes for the other daemon replicas.
    Shared,
}

// === logs ===

/// Starts logging to stderr.
///
/// # Errors
///
/// The filter is invalid, or a subscriber is already set.
pub fn init_logs(filter: &str, format: LogFormat) -> Result<LogOutput, LogError> {
    let (layer, handle) = reload::Layer::new(filter::parse(filter)?);
    let registry = tracing_subscriber::registry().with(layer);
    let colours = std::io::stderr().is_terminal();
    let (lines, losses, flush) = lines::start();
    let fmt = tracing_subscriber::fmt::layer().with_writer(lines).with_ansi(colours);
    let set = match format {
        LogFormat::Text => registry.with(fmt.with_target(false)).try_init(),
        LogFormat::Json => registry.with(fmt.json().flatten_event(true)).try_init(),
    };

    set.map_err(|_| LogError::Subscriber)?;
    Ok(LogOutput { filter: LogFilter { handle, losses }, _flush: flush })
}

impl LogFilter {
    /// Replaces the filter.
    ///
    /// # Errors
    ///
    /// The filter is invalid; the old filter stays in effect.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        self.handle.reload(filter::parse(filter)?).map_err(|_| LogError::Subscriber)
    }
}

// === metrics ===

impl StateDocument {
    /// Both documents.
    pub const ALL: [Self; 2] = [Self::File, Self::Shared];

    /// Returns the document as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Shared => "shared",
        }
    }
}

impl Telemetry {
    /// Creates and registers the metrics, including the process metrics.
    ///
    /// # Errors
    ///
    /// A metric with the same name is already registered.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let telemetry = Self {
            ticks: registrar.counter(
                "plimsoll_ticks_total",
                "Ticks of the decision loop.")?,
            tick_duration: registrar.histogram(
                "plimsoll_tick_duration_seconds",
                "Duration of a tick of the decision loop.",
                vec![0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0, 4.0, 16.0])?,
            last_tick: registrar.gauge(
                "plimsoll_last_tick_timestamp_seconds",
                "End of the last tick, in seconds since the epoch.")?,
            decisions: registrar.counters(
                "plimsoll_decisions_total",
                "Decisions by the reason of the step that explains them.",
                &["namespace", "variant", "reason"])?,
            changes: registrar.counters(
                "plimsoll_desired_changes_total",
                "Changes of the published desired replicas, by direction: up or down.",
                &["namespace", "variant", "direction"])?,
            violations: registrar.counters(
                "plimsoll_check_violations_total",
                "Sets of decisions that were not published, by broken invariant.",
                &["violation"])?,
            config_info: registrar.gauges(
                "plimsoll_config_info",
                "Always 1; the label is the hash of the effective configuration.",
                &["hash"])?,
            reload_successful: registrar.int_gauge(
                "plimsoll_config_last_reload_successful",
                "1 if the last configuration was accepted, otherwise 0.")?,
            reload_success_time: registrar.gauge(
                "plimsoll_config_last_reload_success_timestamp_seconds",
                "Time of the last accepted configuration, in seconds since the epoch.")?,
            config_hold: registrar.gauge(
                "plimsoll_config_hold_seconds",
                "Age above which decisions are refused to HPAs: external_metrics.hold of the configuration.")?,
            config_tick_interval: registrar.gauge(
                "plimsoll_config_tick_interval_seconds",
                "Time between two ticks: tick_interval of the configuration.")?,
            following: FollowingMetrics::register(registry)?,
            api_service: registrar.gauges(
                "plimsoll_apiservice_state",
                "1 for the current state of Plimsoll's APIService, otherwise 0.",
                &["state"])?,
            leading: LeaderMetrics::register(registry)?,
            events: registrar.counters(
                "plimsoll_events_total",
                "Kubernetes Events, by reason and outcome.",
                &["reason", "outcome"])?,
            certificates: CertificateMetrics::register(registry)?,
            state_failures: registrar.counters(
                "plimsoll_state_file_failures_total",
                "Failed attempts to read or write the state file, by action.",
                &["action"])?,
            state_unknown_words: state_unknown_words(&registrar)?,
            tracing: TraceMetrics::register(registry)?,
            discovery_objects: registrar.gauges(
                "plimsoll_discovery_objects",
                "Annotated objects, by state: accepted, refused, shadowed by another or surplus.",
                &["state"])?,
        };

        show_build(&registrar)?;
        registry.register(Box::new(ProcessCollector::new()?))?;
        Ok(telemetry)
    }
}

/// Registers the gauge of unknown words and sets it to 0 for each document.
fn state_unknown_words(registrar: &Registrar<'_>) -> Result<GaugeVec, prometheus::Error> {
    let words = registrar.gauges(
        "plimsoll_state_unknown_words",
        "Unknown words in a saved document from another release.",
        &["document"],
    )?;
    for document in StateDocument::ALL {
        words.with_label_values(&[document.label()]).set(0.0);
    }

    Ok(words)
}

/// Registers the count of the log lines that were dropped by the log with this filter.
///
/// # Errors
///
/// The metric is already registered.
pub(crate) fn register_line_losses(
    registry: &Registry,
    log: Option<&LogFilter>,
) -> Result<(), prometheus::Error> {
    let losses = log.map(|log| log.losses.clone());
    registry.register(Box::new(LineLossCollector::new(losses)?))
}

/// Registers the build information.
fn show_build(registrar: &Registrar<'_>) -> Result<(), prometheus::Error> {
    let build = registrar.gauges(
        "plimsoll_build_info",
        "Always 1; the label is the version of the running binary.",
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    Ok(())
}

/// Returns all registered metrics in text format 0.0.4.
///
/// # Errors
///
/// A collector returned a metric family that cannot be encoded.
pub fn render(registry: &Registry) -> Result<String, prometheus::Error> {
    TextEncoder::new().encode_to_string(&registry.gather())
}

// === the process ===

/// The standard `process_*` metrics, read from `/proc` at each scrape. The `prometheus` crate has a
/// collector for them, but it brings a second copy of half of the system-call stack with it.
struct ProcessCollector {
    resident: Gauge,
    cpu: Counter,
    open_files: Gauge,
    max_files: Gauge,
    start: Gauge,
}

impl ProcessCollector {
    fn new() -> Result<Self, prometheus::Error> {
        Ok(Self {
            resident: Gauge::new(
                "process_resident_memory_bytes",
                "Memory of the process that is in RAM, in bytes.",
            )?,
            cpu: Counter::new(
                "process_cpu_seconds_total",
                "User and system time of the process, in seconds.",
            )?,
            open_files: Gauge::new("process_open_fds", "Open file descriptors.")?,
            max_files: Gauge::new(
                "process_max_fds",
                "File descriptors that the process may have open.",
            )?,
            start: Gauge::new(
                "process_start_time_seconds",
                "When the process started, in seconds since the epoch.",
            )?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 5] {
        [&self.resident, &self.cpu, &self.open_files, &self.max_files, &self.start]
    }
}

/// Clock ticks per second, which Linux fixes for user space on `x86_64` and `aarch64`.
const TICKS_PER_SECOND: f64 = 100.0;

impl Collector for ProcessCollector {
    fn desc(&self) -> Vec<&Desc> {
        self.collectors().into_iter().flat_map(Collector::desc).collect()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        if let Some(numbers) = read_process() {
            self.cpu.reset();
            self.cpu.inc_by(numbers.cpu_seconds);
            self.resident.set(numbers.resident_bytes);
            self.start.set(numbers.start_seconds);
        }

        if let Ok(files) = fs::read_dir("/proc/self/fd") {
            self.open_files.set(files.count() as f64);
        }
        self.max_files.set(descriptor_limit() as f64);

        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

struct ProcessNumbers {
    cpu_seconds: f64,
    resident_bytes: f64,
    start_seconds: f64,
}

/// Reads `/proc/self/stat` (fields 14, 15 and 22 of proc(5)), `VmRSS` of `/proc/self/status`, and the
/// boot time.
fn read_process() -> Option<ProcessNumbers> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let kernel = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = kernel.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;

    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kibibytes: f64 = resident.trim().strip_suffix(" kB")?.parse().ok()?;
    // The second field is the command name in parentheses and may contain spaces.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();

    Some(ProcessNumbers {
        cpu_seconds: (field(&fields, 14)? + field(&fields, 15)?) / TICKS_PER_SECOND,
        resident_bytes: kibibytes * 1024.0,
        start_seconds: boot + field(&fields, 22)? / TICKS_PER_SECOND,
    })
}

/// Returns a field by its number in proc(5). The fields begin with the third.
fn field(fields: &[&str], number: usize) -> Option<f64> {
    fields.get(number - 3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_process_knows_itself() {
        let numbers = read_process().unwrap();
        assert!(numbers.resident_bytes > 1e6 && numbers.start_seconds > 1.7e9);
    }

    #[test]
    fn every_metric_registers_once() {
        let registry = Registry::new();
        let telemetry = Telemetry::register(&registry).unwrap();
        telemetry.ticks.inc();
        let page = render(&registry).unwrap();
        assert!(page.contains("plimsoll_ticks_total 1"), "{page}");
        assert!(page.contains("process_resident_memory_bytes"), "{page}");
        assert!(Telemetry::register(&registry).is_err());
    }
}
