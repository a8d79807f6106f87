//! What the server says about itself.

use std::time::Duration;

use jiff::Timestamp;
use prometheus::{
    GaugeVec, Histogram, HistogramVec, IntCounter, IntCounterVec, Registry, exponential_buckets,
};

use crate::publish::external_metrics::authorize::Verdict;
use crate::publish::external_metrics::route::Route;
use crate::server::tls::{CertificateError, Reload};
use crate::telemetry::registrar::Registrar;

/// The server's own metrics. Every label is of a closed set.
#[derive(Clone, Debug)]
pub struct Metrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    authorizations: IntCounterVec,
    age: Histogram,
    // Without a label, and without a sample until there is a certificate.
    not_after: GaugeVec,
    reload_failures: IntCounter,
}

impl Metrics {
    /// Creates the metrics in a registry.
    ///
    /// # Errors
    ///
    /// When one of the names is taken.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        Ok(Self {
            requests: registrar.counters(
                "plimsoll_external_metrics_requests_total",
                "Requests that the external metrics API has answered.",
                &["route", "code"],
            )?,
            // From 50 microseconds, half of what a request should take, to beyond the cap of 1 s.
            duration: registrar.histograms(
                "plimsoll_external_metrics_request_duration_seconds",
                "Time to answer a request of the external metrics API.",
                &["route"],
                exponential_buckets(0.000_05, 4.0, 9)?,
            )?,
            authorizations: registrar.counters(
                "plimsoll_external_metrics_authorization_total",
                "Requests for metrics by what authorization said and where it knew it from.",
                &["outcome"],
            )?,
            // The buckets of the Kubernetes library for such servers: 1 s to about 364 s.
            age: registrar.histogram(
                "plimsoll_external_metrics_metric_age_seconds",
                "Age of the decisions that were served.",
                exponential_buckets(1.0, 1.364, 20)?,
            )?,
            not_after: registrar.gauges(
                "plimsoll_tls_certificate_not_after_timestamp_seconds",
                "When the serving certificate expires.",
                &[],
            )?,
            reload_failures: registrar.counter(
                "plimsoll_tls_reload_failures_total",
                "Attempts to read the serving certificate again that found no good one.",
            )?,
        })
    }

    pub(crate) fn request(&self, route: &Route, code: u16, time: Duration) {
        self.requests.with_label_values(&[route.label(), &code.to_string()]).inc();
        self.duration.with_label_values(&[route.label()]).observe(time.as_secs_f64());
    }

    pub(crate) fn authorization(&self, verdict: &Verdict) {
        self.authorizations.with_label_values(&[verdict.label()]).inc();
    }

    pub(crate) fn age(&self, age: Duration) {
        self.age.observe(age.as_secs_f64());
    }

    /// Records when the serving certificate expires, if there is one.
    pub fn certificate(&self, not_after: Option<Timestamp>) {
        if let Some(not_after) = not_after {
            self.not_after.with_label_values::<&str>(&[]).set(not_after.as_second() as f64);
        }
    }

    /// Records an attempt to read the serving certificate again.
    pub fn reload(&self, outcome: &Result<Reload, CertificateError>, not_after: Option<Timestamp>) {
        if outcome.is_err() {
            self.reload_failures.inc();
        }
        self.certificate(not_after);
    }
}
