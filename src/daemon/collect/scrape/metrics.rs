//! The scraper's own metrics.

use std::time::Duration;

use prometheus::{Histogram, IntCounter, IntCounterVec, IntGauge, Registry};

use crate::telemetry::registrar::Registrar;
use plimsoll_core::observe::ScrapeFailure;

/// Buckets in seconds. A busy vLLM responds in 13 ms at the median and in 300 ms at worst. The
/// first response after a start takes 0.6 s. A scrape that takes 10 s has long timed out.
const DURATION_BUCKETS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// The scraper's own metrics. No label has a target's name, so ten thousand targets have as many
/// series as one.
#[derive(Clone, Debug)]
pub struct ScrapeMetrics {
    duration: Histogram,
    body_bytes: IntCounter,
    samples: IntCounter,
    failures: IntCounterVec,
    pub(crate) missed: IntCounter,
    targets: IntGauge,
}

impl ScrapeMetrics {
    /// Registers the metrics. Every failure reason is exported from the start, with 0.
    ///
    /// # Errors
    ///
    /// The registry has a metric with one of these names.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let metrics = Self {
            duration: registrar.histogram(
                "plimsoll_scrape_duration_seconds",
                "Time from a scrape's request to the end of the response, or to its failure.",
                DURATION_BUCKETS.to_vec(),
            )?,
            body_bytes: registrar.counter(
                "plimsoll_scrape_body_bytes_total",
                "Bytes of complete responses to scrapes, after decompression.",
            )?,
            samples: registrar.counter(
                "plimsoll_scrape_samples_total",
                "Samples read from scrapes; samples of other metrics are skipped.",
            )?,
            failures: registrar.counters(
                "plimsoll_scrape_failures_total",
                "Scrapes that gave no reading, by reason.",
                &["reason"],
            )?,
            missed: registrar.counter(
                "plimsoll_scrape_missed_total",
                "Scrapes skipped because they could not start within their interval.",
            )?,
            targets: registrar
                .int_gauge("plimsoll_scrape_targets", "Targets that are being scraped.")?,
        };

        for failure in ScrapeFailure::ALL {
            metrics.failures.with_label_values(&[failure.label()]);
        }

        Ok(metrics)
    }

    pub(crate) fn attempted(&self, took: Duration) {
        self.duration.observe(took.as_secs_f64());
    }

    pub(crate) fn received(&self, bytes: usize) {
        self.body_bytes.inc_by(bytes as u64);
    }

    pub(crate) fn read(&self, samples: usize) {
        self.samples.inc_by(samples as u64);
    }

    pub(crate) fn failed(&self, failure: ScrapeFailure) {
        self.failures.with_label_values(&[failure.label()]).inc();
    }

    pub(crate) fn set_targets(&self, count: usize) {
        self.targets.set(i64::try_from(count).unwrap_or(i64::MAX));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_of_failure_is_exported_before_it_happens() {
        let registry = Registry::new();
        ScrapeMetrics::register(&registry).unwrap();
        let families = registry.gather();
        let failures = families.iter().find(|f| f.name() == "plimsoll_scrape_failures_total");
        assert_eq!(failures.unwrap().get_metric().len(), ScrapeFailure::ALL.len());
        assert_eq!(families.len(), 6);
        assert!(ScrapeMetrics::register(&registry).is_err());
    }
}
