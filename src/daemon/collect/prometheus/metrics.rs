//! What the source says about itself.

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{
    Gauge, Histogram, HistogramOpts, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
};

use crate::collect::prometheus::failure::Outcome;

/// Seconds: an answer of ten replicas takes milliseconds, one of a thousand a second or two, and
/// servers give up after two minutes at the latest.
const DURATION_BUCKETS: [f64; 10] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 60.0];

/// The source's own metrics. No label has a replica's name.
#[derive(Clone, Debug)]
pub struct Metrics {
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
    success: Gauge,
    newest: Gauge,
    pub(crate) interval: Gauge,
}

impl Metrics {
    /// Registers the metrics; every outcome is there from the start, with 0.
    ///
    /// # Errors
    ///
    /// The registry has a metric with one of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let metrics = Self::unregistered()?;
        for outcome in Outcome::ALL {
            metrics.queries.with_label_values(&[outcome.label()]);
        }
        let Self {
            queries,
            duration,
            body_bytes,
            samples,
            series,
            replicas,
            readings,
            failed_readings,
            ahead,
            claimed,
            up,
            success,
            newest,
            interval,
        } = metrics.clone();
        registry.register(Box::new(queries))?;
        registry.register(Box::new(duration))?;
        for counter in [body_bytes, samples, readings, failed_readings] {
            registry.register(Box::new(counter))?;
        }
        for gauge in [series, replicas, ahead, claimed, up] {
            registry.register(Box::new(gauge))?;
        }
        for gauge in [success, newest, interval] {
            registry.register(Box::new(gauge))?;
        }
        Ok(metrics)
    }

    fn unregistered() -> Result<Self, prometheus::Error> {
        let duration = HistogramOpts::new(
            "plimsoll_prometheus_query_duration_seconds",
            "Time from asking Prometheus to having all of its answer, or to giving up.",
        );
        let queries = Opts::new(
            "plimsoll_prometheus_queries_total",
            "Queries to Prometheus, by what became of them.",
        );
        Ok(Self {
            queries: IntCounterVec::new(queries, &["outcome"])?,
            duration: Histogram::with_opts(duration.buckets(DURATION_BUCKETS.to_vec()))?,
            body_bytes: IntCounter::new(
                "plimsoll_prometheus_body_bytes_total",
                "Bytes of answers of Prometheus that were read whole, after decompression.",
            )?,
            samples: IntCounter::new(
                "plimsoll_prometheus_samples_total",
                "Samples in the answers of Prometheus, repeated ones included.",
            )?,
            series: IntGauge::new(
                "plimsoll_prometheus_series",
                "Series in the last answers of Prometheus, all queries together.",
            )?,
            replicas: IntGauge::new(
                "plimsoll_prometheus_replicas",
                "Replicas that had series in the last answers of Prometheus.",
            )?,
            readings: IntCounter::new(
                "plimsoll_prometheus_readings_total",
                "Readings of replicas that were put together from samples of Prometheus.",
            )?,
            failed_readings: IntCounter::new(
                "plimsoll_prometheus_reading_failures_total",
                "Scrapes of replicas by Prometheus that failed or gave no reading.",
            )?,
            ahead: IntGauge::new(
                "plimsoll_prometheus_replicas_ahead",
                "Replicas whose samples are from the future and were refused.",
            )?,
            claimed: IntGauge::new(
                "plimsoll_prometheus_claimed_series",
                "Series in the last answers that more than one variant claims, and none got.",
            )?,
            up: IntGauge::new(
                "plimsoll_prometheus_up",
                "1 if the last answers of Prometheus were whole and had series, otherwise 0.",
            )?,
            success: Gauge::new(
                "plimsoll_prometheus_last_success_timestamp_seconds",
                "When Prometheus last gave whole answers, in seconds since the epoch.",
            )?,
            newest: Gauge::new(
                "plimsoll_prometheus_newest_sample_timestamp_seconds",
                "Time of the newest sample that Prometheus has given, in seconds since the epoch.",
            )?,
            interval: Gauge::new(
                "plimsoll_prometheus_scrape_interval_seconds",
                "Longest time between two samples of a replica, as Prometheus scrapes it.",
            )?,
        })
    }

    pub(crate) fn asked(&self, took: Duration, bytes: Option<usize>) {
        self.duration.observe(took.as_secs_f64());
        self.body_bytes.inc_by(bytes.unwrap_or_default() as u64);
    }

    pub(crate) fn answered(&self, outcome: Outcome, samples: usize) {
        self.queries.with_label_values(&[outcome.label()]).inc();
        self.samples.inc_by(samples as u64);
    }

    pub(crate) fn succeeded(&self, now: Timestamp) {
        self.success.set(now.as_duration().as_secs_f64());
    }

    pub(crate) fn saw(&self, newest: Timestamp) {
        self.newest.set(newest.as_duration().as_secs_f64());
    }
}

/// A count as a gauge.
pub(crate) fn count(number: usize) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}
