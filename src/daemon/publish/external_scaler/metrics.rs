//! The metrics of the external scaler.

use prometheus::{IntCounterVec, IntGauge, Registry};
use tonic::{Code, Status};

use crate::publish::external_scaler::call::ScalerCall;
use crate::server::certificate_metrics::ServingCertificateMetrics;
use crate::telemetry::registrar::Registrar;

/// The metrics of the external scaler. Every label has a fixed set of values.
#[derive(Clone, Debug)]
pub struct ScalerMetrics {
    calls: IntCounterVec,
    pub(super) streams: IntGauge,
    pub(crate) certificate: ServingCertificateMetrics,
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
            certificate: ServingCertificateMetrics::register(
                &registrar,
                [
                    "plimsoll_external_scaler_certificate_not_after_timestamp_seconds",
                    "Expiry of the external scaler's certificate, in seconds since the epoch.",
                ],
                [
                    "plimsoll_external_scaler_certificate_reload_failures_total",
                    "Failed attempts to reload the external scaler's certificate.",
                ],
            )?,
        })
    }

    /// Counts a response.
    pub(super) fn answered(&self, call: Option<ScalerCall>, refusal: Option<&Status>) {
        let name = call.map_or("other", ScalerCall::label);
        let code = code_label(refusal.map_or(Code::Ok, Status::code));
        self.calls.with_label_values(&[name, code]).inc();
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
