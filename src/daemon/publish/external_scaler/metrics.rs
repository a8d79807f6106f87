//! The metrics of the external scaler.

use jiff::Timestamp;
use prometheus::{GaugeVec, IntCounter, IntCounterVec, IntGauge, Registry};
use tonic::{Code, Status};

use crate::publish::external_scaler::call::ScalerCall;
use crate::server::tls::{CertificateError, CertificateReload};
use crate::telemetry::registrar::Registrar;

/// The metrics of the external scaler. Every label has a fixed set of values.
#[derive(Clone, Debug)]
pub struct ScalerMetrics {
    calls: IntCounterVec,
    pub(super) streams: IntGauge,
    // Has no labels, and no sample until a certificate exists.
    not_after: GaugeVec,
    reload_failures: IntCounter,
}

impl ScalerMetrics {
    /// Creates and registers the metrics.
    ///
    /// # Errors
    ///
    /// A metric with the same name is already registered.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);

        Ok(Self {
            calls: registrar.counters(
                "plimsoll_external_scaler_calls_total",
                "Calls answered by the external scaler; a stream counts when it begins.",
                &["call", "code"],
            )?,
            streams: registrar.int_gauge(
                "plimsoll_external_scaler_streams",
                "Open streams of KEDA's external-push scalers.",
            )?,
            not_after: registrar.gauges(
                "plimsoll_external_scaler_certificate_not_after_timestamp_seconds",
                "Expiry of the external scaler's certificate, in seconds since the epoch.",
                &[],
            )?,
            reload_failures: registrar.counter(
                "plimsoll_external_scaler_certificate_reload_failures_total",
                "Failed attempts to reload the external scaler's certificate.",
            )?,
        })
    }

    /// Counts a response.
    pub(super) fn answered(&self, call: Option<ScalerCall>, refusal: Option<&Status>) {
        let name = call.map_or("other", ScalerCall::label);
        let code = code_label(refusal.map_or(Code::Ok, Status::code));
        self.calls.with_label_values(&[name, code]).inc();
    }

    /// Records the expiry time of the certificate.
    pub fn certificate(&self, not_after: Option<Timestamp>) {
        if let Some(not_after) = not_after {
            self.not_after.with_label_values::<&str>(&[]).set(not_after.as_second() as f64);
        }
    }

    /// Records an attempt to reload the certificate.
    pub fn reload(
        &self,
        outcome: &Result<CertificateReload, CertificateError>,
        not_after: Option<Timestamp>,
    ) {
        if outcome.is_err() {
            self.reload_failures.inc();
        }
        self.certificate(not_after);
    }
}

/// Returns a status that this server answers with, as gRPC spells it.
const fn code_label(code: Code) -> &'static str {
    match code {
        Code::Ok => "OK",
        Code::InvalidArgument => "INVALID_ARGUMENT",
        Code::NotFound => "NOT_FOUND",
        Code::Unavailable => "UNAVAILABLE",
        Code::Unimplemented => "UNIMPLEMENTED",
        Code::ResourceExhausted => "RESOURCE_EXHAUSTED",
        _ => "OTHER",
    }
}
