//! The metrics of the trace.

use prometheus::{IntCounter, IntCounterVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of the trace.
#[derive(Clone)]
pub struct TraceMetrics {
    /// Ticks by their outcome in the trace.
    pub ticks: IntCounterVec,
    /// Bytes written to the trace.
    pub bytes: IntCounter,
    /// Failed attempts to write the trace.
    pub failures: IntCounter,
}

/// The outcome of a tick in the trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TraceOutcome {
    /// The tick is in the trace.
    Written,
    /// The tick is missing, because the disk is too slow or rejects writes.
    Lost,
}

impl TraceOutcome {
    /// Both outcomes.
    pub const ALL: [Self; 2] = [Self::Written, Self::Lost];

    /// Returns the outcome as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Lost => "lost",
        }
    }
}

impl TraceMetrics {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let ticks = registrar.counters(
            "plimsoll_trace_ticks_total",
            "Ticks, by whether the trace contains them.",
            &["outcome"],
        )?;
        for outcome in TraceOutcome::ALL {
            ticks.with_label_values(&[outcome.label()]);
        }

        let bytes = registrar.counter(
            "plimsoll_trace_bytes_total",
            "Bytes written to the trace, after compression.",
        )?;
        let failures = registrar
            .counter("plimsoll_trace_failures_total", "Failed attempts to write the trace.")?;
        Ok(Self { ticks, bytes, failures })
    }
}
