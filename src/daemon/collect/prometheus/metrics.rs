//! The source's own metrics.

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{Gauge, GaugeVec, Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use crate::collect::prometheus::failure::QueryOutcome;
use crate::telemetry::registrar::Registrar;

/// Buckets in seconds. An answer for ten replicas takes milliseconds, one for a thousand takes a
/// second or two. Servers abandon queries after at most two minutes.
const DURATION_BUCKETS: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// The source's own metrics. No label has a replica's name.
#[derive(Clone, Debug)]
pub struct PrometheusMetrics {
    queries: IntCounterVec,
    duration: Histogram,
    body_bytes: IntCounter,
    samples: IntCounter,
    pub(crate) series: IntGauge,
    pub(crate) replicas: IntGauge,
    pub(crate) readings: IntCounter,
    pub(crate) failed_readings: IntCounter,
    pub(crate) ahead: IntGauge,
    pub(crate) claimed: IntGauge,
    pub(crate) up: IntGauge,
    // These are absent until there is a time.
    success: GaugeVec,
    newest: GaugeVec,
    pub(crate) interval: Gauge,
}

impl PrometheusMetrics {
    /// Registers the metrics. Every outcome is exported from the start, with 0.
    ///
    /// # Errors
    ///
    /// The registry has a metric with one of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let queries = registrar.counters(
            "plimsoll_prometheus_queries_total",
            "Queries to Prometheus, by outcome.",
            &["outcome"],
        )?;
        for outcome in QueryOutcome::ALL {
            queries.with_label_values(&[outcome.label()]);
        }

        Ok(Self {
            queries,
            duration: registrar.histogram(
                "plimsoll_prometheus_query_duration_seconds",
                "Time from a query to the end of Prometheus's response, or to its failure.",
                DURATION_BUCKETS.to_vec(),
            )?,
            body_bytes: registrar.counter(
                "plimsoll_prometheus_body_bytes_total",
                "Bytes of complete responses from Prometheus, after decompression.",
            )?,
            samples: registrar.counter(
                "plimsoll_prometheus_samples_total",
                "Samples in responses from Prometheus, including repeated ones.",
            )?,
            series: registrar.int_gauge(
                "plimsoll_prometheus_series",
                "Series in the last responses from Prometheus, all queries together.",
            )?,
            replicas: registrar.int_gauge(
                "plimsoll_prometheus_replicas",
                "Replicas that are read from Prometheus, with or without series.",
            )?,
            readings: registrar.counter(
                "plimsoll_prometheus_readings_total",
                "Readings of replicas built from Prometheus's samples.",
            )?,
            failed_readings: registrar.counter(
                "plimsoll_prometheus_reading_failures_total",
                "Scrapes by Prometheus that failed or gave no reading.",
            )?,
            ahead: registrar.int_gauge(
                "plimsoll_prometheus_replicas_ahead",
                "Replicas with refused samples, because their time is in the future.",
            )?,
            claimed: registrar.int_gauge(
                "plimsoll_prometheus_claimed_series",
                "Series in the last responses claimed by several variants and assigned to none.",
            )?,
            up: registrar.int_gauge(
                "plimsoll_prometheus_up",
                "1 if Prometheus's last responses were complete and had series, otherwise 0.",
            )?,
            success: registrar.gauges(
                "plimsoll_prometheus_last_success_timestamp_seconds",
                "Time of Prometheus's last complete responses with series, in seconds since the epoch.",
                &[],
            )?,
            newest: registrar.gauges(
                "plimsoll_prometheus_newest_sample_timestamp_seconds",
                "Time of the newest sample from Prometheus, in seconds since the epoch.",
                &[],
            )?,
            interval: registrar.gauge(
                "plimsoll_prometheus_scrape_interval_seconds",
                "Longest time between two samples of a replica in Prometheus; a single missed one does not count.",
            )?,
        })
    }

    pub(crate) fn asked(&self, took: Duration, bytes: Option<usize>) {
        self.duration.observe(took.as_secs_f64());
        self.body_bytes.inc_by(bytes.unwrap_or_default() as u64);
    }

    pub(crate) fn answered(&self, outcome: QueryOutcome, samples: usize) {
        self.queries.with_label_values(&[outcome.label()]).inc();
        self.samples.inc_by(samples as u64);
    }

    pub(crate) fn succeeded(&self, now: Timestamp) {
        self.success.with_label_values::<&str>(&[]).set(now.as_duration().as_secs_f64());
    }

    pub(crate) fn saw(&self, newest: Timestamp) {
        self.newest.with_label_values::<&str>(&[]).set(newest.as_duration().as_secs_f64());
    }
}

/// Converts a count to a gauge value.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
