//! Logs, and the metrics of the daemon itself.
//!
//! Logs go to stderr as text or JSON lines, through a filter that can be replaced while the daemon
//! runs. The metrics say how the daemon does, not what it decides: those are in
//! [`crate::publish::gauges`].

mod certificates;
mod leading;
pub(crate) mod registrar;
pub mod tracing;

use std::fs;
use std::io::IsTerminal;

use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use prometheus::{
    Counter, Encoder, Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, Registry,
    TextEncoder,
};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry as Subscriber, reload};

pub use crate::telemetry::certificates::Certificates;
pub use crate::telemetry::leading::Leading;
use crate::telemetry::registrar::Registrar;
use crate::telemetry::tracing::Tracing;

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

/// Replaces the log filter while the daemon runs.
#[derive(Clone)]
pub struct LogFilter {
    handle: reload::Handle<EnvFilter, Subscriber>,
}

/// A log filter that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The text is not a filter.
    #[error("{filter:?} is not a log filter; write for example info, or plimsoll=debug,warn")]
    Filter {
        /// The text.
        filter: String,
        /// What is wrong with it.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// Logging is set up already, or the subscriber is gone.
    #[error("the log subscriber cannot be set")]
    Subscriber,
}

/// The metrics of the daemon itself.
#[derive(Clone)]
pub struct Telemetry {
    /// Ticks of the decision loop.
    pub ticks: IntCounter,
    /// Time that a tick takes.
    pub tick_duration: Histogram,
    /// When the last tick ended, in seconds since the epoch.
    pub last_tick: Gauge,
    /// Decisions by the reason of the step that explains them.
    pub decisions: IntCounterVec,
    /// Changes of published numbers, by direction.
    pub changes: IntCounterVec,
    /// Sets of decisions that were not published, by the invariant that they broke.
    pub violations: IntCounterVec,
    /// Always 1; the configuration's hash as a label.
    pub config_info: GaugeVec,
    /// Whether the last reload of the configuration was accepted.
    pub reload_successful: IntGauge,
    /// When the configuration was last loaded, in seconds since the epoch.
    pub reload_success_time: Gauge,
    /// Whether an HPA will ignore the published number.
    pub hpa_ignores: GaugeVec,
    /// The state of the `APIService` that points at this daemon.
    pub api_service: GaugeVec,
    /// Which of several replicas decides.
    pub leading: Leading,
    /// Kubernetes Events by reason and by what became of them.
    pub events: IntCounterVec,
    /// The certificates that the daemon makes itself.
    pub certificates: Certificates,
    /// The cluster's objects that declare variants, by what has become of them.
    pub discovery_objects: GaugeVec,
    /// Failures to read or to write the state file.
    pub state_failures: IntCounterVec,
    /// What documents of another release say that this one does not know.
    pub state_unknown_words: GaugeVec,
    /// The trace.
    pub tracing: Tracing,
}

/// A document by which numbers outlive the process that decided them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StateDocument {
    /// The state file, as it was read at the start.
    File,
    /// What the leader has written for the other replicas.
    Shared,
}

// === logs ===

/// Sends log lines to stderr.
///
/// # Errors
///
/// The filter cannot be read, or a subscriber is set already.
pub fn init_logs(filter: &str, format: LogFormat) -> Result<LogFilter, LogError> {
    let (layer, handle) = reload::Layer::new(parse_filter(filter)?);
    let registry = tracing_subscriber::registry().with(layer);
    let colours = std::io::stderr().is_terminal();
    let fmt = tracing_subscriber::fmt::layer().with_writer(std::io::stderr).with_ansi(colours);
    let set = match format {
        LogFormat::Text => registry.with(fmt.with_target(false)).try_init(),
        LogFormat::Json => registry.with(fmt.json().flatten_event(true)).try_init(),
    };
    set.map_err(|_| LogError::Subscriber)?;
    Ok(LogFilter { handle })
}

fn parse_filter(filter: &str) -> Result<EnvFilter, LogError> {
    EnvFilter::try_new(filter)
        .map_err(|source| LogError::Filter { filter: filter.to_owned(), source })
}

impl LogFilter {
    /// Replaces the filter.
    ///
    /// # Errors
    ///
    /// The filter cannot be read; the old one stays.
    pub fn set(&self, filter: &str) -> Result<(), LogError> {
        self.handle.reload(parse_filter(filter)?).map_err(|_| LogError::Subscriber)
    }
}

// === metrics ===

impl StateDocument {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::File, Self::Shared];

    /// The document as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::File => "file",
            Self::Shared => "shared",
        }
    }
}

