//! Metrics of one serving certificate.

use jiff::Timestamp;
use prometheus::{GaugeVec, IntCounter};

use crate::server::tls::{CertificateError, CertificateReload};
use crate::telemetry::registrar::Registrar;

/// Metrics of one serving certificate. Each server registers them under its own names.
#[derive(Clone, Debug)]
pub(crate) struct ServingCertificateMetrics {
    // Has no labels, and no sample until a certificate exists.
    not_after: GaugeVec,
    reload_failures: IntCounter,
}

impl ServingCertificateMetrics {
    /// Registers the expiry and the failed reloads, each with its name and its description.
    pub(crate) fn register(
        registrar: &Registrar<'_>,
        [expiry, expiry_help]: [&str; 2],
        [failures, failures_help]: [&str; 2],
    ) -> Result<Self, prometheus::Error> {
        Ok(Self {
            not_after: registrar.gauges(expiry, expiry_help, &[])?,
            reload_failures: registrar.counter(failures, failures_help)?,
        })
    }

    /// Records the expiry time of the certificate, if there is one.
    pub(crate) fn expires(&self, not_after: Option<Timestamp>) {
        if let Some(not_after) = not_after {
            self.not_after.with_label_values::<&str>(&[]).set(not_after.as_second() as f64);
        }
    }

    /// Records an attempt to reload the certificate.
    pub(crate) fn reloaded(
        &self,
        outcome: &Result<CertificateReload, CertificateError>,
        not_after: Option<Timestamp>,
    ) {
        if outcome.is_err() {
            self.reload_failures.inc();
        }
        self.expires(not_after);
    }
}
