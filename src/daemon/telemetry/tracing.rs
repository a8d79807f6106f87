//! The metrics of the trace and of the policies beside the one in force.

use prometheus::{IntCounter, IntCounterVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The metrics of the trace.
#[derive(Clone)]
pub struct Tracing {
    /// Ticks by what has become of them.
    pub ticks: IntCounterVec,
    /// Bytes that were written.
    pub bytes: IntCounter,
    /// Times that writing has failed.
    pub failures: IntCounter,
}

/// What becomes of a tick.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the trace.
    Written,
    /// It is not, because the disk is too slow or refuses.
    Lost,
}

impl Outcome {
    /// Both of them.
    pub const ALL: [Self; 2] = [Self::Written, Self::Lost];

    /// The outcome as a label value.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Written => "written",
            Self::Lost => "lost",
        }
    }
}

impl Tracing {
    pub(crate) fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let registrar = Registrar(registry);
        let ticks = registrar.counters(
            "plimsoll_trace_ticks_total",
            "Ticks that are in the trace, or are not.",
            &["outcome"],
        )?;
        for outcome in Outcome::ALL {
            ticks.with_label_values(&[outcome.label()]);
        }
        let bytes = registrar.counter(
            "plimsoll_trace_bytes_total",
            "Bytes that were written to the trace, after compression.",
        )?;
        let failures = registrar.counter(
            "plimsoll_trace_failures_total",
            "Times that the trace could not be written.",
        )?;
        Ok(Self { ticks, bytes, failures })
    }
}