impl Telemetry {
    /// Creates the metrics and registers them, together with those of the process.
    ///
    /// # Errors
    ///
    /// A metric of the same name is registered already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let telemetry = Self {
            ticks: registrar.counter(
                "plimsoll_ticks_total",
                "Ticks of the decision loop.")?,
            tick_duration: registrar.histogram(
                "plimsoll_tick_duration_seconds",
                "Time that a tick takes, from the inputs to the published value.",
                vec![0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.25, 1.0])?,
            last_tick: registrar.gauge(
                "plimsoll_last_tick_timestamp_seconds",
                "When the last tick ended, in seconds since the epoch.")?,
            decisions: registrar.counters(
                "plimsoll_decisions_total",
                "Decisions by the reason of the step that explains them.",
                &["namespace", "variant", "reason"])?,
            changes: registrar.counters(
                "plimsoll_desired_changes_total",
                "Changes of the published number by direction: up or down.",
                &["namespace", "variant", "direction"])?,
            violations: registrar.counters(
                "plimsoll_check_violations_total",
                "Sets of decisions that were not published, by the invariant that they broke.",
                &["violation"])?,
            config_info: registrar.gauges(
                "plimsoll_config_info",
                "Always 1; carries the hash of the effective configuration as a label.",
                &["hash"])?,
            reload_successful: registrar.int_gauge(
                "plimsoll_config_last_reload_successful",
                "1 if the last attempt to load the configuration was accepted, otherwise 0.")?,
            reload_success_time: registrar.gauge(
                "plimsoll_config_last_reload_success_timestamp_seconds",
                "When a configuration was last accepted, in seconds since the epoch.")?,
            hpa_ignores: registrar.gauges(
                "plimsoll_hpa_ignores_desired",
                "1 while the HPA's tolerance makes it ignore the published number, otherwise 0.",
                &["namespace", "variant", "hpa"])?,
            api_service: registrar.gauges(
                "plimsoll_apiservice_state",
                "1 for the state that the APIService of the external metrics API is in, otherwise 0.",
                &["state"])?,
            leading: Leading::register(registry)?,
            events: registrar.counters(
                "plimsoll_events_total",
                "Kubernetes Events by reason and by what became of them.",
                &["reason", "outcome"])?,
            certificates: Certificates::register(registry)?,
            state_failures: registrar.counters(
                "plimsoll_state_file_failures_total",
                "Attempts to read or to write the state file that failed, by action.",
                &["action"])?,
            state_unknown_words: state_unknown_words(&registrar)?,
            tracing: Tracing::register(registry)?,
            discovery_objects: registrar.gauges(
                "plimsoll_discovery_objects",
                "Objects with annotations by their state: accepted, refused or shadowed by another.",
                &["state"])?,
        };
        show_build(&registrar)?;
        registry.register(Box::new(Process::new()?))?;
        Ok(telemetry)
    }
}

/// What documents of another release say that this one does not know.
fn state_unknown_words(registrar: &Registrar<'_>) -> Result<GaugeVec, prometheus::Error> {
    let words = registrar.gauges(
        "plimsoll_state_unknown_words",
        "Words in a document of before, of another release, that this one does not know.",
        &["document"],
    )?;
    for document in StateDocument::ALL {
        words.with_label_values(&[document.label()]).set(0.0);
    }
    Ok(words)
}

/// What is running.
fn show_build(registrar: &Registrar<'_>) -> Result<(), prometheus::Error> {
    let build = registrar.gauges(
        "plimsoll_build_info",
        "Always 1; carries the version of the running binary as a label.",
        &["version"],
    )?;
    build.with_label_values(&[env!("CARGO_PKG_VERSION")]).set(1.0);
    Ok(())
}

/// The page of everything that is registered, in text format 0.0.4.
///
/// # Errors
///
/// A collector gave a family that cannot be written.
pub fn render(registry: &Registry) -> Result<String, prometheus::Error> {
    let mut page = Vec::new();
    TextEncoder::new().encode(&registry.gather(), &mut page)?;
    Ok(String::from_utf8_lossy(&page).into_owned())
}

// === the process ===

/// The customary `process_*` metrics, read from `/proc` at each scrape. The `prometheus` crate has
/// a collector for them, but brings a second copy of half of the system-call stack with it.
struct Process {
    resident: Gauge,
    cpu: Counter,
    open_files: Gauge,
    start: Gauge,
}

impl Process {
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
            start: Gauge::new(
                "process_start_time_seconds",
                "When the process started, in seconds since the epoch.",
            )?,
        })
    }

    fn collectors(&self) -> [&dyn Collector; 4] {
        [&self.resident, &self.cpu, &self.open_files, &self.start]
    }
}

/// Clock ticks in a second and bytes in a page, which Linux fixes at these values for user space on
/// `x86_64` and `aarch64` (the page size only in its usual configuration).
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: f64 = 4096.0;

impl Collector for Process {
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
        self.collectors().into_iter().flat_map(Collector::collect).collect()
    }
}

struct ProcessNumbers {
    cpu_seconds: f64,
    resident_bytes: f64,
    start_seconds: f64,
}

/// Reads `/proc/self/stat` (fields 14, 15, 22 and 24 of proc(5)) and the boot time.
fn read_process() -> Option<ProcessNumbers> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let boot = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 = boot.lines().find_map(|line| line.strip_prefix("btime "))?.parse().ok()?;
    // The second field is the command's name in brackets and may hold blanks.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let field = |number: usize| fields.get(number - 3)?.parse::<f64>().ok();
    Some(ProcessNumbers {
        cpu_seconds: (field(14)? + field(15)?) / TICKS_PER_SECOND,
        resident_bytes: field(24)? * PAGE_BYTES,
        start_seconds: boot + field(22)? / TICKS_PER_SECOND,
    })
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

    #[test]
    fn a_bad_filter_is_named() {
        let error = parse_filter("plimsoll=loud").unwrap_err();
        assert!(error.to_string().contains("\"plimsoll=loud\""), "{error}");
    }
}
