//! Counts the connections that a server closed to make room for others.

use prometheus::{IntCounter, IntCounterVec, Registry};

use crate::telemetry::registrar::Registrar;

/// The metric of both servers.
#[derive(Clone, Debug)]
pub struct ShedMetrics(IntCounterVec);

/// A server, by the port that it listens on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShedListener {
    /// The plain HTTP port.
    Plain,
    /// The port of the external metrics API.
    ExternalMetrics,
    /// The port of the external scaler.
    ExternalScaler,
}

/// The connections that one server closed, by kind.
#[derive(Clone, Debug)]
pub struct ShedConnections {
    handshakes: IntCounter,
    strangers: IntCounter,
    slow_readers: IntCounter,
}

/// The kind of a connection that was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ShedKind {
    /// It was in its TLS handshake.
    Handshake,
    /// Its peer showed no verified certificate.
    Stranger,
    /// Its peer left a response unread for longer than any other.
    SlowReader,
}

impl ShedMetrics {
    /// Registers the metric.
    ///
    /// # Errors
    ///
    /// The registry has a metric with this name.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let counter = Registrar(registry).counters(
            "plimsoll_connections_shed_total",
            "Connections closed to make room for others, by listener and kind.",
            &["listener", "kind"],
        )?;
        Ok(Self(counter))
    }

    /// The counters of one server, which are exported from now on.
    #[must_use]
    pub fn of(&self, listener: ShedListener) -> ShedConnections {
        ShedConnections {
            handshakes: self.counter(listener, "handshake"),
            strangers: self.counter(listener, "stranger"),
            slow_readers: self.counter(listener, "slow_reader"),
        }
    }

    fn counter(&self, listener: ShedListener, kind: &str) -> IntCounter {
        self.0.with_label_values(&[listener.label(), kind])
    }
}

impl ShedListener {
    const fn label(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::ExternalMetrics => "external_metrics",
            Self::ExternalScaler => "external_scaler",
        }
    }
}

impl ShedConnections {
    pub(crate) fn count(&self, kind: ShedKind) {
        let counter = match kind {
            ShedKind::Handshake => &self.handshakes,
            ShedKind::Stranger => &self.strangers,
            ShedKind::SlowReader => &self.slow_readers,
        };
        counter.inc();
    }
}
