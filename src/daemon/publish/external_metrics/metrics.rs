//! The metrics of the external metrics server.

use std::time::Duration;

use prometheus::{Histogram, HistogramVec, IntCounterVec, Registry, exponential_buckets};

use crate::publish::external_metrics::authorize::AccessVerdict;
use crate::publish::external_metrics::route::Route;
use crate::server::certificate_metrics::ServingCertificateMetrics;
use crate::telemetry::registrar::Registrar;

/// The metrics of the server. Every label has a fixed set of values.
#[derive(Clone, Debug)]
pub struct ApiMetrics {
    requests: IntCounterVec,
    duration: HistogramVec,
    authorizations: IntCounterVec,
    age: Histogram,
    pub(crate) certificate: ServingCertificateMetrics,
}

impl ApiMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    ///
    /// A metric with the same name is already registered.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);

        Ok(Self {
            requests: registrar.counters(
                "plimsoll_external_metrics_requests_total",
                "Requests answered by the external metrics API.",
                &["route", "code"],
            )?,
            // From 50 microseconds, half the target time of a request, to beyond the limit of 1 s.
            duration: registrar.histograms(
                "plimsoll_external_metrics_request_duration_seconds",
                "Time to answer a request of the external metrics API.",
                &["route"],
                exponential_buckets(0.000_05, 4.0, 9)?,
            )?,
            authorizations: registrar.counters(
                "plimsoll_external_metrics_authorization_total",
                "External metrics requests, by authorization outcome and source.",
                &["outcome"],
            )?,
            // The buckets of the Kubernetes library for external metrics servers: 1 s to about 364
            // s.
            age: registrar.histogram(
                "plimsoll_external_metrics_metric_age_seconds",
                "Age of the decisions that were served as external metrics.",
                exponential_buckets(1.0, 1.364, 20)?,
            )?,
            certificate: ServingCertificateMetrics::register(
                &registrar,
                [
                    "plimsoll_tls_certificate_not_after_timestamp_seconds",
                    "Expiry of the serving certificate, in seconds since the epoch.",
                ],
                [
                    "plimsoll_tls_reload_failures_total",
                    "Failed attempts to reload the serving certificate.",
                ],
            )?,
        })
    }

    pub(crate) fn request(&self, route: &Route, code: u16, time: Duration) {
        self.requests.with_label_values(&[route.label(), &code.to_string()]).inc();
        self.duration.with_label_values(&[route.label()]).observe(time.as_secs_f64());
    }

    pub(crate) fn authorization(&self, verdict: &AccessVerdict) {
        self.authorizations.with_label_values(&[verdict.label()]).inc();
    }

    pub(crate) fn age(&self, age: Duration) {
        self.age.observe(age.as_secs_f64());
    }
}
